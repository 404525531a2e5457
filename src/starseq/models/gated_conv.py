"""The published reader of handwriting: gated depthwise-separable convolutions, after OrigamiNet's form for lines.

Twelve gated blocks. Around each there is a way; widths grow between blocks by convolutions of 1 x 1; every convolution is
followed by an instance norm, which counts an image's own pixels only. At the end the mean over the height, and a linear
layer: OrigamiNet squeezes its output through a norm, an ELU and another norm there, which bounds how sure it can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starseq.models.depthwise import DepthwiseConv
from starseq.models.padding import InstanceNorm, Strided, clear, frames_after, real, standardise

WIDTHS = {0: 256, 2: 512, 4: 1024, 6: 2048}
"""The channels that leave a block, where they are not those that entered it."""
POOLS = (0, 2)
"""The blocks after which there is a 2 x 2 maximum."""
ALIGN = 8
"""Columns are padded to a multiple of so many frames: rows of other lengths are read value by value, at half the speed."""


def build(
    inputs: int, tokens: Sequence[str], *, stem: int = 33, width: float = 1.0, layers: int = 12, dropout: float = 0.0
) -> nn.Module:
    """39M parameters; stride 4. `stem` channels are made of the image and stand beside it; `width` scales all others.
    `dropout`, published without, is of what each block adds and of what is read at the end: for few lines.

    >>> model = build(32, ["<blank>", *"abc"], width=0.125)
    >>> model.stride, model(torch.zeros(1, 9, 32), torch.tensor([9]))[0].shape
    (4, torch.Size([1, 3, 4]))
    """
    if layers <= max(POOLS):
        raise ValueError(f"layers are more than {max(POOLS)}, after which the last pool comes; got {layers}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is a probability below 1; got {dropout}")
    return GatedConv(len(tokens), stem, width, layers, dropout)


class GatedConv(Strided):
    """Line images of any height to logits for each column of 4 pixels."""

    stride = 2 ** len(POOLS)

    def __init__(self, outputs: int, stem: int, width: float, layers: int, dropout: float) -> None:
        super().__init__()
        self.spread, self.stem = Normed(1, stem), Normed(stem, stem, depthwise=11)
        self.blocks, self.grow = nn.ModuleList(), nn.ModuleDict()
        channels = 1 + stem
        for i in range(layers):
            self.blocks.append(GatedBlock(channels))
            if i in WIDTHS:
                grown = max(2, int(WIDTHS[i] * width))
                self.grow[str(i)] = Normed(channels, grown)
                channels = grown
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(channels, outputs)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, W, H), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        frames = (x.shape[1] + self.stride - 1) // self.stride
        wide = max(1, (frames + ALIGN - 1) // ALIGN) * ALIGN
        right, below = wide * self.stride - x.shape[1], -x.shape[2] % self.stride
        x = F.pad(clear(x, lengths), (0, below, 0, right)).transpose(1, 2)[:, None]  # (B, 1, H, W)
        x = standardise(x, lengths, channels=True)
        mask = real(lengths, x.shape[3])[:, None, None].to(x.dtype)
        drawn = self.spread(x, lengths).softmax(1) * mask  # the only step that does not keep the padding 0
        x = torch.cat((standardise(self.stem(drawn, lengths), lengths, channels=True), x), 1)
        for i, block in enumerate(self.blocks):
            x = x + self.dropout(block(x, lengths))
            if str(i) in self.grow:
                x = F.elu(self.grow[str(i)](x, lengths))
            if i in POOLS:
                x, lengths = F.max_pool2d(x, 2), frames_after(lengths, 2)
        x = self.dropout(standardise(x, lengths, channels=True).mean(2)[:, :, :frames])
        # A product from the left: the gradient of a linear layer, and of all blocks before it, would have channels inside pixels.
        weight = self.output.weight.expand(x.shape[0], -1, -1)
        logits = torch.bmm(weight, x).transpose(1, 2) + self.output.bias
        return logits, lengths


class Normed(nn.Module):
    """A convolution without bias, k x k within each channel (`depthwise`) or 1 x 1 across them, and an instance norm."""

    def __init__(self, inputs: int, outputs: int, depthwise: int = 0) -> None:
        super().__init__()
        self.conv = DepthwiseConv(inputs, depthwise) if depthwise else nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = InstanceNorm(outputs)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x), lengths)
        return y


class GatedBlock(nn.Module):
    """Half as many channels, a gate among them, and back: three separable convolutions, 1 x 1 and 3 x 3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        ends = ((channels, half), (half, 2 * half), (half, channels))
        self.convs = nn.ModuleList(
            layer for a, b in ends for layer in (Normed(a, b), Normed(b, b, depthwise=3))
        )  # fmt: skip

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        for i in range(0, 6, 2):
            x = self.convs[i + 1](self.convs[i](x, lengths), lengths)
            if i == 2:
                value, gate = x.chunk(2, dim=1)
                x = value.tanh() * (gate - 2).sigmoid()  # begins nearly closed
            else:
                x = F.elu(x)
        return x
