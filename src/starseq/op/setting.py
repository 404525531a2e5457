"""What every way to compute the operation is told, and what it keeps for its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""logits (B, T, V), targets (B, U), input_lengths (B,), target_lengths (B,) int64, log_penalty (B, U+1) or None: no stars."""


class Setting(NamedTuple):
    """What holds for all utterances. criterion: a file of criteria/. matching: "leftmost" or "all"."""

    criterion: str
    matching: str
    blank: int
    normalized: bool
    backend: str


class Saved(NamedTuple):
    """What forward leaves for backward. Nothing of size T x V.

    tensors: all that is large. autograd frees them after the backward pass, and refuses changes to them before it.
    other: anything small.
    """

    tensors: Sequence[Tensor]
    other: Any = None


def loss_dtype(logits: Tensor) -> torch.dtype:
    """The type of losses and insertions: float64 for float64, else float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
