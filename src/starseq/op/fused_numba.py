"""The operation on the CPU in one compiled pass forward and one backward, of a small batch in one alone.

An utterance goes through all kernels at once, so that its scores stay in the cache, and what Python would do in between is
compiled as well. float32 probabilities are first tried without logarithms (emissions.linear_numba, lattice.scaled_numba), which is
faster; an utterance whose numbers are too far apart for that is summed with them, as is all else. Either way is compiled when it is
first needed, and most never need the second.
"""

from __future__ import annotations

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
from starseq.op.known_numba import REDUCTIONS, layout, parts, prepare, reduce_losses, scaled_of, share_grad
from starseq.op.options import Batch, Options, Saved, by_utterance
from starseq.op.reduction import Ahead, multiply

_LONG = 128  # states of a merging graph: paths of blanks alone are then mostly too far from those with all labels
_SMALL = 1_000_000  # logits of a batch: so many gradients can wait for the backward pass
_MUCH = 1_000_000  # logits of one utterance: where so large ones are few, threads had better share their frames


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits = batch[0]
    small = logits.dtype == torch.float32 and logits.numel() <= _SMALL
    return _forward_of(batch, options, ahead=small and options.differentiable)


def _forward_of(batch: Batch, options: Options, *, ahead: bool) -> tuple[Tensor, Tensor | None, Saved]:
    """With `ahead` the gradient of the logits is made as well, where it is computed in float32 from probabilities."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = shape = by_utterance(logits.shape, options.batch_first)
    size = _size_of(shape, targets, options)
    S = size[2]
    dtype = _FLOAT64 if logits.dtype == torch.float64 else _FLOAT32
    # float64 is for those who want every digit; scores that are no probabilities may be of any size.
    scaled = options.normalized and dtype is _FLOAT32
    both = scaled or options.differentiable or options.inserted
    ends = layout.py_func(size)
    memory = np.empty(ends[-1] + (1 + both) * B * (T + 1) * S)
    insertions = np.empty((B, S) if options.inserted else (0, 0), dtype)
    loss = np.empty(B if options.reduction == "none" else (), dtype)
    x = rows_of(logits, options.batch_first)
    gradient = gradient_like(logits) if scaled and ahead else None
    out = (x[0][:0], 0, 0) if gradient is None else rows_of(gradient, options.batch_first)
    lengths = _array(target_lengths, np.int64)
    weights = _NO_WEIGHTS if log_penalty is None else _array(log_penalty.detach(), np.float64)
    labels = (_array(targets, np.int64), _array(input_lengths, np.int64), lengths, weights)
    reducing = (REDUCTIONS[options.reduction], options.zero_infinity, loss.reshape(-1))
    described = (V, size, labels, options.blank, options.validate, memory)
    arguments = (x, out, *described, options.normalized, insertions, reducing)
    try:
        if not scaled:
            pieces = threads.run(_forward, B, cost(shape, S), *arguments, False)
        else:
            weighed = _weigh_by_frames(x, described, cost(shape, S), options)
            pieces = threads.run(_forward_scaled, B, cost(shape, S), *arguments, weighed)
    except ValueError:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size(shape), options.blank)
        raise
    if scaled and not scaled_of(memory, B, ends).all():
        pieces = threads.run(_forward, B, cost(shape, S), *arguments, True)
    if pieces > 1:
        reduce_losses(memory[:B], lengths, *reducing)
    counts = torch.from_numpy(insertions) if options.inserted else None
    saved = Saved((torch.from_numpy(memory),)) if gradient is None else Saved((), Ahead(gradient))
    return torch.from_numpy(loss), counts, saved


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, _ = batch
    if saved.other is not None:
        ahead = saved.other.take()
        if ahead is not None:
            return multiply(ahead, grad, options)
        saved = _forward_of(batch, options, ahead=False)[-1]
    B, T, V = shape = by_utterance(logits.shape, options.batch_first)
    size = _size_of(shape, targets, options)
    memory, gradient = saved.tensors[0].numpy(), gradient_like(logits)
    scaled = scaled_of(memory, B, layout.py_func(size))
    for kernel, needed in ((_gradient_scaled, scaled.any()), (_gradient, not scaled.all())):
        if needed:
            threads.run(
                kernel, B * T, cost(shape, size[2]), *(rows_of(y, options.batch_first) for y in (logits, gradient)), V, size,
                (_array(input_lengths, np.int64), _array(target_lengths, np.int64)), memory, options.normalized,
                _array(grad.detach(), np.float64), REDUCTIONS[options.reduction],
            )  # fmt: skip
    return gradient.to(logits.dtype)


def _size_of(shape: Any, targets: Tensor, options: Options) -> tuple[int, int, int, int, bool, bool]:
    """Of what is known of a batch, see `layout`."""
    (B, T, V), form = shape, options.form
    states = form.states(targets.shape[1])
    return B, T, states, most_columns(states, V), form.merging, form.stars


def _weigh_by_frames(x: Any, described: Any, steps: int, options: Options) -> Any:
    """The weights of all arcs, which `_forward_scaled` makes for one utterance after the other, and whether each went well; empty,
    unless utterances are few and large."""
    V, size, labels, *_ = described
    B, T, S, _, merging, _ = size
    if T * V <= _MUCH or 2 * torch.get_num_threads() <= B:
        return np.empty((0, 3, 0)), np.empty(0, np.bool_)
    prepare(0, B, *described)
    weights = np.empty((B, 3, T * padded.py_func(S) + LANES))
    well = (2 * labels[2] < _LONG) | (not merging)
    threads.run(_weigh, B * T, steps, x, V, size, labels[1], described[-1], options.inserted, weights, well)
    return weights, well


_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_NO_WEIGHTS = np.empty((0, 0))


def _array(x: Tensor, dtype: Any) -> Any:
    """For compiled code, which is compiled anew for every type and every kind of strides: here they are always the same."""
    return np.ascontiguousarray(x.numpy(), dtype)


@jit_outer
def _forward(
    begin: Any, end: Any, x: Any, out: Any, vocabulary: Any, size: Any, labels: Any, blank: Any, validate: Any, memory: Any,
    normalized: Any, insertions: Any, reducing: Any, again: Any,
) -> None:  # fmt: skip
    """Utterances begin..end-1; the loss as well, if these are all of them. Arguments as _forward_scaled has them.

    again: after that one, for utterances where it did not succeed.
    """
    (_, frames, states, _, _, _), (_, lengths, target_lengths, _) = size, labels
    (flat, stride_b, stride_t), (reduction, zero_infinity, loss) = x, reducing
    if again:
        known, sums = parts(memory, size)
    else:
        known, sums = prepare(begin, end, vocabulary, size, labels, blank, validate, memory)
    columns = known.columns
    scores = np.empty((1 if columns.loops == AS_ENTERED else 3 if insertions.size else 2, frames, states))
    stats, inserted, like = np.empty((FRAMES, 5)), np.empty(states), np.empty(0, flat.dtype)
    picked, grad = np.empty((2, FRAMES, states), flat.dtype), np.empty(lengths.size)
    if out[0].size:
        share_grad(np.ones(lengths.size), target_lengths, reduction, grad)
    for b in range(begin, end):
        if known.scaled[b]:
            continue
        _utterance(
            b, flat, b * stride_b, stride_t, vocabulary, known, lengths[b], normalized, sums, scores, stats, picked, like
        )  # fmt: skip
        if insertions.size:
            _insertions(b, known.num_states[b], lengths[b], scores[2], sums, inserted, insertions[b], like)
        if out[0].size:
            _gradient_of(
                b * frames, (b + 1) * frames, x, out, (frames, vocabulary), known, lengths, normalized, grad, sums
            )
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
    begin: Any, end: Any, x: Any, out: Any, vocabulary: Any, size: Any, labels: Any, blank: Any, validate: Any, memory: Any,
    normalized: Any, insertions: Any, reducing: Any, weighed: Any,
) -> None:  # fmt: skip
    """As _forward, of those utterances alone where it is safe without logarithms, which is found out by trying, unless it is
    unlikely.

    x, out: logits and gradient, as `rows_of` gives them; `out` is that by a loss whose own is 1, and empty if not wanted. size,
    labels, memory: as `prepare` has them. reducing: reduction, zero_infinity, and where the loss goes. weighed: by frames, see
    _weigh_by_frames.
    """
    (_, frames, _, count, _, _), (_, lengths, target_lengths, _) = size, labels
    (flat, stride_b, stride_t), (reduction, zero_infinity, loss), (weights, well) = x, reducing, weighed
    if well.size:
        known, sums = parts(memory, size)
    else:
        known, sums = prepare(begin, end, vocabulary, size, labels, blank, validate, memory)
    columns, visits = known.columns, known.columns.loops == AS_ENTERED
    width = padded(columns.enter.shape[2])
    scratch = np.empty((3, 0 if well.size else frames * width + LANES))
    stats, picked, powers = np.empty((FRAMES, 2)), np.empty((FRAMES, count), flat.dtype), np.empty((FRAMES, count + 1))
    chosen, exponents, rows = (
        np.empty((2 * FRAMES, width)),
        np.empty((2, frames + 1)),
        np.empty(4 * (width + 2 * LANES)),
    )
    skips, like = np.zeros(width + LANES if known.skip.size else 0), np.empty(0, flat.dtype)
    log_z, stats_of, alpha, beta = sums
    grad = np.empty(lengths.size)
    share_grad(np.ones(lengths.size), target_lengths, reduction, grad)
    for b in range(begin, end):
        states = known.num_states[b]
        arcs = weights[b] if well.size else scratch
        stay, enter, star = arcs[1 if visits else 0], arcs[1], arcs[2] if insertions.size else arcs[2, :0]
        if well.size:
            good = well[b]
        else:
            good = (not visits or states <= _LONG) and weigh_frames(
                0, lengths[b], flat, b * stride_b, stride_t, vocabulary, b, states, columns, stay, enter, star, stats_of[0, b],
                stats_of[1, b], stats, picked, powers, chosen, like,
            )  # fmt: skip
        if good:
            enter[lengths[b] * padded(states) :][:LANES] = 0.0
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
        if good and out[0].size:
            _gradient_scaled_of(b * frames, (b + 1) * frames, x, out, (frames, vocabulary), known, lengths, grad, sums)
    if end - begin == lengths.size:
        reduce_losses(log_z, target_lengths, reduction, zero_infinity, loss)


@jit_outer
def _weigh(
    begin: Any, end: Any, x: Any, vocabulary: Any, size: Any, lengths: Any, memory: Any, inserted: Any, weights: Any, well: Any
) -> None:  # fmt: skip
    """Rows begin..end-1 of all B * T. weights: (B, 3, rows), those to stay, to enter, and of the star; well: (B,)."""
    (flat, stride_b, stride_t), (_, frames, _, count, _, _) = x, size
    known, (_, stats_of, _, _) = parts(memory, size)
    columns, visits = known.columns, known.columns.loops == AS_ENTERED
    stats, picked, powers = np.empty((FRAMES, 2)), np.empty((FRAMES, count), flat.dtype), np.empty((FRAMES, count + 1))
    chosen, like = np.empty((2 * FRAMES, padded(columns.enter.shape[2]))), np.empty(0, flat.dtype)
    item = begin
    while item < end:
        b, t = item // frames, item % frames
        stop = min(frames, t + end - item)
        arcs = weights[b]
        if well[b] and not weigh_frames(
            t, min(stop, lengths[b]), flat, b * stride_b, stride_t, vocabulary, b, known.num_states[b], columns,
            arcs[1 if visits else 0], arcs[1], arcs[2] if inserted else arcs[2, :0], stats_of[0, b], stats_of[1, b], stats,
            picked, powers, chosen, like,
        ):  # fmt: skip
            well[b] = False
        item += stop - t


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
    begin: Any, end: Any, x: Any, out: Any, vocabulary: Any, size: Any, lengths: Any, memory: Any, normalized: Any, grads: Any,
    reduction: Any,
) -> None:  # fmt: skip
    """The gradients of rows begin..end-1 of all B * T, as far as they are of utterances that were summed without logarithms.

    lengths: of inputs and of targets. grads: of the loss, (B,) or (1,).
    """
    known, sums = parts(memory, size)
    grad = np.empty(lengths[0].size)
    share_grad(grads, lengths[1], reduction, grad)
    _gradient_scaled_of(begin, end, x, out, (size[1], vocabulary), known, lengths[0], grad, sums)


@jit_outer
def _gradient_scaled_of(
    begin: Any, end: Any, x: Any, out: Any, size: Any, known: Any, lengths: Any, grad: Any, sums: Any
) -> None:
    """The same, of what is known and summed. size: (T, V). grad: of each utterance's loss, (B,)."""
    (flat, stride_b, stride_t), (out_flat, out_stride_b, out_stride_t), (frames, vocabulary) = x, out, size
    log_z, stats, alpha, beta = sums
    columns, states, count = known.columns, known.columns.enter.shape[2], known.columns.token.shape[1]
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
    begin: Any, end: Any, x: Any, out: Any, vocabulary: Any, size: Any, lengths: Any, memory: Any, normalized: Any, grads: Any,
    reduction: Any,
) -> None:  # fmt: skip
    """As _gradient_scaled, of the other utterances."""
    known, sums = parts(memory, size)
    grad = np.empty(lengths[0].size)
    share_grad(grads, lengths[1], reduction, grad)
    _gradient_of(begin, end, x, out, (size[1], vocabulary), known, lengths[0], normalized, grad, sums)


@jit_outer
def _gradient_of(
    begin: Any, end: Any, x: Any, out: Any, size: Any, known: Any, lengths: Any, normalized: Any, grad: Any, sums: Any
) -> None:
    log_z, stats, log_alpha, log_beta = sums
    gradient_kernel(
        begin, end, x, out, size, known.columns, lengths, known.num_states, known.scaled, normalized, grad,
        (log_z, stats[0], log_alpha, log_beta),
    )  # fmt: skip


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
