"""An n-gram model in memory: the probability of a word after others, of sentences, and the perplexity of a text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.lm import ngram_numba as kernels
from starseq.lm.arpa import ArpaReader
from starseq.lm.text import literal, tokens_of
from starseq.text.gaps import Unit
from starseq.text.normalise import Normaliser

__all__ = ["NGram", "Perplexity", "State"]

State = tuple[int, ...]
"""The numbers of the last words, as many as the model looks back, and <s>."""

_LOG_10 = math.log(10.0)
_NO_UNKNOWN = -100.0  # log10 p of <unk> in a model without it, as with KenLM
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Perplexity:
    """What a text costs. `tokens` counts the ends of sentences too; `unknown` of them are not in the model.

    >>> Perplexity(sentences=1, tokens=4, unknown=1, log_p=-12.0, log_p_known=-6.0).including_unknown == math.exp(3)
    True
    """

    sentences: int
    tokens: int
    unknown: int
    log_p: float
    log_p_known: float

    @property
    def including_unknown(self) -> float:
        """exp(- log P / tokens), unknown words as <unk>."""
        return math.exp(-self.log_p / self.tokens) if self.tokens else math.nan

    @property
    def excluding_unknown(self) -> float:
        """The same over the words that the model knows, which see <unk> in place of the others."""
        known = self.tokens - self.unknown
        return math.exp(-self.log_p_known / known) if known else math.nan


class NGram:
    """A model read from an ARPA file, plain or .gz.

    Log-probabilities are natural. `unit` says how a text is cut, and `normaliser` what happens before.

    >>> import tempfile
    >>> from starseq.lm.estimate import estimate
    >>> file = os.path.join(tempfile.mkdtemp(), "tiny.arpa")
    >>> _ = estimate([["a", "b"], ["a", "c"], ["a", "b"]], file, order=2)
    >>> model = NGram.load(file)
    >>> log_p, state = model.step(model.begin, "a")
    >>> float(model.score(["a b"])) > float(model.score(["b a"]))
    True
    """

    def __init__(
        self,
        reader: ArpaReader,
        unit: Unit = "word",
        normaliser: Normaliser | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._normalise, self._split = literal(normaliser), tokens_of(unit)
        self.order = len(reader.counts)
        # Two thirds full at most, and never quite full: a search ends at a free place.
        sizes = [count * 3 // 2 + 1 for count in reader.counts[1:]]
        self._bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int64)
        self._keys = np.zeros(self._bounds[-1], np.uint64)
        self._values = np.empty((self._bounds[-1], 2), np.float32)
        unigrams: list[NDArray[np.float32]] = []
        for n, pieces in reader.sections():
            for words, log10_p, log10_backoff in pieces:
                if n == 1:
                    unigrams.append(np.stack((log10_p, log10_backoff), axis=1).astype(np.float32))
                else:
                    table = slice(self._bounds[n - 2], self._bounds[n - 1])
                    again = kernels.insert(words, log10_p, log10_backoff, self._keys[table], self._values[table])
                    if again >= 0:
                        gram = " ".join(reader.words[word] for word in words[again])
                        raise DataError(f"{reader.path}, section \\{n}-grams: {gram!r} comes twice")
                if progress is not None:
                    progress(reader.done, reader.size)
        self._numbers = {word: number for number, word in enumerate(reader.words)}
        for word in ("<s>", "</s>"):
            if word not in self._numbers:
                raise DataError(f"{reader.path}, section \\1-grams: {word} is not there")
        if "<unk>" not in self._numbers:
            self._numbers["<unk>"] = len(self._numbers)
            unigrams.append(np.array([[_NO_UNKNOWN, 0.0]], np.float32))
        self._unigrams = np.concatenate(unigrams)
        self._unknown = self._numbers["<unk>"]
        self._begin, self._end = self._numbers["<s>"], self._numbers["</s>"]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        unit: Unit = "word",
        normaliser: Normaliser | None = None,
        progress: Progress | None = None,
    ) -> NGram:
        """Read an ARPA file; what is wrong in it is a `DataError` with the section and the line."""
        with ArpaReader(path) as reader:
            return cls(reader, unit, normaliser, progress)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __len__(self) -> int:
        """Words, with <unk>, <s> and </s>."""
        return len(self._numbers)

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    @property
    def begin(self) -> State:
        """The state at the beginning of a sentence."""
        return (self._begin,)

    def step(self, state: State, word: str) -> tuple[float, State]:
        """log p of a word after `state`, and the state after it; ``"</s>"`` is the end of the sentence."""
        words = (*state, self._numbers.get(word, self._unknown))
        begins = np.zeros(len(words), np.bool_)
        begins[0] = True
        log_p = self._log_p(np.array(words, np.int64), begins)
        return float(log_p[-1]), words[-max(1, self.order - 1) :]

    def log_probs(self, sentences: Iterable[Sequence[str]]) -> list[NDArray[np.float64]]:
        """For each sentence of U tokens its (U + 1,) log p: of each token after those before it, then of the end."""
        numbers, lengths = self._number(sentences)
        log_p = self._log_p(numbers, numbers == self._begin)
        ends = np.cumsum(lengths)
        return [log_p[end - length + 1 : end] for end, length in zip(ends.tolist(), lengths, strict=True)]

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Those of words, or of <unk>."""
        return [self._numbers.get(word, self._unknown) for word in words]

    def log_p_last(self, grams: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) log p of the last of each row of words (N, n), by their numbers, after the others."""
        if grams.shape[1] == 1:
            alone: NDArray[np.float64] = self._unigrams[grams[:, 0], 0].astype(np.float64) * _LOG_10
            return alone
        begins = np.zeros(grams.shape, np.bool_)
        begins[:, 0] = True
        log_p = self._log_p(grams.reshape(-1), begins.reshape(-1))
        return log_p[grams.shape[1] - 1 :: grams.shape[1]]

    def score(self, texts: Sequence[str]) -> Tensor:
        """(N,) float32: log P of each text, the end of the sentence included."""
        sentences = (self._split(self._normalise(text)) for text in texts)
        return torch.tensor([float(log_p.sum()) for log_p in self.log_probs(sentences)])

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> Perplexity:
        """What sentences (of tokens) cost; they are read as a stream."""
        total = [0, 0, 0, 0.0, 0.0]
        pending: list[Sequence[str]] = []

        def add() -> None:
            numbers, lengths = self._number(pending)
            begins = numbers == self._begin
            log_p = self._log_p(numbers, begins)
            unknown = numbers == self._unknown
            total[0] += len(lengths)
            total[1] += len(numbers) - len(lengths)
            total[2] += int(unknown.sum())
            total[3] += float(log_p.sum())
            total[4] += float(log_p[~unknown].sum())

        size = 0
        for sentence in sentences:
            pending.append(sentence)
            size += len(sentence) + 2
            if size >= _AT_ONCE:
                add()
                pending, size = [], 0
        add()
        return Perplexity(int(total[0]), int(total[1]), int(total[2]), total[3], total[4])

    def _number(self, sentences: Iterable[Sequence[str]]) -> tuple[NDArray[np.int64], list[int]]:
        """<s>, the words, </s> of every sentence, one after the other; and how long each is."""
        numbers, lengths = [], []
        look_up, unknown = self._numbers.get, self._unknown
        inner = {self._begin: unknown, self._end: unknown}  # a text that spells them out means something else
        for sentence in sentences:
            words = [look_up(word, unknown) for word in sentence]
            if not inner.keys().isdisjoint(words):
                words = [inner.get(word, word) for word in words]
            numbers += [self._begin, *words, self._end]
            lengths.append(len(words) + 2)
        return np.array(numbers, np.int64), lengths

    def _log_p(self, words: NDArray[np.int64], begins: NDArray[np.bool_]) -> NDArray[np.float64]:
        out = np.empty(len(words))
        kernels.score(words, begins, self._keys, self._values, self._bounds, self._unigrams, out)
        return out * _LOG_10
