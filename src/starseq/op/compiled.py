"""The operation in a graph of torch.compile: `separate` as custom operators.

Their arguments are tensors and plain values, so the label graph is built inside, once forward and once backward. Reducing stays
outside, in torch: the compiler fuses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starseq.op import separate
from starseq.op.reduction import for_each, reduce
from starseq.op.setting import Batch, Request, Saved, Setting, loss_dtype, turned


def forward(batch: Batch, request: Request) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits, *others = batch
    losses, insertions, *sums = forward_op(
        turned(logits, request.batch_first), *others, *request.setting, request.validate, request.inserted,
        request.differentiable,
    )  # fmt: skip
    loss = reduce(losses, batch[3], request.reduction, request.zero_infinity)
    return loss, insertions if request.inserted else None, Saved((insertions, *sums))


def backward(
    grad: Tensor, batch: Batch, saved: Saved, request: Request, *, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:
    """See starseq.op."""
    each, first = for_each(grad, batch[3], request.reduction), request.batch_first
    (logits, *others), (insertions, *sums) = batch, saved.tensors
    for_logits = for_penalty = None
    if needs_logits:
        for_logits = turned(gradient_op(each, turned(logits, first), *others, *sums, *request.setting), first)
    if needs_penalty:
        for_penalty = separate.penalty_gradient(each, insertions, batch[4])
    return for_logits, for_penalty


def _forward(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    criterion: str, merge_repeats: bool, blank: int, normalized: bool, backend: str,
    validate: bool, inserted: bool, differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch = (logits, targets, input_lengths, target_lengths, log_penalty)
    setting = Setting(criterion, merge_repeats, blank, normalized, backend)
    return separate.sums_of(batch, separate.checked_graph(batch, setting, validate), setting, inserted, differentiable)


def _gradient(
    grad: Tensor, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    norm: Tensor, alpha: Tensor, beta: Tensor, log_z: Tensor,
    criterion: str, merge_repeats: bool, blank: int, normalized: bool, backend: str,
) -> Tensor:  # fmt: skip
    batch = (logits, targets, input_lengths, target_lengths, log_penalty)
    setting = Setting(criterion, merge_repeats, blank, normalized, backend)
    graph = separate.checked_graph(batch, setting, validate=False)
    return separate.gradient(grad, batch, graph, (norm, alpha, beta, log_z), setting)


_VALUES = "str criterion, bool merge_repeats, int blank, bool normalized, str backend"
_TENSORS = "Tensor logits, Tensor targets, Tensor input_lengths, Tensor target_lengths, Tensor? log_penalty"

forward_op = torch.library.custom_op(
    "starseq::forward", _forward, mutates_args=(),
    schema=f"({_TENSORS}, {_VALUES}, bool validate, bool inserted, bool differentiable)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
gradient_op = torch.library.custom_op(
    "starseq::gradient", _gradient, mutates_args=(),
    schema=f"(Tensor grad, {_TENSORS}, Tensor norm, Tensor alpha, Tensor beta, Tensor log_z, {_VALUES}) -> Tensor",
)  # fmt: skip


@forward_op.register_fake
def _forward_fake(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    criterion: str, merge_repeats: bool, blank: int, normalized: bool, backend: str,
    validate: bool, inserted: bool, differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, frames, _ = logits.shape
    _, tokens = separate.label_graph(criterion, targets, target_lengths, log_penalty, merge_repeats, blank)
    states = tokens.enter.shape[1]
    dtype = loss_dtype(logits)
    alpha = logits.new_empty(batch, frames + 1, states, dtype=torch.float64)
    beta = torch.empty_like(alpha) if differentiable or inserted else alpha.new_empty(0)
    if tokens.lasting:  # the gradient, and nothing
        alpha = logits.new_empty(logits.shape, dtype=dtype) if differentiable else logits.new_empty(0, dtype=dtype)
        beta = logits.new_empty(0)
    return (
        logits.new_empty(batch, dtype=dtype),
        logits.new_empty(batch, targets.shape[1] + 1, dtype=dtype) if inserted else logits.new_empty(0, dtype=dtype),
        logits.new_empty(batch, frames, dtype=torch.float64),
        alpha,
        beta,
        logits.new_empty(batch, dtype=torch.float64),
    )


@gradient_op.register_fake
def _gradient_fake(grad: Tensor, logits: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(logits)
