"""The operation on a GPU where inserted tokens last: probabilities, sums in both directions side by side, the loss, the gradient.

Small vocabularies, and all of float64, have a slot for every token. Of others an utterance's chunks deal slots to few tokens
(`starseq.emissions.slots_triton`), in lists that hold any number. Up to `_Plan.tokens` of them are registers; an utterance with
more goes through a second launch, in which they lie in memory. Which of the two it is, only the device knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.arguments import check_values
from starseq.emissions.alive import ALIVE, CHUNK, FEW, ODDS
from starseq.emissions.slots_triton import count_of, deal, fill_dead, find, frames_of, mark, norms, weight_of
from starseq.emissions.vocabulary_triton import blocks
from starseq.lattice.elementary_triton import some_of
from starseq.lattice.lasting_triton import backward as sums_back
from starseq.lattice.lasting_triton import chunk_posteriors, power_of, row_posteriors, rows_of, store_labels
from starseq.lattice.lasting_triton import forward as sums
from starseq.lattice.launch_triton import launch_of
from starseq.op import readable
from starseq.op.options import Batch, Options, Saved, by_utterance, loss_dtype

_STATES = 65_536
"""Of a program, in registers."""
_SPARE = 32
"""Slots beside those of labels, at least."""
_TOKENS, _ROWS = 8, 32
_PASS = 1024
_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


class _Plan(NamedTuple):
    """Sizes and constants of a batch."""

    slots: bool  # few tokens have states
    A: int  # states a row, in registers unless tiled
    tokens: int  # at once
    rows: int  # the next power of two
    keep: int  # chunks
    room: int  # of a chunk's list
    parts: int  # of a row of the vocabulary
    tiled: bool  # without `slots`: always

    @property
    def width(self) -> int:
        """Of a row of probabilities: in registers, as many as there are, 0 where there is no token and of the blank."""
        return self.A if self.tiled else self.tokens


def _plan(V: int, R: int, exact: bool) -> _Plan:
    rows = max(triton.next_power_of_2(R), 16)
    if exact or V <= FEW:
        most = triton.next_power_of_2(V)
        tokens = min(most, max(_STATES // rows, 1))
        return _Plan(False, V, tokens, rows, 1, 0, 0, tokens < V)
    tokens = triton.next_power_of_2(R - 1 + _SPARE)
    tokens = min(tokens, max(_STATES // rows, 1))
    return _Plan(True, tokens, tokens, rows, 4, V + R, triton.cdiv(V, _PASS), False)


class _Call(NamedTuple):
    """A batch with what is known of it before any number is."""

    logits: Tensor
    targets: Tensor
    lengths: Tensor
    counts: Tensor
    log_penalty: Tensor
    B: int
    T: int
    V: int
    U: int
    blank: int
    exact: bool
    chunks: int
    strides: Sequence[int]  # of the logits: b, t, v
    of_labels: Sequence[int]  # strides of targets and log_penalty
    plan: _Plan

    @property
    def per_gap(self) -> bool:
        return self.of_labels[3] != 0

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Of the type of sums in registers, unless told."""
        kind = torch.float64 if self.exact else torch.float32
        return torch.empty(shape, dtype=dtype or kind, device=self.logits.device)


class _Emitted(NamedTuple):
    """What the frames give. Where all tokens have slots, the last five are anything."""

    norm: Tensor  # (B, T) float64
    m: Tensor  # (B, T, R) and
    e: Tensor  # likewise int32, see `store_labels`
    P: Tensor  # (B, T, width)
    dead: Tensor  # (B, T, 2) float64, see `deal`
    slot: Tensor  # (B, R+1), see `mark`
    token: Tensor  # (B, chunks, room), the tokens of a chunk's slots
    size: Tensor  # (B, chunks), how many
    alive: Tensor  # (B, chunks, V), see `find`


class _Summed(NamedTuple):
    """What starseq.lattice.lasting_triton says of every frame and row; of both directions, or with the second empty."""

    row: Tensor
    number: Tensor
    power: Tensor
    kept: Tensor
    back_row: Tensor
    back_number: Tensor
    z: Tensor  # (B,) times 2^z_power
    z_power: Tensor


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    call = _call(batch, options)
    if call.B * call.T == 0 or (not call.plan.slots and call.V > 2**17):
        return readable.forward(batch, options)
    if options.validate:
        shape = torch.Size((call.B, call.T, call.V))
        check_values(call.targets, call.lengths, call.counts, call.log_penalty, shape, call.blank)
    emitted = _emit_slots(call) if call.plan.slots else _emit_all(call)
    summed = _add_up(call, emitted, options.differentiable or options.inserted)
    loss = torch.empty(
        call.B if options.reduction == "none" else (), dtype=loss_dtype(call.logits), device=call.logits.device
    )
    block = min(triton.next_power_of_2(call.T), 1024)
    constants = (options.normalized, _REDUCTIONS[options.reduction], options.zero_infinity, block)
    launch_of(_loss, constants, 4)(
        (1, 1), (summed.z, summed.z_power, emitted.norm, call.lengths, call.counts, loss), (call.B, call.T)
    )
    insertions = _insertions(call, emitted, summed).to(loss.dtype) if options.inserted else None
    return loss, insertions, Saved((*emitted, *summed) if options.differentiable else ())


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    if saved.other is not None:
        return readable.backward(grad, batch, saved, options)
    emitted = len(_Emitted._fields)
    return _gradient_of(
        grad, _call(batch, options), _Emitted(*saved.tensors[:emitted]), _Summed(*saved.tensors[emitted:]), options
    )


def _call(batch: Batch, options: Options) -> _Call:
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    assert log_penalty is not None
    B, T, V = by_utterance(logits.shape, options.batch_first)
    U, exact = targets.shape[1], logits.dtype == torch.float64
    return _Call(
        logits, targets, input_lengths.contiguous(), target_lengths.contiguous(), log_penalty, B, T, V, U,
        options.blank, exact, triton.cdiv(T, CHUNK), by_utterance(logits.stride(), options.batch_first),
        (*targets.stride(), *log_penalty.stride()), _plan(V, U + 1, exact),
    )  # fmt: skip


def _emit_all(call: _Call) -> _Emitted:
    """Where all tokens have slots."""
    logits, targets, lengths, counts, _, B, T, V, U, blank, exact, _, strides, of_labels, plan = call
    norm, m = call.empty(B, T, dtype=torch.float64), call.empty(B, T, U + 1)
    e, P = call.empty(B, T, U + 1, dtype=torch.int32), call.empty(B, T, plan.width)
    block = triton.next_power_of_2(V)
    constants = (strides[2], exact, block, plan.rows, plan.tiled)
    launch_of(_probabilities, constants, min(max(block // 256, 1), 16))(
        (B * T, 1), (logits, lengths, counts, targets, norm, P, m, e), (*strides[:2], *of_labels[:2], T, V, U, blank)
    )
    return _Emitted(norm, m, e, P, norm, e, e, e, e)


def _emit_slots(call: _Call) -> _Emitted:
    """Where few have."""
    logits, targets, lengths, counts, log_penalty, B, T, V, U, blank, _, chunks, strides, of_labels, plan = call
    of_frames, stride_v, parts = strides[:2], strides[2], plan.parts
    mark_of, slot = call.empty(B, V, dtype=torch.int8), call.empty(B, U + 2, dtype=torch.int32)
    norm, least = call.empty(B, T, dtype=torch.float64), call.empty(B)
    launch_of(mark, (ALIVE, ODDS, 2 * _PASS, 128), 4)(
        (triton.cdiv(V, 2 * _PASS), B), (targets, counts, log_penalty, mark_of, slot, least), (*of_labels, V, U, blank)
    )
    block, align, _, warps = blocks(logits.dtype, V, 1, unit=stride_v == 1, gradient=False)
    launch_of(norms, (stride_v, block, align), warps)(
        (B * T, 1), (logits, lengths, norm), (*of_frames, T, V, blank)
    )  # fmt: skip
    alive, number = call.empty(B, chunks, V, dtype=torch.int8), call.empty(B, chunks, parts, dtype=torch.int32)
    sums_of = call.empty(B, T, 2, parts)
    launch_of(find, (stride_v, CHUNK, _PASS), 4)(
        (parts * chunks, B), (logits, lengths, norm, mark_of, least, alive, number, sums_of),
        (*of_frames, T, V, chunks, parts),
    )  # fmt: skip
    token, size = call.empty(B, chunks, plan.room, dtype=torch.int32), call.empty(B, chunks, dtype=torch.int32)
    dead, m = call.empty(B, T, 2, dtype=torch.float64), call.empty(B, T, U + 1)
    e, P = call.empty(B, T, U + 1, dtype=torch.int32), call.empty(B, T, plan.width)
    launch_of(deal, (stride_v, CHUNK, _PASS, triton.next_power_of_2(parts), plan.A, 32, 64), 4)(
        (chunks, B), (logits, lengths, counts, targets, norm, slot, alive, number, sums_of, token, size, P, dead, m, e),
        (*of_frames, *of_labels[:2], T, V, U, chunks, parts, plan.room, blank),
    )  # fmt: skip
    return _Emitted(norm, m, e, P, dead, slot, token, size, alive)


def _add_up(call: _Call, emitted: _Emitted, both: bool) -> _Summed:
    logits, targets, lengths, counts, log_penalty, B, T, V, U, blank, exact, chunks, strides, of_labels, plan = call
    norm, m, e, P, dead, slot, token, size, alive = emitted
    R, kept, backward = U + 1, triton.cdiv(chunks, plan.keep), B if both else 0
    summed = _Summed(
        call.empty(B, T, 3, R), call.empty(B, T + 1, 3, R, dtype=torch.float64),
        call.empty(1 + both, B, T + 1, R, dtype=torch.int32), call.empty(1 + both, B, kept, plan.A, R),
        call.empty(backward, T + 1, 2, R), call.empty(backward, T + 1, 2, R, dtype=torch.float64),
        call.empty(B, dtype=torch.float64), call.empty(B, dtype=torch.int32),
    )  # fmt: skip
    # Freed with this function, so that the gradient may lie there.
    state = call.empty(1 + both, B, V, R) if plan.slots or plan.tiled else m
    for tiled in (False, True) if plan.slots else (plan.tiled,):
        constants = (
            strides[2], call.per_gap, CHUNK, plan.keep, exact, tiled, plan.slots, plan.tokens, plan.rows, _vector(chunks)
        )  # fmt: skip
        launch_of(_sums, constants, _warps(plan))(
            (B, 1 + both),
            (logits, norm, m, e, P, dead, slot, token, size, alive, targets, lengths, counts, log_penalty, state, *summed),
            (*strides[:2], *of_labels, B, T, V, R, plan.A, plan.width, chunks, kept, plan.room, blank),
        )  # fmt: skip
    return summed


def _insertions(call: _Call, emitted: _Emitted, summed: _Summed) -> Tensor:
    """(B, U+1)."""
    tiles = triton.cdiv(call.plan.A, _TOKENS)
    begun = call.logits.new_zeros(call.B, call.chunks, tiles + 1, call.U + 1, dtype=torch.float64)
    share = call.empty(call.B, call.T, 3, dtype=torch.float32)
    _of_rows(call, emitted, summed, share, begun, inserted=True)
    launch_of(_gradient, _constants(call, call.strides[2], 0, False, inserted=True), 4)(
        (tiles * call.chunks, call.B), _arguments(call, emitted, summed, summed.z, call.logits, share, begun),
        _integers(call, summed, (0, 0), 0, tiles),
    )  # fmt: skip
    return begun.sum(dim=(1, 2))


def _gradient_of(grad: Tensor, call: _Call, emitted: _Emitted, summed: _Summed, options: Options) -> Tensor:
    result, plan = torch.empty_like(call.logits), call.plan
    *out, out_v = by_utterance(result.stride(), options.batch_first)
    reduction, normalized = _REDUCTIONS[options.reduction], options.normalized
    grad_b, share = grad.stride(0) if grad.dim() else 0, summed.z
    if plan.slots:
        share = call.empty(call.B, call.T, 3)
        _of_rows(call, emitted, summed, share, share, inserted=False)
        launch_of(fill_dead, (call.strides[2], out_v, reduction, normalized, CHUNK, _PASS), 4)(
            (plan.parts * call.chunks, call.B),
            (grad, call.logits, call.lengths, call.counts, emitted.norm, summed.z, share, result),
            (*call.strides[:2], *out, grad_b, call.B, call.T, call.V, plan.parts, call.blank),
        )  # fmt: skip
    tiles = triton.cdiv(plan.A, _TOKENS)
    launch_of(_gradient, _constants(call, out_v, reduction, normalized, inserted=False), 4)(
        (tiles * call.chunks, call.B), _arguments(call, emitted, summed, grad, result, share, share),
        _integers(call, summed, out, grad_b, tiles),
    )  # fmt: skip
    return result


def _of_rows(
    call: _Call, emitted: _Emitted, summed: _Summed, share: Tensor, begun: Tensor, *, inserted: bool
) -> None:  # fmt: skip
    row, number, power, _, *others = summed
    launch_of(_row_posteriors, (call.per_gap, CHUNK, _ROWS, call.plan.slots, inserted), 4)(
        (call.chunks, call.B),
        (emitted.dead, emitted.m, emitted.e, call.targets, call.lengths, call.counts, call.log_penalty, row, number, power, *others,
         share, begun),
        (*call.of_labels, call.B, call.T, call.V, call.U + 1, call.chunks, triton.cdiv(call.plan.A, _TOKENS), call.blank),
    )  # fmt: skip


def _constants(call: _Call, out_v: int, reduction: int, normalized: bool, *, inserted: bool) -> tuple[int | bool, ...]:
    plan = call.plan
    return (
        call.strides[2], out_v, reduction, normalized, call.per_gap, CHUNK, plan.keep, plan.A, _TOKENS, _ROWS, call.exact,
        plan.slots, inserted, _vector(call.chunks),
    )  # fmt: skip


def _arguments(
    call: _Call, emitted: _Emitted, summed: _Summed, grad: Tensor, out: Tensor, share: Tensor, begun: Tensor
) -> tuple[Tensor, ...]:  # fmt: skip
    norm, m, e, P, _, _, token, size, alive = emitted
    return (
        grad, call.logits, out, norm, m, e, P, token, size, alive, call.targets, call.lengths, call.counts, call.log_penalty,
        *summed, share, begun,
    )  # fmt: skip


def _integers(call: _Call, summed: _Summed, out: Sequence[int], grad_b: int, tiles: int) -> tuple[int, ...]:
    return (
        *call.strides[:2], *out, grad_b, *call.of_labels, call.B, call.T, call.V, call.U + 1, call.plan.A, call.plan.width,
        call.chunks, summed.kept.shape[2], call.plan.room, tiles, call.blank,
    )  # fmt: skip


def _warps(plan: _Plan) -> int:
    """Of the sums. Where chunks deal slots anew, half as many were the faster."""
    states = plan.tokens * plan.rows
    return 32 if states >= 32_768 else min(max(states // (2048 if plan.slots else 1024), 4), 16)


def _vector(size: int) -> int:
    """As many or more, for a vector of them."""
    return max(int(triton.next_power_of_2(size)), 16)


_INTEGERS = [
    "stride_b", "stride_t", "out_b", "out_t", "grad_b", "labels_b", "labels_u", "weight_b", "weight_s", "B", "T", "V", "U", "R",
    "A", "width", "chunks", "some", "room", "tiles", "blank",
]  # fmt: skip


def _of(*missing: str) -> list[str]:
    return [name for name in _INTEGERS if name not in missing]


@triton.jit(do_not_specialize=["stride_b", "stride_t", "labels_b", "labels_u", "T", "V", "U", "blank"])
def _probabilities(
    x_ptr, length_ptr, count_ptr, labels_ptr, norm_ptr, P_ptr, m_ptr, e_ptr, stride_b, stride_t, labels_b, labels_u, T, V, U, blank,
    STRIDE_V: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """norm (B, T), the log-sums, P (B, T, V), without TILED (B, T, BLOCK), and those of labels, see `store_labels`."""
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    v = tl.arange(0, BLOCK)
    if t < tl.load(length_ptr + b):
        x_ptr += b * stride_b + t * stride_t
        x = tl.load(x_ptr + v.to(tl.int64) * STRIDE_V, mask=v < V, other=float("-inf"))
        x = x.to(tl.float64) if EXACT else x.to(tl.float32)
        top = tl.max(x, axis=0)
        top = tl.where(top > float("-inf"), top, 0.0)
        P = tl.exp(x - top)
        total = tl.sum(P, axis=0)
        P /= tl.where(total == 0, 1.0, total)
        norm = top.to(tl.float64) + tl.log(total.to(tl.float64))
        norm = tl.where(total == 0, 0.0, norm)
        tl.store(norm_ptr + row, norm)
        if TILED:
            tl.store(P_ptr + row * V + v, P, mask=v < V)
        else:
            tl.store(P_ptr + row * BLOCK + v, tl.where(v == blank, 0.0, P))
        l, place = tl.arange(0, ROWS), row * (U + 1)
        store_labels(
            x_ptr, STRIDE_V, norm, labels_ptr + b * labels_b, labels_u, m_ptr + place, e_ptr + place, l,
            l <= count_of(count_ptr, b, U), V, blank, EXACT,
        )  # fmt: skip


@triton.jit
def _most(size_ptr, chunks, CHUNKS: tl.constexpr):
    """The largest of an utterance's lists."""
    most = tl.zeros((), tl.int32)
    c = tl.arange(0, CHUNKS)
    return tl.maximum(most, tl.max(tl.load(size_ptr + c, mask=c < chunks, other=0), axis=0))


@triton.jit(do_not_specialize=_of("out_b", "out_t", "grad_b", "U", "tiles"))
def _sums(
    x_ptr, norm_ptr, m_ptr, e_ptr, P_ptr, dead_ptr, slot_ptr, token_ptr, size_ptr, alive_ptr, labels_ptr, length_ptr, count_ptr,
    weight_ptr, state_ptr, row_ptr, number_ptr, power_ptr, kept_ptr, back_row_ptr, back_number_ptr, z_ptr, z_power_ptr,
    stride_b, stride_t, labels_b, labels_u, weight_b, weight_s, B, T, V, R, A, width, chunks, some, room, blank,
    STRIDE_V: tl.constexpr, PER_GAP: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr,
    TILED: tl.constexpr, SLOTS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    mine = b >= 0
    if SLOTS:
        size_ptr += b * chunks
        most = _most(size_ptr, chunks, CHUNKS)
        mine = most > TOKENS if TILED else most <= TOKENS
    if mine:
        count, frames = count_of(count_ptr, b, R - 1), frames_of(length_ptr, b, T)
        l, v = tl.arange(0, ROWS), tl.arange(0, TOKENS)
        label, following, p, rest, differs, opens = rows_of(
            labels_ptr + b * labels_b, labels_u, weight_ptr + b * weight_b, weight_s, l, count, V, blank, PER_GAP
        )
        states_of = V if TILED else A
        if SLOTS:
            slot_ptr += b * (R + 1)
            label = tl.load(slot_ptr + l, mask=l <= count, other=-1)
            following = tl.load(slot_ptr + l + 1, mask=l < count, other=-1)
            states_of = V
        x_ptr += b * stride_b
        norm_ptr += b * T
        m_ptr += b * T * R
        e_ptr += b * T * R
        P_ptr += b * T * width
        dead_ptr += b * T * 2
        token_ptr += b * chunks * room
        alive_ptr += b * chunks * V
        no_blank = -1 if SLOTS else blank
        if tl.program_id(1) == 0:
            sums(
                x_ptr, stride_t, STRIDE_V, norm_ptr, m_ptr, e_ptr, P_ptr, A, dead_ptr, token_ptr, size_ptr, alive_ptr, room, V,
                row_ptr + b * T * 3 * R, number_ptr + b * (T + 1) * 3 * R,
                power_ptr + b * (T + 1) * R, kept_ptr + b * some * A * R, state_ptr + b * states_of * R, z_ptr + b,
                z_power_ptr + b, frames, count, label, following, p, rest, differs, opens, v, l, R, no_blank,
                PER_GAP, CHUNK, KEEP, EXACT, TILED, SLOTS,
            )  # fmt: skip
        else:
            sums_back(
                x_ptr, stride_t, STRIDE_V, norm_ptr, m_ptr, e_ptr, P_ptr, A, dead_ptr, token_ptr, size_ptr, alive_ptr, room, V,
                back_row_ptr + b * (T + 1) * 2 * R, back_number_ptr + b * (T + 1) * 2 * R,
                power_ptr + (B + b) * (T + 1) * R, kept_ptr + (B + b) * some * A * R, state_ptr + (B + b) * states_of * R,
                frames, count, label, following, p, rest, differs, opens, v, l, R, no_blank,
                PER_GAP, CHUNK, KEEP, EXACT, TILED, SLOTS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["B", "T"])
def _loss(
    z_ptr, z_power_ptr, norm_ptr, length_ptr, count_ptr, loss_ptr, B, T,
    NORMALIZED: tl.constexpr, REDUCTION: tl.constexpr, ZERO_INFINITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """See `starseq.op.reduction.reduce`."""
    total, b = tl.zeros((32,), tl.float64), tl.arange(0, 32)
    for first in range(0, B, 32):
        here = first + b < B
        z = tl.load(z_ptr + first + b, mask=here, other=1.0)
        loss = -(tl.log(z) + tl.load(z_power_ptr + first + b, mask=here, other=0).to(tl.float64) * 0.6931471805599453)
        loss = tl.where(z == 0, float("inf"), loss)
        if not NORMALIZED:
            for i in range(32):
                if first + i < B:
                    amount = tl.zeros((BLOCK,), tl.float64)
                    frames = frames_of(length_ptr, first + i, T)
                    for start in range(0, frames, BLOCK):
                        t = start + tl.arange(0, BLOCK)
                        place = tl.cast(first + i, tl.int64) * T + t
                        amount += tl.load(norm_ptr + place, mask=t < frames, other=0.0)
                    loss -= tl.where(b == i, tl.sum(amount, axis=0), 0.0)
        if ZERO_INFINITY:
            loss = tl.where(loss == float("inf"), 0.0, loss)
        if REDUCTION == 0:
            tl.store(loss_ptr + first + b, loss.to(loss_ptr.dtype.element_ty), mask=here)
        if REDUCTION == 2:
            loss /= tl.maximum(tl.load(count_ptr + first + b, mask=here, other=1), 1).to(tl.float64)
        total += tl.where(here, loss, 0.0)
    if REDUCTION > 0:
        result = tl.sum(total, axis=0)
        if REDUCTION == 2:
            result /= B
        tl.store(loss_ptr, result.to(loss_ptr.dtype.element_ty))


@triton.jit(
    do_not_specialize=_of("stride_b", "stride_t", "out_b", "out_t", "grad_b", "U", "A", "width", "some", "room")
)
def _row_posteriors(
    dead_ptr, m_ptr, e_ptr, labels_ptr, length_ptr, count_ptr, weight_ptr, row_ptr, number_ptr, power_ptr, back_row_ptr,
    back_number_ptr, z_ptr, z_power_ptr, share_ptr, begun_ptr,
    labels_b, labels_u, weight_b, weight_s, B, T, V, R, chunks, tiles, blank,
    PER_GAP: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, INSERTED: tl.constexpr,
):  # fmt: skip
    b, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    count, frames = count_of(count_ptr, b, R - 1), frames_of(length_ptr, b, T)
    z = tl.load(z_ptr + b)
    if (z != 0) & (chunk * CHUNK < frames):
        begun = begun_ptr
        if INSERTED:
            begun += (b * chunks + chunk) * (tiles + 1) * R + tiles * R
        row_posteriors(
            dead_ptr + b * T * 2, row_ptr + b * T * 3 * R, number_ptr + b * (T + 1) * 3 * R, power_ptr + b * (T + 1) * R,
            back_row_ptr + b * (T + 1) * 2 * R, back_number_ptr + b * (T + 1) * 2 * R, power_ptr + (B + b) * (T + 1) * R,
            begun, m_ptr + b * T * R, e_ptr + b * T * R, share_ptr + b * T * 3, z, tl.load(z_power_ptr + b), chunk, frames, count,
            labels_ptr + b * labels_b, labels_u, weight_ptr + b * weight_b, weight_s, V, blank, R,
            PER_GAP, CHUNK, ROWS, SLOTS, INSERTED,
        )  # fmt: skip


@triton.jit(do_not_specialize=_of("U"))
def _gradient(
    grad_ptr, x_ptr, out_ptr, norm_ptr, m_ptr, e_ptr, P_ptr, token_ptr, size_ptr, alive_ptr, labels_ptr, length_ptr, count_ptr,
    weight_ptr, row_ptr, number_ptr, power_ptr, kept_ptr, back_row_ptr, back_number_ptr, z_ptr, z_power_ptr, share_ptr, begun_ptr,
    stride_b, stride_t, out_b, out_t, grad_b, labels_b, labels_u, weight_b, weight_s, B, T, V, R, A, width, chunks, some, room,
    tiles, blank,
    STRIDE_V: tl.constexpr, OUT_STRIDE_V: tl.constexpr, REDUCTION: tl.constexpr, NORMALIZED: tl.constexpr, PER_GAP: tl.constexpr,
    CHUNK: tl.constexpr, KEEP: tl.constexpr, ALL: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
    SLOTS: tl.constexpr, INSERTED: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The gradient of slots; with INSERTED what begins there instead."""
    b, chunk, tile = tl.program_id(1).to(tl.int64), tl.program_id(0) % chunks, tl.program_id(0) // chunks
    count, frames = count_of(count_ptr, b, R - 1), frames_of(length_ptr, b, T)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    z = tl.load(z_ptr + b)
    out_ptr += b * out_b + t.to(tl.int64)[:, None] * out_t
    if (z == 0) | (chunk * CHUNK >= frames):
        if (SLOTS == 0) & (INSERTED == 0):
            v = tile * TOKENS + tl.arange(0, TOKENS)
            nothing = tl.zeros((CHUNK, TOKENS), out_ptr.dtype.element_ty)
            tl.store(
                out_ptr + v.to(tl.int64)[None, :] * OUT_STRIDE_V, nothing, mask=(t < T)[:, None] & (v < V)[None, :]
            )
    else:
        size, tiled = A, tl.zeros((), tl.int32)
        if SLOTS:
            size_ptr += b * chunks
            token_ptr += b * chunks * room
            alive_ptr += b * chunks * V
            size = tl.load(size_ptr + chunk)
            tiled = (_most(size_ptr, chunks, CHUNKS) > ALL).to(tl.int32)
        x_ptr += b * stride_b
        norm_ptr += b * T
        begun = begun_ptr
        if INSERTED:
            begun += ((b * chunks + chunk) * (tiles + 1) + tile) * R
        at = b * some * A * R
        for first in range(tile * TOKENS, size, tiles * TOKENS):
            v = first + tl.arange(0, TOKENS)
            if SLOTS:
                token = tl.load(token_ptr + tl.cast(chunk, tl.int64) * room + v, mask=v < size, other=-2)
            else:
                token = tl.where(v < V, v, -2)
            posterior = chunk_posteriors(
                x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr + b * T * width, A, width, token_ptr, size_ptr, alive_ptr, room, tiled,
                row_ptr + b * T * 3 * R, number_ptr + b * (T + 1) * 3 * R, power_ptr + b * (T + 1) * R, kept_ptr + at,
                back_row_ptr + b * (T + 1) * 2 * R, back_number_ptr + b * (T + 1) * 2 * R, power_ptr + (B + b) * (T + 1) * R,
                kept_ptr + B.to(tl.int64) * some * A * R + at, begun, z, tl.load(z_power_ptr + b), chunk, frames, count,
                labels_ptr + b * labels_b, labels_u, weight_ptr + b * weight_b, weight_s, V, blank, token, R,
                PER_GAP, CHUNK, KEEP, ALL, ROWS, EXACT, SLOTS, INSERTED,
            )  # fmt: skip
            if not INSERTED:
                exists = (t < T)[:, None] & (token >= 0)[None, :]
                here = (t < frames)[:, None] & (token >= 0)[None, :]
                if SLOTS:
                    posterior += _changes(
                        x_ptr,
                        stride_t,
                        STRIDE_V,
                        norm_ptr,
                        alive_ptr,
                        share_ptr + b * T * 3,
                        chunk,
                        t,
                        token,
                        V,
                        frames,
                        CHUNK,
                    )
                    P = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t, token, frames)
                else:
                    P = tl.load(P_ptr + (b * T + t)[:, None] * width + token[None, :], mask=here, other=0.0)
                    m = tl.load(m_ptr + (b * T + t) * R, mask=t < frames, other=0.0)
                    of_blank = m * power_of(tl.load(e_ptr + (b * T + t) * R, mask=t < frames, other=0)).to(m.dtype)
                    P = tl.where(token[None, :] == blank, of_blank[:, None], P)
                result = -posterior
                if NORMALIZED:
                    result += P
                result = result * weight_of(grad_ptr, grad_b, count_ptr, b, B, REDUCTION)
                place = out_ptr + token.to(tl.int64)[None, :] * OUT_STRIDE_V
                tl.store(place, tl.where(here, result, 0.0).to(out_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _changes(
    x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, alive_ptr, share_ptr, chunk, t, token, V, frames, CHUNK: tl.constexpr
):  # fmt: skip
    """What stands for two frames in a slot that begins between them, or ends."""
    start, after = chunk * CHUNK, chunk * CHUNK + CHUNK
    chunk = tl.cast(chunk, tl.int64)
    stood = tl.load(alive_ptr + (chunk - 1) * V + token, mask=(token >= 0) & (token * 0 + start > 0), other=1) != 0
    stands = (
        tl.load(alive_ptr + (chunk + 1) * V + token, mask=(token >= 0) & (token * 0 + after < frames), other=1) != 0
    )
    P = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t, token, frames)
    P_before = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t - 1, token, frames)
    P_after = some_of(x_ptr, stride_t, STRIDE_V, norm_ptr, t + 1, token, frames)
    before = tl.load(share_ptr + (t - 1) * 3 + 1, mask=(t == start) & (t > 0), other=0.0)
    behind = tl.load(share_ptr + t * 3 + 1, mask=(t == after - 1) & (t + 1 < frames), other=0.0)
    result = tl.where(stood[None, :], 0.0, P * P_before * before[:, None])
    return result + tl.where(stands[None, :], 0.0, P * P_after * behind[:, None])
