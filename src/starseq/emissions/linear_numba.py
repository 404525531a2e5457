"""Probabilities of a label graph's arcs from logits, and the gradient back, on the CPU: as vocabulary_numba, without logarithms.

For logits that become probabilities by their softmax, and frames where these can be told from 0. Columns are exponentiated in
float64, so that one of e^-700 still counts; the rest of the vocabulary in its own precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from starseq.emissions.vocabulary_numba import AS_ENTERED, FRAMES, star_of, top_of
from starseq.lattice.elementary_numba import exp, jit, jit_inline
from starseq.lattice.lanes_numba import LANES, every, load, narrow, prefetch, select, store, total, widen, width
from starseq.lattice.scaled_numba import padded

_FEW = 1e4  # within, a float64 sum of stars less a part of itself is as good as a sum without that part
_LARGE = 1e250
_LINE = 16  # numbers that a cache fetches at once, or more


@jit_inline
def _pick(values: Any, places: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = values[places[i]]


@jit_inline
def _exp_columns(scores: Any, top: Any, out: Any, like: Any) -> None:
    """out = exp(scores - top), and 0 in the place after the last."""
    for i in range(0, scores.size, width(like)):
        store(exp(widen(load(scores, i, 0.0, like)) - top), out, i)
    out[scores.size] = 0.0


@jit_inline
def _announce(flat: Any, first: Any, vocabulary: Any) -> None:
    """Rows of an utterance may lie far apart: no processor guesses the next. In long ones it does."""
    for i in range(first, first + min(vocabulary, 512), _LINE):
        prefetch(flat, i)


@jit_inline
def _times(values: Any, factor: Any, out: Any, start: Any, like: Any) -> None:
    for i in range(0, values.size, width(like)):
        store(load(values, i, 0.0, like) * factor, out, start + i)


@jit_inline
def _add_stars(
    left_out: Any, blank: Any, star: Any, others: Any, inverse: Any, share: Any, out: Any, start: Any, like: Any
) -> None:
    """out = P(blank) + share * P(star without what is left out). Only the largest token can hold more than half of the star."""
    for i in range(0, left_out.size, width(like)):
        x = load(left_out, i, 0.0, like)
        without = select(x == 1.0, others, star - x)
        store((blank + load(share, i, 0.0, like) * without) * inverse, out, start + i)


@jit
def weigh_frames(
    frames: Any, flat: Any, start: Any, stride_t: Any, vocabulary: Any, b: Any, states: Any, columns: Any, stay: Any,
    enter: Any, star: Any, tops: Any, inverses: Any, stats: Any, picked: Any, powers: Any, chosen: Any, like: Any,
) -> Any:  # fmt: skip
    """The probabilities of the arcs of utterance b; the logits of frame t are flat[start + t * stride_t :].

    stay, enter: flat, rows as sum_scaled reads them; stay is left alone where the loops are AS_ENTERED. star: the same, or empty
    where nobody asks. Also filled: tops, inverses (T,): a token's probability is exp(logit - top) * inverse. For scratch: stats
    (FRAMES, 2), picked (FRAMES, C) of the logits' type, powers (FRAMES, C + 1), chosen (2 * FRAMES, padded(S)).

    Returns whether all went well: else there is a frame with NaN, with an infinity, or whose tokens are too far apart.
    """
    count, blank = columns.count[b], columns.blank[b]
    token, blank_token = columns.token[b, :count], np.int64(columns.token[b, columns.blank[b]])
    entering, starred, size, good = columns.enter[1, b, :states], columns.weight.size > 0, padded(states), True
    chosen[:] = 0.0
    for t in range(min(frames, FRAMES)):
        _announce(flat, start + t * stride_t, vocabulary)
    for first in range(0, frames, FRAMES):
        last = min(first + FRAMES, frames)
        for t in range(first, last):
            row = flat[start + t * stride_t : start + t * stride_t + vocabulary]
            tops[t] = top_of(row, blank_token, like)
            good &= tops[t] > -np.inf
            _announce(flat, start + min(t + FRAMES, frames - 1) * stride_t, vocabulary)
        if not good:
            return False
        for t in range(first, last):
            row, stat = flat[start + t * stride_t : start + t * stride_t + vocabulary], stats[t - first]
            stat[0], stat[1], second = star_of(row, blank_token, tops[t], like)
            if second != tops[t]:
                stat[1] *= math.exp(second - tops[t])
        for t in range(first, last):
            row = flat[start + t * stride_t : start + t * stride_t + vocabulary]
            _pick(row, token, picked[t - first, :count])
        for t in range(first, last):
            _exp_columns(picked[t - first, :count], tops[t], powers[t - first, : count + 1], like)
        for t in range(first, last):
            whole = stats[t - first, 0] + powers[t - first, blank]
            good &= whole > 0.0 and whole < _LARGE
            inverses[t] = 1.0 / whole
        for t in range(first, last):
            power = powers[t - first, : count + 1]
            _pick(power, entering, chosen[t - first, :states])
            if starred:
                _pick(power, columns.left_out[1, b, :states], chosen[FRAMES + t - first, :states])
        for t in range(first, last):
            _times(chosen[t - first, :size], inverses[t], enter, t * size, like)
            if columns.loops == AS_ENTERED:
                continue
            of_blank, all_tokens, others = powers[t - first, blank], stats[t - first, 0], stats[t - first, 1]
            if starred:
                left_out, share = chosen[FRAMES + t - first, :size], columns.share[b, :states]
                _add_stars(left_out, of_blank, all_tokens, others, inverses[t], share, stay, t * size, like)
                if star.size:
                    _add_stars(left_out, 0.0, all_tokens, others, inverses[t], share, star, t * size, like)
            else:
                stay[t * size : t * size + size] = of_blank * inverses[t]
    enter[frames * size : frames * size + LANES] = 0.0
    return good


@jit_inline
def _visit(alpha: Any, beta: Any, factor: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        store(load(alpha, i, 0.0, like) * factor * load(beta, i, 0.0, like), out, i)


@jit_inline
def _sum_outside(alpha: Any, beta: Any, factor: Any, like: Any) -> Any:
    """The sum over the states of what a self-loop's posterior is but for its probability."""
    result = widen(every(0.0, like))
    for i in range(0, alpha.size, width(like)):
        result = result + load(alpha, i, 0.0, like) * factor * load(beta, i, 0.0, like)
    return total(result)


@jit_inline
def _weigh_outside(alpha: Any, beta: Any, factor: Any, share: Any, out: Any, like: Any) -> Any:
    """out = share times the same, the stars' part; and the sums of both."""
    all_loops, all_stars = widen(every(0.0, like)), widen(every(0.0, like))
    for i in range(0, out.size, width(like)):
        outside = load(alpha, i, 0.0, like) * factor * load(beta, i, 0.0, like)
        part = outside * load(share, i, 0.0, like)
        store(part, out, i)
        all_loops = all_loops + outside
        all_stars = all_stars + part
    return total(all_loops), total(all_stars)


@jit_inline
def _add(terms: Any, places: Any, sums: Any) -> None:
    for s in range(terms.size):
        sums[places[s]] += terms[s]


@jit_inline
def _take(terms: Any, places: Any, sums: Any) -> None:
    for s in range(terms.size):
        sums[places[s]] -= terms[s]


@jit_inline
def _fill(row: Any, top: Any, factor: Any, out: Any, like: Any) -> None:
    highest, scale = narrow(top, like), narrow(factor, like)
    for i in range(0, row.size, width(like)):
        store(exp(load(row, i, 0.0, like) - highest) * scale, out, i)


@jit_inline
def _less_posterior(power: Any, inverse: Any, rest: Any, sums: Any, grad: Any, out: Any, like: Any) -> None:
    """out = grad * P * (rest - sums)."""
    factor = inverse * grad
    for i in range(0, out.size, width(like)):
        store((load(power, i, 0.0, like) * factor) * (rest - load(sums, i, 0.0, like)), out, i)


@jit_inline
def _less_visits(power: Any, inverse: Any, sums: Any, grad: Any, out: Any, like: Any) -> None:
    """out = grad * (P - sums)."""
    for i in range(0, out.size, width(like)):
        store((load(power, i, 0.0, like) * inverse - load(sums, i, 0.0, like)) * grad, out, i)


@jit
def _careful(
    row: Any, top: Any, factor: Any, stars: Any, whole: Any, moves: Any, entering: Any, left_out: Any, power: Any,
    blank: Any, result: Any, out: Any,
) -> None:  # fmt: skip
    """A row where the stars weigh so much that a difference would lose digits: each column's sum is made without its own.

    result: of blank, and of the columns what is to be written. out: the row's gradient.
    """
    for c in range(result.size):
        if c != blank:
            posterior = 0.0
            for s in range(stars.size):
                posterior += stars[s] if left_out[s] != c else 0.0
                posterior += moves[s] if entering[s] == c else 0.0
            result[c] = power[c] * factor * (1.0 - posterior)
    for v in range(row.size):
        out[v] = math.exp(row[v] - top) * (1.0 - whole) * factor


@jit
def gradient_frames(
    begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, out_flat: Any, out_start: Any, out_stride_t: Any,
    vocabulary: Any, b: Any, states: Any, columns: Any, grad: Any, alpha: Any, beta: Any, tops: Any, inverses: Any, factor: Any,
    picked: Any, powers: Any, sums: Any, terms: Any, weights: Any, like: Any,
) -> None:  # fmt: skip
    """The gradient of frames begin..end-1 (FRAMES at most) of utterance b: grad * (P(v) - posterior(v)).

    alpha, beta, factor: as sum_scaled fills them. tops, inverses: as weigh_frames does. For scratch: picked (FRAMES, C) of the
    logits' type, powers and sums (FRAMES, C + 1), terms (2, FRAMES, S), weights (FRAMES, 2).
    """
    count, blank = columns.count[b], columns.blank[b]
    token, entering = columns.token[b, :count], columns.enter[1, b, :states]
    starred = columns.weight.size > 0
    share = columns.share[b, :states] if starred else factor[:0]
    left_out = columns.left_out[1, b, :states] if starred else entering[:0]
    for r in range(end - begin):
        first = start + (begin + r) * stride_t
        _announce(flat, start + min(begin + r + FRAMES, tops.size - 1) * stride_t, vocabulary)
        _announce(out_flat, out_start + (begin + r) * out_stride_t, vocabulary)
        _pick(flat[first : first + vocabulary], token, picked[r, :count])
    for r in range(end - begin):
        _exp_columns(picked[r, :count], tops[begin + r], powers[r, : count + 1], like)
    for r in range(end - begin):
        t = begin + r
        before, after = alpha[t, :states], beta[t + 1, :states]
        moves, stars = terms[0, r, :states], terms[1, r, :states]
        weights[r, 0] = weights[r, 1] = 0.0
        if columns.loops == AS_ENTERED:
            _visit(alpha[t + 1, :states], after, factor[t], moves, like)
            continue
        moves[0] = 0.0
        _visit(before[: states - 1], after[1:], factor[t], moves[1:], like)
        if starred:
            weights[r, 0], weights[r, 1] = _weigh_outside(before, after, factor[t], share, stars, like)
        else:
            weights[r, 0] = _sum_outside(before, after, factor[t], like)
    sums[:] = 0.0
    for r in range(end - begin):
        _add(terms[0, r, :states], entering, sums[r])
        if starred:
            _take(terms[1, r, :states], left_out, sums[r])
    for r in range(end - begin):
        t = begin + r
        first, out_first = start + t * stride_t, out_start + t * out_stride_t
        row, out = flat[first : first + vocabulary], out_flat[out_first : out_first + vocabulary]
        result, power, whole = sums[r, :count], powers[r, :count], weights[r, 1]
        if columns.loops == AS_ENTERED:
            _fill(row, tops[t], inverses[t] * grad, out, like)
            _less_visits(power, inverses[t], result, grad, result, like)
            continue
        if whole < _FEW:
            _fill(row, tops[t], inverses[t] * grad * (1.0 - whole), out, like)
            _less_posterior(power, inverses[t], 1.0 - whole, result, grad, result, like)
        else:
            _careful(
                row, tops[t], inverses[t] * grad, terms[1, r, :states], whole, terms[0, r, :states], entering, left_out,
                power, blank, result, out,
            )  # fmt: skip
        result[blank] = power[blank] * (inverses[t] * grad) * (1.0 - weights[r, 0])
    for r in range(end - begin):
        first = out_start + (begin + r) * out_stride_t
        out, result = out_flat[first : first + vocabulary], sums[r, :count]
        for c in range(count):
            out[token[c]] = result[c]
