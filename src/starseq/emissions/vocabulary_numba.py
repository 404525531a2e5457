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

from starseq.emissions.tokens import Scores, Tokens
from starseq.lattice import threads
from starseq.lattice.elementary_numba import (
    exp,
    jit,
    jit_outer,
    log_remainder,
    logaddexp,
    maximum,
    sum_exp,
)
from starseq.lattice.topology import Topology

_BLOCK = 1024  # of a row at a time
_ENOUGH = 1e-6  # of a float64 sum: what is left after a subtraction still has ten digits
_TINY = 1e-25  # a sum of float32 terms under which some of them may have become 0


def scores(
    logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, *, normalized: bool, star: bool = False
) -> Scores:
    """See vocabulary_torch.scores."""
    rows = _rows(logits)
    batch, frames, vocabulary = logits.shape
    columns = _columns(tokens, topology, vocabulary)
    states = tokens.enter.shape[1]
    result = Scores(
        stay=torch.empty(batch, frames, states, dtype=torch.float64),
        enter=torch.empty(batch, frames, states, dtype=torch.float64),
        star=torch.empty(batch if star else 0, frames, states, dtype=torch.float64),
        norm=torch.empty(batch, frames, dtype=torch.float64),
    )
    threads.run(
        _scores, batch * frames, batch * frames * (vocabulary + 4 * states), *rows, frames, vocabulary, tokens.blank,
        *columns, _weight(tokens), lengths.numpy(), normalized, *(x.numpy() for x in result),
    )  # fmt: skip
    return result


def gradient(
    grad: Tensor, logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, norm: Tensor,
    log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, *, normalized: bool,
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
        frames, vocabulary, *_columns(tokens, topology, vocabulary), _weight(tokens), lengths.numpy(), normalized,
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


def _columns(tokens: Tokens, topology: Topology, vocabulary: int) -> _Columns:
    batch, states = tokens.enter.shape
    enter = tokens.enter.numpy()
    unsaid = np.empty((0, 0), enter.dtype)
    stay = unsaid if tokens.stay is None else tokens.stay.numpy()
    left_out = unsaid if tokens.star_except is None else tokens.star_except.numpy()
    places = (np.empty((batch, states), np.uint32) for _ in range(3))
    widest = min(vocabulary, 3 * states + 1)
    columns = _Columns(
        np.empty((batch, widest), np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64), *places
    )
    _find_columns(enter, stay, left_out, topology.num_states.numpy(), tokens.blank, vocabulary, *columns)
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
def _mark(place: Any, v: Any) -> None:
    if v >= 0 and v < place.size:
        place[v] = 0


@jit
def _place_of(place: Any, v: Any, nowhere: Any) -> Any:
    return place[v] if v >= 0 and v < place.size else nowhere


@jit_outer
def _find_columns(
    enter: Any, stay: Any, left_out: Any, num_states: Any, blank: Any, vocabulary: Any, token: Any, count: Any,
    blank_place: Any, enter_place: Any, stay_place: Any, left_out_place: Any,
) -> None:  # fmt: skip
    place = np.empty(vocabulary, np.int32)
    for b in range(enter.shape[0]):
        place[:] = -1
        place[blank] = 0
        for s in range(num_states[b]):
            _mark(place, enter[b, s])
            if stay.size:
                _mark(place, stay[b, s])
            if left_out.size and s + 1 < num_states[b]:
                _mark(place, left_out[b, s])
        n = 0
        for v in range(vocabulary):
            if place[v] == 0:
                token[b, n] = v
                place[v] = n
                n += 1
        count[b] = n
        blank_place[b] = place[blank]
        enter_place[b, :] = n
        stay_place[b, :] = n if stay.size else place[blank]
        left_out_place[b, :] = n
        for s in range(num_states[b]):
            if stay.size or enter[b, s] != blank:
                enter_place[b, s] = _place_of(place, enter[b, s], n)
            if stay.size:
                stay_place[b, s] = _place_of(place, stay[b, s], n)
            if left_out.size and s + 1 < num_states[b]:
                left_out_place[b, s] = _place_of(place, left_out[b, s], n)


@jit
def _largest(values: Any) -> Any:
    """The place of the largest value; any place if there is none above -inf."""
    top, best = -np.inf, 0
    for start in range(0, values.size, _BLOCK):
        largest = np.float64(maximum(values[start : start + _BLOCK]))
        if largest > top:
            top, best = largest, start
    for i in range(best, min(best + _BLOCK, values.size)):
        if values[i] == top:
            return i
    return best


@jit
def _sum_exp(values: Any, shift: Any) -> Any:
    """The sum of exp(values - shift): blocks in the precision of the values, their sum in float64."""
    total = 0.0
    for start in range(0, values.size, _BLOCK):
        total += sum_exp(values[start : start + _BLOCK], values.dtype.type(shift))
    return total


@jit
def _star(row: Any, blank: Any) -> Any:
    """Of all tokens but blank the largest score, and the log-sum of the others with a maximum of their own."""
    place = _largest(row[:blank]) if blank else 0
    later = blank + 1 + _largest(row[blank + 1 :]) if blank + 1 < row.size else blank
    if place == blank or (later != blank and not row[place] >= row[later]):
        place = later
    if place == blank:  # a vocabulary of nothing else
        return -np.inf, -np.inf
    one, two = min(place, blank), max(place, blank)
    before, between, after = row[:one], row[one + 1 : two], row[two + 1 :]
    top = np.float64(row[place])
    shift = top if top > -np.inf else 0.0
    total = _sum_exp(before, shift) + _sum_exp(between, shift) + _sum_exp(after, shift)
    if total < _TINY:
        shift = max(np.float64(maximum(before)), np.float64(maximum(between)), np.float64(maximum(after)))
        if shift == -np.inf:
            return top, -np.inf
        total = _sum_exp(before, shift) + _sum_exp(between, shift) + _sum_exp(after, shift)
    return top, shift + math.log(total)


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
def _leave_each_out(star: Any, top: Any, others: Any, value: Any, without: Any, like: Any) -> None:
    """without[c] = log-sum of the star without column c; the last place, where value is -inf, leaves nothing out.

    Only the largest token can hold more than half of the star's mass, so only there a difference would lose digits: leaving
    that one out gives `others`, which was summed without it.
    """
    for c in range(without.size):
        without[c] = log_remainder(star, value[c], like)
    for c in range(without.size - 1):
        if value[c] == top:
            without[c] = others


@jit_outer
def _scores(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any, blank: Any,
    token: Any, count: Any, blank_place: Any, enter: Any, stay: Any, left_out: Any, weight: Any, lengths: Any, normalized: Any,
    log_stay: Any, log_enter: Any, log_star: Any, norm: Any,
) -> None:  # fmt: skip
    values, withouts = np.empty(token.shape[1] + 1), np.empty(token.shape[1] + 1)
    stars, stays = np.empty(enter.shape[1]), np.empty(enter.shape[1])
    like = np.empty(0, flat.dtype)
    _score_rows(
        begin, end, flat, stride_b, stride_t, frames, vocabulary, blank, token, count, enter, stay, left_out, weight, lengths,
        normalized, log_stay, log_enter, log_star, norm, values, withouts, stars, stays, like,
    )  # fmt: skip


@jit
def _score_rows(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, frames: Any, vocabulary: Any, blank: Any,
    token: Any, count: Any, enter: Any, stay: Any, left_out: Any, weight: Any, lengths: Any, normalized: Any,
    log_stay: Any, log_enter: Any, log_star: Any, norm: Any, values: Any, withouts: Any, stars: Any, stays: Any, like: Any,
) -> None:  # fmt: skip
    current = -1
    for item in range(begin, end):
        b, t = item // frames, item % frames
        if t >= lengths[b]:
            continue
        if b != current:  # slices cost as much as a short loop: once an utterance
            current, columns, n = b, token[b, : count[b]], count[b]
            value, without = values[: n + 1], withouts[: n + 1]
            enters, stayings, leavings = enter[b], stay[b], left_out[b]
        row = flat[b * stride_b + t * stride_t : b * stride_b + t * stride_t + vocabulary]
        log_norm, star, top, others = 0.0, -np.inf, -np.inf, -np.inf
        if normalized or weight.size:
            top, others = _star(row, blank)
            star = logaddexp(others, top, like)
        if normalized:
            log_norm = logaddexp(star, np.float64(row[blank]), like)
            log_norm = 0.0 if log_norm == -np.inf else log_norm
        norm[b, t] = log_norm
        for c in range(n):
            value[c] = np.float64(row[columns[c]]) - log_norm
        value[n] = -np.inf
        _pick(value, enters, log_enter[b, t])
        if weight.size:
            _leave_each_out(star - log_norm, top - log_norm, others - log_norm, value, without, like)
            _pick(without, leavings, stars)
            _add(stars, weight[b], stars)
            if log_star.size:
                _copy(stars, log_star[b, t])
            _pick(value, stayings, stays)
            _logaddexp_all(stays, stars, log_stay[b, t], like)
        else:
            _pick(value, stayings, log_stay[b, t])


# Picking by place and computing are separate loops: the compiler vectorises the second only when it stands alone.


@jit
def _pick(value: Any, place: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = value[place[s]]


@jit
def _copy(values: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = values[s]


@jit
def _add(a: Any, b: Any, out: Any) -> None:
    for s in range(out.size):
        out[s] = a[s] + b[s]


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
    log_outside: Any,
    left_out: Any,
    value: Any,
    blank: Any,
    coefficient: Any,
    sums: Any,
    masked: Any,
    terms: Any,
    shares: Any,
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


@jit_outer
def _gradient(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, token: Any, count: Any, blank: Any, enter: Any, stay: Any, left_out: Any, weight: Any,
    lengths: Any, normalized: Any, skip: Any, num_states: Any, grad: Any, norm: Any, log_alpha: Any, log_beta: Any, log_z: Any,
) -> None:  # fmt: skip
    states, widest = enter.shape[1], token.shape[1] + 1
    values, coefficients, all_sums = np.empty(widest), np.empty(widest), np.empty(widest)
    all_shares, all_posterior = np.empty(widest, flat.dtype), np.empty(states, flat.dtype)
    all_picked, all_masked = np.empty(states), np.empty(states)
    _gradient_rows(
        begin, end, flat, stride_b, stride_t, out_flat, out_stride_b, out_stride_t, frames, vocabulary, token, count, blank,
        enter, stay, left_out, weight, lengths, normalized, skip, num_states, grad, norm, log_alpha, log_beta, log_z,
        values, coefficients, all_sums, all_shares, all_posterior, all_picked, all_masked,
    )  # fmt: skip


@jit
def _gradient_rows(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, out_flat: Any, out_stride_b: Any, out_stride_t: Any,
    frames: Any, vocabulary: Any, token: Any, count: Any, blank: Any, enter: Any, stay: Any, left_out: Any, weight: Any,
    lengths: Any, normalized: Any, skip: Any, num_states: Any, grad: Any, norm: Any, log_alpha: Any, log_beta: Any, log_z: Any,
    values: Any, coefficients: Any, all_sums: Any, all_shares: Any, all_posterior: Any, all_picked: Any, all_masked: Any,
) -> None:  # fmt: skip
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
                _fill(row, math.log(-math.expm1(log_k)) - log_norm, grad[b], out)
            elif log_k == 0.0:
                out[:] = 0
            else:
                _fill(row, log_k + math.log(-math.expm1(-log_k)) - log_norm, -grad[b], out)
        elif log_k == -np.inf:
            out[:] = 0
        else:
            _fill(row, log_k, -grad[b], out)
        _terms(value, 0.0, shares)
        for c in range(columns.size):
            probability = np.float64(shares[c]) if normalized else 0.0
            out[columns[c]] = grad[b] * (probability - coefficient[c])
