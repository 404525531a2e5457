"""Mixing n-gram models: one ARPA file whose probabilities are weighted means of those of others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.lm.arpa import ArpaReader, ArpaWriter, Grams, log10_of
from starseq.lm.counts import SPECIALS
from starseq.lm.kneser_ney_numba import BEGIN, pack_rows
from starseq.lm.ngram import NGram
from starseq.lm.records import words_for

__all__ = ["Mixture", "best_weights", "mix"]

Rows: TypeAlias = NDArray[np.int32]
"""(N, n): n-grams as numbers of words."""

_ROWS = 1 << 18
_TOLERANCE, _ROUNDS = 1e-6, 10_000
_STEPS = 1000


@dataclass(frozen=True)
class Mixture:
    """What `mix` wrote."""

    weights: tuple[float, ...]
    counts: tuple[int, ...]
    """n-grams per order"""
    words: int
    """without <unk>, <s> and </s>"""


def best_weights(models: Sequence[NGram], sentences: Iterable[Sequence[str]]) -> tuple[float, ...]:
    """The weights under which sentences (of tokens) are likeliest, by expectation maximisation.

    Tokens that no model knows say nothing; if these are most of them, it is a `DataError`.
    """
    texts = [list(sentence) for sentence in sentences]
    if not any(texts):
        raise DataError("the text to weigh the models by is empty")
    tokens = [word for text in texts for word in text]
    known = sum(any(word in model for model in models) for word in tokens)
    if 2 * known < len(tokens):
        raise DataError(
            f"the models know {known:,} of the {len(tokens):,} tokens to weigh them by: is the unit another one, word or char?"
        )
    probabilities = np.stack([np.exp(np.concatenate(model.log_probs(texts))) for model in models])
    for row, model in zip(probabilities, models, strict=True):
        row[[word not in model for text in texts for word in (*text, "</s>")]] = 0.0
    probabilities = probabilities[:, probabilities.sum(axis=0) > 0]
    weights = np.full(len(models), 1 / len(models))
    for _ in range(_ROUNDS):
        parts = weights[:, None] * probabilities
        before, weights = weights, (parts / parts.sum(axis=0)).mean(axis=1)
        if np.abs(weights - before).max() < _TOLERANCE:
            break
    return tuple(weights.tolist())


def mix(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    sentences: Iterable[Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> Mixture:
    """Mix ARPA files into another (.gz: packed), with `weights`, by default those that make `sentences` likeliest.

    It has every n-gram that one of them has, with the probability sum_i weight_i p_i(w | h), where each model backs off by itself;
    its own backoffs are such that all sums to 1. A word that a model does not know has probability 0 there, and is <unk> before
    others. Everything is in memory: some 200 bytes an n-gram. `target` is there when all is done, or not at all.

    >>> import tempfile
    >>> from starseq.lm.estimate import estimate
    >>> folder = tempfile.mkdtemp()
    >>> one, other, both = (os.path.join(folder, name) for name in ("one.arpa", "other.arpa", "both.arpa"))
    >>> _, _ = estimate([["a", "b"]], one, order=2), estimate([["a", "c"]], other, order=2)
    >>> mix([one, other], both, weights=(1, 3)).weights
    (0.25, 0.75)
    >>> p_one, p_both = (NGram.load(file).log_probs([["a", "b"]])[0] for file in (one, both))
    >>> round(float(np.exp(p_both[1] - p_one[1])), 3)      # the other one does not know "b"
    0.25
    """
    if len(sources) < 2:
        raise DataError(f"a mixture is of two models or more; got {len(sources)}")
    report = progress or (lambda done, total: None)

    def to(part: float) -> None:
        report(int(_STEPS * part), _STEPS)

    def reading(number: int) -> Progress:
        return lambda done, size: to(0.4 * (number + done / max(1, size or 1)) / len(sources))

    models, grams = [], []
    for number, source in enumerate(sources):
        with closing(_Keeping(source)) as reader:
            models.append(NGram(reader, progress=reading(number)))
            grams.append((reader.words, reader.grams()))
    if weights is None:
        if sentences is None:
            raise DataError("a mixture needs weights, or a text to find them by")
        weights = best_weights(models, sentences)
    shares = _shares(weights, len(models))
    words = [*SPECIALS, *sorted({word for model in models for word in model.words} - set(SPECIALS))]
    numbers = {word: number for number, word in enumerate(words)}
    orders: list[list[Rows]] = [[] for _ in range(max(model.order for model in models))]
    for names, sections in grams:
        own = np.array([numbers[name] for name in names], np.int32)
        for n, rows in enumerate(sections):
            orders[n].append(own[rows])
    tables = _closed([np.concatenate(rows) for rows in orders], len(words))
    counts = tuple(map(len, tables))
    mixed = []
    for rows in tables:
        mixed.append(_probabilities(rows, models, shares, words))
        to(0.4 + 0.3 * sum(map(len, mixed)) / sum(counts))
    bits = max(1, (len(words) - 1).bit_length())
    with ArpaWriter(target, words, bits, counts) as arpa:
        for n, (rows, p) in enumerate(zip(tables, mixed, strict=True), start=1):
            backoff = _backoffs(rows, tables[n], p, mixed[n]) if n < len(tables) else None
            keys = np.zeros((len(rows), words_for(n * bits)), np.uint64)
            pack_rows(rows, bits, keys)
            arpa.section(n, [(keys, log10_of(p), None if backoff is None else log10_of(backoff))])
            to(0.7 + 0.3 * sum(counts[:n]) / sum(counts))
    return Mixture(shares, counts, len(words) - len(SPECIALS))


def _shares(weights: Sequence[float], models: int) -> tuple[float, ...]:
    if len(weights) != models:
        raise DataError(f"{len(weights)} weights for {models} models")
    if not all(weight >= 0 for weight in weights) or not 0 < sum(weights) < np.inf:
        raise DataError(f"weights are finite, not negative, and not all 0; got {', '.join(f'{w:g}' for w in weights)}")
    return tuple(weight / sum(weights) for weight in weights)


class _Keeping(ArpaReader):
    """Keeps the n-grams that pass by."""

    def sections(self) -> Iterator[tuple[int, Iterator[Grams]]]:
        self._kept: list[list[Rows]] = []
        for n, pieces in super().sections():
            self._kept.append([np.empty((0, n), np.int32)])
            yield n, self._keep(pieces)

    def _keep(self, pieces: Iterator[Grams]) -> Iterator[Grams]:
        for piece in pieces:
            self._kept[-1].append(piece.words.astype(np.int32))
            yield piece

    def grams(self) -> list[Rows]:
        """Those of each order, when all was read; but none that ends with <s>, which is given, never predicted."""
        sections = [np.concatenate(parts) for parts in self._kept]
        if "<s>" in self.words:
            begin = self.words.index("<s>")
            sections[1:] = [rows[rows[:, -1] != begin] for rows in sections[1:]]
        return sections


def _closed(orders: Sequence[Rows], words: int) -> list[Rows]:
    """The n-grams of each order, each once and sorted, with all that they begin and end with. Every word is a 1-gram."""
    longer: Rows = np.empty((0, len(orders) + 1), np.int32)
    tables: list[Rows] = []
    for n in range(len(orders), 0, -1):
        parts = [orders[n - 1], longer[:, :-1], longer[:, 1:]]
        if n == 1:
            parts.append(np.arange(words, dtype=np.int32)[:, None])
        longer = np.unique(np.concatenate(parts), axis=0)
        tables.append(longer)
    return tables[::-1]


def _probabilities(
    rows: Rows, models: Sequence[NGram], shares: Sequence[float], words: Sequence[str]
) -> NDArray[np.float64]:
    """(N,): of the last word of each n-gram after the others."""
    total = np.zeros(len(rows))
    for model, share in zip(models, shares, strict=True):
        known = np.array([word in model for word in words])
        numbers = np.array(model.numbers(words), np.int64)
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            p = np.exp(model.log_p_last(numbers[part]))
            total[start : start + _ROWS] += share * np.where(known[part[:, -1]], p, 0.0)
    if rows.shape[1] == 1:
        total[rows[:, 0] == BEGIN] = 1.0  # as others write it, so that it may be scored as part of a sentence
    return total


def _backoffs(
    contexts: Rows, rows: Rows, p_shorter: NDArray[np.float64], p: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N,) for each context: what its n-grams leave, over what the n-grams without their first word leave."""
    # Both are among the contexts, which are sorted, so that np.unique changes nothing about these.
    _, place = np.unique(np.concatenate((contexts, rows[:, :-1], rows[:, 1:])), axis=0, return_inverse=True)
    before, after = place.reshape(-1)[len(contexts) :].reshape(2, -1)
    left = 1 - np.bincount(before, p, len(contexts))
    left_below = 1 - np.bincount(before, p_shorter[after], len(contexts))
    return np.where(left_below > 1e-9, np.clip(left, 0.0, None) / np.clip(left_below, 1e-9, None), 0.0)
