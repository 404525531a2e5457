"""The best path of a piece of a recording through its part of a text, on the CPU: see `starseq.decode.recording`.

States: 2u is the gap before token u, 2u + 1 is token u, 2U is the gap behind all.
"""

from __future__ import annotations

import math
from typing import Any

from starseq.numba_cache import kept

__all__ = ["BLANK", "FIRST_LABEL", "FROM_LAST", "OTHER", "PAUSE", "SKIPS", "STAYS", "advance", "backtrace"]

BLANK, PAUSE, OTHER, FIRST_LABEL = 0, 1, 2, 3
"""columns of the scores: the blank; the best of what parts words; the best of all other tokens; and the labels from here on"""
STAYS, FROM_LAST, SKIPS = 0, 1, 2
"""how a state was reached: from itself, from the state before it, from further back"""


def _advance(
    x: Any,
    column: Any,
    joins: Any,
    back: Any,
    skip: Any,
    lo: Any,
    hi: Any,
    offset: Any,
    score: Any,
    choice: Any,
    star: float,
) -> None:
    """Takes `score` (2U+1,) float64 of all states over the frames of x (n, C), and writes to `choice` how each was reached.

    column (U,): of a token in x. joins (U,): whether it may follow the token before it without a blank. back (U+1,): of an open gap
    the gap before its word, -1 where it has none; -2 for a gap inside a word. skip (U+1,): the score of leaving that word out.
    lo, hi (n,): the states that exist in a frame. Neither of them falls. offset (n,): where the choices of a frame begin.
    """
    last = 0
    for t in range(x.shape[0]):
        first, end, at = lo[t], hi[t], offset[t] - lo[t]
        for j in range(last, first):
            score[j] = -math.inf
        last = first
        inside = x[t, BLANK]
        between = max(x[t, PAUSE], x[t, OTHER] + star)
        for j in range(end - 1, first - 1, -1):
            best, how = score[j], STAYS
            if j > 0 and score[j - 1] > best:
                best, how = score[j - 1], FROM_LAST
            u = j >> 1
            if j & 1:
                if j > 1 and joins[u] and score[j - 2] > best:
                    best, how = score[j - 2], SKIPS
                best += x[t, column[u]]
            else:
                best += inside if back[u] == -2 else between
            score[j] = best
            choice[at + j] = how
        for u in range((first + 1) >> 1, (end + 1) >> 1):
            before = back[u]
            if before >= 0 and 2 * before >= first:
                left_out = score[2 * before] + skip[u]
                if left_out > score[2 * u]:
                    score[2 * u] = left_out
                    choice[at + 2 * u] = SKIPS


def _backtrace(choice: Any, lo: Any, offset: Any, back: Any, state: int, path: Any) -> None:
    """The states of the best path (n,) that ends in `state`."""
    for t in range(path.size - 1, -1, -1):
        how = choice[offset[t] + state - lo[t]]
        while how == SKIPS and not state & 1:
            state = 2 * back[state >> 1]
            how = choice[offset[t] + state - lo[t]]
        path[t] = state
        state -= how


advance: Any = kept(_advance, nogil=True)
backtrace: Any = kept(_backtrace, nogil=True)
