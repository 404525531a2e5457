"""Pieces of words, as sentencepiece has them: a piece that begins a word begins with ``▁``, and every other continues one.

Needs the extra `pieces`, but for `LongestPieces`. A word is spelled by itself, so that no piece reaches into the next one. What
cannot be used is a `ValueError` of one sentence.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from starseq.text.normalise import Normaliser
from starseq.text.vocabulary import BEGINS, BLANK, SPACE, Vocabulary

__all__ = ["LongestPieces", "SentencePieces", "Spelled", "continues", "default_size"]

MOST_BYTES = 64 << 20
"""of a model file; those of large multilingual models have 5 MB"""
_UNUSABLE = frozenset("▁▅\0")
"""characters that stand for something else in sentencepiece"""
_LONGEST = 1000
"""characters of a word that the training of pieces looks at"""


def continues(piece: str) -> bool:
    """Whether a piece goes on with the word before it.

    >>> continues("ing"), continues("▁go")
    (True, False)
    """
    return not piece.startswith(BEGINS)


def default_size(words: int, characters: int) -> int:
    """How many pieces suit a text of so many running words and different characters: the square root of the words, but room for
    each character and some pairs, and at most 5,000.

    >>> default_size(900, 30), default_size(70_000, 30), default_size(9_400_000, 30), default_size(10**9, 30)
    (94, 264, 3065, 5000)
    """
    return min(max(2 * characters + 34, math.isqrt(words)), max(5000, 2 * characters))


class SentencePieces:
    """A model of sentencepiece, from the bytes of its file.

    >>> pieces = SentencePieces.trained(["go", "going", "gone", "doing"] * 9, 14)
    >>> pieces("going"), pieces.labels()[:3]
    (['▁go', 'ing'], ['go', '▁go', 'in'])
    >>> pieces("zoo")
    Traceback (most recent call last):
    ...
    ValueError: character 'z' of the word 'zoo' is in no piece
    """

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        if len(model) > MOST_BYTES:
            raise ValueError(f"no model of pieces, for it has more than {MOST_BYTES >> 20} MB")
        try:
            self._processor: Any = SentencePieceProcessor(model_proto=model) if model else None
        except RuntimeError:
            self._processor = None
        if self._processor is None:
            raise ValueError("no model of sentencepiece")
        self.model = model
        if not any(map(str.strip, self.labels())):
            raise ValueError("a model of sentencepiece without a piece of a word")
        begun = next((piece for piece in self.labels() if piece.startswith(BEGINS) and len(piece) > 1), None)
        if begun is None or not self._processor.encode(begun[1:], out_type=str)[0].startswith(BEGINS):
            raise ValueError(f"its pieces do not show where a word begins, with {BEGINS!r} in front")

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieces, (self.model,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SentencePieces) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SentencePieces:
        """The model in a file; a `ValueError` names the file."""
        try:
            with open(path, "rb") as file:
                return cls(file.read(MOST_BYTES + 1))
        except OSError as error:
            raise ValueError(f"{os.fspath(path)}: {(error.strerror or str(error)).lower()}") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def trained(cls, words: Iterable[str], size: int | None = None) -> SentencePieces:
        """Byte-pair pieces of running words: `size` of them, by default as many as suit the text (`default_size`) and it supports.
        The same words give the same bytes.

        Raises ValueError for a `size` that the text does not support, and for a text without words.
        """
        from sentencepiece import SentencePieceTrainer

        usable = [word for word in words if len(word) <= _LONGEST and not _UNUSABLE & set(word)]
        if not usable:
            raise ValueError("there are no words to learn pieces from")
        letters = set().union(*usable)
        least = len(letters | {BEGINS})
        wanted = default_size(len(usable), len(letters)) if size is None else size
        if wanted < least:
            raise ValueError(f"{size:,} pieces are fewer than the {least:,} that the characters of the text need")
        # One thread, no sampling: the same text gives the same pieces. The first is what no piece can write.
        settings: dict[str, Any] = {
            "model_type": "bpe", "normalization_rule_name": "identity", "character_coverage": 1.0, "num_threads": 1,
            "bos_id": -1, "eos_id": -1, "pad_id": -1, "unk_id": 0, "max_sentence_length": 4 * _LONGEST + 1, "minloglevel": 2,
            "hard_vocab_limit": False,
        }  # fmt: skip
        made = io.BytesIO()
        try:
            SentencePieceTrainer.Train(
                sentence_iterator=iter(usable), model_writer=made, vocab_size=wanted + 1, **settings
            )
        except RuntimeError as error:
            reason = re.sub(r"^.*?\] *", "", str(error).strip()) or "no reason is given"
            raise ValueError(f"sentencepiece learns no pieces from this text ({reason})") from None
        model = cls(made.getvalue())
        if size is not None and len(model.labels()) != size:
            raise ValueError(f"{size:,} pieces are more than the {len(model.labels()):,} that the text supports")
        return model

    def labels(self) -> list[str]:
        """The pieces in their order, without those that stand for no part of a single word."""
        return list(self._labels)

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        model = self._processor
        special = (model.is_unknown, model.is_control, model.is_unused, model.is_byte)
        pieces = (model.id_to_piece(i) for i in range(len(model)) if not any(is_one(i) for is_one in special))
        return tuple(
            piece for piece in pieces if BEGINS not in piece[1:] and "\n" not in piece and piece not in (BLANK, SPACE)
        )

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self._labels)

    def __call__(self, word: str) -> list[str]:
        """The pieces of one word; a `ValueError` names the character that is in no piece."""
        return list(_spelled(self, word))

    def _spell(self, word: str) -> tuple[str, ...]:
        found = () if _UNUSABLE & set(word) else tuple(self._processor.encode(word, out_type=str))
        if found and all(piece in self._known for piece in found) and not continues(found[0]):
            return found
        strange = next((c for c in word if not self._alone(c)), None)
        if strange is None:
            raise ValueError(f"the word {word!r} has no pieces")
        raise ValueError(f"character {strange!r} of the word {word!r} is in no piece")

    def _alone(self, character: str) -> bool:
        found = [] if character in _UNUSABLE else self._processor.encode(character, out_type=str)
        return bool(found) and all(piece in self._known for piece in found)


@lru_cache(1 << 16)
def _spelled(pieces: SentencePieces, word: str) -> tuple[str, ...]:
    return pieces._spell(word)


class LongestPieces:
    """The pieces of a vocabulary alone: a word is spelled by the longest one that fits, again and again.

    >>> LongestPieces(Vocabulary(["▁go", "▁", "in", "ing"]))("going")
    ['▁go', 'ing']
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.vocabulary))

    def __call__(self, word: str) -> list[str]:
        """The pieces of one word; a `ValueError` names what is in no piece."""
        found: list[str] = []
        rest = BEGINS + word
        if BEGINS in word:
            raise ValueError(f"character {BEGINS!r} of the word {word!r} stands for the beginning of one")
        while rest:
            ends = range(min(len(rest), self._longest), 0, -1)
            piece = next((rest[:end] for end in ends if rest[:end] in self.vocabulary), None)
            if piece is None:
                raise ValueError(
                    f"no piece for the {rest.removeprefix(BEGINS)!r} of the word {word!r} is in the vocabulary"
                )
            found.append(piece)
            rest = rest[len(piece) :]
        return found


@dataclass(frozen=True)
class Spelled(Normaliser):
    """Normalises a text, and writes its words as pieces with spaces between: what a language model over pieces learns from. A word
    that has no pieces stays whole.

    >>> vocabulary = Vocabulary(["▁go", "▁", "in", "ing"])
    >>> Spelled(case="lower", spell=LongestPieces(vocabulary))("Going * on")
    '▁go ing * on'
    """

    spell: Callable[[str], list[str]] = list

    def _literal(self, text: str) -> str:
        ends = (text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :])
        words = [" ".join(self._spelled(word)) for word in super()._literal(text).split()]
        return " ".join(words).join(ends) if words else text

    def _spelled(self, word: str) -> list[str]:
        try:
            return self.spell(word)
        except ValueError:
            return [word]
