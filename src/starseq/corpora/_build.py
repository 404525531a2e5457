"""What every corpus shares: a folder with a manifest, perhaps an archive, what was bad, and a report of it all."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, folder_if_done, write_text
from starseq.data.manifest import (
    OPEN_EVERYWHERE,
    BadRow,
    BadRowWriter,
    ManifestError,
    ManifestWriter,
    Row,
    bad_rows_beside,
    hash64,
    manifest_writer,
)
from starseq.text.gaps import split_gaps
from starseq.text.marks import UNKNOWN, Action, Marks, Span, suspects

ARCHIVE = "lines.tar"
_TAR_BLOCK = 512
_EXAMPLES, _AROUND, _NAMED = 3, 10, 8
"""of a kind of mark: examples, characters on either side of each; of marks without a rule, how many are printed"""

_reading: ContextVar[Marks | None] = ContextVar("marks that are read", default=None)


@contextmanager
def reading_marks(marks: Marks | None) -> Iterator[None]:
    """Whatever is prepared in the block has its marks read, by any corpus."""
    token = _reading.set(marks)
    try:
        yield
    finally:
        _reading.reset(token)


@dataclass
class MarkCount:
    """How often a kind of mark was found, and the first of them as they stand in their texts."""

    action: Action
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, source: str, start: int, end: int) -> None:
        self.count += 1
        example = source[max(0, start - _AROUND) : end + _AROUND].strip()
        if len(self.examples) < _EXAMPLES and example not in self.examples:
            self.examples.append(example)


@dataclass
class SplitCounts:
    """Counts of one split. `seconds` for audio, `width` (sum of pixels) for images; `longest` in the same unit."""

    rows: int = 0
    seconds: float = 0.0
    width: int = 0
    longest: float = 0.0
    words: int = 0
    characters: int = 0

    def add(self, fields: dict[str, Any], text: str) -> None:
        seconds, width = float(fields.get("duration", 0.0)), int(fields.get("width", 0))
        self.rows += 1
        self.seconds += seconds
        self.width += width
        self.longest = max(self.longest, seconds or width)
        self.words += len(text.split())
        self.characters += len(text)


@dataclass
class Report:
    """What `prepare` wrote: counts by split, character set, what was left out and why, and notes for the user."""

    corpus: str
    manifest: Path
    splits: dict[str, SplitCounts] = field(default_factory=dict)
    charset: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    rates: Counter[int] = field(default_factory=Counter)
    """rows by the sampling rate of their audio"""
    unmarked: int = 0
    """rows that say nothing of gaps"""
    marks: dict[str, MarkCount] = field(default_factory=dict)
    """marks that were read, by what the rule is called"""
    unruled: Counter[str] = field(default_factory=Counter)
    """what looks like a mark: gaps where marks were read, characters where they were not"""
    not_composed: str = ""
    """the first id of a text that is not in the Unicode form NFC"""
    only_gaps: int = 0
    """rows of which nothing is known"""
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.splits.values())

    @property
    def seconds(self) -> float:
        return sum(tally.seconds for tally in self.splits.values())

    @property
    def about_unruled(self) -> str:
        """A sentence about what looks like a mark."""
        named = ", ".join(f"{text!r} {count:,} x" for text, count in self.unruled.most_common(_NAMED))
        more = f" and {len(self.unruled) - _NAMED:,} others (in STATS.json)" if len(self.unruled) > _NAMED else ""
        if self.marks:
            return f"gaps without a rule, for they look like marks: {named}{more}; --gap or a file of rules says what they are"
        return (
            f"read as characters, though they look like a transcriber's marks: {named}{more}; "
            "`starseq prepare` reads marks with --marks and --gap"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "corpus": self.corpus,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "charset": len(self.charset),
            "chars": "".join(char for char, _ in self.charset.most_common()),
            "splits": {name: vars(tally) for name, tally in self.splits.items()},
            "left_out": dict(self.left_out),
            "bad": self.bad,
            "marks": {name: vars(mark) for name, mark in self.marks.items()},
            "marks_without_rule": dict(self.unruled.most_common()),
            "notes": self.notes,
        }

    def __str__(self) -> str:
        """Some lines of text: what the command prints."""
        lines = [f"{self.corpus}: {self.rows:,} rows -> {self.manifest}"]
        for name, tally in self.splits.items():
            size = ""
            if tally.seconds:
                mean = tally.seconds / tally.rows
                size = f", {tally.seconds / 3600:.2f} h (mean {mean:.1f} s, max {tally.longest:.1f} s)"
            elif tally.width:
                size = f", mean width {tally.width / tally.rows:.0f} px (max {tally.longest:.0f})"
            counts = f"{tally.words:,} words, {tally.characters:,} characters"
            lines.append(f"  {name or '(no split)'}: {tally.rows:,} rows{size}, {counts}")
        shown = "".join(char for char, _ in self.charset.most_common())
        lines.append(f"  {len(self.charset)} characters: {shown!r}")
        for name, mark in self.marks.items():
            if name == UNKNOWN:
                continue
            examples = " | ".join(map(repr, mark.examples))
            lines.append(f"  {_BECOMES[mark.action]}: {mark.count:,} x {name}, as in {examples}")
        if self.unruled:
            lines.append(f"  {self.about_unruled}")
        if self.only_gaps:
            lines.append(f"  gaps: {self.only_gaps:,} rows are nothing but a gap")
        lines += [f"  left out: {count:,} x {reason}" for reason, count in sorted(self.left_out.items())]
        if self.bad:
            lines.append(f"  bad: {self.bad:,} rows, see {self.manifest.parent / 'bad.jsonl'}")
        if self.unmarked:
            lines.append(f"  gaps: {self.unmarked:,} rows {OPEN_EVERYWHERE}")
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


_BECOMES: dict[Action, str] = {"gap": "gap", "unclear": "uncertain", "keep": "brackets left out", "drop": "left out"}


class Builder:
    """Takes rows, and what cannot be one; made by `building`."""

    def __init__(
        self, report: Report, manifest: ManifestWriter, bad: BadRowWriter | None, tar: _Tar | None, source: Path
    ) -> None:
        self.report = report
        self._manifest, self._bad, self._tar = manifest, bad, tar
        self._source = self.top = os.path.realpath(source)
        """the deepest folder with the source and all files"""
        self.first_bad: str | None = None
        self.refused: ManifestError | None = None
        self.refusals = 0
        """what is wrong first, and how often something is, where that is not skipped"""
        self._marks = _reading.get()
        self._folder = os.path.realpath(report.manifest.parent)

    def add(
        self, fields: dict[str, Any], file: str, line: int, *, member: bytes | None = None, spans: Sequence[Span] = ()
    ) -> None:
        """A row; its `path` is relative to the source. With `member`, those bytes go into the archive under that name.

        `file` and `line` are where it was described, for the message if it is no good. `spans` are marks that stand beside the
        text.
        """
        if isinstance(fields.get("text"), str):
            try:
                fields = self._read_marks(fields, spans)
            except ValueError as error:
                self.bad(file, line, str(error), fields)
                return
            if "text_source" in fields and not fields["text"].strip():
                self.leave_out("row with no text but its marks")
                return
        if self._tar is not None and member is not None:
            fields = {**fields, **self._tar.add(fields["path"], member)}
        else:
            name = "archive" if "archive" in fields else "path"
            place, file_name = os.path.split(os.path.join(self._source, fields[name]))
            path = os.path.join(os.path.realpath(place), file_name)
            self.top = os.path.commonpath([self.top, os.path.dirname(path), os.path.realpath(path)])
            fields = {**fields, name: Path(os.path.relpath(path, self._folder)).as_posix()}
        try:
            self._manifest.write(Row(fields))
        except ManifestError as error:
            self.bad(file, line, error.reason.removeprefix("not written, "), fields)
            return
        text = "".join(split_gaps(fields["text"]))
        self.report.splits.setdefault(fields.get("split", ""), SplitCounts()).add(fields, text)
        self.report.charset.update(text)
        self.report.unmarked += not Row(fields).marked
        self.report.only_gaps += not text.strip()
        if not unicodedata.is_normalized("NFC", text):
            self.report.not_composed = self.report.not_composed or fields["id"]
        if "sampling_rate" in fields:
            self.report.rates[int(fields["sampling_rate"])] += 1

    def _read_marks(self, fields: dict[str, Any], spans: Sequence[Span]) -> dict[str, Any]:
        """The row with its marks read, if they are; else what looks like one is counted."""
        text = fields["text"]
        if self._marks is None:
            self.report.unruled.update([*suspects(text), *(span.mark for span in spans)])
            return fields
        if "gap_marks" in fields:  # read before
            return fields
        marked = self._marks(text, spans)
        source = "*".join(split_gaps(text))
        for one in marked.found:
            if one.name == UNKNOWN:
                self.report.unruled[source[one.start : one.end]] += 1
            self.report.marks.setdefault(one.name, MarkCount(one.action)).add(source, one.start, one.end)
        own = {"text_source": text} if marked.text != text else {}
        if marked.gaps:
            own["gap_marks"] = [gap.to_dict() for gap in marked.gaps]
        return {**fields, "text": marked.text, "gaps": "marked", **own}

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Something that is not wrong, but no row: counted under `reason`."""
        if count:
            self.report.left_out[reason] += count

    def bad(self, file: str, line: int, reason: str, raw: object = "") -> None:
        """Something wrong: a line of `bad.jsonl`, or a `ManifestError` when all has been read, which says how many there are."""
        if self._bad is None:
            self.refusals += 1
            self.refused = self.refused or ManifestError(file, line, reason)
            return
        text = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
        self._bad(BadRow(file, line, reason, text))
        self.report.bad += 1
        self.first_bad = self.first_bad or f"{file}, line {line}: {reason}"

    @contextmanager
    def trying(self, file: str, line: int, raw: object = "") -> Iterator[None]:
        """What the block raises about its data is `bad`."""
        try:
            yield
        except ManifestError as error:  # it knows its place better
            self.bad(error.file, error.line, error.reason, raw)
        except DataError as error:
            self.bad(file, line, str(error).removeprefix(f"{file}: "), raw)


class _Tar:
    """A tar that knows where each member's bytes begin. Owner and time are fixed, so equal members give equal tars."""

    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar, self._name = tar, name

    def add(self, name: str, data: bytes) -> dict[str, Any]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:  # whoever unpacks it
            raise DataError(f"{name}: a name that leads out of the archive")
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))
        padded = -(-len(data) // _TAR_BLOCK) * _TAR_BLOCK
        return {"archive": self._name, "offset": self._tar.offset - padded, "nbytes": len(data)}


@contextmanager
def building(
    corpus: str, out: str | os.PathLike[str], *, source: str | os.PathLike[str], skip_bad: bool, archive: bool = False
) -> Iterator[Builder]:
    """Writes `out/manifest.jsonl` (with `archive` also `lines.tar`, with `skip_bad` also `bad.jsonl`) and `STATS.json`.

    All of it appears when the block ends well, the manifest last; a job that is killed leaves no manifest that points
    to what is not there. No row at all is a `DataError`.
    """
    folder = Path(out)
    manifest = folder / "manifest.jsonl"
    report = Report(corpus, manifest)
    with ExitStack() as stack:
        stack.enter_context(folder_if_done(folder))
        # Entered first, renamed last.
        rows = stack.enter_context(manifest_writer(manifest))
        bad = stack.enter_context(bad_rows_beside(manifest, skip_bad))
        tar = None
        if archive:
            file = stack.enter_context(atomic_writer(folder / ARCHIVE))
            tar = _Tar(stack.enter_context(tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)), ARCHIVE)
        builder = Builder(report, rows, bad, tar, Path(source))
        yield builder
        if builder.refused is not None:
            more = builder.refusals - 1
            also = (
                f"; {more:,} more {'is' if more == 1 else 'are'} bad: --skip-bad lists them, and goes on"
                if more
                else ""
            )
            raise ManifestError(builder.refused.file, builder.refused.line, builder.refused.reason + also)
        if not rows.rows:
            reasons = [f"{count} x {reason}" for reason, count in report.left_out.items()]
            if builder.first_bad is not None:
                reasons.append(f"{report.bad} bad, first {builder.first_bad}")
            raise DataError(f"{source}: found nothing to put into a manifest" + "".join(f"; {r}" for r in reasons))
        if archive:
            manifest.unlink(missing_ok=True)  # an old manifest must not outlive the archive that it points into
    here = os.path.realpath(folder)
    root = os.path.commonpath([here, builder.top])
    if not archive and root != here:
        place = shlex.quote(os.path.relpath(os.path.join(here, manifest.name), root))
        report.notes.append(
            f"the files lie outside {folder}: read the manifest with --root {shlex.quote(root)}, "
            f"in a recipe data.root={shlex.quote(root)} data.manifest={place}"
        )
    if report.not_composed:
        report.notes.append(
            f"some texts are not in the Unicode form NFC, {report.not_composed!r} for one: they stay as they are, and a recipe's "
            "text.normaliser.form, NFC by default, makes them alike where they are read"
        )
    if len(report.rates) > 1:
        rates = ", ".join(f"{rate:,} Hz in {count:,} rows" for rate, count in sorted(report.rates.items()))
        report.notes.append(
            f"several sampling rates: {rates}; a reader brings all to its own, and low ones lack high frequencies"
        )
    write_text(folder / "STATS.json", json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n")


Split = Callable[[str], str]


def split_by_share(dev: float, test: float, seed: int = 0) -> Split:
    """Puts keys (pages, speakers) into train, dev and test by a hash: a key always goes to the same split.

    >>> split = split_by_share(0.1, 0.1)
    >>> from collections import Counter
    >>> sorted(Counter(split(f"page-{i}") for i in range(1000)))
    ['dev', 'test', 'train']
    """
    if not (dev >= 0 and test >= 0 and dev + test < 1):
        raise ValueError(f"dev and test are shares that leave something to train on; got dev={dev}, test={test}")

    def split(key: str) -> str:
        place = hash64("split", seed, key) / 2**64
        return "test" if place < test else "dev" if place < test + dev else "train"

    return split


_SPLITS = {
    "train": ("train", "training", "tr"),
    "dev": ("dev", "val", "valid", "validation", "va"),
    "test": ("test", "testing", "eval", "te"),
}
_SPLIT_OF = {name: split for split, names in _SPLITS.items() for name in names}


def split_of_folders(path: Path) -> str | None:
    """The split that a relative path's folders name, if one does.

    >>> split_of_folders(Path("val/page/0001.xml"))
    'dev'
    """
    return next((_SPLIT_OF[part.lower()] for part in path.parts[:-1] if part.lower() in _SPLIT_OF), None)


def split_of_name(path: Path) -> str | None:
    """The split that a file's own name speaks of, or else its folders.

    >>> [split_of_name(Path(name)) for name in ("dev_manifest.json", "cuts_train-clean.jsonl.gz", "test/a.srt", "a.srt")]
    ['dev', 'train', 'test', None]
    """
    words = re.split(r"[-_. ]", path.name.lower())
    return next((_SPLIT_OF[word] for word in words[:-1] if word in _SPLIT_OF), None) or split_of_folders(path)
