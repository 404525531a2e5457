"""The operation on a GPU where inserted tokens last, in three launches: probabilities, sums in both directions, gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from starseq.arguments import check_values
from starseq.lattice.lasting_triton import CHUNK, chunk_posteriors, rows_of
from starseq.lattice.lasting_triton import backward as sums_back
from starseq.lattice.lasting_triton import forward as sums
from starseq.lattice.launch_triton import launch_of
from starseq.op import readable
from starseq.op.options import Batch, Options, Saved, by_utterance, loss_dtype
from starseq.op.reduction import for_each, reduce

_STATES = 65_536
"""Of a program, in registers; of more they go by."""


def forward(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None, Saved]:
    """See starseq.op."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    B, T, V = by_utterance(logits.shape, options.batch_first)
    R, blank = targets.shape[1] + 1, options.blank
    rows, row_block = max(triton.next_power_of_2(R), 16), triton.next_power_of_2(V)
    tokens = min(row_block, max(_STATES // rows, 1))
    if B * T == 0 or row_block > 2**17 or options.inserted:
        return readable.forward(batch, options)
    assert log_penalty is not None
    if options.validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, torch.Size((B, T, V)), blank)
    exact, device = logits.dtype == torch.float64, logits.device
    dtype = torch.float64 if exact else torch.float32
    norm = torch.empty(B, T, dtype=torch.float64, device=device)
    P = torch.empty(B, T, V, dtype=dtype, device=device)
    strides = by_utterance(logits.stride(), options.batch_first)
    lengths, counts = input_lengths.contiguous(), target_lengths.contiguous()
    stride_b, stride_t, stride_v = strides
    launch_of(_probabilities, (stride_v, exact, row_block), min(max(row_block // 256, 1), 16))(
        (B * T, 1), (logits, lengths, norm, P), (stride_b, stride_t, T, V)
    )
    both, chunks = options.differentiable, (T + CHUNK - 1) // CHUNK
    row = torch.empty(B, T, 3, R, dtype=dtype, device=device)
    number = torch.empty(B, T + 1, 3, R, dtype=torch.float64, device=device)
    power = torch.empty(1 + both, B, T + 1, R, dtype=torch.int32, device=device)
    kept = torch.empty(1 + both, B, chunks, V, R, dtype=dtype, device=device)
    back_row = torch.empty(B if both else 0, T + 1, 2, R, dtype=dtype, device=device)
    back_number = torch.empty(B if both else 0, T + 1, 2, R, dtype=torch.float64, device=device)
    tiled = tokens < V
    state = torch.empty((1 + both, B, V, R) if tiled else 0, dtype=dtype, device=device)
    z, z_power = torch.empty(B, dtype=torch.float64, device=device), torch.empty(B, dtype=torch.int32, device=device)
    constants = (stride_v, log_penalty.stride(1) != 0, CHUNK, exact, tiled, tokens, rows)
    launch_of(_sums, constants, _warps(tokens * rows))(
        (B, 1 + both),
        (logits, norm, P, targets, lengths, counts, log_penalty, row, number, power, kept, state, back_row, back_number, z,
         z_power),
        (stride_b, stride_t, *targets.stride(), *log_penalty.stride(), B, T, V, R, chunks, blank),
    )  # fmt: skip
    log_z = z.log() + z_power.double() * 0.6931471805599453
    if not options.normalized:
        inside = torch.arange(T, device=device) < lengths[:, None]
        log_z = log_z + norm.masked_fill(~inside, 0).sum(dim=1)
    loss = reduce(-log_z.to(loss_dtype(logits)), target_lengths, options)
    saved = (norm, P, row, number, power, kept, back_row, back_number, z, z_power) if both else ()
    return loss, None, Saved(saved)


def backward(grad: Tensor, batch: Batch, saved: Saved, options: Options) -> Tensor:
    """See starseq.op."""
    if saved.other is not None:
        return readable.backward(grad, batch, saved, options)
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    assert log_penalty is not None
    B, T, V = by_utterance(logits.shape, options.batch_first)
    _, P, row, number, power, kept, back_row, back_number, z, z_power = saved.tensors
    R, result = targets.shape[1] + 1, torch.empty_like(logits)
    each = for_each(grad, target_lengths, options).to(torch.float64).contiguous()
    exact, chunks = logits.dtype == torch.float64, kept.shape[2]
    stride_b, stride_t, stride_v = by_utterance(result.stride(), options.batch_first)
    constants = (stride_v, options.normalized, log_penalty.stride(1) != 0, CHUNK, _TOKENS, _ROWS, exact)
    launch_of(_gradient, constants, 4)(
        (triton.cdiv(V, _TOKENS) * chunks, B),
        (each, result, P, targets, input_lengths.contiguous(), target_lengths.contiguous(), log_penalty, row, number, power, kept,
         back_row, back_number, z, z_power),
        (stride_b, stride_t, *targets.stride(), *log_penalty.stride(), B, T, V, R, chunks, options.blank),
    )  # fmt: skip
    return result


def _warps(states: int) -> int:
    """Of a program with so many states."""
    return 32 if states >= 32_768 else min(max(states // 1024, 4), 16)


_TOKENS, _ROWS = 8, 32


_INTEGERS = [
    "stride_b", "stride_t", "out_b", "out_t", "labels_b", "labels_u", "weight_b", "weight_s", "B", "T", "V", "R", "chunks", "blank",
]  # fmt: skip


@triton.jit(do_not_specialize=["stride_b", "stride_t", "T", "V"])
def _probabilities(
    x_ptr, length_ptr, norm_ptr, P_ptr, stride_b, stride_t, T, V, STRIDE_V: tl.constexpr, EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """norm (B, T), the log-sums, and P (B, T, V)."""
    row = tl.program_id(0).to(tl.int64)
    b, t = row // T, row % T
    v = tl.arange(0, BLOCK)
    if t < tl.load(length_ptr + b):
        x = tl.load(x_ptr + b * stride_b + t * stride_t + v.to(tl.int64) * STRIDE_V, mask=v < V, other=float("-inf"))
        x = x.to(tl.float64) if EXACT else x.to(tl.float32)
        top = tl.max(x, axis=0)
        top = tl.where(top > float("-inf"), top, 0.0)
        P = tl.exp(x - top)
        total = tl.sum(P, axis=0)
        norm = top.to(tl.float64) + tl.log(total.to(tl.float64))
        tl.store(norm_ptr + row, tl.where(total == 0, 0.0, norm))
        tl.store(P_ptr + row * V + v, P / total, mask=v < V)


@triton.jit(do_not_specialize=[x for x in _INTEGERS if not x.startswith("out")])
def _sums(
    x_ptr, norm_ptr, P_ptr, labels_ptr, length_ptr, count_ptr, weight_ptr, row_ptr, number_ptr, power_ptr, kept_ptr, state_ptr,
    back_row_ptr, back_number_ptr, z_ptr, z_power_ptr,
    stride_b, stride_t, labels_b, labels_u, weight_b, weight_s, B, T, V, R, chunks, blank,
    STRIDE_V: tl.constexpr, PER_GAP: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr, TILED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    count = tl.maximum(tl.minimum(tl.load(count_ptr + b), R - 1), 0).to(tl.int32)
    frames = tl.maximum(tl.minimum(tl.load(length_ptr + b), T), 0).to(tl.int32)
    l, v = tl.arange(0, ROWS), tl.arange(0, TOKENS)
    label, following, p, rest, differs, opens = rows_of(
        labels_ptr + b * labels_b, labels_u, weight_ptr + b * weight_b, weight_s, l, count, V, blank, PER_GAP
    )
    x_ptr += b * stride_b
    norm_ptr += b * T
    P_ptr += b * T * V
    if tl.program_id(1) == 0:
        sums(
            x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, V, row_ptr + b * T * 3 * R, number_ptr + b * (T + 1) * 3 * R,
            power_ptr + b * (T + 1) * R, kept_ptr + b * chunks * V * R, state_ptr + b * V * R, z_ptr + b, z_power_ptr + b,
            frames, count, label, following, p, rest, differs, opens, v, l, R, blank, PER_GAP, CHUNK, EXACT, TILED,
        )  # fmt: skip
    else:
        sums_back(
            x_ptr, stride_t, STRIDE_V, norm_ptr, P_ptr, V, back_row_ptr + b * (T + 1) * 2 * R,
            back_number_ptr + b * (T + 1) * 2 * R, power_ptr + (B + b) * (T + 1) * R, kept_ptr + (B + b) * chunks * V * R,
            state_ptr + (B + b) * V * R, frames, count, label, following, p, rest, differs, opens, v, l, R, blank,
            PER_GAP, CHUNK, EXACT, TILED,
        )  # fmt: skip


@triton.jit(do_not_specialize=[x for x in _INTEGERS if not x.startswith("stride")])
def _gradient(
    grad_ptr, out_ptr, P_ptr, labels_ptr, length_ptr, count_ptr, weight_ptr, row_ptr, number_ptr, power_ptr, kept_ptr,
    back_row_ptr, back_number_ptr, z_ptr, z_power_ptr,
    out_b, out_t, labels_b, labels_u, weight_b, weight_s, B, T, V, R, chunks, blank,
    STRIDE_V: tl.constexpr, NORMALIZED: tl.constexpr, PER_GAP: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    b, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0) % chunks
    v, t = tl.program_id(0) // chunks * TOKENS + tl.arange(0, TOKENS), chunk * CHUNK + tl.arange(0, CHUNK)
    count = tl.maximum(tl.minimum(tl.load(count_ptr + b), R - 1), 0).to(tl.int32)
    frames = tl.maximum(tl.minimum(tl.load(length_ptr + b), T), 0).to(tl.int32)
    z = tl.load(z_ptr + b)
    place = out_ptr + b * out_b + t.to(tl.int64)[:, None] * out_t + v.to(tl.int64)[None, :] * STRIDE_V
    exists = (t < T)[:, None] & (v < V)[None, :]
    if (z == 0) | (chunk * CHUNK >= frames):
        tl.store(place, tl.zeros((CHUNK, TOKENS), tl.float32).to(out_ptr.dtype.element_ty), mask=exists)
    else:
        at = (b * chunks + chunk) * V * R
        other = (B.to(tl.int64) * chunks) * V * R
        posterior = chunk_posteriors(
            P_ptr + b * T * V, V, row_ptr + b * T * 3 * R, number_ptr + b * (T + 1) * 3 * R, power_ptr + b * (T + 1) * R,
            kept_ptr + at, back_row_ptr + b * (T + 1) * 2 * R, back_number_ptr + b * (T + 1) * 2 * R,
            power_ptr + (B + b) * (T + 1) * R, kept_ptr + other + at, z, tl.load(z_power_ptr + b), chunk * CHUNK, frames, count,
            labels_ptr + b * labels_b, labels_u, weight_ptr + b * weight_b, weight_s, V, blank, v, R,
            PER_GAP, CHUNK, ROWS, EXACT,
        )  # fmt: skip
        grad = tl.load(grad_ptr + b)
        result = -posterior
        if NORMALIZED:
            result += tl.load(P_ptr + (b * T + t.to(tl.int64)[:, None]) * V + v[None, :], mask=exists, other=0.0)
        result = (result * grad).to(out_ptr.dtype.element_ty)
        tl.store(place, tl.where((t < frames)[:, None], result, 0.0), mask=exists)
