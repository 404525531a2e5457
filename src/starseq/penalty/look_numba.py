"""What the adaptive penalty sees in a batch on the CPU, in one pass: an utterance goes frame by frame through all at once.

No path is kept. Each state carries with it what the best path to it has found: see `_walk`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starseq.arguments import check_values
from starseq.emissions.vocabulary_numba import row_scores, row_stat, rows_of
from starseq.lattice import threads
from starseq.lattice.elementary_numba import exp, jit, jit_outer, maximum
from starseq.lattice.lanes_numba import load, narrow, store, width
from starseq.penalty.look_torch import THRESHOLD, move

__all__ = ["look", "move"]

_SOME = 128  # of a row: their largest is found at once, its place one by one
_LEAST = np.float32(math.log(THRESHOLD / (1 - THRESHOLD)))


def look(
    x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, open_gaps: Tensor | None, log_odds: Tensor, blank: int
) -> Tensor:
    """See look_torch.look. Raises ValueError for bad values, as the loss does."""
    B, T, V = x.shape
    found, bad = np.zeros((B, 5)), np.zeros(B, np.bool_)
    flat, *strides = rows_of(x)
    is_open = np.empty((0, 0), np.bool_) if open_gaps is None else open_gaps.cpu().numpy()
    log_p = np.float32(-math.log1p(math.exp(-log_odds.item())))
    threads.run(
        _look, B, B * T * (V + 30 * min(V, targets.shape[1]) + 4 * targets.shape[1]), flat, *strides, T, V,
        np.ascontiguousarray(targets.numpy(), np.int64), frames.numpy(), labels.numpy(), is_open, float(log_p), blank, found, bad,
    )  # fmt: skip
    if bad.any():
        check_values(targets, frames, labels, None, x.shape, blank)
    return torch.from_numpy(found)


@jit_outer
def _look(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, most: Any, vocabulary: Any, targets: Any, lengths: Any,
    counts: Any, is_open: Any, log_p: Any, blank: Any, found: Any, bad: Any,
) -> None:  # fmt: skip
    """Fills in `found` for utterances begin..end-1, and `bad` where `check_values` has something to say."""
    like, place = np.empty(0, flat.dtype), np.full(vocabulary, -1, np.int64)
    for b in range(begin, end):
        frames, count = lengths[b], counts[b]
        bad[b] = frames < 0 or frames > most or count < 0 or count > targets.shape[1]
        if bad[b]:
            continue
        distinct, column, known = np.empty(count, np.int64), np.empty(count + 1, np.int64), 0
        for u in range(count):
            v = targets[b, u]
            if v < 0 or v >= vocabulary or v == blank:
                bad[b] = True
                break
            if place[v] < 0:
                place[v], distinct[known] = known, v
                known += 1
            column[u] = place[v]
        for i in range(known):
            place[distinct[i]] = -1
        if bad[b] or count == 0 or frames == 0:
            continue
        column[count] = known  # of a last column, that is no token: the last star leaves out nothing
        read, labels, probability, exists = _walk(
            flat, b * stride_b, stride_t, frames, vocabulary, distinct[:known], column, log_p, blank, like
        )
        if exists:
            found[b, 0], found[b, 1], found[b, 2], found[b, 3], found[b, 4] = labels, read, count, count, probability
            if is_open.size:
                gaps = 0
                for l in range(count + 1):
                    gaps += is_open[b, l]
                found[b, 3] = count * gaps / (count + 1)


@jit_outer
def _walk(
    flat: Any, start: Any, stride: Any, frames: Any, vocabulary: Any, distinct: Any, column: Any, log_p: Any, blank: Any,
    like: Any,
) -> Any:  # fmt: skip
    """The tokens read; of the labels on the best path, how many are read, and their summed probability; whether there is a path.

    distinct: the labels' tokens. column: (U+1,) where each label, and what is none, stands among them.
    """
    known, count = distinct.size, column.size - 1
    stat, score, P = np.empty(5), np.full(known + 1, -np.inf, like.dtype), np.empty(known + 1, like.dtype)
    enter, stay = np.empty(known + 1), np.empty(known + 1)
    weight, share = np.full(known + 1, log_p), np.full(known + 1, math.exp(log_p))
    best, labels, probability = np.full(count + 1, -np.inf), np.zeros(count + 1, np.int64), np.zeros(count + 1)
    best[0] = 0.0
    read, last = 0, -1
    for t in range(frames):
        row = flat[start + t * stride : start + t * stride + vocabulary]
        top = row_stat(row, blank, stat, like)
        token = -1
        if np.float32(top) - np.float32(row[blank]) > _LEAST:
            token = _place_of(row, top, blank, like)
        read += token >= 0 and token != last
        last = token
        for i in range(known):
            score[i] = row[distinct[i]]
        row_scores(score, score, stat, weight, share, enter, stay, like)
        for i in range(0, P.size, width(like)):
            store(exp(narrow(load(enter, i, 0.0, like), like)), P, i)
        # From the last to the first, each state from what was there before the frame. Those left out lead nowhere.
        for s in range(min(count, t + 1), max(0, count - frames + t), -1):
            own = column[s - 1]
            staying, entering = best[s] + stay[column[s]], best[s - 1] + enter[own]
            if entering > staying:
                best[s], labels[s] = entering, labels[s - 1] + (token >= 0)
                probability[s] = probability[s - 1] + P[own]
            else:
                best[s] = staying
        best[0] += stay[column[0]]
    return read, labels[count], probability[count], best[count] > -np.inf


@jit
def _place_of(row: Any, top: Any, blank: Any, like: Any) -> Any:
    """The first token but blank that has the score `top`."""
    for start in range(0, row.size, _SOME):
        block = row[start : start + _SOME]
        if maximum(block, like) >= top:
            for i in range(block.size):
                if block[i] == top and start + i != blank:
                    return start + i
    return -1
