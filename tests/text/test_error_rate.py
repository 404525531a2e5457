"""Error counts: against the definition of the edit distance, and against jiwer, count by count."""

from __future__ import annotations

import math
from functools import cache

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.text.error_rate import ErrorCounts, cer, count_errors, edits_of, wer

SHORT = st.text(alphabet="abc ", max_size=12)


def distance_by_definition(a: str, b: str) -> int:
    @cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@given(SHORT, SHORT)
def test_errors_are_the_edit_distance(reference: str, hypothesis: str) -> None:
    counts = count_errors(reference, hypothesis)
    assert counts.errors == distance_by_definition(reference, hypothesis)
    assert counts.reference_length == len(reference)
    assert counts.hits + counts.substitutions + counts.insertions == len(hypothesis)


@given(SHORT, SHORT)
def test_an_alignment_rebuilds_the_hypothesis(reference: str, hypothesis: str) -> None:
    built, i, j = "", 0, 0
    for kind, at_reference, at_hypothesis in edits_of(reference, hypothesis):
        assert (at_reference, at_hypothesis) == (i, j)
        if kind == "hit":
            assert reference[i] == hypothesis[j]
        if kind == "substitute":
            assert reference[i] != hypothesis[j]
        built += hypothesis[j] if kind != "delete" else ""
        i += kind != "insert"
        j += kind != "delete"
    assert (built, i, j) == (hypothesis, len(reference), len(hypothesis))


@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=10), st.text("abc", max_size=10)), min_size=1, max_size=4)
)
def test_all_counts_agree_with_jiwer(pairs: list[tuple[str, str]]) -> None:
    references, hypotheses = map(list, zip(*pairs, strict=True))
    theirs = jiwer.process_characters(references, hypotheses)
    ours = cer(references, hypotheses)
    assert ours == ErrorCounts(theirs.hits, theirs.substitutions, theirs.insertions, theirs.deletions)
    assert ours.percent == pytest.approx(100 * theirs.cer)
    references, hypotheses = [" ".join(text) for text in references], [" ".join(text) for text in hypotheses]
    theirs = jiwer.process_words(references, hypotheses)
    ours = wer(references, hypotheses)
    assert ours == ErrorCounts(theirs.hits, theirs.substitutions, theirs.insertions, theirs.deletions)
    assert ours.percent == pytest.approx(100 * theirs.wer)


def test_rates_are_of_the_corpus_not_means_of_rates() -> None:
    # 1 of 1 and 0 of 9: the mean of rates would be 50.
    assert wer(["a", "b c d e f g h i j"], ["x", "b c d e f g h i j"]).percent == 10.0


def test_empty_references() -> None:
    assert wer([""], [""]) == ErrorCounts()
    assert wer([""], [""]).percent == 0.0
    assert wer([""], ["a b"]) == ErrorCounts(insertions=2)
    assert math.isinf(wer([""], ["a b"]).percent)
    # In a corpus the insertions count against the words that there are.
    assert wer(["", "a b"], ["x", "a b"]).percent == 50.0
    assert wer([], []).percent == 0.0
    assert wer(["a b"], [""]) == ErrorCounts(deletions=2)


def test_spaces_count_in_cer() -> None:
    assert cer([" a  b"], ["a b"]) == ErrorCounts(hits=3, deletions=2)
    assert wer([" a  b"], ["a b"]) == ErrorCounts(hits=2)


def test_as_many_hypotheses_as_references() -> None:
    with pytest.raises(ValueError, match="zip"):
        wer(["a", "b"], ["a"])
