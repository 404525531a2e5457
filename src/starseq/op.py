"""The one operation behind every loss: label graph, emissions and lattice joined, with its gradient, as torch sees it.

Backends are pairs of modules under the same function names: emissions/vocabulary_<name>.py and lattice/banded_<name>.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starseq import criteria
from starseq.arguments import check_values
from starseq.criteria.graph import LabelGraph


def score(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None, *,
    criterion: str, matching: str, blank: int, normalized: bool, backend: str, validate: bool, inserted: bool,
    reduction: str, zero_infinity: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """-log of the summed score of all alignments, reduced, and the expected insertions, (B, U+1) (empty unless asked for).

    logits: (B, T, V). targets: (B, U). log_penalty: (B, U+1), or None for a criterion without stars. The first result is
    differentiable in logits and log_penalty, once. Reducing is part of it: as operations of their own, the few divisions
    and their gradients would cost more than the loss of a small batch.
    """
    penalized = log_penalty is not None and log_penalty.requires_grad and torch.is_grad_enabled()
    differentiable = penalized or (logits.requires_grad and torch.is_grad_enabled())
    loss, insertions = _Score.apply(  # type: ignore[no-untyped-call]
        logits, targets, input_lengths, target_lengths, log_penalty,
        _Setting(criterion, matching, blank, normalized, backend), validate, inserted or penalized, differentiable,
        reduction, zero_infinity,
    )  # fmt: skip
    return loss, insertions


def reduce(losses: Tensor, target_lengths: Tensor, reduction: str, zero_infinity: bool) -> Tensor:
    """As torch.nn.CTCLoss: "mean" is the mean over the batch of loss / max(target length, 1)."""
    if zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    if reduction == "mean":
        return (losses / target_lengths.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _for_each(grad: Tensor, target_lengths: Tensor, reduction: str) -> Tensor:
    """The gradient of `reduce`: what each utterance's loss gets, (B,). One of inf is taken care of below: its gradient is 0."""
    if reduction == "mean":
        return grad / (target_lengths.clamp(min=1) * len(target_lengths))
    return grad.expand(len(target_lengths)) if reduction == "sum" else grad


class _Setting(NamedTuple):
    criterion: str
    matching: str
    blank: int
    normalized: bool
    backend: str


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
        setting: _Setting, validate: bool, inserted: bool, differentiable: bool, reduction: str, zero_infinity: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        batch = (logits, targets, input_lengths, target_lengths, log_penalty)
        if torch.compiler.is_compiling():
            ctx.graph = None
            results = _forward_op(*batch, *setting, validate, inserted, differentiable)
        else:
            if validate:
                check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, setting.blank)
            ctx.graph = label_graph(
                setting.criterion, targets, target_lengths, log_penalty, setting.matching, setting.blank
            )
            results = _forward(logits, ctx.graph, input_lengths, setting, inserted, differentiable)
        losses, insertions, *saved = results
        ctx.save_for_backward(*batch, insertions, *saved)
        ctx.setting, ctx.reduction = setting, reduction
        ctx.mark_non_differentiable(insertions)
        ctx.set_materialize_grads(False)
        return reduce(losses, target_lengths, reduction, zero_infinity), insertions

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 11
        logits, targets, input_lengths, target_lengths, log_penalty, insertions, *saved = ctx.saved_tensors
        for_logits = for_penalty = None
        with torch.no_grad():
            each = _for_each(grad, target_lengths, ctx.reduction)
            if ctx.needs_input_grad[0] and ctx.graph is None:
                batch = (logits, targets, input_lengths, target_lengths, log_penalty)
                for_logits = _gradient_op(each, *batch, *saved, *ctx.setting)
            elif ctx.needs_input_grad[0]:
                for_logits = _gradient(each, logits, ctx.graph, input_lengths, saved, ctx.setting)
            if ctx.needs_input_grad[4]:
                for_penalty = (-insertions * each[:, None]).to(log_penalty.dtype)
        if torch.is_grad_enabled():  # create_graph=True: these must not pass for constants in what is built on them
            for_logits, for_penalty = (
                None if x is None else _Once.apply(x, grad, logits, log_penalty)  # type: ignore[no-untyped-call]
                for x in (for_logits, for_penalty)
            )
        return (for_logits, None, None, None, for_penalty, *(None,) * 6)


class _Once(torch.autograd.Function):
    """The first argument, whose gradient does not exist: it depends on the others in a way that is not differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor | None) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("starseq: the losses can be differentiated once, not twice")


def label_graph(
    criterion: str, targets: Tensor, target_lengths: Tensor, log_penalty: Tensor | None, matching: str, blank: int
) -> LabelGraph:
    """The graphs of a batch by the criterion's name, which is its file's."""
    options: dict[str, Any] = {} if log_penalty is None else {"log_penalty": log_penalty, "matching": matching}
    return _criterion(criterion)(targets, target_lengths, blank=blank, **options)


_criterion = functools.cache(criteria.load)


@functools.cache
def _backend(name: str) -> tuple[ModuleType, ModuleType]:
    return (
        importlib.import_module(f"starseq.emissions.vocabulary_{name}"),
        importlib.import_module(f"starseq.lattice.banded_{name}"),
    )


def _forward(
    logits: Tensor, graph: LabelGraph, lengths: Tensor, setting: _Setting, inserted: bool, differentiable: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """loss, insertions, and what the gradient needs: norm, log_alpha, log_beta, log_z."""
    emissions, lattice = _backend(setting.backend)
    arcs = emissions.scores(logits, graph.tokens, graph.topology, lengths, normalized=setting.normalized, star=inserted)
    log_alpha, log_beta, log_z = lattice.forward_backward(
        arcs.stay, arcs.enter, graph.topology, lengths,
        backward=differentiable or inserted, exact=logits.dtype == torch.float64,
    )  # fmt: skip
    dtype = _loss_dtype(logits)
    insertions = logits.new_empty(0, dtype=dtype)
    if inserted:
        insertions = _insertions(arcs.star, log_alpha, log_beta, log_z, graph.topology.num_states, lengths).to(dtype)
    return -log_z.to(dtype), insertions, arcs.norm, log_alpha, log_beta, log_z


def _insertions(
    log_star: Tensor, log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, num_states: Tensor, lengths: Tensor
) -> Tensor:
    """The expected number of tokens that each state's star consumed, (B, S): the posteriors of these arcs, summed."""
    posterior = (log_alpha[:, :-1] + log_star + log_beta[:, 1:] - log_z[:, None, None]).exp()
    inside = torch.arange(log_star.shape[1], device=lengths.device) < lengths[:, None]
    exists = torch.arange(log_star.shape[2], device=lengths.device) < num_states[:, None]
    possible = (log_z != -torch.inf)[:, None, None]
    return posterior.masked_fill(~(inside[:, :, None] & exists[:, None] & possible), 0).sum(dim=1)


def _gradient(
    grad: Tensor, logits: Tensor, graph: LabelGraph, lengths: Tensor, saved: Sequence[Tensor], setting: _Setting
) -> Tensor:
    emissions, _ = _backend(setting.backend)
    topology, tokens = graph
    result: Tensor = emissions.gradient(grad, logits, tokens, topology, lengths, *saved, normalized=setting.normalized)
    return result


def _loss_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


# For torch.compile: the same two functions as custom operators. Their arguments are tensors and plain values, so the label
# graph is built inside, once forward and once backward.


def _forward_whole(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    criterion: str, matching: str, blank: int, normalized: bool, backend: str,
    validate: bool, inserted: bool, differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, blank)
    graph = label_graph(criterion, targets, target_lengths, log_penalty, matching, blank)
    setting = _Setting(criterion, matching, blank, normalized, backend)
    return _forward(logits, graph, input_lengths, setting, inserted, differentiable)


def _gradient_whole(
    grad: Tensor, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    norm: Tensor, log_alpha: Tensor, log_beta: Tensor, log_z: Tensor,
    criterion: str, matching: str, blank: int, normalized: bool, backend: str,
) -> Tensor:  # fmt: skip
    graph = label_graph(criterion, targets, target_lengths, log_penalty, matching, blank)
    setting = _Setting(criterion, matching, blank, normalized, backend)
    return _gradient(grad, logits, graph, input_lengths, (norm, log_alpha, log_beta, log_z), setting)


_VALUES = "str criterion, str matching, int blank, bool normalized, str backend"
_TENSORS = "Tensor logits, Tensor targets, Tensor input_lengths, Tensor target_lengths, Tensor? log_penalty"

_forward_op = torch.library.custom_op(
    "starseq::forward", _forward_whole, mutates_args=(),
    schema=f"({_TENSORS}, {_VALUES}, bool validate, bool inserted, bool differentiable)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
_gradient_op = torch.library.custom_op(
    "starseq::gradient", _gradient_whole, mutates_args=(),
    schema=f"(Tensor grad, {_TENSORS}, Tensor norm, Tensor log_alpha, Tensor log_beta, Tensor log_z, {_VALUES}) -> Tensor",
)  # fmt: skip


@_forward_op.register_fake
def _forward_fake(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, log_penalty: Tensor | None,
    criterion: str, matching: str, blank: int, normalized: bool, backend: str,
    validate: bool, inserted: bool, differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, frames, _ = logits.shape
    _, tokens = label_graph(criterion, targets, target_lengths, log_penalty, matching, blank)
    states = tokens.enter.shape[1]
    dtype = _loss_dtype(logits)
    sums = logits.new_empty(batch, frames + 1, states, dtype=torch.float64)
    return (
        logits.new_empty(batch, dtype=dtype),
        logits.new_empty(batch, states, dtype=dtype) if inserted else logits.new_empty(0, dtype=dtype),
        logits.new_empty(batch, frames, dtype=torch.float64),
        sums,
        torch.empty_like(sums) if differentiable or inserted else sums.new_empty(0),
        logits.new_empty(batch, dtype=torch.float64),
    )


@_gradient_op.register_fake
def _gradient_fake(grad: Tensor, logits: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(logits)
