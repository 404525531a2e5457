"""Text lines on a page image: cut out along their polygon and straightened along their baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from starseq.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Points = Sequence[tuple[float, float]]
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Grey = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

_MAX_LENGTH, _MAX_HEIGHT = 20_000, 3_000
_STEP = 4.0  # pixels between the places at which an outline is compared with its baseline


def straighten(page: Image, outline: Points, baseline: Points = ()) -> Grey:
    """The line inside `outline` (a polygon), with its baseline made straight and level: (H, W) uint8, ink dark.

    Column s of the result is the page along the normal of the baseline at arc length s, so a bent line unbends and a
    slanted one turns, piece by piece; normals turn smoothly from piece to piece. Outside the polygon there is paper
    (the 75th percentile of what is inside). Without a baseline the line is taken to be level.

    A polygon without area, outside the page or absurdly large is a `DataError`.
    """
    polygon = _polygon(outline)
    width, height = page.size
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    if (high - low).min() < 2 or high.min() < 1 or low[0] > width - 1 or low[1] > height - 1:
        raise DataError("the outline has no area on the page")
    base = _baseline(baseline, low, high)
    along, across = _project(_densify(polygon), base)
    start, end = min(along.min(), 0.0), max(along.max(), _lengths(base)[-1])
    length, rise = int(np.ceil(end - start)), int(np.ceil(across.max() - across.min()))
    if length > _MAX_LENGTH or rise > _MAX_HEIGHT or min(length, rise) < 1:
        raise DataError(f"the straightened line would be {length} x {rise} pixels")
    place, normal = _frame(base, start + 0.5 + np.arange(length))
    rows = across.min() + 0.5 + np.arange(rise)
    x = place[None, :, 0] + rows[:, None] * normal[None, :, 0]
    y = place[None, :, 1] + rows[:, None] * normal[None, :, 1]
    return _sample(page, polygon, x, y)


def _polygon(outline: Points) -> Array:
    polygon = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
    if len(polygon) == 2:  # two corners of a box
        (a, b), (c, d) = polygon
        polygon = np.array([(a, b), (c, b), (c, d), (a, d)])
    if len(polygon) < 3:
        raise DataError(f"the outline has {len(polygon)} points")
    return polygon


def _baseline(baseline: Points, low: Array, high: Array) -> Array:
    """At least two different points, from the line's beginning to its end."""
    base = np.asarray(baseline, dtype=np.float64).reshape(-1, 2)
    if len(base):
        # Points that coincide, or almost, have no direction.
        keep = np.concatenate(([True], np.hypot(*np.diff(base, axis=0).T) >= 1.0))
        base = base[keep]
    if len(base) < 2:
        return np.array([(low[0], high[1]), (high[0], high[1])])
    dx, dy = base[-1] - base[0]
    # Drawn from right to left, the page would stand on its head.
    return base[::-1] if abs(dx) > abs(dy) and dx < 0 else base


def _lengths(base: Array) -> Array:
    """The arc length at each point."""
    return np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(base, axis=0).T))))


def _normals(base: Array) -> Array:
    """The unit normal at each point, downwards for a line that runs to the right: the mean of its two pieces'."""
    step = np.diff(base, axis=0)
    step /= np.hypot(*step.T)[:, None]
    tangent = np.concatenate((step[:1], step[:-1] + step[1:], step[-1:]))
    size = np.hypot(*tangent.T)[:, None]
    tangent = np.where(size > 1e-6, tangent / np.maximum(size, 1e-6), np.concatenate((step[:1], step)))
    return np.stack((-tangent[:, 1], tangent[:, 0]), axis=1)


def _frame(base: Array, s: Array) -> tuple[Array, Array]:
    """Place and unit normal at arc lengths `s`, which may lie past either end: there the line goes on straight."""
    at, normals = _lengths(base), _normals(base)
    place = np.stack([np.interp(s, at, base[:, i]) for i in (0, 1)], axis=1)
    normal = np.stack([np.interp(s, at, normals[:, i]) for i in (0, 1)], axis=1)
    normal /= np.hypot(*normal.T)[:, None]
    past = (np.minimum(s, 0.0) + np.maximum(s - at[-1], 0.0))[:, None]
    return place + past * np.stack((normal[:, 1], -normal[:, 0]), axis=1), normal


def _project(points: Array, base: Array) -> tuple[Array, Array]:
    """For each point, its arc length along the nearest piece of the baseline and its signed distance from it."""
    step = np.diff(base, axis=0)
    size = np.hypot(*step.T)
    unit = step / size[:, None]
    rel = points[:, None] - base[None, :-1]
    t = (rel * unit).sum(axis=2)
    least, most = np.zeros(len(size)), size.copy()
    least[0], most[-1] = -np.inf, np.inf
    t = np.clip(t, least, most)
    offset = rel - t[:, :, None] * unit
    nearest = np.argmin((offset**2).sum(axis=2), axis=1)
    pick = np.arange(len(points)), nearest
    signed = unit[nearest, 0] * offset[pick][:, 1] - unit[nearest, 1] * offset[pick][:, 0]
    distance = np.copysign(np.hypot(*offset[pick].T), signed)
    return _lengths(base)[nearest] + t[pick], distance


def _densify(polygon: Array) -> Array:
    """The polygon's outline as points at most `_STEP` apart."""
    following = np.roll(polygon, -1, axis=0)
    counts = np.maximum(1, np.ceil(np.hypot(*(following - polygon).T) / _STEP)).astype(int)
    return np.concatenate(
        [a + (b - a) * np.arange(n)[:, None] / n for a, b, n in zip(polygon, following, counts, strict=True)]
    )


def _sample(page: Image, polygon: Array, x: Array, y: Array) -> Grey:
    """The page at places (x, y), bilinear; paper outside the polygon."""
    from PIL import Image as images
    from PIL import ImageDraw

    # Only the polygon's part of the page becomes an array.
    left, top = np.floor(np.maximum(polygon.min(axis=0) - 1, 0)).astype(int)
    right, bottom = np.ceil(np.minimum(polygon.max(axis=0) + 2, page.size)).astype(int)
    crop = page.crop((left, top, right, bottom))
    mask = images.new("1", crop.size)
    ImageDraw.Draw(mask).polygon([(px - left, py - top) for px, py in polygon.tolist()], fill=1)
    inside = np.asarray(mask, dtype=bool)
    pixels = np.asarray(crop, dtype=np.float64)
    if not inside.any():
        raise DataError("the outline has no area on the page")
    paper = float(np.percentile(pixels[inside], 75))
    pixels = np.where(inside, pixels, paper)
    # Pixel centres are at + 1/2; a rim of paper stands for everything farther out.
    pixels = np.pad(pixels, 1, constant_values=paper)
    u = np.clip(x - left + 0.5, 0, pixels.shape[1] - 1.001)
    v = np.clip(y - top + 0.5, 0, pixels.shape[0] - 1.001)
    i, j = np.floor(v).astype(int), np.floor(u).astype(int)
    a, b = v - i, u - j
    upper = pixels[i, j] * (1 - b) + pixels[i, j + 1] * b
    lower = pixels[i + 1, j] * (1 - b) + pixels[i + 1, j + 1] * b
    result: Grey = np.clip(upper * (1 - a) + lower * a + 0.5, 0, 255).astype(np.uint8)
    return result
