"""Tokenisers: text to label indices and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, cast

from starseq.text.gaps import Partial, Unit, check_missing, parse
from starseq.text.normalise import Normaliser
from starseq.text.pieces import continues
from starseq.text.vocabulary import BEGINS, CONTINUED, Vocabulary

__all__ = ["Encoded", "Tokeniser", "Unknown", "UnknownLabel"]

Unknown = Literal["raise", "drop", "letters"]


class UnknownLabel(ValueError):
    """A label that the vocabulary lacks."""


class Encoded(NamedTuple):
    """A partial label as indices: U labels, the U + 1 gaps (True: open), and the labels that the vocabulary lacks."""

    labels: tuple[int, ...]
    open: tuple[bool, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Tokeniser:
    """Words or characters to indices of `vocabulary`, after `normaliser`.

    `unknown` says what becomes of a label that the vocabulary lacks. ``"raise"``: an `UnknownLabel`. ``"drop"``: it goes,
    and the gap in its place is open, so the star takes it. ``"letters"`` (words only): it is spelled out, the first
    letter as it is and the others as continuations, with closed gaps between them (`Vocabulary.top` with `letters`
    makes such a vocabulary). `missing` is what can be missing in a text without marks: any label, or with
    ``unit="char", missing="word"`` only whole words (see `starseq.text.gaps.parse`). `pieces` (words only) spells every word
    (see `starseq.text.pieces`); gaps are closed between the pieces of a word.

    >>> tokeniser = Tokeniser(Vocabulary(["the", "fox"]), "word", unknown="drop")
    >>> tokeniser.encode("the quick fox", marked=True)
    Encoded(labels=(1, 2), open=(False, True, False), unknown=('quick',))
    >>> tokeniser.decode([1, 2])
    'the fox'
    >>> spelling = Tokeniser(Vocabulary(["the", "o", "##o", "x", "##x"]), "word", unknown="letters")
    >>> spelling.encode("the ox").labels, spelling.decode([1, 2, 5])
    ((1, 2, 5), 'the ox')
    >>> from starseq.text.pieces import LongestPieces
    >>> vocabulary = Vocabulary(["▁go", "▁the", "ing"])
    >>> tokeniser = Tokeniser(vocabulary, "word", pieces=LongestPieces(vocabulary))
    >>> tokeniser.encode("the going"), tokeniser.decode([2, 1, 3])
    (Encoded(labels=(2, 1, 3), open=(True, True, False, True), unknown=()), 'the going')
    """

    vocabulary: Vocabulary
    unit: Unit
    unknown: Unknown = "raise"
    normaliser: Normaliser | None = None
    missing: Unit | None = None
    pieces: Callable[[str], list[str]] | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("word", "char"):
            raise ValueError(f"unit must be 'word' or 'char', not {self.unit!r}")
        if self.unknown not in ("raise", "drop", "letters"):
            raise ValueError(f"unknown must be 'raise', 'drop' or 'letters', not {self.unknown!r}")
        if self.unknown == "letters" and self.unit == "char":
            raise ValueError("unknown='letters' spells words, and unit='char' has none")
        if self.pieces is not None and (self.unit != "word" or self.unknown == "letters"):
            raise ValueError("pieces: they are of words, and spell them all")
        check_missing(self.unit, self.missing)

    def encode(self, text: str, *, marked: bool = False) -> Encoded:
        """Indices and gaps of a text with or without marks (see `starseq.text.gaps.parse`)."""
        text = self.normaliser(text) if self.normaliser else text
        partial = parse(text, self.unit, marked=marked, missing=self.missing)
        whole = tuple(map(self._whole.get, partial.labels))
        if None not in whole:
            return Encoded(cast(tuple[int, ...], whole), partial.open, ())
        return self._encode_with_unknown(partial)

    def _encode_with_unknown(self, partial: Partial) -> Encoded:
        labels: list[int] = []
        gaps = [partial.open[0]]
        unknown: list[str] = []
        for position, (label, gap) in enumerate(zip(partial.labels, partial.open[1:], strict=True), start=1):
            try:
                indices = self.indices(label)
            except UnknownLabel as error:
                unknown.append(label)
                if self.unknown == "raise":
                    kind = "character" if self.unit == "char" else "word"
                    raise UnknownLabel(f"{kind} {label!r}, number {position} of the text, {error}") from None
                gaps[-1] = True
                continue
            if self.unknown == "letters" and not self._is_whole(label):
                unknown.append(label)
            labels.extend(indices)
            gaps.extend([False] * (len(indices) - 1) + [gap])
        return Encoded(tuple(labels), tuple(gaps), tuple(unknown))

    def indices(self, label: str) -> list[int]:
        """The indices of one label: several for a word that is spelled out. A `ValueError` if the vocabulary cannot write it.

        >>> Tokeniser(Vocabulary(["the", "o", "##x"]), "word", unknown="letters").indices("ox")
        [2, 3]
        """
        if self.pieces is not None:
            try:
                return [self.vocabulary.index(piece) for piece in self.pieces(label)]
            except (ValueError, KeyError) as error:
                raise UnknownLabel(f"cannot be written: {error}") from None
        if self._is_whole(label):
            return [self.vocabulary.index(label)]
        if self.unknown == "letters":
            return self._spell(label)
        raise UnknownLabel("is not in the vocabulary")

    def writes(self, label: str) -> bool:
        """Whether the vocabulary can write a label."""
        try:
            return bool(self.indices(label))
        except ValueError:
            return False

    def _is_whole(self, label: str) -> bool:
        return label in self._whole

    @cached_property
    def _whole(self) -> dict[str, int]:
        """The index of each token that is a label by itself."""
        if self.pieces is not None:
            return {}
        labels = enumerate(self.vocabulary.tokens[1:], start=1)
        return {token: index for index, token in labels if not self.is_continuation(token)}

    def decode(self, labels: Iterable[int]) -> str:
        """The literal text of `labels` (a star in it is not escaped)."""
        tokens = [self.vocabulary[label] for label in self._checked(labels)]
        if self.unit == "char":
            return "".join(tokens)
        words: list[str] = []
        for token in tokens:
            if words and self.is_continuation(token):
                words[-1] += self.decode_piece(token)
            else:
                words.append(self.decode_first(token))
        return " ".join(word for word in words if word)

    def is_continuation(self, token: str) -> bool:
        """Whether a token is a letter, or a piece, that continues the word before it."""
        if self.pieces is not None:
            return continues(token)
        return self.unknown == "letters" and token.startswith(CONTINUED) and len(token) > len(CONTINUED)

    def decode_piece(self, token: str) -> str:
        """The letters of a token that continues a word."""
        return token if self.pieces is not None else token.removeprefix(CONTINUED)

    def decode_first(self, token: str) -> str:
        """What a token that begins a word writes."""
        return token.removeprefix(BEGINS) if self.pieces is not None else token

    def _spell(self, word: str) -> list[int]:
        tokens = [word[0], *(CONTINUED + letter for letter in word[1:])]
        for letter, token in zip(word, tokens, strict=True):
            if token not in self.vocabulary:
                raise ValueError(f"character {letter!r} of the word {word!r} is not in the vocabulary")
        return [self.vocabulary.index(token) for token in tokens]

    def _checked(self, labels: Iterable[int]) -> Iterable[int]:
        for label in labels:
            if not 0 < label < len(self.vocabulary):
                raise ValueError(f"label {label} is not between 1 and {len(self.vocabulary) - 1}")
            yield label
