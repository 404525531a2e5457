"""Built-in data: text lines composed from the 1,797 handwritten digits that come with scikit-learn."""

from __future__ import annotations

import math
import os
import random
from typing import TYPE_CHECKING, Annotated

import numpy as np

from starseq.corpora._build import Report, building
from starseq.data import images
from starseq.data.manifest import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

HEIGHT = 32
_SHARES = {"train": 0.7, "dev": 0.15, "test": 0.15}
Grey = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


def prepare(
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    train: Annotated[int, "Lines to train on."] = 4000,
    dev: Annotated[int, "Lines of dev."] = 400,
    test: Annotated[int, "Lines of test."] = 400,
    seed: Annotated[int, "Another seed, other lines."] = 0,
    progress: Progress | None = None,
) -> Report:
    """Built-in lines of handwritten digits.

    Lines of 3 to 10 real digits with jittered size, gap and slant. Train, dev and test are composed of different digit
    images. The same seed gives the same lines.
    """
    counts = {"train": train, "dev": dev, "test": test}
    if min(counts.values()) < 0 or not sum(counts.values()):
        raise ValueError(f"numbers of lines are not negative, and not all 0; got {counts}")
    pools, done = digit_pools(seed), 0
    with building("digits", out, source=out, skip_bad=False, archive=True) as build:
        for split, count in counts.items():
            for number in range(count):
                text, pixels = compose(pools[split], random.Random(f"{seed}/{split}/{number}"))
                id = f"{split}-{number:06d}"
                fields = {"id": id, "path": f"{id}.png", "text": text, "width": pixels.shape[1], "height": HEIGHT}
                build.add({**fields, "split": split}, "digits", number + 1, member=images.encode(pixels))
                done += 1
                if progress is not None:
                    progress(done, sum(counts.values()))
    return build.report


def digit_pools(seed: int = 0) -> dict[str, dict[str, list[Image]]]:
    """For each split and digit, its images, ink bright: no image is in two splits, and every split has all digits."""
    from PIL import Image as pil
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pools: dict[str, dict[str, list[Image]]] = {split: {} for split in _SHARES}
    for digit in range(10):
        which = np.flatnonzero(labels == digit).tolist()
        random.Random(f"{seed}/digit {digit}").shuffle(which)
        start = 0.0
        for split, share in _SHARES.items():
            chosen = which[round(start * len(which)) : round((start + share) * len(which))]
            grey = [np.clip(pixels[i].reshape(8, 8) * (255 / 16), 0, 255).astype(np.uint8) for i in chosen]
            pools[split][str(digit)] = [pil.fromarray(image) for image in grey]
            start += share
    return pools


def compose(pool: dict[str, list[Image]], draw: random.Random) -> tuple[str, Grey]:
    """A line's text and its pixels (HEIGHT, W), ink dark."""
    text = "".join(draw.choice("0123456789") for _ in range(draw.randint(3, 10)))
    slant, scale = draw.uniform(-0.35, 0.35), draw.uniform(0.85, 1.0)
    line = np.zeros((HEIGHT, 12 + 34 * len(text)), dtype=np.uint8)
    x = draw.randint(2, 8)
    for digit in text:
        size = scale * draw.uniform(0.75, 1.0) * (HEIGHT - 4)
        glyph = np.asarray(_glyph(draw.choice(pool[digit]), size, slant + draw.uniform(-0.06, 0.06)))
        spare = HEIGHT - glyph.shape[0]
        top = min(spare, max(0, spare // 2 + draw.randint(-2, 2)))
        place = line[top : top + glyph.shape[0], x : x + glyph.shape[1]]
        np.maximum(place, glyph, out=place)  # slanted neighbours may overlap, as pen strokes do
        x += glyph.shape[1] + draw.randint(-1, 6)
    return text, 255 - line[:, : x + draw.randint(4, 8)]


def _glyph(image: Image, size: float, slant: float) -> Image:
    """An 8 x 8 digit, `size` high, sheared by `slant`, cut to its ink."""
    from PIL.Image import Resampling, Transform

    height = round(size)
    lean = math.ceil(abs(slant) * height)
    width = height + lean
    step = image.height / height
    # From a place (x, y) of the result to one of the digit: the foot stays, the head moves by slant * height.
    start = -slant * height - (lean if slant < 0 else 0)
    shear = (step, step * slant, step * start, 0.0, step, 0.0)
    sheared = image.transform((width, height), Transform.AFFINE, shear, Resampling.BICUBIC)
    left, _, right, _ = sheared.point(lambda value: 255 if value > 40 else 0).getbbox() or (0, 0, width, height)
    return sheared.crop((left, 0, right, height))
