"""Forward-backward and Viterbi over banded graphs in plain torch: the readable version, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

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
    """The log-sums over all paths into, and out of, every state.

        alpha[t+1, s] = alpha[t, s] * stay[t, s] + (alpha[t, s-1] + skip[s] * alpha[t, s-2]) * enter[t, s]
        beta[t, s]    = stay[t, s] * beta[t+1, s] + enter[t, s+1] * beta[t+1, s+1] + skip[s+2] * enter[t, s+2] * beta[t+1, s+2]

    log_stay, log_enter: (B, T, S) scores of the self-loops and of the arcs that enter a state. lengths: (B,) frames.
    Returns log_alpha (B, T+1, S), log_beta (B, T+1, S) (empty without `backward`) and log_z (B,). Nothing past a graph's
    frames and states is read. Without `exact` a backend may compute the corrections of log-sums in float32; this one does not.
    """
    batch, frames, states = log_stay.shape
    exists = torch.arange(states, device=log_stay.device) < topology.num_states[:, None]
    log_stay = log_stay.masked_fill(~exists[:, None], -torch.inf)
    log_enter = log_enter.masked_fill(~exists[:, None], -torch.inf)
    log_final = _log(_final(topology, states), log_stay)
    log_skip = None if topology.skip is None else _log(topology.skip, log_stay)

    log_alpha = log_stay.new_full((batch, frames + 1, states), -torch.inf)
    log_alpha[:, 0, 0] = 0
    for t in range(frames):
        before = log_alpha[:, t]
        entering = _shift(before, 1)
        if log_skip is not None:
            entering = torch.logaddexp(entering, _shift(before, 2) + log_skip)
        after = torch.logaddexp(before + log_stay[:, t], entering + log_enter[:, t])
        log_alpha[:, t + 1] = torch.where((t < lengths)[:, None], after, before)
    log_z = torch.logsumexp(log_alpha[:, frames] + log_final, dim=1)
    if not backward:
        return log_alpha, log_alpha.new_empty(0), log_z

    log_beta = torch.empty_like(log_alpha)
    log_beta[:, frames] = log_final
    for t in reversed(range(frames)):
        after = log_beta[:, t + 1]
        entered = log_enter[:, t] + after
        leaving = _shift(entered, -1)
        if log_skip is not None:
            leaving = torch.logaddexp(leaving, _shift(entered + log_skip, -2))
        before = torch.logaddexp(log_stay[:, t] + after, leaving)
        log_beta[:, t] = torch.where((t < lengths)[:, None], before, after)
    return log_alpha, log_beta, log_z


def outside(log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
    """What lies outside each arc: exp(outside + score) is the arc's posterior. Both (B, T, S): self-loops, entering arcs."""
    before, after = log_alpha[:, :-1], log_beta[:, 1:] - log_z[:, None, None]
    entering = _shift(before, 1)
    if topology.skip is not None:
        entering = torch.logaddexp(entering, _shift(before, 2) + _log(topology.skip, log_alpha)[:, None])
    return before + after, entering + after


def viterbi(log_stay: Tensor, log_enter: Tensor, topology: Topology, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The best path: the state after each frame, (B, T), -1 past the length, and its log-score, (B,).

    Ties go to the self-loop, then to the nearer state. Without any path the score is -inf and the states are -1.
    """
    batch, frames, states = log_stay.shape
    exists = torch.arange(states, device=log_stay.device) < topology.num_states[:, None]
    never = torch.full_like(log_stay[:, 0] if frames else log_stay.new_empty(batch, states), -torch.inf)
    log_skip = never if topology.skip is None else _log(topology.skip, log_stay)
    best = never.clone()
    best[:, 0] = 0
    steps = torch.zeros(batch, frames, states, dtype=torch.int64, device=log_stay.device)
    for t in range(frames):
        arcs = (best + log_stay[:, t], _shift(best, 1) + log_enter[:, t], _shift(best, 2) + log_skip + log_enter[:, t])
        after, step = torch.stack(arcs).masked_fill(~exists, -torch.inf).max(dim=0)
        steps[:, t] = step
        best = torch.where((t < lengths)[:, None], after, best)
    log_score, state = (best + _log(_final(topology, states), log_stay)).max(dim=1)
    path = torch.full((batch, frames), -1, dtype=torch.int64, device=log_stay.device)
    for t in reversed(range(frames)):
        inside = (t < lengths) & (log_score > -torch.inf)
        path[:, t] = torch.where(inside, state, -1)
        state = torch.where(inside, state - steps[:, t].gather(1, state[:, None])[:, 0], state)
    return path, log_score


def _final(topology: Topology, states: int) -> Tensor:
    """(B, S): where a path may end."""
    state, count = torch.arange(states, device=topology.num_states.device), topology.num_states[:, None]
    return (state < count) & (state >= count - topology.ends)


def _log(mask: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf)


def _shift(x: Tensor, by: int) -> Tensor:
    """Moves the last axis by `by` states, filling up with -inf."""
    return (
        torch.nn.functional.pad(x, (by, -by), value=-torch.inf)
        if x.shape[-1] >= abs(by)
        else torch.full_like(x, -torch.inf)
    )
