"""Scores of a label graph's arcs from logits, and the gradient back, on a GPU: what one program does, which has one frame.

Forward it reads its row of logits once, backward once more, and writes the row of the gradient once; nothing else as large is
stored. Sums over states are float64 with float32 corrections; for float64 logits all is float64. The kernels are those of
op/fused_triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from starseq.lattice.banded_triton import surroundings
from starseq.lattice.elementary_triton import exp_of, log_remainder, logaddexp

_LONG = 1024  # tokens: a longer row is read in pieces
_VERY_LONG = 16384  # tokens: the gradient of a longer row takes several warps whatever its states


def blocks(
    dtype: torch.dtype, vocabulary: int, states: int, *, unit: bool, gradient: bool
) -> tuple[int, int, int, int]:
    """How a program divides its row (BLOCK_V, ALIGN) and its states (BLOCK_S), and with how many warps.

    unit: the tokens of a row lie one after the other, in all tensors alike. Gradients add up over their states again and
    again, which one warp does without waiting for others; their sizes are a compromise over shapes, swept on an H200
    (docs/performance.md).
    ALIGN: rows of an odd length begin at odd addresses, where wide loads are not possible; a long row is therefore read from
    its first address that is a multiple of 16 bytes, ALIGN elements at a time, and its ends apart. 1 stands for: don't.
    """
    block_s = triton.next_power_of_2(states)
    long = vocabulary > _LONG
    align = 16 // dtype.itemsize if unit and long else 1
    if not gradient:
        return (
            (512, align, block_s, 4)
            if long
            else (triton.next_power_of_2(vocabulary), 1, block_s, 2 if states <= 512 else 8)
        )
    if vocabulary > _VERY_LONG:
        if dtype.itemsize > 2:
            return 8192, align, block_s, 16
        return (16384 if 32 < states <= 128 else 8192), align, block_s, 8
    return min(triton.next_power_of_2(vocabulary), 2048), align, block_s, max(1, block_s // 512)


def is_dense(vocabulary: int, states: int) -> bool:
    """Whether the gradient looks at every token by itself, and not only at those that the graph names."""
    return bool(vocabulary <= max(2 * triton.next_power_of_2(states), 256))


def keys_at_once(states: int) -> int:
    """How many tokens are compared with all states at once."""
    return int(max(1, min(16 if states <= 64 else 8, 8192 // triton.next_power_of_2(states))))


@triton.jit
def _parts(base, V, ALIGN: tl.constexpr):
    """A row at offset `base` as head, middle, and tail: how many elements come before and in the aligned middle."""
    head = tl.minimum((ALIGN - base % ALIGN) % ALIGN, V).to(tl.int32)
    middle = ((V - head) // ALIGN * ALIGN).to(tl.int32)
    return head, middle


@triton.jit
def _ends(head, middle, V, BLOCK_V: tl.constexpr):
    """The tokens of head and tail, as the first of a block, with a mask."""
    i = tl.arange(0, BLOCK_V)
    v = tl.where(i < head, i, middle + i)
    return v, v < tl.where(i < head, head, V)


@triton.jit
def _sum_others(
    ptr, base, stride_v, V, blank, pivot, EXACT: tl.constexpr, ALIGN: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """Of all tokens of a row but blank: the largest, the second largest, and the sum of exp(x - pivot) without the largest.

    Each lane keeps its largest apart and adds up what that one displaces; NaN goes to the sum.
    """
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    lane = tl.arange(0, BLOCK_V)
    tops = tl.full((BLOCK_V,), float("-inf"), kind)
    seconds = tl.full((BLOCK_V,), float("-inf"), kind)
    sums = tl.zeros((BLOCK_V,), kind)
    head, middle = _parts(base, V, ALIGN)
    if ALIGN > 1:
        v, inside = _ends(head, middle, V, BLOCK_V)
        x = tl.load(ptr + (base + v) * stride_v, mask=inside & (v != blank), other=float("-inf")).to(kind)
        tops = tl.where(x > tops, x, tops)
        sums = tl.where(x == x, sums, x)
    start = tl.multiple_of(base + head, ALIGN)
    middle = tl.multiple_of(middle, ALIGN)
    for i in range(0, middle, BLOCK_V):
        inside = i + lane < middle
        x = tl.load(
            ptr + (start + i + lane) * stride_v, mask=inside, other=float("-inf"), eviction_policy="evict_first"
        )
        x = tl.where(head + i + lane == blank, float("-inf"), x.to(kind))
        low = tl.where(x > tops, tops, x)
        tops = tl.where(x > tops, x, tops)
        seconds = tl.where(low > seconds, low, seconds)
        sums += tl.exp(low - pivot)
    top = tl.max(tops, axis=0)
    displaced = tl.where(lane == tl.argmax(tops, axis=0), float("-inf"), tops)
    second = tl.max(tl.where(displaced > seconds, displaced, seconds), axis=0)
    return top, second, tl.sum(sums + tl.exp(displaced - pivot), axis=0)


@triton.jit
def _star(ptr, base, stride_v, V, blank, EXACT: tl.constexpr, ALIGN: tl.constexpr, BLOCK_V: tl.constexpr):
    """Of all tokens but blank the largest score, and the log-sum of the others, as float64.

    One pass: the largest of the first tokens serves as the pivot. Only where the second largest of all is far from it, the row
    is read again with that one.
    """
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    some: tl.constexpr = 128 if BLOCK_V > 128 else BLOCK_V
    v = tl.arange(0, some)
    x = tl.load(ptr + (base + v) * stride_v, mask=(v < V) & (v != blank), other=float("-inf")).to(kind)
    pivot = tl.max(x, axis=0)
    pivot = tl.where(pivot > float("-inf"), pivot, 0.0)
    top, second, total = _sum_others(ptr, base, stride_v, V, blank, pivot, EXACT, ALIGN, BLOCK_V)
    if (second > float("-inf")) & (tl.abs(second - pivot) > 40.0):
        pivot = second
        top, second, total = _sum_others(ptr, base, stride_v, V, blank, pivot, EXACT, ALIGN, BLOCK_V)
    return top.to(tl.float64), pivot.to(tl.float64) + tl.log(total.to(tl.float64))


@triton.jit
def _at(ptr, base, stride_v, token, possible):
    """x at the given tokens, as float64; -inf at impossible ones."""
    return tl.load(ptr + (base + token) * stride_v, mask=possible, other=float("-inf")).to(tl.float64)


@triton.jit
def row_sums(
    x_ptr, base, stride_v, V, blank, STARS: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_V: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Of one frame: the largest score of a token but blank, the log-sum of the other ones, that of both, and the norm.

    The row of logits begins at `base` (in elements where stride_v = 1, else in tokens). What is loaded before it is kept in
    registers all along the row: whatever concerns states should come after it.
    """
    top = tl.zeros((), tl.float64)
    others = tl.zeros((), tl.float64)
    star = tl.zeros((), tl.float64)
    norm = tl.zeros((), tl.float64)
    if STARS or NORMALIZED:
        top, others = _star(x_ptr, base, stride_v, V, blank, EXACT, ALIGN, BLOCK_V)
        star = logaddexp(others, top, EXACT)
    if NORMALIZED:
        norm = logaddexp(star, tl.load(x_ptr + (base + blank) * stride_v).to(tl.float64), EXACT)
        norm = tl.where(norm == float("-inf"), 0.0, norm)
    return top, others, star, norm


@triton.jit
def row_scores(
    x_ptr, base, stride_v, V, top, others, star, norm, enter, stay, left_out, weight,
    STARS: tl.constexpr, EXACT: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Of one frame, from its `row_sums`: the log-scores of entering, of staying, of the star in it (-inf without STARS).

    For each of BLOCK_S states: enter, stay and left_out, its tokens, of which any that is none is impossible; weight, its star's
    log-weight.
    """
    log_enter = _at(x_ptr, base, stride_v, enter, (enter >= 0) & (enter < V)) - norm
    log_stay = _at(x_ptr, base, stride_v, stay, (stay >= 0) & (stay < V)) - norm
    log_star = tl.full((BLOCK_S,), float("-inf"), tl.float64)
    if STARS:
        value = _at(x_ptr, base, stride_v, left_out, (left_out >= 0) & (left_out < V))
        # Only the largest token can hold more than half of the star: it is left out by adding up the others.
        without = tl.where(value == top, others, log_remainder(star, value, EXACT)) - norm
        log_star = without + weight
        log_stay = logaddexp(log_stay, log_star, EXACT)
    return log_enter, log_stay, log_star


@triton.jit
def _exp_shifted(x, shift, EXACT: tl.constexpr):
    """exp(x + shift) for a float64 shift; the pivot takes its large part, so that nothing is rounded twice."""
    if EXACT:
        return tl.exp(x.to(tl.float64) + shift)
    else:
        pivot = (-shift).to(tl.float32)
        small = (shift + pivot.to(tl.float64)).to(tl.float32)
        return tl.exp((x.to(tl.float32) - pivot) + small)


@triton.jit
def _fill(
    x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, shift, factor, COMPUTE: tl.constexpr, EXACT: tl.constexpr,
    ALIGN: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """out = factor * exp(x + shift) over a row, or, without COMPUTE, factor."""
    head, middle = _parts(base, V, ALIGN)
    start = tl.multiple_of(base + head, ALIGN)
    out_start = tl.multiple_of(out_base + head, ALIGN)
    middle = tl.multiple_of(middle, ALIGN)
    kind: tl.constexpr = out_ptr.dtype.element_ty
    for i in range(0, middle, BLOCK_V):
        offset = i + tl.arange(0, BLOCK_V)
        inside = offset < middle
        value = tl.zeros((BLOCK_V,), tl.float32) + factor
        if COMPUTE:
            x = tl.load(
                x_ptr + (start + offset) * stride_v, mask=inside, other=float("-inf"), eviction_policy="evict_first"
            )
            value = factor * _exp_shifted(x, shift, EXACT)
        tl.store(
            out_ptr + (out_start + offset) * out_stride_v, value.to(kind), mask=inside, eviction_policy="evict_first"
        )
    if ALIGN > 1:
        v, inside = _ends(head, middle, V, 32)  # ALIGN is at most 8
        value = tl.zeros((32,), tl.float32) + factor
        if COMPUTE:
            x = tl.load(x_ptr + (base + v) * stride_v, mask=inside, other=float("-inf"))
            value = factor * _exp_shifted(x, shift, EXACT)
        tl.store(out_ptr + (out_base + v) * out_stride_v, value.to(kind), mask=inside)


@triton.jit
def fill_row(
    x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, value, EXACT: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One number over a row of the gradient."""
    shift = tl.zeros((), tl.float64)
    _fill(x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, shift, value, False, EXACT, ALIGN, BLOCK_V)


@triton.jit
def _shares(outside, EXACT: tl.constexpr):
    """The largest of these logarithms (0 where there is none) and exp of each less that."""
    top = tl.max(outside, axis=0)
    top = tl.where(top > float("-inf"), top, 0.0)
    return top, exp_of(outside - top, EXACT)


@triton.jit
def fill_gradient(
    x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, factor, norm, alpha, beta, z, s, exists, weight_ptr, weight_at,
    weight_s, STARS: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr, ALIGN: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The gradient of tokens that no arc names, over a whole row; `row_gradient` writes those of the graph anew.

    alpha, beta, z, s, exists: of `surroundings`; the stars' log-weights begin at weight_at, weight_s apart. What is loaded before
    this is kept in registers all along the row: whatever else concerns states should come after it.
    """
    log_k = tl.full((), float("-inf"), tl.float64)
    if STARS:  # k * P(v) is the posterior of a token that all stars hold
        outside, _one, _two = surroundings(alpha, beta, z, s, exists, s < 0, False)
        weights = weight_ptr + weight_at
        outside += tl.load(weights + s * weight_s, mask=exists, other=float("-inf")).to(tl.float64)
        top, shares = _shares(outside, EXACT)
        log_k = top + tl.log(tl.sum(shares.to(tl.float64), axis=0))
    if NORMALIZED:  # d(-log z)/d logit = P(v) - posterior = P(v) * (1 - k)
        shift = tl.maximum(log_k, 0.0) + tl.log(1.0 - tl.exp(-tl.abs(log_k)))
        shift = tl.where(log_k == float("-inf"), 0.0, shift)
        sign = tl.where(log_k > 0.0, -factor, factor)
    else:
        shift, sign = log_k, -factor
    sign = tl.where(shift == float("-inf"), 0.0, sign)  # k = 1, or 0 of unnormalised scores: nothing is left
    shift = tl.where(shift == float("-inf"), 0.0, shift) - norm
    _fill(x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, shift, sign, True, EXACT, ALIGN, BLOCK_V)
    tl.debug_barrier()  # the tokens of the graph are written anew, by other threads


@triton.jit
def row_gradient(
    x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, blank, factor, norm, outside, outside_one, outside_two,
    s, enter, stay, left_out, weight, keys_ptr, keys_stride, num_keys,
    STARS: tl.constexpr, SKIP: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr, DENSE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The gradient of one frame: factor * d(-log_z)/d logits, written to a row at `out_base` as at `base` those are read.

    For each state s: outside, outside_one, outside_two, the log of what surrounds its self-loop and its arcs from one and, with
    SKIP, two states before (-inf where there is none), over z; enter, stay, left_out and weight as in `row_scores`, with nothing
    at states that do not exist. keys: the tokens that are consumed by name, blank perhaps among them; without DENSE these alone
    are written, and `fill_gradient` comes first.
    """
    # Posteriors of the arcs, each from alpha, beta and its own score.
    stayed = exp_of(outside + (_at(x_ptr, base, stride_v, stay, (stay >= 0) & (stay < V)) - norm), EXACT)
    score = _at(x_ptr, base, stride_v, enter, (enter >= 0) & (enter < V)) - norm
    entered = exp_of(outside_one + score, EXACT)
    if SKIP:
        entered += exp_of(outside_two + score, EXACT)

    # A star gives each token that it holds the posterior P(v) * exp(outside).
    if STARS:
        outside += weight
        top, shares = _shares(outside, EXACT)
        # Leaving out the token of the largest star may leave next to nothing of `shares`: those are added up again with
        # their own maximum. For every other token the largest star remains in the sum.
        apart = tl.sum(tl.where(s == tl.argmax(outside, axis=0), left_out, 0), axis=0)
        second, remaining = _shares(tl.where(left_out == apart, float("-inf"), outside), EXACT)
        remainder = tl.sum(remaining, axis=0)

    if not DENSE:
        stayed_blank = tl.sum(tl.where(stay == blank, stayed, 0.0), axis=0)
        entered_blank = tl.sum(tl.where(enter == blank, entered, 0.0), axis=0)
        of_blank = -(stayed_blank + entered_blank)
        if NORMALIZED:
            of_blank += exp_of(tl.load(x_ptr + (base + blank) * stride_v).to(tl.float64) - norm, EXACT)
        tl.store(out_ptr + (out_base + blank) * out_stride_v, (factor * of_blank).to(out_ptr.dtype.element_ty))

    # The tokens of the graph, or with DENSE all: what each has as a label and as a part of stars. A token that stands in
    # several places is written several times, with the same value.
    count = V if DENSE else num_keys
    for k0 in range(0, count, BLOCK_K):
        place = k0 + tl.arange(0, BLOCK_K)
        if DENSE:
            key = place.to(enter.dtype)
            possible = key < V
        else:
            token = tl.load(keys_ptr + place * keys_stride, mask=place < num_keys, other=-1).to(tl.int64)
            possible = (token >= 0) & (token < V) & (token != blank)
            key = tl.where(possible, token, -1).to(enter.dtype)
        log_p = _at(x_ptr, base, stride_v, key, possible) - norm
        posterior = tl.sum(tl.where(key[:, None] == enter[None, :], entered[None, :], 0.0), axis=1)
        posterior += tl.sum(tl.where(key[:, None] == stay[None, :], stayed[None, :], 0.0), axis=1)
        if STARS:
            holding = tl.sum(tl.where(key[:, None] != left_out[None, :], shares[None, :], 0.0), axis=1)
            starred = tl.where(
                key == apart, exp_of(log_p + second, EXACT) * remainder, exp_of(log_p + top, EXACT) * holding
            )
            posterior += tl.where(key == blank, 0.0, starred)
        slope = -posterior
        if NORMALIZED:
            slope += exp_of(log_p, EXACT)
        tl.store(
            out_ptr + (out_base + key) * out_stride_v, (factor * slope).to(out_ptr.dtype.element_ty), mask=possible
        )
