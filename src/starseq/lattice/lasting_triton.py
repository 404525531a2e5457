"""Sums over graphs in which inserted tokens last, on a GPU. Same `posteriors` as lasting_torch.

One program an utterance takes the frames one after the other: the states of all its rows, tiles of rows and tokens, are read from
memory, where the frame before has left them, and written back. What a row hands on to the next, its sums, is kept beside them.
All sums are float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.lattice.elementary_triton import exp_of, logaddexp
from starseq.lattice.gaps import Gaps, rows_of

_TILE = 2048  # states of a frame at a time


def posteriors(
    x: Tensor, gaps: Gaps, lengths: Tensor, *, backward: bool = True, exact: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """See lasting_torch.posteriors."""
    batch, frames, size = x.shape
    rows = gaps.labels.shape[1] + 1
    weight = gaps.weight.to(torch.float64).contiguous()
    said = [y.to(torch.int32).contiguous() for y in rows_of(gaps, size)]
    x, counts, lengths = x.to(torch.float64).contiguous(), gaps.counts.contiguous(), lengths.contiguous()
    tokens = min(triton.next_power_of_2(size), 256)
    block = max(min(triton.next_power_of_2(rows), _TILE // tokens), 1)
    warps = 16 if block * tokens >= _TILE else 8
    alpha = x.new_empty(batch, frames + 1 if backward else 2, rows, size)
    sums = x.new_empty(3, batch, frames + 1, rows)
    log_z = x.new_empty(batch)
    of_tokens, inserted = (
        x.new_zeros(batch if backward else 0, frames, size),
        x.new_zeros(batch if backward else 0, rows),
    )
    if batch:
        graph = x, counts, *said, weight, torch.log(-torch.expm1(weight)), lengths
        _forward[(batch,)](
            *graph, alpha, sums, log_z, batch, frames, rows, size, gaps.blank, alpha.shape[1], exact, block, tokens,
            num_warps=warps,
        )  # fmt: skip
        if backward:
            beta, beta_labels = x.new_empty(batch, 2, rows, size), x.new_empty(batch, 2, rows)
            _backward[(batch,)](
                *graph, alpha, sums, log_z, beta, beta_labels, x.new_empty(batch, 3, rows), of_tokens, inserted,
                batch, frames, rows, size, gaps.blank, exact, block, tokens, num_warps=warps,
            )  # fmt: skip
    return (log_z, of_tokens, inserted) if backward else (log_z, x.new_empty(0), x.new_empty(0))


@triton.jit
def _rows(label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, b, r, count, R):
    """Of rows r: whether they exist, what `rows_of` says of them, log p and log(1 - p)."""
    exists, at = r <= count, b * R + r
    label = tl.load(label_ptr + at, mask=exists, other=-1)
    following = tl.load(following_ptr + at, mask=exists, other=-1)
    left_out = tl.load(left_out_ptr + at, mask=exists, other=-1)
    log_p = tl.load(weight_ptr + at, mask=exists, other=float("-inf"))
    log_rest = tl.load(rest_ptr + at, mask=exists, other=float("-inf"))
    return exists, label, following, left_out, log_p, log_rest


@triton.jit
def _push(top, total, values, EXACT: tl.constexpr):
    """The log-sum, as a maximum and what is to be multiplied by it, of rows to which `values` (rows, tokens) are added."""
    new = tl.maximum(top, tl.max(values, axis=1))
    shift = tl.where(new > float("-inf"), new, 0.0)
    more = tl.sum(exp_of(values - shift[:, None], EXACT).to(tl.float64), axis=1)
    return new, total * exp_of(top - shift, EXACT).to(tl.float64) + more


@triton.jit
def _pushed(top, total):
    return tl.where(top > float("-inf"), top, 0.0) + tl.log(total)


@triton.jit(do_not_specialize=["B", "T", "R", "KEPT"])
def _forward(
    x_ptr, count_ptr, label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, length_ptr, alpha_ptr, sum_ptr, z_ptr,
    B, T, R, V, BLANK, KEPT, EXACT: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """alpha (B, KEPT, R, V): tokens and blanks of every row, of the last two frames or of all. sums (3, B, T+1, R): the label of
    every row; all of its other states; and all from which the next label may begin."""
    none = float("-inf")
    b = tl.program_id(0).to(tl.int64)
    far = b * 0  # what is added to it is wide enough for any place
    count = tl.maximum(tl.minimum(tl.load(count_ptr + b), R - 1), 0).to(tl.int32)
    frames = tl.maximum(tl.minimum(tl.load(length_ptr + b), T), 0).to(tl.int32)
    alpha, x = alpha_ptr + b * KEPT * R * V, x_ptr + b * T * V
    labels = sum_ptr + b * (T + 1) * R
    others, leaving = labels + (far + B) * (T + 1) * R, labels + 2 * (far + B) * (T + 1) * R
    for start in range(0, count + 1, ROWS):
        r = start + tl.arange(0, ROWS)
        nothing = tl.full((ROWS,), float("-inf"), tl.float64)
        tl.store(labels + r, nothing, mask=r <= count)
        tl.store(others + r, tl.where(r == 0, 0.0, nothing), mask=r <= count)
        tl.store(leaving + r, tl.where(r == 0, 0.0, nothing), mask=r <= count)
        for first in range(0, V, TOKENS):
            v = first + tl.arange(0, TOKENS)
            begin = tl.where((r[:, None] == 0) & (v[None, :] == BLANK), 0.0, nothing[:, None])
            tl.store(
                alpha + r.to(tl.int64)[:, None] * V + v[None, :], begin, mask=(r[:, None] <= count) & (v[None, :] < V)
            )
    tl.debug_barrier()
    for t in range(frames):
        before, after = alpha + (far + t % KEPT) * R * V, alpha + (far + (t + 1) % KEPT) * R * V
        at = (far + t) * R
        for start in range(0, count + 1, ROWS):
            r = start + tl.arange(0, ROWS)
            exists, label, following, left_out, log_p, log_rest = _rows(
                label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, b, r, count, R
            )
            own = tl.load(labels + at + r, mask=exists, other=none)
            without = tl.load(others + at + r, mask=exists, other=none)
            total = logaddexp(own, without, EXACT)
            top, amount = tl.full((ROWS,), float("-inf"), tl.float64), tl.zeros((ROWS,), tl.float64)
            of_following = top
            for first in range(0, V, TOKENS):
                v = first + tl.arange(0, TOKENS)
                here = exists[:, None] & (v < V)[None, :]
                place = r.to(tl.int64)[:, None] * V + v[None, :]
                is_blank = (v == BLANK)[None, :]
                inserts = (v[None, :] != left_out[:, None]) & (log_p > none)[:, None]
                score = tl.load(x + (far + t) * V + v, mask=v < V, other=none)[None, :]
                stands = tl.load(before + place, mask=here & inserts & (v != BLANK)[None, :], other=none)
                rest = tl.where(v[None, :] == label[:, None], without[:, None], total[:, None])
                value = logaddexp(stands + log_rest[:, None], rest + log_p[:, None], EXACT)
                value = tl.where(is_blank, total[:, None], tl.where(inserts, value, none))
                value = tl.where(here, value + score, none)
                tl.store(after + place, value, mask=here)
                goes_on = v[None, :] != following[:, None]
                top, amount = _push(top, amount, tl.where(goes_on, value, none), EXACT)
                of_following = tl.maximum(of_following, tl.max(tl.where(goes_on, none, value), axis=1))
            entering = tl.load(leaving + at + r - 1, mask=exists & (r > 0), other=none)
            score = tl.load(x + (far + t) * V + label, mask=label >= 0, other=none)
            own = logaddexp(own, entering, EXACT) + score
            most = _pushed(top, amount)
            tl.store(labels + at + R + r, own, mask=exists)
            tl.store(others + at + R + r, logaddexp(most, of_following, EXACT), mask=exists)
            goes_on = logaddexp(most, tl.where(label != following, own, none), EXACT)
            tl.store(leaving + at + R + r, tl.where(following >= 0, goes_on, none), mask=exists)
        tl.debug_barrier()
    last = frames.to(tl.int64) * R + count
    one, other = tl.load(labels + last), tl.load(others + last)
    z = tl.where(
        tl.load(count_ptr + b) == count, logaddexp(one, other, EXACT), none
    )  # there are no more labels than rows
    tl.store(z_ptr + b, z)


@triton.jit(do_not_specialize=["B", "T", "R"])
def _backward(
    x_ptr, count_ptr, label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, length_ptr, alpha_ptr, sum_ptr, z_ptr,
    beta_ptr, beta_label_ptr, scratch_ptr, token_ptr, inserted_ptr,
    B, T, R, V, BLANK, EXACT: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """beta (B, 2, R, V), beta_labels (B, 2, R): of this frame and the next. scratch (B, 3, R): by what a path goes on from every
    row: a token or blank that begins, the same but for the label's token, and the next label. tokens (B, T, V), inserted (B, R)."""
    none = float("-inf")
    b = tl.program_id(0).to(tl.int64)
    far = b * 0  # what is added to it is wide enough for any place
    count = tl.maximum(tl.minimum(tl.load(count_ptr + b), R - 1), 0).to(tl.int32)
    frames = tl.maximum(tl.minimum(tl.load(length_ptr + b), T), 0).to(tl.int32)
    alpha, x = alpha_ptr + b * (T + 1) * R * V, x_ptr + b * T * V
    labels = sum_ptr + b * (T + 1) * R
    others = labels + (far + B) * (T + 1) * R
    z = tl.load(z_ptr + b)
    z = tl.where(z == none, float("inf"), z)
    betas, beta_labels, scratch = beta_ptr + b * 2 * R * V, beta_label_ptr + b * 2 * R, scratch_ptr + b * 3 * R
    for start in range(0, count + 1, ROWS):
        r = start + tl.arange(0, ROWS)
        ends = tl.where(r == count, 0.0, tl.full((ROWS,), float("-inf"), tl.float64))
        tl.store(beta_labels + (frames % 2) * R + r, ends, mask=r <= count)
        for first in range(0, V, TOKENS):
            v = first + tl.arange(0, TOKENS)
            place = (far + frames % 2) * R * V + r.to(tl.int64)[:, None] * V + v[None, :]
            end = tl.broadcast_to(ends[:, None], (ROWS, TOKENS))
            tl.store(betas + place, end, mask=(r <= count)[:, None] & (v < V)[None, :])
    tl.debug_barrier()
    for i in range(frames):
        t = frames - 1 - i
        beta, beta_label = betas + (far + (t + 1) % 2) * R * V, beta_labels + ((t + 1) % 2) * R
        to, to_label = betas + (far + t % 2) * R * V, beta_labels + (t % 2) * R
        at, scores = (far + t) * R, x + (far + t) * V
        blank_score = tl.load(scores + BLANK)
        # By rows: what begins.
        for start in range(0, count + 1, ROWS):
            r = start + tl.arange(0, ROWS)
            exists, label, following, left_out, log_p, log_rest = _rows(
                label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, b, r, count, R
            )
            top, amount = tl.full((ROWS,), float("-inf"), tl.float64), tl.zeros((ROWS,), tl.float64)
            of_label = top
            lasting = tl.zeros((ROWS,), tl.float64)
            for first in range(0, V, TOKENS):
                v = first + tl.arange(0, TOKENS)
                place = r.to(tl.int64)[:, None] * V + v[None, :]
                inserts = (v[None, :] != left_out[:, None]) & (log_p > none)[:, None] & (v != BLANK)[None, :]
                inserts = inserts & exists[:, None] & (v < V)[None, :]
                score = tl.load(scores + v, mask=v < V, other=none)[None, :]
                value = score + tl.load(beta + place, mask=inserts, other=none) + log_p[:, None]
                value = tl.where(inserts, value, none)
                is_label = v[None, :] == label[:, None]
                top, amount = _push(top, amount, tl.where(is_label, none, value), EXACT)
                of_label = tl.maximum(of_label, tl.max(tl.where(is_label, value, none), axis=1))
                stood = tl.load(alpha + at * V + place, mask=inserts, other=none)
                lasting += tl.sum(exp_of(stood + value - z, EXACT).to(tl.float64), axis=1)
            but_label = _pushed(top, amount)
            begins = logaddexp(but_label, of_label, EXACT)
            own = tl.load(labels + at + r, mask=exists, other=none)
            without = tl.load(others + at + r, mask=exists, other=none)
            began = exp_of(without + begins - z, EXACT).to(tl.float64) + exp_of(own + but_label - z, EXACT).to(
                tl.float64
            )
            inserted = tl.load(inserted_ptr + b * R + r, mask=exists, other=0.0)
            tl.store(inserted_ptr + b * R + r, inserted + began - lasting, mask=exists)
            blank = blank_score + tl.load(beta + r.to(tl.int64) * V + BLANK, mask=exists, other=none)
            tl.store(scratch + r, logaddexp(begins, blank, EXACT), mask=exists)
            tl.store(scratch + R + r, logaddexp(but_label, blank, EXACT), mask=exists)
            goes_on = tl.load(scores + following, mask=following >= 0, other=none)
            goes_on += tl.load(beta_label + r + 1, mask=following >= 0, other=none)
            tl.store(scratch + 2 * R + r, goes_on, mask=exists)
        tl.debug_barrier()
        # By tokens: posteriors after this frame, and the sums before it.
        for first in range(0, V, TOKENS):
            v = first + tl.arange(0, TOKENS)
            score = tl.load(scores + v, mask=v < V, other=none)[None, :]
            posterior = tl.zeros((TOKENS,), tl.float64)
            for start in range(0, count + 1, ROWS):
                r = start + tl.arange(0, ROWS)
                exists, label, following, left_out, log_p, log_rest = _rows(
                    label_ptr, following_ptr, left_out_ptr, weight_ptr, rest_ptr, b, r, count, R
                )
                place = r.to(tl.int64)[:, None] * V + v[None, :]
                here = exists[:, None] & (v < V)[None, :]
                came = tl.load(alpha + (at + R) * V + place, mask=here, other=none)
                stands = tl.load(beta + place, mask=here, other=none)
                posterior += tl.sum(exp_of(came + stands - z, EXACT).to(tl.float64), axis=0)
                own_came = tl.load(labels + at + R + r, mask=exists, other=none)
                own = tl.load(beta_label + r, mask=exists, other=none)
                of_label = exp_of(own_came + own - z, EXACT).to(tl.float64)
                posterior += tl.sum(tl.where(v[None, :] == label[:, None], of_label[:, None], 0.0), axis=0)
                begins = tl.load(scratch + r, mask=exists, other=none)
                but_label = tl.load(scratch + R + r, mask=exists, other=none)
                goes_on = tl.load(scratch + 2 * R + r, mask=exists, other=none)
                anywhere = logaddexp(begins, goes_on, EXACT)
                other = tl.where(v[None, :] == following[:, None], begins[:, None], anywhere[:, None])
                stays = stands + score + log_rest[:, None]
                stays = tl.where((v[None, :] == BLANK) | (log_p == none)[:, None], none, stays)
                tl.store(to + place, logaddexp(stays, other, EXACT), mask=here)
                if first == 0:
                    own_stays = own + tl.load(scores + label, mask=label >= 0, other=none)
                    own_other = logaddexp(but_label, tl.where(label != following, goes_on, none), EXACT)
                    tl.store(to_label + r, logaddexp(own_stays, own_other, EXACT), mask=exists)
            tl.store(token_ptr + (b * T + t) * V + v, posterior, mask=v < V)
        tl.debug_barrier()
