"""Marked gaps: every text round-trips, and backslashes mean something only before a star."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.text.gaps import Partial, escape, has_gap, join_gaps, parse, render, split_gaps, unescape

# Few characters, so that stars, backslashes and spaces meet often.
TEXTS = st.text(alphabet="*\\ ab\n\u2028", max_size=12)
WORDS = st.lists(st.text(alphabet="*\\ab", min_size=1, max_size=4), max_size=6)


@given(TEXTS)
def test_escaped_text_reads_back_without_gaps(literal: str) -> None:
    assert not has_gap(escape(literal))
    assert unescape(escape(literal)) == literal
    assert split_gaps(escape(literal)) == [literal]


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_segments_round_trip(segments: list[str]) -> None:
    text = join_gaps(segments)
    assert split_gaps(text) == segments
    assert has_gap(text) == (len(segments) > 1)


@given(TEXTS, st.data())
def test_characters_and_their_gaps_round_trip(text: str, data: st.DataObject) -> None:
    gaps = tuple(data.draw(st.lists(st.booleans(), min_size=len(text) + 1, max_size=len(text) + 1)))
    written = render(list(text), "char", gaps)
    assert parse(written, "char", marked=True) == Partial(tuple(text), gaps)
    assert parse(render(list(text), "char"), "char").labels == tuple(text)


@given(WORDS, st.data())
def test_words_and_their_gaps_round_trip(words: list[str], data: st.DataObject) -> None:
    gaps = tuple(data.draw(st.lists(st.booleans(), min_size=len(words) + 1, max_size=len(words) + 1)))
    assert parse(render(words, "word", gaps), "word", marked=True) == Partial(tuple(words), gaps)
    assert parse(render(words, "word"), "word").labels == tuple(words)


@given(TEXTS)
def test_parsing_any_text_gives_one_gap_more_than_labels(text: str) -> None:
    for unit in ("word", "char"):
        labels, gaps = parse(text, unit)
        assert len(gaps) == len(labels) + 1


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_lost_words_fit_into_the_gaps_between_words(words: list[str], data: st.DataObject) -> None:
    """Whatever words are lost, their letters and a space fit into the open gaps; those inside of words are closed."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    text = " ".join(word for word, keep in zip(words, kept, strict=True) if keep)
    labels, gaps = parse(text, "char", missing="word")
    assert "".join(labels) == text
    pattern = "".join((".*" if is_open else "") + label for label, is_open in zip((*labels, ""), gaps, strict=True))
    assert re.fullmatch(pattern, " ".join(words))
    assert all(gaps[i] == labels[i - 1].isspace() for i in range(1, len(labels)))


def test_missing_words_leave_marks_and_words_as_labels_alone() -> None:
    assert parse("ab c*", "char", missing="word") == parse("ab c*", "char")
    assert parse("ab c", "char", missing="word", marked=True).open == (False,) * 5
    assert parse("ab c", "word", missing="word") == parse("ab c", "word")
    assert parse("ab", "char", missing="char") == parse("ab", "char")


@pytest.mark.parametrize(("unit", "missing", "message"), [
    ("word", "char", "missing='char' needs unit='char'"), ("char", "line", "missing must be 'word', 'char' or None, not 'line'"),
])  # fmt: skip
def test_what_is_missing_is_not_smaller_than_a_label(unit: str, missing: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse("ab", unit, missing=missing)  # type: ignore[arg-type]


def test_leading_trailing_and_double_spaces_are_labels_in_character_mode() -> None:
    assert parse("  a  b ", "char").labels == (" ", " ", "a", " ", " ", "b", " ")
    assert render(parse("  a  b ", "char").labels, "char") == "  a  b "


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("a*b", ["a", "b"]),
        (r"a\*b", ["a*b"]),
        (r"a\\*b", ["a\\", "b"]),
        (r"a\\\*b", ["a\\*b"]),
        (r"a\b", [r"a\b"]),
        (r"a\\b", [r"a\\b"]),
        ("a**b", ["a", "", "b"]),
        ("*", ["", ""]),
        ("", [""]),
    ],
)
def test_what_a_backslash_means(text: str, segments: list[str]) -> None:
    assert split_gaps(text) == segments


def test_a_text_without_marks_is_open_everywhere_or_complete() -> None:
    assert parse("a b", "word").open == (True, True, True)
    assert parse("a b", "word", marked=True).open == (False, False, False)
    # One mark says that gaps are marked here.
    assert parse("a * b", "word").open == (False, True, False)


@pytest.mark.parametrize(
    ("text", "labels", "gaps"),
    [
        ("the qu* fox", ("the", "fox"), (False, True, False)),
        ("the *ck fox", ("the", "fox"), (False, True, False)),
        ("the q*c* fox", ("the", "fox"), (False, True, False)),
        ("qu*ck", (), (True,)),
        ("a * * b", ("a", "b"), (False, True, False)),
        ("** a **", ("a",), (True, True)),
        (r"2\*3 * x", ("2*3", "x"), (False, True, False)),
    ],
)
def test_words_beside_stars(text: str, labels: tuple[str, ...], gaps: tuple[bool, ...]) -> None:
    assert parse(text, "word") == Partial(labels, gaps)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="2 labels have 3 gaps, not 2"):
        render(["a", "b"], "word", [True, False])
    with pytest.raises(ValueError, match="has a gap"):
        unescape("a * b")
