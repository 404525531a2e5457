"""The published acoustic model: a convolution, 36 Transformer blocks, and letters, or words by way of their letters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from starseq.models.blocks import FrontEnd, Transformer
from starseq.models.letter_to_word import LETTERS, output_layer
from starseq.models.padding import Strided


def build(
    inputs: int,
    tokens: Sequence[str],
    *,
    kernel: int = 15,
    stride: int = 8,
    width: int = 384,
    heads: int = 4,
    hidden: int = 3072,
    layers: int = 36,
    dropout: float = 0.05,
    front_dropout: float = 0.0,
    layer_drop: float = 0.05,
    letter_to_word: bool = True,
    letters: str = LETTERS,
) -> nn.Module:
    """The word model by default: 107M parameters; with `hidden` = 1536, 65M, near the 70M that were stated.

    The letter model for pseudo-labels has kernel 7, stride 3, width 768, `dropout`, `front_dropout` (after the convolution)
    and `layer_drop` of 0.2, no `letter_to_word`: 256M.

    >>> model = build(80, ["<blank>", "the", "fox"], layers=2)
    >>> model.stride, model.output[0].out_features
    (8, 580)
    """
    return AcousticTransformer(
        FrontEnd(inputs, width, kernel=kernel, stride=stride, dropout=front_dropout),
        Transformer(width, heads=heads, hidden=hidden, layers=layers, dropout=dropout, layer_drop=layer_drop),
        output_layer(width, tokens, letters if letter_to_word else None),
        stride,
    )


class AcousticTransformer(Strided):
    """A front end that takes the stride, a stack that keeps the frames, an output layer."""

    def __init__(self, front: FrontEnd, stack: Transformer, output: nn.Module, stride: int) -> None:
        super().__init__()
        self.front, self.stack, self.output, self.stride = front, stack, output, stride

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, F), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        frames = (x.shape[1] + self.stride - 1) // self.stride
        x, lengths = self.front(x, lengths)
        return self.output(self.stack(x, lengths)[:, :frames]), lengths
