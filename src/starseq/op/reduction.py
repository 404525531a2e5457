"""One loss for a batch, and what each utterance gets of its gradient. Part of the operation: as operations of their own, the few
divisions and their gradients would cost more than the loss of a small batch."""

from __future__ import annotations

import torch
from torch import Tensor


def reduce(losses: Tensor, target_lengths: Tensor, reduction: str, zero_infinity: bool) -> Tensor:
    """As torch.nn.CTCLoss: "mean" is the mean over the batch of loss / max(target length, 1).

    losses, target_lengths: (B,). Returns (B,) for "none", else ().
    """
    if zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    if reduction == "mean":
        return (losses / target_lengths.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def for_each(grad: Tensor, target_lengths: Tensor, reduction: str) -> Tensor:
    """The gradient of `reduce`: what each utterance's loss gets, (B,). One of inf counts as well: its own gradient is 0."""
    if reduction == "mean":
        return grad / (target_lengths.clamp(min=1) * len(target_lengths))
    return grad.expand(len(target_lengths)) if reduction == "sum" else grad
