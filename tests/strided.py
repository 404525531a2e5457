"""The output lengths of a model that makes one frame of every `stride`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from starseq.models.padding import frames_after


def strided(stride: int) -> Callable[[Tensor], Tensor]:
    return lambda lengths: frames_after(lengths, stride)
