"""A compact reader of line images: 2-D convolutions, then a bidirectional LSTM over the columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from starseq.models.padding import InstanceNorm, Strided, clear, frames_after

STAGES = 4
"""Each halves the height."""


def build(
    inputs: int,
    tokens: Sequence[str],
    *,
    stride: int = 4,
    channels: int = 32,
    hidden: int = 256,
    layers: int = 2,
    dropout: float = 0.2,
) -> nn.Module:
    """Convolutions of `channels` times 1, 2, 4, 8, the height halved after each stage and the width until `stride` is reached.

    `layers` of LSTMs have `hidden` units in each direction; `dropout` is before each of them and before the output.

    >>> model = build(64, ["<blank>", *"abcdefgh"])
    >>> model.stride, sum(p.numel() for p in model.parameters())
    (4, 4062313)
    """
    if stride not in (1, 2, 4, 8, 16):
        raise ValueError(f"stride is a power of two up to {2**STAGES}; got {stride}")
    return CRNN(inputs, len(tokens), stride, channels, hidden, layers, dropout)


class CRNN(Strided):
    """Line images to logits for each column of `stride` pixels."""

    def __init__(
        self, height: int, outputs: int, stride: int, channels: int, hidden: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.stride = stride
        widths = [channels << i for i in range(STAGES)]
        self.stages = nn.ModuleList(
            Stage(widths[i - 1] if i else 1, width, deep=i > 0, pool=2 if stride >> (i + 1) else 1)
            for i, width in enumerate(widths)
        )
        self.dropout = nn.Dropout(dropout)
        self.flat = nn.Linear(widths[-1] * -(-height // 2**STAGES), hidden)
        self.lstm = nn.LSTM(
            hidden, hidden, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.output = nn.Linear(3 * hidden, outputs)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, W, H), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        frames = (x.shape[1] + self.stride - 1) // self.stride
        right, below = max(1, frames) * self.stride - x.shape[1], -x.shape[2] % 2**STAGES
        x = F.pad(clear(x, lengths), (0, below, 0, right)).transpose(1, 2)[:, None]  # (B, 1, H, W)
        for stage in self.stages:
            x, lengths = stage(x, lengths)
        x = self.flat(self.dropout(x.permute(0, 3, 1, 2).flatten(2)))
        x = F.relu(x)
        # The output sees the columns themselves as well: through the LSTM alone it stays for thousands of lines at all blanks.
        x = self.dropout(torch.cat((self._read(self.dropout(x), lengths), x), 2))
        return self.output(x[:, :frames]), lengths

    def _read(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The LSTM's (B, T, 2 * hidden), zeros in the padding: the backward pass starts at the last real frame."""
        # An utterance of no frames is read as one frame, which nobody looks at: torch packs no empty sequence.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        y: Tensor = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return y


class Stage(nn.Module):
    """One convolution of 3 x 3, where `deep` a second one around which there is a way, and a pool of 2 x `pool`."""

    def __init__(self, inputs: int, outputs: int, *, deep: bool, pool: int) -> None:
        super().__init__()
        self.pool = pool
        ends = [(inputs, outputs), (outputs, outputs)] if deep else [(inputs, outputs)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ends)
        self.norms = nn.ModuleList(InstanceNorm(b) for _, b in ends)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = F.relu(norm(conv(x), lengths))
            x = x + y if i else y
        # Padding is 0 and the rest at least 0: where a pool takes in both, the maximum is that of the real columns.
        return F.max_pool2d(x, (2, self.pool)), frames_after(lengths, self.pool)
