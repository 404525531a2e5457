"""Scores of a label graph's arcs from logits, and the gradient back, on the CPU. Same functions as vocabulary_torch, compiled.

Each pass reads every logit once. A row of the vocabulary is handled as its *columns* (the few tokens that the utterance's graph
names, blank among them) and the *rest*, which is only ever needed as one sum. For float32 the sums over columns and states are
float64 with float32 corrections; for float64 all is float64. float16 and bfloat16 are widened first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starseq.emissions.tokens import NONE, Scores, Tokens
from starseq.lattice import threads
from starseq.lattice.elementary_numba import exp, jit, log_remainder, logaddexp, maximum, sum_exp
from starseq.lattice.topology import Topology

_BLOCK = 512  # of a row at a time: stays in the first-level cache
_ENOUGH = 1e-6  # of a float64 sum: what is left after a subtraction still has ten digits


def scores(
    logits: Tensor, tokens: Tokens, lengths: Tensor, *, blank: int, normalized: bool, star: bool = False
) -> Scores:
    """See vocabulary_torch.scores."""
    rows = _rows(logits)
    batch, frames, vocabulary = logits.shape
    columns = _columns(tokens, blank, vocabulary)
    states = tokens.enter.shape[1]
    result = Scores(
        stay=torch.empty(batch, frames, states, dtype=torch.float64),
        enter=torch.empty(batch, frames, states, dtype=torch.float64),
        star=torch.empty(batch if star else 0, frames, states, dtype=torch.float64),
        norm=torch.empty(batch, frames, dtype=torch.float64),
    )
    threads.run(
        _scores, batch * frames, batch * frames * (vocabulary + 4 * states), *rows, frames, vocabulary,
        *columns, _weight(tokens), lengths.numpy(), normalized, *(x.numpy() for x in result),
    )  # fmt: skip
    return result


def gradient(
    grad: Tensor, logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, norm: Tensor,
    log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, *, blank: int, normalized: bool,
) -> Tensor:  # fmt: skip
    """See vocabulary_torch.gradient."""
    batch, frames, vocabulary = logits.shape
    rows = _rows(logits)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    unit = logits.stride(2) == 1 or vocabulary == 1
    result = torch.empty_like(logits, dtype=dtype) if unit else torch.empty(logits.shape, dtype=dtype)
    skip = np.empty((0, 0), np.bool_) if topology.skip is None else topology.skip.numpy()
    threads.run(
        _gradient, batch * frames, batch * frames * (vocabulary + 8 * log_alpha.shape[2]), *rows, *_rows(result),
        frames, vocabulary, *_columns(tokens, blank, vocabulary), _weight(tokens), lengths.numpy(), normalized,
        skip, topology.num_states.numpy(), grad.to(torch.float64).numpy(), norm.numpy(),
        log_alpha.numpy(), log_beta.numpy(), log_z.numpy(),
    )  # fmt: skip
    return result.to(logits.dtype)


class _Columns(NamedTuple):
    """For each utterance its distinct tokens in ascending order, and for each arc the place of its token among them.

    An impossible token has the place after the last: kernels keep -inf there.
    """

    token: Any  # (B, C) int64
    count: Any  # (B,) int64
    blank: Any  # (B,) int64
    enter: Any  # (B, S) uint32
    stay: Any  # (B, S) uint32
    left_out: Any  # (B, S) uint32


def _columns(tokens: Tokens, blank: int, vocabulary: int) -> _Columns:
    batch, states = tokens.enter.shape
    enter, stay = tokens.enter.numpy(), tokens.stay.numpy()
    left_out = np.full_like(enter, NONE) if tokens.star_except is None else tokens.star_except.numpy()
    places = (np.empty((batch, states), np.uint32) for _ in range(3))
    widest = min(vocabulary, 3 * states + 1)
    columns = _Columns(np.empty((batch, widest), np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64), *places)
    _find_columns(enter, stay, left_out, blank, vocabulary, *columns)
    return columns


def _weight(tokens: Tokens) -> Any:
    """The stars' log-weights as float64 (B, S), or (0, 0) where there are no stars."""
    return np.empty((0, 0)) if tokens.star_weight is None else tokens.star_weight.to(torch.float64).numpy()


def _rows(x: Tensor) -> tuple[Any, int, int]:
    """All of a (B, T, V) tensor's memory as one flat array, and the strides of B and T in it: row (b, t) is contiguous."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    if x.stride(2) != 1 and x.shape[2] != 1:
        x = x.contiguous()
    extent = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return x.as_strided((extent,), (1,)).numpy(), x.stride(0), x.stride(1)


@jit
def _find_columns(
    enter: Any, stay: Any, left_out: Any, blank: Any, vocabulary: Any, token: Any, count: Any, blank_place: Any,
    enter_place: Any, stay_place: Any, left_out_place: Any,
) -> None:  # fmt: skip
    place = np.empty(vocabulary, np.int32)
    for b in range(enter.shape[0]):
        place[:] = -1
        place[blank] = 0
        for s in range(enter.shape[1]):
            for v in (enter[b, s], stay[b, s], left_out[b, s]):
                if v >= 0 and v < vocabulary:
                    place[v] = 0
        n = 0
        for v in range(vocabulary):
            if place[v] == 0:
                token[b, n] = v
                place[v] = n
                n += 1
        count[b] = n
        blank_place[b] = place[blank]
        for s in range(enter.shape[1]):
            v = enter[b, s]
            enter_place[b, s] = place[v] if v >= 0 and v < vocabulary else n
            v = stay[b, s]
            stay_place[b, s] = place[v] if v >= 0 and v < vocabulary else n
            v = left_out[b, s]
            left_out_place[b, s] = place[v] if v >= 0 and v < vocabulary else n


@jit
def _copy(source: Any, target: Any) -> None:
    for i in range(source.size):
        target[i] = source[i]


@jit
def _log_rest(row: Any, columns: Any, block: Any) -> Any:
    """The log-sum over a row without the columns (ascending token numbers), as a float64."""
    top, total, c = -np.inf, 0.0, 0
    for start in range(0, row.size, _BLOCK):
        stop = min(start + _BLOCK, row.size)
        piece = row[start:stop]
        if c < columns.size and columns[c] < stop:
            _copy(piece, block)
            while c < columns.size and columns[c] < stop:
                block[columns[c] - start] = -np.inf
                c += 1
            piece = block[: stop - start]
        largest = np.float64(maximum(piece))
        if largest > top:
            total *= math.exp(top - largest)
            top = largest
        shift = top if top > -np.inf else 0.0  # only -inf and NaN so far: NaN must reach the sum
        total += sum_exp(piece, block.dtype.type(shift))
    return top + math.log(total) if total != 0.0 else -np.inf


@jit
def _terms(values: Any, top: Any, terms: Any) -> None:
    """terms = exp(values - top), in the precision of the terms; a top of -inf stands for 0."""
    shift = top if top > -np.inf else 0.0
    for i in range(values.size):
        terms[i] = exp(terms.dtype.type(values[i] - shift))


@jit
def _sum(terms: Any) -> Any:
    total = 0.0
    for i in range(terms.size):
        total += terms[i]
    return total


@jit
def _log_sum(values: Any, terms: Any) -> Any:
    """The log-sum of a float64 array with its own maximum; `terms` is written."""
    top = maximum(values)
    _terms(values, top, terms)
    total = _sum(terms)
    return top + math.log(total) if total != 0.0 else -np.inf


@jit
def _leave_each_out(value: Any, rest: Any, blank: Any, without: Any, terms: Any) -> Any:
    """without[c] = log-sum of rest and all columns but blank and c; the last place leaves nothing out, and is returned.

    value: (C + 1,), whose last place is not read. Only the largest column can hold more than half of the star's mass, so only
    there a difference would lose digits: if it does, that one is left out by adding up the others.
    """
    count = value.size - 1
    largest = blank  # none yet
    for c in range(count):
        without[c] = value[c]
        if c != blank and (largest == blank or value[c] > value[largest]):
            largest = c
    without[blank] = -np.inf
    without[count] = rest
    star = _log_sum(without, terms)
    total = _sum(terms)
    others = total - terms[largest]
    if others > _ENOUGH * total:
        log_others = star + math.log(others / total)
    else:
        without[largest] = -np.inf
        log_others = _log_sum(without, terms)
    _log_remainders(star, value, without, terms)
    without[largest] = log_others
    without[blank] = star
    without[count] = star
    return star


@jit
def _log_remainders(total: Any, parts: Any, out: Any, like: Any) -> None:
    for c in range(out.size):
        out[c] = log_remainder(total, parts[c], like)


@jit
def _scores(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any,
    token: Any, count: Any, blank: Any, enter: Any, stay: Any, left_out: Any, weight: Any, lengths: Any, normalized: Any,
    log_stay: Any, log_enter: Any, log_star: Any, norm: Any,
) -> None:  # fmt: skip
    block = np.empty(_BLOCK, flat.dtype)
    values, withouts = np.empty(token.shape[1] + 1), np.empty(token.shape[1] + 1)
    scratch = np.empty(token.shape[1] + 1, flat.dtype)
    stars, stays = np.empty(enter.shape[1]), np.empty(enter.shape[1])
    current = -1
    for item in range(begin, end):
        b, t = item // frames, item % frames
        if t >= lengths[b]:
            continue
        if b != current:  # slices cost as much as a short loop: once an utterance
            current, columns, n = b, token[b, : count[b]], count[b]
            value, without, terms = values[: n + 1], withouts[: n + 1], scratch[: n + 1]
            enters, stayings, leavings = enter[b], stay[b], left_out[b]
        row = flat[b * stride_b + t * stride_t : b * stride_b + t * stride_t + vocabulary]
        rest = _log_rest(row, columns, block) if normalized or weight.size else -np.inf
        for c in range(columns.size):
            value[c] = row[columns[c]]
        log_norm = 0.0
        if weight.size:
            star = _leave_each_out(value, rest, blank[b], without, terms)
            log_norm = logaddexp(star, value[blank[b]], scratch) if normalized else 0.0
        elif normalized:
            value[columns.size] = rest
            log_norm = _log_sum(value, terms)
        log_norm = 0.0 if log_norm == -np.inf else log_norm
        norm[b, t] = log_norm
        for c in range(columns.size):
            value[c] -= log_norm
        value[columns.size] = -np.inf
        _pick(value, enters, log_enter[b, t])
        if weight.size:
            _pick(without, leavings, stars)
            _add(stars, weight[b], -log_norm, stars)
            if log_star.size:
                log_star[b, t] = stars
            _pick(value, stayings, stays)
            _logaddexp_all(stays, stars, log_stay[b, t], scratch)
        else:
            _pick(value, stayings, log_stay[b, t])


# Picking by place and computing are separate loops: the compiler vectorises the second only when it stands alone.


@jit
def _pick(value: Any, place: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = value[place[s]]


@jit
def _add(a: Any, b: Any, shift: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = (a[s] + shift) + b[s]


@jit
def _logaddexp_all(a: Any, b: Any, out: Any, like: Any) -> None:
    for s in range(out.size):
        out[s] = logaddexp(a[s], b[s], like)


@jit
def _posteriors(before: Any, after: Any, log_z: Any, log_score: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = exp(out.dtype.type((before[s] + after[s] - log_z) + log_score[s]))


@jit
def _outside(before: Any, after: Any, log_z: Any, weight: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = (before[s] + after[s] - log_z) + weight[s]


@jit
def _add_by_place(values: Any, place: Any, sums: Any) -> None:
    for s in range(values.size):
        sums[place[s]] += values[s]


@jit
def _add_stars(
    log_outside: Any, left_out: Any, value: Any, blank: Any, coefficient: Any, sums: Any, masked: Any, terms: Any, shares: Any
) -> Any:
    """Adds to each column its posterior as a star: P(c) times the sum of the outsides of the stars that hold it.

    Returns the log-sum over all stars, the factor of the tokens that are in no column. A column's own part is left out as
    above. exp(value + top) is at most 1 where its factor is not 0, because the star that gave `top`, or one as large, holds
    the column.
    """
    count = sums.size - 1
    top = maximum(log_outside)
    if top == -np.inf:
        return top
    _terms(log_outside, top, terms)
    sums[:] = 0.0
    _add_by_place(terms, left_out, sums)
    total = _sum(sums)
    largest = blank
    for c in range(count):
        largest = c if sums[c] > sums[largest] else largest
    apart = largest != blank and total - sums[largest] <= _ENOUGH * total
    _terms(value, -top, shares)
    for c in range(count):
        if c != blank and not (apart and c == largest):
            coefficient[c] += np.float64(shares[c]) * (total - sums[c])
    if apart:
        for s in range(masked.size):
            masked[s] = -np.inf if left_out[s] == largest else log_outside[s]
        second = maximum(masked)
        if second > -np.inf:
            _terms(masked, second, terms)
            coefficient[largest] += math.exp(value[largest] + second) * _sum(terms)
    return top + math.log(total)


@jit
def _fill(row: Any, shift: Any, factor: Any, out: Any) -> None:
    """out = factor * exp(row + shift). The pivot takes the large part of the shift, so that nothing is rounded twice."""
    pivot = out.dtype.type(-shift)
    small = out.dtype.type(shift + np.float64(pivot))
    scale = out.dtype.type(factor)
    for i in range(row.size):
        out[i] = scale * exp((row[i] - pivot) + small)


@jit
def _gradient(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, token: Any, count: Any, blank: Any, enter: Any, stay: Any, left_out: Any, weight: Any,
    lengths: Any, normalized: Any, skip: Any, num_states: Any, grad: Any, norm: Any, log_alpha: Any, log_beta: Any, log_z: Any,
) -> None:  # fmt: skip
    states, widest = enter.shape[1], token.shape[1] + 1
    values, coefficients, all_sums = np.empty(widest), np.empty(widest), np.empty(widest)
    all_shares, all_posterior = np.empty(widest, flat.dtype), np.empty(states, flat.dtype)
    all_picked, all_masked = np.empty(states), np.empty(states)
    current = -1
    for item in range(begin, end):
        b, t = item // frames, item % frames
        start = b * out_stride_b + t * out_stride_t
        out = out_flat[start : start + vocabulary]
        if t >= lengths[b] or log_z[b] == -np.inf:
            out[:] = 0
            continue
        if log_z[b] != log_z[b]:
            out[:] = np.nan
            continue
        if b != current:
            current, columns, n, z = b, token[b, : count[b]], num_states[b], log_z[b]
            value, coefficient = values[: columns.size + 1], coefficients[: columns.size + 1]
            sums, shares = all_sums[: columns.size + 1], all_shares[: columns.size + 1]
            picked, masked, posterior = all_picked[:n], all_masked[:n], all_posterior[:n]
            enters, stayings, leavings = enter[b, :n], stay[b, :n], left_out[b, :n]
        row = flat[b * stride_b + t * stride_t : b * stride_b + t * stride_t + vocabulary]
        log_norm = norm[b, t]
        for c in range(columns.size):
            value[c] = row[columns[c]] - log_norm
        value[columns.size] = -np.inf
        before, after = log_alpha[b, t, :n], log_beta[b, t + 1, :n]

        coefficient[:] = 0.0
        _pick(value, stayings, picked)
        _posteriors(before, after, z, picked, posterior)
        _add_by_place(posterior, stayings, coefficient)
        for step in range(1, 3 if skip.size else 2):
            if n > step:
                _pick(value, enters[step:], picked[step:])
                _posteriors(before[:-step], after[step:], z, picked[step:], posterior[step:])
                if step == 2:
                    for s in range(2, n):
                        posterior[s] = posterior[s] if skip[b, s] else 0
                _add_by_place(posterior[step:], enters[step:], coefficient)

        log_k = -np.inf  # a token of the rest has the posterior P(v) * k
        if weight.size:
            _outside(before, after, z, weight[b, :n], picked)
            log_k = _add_stars(picked, leavings, value, blank[b], coefficient, sums, masked, posterior, shares)
        if normalized:  # d(-log_z)/d logit = P(v) - posterior
            if log_k < 0.0:
                _fill(row, math.log1p(-math.exp(log_k)) - log_norm, grad[b], out)
            elif log_k == 0.0:
                out[:] = 0
            else:
                _fill(row, log_k + math.log1p(-math.exp(-log_k)) - log_norm, -grad[b], out)
        elif log_k == -np.inf:
            out[:] = 0
        else:
            _fill(row, log_k, -grad[b], out)
        _terms(value, 0.0, shares)
        for c in range(columns.size):
            probability = np.float64(shares[c]) if normalized else 0.0
            out[columns[c]] = grad[b] * (probability - coefficient[c])
