"""Interpolated modified Kneser-Ney (Chen and Goodman 1998), on the disk: what KenLM's `lmplz` defines.

For an n-gram h w of order n with adjusted count c (see `counts`), and h' = h without its first word,

    p(w | h) = (c - D_n(c)) / sum_v c(h v) + gamma(h) p(w | h'),    p(w) at order 0 = 1 / (words, with <unk> and without <s>)

with discounts D_n(c) for c = 1, 2 and 3 or more. What pruning takes away goes to gamma, so that all still sums to 1. Every pass
below is over sorted files, in blocks; sums are of integers, so that the model does not depend on where blocks end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starseq.data.errors import DataError
from starseq.data.files import locked, naming
from starseq.data.manifest import Progress
from starseq.lm import kneser_ney_numba as kernels
from starseq.lm.arpa import ArpaWriter, log10_of
from starseq.lm.counts import Numbered, adjust_counts, number
from starseq.lm.kneser_ney_numba import BEGIN, MARK
from starseq.lm.records import Records, Room, Sorter, Table, joined, words_for

__all__ = ["FALLBACK", "Estimate", "discounts", "estimate"]

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the closed form has none, as with `lmplz --discount_fallback`."""

_STEPS = 1000


@dataclass(frozen=True)
class Estimate:
    """What `estimate` made: n-grams per order, their discounts, and the orders whose discounts are `FALLBACK`."""

    sentences: int
    tokens: int
    types: int
    counts: tuple[int, ...]
    discounts: tuple[tuple[float, float, float], ...]
    fallback: tuple[int, ...]


def discounts(of_counts: Sequence[int]) -> tuple[float, float, float] | None:
    """D(1), D(2), D(3+) from how many n-grams have count 0..4; None where there are too few to tell.

    Y = n1 / (n1 + 2 n2), D(c) = c - (c + 1) Y n_{c+1} / n_c, and 0 <= D(c) <= c.

    >>> discounts([0, 100, 30, 12, 8])
    (0.625, 1.25, 1.3333333333333333)
    >>> discounts([0, 5, 1, 0, 0]) is None
    True
    """
    n = [int(count) for count in of_counts]
    if not all(n[1:4]):
        return None
    y = n[1] / (n[1] + 2 * n[2])
    first, second, third = (c - (c + 1) * y * n[c + 1] / n[c] for c in (1, 2, 3))
    return (first, second, third) if 0 <= first <= 1 and 0 <= second <= 2 and 0 <= third <= 3 else None


def estimate(
    sentences: Iterable[Sequence[str]],
    target: str | os.PathLike[str],
    *,
    order: int = 5,
    prune: Sequence[int] = (0,),
    vocabulary: Collection[str] | None = None,
    vocabulary_size: int | None = None,
    memory: int = 4 << 30,
    progress: Progress | None = None,
) -> Estimate:
    """Estimate an n-gram model from sentences (sequences of tokens) and write it to `target`, an ARPA file (.gz: packed).

    `prune[n - 1]` is the largest count of n-grams of order n to leave out; the last value holds for all higher orders too, and
    they must not fall. With `vocabulary`, n-grams with another word are left out; `vocabulary_size` takes the most frequent
    words, ties in the order of their characters. An order without counts of 1, 2 and 3, or whose discounts are out of
    range, has the discounts `FALLBACK`, and the result says so.

    Buffers take `memory` bytes at most, and what does not fit is sorted on the disk, in a hidden folder beside `target` that
    is removed at the end; one that a killed process left is cleared. The bytes of the ARPA file do not depend on `memory`.
    `target` is there when all is done, or not at all.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tiny.arpa"
    >>> estimate([["a", "b"], ["a", "c"], ["a", "b"]], file, order=2).counts
    (6, 5)
    >>> file.read_text().splitlines()[:3]
    ['\\\\data\\\\', 'ngram 1=6', 'ngram 2=5']
    """
    thresholds = _thresholds(prune, order)
    if vocabulary_size is not None and vocabulary_size < 1:
        raise DataError(f"a vocabulary has at least one word; got {vocabulary_size}")
    if memory < 1:
        raise DataError(f"memory is a number of bytes; got {memory}")
    report = progress or (lambda done, total: None)

    def share(start: float, end: float) -> Callable[[float], None]:
        return lambda part: report(int(_STEPS * (start + (end - start) * part)), _STEPS)

    with _room(target, memory) as room:
        text = number(sentences, room)
        allowed = set(vocabulary) if vocabulary is not None else None
        if vocabulary_size is not None:
            allowed = _frequent(text, vocabulary_size, allowed)
        if allowed is not None and allowed.isdisjoint(text.words):
            raise DataError("no word of the text is in the vocabulary")
        counts = adjust_counts(
            text, room, order=order, thresholds=thresholds, allowed=allowed, progress=share(0.0, 0.3)
        )
        closed = [discounts(row) for row in counts.of_counts.tolist()]
        used = tuple(found or FALLBACK for found in closed)
        rows = sum(2 * len(table) + kept for table, kept in zip(counts.tables, counts.kept, strict=True))
        model = _Interpolation(text, room, counts.kept[0], _meter(rows, share(0.3, 1.0)))
        with ArpaWriter(target, text.words, text.bits, counts.kept) as arpa:
            part, _ = model.initial(1, counts.tables[0], used[0])
            for n in range(1, order + 1):
                if n == order:
                    arpa.section(n, model.interpolate(n, part, None))
                else:
                    following, backoffs = model.initial(n + 1, counts.tables[n], used[n])
                    arpa.section(n, model.interpolate(n, part, backoffs))
                    backoffs.remove()
                    part = following
    fallback = tuple(n for n, found in enumerate(closed, start=1) if found is None)
    return Estimate(text.sentences, text.tokens, len(text.words) - 3, counts.kept, used, fallback)


def _thresholds(prune: Sequence[int], order: int) -> list[int]:
    if order < 1:
        raise DataError(f"the order of a model is at least 1; got {order}")
    if not 0 < len(prune) <= order:
        raise DataError(f"prune has a number for each of the orders 1 to {order} or fewer; got {len(prune)} numbers")
    if list(prune) != sorted(prune) or prune[0] < 0:
        raise DataError(f"prune: counts are not negative and do not fall from order to order; got {list(prune)}")
    return [*prune, *[prune[-1]] * (order - len(prune))]


def _meter(total: int, report: Callable[[float], None]) -> Callable[[int], None]:
    """Adds up the rows that it is told of, and reports which share of the total they are."""
    done = 0

    def add(rows: int) -> None:
        nonlocal done
        done += rows
        report(done / total)

    return add


def _frequent(text: Numbered, size: int, among: set[str] | None) -> set[str]:
    frequencies = text.frequencies().tolist()
    ranked = sorted((-count, word) for word, count in list(zip(text.words, frequencies, strict=True))[3:])
    return {word for _, word in ranked[:size] if among is None or word in among}


@contextmanager
def _room(target: str | os.PathLike[str], memory: int) -> Iterator[Room]:
    """A folder of our own beside the target, empty even where a killed process left one."""
    path = Path(os.path.realpath(target))
    folder = path.with_name(f".{path.name[:200]}.runs")
    with locked(target, path.with_name(f".{path.name[:200]}.lock")):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.iterdir():
            stale.unlink()
        try:
            with naming(folder):
                yield Room(folder, memory)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_ONE = np.array([1.0]).view(np.uint64)


class _Interpolation:
    """From adjusted counts to probabilities, order by order."""

    def __init__(self, text: Numbered, room: Room, unigrams: int, meter: Callable[[int], None]) -> None:
        self.bits, self.room, self.meter = text.bits, room, meter
        # As a table of order 0, which has one n-gram, the empty one: <unk> is a word to predict, <s> is not.
        self.lower = Table(room.folder / "probability.0", 1)
        self.lower.append(np.array([[1.0 / (unigrams - 1)]]).view(np.uint64))

    def initial(self, n: int, counts: Table, discount: Sequence[float]) -> tuple[Sorter, Table]:
        """The n-grams of an order that are not pruned, with (c - D(c)) / sum and gamma; and the contexts, with sum and gamma.

        A context is an n-gram of the order below: its gamma is the backoff weight there.
        """
        bits, room = self.bits, self.room
        words, context_bits = words_for(n * bits), (n - 1) * bits
        context_words = words_for(context_bits)
        by_count = np.array([0.0, *discount])

        sorter = Sorter(room, f"context.{n}", bits=n * bits, width=words + 1)
        for block in counts.blocks(room.block):
            kernels.reorder(block, n, bits, False)
            sorter.add(block)
            self.meter(len(block))
        counts.remove()
        ordered = sorter.table()

        contexts = Table(room.folder / f"backoff.{n - 1}", context_words + 2)
        last, sums = np.zeros(context_words, np.uint64), np.zeros(5, np.int64)
        out = np.empty((room.block + 1, context_words + 2), np.uint64)
        nothing: Records = np.empty((0, words + 1), np.uint64)
        for block, is_end in _with_end(ordered.blocks(room.block), nothing):
            size = kernels.sum_contexts(block, context_bits, context_words, by_count, last, sums, out, is_end)
            contexts.append(out[:size])

        result = Sorter(room, f"initial.{n}", bits=n * bits, width=words + 2)
        default = np.zeros(2, np.uint64)
        blocks = ordered.blocks(room.block)
        for block, found in joined(blocks, contexts, bits=context_bits, default=default, rows=room.block):
            self.meter(len(block))
            kernels.reorder(block, n, bits, True)
            result.add(_shares(block, found, by_count, is_unigram=n == 1, begin=BEGIN << (64 - bits)))
        ordered.remove()
        result.close()
        return result, contexts

    def interpolate(
        self, n: int, part: Sorter, backoffs: Table | None
    ) -> Iterator[tuple[Records, NDArray[np.float64], NDArray[np.float64] | None]]:
        """Keys, log10 p and log10 backoff (None at the highest order) of an order's n-grams, block by block."""
        bits, room, words = self.bits, self.room, words_for(n * self.bits)
        result = Table(room.folder / f"probability.{n}", words + 1)
        blocks = joined(part.blocks(), self.lower, bits=(n - 1) * bits, default=_ONE, rows=room.block)

        def probabilities() -> Iterator[Records]:
            for block, lower in blocks:
                share, gamma = block[:, words:].view(np.float64).T
                self.meter(len(block))
                p = share + gamma * lower.view(np.float64)[:, 0]
                yield np.concatenate((block[:, :words], p[:, None].view(np.uint64)), axis=1)

        if backoffs is None:
            for block in probabilities():
                yield block[:, :words], _log10(block[:, words]), None
        else:
            default = np.array([0.0, 1.0]).view(np.uint64)
            weighted = joined(probabilities(), backoffs, bits=n * bits, default=default, rows=room.block)
            for block, found in weighted:
                result.append(block)
                yield block[:, :words], _log10(block[:, words]), _log10(found[:, 1])
        self.lower.remove()
        self.lower = result


def _with_end(blocks: Iterable[Records], nothing: Records) -> Iterator[tuple[Records, bool]]:
    for block in blocks:
        yield block, False
    yield nothing, True


def _shares(block: Records, found: Records, by_count: NDArray[np.float64], *, is_unigram: bool, begin: int) -> Records:
    """(key, count) with (sum, gamma) of its context to (key, (count - D(count)) / sum, gamma); pruned ones go."""
    stays = (block[:, -1] & MARK) == 0
    block, found = block[stays], found[stays].view(np.float64)
    count = block[:, -1].astype(np.int64)
    payload = found.copy()
    payload[:, 0] = (count - by_count[np.minimum(count, 3)]) / found[:, 0]
    if is_unigram:
        # <s> is given, never predicted: probability 1, so that it may be scored as part of a sentence.
        payload[block[:, 0] == begin] = (1.0, 0.0)
    return np.concatenate((block[:, :-1], payload.view(np.uint64)), axis=1)


def _log10(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return log10_of(np.ascontiguousarray(words).view(np.float64))
