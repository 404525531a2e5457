"""Padding: which frames of a batch are real, how many a stride leaves, and convolutions that do not see the others."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FrameConv", "InstanceNorm", "Strided", "clear", "frames_after", "real", "standardise"]

EPS = 1e-5
"""added to a variance"""


def frames_after(lengths: Tensor, stride: int) -> Tensor:
    """ceil(lengths / stride): what a model of that stride makes of so many frames.

    >>> frames_after(torch.tensor([0, 1, 8, 9]), 8)
    tensor([0, 1, 1, 2])
    """
    return torch.div(lengths + (stride - 1), stride, rounding_mode="floor")


def real(lengths: Tensor, frames: int) -> Tensor:
    """(B, T) bool: frame t of utterance b is one of its own.

    >>> real(torch.tensor([2, 0]), 3)
    tensor([[ True,  True, False],
            [False, False, False]])
    """
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


def clear(x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, T, ...) with zeros in place of the padding, even where that holds inf or NaN.

    >>> clear(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([2, 1]))
    tensor([[1., 2.],
            [3., 0.]])
    """
    mask = real(lengths, x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.dim() - 2))
    return torch.where(mask, x, 0.0)


class Strided(nn.Module):
    """A model that makes one frame of every `stride`, the last of them of what is left."""

    stride: int

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The frames that come out where so many go in."""
        return frames_after(lengths, self.stride)


class FrameConv(nn.Module):
    """A convolution over time, (B, T, inputs) -> (B, T', outputs): frame t is centred on input frames t * stride to (t+1) * stride.

    T' is ceil(T / stride), but at least 1, so that what follows never sees an empty sequence: the caller cuts at the end.

    >>> x, lengths = FrameConv(80, 16, kernel=15, stride=8)(torch.zeros(2, 20, 80), torch.tensor([20, 16]))
    >>> x.shape, lengths
    (torch.Size([2, 3, 16]), tensor([3, 2]))
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> None:
        super().__init__()
        if not 1 <= stride <= kernel:
            raise ValueError(f"stride is between 1 and the kernel, {kernel}, so that no frame is skipped; got {stride}")
        self.stride, self.kernel = stride, kernel
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames = max(1, (x.shape[1] + self.stride - 1) // self.stride)
        left = (self.kernel - self.stride) // 2
        right = (frames - 1) * self.stride + self.kernel - left - x.shape[1]
        x = self.conv(F.pad(clear(x, lengths).transpose(1, 2), (left, right)))
        return x.transpose(1, 2), frames_after(lengths, self.stride)


def standardise(x: Tensor, lengths: Tensor, *, channels: bool = False) -> Tensor:
    """Images (B, C, H, W), finite everywhere, to mean 0 and variance 1 over each channel, or with `channels` over all together.

    Columns past an image's length are not counted, and are 0 in the result, which is float32 or better.

    >>> x = torch.randn(2, 3, 4, 5)
    >>> y = standardise(x, torch.tensor([5, 2]))
    >>> torch.allclose(y[1:, :, :, :2], F.instance_norm(x[1:, :, :, :2]), atol=1e-4), bool(y[1, :, :, 2:].any())
    (True, False)
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    over = (1, 2, 3) if channels else (2, 3)
    # Times 0 or 1 rather than `torch.where`, which is several times slower over so many pixels.
    mask = real(lengths, x.shape[3])[:, None, None].to(x.dtype)
    count = (lengths.clamp(min=1) * (x.shape[1] * x.shape[2] if channels else x.shape[2]))[:, None, None, None]
    mean = (x * mask).sum(over, keepdim=True) / count
    centred = torch.addcmul(-mean * mask, x, mask)  # then squared: two large sums would lose their difference
    return centred * (centred.square().sum(over, keepdim=True) / count + EPS).rsqrt()


class InstanceNorm(nn.Module):
    """Each channel of an image (B, C, H, W) to mean 0 and variance 1, then a learned scale and shift.

    Columns past an image's length are not counted, and are 0 in the result. Sums are in float32 or better.

    >>> InstanceNorm(3)(torch.randn(2, 3, 4, 5), torch.tensor([5, 0])).shape
    torch.Size([2, 3, 4, 5])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        # Whoever compiles fuses the operations himself.
        if not torch.compiler.is_compiling() and x.is_cuda and (launched := _launched()):
            return launched(x, self.weight, self.bias, lengths)
        mask = real(lengths, x.shape[3])[:, None, None].to(torch.promote_types(x.dtype, torch.float32))
        count = (lengths.clamp(min=1) * x.shape[2])[:, None, None, None]
        if torch.onnx.is_in_onnx_export():
            return _plain_norm(x, self.weight, self.bias, mask, count)
        y: Tensor = _MaskedNorm.apply(x, self.weight, self.bias, mask, count)  # type: ignore[no-untyped-call]
        return y


@functools.cache
def _launched() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    """The norm in one launch, where Triton is installed: a model of many small norms is bound by how many operations they are."""
    if importlib.util.find_spec("triton") is None:
        return None
    from starseq.models.padding_triton import instance_norm

    return instance_norm


def _plain_norm(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    """As operations of which a graph can be made."""
    x = x * mask
    centred = (x - x.sum((2, 3), keepdim=True) / count) * mask
    scale = (centred.square().sum((2, 3), keepdim=True) / count + EPS).rsqrt()
    return centred * scale * weight[:, None, None] + bias[:, None, None] * mask


class _MaskedNorm(torch.autograd.Function):
    """With its gradient written out: as separate operations it would keep and move several times as much."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, count: Tensor) -> Tensor:
        wide = mask.dtype
        x = x * mask.to(x.dtype)
        mean = x.sum((2, 3), keepdim=True, dtype=wide) / count
        x -= (mean * mask).to(x.dtype)  # then squared: the difference of two large sums would be lost
        variance = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True, dtype=wide).square() / count
        scale = (variance + EPS).rsqrt()
        ctx.save_for_backward(x, weight, mask, count, scale)
        shift, factor = bias[:, None, None] * mask, scale * weight[:, None, None]
        return torch.addcmul(shift.to(x.dtype), x, factor.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask, count, scale = ctx.saved_tensors
        grad = grads[0] * mask.to(x.dtype)
        total = grad.sum((2, 3), keepdim=True, dtype=scale.dtype)
        along = (grad * x).sum((2, 3), keepdim=True, dtype=scale.dtype) * scale  # grad along the standardised x
        factor = weight[:, None, None] * scale
        inner, rest = -factor * scale * along / count, -factor * total / count * mask
        for_x = torch.addcmul(rest.to(x.dtype), grad, factor.to(x.dtype)).addcmul_(x, inner.to(x.dtype))
        return for_x, along.sum((0, 2, 3)), total.sum((0, 2, 3)), None, None
