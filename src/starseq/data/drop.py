"""Partial labels: which labels of a transcript are dropped, by the three published strategies.

The choice for a label depends only on (seed, id of the row, position in the row), so the order of rows, sharding and
reruns change nothing. With one seed, what a small pDrop loses a larger one loses too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from itertools import compress
from operator import ge
from typing import NamedTuple, Protocol

from starseq.data.errors import DataError
from starseq.data.manifest import Row, hash64
from starseq.text.gaps import Partial, Unit, parse, render

__all__ = ["Dropped", "Dropper", "FixedDrop", "SampleSplit", "Strategy", "TypeSplit", "drop_labels"]


class Strategy(Protocol):
    """How likely each label is to be dropped."""

    def limits(self, seed: int, id: str, labels: Sequence[str]) -> Sequence[int]:
        """pDrop * 2^32 of every label of the row `id`: a label whose uniform 32-bit number lies below it is dropped."""
        ...


def _limit(p: float) -> int:
    # Exact at both ends: 2^32 lies above every 32-bit number, and 0 above none.
    return round(p * 2**32)


@dataclass(frozen=True)
class FixedDrop:
    """Every label is dropped with the same probability `p`.

    >>> FixedDrop(0.5).limits(0, "u1", ["the", "fox"])
    [2147483648, 2147483648]
    """

    p: float

    def __post_init__(self) -> None:
        _check_rates((self.p,))

    def limits(self, seed: int, id: str, labels: Sequence[str]) -> Sequence[int]:
        return [_limit(self.p)] * len(labels)


@dataclass(frozen=True)
class SampleSplit:
    """The samples fall at random into parts of equal chance, each part with its own pDrop.

    >>> limits = SampleSplit((0.1, 0.4, 0.7)).limits(0, "u1", ["the", "fox"])
    >>> limits[0] == limits[1]
    True
    """

    p: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_rates(self.p)

    def limits(self, seed: int, id: str, labels: Sequence[str]) -> Sequence[int]:
        return [_limit(self.p[hash64("sample", seed, id) % len(self.p)])] * len(labels)


@dataclass(frozen=True)
class TypeSplit:
    """The vocabulary falls at random into parts of equal chance, each part with its own pDrop.

    A part holds word *types*: wherever a word occurs, it has the same pDrop. With characters, the types are characters.

    >>> limits = TypeSplit((0.1, 0.4, 0.7)).limits(0, "u1", ["the", "fox", "the"])
    >>> limits[0] == limits[2]
    True
    """

    p: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_rates(self.p)

    def limits(self, seed: int, id: str, labels: Sequence[str]) -> Sequence[int]:
        limits = [_limit(p) for p in self.p]
        return [limits[_type_hash(seed, label) % len(limits)] for label in labels]


# Words repeat, so their hashes are worth keeping; the bound keeps a vocabulary of millions out of memory.
@lru_cache(maxsize=1 << 16)
def _type_hash(seed: int, label: str) -> int:
    return hash64("type", seed, label)


def _check_rates(rates: Sequence[float]) -> None:
    if not rates:
        raise DataError("pDrop: a split needs at least one part")
    for rate in rates:
        if not 0 <= rate <= 1:
            raise DataError(f"pDrop must lie between 0 and 1, and {rate} does not")


def _draws(seed: int, id: str, count: int) -> tuple[int, ...]:
    """`count` uniform 32-bit numbers. SHAKE's output can be cut anywhere, so number i does not depend on `count`."""
    return struct.unpack(f"<{count}I", shake_128(f"drop\0{seed}\0{id}".encode()).digest(4 * count))


def drop_labels(partial: Partial, kept: Sequence[bool]) -> Partial:
    """`partial` without the labels that are not `kept`. The gaps around a lost label become one, and that is open.

    >>> drop_labels(Partial(("a", "b", "c"), (False,) * 4), [True, False, True])
    Partial(labels=('a', 'c'), open=(False, True, False))
    """
    labels: list[str] = []
    gaps = [partial.open[0]]
    for label, is_kept, gap in zip(partial.labels, kept, partial.open[1:], strict=True):
        if is_kept:
            labels.append(label)
            gaps.append(gap)
        else:
            gaps[-1] = True
    return Partial(tuple(labels), tuple(gaps))


class Dropped(NamedTuple):
    """A row after dropping, and how many of its labels are left. `kept` is 0 where nothing is: prune such rows."""

    row: Row
    labels: int
    kept: int


@dataclass(frozen=True)
class Dropper:
    r"""Drops labels from rows.

    With `mark`, each run of dropped labels leaves a `*` and the row says ``"gaps": "marked"``: its open gaps are those,
    and no others. Rows that come with marked gaps keep them, and are marked on, with or without `mark`: a label that
    vanished from them without a mark would make them lie. `keep_text` keeps the full text in `text_full`.

    >>> row = Row({"id": "u1", "path": "u1.wav", "text": "the quick brown fox"})
    >>> dropper = Dropper(FixedDrop(0.5), unit="word", seed=5, mark=True, keep_text=True)
    >>> dropper(row).row.fields["text"], dropper(row).row.fields["gaps"]
    ('the quick * fox', 'marked')
    >>> dropper(row).row.fields["text_full"]
    'the quick brown fox'
    """

    strategy: Strategy
    unit: Unit = "word"
    seed: int = 0
    mark: bool = False
    keep_text: bool = False

    def __post_init__(self) -> None:
        if self.unit not in ("word", "char"):
            raise DataError(f"unit must be 'word' or 'char', not {self.unit!r}")

    def __call__(self, row: Row) -> Dropped:
        text, marked = row.text, row.marked
        if self.mark and not marked and row.get("text_full", text) != text:
            raise DataError(
                f"row {row.id!r} lost labels before without marks, so marks now would close gaps that are open: "
                "drop from the full text"
            )
        marked = marked or self.mark
        is_plain = "*" not in text and "\\" not in text
        left, labels, kept = (self._drop_plain if is_plain else self._drop)(row.id, text, marked)
        fields = {**row.fields, "text": left}
        fields.pop("gap_marks", None)  # these are other gaps
        if marked:
            fields["gaps"] = "marked"
        if self.keep_text:
            fields.setdefault("text_full", text)
        return Dropped(Row(fields, row.line), labels, kept)

    def _drop(self, id: str, text: str, marked: bool) -> tuple[str, int, int]:
        """The text that is left, the number of its labels before and after."""
        before = parse(text, self.unit, marked=True)
        after = drop_labels(before, self._choose(id, before.labels))
        left = render(after.labels, self.unit, after.open if marked else None)
        return left, len(before.labels), len(after.labels)

    def _drop_plain(self, id: str, text: str, marked: bool) -> tuple[str, int, int]:
        """The same as `_drop` for a text without gaps and escapes, as nearly all are, by faster steps."""
        labels = text.split() if self.unit == "word" else list(text)
        kept = self._choose(id, labels)
        separator = " " if self.unit == "word" else ""
        if marked:
            left = separator.join([label if is_kept else "*" for label, is_kept in zip(labels, kept, strict=True)])
            adjacent = f"*{separator}*"
            while adjacent in left:
                left = left.replace(adjacent, "*")
        else:
            left = separator.join(compress(labels, kept))
        return left, len(labels), sum(kept)

    def _choose(self, id: str, labels: Sequence[str]) -> list[bool]:
        """Which labels are kept."""
        return list(map(ge, _draws(self.seed, id, len(labels)), self.strategy.limits(self.seed, id, labels)))
