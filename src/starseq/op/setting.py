"""What every way to compute the operation is told, and what it keeps for its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""logits (B, T, V), targets (B, U), input_lengths (B,), target_lengths (B,) int64, log_penalty (B, U+1) or None: no stars.

In a `Request` without `batch_first` the logits are (T, B, V).
"""


class Setting(NamedTuple):
    """What holds for all utterances. criterion: a file of criteria/. merge_repeats: of a criterion with stars; others have
    no choice."""

    criterion: str
    merge_repeats: bool
    blank: int
    normalized: bool
    backend: str


class Request(NamedTuple):
    """What is wanted of one batch.

    batch_first: its logits are (B, T, V), else (T, B, V). validate: check values first, and raise what
    `starseq.arguments.check_values` raises. inserted: insertions, (B, U+1), are wanted (by the caller, or for the penalty's
    gradient). differentiable: backward may follow. reduction, zero_infinity: as in `reduction.reduce`.
    """

    setting: Setting
    batch_first: bool
    validate: bool
    inserted: bool
    differentiable: bool
    reduction: str
    zero_infinity: bool


class Saved(NamedTuple):
    """What forward leaves for backward. Nothing of the logits' size, unless that is small.

    tensors: all that is large. autograd frees them after the backward pass, and refuses changes to them before it.
    other: anything small, or what backward gives away.
    """

    tensors: Sequence[Tensor]
    other: Any = None


def loss_dtype(logits: Tensor) -> torch.dtype:
    """The type of losses and insertions: float64 for float64, else float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def turned(logits: Tensor, batch_first: bool) -> Tensor:
    """(B, T, V) from (T, B, V), or the other way round; with `batch_first` as they are."""
    return logits if batch_first else logits.transpose(0, 1)


def by_utterance(of_each: Sequence[int], batch_first: bool) -> Sequence[int]:
    """Sizes or strides of such logits in the order B, T, V: for those to whom a view is too dear."""
    return of_each if batch_first else (of_each[1], of_each[0], *of_each[2:])
