"""Probabilities of tokens, and which of them have states of their own where inserted tokens last, on the CPU.

A token that stands for three frames does so at P_t(v) * P_t+1(v) * P_t+2(v), times (1 - p)^2. Where that is next to nothing in a
chunk of frames, the token is *dead* there: it may last for two frames, which is summed over all dead tokens at once, but not for
three. The labels of an utterance are never dead. docs/algorithm.md, section 8, says what is lost. Small vocabularies, and all of
float64, have no dead tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from starseq.emissions.alive import CHUNK, DENSE
from starseq.emissions.vocabulary_numba import BLOCK
from starseq.lattice.elementary_numba import exp, jit, jit_outer, maximum
from starseq.lattice.lanes_numba import every, largest, load, select, store, total, width
from starseq.lattice.lasting_numba import Posteriors, Slots

_BLOCK = 256
_NORMAL, _SMALLEST = 1e-30, 1e-250


@jit
def exponentials(row: Any, out: Any, like: Any) -> Any:
    """out = e^(row - top); returns top and the sum of out."""
    top = maximum(row, like)
    base = top if top > -np.inf else 0.0
    less, result = every(base, like), 0.0
    for start in range(0, row.size, BLOCK):
        block, to, some = row[start : start + BLOCK], out[start : start + BLOCK], every(0.0, like)
        for i in range(0, block.size, width(like)):
            x = exp(load(block, i, -np.inf, like) - less)
            store(x, to, i)
            some = some + x
        result += np.float64(total(some))
    return base, result


@jit
def probability(x: Any, power: Any, top: Any, whole: Any) -> Any:
    """Of one token, whose score is x and e^(x - top) is `power`; NaN where float64 has too few digits for it."""
    if power >= _NORMAL:
        return np.float64(power) / whole
    if x == -np.inf or whole == 0.0:
        return 0.0
    exact = math.exp(np.float64(x) - top) / whole
    return exact if exact > _SMALLEST else np.nan


@jit
def _find_alive(
    one: Any, two: Any, three: Any, least: Any, mark: Any, seen: Any, tokens: Any, count: Any, like: Any
) -> Any:
    """Appends the tokens at which one * two * three is above `least` and `seen` is not `mark` yet."""
    for start in range(0, one.size, _BLOCK):
        a, b, c = one[start : start + _BLOCK], two[start : start + _BLOCK], three[start : start + _BLOCK]
        top = every(0.0, like)
        for i in range(0, a.size, width(like)):
            x = load(a, i, 0.0, like) * load(b, i, 0.0, like) * load(c, i, 0.0, like)
            top = select(x > top, x, top)
        if not np.float64(largest(top)) >= 0.99 * least:
            continue
        for i in range(a.size):
            v = start + i
            product = np.float64(a[i]) * np.float64(b[i]) * np.float64(c[i])
            if product > least and seen[v] != mark and count < tokens.size:
                seen[v] = mark
                tokens[count] = v
                count += 1
    return count


@jit
def _sum_of(a: Any, b: Any, pairs: Any, like: Any) -> Any:
    """The sum of a, or with `pairs` of a * b."""
    result = 0.0
    for start in range(0, a.size, BLOCK):
        one, two, some = a[start : start + BLOCK], b[start : start + BLOCK], every(0.0, like)
        for i in range(0, one.size, width(like)):
            x = load(one, i, 0.0, like)
            some = some + (x * load(two, i, 0.0, like) if pairs else x)
        result += np.float64(total(some))
    return result


class Dealt(NamedTuple):
    """The slots of an utterance, and what the gradient needs besides."""

    slots: Slots
    tokens: Any  # (C, A) int32
    after: Any  # (C, A) where a slot's token stands in the next chunk, or -1
    rest: Any  # a flat array with a row a frame, see `row_of`: e^(score - top) of dead tokens, 0 at all others
    start: Any
    stride: Any
    vocabulary: Any
    inverse: Any  # (T,) by what these are multiplied
    norm: Any  # the sum of the log-sums of all frames


@jit_outer  # not `jit`: an array that is returned must be counted
def row_of(flat: Any, start: Any, stride: Any, t: Any, size: Any) -> Any:
    """Row t of those that lie `stride` apart in a flat array."""
    return flat[start + t * stride : start + t * stride + size]


@jit_outer
def deal(
    flat: Any, start: Any, stride: Any, frames: Any, vocabulary: Any, labels: Any, blank: Any, alive: Any, rest: Any,
    rest_start: Any, rest_stride: Any, like: Any,
) -> Any:  # fmt: skip
    """The probabilities of an utterance's frames, dealt to slots and to the rest.

    flat: the scores, a row a frame. labels: the distinct ones. alive: see ALIVE. rest: as flat, to be filled.
    """
    known, dense = labels.size, like.itemsize == 8 or vocabulary <= DENSE
    tops, sums, inverse, norm = np.empty(frames), np.empty(frames), np.empty(frames), 0.0
    P_blank, P_label = np.empty(frames), np.empty((frames, known))
    for t in range(frames):
        row = row_of(flat, start, stride, t, vocabulary)
        out = row_of(rest, rest_start, rest_stride, t, vocabulary)
        tops[t], sums[t] = exponentials(row, out, like)
        inverse[t] = 1.0 / sums[t] if sums[t] != 0.0 else 0.0
        norm += tops[t] + math.log(sums[t]) if sums[t] != 0.0 else 0.0
        P_blank[t] = probability(row[blank], out[blank], tops[t], sums[t])
        for i in range(known):
            P_label[t, i] = probability(row[labels[i]], out[labels[i]], tops[t], sums[t])
        out[blank] = 0.0
        for i in range(known):
            out[labels[i]] = 0.0
    chunks = max(1, (frames + CHUNK - 1) // CHUNK)
    tokens = np.empty(
        (chunks, vocabulary if dense else min(vocabulary, known + int((CHUNK + 2) / alive ** (1 / 3)))), np.int32
    )
    count, seen, place = np.empty(chunks, np.int64), np.zeros(vocabulary, np.int32), np.full(vocabulary, -1, np.int32)
    for v in labels:
        seen[v] = -1
    seen[blank] = -1
    for c in range(chunks):
        n = known
        for i in range(known):
            tokens[c, i] = labels[i]
        if dense:
            for v in range(vocabulary):
                if seen[v] == 0:
                    tokens[c, n] = v
                    n += 1
        else:
            for t in range(max(c * CHUNK - 2, 0), min((c + 1) * CHUNK, frames - 2)):
                least = alive * sums[t] * sums[t + 1] * sums[t + 2]
                one = row_of(rest, rest_start, rest_stride, t, vocabulary)
                two = row_of(rest, rest_start, rest_stride, t + 1, vocabulary)
                three = row_of(rest, rest_start, rest_stride, t + 2, vocabulary)
                n = _find_alive(one, two, three, least, c + 1, seen, tokens[c], n, like)
        count[c] = n
    most = max(1, count.max())
    before, after = np.full((chunks, most), -1, np.int32), np.full((chunks, most), -1, np.int32)
    P = np.empty((frames, most), like.dtype)
    for c in range(chunks):
        for j in range(count[c]):
            before[c, j] = j if j < known or dense else place[tokens[c, j]]
            if c > 0 and before[c, j] >= 0:
                after[c - 1, before[c, j]] = j
        if not dense:
            if c > 0:
                for j in range(known, count[c - 1]):
                    place[tokens[c - 1, j]] = -1
            for j in range(known, count[c]):
                place[tokens[c, j]] = j
        for t in range(c * CHUNK, min((c + 1) * CHUNK, frames)):
            row = row_of(rest, rest_start, rest_stride, t, vocabulary)
            for j in range(known):
                P[t, j] = P_label[t, j]
            for j in range(known, count[c]):
                P[t, j] = row[tokens[c, j]] * inverse[t]
                row[tokens[c, j]] = 0.0
    dead, pair = np.zeros(frames), np.zeros(frames)
    dealt = Dealt(
        Slots(CHUNK, count, before, P, P_blank, P_label, dead, pair), tokens, after, rest, rest_start, rest_stride, vocabulary,
        inverse, norm,
    )  # fmt: skip
    if not dense:
        for t in range(frames):
            row = row_of(rest, rest_start, rest_stride, t, vocabulary)
            dead[t] = _sum_of(row, row, False, like) * inverse[t]
            if t + 1 < frames:
                following = row_of(rest, rest_start, rest_stride, t + 1, vocabulary)
                pair[t] = _sum_of(row, following, True, like) * inverse[t] * inverse[t + 1]
        for c in range(1, chunks):
            t = c * CHUNK - 1
            for j in range(count[c - 1]):
                pair[t] += P[t, j] * _dead_at(dealt, t + 1, tokens[c - 1, j]) if after[c - 1, j] < 0 else 0.0
            for j in range(count[c]):
                pair[t] += P[t + 1, j] * _dead_at(dealt, t, tokens[c, j]) if before[c, j] < 0 else 0.0
    return dealt


@jit
def _dead_at(dealt: Dealt, t: Any, v: Any) -> Any:
    """The probability of a dead token."""
    return dealt.rest[dealt.start + t * dealt.stride + v] * dealt.inverse[t]


@jit_outer
def fill_gradient(dealt: Dealt, result: Posteriors, blank: Any, normalized: Any, grad: Any, like: Any) -> None:
    """The gradient in place of the rest: grad times P less the posteriors, or minus these."""
    slots, frames, size = dealt.slots, dealt.slots.dead.size, dealt.vocabulary
    known, own, inverse = slots.label.shape[1], 1.0 if normalized else 0.0, dealt.inverse
    _add_changes(dealt, result)
    sparse = False
    for t in range(frames):
        sparse |= slots.dead[t] > 0.0
    # Of the frames before and after, with what is dead in this one alone.
    before, after, nothing = np.zeros(size, like.dtype), np.zeros(size, like.dtype), np.empty(0, like.dtype)
    for t in range(frames):
        row, chunk = row_of(dealt.rest, dealt.start, dealt.stride, t, size), t // CHUNK
        if sparse:
            following = nothing
            if t + 1 < frames:
                following = row_of(dealt.rest, dealt.start, dealt.stride, t + 1, size)
                if (t + 1) % CHUNK == 0:
                    after[:] = following
                    for j in range(slots.count[chunk + 1]):
                        after[dealt.tokens[chunk + 1, j]] = slots.P[t + 1, j] / inverse[t + 1]
                    following = after
            if t > 0 and t % CHUNK == 0:
                for j in range(slots.count[chunk - 1]):
                    before[dealt.tokens[chunk - 1, j]] = slots.P[t - 1, j] / inverse[t - 1]
            _fill_dead(
                row, before, following, grad * inverse[t] * (own - result.dead[t]),
                grad * inverse[t] * inverse[t - 1] * result.pair[t - 1] if t > 0 else 0.0,
                grad * inverse[t] * inverse[t + 1] * result.pair[t] if t + 1 < frames else 0.0, like,
            )  # fmt: skip
        for j in range(slots.count[chunk]):
            posterior = result.slots[t, j] + (result.labels[t, j] if j < known else 0.0)
            row[dealt.tokens[chunk, j]] = grad * (own * slots.P[t, j] - posterior)
        row[blank] = grad * (own * slots.blank[t] - result.blank[t])


@jit
def _fill_dead(row: Any, before: Any, after: Any, alone: Any, with_before: Any, with_after: Any, like: Any) -> None:
    """row *= alone - with_before * before - with_after * after; `before` becomes what row was."""
    one, two, three = every(alone, like), every(with_before, like), every(with_after, like)
    for i in range(0, row.size, width(like)):
        x, y = load(row, i, 0.0, like), load(before, i, 0.0, like)
        factor = one - two * y
        if after.size:
            factor = factor - three * load(after, i, 0.0, like)
        store(x, before, i)
        store(x * factor, row, i)


@jit
def _add_changes(dealt: Dealt, result: Posteriors) -> None:
    """What stands for two frames in a slot that begins between them, or ends."""
    slots = dealt.slots
    for c in range(1, slots.count.size):
        t = c * CHUNK - 1
        for j in range(slots.count[c - 1]):
            if dealt.after[c - 1, j] < 0:
                share = _dead_at(dealt, t + 1, dealt.tokens[c - 1, j])
                result.slots[t, j] += result.pair[t] * slots.P[t, j] * share
        for j in range(slots.count[c]):
            if slots.before[c, j] < 0:
                result.slots[t + 1, j] += result.pair[t] * slots.P[t + 1, j] * _dead_at(dealt, t, dealt.tokens[c, j])
