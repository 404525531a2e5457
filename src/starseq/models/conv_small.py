"""A small reader of convolutions over time alone: the columns of a line image, or the features of audio. Made for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from starseq.models.padding import FrameConv, Strided


def build(
    inputs: int,
    tokens: Sequence[str],
    *,
    stride: int = 4,
    width: int = 96,
    kernel: int = 5,
    layers: int = 3,
    dropout: float = 0.0,
) -> nn.Module:
    """A convolution that takes the stride, `layers` residual ones of `kernel` frames, a linear layer: 0.2M parameters.

    >>> model = build(32, ["<blank>", *"0123456789"])
    >>> model.stride, sum(p.numel() for p in model.parameters())
    (4, 168107)
    """
    return ConvReader(inputs, len(tokens), stride, width, kernel, layers, dropout)


class ConvReader(Strided):
    """Pre-norm residual convolutions: x + relu(conv(norm(x))), no norm over time, so nothing looks at the padding."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, width: int, kernel: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.stride = stride
        self.first = FrameConv(inputs, width, kernel=2 * stride + 1, stride=stride)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))
        self.convs = nn.ModuleList(FrameConv(width, width, kernel=kernel) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, F), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        frames = (x.shape[1] + self.stride - 1) // self.stride
        x, lengths = self.first(x, lengths)
        x = F.relu(x)
        for norm, conv in zip(self.norms[:-1], self.convs, strict=True):
            x = x + self.dropout(F.relu(conv(norm(x), lengths)[0]))
        return self.output(self.norms[-1](x)[:, :frames]), lengths
