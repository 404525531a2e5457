"""Data directories of Kaldi, as ESPnet, Lhotse and many recipes write them: wav.scp, text, perhaps segments and utt2spk."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from starseq.corpora._build import Report, building, split_of_folders
from starseq.corpora._edit import Putter, filled_notation, source_of
from starseq.corpora._media import describe
from starseq.corpora._recordings import Part, describe_part
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress, Row


def prepare(
    source: Annotated[
        str | os.PathLike[str],
        "Folder with wav.scp and text, or one that holds such folders: data, with data/train and so on.",
    ],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    base: Annotated[
        str | os.PathLike[str] | None, "Folder that relative paths of wav.scp begin from; by default the current one."
    ] = None,
    split: Annotated[str | None, "Split of all rows; by default the name of their folder."] = None,
    check: Annotated[bool, "Decode every file, not only its header."] = False,
    skip_bad: Annotated[bool, "Write bad utterances to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Data directories of Kaldi.

    A `*` in the text marks a gap. Segments stay where they are, in their recordings. Commands in wav.scp are not run.
    """
    root = Path(os.path.abspath(source))
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    start = Path.cwd() if base is None else Path(base).resolve()
    found = list(_folders(root))
    if not found:
        raise DataError(f"{source}: no wav.scp in it")
    directories = [_Directory.read(folder, start) for folder in found if (folder / "text").exists()]
    total, done = sum(len(directory.texts) for directory in directories), 0
    seen: dict[str, str] = {}
    with building("Kaldi", out, source=root, skip_bad=skip_bad) as build:
        build.leave_out("folder with wav.scp and without text", len(found) - len(directories))
        for directory in directories:
            texts = str(directory.folder / "text")
            for id, (number, words) in directory.texts.items():
                with build.trying(texts, number, f"{id} {words}"):
                    if (other := seen.setdefault(id, texts)) != texts:
                        raise DataError(f"{id!r} is in {other}, too; one folder alone may be given")
                    if words:
                        row = {"id": id, "text": words, "split": split or directory.split}
                        build.add({**row, **directory.utterance(id, check=check)}, texts, number)
                    else:
                        build.leave_out("utterance without words")
                done += 1
                if progress is not None:
                    progress(done, total)
            heard = directory.recordings if directory.segments is None else directory.segments
            what = "recording" if directory.segments is None else "segment"
            build.leave_out(f"{what} without a text", len(heard.keys() - directory.texts.keys()))
    return build.report


def put_back(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the files `text` that they come from, by their ids."""
    waiting = {row.id: row for row in rows}
    for folder in _folders(source):
        path = folder / "text"
        if not path.is_file():
            continue
        _table(path)  # what is wrong with it
        lines = path.read_bytes().split(b"\n")
        name, found = path.relative_to(source), False
        for number, line in enumerate(lines):
            key, *rest = line.decode("utf-8-sig" if not number else "utf-8").split(maxsplit=1)[:2] or ("",)
            if not rest or key not in waiting:
                continue
            row, found, text = waiting.pop(key), True, rest[0].strip()
            with putter.trying(row):
                if text != source_of(row):
                    raise DataError(f"{path}, line {number + 1}: the text is {text!r} there, and not that of the row")
                fillings = putter.fillings(row)
                new, places = filled_notation(text, fillings)
                before, _, behind = line.rpartition(text.encode())
                lines[number] = before + new.encode() + behind
                putter.put(name, row, fillings, places)
        if found:
            putter.write(name, b"\n".join(lines))
    for row in waiting.values():
        with putter.trying(row):
            raise DataError(f"no utterance {row.id!r} in {source}")


def understands(source: Path) -> bool:
    """Whether the folder is a data directory, or holds some."""
    return source.is_dir() and next(_folders(source), None) is not None


def _folders(root: Path) -> Iterator[Path]:
    """Data directories at `root` and below. Not what Kaldi keeps for itself: copies in hidden folders, parts of a data directory
    within it, and data/local."""
    waiting, seen = [root], set[str]()
    while waiting:
        folder = waiting.pop()
        if (real := os.path.realpath(folder)) in seen:  # links may go round
            continue
        seen.add(real)
        if (folder / "wav.scp").is_file():
            yield folder
            continue
        below = (path for path in folder.iterdir() if path.is_dir())
        waiting += sorted((p for p in below if not p.name.startswith(".") and p.name != "local"), reverse=True)


class _Line(NamedTuple):
    """What stands behind a key, and in which line."""

    number: int
    value: str


@dataclass(frozen=True)
class _Directory:
    folder: Path
    base: Path
    texts: dict[str, _Line]
    recordings: dict[str, _Line]
    segments: dict[str, _Line] | None
    speakers: dict[str, _Line]

    @classmethod
    def read(cls, folder: Path, base: Path) -> _Directory:
        segments = _table(folder / "segments") if (folder / "segments").exists() else None
        speakers = _table(folder / "utt2spk") if (folder / "utt2spk").exists() else {}
        return cls(folder, base, _table(folder / "text"), _table(folder / "wav.scp"), segments, speakers)

    @property
    def split(self) -> str:
        return split_of_folders(Path(self.folder.name, "text")) or self.folder.name

    def utterance(self, id: str, *, check: bool) -> dict[str, Any]:
        """What the manifest says of it."""
        speaker = self.speakers.get(id)
        fields: dict[str, Any] = {} if speaker is None else {"speaker": speaker.value}
        if self.segments is None:
            file = self._file(id)
            return {**fields, "path": str(file), **describe(file, str(file), check=check)}
        recording, part = self._segment(id)
        file = self._file(recording)
        return {
            **fields,
            "recording": recording,
            "path": str(file),
            **describe_part(file, part, name=str(file), check=check),
        }

    def _segment(self, id: str) -> tuple[str, Part]:
        assert self.segments is not None
        if id not in self.segments:
            raise DataError(f"no segment {id!r} in segments")
        number, value = self.segments[id]
        try:
            recording, start, end, *channel = value.split()
            ends = None if float(end) == -1 else float(end)  # -1 is the end of the recording
            (side,) = map(int, channel or ("-1",))
            if not (math.isfinite(float(start)) and math.isfinite(float(end))):
                raise ValueError
            return recording, Part(float(start), ends, None if side == -1 else side)
        except ValueError:
            reason = f"{value!r} is not a recording, its start and its end"
            raise ManifestError(self.folder / "segments", number, reason) from None

    def _file(self, recording: str) -> Path:
        if recording not in self.recordings:
            raise DataError(f"no recording {recording!r} in wav.scp")
        number, value = self.recordings[recording]
        reason = None
        if not value:
            reason = "no file behind it"
        elif value.endswith("|"):
            reason = "a command, which is not run: write what it gives to a file"
        elif re.search(r"\.ark:\d+(\[.*\])?$", value):
            reason = f"{value} is in an archive of Kaldi: write it to a file, as wav-copy does"
        elif Path(value).suffix.lower() in images.SUFFIXES:
            reason = f"{value} is an image"
        if reason is not None:
            raise ManifestError(self.folder / "wav.scp", number, f"recording {recording!r}: {reason}")
        file = self.base / value
        if not os.path.isfile(file):
            hint = "" if os.path.isabs(value) else f"; a path in wav.scp begins from {self.base}, or from --base"
            raise DataError(f"{value}: no such file{hint}")
        return file


def _table(path: Path) -> dict[str, _Line]:
    """A file of keys, each with something behind it, one a line."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ManifestError(path, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
    found: dict[str, _Line] = {}
    for number, line in enumerate(lines, start=1):
        key, *rest = line.split(maxsplit=1)[:2] or ("",)
        if key in found:
            raise ManifestError(path, number, f"{key!r} is there already, in line {found[key].number}")
        if key:
            found[key] = _Line(number, " ".join(rest).strip())
    return found
