"""Sums over graphs in which inserted tokens last, on the CPU. Same `posteriors` as lasting_torch, compiled.

An utterance is summed without logarithms, a multiplication and an addition an arc: every frame's scores are divided by the sum of
all states before it. A state that has less than 10^-300 of it may be lost. Whether that matters is known in the end: some sum of
the other direction is large then, or no path is left, and the utterance goes through lasting_torch. So both directions are summed
even where log_z alone is asked for.

The states of a frame are as many as labels times tokens. Where all frames have many, only some frames' are kept, and the others
are made again from these on the way back: what is kept grows with the root of the frames.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starseq.lattice import lasting_torch, threads
from starseq.lattice.elementary_numba import OPTIONS, jit_outer
from starseq.lattice.gaps import Gaps, rows_of
from starseq.numba_cache import kept

_LARGE, _SMALL = 1e250, 1e-290  # what is below the second has lost digits; times the first that is nothing
_AT_ONCE = 1 << 18  # states of all frames, up to which all are kept

# Sums may be added up in any order; infinities and NaN stay as written. Otherwise as `elementary_numba.jit`.
_jit: Any = partial(kept, fastmath={"contract", "reassoc"}, _nrt=False, **OPTIONS)


def posteriors(
    x: Tensor, gaps: Gaps, lengths: Tensor, *, backward: bool = True, exact: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """See lasting_torch.posteriors."""
    batch, frames, size = x.shape
    rows = gaps.labels.shape[1] + 1
    weight = gaps.weight.double()
    # A weight that is no number without logarithms, and yet no closed gap, makes the utterance's sums NaN.
    p = weight.exp().masked_fill((weight.exp() < _SMALL) & (weight > -torch.inf), torch.nan)
    log_z = x.new_empty(batch, dtype=torch.float64)
    of_tokens, inserted = log_z.new_zeros(batch, frames, size), log_z.new_zeros(batch, rows)
    arrays = [  # contiguous: one kernel for all
        y.contiguous().numpy()
        for y in (x.double(), gaps.counts, *rows_of(gaps, size), p, -torch.expm1(weight), lengths)
    ]
    threads.run(
        _sums, batch, 4 * x.numel() * rows, *arrays, gaps.blank, log_z.numpy(), of_tokens.numpy(), inserted.numpy()
    )
    for b in log_z.isnan().nonzero()[:, 0].tolist():  # one by one: each takes memory by frames times states
        T, U = int(lengths[b]), int(gaps.counts[b])
        ends = zip(gaps[2:], (U, U + 1, U + 1), strict=True)
        one = Gaps(gaps.blank, gaps.counts[b, None], *(y[b, None, :end] for y, end in ends))
        of_one = lasting_torch.posteriors(x[b, None, :T].double(), one, lengths[b, None])
        log_z[b], of_tokens[b, :T], inserted[b, : U + 1] = (value[0] for value in of_one)
    return (log_z, of_tokens, inserted) if backward else (log_z, log_z.new_empty(0), log_z.new_empty(0))


@jit_outer
def _sums(
    begin: Any, end: Any, x: Any, counts: Any, labels: Any, following: Any, left_out: Any, p: Any, rest: Any, lengths: Any,
    blank: Any, log_z: Any, of_tokens: Any, inserted: Any,
) -> None:  # fmt: skip
    """log_z is NaN where nothing can be said."""
    for b in range(begin, end):
        frames, rows, size = lengths[b], counts[b] + 1, x.shape[2]
        graph = (labels[b], following[b], left_out[b], p[b], rest[b], blank)
        if frames < _frames_needed(labels[b], rows):
            log_z[b] = np.nan if _has_nan(x[b, :frames]) else -np.inf
            continue
        step = max(frames, 1)
        if frames * rows * size > _AT_ONCE:
            step = math.ceil(math.sqrt(frames))
        # Of each row after each frame: its label, and its other states together.
        own, others = np.zeros((frames + 1, rows)), np.zeros((frames + 1, rows))
        probs = np.empty((frames, size))
        kept = np.zeros((max(frames - 1, 0) // step + 1, rows, size))
        block = np.zeros((step + 1, rows, size))  # the states of frames from a kept one on
        betas, beta_labels = np.zeros((2, rows, size)), np.zeros((2, rows + 1))
        leaving = np.zeros((2, rows))
        log_z[b] = _forward(x[b], graph, step, own, others, leaving, probs, kept, block)
        if np.isnan(log_z[b]):
            continue
        if not _backward(graph, step, own, others, probs, kept, block, betas, beta_labels, of_tokens[b], inserted[b]):
            log_z[b] = np.nan


@_jit
def _frames_needed(labels: Any, rows: Any) -> Any:
    """By the labels, one each, and one between equal ones. (An impossible label is not looked for: lasting_torch knows.)"""
    result = rows - 1
    for l in range(2, rows):
        if labels[l] == labels[l - 1]:
            result += 1
    return result


@_jit
def _has_nan(x: Any) -> Any:
    for t in range(x.shape[0]):
        for v in range(x.shape[1]):
            if np.isnan(x[t, v]):
                return True
    return False


@_jit
def _live(t: Any, frames: Any, rows: Any) -> Any:
    """The rows that lie on some path after t frames."""
    return max(0, rows - 1 - (frames - t)), min(rows, t + 1)


@_jit
def _step(P: Any, l: Any, graph: Any, own: Any, others: Any, before: Any, after: Any) -> Any:
    """The tokens of row l a frame on, from its states before: its label, and all others together. Returns the sum of those after,
    without the next label's token, and that one."""
    labels, following, left_out, p, rest, blank = graph
    total, P_blank = own + others, P[blank]
    if total == 0.0 or p[l] == 0.0:
        after[:] = 0.0
    else:
        begins, stays = p[l] * total, rest[l]
        for v in range(after.size):
            after[v] = P[v] * (stays * before[v] + begins)
        if labels[l] >= 0:
            after[labels[l]] = P[labels[l]] * (stays * before[labels[l]] + p[l] * others)
        if left_out[l] >= 0:
            after[left_out[l]] = 0.0
    after[blank] = P_blank * total
    of_following = 0.0
    if following[l] >= 0:
        of_following = after[following[l]]
        after[following[l]] = 0.0
    result = 0.0
    for v in range(after.size):
        result += after[v]
    if following[l] >= 0:
        after[following[l]] = of_following
    return result, of_following


@_jit
def _copy(rows: Any, to: Any) -> None:
    for l in range(to.shape[0]):
        for v in range(to.shape[1]):
            to[l, v] = rows[l, v]


@_jit
def _add_products(a: Any, b: Any, out: Any) -> None:
    for v in range(out.size):
        out[v] += a[v] * b[v]


@_jit
def _sums_of_products(a: Any, b: Any, c: Any) -> Any:
    """Of a * b, and of a * b * c."""
    of_two, of_three = 0.0, 0.0
    for v in range(a.size):
        product = a[v] * b[v]
        of_two += product
        of_three += product * c[v]
    return of_two, of_three


@_jit
def _stay(rest: Any, P: Any, beta: Any, other: Any, out: Any) -> Any:
    """The sums of tokens that may stay, or go on otherwise, and what they come to."""
    result = 0.0
    for v in range(out.size):
        value = rest * P[v] * beta[v] + other
        out[v] = value
        result += value
    return result


@_jit
def _forward(
    x: Any, graph: Any, step: Any, own: Any, others: Any, leaving: Any, probs: Any, kept: Any, block: Any
) -> Any:
    labels, following, blank = graph[0], graph[1], graph[5]
    frames, rows = probs.shape[0], own.shape[1]
    # leaving: of each row, before and after a frame, all from where the next label may begin.
    block[0, 0, blank] = others[0, 0] = leaving[0, 0] = 1.0
    kept[0, 0, blank] = 1.0
    scale, log_z = 1.0, 0.0
    for t in range(frames):
        top = x[t, 0]
        for v in range(1, x.shape[1]):
            top = max(top, x[t, v])
        if not (top > -np.inf and top < np.inf and scale > _SMALL):
            return np.nan
        log_z += top + math.log(scale)
        for v in range(x.shape[1]):
            probs[t, v] = math.exp(x[t, v] - top) / scale
        now = t % step
        to = now + 1
        low, high = _live(t + 1, frames, rows)
        scale = 0.0
        for l in range(low, high):
            result, of_following = _step(probs[t], l, graph, own[t, l], others[t, l], block[now, l], block[to, l])
            amount = own[t, l] + (leaving[t % 2, l - 1] if l > 0 else 0.0)
            if labels[l] >= 0 and amount > 0.0:
                own[t + 1, l] = probs[t, labels[l]] * amount
            others[t + 1, l] = result + of_following
            leaving[(t + 1) % 2, l] = result + own[t + 1, l] if labels[l] != following[l] else result
            scale += others[t + 1, l] + own[t + 1, l]
        if to == step and t + 1 < frames:
            _copy(block[step], kept[(t + 1) // step])
            _copy(block[step], block[0])
    z = own[frames, rows - 1] + others[frames, rows - 1]
    return log_z + math.log(z) if _SMALL < z < np.inf else np.nan


@_jit
def _backward(
    graph: Any, step: Any, own: Any, others: Any, probs: Any, kept: Any, block: Any, betas: Any, beta_labels: Any,
    of_tokens: Any, inserted: Any,
) -> Any:  # fmt: skip
    """Whether nothing was lost."""
    labels, following, left_out, p, rest, blank = graph
    (frames, size), rows = probs.shape, own.shape[1]
    z = own[frames, rows - 1] + others[frames, rows - 1]
    betas[frames % 2, rows - 1, :] = 1.0 / z
    beta_labels[frames % 2, rows - 1] = 1.0 / z
    most = size / z
    for t in range(frames - 1, -1, -1):
        start = t // step * step
        if t % step == step - 1 and t + 1 < frames:  # the block before
            _copy(kept[start // step], block[0])
            for s in range(start, start + step):
                low, high = _live(s + 1, frames, rows)
                for l in range(low, high):
                    _step(probs[s], l, graph, own[s, l], others[s, l], block[s - start, l], block[s - start + 1, l])
        before, after = block[t - start], block[t - start + 1]
        beta, beta_label, P = betas[(t + 1) % 2], beta_labels[(t + 1) % 2], probs[t]
        to, to_label = betas[t % 2], beta_labels[t % 2]
        low, high = _live(t + 1, frames, rows)
        for l in range(low, high):
            if labels[l] >= 0:
                of_tokens[t, labels[l]] += own[t + 1, l] * beta_label[l]
            if p[l] == 0.0:
                of_tokens[t, blank] += after[l, blank] * beta[l, blank]
            elif others[t + 1, l] > 0.0:
                _add_products(after[l], beta[l], of_tokens[t])
        low, high = _live(t, frames, rows)
        for l in range(low, high):
            label, next_label = labels[l], following[l]
            of_blank = P[blank] * beta[l, blank]
            goes_on = P[next_label] * beta_label[l + 1] if next_label >= 0 else 0.0
            stays = P[label] * beta_label[l] if label >= 0 else 0.0
            from_row = of_blank + goes_on
            if p[l] == 0.0:
                to[l, :] = 0.0
                to[l, blank] = from_row
                to_label[l] = stays + (from_row if label != next_label else of_blank)
                most = max(most, to[l, blank], to_label[l])
                continue
            beta[l, blank] = 0.0
            at_label = 0.0
            if label >= 0:
                at_label = beta[l, label]
                beta[l, label] = 0.0
            but_label, lasting = _sums_of_products(P, beta[l], before[l])
            if others[t, l] == 0.0:
                lasting = 0.0  # what stands there is of another frame
            elif label >= 0:
                lasting += P[label] * at_label * before[l, label]
            begins = but_label + (P[label] * at_label if label >= 0 else 0.0)
            if label >= 0:
                beta[l, label] = at_label
            inserted[l] += p[l] * (others[t, l] * begins + own[t, l] * but_label - lasting)
            from_row += p[l] * begins
            most = max(most, _stay(rest[l], P, beta[l], from_row, to[l]))
            to[l, blank] = from_row
            if next_label >= 0:
                to[l, next_label] = rest[l] * P[next_label] * beta[l, next_label] + of_blank + p[l] * begins
            if left_out[l] >= 0:
                to[l, left_out[l]] = 0.0
            to_label[l] = stays + of_blank + p[l] * but_label + (goes_on if label != next_label else 0.0)
            most = max(most, to_label[l])
        if not most < _LARGE:
            return False
    return True
