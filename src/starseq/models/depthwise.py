"""Convolutions within each channel: torch's own on a CPU, `depthwise_triton` on a GPU, where torch's are its slowest kernels."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["DepthwiseConv"]


class DepthwiseConv(nn.Conv2d):
    """k x k within each channel, without bias, (B, C, H, W) -> (B, C, H, W); k is odd, and 0 lies around the image.

    On a GPU with Triton there are no second derivatives.

    >>> DepthwiseConv(3, 5)(torch.zeros(2, 3, 4, 7)).shape
    torch.Size([2, 3, 4, 7])
    """

    def __init__(self, channels: int, kernel: int) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"kernel is odd, so that it has a centre; got {kernel}")
        super().__init__(channels, channels, kernel, groups=channels, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # Whoever compiles has kernels of his own.
        if not torch.compiler.is_compiling() and x.is_cuda and (launched := _launched()):
            # As autocast does with a convolution; but the weights stay as exact as they are.
            if torch.is_autocast_enabled("cuda") and x.dtype != torch.float64:
                x = x.to(torch.get_autocast_dtype("cuda"))
            return launched(x, self.weight)
        return super().forward(x)


@functools.cache
def _launched() -> Callable[[Tensor, Tensor], Tensor] | None:
    """The kernels, where Triton is installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    from starseq.models.depthwise_triton import depthwise

    return depthwise
