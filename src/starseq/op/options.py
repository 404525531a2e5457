"""What every way to compute the operation is told, and what it keeps for its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starseq import criteria
from starseq.criteria.graph import Form

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""logits (B, T, V), targets (B, U), input_lengths (B,), target_lengths (B,) int64, log_penalty (B, U+1) or None: no stars.

Without `batch_first` among the options the logits are (T, B, V).
"""


class Options(NamedTuple):
    """What is wanted of one batch: from the public functions to the kernels it is this object.

    criterion, merge_repeats: a file of criteria/, and which of its forms. inserted: whether insertions, (B, U+1), are wanted, by
    the caller or for the penalty's gradient. differentiable: whether the logits' gradient may be asked for. The others are those of
    `starseq.stc_loss`; the ways are told a backend by its name, never "auto".
    """

    criterion: str
    merge_repeats: bool = True
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False
    batch_first: bool = False
    normalized: bool = True
    max_target_length: int | None = None
    validate: bool = False
    backend: str = "auto"
    inserted: bool = False
    differentiable: bool = False

    @property
    def form(self) -> Form:
        return criteria.form(self.criterion, self.merge_repeats)


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
