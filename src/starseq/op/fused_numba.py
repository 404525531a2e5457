"""The operation on the CPU in one compiled pass forward and one backward; of a small batch, in one alone.

An utterance goes through all kernels at once, so that its scores stay in the cache, and what Python would do in between is
compiled as well. float32 probabilities are first tried without logarithms (emissions.linear_numba, lattice.scaled_numba), which is
faster; an utterance whose numbers are too far apart for that goes through the kernels of `separate`, as does all else.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starseq.arguments import check_values
from starseq.emissions.linear_numba import gradient_frames, weigh_frames
from starseq.emissions.tokens import NONE
from starseq.emissions.vocabulary_numba import (
    AS_ENTERED,
    BLANK,
    FRAMES,
    Columns,
    cost,
    fill_frames,
    find_columns,
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
from starseq.op.reduction import for_each
from starseq.op.setting import Batch, Request, Saved, by_utterance

_MEAN, _SUM, _NONE = range(3)
_REDUCTIONS = {"mean": _MEAN, "sum": _SUM, "none": _NONE}
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
    form = form_of(setting.criterion, setting.matching, log_penalty is not None)
    B, T, V = shape = by_utterance(logits.shape, batch_first)
    if form is None or (T * V > _MUCH and 2 * torch.get_num_threads() > B):
        return separate.forward(batch, request)
    S = (1 + form.merging) * targets.shape[1] + 1
    dtype = _FLOAT64 if logits.dtype == torch.float64 else _FLOAT32
    # float64 is for those who want every digit; scores that are no probabilities may be of any size.
    scaled = setting.normalized and dtype is _FLOAT32
    both = scaled or differentiable or inserted
    columns = most_columns(S, V)
    known = _layout.py_func(B, T, S, columns, form.merging, form.stars)[-1]
    memory = np.empty(known + (1 + both) * B * (T + 1) * S)
    insertions = np.empty((B, S) if inserted else (0, 0), dtype)
    loss = np.empty(B if reduction == "none" else (), dtype)
    flat, *strides = rows_of(logits)
    gradient = gradient_like(logits) if scaled and ahead else None
    out_flat, *out_strides = (flat[:0], 0, 0) if gradient is None else rows_of(gradient)
    lengths = _array(target_lengths, np.int64)
    reducing = (lengths, _REDUCTIONS[reduction], zero_infinity, loss.reshape(-1))
    try:
        pieces = threads.run(
            _forward_scaled if scaled else _forward, B, cost(shape, S), flat, *by_utterance(strides, batch_first),
            out_flat, *by_utterance(out_strides, batch_first), T, V,
            _array(targets, np.int64), _array(input_lengths, np.int64),
            _NO_WEIGHTS if log_penalty is None else _array(log_penalty.detach(), np.float64), columns,
            setting.blank, form.merging, form.leaves_out, validate, setting.normalized, memory, insertions, *reducing,
        )  # fmt: skip
    except ValueError:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size(shape), setting.blank)
        raise
    if pieces > 1:
        _reduce(memory[:B], *reducing)
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
        for_logits = gradient_like(logits)
        (flat, *strides), (out_flat, *out_strides) = rows_of(logits), rows_of(for_logits)
        threads.run(
            _gradient, B * T, cost(shape, S), flat, *by_utterance(strides, request.batch_first), out_flat,
            *by_utterance(out_strides, request.batch_first), T, V, S, most_columns(S, V), _array(input_lengths, np.int64),
            _array(target_lengths, np.int64), form.merging, form.stars, request.setting.normalized,
            _array(grad.detach(), np.float64), _REDUCTIONS[request.reduction], saved.tensors[-1].numpy(),
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


class _Known(NamedTuple):
    """What is known of a batch before any logit is read."""

    columns: Columns
    num_states: Any  # (B,)
    ends: int
    skip: Any  # (B, S), or (0, S)
    scaled: Any  # (B,), whether it was summed without logarithms


@jit
def _layout(batch: Any, frames: Any, states: Any, columns: Any, merging: Any, stars: Any) -> Any:
    """Where the parts of a batch's memory end, in float64 numbers: log_z, stats, weight, share, whole numbers, scaled, tokens,
    what enters, what is left out, skip. The sums of both directions follow. See _parts."""
    log_z = batch
    stats = log_z + 3 * batch * frames
    weight = stats + (batch * states if stars else 0)
    share = weight + (batch * states if stars else 0)
    whole = share + 3 * batch
    scaled = whole + (batch + 7) // 8
    token = scaled + (batch * columns + 1) // 2
    enter = token + batch * states
    left_out = enter + (batch * states if stars else 0)
    skip = left_out + ((batch * states + 7) // 8 if merging else 0)
    return log_z, stats, weight, share, whole, scaled, token, enter, left_out, skip


@jit_outer  # not `jit`: arrays that are returned must be counted, or they are freed twice
def _parts(memory: Any, batch: Any, frames: Any, states: Any, count: Any, merging: Any, stars: Any) -> Any:
    """What is known of a batch, and its sums, all in one block of memory: an array more is a microsecond more at each call.
    count: `most_columns`.

    The sums are log_z (B,), stats (3, B, T), and those of both directions (B, T+1, S), of which the last may be missing. Of an
    utterance summed with logarithms, stats[0] is the norm, and the sums are logarithms; of others stats are the tops, the
    inverses and the factors of emissions.linear_numba and lattice.scaled_numba.
    """
    log_z, stats, weight, share, whole, scaled, token, _, left_out, skip = _layout(
        batch, frames, states, count, merging, stars
    )
    starred = batch if stars else 0
    numbers, places = memory[share:whole].view(np.int64), memory[scaled:left_out].view(np.uint32)
    first, arcs = 2 * (token - scaled), 2 * batch * states
    columns = Columns(
        places[: batch * count].reshape((batch, count)),
        numbers[:batch],
        numbers[batch : 2 * batch],
        AS_ENTERED if merging else BLANK,
        places[first : first + arcs].reshape((2, batch, states)),
        places[:0].reshape((2, 0, states)),
        places[first + arcs :].reshape((2, starred, states)),
        memory[stats:weight].reshape((starred, states)),
        memory[weight:share].reshape((starred, states)),
    )
    skips = batch if merging else 0
    known = _Known(
        columns, numbers[2 * batch :], 2 if merging else 1,
        memory[left_out:skip].view(np.bool_)[: skips * states].reshape((skips, states)),
        memory[whole:scaled].view(np.bool_)[:batch],
    )  # fmt: skip
    sums, size = memory[skip:], batch * (frames + 1) * states
    both = batch if sums.size > size else 0
    return known, (
        memory[:log_z],
        memory[log_z:stats].reshape((3, batch, frames)),
        sums[:size].reshape((batch, frames + 1, states)),
        sums[size:].reshape((both, frames + 1, states)),
    )


@jit
def _good(
    b: Any, targets: Any, input_lengths: Any, target_lengths: Any, weights: Any, frames: Any, vocabulary: Any, blank: Any
) -> Any:  # fmt: skip
    """Whether `check_values` has nothing to say of utterance b. weights: log_penalty, or (0, 0)."""
    n = target_lengths[b]
    if input_lengths[b] < 0 or input_lengths[b] > frames or n < 0 or n > targets.shape[1]:
        return False
    for u in range(n):
        if targets[b, u] < 0 or targets[b, u] >= vocabulary or targets[b, u] == blank:
            return False
    if weights.size:
        for u in range(n + 1):
            if not weights[b, u] <= 0:
                return False
    return True


@jit
def _know(
    b: Any, targets: Any, target_lengths: Any, weights: Any, blank: Any, leaves_out: Any, enter: Any, left_out: Any, place: Any,
    known: Any,
) -> None:  # fmt: skip
    """Fills in what is known of utterance b: its graph, as `form` describes it. For scratch: enter, left_out, (S,); place, as in
    find_columns."""
    merging, labels = known.skip.size > 0, targets.shape[1]
    known.num_states[b] = (2 * target_lengths[b] if merging else target_lengths[b]) + 1
    known.scaled[b] = False  # until it is
    if merging:
        enter[0] = blank
        known.skip[b, :2] = False
    else:
        enter[0] = NONE
    for u in range(labels):
        label = NONE if targets[b, u] == blank else targets[b, u]  # as a label it is impossible
        if merging:
            enter[2 * u + 1], enter[2 * u + 2] = label, blank
            known.skip[b, 2 * u + 1] = u > 0 and targets[b, u] != targets[b, u - 1]
            known.skip[b, 2 * u + 2] = False
        else:
            enter[u + 1] = label
    for s in range(enter.size if leaves_out else 0):
        closed = s < labels and weights[b, s + 1] == -np.inf
        left_out[s] = NONE if s == labels or closed else targets[b, s]
    find_columns(
        b, enter, enter if merging else enter[:0], left_out if leaves_out else left_out[:0],
        weights[b] if weights.size else weights.reshape(-1), known.num_states[b], blank, place, known.columns,
    )  # fmt: skip


@jit_outer
def _prepare(
    begin: Any, end: Any, frames: Any, vocabulary: Any, targets: Any, lengths: Any, target_lengths: Any, weights: Any,
    count: Any, blank: Any, merging: Any, leaves_out: Any, validate: Any, memory: Any,
) -> Any:  # fmt: skip
    """The parts of a batch's memory, what is known of utterances begin..end-1 filled in. Raises ValueError if a value is bad, and
    that matters."""
    if validate:
        for b in range(begin, end):
            if not _good(b, targets, lengths, target_lengths, weights, frames, vocabulary, blank):
                raise ValueError("a length, a label or a penalty is out of range")
    batch, labels = targets.shape
    states = 2 * labels + 1 if merging else labels + 1
    known, sums = _parts(memory, batch, frames, states, count, merging, weights.size > 0)
    enter, left_out, place = np.empty(states, np.int64), np.empty(states, np.int64), np.full(vocabulary, -1, np.int32)
    for b in range(begin, end):
        _know(b, targets, target_lengths, weights, blank, leaves_out, enter, left_out, place, known)
    return known, sums


@jit_outer
def _forward(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, targets: Any, lengths: Any, weights: Any, count: Any, blank: Any, merging: Any,
    leaves_out: Any, validate: Any, normalized: Any, memory: Any, insertions: Any, target_lengths: Any, reduction: Any,
    zero_infinity: Any, loss: Any,
) -> None:  # fmt: skip
    """Utterances begin..end-1; the loss as well, if these are all of them. Arguments as _forward_scaled has them; no gradient."""
    known, sums = _prepare(
        begin, end, frames, vocabulary, targets, lengths, target_lengths, weights, count, blank, merging, leaves_out, validate,
        memory,
    )  # fmt: skip
    _with_logarithms(
        begin, end, flat, stride_b, stride_t, frames, vocabulary, known, lengths, normalized, sums, insertions
    )
    if end - begin == lengths.size:
        _reduce(sums[0], target_lengths, reduction, zero_infinity, loss)


@jit_outer
def _with_logarithms(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any, known: Any, lengths: Any,
    normalized: Any, sums: Any, insertions: Any,
) -> None:  # fmt: skip
    columns = known.columns
    states = columns.enter.shape[2]
    scores = np.empty((1 if columns.loops == AS_ENTERED else 3 if insertions.size else 2, frames, states))
    stats, inserted, like = np.empty((FRAMES, 5)), np.empty(states), np.empty(0, flat.dtype)
    picked = np.empty((2, FRAMES, states), flat.dtype)
    for b in range(begin, end):
        _utterance(
            b, flat, b * stride_b, stride_t, vocabulary, known, lengths[b], normalized, sums, scores, stats, picked, like
        )  # fmt: skip
        if insertions.size:
            _insertions(b, known.num_states[b], lengths[b], scores[2], sums, inserted, insertions[b], like)


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
    leaves_out: Any, validate: Any, normalized: Any, memory: Any, insertions: Any, target_lengths: Any, reduction: Any,
    zero_infinity: Any, loss: Any,
) -> None:  # fmt: skip
    """As _forward, without logarithms where that is safe, which is found out by trying, unless it is unlikely.

    out_flat: the gradient by a loss whose own is 1; if empty, that is not wanted.
    """
    known, sums = _prepare(
        begin, end, frames, vocabulary, targets, lengths, target_lengths, weights, count, blank, merging, leaves_out, validate,
        memory,
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
    _share(np.ones(lengths.size), target_lengths, reduction, grad)
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
            log_z[b] = sum_scaled(
                stay, enter, known.ends, skips, lengths[b], states, alpha[b], beta[b], visits, stats_of[2, b], exponents, rows,
                like,
            )  # fmt: skip
            good = log_z[b] == log_z[b]
        known.scaled[b] = good
        if not good:
            _with_logarithms(
                b, b + 1, flat, stride_b, stride_t, frames, vocabulary, known, lengths, normalized, sums, insertions
            )
        elif insertions.size:
            _insertions_scaled(lengths[b], states, star, alpha[b], beta[b], stats_of[2, b], rows, insertions[b])
        if out_flat.size:
            _gradient_of(
                b * frames, (b + 1) * frames, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames,
                vocabulary, count, known, lengths, normalized, grad, sums,
            )  # fmt: skip
    if end - begin == lengths.size:
        _reduce(log_z, target_lengths, reduction, zero_infinity, loss)


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
def _gradient(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, states: Any, count: Any, lengths: Any, target_lengths: Any, merging: Any, stars: Any,
    normalized: Any, grads: Any, reduction: Any, memory: Any,
) -> None:  # fmt: skip
    """The gradients of rows begin..end-1 of all B * T. grads: of the loss, (B,) or (1,)."""
    known, sums = _parts(memory, lengths.size, frames, states, count, merging, stars)
    grad = np.empty(lengths.size)
    _share(grads, target_lengths, reduction, grad)
    _gradient_of(
        begin, end, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary, count, known, lengths,
        normalized, grad, sums,
    )  # fmt: skip


@jit_outer
def _gradient_of(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, count: Any, known: Any, lengths: Any, normalized: Any, grad: Any, sums: Any,
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
        if not known.scaled[b]:
            gradient_kernel(
                item, item + stop - t, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary,
                columns, lengths, normalized, known.skip, known.num_states, grad, stats[0], alpha, beta, log_z,
            )  # fmt: skip
        else:
            inside = max(t, min(stop, lengths[b]))
            fill_frames(inside, stop, out_flat, b * out_stride_b, out_stride_t, vocabulary, 0.0)
            gradient_frames(
                t, inside, flat, b * stride_b, stride_t, out_flat, b * out_stride_b, out_stride_t, vocabulary, b,
                known.num_states[b], columns, grad[b], alpha[b], beta[b], stats[0, b], stats[1, b], stats[2, b], picked,
                by_column[0], by_column[1], terms, weights, like,
            )  # fmt: skip
        item += stop - t


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


@jit
def _reduce(log_z: Any, target_lengths: Any, reduction: Any, zero_infinity: Any, out: Any) -> None:
    """As reduction.reduce."""
    whole = 0.0
    for b in range(log_z.size):
        loss = 0.0 if zero_infinity and log_z[b] == -np.inf else -log_z[b]
        if reduction == _NONE:
            out[b] = loss
        else:
            whole += loss / max(target_lengths[b], 1) if reduction == _MEAN else loss
    if reduction != _NONE:
        out[0] = whole / log_z.size if reduction == _MEAN else whole


@jit
def _share(grad: Any, target_lengths: Any, reduction: Any, out: Any) -> None:
    """As reduction.for_each. grad: (B,), or of one element."""
    for b in range(out.size):
        part = grad[b] if reduction == _NONE else grad[0]
        out[b] = part / (max(target_lengths[b], 1) * out.size) if reduction == _MEAN else part
