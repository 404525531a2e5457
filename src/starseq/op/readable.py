"""The operation in plain torch, to be read: label graph, emissions, lattice, reduction. On any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starseq import criteria
from starseq.arguments import check_values
from starseq.criteria.graph import LabelGraph, gaps_of
from starseq.emissions.vocabulary_torch import for_logits, gradient, log_scores, scores
from starseq.lattice import banded_torch, lasting_torch
from starseq.op.options import Batch, Options, Saved, loss_dtype, turned
from starseq.op.reduction import for_each, reduce

_Sums = tuple[Tensor, Tensor | None, tuple[Tensor, ...]]


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    batch = (turned(batch[0], options.batch_first), *batch[1:])
    if options.validate:
        check_values(*batch[1:], batch[0].shape, options.blank)
    graph, dtype = label_graph(batch, options), loss_dtype(batch[0])
    log_z, insertions, sums = (_lasting if graph.tokens.lasting else _banded)(batch, graph, options)
    loss = reduce(-log_z.to(dtype), batch[3], options)
    return loss, None if insertions is None else insertions.to(dtype), Saved((log_z, *sums), graph)


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    logits, lengths, graph = turned(batch[0], options.batch_first), batch[2], saved.other
    each = for_each(grad, batch[3], options)
    log_z, *sums = saved.tensors
    if graph.tokens.lasting:
        result = for_logits(sums[0], each, logits, lengths, log_z)
    else:
        (topology, tokens), (norm, log_alpha, log_beta) = graph, sums
        result = gradient(
            each, logits, tokens, topology, lengths, norm, log_alpha, log_beta, log_z, normalized=options.normalized
        )
    return turned(result, options.batch_first)


def label_graph(batch: Batch, options: Options) -> LabelGraph:
    """The graphs of a batch by its criterion."""
    _, targets, _, target_lengths, log_penalty = batch
    star: dict[str, Any] = {}
    if log_penalty is not None:
        star = {"log_penalty": log_penalty, "merge_repeats": options.merge_repeats}
    return criteria.load(options.criterion)(targets, target_lengths, blank=options.blank, **star)


def _banded(batch: Batch, graph: LabelGraph, options: Options) -> _Sums:
    """log_z (B,), insertions (B, U+1) if wanted, and what the gradient needs: norm, log_alpha, log_beta."""
    logits, _, lengths, _, _ = batch
    topology, tokens = graph
    arcs = scores(logits, tokens, topology, lengths, normalized=options.normalized, star=options.inserted)
    log_alpha, log_beta, log_z = banded_torch.forward_backward(
        arcs.stay, arcs.enter, topology, lengths, backward=options.differentiable or options.inserted
    )
    insertions = None
    if options.inserted:
        insertions = _insertions(arcs.star, log_alpha, log_beta, log_z, topology.num_states, lengths)
    return log_z, insertions, (arcs.norm, log_alpha, log_beta)


def _lasting(batch: Batch, graph: LabelGraph, options: Options) -> _Sums:
    """The same where inserted tokens last. A gap there remembers which token stands, so what lies outside of an arc cannot be kept
    apart from what it consumes: the gradient itself is made here, but for its factor."""
    logits, _, lengths, _, _ = batch
    x, _ = log_scores(logits, lengths, options.normalized)
    both = options.differentiable or options.inserted
    log_z, posteriors, insertions = lasting_torch.posteriors(x, gaps_of(graph), lengths, backward=both)
    sums: tuple[Tensor, ...] = ()
    if options.differentiable:
        slope = x.exp() - posteriors if options.normalized else -posteriors
        sums = (slope.to(loss_dtype(logits)),)
    return log_z, insertions if options.inserted else None, sums


def _insertions(
    log_star: Tensor, log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, num_states: Tensor, lengths: Tensor
) -> Tensor:
    """The expected number of tokens that each state's star consumed, (B, S): the posteriors of these arcs, summed."""
    posterior = (log_alpha[:, :-1] + log_star + log_beta[:, 1:] - log_z[:, None, None]).exp()
    inside = torch.arange(log_star.shape[1], device=lengths.device) < lengths[:, None]
    exists = torch.arange(log_star.shape[2], device=lengths.device) < num_states[:, None]
    possible = (log_z != -torch.inf)[:, None, None]
    return posterior.masked_fill(~(inside[:, :, None] & exists[:, None] & possible), 0).sum(dim=1)
