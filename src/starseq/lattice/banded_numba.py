"""Forward-backward and Viterbi over banded graphs on the CPU. Same functions as banded_torch, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from starseq.lattice import threads
from starseq.lattice.elementary_numba import exp, jit, jit_inline, jit_outer, logaddexp
from starseq.lattice.lanes_numba import load, narrow, select, store, widen, width
from starseq.lattice.topology import Topology


def forward_backward(
    log_stay: Tensor,
    log_enter: Tensor,
    topology: Topology,
    lengths: Tensor,
    *,
    backward: bool = True,
    exact: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """See banded_torch.forward_backward. All sums are float64; without `exact` their corrections are float32."""
    batch, frames, states = log_stay.shape
    log_alpha = log_stay.new_empty(batch, frames + 1, states)
    log_beta = log_stay.new_empty(batch if backward else 0, frames + 1, states)
    log_z = log_stay.new_empty(batch)
    directions = 2 if backward else 1
    threads.run(
        _forward_backward, batch * directions, 4 * directions * log_stay.numel(), directions,
        log_stay.numpy(), log_enter.numpy(), *arrays_of(topology), lengths.numpy(),
        log_alpha.numpy(), log_beta.numpy(), log_z.numpy(), np.empty(0, np.float64 if exact else np.float32),
    )  # fmt: skip
    return log_alpha, log_beta if backward else log_beta.view(0), log_z


def viterbi(log_stay: Tensor, log_enter: Tensor, topology: Topology, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """See banded_torch.viterbi."""
    batch, frames, states = log_stay.shape
    path = torch.full((batch, frames), -1, dtype=torch.int64)
    log_score = log_stay.new_empty(batch)
    steps = np.empty((batch, frames, states), np.int8)
    threads.run(
        _viterbi, batch, 2 * log_stay.numel(),
        log_stay.numpy(), log_enter.numpy(), *arrays_of(topology), lengths.numpy(), steps, path.numpy(), log_score.numpy(),
    )  # fmt: skip
    return path, log_score


def arrays_of(topology: Topology) -> tuple[Any, int, Any]:
    """num_states, ends and skip for compiled code; skip has no states where no graph skips."""
    skip = np.empty((0, 0), np.bool_) if topology.skip is None else topology.skip.numpy()
    return topology.num_states.numpy(), topology.ends, skip


@jit_inline
def _reach(step: Any, frames: Any, states: Any, width: Any) -> Any:
    """The states at time `step` that lie on some path: reachable from state 0, and able to reach the last two states."""
    low = max(0, states - 2 - width * (frames - step))
    return min(low, states), max(min(low, states), min(states, 1 + width * step))


@jit_inline
def _sum_chain(here: Any, stay: Any, beside: Any, move: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        staying = load(here, i, 0.0, like) + load(stay, i, 0.0, like)
        store(logaddexp(staying, load(beside, i, 0.0, like) + load(move, i, 0.0, like), like), out, i)


@jit_inline
def _forward_skip(here: Any, stay: Any, one: Any, two: Any, skip: Any, enter: Any, out: Any, like: Any) -> None:
    for i in range(0, out.size, width(like)):
        further = select(load(skip, i, 0.0, like), load(two, i, 0.0, like), -np.inf)
        entering = logaddexp(load(one, i, 0.0, like), further, like) + load(enter, i, 0.0, like)
        store(logaddexp(load(here, i, 0.0, like) + load(stay, i, 0.0, like), entering, like), out, i)


@jit_inline
def _backward_skip(
    here: Any, stay: Any, one: Any, enter_one: Any, two: Any, enter_two: Any, skip: Any, out: Any, like: Any
) -> None:
    for i in range(0, out.size, width(like)):
        further = load(two, i, 0.0, like) + load(enter_two, i, 0.0, like)
        further = select(load(skip, i, 0.0, like), further, -np.inf)
        leaving = logaddexp(load(one, i, 0.0, like) + load(enter_one, i, 0.0, like), further, like)
        store(logaddexp(load(here, i, 0.0, like) + load(stay, i, 0.0, like), leaving, like), out, i)


@jit_inline
def _forward(
    t: Any, log_stay: Any, log_enter: Any, skip: Any, frames: Any, states: Any, log_alpha: Any, like: Any
) -> None:
    """log_alpha[t + 1] from log_alpha[t]."""
    width = 2 if skip.shape[0] else 1
    before, after, stay, enter = log_alpha[t], log_alpha[t + 1], log_stay[t], log_enter[t]
    low, high = _reach(t + 1, frames, states, width)
    after[:low] = -np.inf
    after[high:] = -np.inf
    for s in range(low, min(width, high)):
        after[s] = before[s] + stay[s]
        if s > 0:  # as many arcs lead to state 1 as to any other of a chain
            after[s] = logaddexp(after[s], before[s - 1] + enter[s], like)
    low = max(low, width)
    if low >= high:
        return
    here, one, out = before[low:high], before[low - 1 : high - 1], after[low:high]
    if width == 1:
        _sum_chain(here, stay[low:high], one, enter[low:high], out, like)
    else:
        two = before[low - 2 : high - 2]
        _forward_skip(here, stay[low:high], one, two, skip[low:high], enter[low:high], out, like)


@jit_inline
def _backward(
    t: Any, log_stay: Any, log_enter: Any, skip: Any, frames: Any, states: Any, log_beta: Any, like: Any
) -> None:
    """log_beta[t] from log_beta[t + 1]."""
    width = 2 if skip.shape[0] else 1
    after, before, stay, enter = log_beta[t + 1], log_beta[t], log_stay[t], log_enter[t]
    low, high = _reach(t, frames, states, width)
    before[:low] = -np.inf
    before[high:] = -np.inf
    inner = max(low, min(high, states - width))
    here, one, out = after[low:inner], after[low + 1 : inner + 1], before[low:inner]
    if width == 1:
        _sum_chain(here, stay[low:inner], one, enter[low + 1 : inner + 1], out, like)
    else:
        two, enter_two, skips = after[low + 2 : inner + 2], enter[low + 2 : inner + 2], skip[low + 2 : inner + 2]
        _backward_skip(here, stay[low:inner], one, enter[low + 1 : inner + 1], two, enter_two, skips, out, like)
    for s in range(inner, high):
        before[s] = stay[s] + after[s]
        if s + 1 < states:
            before[s] = logaddexp(before[s], enter[s + 1] + after[s + 1], like)


@jit
def sum_utterance(
    log_stay: Any,
    log_enter: Any,
    ends: Any,
    skip: Any,
    frames: Any,
    states: Any,
    log_alpha: Any,
    log_beta: Any,
    like: Any,
) -> Any:
    """Fills log_alpha and log_beta (T+1, S) of one utterance from its scores (T, S), and returns log_z.

    Either may be empty, and is then left out (without log_alpha the result is NaN). skip: (S,), or empty. Both are filled in
    turns: neither waits for the other, so the processor works on two steps at once.
    """
    if log_alpha.size:
        log_alpha[0, :] = -np.inf
        log_alpha[0, 0] = 0.0
    if log_beta.size:
        log_beta[frames, :] = -np.inf
        log_beta[frames, max(states - ends, 0) : states] = 0.0
    for t in range(frames):
        if log_alpha.size:
            _forward(t, log_stay, log_enter, skip, frames, states, log_alpha, like)
        if log_beta.size:
            _backward(frames - 1 - t, log_stay, log_enter, skip, frames, states, log_beta, like)
    if not log_alpha.size:
        return np.nan
    log_z = -np.inf
    for s in range(max(states - ends, 0), states):
        log_z = logaddexp(log_z, log_alpha[frames, s], like)
    return log_z


@jit_inline
def add_posteriors(log_alpha: Any, log_score: Any, log_beta: Any, log_z: Any, sums: Any, like: Any) -> None:
    """Adds to the sums (S,) the posteriors of one arc a state at a frame."""
    for i in range(0, sums.size, width(like)):
        x = (load(log_alpha, i, 0.0, like) + load(log_beta, i, 0.0, like) - log_z) + load(log_score, i, 0.0, like)
        store(load(sums, i, 0.0, like) + widen(exp(narrow(x, like))), sums, i)


@jit
def _forward_backward(
    begin: Any, end: Any, directions: Any, log_stay: Any, log_enter: Any, num_states: Any, ends: Any, skips: Any,
    lengths: Any, log_alpha: Any, log_beta: Any, log_z: Any, like: Any,
) -> None:  # fmt: skip
    for item in range(begin, end):
        b = item // directions
        frames, states = lengths[b], num_states[b]
        skip = skips[b] if skips.shape[0] else skips.reshape(-1)
        if item % directions == 0:
            log_z[b] = sum_utterance(
                log_stay[b], log_enter[b], ends, skip, frames, states, log_alpha[b], log_alpha[b, :0], like
            )
        else:
            sum_utterance(log_stay[b], log_enter[b], ends, skip, frames, states, log_beta[b, :0], log_beta[b], like)


@jit_outer
def _viterbi(
    begin: Any, end: Any, log_stay: Any, log_enter: Any, num_states: Any, ends: Any, skips: Any, lengths: Any, steps: Any,
    path: Any, log_score: Any,
) -> None:  # fmt: skip
    best, previous = np.empty(log_stay.shape[2]), np.empty(log_stay.shape[2])
    for b in range(begin, end):
        states = num_states[b]
        best[:] = -np.inf
        best[0] = 0.0
        for t in range(lengths[b]):
            best, previous = previous, best
            for s in range(states):
                score, step = previous[s] + log_stay[b, t, s], 0
                if s > 0 and previous[s - 1] + log_enter[b, t, s] > score:
                    score, step = previous[s - 1] + log_enter[b, t, s], 1
                if skips.shape[0] and s > 1 and skips[b, s] and previous[s - 2] + log_enter[b, t, s] > score:
                    score, step = previous[s - 2] + log_enter[b, t, s], 2
                best[s] = score
                steps[b, t, s] = step
        log_score[b], state = -np.inf, -1
        for s in range(max(states - ends, 0), states):
            if best[s] > log_score[b]:
                log_score[b], state = best[s], s
        if state >= 0:
            for t in range(lengths[b] - 1, -1, -1):
                path[b, t] = state
                state -= steps[b, t, state]
