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
from starseq.emissions.slots_numba import ALIVE, DENSE, deal, fill_gradient, row_of
from starseq.emissions.vocabulary_numba import gradient_like, rows_of
from starseq.emissions.vocabulary_torch import log_scores
from starseq.lattice import lasting_torch, threads
from starseq.lattice.elementary_numba import jit, jit_outer
from starseq.lattice.lasting_numba import PADDED, Posteriors, Rows, room, room_needed
from starseq.lattice.lasting_numba import backward as sum_back
from starseq.lattice.lasting_numba import forward as sum_up
from starseq.op import separate
from starseq.op.known_numba import REDUCTIONS, reduce_losses
from starseq.op.reduction import for_each
from starseq.op.setting import Batch, Request, Saved, by_utterance, loss_dtype, turned


def forward(batch: Batch, request: Request) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    assert log_penalty is not None
    B, T, V = shape = by_utterance(logits.shape, request.batch_first)
    if request.validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size(shape), request.setting.blank)
    gradient = gradient_like(logits) if request.differentiable else None
    flat, *strides = rows_of(logits)
    out, *out_strides = (flat[:0], 0, 0) if gradient is None else rows_of(gradient)
    lengths = _array(target_lengths, np.int64)
    each = for_each(torch.ones(B if request.reduction == "none" else ()), target_lengths, request.reduction)
    log_z, inserted = np.empty(B), np.zeros((B, targets.shape[1] + 1) if request.inserted else (0, 0))
    threads.run(
        _utterances, B, B * T * (V + 8 * min(V, DENSE) * (1 + targets.shape[1])), flat,
        *by_utterance(strides, request.batch_first), out, *by_utterance(out_strides, request.batch_first), T, V,
        _array(targets, np.int64), _array(input_lengths, np.int64), lengths, _array(log_penalty.detach(), np.float64),
        request.setting.blank, request.setting.normalized, _array(each, np.float64), log_z, inserted,
    )  # fmt: skip
    for b in np.isnan(log_z).nonzero()[0].tolist():
        _by_torch(b, batch, request, float(each[b]), log_z, inserted, gradient)
    loss = torch.empty(B if request.reduction == "none" else (), dtype=loss_dtype(logits))
    reduce_losses(log_z, lengths, REDUCTIONS[request.reduction], request.zero_infinity, loss.numpy().reshape(-1))
    insertions = torch.from_numpy(inserted).to(loss.dtype) if request.inserted else None
    return loss, insertions, Saved(() if insertions is None else (insertions,), _Ahead(gradient))


class _Ahead:
    """The gradient by a loss whose own is 1. It is given away: a second backward pass, which is rare, computes forward again."""

    def __init__(self, gradient: Tensor | None) -> None:
        self._gradient = gradient

    def take(self) -> Tensor | None:
        gradient, self._gradient = self._gradient, None
        return gradient


_LEAST = 1e-18  # a smaller weight of an open gap is a matter for lasting_torch


def backward(
    grad: Tensor, batch: Batch, saved: Saved, request: Request, *, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:
    """See starseq.op."""
    for_logits = for_penalty = None
    if needs_logits:
        for_logits = saved.other.take()
        if for_logits is None:
            for_logits = forward(batch, request)[-1].other.take()
        factor = grad if request.reduction != "none" else grad.view((-1, 1, 1) if request.batch_first else (-1, 1))
        if bool(grad.isfinite().all()):
            if request.reduction == "none" or grad.item() != 1:
                for_logits *= factor
        else:  # where an utterance has no gradient it has none by such a loss either
            for_logits = torch.where(for_logits == 0, for_logits, for_logits * factor)
        for_logits = for_logits.to(batch[0].dtype)
    if needs_penalty:
        each = for_each(grad, batch[3], request.reduction)
        for_penalty = separate.penalty_gradient(each, saved.tensors[0], batch[4])
    return for_logits, for_penalty


def _by_torch(
    b: int, batch: Batch, request: Request, grad: float, log_z: Any, inserted: Any, gradient: Tensor | None
) -> None:
    """An utterance whose numbers are too far apart for sums without logarithms."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    setting, T, U = request.setting, int(input_lengths[b]), int(target_lengths[b])
    assert log_penalty is not None
    x, _ = log_scores(turned(logits, request.batch_first)[b, None, :T], input_lengths[b, None], setting.normalized)
    one = targets[b, None, :U], target_lengths[b, None], log_penalty[b, None, : U + 1]
    gaps = gaps_of(separate.label_graph(setting.criterion, *one, setting.merge_repeats, setting.blank))
    log_z_of_one, posteriors, begun = lasting_torch.posteriors(x, gaps, input_lengths[b, None])
    log_z[b] = log_z_of_one[0]
    if inserted.size:
        inserted[b, : U + 1] = begun[0]
    if gradient is not None:
        result = x.exp() * setting.normalized - posteriors if log_z[b] > -math.inf else torch.zeros_like(x)
        turned(gradient, request.batch_first)[b, :T] = grad * (result if log_z[b] == log_z[b] else math.nan)


def _array(x: Tensor, dtype: Any) -> Any:
    return np.ascontiguousarray(x.numpy(), dtype)


@jit_outer
def _utterances(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out: Any, out_b: Any, out_t: Any, most: Any,
    vocabulary: Any, targets: Any, lengths: Any, target_lengths: Any, weights: Any, blank: Any, normalized: Any, grads: Any,
    log_z: Any, inserted: Any,
) -> None:  # fmt: skip
    """log_z is NaN where nothing can be said. out: empty, or the gradient in the logits' order."""
    place, like = np.full(vocabulary, -1, np.int64), np.empty(0, flat.dtype)
    wide, narrow = np.empty(0), np.empty(0, flat.dtype)
    rest = out if out.size else np.empty(most * vocabulary, flat.dtype)
    for b in range(begin, end):
        frames, count = max(0, min(lengths[b], most)), max(0, min(target_lengths[b], targets.shape[1]))
        labels, rows = _rows(targets[b, :count], weights[b], blank, place)
        dealt = deal(
            flat, b * stride_b, stride_t, frames, vocabulary, labels, blank, _alive(rows), rest,
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
def _alive(rows: Rows) -> Any:
    """ALIVE for the gaps of an utterance."""
    most = 1.0
    for l in range(rows.p.size):
        if rows.p[l] > 0.0:
            most = max(most, rows.rest[l] / rows.p[l])
    return ALIVE / min(most, 1e2) ** 3


@jit_outer
def _rows(labels: Any, weights: Any, blank: Any, place: Any) -> Any:
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
