"""Forward-backward and Viterbi over banded graphs on a GPU. Same functions as banded_torch.

One program an utterance and direction: its states live in registers, a frame is one step of its loop, and the scores of the next
frames are on their way while this one is computed. Both directions run at the same time.
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
    lengths = lengths.contiguous()
    log_alpha = log_stay.new_empty(batch, frames + 1, states)
    log_beta = torch.empty_like(log_alpha) if backward else log_stay.new_empty(0)
    log_z = log_stay.new_empty(batch)
    block = triton.next_power_of_2(states)
    if batch:
        _forward_backward[(batch, 2 if backward else 1)](
            log_stay, log_enter, topology.num_states, topology.skip, lengths, log_alpha, log_beta, log_z,
            frames, states, topology.ends, topology.skip is not None, exact, block, num_warps=warps(block),
        )  # fmt: skip
    return log_alpha, log_beta, log_z


def viterbi(log_stay: Tensor, log_enter: Tensor, topology: Topology, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """See banded_torch.viterbi."""
    batch, frames, states = log_stay.shape
    lengths = lengths.contiguous()
    steps = torch.empty(batch, frames, states, dtype=torch.int8, device=log_stay.device)
    path = torch.empty(batch, frames, dtype=torch.int64, device=log_stay.device)
    log_score = log_stay.new_empty(batch)
    block = triton.next_power_of_2(states)
    if batch:
        _viterbi[(batch,)](
            log_stay, log_enter, topology.num_states, topology.skip, lengths, steps, path, log_score,
            frames, states, topology.ends, topology.skip is not None, block, num_warps=warps(block),
        )  # fmt: skip
    return path, log_score


def warps(block: int) -> int:
    """One state a thread, up to 8 warps: beyond, waiting for each other costs more than it saves."""
    return min(max(block // 32, 1), 8)


@triton.jit
def _step(
    current, stay, enter, has_one, one, two, skip, FORWARD: tl.constexpr, SKIP: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """The sums one frame on, from those of the states themselves and of their neighbours `one` and `two`."""
    moving = current if FORWARD else current + enter
    other = tl.where(has_one, tl.gather(moving, one, 0), float("-inf"))
    if SKIP:
        other = logaddexp(other, tl.where(skip, tl.gather(moving, two, 0), float("-inf")), EXACT)
    if FORWARD:
        other += enter
    return logaddexp(current + stay, other, EXACT)


@triton.jit
def _sums(
    stays, enters, out, stride, current, s, S, num_states, frames, has_one, one, two, skip,
    FORWARD: tl.constexpr, SKIP: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes `current` through all frames, writes it before the first and after each, and returns the last.

    stays, enters, out: pointers to the states s of the first frame; `stride` leads from a frame to the next.
    """
    tl.store(out, current, mask=s < S)
    ready = s < tl.where(frames > 0, num_states, 0)
    last = frames - 1
    none = float("-inf")
    done = frames * 0
    if BLOCK <= 512:  # wider graphs take longer for a frame than memory does, and have no registers to spare
        # Scores come from memory more slowly than frames are computed: those of four frames are on their way at a time.
        to = tl.minimum(last, 1) * stride
        stay0, stay1 = tl.load(stays, mask=ready, other=none), tl.load(stays + to, mask=ready, other=none)
        enter0, enter1 = tl.load(enters, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
        to = tl.minimum(last, 2) * stride
        stay2, enter2 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
        to = tl.minimum(last, 3) * stride
        stay3, enter3 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
        for t in range(0, frames - 3, 4):
            current = _step(current, stay0, enter0, has_one, one, two, skip, FORWARD, SKIP, EXACT)
            tl.store(out + (t + 1) * stride, current, mask=s < S)
            to = tl.minimum(last, t + 4) * stride
            stay0, enter0 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
            current = _step(current, stay1, enter1, has_one, one, two, skip, FORWARD, SKIP, EXACT)
            tl.store(out + (t + 2) * stride, current, mask=s < S)
            to = tl.minimum(last, t + 5) * stride
            stay1, enter1 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
            current = _step(current, stay2, enter2, has_one, one, two, skip, FORWARD, SKIP, EXACT)
            tl.store(out + (t + 3) * stride, current, mask=s < S)
            to = tl.minimum(last, t + 6) * stride
            stay2, enter2 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
            current = _step(current, stay3, enter3, has_one, one, two, skip, FORWARD, SKIP, EXACT)
            tl.store(out + (t + 4) * stride, current, mask=s < S)
            to = tl.minimum(last, t + 7) * stride
            stay3, enter3 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
        done = frames // 4 * 4
    to = tl.minimum(last, done) * stride
    next_stay, next_enter = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
    for t in range(done, frames):
        stay, enter = next_stay, next_enter
        to = tl.minimum(last, t + 1) * stride
        next_stay, next_enter = (
            tl.load(stays + to, mask=ready, other=none),
            tl.load(enters + to, mask=ready, other=none),
        )
        current = _step(current, stay, enter, has_one, one, two, skip, FORWARD, SKIP, EXACT)
        tl.store(out + (t + 1) * stride, current, mask=s < S)
    return current


@triton.jit
def forward_sums(
    stays, enters, alpha, s, S, num_states, frames, final, skip, SKIP: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Writes log_alpha of one utterance and returns its log_z.

    stays, enters, alpha: pointers to its first frame's states s. final: where paths may end. skip: whether s is entered from s-2.
    """
    current = tl.where(s == 0, 0.0, tl.full((BLOCK,), float("-inf"), tl.float64))
    one, two = tl.maximum(s - 1, 0), tl.maximum(s - 2, 0)
    current = _sums(
        stays, enters, alpha, S, current, s, S, num_states, frames, s > 0, one, two, skip, True, SKIP, EXACT, BLOCK
    )
    return log_sum(tl.where(final, current, float("-inf")), EXACT)


@triton.jit
def backward_sums(
    stays, enters, beta, s, S, num_states, frames, final, skip, SKIP: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Writes log_beta of one utterance. As `forward_sums`; skip: whether s+2 is entered from s."""
    current = tl.where(final, 0.0, tl.full((BLOCK,), float("-inf"), tl.float64))
    one, two = tl.minimum(s + 1, BLOCK - 1), tl.minimum(s + 2, BLOCK - 1)
    back = (frames - 1) * S
    _sums(
        stays + back, enters + back, beta + frames * S, -S, current, s, S, num_states, frames, s + 1 < num_states, one, two,
        skip, False, SKIP, EXACT, BLOCK,
    )  # fmt: skip


@triton.jit
def surroundings(alpha, beta, z, s, exists, skip, SKIP: tl.constexpr):
    """Of one frame: the log of what surrounds each state's self-loop, its arc from s-1 and its arc from s-2, over z.

    alpha: pointers to states s before the frame, beta: after it.
    """
    after = tl.load(beta, mask=exists, other=float("-inf")) - z
    stay = tl.load(alpha, mask=exists, other=float("-inf")) + after
    one = tl.load(alpha - 1, mask=exists & (s > 0), other=float("-inf")) + after
    two = one
    if SKIP:
        two = tl.load(alpha - 2, mask=skip, other=float("-inf")) + after
    return stay, one, two


@triton.jit(do_not_specialize=["T", "S"])  # they change from batch to batch
def _forward_backward(
    stay_ptr, enter_ptr, num_states_ptr, skip_ptr, lengths_ptr, alpha_ptr, beta_ptr, z_ptr,
    T, S, ENDS: tl.constexpr, SKIP: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    num_states = tl.minimum(tl.load(num_states_ptr + b), S)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b), T), 0).to(tl.int32)
    final = (s < num_states) & (s >= num_states - ENDS)
    stays = stay_ptr + b * T * S + s
    enters = enter_ptr + b * T * S + s
    skip = s < 0
    if tl.program_id(1) == 0:
        if SKIP:
            leaps = (s > 1) & (s < num_states)
            skip = leaps & (tl.load(skip_ptr + b * S + s, mask=leaps, other=0) != 0)
        alpha = alpha_ptr + b * (T + 1) * S + s
        z = forward_sums(stays, enters, alpha, s, S, num_states, frames, final, skip, SKIP, EXACT, BLOCK)
        tl.store(z_ptr + b, z)
    else:
        if SKIP:
            leaps = s + 2 < num_states
            skip = leaps & (tl.load(skip_ptr + b * S + s + 2, mask=leaps, other=0) != 0)
        beta = beta_ptr + b * (T + 1) * S + s
        backward_sums(stays, enters, beta, s, S, num_states, frames, final, skip, SKIP, EXACT, BLOCK)


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
