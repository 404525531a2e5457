"""Forward-backward of one utterance without logarithms: a multiplication and an addition an arc, instead of an exponential and a
logarithm.

The sums are float64 numbers and powers of two beside them, which follow the largest state. What a state has of less than 2^-1000 of
that one is lost; whether that could matter is known in the end, and then the answer is no answer: see banded_numba for one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from starseq.lattice.elementary_numba import jit, jit_inline, maximum
from starseq.lattice.lanes_numba import LANES, load, store, width

_STEPS = 8  # between one look at the largest state and the next
_SPAN = 800  # powers of two: what is lost then is less than 2^-200 of a posterior


@jit_inline
def padded(states: Any) -> Any:
    """The length of a row of so many states in whole vectors."""
    return (states + LANES - 1) // LANES * LANES


@jit_inline
def _forward(now: Any, to: Any, row: Any, size: Any, stay: Any, enter: Any, skip: Any, sums: Any, like: Any) -> None:
    """The sums at `to` from those at `now`. stay, enter: at `row`."""
    for i in range(0, size, width(like)):
        moving = load(sums, now + i - 1, 0.0, like)
        if skip.size:
            moving = moving + load(sums, now + i - 2, 0.0, like) * load(skip, i, 0.0, like)
        moving = moving * load(enter, row + i, 0.0, like)
        store(load(sums, now + i, 0.0, like) * load(stay, row + i, 0.0, like) + moving, sums, to + i)


@jit_inline
def _backward(now: Any, to: Any, row: Any, size: Any, stay: Any, enter: Any, skip: Any, sums: Any, like: Any) -> None:
    for i in range(0, size, width(like)):
        moving = load(sums, now + i + 1, 0.0, like) * load(enter, row + i + 1, 0.0, like)
        if skip.size:
            further = load(sums, now + i + 2, 0.0, like) * load(enter, row + i + 2, 0.0, like)
            moving = moving + further * load(skip, i + 2, 0.0, like)
        store(load(sums, now + i, 0.0, like) * load(stay, row + i, 0.0, like) + moving, sums, to + i)


@jit_inline
def _rescale(sums: Any, to: Any, size: Any, like: Any) -> Any:
    """Brings the largest into 1/2..1 by a power of two, which is returned; NaN where it is too far off."""
    _, power = math.frexp(maximum(sums[to : to + size], like))
    if not abs(power) < _SPAN:
        return np.nan
    factor = math.ldexp(1.0, -power)
    for i in range(0, size, width(like)):
        store(load(sums, to + i, 0.0, like) * factor, sums, to + i)
    return np.float64(power)


@jit_inline
def _keep(sums: Any, at: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        store(load(sums, at + i, 0.0, like), out, i)


@jit
def sum_scaled(
    stay: Any, enter: Any, ends: Any, skip: Any, frames: Any, states: Any, alpha: Any, beta: Any, visits: Any, factor: Any,
    powers: Any, sums: Any, like: Any,
) -> Any:  # fmt: skip
    """Fills alpha and beta (T+1, S) of one utterance from the weights of its arcs, and returns log_z.

    stay, enter: one row of padded(states) after the other, without arcs 0, and LANES zeros after the last row. skip: the same for
    a single row, 1 or 0, or empty. With factor[t], also filled, alpha[t] * arc * beta[t+1] * factor[t] is the posterior of an arc
    of frame t; with `visits`, alpha[t+1] * beta[t+1] * factor[t] that of the state after it. For scratch: powers (2, T+1); sums,
    4 * (padded(states) + 2 * LANES).

    Returns NaN where there is no path, and where numbers are too far apart for this.
    """
    size = padded(states)
    sums[:] = 0.0  # also on both sides of each row, for the neighbours of the first states and of the last
    up_now, up_next, down_now, down_next = LANES, 3 * LANES + size, 5 * LANES + 2 * size, 7 * LANES + 3 * size
    sums[up_now] = 1.0
    sums[down_now + max(states - ends, 0) : down_now + states] = 1.0
    _keep(sums, up_now, alpha[0, :states], like)
    _keep(sums, down_now, beta[frames, :states], like)
    up = down = powers[0, 0] = powers[1, frames] = 0.0
    for t in range(frames):
        r = frames - 1 - t
        _forward(up_now, up_next, t * size, size, stay, enter, skip, sums, like)
        _backward(down_now, down_next, r * size, size, stay, enter, skip, sums, like)
        if t % _STEPS == _STEPS - 1:
            up += _rescale(sums, up_next, size, like)
            down += _rescale(sums, down_next, size, like)
        _keep(sums, up_next, alpha[t + 1, :states], like)
        _keep(sums, down_next, beta[r, :states], like)
        powers[0, t + 1], powers[1, r] = up, down
        up_now, up_next, down_now, down_next = up_next, up_now, down_next, down_now
    z = 0.0
    for s in range(max(states - ends, 0), states):
        z += sums[up_now + s]
    fraction, power = math.frexp(z)
    if not (z > 0.0 and z < np.inf and up + down < np.inf and abs(power) < _SPAN):
        return np.nan
    whole, inverse, last, scale = power + up, 1.0 / fraction, np.nan, 1.0
    for t in range(frames):
        more = powers[0, t + 1 if visits else t] + powers[1, t + 1] - whole
        if more != last:
            if not abs(more) < _SPAN:
                return np.nan
            last, scale = more, math.ldexp(inverse, int(more))
        factor[t] = scale
    return math.log(fraction) + whole * math.log(2.0)
