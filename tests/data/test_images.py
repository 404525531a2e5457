"""Line images: grey, ink-positive, scaled; one sentence for what is no image."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from starseq.data.errors import DataError
from starseq.data.images import encode, fitted_width, image_size, load_line, open_image
from starseq.data.manifest import read_bytes, read_manifest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def png(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def test_ink_is_one_and_time_runs_along_the_line():
    pixels = np.full((32, 100), 255, np.uint8)
    pixels[4:8, 60] = 0
    x = load_line(encode(pixels))
    assert x.shape == (100, 32)
    assert x.dtype == torch.float32
    assert x.nonzero().tolist() == [[60, y] for y in (4, 5, 6, 7)]
    assert float(x.max()) == 1.0


@pytest.mark.parametrize(
    ("size", "expected"), [((800, 64), (400, 32)), ((100, 16), (200, 32)), ((9000, 64), (600, 32)), ((1, 90), (1, 32))]
)
def test_scaled_to_height_and_at_most_max_width(size, expected):
    data = encode(np.full(size[::-1], 255, np.uint8))
    assert tuple(load_line(data).shape) == expected
    assert fitted_width(*size) == expected[0]
    assert image_size(data) == size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_modes_agree(mode):
    grey = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 8, axis=0).repeat(8, axis=1))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    else:
        image = grey.convert("RGBA").convert(mode) if mode in ("LA", "RGBA") else grey.convert(mode)
    x = load_line(png(image, "TIFF" if mode == "CMYK" else "PNG"), height=8)
    assert torch.allclose(x[:8], torch.ones(8, 8), atol=0.01)
    assert torch.allclose(x[8:], torch.zeros(8, 8), atol=0.01)


def test_transparent_is_paper_and_exif_turns():
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert not load_line(png(clear), height=8).any()
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    data = png(Image.new("L", (40, 10), 255), "JPEG", exif=exif)
    assert image_size(data) == open_image(data).size == (10, 40)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.png: the file is empty"),
        (b"nothing of the kind", "a.png: not an image that can be decoded"),
        (encode(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))[:900], "a.png: the image is damaged"),
        (png(Image.new("F", (4, 4)), "TIFF"), "a.png: the image is damaged (floating-point"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_images_are_one_sentence(data, message):
    with pytest.raises(DataError) as caught:
        open_image(data, name="a.png")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_bombs_and_missing_files(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for read in (open_image, image_size):
        with pytest.raises(DataError, match="too large"):
            read(encode(np.zeros((50, 50), np.uint8)))
        with pytest.raises(DataError, match=r"a\.png: no such file"):
            read(tmp_path / "a.png")
    with pytest.raises(ValueError, match="0 x 5"):
        fitted_width(0, 5)


@pytest.mark.skipif(not (SHARED / "hooker-en").is_dir(), reason="shared/data/hooker-en is not here")
def test_all_lines_of_hooker_have_the_stated_sizes():
    folder = SHARED / "hooker-en"
    stats = json.loads((folder / "STATS.json").read_text())
    rows = list(read_manifest(folder / "manifest.jsonl"))
    assert len(rows) == stats["lines"] == 6855
    widths = 0
    for row in rows:
        x = load_line(read_bytes(row, folder), height=64, max_width=2000, name=row.path)
        assert tuple(x.shape) == (row["width"], 64)
        widths += row["width"]
    assert widths / len(rows) == pytest.approx(stats["mean_width"])
