"""One loss for a batch, and what each utterance gets of its gradient. Part of the operation: as operations of their own, the few
divisions and their gradients would cost more than the loss of a small batch."""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.op.options import Options


def reduce(losses: Tensor, target_lengths: Tensor, options: Options) -> Tensor:
    """As torch.nn.CTCLoss: "mean" is the mean over the batch of loss / max(target length, 1).

    losses, target_lengths: (B,). Returns (B,) for "none", else ().
    """
    if options.zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    if options.reduction == "mean":
        return (losses / target_lengths.clamp(min=1)).mean()
    return losses.sum() if options.reduction == "sum" else losses


def for_each(grad: Tensor, target_lengths: Tensor, options: Options) -> Tensor:
    """The gradient of `reduce`: what each utterance's loss gets, (B,). One of inf counts as well: its own gradient is 0."""
    if options.reduction == "mean":
        return grad / (target_lengths.clamp(min=1) * len(target_lengths))
    return grad.expand(len(target_lengths)) if options.reduction == "sum" else grad


class Ahead:
    """The gradient of the logits by a loss whose own is 1, made with the loss. It is given away: a second backward pass, which is
    rare, computes forward again."""

    def __init__(self, gradient: Tensor | None) -> None:
        self._gradient = gradient

    def take(self) -> Tensor | None:
        gradient, self._gradient = self._gradient, None
        return gradient


def multiplied(gradient: Tensor, grad: Tensor, options: Options) -> Tensor:
    """Such a gradient for a loss whose own is `grad`. Where an utterance has no gradient it has none by such a loss either, even if
    that is infinite or NaN."""
    factor = grad if options.reduction != "none" else grad.view((-1, 1, 1) if options.batch_first else (-1, 1))
    return torch.where(gradient == 0, gradient, (gradient * factor).to(gradient.dtype))


def multiply(gradient: Tensor, grad: Tensor, options: Options) -> Tensor:
    """The same in place, where that can be."""
    if not bool(grad.isfinite().all()):
        return multiplied(gradient, grad, options)
    if options.reduction != "none":
        if grad.item() != 1:
            gradient *= grad
    else:
        gradient *= grad.view((-1, 1, 1) if options.batch_first else (-1, 1))
    return gradient
