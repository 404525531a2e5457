"""The best path through a graph in which inserted tokens last, on the CPU: as lasting_torch.viterbi, without most tokens.

A token v that stands in row l at frame t could give way to the blank: it would begin again afterwards, at p_l at most. Or to the
best token u that is no label: both might begin, at p_l each. So it is on a best path only if

    x_t(v) >= x_t(blank) + log p_l        and        x_t(v) >= x_t(u) + 2 log p_l

Tokens for which this holds at the smallest p of an open gap are the frame's *candidates*: only these have states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from starseq.lattice.elementary_numba import jit, jit_outer, maximum

BLANK, LABEL = -1, -2
"""In place of a token: what stands in a row."""
_SOME = 128  # of a row of the vocabulary: if none of them is large enough, they are passed over at once


class _Trace(NamedTuple):
    """Where the best path to every state comes from: a place in the row, BLANK, LABEL or a token. (T, R) but for the last four."""

    anything: Any  # the best of all
    no_label: Any  # of all but the label
    going_on: Any  # from which the next label may begin
    label_stays: Any  # whether the label stood before
    first: Any  # (T+1,) where a frame's candidates begin
    token: Any  # of all frames' candidates, ascending in each
    begins: Any  # (candidates, R), whether it did not stand before


@jit_outer
def best_path(
    flat: Any, start: Any, stride: Any, frames: Any, vocabulary: Any, labels: Any, blank: Any, weight: Any, left_out: Any,
    row: Any, place: Any, like: Any,
) -> Any:  # fmt: skip
    """The score of the best path, of scores as they are, -inf if there is none; fills in the row and the place after each frame.

    flat: the scores, a row a frame from `start`. labels: (U,). weight, left_out: (U+1,), as in Gaps. row, place: (T,).
    """
    size = labels.size + 1
    own, following = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    own[1:], following[:-1] = labels, labels
    least = 0.0
    for l in range(size):
        least = min(least, weight[l]) if weight[l] > -np.inf else least
    first, token = _candidates(
        flat, start, stride, frames, vocabulary, labels, blank, weight.max() > -np.inf, least, like
    )
    trace = _Trace(
        np.empty((frames, size), np.int32), np.empty((frames, size), np.int32), np.empty((frames, size), np.int32),
        np.empty((frames, size), np.bool_), first, token, np.empty((token.size, size), np.bool_),
    )  # fmt: skip
    most = 0
    for t in range(frames):
        most = max(most, first[t + 1] - first[t])
    states, at = np.empty((2, most, size)), np.full(vocabulary, -1, np.int64)
    of_blank, of_label = np.full(size, -np.inf), np.full(size, -np.inf)
    of_blank[0] = 0.0
    tops = np.empty((3, size))
    for t in range(frames):
        scores, before = flat[start + t * stride : start + t * stride + vocabulary], first[max(t - 1, 0)]
        old, new = states[t % 2], states[1 - t % 2]
        _find_tops(
            old, token[before : first[t]], of_blank, of_label, own, following, tops, trace.anything[t], trace.no_label[t],
            trace.going_on[t],
        )  # fmt: skip
        for i in range(before, first[t]):
            at[token[i]] = i - before
        for i in range(first[t], first[t + 1]):
            v, k = token[i], i - first[t]
            j, x = at[v], np.float64(scores[token[i]])
            for l in range(size):
                stays = old[j, l] if j >= 0 else -np.inf
                other = tops[1, l] if v == own[l] else tops[0, l]
                other += weight[l] if v != left_out[l] else -np.inf
                trace.begins[i, l] = other > stays
                new[k, l] = max(stays, other) + x
        for i in range(before, first[t]):
            at[token[i]] = -1
        for l in range(size - 1, 0, -1):
            trace.label_stays[t, l] = of_label[l] >= tops[2, l - 1]
            of_label[l] = max(of_label[l], tops[2, l - 1]) + np.float64(scores[own[l]])
        for l in range(size):
            of_blank[l] = tops[0, l] + np.float64(scores[blank])
    last, score, stands = size - 1, of_blank[size - 1], BLANK
    begin = first[max(frames - 1, 0)]
    for i in range(begin, first[frames]):
        if states[frames % 2, i - begin, last] > score:
            score, stands = states[frames % 2, i - begin, last], token[i]
    if of_label[last] > score:
        score, stands = of_label[last], LABEL
    if score > -np.inf:
        _walk_back(trace, own, frames, last, stands, row, place)
    return score


@jit_outer
def _candidates(
    flat: Any, start: Any, stride: Any, frames: Any, vocabulary: Any, labels: Any, blank: Any, some_open: Any, least: Any,
    like: Any,
) -> Any:  # fmt: skip
    """Where each frame's candidates begin, and their tokens. least: the smallest log-weight of an open gap."""
    first, token, count = np.zeros(frames + 1, np.int64), np.empty(16 * frames, np.int32), 0
    others = np.empty(vocabulary, like.dtype)
    for t in range(frames):
        scores = flat[start + t * stride : start + t * stride + vocabulary]
        others[:] = scores
        for v in labels:
            others[v] = -np.inf
        others[blank] = -np.inf
        bound = max(np.float64(scores[blank]) + least, np.float64(maximum(others, like)) + 2 * least)
        for begin in range(0, vocabulary if some_open else 0, _SOME):
            some = scores[begin : begin + _SOME]
            if not np.float64(maximum(some, like)) >= bound:
                continue
            for i in range(some.size):
                if np.float64(some[i]) >= bound and begin + i != blank and some[i] > -np.inf:
                    if count == token.size:
                        grown = np.empty(2 * count, np.int32)
                        grown[:count] = token
                        token = grown
                    token[count] = begin + i
                    count += 1
        first[t + 1] = count
    return first, token[:count].copy()


@jit
def _find_tops(
    states: Any, token: Any, of_blank: Any, of_label: Any, own: Any, following: Any, tops: Any, anything: Any, no_label: Any,
    going_on: Any,
) -> None:  # fmt: skip
    """Of each row the best of all, of all but the label, and of those from which the next label may begin; where these stand."""
    size = own.size
    for l in range(size):
        tops[1, l] = tops[2, l] = of_blank[l]
        no_label[l] = going_on[l] = BLANK
    for k in range(token.size):
        v, one = token[k], states[k]
        for l in range(size):
            if one[l] > tops[1, l]:
                tops[1, l], no_label[l] = one[l], v
            if one[l] > tops[2, l] and v != following[l]:
                tops[2, l], going_on[l] = one[l], v
    for l in range(size):
        tops[0, l], anything[l] = tops[1, l], no_label[l]
        if of_label[l] > tops[0, l]:
            tops[0, l], anything[l] = of_label[l], LABEL
        if of_label[l] > tops[2, l] and own[l] != following[l]:
            tops[2, l], going_on[l] = of_label[l], LABEL


@jit
def _walk_back(trace: _Trace, own: Any, frames: Any, l: Any, stands: Any, row: Any, place: Any) -> None:
    for t in range(frames - 1, -1, -1):
        row[t], place[t] = l, stands
        if stands == LABEL:
            if not trace.label_stays[t, l]:
                l -= 1
                stands = trace.going_on[t, l]
        elif stands == BLANK:
            stands = trace.anything[t, l]
        else:
            low, high = trace.first[t], trace.first[t + 1]
            while high - low > 1:
                middle = (low + high) // 2
                if trace.token[middle] > stands:
                    high = middle
                else:
                    low = middle
            if trace.begins[low, l]:
                stands = trace.no_label[t, l] if stands == own[l] else trace.anything[t, l]
