"""Sums over graphs in which inserted tokens last, on a GPU, without logarithms: the states and sums of lasting_numba.

`sums` goes through an utterance in two programs, one forward and one backward: a state is a register, and what rows tell each other
after a frame are three numbers. What it keeps of a frame is by row; all states it keeps only every CHUNK frames. `posteriors` makes
the states between again, all chunks at once.

States of tokens are float32, float64 for float64 logits; all else is float64. Each row has a power of two beside it, which follows
the row's sum. What gets lost has less than 10^-38 of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 16


@triton.jit
def power_of(n):
    """2^n in float64; 0 far below 1, and no more than it can hold."""
    n = tl.minimum(n, 1022)
    bits = (tl.maximum(n, -1022).to(tl.int64) + 1023) << 52
    return tl.where(n < -1022, 0.0, bits.to(tl.float64, bitcast=True))


@triton.jit
def exponent_of(x):
    """The n for which x is in [2^n, 2^(n+1)), of positive numbers; 0 for 0."""
    bits = x.to(tl.int64, bitcast=True)
    return tl.where(x > 0, ((bits >> 52) & 2047).to(tl.int32) - 1023, 0)


@triton.jit
def parts(x, norm, EXACT: tl.constexpr):
    """e^(x - norm) as m * 2^e, for float64 x and norm; m is 0 for -inf."""
    power = (x - norm) * 1.4426950408889634
    power = tl.where(power > -1e8, power, -1e8)  # NaN stays
    whole = tl.floor(power)
    rest = power - whole
    m = tl.exp2(rest) if EXACT else tl.exp2(rest.to(tl.float32)).to(tl.float64)
    return tl.where(x == float("-inf"), 0.0, m), tl.where(power == power, whole, 0.0).to(tl.int32)


@triton.jit
def rows_of(labels_ptr, labels_u, weight_ptr, weight_s, l, count, V, blank, PER_GAP: tl.constexpr):
    """Of rows l: label and next label (-1 if there is none), p and 1 - p (0 where p is), whether the labels differ, and whether
    the next label's token may be inserted."""
    inside = l <= count
    label = tl.load(labels_ptr + (l - 1) * labels_u, mask=inside & (l > 0), other=-1).to(tl.int64)
    label = tl.where((label >= 0) & (label < V) & (label != blank), label, -1).to(tl.int32)
    following = tl.load(labels_ptr + l * labels_u, mask=l < count, other=-1).to(tl.int64)
    following = tl.where((following >= 0) & (following < V) & (following != blank), following, -1).to(tl.int32)
    weight = tl.load(weight_ptr + l * weight_s, mask=inside, other=float("-inf")).to(tl.float64)
    p = tl.exp(weight)
    rest = tl.where(p > 0, 1.0 - p, 0.0)
    opens = l < 0
    if PER_GAP:
        after = tl.load(weight_ptr + (l + 1) * weight_s, mask=l < count, other=0.0).to(tl.float64)
        opens = (following >= 0) & (p > 0) & (after == float("-inf"))
    return label, following, p, rest, label != following, opens


@triton.jit
def _scores(x_ptr, stride_t, stride_v, norm_ptr, t, label, following, blank, EXACT: tl.constexpr):
    """Of frame t: the probabilities of the blank, of each row's label and of the next label, see `parts`."""
    norm, frame = tl.load(norm_ptr + t), x_ptr + tl.cast(t, tl.int64) * stride_t
    m_blank, e_blank = parts(tl.load(frame + blank * stride_v).to(tl.float64), norm, EXACT)
    score = tl.load(frame + label * stride_v, mask=label >= 0, other=float("-inf")).to(tl.float64)
    m_label, e_label = parts(score, norm, EXACT)
    score = tl.load(frame + following * stride_v, mask=following >= 0, other=float("-inf")).to(tl.float64)
    m_next, e_next = parts(score, norm, EXACT)
    return m_blank, e_blank, m_label, e_label, m_next, e_next


@triton.jit
def _tokens_of(P_ptr, A, t, v, blank):
    return tl.load(P_ptr + tl.cast(t, tl.int64) * A + v, mask=(v < A) & (v != blank), other=0.0)


@triton.jit
def _step(states, P, stays, begun, without, v, label, following):
    """The states of tokens v one frame on."""
    begins = tl.where(v[:, None] == label[None, :], without[None, :], begun[None, :])
    after = P[:, None] * (states * stays[None, :] + begins)
    return tl.where(v[:, None] == following[None, :], 0.0, after)


@triton.jit
def forward(
    x_ptr, stride_t, stride_v, norm_ptr, P_ptr, A, row_ptr, number_ptr, power_ptr, kept_ptr, state_ptr, z_ptr, z_power_ptr,
    frames, count, label, following, p, rest, differs, opens, v, l, R, blank,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """One utterance. x, norm, P: its frames. Writes, for every frame and row: by what the states were multiplied first, p times the
    row's sum before, and the same without the row's label (row_ptr, 3 planes); blank, label and next label's token after it
    (number_ptr, 3 planes) and their power; every CHUNK frames the states of all tokens (kept_ptr); and what is left in the end.
    With TILED the states are more than `v` has: they lie in state_ptr, and go by."""
    inside = l <= count
    TOKENS: tl.constexpr = v.shape[0]
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    states = tl.zeros((TOKENS, l.shape[0]), DT)
    place = v[:, None].to(tl.int64) * R + l[None, :]
    if TILED:
        for first in range(0, A, TOKENS):
            tl.store(
                state_ptr + tl.cast(first, tl.int64) * R + place,
                states,
                mask=(first + v < A)[:, None] & inside[None, :],
            )
    of_blank = tl.where(l == 0, 1.0, tl.zeros((l.shape[0],), tl.float64))
    own, of_next, of_tokens = tl.zeros_like(of_blank), tl.zeros_like(of_blank), tl.zeros_like(of_blank)
    power = tl.zeros((l.shape[0],), tl.int32)
    before = tl.maximum(l - 1, 0)
    plane = tl.cast(R, tl.int64)
    m_blank, e_blank, m_label, e_label, m_next, e_next = _scores(
        x_ptr, stride_t, stride_v, norm_ptr, 0, label, following, blank, EXACT
    )
    P = _tokens_of(P_ptr, A, 0, v, blank)
    for t in range(frames):
        # What the next frame needs is on its way while this one is computed.
        later = tl.minimum(t + 1, frames - 1)
        m_blank_, e_blank_, m_label_, e_label_, m_next_, e_next_ = _scores(
            x_ptr, stride_t, stride_v, norm_ptr, later, label, following, blank, EXACT
        )
        kept = kept_ptr + tl.cast(t // CHUNK, tl.int64) * A * R
        if (t % CHUNK == 0) & (TILED == 0):
            tl.store(kept + place, states, mask=(v < A)[:, None] & inside[None, :])
        total = of_blank + own + of_next + of_tokens
        shift = tl.maximum(exponent_of(total), -100)
        raised = power_of(-shift)
        of_blank, own, of_tokens, total = of_blank * raised, own * raised, of_tokens * raised, total * raised
        of_next *= raised
        power += shift
        others = of_blank + of_tokens
        leaves = others + tl.where(differs, own, 0.0)
        begun, without = p * total, p * (others + of_next)
        tl.store(row_ptr + tl.cast(t * 3, tl.int64) * plane + l, raised, mask=inside)
        tl.store(row_ptr + tl.cast(t * 3 + 1, tl.int64) * plane + l, begun, mask=inside)
        tl.store(row_ptr + tl.cast(t * 3 + 2, tl.int64) * plane + l, without, mask=inside)
        # What enters, and a power for rows that it reaches first; where no token begins all may be small at once.
        left, left_power = tl.gather(leaves, before, 0), tl.gather(power, before, 0)
        left = tl.where(l > 0, left, 0.0)
        power = tl.where((total == 0) & (left > 0) & (m_label > 0), left_power + e_label, power)
        most = tl.maximum(e_label, e_blank)
        offset = tl.where((p == 0) & (most < -500) & (total > 0), most, 0)
        entering = left * power_of(left_power - power + e_label - offset)
        own = m_label * (own * power_of(e_label - offset) + entering)
        of_blank = m_blank * power_of(e_blank - offset) * total
        if PER_GAP:
            of_next = tl.where(opens, m_next * power_of(e_next) * (rest * of_next + p * (leaves + of_next)), 0.0)
        stays, begun, without = (raised * rest).to(DT), begun.to(DT), without.to(DT)
        if TILED:
            amount = tl.zeros((TOKENS, l.shape[0]), DT)
            for first in range(0, A, TOKENS):
                at = tl.cast(first, tl.int64) * R + place
                here = (first + v < A)[:, None] & inside[None, :]
                states = tl.load(state_ptr + at, mask=here, other=0.0)
                if t % CHUNK == 0:
                    tl.store(kept + at, states, mask=here)
                states = _step(
                    states,
                    _tokens_of(P_ptr, A, t, first + v, blank),
                    stays,
                    begun,
                    without,
                    first + v,
                    label,
                    following,
                )
                tl.store(state_ptr + at, states, mask=here)
                amount += states
            of_tokens = tl.sum(amount, axis=0).to(tl.float64)
        else:
            P_ = _tokens_of(P_ptr, A, later, v, blank)
            states = _step(states, P, stays, begun, without, v, label, following)
            of_tokens = tl.sum(states, axis=0).to(tl.float64)
            P = P_
        power += offset
        at = tl.cast((t + 1) * 3, tl.int64) * plane + l
        tl.store(number_ptr + at, of_blank, mask=inside)
        tl.store(number_ptr + at + plane, own, mask=inside)
        if PER_GAP:
            tl.store(number_ptr + at + 2 * plane, of_next, mask=inside)
        tl.store(power_ptr + tl.cast(t + 1, tl.int64) * plane + l, power, mask=inside)
        m_blank, e_blank, m_label, e_label, m_next, e_next = m_blank_, e_blank_, m_label_, e_label_, m_next_, e_next_
    last = l == count
    total = of_blank + own + of_next + of_tokens
    tl.store(z_ptr, tl.sum(tl.where(last, total, 0.0), axis=0))
    tl.store(z_power_ptr, tl.sum(tl.where(last, power, 0), axis=0))


@triton.jit
def backward(
    x_ptr, stride_t, stride_v, norm_ptr, P_ptr, A, row_ptr, number_ptr, power_ptr, kept_ptr, state_ptr, frames, count,
    label, following, p, rest, differs, opens, v, l, R, blank,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Likewise, of what follows after every frame: by what a state's going on is multiplied, and what follows from a blank
    (row_ptr, 2 planes); from label and next label's token (number_ptr, 2 planes) and the power; all states at
    the ends of chunks."""
    inside, last = l <= count, l == count
    TOKENS: tl.constexpr = v.shape[0]
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    place = v[:, None].to(tl.int64) * R + l[None, :]
    from_blank = tl.where(last, 1.0, tl.zeros((l.shape[0],), tl.float64))
    from_label, from_next, stays = from_blank, tl.zeros_like(from_blank), rest
    # What follows from a token: `from_blank`, and `stays` times its going on, which these are.
    states = tl.zeros((TOKENS, l.shape[0]), DT)
    power = tl.zeros((l.shape[0],), tl.int32)
    behind = tl.minimum(l + 1, l.shape[0] - 1)
    plane = tl.cast(R, tl.int64)
    if TILED:
        for first in range(0, A, TOKENS):
            tl.store(
                state_ptr + tl.cast(first, tl.int64) * R + place,
                states,
                mask=(first + v < A)[:, None] & inside[None, :],
            )
    m_blank, e_blank, m_label, e_label, m_next, e_next = _scores(
        x_ptr, stride_t, stride_v, norm_ptr, tl.maximum(frames - 1, 0), label, following, blank, EXACT
    )
    P = _tokens_of(P_ptr, A, tl.maximum(frames - 1, 0), v, blank)
    for i in range(frames):
        t = frames - 1 - i
        later = tl.maximum(t - 1, 0)
        m_blank_, e_blank_, m_label_, e_label_, m_next_, e_next_ = _scores(
            x_ptr, stride_t, stride_v, norm_ptr, later, label, following, blank, EXACT
        )
        tl.store(row_ptr + tl.cast((t + 1) * 2, tl.int64) * plane + l, stays, mask=inside)
        tl.store(row_ptr + tl.cast((t + 1) * 2 + 1, tl.int64) * plane + l, from_blank, mask=inside)
        tl.store(number_ptr + tl.cast((t + 1) * 2, tl.int64) * plane + l, from_label, mask=inside)
        if PER_GAP:
            tl.store(number_ptr + tl.cast((t + 1) * 2 + 1, tl.int64) * plane + l, from_next, mask=inside)
        tl.store(power_ptr + tl.cast(t + 1, tl.int64) * plane + l, power, mask=inside)
        is_kept = ((t + 1) % CHUNK == 0) | (i == 0)
        kept, blanks, going = kept_ptr + tl.cast(t // CHUNK, tl.int64) * A * R, from_blank.to(DT), stays.to(DT)
        if TILED:
            some, some_own = tl.zeros((TOKENS, l.shape[0]), DT), tl.zeros((TOKENS, l.shape[0]), DT)
            for first in range(0, A, TOKENS):
                at = tl.cast(first, tl.int64) * R + place
                here = (first + v < A)[:, None] & inside[None, :] & ((first + v)[:, None] != following[None, :])
                states = tl.load(state_ptr + at, mask=here, other=0.0)
                states = tl.where(here, blanks[None, :] + going[None, :] * states, 0.0)
                if is_kept:
                    tl.store(kept + at, states, mask=(first + v < A)[:, None] & inside[None, :])
                states *= _tokens_of(P_ptr, A, t, first + v, blank)[:, None]
                tl.store(state_ptr + at, states, mask=here)
                is_own = (first + v)[:, None] == label[None, :]
                some += tl.where(is_own, 0.0, states)
                some_own += tl.where(is_own, states, 0.0)
            others, of_own = tl.sum(some, axis=0).to(tl.float64), tl.sum(some_own, axis=0).to(tl.float64)
        else:
            P_ = _tokens_of(P_ptr, A, later, v, blank)
            masked = (v[:, None] == following[None, :]) | (v >= A)[:, None]
            states = tl.where(masked, 0.0, blanks[None, :] + going[None, :] * states)
            if is_kept:
                tl.store(kept + place, states, mask=(v < A)[:, None] & inside[None, :])
            states *= P[:, None]
            P = P_
            is_own = v[:, None] == label[None, :]
            others = tl.sum(tl.where(is_own, 0.0, states), axis=0).to(tl.float64)
            of_own = tl.sum(tl.where(is_own, states, 0.0), axis=0).to(tl.float64)
        entered, entered_power = tl.gather(from_label, behind, 0), tl.gather(power, behind, 0)
        entered = tl.where(l < count, m_next * entered, 0.0)
        nothing = (from_blank == 0) & (from_label == 0) & (from_next == 0)
        power = tl.where(nothing & (entered > 0), entered_power + e_next, power)
        most = tl.maximum(tl.maximum(e_label, e_blank), entered_power - power + e_next)
        offset = tl.where((p == 0) & (most < -500) & (nothing == 0), most, 0)
        goes_on = entered * power_of(entered_power - power + e_next - offset)
        stays_blank = m_blank * power_of(e_blank - offset) * from_blank
        to_next = tl.zeros_like(from_blank)
        if PER_GAP:
            to_next = tl.where(opens, m_next * power_of(e_next) * from_next, 0.0)
        somewhere = stays_blank + p * (others + of_own)
        own = stays_blank + p * others + m_label * power_of(e_label - offset) * from_label
        from_label = own + tl.where(differs, p * to_next + goes_on, 0.0)
        from_next = somewhere + to_next
        from_blank = somewhere + p * to_next + goes_on
        power += offset
        shift = tl.maximum(exponent_of(tl.where(from_blank > 0, from_blank, from_label)), -100)
        lowered = power_of(-shift)
        from_blank, from_label, from_next = from_blank * lowered, from_label * lowered, from_next * lowered
        power += shift
        stays = rest * lowered
        m_blank, e_blank, m_label, e_label, m_next, e_next = m_blank_, e_blank_, m_label_, e_label_, m_next_, e_next_


@triton.jit
def _then(a, b, c, d):
    """First x -> a x + b, then x -> c x + d."""
    return a * c, b * c + d


@triton.jit
def chunk_posteriors(
    P_ptr, A, row_ptr, number_ptr, power_ptr, kept_ptr, back_ptr, back_number_ptr, back_power_ptr, back_kept_ptr, z, z_power,
    first, frames, count, labels_ptr, labels_u, weight_ptr, weight_s, V, blank, v, R,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The posteriors of tokens v in the CHUNK frames from `first` on, (CHUNK, tokens)."""
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    k = tl.arange(0, CHUNK)
    t = first + k
    plane = frames.to(tl.int64) * 0 + R
    result = tl.zeros((CHUNK, v.shape[0], ROWS), DT)
    end = tl.minimum(first + CHUNK, frames) - 1
    is_token = ((v < A) & (v != blank))[None, :]
    for start in range(0, count + 1, ROWS):
        l = start + tl.arange(0, ROWS)
        label, following, _, rest, _, _ = rows_of(
            labels_ptr, labels_u, weight_ptr, weight_s, l, count, V, blank, PER_GAP
        )
        inside = (t < frames)[:, None] & (l <= count)[None, :]
        raised = tl.load(row_ptr + t.to(tl.int64)[:, None] * 3 * plane + l[None, :], mask=inside, other=0.0)
        begun = tl.load(row_ptr + (t.to(tl.int64)[:, None] * 3 + 1) * plane + l[None, :], mask=inside, other=0.0)
        without = tl.load(row_ptr + (t.to(tl.int64)[:, None] * 3 + 2) * plane + l[None, :], mask=inside, other=0.0)
        numbers = (t.to(tl.int64)[:, None] + 1) * plane + l[None, :]
        powers = tl.load(power_ptr + numbers, mask=inside, other=0) + tl.load(
            back_power_ptr + numbers, mask=inside, other=0
        )
        share = tl.where(inside, power_of(tl.minimum(powers - z_power, 400)) / z, 0.0)
        stays = tl.load(back_ptr + (t.to(tl.int64)[:, None] + 1) * 2 * plane + l[None, :], mask=inside, other=0.0)
        from_blank = tl.load(
            back_ptr + ((t.to(tl.int64)[:, None] + 1) * 2 + 1) * plane + l[None, :], mask=inside, other=0.0
        )
        # Forward.
        here = inside[:, None, :] & (v < A)[None, :, None]
        P = tl.load(P_ptr + t.to(tl.int64)[:, None] * A + v[None, :], mask=(t < frames)[:, None] & is_token, other=0.0)
        is_label = v[:, None] == label[None, :]
        masked = v[:, None] == following[None, :]
        begins = tl.where(is_label[None, :, :], without.to(DT)[:, None, :], begun.to(DT)[:, None, :])
        goes_on = P[:, :, None] * (raised * rest[None, :]).to(DT)[:, None, :]
        begins = tl.where(masked[None, :, :], 0.0, P[:, :, None] * begins)
        kept = v[:, None] * R + l[None, :]
        kept_mask = (v < A)[:, None] & (l <= count)[None, :]
        of_first = tl.load(kept_ptr + kept, mask=kept_mask, other=0.0)
        begins += tl.where((k == 0)[:, None, None], goes_on * of_first[None, :, :], 0.0)
        _, states = tl.associative_scan((goes_on, begins), 0, _then)
        # Backward: after frame t a token goes on in frame t + 1.
        next_P = tl.load(
            P_ptr + (t.to(tl.int64)[:, None] + 1) * A + v[None, :], mask=(t < end)[:, None] & is_token, other=0.0
        )
        of_last = tl.load(back_kept_ptr + kept, mask=kept_mask, other=0.0)
        goes_on = next_P[:, :, None] * stays.to(DT)[:, None, :]
        follows = tl.where((t == end)[:, None, None], of_last[None, :, :], from_blank.to(DT)[:, None, :])
        follows = tl.where(masked[None, :, :] | (here == 0), 0.0, follows)
        goes_on = tl.where(here, goes_on, 0.0)
        _, follows = tl.associative_scan((goes_on, follows), 0, _then, reverse=True)
        result += states * follows * (share if EXACT else tl.minimum(share, 1e38)).to(DT)[:, None, :]
        numbers = number_ptr + (t.to(tl.int64)[:, None] + 1) * 3 * plane + l[None, :]
        backs = back_number_ptr + (t.to(tl.int64)[:, None] + 1) * 2 * plane + l[None, :]
        of_blank = tl.load(numbers, mask=inside, other=0.0).to(tl.float64) * from_blank * share
        own = tl.load(numbers + plane, mask=inside, other=0.0) * (tl.load(backs, mask=inside, other=0.0) * share)
        result += tl.where(is_label[None, :, :], own.to(DT)[:, None, :], 0.0)
        result += tl.where((v == blank)[None, :, None], of_blank.to(DT)[:, None, :], 0.0)
        if PER_GAP:
            of_next = tl.load(numbers + 2 * plane, mask=inside, other=0.0)
            of_next = of_next * (tl.load(backs + plane, mask=inside, other=0.0) * share)
            result += tl.where(masked[None, :, :], of_next.to(DT)[:, None, :], 0.0)
    return tl.sum(result, axis=2)
