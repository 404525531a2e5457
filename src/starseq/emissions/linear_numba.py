"""Probabilities of a label graph's arcs from logits, and the gradient back, on the CPU: as vocabulary_numba, without logarithms.

For logits that become probabilities by their softmax, and frames where these can be told from 0. Columns are exponentiated in
float64, so that one of e^-700 still counts; the rest of the vocabulary in its own precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from starseq.emissions.vocabulary_numba import AS_ENTERED, BLOCK, FRAMES, TINY, others_of
from starseq.lattice.elementary_numba import exp, exp_down, jit, jit_inline
from starseq.lattice.lanes_numba import (
    LANES,
    ROWS,
    alike,
    each,
    largest,
    load_each,
    load_lanes,
    load_rows,
    narrow,
    prefetch,
    select,
    spread,
    store,
    store_rows,
    total,
    turn,
    widen,
)
from starseq.lattice.scaled_numba import padded

_FEW = 1e4  # within, a float64 sum of stars less a part of itself is as good as a sum without that part
_LARGE = 1e250
_LINE = 16  # numbers that a cache fetches at once, or more

# Rows of the vocabulary are handled ROWS at a time, all that concerns single tokens and states FRAMES at a time: there a lane is a
# frame, so that lanes are full whatever the number of states, and a token is picked for all frames at once.
assert (FRAMES, ROWS) == (LANES, 4)


@jit_inline
def _announce(flat: Any, first: Any, vocabulary: Any) -> None:
    """Rows of an utterance may lie far apart: no processor guesses the next. In long ones it does."""
    for i in range(first, first + min(vocabulary, 512), _LINE):
        prefetch(flat, i)


@jit_inline
def _rows(t: Any, end: Any) -> Any:
    """Rows t, t+1, ...; the last one again for those that do not exist."""
    last = end - 1
    return t, min(t + 1, last), min(t + 2, last), min(t + 3, last)


@jit_inline
def _places(rows: Any, start: Any, stride_t: Any) -> Any:
    """Where these rows begin."""
    return (
        start + rows[0] * stride_t, start + rows[1] * stride_t, start + rows[2] * stride_t, start + rows[3] * stride_t,
    )  # fmt: skip


@jit_inline
def _of_each(values: Any, rows: Any, like: Any) -> Any:
    """The values of these rows, a lane for each."""
    return narrow(each((values[rows[0]], values[rows[1]], values[rows[2]], values[rows[3]])), like)


@jit_inline
def _top_of_rows(flat: Any, places: Any, begin: Any, end: Any) -> Any:
    """The largest of elements begin..end-1 of each row."""
    top = load_rows(flat, places, begin, end - begin, -np.inf)
    for i in range(begin + LANES, end, LANES):
        here = load_rows(flat, places, i, end - i, -np.inf)
        top = select(here > top, here, top)
    return largest(top)


@jit_inline
def _sum_rows(flat: Any, places: Any, begin: Any, end: Any, top: Any) -> Any:
    """The sums of exp(value - top) over those that are not `top`, and how many are. NaN is not `top`, and gets into the sum."""
    tops = spread(top)
    below, many = alike(0.0, tops), alike(0.0, tops)
    for i in range(begin, end, LANES):
        x = load_rows(flat, places, i, end - i, -np.inf)
        below = select(x == tops, below, below + exp_down(x - tops))
        many = select(x == tops, many + 1.0, many)
    return widen(total(below)), widen(total(many))


@jit_inline
def _sum_stars(
    flat: Any, start: Any, stride_t: Any, frames: Any, vocabulary: Any, blank: Any, top: Any, below: Any, many: Any, like: Any
) -> None:  # fmt: skip
    """Of each frame's tokens but blank: the largest score, the sum of those below it over e^largest, and how many are as large.

    Long rows are fetched once: they are summed by blocks, and what was summed before a larger score was met is made smaller.
    """
    top[:], below[:], many[:] = -np.inf, 0.0, 0.0
    for begin, end in ((0, blank), (blank + 1, vocabulary)):
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            for r in range(0, frames, ROWS):
                found = widen(_top_of_rows(flat, _places(_rows(r, frames), start, stride_t), first, last))
                former, smaller, equal = load_each(top, r), load_each(below, r), load_each(many, r)
                larger = found > former
                store(select(larger, found, former), top, r)
                store(select(larger, (smaller + equal) * exp(former - found), smaller), below, r)
                store(select(larger, 0.0, equal), many, r)
            for r in range(0, frames, ROWS):
                places = _places(_rows(r, frames), start, stride_t)
                more, also = _sum_rows(flat, places, first, last, narrow(load_each(top, r), like))
                store(load_each(below, r) + more, below, r)
                store(load_each(many, r) + also, many, r)


@jit_inline
def _at(i: Any) -> Any:
    """An index as one that cannot be negative: else each is asked whether it counts from the end."""
    return np.uint64(i)


@jit_inline
def _pick_rows(flat: Any, start: Any, stride_t: Any, frames: Any, tokens: Any, out: Any) -> None:
    """out[c, frame] = the score of token c."""
    for r in range(0, frames, ROWS):
        places = _places(_rows(r, frames), start, stride_t)
        for c in range(tokens.size):
            v, to = tokens[c], c * LANES + r
            out[_at(to)] = flat[_at(places[0] + v)]
            out[_at(to + 1)] = flat[_at(places[1] + v)]
            out[_at(to + 2)] = flat[_at(places[2] + v)]
            out[_at(to + 3)] = flat[_at(places[3] + v)]


@jit_inline
def _put_rows(values: Any, rows: Any, tokens: Any, flat: Any, places: Any) -> None:
    """The other way round: writes values[c, frame] to token c of these frames."""
    for c in range(tokens.size):
        v, start = tokens[c], c * LANES
        flat[_at(places[0] + v)] = values[_at(start + rows[0])]
        flat[_at(places[1] + v)] = values[_at(start + rows[1])]
        flat[_at(places[2] + v)] = values[_at(start + rows[2])]
        flat[_at(places[3] + v)] = values[_at(start + rows[3])]


@jit_inline
def _exp_columns(scores: Any, tops: Any, out: Any) -> None:
    """out = exp(scores - tops), and 0 for the column after the last."""
    for i in range(0, scores.size, LANES):
        store(exp(widen(load_lanes(scores, i)) - tops), out, i)
    store(alike(0.0, tops), out, scores.size)


@jit_inline
def _by_frame(values: Any, frames: Any, size: Any, out: Any, start: Any) -> None:
    """Turns values[state, frame] into rows of states, which are as long as `size`."""
    for s in range(0, size, LANES):
        turn(values, s * LANES, LANES, LANES, frames, out, start + s, size)


@jit_inline
def _by_state(rows: Any, start: Any, step: Any, frames: Any, states: Any, out: Any) -> None:
    """out[state, frame] from rows of states, which lie so many steps apart."""
    for s in range(0, states, LANES):
        turn(rows, start + s, step, frames, min(states - s, LANES), out, s * LANES, LANES)


@jit_inline
def _add_stars(
    powers: Any, left_out: Any, share: Any, blank: Any, star: Any, others: Any, inverse: Any, out: Any
) -> None:
    """out = P(blank) + share * P(star without what is left out). Only the largest token can hold more than half of the star."""
    for s in range(left_out.size):
        x = load_lanes(powers, left_out[s] * LANES)
        without = select(x == 1.0, others, star - x)
        store((blank + share[s] * without) * inverse, out, s * LANES)


@jit
def weigh_frames(
    begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, vocabulary: Any, b: Any, states: Any, columns: Any, stay: Any,
    enter: Any, star: Any, tops: Any, inverses: Any, stats: Any, picked: Any, powers: Any, chosen: Any, like: Any,
) -> Any:  # fmt: skip
    """The probabilities of the arcs of utterance b at frames begin..end-1; the logits of frame t are flat[start + t * stride_t :].

    stay, enter: flat, rows as sum_scaled reads them; stay is left alone where the loops are AS_ENTERED. star: the same, or empty
    where nobody asks. Also filled: tops, inverses (T,): a token's probability is exp(logit - top) * inverse. For scratch, of any
    shape: stats, 2 * FRAMES; picked, FRAMES * C of the logits' type; powers, FRAMES * (C + 1); chosen, 2 * FRAMES * padded(S).

    Returns whether all went well: else there is a frame with NaN, with an infinity, or whose tokens are too far apart.
    """
    count, blank, size, starred = columns.count[b], columns.blank[b], padded(states), columns.weight.size > 0
    token, blank_token, entering = (
        columns.token[b, :count],
        np.int64(columns.token[b, blank]),
        columns.enter[1, b, :states],
    )
    scores, power = picked.reshape(-1)[: count * LANES], powers.reshape(-1)[: (count + 1) * LANES]
    of_star, of_others, of_top = stats.reshape(-1)[:LANES], stats.reshape(-1)[LANES:], powers.reshape(-1)[:LANES]
    moves, loops = chosen.reshape(-1)[: size * LANES], chosen.reshape(-1)[size * LANES : 2 * size * LANES]
    moves[states * LANES :] = loops[states * LANES :] = 0.0
    for t in range(begin, min(end, begin + FRAMES)):
        _announce(flat, start + t * stride_t, vocabulary)
    for first in range(begin, end, FRAMES):
        place, number = start + first * stride_t, min(FRAMES, end - first)
        _sum_stars(flat, place, stride_t, number, vocabulary, blank_token, of_top, of_star, of_others, like)
        for t in range(first + FRAMES, min(first + 2 * FRAMES, end)):
            _announce(flat, start + t * stride_t, vocabulary)
        below, many = load_lanes(of_star, 0), load_lanes(of_others, 0)
        all_tokens = below + many
        store(below + (many - 1.0), of_others, 0)
        for r in range(number):
            if of_others[r] < TINY:
                row = flat[place + r * stride_t : place + r * stride_t + vocabulary]
                of_others[r] = others_of(row, blank_token, of_top[r], of_others[r], like)
        others, top = load_lanes(of_others, 0), load_lanes(of_top, 0)
        store(top, tops[first : first + number], 0)
        _pick_rows(flat, place, stride_t, number, token, scores)
        _exp_columns(scores, top, power)
        of_blank = load_lanes(power, blank * LANES)
        whole = all_tokens + of_blank
        inverse = 1.0 / whole
        store(whole, of_star, 0)
        store(inverse, inverses[first : first + number], 0)
        for r in range(number):
            if not (of_star[r] > 0.0 and of_star[r] < _LARGE):
                return False
        for s in range(states):
            store(load_lanes(power, entering[s] * LANES) * inverse, moves, s * LANES)
        _by_frame(moves, number, size, enter, first * size)
        if columns.loops == AS_ENTERED:
            continue
        if starred:
            left_out, share = columns.left_out[1, b, :states], columns.share[b, :states]
            _add_stars(power, left_out, share, of_blank, all_tokens, others, inverse, loops)
            _by_frame(loops, number, size, stay, first * size)
            if star.size:
                _add_stars(power, left_out, share, alike(0.0, inverse), all_tokens, others, inverse, loops)
                _by_frame(loops, number, size, star, first * size)
        else:
            for r in range(number):
                at = (first + r) * size
                stay[at : at + size] = power[blank * LANES + r] * inverses[first + r]
    return True


@jit_inline
def _fill_rows(flat: Any, places: Any, out_flat: Any, out_places: Any, vocabulary: Any, top: Any, factor: Any) -> None:
    """out = factor * exp(row - top), of each row."""
    tops, factors = spread(top), spread(factor)
    for i in range(0, vocabulary, LANES):
        x = load_rows(flat, places, i, vocabulary - i, 0.0)
        store_rows(exp_down(x - tops) * factors, out_flat, out_places, i, vocabulary - i)


@jit_inline
def _sum_posteriors(
    before: Any, after: Any, factor: Any, entering: Any, left_out: Any, share: Any, visits: Any, sums: Any
) -> Any:
    """sums[c, frame] = what the posteriors of column c's arcs are but for its probability (with `visits`, with it), less those of
    the stars that leave it out. Returns the same of all self-loops, and of all stars."""
    sums[:] = 0.0
    all_loops, all_stars, previous = alike(0.0, factor), alike(0.0, factor), alike(0.0, factor)
    for s in range(entering.size):
        here, now, column = load_lanes(before, s * LANES), factor * load_lanes(after, s * LANES), entering[s] * LANES
        loop = here * now
        if visits:
            store(load_lanes(sums, column) + loop, sums, column)
            continue
        store(load_lanes(sums, column) + previous * now, sums, column)
        all_loops = all_loops + loop
        if share.size:
            part, column = loop * share[s], left_out[s] * LANES
            store(load_lanes(sums, column) - part, sums, column)
            all_stars = all_stars + part
        previous = here
    return all_loops, all_stars


@jit
def _careful(
    r: Any, row: Any, top: Any, inverse: Any, grad: Any, whole: Any, factor: Any, before: Any, after: Any, entering: Any,
    left_out: Any, share: Any, power: Any, blank: Any, result: Any, out: Any,
) -> None:  # fmt: skip
    """A row where the stars weigh so much that a difference would lose digits: each column's sum is made without its own.

    r: its lane. result: what is to be written to the columns; blank's is there already. out: the row's gradient.
    """
    for c in range(result.size // LANES):
        if c != blank:
            posterior, previous = 0.0, 0.0
            for s in range(entering.size):
                here, now = before[s * LANES + r], factor * after[s * LANES + r]
                posterior += here * now * share[s] if left_out[s] != c else 0.0
                posterior += previous * now if entering[s] == c else 0.0
                previous = here
            result[c * LANES + r] = power[c * LANES + r] * (inverse * grad) * (1.0 - posterior)
    for v in range(row.size):
        out[v] = math.exp(row[v] - top) * (1.0 - whole) * (inverse * grad)


@jit
def gradient_frames(
    begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, out_flat: Any, out_start: Any, out_stride_t: Any,
    vocabulary: Any, b: Any, states: Any, columns: Any, grad: Any, alpha: Any, beta: Any, tops: Any, inverses: Any, factor: Any,
    picked: Any, powers: Any, sums: Any, terms: Any, weights: Any, like: Any,
) -> None:  # fmt: skip
    """The gradient of frames begin..end-1 of utterance b: grad * (P(v) - posterior(v)).

    alpha, beta, factor: as sum_scaled fills them. tops, inverses: as weigh_frames does. For scratch, of any shape: picked,
    FRAMES * C of the logits' type; powers and sums, FRAMES * (C + 1); terms, 2 * FRAMES * S; weights, 2 * FRAMES.
    """
    count, blank, visits, starred = (
        columns.count[b],
        columns.blank[b],
        columns.loops == AS_ENTERED,
        columns.weight.size > 0,
    )
    token, entering = columns.token[b, :count], columns.enter[1, b, :states]
    share = columns.share[b, :states] if starred else factor[:0]
    left_out = columns.left_out[1, b, :states] if starred else entering[:0]
    result, power = picked.reshape(-1)[: count * LANES], powers.reshape(-1)[: (count + 1) * LANES]
    by_column, flat_alpha, flat_beta = sums.reshape(-1)[: (count + 1) * LANES], alpha.reshape(-1), beta.reshape(-1)
    before, after = terms.reshape(-1)[: states * LANES], terms.reshape(-1)[states * LANES : 2 * states * LANES]
    scales, wholes = weights.reshape(-1)[:LANES], weights.reshape(-1)[LANES:]
    for first in range(begin, end, FRAMES):
        number, step = min(FRAMES, end - first), alpha.shape[1]
        place, out_place = start + first * stride_t, out_start + first * out_stride_t
        highest = tops[first : first + number]
        for t in range(first + FRAMES, min(first + 2 * FRAMES, end)):
            _announce(flat, start + t * stride_t, vocabulary)
        _pick_rows(flat, place, stride_t, number, token, result)
        _exp_columns(result, load_lanes(highest, 0), power)
        _by_state(flat_alpha, (first + visits) * step, step, number, states, before)
        _by_state(flat_beta, (first + 1) * step, step, number, states, after)
        inverse = load_lanes(inverses[first : first + number], 0)
        all_loops, all_stars = _sum_posteriors(
            before, after, load_lanes(factor[first : first + number], 0), entering, left_out, share, visits, by_column
        )
        scale, rest = inverse * grad, 1.0 - all_stars
        for i in range(0, result.size, LANES):
            if visits:
                x = (load_lanes(power, i) * inverse - load_lanes(by_column, i)) * grad
            else:
                x = (load_lanes(power, i) * scale) * (rest - load_lanes(by_column, i))
            store(narrow(x, like), result, i)
        if not visits:
            of_blank = (load_lanes(power, blank * LANES) * scale) * (1.0 - all_loops)
            store(narrow(of_blank, like), result, blank * LANES)
        store(scale * rest, scales, 0)
        store(all_stars, wholes, 0)
        for r in range(0, number, ROWS):
            rows = _rows(r, number)
            places, out_places = _places(rows, place, stride_t), _places(rows, out_place, out_stride_t)
            top, of_rest = _of_each(highest, rows, like), _of_each(scales, rows, like)
            _fill_rows(flat, places, out_flat, out_places, vocabulary, top, of_rest)
            for q in range(r, min(r + ROWS, number)):
                if not wholes[q] < _FEW:
                    row, out, t = place + q * stride_t, out_place + q * out_stride_t, first + q
                    _careful(
                        q, flat[row : row + vocabulary], tops[t], inverses[t], grad, wholes[q], factor[t], before, after, entering,
                        left_out, share, power, blank, result, out_flat[out : out + vocabulary],
                    )  # fmt: skip
            _put_rows(result, rows, token, out_flat, out_places)
