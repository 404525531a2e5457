"""The one operation behind every loss: label graph, emissions, lattice and reduction joined, with its gradient, as torch sees it.

There are several ways to compute it. A way is a module with two functions, which run without autograd:

    forward(batch, setting, *, validate, inserted, differentiable, reduction, zero_infinity) -> (loss, insertions, saved)
    backward(grad, batch, saved, setting, *, reduction, needs_logits, needs_penalty) -> (for_logits | None, for_penalty | None)

    batch           (logits (B, T, V), targets (B, U), input_lengths (B,), target_lengths (B,), log_penalty (B, U+1) or None), all
                    on one device; lengths are int64, targets any integer type, log_penalty float32 or float64 (None: no stars);
                    any strides, 0 among them (a scalar penalty is expanded). setting: a Setting.
    validate        check values first, and raise what `starseq.arguments.check_values` raises.
    inserted        insertions, (B, U+1), are wanted (by the caller, or for the penalty's gradient); else they are None.
    differentiable  backward may follow.
    loss            reduced as `reduction.reduce` does, () or (B,); loss and insertions have the dtype `setting.loss_dtype(logits)`.
    saved           a Saved: tensors (they go through autograd's save_for_backward) and, on the side, any small object.
    grad            of the loss: () or (B,). Never None.
    for_logits      shaped, typed and laid out as the logits. for_penalty: (B, U+1), of log_penalty's dtype.

`fused_<backend>.py`, where that file exists, does all of it in few calls; `separate` joins the parts of any backend; `compiled`
is for torch.compile. All give the same numbers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from starseq.op import compiled, separate
from starseq.op.reduction import reduce
from starseq.op.separate import label_graph
from starseq.op.setting import Batch, Saved, Setting

__all__ = ["Batch", "Saved", "Setting", "label_graph", "reduce", "score"]


def score(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None, *,
    batch_first: bool, criterion: str, matching: str, blank: int, normalized: bool, backend: str, validate: bool,
    inserted: bool, reduction: str, zero_infinity: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """-log of the summed score of all alignments, reduced, and the expected insertions, (B, U+1) (None unless asked for).

    logits: (B, T, V), or (T, B, V) without `batch_first`. targets: (B, U). log_penalty: (B, U+1), or None for a criterion
    without stars. The first result is differentiable in logits and log_penalty, once.
    """
    enabled = torch.is_grad_enabled()
    penalized = enabled and log_penalty is not None and log_penalty.requires_grad
    differentiable = penalized or (enabled and logits.requires_grad)
    setting = Setting(criterion, matching, blank, normalized, backend)
    told = (batch_first, setting, validate, inserted or penalized, differentiable, reduction, zero_infinity)
    loss, insertions = _Score.apply(logits, targets, input_lengths, target_lengths, log_penalty, told)  # type: ignore[no-untyped-call]
    return loss, insertions


@functools.cache
def _way(backend: str) -> ModuleType:
    """How a backend computes outside of torch.compile."""
    name = f"{__name__}.fused_{backend}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else separate


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
        told: tuple[bool, Setting, bool, bool, bool, str, bool],
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        # Plain values as one: autograd looks at every argument.
        batch_first, setting, validate, inserted, differentiable, reduction, zero_infinity = told
        # Turned in here, where autograd does not look: a node of its own, there and back, would cost as much as a launch.
        batch = (logits if batch_first else logits.transpose(0, 1), targets, input_lengths, target_lengths, log_penalty)
        is_compiling = torch.compiler.is_compiling()
        loss, insertions, saved = (compiled if is_compiling else _way(setting.backend)).forward(
            batch, setting, validate=validate, inserted=inserted, differentiable=differentiable, reduction=reduction,
            zero_infinity=zero_infinity,
        )  # fmt: skip
        ctx.save_for_backward(logits, targets, input_lengths, target_lengths, log_penalty, *saved.tensors)
        ctx.told = (batch_first, setting, reduction, is_compiling, saved.other)
        ctx.set_materialize_grads(False)
        if insertions is not None:
            ctx.mark_non_differentiable(insertions)
        return loss, insertions

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        if not torch.is_grad_enabled():
            return _gradients(ctx, grad)
        with torch.no_grad():  # create_graph=True: these must not pass for constants in what is built on them
            gradients = _gradients(ctx, grad)
        inputs = (grad, ctx.saved_tensors[0], ctx.saved_tensors[4])
        return tuple(None if x is None else _Once.apply(x, *inputs) for x in gradients)  # type: ignore[no-untyped-call]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """One for each argument of _Score.forward."""
    logits, targets, input_lengths, target_lengths, log_penalty, *saved = ctx.saved_tensors
    batch_first, setting, reduction, was_compiling, other = ctx.told
    for_logits, for_penalty = (compiled if was_compiling else _way(setting.backend)).backward(
        grad, (logits if batch_first else logits.transpose(0, 1), targets, input_lengths, target_lengths, log_penalty),
        Saved(saved, other), setting, reduction=reduction, needs_logits=ctx.needs_input_grad[0],
        needs_penalty=ctx.needs_input_grad[4],
    )  # fmt: skip
    if for_logits is not None and not batch_first:
        for_logits = for_logits.transpose(0, 1)
    return (for_logits, None, None, None, for_penalty, None)


class _Once(torch.autograd.Function):
    """The first argument, whose gradient does not exist: it depends on the others in a way that is not differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor | None) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("starseq: the losses can be differentiated once, not twice")
