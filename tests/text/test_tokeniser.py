"""Tokenisers: what is encoded decodes, and what the vocabulary lacks goes where the user said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.text.gaps import escape
from starseq.text.normalise import LETTERS, Normaliser
from starseq.text.tokeniser import Encoded, Tokeniser
from starseq.text.vocabulary import Vocabulary, count_labels

CHARACTERS = Tokeniser(Vocabulary("ab *\\#"), "char")


@given(st.text(alphabet="ab *\\#"))
def test_characters_round_trip(text: str) -> None:
    assert CHARACTERS.decode(CHARACTERS.encode(escape(text)).labels) == text


@given(st.lists(st.text(alphabet="ab#*", min_size=1, max_size=5), min_size=1), st.integers(1, 4))
def test_spelled_words_round_trip(words: list[str], size: int) -> None:
    text = escape(" ".join(words))
    vocabulary = Vocabulary.top(count_labels([text], "word"), size, letters=True)
    tokeniser = Tokeniser(vocabulary, "word", unknown="letters")
    encoded = tokeniser.encode(text)
    assert tokeniser.decode(encoded.labels) == " ".join(words)
    assert len(encoded.open) == len(encoded.labels) + 1


def test_an_unknown_word_is_an_error_until_the_user_chooses() -> None:
    with pytest.raises(ValueError, match="word 'quick', number 2 of the text, is not in the vocabulary"):
        Tokeniser(Vocabulary(["the"]), "word").encode("the quick")
    with pytest.raises(ValueError, match="character 'é', number 4 of the text"):
        Tokeniser(Vocabulary("caf"), "char").encode("café")


def test_dropping_opens_the_gap_that_the_word_leaves() -> None:
    tokeniser = Tokeniser(Vocabulary(["the", "fox"]), "word", unknown="drop")
    encoded = tokeniser.encode("the quick brown fox", marked=True)
    assert encoded == Encoded((1, 2), (False, True, False), ("quick", "brown"))
    assert tokeniser.encode("quick", marked=True) == Encoded((), (True,), ("quick",))
    # A gap beside the word stays open, a closed one elsewhere stays closed.
    assert tokeniser.encode("* quick the fox").open == (True, False, False)


def test_spelling_keeps_the_gaps_inside_the_word_closed() -> None:
    tokeniser = Tokeniser(Vocabulary(["the", "o", "##x"]), "word", unknown="letters")
    assert tokeniser.encode("the ox") == Encoded((1, 2, 3), (True, True, False, True), ("ox",))
    with pytest.raises(ValueError, match="character 'z' of the word 'oz' is not in the vocabulary"):
        tokeniser.encode("the oz")


def test_choices_that_do_not_exist() -> None:
    vocabulary = Vocabulary("a")
    with pytest.raises(ValueError, match="spells words, and unit='char' has none"):
        Tokeniser(vocabulary, "char", unknown="letters")
    with pytest.raises(ValueError, match="unit must be 'word' or 'char', not 'syllable'"):
        Tokeniser(vocabulary, "syllable")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown must be"):
        Tokeniser(vocabulary, "char", unknown="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [0, 2, -1])
def test_labels_out_of_range(label: int) -> None:
    with pytest.raises(ValueError, match=f"label {label} is not between 1 and 1"):
        Tokeniser(Vocabulary("a"), "char").decode([label])


def test_normalising_keeps_marks_and_literal_stars() -> None:
    squeezed = Normaliser(case="lower", keep=LETTERS + "*", squeeze=True)
    assert squeezed(r"  THE  *  Fox\* No. 1 ") == r"the * fox\* no"
    assert Normaliser(keep="a")(r"a \* * b") == "a  * "
    assert Normaliser(replace={"x": "*"})("x * y") == r"\* * y"
    assert Normaliser()("  a  b ") == "  a  b "


def test_normalising_comes_before_the_vocabulary() -> None:
    tokeniser = Tokeniser(Vocabulary(["it's"]), "word", normaliser=Normaliser(case="lower", replace={"\u2019": "'"}))
    assert tokeniser.encode("IT\u2019S").labels == (1,)


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    normalise = Normaliser(form="NFC", squeeze=True)
    assert normalise(normalise(text)) == normalise(text)
