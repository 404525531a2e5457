"""The one operation behind every loss: label graph, emissions, lattice and reduction joined, with its gradient, as torch sees it.

There are several ways to compute it. A way is a module with two functions, which run without autograd:

    forward(batch, request) -> (loss, insertions, saved)
    backward(grad, batch, saved, request, *, needs_logits, needs_penalty) -> (for_logits | None, for_penalty | None)

    batch       (logits (B, T, V), or (T, B, V) without request.batch_first; targets (B, U); input_lengths (B,);
                target_lengths (B,); log_penalty (B, U+1) or None), all on one device; lengths are int64, targets any integer
                type, log_penalty float32 or float64 (None: no stars); any strides, 0 among them (a scalar penalty is expanded).
    request     a Request, the same for both.
    loss        reduced as `reduction.reduce` does, () or (B,). insertions: (B, U+1), or None unless request.inserted.
                Both have the dtype `setting.loss_dtype(logits)`.
    saved       a Saved: tensors (they go through autograd's save_for_backward) and, on the side, any small object, which backward
                may change.
    grad        of the loss: () or (B,). Never None.
    for_logits  shaped, typed and laid out as the logits. for_penalty: (B, U+1), of log_penalty's dtype.

Logits are turned by no view on the way here and back: that is an operation of torch, and costs as much as a launch.

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

from starseq.op import compiled, lasting, separate
from starseq.op.reduction import reduce
from starseq.op.separate import label_graph
from starseq.op.setting import Batch, Request, Saved, Setting

__all__ = ["Batch", "Saved", "Setting", "label_graph", "reduce", "score"]


def score(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    setting: Setting, *, batch_first: bool, validate: bool, inserted: bool, reduction: str, zero_infinity: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """-log of the summed score of all alignments, reduced, and the expected insertions, (B, U+1) (None unless asked for).

    logits: (B, T, V), or (T, B, V) without `batch_first`. targets: (B, U). log_penalty: (B, U+1), or None for a criterion
    without stars. The first result is differentiable in logits and log_penalty, once.
    """
    enabled = torch.is_grad_enabled()
    penalized = enabled and log_penalty is not None and log_penalty.requires_grad
    differentiable = penalized or (enabled and logits.requires_grad)
    request = Request(setting, batch_first, validate, inserted or penalized, differentiable, reduction, zero_infinity)
    loss, insertions = _Score.apply(logits, targets, input_lengths, target_lengths, log_penalty, request)  # type: ignore[no-untyped-call]
    return loss, insertions


def _way_of(setting: Setting, stars: bool) -> ModuleType:
    if stars and setting.merge_repeats and setting.backend != "torch":
        return lasting.way_of(setting.backend)
    return _way(setting.backend)


@functools.cache
def _way(backend: str) -> ModuleType:
    """How a backend computes outside of torch.compile."""
    name = f"{__name__}.fused_{backend}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else separate


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
        request: Request,  # plain values as one: autograd looks at every argument
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        batch = (logits, targets, input_lengths, target_lengths, log_penalty)
        way = compiled if torch.compiler.is_compiling() else _way_of(request.setting, log_penalty is not None)
        loss, insertions, saved = way.forward(batch, request)
        ctx.save_for_backward(*batch, *saved.tensors)
        ctx.way, ctx.request, ctx.other = way, request, saved.other
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
    tensors, needed = ctx.saved_tensors, ctx.needs_input_grad
    for_logits, for_penalty = ctx.way.backward(
        grad, tensors[:5], Saved(tensors[5:], ctx.other), ctx.request, needs_logits=needed[0], needs_penalty=needed[4]
    )
    return (for_logits, None, None, None, for_penalty, None)


class _Once(torch.autograd.Function):
    """The first argument, whose gradient does not exist: it depends on the others in a way that is not differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor | None) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("starseq: the losses can be differentiated once, not twice")
