"""The operation on the CPU where inserted tokens last: an utterance goes through all at once, gradient and all.

The gradient is made with the loss, for a loss whose own is 1, and multiplied backwards.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starseq.arguments import check_values
from starseq.criteria.graph import gaps_of
from starseq.emissions.alive import ALIVE, ALIVE_OF_FEW, DENSE, FEW, ODDS
from starseq.emissions.slots_numba import deal, fill_gradient, row_of
from starseq.emissions.vocabulary_numba import gradient_like, rows_of
from starseq.emissions.vocabulary_torch import log_scores
from starseq.lattice import lasting_torch, threads
from starseq.lattice.elementary_numba import jit, jit_outer
from starseq.lattice.lasting_numba import PADDED, Posteriors, Rows, room, room_needed
from starseq.lattice.lasting_numba import backward as sum_back
from starseq.lattice.lasting_numba import forward as sum_up
from starseq.op.known_numba import REDUCTIONS, reduce_losses
from starseq.op.options import Batch, Options, Saved, by_utterance, loss_dtype, turned
from starseq.op.readable import label_graph
from starseq.op.reduction import Ahead, for_each, multiply


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    assert log_penalty is not None
    B, T, V = shape = by_utterance(logits.shape, options.batch_first)
    if options.validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size(shape), options.blank)
    gradient = gradient_like(logits) if options.differentiable else None
    x = rows_of(logits, options.batch_first)
    out = (x[0][:0], 0, 0) if gradient is None else rows_of(gradient, options.batch_first)
    lengths = _array(target_lengths, np.int64)
    each = for_each(torch.ones(B if options.reduction == "none" else ()), target_lengths, options)
    log_z = np.empty(B)
    inserted = np.zeros((B, targets.shape[1] + 1) if options.inserted else (0, 0))
    labels = (
        _array(targets, np.int64),
        _array(input_lengths, np.int64),
        lengths,
        _array(log_penalty.detach(), np.float64),
    )
    threads.run(
        _utterances, B, B * T * (V + 8 * min(V, DENSE) * (1 + targets.shape[1])), x, out, (T, V), labels, options.blank,
        options.normalized, _array(each, np.float64), log_z, inserted,
    )  # fmt: skip
    for b in np.isnan(log_z).nonzero()[0].tolist():
        _by_torch(b, batch, options, float(each[b]), log_z, inserted, gradient)
    loss = torch.empty(B if options.reduction == "none" else (), dtype=loss_dtype(logits))
    reduce_losses(log_z, lengths, REDUCTIONS[options.reduction], options.zero_infinity, loss.numpy().reshape(-1))
    return loss, torch.from_numpy(inserted).to(loss.dtype) if options.inserted else None, Saved((), Ahead(gradient))


_LEAST = 1e-18  # a smaller weight of an open gap is a matter for lasting_torch


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    gradient = saved.other.take()
    if gradient is None:
        gradient = forward(batch, options)[-1].other.take()
    return multiply(gradient, grad, options).to(batch[0].dtype)


def _by_torch(
    b: int, batch: Batch, options: Options, grad: float, log_z: Any, inserted: Any, gradient: Tensor | None
) -> None:
    """An utterance whose numbers are too far apart for sums without logarithms."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    T, U = int(input_lengths[b]), int(target_lengths[b])
    assert log_penalty is not None
    x, _ = log_scores(turned(logits, options.batch_first)[b, None, :T], input_lengths[b, None], options.normalized)
    one = (x, targets[b, None, :U], input_lengths[b, None], target_lengths[b, None], log_penalty[b, None, : U + 1])
    log_z_of_one, posteriors, begun = lasting_torch.posteriors(x, gaps_of(label_graph(one, options)), one[2])
    log_z[b] = log_z_of_one[0]
    if inserted.size:
        inserted[b, : U + 1] = begun[0]
    if gradient is not None:
        result = x.exp() * options.normalized - posteriors if log_z[b] > -math.inf else torch.zeros_like(x)
        turned(gradient, options.batch_first)[b, :T] = grad * (result if log_z[b] == log_z[b] else math.nan)


def _array(x: Tensor, dtype: Any) -> Any:
    return np.ascontiguousarray(x.numpy(), dtype)


@jit_outer
def _utterances(
    begin: Any, end: Any, x: Any, gradient: Any, size: Any, labels_of_all: Any, blank: Any, normalized: Any, grads: Any, log_z: Any,
    inserted: Any,
) -> None:  # fmt: skip
    """log_z is NaN where nothing can be said. x, gradient: as `rows_of` gives them; the second may be empty. size: (T, V).
    labels_of_all: targets, input_lengths, target_lengths, log_penalty."""
    (flat, stride_b, stride_t), (out, out_b, out_t), (most, vocabulary) = x, gradient, size
    targets, lengths, target_lengths, weights = labels_of_all
    place, like = np.full(vocabulary, -1, np.int64), np.empty(0, flat.dtype)
    wide, narrow = np.empty(0), np.empty(0, flat.dtype)
    rest = out if out.size else np.empty(most * vocabulary, flat.dtype)
    for b in range(begin, end):
        frames, count = max(0, min(lengths[b], most)), max(0, min(target_lengths[b], targets.shape[1]))
        labels, rows = rows_for(targets[b, :count], weights[b], blank, place)
        dealt = deal(
            flat, b * stride_b, stride_t, frames, vocabulary, labels, blank, least_alive(rows, vocabulary), rest,
            b * out_b if out.size else 0, out_t if out.size else vocabulary, like,
        )  # fmt: skip
        slots, size, wanted = dealt.slots, rows.p.size, out.size > 0 or inserted.size > 0
        need_wide, need_narrow = room_needed(frames, size, slots.P.shape[1], slots.chunk)
        if wide.size < need_wide:
            wide = np.empty(need_wide)
        if narrow.size < need_narrow:
            narrow = np.empty(need_narrow, flat.dtype)
        kept = room(frames, size, slots.P.shape[1], slots.chunk, wide, narrow)
        z = sum_up(rows, slots, frames, kept, np.empty((5, size)), np.empty((2, size), flat.dtype))
        if z > -np.inf and wanted:
            begun = np.zeros(size)
            result = Posteriors(
                np.zeros(slots.P.shape, flat.dtype), np.zeros(slots.label.shape), np.zeros(frames), np.zeros(frames),
                np.zeros(frames),
                begun if inserted.size else begun[:0],
            )  # fmt: skip
            good = sum_back(
                rows, slots, frames, kept, np.empty((9, size)), np.empty((5, size), flat.dtype),
                np.empty((2, slots.P.shape[1], size), flat.dtype), result,
            )  # fmt: skip
            if not good:
                z = np.nan
            if good and inserted.size:
                inserted[b, : count + 1] = begun[: count + 1]
            if good and out.size:
                fill_gradient(dealt, result, blank, normalized, grads[b], like)
        for t in range(frames if z > -np.inf else 0, most if out.size else 0):
            row_of(out, b * out_b, out_t, t, vocabulary)[:] = 0
        log_z[b] = z if normalized else z + dealt.norm


@jit
def least_alive(rows: Rows, vocabulary: Any) -> Any:
    """ALIVE for the gaps of an utterance."""
    alive = ALIVE if vocabulary > FEW else ALIVE_OF_FEW
    most = 1.0
    for l in range(rows.p.size):
        if rows.p[l] > 0.0:
            most = max(most, rows.rest[l] / rows.p[l])
    return alive / min(most, ODDS) ** 3


@jit_outer
def rows_for(labels: Any, weights: Any, blank: Any, place: Any) -> Any:
    """The distinct labels of an utterance, and its rows. place: (V,), -1 everywhere, before and after."""
    last = labels.size
    size = (last + PADDED) // PADDED * PADDED
    distinct, known = np.empty(last, np.int64), 0
    label, following = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    for l in range(1, last + 1):
        v = labels[l - 1]
        if v < 0 or v >= place.size or v == blank:
            continue
        if place[v] < 0:
            place[v] = known
            distinct[known] = v
            known += 1
        label[l] = following[l - 1] = place[v]
    for i in range(known):
        place[distinct[i]] = -1
    p, rest, differs, next_open = np.zeros(size), np.zeros(size), np.ones(size), np.zeros(size)
    for l in range(last + 1):
        p[l], rest[l] = math.exp(weights[l]), -math.expm1(weights[l])
        if following[l] >= 0:
            differs[l] = label[l] != following[l]
            next_open[l] = weights[l] > -np.inf and weights[l + 1] == -np.inf
        if weights[l] > -np.inf and p[l] < _LEAST:
            p[l] = np.nan
    first, member, is_own, n = (
        np.zeros(known + 1, np.int64),
        np.empty(2 * size, np.int64),
        np.zeros(2 * size, np.bool_),
        0,
    )
    for i in range(known):
        for l in range(size):
            if following[l] == i or label[l] == i:
                member[n], is_own[n] = l, following[l] != i
                n += 1
        first[i + 1] = n
    return distinct[:known], Rows(last, p, rest, label, following, differs, next_open, first, member, is_own)
