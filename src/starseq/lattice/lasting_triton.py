"""Sums over graphs in which inserted tokens last, on a GPU, without logarithms: the states and sums of lasting_numba.

`forward` and `backward` go through an utterance, each in a program of its own: a state is a register, and what rows tell each other
after a frame are three numbers. What they keep of a frame is by row; the states they keep only at the ends of KEEP chunks.
`chunk_posteriors` makes those between again, all chunks at once.

States are of slots: of all tokens, or with SLOTS of those that a chunk of frames deals slots to, the labels first (`dead` tokens
share two sums). With TILED there are more than registers: they lie in memory, and go by.

States of slots are float32, float64 for float64 logits; all else is float64. Each row has a power of two beside it, which follows
the row's sum. What gets lost has less than 10^-38 of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from starseq.lattice.elementary_triton import some_of

NO_SCORE = tl.constexpr(-100_000_000)
"""The power of two that belongs to a probability of 0."""


@triton.jit
def power_of(n):
    """2^n in float64; 0 far below 1, and no more than it can hold."""
    high = (tl.maximum(tl.minimum(n, 1022), -1023) + 1023) << 20
    return (high.to(tl.int64) << 32).to(tl.float64, bitcast=True)


@triton.jit
def exponent_of(x):
    """The n for which x is in [2^n, 2^(n+1)), of numbers that are not negative; -1023 for 0."""
    return ((x.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1023


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
def label_at(labels_ptr, labels_u, place, inside, V, blank):
    """The labels at the given places; -1 where they are impossible."""
    label = tl.load(labels_ptr + place * labels_u, mask=inside, other=-1).to(tl.int64)
    return tl.where((label >= 0) & (label < V) & (label != blank), label, -1).to(tl.int32)


@triton.jit
def store_labels(
    x_ptr, stride_v, norm, labels_ptr, labels_u, m_ptr, e_ptr, l, inside, V, blank, EXACT: tl.constexpr
):  # fmt: skip
    """Of frames (x_ptr, norm, m_ptr, e_ptr) the probability of each row's label as m * 2^e; in row 0 that of the blank."""
    token = tl.where(l == 0, blank, label_at(labels_ptr, labels_u, l - 1, inside & (l > 0), V, blank))
    score = tl.load(x_ptr + token * stride_v, mask=inside & (token >= 0), other=float("-inf")).to(tl.float64)
    m, e = parts(score, norm, EXACT)
    tl.store(m_ptr + l, m.to(m_ptr.dtype.element_ty), mask=inside)
    tl.store(e_ptr + l, e, mask=inside)


@triton.jit
def rows_of(labels_ptr, labels_u, weight_ptr, weight_s, l, count, V, blank, PER_GAP: tl.constexpr):
    """Of rows l: label and next label (-1 if there is none), p and 1 - p (0 where p is), whether the labels differ, and whether
    the next label's token may be inserted."""
    inside = l <= count
    label = label_at(labels_ptr, labels_u, l - 1, inside & (l > 0), V, blank)
    following = label_at(labels_ptr, labels_u, l, l < count, V, blank)
    weight = tl.load(weight_ptr + l * weight_s, mask=inside, other=float("-inf")).to(tl.float64)
    p = tl.exp(weight)
    rest = tl.where(p > 0, 1.0 - p, 0.0)
    opens = l < 0
    if PER_GAP:
        after = tl.load(weight_ptr + (l + 1) * weight_s, mask=l < count, other=0.0).to(tl.float64)
        opens = (following >= 0) & (p > 0) & (after == float("-inf"))
    return label, following, p, rest, label != following, opens


@triton.jit
def _blank_at(m_ptr, e_ptr, t, R):
    return tl.load(m_ptr + t * R).to(tl.float64), tl.load(e_ptr + t * R)


@triton.jit
def _label_at(m_ptr, e_ptr, t, R, l, exists):
    m = tl.load(m_ptr + t * R + l, mask=exists, other=0.0).to(tl.float64)
    return m, tl.load(e_ptr + t * R + l, mask=exists, other=NO_SCORE)


@triton.jit
def _slots_at(P_ptr, t, v):
    """Rows are as long as v."""
    return tl.load(P_ptr + tl.cast(t, tl.int64) * v.shape[0] + v)


@triton.jit
def _dead_at(dead_ptr, t):
    """The sums of P_t and of P_t P_t+1 over dead tokens."""
    return tl.load(dead_ptr + t * 2), tl.load(dead_ptr + t * 2 + 1)


@triton.jit
def _step(states, P, stays, begun, without, v, label, following):
    """The states of slots v one frame on."""
    begins = tl.where(v[:, None] == label[None, :], without[None, :], begun[None, :])
    after = P[:, None] * (states * stays[None, :] + begins)
    return tl.where(v[:, None] == following[None, :], 0.0, after)


@triton.jit
def _token_of(token_ptr, size, v, SLOTS: tl.constexpr):
    """The token of each slot, or where it has none something below 0."""
    if SLOTS:
        return tl.load(token_ptr + v, mask=v < size, other=-2)
    else:
        return tl.where(v < size, v, -2)


@triton.jit
def _deal_anew(states, state_ptr, old, new, alive_ptr, R, l, inside):
    """The states of tokens `old`, as those of tokens `new`: 0 where one had none. alive_ptr: of the chunk that they had them in."""
    place = state_ptr + l[None, :]
    tl.store(place + old.to(tl.int64)[:, None] * R, states, mask=(old >= 0)[:, None] & inside[None, :])
    tl.debug_barrier()
    stood = tl.load(alive_ptr + new, mask=new >= 0, other=0) != 0
    states = tl.load(place + new.to(tl.int64)[:, None] * R, mask=stood[:, None] & inside[None, :], other=0.0)
    tl.debug_barrier()
    return states


@triton.jit
def _tile(x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, P_ptr, A, t, token, frames, blank, SLOTS: tl.constexpr):
    """The probabilities of some tokens at one frame."""
    if SLOTS:
        some = t + tl.arange(0, 1)
        return tl.sum(some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, some, token, frames), axis=0)
    else:
        return tl.load(P_ptr + tl.cast(t, tl.int64) * A + token, mask=(token >= 0) & (token != blank), other=0.0)


@triton.jit
def forward(
    x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, m_ptr, e_ptr, P_ptr, A, dead_ptr, token_ptr, size_ptr, alive_ptr, room, V,
    row_ptr, number_ptr, power_ptr, kept_ptr, state_ptr, z_ptr, z_power_ptr,
    frames, count, label, following, p, rest, differs, opens, v, l, R, blank,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, TILED: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """One utterance. Writes, for every frame and row: by what slots were multiplied first, p times the row's sum before, and the
    same without the row's label (row_ptr, 3 planes); blank, label and next label's token after it (number_ptr, 3 planes) and their
    power; the slots before every KEEP-th chunk (kept_ptr); and what is left in the end.

    label, following: slots. m_ptr, e_ptr: see `store_labels`. P_ptr (T, slots): as long as v,
    0 where there is none; TILED (T, A), and of TILED SLOTS made from x and norm."""
    inside, closed = l <= count, p == 0
    TOKENS: tl.constexpr = v.shape[0]
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    states = tl.zeros((TOKENS, l.shape[0]), DT)
    place = v[:, None].to(tl.int64) * R + l[None, :]
    of_blank = tl.where(l == 0, 1.0, tl.zeros((l.shape[0],), tl.float64))
    of_dead, begun_before = tl.zeros_like(of_blank), tl.zeros_like(of_blank)
    pair_before = tl.zeros((), tl.float64)
    own, of_next, of_slots = tl.zeros_like(of_blank), tl.zeros_like(of_blank), tl.zeros_like(of_blank)
    power = tl.zeros((l.shape[0],), tl.int32)
    is_other = tl.where(differs, 1.0, tl.zeros_like(of_blank))
    before = tl.maximum(l - 1, 0)
    labelled, followed = inside & (l > 0), l < count
    plane = tl.cast(R, tl.int64)
    m_blank, e_blank = _blank_at(m_ptr, e_ptr, 0, plane)
    m_label, e_label = _label_at(m_ptr, e_ptr, 0, plane, l, labelled)
    dead, pair = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    if SLOTS:
        dead, pair = _dead_at(dead_ptr, 0)
    # In registers the slot of a row's label is kept apart, for it begins in its own way; that of the next label stays 0.
    is_free = (v[:, None] != label[None, :]) & (v[:, None] != following[None, :])
    is_own = (v[:, None] == label[None, :]) & differs[None, :]
    has_own = (label >= 0) & differs
    of_own = tl.zeros((l.shape[0],), DT)
    if TILED == 0:
        P = _slots_at(P_ptr, 0, v)
    for t in range(frames):
        # What the next frame needs is on its way while this one is computed.
        later = tl.cast(tl.minimum(t + 1, frames - 1), tl.int64)
        m_blank_, e_blank_ = _blank_at(m_ptr, e_ptr, later, plane)
        m_label_, e_label_ = _label_at(m_ptr, e_ptr, later, plane, l, labelled)
        chunk = tl.cast(t // CHUNK, tl.int64)
        kept = kept_ptr + chunk // KEEP * A * R
        if SLOTS:
            dead_, pair_ = _dead_at(dead_ptr, later)
            if TILED == 0 and (t % CHUNK == 0) & (t > 0):
                old = _token_of(token_ptr + (chunk - 1) * room, tl.load(size_ptr + chunk - 1), v, SLOTS)
                new = _token_of(token_ptr + chunk * room, tl.load(size_ptr + chunk), v, SLOTS)
                states = _deal_anew(states, state_ptr, old, new, alive_ptr + (chunk - 1) * V, R, l, inside)
        if TILED == 0 and t % (CHUNK * KEEP) == 0:
            all_states = tl.where(is_own, of_own[None, :], states)
            tl.store(kept + place, all_states, mask=(v < A)[:, None] & inside[None, :])
        others = of_blank + of_dead + of_slots
        total = others + own
        if PER_GAP:
            total += of_next
        shift = tl.where(total > 0, tl.maximum(exponent_of(total), -100), 0)
        raised = power_of(-shift)
        power += shift
        leaves = (others + is_other * own) * raised
        weight = p * raised
        begun, without = weight * total, weight * others
        total, own = total * raised, own * raised
        if PER_GAP:
            without += weight * of_next
            of_next *= raised
        tl.store(row_ptr + tl.cast(t * 3, tl.int64) * plane + l, raised, mask=inside)
        tl.store(row_ptr + tl.cast(t * 3 + 1, tl.int64) * plane + l, begun, mask=inside)
        tl.store(row_ptr + tl.cast(t * 3 + 2, tl.int64) * plane + l, without, mask=inside)
        going_on = raised * rest
        if SLOTS:
            of_dead = begun * dead + going_on * begun_before * pair_before
            begun_before, pair_before = begun, pair
            dead, pair = dead_, pair_
        # What enters, and a power for rows that it reaches first; where no token begins all may be small at once.
        left, left_power = tl.gather(leaves, before, 0), tl.gather(power, before, 0)
        most = tl.maximum(e_label, e_blank)
        offset = tl.where(closed & (most < -500), most, 0)
        e_label -= offset
        left = tl.where(labelled, left * m_label, 0.0)
        power = tl.where((total == 0) & (left > 0), left_power + e_label, power)
        own = m_label * (own * power_of(e_label)) + left * power_of(left_power - power + e_label)
        of_blank = m_blank * power_of(e_blank - offset) * total
        if PER_GAP:
            m_next, e_next = _label_at(m_ptr, e_ptr, tl.cast(t, tl.int64), plane, l + 1, followed)
            of_next = tl.where(opens, m_next * power_of(e_next) * (rest * of_next + p * leaves + p * of_next), 0.0)
        stays, some, some_own = going_on.to(DT), begun.to(DT), without.to(DT)
        if TILED:
            amount = tl.zeros((TOKENS, l.shape[0]), DT)
            size, list_ptr = A, token_ptr
            if SLOTS:
                size, list_ptr = tl.load(size_ptr + chunk), token_ptr + chunk * room
            for first in range(0, size, TOKENS):
                token = _token_of(list_ptr, size, first + v, SLOTS)
                at = token[:, None].to(tl.int64) * R + l[None, :]
                here = (token >= 0)[:, None] & inside[None, :]
                stood = (token >= 0) & (token * 0 + t > 0)
                if SLOTS and t % CHUNK == 0:
                    stood = tl.load(alive_ptr + (chunk - 1) * V + token, mask=stood, other=0) != 0
                states = tl.load(state_ptr + at, mask=stood[:, None] & inside[None, :], other=0.0)
                if SLOTS == 0 and t % (CHUNK * KEEP) == 0:
                    tl.store(kept + at, states, mask=here)
                of_tile = _tile(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, A, t, token, frames, blank, SLOTS)
                states = _step(states, of_tile, stays, some, some_own, first + v, label, following)
                tl.store(state_ptr + at, states, mask=here)
                amount += states
            of_slots = tl.sum(amount, axis=0).to(tl.float64)
        else:
            P_ = _slots_at(P_ptr, later, v)
            states = P[:, None] * (states * stays[None, :] + tl.where(is_free, some[None, :], 0.0))
            of_label = (m_label * power_of(e_label + offset)).to(DT)
            of_own = tl.where(has_own, of_label * (of_own * stays + some_own), 0.0)
            of_slots = (tl.sum(states, axis=0) + of_own).to(tl.float64)
            P = P_
        power += offset
        at = tl.cast((t + 1) * 3, tl.int64) * plane + l
        tl.store(number_ptr + at, of_blank, mask=inside)
        tl.store(number_ptr + at + plane, own, mask=inside)
        if PER_GAP:
            tl.store(number_ptr + at + 2 * plane, of_next, mask=inside)
        tl.store(power_ptr + tl.cast(t + 1, tl.int64) * plane + l, power, mask=inside)
        m_blank, e_blank, m_label, e_label = m_blank_, e_blank_, m_label_, e_label_
    last = l == count
    total = of_blank + of_dead + own + of_next + of_slots
    tl.store(z_ptr, tl.sum(tl.where(last, total, 0.0), axis=0))
    tl.store(z_power_ptr, tl.sum(tl.where(last, power, 0), axis=0))


@triton.jit
def backward(
    x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, m_ptr, e_ptr, P_ptr, A, dead_ptr, token_ptr, size_ptr, alive_ptr, room, V,
    row_ptr, number_ptr, power_ptr, kept_ptr, state_ptr, frames, count,
    label, following, p, rest, differs, opens, v, l, R, blank,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, TILED: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Likewise, of what follows after every frame: by what a state's going on is multiplied, and what follows from a blank
    (row_ptr, 2 planes); from label and next label's token (number_ptr, 2 planes) and the power; all slots at
    the ends of KEEP chunks."""
    inside, last, closed = l <= count, l == count, p == 0
    TOKENS: tl.constexpr = v.shape[0]
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    place = v[:, None].to(tl.int64) * R + l[None, :]
    from_blank = tl.where(last, 1.0, tl.zeros((l.shape[0],), tl.float64))
    from_label, from_next, stays = from_blank, tl.zeros_like(from_blank), rest
    from_later = tl.zeros_like(from_blank)
    # What follows from a token: `from_blank`, and `stays` times its going on, which these are.
    states = tl.zeros((TOKENS, l.shape[0]), DT)
    power = tl.zeros((l.shape[0],), tl.int32)
    is_other = tl.where(differs, 1.0, from_later)
    behind = tl.minimum(l + 1, l.shape[0] - 1)
    labelled, followed = inside & (l > 0), l < count
    plane = tl.cast(R, tl.int64)
    end = tl.cast(tl.maximum(frames - 1, 0), tl.int64)
    m_blank, e_blank = _blank_at(m_ptr, e_ptr, end, plane)
    m_label, e_label = _label_at(m_ptr, e_ptr, end, plane, l, labelled)
    m_next, e_next = _label_at(m_ptr, e_ptr, end, plane, l + 1, followed)
    dead, pair = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    if SLOTS:
        dead, pair = _dead_at(dead_ptr, end)
    is_free = (v[:, None] != label[None, :]) & (v[:, None] != following[None, :])
    is_own = (v[:, None] == label[None, :]) & differs[None, :]
    has_own = (label >= 0) & differs
    own_goes_on = tl.zeros((l.shape[0],), DT)
    if TILED == 0:
        P = _slots_at(P_ptr, end, v)
    for i in range(frames):
        t = frames - 1 - i
        later = tl.cast(tl.maximum(t - 1, 0), tl.int64)
        m_blank_, e_blank_ = _blank_at(m_ptr, e_ptr, later, plane)
        m_label_, e_label_ = _label_at(m_ptr, e_ptr, later, plane, l, labelled)
        m_next_, e_next_ = _label_at(m_ptr, e_ptr, later, plane, l + 1, followed)
        tl.store(row_ptr + tl.cast((t + 1) * 2, tl.int64) * plane + l, stays, mask=inside)
        tl.store(row_ptr + tl.cast((t + 1) * 2 + 1, tl.int64) * plane + l, from_blank, mask=inside)
        tl.store(number_ptr + tl.cast((t + 1) * 2, tl.int64) * plane + l, from_label, mask=inside)
        if PER_GAP:
            tl.store(number_ptr + tl.cast((t + 1) * 2 + 1, tl.int64) * plane + l, from_next, mask=inside)
        tl.store(power_ptr + tl.cast(t + 1, tl.int64) * plane + l, power, mask=inside)
        chunk = tl.cast(t // CHUNK, tl.int64)
        is_kept = ((t + 1) % (CHUNK * KEEP) == 0) | (i == 0)
        kept, blanks, going = kept_ptr + chunk // KEEP * A * R, from_blank.to(DT), stays.to(DT)
        if SLOTS:
            dead_, pair_ = _dead_at(dead_ptr, later)
            if TILED == 0 and ((t + 1) % CHUNK == 0) & (i > 0):
                old = _token_of(token_ptr + (chunk + 1) * room, tl.load(size_ptr + chunk + 1), v, SLOTS)
                new = _token_of(token_ptr + chunk * room, tl.load(size_ptr + chunk), v, SLOTS)
                states = _deal_anew(states, state_ptr, old, new, alive_ptr + (chunk + 1) * V, R, l, inside)
        if TILED:
            some, some_own = tl.zeros((TOKENS, l.shape[0]), DT), tl.zeros((TOKENS, l.shape[0]), DT)
            size, list_ptr = A, token_ptr
            if SLOTS:
                size, list_ptr = tl.load(size_ptr + chunk), token_ptr + chunk * room
            for first in range(0, size, TOKENS):
                token = _token_of(list_ptr, size, first + v, SLOTS)
                at = token[:, None].to(tl.int64) * R + l[None, :]
                stood = (token >= 0) & (token * 0 + i > 0)
                if SLOTS and (t + 1) % CHUNK == 0:
                    stood = stood & (tl.load(alive_ptr + (chunk + 1) * V + token, mask=stood, other=0) != 0)
                usual = (token >= 0)[:, None] & inside[None, :] & ((first + v)[:, None] != following[None, :])
                states = tl.load(state_ptr + at, mask=usual & stood[:, None], other=0.0)
                states = tl.where(usual, blanks[None, :] + going[None, :] * states, 0.0)
                if SLOTS == 0 and is_kept:
                    tl.store(kept + at, states, mask=(token >= 0)[:, None] & inside[None, :])
                of_tile = _tile(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, A, t, token, frames, blank, SLOTS)
                states *= of_tile[:, None]
                tl.store(state_ptr + at, states, mask=usual)
                stands = (first + v)[:, None] == label[None, :]
                some += tl.where(stands, 0.0, states)
                some_own += tl.where(stands, states, 0.0)
            others, of_own = tl.sum(some, axis=0).to(tl.float64), tl.sum(some_own, axis=0).to(tl.float64)
        else:
            P_ = _slots_at(P_ptr, later, v)
            states = blanks[None, :] + going[None, :] * states
            own_goes_on = tl.where(has_own, blanks + going * own_goes_on, 0.0)
            if is_kept:
                all_states = tl.where(is_own, own_goes_on[None, :], tl.where(is_free, states, 0.0))
                tl.store(kept + place, all_states, mask=(v < A)[:, None] & inside[None, :])
            states = tl.where(is_free, P[:, None] * states, 0.0)
            own_goes_on *= (m_label * power_of(e_label)).to(DT)
            P = P_
            others = tl.sum(states, axis=0).to(tl.float64)
            of_own = own_goes_on.to(tl.float64)
        if SLOTS:
            others += dead * from_blank + pair * from_later
            dead, pair = dead_, pair_
        entered, entered_power = tl.gather(from_label, behind, 0), tl.gather(power, behind, 0)
        entered = tl.where(followed, m_next * entered, 0.0)
        nothing = (from_blank == 0) & (from_label == 0)
        if PER_GAP:
            nothing = nothing & (from_next == 0)
        power = tl.where(nothing & (entered > 0), entered_power + e_next, power)
        e_goes = entered_power - power + e_next
        most = tl.maximum(tl.maximum(e_label, e_blank), e_goes)
        offset = tl.where(closed & (most < -500) & (nothing == 0), most, 0)
        goes_on = entered * power_of(e_goes - offset)
        stays_blank = m_blank * power_of(e_blank - offset) * from_blank
        somewhere = stays_blank + p * (others + of_own)
        own = stays_blank + p * others + m_label * power_of(e_label - offset) * from_label
        from_later = from_blank
        if PER_GAP:
            to_next = tl.where(opens, m_next * power_of(e_next) * from_next, 0.0)
            from_label = own + is_other * (p * to_next + goes_on)
            from_next = somewhere + to_next
            from_blank = somewhere + p * to_next + goes_on
        else:
            from_label = own + is_other * goes_on
            from_blank = somewhere + goes_on
        power += offset
        some = tl.where(from_blank > 0, from_blank, from_label)
        shift = tl.where(some > 0, tl.maximum(exponent_of(some), -100), 0)
        lowered = power_of(-shift)
        from_blank, from_label = from_blank * lowered, from_label * lowered
        if PER_GAP:
            from_next *= lowered
        power += shift
        stays = rest * lowered
        from_later *= stays
        m_blank, e_blank, m_label, e_label, m_next, e_next = m_blank_, e_blank_, m_label_, e_label_, m_next_, e_next_


@triton.jit
def _then(a, b, c, d):
    """First x -> a x + b, then x -> c x + d."""
    return a * c, b * c + d


@triton.jit
def _states(P, row_ptr, t, l, inside, rest, is_label, masked, first, plane, DT: tl.constexpr):
    """The states of tokens after frames t, (frames, tokens, rows), of which `first` is before the first frame."""
    rows = row_ptr + t.to(tl.int64)[:, None] * 3 * plane + l[None, :]
    stays = (tl.load(rows, mask=inside, other=0.0) * rest[None, :]).to(DT)
    begun = tl.load(rows + plane, mask=inside, other=0.0).to(DT)
    without = tl.load(rows + 2 * plane, mask=inside, other=0.0).to(DT)
    # What stays 0 must not grow without bound: 0 times that would be NaN.
    goes_on = tl.where(masked[None, :, :], 0.0, P[:, :, None] * stays[:, None, :])
    begins = P[:, :, None] * tl.where(is_label[None, :, :], without[:, None, :], begun[:, None, :])
    begins = tl.where(masked[None, :, :], 0.0, begins)
    is_first = tl.arange(0, t.shape[0]) == 0
    begins += tl.where(is_first[:, None, None], goes_on * first[None, :, :], 0.0)
    _, states = tl.associative_scan((goes_on, begins), 0, _then)
    return states


@triton.jit
def _before(P, row_ptr, t, l, inside, rest, is_label, masked, first, plane, DT: tl.constexpr):
    """The same before frames t; P: of the frames before."""
    is_first = (tl.arange(0, t.shape[0]) == 0)[:, None]
    rows = row_ptr + (t.to(tl.int64)[:, None] - 1) * 3 * plane + l[None, :]
    inside = inside & (is_first == 0)
    stays = (tl.load(rows, mask=inside, other=0.0) * rest[None, :]).to(DT)
    begun = tl.load(rows + plane, mask=inside, other=0.0).to(DT)
    without = tl.load(rows + 2 * plane, mask=inside, other=0.0).to(DT)
    goes_on = tl.where(masked[None, :, :], 0.0, P[:, :, None] * stays[:, None, :])
    begins = P[:, :, None] * tl.where(is_label[None, :, :], without[:, None, :], begun[:, None, :])
    begins = tl.where(masked[None, :, :], 0.0, begins)
    begins = tl.where(is_first[:, :, None], first[None, :, :], begins)
    _, states = tl.associative_scan((goes_on, begins), 0, _then)
    return states


@triton.jit
def _follows(next_P, back_ptr, t, end, l, inside, masked, of_last, plane, DT: tl.constexpr):
    """What follows from tokens after frames t, of which `of_last` is after frame `end`. next_P: of the frames after."""
    rows = back_ptr + (t.to(tl.int64)[:, None] + 1) * 2 * plane + l[None, :]
    stays = tl.load(rows, mask=inside, other=0.0).to(DT)
    blanks = tl.load(rows + plane, mask=inside, other=0.0).to(DT)
    goes_on = tl.where(masked[None, :, :] | (t >= end)[:, None, None], 0.0, next_P[:, :, None] * stays[:, None, :])
    follows = tl.where((t == end)[:, None, None], of_last[None, :, :], blanks[:, None, :])
    follows = tl.where(masked[None, :, :] | (inside == 0)[:, None, :], 0.0, follows)
    _, follows = tl.associative_scan((goes_on, follows), 0, _then, reverse=True)
    return follows


@triton.jit
def _some(x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, P_ptr, A, t, token, frames, blank, SLOTS: tl.constexpr):
    """The probabilities of tokens at frames t, (frames, tokens)."""
    if SLOTS:
        return some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t, token, frames)
    else:
        is_token = ((token >= 0) & (token != blank))[None, :]
        mask = ((t >= 0) & (t < frames))[:, None] & is_token
        return tl.load(P_ptr + t.to(tl.int64)[:, None] * A + token[None, :], mask=mask, other=0.0)


@triton.jit
def _is_alive(alive_ptr, chunk, V, token, SLOTS: tl.constexpr):
    if SLOTS:
        return tl.load(alive_ptr + tl.cast(chunk, tl.int64) * V + token, mask=token >= 0, other=0) != 0
    else:
        return token >= 0


@triton.jit
def _place_of(token, token_ptr, size_ptr, room, chunk, ALL: tl.constexpr, SLOTS: tl.constexpr):
    """The slots of tokens in a chunk, or -1."""
    if SLOTS:
        i = tl.arange(0, ALL)
        there = tl.load(token_ptr + tl.cast(chunk, tl.int64) * room + i, mask=i < tl.load(size_ptr + chunk), other=-1)
        return tl.max(tl.where(token[:, None] == there[None, :], i[None, :], -1), axis=1)
    else:
        return token


@triton.jit
def chunk_posteriors(
    x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, P_ptr, A, width, token_ptr, size_ptr, alive_ptr, room, tiled,
    row_ptr, number_ptr, power_ptr, kept_ptr, back_ptr, back_number_ptr, back_power_ptr, back_kept_ptr, begun_ptr, z, z_power,
    chunk, frames, count, labels_ptr, labels_u, weight_ptr, weight_s, V, blank, token, R,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    SLOTS: tl.constexpr, INSERTED: tl.constexpr,
):  # fmt: skip
    """The posteriors of tokens in a chunk, (CHUNK, tokens); with INSERTED what begins is added to begun_ptr, (R,).

    tiled: nothing was kept, so all is made again from the ends of the utterance."""
    DT: tl.constexpr = tl.float64 if EXACT else tl.float32
    k = tl.arange(0, CHUNK)
    t = chunk * CHUNK + k
    plane = frames.to(tl.int64) * 0 + R
    result = tl.zeros((CHUNK, token.shape[0], ROWS), DT)
    end = tl.minimum(chunk * CHUNK + CHUNK, frames) - 1
    first_chunk, last_chunk = chunk // KEEP * KEEP, (frames - 1) // CHUNK
    last_chunk = tl.where(tiled > 0, last_chunk, tl.minimum(first_chunk + KEEP - 1, last_chunk))
    first_chunk = tl.where(tiled > 0, 0, first_chunk)
    kept_at = _place_of(token, token_ptr, size_ptr, room, first_chunk, ALL, SLOTS)
    back_at = _place_of(token, token_ptr, size_ptr, room, last_chunk, ALL, SLOTS)
    P = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, t, token, frames, blank, SLOTS)
    next_P = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, t + 1, token, frames, blank, SLOTS)
    for start in range(0, count + 1, ROWS):
        l = start + tl.arange(0, ROWS)
        label, following, p, rest, _, _ = rows_of(
            labels_ptr, labels_u, weight_ptr, weight_s, l, count, V, blank, PER_GAP
        )
        is_label, masked = token[:, None] == label[None, :], token[:, None] == following[None, :]
        exists = (l <= count)[None, :]
        inside = (t < frames)[:, None] & exists
        # Forward, from what was kept.
        place = (tl.cast(first_chunk, tl.int64) // KEEP * A + kept_at)[:, None] * plane + l[None, :]
        first = tl.load(kept_ptr + place, mask=(kept_at >= 0)[:, None] & exists, other=0.0)
        first = tl.where(tiled > 0, 0.0, first)
        for c in range(first_chunk, chunk):
            there = c * CHUNK + k
            of_there = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, there, token, frames, blank, SLOTS)
            states = _states(
                of_there,
                row_ptr,
                there,
                l,
                (there < frames)[:, None] & exists,
                rest,
                is_label,
                masked,
                first,
                plane,
                DT,
            )
            first = tl.sum(tl.where((k == CHUNK - 1)[:, None, None], states, 0.0), axis=0)
            first = tl.where(_is_alive(alive_ptr, c, V, token, SLOTS)[:, None], first, 0.0)
        states = _states(P, row_ptr, t, l, inside, rest, is_label, masked, first, plane, DT)
        # Backward: after frame t a token goes on in frame t + 1.
        place = (tl.cast(last_chunk, tl.int64) // KEEP * A + back_at)[:, None] * plane + l[None, :]
        of_last = tl.load(back_kept_ptr + place, mask=(back_at >= 0)[:, None] & exists, other=0.0)
        of_last = tl.where(tiled > 0, tl.where(l == count, 1.0, tl.zeros((ROWS,), DT))[None, :], of_last)
        for c in range(chunk, last_chunk):
            there = (chunk + last_chunk - c) * CHUNK + k
            after = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, there + 1, token, frames, blank, SLOTS)
            here = (there < frames)[:, None] & exists
            some_end = tl.minimum((chunk + last_chunk - c + 1) * CHUNK, frames) - 1
            follows = _follows(after, back_ptr, there, some_end, l, here, masked, of_last, plane, DT)
            of_first = tl.sum(tl.where((k == 0)[:, None, None], follows, 0.0), axis=0)
            of_first = tl.where(_is_alive(alive_ptr, chunk + last_chunk - c, V, token, SLOTS)[:, None], of_first, 0.0)
            now = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, there, token, frames, blank, SLOTS)
            now = tl.sum(tl.where((k == 0)[:, None], now, 0.0), axis=0)
            rows = back_ptr + tl.cast((chunk + last_chunk - c) * CHUNK, tl.int64) * 2 * plane + l
            stays = tl.load(rows, mask=l <= count, other=0.0).to(DT)
            blanks = tl.load(rows + plane, mask=l <= count, other=0.0).to(DT)
            of_last = blanks[None, :] + stays[None, :] * (now[:, None] * of_first)
        follows = _follows(next_P, back_ptr, t, end, l, inside, masked, of_last, plane, DT)
        numbers = (t.to(tl.int64)[:, None] + 1) * plane + l[None, :]
        share = shares(power_ptr, back_power_ptr, numbers, inside, z, z_power)
        of_state = (share if EXACT else tl.minimum(share, 1e38)).to(DT)[:, None, :]
        result += states * follows * of_state
        from_blank = tl.load(back_ptr + numbers + (t.to(tl.int64)[:, None] + 2) * plane, mask=inside, other=0.0)
        numbers_at = number_ptr + (t.to(tl.int64)[:, None] + 1) * 3 * plane + l[None, :]
        backs = back_number_ptr + (t.to(tl.int64)[:, None] + 1) * 2 * plane + l[None, :]
        own = tl.load(numbers_at + plane, mask=inside, other=0.0) * (tl.load(backs, mask=inside, other=0.0) * share)
        result += tl.where(is_label[None, :, :], own.to(DT)[:, None, :], 0.0)
        if SLOTS == 0:
            of_blank = tl.load(numbers_at, mask=inside, other=0.0).to(tl.float64) * from_blank * share
            result += tl.where((token == blank)[None, :, None], of_blank.to(DT)[:, None, :], 0.0)
        if PER_GAP:
            of_next = tl.load(numbers_at + 2 * plane, mask=inside, other=0.0)
            of_next = of_next * (tl.load(backs + plane, mask=inside, other=0.0) * share)
            result += tl.where(masked[None, :, :], of_next.to(DT)[:, None, :], 0.0)
        if INSERTED:  # what begins is p times the sum of the row, but for what stands on the token
            last_P = _some(x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, width, t - 1, token, frames, blank, SLOTS)
            states = _before(last_P, row_ptr, t, l, inside, rest, is_label, masked, first, plane, DT)
            rows = row_ptr + t.to(tl.int64)[:, None] * 3 * plane + l[None, :]
            again = (tl.load(rows, mask=inside, other=0.0) * p[None, :]).to(DT)
            begun = tl.load(rows + plane, mask=inside, other=0.0).to(DT)
            without = tl.load(rows + 2 * plane, mask=inside, other=0.0).to(DT)
            begins = tl.where(is_label[None, :, :], without[:, None, :], begun[:, None, :]) - again[:, None, :] * states
            begins = tl.where(masked[None, :, :], 0.0, begins * P[:, :, None] * follows * of_state)
            amount = tl.sum(tl.sum(begins.to(tl.float64), axis=0), axis=0)
            old = tl.load(begun_ptr + l, mask=l <= count, other=0.0)
            tl.store(begun_ptr + l, old + amount, mask=l <= count)
    return tl.sum(result, axis=2)


@triton.jit
def shares(power_ptr, back_power_ptr, place, inside, z, z_power):
    """What numbers before and after frames are multiplied by to be posteriors; 0 outside."""
    powers = tl.load(power_ptr + place, mask=inside, other=0) + tl.load(back_power_ptr + place, mask=inside, other=0)
    return tl.where(inside, power_of(tl.minimum(powers - z_power, 400)) / z, 0.0)


@triton.jit
def row_posteriors(
    dead_ptr, row_ptr, number_ptr, power_ptr, back_ptr, back_number_ptr, back_power_ptr, begun_ptr, m_ptr, e_ptr, share_ptr,
    z, z_power, chunk, frames, count, labels_ptr, labels_u, weight_ptr, weight_s, V, blank, R,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, INSERTED: tl.constexpr,
):  # fmt: skip
    """Of the frames of a chunk, share (T, 3): the posterior of a dead token that begins, over its probability; of one that stands
    in this frame and the next, over both; of the blank. With INSERTED begun_ptr, (R,), gets what slots do not begin."""
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    plane = frames.to(tl.int64) * 0 + R
    alone, pairs, blanks = (
        tl.zeros((CHUNK,), tl.float64),
        tl.zeros((CHUNK,), tl.float64),
        tl.zeros((CHUNK,), tl.float64),
    )
    at = t.to(tl.int64)[:, None]
    for start in range(0, count + 1, ROWS):
        l = start + tl.arange(0, ROWS)
        _, _, p, _rest, differs, opens = rows_of(
            labels_ptr, labels_u, weight_ptr, weight_s, l, count, V, blank, PER_GAP
        )
        exists = (l <= count)[None, :]
        inside = (t < frames)[:, None] & exists
        goes_on = (t + 1 < frames)[:, None] & exists
        share = shares(power_ptr, back_power_ptr, (at + 1) * plane + l[None, :], inside, z, z_power)
        raised = tl.load(row_ptr + at * 3 * plane + l[None, :], mask=inside, other=0.0).to(tl.float64)
        begun = tl.load(row_ptr + (at * 3 + 1) * plane + l[None, :], mask=inside, other=0.0).to(tl.float64)
        from_blank = tl.load(back_ptr + (at * 2 + 3) * plane + l[None, :], mask=inside, other=0.0).to(tl.float64)
        stays = tl.load(back_ptr + (at * 2 + 2) * plane + l[None, :], mask=inside, other=0.0).to(tl.float64)
        later = tl.load(back_ptr + (at * 2 + 5) * plane + l[None, :], mask=goes_on, other=0.0).to(tl.float64)
        of_one, of_two = begun * from_blank * share, begun * (stays * later) * share
        alone += tl.sum(of_one, axis=1)
        pairs += tl.sum(of_two, axis=1)
        of_blank = tl.load(number_ptr + (at + 1) * 3 * plane + l[None, :], mask=inside, other=0.0)
        blanks += tl.sum(of_blank * from_blank * share, axis=1)
        if INSERTED:
            begins = tl.zeros((CHUNK, ROWS), tl.float64)
            if SLOTS:
                dead = tl.load(dead_ptr + t * 2, mask=t < frames, other=0.0)
                pair = tl.load(dead_ptr + t * 2 + 1, mask=t < frames, other=0.0)
                stood = (t > 0) & (t < frames)
                last_pair = tl.load(dead_ptr + t * 2 - 1, mask=stood, other=0.0)
                last = tl.load(row_ptr + (at * 3 - 2) * plane + l[None, :], mask=stood[:, None] & exists, other=0.0)
                again = p[None, :] * raised * last * last_pair[:, None] * from_blank * share
                begins += of_one * dead[:, None] + of_two * pair[:, None] - again
            if PER_GAP:
                without = tl.load(row_ptr + (at * 3 + 2) * plane + l[None, :], mask=inside, other=0.0).to(tl.float64)
                known = inside & (t > 0)[:, None]
                stands = tl.load(number_ptr + (at * 3 + 2) * plane + l[None, :], mask=known, other=0.0)
                leaves = without - p[None, :] * raised * stands + tl.where(differs[None, :], begun - without, 0.0)
                followed = inside & (l < count)[None, :]
                m_next = tl.load(m_ptr + at * plane + l[None, :] + 1, mask=followed, other=0.0).to(tl.float64)
                e_next = tl.load(e_ptr + at * plane + l[None, :] + 1, mask=followed, other=NO_SCORE)
                from_next = tl.load(
                    back_number_ptr + (at * 2 + 3) * plane + l[None, :], mask=inside & opens[None, :], other=0.0
                )
                begins += tl.where(opens[None, :], m_next * power_of(e_next) * leaves * from_next * share, 0.0)
            tl.store(begun_ptr + l, tl.sum(begins, axis=0), mask=l <= count)
    tl.store(share_ptr + t * 3, alone.to(tl.float32), mask=t < frames)
    tl.store(share_ptr + t * 3 + 1, pairs.to(tl.float32), mask=t < frames)
    tl.store(share_ptr + t * 3 + 2, blanks.to(tl.float32), mask=t < frames)
