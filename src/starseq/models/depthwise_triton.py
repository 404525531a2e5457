"""Convolutions within each channel on a GPU: one launch forward, two backward and a sum over the batch.

A pixel is K * K products, which is little for what is read. Where K is 3 a program goes down the rows of a channel, so that a
pixel is read three times, for the three columns that it is a neighbour of, and not nine times. For other K neighbours are read
again and again where they lie, in the cache, and a channel of an image is one row of H * W pixels, cut into blocks.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from starseq.lattice.launch_triton import launch_of

_BLOCK, _WARPS = 512, 4
_DOWN = 3
"""K of the kernels that go down the rows"""


def depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """x (B, C, H, W), weight (C, 1, K, K), K odd -> (B, C, H, W) of x's dtype, contiguous. See depthwise.DepthwiseConv.

    Sums are float32, of float64 images float64; the weights may be more exact than the images. The same bits each time, in the
    gradients too. Tensors on several devices, or whose shapes do not belong together, raise ValueError.
    """
    if x.device != weight.device:
        raise ValueError(f"images and weights are on one device; got {x.device} and {weight.device}")
    kernel = weight.shape[-1]
    if x.dim() != 4 or weight.shape != (x.shape[1], 1, kernel, kernel) or kernel % 2 == 0:
        raise ValueError(
            f"a channel has K x K weights, K odd; got images {tuple(x.shape)}, weight {tuple(weight.shape)}"
        )
    if not x.is_floating_point() or torch.promote_types(x.dtype, weight.dtype) != weight.dtype:
        raise ValueError(f"weights are as exact as the images, or more; got images {x.dtype}, weight {weight.dtype}")
    y: Tensor = _Depthwise.apply(x, weight)
    return y


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, turned=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        for_x = _convolve(grad, weight, turned=True) if ctx.needs_input_grad[0] else None
        return for_x, _correlate(grad, x, weight) if ctx.needs_input_grad[1] else None


def _convolve(x: Tensor, weight: Tensor, *, turned: bool) -> Tensor:
    """`turned`: with the kernel turned by half a circle, which is the gradient's way back."""
    B, C, H, W = x.shape
    K, exact = weight.shape[-1], x.dtype == torch.float64
    y = torch.empty_like(x)
    if y.numel():
        if K == _DOWN:
            block, warps, blocks = _columns(W)
            launch = launch_of(_convolution_down, (exact, turned, block), warps)
        else:
            blocks = -(-H * W // _BLOCK)
            launch = launch_of(_convolution, (exact, turned, K, _BLOCK), _WARPS)
        launch((B * C * blocks, 1), (x, weight, y), (C, H, W, blocks))
    return y


def _correlate(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient for the weights."""
    B, C, H, W = x.shape
    K, exact = weight.shape[-1], x.dtype == torch.float64
    kind = torch.promote_types(x.dtype, torch.float32)
    if not x.numel():
        return torch.zeros_like(weight)
    if K == _DOWN:
        block, warps, blocks = _columns(W)
        parts = torch.empty((B, C, blocks, 1, K, K), dtype=kind, device=x.device)
        launch = launch_of(_correlation_down, (exact, block), warps)
        launch((B * C * blocks, 1), (grad, x, parts), (H, W, blocks))
        return parts.sum((0, 2)).to(weight.dtype)
    parts = torch.empty((B, C, 1, K, K), dtype=kind, device=x.device)
    launch_of(_correlation, (exact, K, _BLOCK), _WARPS)((B * C * K, 1), (grad, x, parts), (H, W))
    return parts.sum(0).to(weight.dtype)


def _columns(W: int) -> tuple[int, int, int]:
    """Of kernels that go down the rows: the columns of a program, its warps, and how many such programs a channel is. Of few
    sizes, since each is compiled."""
    block = 64 if W <= 64 else 128 if W <= 128 else 256
    return block, block // 64, -(-W // block)


@triton.jit(do_not_specialize=["C", "H", "W", "blocks"])
def _convolution(
    x_ptr, weight_ptr, out_ptr, C, H, W, blocks,
    EXACT: tl.constexpr, TURNED: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of pixels of one channel of an image."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    R: tl.constexpr = K // 2
    channel, size = tl.program_id(0) // blocks, H * W
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    row, column = at // W, at % W
    start = channel.to(tl.int64) * size
    weight_ptr += (channel % C) * K * K
    x_ptr += start
    sums = tl.zeros((BLOCK,), kind)
    for dy in range(-R, R + 1):
        for dx in tl.static_range(-R, R + 1):
            tap = (R + dy) * K + R + dx
            weight = tl.load(weight_ptr + (K * K - 1 - tap if TURNED else tap)).to(kind)
            inside = (row + dy >= 0) & (row + dy < H) & (column + dx >= 0) & (column + dx < W)
            sums += weight * tl.load(x_ptr + at + dy * W + dx, mask=inside, other=0.0).to(kind)
    tl.store(out_ptr + start + at, sums.to(out_ptr.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=["H", "W"])
def _correlation(grad_ptr, x_ptr, parts_ptr, H, W, EXACT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """One row of the weights' gradient, of one channel of an image. Rows of a channel are neighbours, and share what is read."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    R: tl.constexpr = K // 2
    size, dy = H * W, tl.program_id(0) % K - R
    start = (tl.program_id(0) // K).to(tl.int64) * size
    grad_ptr += start
    x_ptr += start
    taps = tl.arange(0, triton.next_power_of_2(K))
    sums = tl.zeros((triton.next_power_of_2(K), BLOCK), kind)
    for begin in range(0, size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        row, column = at // W, at % W
        grad = tl.load(grad_ptr + at, mask=at < size, other=0.0).to(kind)
        shift = taps[:, None] - R
        inside = (row + dy >= 0) & (row + dy < H) & (at < size)
        inside = inside[None, :] & (column[None, :] + shift >= 0) & (column[None, :] + shift < W) & (taps[:, None] < K)
        sums += grad[None, :] * tl.load(x_ptr + at[None, :] + dy * W + shift, mask=inside, other=0.0).to(kind)
    tl.store(parts_ptr + tl.program_id(0).to(tl.int64) * K + taps, tl.sum(sums, axis=1), mask=taps < K)


@triton.jit
def _beside(ptr, column, W, EXACT: tl.constexpr):
    """Of a row that begins at ptr the pixels left of these columns, at them, and right of them; 0 outside of the image."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    left = tl.load(ptr + column - 1, mask=(column > 0) & (column < W), other=0.0).to(kind)
    here = tl.load(ptr + column, mask=column < W, other=0.0).to(kind)
    right = tl.load(ptr + column + 1, mask=column + 1 < W, other=0.0).to(kind)
    return left, here, right


@triton.jit(do_not_specialize=["C", "H", "W", "blocks"])
def _convolution_down(
    x_ptr, weight_ptr, out_ptr, C, H, W, blocks,
    EXACT: tl.constexpr, TURNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of one channel of an image, 3 x 3. A row of x is a part of three rows of the result, of which two are begun."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    channel = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    start = channel.to(tl.int64) * H * W
    x_ptr += start
    out_ptr += start
    weight_ptr += (channel % C) * 9 + (8 if TURNED else 0)
    one: tl.constexpr = -1 if TURNED else 1  # to the next weight
    w0 = tl.load(weight_ptr).to(kind)
    w1 = tl.load(weight_ptr + one).to(kind)
    w2 = tl.load(weight_ptr + 2 * one).to(kind)
    w3 = tl.load(weight_ptr + 3 * one).to(kind)
    w4 = tl.load(weight_ptr + 4 * one).to(kind)
    w5 = tl.load(weight_ptr + 5 * one).to(kind)
    w6 = tl.load(weight_ptr + 6 * one).to(kind)
    w7 = tl.load(weight_ptr + 7 * one).to(kind)
    w8 = tl.load(weight_ptr + 8 * one).to(kind)
    above = tl.zeros((BLOCK,), kind)
    level = tl.zeros((BLOCK,), kind)
    for row in range(H):
        left, here, right = _beside(x_ptr + row * W, column, W, EXACT)
        above += w6 * left + w7 * here + w8 * right
        tl.store(out_ptr + (row - 1) * W + column, above.to(out_ptr.dtype.element_ty), mask=(column < W) & (row > 0))
        above = level + w3 * left + w4 * here + w5 * right
        level = w0 * left + w1 * here + w2 * right
    tl.store(out_ptr + (H - 1) * W + column, above.to(out_ptr.dtype.element_ty), mask=column < W)


@triton.jit(do_not_specialize=["H", "W", "blocks"])
def _correlation_down(grad_ptr, x_ptr, parts_ptr, H, W, blocks, EXACT: tl.constexpr, BLOCK: tl.constexpr):
    """The weights' gradient, 3 x 3, of some columns of one channel of an image: each row of x with three rows of the gradient."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    program = tl.program_id(0).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    start = (program // blocks) * H * W
    grad_ptr += start
    x_ptr += start
    s0 = tl.zeros((BLOCK,), kind)
    s1 = tl.zeros((BLOCK,), kind)
    s2 = tl.zeros((BLOCK,), kind)
    s3 = tl.zeros((BLOCK,), kind)
    s4 = tl.zeros((BLOCK,), kind)
    s5 = tl.zeros((BLOCK,), kind)
    s6 = tl.zeros((BLOCK,), kind)
    s7 = tl.zeros((BLOCK,), kind)
    s8 = tl.zeros((BLOCK,), kind)
    above = tl.zeros((BLOCK,), kind)
    level = tl.load(grad_ptr + column, mask=column < W, other=0.0).to(kind)
    for row in range(H):
        at = (row + 1) * W + column
        below = tl.load(grad_ptr + at, mask=(column < W) & (at < H * W), other=0.0).to(kind)
        left, here, right = _beside(x_ptr + row * W, column, W, EXACT)
        s0 += below * left  # the first row of weights is for the row of x above the gradient's
        s1 += below * here
        s2 += below * right
        s3 += level * left
        s4 += level * here
        s5 += level * right
        s6 += above * left
        s7 += above * here
        s8 += above * right
        above = level
        level = below
    parts_ptr += program * 9
    tl.store(parts_ptr, tl.sum(s0, axis=0))
    tl.store(parts_ptr + 1, tl.sum(s1, axis=0))
    tl.store(parts_ptr + 2, tl.sum(s2, axis=0))
    tl.store(parts_ptr + 3, tl.sum(s3, axis=0))
    tl.store(parts_ptr + 4, tl.sum(s4, axis=0))
    tl.store(parts_ptr + 5, tl.sum(s5, axis=0))
    tl.store(parts_ptr + 6, tl.sum(s6, axis=0))
    tl.store(parts_ptr + 7, tl.sum(s7, axis=0))
    tl.store(parts_ptr + 8, tl.sum(s8, axis=0))
