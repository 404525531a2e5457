"""Scores of a label graph's arcs from logits, and the gradient back, on the CPU. Same functions as vocabulary_torch, compiled.

A row of the vocabulary is handled as its *columns* (the few tokens that the utterance's graph names, blank among them) and the
*rest*, which is only ever needed as one sum. For float32 the sums over columns and states are float64 with float32 corrections; for
float64 all is float64. float16 and bfloat16 are widened first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starseq.emissions.tokens import Scores, Tokens
from starseq.lattice import threads
from starseq.lattice.elementary_numba import exp, jit, jit_inline, jit_outer, log, maximum
from starseq.lattice.lanes_numba import every, largest, load, narrow, select, store, total, widen, width
from starseq.lattice.topology import Topology

BLOCK = 1024  # of a row at a time
FRAMES = 16  # at a time, step by step: in one frame alone, each step would wait for the one before it
_ENOUGH = 1e-6  # of a float64 sum: what is left after a subtraction still has ten digits
TINY = 1e-25  # a sum of float32 terms under which some of them may have become 0
_MODERATE = 20.0  # of a logarithm: what a float32 probability loses as 0 is still nothing when multiplied by e^20
_LOW, _HIGH = 1e-250, 1e250  # within, a float64 sum of shares is neither 0 nor inf nor of few digits


def scores(
    logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, *, normalized: bool, star: bool = False
) -> Scores:
    """See vocabulary_torch.scores."""
    batch, frames, vocabulary = logits.shape
    states = tokens.enter.shape[1]
    columns = columns_of(tokens, topology, vocabulary)
    enter = torch.empty(batch, frames, states, dtype=torch.float64)
    result = Scores(
        stay=enter if columns.loops == AS_ENTERED else torch.empty_like(enter),
        enter=enter,
        star=torch.empty(batch if star else 0, frames, states, dtype=torch.float64),
        norm=torch.empty(batch, frames, dtype=torch.float64),
    )
    threads.run(
        _scores, batch * frames, cost(logits.shape, states), rows_of(logits), (frames, vocabulary), columns, lengths.numpy(),
        topology.num_states.numpy(), normalized, tuple(x.numpy() for x in result),
    )  # fmt: skip
    return result


def cost(shape: Sequence[int], states: int) -> int:
    """Elementary steps of a pass over logits of this shape."""
    batch, frames, vocabulary = shape
    return batch * frames * (vocabulary + 4 * states)


def gradient_like(logits: Tensor) -> Tensor:
    """An empty tensor for the gradient: in the precision of the computation, with contiguous rows, else laid out as the logits."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    unit = logits.stride(2) == 1 or logits.shape[2] == 1
    return torch.empty_like(logits, dtype=dtype) if unit else torch.empty(logits.shape, dtype=dtype)


AS_ENTERED, BLANK = range(2)
_NOWHERE = np.uint32(0xFFFFFFFF)  # in place of a token that does not exist


class Columns(NamedTuple):
    """What the arcs consume: tokens; and for each utterance its distinct ones in ascending order, and the arcs' places among them.

    An impossible token is _NOWHERE; it has the place after the last: kernels keep -inf there.
    """

    token: Any  # (B, C) uint32
    count: Any  # (B,) int64
    blank: Any  # (B,) int64: its place
    loops: int  # what the self-loops consume: AS_ENTERED, what the entering arcs do; or BLANK
    enter: Any  # (2, B, S) uint32, tokens and places
    left_out: Any  # the same, or (0, 0, 0) where there are no stars
    weight: Any  # (B, S) float64, the stars' log-weights, or (0, 0)
    share: Any  # (B, S) float64, exp(weight), or (0, 0)


def columns_of(tokens: Tokens, topology: Topology, vocabulary: int) -> Columns:
    """The columns of a batch, found."""
    enter, stars = tokens.enter.numpy(), tokens.star_weight is not None
    unsaid, weight = np.empty((0, 0), enter.dtype), np.empty((0, 0))
    left_out = unsaid if tokens.star_except is None else tokens.star_except.numpy()
    if tokens.star_weight is not None:  # contiguous: one penalty for all gaps is a view of one number
        weight = tokens.star_weight.to(torch.float64).contiguous().numpy()
    batch, states = enter.shape
    arcs, starred = (2, batch, states), (batch, states) if stars else (0, 0)
    columns = Columns(
        np.empty((batch, most_columns(states, vocabulary)), np.uint32), np.empty(batch, np.int64), np.empty(batch, np.int64),
        BLANK if tokens.stay is None else AS_ENTERED, np.empty(arcs, np.uint32),
        np.empty(arcs if stars else (0, 0, 0), np.uint32), np.empty(starred), np.empty(starred),
    )  # fmt: skip
    _find_all(enter, left_out, weight, topology.num_states.numpy(), tokens.blank, vocabulary, columns)
    return columns


def most_columns(states: int, vocabulary: int) -> int:
    """Of one utterance: what enters a state, its own and what it leaves out; and blank."""
    return min(vocabulary, 3 * states + 1)


def rows_of(x: Tensor, batch_first: bool = True) -> tuple[Any, int, int]:
    """All of the memory of logits as one flat array, and its strides by utterance and by frame: rows are contiguous."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    strides = x.stride()
    if strides[2] != 1 and x.shape[2] != 1:
        x = x.contiguous()
        strides = x.stride()
    array, (by_utterance, by_frame) = x.detach().numpy(), strides[:2] if batch_first else strides[1::-1]
    if array.flags.c_contiguous:  # mostly; numpy is quicker than torch to find out
        return array.reshape(-1), by_utterance, by_frame
    extent = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) + 1 if x.numel() else 0
    return x.as_strided((extent,), (1,)).numpy(), by_utterance, by_frame


@jit
def _mark(place: Any, v: Any) -> None:
    if v >= 0 and v < place.size:
        place[v] = 0


@jit
def _put(arcs: Any, b: Any, s: Any, place: Any, v: Any, nowhere: Any) -> None:
    exists = v >= 0 and v < place.size
    arcs[0, b, s] = v if exists else _NOWHERE
    arcs[1, b, s] = place[v] if exists else nowhere


@jit_outer
def _find_all(
    enter: Any, left_out: Any, weight: Any, num_states: Any, blank: Any, vocabulary: Any, columns: Any
) -> None:
    """Fills the columns of a batch: arrays as in Tokens, (0, 0) for None."""
    place = np.full(vocabulary, -1, np.int32)
    for b in range(enter.shape[0]):
        find_columns(
            b, enter[b], left_out[b] if left_out.size else enter[b, :0], weight[b] if weight.size else weight.reshape(-1),
            num_states[b], blank, place, columns,
        )  # fmt: skip


@jit
def find_columns(
    b: Any, enter: Any, left_out: Any, weight: Any, states: Any, blank: Any, place: Any, columns: Any
) -> None:
    """Fills the columns of utterance b. What its arcs consume, (S,): left_out and weight may be empty; blank is no token that a
    star could leave out. For scratch: place, (V,), -1 everywhere, before and after."""
    token = columns.token[b]
    place[blank] = 0
    for s in range(states):
        _mark(place, enter[s])
        if left_out.size and s + 1 < states:
            _mark(place, left_out[s])
    n = 0
    for v in range(place.size):
        if place[v] == 0:
            token[n] = v
            place[v] = n
            n += 1
    columns.count[b] = n
    columns.blank[b] = place[blank]
    for s in range(states):
        only_loops = columns.loops == BLANK and enter[s] == blank
        _put(columns.enter, b, s, place, -1 if only_loops else enter[s], n)
        if weight.size:
            something = left_out.size and s + 1 < states and left_out[s] != blank
            _put(columns.left_out, b, s, place, left_out[s] if something else -1, n)
            columns.weight[b, s] = weight[s]
            columns.share[b, s] = math.exp(weight[s])
    for c in range(n):
        place[token[c]] = -1


@jit_inline
def _sum_exp(values: Any, top: Any, shift: Any, like: Any) -> Any:
    """The sum of exp(values - shift) over those that are not `top`, and how many are.

    Blocks are summed in the precision of the values, their sums in float64. NaN is not `top`, and gets into the sum.
    """
    below, tops = 0.0, 0.0
    highest, less = narrow(top, like), narrow(shift, like)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        some, many = every(0.0, like), every(0.0, like)
        for i in range(0, block.size, width(like)):
            x = load(block, i, -np.inf, like)
            some = some + select(x == highest, every(0.0, like), exp(x - less))
            many = many + select(x == highest, every(1.0, like), every(0.0, like))
        below += np.float64(total(some))
        tops += np.float64(total(many))
    return below, tops


@jit
def _second(before: Any, after: Any, top: Any, like: Any) -> Any:
    """The largest of the values but `top`."""
    second, highest = every(-np.inf, like), narrow(top, like)
    for values in (before, after):
        for i in range(0, values.size, width(like)):
            x = load(values, i, -np.inf, like)
            second = select((x > second) & (x < highest), x, second)
    return np.float64(largest(second))


@jit
def _sum_again(before: Any, after: Any, top: Any, shift: Any, like: Any) -> Any:
    below = 0.0
    for values in (before, after):
        below += _sum_exp(values, top, shift, like)[0]
    return below


@jit_inline
def top_of(row: Any, blank: Any, like: Any) -> Any:
    """The largest score of a token but blank."""
    return max(maximum(row[:blank], like), maximum(row[blank + 1 :], like))


@jit_inline
def star_of(row: Any, blank: Any, top: Any, like: Any) -> Any:
    """The tokens but blank, summed: star, their sum over e^top; others, the sum without one largest, over e^second, its own
    maximum where the first would be too large for it. top: the largest score, and 0 for -inf."""
    before, after = row[:blank], row[blank + 1 :]
    below, tops = 0.0, 0.0
    for values in (before, after):
        more, also = _sum_exp(values, top, top, like)
        below += more
        tops += also
    star, others = below + tops, below + (tops - 1.0)
    if others < TINY:
        if tops == 0.0:  # nothing but -inf
            return below, below, top
        second = _second(before, after, top, like)
        if second > -np.inf:
            return star, _sum_again(before, after, top, second, like), second
    return star, others, top


@jit
def others_of(row: Any, blank: Any, top: Any, others: Any, like: Any) -> Any:
    """The sum of the tokens but blank and one largest, over e^top, where it is less than TINY."""
    second = _second(row[:blank], row[blank + 1 :], top, like)
    if second == -np.inf:
        return others
    return _sum_again(row[:blank], row[blank + 1 :], top, second, like) * math.exp(second - top)


@jit_inline
def _within(x: Any) -> Any:
    return (x > _LOW) & (x < _HIGH)


@jit
def _log_sum(a: Any, b: Any) -> Any:
    """log(e^a + e^b) of two float64 numbers, as exactly as can be."""
    larger, smaller = (b, a) if b > a else (a, b)
    return a + b if larger == -np.inf else larger + math.log1p(math.exp(smaller - larger))  # -inf twice, or NaN


# Picking by place and computing are separate loops: the one goes element by element, the other by vectors.


@jit_inline
def _pick(values: Any, places: Any, out: Any) -> None:
    """out = the values at the places; -inf where there is none."""
    for s in range(out.size):
        out[s] = values[places[s]] if places[s] < values.size else -np.inf


@jit_inline
def _subtract_norm(scores: Any, log_norm: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        store(widen(load(scores, i, 0.0, like)) - log_norm, out, i)


@jit_inline
def _log_shares(left_out: Any, log_norm: Any, stat: Any, share: Any, out: Any, like: Any) -> Any:
    """out = log(P(blank) + share * P(star without the token left out)), and whether these sums can be told from 0 and inf.

    left_out: (S,), the scores of what the stars leave out; stat: what _star returned, and blank's score.

    Only the largest token can hold more than half of the star's mass, so only there a difference would lose digits: leaving
    that one out gives `others`, which was summed without it.
    """
    top, star, others, second = stat[0], stat[1], stat[2], stat[3]
    if second != top:
        others *= math.exp(second - top)
    blank, highest = math.exp(stat[4] - top), narrow(top, like)
    outside = every(0.0, like)
    for i in range(0, out.size, width(like)):
        x = load(left_out, i, -np.inf, like)
        without = select(x == highest, others, star - widen(exp(x - highest)))
        sum_of_both = blank + load(share, i, 1.0, like) * without
        outside = select(_within(sum_of_both), outside, every(1.0, like))
        store((top - log_norm) + log(sum_of_both), out, i)
    return largest(outside) == 0


@jit
def _log_without(score: Any, stat: Any) -> Any:
    """The log-sum of the star without a token of this score, for any numbers."""
    top, star, others, second = stat[0], stat[1], stat[2], stat[3]
    log_star = top + math.log(star)
    if score == -np.inf:
        return log_star
    return second + math.log(others) if score == top else log_star + math.log1p(-math.exp(score - log_star))


@jit
def row_stat(row: Any, blank: Any, stat: Any, like: Any) -> Any:
    """Fills in `stat`, (5,): the largest score of a token but blank, 0 for -inf; `star_of`; that of blank. Returns the first."""
    top = top_of(row, blank, like)
    stat[0] = top if top > -np.inf else 0.0
    stat[1], stat[2], stat[3] = star_of(row, blank, stat[0], like)
    stat[4] = row[blank]
    return top


@jit
def row_scores(
    enter: Any, left_out: Any, stat: Any, weight: Any, share: Any, log_enter: Any, log_stay: Any, like: Any
) -> None:
    """The log-scores of one frame from its `row_stat`: of entering by tokens whose scores are `enter`, and of staying by blank or
    by a star that leaves out tokens whose scores are `left_out`. weight: log-weights of the stars; share: their exponentials."""
    log_norm = _log_norm(stat)
    _subtract_norm(enter, log_norm, log_enter, like)
    if not _log_shares(left_out, log_norm, stat, share, log_stay, like):
        for s in range(log_stay.size):
            log_one = weight[s] + (_log_without(np.float64(left_out[s]), stat) - log_norm)
            log_stay[s] = _log_sum(stat[4] - log_norm, log_one)


@jit_outer
def _scores(
    begin: Any, end: Any, x: Any, size: Any, columns: Any, lengths: Any, num_states: Any, normalized: Any, result: Any
) -> None:
    (flat, stride_b, stride_t), (frames, vocabulary), (log_stay, log_enter, log_star, norm) = x, size, result
    stats, like = np.empty((FRAMES, 5)), np.empty(0, flat.dtype)
    picked = np.empty((2, FRAMES, columns.enter.shape[2]), flat.dtype)
    item = begin
    while item < end:
        b, t = item // frames, item % frames
        stop = min(frames, t + end - item)
        stars = log_star[b] if log_star.size else log_star.reshape(0, 0)
        score_frames(
            t, min(stop, lengths[b]), flat, b * stride_b, stride_t, vocabulary, b, num_states[b], columns, normalized,
            log_stay[b], log_enter[b], stars, norm[b], stats, picked, like,
        )  # fmt: skip
        item += stop - t


@jit
def score_frames(
    begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, vocabulary: Any, b: Any, states: Any, columns: Any,
    normalized: Any, log_stay: Any, log_enter: Any, log_star: Any, norm: Any, stats: Any, picked: Any, like: Any,
) -> None:  # fmt: skip
    """Scores of the arcs of utterance b at frames begin..end-1; the logits of frame t are flat[start + t * stride_t :].

    log_stay, log_enter: (T, S), written up to `states`; log_stay is left alone where the loops are AS_ENTERED. log_star: the
    same, or (0, 0) where nobody asks. norm: (T,). For scratch: stats, (FRAMES, 5); picked, (2, FRAMES, S) of the logits' type.
    """
    blank = np.int64(columns.token[b, columns.blank[b]])
    starred = columns.weight.size > 0
    for first in range(begin, end, FRAMES):
        last = min(first + FRAMES, end)
        if normalized or starred:
            for t in range(first, last):
                row = flat[start + t * stride_t : start + t * stride_t + vocabulary]
                row_stat(row, blank, stats[t - first], like)
        for t in range(first, last):
            norm[t] = _log_norm(stats[t - first]) if normalized else 0.0
            row = flat[start + t * stride_t : start + t * stride_t + vocabulary]
            _pick(row, columns.enter[0, b, :states], picked[0, t - first, :states])
            if starred:
                _pick(row, columns.left_out[0, b, :states], picked[1, t - first, :states])
        for t in range(first, last):
            _subtract_norm(picked[0, t - first, :states], norm[t], log_enter[t, :states], like)
            if columns.loops == BLANK and not starred:
                log_stay[t, :states] = np.float64(flat[start + t * stride_t + blank]) - norm[t]
            if starred:
                stars = log_star[t, :states] if log_star.size else stats[0, :0]
                left_out = picked[1, t - first, :states]
                _add_stars_to(
                    b, states, columns, left_out, norm[t], stats[t - first], log_stay[t, :states], stars, like
                )


@jit_inline
def _log_norm(stat: Any) -> Any:
    """The log of the sum over the vocabulary; 0 for a frame without any mass: every score stays -inf."""
    top, star, score_of_blank = stat[0], stat[1], stat[4]
    whole = star + math.exp(score_of_blank - top)
    if _within(whole):
        return top + math.log(whole)
    log_norm = _log_sum(top + math.log(star), score_of_blank)
    return 0.0 if log_norm == -np.inf else log_norm


@jit_inline
def _add_stars_to(
    b: Any, states: Any, columns: Any, left_out: Any, log_norm: Any, stat: Any, stay: Any, log_star: Any, like: Any
) -> None:
    """The self-loops of a frame with their stars; the latter also by themselves, unless log_star is empty.

    left_out: (S,), the scores of what the stars leave out.
    """
    weight, share = columns.weight[b, :states], columns.share[b, :states]
    good = _log_shares(left_out, log_norm, stat, share, stay, like)
    if good and not log_star.size:
        return
    # Logarithms all the way: for frames whose sums would be 0 or inf, and where the star is wanted by itself.
    for s in range(states):
        log_one = weight[s] + (_log_without(np.float64(left_out[s]), stat) - log_norm)
        if log_star.size:
            log_star[s] = log_one
        if not good:
            stay[s] = _log_sum(stat[4] - log_norm, log_one)


@jit_inline
def _sum_posteriors(before: Any, after: Any, less: Any, like: Any) -> Any:
    """The sum of exp(before + after - less), in float64."""
    result = widen(every(0.0, like))
    for i in range(0, before.size, width(like)):
        x = (load(before, i, -np.inf, like) + load(after, i, -np.inf, like)) - less
        result = result + widen(exp(narrow(x, like)))
    return total(result)


@jit_inline
def _add_posteriors(
    before: Any, after: Any, log_z: Any, score: Any, places: Any, terms: Any, coefficient: Any, like: Any
) -> None:
    """Adds the posteriors of arcs, exp(before + after - log_z + score), to their columns."""
    for i in range(0, before.size, width(like)):
        x = (load(before, i, -np.inf, like) + load(after, i, -np.inf, like)) - log_z
        store(exp(narrow(x + load(score, i, -np.inf, like), like)), terms, i)
    for s in range(before.size):
        coefficient[places[s]] += terms[s]


@jit_inline
def _add_visits(here: Any, after: Any, log_z: Any, places: Any, terms: Any, coefficient: Any, like: Any) -> None:
    """Where a state is kept and entered by the same token: adds the posteriors of being there, exp(here + after - log_z)."""
    for i in range(0, here.size, width(like)):
        x = (load(here, i, -np.inf, like) + load(after, i, -np.inf, like)) - log_z
        store(exp(narrow(x, like)), terms, i)
    for s in range(here.size):
        coefficient[places[s]] += terms[s]


@jit_inline
def _weigh_stars(before: Any, after: Any, log_z: Any, weight: Any, log_outside: Any, like: Any) -> Any:
    """log_outside = before + after - log_z + weight, what each star's posterior is but for its sum of tokens; the largest."""
    tops = widen(every(-np.inf, like))
    for i in range(0, before.size, width(like)):
        x = (load(before, i, -np.inf, like) + load(after, i, -np.inf, like)) - log_z + load(weight, i, -np.inf, like)
        store(x, log_outside, i)
        tops = select(x > tops, x, tops)
    return largest(tops)


@jit_inline
def _sum_stars(log_outside: Any, top: Any, left_out: Any, sums: Any, terms: Any, like: Any) -> Any:
    """The sum of e^(log_outside - top), and by columns the sums over the stars that leave them out."""
    sums[:] = 0.0
    if top == -np.inf:
        return 0.0
    whole = _terms(log_outside, top, terms, like)
    for s in range(terms.size):
        sums[left_out[s]] += terms[s]
    return whole


@jit_inline
def _add_stars(
    log_outside: Any, top: Any, whole: Any, left_out: Any, value: Any, probability: Any, blank: Any, coefficient: Any,
    sums: Any, terms: Any, like: Any,
) -> None:  # fmt: skip
    """Adds to each column its posterior as a star: P(c) times the sum of the outsides of the stars that hold it.

    A column's own part is left out as above. exp(value + top) is at most 1 where its factor is not 0, because the star that gave
    `top`, or one as large, holds the column. probability: exp(value), or empty.
    """
    if top == -np.inf:
        return
    kept, apart = coefficient[blank], every(0.0, like)
    moderate, scale = probability.size > 0 and top < _MODERATE, math.exp(min(top, _MODERATE))
    for i in range(0, coefficient.size, width(like)):
        rest = whole - load(sums, i, 0.0, like)
        enough = rest > _ENOUGH * whole
        if moderate:
            posterior = widen(load(probability, i, 0.0, like)) * (rest * scale)
        else:
            posterior = widen(exp(narrow(load(value, i, -np.inf, like) + top, like))) * rest
        store(load(coefficient, i, 0.0, like) + select(enough, posterior, 0.0), coefficient, i)
        apart = select(enough, apart, every(1.0, like))
    coefficient[blank] = kept
    if largest(apart) > 0:
        _add_apart(log_outside, whole, left_out, value, coefficient, sums, terms, like)


@jit
def _add_apart(
    log_outside: Any, whole: Any, left_out: Any, value: Any, coefficient: Any, sums: Any, terms: Any, like: Any
) -> None:
    """The column that almost all stars leave out: the few that hold it are summed by themselves, with a maximum of their own."""
    for c in range(coefficient.size):
        if whole - sums[c] <= _ENOUGH * whole:
            for s in range(log_outside.size):
                log_outside[s] = -np.inf if left_out[s] == c else log_outside[s]
            second = maximum(log_outside, like)
            if second > -np.inf:
                coefficient[c] += math.exp(value[c] + second) * _terms(log_outside, second, terms, like)


@jit_inline
def _terms(values: Any, top: Any, terms: Any, like: Any) -> Any:
    """terms = exp(values - top), and their sum in float64."""
    result = widen(every(0.0, like))
    for i in range(0, values.size, width(like)):
        term = exp(narrow(load(values, i, -np.inf, like) - top, like))
        result = result + widen(term)
        store(term, terms, i)
    return total(result)


@jit_inline
def _fill(row: Any, shift: Any, factor: Any, out: Any, like: Any) -> None:
    """out = factor * exp(row + shift). The pivot takes the large part of the shift, so that nothing is rounded twice."""
    pivot = narrow(-shift, like)
    small = narrow(shift + np.float64(pivot), like)
    scale = narrow(factor, like)
    for i in range(0, row.size, width(like)):
        store(exp((load(row, i, 0.0, like) - pivot) + small) * scale, out, i)


@jit_inline
def _exp_all(values: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        store(exp(narrow(load(values, i, 0.0, like), like)), out, i)


@jit_inline
def _subtract(probability: Any, posterior: Any, factor: Any, out: Any, like: Any) -> None:
    """out = factor * (probability - posterior), where no probability counts as 0."""
    for i in range(0, out.size, width(like)):
        x = widen(load(probability, i, 0.0, like)) if probability.size else widen(every(0.0, like))
        store((x - load(posterior, i, 0.0, like)) * factor, out, i)


@jit_outer
def gradient_kernel(
    begin: Any, end: Any, x: Any, out: Any, size: Any, columns: Any, lengths: Any, num_states: Any, others: Any, normalized: Any,
    grad: Any, sums: Any,
) -> None:  # fmt: skip
    """The gradients of rows begin..end-1 of all B * T, but for utterances that are among the `others`, (B,).

    x, out: logits and gradient as `rows_of` gives them. size: (T, V). sums: log_z (B,), norm (B, T), log_alpha and log_beta
    (B, T+1, S).
    """
    (flat, stride_b, stride_t), (out_flat, out_stride_b, out_stride_t), (frames, vocabulary) = x, out, size
    log_z, norm, log_alpha, log_beta = sums
    states = log_alpha.shape[2]
    scratch, factors = np.empty((3, FRAMES, max(states, columns.token.shape[1] + 1))), np.empty((FRAMES, 2))
    outsides, terms, like = np.empty((FRAMES, states)), np.empty((FRAMES, states), flat.dtype), np.empty(0, flat.dtype)
    probabilities = np.empty((FRAMES, columns.token.shape[1]), flat.dtype)
    item = begin
    while item < end:
        b, t = item // frames, item % frames
        stop = min(frames, t + end - item)
        item += stop - t
        if others[b]:
            continue
        inside = max(t, min(stop, lengths[b])) if log_z[b] != -np.inf else t
        fill_frames(inside, stop, out_flat, b * out_stride_b, out_stride_t, vocabulary, 0.0)
        if log_z[b] != log_z[b]:
            fill_frames(t, inside, out_flat, b * out_stride_b, out_stride_t, vocabulary, np.nan)
            continue
        for first in range(t, inside, FRAMES):
            _gradient_frames(
                first, min(first + FRAMES, inside), flat, b * stride_b, stride_t, out_flat, b * out_stride_b, out_stride_t,
                vocabulary, b, columns, normalized, num_states[b], grad[b], norm[b], log_alpha[b], log_beta[b],
                log_z[b], scratch, factors, outsides, terms, probabilities, like,
            )  # fmt: skip


@jit
def fill_frames(begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, vocabulary: Any, number: Any) -> None:
    """Sets rows begin..end-1 of an utterance to the number."""
    for t in range(begin, end):
        flat[start + t * stride_t : start + t * stride_t + vocabulary] = number


@jit
def _gradient_frames(
    begin: Any, end: Any, flat: Any, start: Any, stride_t: Any, out_flat: Any, out_start: Any, out_stride_t: Any,
    vocabulary: Any, b: Any, columns: Any, normalized: Any, states: Any, grad: Any, norm: Any, log_alpha: Any,
    log_beta: Any, log_z: Any, scratch: Any, factors: Any, outsides: Any, all_terms: Any, probabilities: Any, like: Any,
) -> None:  # fmt: skip
    count, blank = columns.count[b], columns.blank[b]
    token, enter = columns.token[b, :count], columns.enter[1, b, :states]
    for r in range(end - begin):
        first = start + (begin + r) * stride_t
        value, coefficient = scratch[0, r, : count + 1], scratch[1, r, : count + 1]
        _pick(flat[first : first + vocabulary], token, value[:count])
        _subtract_norm(value[:count], norm[begin + r], value[:count], like)
        value[count] = -np.inf
        coefficient[:] = 0.0
    known = count if normalized else 0  # else nobody needs the probabilities, and they may be too large
    for r in range(end - begin):
        _exp_all(scratch[0, r, :known], probabilities[r, :known], like)
    if columns.loops != AS_ENTERED:
        for r in range(end - begin):
            _pick(scratch[0, r, : count + 1], enter, outsides[r, :states])

    for r in range(end - begin):
        value, coefficient, terms = scratch[0, r, : count + 1], scratch[1, r, : count + 1], all_terms[r, :states]
        score = outsides[r, :states]
        before, after = log_alpha[begin + r, :states], log_beta[begin + r + 1, :states]
        if columns.loops == AS_ENTERED:
            _add_visits(log_alpha[begin + r + 1, :states], after, log_z, enter, terms, coefficient, like)
            continue
        coefficient[blank] = _sum_posteriors(before, after, log_z - value[blank], like)
        if states > 1:
            _add_posteriors(before[:-1], after[1:], log_z, score[1:], enter[1:], terms[1:], coefficient, like)

    factors[:, 0], factors[:, 1] = -np.inf, 0.0  # a token of the rest has the posterior P(v) * k, k = e^top * whole
    if columns.weight.size:
        weight, left_out = columns.weight[b, :states], columns.left_out[1, b, :states]
        for r in range(end - begin):
            before, after = log_alpha[begin + r, :states], log_beta[begin + r + 1, :states]
            factors[r, 0] = _weigh_stars(before, after, log_z, weight, outsides[r, :states], like)
        for r in range(end - begin):
            factors[r, 1] = _sum_stars(
                outsides[r, :states], factors[r, 0], left_out, scratch[2, r, : count + 1], all_terms[r, :states], like
            )
        for r in range(end - begin):
            _add_stars(
                outsides[r, :states], factors[r, 0], factors[r, 1], left_out, scratch[0, r, :count],
                probabilities[r, :known], blank, scratch[1, r, :count], scratch[2, r, :count], all_terms[r, :states], like,
            )  # fmt: skip

    for r in range(end - begin):
        first, out_first = start + (begin + r) * stride_t, out_start + (begin + r) * out_stride_t
        row, out = flat[first : first + vocabulary], out_flat[out_first : out_first + vocabulary]
        top, whole, log_norm = factors[r, 0], factors[r, 1], norm[begin + r]
        if normalized and top < _MODERATE:  # d(-log_z)/d logit = P(v) - posterior
            _fill(row, -log_norm, grad * (1.0 - math.exp(top) * whole), out, like)
        elif top == -np.inf:
            out[:] = 0
        else:
            log_k = top + math.log(whole)
            shift = log_k + math.log(-math.expm1(-log_k)) - log_norm if normalized else log_k
            _fill(row, shift, -grad, out, like)
    for r in range(end - begin):
        result = scratch[2, r, :count]
        _subtract(probabilities[r, :known], scratch[1, r, :count], grad, result, like)
        first = out_start + (begin + r) * out_stride_t
        out = out_flat[first : first + vocabulary]
        for c in range(count):
            out[token[c]] = result[c]
