"""Manifests: JSON Lines, one row a recording or line image, read and written as streams.

A row has `id`, `path`, `text`, and whatever else its corpus knows; fields that this module does not know pass through
untouched and in their order. Paths are relative to the manifest's folder. Where files sit inside one archive,
`archive`, `offset` and `nbytes` say where, and `path` is only the member's name. A row that is a part of a longer recording
says `start` and `end`, in seconds; `channel`, counted from 0, is one of the file's channels.
"""

from __future__ import annotations

import io
import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, resolve_inside
from starseq.text.gaps import Partial, Unit, has_gap, parse

__all__ = [
    "OPEN_EVERYWHERE",
    "BadRow",
    "BadRowWriter",
    "IdSet",
    "ManifestError",
    "ManifestWriter",
    "Progress",
    "Row",
    "bad_rows_beside",
    "hash64",
    "manifest_writer",
    "open_member",
    "parse_line",
    "read_bytes",
    "read_manifest",
    "rebaser",
    "refuse",
    "row_problem",
    "write_manifest",
]

Progress = Callable[[int, "int | None"], None]
"""``progress(done, total)``; readers of a manifest count bytes, because the number of rows is known only at the end."""

OPEN_EVERYWHERE = (
    "say nothing of gaps, so text may be missing anywhere in them; where that is wrong, write * for each gap, "
    'or give the row "gaps": "marked"'
)
"""what a user is told of such rows; begins with their number"""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROWS_PER_PROGRESS = 1000


class ManifestError(DataError):
    """A bad row: the message names the file, the line and the reason."""

    def __init__(self, file: str | os.PathLike[str], line: int, reason: str) -> None:
        super().__init__(f"{os.fspath(file)}, line {line}: {reason}")
        self.file, self.line, self.reason = os.fspath(file), line, reason

    def __reduce__(self) -> tuple[type[ManifestError], tuple[str, int, str]]:
        # Exceptions pickle by their message alone, and this one must cross from data workers.
        return type(self), (self.file, self.line, self.reason)


@dataclass(slots=True)
class Row:
    """One row: its fields, and the line that it came from (0: none).

    >>> row = Row({"id": "u1", "path": "u1.wav", "text": "the * fox", "mood": "good"})
    >>> row.id, row["mood"], row.partial("word").labels
    ('u1', 'good', ('the', 'fox'))
    >>> list(row.replace(text="fox").fields.values())
    ['u1', 'u1.wav', 'fox', 'good']
    """

    fields: dict[str, Any]
    line: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    @property
    def id(self) -> str:
        value: str = self.fields["id"]
        return value

    @property
    def path(self) -> str:
        value: str = self.fields["path"]
        return value

    @property
    def seconds(self) -> float | None:
        """How long its audio is, if the row says it."""
        if "duration" in self.fields:
            return float(self.fields["duration"])
        return float(self.fields["end"] - self.get("start", 0.0)) if "end" in self.fields else None

    @property
    def is_part(self) -> bool:
        """Whether it is not the whole of its file. Stored features are those of the part alone."""
        return not self.fields.keys().isdisjoint(_PART) and self.features is None

    @property
    def features(self) -> str | None:
        """Of a row that `starseq.data.precompute` wrote: the settings of the features that are stored in place of audio."""
        value = self.fields.get("features")
        return value if isinstance(value, str) and value.startswith("log-mel ") else None

    @property
    def text(self) -> str:
        """The transcript, perhaps with marked gaps; empty for a row without one."""
        value: str = self.fields.get("text", "")
        return value

    @property
    def marked(self) -> bool:
        """Whether only the marked gaps are open. Otherwise labels may be missing anywhere."""
        return self.fields.get("gaps") == "marked" or has_gap(self.text)

    @property
    def complete(self) -> bool:
        """Whether there is a text to compare with what is read: none at all, or one with a marked gap, is not."""
        return bool(self.get("text_full") or (self.text and not has_gap(self.text)))

    def partial(self, unit: Unit) -> Partial:
        """The labels and open gaps of `text` (see `starseq.text.gaps.parse`)."""
        return parse(self.text, unit, marked=self.fields.get("gaps") == "marked")

    def replace(self, **changes: Any) -> Row:
        """A copy with some fields changed in place, or added at the end."""
        return Row({**self.fields, **changes}, self.line)


# --- what a row must be -----------------------------------------------------------------------------------------------

_PART = ("start", "end", "channel")
_SLACK = 0.5
"""seconds by which a row's `duration` may differ from the part that it names: some tools round"""
_POSITIVE = ("duration", "sampling_rate", "sample_rate", "samples", "width", "height")


def row_problem(fields: object, *, labelled: bool = True) -> str | None:
    """What is wrong with a row, or None. An unlabelled manifest may leave out `text`, or leave it empty.

    >>> row_problem({"id": "u1", "path": "u1.wav", "text": "", "duration": 2.5})
    "field 'text' is empty"
    >>> row_problem({"id": "u1", "path": "u1.wav", "text": "hi", "sampling_rate": 0})
    "field 'sampling_rate' must be a number above 0, not 0"
    """
    if not isinstance(fields, dict):
        return f"not a JSON object but {_kind(fields)}"
    for name in ("id", "path", "text") if labelled else ("id", "path"):
        if name not in fields:
            return f"field {name!r} is missing"
        if fields[name] == "":
            return f"field {name!r} is empty"
    for name in ("id", "path", "text", "text_full", "split"):
        if not isinstance(fields.get(name, ""), str):
            return f"field {name!r} must be text, not {_kind(fields[name])}"
    if "gaps" in fields and fields["gaps"] != "marked":
        return f"field 'gaps' must be \"marked\" or absent, not {fields['gaps']!r}"
    for name in _POSITIVE:
        if name in fields and not (_is_number(fields[name]) and 0 < fields[name] < math.inf):
            return f"field {name!r} must be a number above 0, not {_show(fields[name])}"
    if not fields.keys().isdisjoint(_PART) and (problem := _part_problem(fields)):
        return problem
    return _member_problem(fields) if "offset" in fields or "archive" in fields else None


def _part_problem(fields: dict[str, Any]) -> str | None:
    start, end = fields.get("start", 0), fields.get("end", math.inf)
    if not (_is_number(start) and 0 <= start < math.inf):
        return f"field 'start' must be seconds from 0, not {_show(start)}"
    if "end" in fields and not (_is_number(end) and start < end < math.inf):
        return f"field 'end' must be seconds behind 'start', {start:g}, not {_show(end)}"
    if "end" in fields and abs(fields.get("duration", end - start) - (end - start)) > _SLACK:
        return f"field 'duration' is {fields['duration']:g}, but 'end' - 'start' is {end - start:g}"
    channel = fields.get("channel", 0)
    if not isinstance(channel, int) or isinstance(channel, bool) or channel < 0:
        return f"field 'channel' must be a whole number from 0, not {_show(channel)}"
    return None


def _member_problem(fields: dict[str, Any]) -> str | None:
    for name in ("archive", "offset", "nbytes"):
        if name not in fields:
            return f"field {name!r} is missing: a member of an archive has 'archive', 'offset' and 'nbytes'"
    if not isinstance(fields["archive"], str) or not fields["archive"]:
        return f"field 'archive' must be a file name, not {_show(fields['archive'])}"
    for name, least in (("offset", 0), ("nbytes", 1)):
        if not isinstance(fields[name], int) or isinstance(fields[name], bool) or fields[name] < least:
            return f"field {name!r} must be a whole number from {least}, not {_show(fields[name])}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str)) else _kind(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used: where it is, why, and the line as it stands."""

    file: str
    line: int
    reason: str
    raw: str


def read_manifest(
    path: str | os.PathLike[str],
    *,
    labelled: bool = True,
    ids: IdSet | None = None,
    on_bad: Callable[[BadRow], None] | None = None,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """The rows of a manifest, one at a time, each checked by `row_problem` and for an id seen before.

    A bad row raises `ManifestError`, unless `on_bad` takes it; then reading goes on. Pass one `IdSet` to several calls
    to keep ids apart across files. Blank lines are skipped; a file without any row is a `DataError`.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "m.jsonl")
    >>> write_manifest(path, [Row({"id": "u1", "path": "u1.wav", "text": "HELLO"})])
    1
    >>> [row.text for row in read_manifest(path)]
    ['HELLO']
    """
    name = os.fspath(path)
    ids = IdSet() if ids is None else ids
    found_any = False
    with open(path, "rb") as file:
        total, done = os.fstat(file.fileno()).st_size, 0
        for number, line in enumerate(file, start=1):
            done += len(line)
            if progress is not None and (number % _ROWS_PER_PROGRESS == 0 or done == total):
                progress(done, total)
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.isspace() or not line:
                continue
            fields, problem = parse_line(line)
            if not found_any and (kind := foreign(fields)):
                raise DataError(f"{name}: a manifest of another kind, which `starseq prepare {kind}` reads")
            found_any = True
            problem = problem or row_problem(fields, labelled=labelled)
            if problem is None and not ids.add(fields["id"]):
                problem = f"id {fields['id']!r} was used before"
            if problem is None:
                yield Row(fields, number)
            elif on_bad is None:
                raise ManifestError(name, number, problem)
            else:
                on_bad(BadRow(name, number, problem, line.decode(errors="backslashreplace").rstrip("\r\n")))
    if not found_any:
        raise DataError(f"{name}: the manifest is empty")


def parse_line(line: bytes) -> tuple[Any, str | None]:
    """The JSON value of a line, or what keeps it from being one."""
    try:
        text = line.decode().rstrip()
        value = _decoder.decode(text)
        if "\\u" in text:
            # An escaped half of a surrogate pair is JSON, but no file can hold it.
            _encode(value).encode()
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}"
    except UnicodeEncodeError:
        return None, "holds half of a surrogate pair, which is not a character"
    except json.JSONDecodeError as error:
        if not line.endswith(b"\n"):
            return None, f"the file ends in the middle of this line, after {len(line)} bytes"
        return None, f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} in column {error.colno}"
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {error}"
    return value, None


def foreign(fields: object) -> str | None:
    """Of a line that is no row of ours: the corpus of `starseq prepare` that reads such files.

    >>> foreign({"audio_filepath": "a.wav", "duration": 1.0, "text": "hi"})
    'nemo'
    """
    if not isinstance(fields, dict) or "path" in fields:
        return None
    for kind, names in _FOREIGN.items():
        if any(name <= fields.keys() for name in names):
            return kind
    return None


_FOREIGN = {
    "nemo": ({"audio_filepath"}, {"audio_file"}),
    "lhotse": ({"supervisions", "type"}, {"recording_id", "start", "duration"}, {"sources", "sampling_rate"}),
    "huggingface": ({"file_name"},),
}


def _finite(number: str) -> float:
    """Python reads NaN, Infinity and 1e999; JSON has no way to write them again."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no number that JSON can hold")
    return value


_decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def refuse(file: str | os.PathLike[str], row: Row, reason: str, on_bad: Callable[[BadRow], None] | None = None) -> None:
    """Refuse a row that turned out bad only after reading, as `read_manifest` does: raise, or hand it to `on_bad`."""
    if on_bad is None:
        raise ManifestError(file, row.line, reason)
    on_bad(BadRow(os.fspath(file), row.line, reason, _encode(row.fields)))


def hash64(purpose: str, seed: int, key: str) -> int:
    """64 bits that depend on the arguments alone: the same in every process, on every machine.

    >>> hash64("split", 0, "u1") == hash64("split", 0, "u1") != hash64("split", 1, "u1")
    True
    """
    return int.from_bytes(blake2b(f"{purpose}\0{seed}\0{key}".encode(), digest_size=8).digest(), "little")


class IdSet:
    """A set of ids that keeps only 8 bytes of each: an open-addressing table of hashes in one flat array.

    A million ids take 16 MiB. Two different ids look the same with probability
    n^2 / 2^65: 3e-8 for a million.

    >>> ids = IdSet()
    >>> ids.add("u1"), ids.add("u2"), ids.add("u1"), len(ids)
    (True, True, False, 2)
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, id: str) -> bool:
        """Add an id; False if it was there."""
        # Python's own hash serves: it is 64 bits, keyed, and never leaves this process. 0 marks a free slot.
        key = hash(id) & 0xFFFF_FFFF_FFFF_FFFF or 1
        if not _insert(self._table, key):
            return False
        self._count += 1
        if 2 * self._count > len(self._table):
            old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
            for key in old:
                if key:
                    _insert(self._table, key)
        return True


def _insert(table: array[int], key: int) -> bool:
    mask = len(table) - 1
    slot = key & mask
    while found := table[slot]:
        if found == key:
            return False
        slot = (slot + 1) & mask
    table[slot] = key
    return True


# --- writing ----------------------------------------------------------------------------------------------------------


class ManifestWriter:
    """Writes rows to an open file, and counts them; made by `manifest_writer`."""

    def __init__(self, file: BinaryIO, name: str, labelled: bool, checked: bool) -> None:
        self.rows = 0
        self._file, self._name, self._labelled = file, name, labelled
        self._ids = None if checked else IdSet()

    def write(self, row: Row) -> None:
        if self._ids is not None:
            problem = row_problem(row.fields, labelled=self._labelled)
            if problem is None and not self._ids.add(row.id):
                problem = f"id {row.id!r} was used before"
            if problem is not None:
                raise ManifestError(self._name, self.rows + 1, f"not written, {problem}")
        self._file.write(_encode(row.fields).encode() + b"\n")
        self.rows += 1


@contextmanager
def manifest_writer(
    path: str | os.PathLike[str], *, labelled: bool = True, checked: bool = False, name: str | None = None
) -> Iterator[ManifestWriter]:
    """Open a manifest for writing, atomically: `path` changes when the block ends well, and not before.

    What the reader would refuse is refused here too, as `ManifestError`, unless the rows come `checked` from a reader.
    `name` is how such an error calls the file.
    """
    with atomic_writer(path) as file:
        yield ManifestWriter(file, name or os.fspath(path), labelled, checked)


def write_manifest(
    path: str | os.PathLike[str], rows: Iterable[Row | Mapping[str, Any]], *, labelled: bool = True
) -> int:
    """Write rows to a manifest (see `manifest_writer`) and count them."""
    with manifest_writer(path, labelled=labelled) as writer:
        for row in rows:
            writer.write(row if isinstance(row, Row) else Row(dict(row)))
        return writer.rows


class BadRowWriter:
    """Takes bad rows, as `on_bad` of `read_manifest`, and counts them; made by `bad_rows_beside`."""

    def __init__(self, file: BinaryIO) -> None:
        self.rows = 0
        self._file = file

    def __call__(self, bad: BadRow) -> None:
        fields = {"file": bad.file, "line": bad.line, "reason": bad.reason, "raw": bad.raw}
        self._file.write(_encode(fields).encode(errors="backslashreplace") + b"\n")
        self.rows += 1


@contextmanager
def bad_rows_beside(
    target: str | os.PathLike[str], skip_bad: bool, *sources: str | os.PathLike[str]
) -> Iterator[BadRowWriter | None]:
    """Where the bad rows of a job that makes `target` of `sources` go: with `skip_bad` to ``bad.jsonl`` in the same folder, each
    with its reason; otherwise nowhere, and None says that the first one raises.

    ``bad.jsonl`` is written even if no row is bad, so that an old one never passes for new.
    """
    if not skip_bad:
        yield None
        return
    path = Path(target).with_name("bad.jsonl")
    if path == Path(target):
        raise DataError(f"{path}: bad rows go to a file of this name, so choose another for the result")
    for source in sources:
        if os.path.realpath(path) == os.path.realpath(source):
            raise DataError(f"{path}: bad rows go to a file of this name, and it is the one that is read: rename it")
    with atomic_writer(path) as file:
        yield BadRowWriter(file)


def rebaser(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Callable[[Row], Row]:
    """Rows of the manifest `source`, to be written to the manifest `target`: their paths, made relative to its folder.

    >>> row = Row({"id": "u1", "path": "u1.wav", "text": "HELLO"})
    >>> rebaser("corpus/all.jsonl", "runs/train.jsonl")(row).path
    '../corpus/u1.wav'
    """
    here, there = (os.path.realpath(Path(manifest).parent) for manifest in (target, source))
    if here == there:
        return lambda row: row
    prefix = Path(os.path.relpath(there, here)).as_posix()

    def rebase(row: Row) -> Row:
        name = "archive" if "archive" in row.fields else "path"
        return row if os.path.isabs(row[name]) else row.replace(**{name: f"{prefix}/{row[name]}"})

    return rebase


# --- members ----------------------------------------------------------------------------------------------------------


def open_member(row: Row, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> BinaryIO:
    """The file of a row, or its member of an archive, open for reading. See `read_bytes` for what bad input gets."""
    return _member(row, folder, root)


def read_bytes(row: Row, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> bytes:
    """The bytes of a row's file, or of its member of an archive. Of a row that is a part of a recording, a WAV of that part:
    only this is read and decoded.

    `folder` is the manifest's folder; nothing outside `root` (by default the folder) is opened. A missing or empty
    file, a member past the end of its archive, and a part that is not there, is a `DataError`.
    """
    with _member(row, folder, root) as file:
        if not row.is_part:
            return file.read()
        from starseq.data import audio

        source = file if "archive" in row.fields else Path(file.name)  # a path is faster
        return audio.part(source, row.get("start", 0.0), row.get("end"), channel=row.get("channel"), name=row.path)


def _member(row: Row, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> BinaryIO:
    if "archive" not in row.fields:
        return _open(row.path, folder, root)
    file = _open(row["archive"], folder, root)
    start, count = row["offset"], row["nbytes"]
    size = os.fstat(file.fileno()).st_size
    # Compared before anything is read: a wild `nbytes` must not allocate.
    if start + count > size:
        file.close()
        raise DataError(f"{row['archive']}: bytes {start} to {start + count} lie past its end at {size}")
    return cast(BinaryIO, _Member(file, start, count))


class _Member(io.RawIOBase):
    """Some bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, count: int) -> None:
        self._file, self._start, self._count, self._at = file, start, count, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._count)[whence])
        return self._at

    def readall(self) -> bytes:
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, self._count - self._at))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        view = memoryview(buffer)[: max(0, self._count - self._at)]
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        self._at += count
        return int(count)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: str, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> BinaryIO:
    real = resolve_inside(path, folder, root)
    if not real.is_file():
        raise DataError(f"{path}: " + ("not a regular file" if real.exists() else "no such file"))
    if real.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    return real.open("rb")
