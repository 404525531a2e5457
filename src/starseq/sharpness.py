r"""Sharper sums: alignments count by a power of their weight, so that likely ones count more.

    loss = -1/k * log sum over alignments of weight^k,    k = 1: the likelihood;  k to infinity: the best alignment

For models that learn their data by heart: docs/algorithm.md, section 9. No kernel knows: the sum of the weights' powers is that of
the powers of P and p, as scores.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Sharpness"]


class Sharpness:
    """k as a function of the passes over the data that are done: 1 up to `begin`, then in a straight line to `final`, which it has
    from `end` on. It keeps no state, and knows neither the data nor how long training goes on: what has no label is unlearned by
    looking at it again and again, so in the first passes k is 1, whatever the data.

        >>> sharpness = Sharpness(4.0)
        >>> sharpness(0), sharpness(5), sharpness(10), sharpness(100)
        (1.0, 1.0, 2.5, 4.0)

    Raises ValueError for a `final` below 1, and unless 0 <= begin <= end.
    """

    def __init__(self, final: float = 4.0, begin: float = 5.0, end: float = 15.0) -> None:
        if not 1 <= final < math.inf:
            raise ValueError(f"final: {final} is not a number >= 1")
        if not 0 <= begin <= end < math.inf:
            raise ValueError(f"begin, end: {begin} and {end} are not passes over the data, one after the other")
        self.final, self.begin, self.end = float(final), float(begin), float(end)

    def __call__(self, passes: float) -> float:
        if not self.begin < passes < self.end:
            return self.final if passes >= self.end else 1.0
        return 1 + (self.final - 1) * (passes - self.begin) / (self.end - self.begin)

    def __repr__(self) -> str:
        return f"Sharpness({self.final:g}, begin={self.begin:g}, end={self.end:g})"


def checked(sharpness: Any, device: torch.device, dtype: torch.dtype, *, look: bool) -> float | Tensor:
    """k as a number, or as a tensor () of the loss's device and precision, without its gradient. Whether it is positive a tensor
    is asked only if `look`, which waits for the device."""
    if isinstance(sharpness, Tensor):
        if sharpness.dim() != 0:
            raise ValueError(f"sharpness: expected a number or a tensor (), got shape {tuple(sharpness.shape)}")
        if look:
            checked(sharpness.item(), device, dtype, look=False)
        return sharpness.detach().to(device, dtype, non_blocking=True)
    if isinstance(sharpness, bool) or not isinstance(sharpness, (int, float, np.number)):
        raise ValueError(f"sharpness: expected a number or a tensor, got {type(sharpness).__name__}")
    if not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness: {sharpness} is not a positive number")
    return float(sharpness)


def sharpened(
    x: Tensor, input_lengths: Tensor, sharpness: float | Tensor, *, batch_first: bool, normalized: bool
) -> Tensor:
    """Scores whose exponentials are the powers of P, of logits (T, B, V), or (B, T, V) with `batch_first`. What lies past the
    lengths is 0 and has no gradient. A frame without any mass stays one."""
    frames = torch.arange(x.shape[1 if batch_first else 0], device=x.device)
    past = frames >= input_lengths[:, None] if batch_first else frames[:, None] >= input_lengths
    x = x.masked_fill(past[:, :, None], 0)
    if normalized:
        empty = x.amax(dim=2, keepdim=True) == -math.inf
        x = x.masked_fill(empty, 0).log_softmax(dim=2).masked_fill(empty, -math.inf)
    return x * sharpness
