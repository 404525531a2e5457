"""The operation as a chain of parts that know nothing of each other: label graph, emissions, lattice, reduction. For any backend.

Backends are pairs of modules under the same function names: emissions/vocabulary_<name>.py and lattice/banded_<name>.py. Where
inserted tokens last, `lasting` stands for both.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from starseq import criteria
from starseq.arguments import check_values
from starseq.criteria.graph import LabelGraph
from starseq.op import lasting
from starseq.op.reduction import for_each, reduce
from starseq.op.setting import Batch, Request, Saved, Setting, loss_dtype, turned


def forward(batch: Batch, request: Request) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    setting, inserted = request.setting, request.inserted
    batch = (turned(batch[0], request.batch_first), *batch[1:])
    graph = checked_graph(batch, setting, request.validate)
    losses, insertions, *sums = sums_of(batch, graph, setting, inserted, request.differentiable)
    loss = reduce(losses, batch[3], request.reduction, request.zero_infinity)
    return loss, insertions if inserted else None, Saved((insertions, *sums), graph)


def backward(
    grad: Tensor, batch: Batch, saved: Saved, request: Request, *, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:
    """See starseq.op."""
    each, first = for_each(grad, batch[3], request.reduction), request.batch_first
    insertions, *sums = saved.tensors
    for_logits = for_penalty = None
    if needs_logits:
        turned_batch = (turned(batch[0], first), *batch[1:])
        for_logits = turned(gradient(each, turned_batch, saved.other, sums, request.setting), first)
    if needs_penalty:
        for_penalty = penalty_gradient(each, insertions, batch[4])
    return for_logits, for_penalty


def label_graph(
    criterion: str,
    targets: Tensor,
    target_lengths: Tensor,
    log_penalty: Tensor | None,
    merge_repeats: bool,
    blank: int,
) -> LabelGraph:
    """The graphs of a batch by the criterion's name, which is its file's."""
    options: dict[str, Any] = (
        {} if log_penalty is None else {"log_penalty": log_penalty, "merge_repeats": merge_repeats}
    )
    return _criterion(criterion)(targets, target_lengths, blank=blank, **options)


def checked_graph(batch: Batch, setting: Setting, validate: bool) -> LabelGraph:
    """The graphs of a batch whose values, with `validate`, are found good: a bad one raises ValueError."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    if validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, setting.blank)
    return label_graph(setting.criterion, targets, target_lengths, log_penalty, setting.merge_repeats, setting.blank)


def sums_of(
    batch: Batch, graph: LabelGraph, setting: Setting, inserted: bool, differentiable: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses (B,), insertions (B, U+1) or empty, and what the gradient needs: norm, log_alpha, log_beta, log_z."""
    if graph.tokens.lasting:
        return lasting.sums_of(batch, graph, setting, inserted, differentiable)
    logits, _, lengths, _, _ = batch
    emissions, lattice = _backend(setting.backend)
    arcs = emissions.scores(logits, graph.tokens, graph.topology, lengths, normalized=setting.normalized, star=inserted)
    log_alpha, log_beta, log_z = lattice.forward_backward(
        arcs.stay, arcs.enter, graph.topology, lengths,
        backward=differentiable or inserted, exact=logits.dtype == torch.float64,
    )  # fmt: skip
    dtype = loss_dtype(logits)
    insertions = logits.new_empty(0, dtype=dtype)
    if inserted:
        insertions = _insertions(arcs.star, log_alpha, log_beta, log_z, graph.topology.num_states, lengths).to(dtype)
    return -log_z.to(dtype), insertions, arcs.norm, log_alpha, log_beta, log_z


def gradient(each: Tensor, batch: Batch, graph: LabelGraph, sums: Sequence[Tensor], setting: Setting) -> Tensor:
    """The gradient by the logits; each: (B,), what the utterances' losses get; sums: the last four of `sums_of`."""
    if graph.tokens.lasting:
        return lasting.gradient(each, batch, sums)
    emissions, _ = _backend(setting.backend)
    topology, tokens = graph
    result: Tensor = emissions.gradient(
        each, batch[0], tokens, topology, batch[2], *sums, normalized=setting.normalized
    )
    return result


def penalty_gradient(each: Tensor, insertions: Tensor, log_penalty: Tensor | None) -> Tensor:
    """The gradient by log_penalty, (B, U+1): what each loss gets, times the insertions."""
    assert log_penalty is not None
    return (-insertions * each[:, None]).to(log_penalty.dtype)


_criterion = functools.cache(criteria.load)


@functools.cache
def _backend(name: str) -> tuple[ModuleType, ModuleType]:
    return (
        importlib.import_module(f"starseq.emissions.vocabulary_{name}"),
        importlib.import_module(f"starseq.lattice.banded_{name}"),
    )


def _insertions(
    log_star: Tensor, log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, num_states: Tensor, lengths: Tensor
) -> Tensor:
    """The expected number of tokens that each state's star consumed, (B, S): the posteriors of these arcs, summed."""
    posterior = (log_alpha[:, :-1] + log_star + log_beta[:, 1:] - log_z[:, None, None]).exp()
    inside = torch.arange(log_star.shape[1], device=lengths.device) < lengths[:, None]
    exists = torch.arange(log_star.shape[2], device=lengths.device) < num_states[:, None]
    possible = (log_z != -torch.inf)[:, None, None]
    return posterior.masked_fill(~(inside[:, :, None] & exists[:, None] & possible), 0).sum(dim=1)
