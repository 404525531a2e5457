"""Word and character error rates: counts of an exact alignment, summed over a corpus."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Edit", "ErrorCounts", "cer", "count_errors", "edits_of", "wer"]


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
    def missed(self) -> float:
        """The percentage of the reference that was not read, or as something else: what is read besides may be right, where the
        reference is not complete.

        >>> wer(["the fox"], ["the quick brown fox"]).missed, wer(["the fox"], ["a fox"]).missed
        (0.0, 50.0)
        """
        return 100 * (1 - self.hits / self.reference_length) if self.reference_length else 0.0

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
    """The counts of one alignment (see `edits_of`).

    >>> count_errors("kitten", "sitting")
    ErrorCounts(hits=4, substitutions=2, insertions=1, deletions=0)
    """
    kinds = [kind for kind, _, _ in _edits(reference, hypothesis)]
    substitutions, insertions, deletions = map(kinds.count, ("replace", "insert", "delete"))
    return ErrorCounts(len(reference) - substitutions - deletions, substitutions, insertions, deletions)


class Edit(NamedTuple):
    """One step of an alignment. The positions are where it stands; an insertion uses up no reference label, a deletion
    no hypothesis label."""

    kind: Literal["hit", "substitute", "insert", "delete"]
    reference: int
    hypothesis: int


def edits_of(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[Edit]:
    """An alignment with the fewest errors (each costs 1), from the first label to the last: rapidfuzz's, so that counts are those
    of jiwer where several alignments are best.

    >>> [edit.kind for edit in edits_of(["a", "b", "c"], ["a", "c"])]
    ['hit', 'delete', 'hit']
    """
    edits, i, j = list[Edit](), 0, 0
    for kind, at, other in _edits(reference, hypothesis):
        while i < at or j < other:  # what lies between two edits is equal
            edits.append(Edit("hit", i, j))
            i, j = i + 1, j + 1
        edits.append(Edit(_KINDS[kind], i, j))
        i, j = i + (kind != "insert"), j + (kind != "delete")
    return edits + [Edit("hit", i + k, j + k) for k in range(len(reference) - i)]


_KINDS: dict[str, Literal["substitute", "insert", "delete"]] = {
    "replace": "substitute", "insert": "insert", "delete": "delete",
}  # fmt: skip


def _edits(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[tuple[str, int, int]]:
    """The errors of an alignment: kind, and where it stands in the reference and the hypothesis."""
    from rapidfuzz.distance import Levenshtein

    numbers: dict[Hashable, int] = {}  # rapidfuzz compares hashes
    one, other = ([numbers.setdefault(label, len(numbers)) for label in labels] for labels in (reference, hypothesis))
    return [(edit.tag, edit.src_pos, edit.dest_pos) for edit in Levenshtein.editops(one, other)]
