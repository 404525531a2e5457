"""Forward-backward and Viterbi over banded graphs on a GPU. Same functions as banded_torch.

One program an utterance and direction: its states live in registers, a frame is one step of its loop, and the scores of the next
frame are on their way while this one is computed. Both directions run at the same time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.lattice.elementary_triton import log_sum, logaddexp
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
    log_beta = torch.empty_like(log_alpha) if backward else log_stay.new_empty(0)
    log_z = log_stay.new_empty(batch)
    block = triton.next_power_of_2(states)
    if batch:
        _forward_backward[(batch, 2 if backward else 1)](
            log_stay, log_enter, topology.num_states, topology.skip, lengths, log_alpha, log_beta, log_z,
            frames, states, topology.ends, topology.skip is not None, exact, block, num_warps=_warps(block),
        )  # fmt: skip
    return log_alpha, log_beta, log_z


def viterbi(log_stay: Tensor, log_enter: Tensor, topology: Topology, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """See banded_torch.viterbi."""
    batch, frames, states = log_stay.shape
    steps = torch.empty(batch, frames, states, dtype=torch.int8, device=log_stay.device)
    path = torch.empty(batch, frames, dtype=torch.int64, device=log_stay.device)
    log_score = log_stay.new_empty(batch)
    block = triton.next_power_of_2(states)
    if batch:
        _viterbi[(batch,)](
            log_stay, log_enter, topology.num_states, topology.skip, lengths, steps, path, log_score,
            frames, states, topology.ends, topology.skip is not None, block, num_warps=_warps(block),
        )  # fmt: skip
    return path, log_score


def _warps(block: int) -> int:
    """One state a thread, up to 8 warps: beyond, waiting for each other costs more than it saves."""
    return min(max(block // 32, 1), 8)


@triton.jit(do_not_specialize=["T", "S"])  # they change from batch to batch
def _forward_backward(
    stay_ptr, enter_ptr, num_states_ptr, skip_ptr, lengths_ptr, alpha_ptr, beta_ptr, z_ptr,
    T, S, ENDS: tl.constexpr, SKIP: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    num_states = tl.minimum(tl.load(num_states_ptr + b), S)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b), T), 0).to(tl.int32)
    exists = s < num_states
    final = exists & (s >= num_states - ENDS)
    stays = stay_ptr + b * T * S + s
    enters = enter_ptr + b * T * S + s
    never = tl.full((BLOCK,), float("-inf"), tl.float64)

    if tl.program_id(1) == 0:
        alpha = alpha_ptr + b * (T + 1) * S + s
        current = tl.where(s == 0, 0.0, never)
        tl.store(alpha, current, mask=s < S)
        one, two = tl.maximum(s - 1, 0), tl.maximum(s - 2, 0)
        if SKIP:
            skip = exists & (s > 1) & (tl.load(skip_ptr + b * S + s, mask=exists, other=0) != 0)
        ready = s < tl.where(frames > 0, num_states, 0)
        next_stay = tl.load(stays, mask=ready, other=float("-inf"))
        next_enter = tl.load(enters, mask=ready, other=float("-inf"))
        for t in range(frames):
            stay, enter = next_stay, next_enter
            stays += S
            enters += S
            alpha += S
            ready = s < tl.where(t + 1 < frames, num_states, 0)
            next_stay = tl.load(stays, mask=ready, other=float("-inf"))
            next_enter = tl.load(enters, mask=ready, other=float("-inf"))
            entering = tl.where(s > 0, tl.gather(current, one, 0), float("-inf"))
            if SKIP:
                entering = logaddexp(entering, tl.where(skip, tl.gather(current, two, 0), float("-inf")), EXACT)
            current = logaddexp(current + stay, entering + enter, EXACT)
            tl.store(alpha, current, mask=s < S)
        tl.store(z_ptr + b, log_sum(tl.where(final, current, float("-inf")), EXACT))
    else:
        beta = beta_ptr + b * (T + 1) * S + frames * S + s
        current = tl.where(final, 0.0, never)
        tl.store(beta, current, mask=s < S)
        one, two = tl.minimum(s + 1, BLOCK - 1), tl.minimum(s + 2, BLOCK - 1)
        if SKIP:
            leaps = s + 2 < num_states
            skip = leaps & (tl.load(skip_ptr + b * S + s + 2, mask=leaps, other=0) != 0)
        stays += (frames - 1) * S
        enters += (frames - 1) * S
        ready = s < tl.where(frames > 0, num_states, 0)
        next_stay = tl.load(stays, mask=ready, other=float("-inf"))
        next_enter = tl.load(enters, mask=ready, other=float("-inf"))
        for t in range(frames):
            stay, enter = next_stay, next_enter
            stays -= S
            enters -= S
            beta -= S
            ready = s < tl.where(t + 1 < frames, num_states, 0)
            next_stay = tl.load(stays, mask=ready, other=float("-inf"))
            next_enter = tl.load(enters, mask=ready, other=float("-inf"))
            entered = current + enter
            leaving = tl.where(s + 1 < num_states, tl.gather(entered, one, 0), float("-inf"))
            if SKIP:
                leaving = logaddexp(leaving, tl.where(skip, tl.gather(entered, two, 0), float("-inf")), EXACT)
            current = logaddexp(current + stay, leaving, EXACT)
            tl.store(beta, current, mask=s < S)


@triton.jit(do_not_specialize=["T", "S"])
def _viterbi(
    stay_ptr, enter_ptr, num_states_ptr, skip_ptr, lengths_ptr, steps_ptr, path_ptr, score_ptr,
    T, S, ENDS: tl.constexpr, SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    num_states = tl.minimum(tl.load(num_states_ptr + b), S)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b), T), 0).to(tl.int32)
    exists = s < num_states
    final = exists & (s >= num_states - ENDS)
    if SKIP:
        skip = exists & (s > 1) & (tl.load(skip_ptr + b * S + s, mask=exists, other=0) != 0)
    one, two = tl.maximum(s - 1, 0), tl.maximum(s - 2, 0)
    best = tl.where(s == 0, 0.0, tl.full((BLOCK,), float("-inf"), tl.float64))
    for t in range(frames):
        row = (b * T + t) * S + s
        enter = tl.load(enter_ptr + row, mask=exists, other=float("-inf"))
        score = best + tl.load(stay_ptr + row, mask=exists, other=float("-inf"))
        step = tl.zeros((BLOCK,), tl.int8)
        moved = tl.where(s > 0, tl.gather(best, one, 0), float("-inf")) + enter
        step = tl.where(moved > score, 1, step).to(tl.int8)
        score = tl.where(moved > score, moved, score)
        if SKIP:
            moved = tl.where(skip, tl.gather(best, two, 0), float("-inf")) + enter
            step = tl.where(moved > score, 2, step).to(tl.int8)
            score = tl.where(moved > score, moved, score)
        best = score
        tl.store(steps_ptr + row, step, mask=exists)
    ends = tl.where(final, best, float("-inf"))
    top = tl.max(ends, axis=0)
    tl.store(score_ptr + b, top)
    state = tl.argmax(ends, axis=0).to(tl.int64)  # ties go to the first
    tl.debug_barrier()  # the steps were written by other threads of this program
    reached = top > float("-inf")
    for t in range(frames, T):
        tl.store(path_ptr + b * T + t, tl.full((), -1, tl.int64))
    for i in range(frames):
        t = frames - 1 - i
        tl.store(path_ptr + b * T + t, tl.where(reached, state, -1))
        if reached:
            state -= tl.load(steps_ptr + (b * T + t) * S + state).to(tl.int64)
