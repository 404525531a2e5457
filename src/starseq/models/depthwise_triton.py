"""Convolutions within each channel on a GPU: one launch forward, two backward and a sum over the batch.

A pixel is K * K products, which is little for what is read: so neighbours are read again and again where they lie, in the
cache, and nothing else is kept. A channel of an image is one row of H * W pixels, cut into blocks.
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

_BLOCK, _WARPS = 512, 4


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
    y = torch.empty_like(x)
    if y.numel():
        launch, _ = _launches(x.dtype, weight.shape[-1], turned)
        blocks = -(-H * W // _BLOCK)
        launch((B * C * blocks, 1), (x, weight, y), (C, H, W, blocks))
    return y


def _correlate(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient for the weights."""
    B, C, H, W = x.shape
    K = weight.shape[-1]
    parts = torch.empty((B, *weight.shape), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if x.numel():
        _, launch = _launches(x.dtype, K, False)
        launch((B * C * K, 1), (grad, x, parts), (H, W))
    else:
        parts.zero_()
    return parts.sum(0).to(weight.dtype)


@functools.cache
def _launches(dtype: torch.dtype, kernel: int, turned: bool) -> tuple[Launch, Launch]:
    exact = dtype == torch.float64
    return (
        launch_of(_convolution, (exact, turned, kernel, _BLOCK), _WARPS),
        launch_of(_correlation, (exact, kernel, _BLOCK), _WARPS),
    )


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
