"""What the adaptive penalty sees in a batch on a GPU, and how it moves: three launches, and nothing waits for the device.

Frames first, each by itself: what is read there, and the scores of the arcs. Then a program an utterance walks through its frames.
It keeps no path: each state carries with it what the best path to it has found. Last, p moves.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.emissions.vocabulary_triton import row_scores
from starseq.lattice.banded_triton import warps
from starseq.lattice.elementary_triton import logaddexp
from starseq.lattice.launch_triton import launch_of
from starseq.penalty import look_torch
from starseq.penalty.look_torch import FIRST_SURE, FORGETS, KEPT, THRESHOLD

_LEAST = tl.constexpr(math.log(THRESHOLD / (1 - THRESHOLD)))
_KEPT, _FIRST_SURE, _FORGETS = tl.constexpr(KEPT), tl.constexpr(FIRST_SURE), tl.constexpr(FORGETS)
_UNIT = tl.constexpr(65536.0)
"""A label that is found counts so much beside its probability: both are carried in one number."""


def look(
    x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, open_gaps: Tensor | None, log_odds: Tensor, blank: int
) -> Tensor:
    """See look_torch.look."""
    (B, T, V), U = x.shape, targets.shape[1]
    if not (x.numel() and U):
        return look_torch.look(x, targets, frames, labels, open_gaps, log_odds, blank)
    scores = torch.empty(2, B, T, U + 1, dtype=torch.float64, device=x.device)
    token = torch.empty(B, T, dtype=torch.int32, device=x.device)
    found = torch.empty(B, 5, dtype=torch.float64, device=x.device)
    is_open = token if open_gaps is None else open_gaps.to(x.device)
    exact, block_v, block_s = x.dtype == torch.float64, triton.next_power_of_2(V), triton.next_power_of_2(U + 1)
    block_v = min(max(block_v, 16), 2048)
    frames, labels = frames.contiguous(), labels.contiguous()
    launch_of(_frames, (x.stride(2), exact, block_v, block_s), max(block_v // 512, 1))(
        (B * T, 1), (x, targets, frames, labels, log_odds, scores, token),
        (*x.stride()[:2], *targets.stride(), B, T, V, U, blank),
    )  # fmt: skip
    strides = (0, 0) if open_gaps is None else is_open.stride()
    launch_of(_walk, (open_gaps is not None, block_s), warps(block_s))(
        (B, 1), (frames, labels, is_open, scores, token, found), (*strides, B, T, U)
    )
    return found


def move(
    found: Tensor,
    log_odds: Tensor,
    counts: Tensor,
    record: Tensor,
    p_min: float,
    p_max: float,
    rate: float,
    share: float,
) -> None:
    """See look_torch.move."""
    launch_of(_move, (p_min, p_max, rate, share), 1)(
        (1, 1), (found.to(torch.float64), log_odds, counts, record), (len(found),)
    )


@triton.jit(
    do_not_specialize=["stride_b", "stride_t", "labels_b", "labels_u", "B", "T", "V", "U", "blank"],
)
def _frames(
    x_ptr, labels_ptr, lengths_ptr, counts_ptr, log_odds_ptr, scores_ptr, token_ptr,
    stride_b, stride_t, labels_b, labels_u, B, T, V, U, blank,
    STRIDE_V: tl.constexpr, EXACT: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One frame: the token that is read there, or -1, and the scores of staying and of entering, (2, B, T, U+1)."""
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    if t < tl.load(lengths_ptr + b):
        kind: tl.constexpr = tl.float64 if EXACT else tl.float32
        x_ptr += b * stride_b + t * stride_t
        lane = tl.arange(0, BLOCK_V)
        # Each lane keeps its largest score apart, where that was, and the sum of the others over it.
        tops = tl.full((BLOCK_V,), float("-inf"), kind)
        sums = tl.zeros((BLOCK_V,), kind)
        place = tl.full((BLOCK_V,), 0, tl.int32)
        for i in range(0, V, BLOCK_V):
            v = i + lane
            x = tl.load(x_ptr + v.to(tl.int64) * STRIDE_V, mask=(v < V) & (v != blank), other=float("-inf")).to(kind)
            larger = x > tops
            high, low = tl.where(larger, x, tops), tl.where(larger, tops, x)
            base = tl.where(high > float("-inf"), high, 0.0)
            sums = sums * tl.exp(tops - base) + tl.exp(low - base)
            place = tl.where(larger, v, place)
            tops = high
        top = tl.max(tops, axis=0)
        base = tl.where(top > float("-inf"), top, 0.0)
        best = tl.min(tl.where(tops == top, place, V), axis=0)  # of equals the first
        others = sums * tl.exp(tops - base) + tl.where(place == best, 0.0, tl.exp(tops - base))
        of_blank = tl.load(x_ptr + blank.to(tl.int64) * STRIDE_V).to(kind)
        is_read = top.to(tl.float32) - of_blank.to(tl.float32) > _LEAST
        tl.store(token_ptr + row, tl.where(is_read, best, -1))

        log_others = base.to(tl.float64) + tl.log(tl.sum(others, axis=0).to(tl.float64))
        star = logaddexp(log_others, top.to(tl.float64), EXACT)
        norm = logaddexp(star, of_blank.to(tl.float64), EXACT)
        norm = tl.where(norm == float("-inf"), 0.0, norm)
        s = tl.arange(0, BLOCK_S)
        count = tl.minimum(tl.load(counts_ptr + b), U)
        labels_ptr += b * labels_b
        enter = _label(labels_ptr, labels_u, s - 1, (s > 0) & (s <= count), V, blank)
        left_out = _label(labels_ptr, labels_u, s, s < count, V, blank)
        stay = tl.where(s <= count, blank, -1)
        log_p = -tl.log(1.0 + tl.exp(-tl.load(log_odds_ptr)))
        weight = tl.where(s <= count, log_p.to(tl.float32).to(tl.float64), float("-inf"))
        log_enter, log_stay, _ = row_scores(
            x_ptr, row * 0, STRIDE_V, V, top.to(tl.float64), log_others, star, norm, enter, stay, left_out, weight,
            True, EXACT, BLOCK_S,
        )  # fmt: skip
        S = U + 1
        tl.store(scores_ptr + row * S + s, log_stay, mask=s < S)
        tl.store(scores_ptr + (B.to(tl.int64) * T + row) * S + s, log_enter, mask=s < S)


@triton.jit
def _label(labels_ptr, labels_u, place, inside, V, blank):
    """The labels at the given places; -1 where they are impossible."""
    label = tl.load(labels_ptr + place * labels_u, mask=inside, other=-1).to(tl.int64)
    return tl.where((label >= 0) & (label < V) & (label != blank), label, -1).to(tl.int32)


@triton.jit(do_not_specialize=["open_b", "open_l", "B", "T", "U"])
def _walk(
    lengths_ptr, counts_ptr, open_ptr, scores_ptr, token_ptr, found_ptr, open_b, open_l, B, T, U,
    SOME_OPEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One utterance: its row of `found`, (B, 5)."""
    b = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    frames = tl.maximum(tl.minimum(tl.load(lengths_ptr + b), T), 0).to(tl.int32)
    count = tl.maximum(tl.minimum(tl.load(counts_ptr + b), U), 0).to(tl.int32)
    S, none = U + 1, float("-inf")
    stays = scores_ptr + b * T * S + s
    enters = stays + B.to(tl.int64) * T * S
    tokens = token_ptr + b * T
    ready, last, before = s < tl.where(frames > 0, count + 1, 0), tl.maximum(frames - 1, 0), tl.maximum(s - 1, 0)
    best = tl.where(s == 0, 0.0, tl.full((BLOCK,), none, tl.float64))
    carried = tl.zeros((BLOCK,), tl.float64)
    # Scores come from memory more slowly than frames are computed: those of three frames are on their way at a time.
    to = tl.minimum(last, 1) * S
    stay, enter = tl.load(stays, mask=ready, other=none), tl.load(enters, mask=ready, other=none)
    stay1, enter1 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
    to = tl.minimum(last, 2) * S
    stay2, enter2 = tl.load(stays + to, mask=ready, other=none), tl.load(enters + to, mask=ready, other=none)
    token = tl.load(tokens)
    token1, token2 = tl.load(tokens + tl.minimum(last, 1)), tl.load(tokens + tl.minimum(last, 2))
    read, previous = 0, -1
    for t in range(frames):
        to = tl.minimum(last, t + 3)
        stay3 = tl.load(stays + to * S, mask=ready, other=none)
        enter3 = tl.load(enters + to * S, mask=ready, other=none)
        token3 = tl.load(tokens + to)
        entering = tl.where(s > 0, tl.gather(best, before, 0), none) + enter
        gain = tl.gather(carried, before, 0) + tl.where(token >= 0, _UNIT, 0.0) + tl.exp(enter)
        best += stay
        enters_now = entering > best
        carried = tl.where(enters_now, gain, carried)
        best = tl.where(enters_now, entering, best)
        read += ((token >= 0) & (token != previous)).to(tl.int32)
        previous = token
        stay, stay1, stay2, enter, enter1, enter2 = stay1, stay2, stay3, enter1, enter2, enter3
        token, token1, token2 = token1, token2, token3
    is_last = s == count
    exists = (tl.max(tl.where(is_last, best, none), axis=0) > none) & (count > 0)
    both = tl.sum(tl.where(is_last, carried, 0.0), axis=0)
    labels = tl.floor(both / _UNIT)
    known = tl.where(exists, count, 0).to(tl.float64)
    gaps = known
    if SOME_OPEN:
        is_open = tl.load(open_ptr + b * open_b + s * open_l, mask=s <= count, other=0) != 0
        gaps = known * tl.sum(is_open.to(tl.float64), axis=0) / (count + 1).to(tl.float64)
    found_ptr += b * 5
    tl.store(found_ptr, tl.where(exists, labels, 0.0))
    tl.store(found_ptr + 1, tl.where(exists, read, 0).to(tl.float64))
    tl.store(found_ptr + 2, known)
    tl.store(found_ptr + 3, gaps)
    tl.store(found_ptr + 4, tl.where(exists, both - labels * _UNIT, 0.0))


@triton.jit(do_not_specialize=["N"])
def _move(
    found_ptr, log_odds_ptr, counts_ptr, record_ptr, N,
    P_MIN: tl.constexpr, P_MAX: tl.constexpr, RATE: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """See look_torch.move."""
    i = tl.arange(0, 8)
    more = tl.zeros((8,), tl.float64)
    for n in range(N):
        more += tl.load(found_ptr + n * 5 + i, mask=i < 5, other=0.0)
    old = tl.load(counts_ptr + i, mask=i < 5, other=0.0)
    counts = old * tl.exp(tl.log(tl.full((), _KEPT, tl.float64)) * SHARE) + more * SHARE
    tl.store(counts_ptr + i, counts, mask=i < 5)
    found, read = tl.sum(tl.where(i == 0, counts, 0.0)), tl.sum(tl.where(i == 1, counts, 0.0))
    labels, gaps = tl.sum(tl.where(i == 2, counts, 0.0)), tl.sum(tl.where(i == 3, counts, 0.0))
    probability = tl.sum(tl.where(i == 4, counts, 0.0))
    known = tl.maximum(labels, 1.0)
    share_found = found / known
    missing = 1.0 - share_found * share_found * gaps / tl.maximum(gaps + tl.maximum(read - found, 0.0), 1e-9)
    top, held = tl.load(record_ptr), tl.load(record_ptr + 1)
    sure = tl.maximum(tl.minimum(probability / known, 1.0), top)
    past = tl.exp(tl.log(top / sure) * _FORGETS)
    held = past * held + (1.0 - past) * missing
    tl.store(record_ptr, sure)
    tl.store(record_ptr + 1, held)
    wanted = tl.minimum(tl.maximum(held + tl.maximum(held - missing, 0.0), 1e-6), 0.95)
    cube = sure * sure * sure
    p = tl.exp(tl.log(wanted) / (1.0 + 1.75 * cube * cube))
    p = tl.minimum(tl.maximum(p, P_MIN), P_MAX)
    log_odds = tl.load(log_odds_ptr)
    step = tl.minimum(tl.maximum(tl.log(p / (1.0 - p)) - log_odds, -RATE * SHARE), RATE * SHARE)
    step = tl.where((gaps > 0) & (sure > _FIRST_SURE), step, 0.0)
    tl.store(log_odds_ptr, log_odds + step)
