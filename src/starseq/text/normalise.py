"""Normalisation: the small repairs that make texts from several hands use one set of characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from starseq.text.gaps import join_gaps, split_gaps

__all__ = ["LETTERS", "Normaliser"]

LETTERS = "abcdefghijklmnopqrstuvwxyz'"

_SPACES = re.compile(r"\s+")


def _characters(text: str) -> list[str]:
    pieces: list[str] = []
    for character in text:
        if pieces and unicodedata.combining(character):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


_words = re.compile(r"\s+|\S+").findall


@dataclass(frozen=True)
class Normaliser:
    r"""Normalises a text; its marked gaps stay where they are. The default changes only the Unicode form.

    In this order: Unicode `form`; `case`; `replace` (old -> new, for characters or longer pieces, each in turn); with
    `keep`, every other character but white space is removed; with `squeeze`, runs of white space become one space and
    the ends lose theirs. Double spaces are labels in character mode, so squeezing is for words.

    >>> letters = Normaliser(case="lower", replace={"’": "'", "-": " "}, keep=LETTERS, squeeze=True)
    >>> letters("It’s a well-known * (fact)!")
    "it's a well known * fact"
    >>> Normaliser()("Cafe\u0301  No. 1") == "Café  No. 1"
    True
    """

    form: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = "NFC"
    case: Literal["keep", "lower", "upper"] = "keep"
    replace: Mapping[str, str] = field(default_factory=dict)
    keep: str | None = None
    squeeze: bool = False

    def __call__(self, text: str) -> str:
        # Between the gaps, so that neither a `*` is taken for a character nor a character becomes one.
        text = join_gaps([self._literal(segment) for segment in split_gaps(text)])
        return _SPACES.sub(" ", text).strip() if self.squeeze else text

    def pieces(self, literal: str) -> list[tuple[str, str]]:
        """The smallest pieces of a literal text that are normalised by themselves, each with what it becomes, before `squeeze`.

        Joined, the pieces are the text, and what they become is the normalised text.

        >>> Normaliser(case="upper", keep="MASE").pieces("Maße!")
        [('M', 'M'), ('a', 'A'), ('ß', 'SS'), ('e', 'E'), ('!', '')]
        """
        whole = self._literal(literal)
        # Characters, each with the marks that are set on it; words, where that is too small; else wherever a cut changes nothing.
        for cut in (_characters, _words):
            pieces = [(raw, self._literal(raw)) for raw in cut(literal)]
            if "".join(normal for _, normal in pieces) == whole:
                if cut is _characters:
                    return pieces
                return [piece for raw, _ in pieces for piece in self._cut(raw)]
        return self._cut(literal)

    def _cut(self, literal: str) -> list[tuple[str, str]]:
        whole = self._literal(literal)
        pieces, start, done = list[tuple[str, str]](), 0, 0
        for end in range(1, len(literal)):
            if unicodedata.combining(literal[end]):
                continue
            head = self._literal(literal[:end])
            if len(head) >= done and head + self._literal(literal[end:]) == whole:
                pieces.append((literal[start:end], whole[done : len(head)]))
                start, done = end, len(head)
        if literal or whole:
            pieces.append((literal[start:], whole[done:]))
        return pieces

    def _literal(self, text: str) -> str:
        if self.form is not None:
            text = unicodedata.normalize(self.form, text)
        if self.case != "keep":
            text = text.lower() if self.case == "lower" else text.upper()
        for old, new in self.replace.items():
            text = text.replace(old, new)
        if self.keep is not None:
            text = "".join(character for character in text if character in self.keep or character.isspace())
        return text
