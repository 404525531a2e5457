"""The vocabulary: which label has which index. Index 0 is the blank, always."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from starseq.text.gaps import Unit, parse

__all__ = ["BEGINS", "BLANK", "CONTINUED", "SPACE", "Coverage", "Vocabulary", "count_labels"]

BLANK = "<blank>"
SPACE = "<space>"
CONTINUED = "##"
"""Begins the token of a letter that continues a spelled-out word, as in WordPiece: ``z ##e ##b ##u``."""
BEGINS = "▁"
"""In a vocabulary of pieces, begins each piece that begins a word."""


class Vocabulary:
    """Labels in a fixed order, with the blank before them at index 0.

    >>> vocabulary = Vocabulary(["a", "b", " "])
    >>> len(vocabulary), vocabulary[0], vocabulary.index("b"), "c" in vocabulary
    (4, '<blank>', 2, False)
    >>> print(vocabulary.to_lines(), end="")
    <blank>
    a
    b
    <space>
    >>> Vocabulary.from_lines(vocabulary.to_lines()) == vocabulary
    True
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.tokens: tuple[str, ...] = (BLANK, *labels)
        self._index = {token: index for index, token in enumerate(self.tokens)}
        for index, token in enumerate(self.tokens):
            if self._index[token] != index:
                raise ValueError(f"token {token!r} occurs twice in the vocabulary, last as number {self._index[token]}")
            if not token or "\n" in token or token == SPACE:
                raise ValueError(f"token {token!r}, number {index}, has no line of its own in tokens.txt")

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __getitem__(self, index: int) -> str:
        return self.tokens[index]

    def __contains__(self, token: object) -> bool:
        return token in self._index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self) - 1} labels and the blank)"

    def index(self, token: str) -> int:
        """The index of a token; a `KeyError` for one that is not there."""
        return self._index[token]

    @classmethod
    def top(cls, counts: Mapping[str, int], size: int | None = None, *, letters: bool = False) -> Vocabulary:
        """The `size` most frequent labels, ties in the order of their characters; None takes all.

        With `letters`, what is needed to spell out every other word follows them: each of the characters, alone and as
        a continuation.

        >>> counts = count_labels(["the fox the dog"], "word")
        >>> Vocabulary.top(counts, 2).tokens
        ('<blank>', 'the', 'dog')
        >>> Vocabulary.top(counts, 1, letters=True).tokens[:6]
        ('<blank>', 'the', 'd', '##d', 'e', '##e')
        """
        if size is not None and size < 1:
            raise ValueError(f"size: a vocabulary has at least one label, not {size}")
        ranked = sorted(counts, key=lambda label: (-counts[label], label))
        if not letters:
            return cls(ranked[:size])
        # A word that reads like a continuation would be glued to its neighbour: leave it to be spelled.
        words = [word for word in ranked if not word.startswith(CONTINUED)][:size]
        characters = sorted({character for word in ranked for character in word})
        spelled = (token for character in characters for token in (character, CONTINUED + character))
        return cls(dict.fromkeys((*words, *spelled)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read ``tokens.txt``; a `ValueError` names the file and what is wrong in it."""
        try:
            return cls.from_lines(Path(path).read_bytes().decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: not UTF-8 at byte {error.start}") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_lines(cls, text: str) -> Vocabulary:
        """The vocabulary of a ``tokens.txt``."""
        lines = text.removesuffix("\n").split("\n")
        if lines[0] == BLANK + "\r":  # written, or edited, on Windows
            lines = [line.removesuffix("\r") for line in lines]
        if lines[0] != BLANK:
            raise ValueError(f"line 1 must be {BLANK}, not {lines[0]!r}")
        return cls(" " if line == SPACE else line for line in lines[1:])

    def to_lines(self) -> str:
        """The text of ``tokens.txt``: one token a line, the blank first, the space as ``<space>``."""
        return "".join(f"{SPACE if token == ' ' else token}\n" for token in self.tokens)


def count_labels(texts: Iterable[str], unit: Unit) -> Counter[str]:
    """How often each label occurs in `texts`; marked gaps are no labels.

    >>> count_labels(["a * b", "b"], "word")
    Counter({'b': 2, 'a': 1})
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(parse(text, unit).labels)
    return counts


@dataclass(frozen=True)
class Coverage:
    """How much of a text a vocabulary covers: running labels, and types.

    >>> counts = count_labels(["the fox the dog"], "word")
    >>> print(Coverage.of(Vocabulary.top(counts, 1), counts))
    1 of 3 types, 2 of 4 labels (50.00%)
    """

    types: int
    types_total: int
    labels: int
    labels_total: int

    @classmethod
    def of(cls, vocabulary: Vocabulary, counts: Mapping[str, int]) -> Coverage:
        known = [count for label, count in counts.items() if label in vocabulary]
        return cls(len(known), len(counts), sum(known), sum(counts.values()))

    @property
    def percent(self) -> float:
        """The percentage of running labels that are in the vocabulary; 100 for an empty text."""
        return 100 * self.labels / self.labels_total if self.labels_total else 100.0

    def __str__(self) -> str:
        return (
            f"{self.types:,} of {self.types_total:,} types, "
            f"{self.labels:,} of {self.labels_total:,} labels ({self.percent:.2f}%)"
        )
