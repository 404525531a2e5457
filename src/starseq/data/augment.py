"""Augmentation on the device, a pure function of (seed, epoch, id).

What is drawn comes from `seeds.generator(seed, epoch, id)` on the CPU, so an item is augmented alike whatever its
batch, rank, worker or device, and a run that resumes sees what it would have seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starseq.data.seeds import generator

_LOWEST, _CORNER = 20.0, 700.0  # Hz: where the mel bands of features.py begin, and the corner of their scale


@dataclass(frozen=True)
class SpecAugment:
    """Masks in frequency and time (Park et al. 2019); the defaults are the published settings, which do not warp time.

    Each frequency mask covers 0 to `freq_width` bands, each time mask 0 to min(`time_width`, `time_ratio` * length)
    frames, uniformly, at a uniform place. Masked values become 0, the mean of normalised features. Before optimiser
    step `start_step` nothing happens.

    For few speakers, before the masks, two perturbations that are off by default. Vocal tract length (Jaitly and Hinton
    2013): every band takes what was at its frequency times a factor, drawn uniformly from 1 - `tract` to 1 + `tract` for each
    utterance; the bands are mel bands of 20 to `top` Hz, and the outermost stand for what lies beyond. Tempo: frames move by
    a smooth random field of `time_warp` frames (the standard deviation), a cubic B-spline of control points `warp_step`
    frames apart. The length stays, so up to about 3 * `time_warp` frames may be lost at either end, which should be few of
    the utterance's; and keep `time_warp` far below `warp_step`, or time runs backwards here and there.

    >>> augment, x = SpecAugment(start_step=100), torch.ones(1, 50, 80)
    >>> y = augment(x, [50], ["utt-1"], seed=0, epoch=2, step=100)
    >>> torch.equal(y, x), torch.equal(augment(x, [50], ["utt-1"], seed=0, epoch=2, step=99), x)
    (False, True)
    """

    freq_masks: int = 2
    freq_width: int = 30
    time_masks: int = 10
    time_width: int = 50
    time_ratio: float = 0.1
    start_step: int = 32_000
    tract: float = 0.0
    top: float = 7600.0
    time_warp: float = 0.0
    warp_step: float = 50.0

    def __post_init__(self) -> None:
        for name in ("freq_masks", "freq_width", "time_masks", "time_width", "time_ratio", "start_step", "time_warp"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is not negative, and finite; got {getattr(self, name)}")
        if not 0 <= self.tract < 1:
            raise ValueError(f"tract is at least 0 and less than 1; got {self.tract}")
        if not _LOWEST < self.top < math.inf:
            raise ValueError(f"top is above {_LOWEST:g} Hz, and finite; got {self.top}")
        if not 0 < self.warp_step < math.inf:
            raise ValueError(f"warp_step is positive, and finite; got {self.warp_step}")

    def __call__(
        self, x: Tensor, lengths: Tensor | Sequence[int], ids: Sequence[str], *, seed: int, epoch: int, step: int
    ) -> Tensor:
        """x (B, T, F) -> a new tensor, frames past `lengths` (B,) untouched; x itself before the start."""
        if step < self.start_step:
            return x
        B, T, F = x.shape
        frames = torch.as_tensor(lengths).tolist()
        if not len(frames) == len(ids) == B:
            raise ValueError(f"x holds {B} items, lengths {len(frames)}, ids {len(ids)}")
        if frames and max(frames) > T:
            raise ValueError(f"lengths: {max(frames)} is more than the {T} frames of x")
        if (self.tract or self.time_warp) and x.numel():
            others = [generator(seed, epoch, f"{id} warp") for id in ids]  # other numbers than the masks have
            x = self._warped(x, frames, others)
        freq, time = torch.zeros(B, F, dtype=torch.bool), torch.zeros(B, T, dtype=torch.bool)
        for b, (id, length) in enumerate(zip(ids, frames, strict=True)):
            draw = generator(seed, epoch, id)
            width = min(self.time_width, int(self.time_ratio * length))
            _mask(freq[b], F, self.freq_masks, min(self.freq_width, F), draw)
            _mask(time[b], length, self.time_masks, width, draw)
        masked = freq.to(x.device)[:, None, :] | time.to(x.device)[:, :, None]
        inside = torch.arange(T, device=x.device) < torch.as_tensor(lengths).to(x.device)[:, None]
        return x.masked_fill(masked & inside[:, :, None], 0.0)

    def _warped(self, x: Tensor, frames: Sequence[int], draws: Sequence[torch.Generator]) -> Tensor:
        """x (B, T, F), each item as another might have said it; frames past the lengths are those of x."""
        _, T, F = x.shape
        factors = torch.stack([torch.rand((), generator=draw, dtype=torch.float64) for draw in draws]) * 2 - 1
        last = torch.tensor(frames)[:, None] - 1
        warped = x.to(torch.promote_types(x.dtype, torch.float32))
        # One axis after the other, between neighbours that are looked up: whole numbers do not round in a long batch.
        if self.time_warp:
            weights = spline_weights(T, self.warp_step)
            control = torch.zeros(len(x), weights.shape[1], dtype=torch.float64)
            for b, (length, draw) in enumerate(zip(frames, draws, strict=True)):
                # As many as the utterance's own frames see, so that a longer batch changes nothing.
                size = _controls(length, self.warp_step)
                control[b, :size] = torch.randn(size, generator=draw, dtype=torch.float64)
            time = torch.arange(T, dtype=torch.float64) + self.time_warp * control @ weights.T
            warped = _between(warped, time.clamp_min(0).minimum(last.clamp_min(0)))
        if self.tract:
            warped = _between(warped.mT, _heard_at(1 + self.tract * factors, F, self.top)).mT
        outside = torch.arange(T)[None] > last
        return torch.where(outside.to(x.device)[:, :, None], x, warped.to(x.dtype))


@dataclass(frozen=True)
class RandomProjective:
    """Moves the corners of a line image by up to `max_shift` pixels, and fits what results to the image's own size.

    After OrigamiNet: a fair coin chooses whether corners move sideways or up and down; each moves uniformly; the moved
    outline's bounding box is stretched back to the image, so no ink is cut off. A side keeps at least a quarter of
    its length, so the map never folds. Background (0) comes in from outside.

    For few lines: points move by a smooth random field as well, `elastic` pixels of the old image (the standard deviation
    along each axis; 0: none). It is a cubic B-spline of control points `elastic_step` pixels apart. It may push ink at the
    edge out of the picture, by a few pixels. And `masks` stretches of up to `mask_width` columns, and a tenth of the line,
    are blanked. Before optimiser step `start_step` nothing happens.

    >>> augment, x = RandomProjective(), torch.rand(2, 100, 32)
    >>> y = augment(x, [100, 80], ["a", "b"], seed=0, epoch=1)
    >>> y.shape, float(y[1, 80:].abs().sum())
    (torch.Size([2, 100, 32]), 0.0)
    """

    max_shift: float = 16.0
    start_step: int = 0
    masks: int = 0
    mask_width: int = 16
    elastic: float = 0.0
    elastic_step: float = 24.0

    def __post_init__(self) -> None:
        for name in ("max_shift", "start_step", "masks", "mask_width", "elastic"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is not negative, and finite; got {getattr(self, name)}")
        if not self.elastic_step > 0:
            raise ValueError(f"elastic_step is positive; got {self.elastic_step}")

    def __call__(
        self, x: Tensor, lengths: Tensor | Sequence[int], ids: Sequence[str], *, seed: int, epoch: int, step: int = 0
    ) -> Tensor:
        """x (B, W, H), ink-positive, columns past `lengths` (B,) background -> a new tensor of that shape; x itself before the
        start."""
        if step < self.start_step or not len(x):
            return x
        B, W, H = x.shape
        widths = torch.as_tensor(lengths).tolist()
        if not len(widths) == len(ids) == B:
            raise ValueError(f"x holds {B} items, lengths {len(widths)}, ids {len(ids)}")
        maps = self._maps(widths, H, [generator(seed, epoch, id) for id in ids])
        # Pixel centres lie at + 1/2, so the corner of a pixel is a whole number and the outline is (0, 0, width, H).
        u, v = torch.meshgrid(
            torch.arange(W, device=x.device) + 0.5, torch.arange(H, device=x.device) + 0.5, indexing="ij"
        )
        # Written out: as a product of matrices it would be cut to the ten bits of TF32 where the user allows that for the model.
        m = maps.to(x.device, torch.float32)[:, :, :, None, None]
        source = [m[:, i, 0] * u + m[:, i, 1] * v + m[:, i, 2] for i in range(3)]
        along, across = source[0] / source[2], source[1] / source[2]
        if self.elastic:
            # After the map: letters bend in proportion to their size, and no place comes near the map's horizon.
            others = [generator(seed, epoch, f"{id} elastic") for id in ids]  # other numbers than the corners have
            bend = self._bend(widths, W, H, others, x.device)
            along, across = along + bend[0], across + bend[1]
        # grid_sample wants (x, y) in [-1, 1]; (B, 1, W, H) has W as its rows, so y is the place along the line.
        grid = torch.stack((across * 2 / H - 1, along * 2 / W - 1), dim=-1)
        moved = torch.nn.functional.grid_sample(
            x.float()[:, None], grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )[:, 0]
        outside = torch.arange(W, device=x.device) >= torch.as_tensor(lengths).to(x.device)[:, None]
        moved = moved.masked_fill(outside[:, :, None], 0.0).to(x.dtype)
        blank_out = SpecAugment(0, 0, self.masks, self.mask_width, time_ratio=0.1, start_step=0)
        columns = [f"{id} columns" for id in ids]  # other numbers again
        return blank_out(moved, lengths, columns, seed=seed, epoch=epoch, step=step) if self.masks else moved

    def _maps(self, widths: Sequence[int], height: int, draws: Sequence[torch.Generator]) -> Tensor:
        """(B, 3, 3) float64: the maps from a place in the new image to a place in the old one."""
        # All images at once, for a batch of them one by one takes longer than many a model does.
        coins = torch.stack([torch.rand((), generator=draw) for draw in draws])
        shift = torch.stack([torch.rand(4, 2, generator=draw, dtype=torch.float64) for draw in draws])
        sideways = (coins < 0.5)[:, None]
        moves = torch.stack((sideways, ~sideways), dim=2)  # (B, 1, 2): along x, along y
        shift = torch.where(moves, (shift * 2 - 1) * self.max_shift, 0.0)
        size = torch.tensor([(max(1, width), height) for width in widths], dtype=torch.float64)[:, None]
        # Corners in the order of a walk around; `inward` shortens a side, and the two ends of a side share 3/4 of it.
        unit = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
        inward = torch.where(unit == 0, shift, -shift)
        mate = torch.tensor([[1, 0, 3, 2], [3, 2, 1, 0]])  # the other end of the side along x, and along y
        for axis in (0, 1):
            total = inward[:, :, axis] + inward[:, mate[axis], axis]
            inward[:, :, axis] *= (0.75 * size[:, :, axis] / total.clamp_min(1e-9)).clamp(max=1.0)
        old = unit * size
        new = old + torch.where(unit == 0, inward, -inward)
        low, high = new.amin(dim=1, keepdim=True), new.amax(dim=1, keepdim=True)
        return homography((new - low) / (high - low) * size, old)

    def _bend(
        self, widths: Sequence[int], W: int, H: int, draws: Sequence[torch.Generator], device: torch.device
    ) -> Tensor:
        """(2, B, W, H) float32: how many pixels further along the line, and across it, each place looks."""
        along, across = spline_weights(W, self.elastic_step), spline_weights(H, self.elastic_step)
        control = torch.zeros(2, len(widths), along.shape[1], across.shape[1], dtype=torch.float64)
        for b, (width, draw) in enumerate(zip(widths, draws, strict=True)):
            # As many as the image's own columns see, so that a wider batch changes nothing.
            size = 2, _controls(width, self.elastic_step), across.shape[1]
            control[:, b, : size[1]] = torch.randn(size, generator=draw, dtype=torch.float64)
        # In float64, which TF32 leaves alone; MPS has neither.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        left, middle, right = (m.to(device, dtype) for m in (along, self.elastic * control, across.T))
        return (left @ middle @ right).float()


def _heard_at(factors: Tensor, bands: int, top: float) -> Tensor:
    """(B, bands) float64: the band, as a fraction, whose frequency is each band's times the factor (B,); the outermost at most."""
    low, high = (math.log1p(hertz / _CORNER) for hertz in (_LOWEST, top))
    apart = (high - low) / (bands + 1)
    band = torch.arange(bands, dtype=torch.float64)
    hertz = torch.expm1(low + (band + 1) * apart)  # in units of the corner
    source: Tensor = (torch.log1p(factors[:, None] * hertz) - low) / apart - 1
    return source.clamp(0, bands - 1)


def _between(x: Tensor, place: Tensor) -> Tensor:
    """The rows of x (B, N, F) at fractional places (B, M), in straight lines between its own."""
    item, before = torch.arange(len(x), device=x.device)[:, None], place.floor()
    at = before.long().to(x.device)
    after = place.ceil().long().to(x.device)  # a whole number stands alone, so the last row needs no other
    share = (place - before).to(x.device, x.dtype)[:, :, None]
    return x[item, at].lerp(x[item, after], share)


def homography(source: Tensor, target: Tensor) -> Tensor:
    """The projective map, (..., 3, 3) float64 with 1 in its corner, that takes four points (..., 4, 2) to four others.

    >>> square = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
    >>> homography(square, square * 2 + 1).round().int().tolist()
    [[2, 0, 1], [0, 2, 1], [0, 0, 1]]
    """
    x, y = source.double().unbind(dim=-1)
    u, v = target.double().unbind(dim=-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    top = torch.stack((x, y, one, zero, zero, zero, -u * x, -u * y), dim=-1)
    bottom = torch.stack((zero, zero, zero, x, y, one, -v * x, -v * y), dim=-1)
    solved = torch.linalg.solve(torch.cat((top, bottom), dim=-2), torch.cat((u, v), dim=-1))
    return torch.cat((solved, torch.ones_like(solved[..., :1])), dim=-1).reshape(*solved.shape[:-1], 3, 3)


def spline_weights(length: int, step: float) -> Tensor:
    """(length, floor(length / step) + 4) float64: what each pixel takes of the control points of a uniform cubic B-spline.

    Control point k lies at (k - 1) `step` pixels, and a pixel sees the nearest four. The squares of a pixel's weights sum to
    1, so that independent controls of variance 1 make a field of variance 1 (B-splines have 0.46 to 0.5, by the place).

    >>> weights = spline_weights(24, 8)
    >>> weights.shape, (weights[10] > 0).int().tolist()
    (torch.Size([24, 7]), [0, 1, 1, 1, 1, 0, 0])
    """
    place = (torch.arange(length, dtype=torch.float64) + 0.5) / step + 1
    away = (place[:, None] - torch.arange(_controls(length, step))).abs()
    weights = torch.where(away < 1, 2 / 3 - away**2 + away**3 / 2, (2 - away).clamp_min(0) ** 3 / 6)
    return weights / weights.square().sum(dim=1, keepdim=True).sqrt()


def _controls(length: int, step: float) -> int:
    """The number of control points that `length` pixels see: four at the last one."""
    return math.floor(length / step) + 4


def _mask(row: Tensor, length: int, masks: int, width: int, draw: torch.Generator) -> None:
    """Sets up to `masks` random stretches of `row[:length]`, each 0 to `width` long. Always draws as many numbers."""
    for size, place in torch.rand(masks, 2, generator=draw).tolist():
        stretch = int(size * (width + 1))
        start = int(place * (length - stretch + 1))
        row[start : start + stretch] = True
