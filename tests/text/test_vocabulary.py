"""The vocabulary: what its file may hold, and which words it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.text.vocabulary import BLANK, SPACE, Coverage, Vocabulary, count_labels

LABELS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=3), unique=True, max_size=8
)


@given(LABELS)
def test_tokens_txt_round_trips(labels: list[str]) -> None:
    vocabulary = Vocabulary(labels)
    assert Vocabulary.from_lines(vocabulary.to_lines()) == vocabulary
    assert [vocabulary.index(token) for token in vocabulary] == list(range(len(labels) + 1))


def test_the_file_is_as_the_design_says(tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_bytes(b"<blank>\na\n<space>\n*\n")
    assert Vocabulary.load(path).tokens == (BLANK, "a", " ", "*")
    path.write_bytes(b"<blank>\r\na\r\n<space>\r\n")
    assert Vocabulary.load(path).tokens == (BLANK, "a", " ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\n", "tokens.txt: line 1 must be <blank>, not 'a'"),
        (b"", "line 1 must be <blank>, not ''"),
        (b"<blank>\na\nb\na\n", "token 'a' occurs twice in the vocabulary, last as number 3"),
        (b"<blank>\na\n\nb\n", "token '', number 2, has no line of its own"),
        (b"<blank>\n\xff\n", "tokens.txt: not UTF-8 at byte 8"),
    ],
)
def test_a_bad_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokens.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Vocabulary.load(path)


@pytest.mark.parametrize("token", ["", "a\nb", SPACE, BLANK])
def test_tokens_that_the_file_cannot_hold(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Vocabulary([token])


def test_top_words_with_ties_in_a_fixed_order() -> None:
    counts = count_labels(["b a c b", "c a d", "*"], "word")
    assert Vocabulary.top(counts, 3).tokens == (BLANK, "a", "b", "c")
    assert Vocabulary.top(counts).tokens == (BLANK, "a", "b", "c", "d")
    assert Vocabulary.top(dict(reversed(counts.items())), 3) == Vocabulary.top(counts, 3)
    with pytest.raises(ValueError, match="at least one label, not 0"):
        Vocabulary.top(counts, 0)


def test_coverage_counts_types_and_running_labels() -> None:
    counts = count_labels(["the fox the dog the"], "word")
    coverage = Coverage.of(Vocabulary.top(counts, 1), counts)
    assert (coverage.types, coverage.types_total, coverage.labels, coverage.labels_total) == (1, 3, 3, 5)
    assert coverage.percent == 60.0
    assert Coverage.of(Vocabulary(["a"]), {}).percent == 100.0


def test_characters_count_spaces_but_no_marks() -> None:
    assert count_labels([r" a*\* "], "char") == {" ": 2, "a": 1, "*": 1}
