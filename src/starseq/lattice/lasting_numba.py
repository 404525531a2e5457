"""Sums over graphs in which inserted tokens last, on the CPU, without logarithms: see `Gaps` and docs/algorithm.md, section 8.

A row keeps numbers for its blank, its label, the token of the next label, and its *dead* tokens together; and one for each of its
*slots*, the tokens that have states of their own (`starseq.emissions.slots_numba` chooses them). With r the sum of a row:

    slot v      P(v) * ((1 - p) * before + p * r),          without the label in r, if that is v
    dead        p * r * P(all dead), and (1 - p) times what stood on them, for one frame more
    blank       P(blank) * r

Slots are float32 for float32 logits; all else is float64. Each row has a power of two beside it. Slots change after every chunk of
frames; their states at the beginning of a chunk are kept, and made again on the way back.

What gets lost has less than 10^-300 of its row (a slot 10^-38). If that could matter, the log-sum is NaN: ask lasting_torch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from starseq.lattice.elementary_numba import OPTIONS, jit_outer
from starseq.lattice.lanes_numba import every, load, store, total, width
from starseq.numba_cache import kept

_BITS = 20  # a row's numbers are multiplied by 2^20 when they have become that small
_LOW, _UNIT = 2.0**-_BITS, 2.0**_BITS
_MOST = 5  # such steps at a time, for float32
_LARGE, _LARGE_SLOT = 1e280, 1e25  # of a sum backwards, times 10^-300 and 10^-38, is nothing

# Sums may be added up in any order; infinities and NaN stay as written. Otherwise as `elementary_numba.jit`.
_jit: Any = partial(kept, fastmath={"contract", "reassoc"}, _nrt=False, **OPTIONS)

BLANK, LABEL, NEXT, DEAD, SLOTS = range(5)
"""What a row's numbers are of; NEXT is the next label's token, inserted. SLOTS is the sum of all."""


PADDED = 16


class Rows(NamedTuple):
    """The rows of an utterance, and as many empty ones as make R a multiple of PADDED. Slots of labels come first, and are the
    same in all chunks."""

    last: Any  # the row in which paths end
    p: Any  # (R,) float64, the gap's weight
    rest: Any  # (R,) float64, 1 - p
    label: Any  # (R,) the slot of the row's label, or -1
    following: Any  # (R,) that of the next row's
    differs: Any  # (R,) float64, whether these differ
    next_open: Any  # (R,) float64, whether the next label's token may be inserted
    first: Any  # (L+1,) where the slot of a label finds its rows in the next two
    member: Any  # (N,) rows of which it is the label or the next label
    is_own: Any  # (N,) which of the two; if it is both, the next


class Slots(NamedTuple):
    """Probabilities of an utterance, and which tokens have slots."""

    chunk: int  # frames in which they stay the same
    count: Any  # (C,) how many a chunk has
    before: Any  # (C, A) where a slot's token stood in the chunk before, or -1
    P: Any  # (T, A)
    blank: Any  # (T,) float64
    label: Any  # (T, L) float64, the first slots again
    dead: Any  # (T,) float64, of all dead tokens
    pair: Any  # (T,) float64, of two frames' in a row: P(v) times P(v) a frame later, summed over the dead


class Kept(NamedTuple):
    """What forward leaves for backward."""

    numbers: Any  # (T+1, 5, R) float64: see BLANK
    power: Any  # (T+1, R): all numbers of a row, its slots as well, are multiplied by 2^(20 power)
    begun: Any  # (T, 2, R): p times the sum of the row before the frame; in the second without the row's own label
    raised: Any  # (T, R): by what all before the frame were multiplied first
    states: Any  # (C, A, R): slots at the beginning of each chunk
    block: Any  # (chunk+1, A, R): of the last chunk


@jit_outer
def room(frames: Any, rows: Any, width: Any, chunk: Any, wide: Any, narrow: Any) -> Any:
    """A Kept for so many frames, rows and slots, in two flat arrays of float64 and of what slots are. See `room_needed`."""
    chunks, block = max(1, (frames + chunk - 1) // chunk), min(chunk, frames) + 1
    a, b = (frames + 1) * 5 * rows, (frames + 1) * rows
    c, d, e = 2 * frames * rows, frames * rows, chunks * width * rows
    return Kept(
        wide[:a].reshape((frames + 1, 5, rows)), wide[a : a + b].view(np.int64).reshape((frames + 1, rows)),
        narrow[:c].reshape((frames, 2, rows)), narrow[c : c + d].reshape((frames, rows)),
        narrow[c + d : c + d + e].reshape((chunks, width, rows)),
        narrow[c + d + e : c + d + e + block * width * rows].reshape((block, width, rows)),
    )  # fmt: skip


@_jit
def room_needed(frames: Any, rows: Any, width: Any, chunk: Any) -> Any:
    """How many elements the two arrays of `room` have at least."""
    chunks, block = max(1, (frames + chunk - 1) // chunk), min(chunk, frames) + 1
    return 6 * (frames + 1) * rows, (3 * frames + (chunks + block) * width) * rows


@_jit
def forward(rows: Rows, slots: Slots, frames: Any, kept: Kept, scratch: Any, work: Any) -> Any:
    """log_z. scratch: (5, R) float64; work: (2, R) as the slots are."""
    size, numbers, power, pair = rows.p.size, kept.numbers, kept.power, 0.0
    begun, leaves, enters, label, following = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    numbers[0], power[0], begun[:], enters[:] = 0.0, 0, 0.0, 1.0
    numbers[0, BLANK, 0] = 1.0
    kept.block[0] = 0
    for t in range(frames):
        at, chunk = t % slots.chunk, t // slots.chunk
        if at == 0:
            if chunk > 0:
                _change_slots(slots, chunk, kept.block)
            copy(kept.block[0], kept.states[chunk])
        _raise(numbers[t], power, t, kept.raised[t], begun, enters)
        _of_labels(slots.label[t], rows, label, following)
        here, after, P_blank, P_dead = numbers[t], numbers[t + 1], slots.blank[t], slots.dead[t]
        for l in range(size):
            others = here[BLANK, l] + here[SLOTS, l] + here[DEAD, l]
            own, of_next, p = here[LABEL, l], here[NEXT, l], rows.p[l]
            leaves[l] = others + rows.differs[l] * own
            total = others + of_next + own
            after[BLANK, l] = P_blank * total
            after[DEAD, l] = p * total * P_dead + rows.rest[l] * begun[l] * pair
            after[NEXT, l] = rows.next_open[l] * following[l] * (rows.rest[l] * of_next + p * (leaves[l] + of_next))
            begun[l] = p * total
            kept.begun[t, 0, l] = p * total
            kept.begun[t, 1, l] = p * (others + of_next)
        after[LABEL, 0] = 0.0
        for l in range(1, size):
            after[LABEL, l] = label[l] * (here[LABEL, l] + leaves[l - 1] * enters[l])
        pair = slots.pair[t]
        advance(slots.count[chunk], rows, slots.P[t], kept.begun[t], kept.raised[t], kept.block, at, work)
        for l in range(size):
            after[SLOTS, l] = work[1, l]
    total = sum_of(kept, frames, rows.last)
    return -np.inf if total == 0.0 else math.log(total) + _BITS * math.log(2.0) * power[frames, rows.last]


@_jit
def sum_of(kept: Kept, t: Any, l: Any) -> Any:
    """Of row l after t frames."""
    total = 0.0
    for i in range(5):
        total += kept.numbers[t, i, l]
    return total


@_jit
def copy(values: Any, to: Any) -> None:
    """Rows of values to another place."""
    for i in range(values.shape[0]):
        for l in range(values.shape[1]):
            to[i, l] = values[i, l]


@_jit
def _of_labels(P: Any, rows: Rows, label: Any, following: Any) -> None:
    """The probabilities of each row's label and of the next row's."""
    for l in range(label.size):
        label[l] = P[rows.label[l]] if rows.label[l] >= 0 else 0.0
        following[l] = P[rows.following[l]] if rows.following[l] >= 0 else 0.0


@_jit
def _raise(here: Any, power: Any, t: Any, raised: Any, begun: Any, enters: Any) -> None:
    """Multiplies rows that have become small, or large by what entered. A row without a path has the power of the row before it."""
    size, lowest, highest = raised.size, 1.0, 1.0
    for l in range(size):
        total = here[0, l] + here[1, l] + here[2, l] + here[3, l] + here[4, l]
        raised[l] = 1.0
        lowest, highest = min(lowest, total if total > 0.0 else 1.0), max(highest, total)
    if lowest < _LOW or highest > _UNIT or t == 0:
        for l in range(size):
            total = here[0, l] + here[1, l] + here[2, l] + here[3, l] + here[4, l]
            steps = 0
            while 0.0 < total < _LOW and (steps < _MOST or here[SLOTS, l] == 0.0):
                steps += 1
                total *= _UNIT
            while total > _UNIT and steps > -50:
                steps -= 1
                total *= _LOW
            if steps:
                factor = _scale(steps)
                for i in range(5):
                    here[i, l] *= factor
                begun[l] *= factor
                raised[l] = 1.0 if here[SLOTS, l] == 0.0 else factor
                power[t, l] -= steps
            if total == 0.0 and l > 0:
                power[t, l] = power[t, l - 1]
        for l in range(1, size):
            enters[l] = _scale(power[t, l - 1] - power[t, l])
    for l in range(size):
        power[t + 1, l] = power[t, l]


_POWERS = 2.0 ** (_BITS * np.arange(-50.0, 51.0))


@_jit
def _scale(power: Any) -> Any:
    """2^(20 power), as far as float64 goes."""
    return _POWERS[max(0, min(100, power + 50))]


@_jit
def advance(count: Any, rows: Rows, P: Any, begun: Any, raised: Any, block: Any, at: Any, work: Any) -> None:
    """The slots one frame on, from block[at] to block[at+1]; work[1] becomes their sum by row."""
    size, before, after, some, of_own = raised.size, block[at], block[at + 1], begun[0], begun[1]
    stays, total_of = work[0], work[1]
    for l in range(size):
        stays[l], total_of[l] = raised[l] * rows.rest[l], 0.0
    for j in range(count):
        share, old, new = every(P[j], raised), before[j], after[j]
        for i in range(0, size, width(raised)):
            store(
                share * (load(old, i, 0.0, raised) * load(stays, i, 0.0, raised) + load(some, i, 0.0, raised)), new, i
            )
        if j + 1 < rows.first.size:
            for n in range(rows.first[j], rows.first[j + 1]):
                l = rows.member[n]
                new[l] = P[j] * (old[l] * stays[l] + of_own[l]) if rows.is_own[n] else 0.0
        for i in range(0, size, width(raised)):
            store(load(total_of, i, 0.0, raised) + load(new, i, 0.0, raised), total_of, i)


@_jit
def _change_slots(slots: Slots, chunk: Any, block: Any) -> None:
    """The slots of a chunk at its beginning, from those at the end of the one before."""
    for j in range(slots.count[chunk]):
        i = slots.before[chunk, j]
        for l in range(block.shape[2]):
            block[0, j, l] = block[slots.chunk, i, l] if i >= 0 else 0.0


class Posteriors(NamedTuple):
    """What backward adds to."""

    slots: Any  # (T, A)
    labels: Any  # (T, L), by the labels' slots
    blank: Any  # (T,)
    dead: Any  # (T,) of a dead token that begins, over its probability
    pair: Any  # (T,) of one that stands in this frame and the next, over both its probabilities
    inserted: Any  # (R,) tokens by gap, or (0,): not wanted


class _Back(NamedTuple):
    """What follows, and of what share of all, by row; (R,) float64 but for the last."""

    blank: Any  # from a blank; also from any other token, but for its own going on
    label: Any
    next: Any  # from the next label's token
    later: Any  # from a blank, a frame later
    share: Any  # times a number of `Kept` and one of these: the posterior
    enters: Any  # by what the row after this one is to be multiplied here
    of_label: Any  # probabilities of the frame's labels and next labels
    of_next: Any
    power: Any
    slots: Any  # (5, R): share; sum of all slots but that of the own label; that; how they stay; blank


class Watched(NamedTuple):
    """States of which the posteriors are wanted, one after each frame: all (T,), or all empty."""

    row: Any
    state: Any  # BLANK, LABEL, NEXT, or SLOTS + the slot
    posterior: Any  # to be filled in


@_jit
def backward(
    rows: Rows, slots: Slots, frames: Any, kept: Kept, scratch: Any, work: Any, betas: Any, result: Posteriors
) -> Any:  # fmt: skip
    """Adds up posteriors; whether nothing that matters was lost. scratch: (9, R) float64; work: (5, R), betas: (2, A, R)."""
    nobody = slots.count[:0]
    watched = Watched(nobody, nobody, slots.blank[:0])
    return watch_backward(rows, slots, frames, kept, scratch, work, betas, result, watched)


@_jit
def watch_backward(
    rows: Rows, slots: Slots, frames: Any, kept: Kept, scratch: Any, work: Any, betas: Any, result: Posteriors,
    watched: Watched,
) -> Any:  # fmt: skip
    """As `backward`; and posteriors of single states."""
    size, last = rows.p.size, rows.last
    back = _Back(
        scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5], scratch[6], scratch[7], scratch[8], work
    )
    for l in range(size):
        for i in range(scratch.shape[0]):
            scratch[i, l] = i == 5
        for i in range(work.shape[0]):
            work[i, l] = 0.0
    back.blank[last] = back.label[last] = 1.0
    final, side, good = (frames - 1) // slots.chunk, 0, True
    if frames > 0:
        for j in range(slots.count[final]):
            for l in range(size):
                betas[0, j, l] = l == last
    for t in range(frames - 1, -1, -1):
        at, chunk = t % slots.chunk, t // slots.chunk
        if chunk != final and at == slots.chunk - 1:
            _make_again(rows, slots, chunk, kept, work)
            _change_back(slots, chunk, betas[side], betas[1 - side], back.blank)
            side = 1 - side
        count, beta = slots.count[chunk], betas[side]
        good &= _shares(kept, t, frames, rows, back)
        if watched.row.size:
            watched.posterior[t] = _posterior_of(
                watched.row[t], watched.state[t], kept.numbers[t + 1], kept.block[at + 1], beta, back
            )
        _of_labels(slots.label[t], rows, back.of_label, back.of_next)
        _add_rows(rows, slots, kept, t, back, result)
        if result.inserted.size:
            _add_insertions(rows, slots, kept, t, back, beta, result.inserted)
        _add_slots(count, rows, slots.P[t], kept.block[at + 1], beta, back.slots, result.slots[t])
        P_blank, P_dead, pair = slots.blank[t], slots.dead[t], slots.pair[t]
        for l in range(size):
            p, dead = rows.p[l], P_dead * back.blank[l] + rows.rest[l] * pair * back.later[l]
            slot, own_slot = back.slots[1, l], back.slots[2, l]
            to_next = rows.next_open[l] * back.of_next[l] * back.next[l]
            goes_on = back.of_next[l] * back.label[l + 1] * back.enters[l] if l < last else 0.0
            stays = P_blank * back.blank[l]
            somewhere = stays + p * (slot + own_slot + dead)
            own = stays + p * (slot + dead) + back.of_label[l] * back.label[l]
            back.label[l] = own + rows.differs[l] * (p * to_next + goes_on)
            back.later[l] = back.blank[l]
            back.next[l] = somewhere + to_next
            back.blank[l] = somewhere + p * to_next + goes_on
        _lower(rows, back)
        follows, stays_slot = back.slots[4], back.slots[3]
        for j in range(count):
            one = beta[j]
            for i in range(0, size, width(one)):
                store(load(follows, i, 0.0, one) + load(stays_slot, i, 0.0, one) * load(one, i, 0.0, one), one, i)
            if j + 1 < rows.first.size:
                for n in range(rows.first[j], rows.first[j + 1]):
                    if not rows.is_own[n]:
                        one[rows.member[n]] = 0.0
    return good


@_jit
def _posterior_of(l: Any, state: Any, numbers: Any, slots: Any, beta: Any, back: _Back) -> Any:
    """Of one state of row l."""
    if state >= SLOTS:
        return np.float64(back.slots[0, l] * slots[state - SLOTS, l]) * np.float64(beta[state - SLOTS, l])
    after = back.blank[l] if state == BLANK else back.label[l] if state == LABEL else back.next[l]
    return back.share[l] * numbers[state, l] * after


@_jit
def _make_again(rows: Rows, slots: Slots, chunk: Any, kept: Kept, work: Any) -> None:
    """The states of a chunk from its first ones."""
    copy(kept.states[chunk], kept.block[0])
    for at in range(slots.chunk):
        t = chunk * slots.chunk + at
        advance(slots.count[chunk], rows, slots.P[t], kept.begun[t], kept.raised[t], kept.block, at, work[:2])


@_jit
def _change_back(slots: Slots, chunk: Any, old: Any, new: Any, blank: Any) -> None:
    """What follows the slots of a chunk at its end, from the same of the next chunk."""
    for j in range(slots.count[chunk]):
        for l in range(blank.size):
            new[j, l] = blank[l]
    for i in range(slots.count[chunk + 1]):
        j = slots.before[chunk + 1, i]
        if j >= 0:
            for l in range(blank.size):
                new[j, l] = old[i, l]


@_jit
def _shares(kept: Kept, t: Any, frames: Any, rows: Rows, back: _Back) -> Any:
    """By what products of numbers after frame t are posteriors. Whether nothing was lost that these would make large."""
    here, power, most, most_slot, last = kept.numbers[t + 1], kept.power[t + 1], 0.0, 0.0, rows.last
    z, z_power = 1.0 / sum_of(kept, frames, last), kept.power[frames, last]
    for l in range(last + 1):
        total = here[0, l] + here[1, l] + here[2, l] + here[3, l] + here[4, l]
        follows = back.blank[l] + back.label[l] + back.next[l]
        share = z * _scale(power[l] + np.int64(back.power[l]) - z_power) if total > 0.0 and follows > 0.0 else 0.0
        back.share[l] = share
        back.slots[0, l] = share * (kept.raised[t + 1, l] if t + 1 < frames else 1.0)
        most = max(most, share * follows)
        if rows.p[l] > 0.0:
            most_slot = max(most_slot, share * back.blank[l] / rows.p[l])
        if not share * follows < _LARGE:  # or NaN
            return False
    return most_slot < _LARGE_SLOT


@_jit
def _add_rows(rows: Rows, slots: Slots, kept: Kept, t: Any, back: _Back, result: Posteriors) -> None:
    """Posteriors of labels, blanks and dead tokens."""
    here, of_blank = kept.numbers[t + 1], 0.0
    for l in range(rows.p.size):
        share = back.share[l]
        of_blank += share * here[BLANK, l] * back.blank[l]
        if rows.label[l] >= 0:
            result.labels[t, rows.label[l]] += share * here[LABEL, l] * back.label[l]
        if rows.following[l] >= 0:
            result.labels[t, rows.following[l]] += share * here[NEXT, l] * back.next[l]
    result.blank[t] += of_blank
    if slots.dead[t] > 0.0 or slots.pair[t] > 0.0:
        for l in range(rows.p.size):
            begun = back.share[l] * kept.begun[t, 0, l] * _scale(kept.power[t, l] - kept.power[t + 1, l])
            result.dead[t] += begun * back.blank[l]
            result.pair[t] += begun * rows.rest[l] * back.later[l]


@_jit
def _add_insertions(
    rows: Rows, slots: Slots, kept: Kept, t: Any, back: _Back, beta: Any, inserted: Any
) -> None:  # fmt: skip
    """What begins in every gap."""
    at, chunk, before = t % slots.chunk, t // slots.chunk, kept.numbers[t]
    states, begun, raised = kept.block[at], kept.begun[t], kept.raised[t]
    for l in range(rows.p.size):
        p, share = rows.p[l], back.share[l] * _scale(kept.power[t, l] - kept.power[t + 1, l])
        if share == 0.0:
            continue
        others = before[BLANK, l] + before[SLOTS, l] + before[DEAD, l] + rows.differs[l] * before[LABEL, l]
        of_next = rows.next_open[l] * back.of_next[l] * p * others * back.next[l]
        of_dead = begun[0, l] * (slots.dead[t] * back.blank[l] + rows.rest[l] * slots.pair[t] * back.later[l])
        if t > 0 and slots.pair[t - 1] > 0.0:  # what stands already does not begin
            stood = kept.begun[t - 1, 0, l] * _scale(kept.power[t - 1, l] - kept.power[t, l])
            of_dead -= p * stood * slots.pair[t - 1] * back.blank[l]
        of_slots = 0.0
        for j in range(slots.count[chunk]):
            begins = begun[1 if j == rows.label[l] else 0, l] - p * raised[l] * states[j, l]
            of_slots += slots.P[t, j] * begins * beta[j, l]
        inserted[l] += share * (of_next + of_dead + of_slots)


@_jit
def _add_slots(count: Any, rows: Rows, P: Any, states: Any, beta: Any, work: Any, posteriors: Any) -> None:
    """Posteriors of slots. Their betas become the same times P; work[1] and work[2] the sums of these."""
    size, share, others, own = states.shape[1], work[0], work[1], work[2]
    for l in range(size):
        others[l] = own[l] = 0.0
    for j in range(count):
        one, state = beta[j], states[j]
        P_slot, posterior = every(P[j], one), every(0.0, one)
        for i in range(0, size, width(one)):
            x = load(one, i, 0.0, one)
            posterior = posterior + load(state, i, 0.0, one) * x * load(share, i, 0.0, one)
            store(P_slot * x, one, i)
        posteriors[j] += total(posterior)
        if j + 1 < rows.first.size:
            for n in range(rows.first[j], rows.first[j + 1]):
                l = rows.member[n]
                if rows.is_own[n]:
                    own[l], one[l] = one[l], 0.0
        for i in range(0, size, width(one)):
            store(load(others, i, 0.0, one) + load(one, i, 0.0, one), others, i)
        if j + 1 < rows.first.size:
            for n in range(rows.first[j], rows.first[j + 1]):
                if rows.is_own[n]:
                    one[rows.member[n]] = own[rows.member[n]]


@_jit
def _lower(rows: Rows, back: _Back) -> None:
    """As `_raise`, of what follows; and what the slots need of it."""
    size, lowest, highest = rows.p.size, 1.0, 1.0
    for l in range(size):
        some = back.blank[l] if back.blank[l] > 0.0 else back.label[l]
        lowest, highest = min(lowest, some if some > 0.0 else 1.0), max(highest, some)
        back.slots[3, l] = rows.rest[l]
    if lowest < _LOW or highest > _UNIT:
        for l in range(size - 1, -1, -1):
            some, steps = back.blank[l] if back.blank[l] > 0.0 else back.label[l], 0
            while 0.0 < some < _LOW and steps < _MOST:
                steps += 1
                some *= _UNIT
            while some > _UNIT and steps > -50:
                steps -= 1
                some *= _LOW
            if steps:
                factor = _scale(steps)
                back.blank[l] *= factor
                back.label[l] *= factor
                back.next[l] *= factor
                back.later[l] *= factor
                back.slots[3, l] *= factor
                back.power[l] -= steps
            if some == 0.0 and back.next[l] == 0.0 and l + 1 < size:
                back.power[l] = back.power[l + 1]
        for l in range(size - 1):
            back.enters[l] = _scale(np.int64(back.power[l + 1]) - np.int64(back.power[l]))
    for l in range(size):
        back.slots[4, l] = back.blank[l]
