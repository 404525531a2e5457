"""Splits for rows that come without one: the same rows on every machine, whole speakers or pages where rows know them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starseq.data.manifest import Row, hash64

__all__ = ["GROUPS", "DevChoice", "choose_dev", "split_groups"]

GROUPS = ("speaker", "writer", "document", "page", "recording")
"""Fields whose rows should not be on both sides, the first that there is"""

SHARE, LEAST, MOST = 0.1, 20, 500
"""of the rows that can be judged: the share, and the numbers that bound it"""
_LARGEST = 0.2
"""Share of all rows that whole groups may take along"""


def split_groups(sizes: Mapping[str, int], shares: Mapping[str, float], *, seed: int = 0) -> dict[str, str]:
    """Puts whole groups, each of so many rows, into splits that hold their `shares` of the rows, as nearly as groups allow; the
    others are train. A group that is as large as a split, or larger, goes there only where that would be empty otherwise, and
    where it takes no more than a quarter of all rows.

    >>> split_groups({"a": 50, "b": 40, "c": 5, "d": 5}, {"dev": 0.05, "test": 0.06})
    {'a': 'train', 'b': 'train', 'c': 'dev', 'd': 'test'}
    """
    total, found = sum(sizes.values()), dict.fromkeys(sizes, "train")
    order = sorted(sizes, key=lambda name: hash64("split", seed, name))
    for split, share in shares.items():
        rows = 0
        waiting = [name for name in order if found[name] == "train"]
        for name in waiting:
            if sizes[name] and rows + sizes[name] / 2 <= share * total and len(waiting) > 1:
                found[name] = split
                rows += sizes[name]
        small = min((name for name in waiting if sizes[name]), key=lambda name: sizes[name], default=None)
        if share and not rows and small is not None and sizes[small] <= total / 4:
            found[small] = split
    return found


@dataclass(frozen=True)
class DevChoice:
    """Which rows are dev: those whose field `by` is one of `values`, or, where `by` is id, whose id is."""

    by: str
    values: frozenset[str]
    judged: int
    """rows with a complete text among them"""
    rows: int

    def __contains__(self, row: Row) -> bool:
        return str(row.get(self.by)) in self.values


@dataclass
class _Group:
    rows: int = 0
    judged: int = 0


@dataclass
class _Groups:
    by: str
    found: dict[str, _Group] = field(default_factory=dict)


def choose_dev(rows: Iterable[tuple[Row, bool]], *, seed: int = 0) -> DevChoice | None:
    """Chooses dev among training rows, each given with whether its text can be compared with what is read.

    A tenth of the rows that can be judged, at least 20 and at most 500 of them, never more than a quarter. Whole speakers, pages or
    the like go together where every row names one and that leaves enough to train on; rows are chosen one by one otherwise.
    What is chosen depends on hashes alone. None where no more than one row can be judged.

    >>> rows = [Row({"id": f"u{i}", "path": "x", "text": "a", "speaker": str(i % 20)}) for i in range(400)]
    >>> choice = choose_dev((row, True) for row in rows)
    >>> choice.by, len(choice.values), choice.rows
    ('speaker', 2, 40)
    """
    candidates = [_Groups(name) for name in (*GROUPS, "id")]
    total = judged = 0
    for row, can_be_judged in rows:
        total, judged = total + 1, judged + can_be_judged
        for groups in [*candidates]:
            value = row.get(groups.by)
            if not isinstance(value, (str, int)):  # some row does not know it
                candidates.remove(groups)
                continue
            group = groups.found.setdefault(str(value), _Group())
            group.rows, group.judged = group.rows + 1, group.judged + can_be_judged
    if judged < 2:
        return None
    wanted = min(max(round(SHARE * judged), LEAST), MOST, max(1, judged // 4))
    for groups in candidates[:-1]:
        choice = _choose(groups, wanted, int(_LARGEST * total), seed)
        if choice.judged >= max(1, wanted // 2):
            return choice
    return _choose(candidates[-1], wanted, total, seed)


def _choose(groups: _Groups, wanted: int, most: int, seed: int) -> DevChoice:
    """Groups in the order of their hashes, until `wanted` rows can be judged; those that take too many rows are passed over."""
    chosen: list[str] = []
    sums: Counter[str] = Counter()
    order: Sequence[str] = sorted(groups.found, key=lambda value: hash64("dev", seed, value))
    for value in order:
        group = groups.found[value]
        if sums["judged"] >= wanted or not group.judged or sums["rows"] + group.rows > most:
            continue
        chosen.append(value)
        sums.update(rows=group.rows, judged=group.judged)
    return DevChoice(groups.by, frozenset(chosen), sums["judged"], sums["rows"])
