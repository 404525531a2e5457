"""An n-gram model as an automaton over the tokens of a search, in arrays that compiled code walks.

A state is an n-gram that the model has; the empty one is state 0. A word leads from a state to the n-gram with that word added.
Where the model has none, the state pays its backoff and falls to the n-gram without its first word.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from starseq.data.errors import DataError
from starseq.decode import complete_numba as kernels
from starseq.lm.arpa import ArpaReader
from starseq.text.vocabulary import SPACE

__all__ = ["NGramAutomaton"]

_LOG_10 = math.log(10.0)
_NO_UNKNOWN = -100.0  # log10 p of <unk> in a model without it, as with KenLM


class NGramAutomaton:
    """The model of an ARPA file (gzip too), seen through the tokens of an acoustic model; natural logarithms.

    A space is ``<space>``, and a token that the model lacks is ``<unk>``. A file that is no model, or knows none of the tokens, is
    a `DataError`.

    >>> import tempfile
    >>> from starseq.lm.estimate import estimate
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.arpa")
    >>> _ = estimate([["a", "b"], ["a", "c"], ["a", "b"]], path, order=2)
    >>> lm = NGramAutomaton(path, ["<blank>", "a", "b", "c"])
    >>> lm.score([1, 2]) > lm.score([2, 1])
    True
    """

    def __init__(self, path: str | os.PathLike[str], tokens: Sequence[str]) -> None:
        with ArpaReader(path) as reader:
            states = sum(reader.counts) + 2
            keys = np.full(1 << (2 * states).bit_length(), -1, np.int64)
            targets = np.empty(len(keys), np.int32)
            log_prob, backoff, fallback = np.zeros(states), np.zeros(states), np.zeros(states, np.int32)
            count, width = 1, reader.counts[0] + 1
            for n, pieces in reader.sections():
                for words, log10_p, log10_backoff in pieces:
                    end = count + len(words)
                    log_prob[count:end], backoff[count:end] = log10_p * _LOG_10, log10_backoff * _LOG_10
                    bad = kernels.add_states(words[:, :n], count, width, keys, targets, fallback)
                    if bad >= 0:
                        gram = " ".join(reader.words[word] for word in words[bad, :n])
                        raise DataError(
                            f"{reader.path}, section \\{n}-grams: {gram!r} comes twice or without its beginning"
                        )
                    count = end
            numbers = {word: number for number, word in enumerate(reader.words)}
        if "</s>" not in numbers or "<s>" not in numbers:
            raise DataError(f"{os.fspath(path)}: an n-gram model has <s> and </s>, and this one has not")
        unknown = numbers.get("<unk>", width - 1)
        if "<unk>" not in numbers:
            log_prob[count] = _NO_UNKNOWN * _LOG_10
            kernels.add_states(np.array([[unknown]]), count, width, keys, targets, fallback)
        self.path = os.fspath(path)
        known = [numbers.get(SPACE if token == " " else token, unknown) for token in tokens]
        there = sum(word != unknown for word in known)
        # Some words are characters, too.
        of_words = " " in tokens and SPACE not in numbers and 5 * there < len(tokens) - 1
        if there == 0 or of_words:
            sample = ", ".join(map(repr, tokens[1:4]))
            raise DataError(
                f"{self.path}: a language model of another vocabulary: it knows {there or 'none'} of the {len(tokens) - 1:,} "
                f"tokens ({sample}, ...)" + (" and no space" if of_words else "")
            )
        self._word_of = np.array(known, np.int64)
        self._end = numbers["</s>"]
        self._tables = (keys, targets, log_prob, backoff, fallback, width)
        self._start = int(kernels.state_of(np.array([numbers["<s>"]]), width, keys, targets))

    def tables(self) -> tuple[Any, int, int, Any]:
        """What compiled code takes: the word of each token (V,), the first state, the word that ends, the automaton."""
        return self._word_of, self._start, self._end, self._tables

    def score(self, tokens: Sequence[int]) -> float:
        """log P of a transcript, the end of the sentence included."""
        words = np.append(self._word_of[np.asarray(tokens, np.int64)], self._end)
        return float(kernels.lm_score(words, self._start, self._tables))
