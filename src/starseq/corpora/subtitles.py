"""Subtitles beside long recordings: SRT and WebVTT, each cue a row in its recording."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from starseq.corpora._build import Builder, Report, Split, building, split_by_share, split_of_name
from starseq.corpora._media import files
from starseq.corpora._recordings import Part, describe_part, part_id
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress

_SUFFIXES = (".srt", ".vtt")


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with talk.mp3 and talk.srt, or talk.en.vtt, and so on."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    dev: Annotated[float, "Share of recordings for dev, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of recordings for test, where no folder is called test."] = 0.1,
    check: Annotated[bool, "Decode every cue's audio."] = False,
    skip_bad: Annotated[bool, "Write bad cues to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """SRT and WebVTT beside long audio.

    Subtitles leave words out, so text may be missing anywhere in a row; a `*` marks a gap, and only those are open then.
    Formatting and what stands in brackets, such as [music], are taken out.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    found = [path for path in files(root) if path.suffix.lower() in _SUFFIXES]
    split = split_by_share(dev, test)
    with building("subtitles", out, source=root, skip_bad=skip_bad) as build:
        for done, path in enumerate(found, start=1):
            with build.trying(str(path), 1):
                _add(build, path, root, split, check)
            if progress is not None:
                progress(done, len(found))
    return build.report


def _add(build: Builder, path: Path, root: Path, split: Split, check: bool) -> None:
    """The rows of a file of subtitles."""
    recordings = _beside(path)
    if not recordings:
        build.leave_out(f"{path.suffix.lower()} file without a recording")
        return
    if len(recordings) > 1:
        raise DataError(f"belongs to {' and '.join(recording.name for recording in recordings)} alike")
    name = recordings[0].relative_to(root).as_posix()
    stem = name.removesuffix(recordings[0].suffix)
    where = split_of_name(Path(name)) or split(stem)
    for cue in read_cues(path):
        with build.trying(str(path), cue.line, cue.text):
            text = plain_text(cue.text)
            if not text:
                build.leave_out("cue without words")
                continue
            media = describe_part(recordings[0], Part(cue.start, cue.end), name=name, check=check)
            row = {"id": cue.id or part_id(stem, media), "path": name, "text": text, "recording": stem, "split": where}
            if speaker := _VOICE.search(cue.text):
                row["speaker"] = html.unescape(speaker[1].strip())
            build.add({**row, **media}, str(path), cue.line)


def understands(source: Path) -> bool:
    """Whether some subtitles in the folder have a recording beside them."""
    if not source.is_dir():
        return False
    return any(_beside(path) for path in files(source) if path.suffix.lower() in _SUFFIXES)


def _beside(path: Path) -> list[Path]:
    """The recordings that subtitles may belong to: talk.wav for talk.srt and talk.en.srt."""
    for stem in (path.stem, path.stem.rpartition(".")[0]):
        found = sorted(p for suffix in audio.SUFFIXES if stem and (p := path.with_name(stem + suffix)).is_file())
        if found:
            return found
    return []


class Cue(NamedTuple):
    """A subtitle: its text as it stands, from `start` to `end` in seconds; `line` is that of its times."""

    start: float
    end: float
    text: str
    line: int
    id: str = ""
    """of WebVTT, where it is no number"""


_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})[,.](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(\s.*)?")
_VOICE = re.compile(r"<v(?:\.[^ \t>]*)?[ \t]+([^>]*)>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|[♪♫]")


def read_cues(path: Path) -> Iterator[Cue]:
    """The cues of a file; what is none is a `ManifestError` with its line."""
    data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ManifestError(path, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
    is_vtt = path.suffix.lower() == ".vtt"
    if is_vtt and not (lines and lines[0].startswith("WEBVTT")):
        raise ManifestError(path, 1, "not WebVTT, which begins with WEBVTT")
    for start, block in _blocks(lines):
        if is_vtt and (start == 1 or re.match(r"(NOTE|STYLE|REGION)\b", block[0])):
            continue
        at = next((i for i, line in enumerate(block[:2]) if "-->" in line), None)
        times = None if at is None else _TIMES.fullmatch(block[at])
        if at is None or times is None:
            raise ManifestError(
                path, start + (at or 0), f"{block[at or 0][:40]!r} is not the time of a cue, from --> to"
            )
        first, last = _seconds(times.groups()[:4]), _seconds(times.groups()[4:8])
        id = block[0].strip() if at else ""
        yield Cue(
            first, last, "\n".join(block[at + 1 :]), start + at, "" if id.isdigit() or not is_vtt else html.unescape(id)
        )


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines between empty ones, with the number of the first."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0) + float(f"0.{fraction}")


def plain_text(text: str) -> str:
    """The words of a cue, in one line.

    >>> plain_text("- <i>Oh &amp;</i> [door]\\n- {\\\\an8}the * fox")
    'Oh & the * fox'
    """
    text = html.unescape(_ASIDE.sub(" ", _TAG.sub("", text)))
    return " ".join(re.sub(r"(?m)^\s*[-\u2013\u2014]+\s+", " ", text).split())
