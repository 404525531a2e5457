"""A compact Transformer for small speech data: hours rather than a thousand of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from starseq.models import transformer
from starseq.models.letter_to_word import LETTERS


def build(
    inputs: int,
    tokens: Sequence[str],
    *,
    kernel: int = 9,
    stride: int = 4,
    width: int = 256,
    heads: int = 4,
    hidden: int = 1024,
    layers: int = 6,
    dropout: float = 0.1,
    front_dropout: float = 0.1,
    layer_drop: float = 0.05,
    letter_to_word: bool = False,
    letters: str = LETTERS,
) -> nn.Module:
    """The model of `transformer` in 5M parameters; with `letter_to_word`, tokens are words, read by way of their letters.

    >>> model = build(80, ["<blank>", "one", "two"])
    >>> model.stride, sum(p.numel() for p in model.parameters())
    (4, 5108995)
    """
    return transformer.build(
        inputs, tokens, kernel=kernel, stride=stride, width=width, heads=heads, hidden=hidden, layers=layers, dropout=dropout,
        front_dropout=front_dropout, layer_drop=layer_drop, letter_to_word=letter_to_word, letters=letters,
    )  # fmt: skip
