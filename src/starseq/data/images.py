"""Line images: a file or its bytes to a grey, ink-positive tensor of fixed height."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from starseq.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".pgm", ".ppm", ".jp2"})


def open_image(source: Path | bytes, *, name: str | None = None) -> Image:
    """A decoded greyscale image (mode L), on white where it was transparent, turned as its EXIF says.

    A file that is missing, empty, corrupt, cut short or absurdly large raises `DataError` with one sentence.
    """
    from PIL import Image as images
    from PIL import ImageOps, UnidentifiedImageError

    name = name or (str(source) if isinstance(source, Path) else "image")
    if isinstance(source, Path) and not source.is_file():
        raise DataError(f"{name}: no such file")
    data = source.read_bytes() if isinstance(source, Path) else source
    if not data:
        raise DataError(f"{name}: the file is empty")
    try:
        with images.open(io.BytesIO(data)) as opened:
            return _grey(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError:
        raise DataError(f"{name}: not an image that can be decoded") from None
    except images.DecompressionBombError:
        raise DataError(f"{name}: the image is too large to be a line or a page") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what pillow's decoders raise on damage
        raise DataError(f"{name}: the image is damaged ({str(error).rstrip('.') or type(error).__name__})") from None


def image_size(source: Path | bytes, *, name: str | None = None) -> tuple[int, int]:
    """(width, height) in pixels from the header, without decoding, turned as EXIF says. Bad input: as `open_image`."""
    from PIL import Image as images

    name = name or (str(source) if isinstance(source, Path) else "image")
    try:
        with images.open(source if isinstance(source, Path) else io.BytesIO(source)) as opened:
            sideways = opened.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (opened.height, opened.width) if sideways else (opened.width, opened.height)
    except (images.DecompressionBombError, OSError, SyntaxError, ValueError, EOFError):
        grey = open_image(source, name=name)  # the full decoder says what is wrong, or reads it after all
        return grey.width, grey.height


def fitted_width(width: int, height: int, *, to_height: int = 32, max_width: int = 600) -> int:
    """The width of a line image once it is `to_height` high: in proportion, squeezed to `max_width` where that is less.

    >>> fitted_width(800, 64), fitted_width(4000, 64), fitted_width(1, 500)
    (400, 600, 1)
    """
    if min(width, height) < 1:
        raise ValueError(f"an image has at least one pixel; got {width} x {height}")
    return max(1, min(max_width, round(width * to_height / height)))


def to_line(image: Image, *, height: int = 32, max_width: int = 600) -> Tensor:
    """A greyscale image to (W, H) float32 in [0, 1], ink 1 and paper 0, `fitted_width` wide.

    The published scaling (OrigamiNet's): always `height` high, so that letters keep their size from line to line;
    only a line that would be wider than `max_width` is squeezed.
    """
    from PIL.Image import Resampling

    size = fitted_width(image.width, image.height, to_height=height, max_width=max_width), height
    if image.size != size:
        image = image.resize(size, Resampling.BILINEAR)  # pillow widens the filter when it shrinks: no aliasing
    # In numpy: on a busy machine torch's threads cost more than so small a picture.
    ink = np.ascontiguousarray(255 - np.asarray(image, dtype=np.uint8).T, dtype=np.float32)
    return torch.from_numpy(ink / np.float32(255))


def load_line(source: Path | bytes, *, height: int = 32, max_width: int = 600, name: str | None = None) -> Tensor:
    """`open_image`, then `to_line`: (W, H)."""
    return to_line(open_image(source, name=name), height=height, max_width=max_width)


def encode(pixels: np.ndarray[tuple[int, int], np.dtype[np.uint8]], *, format: str = "PNG") -> bytes:
    """The bytes of an image file that holds grey `pixels` (H, W) uint8, 0 black.

    >>> image_size(encode(np.zeros((3, 5), np.uint8)))
    (5, 3)
    """
    from PIL import Image as images

    buffer = io.BytesIO()
    images.fromarray(pixels).save(buffer, format=format)
    return buffer.getvalue()


def _grey(image: Image) -> Image:
    from PIL import Image as images

    if image.mode == "L":
        image.load()
        return image
    if image.mode.startswith("I"):  # 16 bits, which convert("L") would clip at 255
        wide = np.asarray(image).astype(np.float64)
        top = 65535.0 if wide.max(initial=0) > 255 else 255.0
        return images.fromarray((wide.clip(0, top) * (255.0 / top)).round().astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range")
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        colour = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", colour.size, "white"), colour).convert("L")
    return image.convert("L")
