"""The letter-to-word encoder: scores of letters at positions, summed to scores of the words they spell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["LETTERS", "LetterToWord", "output_layer"]

LETTERS = "abcdefghijklmnopqrstuvwxyz'"


class LetterToWord(nn.Module):
    """(..., max_length * letters) -> (..., 1 + words), the sum over positions of the score of the letter that stands there.

    There are `letters`, then blank, then pad: 29 by default, and the score of letter l at position p is input p * 29 + l.
    Output 0 is the blank (the letter blank at position 0, then pads), output i the i-th word, filled up with pads. The matrix
    of zeros and ones is not learned, nor saved: it follows from the words. So new words can be read after training. The
    log-softmax over words comes later, with the loss.

    It is one dense product x E, because nothing tried was quicker: summing the rows of the letters that stand in a word
    (`embedding_bag`, and the turn to frames first) took as long forward and 1.6 times as long backward on two CPU cores, and
    on a GPU the product costs little more than writing its result.

    Raises ValueError naming a word that is empty, too long, given twice or that has a letter of its own.

    >>> layer = LetterToWord(["a", "cab", "ca"], letters="abc", max_length=3)
    >>> layer(torch.arange(15.0))                 # blank is input 3 + 9 + 14, "cab" is 2 + 5 + 11
    tensor([26., 23., 18., 21.])
    >>> layer.add_words(["bab"])
    >>> layer(torch.arange(15.0))
    tensor([26., 23., 18., 21., 17.])
    >>> LetterToWord(["a", "dad"], letters="abc")
    Traceback (most recent call last):
    ...
    ValueError: word 'dad': 'd' is none of the letters 'abc'
    """

    E: Tensor

    def __init__(self, words: Iterable[str], letters: str = LETTERS, max_length: int = 20) -> None:
        super().__init__()
        if len(set(letters)) < len(letters):
            raise ValueError(f"letters: one of {letters!r} is given twice")
        if max_length < 1:
            raise ValueError(f"max_length is at least 1; got {max_length}")
        self.letters, self.max_length = letters, max_length
        self.words: list[str] = []
        blank, pad = len(letters), len(letters) + 1
        self.register_buffer("E", self._columns([[blank] + [pad] * (max_length - 1)]), persistent=False)
        self.add_words(words)

    @property
    def inputs(self) -> int:
        """Positions times letters, blank and pad included."""
        return self.max_length * (len(self.letters) + 2)

    def add_words(self, words: Iterable[str]) -> None:
        """Further words, whose scores follow those of the present ones. Where one is wrong, none is added."""
        known, pad = set(self.words), len(self.letters) + 1
        index = {letter: i for i, letter in enumerate(self.letters)}
        added, spelled = list(words), []
        for word in added:
            foreign = next((letter for letter in word if letter not in index), None)
            if foreign is not None:
                raise ValueError(f"word {word!r}: {foreign!r} is none of the letters {self.letters!r}")
            if not 1 <= len(word) <= self.max_length:
                raise ValueError(f"word {word!r}: has {len(word)} letters, not 1 to {self.max_length}")
            if word in known:
                raise ValueError(f"word {word!r}: is given twice")
            known.add(word)
            spelled.append([index[letter] for letter in word] + [pad] * (self.max_length - len(word)))
        self.words += added
        self.E = torch.cat((self.E, self._columns(spelled).to(self.E)), dim=1)

    def _columns(self, spelled: list[list[int]]) -> Tensor:
        """(inputs, words) of zeros and ones, from the letters by position."""
        letters = torch.tensor(spelled, dtype=torch.int64).reshape(-1, self.max_length)
        at = letters + torch.arange(self.max_length) * (len(self.letters) + 2)
        return torch.zeros(self.inputs, len(spelled)).scatter_(0, at.T, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"x has {self.inputs} scores, {self.max_length} positions of letters; got {x.shape[-1]}")
        return x @ self.E.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.words)} words, letters={self.letters!r}, max_length={self.max_length}"


def output_layer(width: int, tokens: Sequence[str], letters: str | None) -> nn.Module:
    """From frames of `width` to logits of `tokens` (the blank first): a linear layer; with `letters`, by way of their spelling.

    >>> [sum(p.numel() for p in output_layer(384, ["<blank>", "a"], letters).parameters()) for letters in (None, LETTERS)]
    [770, 223300]
    """
    if letters is None:
        return nn.Linear(width, len(tokens))
    spelled = LetterToWord(tokens[1:], letters)
    return nn.Sequential(nn.Linear(width, spelled.inputs), spelled)
