"""Reads the best path of STC with merged repeats on the CPU, for `align`: the path, and the posteriors along it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from starseq.emissions.slots_numba import deal
from starseq.emissions.vocabulary_numba import rows_of
from starseq.lattice import threads
from starseq.lattice.elementary_numba import jit_outer
from starseq.lattice.gaps import Gaps
from starseq.lattice.gaps import rows_of as rows_of_gaps
from starseq.lattice.lasting_numba import (
    BLANK,
    LABEL,
    NEXT,
    SLOTS,
    Posteriors,
    Watched,
    forward,
    room,
    room_needed,
    watch_backward,
)
from starseq.lattice.lasting_path_numba import best_path
from starseq.op.lasting_numba import least_alive, rows_for


def read(logits: Tensor, lengths: Tensor, gaps: Gaps) -> tuple[Any, ...]:
    """Row and place (B, T), as in Gaps; posterior and probability there, (B, T); missing, (B, U+1); log-score and log_z, (B,).

    The probability is read of labels alone. log_z is NaN where numbers are too far apart: ask lasting_torch.
    """
    (B, T, V), U = logits.shape, gaps.labels.shape[1]
    flat, *strides = rows_of(logits)
    row, place = np.zeros((B, T), np.int64), np.zeros((B, T), np.int64)
    sure, probability, missing = np.zeros((B, T)), np.zeros((B, T)), np.zeros((B, U + 1))
    log_score, log_z = np.full(B, -np.inf), np.full(B, -np.inf)
    threads.run(
        _read, B, B * T * V * (U + 1), flat, *strides, V, gaps.labels.long().contiguous().numpy(), lengths.numpy(),
        gaps.counts.long().numpy(), gaps.weight.double().contiguous().numpy(),
        rows_of_gaps(gaps, V).left_out.contiguous().numpy(), gaps.blank, row, place, sure, probability, missing, log_score, log_z,
    )  # fmt: skip
    return row, place, sure, probability, missing, log_score, log_z


@jit_outer
def _read(
    begin: Any, end: Any, flat: Any, stride_b: Any, stride_t: Any, vocabulary: Any, targets: Any, lengths: Any, counts: Any,
    weights: Any, left_out: Any, blank: Any, row: Any, place: Any, sure: Any, probability: Any, missing: Any, log_score: Any,
    log_z: Any,
) -> None:  # fmt: skip
    like, scratch = np.empty(0, flat.dtype), np.full(vocabulary, -1, np.int64)
    for b in range(begin, end):
        T, U, start = lengths[b], counts[b], b * stride_b
        labels = targets[b, :U]
        score = best_path(
            flat,
            start,
            stride_t,
            T,
            vocabulary,
            labels,
            blank,
            weights[b, : U + 1],
            left_out[b, : U + 1],
            row[b],
            place[b],
            like,
        )
        if score == -np.inf:
            continue
        distinct, rows = rows_for(labels, weights[b], blank, scratch)
        # What the path inserts gets slots of its own, as labels do.
        tokens, known, size = np.empty(distinct.size + T, np.int64), distinct.size, rows.p.size
        tokens[:known] = distinct
        for i in range(known):
            scratch[tokens[i]] = i
        state = np.empty(T, np.int64)
        for t in range(T):
            l, v = row[b, t], place[b, t]
            if v >= 0 and scratch[v] < 0:
                scratch[v], tokens[known] = known, v
                known += 1
            if v < 0:
                state[t] = LABEL if v == -2 else BLANK
            else:
                state[t] = NEXT if l < U and labels[l] == v else SLOTS + scratch[v]
        for i in range(known):
            scratch[tokens[i]] = -1
        dealt = deal(
            flat, start, stride_t, T, vocabulary, tokens[:known], blank, least_alive(rows, vocabulary),
            np.empty(T * vocabulary, flat.dtype), 0,
            vocabulary, like,
        )  # fmt: skip
        slots = dealt.slots
        wide, narrow = room_needed(T, size, slots.P.shape[1], slots.chunk)
        kept = room(T, size, slots.P.shape[1], slots.chunk, np.empty(wide), np.empty(narrow, flat.dtype))
        z, good, begun = (
            forward(rows, slots, T, kept, np.empty((5, size)), np.empty((2, size), flat.dtype)),
            True,
            np.zeros(size),
        )
        if z > -np.inf:
            result = Posteriors(
                np.zeros(slots.P.shape, flat.dtype), np.zeros(slots.label.shape), np.zeros(T), np.zeros(T), np.zeros(T), begun
            )  # fmt: skip
            good = watch_backward(
                rows, slots, T, kept, np.empty((9, size)), np.empty((5, size), flat.dtype),
                np.empty((2, slots.P.shape[1], size), flat.dtype), result, Watched(row[b], state, sure[b]),
            )  # fmt: skip
        log_score[b], log_z[b] = score - dealt.norm, z if good and z > -np.inf else np.nan
        missing[b, : U + 1] = begun[: U + 1]
        for t in range(T):
            if state[t] == LABEL:
                probability[b, t] = slots.label[t, rows.label[row[b, t]]]
            place[b, t] = vocabulary if state[t] == LABEL else blank if state[t] == BLANK else place[b, t]
