"""Language models: n-grams (`estimate`, `arpa`, `ngram`), a Transformer (`transformer`), and those of Hugging Face (`huggingface`).

All of them are a `Scorer`, which is what rescoring needs. Log-probabilities are natural logarithms; only the files named .arpa hold
common ones, as the format says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["Scorer"]


class Scorer(Protocol):
    """Whatever tells how likely a text is."""

    def score(self, texts: Sequence[str]) -> Tensor:
        """(N,) float32 on the CPU: log P of each of N literal texts, the end of the sentence included."""
        ...
