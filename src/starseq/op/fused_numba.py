"""The operation on the CPU in one compiled pass forward and one backward, of a small batch in one alone.

An utterance goes through all kernels at once, so that its scores stay in the cache, and what Python would do in between is
compiled as well. float32 probabilities are first tried without logarithms (emissions.linear_numba, lattice.scaled_numba), which is
faster; an utterance whose numbers are too far apart for that goes through the kernels of `separate`, as does all else. Either way
is compiled when it is first needed, and most never need the second.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starseq.arguments import check_values
from starseq.emissions.linear_numba import gradient_frames, weigh_frames
from starseq.emissions.vocabulary_numba import (
    AS_ENTERED,
    FRAMES,
    cost,
    fill_frames,
    gradient_kernel,
    gradient_like,
    most_columns,
    rows_of,
    score_frames,
)
from starseq.lattice import threads
from starseq.lattice.banded_numba import add_posteriors, sum_utterance
from starseq.lattice.elementary_numba import jit, jit_outer
from starseq.lattice.lanes_numba import LANES
from starseq.lattice.scaled_numba import padded, sum_scaled
from starseq.op import separate
from starseq.op.form import Form, form_of
from starseq.op.known_numba import REDUCTIONS, layout, parts, prepare, reduce_losses, scaled_of, share_grad
from starseq.op.reduction import for_each
from starseq.op.setting import Batch, Request, Saved, by_utterance

_LONG = 128  # states of a merging graph: paths of blanks alone are then mostly too far from those with all labels
_SMALL = 1_000_000  # logits of a batch: so many gradients can wait for the backward pass
_MUCH = 1_000_000  # logits of one utterance: where so large ones are few, threads had better share their frames


class _Ahead:
    """The gradient of a small batch by a loss whose own is 1, made while all was in the cache. It is given away: a second backward
    pass, which is rare, has to compute forward again."""

    def __init__(self, gradient: Tensor) -> None:
        self._gradient: Tensor | None = gradient

    def take(self) -> Tensor | None:
        gradient, self._gradient = self._gradient, None
        return gradient


def forward(batch: Batch, request: Request) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits = batch[0]
    small = logits.dtype == torch.float32 and logits.numel() <= _SMALL
    return _forward_of(batch, request, ahead=small and request.differentiable and logits.requires_grad)


def _forward_of(batch: Batch, request: Request, *, ahead: bool) -> tuple[Tensor, Tensor | None, Saved]:
    """With `ahead` the gradient of the logits is made as well, where it is computed in float32 from probabilities."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    setting, batch_first, validate, inserted, differentiable, reduction, zero_infinity = request
    form = form_of(setting.criterion, setting.merge_repeats, log_penalty is not None)
    B, T, V = shape = by_utterance(logits.shape, batch_first)
    if form is None or (T * V > _MUCH and 2 * torch.get_num_threads() > B):
        return separate.forward(batch, request)
    S = (1 + form.merging) * targets.shape[1] + 1
    dtype = _FLOAT64 if logits.dtype == torch.float64 else _FLOAT32
    # float64 is for those who want every digit; scores that are no probabilities may be of any size.
    scaled = setting.normalized and dtype is _FLOAT32
    both = scaled or differentiable or inserted
    columns = most_columns(S, V)
    ends = layout.py_func(B, T, S, columns, form.merging, form.stars)
    memory = np.empty(ends[-1] + (1 + both) * B * (T + 1) * S)
    insertions = np.empty((B, S) if inserted else (0, 0), dtype)
    loss = np.empty(B if reduction == "none" else (), dtype)
    flat, *strides = rows_of(logits)
    gradient = gradient_like(logits) if scaled and ahead else None
    out_flat, *out_strides = (flat[:0], 0, 0) if gradient is None else rows_of(gradient)
    lengths = _array(target_lengths, np.int64)
    reducing = (lengths, REDUCTIONS[reduction], zero_infinity, loss.reshape(-1))
    arguments = (
        B, cost(shape, S), flat, *by_utterance(strides, batch_first), out_flat, *by_utterance(out_strides, batch_first), T, V,
        _array(targets, np.int64), _array(input_lengths, np.int64),
        _NO_WEIGHTS if log_penalty is None else _array(log_penalty.detach(), np.float64), columns,
        setting.blank, form.merging, validate, setting.normalized, memory, insertions, *reducing,
    )  # fmt: skip
    try:
        pieces = threads.run(_forward_scaled, *arguments) if scaled else threads.run(_forward, *arguments, False)
    except ValueError:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size(shape), setting.blank)
        raise
    if scaled and not scaled_of(memory, B, ends).all():
        pieces = threads.run(_forward, *arguments, True)
    if pieces > 1:
        reduce_losses(memory[:B], *reducing)
    counts = torch.from_numpy(insertions) if inserted else None
    kept = () if counts is None else (counts,)
    if gradient is not None:
        return torch.from_numpy(loss), counts, Saved(kept, _Ahead(gradient))
    return torch.from_numpy(loss), counts, Saved((*kept, torch.from_numpy(memory)), form)


def backward(
    grad: Tensor, batch: Batch, saved: Saved, request: Request, *, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:
    """See starseq.op."""
    for_logits = for_penalty = None
    if isinstance(saved.other, _Ahead) and needs_logits:
        for_logits = _multiplied(saved.other.take(), grad, request)
        if for_logits is None:
            saved = _forward_of(batch, request, ahead=False)[-1]
    form = saved.other
    if not isinstance(form, (Form, _Ahead)):
        return separate.backward(grad, batch, saved, request, needs_logits=needs_logits, needs_penalty=needs_penalty)
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    if needs_logits and isinstance(form, Form):
        B, T, V = shape = by_utterance(logits.shape, request.batch_first)
        S = (1 + form.merging) * targets.shape[1] + 1
        columns, memory = most_columns(S, V), saved.tensors[-1].numpy()
        for_logits = gradient_like(logits)
        (flat, *strides), (out_flat, *out_strides) = rows_of(logits), rows_of(for_logits)
        scaled = scaled_of(memory, B, layout.py_func(B, T, S, columns, form.merging, form.stars))
        for kernel, needed in ((_gradient_scaled, scaled.any()), (_gradient, not scaled.all())):
            if needed:
                threads.run(
                    kernel, B * T, cost(shape, S), flat, *by_utterance(strides, request.batch_first), out_flat,
                    *by_utterance(out_strides, request.batch_first), T, V, S, columns, _array(input_lengths, np.int64),
                    _array(target_lengths, np.int64), form.merging, form.stars, request.setting.normalized,
                    _array(grad.detach(), np.float64), REDUCTIONS[request.reduction], memory,
                )  # fmt: skip
        if for_logits.dtype != logits.dtype:
            for_logits = for_logits.to(logits.dtype)
    if needs_penalty:
        each = for_each(grad, target_lengths, request.reduction)
        for_penalty = separate.penalty_gradient(each, saved.tensors[0], log_penalty)
    return for_logits, for_penalty


def _multiplied(gradient: Tensor | None, grad: Tensor, request: Request) -> Tensor | None:
    """In place. Not by what is infinite or NaN: where an utterance has no gradient it has none by such a loss either."""
    if gradient is None:
        return None
    if request.reduction == "none":
        if not bool(grad.isfinite().all()):
            return None
        gradient *= grad.view((-1, 1, 1) if request.batch_first else (-1, 1))
    elif (factor := grad.item()) != 1:
        if not math.isfinite(factor):
            return None
        gradient *= factor
    return gradient


_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_NO_WEIGHTS = np.empty((0, 0))


def _array(x: Tensor, dtype: Any) -> Any:
    """For compiled code, which is compiled anew for every type and every kind of strides: here they are always the same."""
    return np.ascontiguousarray(x.numpy(), dtype)


@jit_outer
def _forward(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, targets: Any, lengths: Any, weights: Any, count: Any, blank: Any, merging: Any,
    validate: Any, normalized: Any, memory: Any, insertions: Any, target_lengths: Any, reduction: Any,
    zero_infinity: Any, loss: Any, again: Any,
) -> None:  # fmt: skip
    """Utterances begin..end-1; the loss as well, if these are all of them. Arguments as _forward_scaled has them.

    again: after that one, for utterances where it did not succeed.
    """
    states = (2 if merging else 1) * targets.shape[1] + 1
    if again:
        known, sums = parts(memory, lengths.size, frames, states, count, merging, weights.size > 0)
    else:
        known, sums = prepare(
            begin, end, frames, vocabulary, targets, lengths, target_lengths, weights, count, blank, merging, validate,
            memory,
        )  # fmt: skip
    columns = known.columns
    scores = np.empty((1 if columns.loops == AS_ENTERED else 3 if insertions.size else 2, frames, states))
    stats, inserted, like = np.empty((FRAMES, 5)), np.empty(states), np.empty(0, flat.dtype)
    picked, grad = np.empty((2, FRAMES, states), flat.dtype), np.empty(lengths.size)
    if out_flat.size:
        share_grad(np.ones(lengths.size), target_lengths, reduction, grad)
    for b in range(begin, end):
        if known.scaled[b]:
            continue
        _utterance(
            b, flat, b * stride_b, stride_t, vocabulary, known, lengths[b], normalized, sums, scores, stats, picked, like
        )  # fmt: skip
        if insertions.size:
            _insertions(b, known.num_states[b], lengths[b], scores[2], sums, inserted, insertions[b], like)
        if out_flat.size:
            _gradient_of(
                b * frames, (b + 1) * frames, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames,
                vocabulary, known, lengths, normalized, grad, sums,
            )  # fmt: skip
    if end - begin == lengths.size:
        reduce_losses(sums[0], target_lengths, reduction, zero_infinity, loss)


@jit
def _utterance(
    b: Any, flat: Any, start: Any, stride_t: Any, vocabulary: Any, known: Any, frames: Any, normalized: Any, sums: Any,
    scores: Any, stats: Any, picked: Any, like: Any,
) -> None:  # fmt: skip
    """Scores and sums of utterance b. scores: enter, stay and star, (T, S) each, as far as there are any."""
    log_z, stats_of, log_alpha, log_beta = sums
    norm, states = stats_of[0], known.num_states[b]
    log_enter, log_stay = scores[0], scores[min(1, scores.shape[0] - 1)]
    score_frames(
        0, frames, flat, start, stride_t, vocabulary, b, states, known.columns, normalized, log_stay, log_enter,
        scores[2] if scores.shape[0] > 2 else scores[0, :0], norm[b], stats, picked, like,
    )  # fmt: skip
    skip = known.skip[b] if known.skip.size else known.skip.reshape(-1)
    beta = log_beta[b] if log_beta.size else log_alpha[b, :0]
    log_z[b] = sum_utterance(log_stay, log_enter, known.ends, skip, frames, states, log_alpha[b], beta, like)


@jit_outer
def _forward_scaled(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, targets: Any, lengths: Any, weights: Any, count: Any, blank: Any, merging: Any,
    validate: Any, normalized: Any, memory: Any, insertions: Any, target_lengths: Any, reduction: Any,
    zero_infinity: Any, loss: Any,
) -> None:  # fmt: skip
    """As _forward, of those utterances alone where it is safe without logarithms, which is found out by trying, unless it is
    unlikely.

    out_flat: the gradient by a loss whose own is 1; if empty, that is not wanted.
    """
    known, sums = prepare(
        begin, end, frames, vocabulary, targets, lengths, target_lengths, weights, count, blank, merging, validate, memory,
    )  # fmt: skip
    columns, visits = known.columns, known.columns.loops == AS_ENTERED
    size = padded(columns.enter.shape[2])
    scores, like = np.empty((3 if insertions.size else 2, frames * size + LANES)), np.empty(0, flat.dtype)
    stats, picked, powers = np.empty((FRAMES, 2)), np.empty((FRAMES, count), flat.dtype), np.empty((FRAMES, count + 1))
    chosen, exponents, rows = np.empty((2 * FRAMES, size)), np.empty((2, frames + 1)), np.empty(4 * (size + 2 * LANES))
    skips = np.zeros(size + LANES if known.skip.size else 0)
    log_z, stats_of, alpha, beta = sums
    star = scores[2] if insertions.size else scores[0, :0]
    stay, enter = scores[1 if visits else 0], scores[1]
    grad = np.empty(lengths.size)
    share_grad(np.ones(lengths.size), target_lengths, reduction, grad)
    for b in range(begin, end):
        states = known.num_states[b]
        good = (not visits or states <= _LONG) and weigh_frames(
            lengths[b], flat, b * stride_b, stride_t, vocabulary, b, states, columns, stay, enter, star, stats_of[0, b],
            stats_of[1, b], stats, picked, powers, chosen, like,
        )  # fmt: skip
        if good:
            if skips.size:
                skips[:states] = known.skip[b, :states]
                skips[states:] = 0.0
            if lengths[b] < _fewest(b, known):
                log_z[b] = -np.inf
            else:
                log_z[b] = sum_scaled(
                    stay, enter, known.ends, skips, lengths[b], states, alpha[b], beta[b], visits, stats_of[2, b], exponents,
                    rows, like,
                )  # fmt: skip
            good = log_z[b] == log_z[b]
        known.scaled[b] = good
        if good and insertions.size and log_z[b] == -np.inf:
            insertions[b] = 0.0
        elif good and insertions.size:
            _insertions_scaled(lengths[b], states, star, alpha[b], beta[b], stats_of[2, b], rows, insertions[b])
        if good and out_flat.size:
            _gradient_scaled_of(
                b * frames, (b + 1) * frames, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames,
                vocabulary, count, known, lengths, grad, sums,
            )  # fmt: skip
    if end - begin == lengths.size:
        reduce_losses(log_z, target_lengths, reduction, zero_infinity, loss)


@jit
def _fewest(b: Any, known: Any) -> Any:
    """How many frames an alignment of utterance b takes at least."""
    labels = known.num_states[b] - 1
    if known.skip.size == 0:
        return labels
    labels //= 2
    repeats = 0
    for u in range(1, labels):
        repeats += not known.skip[b, 2 * u + 1]
    return labels + repeats


@jit
def _insertions_scaled(
    frames: Any, states: Any, star: Any, alpha: Any, beta: Any, factor: Any, inserted: Any, out: Any
) -> None:
    """As _insertions."""
    inserted[:states] = 0.0
    for t in range(frames):
        for s in range(states):
            inserted[s] += alpha[t, s] * (star[t * padded(states) + s] * factor[t]) * beta[t + 1, s]
    for s in range(out.size):
        out[s] = inserted[s] if s < states else 0.0


@jit_outer
def _gradient_scaled(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, states: Any, count: Any, lengths: Any, target_lengths: Any, merging: Any, stars: Any,
    normalized: Any, grads: Any, reduction: Any, memory: Any,
) -> None:  # fmt: skip
    """The gradients of rows begin..end-1 of all B * T, as far as they are of utterances that were summed without logarithms.

    grads: of the loss, (B,) or (1,).
    """
    known, sums = parts(memory, lengths.size, frames, states, count, merging, stars)
    grad = np.empty(lengths.size)
    share_grad(grads, target_lengths, reduction, grad)
    _gradient_scaled_of(
        begin, end, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary, count, known, lengths,
        grad, sums,
    )  # fmt: skip


@jit_outer
def _gradient_scaled_of(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, count: Any, known: Any, lengths: Any, grad: Any, sums: Any,
) -> None:  # fmt: skip
    """The same, of what is known and summed. grad: of each utterance's loss, (B,)."""
    log_z, stats, alpha, beta = sums
    columns, states = known.columns, known.columns.enter.shape[2]
    picked, by_column = np.empty((FRAMES, count), flat.dtype), np.empty((2, FRAMES, count + 1))
    terms, weights, like = np.empty((2, FRAMES, states)), np.empty((FRAMES, 2)), np.empty(0, flat.dtype)
    item = begin
    while item < end:
        b, t = item // frames, item % frames
        stop = min(frames, t + end - item)
        if known.scaled[b]:
            inside = t if log_z[b] == -np.inf else max(t, min(stop, lengths[b]))
            fill_frames(inside, stop, out_flat, b * out_stride_b, out_stride_t, vocabulary, 0.0)
            gradient_frames(
                t, inside, flat, b * stride_b, stride_t, out_flat, b * out_stride_b, out_stride_t, vocabulary, b,
                known.num_states[b], columns, grad[b], alpha[b], beta[b], stats[0, b], stats[1, b], stats[2, b], picked,
                by_column[0], by_column[1], terms, weights, like,
            )  # fmt: skip
        item += stop - t


@jit_outer
def _gradient(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, states: Any, count: Any, lengths: Any, target_lengths: Any, merging: Any, stars: Any,
    normalized: Any, grads: Any, reduction: Any, memory: Any,
) -> None:  # fmt: skip
    """As _gradient_scaled, of the other utterances."""
    known, sums = parts(memory, lengths.size, frames, states, count, merging, stars)
    grad = np.empty(lengths.size)
    share_grad(grads, target_lengths, reduction, grad)
    _gradient_of(
        begin, end, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary, known, lengths,
        normalized, grad, sums,
    )  # fmt: skip


@jit_outer
def _gradient_of(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, known: Any, lengths: Any, normalized: Any, grad: Any, sums: Any,
) -> None:  # fmt: skip
    log_z, stats, log_alpha, log_beta = sums
    item = begin
    while item < end:
        b = item // frames
        stop = min(end, (b + 1) * frames)
        if not known.scaled[b]:
            gradient_kernel(
                item, stop, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary, known.columns,
                lengths, normalized, known.skip, known.num_states, grad, stats[0], log_alpha, log_beta, log_z,
            )  # fmt: skip
        item = stop


@jit
def _insertions(b: Any, states: Any, frames: Any, log_star: Any, sums: Any, inserted: Any, out: Any, like: Any) -> None:
    """The expected number of tokens that each state's star consumed: the posteriors of these arcs, summed."""
    log_z, _, log_alpha, log_beta = sums
    inserted[:] = 0.0
    if log_z[b] != -np.inf:
        for t in range(frames):
            add_posteriors(
                log_alpha[b, t, :states],
                log_star[t, :states],
                log_beta[b, t + 1, :states],
                log_z[b],
                inserted[:states],
                like,
            )
    for s in range(out.size):
        out[s] = inserted[s]
