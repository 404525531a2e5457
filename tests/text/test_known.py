"""What a person wrote goes out as it came in, whatever the vocabulary, the normaliser and the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from starseq.text.gaps import escape, has_gap, split_gaps
from starseq.text.known import Known, known_text
from starseq.text.normalise import LETTERS, Normaliser
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

# Awkward ones: of several characters each in some case or form, combining, joined, of other scripts, white space of all kinds.
ALPHABET = "abcABé*\\ \t\n\u00a0\u2009.,-'\u2019#<>ßŒœ\ufb01İ\u0131Σ\u03c3ςe\u0301\u0323\u200d\ud55c\u1112\u1161n°½日🦊"
TOGETHER = ["ab", "ss", "**", "* *", "\\*", "\u1112\u1161", "  ", "\u0391\u03a3"]
TEXTS = st.lists(st.sampled_from([*ALPHABET, *TOGETHER]), max_size=12).map("".join) | st.text(max_size=8).filter(
    lambda text: not any("\ud800" <= character <= "\udfff" for character in text)
)
NORMALISERS = st.none() | st.builds(
    Normaliser,
    form=st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"]),
    case=st.sampled_from(["keep", "lower", "upper"]),
    replace=st.dictionaries(
        st.sampled_from(["\u2019", "-", "ss", " ", "a", "ab"]), st.sampled_from(["", "'", " ", "xyz", "*"]), max_size=2
    ),
    keep=st.sampled_from([None, LETTERS, LETTERS + "*", "ab", ""]),
    squeeze=st.booleans(),
)  # fmt: skip


@st.composite
def tokenisers(draw: st.DrawFn) -> Tokeniser:
    normaliser = draw(NORMALISERS)
    if draw(st.booleans()):
        characters = draw(st.sets(st.sampled_from("abcé ß*.,s\u0301\u03c3'"), min_size=1))
        missing: Any = draw(st.sampled_from([None, "word", "char"]))
        return Tokeniser(Vocabulary(sorted(characters)), "char", "drop", normaliser, missing)
    words = draw(st.sets(st.sampled_from(["a", "b", "ab", "abc", "é", "*", "bc", "c", "ss", "a*b"]), min_size=1))
    if draw(st.booleans()):
        return Tokeniser(Vocabulary(sorted(words)), "word", "drop", normaliser)
    letters = [token for letter in draw(st.sets(st.sampled_from("abc*"))) for token in (letter, "##" + letter)]
    return Tokeniser(Vocabulary(dict.fromkeys([*sorted(words), *letters])), "word", "letters", normaliser)


@st.composite
def transcripts(draw: st.DrawFn, known: Known, tokens: int) -> tuple[list[int], list[bool]]:
    """The labels, and anything in the open gaps."""
    transcript: list[int] = []
    flags: list[bool] = []
    for label, is_open in itertools.zip_longest(known.labels, known.open):
        if is_open:
            added = draw(st.lists(st.integers(1, tokens - 1), max_size=3))
            transcript += added
            flags += [False] * len(added)
        if label is not None:
            transcript.append(label)
            flags.append(True)
    return transcript, flags


def items(text: str) -> list[str | None]:
    """Its characters, and None for a mark."""
    first, *others = split_gaps(text)
    return [*first, *(item for segment in others for item in (None, *segment))]


def collapsed(text: Sequence[str | None]) -> list[str | None]:
    """Marks with nothing between them are one gap."""
    return [item for item, before in zip(text, ["", *text], strict=False) if item is not None or before is not None]


def check_kept(text: str, known: Known, fillings: dict[int, list[str | None]], unit: str) -> str:
    """What goes out is what came in, and fillings: taken out again they leave no trace."""
    written = known.write(fillings)
    left, marked = items(written.text), has_gap(text)
    for gap in sorted(fillings, key=lambda gap: -written.positions[gap]):
        at = written.positions[gap]
        filling: list[str | None] = items(known.joined(fillings[gap]))
        if marked and not any(item is not None for item in fillings[gap]):
            filling = [None]  # the mark stays
        assert left[at : at + len(filling)] == filling
        left[at : at + len(filling)] = [None] if marked else []
    if marked or unit == "char":
        assert collapsed(left) == collapsed(items(text))
    else:  # a word has spaces around it
        assert None not in left
        rest = iter(left)
        assert all(character in rest for character in items(text))
        assert [c for c in left if c and not c.isspace()] == [c for c in items(text) if c and not c.isspace()]
    return written.text


@given(st.data(), TEXTS, st.booleans(), tokenisers())
def test_every_character_goes_out(data: st.DataObject, text: str, marked: bool, tokeniser: Tokeniser) -> None:
    known = known_text(tokeniser, text, marked=marked)
    transcript, flags = data.draw(transcripts(known, len(tokeniser.vocabulary)))
    fillings: dict[int, list[str | None]] = {}
    for reading in known.readings(transcript, flags):
        kept = data.draw(st.lists(st.booleans(), min_size=len(reading.units), max_size=len(reading.units)))
        fillings[reading.gap] = [unit.text if keep else None for unit, keep in zip(reading.units, kept, strict=True)]
    check_kept(text, known, fillings, tokeniser.unit)
    assert known.write({}).text == text
    if known.complete:
        assert not fillings


@given(TEXTS, st.booleans(), tokenisers())
@example("Maße", False, Tokeniser(Vocabulary("MASE"), "char", "drop", Normaliser(case="upper")))
@example("a*b*c d", True, Tokeniser(Vocabulary(["d"]), "word", "drop"))
def test_a_model_sees_what_it_was_trained_on(text: str, marked: bool, tokeniser: Tokeniser) -> None:
    """Labels and gaps are those of `encode`; only inside of what one character becomes nothing is missing."""
    known = known_text(tokeniser, text, marked=marked)
    try:
        encoded = tokeniser.encode(text, marked=marked)
    except ValueError:  # a word that cannot be spelled
        assert known.unknown
        return
    assert known.labels == encoded.labels
    if tokeniser.unknown == "drop":
        assert known.unknown == encoded.unknown
    if tokeniser.normaliser is None or has_gap(text) or marked:
        assert known.open == encoded.open
    else:
        assert all(then or not now for now, then in zip(known.open, encoded.open, strict=True))


@given(TEXTS, NORMALISERS)
def test_pieces_are_the_text_and_the_normalised_text(text: str, normaliser: Normaliser | None) -> None:
    assume(normaliser is not None)
    assert normaliser is not None
    pieces = normaliser.pieces(text)
    assert "".join(raw for raw, _ in pieces) == text
    whole = replace(normaliser, squeeze=False)(escape(text))
    assert escape("".join(normal for _, normal in pieces)) == whole
    assert all(raw for raw, _ in pieces)


@pytest.mark.parametrize(
    ("normaliser", "text", "expected"),
    [
        (Normaliser(replace={"ss": "x"}), "assb s", [("a", "a"), ("ss", "x"), ("b", "b"), (" ", " "), ("s", "s")]),
        (Normaliser(replace={"s s": "x"}), "as sb", [("a", "a"), ("s s", "x"), ("b", "b")]),
        (Normaliser(), "a\u1112\u1161b", [("a", "a"), ("\u1112\u1161", "\ud558"), ("b", "b")]),
        (Normaliser(), "e\u0301a", [("e\u0301", "\u00e9"), ("a", "a")]),
        (
            Normaliser(case="lower"),
            "\u0391\u0391\u03a3",
            [("\u0391", "\u03b1"), ("\u0391\u03a3", "\u03b1\u03c2")],
        ),  # a final sigma
    ],
)
def test_pieces_are_as_small_as_can_be(normaliser: Normaliser, text: str, expected: list[tuple[str, str]]) -> None:
    assert normaliser.pieces(text) == expected


LOWER = Normaliser(case="lower", keep=LETTERS, squeeze=True)


def filled(tokeniser: Tokeniser, text: str, *read: str, marked: bool = False) -> str:
    """The text after the model has read these words or characters in the gaps that it has found something in."""
    known = known_text(tokeniser, text, marked=marked)
    transcript, flags, gaps = list[int](), list[bool](), iter(read)
    for label, is_open in itertools.zip_longest(known.labels, known.open):
        for added in next(gaps, "").split("|") if is_open else ():
            transcript += tokeniser.indices(added) if added else []
        flags += [False] * (len(transcript) - len(flags))
        if label is not None:
            transcript.append(label)
            flags.append(True)
    readings = known.readings(transcript, flags)
    fillings: dict[int, list[str | None]] = {
        reading.gap: [None if reading.problem else unit.text for unit in reading.units] for reading in readings
    }
    return check_kept(text, known, fillings, tokeniser.unit)


WORDS = Tokeniser(Vocabulary(["the", "quick", "brown", "fox", "known", "2*3"]), "word", "drop", LOWER)


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("The * Fox", ["quick|brown"], "The quick brown Fox"),
        ("The *  FOX", [""], "The *  FOX"),
        ("Hello, the Fox!", ["", "", "quick"], "Hello, the Fox! quick"),
        ("(The fox)", ["quick", "brown", "fox"], "quick (The brown fox) fox"),
        ("The\tfox", ["", "quick"], "The quick\tfox"),
        ("the qu* fox", ["quick"], "the quick fox"),  # a piece is kept, and what was read agrees with it
        ("The Qu* Fox", ["quick|brown"], "The Quick brown Fox"),
        ("the *own fox", ["quick|brown"], "the quick brown fox"),
        ("the q*k fox", ["quick"], "the quick fox"),
        ("the q*n fox", ["quick|brown"], "the quick brown fox"),
        ("the bro* fox", ["quick"], "the bro* fox"),  # or it is not written
        ("the quic*ck fox", ["quick"], "the quic*ck fox"),
        ("the (*) fox", ["quick"], "the (quick) fox"),
        ("the * zebu fox", ["quick|brown"], "the quick zebu fox"),  # the last is what it makes of the zebu
        ("the zebu * fox", ["quick|brown"], "the zebu brown fox"),
        ("the zebu* fox", ["quick"], "the zebu* fox"),
        ("the zebu fox", ["", "quick"], "the zebu fox"),
        ("the zebu fox", ["", "quick|brown"], "the * zebu fox"),  # on which side of it?
        ("the ** fox", ["quick"], "the quick fox"),
        ("the * * fox", ["quick"], "the quick * fox"),  # order is kept, and the second mark
        ("*", ["quick|fox"], "quick fox"),
        ("", ["quick|fox"], "quick fox"),
        ("the \u2013 fox", ["", "quick"], "the quick \u2013 fox"),
        ("2\\*3 *", ["fox"], "2\\*3 fox"),
    ],
)
def test_words(text: str, read: list[str], expected: str) -> None:
    assert filled(WORDS, text, *read) == expected


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("(Ste *)", ["", "anne"], "(Ste anne)"),
        ("(Ste *)", ["", " "], "(Ste *)"),  # white space is no filling
        ("deMr Raphaël *", ["x", "x"], "deMr Raphaël x"),
        ("Rapha*ël", ["ae"], "Raphaaël"),  # the e is what it makes of the ë
        ("Rapha*ël", ["e"], "Rapha*ël"),
        ("Raphaë*l", ["ea"], "Raphaëal"),
        ("MAsse", ["", "x"], "MxAsse"),
        ("Ma\ufb01e", ["", "x", "y", "z", "a"], "Mxay\ufb01zea"),  # nothing is missing inside of the ligature
        ("a  b", ["x", "y", "z"], "xay  zb"),
        ("  ab. ", ["", "", "c"], "  abc. "),
        ("nº\\* \\\\*", ["", "x"], "nº\\* \\x"),
    ],
)
def test_characters(text: str, read: list[str], expected: str) -> None:
    tokeniser = Tokeniser(
        Vocabulary("abcdefhilmnoprstxyz "), "char", "drop", Normaliser(form="NFKC", case="lower", squeeze=True)
    )
    known = known_text(tokeniser, text)
    assert filled(tokeniser, text, *["|".join(one) for one in read]) == expected
    assert known.write({}).text == text


def test_what_is_spelled() -> None:
    """A continuation is never glued to a word that is known."""
    letters = Vocabulary(["the", "o", "##o", "x", "##x"])
    tokeniser = Tokeniser(letters, "word", "letters")
    known = known_text(tokeniser, "the * ox zebu")
    assert (known.labels, known.unknown, known.count) == ((1, 2, 5), ("zebu",), 3)
    spelled = known.readings([1, 2, 3, 2, 5], [True, False, False, True, True])
    assert [[unit.text for unit in reading.units] for reading in spelled] == [["oo"]]
    assert known.write({1: ["oo"]}).text == "the oo ox zebu"
    (glued,) = known.readings([1, 3, 2, 5], [True, False, True, True])
    assert glued.problem == "it continues a word that is known"


def test_the_blank_is_no_word() -> None:
    assert known_text(Tokeniser(Vocabulary(["a"]), "word"), "a <blank> a").labels == (1, 1)


def test_what_does_not_belong_together() -> None:
    known = known_text(WORDS, "the * fox")
    with pytest.raises(ValueError, match="2 labels are known, and the transcript has 1 of them"):
        known.readings([1], [True])
    with pytest.raises(ValueError, match="gap 0: nothing is missing there"):
        known.write({0: ["quick"]})
