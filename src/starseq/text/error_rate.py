"""Word and character error rates: counts of an exact alignment, summed over a corpus."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Edit", "ErrorCounts", "align", "cer", "count_errors", "wer"]


@dataclass(frozen=True)
class ErrorCounts:
    """What an alignment of hypotheses with references counts. Counts add up, so corpus-level rates are sums first.

    >>> total = wer(["the quick fox"], ["the fox fox"]) + wer([""], ["oh"])
    >>> total
    ErrorCounts(hits=2, substitutions=1, insertions=1, deletions=0)
    >>> round(total.percent, 1)
    66.7
    """

    hits: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
        )

    @property
    def errors(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def reference_length(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def percent(self) -> float:
        """100 * errors / reference length. With no reference at all: 0 for no errors, otherwise infinity.

        >>> wer([""], [""]).percent, wer([""], ["oh"]).percent
        (0.0, inf)
        """
        if not self.reference_length:
            return math.inf if self.errors else 0.0
        return 100 * self.errors / self.reference_length


def wer(references: Iterable[str], hypotheses: Iterable[str]) -> ErrorCounts:
    """Word errors over a corpus of literal texts; words are what white space separates.

    >>> wer(["the quick brown fox"], ["the brown fox jumps"]).percent
    50.0
    """
    pairs = zip(references, hypotheses, strict=True)
    return sum((count_errors(ref.split(), hyp.split()) for ref, hyp in pairs), start=ErrorCounts())


def cer(references: Iterable[str], hypotheses: Iterable[str]) -> ErrorCounts:
    """Character errors over a corpus of literal texts. Every space counts, at the ends too.

    >>> cer(["a  b"], ["a b"])
    ErrorCounts(hits=3, substitutions=0, insertions=0, deletions=1)
    """
    pairs = zip(references, hypotheses, strict=True)
    return sum((count_errors(ref, hyp) for ref, hyp in pairs), start=ErrorCounts())


def count_errors(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> ErrorCounts:
    """The counts of one alignment (see `align`).

    >>> count_errors("kitten", "sitting")
    ErrorCounts(hits=4, substitutions=2, insertions=1, deletions=0)
    """
    kinds = [edit.kind for edit in align(reference, hypothesis)]
    return ErrorCounts(kinds.count("hit"), kinds.count("substitute"), kinds.count("insert"), kinds.count("delete"))


class Edit(NamedTuple):
    """One step of an alignment. The positions are where it stands; an insertion uses up no reference label, a deletion
    no hypothesis label."""

    kind: Literal["hit", "substitute", "insert", "delete"]
    reference: int
    hypothesis: int


def align(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[Edit]:
    """An alignment with the fewest errors (each costs 1), from the first label to the last.

    D(i, j), the distance of the first i reference labels from the first j hypothesis labels, is
    min(D(i-1, j) + 1, D(i, j-1) + 1, D(i-1, j-1) + [labels differ]). Where several alignments are best, the choice
    is that of jiwer, so that all four counts are the same. Needs 4 bytes for each pair of labels after the common ends.

    >>> [edit.kind for edit in align(["a", "b", "c"], ["a", "c"])]
    ['hit', 'delete', 'hit']
    """
    shorter = min(len(reference), len(hypothesis))
    start = 0
    while start < shorter and reference[start] == hypothesis[start]:
        start += 1
    end = 0
    while end < shorter - start and reference[-1 - end] == hypothesis[-1 - end]:
        end += 1
    n, m = len(reference) - start - end, len(hypothesis) - start - end
    numbers: dict[Hashable, int] = {}
    ref, hyp = (
        np.array([numbers.setdefault(label, len(numbers)) for label in labels[start : start + count]], dtype=np.int64)
        for labels, count in ((reference, n), (hypothesis, m))
    )
    distance = _distances(ref, hyp)

    # Backwards from the end. Not read off the minimum, but by differences in the order in which jiwer's rapidfuzz asks.
    edits = [Edit("hit", start + n + k, start + m + k) for k in reversed(range(end))]
    i, j = n, m
    while i or j:
        if i and (j == 0 or distance[i, j] == distance[i - 1, j] + 1):
            i -= 1
            edits.append(Edit("delete", start + i, start + j))
        elif i == 0 or (j > 1 and distance[i, j - 1] == distance[i - 1, j - 1] - 1):
            j -= 1
            edits.append(Edit("insert", start + i, start + j))
        else:
            i, j = i - 1, j - 1
            edits.append(Edit("hit" if ref[i] == hyp[j] else "substitute", start + i, start + j))
    edits += [Edit("hit", k, k) for k in reversed(range(start))]
    return edits[::-1]


def _distances(ref: NDArray[np.int64], hyp: NDArray[np.int64]) -> NDArray[np.int32]:
    """D(i, j) for all i, j: (n + 1, m + 1)."""
    columns = np.arange(len(hyp) + 1, dtype=np.int32)
    distance = np.empty((len(ref) + 1, len(hyp) + 1), dtype=np.int32)
    distance[0] = columns
    for i, label in enumerate(ref):
        row = distance[i] + 1
        np.minimum(row[1:], distance[i, :-1] + (hyp != label), out=row[1:])
        # Insertions run along the row: D(i, j) = min over k <= j of row(k) + (j - k).
        distance[i + 1] = np.minimum.accumulate(row - columns) + columns
    return distance
