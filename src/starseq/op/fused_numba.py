"""The operation on the CPU in one compiled pass forward and one backward.

The kernels are those of `separate`, but an utterance goes through all of them at once, so that its scores stay in the cache, and
what Python would do in between is compiled as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starseq.arguments import check_values
from starseq.emissions.tokens import NONE
from starseq.emissions.vocabulary_numba import (
    AS_ENTERED,
    BLANK,
    FRAMES,
    Columns,
    cost,
    empty_columns,
    find_columns,
    gradient_kernel,
    gradient_like,
    rows_of,
    score_frames,
)
from starseq.lattice import threads
from starseq.lattice.banded_numba import add_posteriors, sum_utterance
from starseq.lattice.elementary_numba import jit, jit_outer
from starseq.op import separate
from starseq.op.form import form_of
from starseq.op.reduction import for_each
from starseq.op.setting import Batch, Saved, Setting, loss_dtype

_MEAN, _SUM, _NONE = range(3)
_REDUCTIONS = {"mean": _MEAN, "sum": _SUM, "none": _NONE}
_MUCH = 1_000_000  # logits of one utterance: where so large ones are few, threads had better share their frames


class _Known(NamedTuple):
    """What is known of a batch before any logit is read."""

    columns: Columns
    num_states: Any  # (B,)
    ends: int
    skip: Any  # (B, S), or (0, 0)


def forward(
    batch: Batch, setting: Setting, *, validate: bool, inserted: bool, differentiable: bool, reduction: str, zero_infinity: bool
) -> tuple[Tensor, Tensor, Saved]:  # fmt: skip
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
        np.empty((B, S) if form.merging else (0, 0), np.bool_),
    )  # fmt: skip
    weights = _NO_WEIGHTS if log_penalty is None else log_penalty.numpy()
    if not _know(targets.numpy(), frames, labels, weights, T, V, setting.blank, form.leaves_out, validate, known):
        check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, setting.blank)
    both, dtype = differentiable or inserted, loss_dtype(logits)
    saved = torch.empty(B * (1 + T + (1 + both) * (T + 1) * S), dtype=torch.float64)
    sums = _parts(saved, B, T, S)
    insertions = torch.empty((B, S) if inserted else (0, 0), dtype=dtype)
    threads.run(
        _forward, B, cost(logits, S), *rows_of(logits), T, V, known, frames, setting.normalized, sums, insertions.numpy(),
    )  # fmt: skip
    loss = torch.empty(B if reduction == "none" else 1, dtype=dtype)
    _reduce(sums[0], labels, _REDUCTIONS[reduction], zero_infinity, loss.numpy())
    return loss if reduction == "none" else loss[0], insertions, Saved((insertions, saved), known)


def backward(
    grad: Tensor, batch: Batch, saved: Saved, setting: Setting, *, reduction: str, needs_logits: bool, needs_penalty: bool
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """See starseq.op."""
    if not isinstance(saved.other, _Known):
        return separate.backward(
            grad, batch, saved, setting, reduction=reduction, needs_logits=needs_logits, needs_penalty=needs_penalty
        )
    logits, _, input_lengths, target_lengths, log_penalty = batch
    insertions, sums = saved.tensors
    for_logits = for_penalty = None
    if needs_logits:
        B, T, V = logits.shape
        known = saved.other
        S = known.columns.enter.shape[2]
        result = gradient_like(logits)
        each = np.empty(B)
        _share(grad.reshape(-1).numpy(), target_lengths.numpy(), _REDUCTIONS[reduction], each)
        log_z, norm, log_alpha, log_beta = _parts(sums, B, T, S)
        threads.run(
            gradient_kernel, B * T, cost(logits, S), *rows_of(logits), *rows_of(result), T, V, known.columns,
            input_lengths.numpy(), setting.normalized, known.skip, known.num_states, each, norm, log_alpha, log_beta, log_z,
        )  # fmt: skip
        for_logits = result if result.dtype == logits.dtype else result.to(logits.dtype)
    if needs_penalty:
        for_penalty = separate.penalty_gradient(for_each(grad, target_lengths, reduction), insertions, log_penalty)
    return for_logits, for_penalty


_NO_WEIGHTS = np.empty((0, 0), np.float32)


def _parts(saved: Tensor, B: int, T: int, S: int) -> tuple[Any, Any, Any, Any]:
    """log_z (B,), norm (B, T), log_alpha and log_beta (B, T+1, S), of which the last may be missing: one block of memory."""
    memory, z, norms, sums = saved.numpy(), B, B * (1 + T), B * (T + 1) * S
    beta = memory[norms + sums :]
    return (
        memory[:z],
        memory[z:norms].reshape(B, T),
        memory[norms : norms + sums].reshape(B, T + 1, S),
        beta.reshape(B if beta.size else 0, T + 1, S),
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
    normalized: Any, sums: Any, insertions: Any,
) -> None:  # fmt: skip
    columns = known.columns
    states = columns.enter.shape[2]
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
    log_z, norm, log_alpha, log_beta = sums
    states = known.num_states[b]
    log_enter, log_stay = scores[0], scores[min(1, scores.shape[0] - 1)]
    score_frames(
        0, frames, flat, start, stride_t, vocabulary, b, states, known.columns, normalized, log_stay, log_enter,
        scores[2] if scores.shape[0] > 2 else scores[0, :0], norm[b], stats, picked, like,
    )  # fmt: skip
    skip = known.skip[b] if known.skip.size else known.skip.reshape(-1)
    beta = log_beta[b] if log_beta.size else log_alpha[b, :0]
    log_z[b] = sum_utterance(log_stay, log_enter, known.ends, skip, frames, states, log_alpha[b], beta, like)


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
