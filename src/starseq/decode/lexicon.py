"""Lexica: which words there are, and the tokens that spell each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starseq.data.errors import DataError
from starseq.text.vocabulary import SPACE, Vocabulary

__all__ = ["Lexicon"]

_SEPARATORS = ("|", SPACE)
"""What flashlight's and wav2letter's lexica write at the end of a spelling; the search puts the space there by itself."""


@dataclass(frozen=True)
class Lexicon:
    """Words in a fixed order, each with its spellings as token indices.

    >>> lexicon = Lexicon.of(["no", "on"], Vocabulary(["n", "o", " "]))
    >>> lexicon.words, lexicon.spellings
    (('no', 'on'), (((1, 2),), ((2, 1),)))
    >>> Lexicon.of(["no", "yes"], Vocabulary(["n", "o", " "]))
    Traceback (most recent call last):
    ...
    starseq.data.errors.DataError: lexicon: the word 'yes' needs the token 'y', which the vocabulary lacks
    """

    words: tuple[str, ...]
    spellings: tuple[tuple[tuple[int, ...], ...], ...]

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def of(cls, words: Iterable[str], vocabulary: Vocabulary) -> Lexicon:
        """Words spelled by their own characters."""
        return cls._build(((word, tuple(word), "lexicon") for word in words), vocabulary)

    @classmethod
    def read(cls, path: str | os.PathLike[str], vocabulary: Vocabulary) -> Lexicon:
        """One word a line, then its tokens if it is not spelled by its own characters: ``colonel`` or ``2nd<TAB>s e c o n d``.

        A word may stand on several lines with different spellings. A separator at the end of a spelling (``|`` as in
        flashlight's lexica, or ``<space>``) may stay. A `DataError` names the line with a token that is not in the
        vocabulary.
        """
        name = os.fspath(path)
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: not UTF-8 at byte {error.start}") from None

        def entries() -> Iterable[tuple[str, tuple[str, ...], str]]:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                word, *tokens = line.split()
                if tokens and tokens[-1] in _SEPARATORS and tokens[-1] not in vocabulary:
                    tokens.pop()
                yield word, tuple(tokens or word), f"{name}, line {number}"

        return cls._build(entries(), vocabulary, name)

    @classmethod
    def _build(
        cls, entries: Iterable[tuple[str, tuple[str, ...], str]], vocabulary: Vocabulary, name: str = "lexicon"
    ) -> Lexicon:
        if " " not in vocabulary:
            raise DataError(f"{name}: words need a space between them, and the vocabulary has none")
        found: dict[str, dict[tuple[int, ...], None]] = {}
        for word, tokens, where in entries:
            if not word or " " in word:
                raise DataError(f"{where}: {word!r} is not one word")
            for token in tokens:
                if token not in vocabulary or token == " " or vocabulary.index(token) == 0:
                    raise DataError(f"{where}: the word {word!r} needs the token {token!r}, which the vocabulary lacks")
            found.setdefault(word, {})[tuple(vocabulary.index(token) for token in tokens)] = None
        if not found:
            raise DataError(f"{name}: no words")
        return cls(tuple(found), tuple(tuple(spellings) for spellings in found.values()))
