"""Scores of a label graph's arcs from logits, and the gradient back, on a GPU. Same functions as vocabulary_torch.

One program a frame. Forward it reads its row of logits once, backward once more, and writes the row of the gradient once; nothing
else as large is stored. Sums over states are float64 with float32 corrections; for float64 logits all is float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.emissions.tokens import Scores, Tokens
from starseq.lattice.elementary_triton import exp_of, log_remainder, logaddexp
from starseq.lattice.topology import Topology

_BLOCK = 4096  # tokens of a row at a time
_SMALL_BLOCK = 1024
_TILE = 4096  # comparisons of tokens at a time


def scores(
    logits: Tensor, tokens: Tokens, lengths: Tensor, *, blank: int, normalized: bool, star: bool = False
) -> Scores:
    """See vocabulary_torch.scores."""
    batch, frames, vocabulary = logits.shape
    states = tokens.enter.shape[1]
    empty = {"dtype": torch.float64, "device": logits.device}
    result = Scores(
        stay=torch.empty(batch, frames, states, **empty),
        enter=torch.empty(batch, frames, states, **empty),
        star=torch.empty(batch, frames, states, **empty) if star else torch.empty(0, **empty),
        norm=torch.empty(batch, frames, **empty),
    )
    if batch * frames == 0:
        return result
    stars = tokens.star_weight is not None
    first = known = None
    if stars:
        first = torch.empty(batch, states, dtype=torch.int8, device=logits.device)
        known = torch.empty(batch, vocabulary, dtype=torch.int8, device=logits.device)
        block_s = triton.next_power_of_2(states)
        _mark[(batch,)](
            tokens.star_except, first, known, vocabulary, states, blank, block_s, max(1, _TILE // block_s), num_warps=8
        )
    _scores[(batch * frames,)](
        logits, *logits.stride(), tokens.enter, tokens.stay, tokens.star_except, tokens.star_weight, *_strides(tokens),
        first, known, lengths, *result, frames, vocabulary, states, blank, stars, star, normalized,
        logits.dtype == torch.float64, **_blocks(logits, logits, states),
    )  # fmt: skip
    return result


def gradient(
    grad: Tensor, logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, norm: Tensor,
    log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, *, blank: int, normalized: bool,
) -> Tensor:  # fmt: skip
    """See vocabulary_torch.gradient."""
    batch, frames, vocabulary = logits.shape
    states = tokens.enter.shape[1]
    result = torch.empty_like(logits)
    if batch * frames == 0:
        return result
    block_s = triton.next_power_of_2(states)
    dense = vocabulary <= max(2 * block_s, 256)
    _gradient[(batch * frames,)](
        grad, grad.stride(0), logits, *logits.stride(), result, *result.stride(),
        tokens.enter, tokens.stay, tokens.star_except, tokens.star_weight, *_strides(tokens), topology.skip,
        topology.num_states, lengths, norm, log_alpha, log_beta, log_z, frames, vocabulary, states, blank,
        tokens.star_weight is not None, topology.skip is not None, normalized, logits.dtype == torch.float64, dense,
        max(1, _TILE // block_s), **_blocks(logits, result, states),
    )  # fmt: skip
    return result


def _strides(tokens: Tokens) -> tuple[int, int]:
    """Of the stars' weights, which are often one number expanded."""
    return (0, 0) if tokens.star_weight is None else tokens.star_weight.stride()


def _blocks(logits: Tensor, out: Tensor, states: int) -> dict[str, int]:
    """How a program divides its row (BLOCK_V, ALIGN) and its states (BLOCK_S), and with how many warps.

    ALIGN: rows of an odd length begin at odd addresses, where wide loads are not possible; a long row is therefore read from
    its first address that is a multiple of 16 bytes, ALIGN elements at a time, and its ends apart. 1 stands for: don't.
    """
    vocabulary = logits.shape[2]
    long = vocabulary > _SMALL_BLOCK
    aligned = long and logits.stride(2) == 1 and logits.stride() == out.stride()
    block_s = triton.next_power_of_2(states)
    return {
        "BLOCK_V": _BLOCK if long else triton.next_power_of_2(vocabulary),
        "ALIGN": 16 // logits.element_size() if aligned else 1,
        "BLOCK_S": block_s,
        "num_warps": 8 if long or block_s > 512 else 4 if block_s > 64 else 1,
    }


@triton.jit
def _mark(
    left_out_ptr, first_ptr, known_ptr, V, S, blank, BLOCK_S: tl.constexpr, BLOCK_J: tl.constexpr
):  # fmt: skip
    """first: where a token that some star leaves out stands for the first time. known: these tokens, and blank."""
    b = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    token = tl.load(left_out_ptr + b * S + s, mask=s < S, other=-1)
    possible = (token >= 0) & (token < V)
    before = tl.zeros((BLOCK_S,), tl.int32)
    for j0 in range(0, S, BLOCK_J):
        j = j0 + tl.arange(0, BLOCK_J)
        other = tl.load(left_out_ptr + b * S + j, mask=j < S, other=-1)
        equal = (token[:, None] == other[None, :]) & (j[None, :] < s[:, None])
        before += tl.sum(equal.to(tl.int32), axis=1)
    tl.store(first_ptr + b * S + s, (possible & (before == 0)).to(tl.int8), mask=s < S)
    for v0 in range(0, V, 1024):
        v = v0 + tl.arange(0, 1024)
        tl.store(known_ptr + b * V + v, (v == blank).to(tl.int8), mask=v < V)
    tl.debug_barrier()  # other threads of this program wrote the zeros that these ones replace
    tl.store(known_ptr + b * V + token, tl.full((BLOCK_S,), 1, tl.int8), mask=possible)


@triton.jit
def _parts(base, V, ALIGN: tl.constexpr):
    """A row at offset `base` as head, middle, and tail: how many elements come before and in the aligned middle."""
    head = tl.minimum((ALIGN - base % ALIGN) % ALIGN, V).to(tl.int32)
    middle = ((V - head) // ALIGN * ALIGN).to(tl.int32)
    return head, middle


@triton.jit
def _ends(head, middle, V, ALIGN: tl.constexpr):
    """The tokens of head and tail, with a mask: (2 * ALIGN,)."""
    i = tl.arange(0, 2 * ALIGN)
    v = tl.where(i < ALIGN, i, head + middle + i - ALIGN)
    return v, tl.where(i < ALIGN, i < head, v < V)


@triton.jit
def _row_sum(
    ptr, base, stride_v, known_ptr, V, pivot, MASKED: tl.constexpr, EXACT: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The sum of exp(x - pivot) over a row without the known tokens, and the largest x."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    sums = tl.zeros((BLOCK_V,), kind)
    tops = tl.full((BLOCK_V,), float("-inf"), kind)
    head, middle = _parts(base, V, ALIGN)
    start = tl.multiple_of(base + head, ALIGN)
    middle = tl.multiple_of(middle, ALIGN)
    for i in range(0, middle, BLOCK_V):
        offset = i + tl.arange(0, BLOCK_V)
        inside = offset < middle
        x = tl.load(ptr + (start + offset) * stride_v, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        x = x.to(kind)
        if MASKED:
            known = tl.load(known_ptr + head + offset, mask=inside, other=1, eviction_policy="evict_last")
            x = tl.where(known != 0, float("-inf"), x)
        tops = tl.where(x > tops, x, tops)
        sums += tl.exp(x - pivot)
    total, top = tl.sum(sums, axis=0), tl.max(tops, axis=0)
    if ALIGN > 1:
        v, inside = _ends(head, middle, V, ALIGN)
        x = tl.load(ptr + (base + v) * stride_v, mask=inside, other=float("-inf")).to(kind)
        if MASKED:
            x = tl.where(tl.load(known_ptr + v, mask=inside, other=1) != 0, float("-inf"), x)
        total += tl.sum(tl.exp(x - pivot), axis=0)
        top = tl.maximum(top, tl.max(x, axis=0))
    return total, top


@triton.jit
def _log_rest(
    ptr, base, stride_v, known_ptr, V, MASKED: tl.constexpr, EXACT: tl.constexpr, ALIGN: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """The log-sum over a row without the known tokens, as a float64.

    One pass: the largest of the first tokens serves as the pivot. Only where a later one is larger by far, or the first are
    all -inf, the row is read again with the true maximum.
    """
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    some: tl.constexpr = 256 if BLOCK_V > 256 else BLOCK_V
    v = tl.arange(0, some)
    x = tl.load(ptr + (base + v) * stride_v, mask=v < V, other=float("-inf")).to(kind)
    if MASKED:
        x = tl.where(tl.load(known_ptr + v, mask=v < V, other=1) != 0, float("-inf"), x)
    pivot = tl.max(x, axis=0)
    pivot = tl.where(pivot > float("-inf"), pivot, 0.0)
    total, top = _row_sum(ptr, base, stride_v, known_ptr, V, pivot, MASKED, EXACT, ALIGN, BLOCK_V)
    if (top > float("-inf")) & (tl.abs(top - pivot) > 40.0):
        pivot = top
        total, top = _row_sum(ptr, base, stride_v, known_ptr, V, pivot, MASKED, EXACT, ALIGN, BLOCK_V)
    return pivot.to(tl.float64) + tl.log(total.to(tl.float64))


@triton.jit
def _at(ptr, base, stride_v, token, possible):
    """x at the given tokens, as float64; -inf at impossible ones."""
    return tl.load(ptr + (base + token) * stride_v, mask=possible, other=float("-inf")).to(tl.float64)


@triton.jit
def _scores(
    x_ptr, stride_b, stride_t, stride_v, enter_ptr, stay_ptr, left_out_ptr, weight_ptr, weight_b, weight_s,
    first_ptr, known_ptr, lengths_ptr, log_stay_ptr, log_enter_ptr, log_star_ptr, norm_ptr, T, V, S, blank,
    STARS: tl.constexpr, KEEP_STAR: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    if t < tl.load(lengths_ptr + b):
        # With stride_v = 1 offsets count elements; else they count tokens, and the row's place goes into the pointer.
        if stride_v == 1:
            base = b * stride_b + t * stride_t
        else:
            x_ptr += b * stride_b + t * stride_t
            base = row * 0
        s = tl.arange(0, BLOCK_S)
        inside = s < S
        norm = tl.zeros((), tl.float64)
        if STARS:
            rest = _log_rest(x_ptr, base, stride_v, known_ptr + b * V, V, True, EXACT, ALIGN, BLOCK_V)
            left_out = tl.load(left_out_ptr + b * S + s, mask=inside, other=-1)
            possible = (left_out >= 0) & (left_out < V)
            value = _at(x_ptr, base, stride_v, left_out, possible)
            once = tl.where(tl.load(first_ptr + b * S + s, mask=inside, other=0) != 0, value, float("-inf"))
            place = tl.argmax(once, axis=0)
            largest_token = tl.sum(tl.where(s == place, left_out, 0), axis=0)
            largest_value = tl.sum(tl.where(s == place, once, 0.0), axis=0)
            is_largest = possible & (left_out == largest_token)
            # Only the largest can hold more than half of the star: it is left out by adding up the others.
            smaller = tl.where(is_largest, float("-inf"), once)
            top = tl.maximum(tl.max(smaller, axis=0), rest)
            shift = tl.where(top > float("-inf"), top, 0.0)
            total = tl.sum(exp_of(smaller - shift, EXACT).to(tl.float64), axis=0)
            others = shift + tl.log(total + exp_of(rest - shift, EXACT).to(tl.float64))
            star = logaddexp(others, largest_value, EXACT)
            if NORMALIZED:
                norm = logaddexp(star, tl.load(x_ptr + (base + blank) * stride_v).to(tl.float64), EXACT)
        elif NORMALIZED:
            norm = _log_rest(x_ptr, base, stride_v, known_ptr, V, False, EXACT, ALIGN, BLOCK_V)
        norm = tl.where(norm == float("-inf"), 0.0, norm)
        tl.store(norm_ptr + row, norm)

        enter = tl.load(enter_ptr + b * S + s, mask=inside, other=-1)
        log_enter = _at(x_ptr, base, stride_v, enter, (enter >= 0) & (enter < V)) - norm
        tl.store(log_enter_ptr + row * S + s, log_enter, mask=inside)
        stay = tl.load(stay_ptr + b * S + s, mask=inside, other=-1)
        log_stay = _at(x_ptr, base, stride_v, stay, (stay >= 0) & (stay < V)) - norm
        if STARS:
            without = tl.where(possible, log_remainder(star, value, EXACT), star)
            without = tl.where(is_largest, others, without) - norm
            weight = tl.load(weight_ptr + b * weight_b + s * weight_s, mask=inside, other=float("-inf")).to(tl.float64)
            log_star = without + weight
            log_stay = logaddexp(log_stay, log_star, EXACT)
            if KEEP_STAR:
                tl.store(log_star_ptr + row * S + s, log_star, mask=inside)
        tl.store(log_stay_ptr + row * S + s, log_stay, mask=inside)


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
            x = tl.load(x_ptr + (start + offset) * stride_v, mask=inside, other=float("-inf"), eviction_policy="evict_first")
            value = factor * _exp_shifted(x, shift, EXACT)
        tl.store(out_ptr + (out_start + offset) * out_stride_v, value.to(kind), mask=inside, eviction_policy="evict_first")
    if ALIGN > 1:
        v, inside = _ends(head, middle, V, ALIGN)
        value = tl.zeros((2 * ALIGN,), tl.float32) + factor
        if COMPUTE:
            x = tl.load(x_ptr + (base + v) * stride_v, mask=inside, other=float("-inf"))
            value = factor * _exp_shifted(x, shift, EXACT)
        tl.store(out_ptr + (out_base + v) * out_stride_v, value.to(kind), mask=inside)


@triton.jit
def _gradient(
    grad_ptr, grad_stride, x_ptr, stride_b, stride_t, stride_v, out_ptr, out_stride_b, out_stride_t, out_stride_v,
    enter_ptr, stay_ptr, left_out_ptr, weight_ptr, weight_b, weight_s, skip_ptr, num_states_ptr, lengths_ptr, norm_ptr,
    alpha_ptr, beta_ptr, z_ptr, T, V, S, blank,
    STARS: tl.constexpr, SKIP: tl.constexpr, NORMALIZED: tl.constexpr, EXACT: tl.constexpr, DENSE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, ALIGN: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    if stride_v == 1:
        base = b * stride_b + t * stride_t
    else:
        x_ptr += b * stride_b + t * stride_t
        base = row * 0
    if out_stride_v == 1:
        out_base = b * out_stride_b + t * out_stride_t
    else:
        out_ptr += b * out_stride_b + t * out_stride_t
        out_base = row * 0
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    z = tl.load(z_ptr + b)
    if (t >= tl.load(lengths_ptr + b)) | (z == float("-inf")) | (z != z):
        nothing = tl.where((t < tl.load(lengths_ptr + b)) & (z != z), float("nan"), 0.0)
        _fill(x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, z, nothing, False, EXACT, ALIGN, BLOCK_V)
    else:
        s = tl.arange(0, BLOCK_S)
        exists = s < tl.minimum(tl.load(num_states_ptr + b), S)
        factor = tl.load(grad_ptr + b * grad_stride).to(kind)
        norm = tl.load(norm_ptr + row)
        alpha = alpha_ptr + (b * (T + 1) + t) * S + s
        after = tl.load(beta_ptr + (b * (T + 1) + t + 1) * S + s, mask=exists, other=float("-inf")) - z
        outside = tl.load(alpha, mask=exists, other=float("-inf")) + after

        # Posteriors of the arcs, each from alpha, beta and its own score.
        stay = tl.load(stay_ptr + b * S + s, mask=exists, other=-1)
        stayed = exp_of(outside + (_at(x_ptr, base, stride_v, stay, (stay >= 0) & (stay < V)) - norm), EXACT)
        enter = tl.load(enter_ptr + b * S + s, mask=exists, other=-1)
        score = _at(x_ptr, base, stride_v, enter, (enter >= 0) & (enter < V)) - norm
        one = tl.load(alpha - 1, mask=exists & (s > 0), other=float("-inf"))
        entered = exp_of(one + after + score, EXACT)
        if SKIP:
            skip = exists & (s > 1) & (tl.load(skip_ptr + b * S + s, mask=exists, other=0) != 0)
            two = tl.load(alpha - 2, mask=skip, other=float("-inf"))
            entered += exp_of(two + after + score, EXACT)

        # A star gives each token that it holds the posterior P(v) * exp(outside).
        log_k = tl.full((), float("-inf"), tl.float64)
        if STARS:
            left_out = tl.load(left_out_ptr + b * S + s, mask=exists, other=-1)
            weight = tl.load(weight_ptr + b * weight_b + s * weight_s, mask=exists, other=float("-inf"))
            outside += weight.to(tl.float64)
            top = tl.max(outside, axis=0)
            top = tl.where(top > float("-inf"), top, 0.0)
            shares = exp_of(outside - top, EXACT)
            log_k = top + tl.log(tl.sum(shares.to(tl.float64), axis=0))
            # Leaving out the token of the largest star may leave next to nothing of `shares`: those are added up again with
            # their own maximum. For every other token the largest star remains in the sum.
            apart = tl.sum(tl.where(s == tl.argmax(outside, axis=0), left_out, 0), axis=0)
            remaining = tl.where(left_out == apart, float("-inf"), outside)
            second = tl.max(remaining, axis=0)
            second = tl.where(second > float("-inf"), second, 0.0)
            remainder = tl.sum(exp_of(remaining - second, EXACT), axis=0)

        if not DENSE:
            if NORMALIZED:  # d(-log z)/d logit = P(v) - posterior = P(v) * (1 - k)
                shift = tl.maximum(log_k, 0.0) + tl.log(1.0 - tl.exp(-tl.abs(log_k)))
                shift = tl.where(log_k == float("-inf"), 0.0, shift)
                sign = tl.where(log_k > 0.0, -factor, factor)
            else:
                shift, sign = log_k, -factor
            sign = tl.where(shift == float("-inf"), 0.0, sign)  # k = 1, or 0 of unnormalised scores: nothing is left
            shift = tl.where(shift == float("-inf"), 0.0, shift) - norm
            _fill(x_ptr, base, stride_v, out_ptr, out_base, out_stride_v, V, shift, sign, True, EXACT, ALIGN, BLOCK_V)
            tl.debug_barrier()  # the tokens of the graph are written anew below, by other threads
            stayed_blank = tl.sum(tl.where(stay == blank, stayed, 0.0), axis=0)
            entered_blank = tl.sum(tl.where(enter == blank, entered, 0.0), axis=0)
            of_blank = -(stayed_blank + entered_blank)
            if NORMALIZED:
                of_blank += exp_of(tl.load(x_ptr + (base + blank) * stride_v).to(tl.float64) - norm, EXACT)
            tl.store(out_ptr + (out_base + blank) * out_stride_v, (factor * of_blank).to(out_ptr.dtype.element_ty))

        # The tokens of the graph, or with DENSE all: what each has as a label and as a part of stars. A token that stands in
        # several places is written several times, with the same value.
        count = V if DENSE else S
        for k0 in range(0, count, BLOCK_K):
            key = k0 + tl.arange(0, BLOCK_K)
            if DENSE:
                possible = key < V
            else:
                key = tl.load(enter_ptr + b * S + key, mask=key < S, other=-1)
                possible = (key >= 0) & (key < V) & (key != blank)
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
            tl.store(out_ptr + (out_base + key) * out_stride_v, (factor * slope).to(out_ptr.dtype.element_ty), mask=possible)
