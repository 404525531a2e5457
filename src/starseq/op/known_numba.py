"""What the compiled passes of fused_numba know of a batch before they read a logit, and the block of memory it lives in with its
sums; and what they do last: the losses brought together, the gradient of the result handed out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from starseq.emissions.tokens import NONE
from starseq.emissions.vocabulary_numba import AS_ENTERED, BLANK, Columns, find_columns
from starseq.lattice.elementary_numba import jit, jit_outer

MEAN, SUM, EACH = range(3)
REDUCTIONS = {"mean": MEAN, "sum": SUM, "none": EACH}


class Known(NamedTuple):
    """What is known of a batch before any logit is read."""

    columns: Columns
    num_states: Any  # (B,)
    ends: int
    skip: Any  # (B, S), or (0, S)
    scaled: Any  # (B,), whether it was summed without logarithms


@jit
def layout(size: Any) -> Any:
    """Where the parts of a batch's memory end, in float64 numbers: log_z, stats, weight, share, whole numbers, scaled, tokens,
    what enters, what is left out, skip. The sums of both directions follow. See parts.

    size: (utterances, frames, states, `most_columns`, whether graphs are merging, whether there are stars).
    """
    batch, frames, states, columns, merging, stars = size
    log_z = batch
    stats = log_z + 3 * batch * frames
    weight = stats + (batch * states if stars else 0)
    share = weight + (batch * states if stars else 0)
    whole = share + 3 * batch
    scaled = whole + (batch + 7) // 8
    token = scaled + (batch * columns + 1) // 2
    enter = token + batch * states
    left_out = enter + (batch * states if stars else 0)
    skip = left_out + ((batch * states + 7) // 8 if merging else 0)
    return log_z, stats, weight, share, whole, scaled, token, enter, left_out, skip


@jit_outer  # not `jit`: arrays that are returned must be counted, or they are freed twice
def parts(memory: Any, size: Any) -> Any:
    """What is known of a batch, and its sums, all in one block of memory: an array more is a microsecond more at each call.

    The sums are log_z (B,), stats (3, B, T), and those of both directions (B, T+1, S), of which the last may be missing. Of an
    utterance summed with logarithms, stats[0] is the norm, and the sums are logarithms; of others stats are the tops, the
    inverses and the factors of emissions.linear_numba and lattice.scaled_numba.
    """
    batch, frames, states, count, merging, stars = size
    log_z, stats, weight, share, whole, scaled, token, _, left_out, skip = layout(size)
    starred = batch if stars else 0
    numbers, places = memory[share:whole].view(np.int64), memory[scaled:left_out].view(np.uint32)
    first, arcs = 2 * (token - scaled), 2 * batch * states
    columns = Columns(
        places[: batch * count].reshape((batch, count)),
        numbers[:batch],
        numbers[batch : 2 * batch],
        AS_ENTERED if merging else BLANK,
        places[first : first + arcs].reshape((2, batch, states)),
        places[first + arcs :].reshape((2, starred, states)),
        memory[stats:weight].reshape((starred, states)),
        memory[weight:share].reshape((starred, states)),
    )
    skips = batch if merging else 0
    known = Known(
        columns, numbers[2 * batch :], 2 if merging else 1,
        memory[left_out:skip].view(np.bool_)[: skips * states].reshape((skips, states)),
        memory[whole:scaled].view(np.bool_)[:batch],
    )  # fmt: skip
    sums, one = memory[skip:], batch * (frames + 1) * states
    both = batch if sums.size > one else 0
    return known, (
        memory[:log_z],
        memory[log_z:stats].reshape((3, batch, frames)),
        sums[:one].reshape((batch, frames + 1, states)),
        sums[one:].reshape((both, frames + 1, states)),
    )


@jit
def _good(b: Any, labels: Any, frames: Any, vocabulary: Any, blank: Any) -> Any:
    """Whether `check_values` has nothing to say of utterance b. labels: as in `prepare`."""
    targets, input_lengths, target_lengths, weights = labels
    n = target_lengths[b]
    if input_lengths[b] < 0 or input_lengths[b] > frames or n < 0 or n > targets.shape[1]:
        return False
    for u in range(n):
        if targets[b, u] < 0 or targets[b, u] >= vocabulary or targets[b, u] == blank:
            return False
    if weights.size:
        for u in range(n + 1):
            if not weights[b, u] <= 0:
                return False
    return True


@jit
def _describe(b: Any, labels: Any, blank: Any, enter: Any, left_out: Any, place: Any, known: Any) -> None:
    """Fills in what is known of utterance b: its graph, as criteria.Form describes it. For scratch: enter, left_out, (S,); place,
    as in find_columns."""
    targets, _, target_lengths, weights = labels
    merging, width = known.skip.size > 0, targets.shape[1]
    known.num_states[b] = (2 * target_lengths[b] if merging else target_lengths[b]) + 1
    known.scaled[b] = False  # until it is
    if merging:
        enter[0] = blank
        known.skip[b, :2] = False
    else:
        enter[0] = NONE
    for u in range(width):
        label = NONE if targets[b, u] == blank else targets[b, u]  # as a label it is impossible
        if merging:
            enter[2 * u + 1], enter[2 * u + 2] = label, blank
            known.skip[b, 2 * u + 1] = u > 0 and targets[b, u] != targets[b, u - 1]
            known.skip[b, 2 * u + 2] = False
        else:
            enter[u + 1] = label
    for s in range(enter.size if weights.size else 0):
        closed = s < width and weights[b, s + 1] == -np.inf
        left_out[s] = NONE if s == width or closed else targets[b, s]
    find_columns(
        b, enter, left_out if weights.size else left_out[:0],
        weights[b] if weights.size else weights.reshape(-1), known.num_states[b], blank, place, known.columns,
    )  # fmt: skip


def scaled_of(memory: Any, batch: int, ends: tuple[int, ...]) -> Any:
    """Of `parts`, whether each utterance was summed without logarithms. For Python; ends: of `layout`."""
    return memory[ends[4] : ends[5]].view(np.bool_)[:batch]


@jit_outer
def prepare(
    begin: Any, end: Any, vocabulary: Any, size: Any, labels: Any, blank: Any, validate: Any, memory: Any
) -> Any:
    """The parts of a batch's memory, what is known of utterances begin..end-1 filled in. Raises ValueError if a value is bad, and
    that matters. labels: targets, input_lengths, target_lengths, and log_penalty or (0, 0)."""
    _, frames, states, _, _, _ = size
    if validate:
        for b in range(begin, end):
            if not _good(b, labels, frames, vocabulary, blank):
                raise ValueError("a length, a label or a penalty is out of range")
    known, sums = parts(memory, size)
    enter, left_out, place = np.empty(states, np.int64), np.empty(states, np.int64), np.full(vocabulary, -1, np.int32)
    for b in range(begin, end):
        _describe(b, labels, blank, enter, left_out, place, known)
    return known, sums


@jit
def reduce_losses(log_z: Any, target_lengths: Any, reduction: Any, zero_infinity: Any, out: Any) -> None:
    """As reduction.reduce, into `out`. It is called from Python, too."""
    whole = 0.0
    for b in range(log_z.size):
        loss = 0.0 if zero_infinity and log_z[b] == -np.inf else -log_z[b]
        if reduction == EACH:
            out[b] = loss
        else:
            whole += loss / max(target_lengths[b], 1) if reduction == MEAN else loss
    if reduction != EACH:
        out[0] = whole / log_z.size if reduction == MEAN else whole


@jit
def share_grad(grad: Any, target_lengths: Any, reduction: Any, out: Any) -> None:
    """As reduction.for_each. grad: (B,), or of one element."""
    for b in range(out.size):
        part = grad[b] if reduction == EACH else grad[0]
        out[b] = part / (max(target_lengths[b], 1) * out.size) if reduction == MEAN else part
