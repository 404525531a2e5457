"""The operation on a GPU in three launches: scores, lattice with loss, gradient.

The label graph is never stored: the kernels read it off the targets, by its form.

One block of float64 holds everything else, S states an utterance (offsets in `_places`): norm (B, T), alpha (B, T+1, S),
beta (B, T+1, S), log_z (B), a count of the utterances that are done; and, which backward does not need, stay (B, T, S),
enter (B, T, S), and star (B, T, S) where insertions are wanted. Two blocks would be freed apart, but cost an allocation more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.arguments import check_values
from starseq.criteria.graph import Form
from starseq.emissions.tokens import Scores
from starseq.emissions.vocabulary_triton import (
    blocks,
    fill_gradient,
    fill_row,
    is_dense,
    keys_at_once,
    row_gradient,
    row_scores,
    row_sums,
)
from starseq.lattice.banded_triton import backward_sums, forward_sums, surroundings, warps
from starseq.lattice.elementary_triton import exp_of
from starseq.lattice.launch_triton import Launch, launch_of
from starseq.op import readable
from starseq.op.options import Batch, Options, Saved, by_utterance, loss_dtype

_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = by_utterance(logits.shape, options.batch_first)
    if B * T == 0:
        return readable.forward(batch, options)
    if options.validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size((B, T, V)), options.blank)
    U, inserted, device = targets.shape[1], options.inserted, logits.device
    both = options.differentiable or inserted
    plan, block, strides = _score(batch, options, both)
    dtype = loss_dtype(logits)
    loss = torch.empty(B if options.reduction == "none" else (), dtype=dtype, device=device)
    plan.lattice(
        (B, 1 + both), (targets, input_lengths, target_lengths, block, loss), (*strides, B, T, U, both, options.blank)
    )
    if not inserted:
        return loss, None, Saved((block,))
    insertions = torch.empty((B, U + 1), dtype=dtype, device=device)
    plan.insertions((B, 1), (input_lengths, target_lengths, block, insertions), (*strides[2:], B, T, U))
    return loss, insertions, Saved((block,))


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    if saved.other is not None:
        return readable.backward(grad, batch, saved, options)
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = by_utterance(logits.shape, options.batch_first)
    U, result = targets.shape[1], torch.empty_like(logits)
    stride_b, stride_t, stride_v = strides = by_utterance(logits.stride(), options.batch_first)
    out_b, out_t, out_v = out_strides = by_utterance(result.stride(), options.batch_first)
    launch = _gradient_plan(
        options.form, options.normalized, logits.dtype, V, options.form.states(U), stride_v, out_v, strides == out_strides,
        options.reduction,
    )  # fmt: skip
    weights, weights_strides = _weights(log_penalty, logits)
    launch(
        (B * T, 1), (logits, grad, targets, input_lengths, target_lengths, weights, saved.tensors[0], result),
        (stride_b, stride_t, out_b, out_t, *targets.stride(), *input_lengths.stride(), *target_lengths.stride(),
         *weights_strides, *(grad.stride() or (0,)), B, T, V, U, options.blank),
    )  # fmt: skip
    return result


def scores(batch: Batch, options: Options) -> Scores:
    """As vocabulary_torch.scores."""
    B, T, _ = by_utterance(batch[0].shape, options.batch_first)
    S = options.form.states(batch[1].shape[1])
    if B * T == 0:
        nothing = batch[0].new_empty(B, T, S, dtype=torch.float64)
        return Scores(nothing, nothing, nothing, nothing[:, :, 0])
    _, block, _ = _score(batch, options, False)
    norm, (stay, enter, *star) = (
        block[: B * T].view(B, T),
        block[-(2 + options.inserted) * B * T * S :].view(-1, B, T, S),
    )
    return Scores(stay, enter, star[0] if star else stay.new_empty(0), norm)


def _score(batch: Batch, options: Options, both: bool) -> tuple[_Plan, Tensor, Sequence[int]]:
    """How the batch is computed, its block with the scores filled in, and the strides of targets and lengths."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = by_utterance(logits.shape, options.batch_first)
    stride_b, stride_t, stride_v = by_utterance(logits.stride(), options.batch_first)
    U, S = targets.shape[1], options.form.states(targets.shape[1])
    plan = _plan(
        options.form, options.normalized, logits.dtype, stride_v, V, S, options.inserted, options.reduction, options.zero_infinity
    )  # fmt: skip
    size = B * T + (1 + both) * B * (T + 1) * S + B + 1 + (2 + options.inserted) * B * T * S
    block = torch.empty(size, dtype=torch.float64, device=logits.device)
    strides = (*targets.stride(), *input_lengths.stride(), *target_lengths.stride())
    weights, weights_strides = _weights(log_penalty, logits)
    plan.scores(
        (B * T, 1), (logits, targets, input_lengths, target_lengths, weights, block),
        (stride_b, stride_t, *strides, *weights_strides, B, T, V, U, both, options.blank),
    )  # fmt: skip
    return plan, block, strides


def _weights(log_penalty: Tensor | None, anything: Tensor) -> tuple[Tensor, Sequence[int]]:
    """The stars' weights and their strides; of a criterion without stars something that nobody reads."""
    return (anything, (0, 0)) if log_penalty is None else (log_penalty, log_penalty.stride())


class _Plan(NamedTuple):
    scores: Launch
    lattice: Launch
    insertions: Launch


@functools.cache
def _plan(
    form: Form, normalized: bool, dtype: torch.dtype, stride_v: int, V: int, S: int, inserted: bool, reduction: str,
    zero_infinity: bool,
) -> _Plan:  # fmt: skip
    exact = dtype == torch.float64
    block_v, align, block_s, num_warps = blocks(dtype, V, S, unit=stride_v == 1, gradient=False)
    return _Plan(
        launch_of(_scores, (stride_v, *form, inserted, normalized, exact, block_v, align, block_s), num_warps),
        launch_of(_lattice, (form.merging, _REDUCTIONS[reduction], zero_infinity, exact, block_s), warps(block_s)),
        launch_of(_insertions, (exact, block_s, max(1, 2048 // block_s)), 4),
    )


@functools.cache
def _gradient_plan(
    form: Form, normalized: bool, dtype: torch.dtype, V: int, S: int, stride_v: int, out_stride_v: int, alike: bool,
    reduction: str,
) -> Launch:  # fmt: skip
    block_v, align, block_s, num_warps = blocks(dtype, V, S, unit=alike and stride_v == 1, gradient=True)
    constants = (
        stride_v, out_stride_v, *form, _REDUCTIONS[reduction], normalized, dtype == torch.float64, is_dense(V, S),
        keys_at_once(S), block_v, align, block_s,
    )  # fmt: skip
    return launch_of(_gradient, constants, num_warps)


@triton.jit
def _label(labels_ptr, labels_u, place, inside, V, blank):
    """The labels at the given places; -1 where they are impossible."""
    label = tl.load(labels_ptr + place * labels_u, mask=inside, other=-1).to(tl.int64)
    return tl.where((label >= 0) & (label < V) & (label != blank), label, -1).to(tl.int32)


@triton.jit
def _tokens(labels_ptr, labels_u, s, num_states, V, blank, MERGING: tl.constexpr):
    """What the entering arcs and the self-loop of each state consume; -1 at states that do not exist."""
    exists = s < num_states
    if MERGING:
        odd = s % 2 == 1
        label = _label(labels_ptr, labels_u, s // 2, exists & odd, V, blank)
        enter = tl.where(odd, label, tl.where(exists, blank, -1))
        stay = enter
    else:
        enter = _label(labels_ptr, labels_u, s - 1, exists & (s > 0), V, blank)
        stay = tl.where(exists, blank, -1).to(tl.int32)
    return enter, stay


@triton.jit
def _left_out(labels_ptr, labels_u, weight_ptr, weight_s, s, num_states, V, blank):
    """The token that each state's star leaves out: the next label, where there is one and the gap after it is open."""
    inner = s < num_states - 1
    left_out = _label(labels_ptr, labels_u, s, inner, V, blank)
    following = tl.load(weight_ptr + (s + 1) * weight_s, mask=inner, other=0.0)
    return tl.where(following == float("-inf"), -1, left_out)


@triton.jit
def _skips(labels_ptr, labels_u, s, num_states):
    """Whether state s is entered from s-2: a label that differs from the one before."""
    leaps = (s > 2) & (s % 2 == 1) & (s < num_states)
    label = tl.load(labels_ptr + s // 2 * labels_u, mask=leaps, other=0)
    before = tl.load(labels_ptr + (s // 2 - 1) * labels_u, mask=leaps, other=0)
    return leaps & (label != before)


@triton.jit
def _num_states(length, U, MERGING: tl.constexpr):
    """Of a graph; none of a length below 0, never more than there is room for."""
    length = tl.minimum(length, U)
    if MERGING:
        return (2 * length + 1).to(tl.int32)
    else:
        return (length + 1).to(tl.int32)


@triton.jit
def _places(block_ptr, B, T, S, BOTH):
    """Where alpha, beta, log_z, the count and the scores begin. First in the block is the norm; without BOTH there is no beta."""
    sums = B.to(tl.int64) * (T + 1) * S
    alpha_ptr = block_ptr + B.to(tl.int64) * T
    beta_ptr = alpha_ptr + sums
    z_ptr = alpha_ptr + sums * (1 + BOTH)
    return alpha_ptr, beta_ptr, z_ptr, z_ptr + B, z_ptr + B + 1


_INTEGERS = [
    "stride_b", "stride_t", "out_stride_b", "out_stride_t", "labels_b", "labels_u", "lengths_b", "target_lengths_b",
    "weight_b", "weight_s", "grad_b", "B", "T", "V", "U", "BOTH", "blank",
]  # fmt: skip


@triton.jit(do_not_specialize=[x for x in _INTEGERS if x not in ("out_stride_b", "out_stride_t", "grad_b")])
def _scores(
    x_ptr, labels_ptr, lengths_ptr, target_lengths_ptr, weight_ptr, block_ptr,
    stride_b, stride_t, labels_b, labels_u, lengths_b, target_lengths_b, weight_b, weight_s, B, T, V, U, BOTH, blank,
    STRIDE_V: tl.constexpr, MERGING: tl.constexpr, STARS: tl.constexpr, KEEP_STAR: tl.constexpr,
    NORMALIZED: tl.constexpr, EXACT: tl.constexpr, BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    S = 2 * U + 1 if MERGING else U + 1
    _, _, _, count_ptr, scores_ptr = _places(block_ptr, B, T, S, BOTH)
    if row == 0:  # nobody is done yet: see _lattice
        tl.store(count_ptr, 0.0)
    if t < tl.load(lengths_ptr + b * lengths_b):
        # With a stride of 1 offsets count elements; else they count tokens, and the row's place goes into the pointer.
        if STRIDE_V == 1:
            base = b * stride_b + t * stride_t
        else:
            x_ptr += b * stride_b + t * stride_t
            base = row * 0
        top, others, star, norm = row_sums(
            x_ptr, base, STRIDE_V, V, blank, STARS, NORMALIZED, EXACT, BLOCK_V, ALIGN
        )  # fmt: skip
        s = tl.arange(0, BLOCK_S)
        inside = s < S
        num_states = _num_states(tl.load(target_lengths_ptr + b * target_lengths_b), U, MERGING)
        labels = labels_ptr + b * labels_b
        enter, stay = _tokens(labels, labels_u, s, num_states, V, blank, MERGING)
        left_out, weight = enter, tl.zeros((BLOCK_S,), tl.float64)
        if STARS:
            weights = weight_ptr + b * weight_b
            left_out = _left_out(labels, labels_u, weights, weight_s, s, num_states, V, blank)
            weight = tl.load(weights + s * weight_s, mask=s < num_states, other=float("-inf")).to(tl.float64)
        log_enter, log_stay, log_star = row_scores(
            x_ptr, base, STRIDE_V, V, top, others, star, norm, enter, stay, left_out, weight, STARS, EXACT, BLOCK_S
        )  # fmt: skip
        tl.store(block_ptr + row, norm)
        place = scores_ptr + row * S + s
        size = B.to(tl.int64) * T * S
        tl.store(place, log_stay, mask=inside)
        tl.store(place + size, log_enter, mask=inside)
        if KEEP_STAR:
            tl.store(place + 2 * size, log_star, mask=inside)


@triton.jit(do_not_specialize=["labels_b", "labels_u", "lengths_b", "target_lengths_b", "B", "T", "U", "BOTH", "blank"])
def _lattice(
    labels_ptr, lengths_ptr, target_lengths_ptr, block_ptr, loss_ptr,
    labels_b, labels_u, lengths_b, target_lengths_b, B, T, U, BOTH, blank,
    MERGING: tl.constexpr, REDUCTION: tl.constexpr, ZERO_INFINITY: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    S = 2 * U + 1 if MERGING else U + 1
    s = tl.arange(0, BLOCK)
    length = tl.load(target_lengths_ptr + b * target_lengths_b)
    num_states = _num_states(length, U, MERGING)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b * lengths_b), T), 0).to(tl.int32)
    alpha_ptr, beta_ptr, z_ptr, count_ptr, scores_ptr = _places(block_ptr, B, T, S, BOTH)
    ends: tl.constexpr = 2 if MERGING else 1
    final = (s < num_states) & (s >= num_states - ends)
    stays = scores_ptr + b * T * S + s
    enters = stays + B.to(tl.int64) * T * S
    labels = labels_ptr + b * labels_b
    skip = s < 0
    if tl.program_id(1) == 1:
        if MERGING:
            skip = _skips(labels, labels_u, s + 2, num_states)
        beta = beta_ptr + b * (T + 1) * S + s
        backward_sums(stays, enters, beta, s, S, num_states, frames, final, skip, MERGING, EXACT, BLOCK)
    else:
        if MERGING:
            skip = _skips(labels, labels_u, s, num_states)
        alpha = alpha_ptr + b * (T + 1) * S + s
        z = forward_sums(stays, enters, alpha, s, S, num_states, frames, final, skip, MERGING, EXACT, BLOCK)
        tl.store(z_ptr + b, z)
        if REDUCTION == 0:
            tl.store(loss_ptr + b, _loss(z, ZERO_INFINITY).to(loss_ptr.dtype.element_ty))
        else:
            # The last utterance to be done adds up all of them, in their order: the same bits whichever that is.
            tl.debug_barrier()
            if tl.atomic_add(count_ptr, 1.0, sem="acq_rel") == B - 1:
                total = tl.zeros((128,), tl.float64)
                for start in range(0, B, 128):
                    i = start + tl.arange(0, 128)
                    loss = _loss(tl.load(z_ptr + i, mask=i < B, other=0.0, cache_modifier=".cg"), ZERO_INFINITY)
                    if REDUCTION == 2:
                        counted = tl.load(target_lengths_ptr + i.to(tl.int64) * target_lengths_b, mask=i < B, other=1)
                        loss = loss / tl.maximum(counted, 1).to(tl.float64)
                    total += tl.where(i < B, loss, 0.0)
                result = tl.sum(total, axis=0)
                if REDUCTION == 2:
                    result = result / B
                tl.store(loss_ptr, result.to(loss_ptr.dtype.element_ty))


@triton.jit
def _loss(z, ZERO_INFINITY: tl.constexpr):
    loss = -z
    if ZERO_INFINITY:
        loss = tl.where(loss == float("inf"), 0.0, loss)
    return loss


@triton.jit(do_not_specialize=["lengths_b", "target_lengths_b", "B", "T", "U"])
def _insertions(
    lengths_ptr, target_lengths_ptr, block_ptr, out_ptr, lengths_b, target_lengths_b, B, T, U,
    EXACT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The expected number of tokens that each state's star consumed: the posteriors of these arcs, summed."""
    b = tl.program_id(0).to(tl.int64)
    S = U + 1
    s = tl.arange(0, BLOCK_S)
    exists = s < _num_states(tl.load(target_lengths_ptr + b * target_lengths_b), U, False)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b * lengths_b), T), 0).to(tl.int32)
    alpha_ptr, beta_ptr, z_ptr, _, scores_ptr = _places(block_ptr, B, T, S, 1)
    z = tl.load(z_ptr + b)
    star_ptr = scores_ptr + 2 * B.to(tl.int64) * T * S + b * T * S
    alpha_ptr += b * (T + 1) * S
    beta_ptr += (b * (T + 1) + 1) * S
    total = tl.zeros((BLOCK_S,), tl.float64)
    for t0 in range(0, frames, BLOCK_T):
        t = t0 + tl.arange(0, BLOCK_T)
        here = (t < frames)[:, None] & exists[None, :]
        place = t[:, None].to(tl.int64) * S + s[None, :]
        outside = tl.load(alpha_ptr + place, mask=here, other=float("-inf")) + (
            tl.load(beta_ptr + place, mask=here, other=float("-inf")) - z
        )
        posterior = exp_of(outside + tl.load(star_ptr + place, mask=here, other=float("-inf")), EXACT)
        total += tl.sum(tl.where(here, posterior, 0.0).to(tl.float64), axis=0)
    total = tl.where(z == float("-inf"), 0.0, total)
    tl.store(out_ptr + b * S + s, total.to(out_ptr.dtype.element_ty), mask=s < S)


@triton.jit(do_not_specialize=[x for x in _INTEGERS if x != "BOTH"])
def _gradient(
    x_ptr, grad_ptr, labels_ptr, lengths_ptr, target_lengths_ptr, weight_ptr, block_ptr, out_ptr,
    stride_b, stride_t, out_stride_b, out_stride_t, labels_b, labels_u, lengths_b, target_lengths_b, weight_b, weight_s,
    grad_b, B, T, V, U, blank,
    STRIDE_V: tl.constexpr, OUT_STRIDE_V: tl.constexpr, MERGING: tl.constexpr, STARS: tl.constexpr,
    REDUCTION: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr, DENSE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    if STRIDE_V == 1:
        base = b * stride_b + t * stride_t
    else:
        x_ptr += b * stride_b + t * stride_t
        base = row * 0
    if OUT_STRIDE_V == 1:
        out_base = b * out_stride_b + t * out_stride_t
    else:
        out_ptr += b * out_stride_b + t * out_stride_t
        out_base = row * 0
    S = 2 * U + 1 if MERGING else U + 1
    alpha_ptr, beta_ptr, z_ptr, _, _ = _places(block_ptr, B, T, S, 1)
    z = tl.load(z_ptr + b)
    inside = t < tl.load(lengths_ptr + b * lengths_b)
    if (not inside) | (z == float("-inf")) | (z != z):
        nothing = tl.where(inside & (z != z), float("nan"), 0.0)
        fill_row(x_ptr, base, STRIDE_V, out_ptr, out_base, OUT_STRIDE_V, V, nothing, EXACT, ALIGN, BLOCK_V)
    else:
        s = tl.arange(0, BLOCK_S)
        length = tl.load(target_lengths_ptr + b * target_lengths_b)
        num_states = _num_states(length, U, MERGING)
        exists = s < num_states
        kind: tl.constexpr = tl.float64 if EXACT else tl.float32
        factor = tl.load(grad_ptr + b * grad_b).to(kind)
        if REDUCTION == 2:
            factor = factor / (tl.maximum(length, 1) * B).to(kind)
        norm = tl.load(block_ptr + row)
        alpha = alpha_ptr + (b * (T + 1) + t) * S + s
        beta = beta_ptr + (b * (T + 1) + t + 1) * S + s
        if not DENSE:
            fill_gradient(
                x_ptr, base, STRIDE_V, out_ptr, out_base, OUT_STRIDE_V, V, factor, norm, alpha, beta, z, s, exists, weight_ptr,
                b * weight_b, weight_s, STARS, NORMALIZED, EXACT, ALIGN, BLOCK_V,
            )  # fmt: skip
        labels = labels_ptr + b * labels_b
        enter, stay = _tokens(labels, labels_u, s, num_states, V, blank, MERGING)
        left_out = tl.full((BLOCK_S,), -1, tl.int32)
        weight = tl.zeros((BLOCK_S,), tl.float64)
        if STARS:
            weights = weight_ptr + b * weight_b
            left_out = _left_out(labels, labels_u, weights, weight_s, s, num_states, V, blank)
            weight = tl.load(weights + s * weight_s, mask=exists, other=float("-inf")).to(tl.float64)
        skip = s < 0
        if MERGING:
            skip = _skips(labels, labels_u, s, num_states)
        outside, one, two = surroundings(alpha, beta, z, s, exists, skip, MERGING)
        row_gradient(
            x_ptr, base, STRIDE_V, out_ptr, out_base, OUT_STRIDE_V, V, blank, factor, norm, outside, one, two,
            s, enter, stay, left_out, weight, labels, labels_u, tl.minimum(length, U).to(tl.int32),
            STARS, MERGING, NORMALIZED, EXACT, DENSE, BLOCK_K,
        )  # fmt: skip
