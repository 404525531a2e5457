"""The one operation behind every loss: label graph, emissions, lattice and reduction joined, with its gradient, as torch sees it.

There are several ways to compute it. A way is a module with two functions, which run without autograd:

    forward(batch, options) -> (loss, insertions, saved)
    backward(grad, batch, saved, options) -> the gradient of the logits

    batch       (logits (B, T, V), or (T, B, V) without options.batch_first; targets (B, U); input_lengths (B,);
                target_lengths (B,); log_penalty (B, U+1) or None), all on one device; lengths are int64, targets any integer
                type, log_penalty float32 or float64 (None: no stars); any strides, 0 among them (a scalar penalty is expanded).
    options     an Options, the same for both.
    loss        reduced as `reduction.reduce` does, () or (B,). insertions: (B, U+1), or None unless options.inserted.
                Both have the dtype `options.loss_dtype(logits)`.
    saved       a Saved: tensors (they go through autograd's save_for_backward) and, on the side, any small object, which backward
                may change.
    grad        of the loss: () or (B,). Never None.

The gradient is shaped, typed and laid out as the logits. Logits are turned by no view on the way here and back: that is an
operation of torch, and costs as much as a launch.

`readable` is in plain torch. `fused_<backend>`, and `lasting_<backend>` where inserted tokens last, do all of it in few calls.
`compiled` wraps whichever it is for torch.compile. All give the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starseq.op import compiled
from starseq.op.options import Batch, Options, Saved
from starseq.op.readable import label_graph
from starseq.op.reduction import for_each, reduce
from starseq.op.ways import scores, way_of

__all__ = ["Batch", "Options", "Saved", "label_graph", "reduce", "score", "scores"]


def score(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None]:
    """-log of the summed score of all alignments, reduced, and the expected insertions, (B, U+1) (None unless asked for).

    The first result is differentiable in logits and log_penalty, once.
    """
    logits, log_penalty, enabled = batch[0], batch[4], torch.is_grad_enabled()
    penalized = enabled and log_penalty is not None and log_penalty.requires_grad
    options = options._replace(inserted=options.inserted or penalized, differentiable=enabled and logits.requires_grad)
    loss, insertions = _Score.apply(*batch, options)  # type: ignore[no-untyped-call]
    return loss, insertions


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        *batch, options = arguments  # plain values as one: autograd looks at every argument
        way = compiled if torch.compiler.is_compiling() else way_of(options)
        loss, insertions, saved = way.forward(batch, options)
        ctx.save_for_backward(*batch, insertions, *saved.tensors)
        ctx.way, ctx.options, ctx.other = way, options, saved.other
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
    (logits, targets, inputs, lengths, log_penalty, insertions, *sums), options = ctx.saved_tensors, ctx.options
    for_logits = for_penalty = None
    if ctx.needs_input_grad[0]:
        batch = (logits, targets, inputs, lengths, log_penalty)
        for_logits = ctx.way.backward(grad, batch, Saved(sums, ctx.other), options)
    if ctx.needs_input_grad[4]:  # what each loss gets, times the insertions
        for_penalty = (-insertions * for_each(grad, lengths, options)[:, None]).to(log_penalty.dtype)
    return (for_logits, None, None, None, for_penalty, None)


class _Once(torch.autograd.Function):
    """The first argument, whose gradient does not exist: it depends on the others in a way that is not differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor | None) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("starseq: the losses can be differentiated once, not twice")
