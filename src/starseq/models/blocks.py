"""The Transformer that acoustic models and language models are made of: relative positions, dropout, layer drop.

Blocks are pre-norm, x + f(norm(x)), with one norm at the end: a stack of 36 then trains from a plain uniform initialisation.
The published sizes decide nothing here: a norm before or after a sub-layer has the same parameters.

Positions are rotary: query and key of frame t are turned by angles proportional to t, so that a score depends on the distance
alone. It has neither parameters nor a longest input, and leaves attention to torch's fused kernels, as a learned table of
distances would not. The published sizes (107M) leave no room for such a table either: 36 of them are 6M.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starseq.models.padding import FrameConv, real

__all__ = ["Attention", "Block", "FrontEnd", "Transformer", "angles", "rotate"]


def angles(frames: int, width: int, device: torch.device | None = None) -> Tensor:
    """(2, T, width / 2) float32: cosine and sine of t / 10,000^(2i / width) for the T frames of a head of that width.

    >>> angles(3, 4).shape
    torch.Size([2, 3, 2])
    """
    rates = 10_000.0 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    turns = torch.arange(frames, device=device, dtype=torch.float32)[:, None] * rates
    return torch.stack((turns.cos(), turns.sin()))


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """x (..., T, width), each pair of entries (i, i + width / 2) of frame t turned by its angle; `by` comes from `angles`.

    The scalar product of two turned vectors depends on where they stand only through the distance of their frames:

    >>> q, k, by = torch.randn(8), torch.randn(8), angles(10, 8)
    >>> near = rotate(q.expand(10, 8), by) @ rotate(k.expand(10, 8), by).T
    >>> torch.allclose(near[0, 3], near[6, 9], atol=1e-5)
    True
    """
    cos, sin = by
    a, b = x.chunk(2, dim=-1)
    # In float32 whatever the input: bfloat16 knows the angle of frame 300 to within a radian only.
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Self-attention of several heads with relative positions, (B, T, width) -> (B, T, width).

    `dropout` is that of the attention weights. With `causal`, a frame sees itself and those before it.
    """

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        if heads < 1 or width % (2 * heads):
            raise ValueError(f"width is a multiple of twice the heads; got {width} and {heads}")
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor, by: Tensor, mask: Tensor | None) -> Tensor:
        """`by`: `angles` of the frames; `mask`: (B, 1, 1, T) bool, the frames to look at, or None for all."""
        B, T, width = x.shape
        heads = self.inward(x).view(B, T, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        both, v = heads.split((2, 1))
        q, k = rotate(both, by)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v.squeeze(0), attn_mask=mask, dropout_p=p, is_causal=self.causal)
        mixed: Tensor = self.outward(y.transpose(1, 2).reshape(B, T, width))
        return mixed


class Block(nn.Module):
    """Attention, then a feed-forward net of `hidden` units (FFN), each added to what it was given.

    `dropout` is that of the attention weights and of the hidden units. `layer_drop` is the probability that the whole batch
    goes around the FFN in training; at test time nothing is scaled, as published.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        dropout: float = 0.0,
        layer_drop: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.layer_drop = layer_drop
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout=dropout, causal=causal)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width))

    def forward(self, x: Tensor, by: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), by, mask)
        y: Tensor = self.ffn(self.ffn_norm(x))
        if self.training and self.layer_drop > 0:
            # Times 0 rather than skipped: every parameter keeps a gradient (DDP waits for it), and nothing waits for the GPU.
            y = y * (torch.rand((), device=y.device) >= self.layer_drop)
        return x + y


class Transformer(nn.Module):
    """A stack of blocks, (B, T, width) -> (B, T, width). The padding is not seen; what comes out in its place is arbitrary.

    >>> stack = Transformer(16, heads=2, hidden=32, layers=2).eval()
    >>> x, lengths = torch.randn(2, 5, 16), torch.tensor([5, 3])
    >>> torch.allclose(stack(x, lengths)[1:, :3], stack(x[1:, :3], lengths[1:]), atol=1e-5)
    True
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        hidden: int,
        layers: int,
        dropout: float = 0.0,
        layer_drop: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        for name, p in (("dropout", dropout), ("layer_drop", layer_drop)):
            if not 0 <= p < 1:
                raise ValueError(f"{name} is a probability below 1; got {p}")
        self.head_width, self.causal = width // heads, causal
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, dropout=dropout, layer_drop=layer_drop, causal=causal) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        # What 2 * layers sub-layers add up to starts as large as one of them.
        for name, weight in self.named_parameters():
            if name.endswith(("attention.outward.weight", "ffn.3.weight")):
                weight.data.mul_((2 * layers) ** -0.5)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, T, width), lengths (B,) or None where nothing is padded."""
        by = angles(x.shape[1], self.head_width, x.device)
        mask = None
        if lengths is not None and not self.causal:  # padding comes last: who looks back only does not see it
            # An utterance of no frames looks at its first one, since a mean over nothing is NaN.
            mask = real(lengths.clamp(min=1), x.shape[1])[:, None, None]
        for block in self.blocks:
            x = block(x, by, mask)
        y: Tensor = self.norm(x)
        return y


class FrontEnd(nn.Module):
    """A convolution with GLU, (B, T, inputs) -> (B, T', width): see `FrameConv`."""

    def __init__(self, inputs: int, width: int, *, kernel: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = FrameConv(inputs, 2 * width, kernel=kernel, stride=stride)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.conv(x, lengths)
        return self.dropout(F.glu(x)), lengths
