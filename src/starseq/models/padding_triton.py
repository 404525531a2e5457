"""The instance norm of `padding` on a GPU: one launch forward, one backward and a sum over the batch.

One program a channel of an image. Up to 8192 pixels it keeps them all; of more it reads blocks, twice for the mean and the variance
and once more for the result, which after the first time lie in the cache. The padding is known by the lengths alone, which stay
on the device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from starseq.lattice.launch_triton import Launch, launch_of
from starseq.models.padding import EPS

_EPS = tl.constexpr(EPS)
_ALIGN = 8  # pixels: a channel of a multiple of so many begins at a multiple of 16 bytes, and is read so many at a time


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """x (B, C, H, W), weight (C,), bias (C,), lengths (B,) -> (B, C, H, W) of x's dtype. See padding.InstanceNorm.

    Sums are float32, of float64 images float64. The result is contiguous, and the same bits each time, as the gradients are.
    What lies past an image's length may be inf or NaN, in x and in the gradient. Tensors on several devices, or whose shapes
    do not belong together, raise ValueError: a kernel would read what is not theirs.
    """
    if not x.device == lengths.device == weight.device == bias.device:
        raise ValueError(
            f"images, lengths and weights are on one device; got {x.device}, {lengths.device} and {weight.device}"
        )
    if lengths.shape != x.shape[:1] or not weight.shape == bias.shape == x.shape[1:2]:
        raise ValueError(
            f"an image has a length, a channel a weight and a bias; got images {tuple(x.shape)}, lengths "
            f"{tuple(lengths.shape)}, weight {tuple(weight.shape)}, bias {tuple(bias.shape)}"
        )
    y: Tensor = _InstanceNorm.apply(x, weight, bias, lengths)
    return y


class _InstanceNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        B, C, H, W = x.shape
        y = torch.empty_like(x)
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        moments = torch.empty((2, B, C), dtype=kind, device=x.device)
        if B * C:
            launch, _ = _launches(x.dtype, *_blocks(H * W))
            integers = (lengths.stride(0), C, H, W)
            launch((B * C, 1), (x, weight, bias.contiguous(), lengths, y, moments), integers)
        ctx.save_for_backward(x, weight, lengths, moments)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, lengths, moments = ctx.saved_tensors
        B, C, H, W = x.shape
        for_x, parts = torch.empty_like(x), torch.empty_like(moments)
        if B * C:
            _, launch = _launches(x.dtype, *_blocks(H * W))
            tensors = (grads[0].contiguous(), x, weight, lengths, moments, for_x, parts)
            launch((B * C, 1), tensors, (lengths.stride(0), C, H, W))
        return for_x, *parts.sum(1).unbind(), None


def _blocks(pixels: int) -> tuple[int, int, bool, int]:
    """Of a channel: the pixels read at once (BLOCK), with how many warps, whether that is all of them (WHOLE), and the multiple
    at which each channel begins (ALIGN).

    Of few sizes, since each is compiled: the widths of images change from batch to batch.
    """
    block = next((size for size in (512, 2048, 4096) if pixels <= size), 8192)
    return block, max(2, block // 512), pixels <= block, 1 if pixels % _ALIGN else _ALIGN


@functools.cache
def _launches(dtype: torch.dtype, block: int, warps: int, whole: bool, align: int) -> tuple[Launch, Launch]:
    """Forward and backward."""
    constants = (dtype == torch.float64, whole, align, block)
    return launch_of(_forward, constants, warps), launch_of(_backward, constants, warps)


@triton.jit
def _channel(lengths_ptr, lengths_b, C, H, W, EXACT: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr):
    """This program's channel: where it begins, its pixels, its columns that are real, how many pixels these hold.

    With them the column of each pixel of the first block, and how far one block moves on within a row.
    """
    program = tl.program_id(0)
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    length = tl.load(lengths_ptr + (program // C).to(tl.int64) * lengths_b).to(tl.int32)
    size = tl.multiple_of(H * W, ALIGN)
    start = tl.multiple_of(program.to(tl.int64) * size, ALIGN)
    count = tl.maximum(length, 1).to(kind) * H
    return start, size, length, count, tl.arange(0, BLOCK) % W, BLOCK % W


@triton.jit
def _next(column, step, W):
    column += step
    return tl.where(column >= W, column - W, column)


@triton.jit
def _read(ptr, i, size, inside, EXACT: tl.constexpr):
    """Pixels as float32 or float64, 0 where they are not `inside`, whatever lies there.

    They are read first and sorted out then: what to read is known in groups of ALIGN, what is inside is not.
    """
    x = tl.load(ptr + i, mask=i < size, other=0.0).to(tl.float64 if EXACT else tl.float32)
    return tl.where(inside, x, 0.0)


@triton.jit
def _write(ptr, i, size, inside, y):
    tl.store(ptr + i, tl.where(inside, y, 0.0).to(ptr.dtype.element_ty), mask=i < size)


@triton.jit(do_not_specialize=["lengths_b", "C", "H", "W"])
def _forward(
    x_ptr, weight_ptr, bias_ptr, lengths_ptr, out_ptr, moments_ptr, lengths_b, C, H, W,
    EXACT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, size, length, count, first, step = _channel(lengths_ptr, lengths_b, C, H, W, EXACT, ALIGN, BLOCK)
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    lane = tl.arange(0, BLOCK)
    x_ptr += start
    out_ptr += start
    program = tl.program_id(0)
    weight = tl.load(weight_ptr + program % C).to(kind)
    shift = tl.load(bias_ptr + program % C).to(kind)
    if WHOLE:
        inside = (first < length) & (lane < size)
        x = _read(x_ptr, lane, size, inside, EXACT)
        mean = tl.sum(x, axis=0) / count
        centred = tl.where(inside, x - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / count + _EPS)
        _write(out_ptr, lane, size, inside, centred * (scale * weight) + shift)
    else:
        sums = tl.zeros((BLOCK,), kind)
        column = first
        for at in range(0, size, BLOCK):
            sums += _read(x_ptr, at + lane, size, column < length, EXACT)
            column = _next(column, step, W)
        mean = tl.sum(sums, axis=0) / count
        sums = tl.zeros((BLOCK,), kind)
        column = first
        for at in range(0, size, BLOCK):
            inside = (column < length) & (at + lane < size)
            centred = tl.where(inside, _read(x_ptr, at + lane, size, inside, EXACT) - mean, 0.0)
            sums += centred * centred  # the difference of two large sums would be lost
            column = _next(column, step, W)
        scale = tl.rsqrt(tl.sum(sums, axis=0) / count + _EPS)
        column = first
        for at in range(0, size, BLOCK):
            inside = column < length
            centred = _read(x_ptr, at + lane, size, inside, EXACT) - mean
            _write(out_ptr, at + lane, size, inside, centred * (scale * weight) + shift)
            column = _next(column, step, W)
    tl.store(moments_ptr + program, mean)
    tl.store(moments_ptr + tl.num_programs(0) + program, scale)


@triton.jit(do_not_specialize=["lengths_b", "C", "H", "W"])
def _backward(
    grad_ptr, x_ptr, weight_ptr, lengths_ptr, moments_ptr, out_ptr, parts_ptr, lengths_b, C, H, W,
    EXACT: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For x; and for weight and bias the part of this image."""
    start, size, length, count, first, step = _channel(lengths_ptr, lengths_b, C, H, W, EXACT, ALIGN, BLOCK)
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    lane = tl.arange(0, BLOCK)
    program, programs = tl.program_id(0), tl.num_programs(0)
    mean = tl.load(moments_ptr + program)
    scale = tl.load(moments_ptr + programs + program)
    grad_ptr += start
    x_ptr += start
    out_ptr += start
    factor = scale * tl.load(weight_ptr + program % C).to(kind)
    if WHOLE:
        inside = first < length
        grad = _read(grad_ptr, lane, size, inside, EXACT)
        centred = _read(x_ptr, lane, size, inside, EXACT) - mean
        total = tl.sum(grad, axis=0)
        along = tl.sum(grad * centred, axis=0) * scale  # grad along the standardised x
        _write(out_ptr, lane, size, inside, factor * (grad - total / count - centred * (scale * along / count)))
    else:
        totals = tl.zeros((BLOCK,), kind)
        alongs = tl.zeros((BLOCK,), kind)
        column = first
        for at in range(0, size, BLOCK):
            inside = column < length
            grad = _read(grad_ptr, at + lane, size, inside, EXACT)
            totals += grad
            alongs += grad * (_read(x_ptr, at + lane, size, inside, EXACT) - mean)
            column = _next(column, step, W)
        total = tl.sum(totals, axis=0)
        along = tl.sum(alongs, axis=0) * scale
        column = first
        for at in range(0, size, BLOCK):
            inside = column < length
            grad = _read(grad_ptr, at + lane, size, inside, EXACT)
            centred = _read(x_ptr, at + lane, size, inside, EXACT) - mean
            for_x = factor * (grad - total / count - centred * (scale * along / count))
            _write(out_ptr, at + lane, size, inside, for_x)
            column = _next(column, step, W)
    tl.store(parts_ptr + program, along)
    tl.store(parts_ptr + programs + program, total)
