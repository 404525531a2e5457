"""`starseq manifest`: check, count, split, merge and filter manifests, each in one pass over a stream of rows."""

from __future__ import annotations

import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starseq.data.errors import DataError
from starseq.data.exports import rows_writer
from starseq.data.files import check_target, resolve_inside
from starseq.data.manifest import (
    BadRow,
    IdSet,
    ManifestWriter,
    Progress,
    Row,
    bad_rows_beside,
    hash64,
    manifest_writer,
    read_bytes,
    read_manifest,
    rebaser,
    refuse,
)
from starseq.text.gaps import split_gaps
from starseq.text.tokeniser import Tokeniser

__all__ = [
    "Condition",
    "FilterResult",
    "MergeResult",
    "Parts",
    "Range",
    "Statistics",
    "Validation",
    "filter_manifest",
    "merge",
    "split",
    "statistics",
    "validate",
]

PathLike = str | os.PathLike[str]


# --- validate ---------------------------------------------------------------------------------------------------------


@dataclass
class Validation:
    """How many rows are good, how many bad, and the first of the bad ones."""

    rows: int = 0
    bad: int = 0
    first: list[BadRow] = field(default_factory=list)


def validate(
    path: PathLike,
    *,
    labelled: bool = True,
    files: bool = False,
    root: PathLike | None = None,
    tokeniser: Tokeniser | None = None,
    show: int = 20,
    progress: Progress | None = None,
) -> Validation:
    """Check every row, to the end of the file, and that its path stays under `root` (the manifest's folder by default);
    with `files`, also that its file can be read and is not empty, and with a `tokeniser`, that it can encode the text.
    `first` holds the first `show` bad rows."""
    result = Validation()

    def on_bad(bad: BadRow) -> None:
        result.bad += 1
        if len(result.first) < show:
            result.first.append(bad)

    for row in read_manifest(path, labelled=labelled, on_bad=on_bad, progress=progress):
        try:
            if files:
                read_bytes(row, Path(path).parent, root)
            else:
                resolve_inside(row.get("archive") or row.path, Path(path).parent, root)
            if tokeniser is not None:
                tokeniser.encode(row.text, marked=row.marked)
        except (ValueError, OSError) as error:
            refuse(path, row, str(error), on_bad)
        else:
            result.rows += 1
    return result


# --- stats ------------------------------------------------------------------------------------------------------------


@dataclass
class Range:
    """Count, sum and extremes of a number that some rows have.

    >>> seconds = Range()
    >>> seconds.add(2.0); seconds.add(4.0)
    >>> seconds.count, seconds.mean, seconds.low, seconds.high
    (2, 3.0, 2.0, 4.0)
    """

    count: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


@dataclass
class Statistics:
    """What a manifest holds. Texts are counted without their marks."""

    rows: int = 0
    marked: int = 0
    """rows that mark their gaps, or say that they have none; in the others text may be missing anywhere"""
    gaps: int = 0
    """marks, in all rows"""
    with_gaps: int = 0
    """rows that have one"""
    splits: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    words: Range = field(default_factory=Range)
    length: Range = field(default_factory=Range)
    numbers: dict[str, Range] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        literal = split_gaps(row.text)
        self.rows += 1
        self.marked += row.marked
        self.gaps += len(literal) - 1
        self.with_gaps += len(literal) > 1
        self.splits[row.get("split", "")] += 1
        self.words.add(sum(len(segment.split()) for segment in literal))
        self.length.add(sum(map(len, literal)))
        for segment in literal:
            self.characters.update(segment)
        for name in ("duration", "width", "height"):
            if name in row.fields:
                self.numbers.setdefault(name, Range()).add(row[name])


def statistics(path: PathLike, *, labelled: bool = True, progress: Progress | None = None) -> Statistics:
    """Count what a manifest holds: rows, splits, words, characters, durations, sizes."""
    result = Statistics()
    for row in read_manifest(path, labelled=labelled, progress=progress):
        result.add(row)
    return result


# --- filter -----------------------------------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """A field compared with a value. A row without the field meets no condition on it.

    ``gaps`` compared with a number is how many gaps the text marks.

    >>> short = Condition.parse("duration <= 15")
    >>> short(Row({"duration": 12.5})), short(Row({"duration": 20})), short(Row({}))
    (True, False, False)
    >>> Condition.parse("split=train")(Row({"split": "train"}))
    True
    >>> Condition.parse("gaps>0")(Row({"text": "the * fox"})), Condition.parse("gaps=marked")(Row({"gaps": "marked"}))
    (True, True)
    """

    name: str
    relation: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise DataError(f"condition {text!r} does not read FIELD=VALUE (or !=, <, <=, >, >=)")
        return cls(*match.groups())

    @property
    def counts_gaps(self) -> bool:
        """Whether it is about how many gaps a text marks. No field says that."""
        return self.name == "gaps" and self.value.isdecimal()

    def __call__(self, row: Row) -> bool:
        found = len(split_gaps(row.text)) - 1 if self.counts_gaps else row.get(self.name)
        if found is None:
            return False
        compare = _OPERATORS[self.relation]
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            try:
                return compare(found, float(self.value))
            except ValueError:
                raise DataError(f"field {self.name!r} is a number here, and {self.value!r} is not") from None
        return compare(str(found), self.value)


@dataclass(frozen=True)
class FilterResult:
    """Rows kept, rows left out by a condition, bad rows."""

    kept: int
    left_out: int
    bad: int


def filter_manifest(
    source: PathLike,
    target: PathLike,
    conditions: Sequence[Condition],
    *,
    labelled: bool = True,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> FilterResult:
    """Write the rows of `source` that meet every condition to `target`, another file. A field that no row has is a `DataError`."""
    check_target(target, source)
    left_out = 0
    fields: set[str] = set()
    with bad_rows_beside(target, skip_bad, source) as bad, rows_writer(target, checked=True) as writer:
        rebase = rebaser(source, target)
        for row in read_manifest(source, labelled=labelled, on_bad=bad, progress=progress):
            fields.update(row.fields)
            try:
                keep = all(condition(row) for condition in conditions)
            except DataError as error:
                refuse(source, row, str(error), bad)
                continue
            if keep:
                writer.write(rebase(row))
            else:
                left_out += 1
        for condition in conditions:
            if fields and condition.name not in fields and not condition.counts_gaps:
                there = ", ".join(sorted(fields))
                raise DataError(f"{os.fspath(source)}: no row has the field {condition.name!r} (there are {there})")
    return FilterResult(writer.rows, left_out, bad.rows if bad else 0)


# --- split ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Rows of every part, by its name, and bad rows."""

    parts: dict[str, int]
    bad: int


def split(
    source: PathLike,
    folder: PathLike,
    parts: Mapping[str, float] | None = None,
    *,
    by: str | None = None,
    seed: int = 0,
    labelled: bool = True,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Parts:
    """Write the rows of `source` to one manifest a part, ``folder/PART.jsonl``.

    Without `parts`, a part is a value of the field `by` (by default `split`). With them, rows fall at random into parts
    of the given shares, which their field ``split`` names then, and `by` keeps together the rows that share that field, a
    speaker say. Where a row falls
    depends on (seed, its id or field) alone, so rows that come later move none of the others.
    """
    if parts is not None:
        _check_parts(parts)
    key = by or ("split" if parts is None else "id")
    folder = Path(folder)
    with ExitStack() as stack:
        bad = stack.enter_context(bad_rows_beside(folder / "part.jsonl", skip_bad, source))
        writers: dict[str, ManifestWriter] = {}

        def writer_of(name: str) -> ManifestWriter:
            if name not in writers:
                if len(writers) == _MOST_PARTS:
                    raise DataError(f"{os.fspath(source)}: field {key!r} has over {_MOST_PARTS} values: too many files")
                check_target(folder / f"{name}.jsonl", source)
                writers[name] = stack.enter_context(manifest_writer(folder / f"{name}.jsonl", checked=True))
            return writers[name]

        for name in parts or ():
            writer_of(name)
        rebase = rebaser(source, folder / "part.jsonl")
        for row in read_manifest(source, labelled=labelled, on_bad=bad, progress=progress):
            value = row.get(key)
            if not isinstance(value, (str, int)):
                refuse(source, row, f"field {key!r}, by which rows are split, is missing or no name", bad)
                continue
            name = str(value) if parts is None else _pick(parts, hash64("split", seed, str(value)))
            if _is_part_name(name):
                writer_of(name).write(rebase(row if parts is None else row.replace(split=name)))
            else:
                refuse(source, row, f"{name!r} {_NO_PART_NAME}", bad)
    return Parts({name: writer.rows for name, writer in writers.items()}, bad.rows if bad else 0)


_MOST_PARTS = 100
_NO_PART_NAME = "cannot be the name of a part: use letters, digits, '.', '-' and '_'"


def _is_part_name(name: str) -> bool:
    """Whether `name` can be a file's: it may come from the manifest, and must not lead out of the folder."""
    return re.fullmatch(r"\w[\w.-]{0,99}", name) is not None and name != "bad"


def _check_parts(parts: Mapping[str, float]) -> None:
    for name, share in parts.items():
        if not _is_part_name(name):
            raise DataError(f"{name!r} {_NO_PART_NAME}")
        if not 0 < share < float("inf"):
            raise DataError(f"part {name!r} must have a share above 0, not {share}")
    if not parts:
        raise DataError("a split needs at least one part")


def _pick(parts: Mapping[str, float], draw: int) -> str:
    """The part that a uniform 64-bit `draw` falls into; shares need not sum to 1."""
    *names, last = parts
    left = draw / 2**64 * sum(parts.values())
    for name in names:
        left -= parts[name]
        if left < 0:
            return name
    return last


# --- merge ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MergeResult:
    """Rows written, and bad rows."""

    rows: int
    bad: int


def merge(
    sources: Iterable[PathLike],
    target: PathLike,
    *,
    labelled: bool = True,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> MergeResult:
    """Write the rows of all `sources` to `target`, one manifest after the other. No two rows may share an id."""
    sources = list(sources)
    sizes = [os.stat(source).st_size for source in sources]
    ids = IdSet()
    with bad_rows_beside(target, skip_bad, *sources) as bad, manifest_writer(target, checked=True) as writer:
        for index, source in enumerate(sources):
            rebase = rebaser(source, target)
            step = _shifted(progress, sum(sizes[:index]), sum(sizes))
            for row in read_manifest(source, labelled=labelled, ids=ids, on_bad=bad, progress=step):
                writer.write(rebase(row))
    return MergeResult(writer.rows, bad.rows if bad else 0)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)
