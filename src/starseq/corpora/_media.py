"""Audio and image files on disk: which they are, and what the manifest says about them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from starseq.data import audio, images
from starseq.data.errors import DataError

SUFFIXES = audio.SUFFIXES | images.SUFFIXES


def describe(source: Path | bytes, name: str, *, check: bool) -> dict[str, Any]:
    """The fields `duration`, `samples`, `sampling_rate` of audio, or `width`, `height` of an image, by `name`'s suffix.

    With `check` the whole file is decoded, so that damage past the header is found too. Bad files: `DataError`.
    """
    if Path(name).suffix.lower() in images.SUFFIXES:
        size = images.open_image(source, name=name).size if check else images.image_size(source, name=name)
        return {"width": size[0], "height": size[1]}
    info = audio.probe(source, name=name)
    if check:
        audio.decode(source, rate=None, name=name)
    return {"duration": round(info.seconds, 6), "samples": info.frames, "sampling_rate": info.rate}


def describe_part(
    file: Path, start: float, end: float | None, *, channel: int | None = None, name: str, check: bool
) -> dict[str, Any]:
    """The fields of a part of a recording, `start` and `end` in seconds: those of `describe`, and where it lies. What is the
    whole of a file has no place. Bad files, and parts that are not there: `DataError`.

    `name` is how an error calls the file.
    """
    if not file.is_file():
        raise DataError(f"{name}: no such file")
    state = file.stat()
    info = _header(file, name, state.st_size, state.st_mtime_ns)
    first, last = audio.span(info, start, end, channel=channel, name=name)
    if check:
        audio.decode(audio.part(file, start, end, channel=channel, name=name), rate=None, name=name)
    fields: dict[str, Any] = {}
    if (first, last) != (0, info.frames):
        fields |= {
            "start": round(start, 6),
            "end": round(last / info.rate if end is None else min(end, info.seconds), 6),
        }
    if channel is not None and info.channels > 1:
        fields["channel"] = channel
    duration = round((last - first) / info.rate, 6)
    return {**fields, "duration": duration, "samples": last - first, "sampling_rate": info.rate}


@lru_cache(maxsize=4096)
def _header(file: Path, name: str, *state: int) -> audio.AudioInfo:
    """Of a recording with many parts, read once."""
    return audio.probe(file, name=name)


def files(root: Path) -> list[Path]:
    """All files under `root`, sorted, hidden ones left out."""
    found = (path for path in root.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))
