"""Recordings with many utterances: where a part of one lies, in a file or in a tar, and what it is called."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from starseq.corpora._media import SUFFIXES, describe
from starseq.data import audio, images
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import Row, read_bytes, row_problem

PathLike = str | os.PathLike[str]


_CLOSE = 0.05
"""seconds"""


class Part(NamedTuple):
    """What a row of another toolkit says of its audio; None: nothing."""

    start: float = 0.0
    end: float | None = None
    channel: int | None = None
    about: bool = False
    """whether the end may be rounded: close to that of the recording, it is meant"""


def describe_part(file: Path, part: Part, *, name: str, check: bool) -> dict[str, Any]:
    """The fields of a part of a recording: those of `describe`, and where it lies. What is the whole of a file has no place. Bad
    files, and parts that are not there: `DataError`. `name` is how it calls the file."""
    if not file.is_file():
        raise DataError(f"{name}: no such file")
    state = file.stat()
    info = _header(file, name, state.st_size, state.st_mtime_ns)
    fields = _place(info, part, name)
    if check:
        row = Row({"id": "", "path": file.name, **fields})
        audio.decode(read_bytes(row, file.parent), rate=None, name=name)
    return fields


def describe_member(tar: Path, member: Member, part: Part, *, name: str, check: bool) -> dict[str, Any]:
    """The same of a file in a tar; `archive` is that tar."""
    fields = {"path": member.name, "archive": str(tar), "offset": member.offset, "nbytes": member.size}
    whole = read_bytes(Row({"id": "", **fields}), tar.parent)
    found = _place(audio.probe(whole, name=name), part, name)
    if check:
        describe(whole, name, check=True)
    return {**fields, **found}


def describe_stored(
    row: dict[str, Any], folder: Path, root: PathLike | None, part: Part, *, check: bool
) -> dict[str, Any]:
    """The same of a row as we write them, whose file, or archive, is named from `folder`."""
    if not row.get("archive"):
        file = file_of(row["path"], folder, root)
        if file.suffix.lower() in images.SUFFIXES:
            return {"path": str(file), **describe(file, row["path"], check=check)}
        return {"path": str(file), **describe_part(file, part, name=row["path"], check=check)}
    place = {name: row[name] for name in ("path", "archive", "offset", "nbytes")}
    if problem := row_problem({"id": "-", **place}, labelled=False):
        raise DataError(problem)
    data = read_bytes(Row({"id": "-", **place}), folder, root)
    place["archive"] = str(resolve_inside(row["archive"], folder, root))
    found = describe(data, row["path"], check=check)
    if "width" in found:
        return {**place, **found}
    return {**place, **_place(audio.probe(data, name=row["path"]), part, row["path"])}


@lru_cache(maxsize=4096)
def _header(file: Path, name: str, *state: int) -> audio.AudioInfo:
    """Of a recording with many parts, read once."""
    return audio.probe(file, name=name)


def _place(info: audio.AudioInfo, part: Part, name: str) -> dict[str, Any]:
    end = part.end
    if part.about and end is not None and abs(end - info.seconds) <= _CLOSE:
        end = None
    first, last = audio.span(info, part.start, end, channel=part.channel, name=name)
    fields: dict[str, Any] = {}
    if (first, last) != (0, info.frames):
        fields |= {
            "start": round(part.start, 6),
            "end": round(min(info.seconds if end is None else end, info.seconds), 6),
        }
    if part.channel is not None and info.channels > 1:
        fields["channel"] = part.channel
    duration = round((last - first) / info.rate, 6)
    return {**fields, "duration": duration, "samples": last - first, "sampling_rate": info.rate}


def part_id(stem: str, fields: dict[str, Any]) -> str:
    """An id for a part that has none, in the way of Kaldi: that of its recording, and its milliseconds.

    >>> part_id("talk", {"start": 1.5, "end": 3.25}), part_id("talk", {})
    ('talk-0001500-0003250', 'talk')
    """
    if "start" not in fields:
        return stem
    return f"{stem}-{round(1000 * fields['start']):07d}-{round(1000 * fields['end']):07d}"


def file_of(path: str, folder: Path, root: PathLike | None) -> Path:
    """The file that a row names, inside of `root`, by default `folder`; what is no audio by its name is a `DataError`."""
    file = resolve_inside(path, folder, root)
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: neither audio nor an image by its name")
    return file


# --- tars -------------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file in a tar: its name, where its bytes begin, and how many they are."""

    name: str
    offset: int
    size: int


def members(tar: Path) -> Iterator[Member]:
    """The files of a tar. One that is compressed, so that nothing can be found in it without reading it all, is a `DataError`."""
    try:
        with tarfile.open(tar, "r:") as opened:
            for info in opened:
                if info.isreg() and not info.issparse():
                    yield Member(info.name, info.offset_data, info.size)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{tar}: not a tar that can be read, or a compressed one ({error})") from None


def stem_of(name: str) -> str:
    """The name of a member without folders and suffix."""
    return re.sub(r"\.[^.]*$", "", name.rpartition("/")[2])
