"""The operation in a graph of torch.compile: the way that a call outside of it takes, as one custom operator.

The operator gives the logits' gradient with the loss, by a loss whose own is 1. So what it keeps has the same shape whatever the
way, and the gradient is one multiplication, in torch: the compiler fuses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starseq.op.options import Batch, Options, Saved, loss_dtype
from starseq.op.reduction import multiplied
from starseq.op.ways import way_of


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    loss, insertions, gradient = loss_op(*batch, *options)
    return loss, insertions if options.inserted else None, Saved((gradient,))


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    return multiplied(saved.tensors[0], grad, options)


def _loss(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None, *values: Any
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, options = (logits, targets, input_lengths, target_lengths, log_penalty), Options(*values)
    way = way_of(options)
    loss, insertions, saved = way.forward(batch, options)
    gradient = logits.new_empty(0)
    if options.differentiable:
        gradient = way.backward(torch.ones_like(loss), batch, saved, options).contiguous()
    return loss, logits.new_empty(0, dtype=loss.dtype) if insertions is None else insertions, gradient


_KINDS = ", ".join(
    f"{kind.__forward_arg__.replace(' | None', '?')} {name}" for name, kind in Options.__annotations__.items()
)
loss_op = torch.library.custom_op(
    "starseq::loss", _loss, mutates_args=(),
    schema="(Tensor logits, Tensor targets, Tensor input_lengths, Tensor target_lengths, Tensor? log_penalty, "
    f"{_KINDS}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@loss_op.register_fake
def _fake(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None, *values: Any
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, options, dtype = len(targets), Options(*values), loss_dtype(logits)
    return (
        logits.new_empty(batch if options.reduction == "none" else (), dtype=dtype),
        logits.new_empty((batch, targets.shape[1] + 1) if options.inserted else 0, dtype=dtype),
        logits.new_empty(logits.shape if options.differentiable else 0),
    )
