"""What was filled in, to be seen and corrected: rows for a page, the sheet that a person ticks, and the manifest that follows."""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.files import check_target, hash_of, write_text
from starseq.data.manifest import Row, manifest_writer, read_bytes, read_manifest, rebaser
from starseq.jobs._fill import with_left
from starseq.report.filled import FilledRow, Gap, Guess
from starseq.report.pictures import drawable, line_picture, picture, sound
from starseq.report.sheet import sheet
from starseq.runs.folder import data_root
from starseq.text.gaps import escape, join_gaps, split_gaps

__all__ = ["Reviewed", "apply_review", "doubtful_rows", "write_sheet"]

PathLike = str | os.PathLike[str]
Record = dict[str, Any]

MOST_ROWS = 1000
"""on a sheet"""
MOST_MEDIA = 64_000_000
"""characters of pictures and sounds on a page; what comes later has none"""


# --- a row, cut -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Characters start .. end - 1 of a text, in which a `*` and an escaped star are one: a filling, or a mark."""

    start: int
    end: int
    record: Record
    """of a filling what `added` says, of a mark what the list says that was left"""
    written: bool

    @property
    def shown(self) -> bool:
        """Not where a person found that nothing is missing."""
        return self.end > self.start


def _characters(text: str) -> list[str | None]:
    """The characters of a text, None for a mark.

    >>> _characters(r"a*\\*")
    ['a', None, '*']
    """
    first, *others = split_gaps(text)
    return [*first, *(character for segment in others for character in (None, *segment))]


def _text(characters: Iterable[str | None]) -> str:
    """The inverse of `_characters`."""
    segments = [""]
    for character in characters:
        if character is None:
            segments.append("")
        else:
            segments[-1] += character
    return join_gaps(segments)


def _places(row: Row, left: Iterable[Record]) -> list[_Place]:
    """The gaps of a row, filled or open, in order. Fillings that its text does not have are a `DataError`."""
    characters = _characters(row.text)
    added = row.get("added", [])
    places: list[_Place] = []
    try:
        for one in added:
            filling = _characters(one["text"])
            start, end = one["position"], one["position"] + len(filling)
            if characters[start:end] != filling or start < (places[-1].end if places else 0):
                raise ValueError
            places.append(_Place(start, end, one, True))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise DataError(
            f"row {row.id!r}: field 'added' does not say what was filled in where, as complete does"
        ) from None
    filled = {position for place in places for position in range(place.start, place.end)}
    known = {one["position"]: one for one in left if "position" in one}
    places += [
        _Place(position, position + 1, known.get(position, {}), False)
        for position, character in enumerate(characters)
        if character is None and position not in filled
    ]
    return sorted(places, key=lambda place: (place.start, place.end))


def _guesses(place: _Place) -> dict[str, Record]:
    """What was read, and what else may stand there: by the text as a person sees it. What cannot be written is no guess."""
    record = place.record
    read = record.get("text") if place.written else record.get("guess") if _fits(record) else None
    first = [] if read is None else [{"text": read, "confidence": record.get("confidence")}]
    return {"*".join(split_gaps(one["text"])): one for one in [*first, *record.get("others", ())]}


def _fits(record: Record) -> bool:
    """Whether what was read can be written: it was left only because the run was not sure of it."""
    return str(record.get("reason", "")).startswith("its confidence")


def _note(place: _Place) -> str:
    record = place.record
    if place.written:
        return str(record.get("reviewed", ""))
    if "guess" in record and not _fits(record):
        return f"read {record['guess']!r}: {record['reason']}"
    return str(record.get("reason", ""))


def _filled_row(row: Row, places: Sequence[_Place]) -> FilledRow:
    characters = _characters(row.text)
    ends = [0, *(place.end for place in places)]
    starts = [*(place.start for place in places), len(characters)]
    known = tuple("".join(map(str, characters[end:start])) for end, start in zip(ends, starts, strict=True))
    gaps = []
    for place in places:
        guesses = tuple(Guess(text, one["confidence"]) for text, one in _guesses(place).items())
        gaps.append(Gap(place.start, place.written, guesses, _note(place)))
    return FilledRow(row.id, row.line, known, tuple(gaps))


# --- rows to show -----------------------------------------------------------------------------------------------------


def doubtful_rows(
    run: runs.Run, manifest: PathLike, count: int, *, root: PathLike | None = None
) -> tuple[list[FilledRow], int]:
    """The `count` rows of a manifest of `starseq complete` or `starseq pseudo` that have the most doubtful gaps, and how many have
    any. Pictures and sounds are those of the files, where they are found under `root`: by default the run's data folder, for the
    run's own corpus, else the manifest's folder.
    """
    left = Path(manifest).with_name(f"{Path(manifest).stem}.left.jsonl")
    rows = read_manifest(manifest, labelled=False)
    total = 0

    def candidates() -> Iterator[tuple[float, int, Row, list[_Place], FilledRow]]:
        nonlocal total
        for row, mine in with_left(rows, left) if left.is_file() else ((row, []) for row in rows):
            places = [place for place in _places(row, mine) if place.shown]
            if places:
                shown = _filled_row(row, places)
                total += 1
                yield shown.confidence, row.line, row, places, shown

    chosen = heapq.nsmallest(count, candidates(), key=lambda one: one[:2])
    roots = [root] if root is not None else _roots(run, Path(manifest))
    size, result = 0, []
    for _, _, row, places, shown in chosen:
        if size < MOST_MEDIA:
            shown = _with_media(run, row, places, shown, Path(manifest).parent, roots)
            size += len(shown.sound) + (len(shown.picture.uri) if shown.picture else 0)
        result.append(shown)
    return result, total


def _roots(run: runs.Run, manifest: Path) -> list[PathLike]:
    """Where files may lie if nothing is said of it: in the manifest's folder, or in that of the run's data."""
    recipe = run.recipe.data
    own = [] if recipe.root is None and recipe.corpus is None else [data_root(run.recipe, run.folder)]
    return [manifest.parent, *own]


def _with_media(
    run: runs.Run, row: Row, places: Sequence[_Place], shown: FilledRow, folder: Path, roots: Sequence[PathLike]
) -> FilledRow:
    """With its picture or sound; without, where the file is not there, or cannot be read."""
    for root in roots:
        try:
            data = read_bytes(row, folder, root)
            return _drawn(run, row, places, shown, data)
        except (OSError, ValueError):
            continue
    return shown


def _drawn(run: runs.Run, row: Row, places: Sequence[_Place], shown: FilledRow, data: bytes) -> FilledRow:
    x = run.reader(row, data)
    is_sound = run.reader.seconds is not None
    if is_sound:
        made = picture(drawable(x, run.reader)[0], ink=False, format="JPEG")
        end = len(x) * (run.reader.seconds or 0.0)
    else:
        made = line_picture(data, name=row.path)
        end = row["width"] if run.reader.size(row) and row.get("width") else len(x)
    gaps = [replace(gap, span=_span(place.record, end)) for gap, place in zip(shown.gaps, places, strict=True)]
    heard = sound(data, name=row.path) if is_sound and row.features is None else ""
    return replace(shown, gaps=tuple(gaps), picture=made, sound=heard)


def _span(record: Record, end: float) -> tuple[float, float] | None:
    start, stop = record.get("start"), record.get("end")
    if not (isinstance(start, int | float) and isinstance(stop, int | float) and end > 0):
        return None
    left, right = (min(max(value / end, 0.0), 1.0) for value in (start, stop))
    return (left, right) if right >= left else None


# --- the sheet --------------------------------------------------------------------------------------------------------


def write_sheet(
    folder: PathLike, manifest: PathLike, target: PathLike, *, root: PathLike | None = None
) -> tuple[int, int]:
    """Write the sheet about a manifest that the run in `folder` completed to `target`: one HTML file, of at most `MOST_ROWS` rows,
    the most doubtful first. How many rows are on it, and how many have gaps."""
    check_target(target, manifest)
    rows, total = doubtful_rows(runs.load(folder), manifest, MOST_ROWS, root=root)
    write_text(target, sheet(rows, total=total, manifest=Path(manifest).name, key=hash_of(manifest)))
    return len(rows), total


# --- what a person decided --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reviewed:
    """What `apply_review` did."""

    rows: int
    accepted: int
    """gaps"""
    corrected: int
    opened: int
    """gaps that a person left open"""
    undecided: int
    """gaps that are as they were"""


def apply_review(manifest: PathLike, review: PathLike, target: PathLike) -> Reviewed:
    """Write the rows of `manifest`, from which a sheet was made, with what a person decided on it, saved in the file `review`.

    A gap that was accepted or corrected has that text, escaped; one that was left open is `*`; what nobody decided on stays as it
    was. All else of a text is kept to the byte. A filling that a person has seen says so in `added`: ``"reviewed": "accepted"``,
    or ``"corrected"``, which has no confidence. A file that no sheet has saved, or about another manifest, is a `DataError`.
    """
    check_target(target, manifest, review)
    decisions = _read_review(review, manifest)
    left = Path(manifest).with_name(f"{Path(manifest).stem}.left.jsonl")
    rows = read_manifest(manifest, labelled=False)
    rebase = rebaser(manifest, target)
    counts: Counter[str] = Counter()
    with manifest_writer(target, labelled=False) as writer:
        for row, mine in with_left(rows, left) if left.is_file() else ((row, []) for row in rows):
            places = _places(row, mine)
            wanted = decisions.pop(row.line, {})
            counts["undecided"] += sum(place.shown for place in places) - len(wanted)
            if wanted:
                row = _decided(row, places, wanted, counts, review)
            writer.write(rebase(row))
        if decisions:
            raise DataError(f"{os.fspath(review)}: {os.fspath(manifest)} has no row in line {min(decisions)}")
    return Reviewed(
        writer.rows, counts["accept"], counts["correct"], counts["open"], counts["undecided"]
    )  # fmt: skip


def _read_review(path: PathLike, manifest: PathLike) -> dict[int, dict[int, tuple[str, str]]]:
    """The decisions by line and position: accept, correct or open, and the text."""
    name = os.fspath(path)
    strange = DataError(f"{name}: not what a sheet of `starseq complete --review` saves")
    try:
        found = json.loads(Path(path).read_bytes())
        key, rows = found["manifest"], found["rows"]
        decisions: dict[int, dict[int, tuple[str, str]]] = {}
        for row in rows:
            mine = decisions.setdefault(int(row["line"]), {})
            for gap in row["gaps"]:
                decision, position, text = gap["decision"], gap["position"], gap.get("text", "")
                if decision not in ("accept", "correct", "open") or type(position) is not int or position in mine:
                    raise strange
                mine[position] = (decision, text)
                text.encode()  # half of a surrogate pair is JSON, but no file can hold it
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise strange from None
    if key != hash_of(manifest):
        raise DataError(
            f"{name}: it is about another manifest than {os.fspath(manifest)}, or that was changed since: give the one that "
            "was written with the sheet"
        )
    return decisions


def _decided(
    row: Row, places: Sequence[_Place], wanted: Mapping[int, tuple[str, str]], counts: Counter[str], review: PathLike
) -> Row:
    """A row with what a person decided."""
    strange = set(wanted) - {place.start for place in places if place.shown}
    if strange:
        raise DataError(f"{os.fspath(review)}: row {row.id!r} has no gap at {min(strange)}")
    old, new, added, done = _characters(row.text), list[str | None](), list[Record](), 0
    marks = _Marks(row)
    for place in places:
        new += old[done : place.start]
        done = place.end
        was = old[place.start : done]
        mark = marks.take(place, was.count(None))
        decision, text = wanted.get(place.start, ("", "")) if place.shown else ("", "")
        counts[decision] += 1
        start = len(new)
        if decision == "open":
            new.append(None)
            marks.left.append(mark)
        elif decision:
            guess = _guesses(place).get(text) if decision == "accept" else None
            new += text if guess is None else _characters(guess["text"])
            marks.left += [mark] * new[start:].count(None)
            added.append({**_seen(place, guess, text, start), **({} if mark is None else {"mark": mark})})
        else:
            new += was
            marks.left += marks.taken
            if place.written:
                added.append({**place.record, "position": start})
    new += old[done:]
    changes = {"text": _text(new), "gaps": "marked", "text_partial": row.get("text_partial", row.text), "added": added}
    return row.replace(**changes, **marks.field())


class _Marks:
    """The field `gap_marks`: what a row says of each mark that is in its text; of a filling its record says it, as `mark`."""

    def __init__(self, row: Row) -> None:
        self._all: Any = row.get("gap_marks")
        self._next = 0
        self.taken: list[Any] = []
        """of the marks in the gap that was taken last"""
        self.left: list[Any] = []
        """of the marks in the new text"""

    def take(self, place: _Place, count: int) -> Any:
        """What is said of the next gap, which has so many marks in it; None where nothing is."""
        marks = self._all if isinstance(self._all, list) else []
        self.taken = marks[self._next : self._next + count]
        self._next += count
        return place.record.get("mark") if place.written else next(iter(self.taken), None)

    def field(self) -> dict[str, Any]:
        return {} if self._all is None else {"gap_marks": self.left}


def _seen(place: _Place, guess: Record | None, text: str, position: int) -> Record:
    """What `added` says of a filling that a person has accepted, or written."""
    record = {"text": escape(text)} if guess is None else {"text": guess["text"], "confidence": guess["confidence"]}
    record["reviewed"] = "corrected" if guess is None else "accepted"
    record |= {name: place.record[name] for name in ("start", "end") if name in place.record}
    return {**record, "position": position}
