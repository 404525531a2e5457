"""The operation on the CPU in one compiled pass forward and one backward.

An utterance goes through all kernels at once, so that its scores stay in the cache, and what Python would do in between is
compiled as well. float32 probabilities are first tried without logarithms (emissions.linear_numba, lattice.scaled_numba), which is
faster; an utterance whose numbers are too far apart for that goes through the kernels of `separate`, as does all else.
"""

from __future__ import annotations

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
    empty_columns,
    fill_frames,
    find_columns,
    gradient_kernel,
    gradient_like,
    rows_of,
    score_frames,
)
from starseq.lattice import threads
from starseq.lattice.banded_numba import add_posteriors, sum_utterance
from starseq.lattice.elementary_numba import jit, jit_outer
from starseq.lattice.lanes_numba import LANES
from starseq.lattice.scaled_numba import padded, sum_scaled
from starseq.op import separate
from starseq.op.form import form_of
from starseq.op.reduction import for_each
from starseq.op.setting import Batch, Saved, Setting, loss_dtype

_MEAN, _SUM, _NONE = range(3)
_REDUCTIONS = {"mean": _MEAN, "sum": _SUM, "none": _NONE}
_LONG = 128  # states of a merging graph: paths of blanks alone are then mostly too far from those with all labels
_MUCH = 1_000_000  # logits of one utterance: where so large ones are few, threads had better share their frames


class _Known(NamedTuple):
    """What is known of a batch before any logit is read."""

    columns: Columns
    num_states: Any  # (B,)
    ends: int
    skip: Any  # (B, S), or (0, 0)
    scaled: Any  # (B,), whether it was summed without logarithms


def forward(
    batch: Batch, setting: Setting, *, validate: bool, inserted: bool, differentiable: bool, reduction: str, zero_infinity: bool
) -> tuple[Tensor, Tensor | None, Saved]:  # fmt: skip
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = logits.shape
    form = form_of(setting.criterion, setting.matching, log_penalty is not None)
    if form is None or (T * V > _MUCH and 4 * torch.get_num_threads() > B):
        return separate.forward(
            batch, setting, validate=validate, inserted=inserted, differentiable=differentiable, reduction=reduction,
            zero_infinity=zero_infinity,
        )  # fmt: skip
    frames, labels = input_lengths.numpy(), target_lengths.numpy()
    S = (1 + form.merging) * targets.shape[1] + 1
    known = _Known(
        empty_columns(B, S, V, AS_ENTERED if form.merging else BLANK, form.stars), np.empty(B, np.int64), 1 + form.merging,
        np.empty((B, S) if form.merging else (0, 0), np.bool_), np.zeros(B, np.bool_),
    )  # fmt: skip
    weights = _NO_WEIGHTS if log_penalty is None else log_penalty.numpy()
    if not _know(targets.numpy(), frames, labels, weights, T, V, setting.blank, form.leaves_out, validate, known):
        check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, setting.blank)
    dtype = loss_dtype(logits)
    # float64 is for those who want every digit; scores that are no probabilities may be of any size.
    scaled = setting.normalized and dtype == torch.float32
    both = scaled or differentiable or inserted
    saved = torch.empty(B * (1 + 3 * T + (1 + both) * (T + 1) * S), dtype=torch.float64)
    memory = saved.numpy()
    insertions = torch.empty((B, S), dtype=dtype) if inserted else None
    threads.run(
        _forward_scaled if scaled else _forward, B, cost(logits, S), *rows_of(logits), T, V, known, frames, setting.normalized,
        memory, _NO_INSERTIONS[dtype] if insertions is None else insertions.numpy(),
    )  # fmt: skip
    loss = torch.empty(B if reduction == "none" else 1, dtype=dtype)
    _reduce(memory[:B], labels, _REDUCTIONS[reduction], zero_infinity, loss.numpy())
    kept = (saved,) if insertions is None else (saved, insertions)
    return loss if reduction == "none" else loss[0], insertions, Saved(kept, known)


def backward(
    grad: Tensor, batch: Batch, saved: Saved, setting: Setting, *, reduction: str, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """See starseq.op."""
    if not isinstance(saved.other, _Known):
        return separate.backward(
            grad, batch, saved, setting, reduction=reduction, needs_logits=needs_logits, needs_penalty=needs_penalty
        )
    logits, _, input_lengths, target_lengths, log_penalty = batch
    for_logits = for_penalty = None
    if needs_logits:
        B, T, V = logits.shape
        known = saved.other
        result = gradient_like(logits)
        each = np.empty(B)
        _share(grad.reshape(-1).numpy(), target_lengths.numpy(), _REDUCTIONS[reduction], each)
        threads.run(
            _gradient, B * T, cost(logits, known.columns.enter.shape[2]), *rows_of(logits), *rows_of(result), T, V, known,
            input_lengths.numpy(), setting.normalized, each, saved.tensors[0].numpy(),
        )  # fmt: skip
        for_logits = result if result.dtype == logits.dtype else result.to(logits.dtype)
    if needs_penalty:
        for_penalty = separate.penalty_gradient(
            for_each(grad, target_lengths, reduction), saved.tensors[1], log_penalty
        )
    return for_logits, for_penalty


_NO_WEIGHTS = np.empty((0, 0), np.float32)
_NO_INSERTIONS = {torch.float32: np.empty((0, 0), np.float32), torch.float64: np.empty((0, 0))}


@jit_outer  # not `jit`: arrays that are returned must be counted, or they are freed twice
def _parts(memory: Any, batch: Any, frames: Any, states: Any) -> Any:
    """log_z (B,), stats (3, B, T), and the sums of both directions (B, T+1, S), of which the last may be missing: one block of
    memory.

    Of an utterance summed with logarithms, stats[0] is the norm, and the sums are logarithms; of others stats are the tops, the
    inverses and the factors of emissions.linear_numba and lattice.scaled_numba.
    """
    stats, sums = batch * (1 + 3 * frames), batch * (frames + 1) * states
    backward = memory[stats + sums :]
    return (
        memory[:batch],
        memory[batch:stats].reshape((3, batch, frames)),
        memory[stats : stats + sums].reshape((batch, frames + 1, states)),
        backward.reshape((batch if backward.size else 0, frames + 1, states)),
    )


@jit
def _good(
    targets: Any, input_lengths: Any, target_lengths: Any, weights: Any, frames: Any, vocabulary: Any, blank: Any
) -> Any:
    """Whether `check_values` has nothing to say. weights: log_penalty, or (0, 0)."""
    for b in range(targets.shape[0]):
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


@jit_outer
def _know(
    targets: Any, input_lengths: Any, target_lengths: Any, weights: Any, frames: Any, vocabulary: Any, blank: Any,
    leaves_out: Any, validate: Any, known: Any,
) -> Any:  # fmt: skip
    """Fills in what is known of a batch: its graphs, as `form` describes them. False if a value is bad, and that matters."""
    if validate and not _good(targets, input_lengths, target_lengths, weights, frames, vocabulary, blank):
        return False
    merging, (batch, labels) = known.skip.size > 0, targets.shape
    states = 2 * labels + 1 if merging else labels + 1
    enter = np.empty((batch, states), np.int64)
    left_out = np.empty((batch if leaves_out else 0, states), np.int64)
    weight = np.empty((batch if weights.size else 0, states))
    for b in range(batch):
        known.num_states[b] = (2 * target_lengths[b] if merging else target_lengths[b]) + 1
        if merging:
            enter[b, 0] = blank
            known.skip[b, :2] = False
        else:
            enter[b, 0] = NONE
        for u in range(labels):
            label = NONE if targets[b, u] == blank else targets[b, u]  # as a label it is impossible
            if merging:
                enter[b, 2 * u + 1], enter[b, 2 * u + 2] = label, blank
                known.skip[b, 2 * u + 1] = u > 0 and targets[b, u] != targets[b, u - 1]
                known.skip[b, 2 * u + 2] = False
            else:
                enter[b, u + 1] = label
        for s in range(weight.shape[1] if weight.size else 0):
            weight[b, s] = weights[b, s]
            if leaves_out:
                closed = s < labels and weights[b, s + 1] == -np.inf
                left_out[b, s] = NONE if s == labels or closed else targets[b, s]
    stay = enter if merging else enter[:0]
    find_columns(enter, stay, left_out, weight, known.num_states, blank, vocabulary, known.columns)
    return True


@jit_outer
def _forward(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any, known: Any, lengths: Any,
    normalized: Any, memory: Any, insertions: Any,
) -> None:  # fmt: skip
    columns = known.columns
    states = columns.enter.shape[2]
    sums = _parts(memory, lengths.size, frames, states)
    scores = np.empty((1 if columns.loops == AS_ENTERED else 3 if insertions.size else 2, frames, states))
    stats, inserted, like = np.empty((FRAMES, 5)), np.empty(states), np.empty(0, flat.dtype)
    picked = np.empty((2, FRAMES, states), flat.dtype)
    for b in range(begin, end):
        _utterance(
            b,
            flat,
            b * stride_b,
            stride_t,
            vocabulary,
            known,
            lengths[b],
            normalized,
            sums,
            scores,
            stats,
            picked,
            like,
        )
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
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any, known: Any, lengths: Any,
    normalized: Any, memory: Any, insertions: Any,
) -> None:  # fmt: skip
    """As _forward, without logarithms where that is safe, which is found out by trying, unless it is unlikely."""
    columns, visits = known.columns, known.columns.loops == AS_ENTERED
    size, count = padded(columns.enter.shape[2]), columns.token.shape[1]
    scores, like = np.empty((3 if insertions.size else 2, frames * size + LANES)), np.empty(0, flat.dtype)
    stats, picked, powers = np.empty((FRAMES, 2)), np.empty((FRAMES, count), flat.dtype), np.empty((FRAMES, count + 1))
    chosen, exponents, rows = np.empty((2 * FRAMES, size)), np.empty((2, frames + 1)), np.empty(4 * (size + 2 * LANES))
    skips = np.zeros(size + LANES if known.skip.size else 0)
    log_z, stats_of, alpha, beta = _parts(memory, lengths.size, frames, columns.enter.shape[2])
    star = scores[2] if insertions.size else scores[0, :0]
    stay, enter = scores[1 if visits else 0], scores[1]
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
            _forward(
                b, b + 1, flat, stride_b, stride_t, frames, vocabulary, known, lengths, normalized, memory, insertions
            )
        elif insertions.size:
            _insertions_scaled(lengths[b], states, star, alpha[b], beta[b], stats_of[2, b], rows, insertions[b])


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
    frames: Any, vocabulary: Any, known: Any, lengths: Any, normalized: Any, grad: Any, memory: Any,
) -> None:  # fmt: skip
    """The gradients of rows begin..end-1 of all B * T."""
    columns = known.columns
    states, count = columns.enter.shape[2], columns.token.shape[1]
    picked, by_column = np.empty((FRAMES, count), flat.dtype), np.empty((2, FRAMES, count + 1))
    terms, weights, like = np.empty((2, FRAMES, states)), np.empty((FRAMES, 2)), np.empty(0, flat.dtype)
    log_z, stats, alpha, beta = _parts(memory, lengths.size, frames, states)
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
        part = np.float64(grad[b] if reduction == _NONE else grad[0])
        out[b] = part / (max(target_lengths[b], 1) * out.size) if reduction == _MEAN else part
