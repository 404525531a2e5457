"""Probabilities of tokens, and which of them have states of their own where inserted tokens last, on a GPU: as slots_numba.

Three passes: `_norms` reads a row of logits, `_find` all rows of a chunk for some tokens, `_deal` what a chunk's slots need. The
gradient of dead tokens is a fourth, `fill_dead`. No array as large as the logits is stored, but for a byte a token and chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from starseq.emissions.vocabulary_triton import row_sums
from starseq.lattice.elementary_triton import probability, some_of, split
from starseq.lattice.lasting_triton import label_at, store_labels

LABEL, OTHER = tl.constexpr(2), tl.constexpr(1)
"""Of a token's byte in a chunk: a label of the utterance, or alive. 0 is dead, or the blank."""
NONE = tl.constexpr(-2)
"""The token of an empty slot."""


@triton.jit
def frames_of(length_ptr, b, T):
    return tl.maximum(tl.minimum(tl.load(length_ptr + b), T), 0).to(tl.int32)


@triton.jit
def count_of(count_ptr, b, U):
    return tl.maximum(tl.minimum(tl.load(count_ptr + b), U), 0).to(tl.int32)


@triton.jit(do_not_specialize=["labels_b", "labels_u", "weight_b", "weight_s", "V", "U", "blank"])
def mark(
    labels_ptr, count_ptr, weight_ptr, mark_ptr, slot_ptr, least_ptr, labels_b, labels_u, weight_b, weight_s, V, U, blank,
    ALIVE: tl.constexpr, ODDS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """mark (B, V), a byte: LABEL, 1 for the blank, 0. slot (B, U+2): the slot of each row's label, which is its first place, or
    -1. least (B,): see ALIVE."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    count = count_of(count_ptr, b, U)
    v = part * BLOCK + tl.arange(0, BLOCK)
    found = tl.where(v == blank, 1, 0)
    for u in range(count):
        label = label_at(labels_ptr + b * labels_b, labels_u, u, u >= 0, V, blank)
        found = tl.where(v == label, LABEL, found)
    tl.store(mark_ptr + b * V + v, found.to(tl.int8), mask=v < V)
    if part == 0:
        odds = tl.full((), 1.0, tl.float64)
        for start in range(0, U + 2, ROWS):
            l = start + tl.arange(0, ROWS)
            own = label_at(labels_ptr + b * labels_b, labels_u, l - 1, (l > 0) & (l <= count), V, blank)
            first = tl.full((ROWS,), -1, tl.int32)
            for u in range(count):
                label = label_at(labels_ptr + b * labels_b, labels_u, u, u >= 0, V, blank)
                first = tl.where((first < 0) & (own == label) & (own >= 0), u, first)
            tl.store(slot_ptr + b * (U + 2) + l, first, mask=l < U + 2)
            weight = tl.load(weight_ptr + b * weight_b + l * weight_s, mask=l <= count, other=float("-inf"))
            p = tl.exp(weight.to(tl.float64))
            odds = tl.maximum(odds, tl.max(tl.where(p > 0, (1.0 - p) / p, 1.0), axis=0))
        odds = tl.minimum(odds, ODDS)
        tl.store(least_ptr + b, (ALIVE / (odds * odds * odds)).to(tl.float32))


@triton.jit(do_not_specialize=["stride_b", "stride_t", "T", "V", "blank"])
def norms(
    x_ptr, length_ptr, norm_ptr, stride_b, stride_t, T, V, blank, STRIDE_V: tl.constexpr, BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """norm (B, T), the log-sums."""
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    if t < tl.load(length_ptr + b):
        if STRIDE_V == 1:
            base = b * stride_b + t * stride_t
        else:
            x_ptr += b * stride_b + t * stride_t
            base = row * 0
        _, _, _, norm = row_sums(x_ptr, base, STRIDE_V, V, blank, False, True, False, BLOCK, ALIGN)
        tl.store(norm_ptr + row, norm)


@triton.jit
def _row(x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, t, v, usual, frames):
    """The probabilities of tokens v at frame t, 0 outside of the frames and where not `usual`."""
    first, second = split(tl.load(norm_ptr + t, mask=(t >= 0) & (t < frames), other=0.0))
    at = t + v * 0  # for the interpreter: a mask of this shape
    usual = usual & (at >= 0) & (at < frames)
    x = tl.load(x_ptr + tl.cast(t, tl.int64) * stride_t + v.to(tl.int64) * STRIDE_V, mask=usual, other=float("-inf"))
    return probability(x, first, second)


@triton.jit(do_not_specialize=["stride_b", "stride_t", "T", "V", "chunks", "parts"])
def find(
    x_ptr, length_ptr, norm_ptr, mark_ptr, least_ptr, alive_ptr, number_ptr, sum_ptr,
    stride_b, stride_t, T, V, chunks, parts,
    STRIDE_V: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of BLOCK tokens in a chunk: alive (B, chunks, V) a byte each; how many, number (B, chunks, parts); and of the dead ones the
    sums of P_t and of P_t P_t+1, sum (B, T, 2, parts): at the end of a chunk these may be alive a frame later."""
    b, chunk, part = tl.program_id(1).to(tl.int64), tl.program_id(0) // parts, tl.program_id(0) % parts
    frames = frames_of(length_ptr, b, T)
    start = chunk * CHUNK
    if start < frames:
        x_ptr += b * stride_b
        norm_ptr += b * T
        v = part * BLOCK + tl.arange(0, BLOCK)
        marked = tl.load(mark_ptr + b * V + v, mask=v < V, other=1)
        usual = marked == 0
        before, now = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        most = tl.zeros((BLOCK,), tl.float32)
        sums = sum_ptr + (b * T + start) * 2 * parts + part
        coming = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start - 2, v, usual, frames)
        for i in range(CHUNK + 4):
            after = coming
            coming = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start - 1 + i, v, usual, frames)
            most = tl.maximum(most, before * now * after)
            k = i - 2
            if (k >= 0) & (k < CHUNK) & (start + k < frames):
                tl.store(sums + k * 2 * parts, tl.sum(after, axis=0))
            if (k >= 1) & (k <= CHUNK) & (start + k - 1 < frames):
                tl.store(sums + (k * 2 - 1) * parts, tl.sum(now * after, axis=0))
            before, now = now, after
        alive = usual & (most > tl.load(least_ptr + b))
        byte = tl.where(marked == LABEL, LABEL, tl.where(alive, OTHER, 0))
        tl.store(alive_ptr + (b * chunks + chunk) * V + v, byte.to(tl.int8), mask=v < V)
        number = tl.sum(alive.to(tl.int32), axis=0)
        tl.store(number_ptr + (b * chunks + chunk) * parts + part, number)
        if number > 0:  # the sums once more, without these
            tl.debug_barrier()
            usual = usual & (alive == 0)
            now = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start, v, usual, frames)
            for k in range(CHUNK):
                after = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start + k + 1, v, usual, frames)
                if start + k < frames:
                    tl.store(sums + k * 2 * parts, tl.sum(now, axis=0))
                    tl.store(sums + (k * 2 + 1) * parts, tl.sum(now * after, axis=0))
                now = after


@triton.jit(
    do_not_specialize=[
        "stride_b",
        "stride_t",
        "labels_b",
        "labels_u",
        "T",
        "V",
        "U",
        "chunks",
        "parts",
        "room",
        "blank",
    ]
)
def deal(
    x_ptr, length_ptr, count_ptr, labels_ptr, norm_ptr, slot_ptr, alive_ptr, number_ptr, sum_ptr, token_ptr, size_ptr, P_ptr,
    dead_ptr, m_ptr, e_ptr,
    stride_b, stride_t, labels_b, labels_u, T, V, U, chunks, parts, room, blank,
    STRIDE_V: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Of a chunk: its slots' tokens (B, chunks, room), labels first, and how many (B, chunks); the probabilities of the first
    SLOTS (B, T, SLOTS); dead (B, T, 2), the two sums of `find`; and those of labels, see `store_labels`."""
    b, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    frames, count = frames_of(length_ptr, b, T), count_of(count_ptr, b, U)
    here = b * chunks + chunk
    if chunk * CHUNK < frames:
        t = chunk * CHUNK + tl.arange(0, CHUNK)
        x_ptr += b * stride_b
        norm_ptr += b * T
        token_ptr += here * room
        labels_ptr += b * labels_b
        for start in range(0, U + 1, ROWS):
            l = start + tl.arange(0, ROWS)
            inside = (t < frames)[:, None] & (l <= count)[None, :]
            norm = tl.load(norm_ptr + t, mask=t < frames, other=0.0)
            place = (b * T + t)[:, None] * (U + 1)
            store_labels(
                x_ptr + t.to(tl.int64)[:, None] * stride_t, STRIDE_V, norm[:, None], labels_ptr, labels_u, m_ptr + place,
                e_ptr + place, l[None, :], inside, V, blank, False,
            )  # fmt: skip
            # A label has one slot, at its first place: the other places stay empty.
            label = label_at(labels_ptr, labels_u, l, l < count, V, blank)
            is_first = tl.load(slot_ptr + b * (U + 2) + l + 1, mask=l < count, other=-1) == l
            tl.store(token_ptr + l, tl.where(is_first, label, NONE), mask=l < U)
        size = tl.cast(U, tl.int32)
        for part in range(parts):
            number = tl.load(number_ptr + here * parts + part)
            if number > 0:
                v = part * BLOCK + tl.arange(0, BLOCK)
                alive = tl.load(alive_ptr + here * V + v, mask=v < V, other=0) == OTHER
                rank = tl.cumsum(alive.to(tl.int32), axis=0) - 1
                tl.store(token_ptr + size + rank, v, mask=alive)
                size += number
        tl.store(size_ptr + here, size)
        tl.debug_barrier()
        j = tl.arange(0, SLOTS)
        token = tl.load(token_ptr + j, mask=j < size, other=NONE)
        P = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t, token, frames)
        tl.store(P_ptr + (b * T + t)[:, None] * SLOTS + j[None, :], P, mask=(t < frames)[:, None])
        # What is alive here and dead in the next chunk stands for two frames between them.
        last = chunk * CHUNK + CHUNK - 1 + tl.arange(0, 2)
        between = tl.zeros((), tl.float64)
        if chunk * CHUNK + CHUNK < frames:
            for start in range(U, size, SOME):
                i = start + tl.arange(0, SOME)
                some = tl.load(token_ptr + i, mask=i < size, other=NONE)
                after = tl.load(alive_ptr + (here + 1) * V + some, mask=some >= 0, other=1)
                some = tl.where(after == 0, some, NONE)
                both = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, last, some, frames).to(tl.float64)
                one = tl.sum(tl.where((tl.arange(0, 2) == 0)[:, None], both, 0.0), axis=0)
                two = tl.sum(tl.where((tl.arange(0, 2) == 1)[:, None], both, 0.0), axis=0)
                between += tl.sum(one * two, axis=0)
        part = tl.arange(0, PARTS)
        sums = sum_ptr + (b * T + t)[:, None] * 2 * parts + part[None, :]
        inside = (t < frames)[:, None] & (part < parts)[None, :]
        dead = tl.sum(tl.load(sums, mask=inside, other=0.0).to(tl.float64), axis=1)
        pair = tl.sum(tl.load(sums + parts, mask=inside, other=0.0).to(tl.float64), axis=1)
        pair += tl.where(t == chunk * CHUNK + CHUNK - 1, between, 0.0)
        tl.store(dead_ptr + (b * T + t) * 2, dead, mask=t < frames)
        tl.store(dead_ptr + (b * T + t) * 2 + 1, pair, mask=t < frames)
    else:
        tl.store(size_ptr + here, 0)


@triton.jit
def weight_of(grad_ptr, grad_b, count_ptr, b, B, REDUCTION: tl.constexpr):
    """What an utterance's loss gets: of "none", "sum" (1) and "mean" (2)."""
    if REDUCTION == 0:
        return tl.load(grad_ptr + b * grad_b).to(tl.float64)
    else:
        grad = tl.load(grad_ptr).to(tl.float64)
        if REDUCTION == 2:
            grad /= tl.maximum(tl.load(count_ptr + b), 1).to(tl.float64) * B
        return grad


@triton.jit(do_not_specialize=["stride_b", "stride_t", "out_b", "out_t", "grad_b", "B", "T", "V", "parts", "blank"])
def fill_dead(
    grad_ptr, x_ptr, length_ptr, count_ptr, norm_ptr, z_ptr, share_ptr, out_ptr,
    stride_b, stride_t, out_b, out_t, grad_b, B, T, V, parts, blank,
    STRIDE_V: tl.constexpr, OUT_STRIDE_V: tl.constexpr, REDUCTION: tl.constexpr, NORMALIZED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of BLOCK tokens in a chunk as if all were dead, and of the blank. share (B, T, 3): the posterior of a dead token
    that begins in a frame, over its P; of one that stands in this frame and the next, over both; of the blank."""
    b, chunk, part = tl.program_id(1).to(tl.int64), tl.program_id(0) // parts, tl.program_id(0) % parts
    frames = frames_of(length_ptr, b, T)
    z = tl.load(z_ptr + b)
    v = part * BLOCK + tl.arange(0, BLOCK)
    inside = v < V
    start = chunk * CHUNK
    out = out_ptr + b * out_b + v.to(tl.int64) * OUT_STRIDE_V
    kind: tl.constexpr = out_ptr.dtype.element_ty
    if (start >= frames) | (z == 0):
        for k in range(CHUNK):
            nothing = tl.zeros((BLOCK,), kind)
            tl.store(out + tl.cast(start + k, tl.int64) * out_t, nothing, mask=inside & (v * 0 + start + k < T))
    else:
        x_ptr += b * stride_b
        norm_ptr += b * T
        grad = weight_of(grad_ptr, grad_b, count_ptr, b, B, REDUCTION).to(tl.float32)
        before = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start - 1, v, inside, frames)
        now = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, start, v, inside, frames)
        share_ptr += b * T * 3
        with_before = tl.load(share_ptr + start * 3 - 2, mask=start > 0, other=0.0)
        for k in range(CHUNK):
            t = start + k
            after = _row(x_ptr, stride_t, STRIDE_V, norm_ptr, t + 1, v, inside, frames)
            alone = -tl.load(share_ptr + t * 3, mask=t < frames, other=0.0)
            with_after = tl.load(share_ptr + t * 3 + 1, mask=t < frames, other=0.0)
            of_blank = tl.load(share_ptr + t * 3 + 2, mask=t < frames, other=0.0)
            if NORMALIZED:
                alone += 1.0
            result = now * (alone - with_before * before - with_after * after)
            result = tl.where(v == blank, (now if NORMALIZED else 0.0) - of_blank, result)
            tl.store(
                out + tl.cast(t, tl.int64) * out_t, (grad * tl.where(t < frames, result, 0.0)).to(kind),
                mask=inside & (v * 0 + t < T), eviction_policy="evict_first",
            )  # fmt: skip
            before, now, with_before = now, after, with_after
