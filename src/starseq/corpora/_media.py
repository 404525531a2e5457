"""Audio and image files on disk: which they are, and what the manifest says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starseq.data import audio, images

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


def files(root: Path) -> list[Path]:
    """All files under `root`, sorted, hidden ones left out."""
    found = (path for path in root.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))
