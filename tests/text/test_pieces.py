"""Pieces of words: what is encoded decodes, gaps never stand inside a word, and what is no model is one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starseq.text.gaps import escape, split_gaps
from starseq.text.known import known_text
from starseq.text.normalise import Normaliser
from starseq.text.pieces import LongestPieces, SentencePieces, Spelled
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

TEXT = [
    "going",
    "gone",
    "doing",
    "done",
    "go",
    "do",
    "undo",
    "undoing",
    "ongoing",
    "agone",
    "naïve",
    "ß#",
    "*a*",
    "\\",
] * 3
PIECES = SentencePieces.trained(TEXT, 34)
VOCABULARY = Vocabulary(PIECES.labels())
BOTH = [Tokeniser(VOCABULARY, "word", unknown="drop", pieces=pieces) for pieces in (PIECES, LongestPieces(VOCABULARY))]
LETTERS = "".join(sorted(set("".join(TEXT))))
words = st.lists(st.text(alphabet=LETTERS, min_size=1, max_size=9), min_size=1, max_size=6)
anything = st.text(
    alphabet=st.sampled_from([*LETTERS, " ", "*", "\\", "z", "▁", "▅", "\u00a0", "\u0301", "\0"]), max_size=30
)


@pytest.mark.parametrize("tokeniser", BOTH)
@given(words)
def test_words_round_trip(tokeniser: Tokeniser, words: list[str]) -> None:
    encoded = tokeniser.encode(escape(" ".join(words)))
    assert not encoded.unknown
    assert tokeniser.decode(encoded.labels) == " ".join(words)


@pytest.mark.parametrize("tokeniser", BOTH)
@given(anything, st.booleans())
def test_gaps_are_before_pieces_that_begin_a_word(tokeniser: Tokeniser, text: str, marked: bool) -> None:
    """For a text with letters that no piece has, with marks, and without any."""
    labels, opens, _ = tokeniser.encode(text, marked=marked)
    assert len(opens) == len(labels) + 1
    for label, is_open in zip(labels, opens, strict=False):
        assert tokeniser.vocabulary[label].startswith("▁") or not is_open
    for label in labels[:1]:
        assert tokeniser.vocabulary[label].startswith("▁")


@pytest.mark.parametrize("tokeniser", BOTH)
@given(anything, st.booleans(), st.data())
def test_what_is_known_is_kept(tokeniser: Tokeniser, text: str, marked: bool, data: st.DataObject) -> None:
    """Whatever a model reads in the gaps, what it writes contains the text around its marks, in order and to the byte."""
    known = known_text(tokeniser, text, marked=marked)
    tokens: list[int] = []
    is_label: list[bool] = []
    for gap, is_open in enumerate(known.open):
        read = data.draw(st.lists(st.integers(1, len(VOCABULARY) - 1), max_size=4)) if is_open else []
        tokens += read
        is_label += [False] * len(read)
        if gap < len(known.labels):
            tokens.append(known.labels[gap])
            is_label.append(True)
    readings = [reading for reading in known.readings(tokens, is_label) if reading.problem is None]
    written = known.write({reading.gap: [unit.text for unit in reading.units] for reading in readings}).text
    rest = "".join(split_gaps(written))
    for segment in split_gaps(text):
        for part in segment.split():  # an unmarked text takes words at its spaces
            assert part in rest
            rest = rest[rest.index(part) + len(part) :]
    if not readings:
        assert written == text or split_gaps(written) == split_gaps(text)


def test_a_gap_takes_whole_words() -> None:
    tokeniser = BOTH[0]
    known = known_text(tokeniser, "do * go")
    added = [*tokeniser.indices("undoing"), *tokeniser.indices("naïve")]
    read = [known.labels[0], *added, known.labels[1]]
    [reading] = known.readings(read, [True, *[False] * len(added), True])
    assert ([unit.text for unit in reading.units], reading.problem) == (["undoing", "naïve"], None)
    inside = tokeniser.indices("going")[1:]
    [reading] = known.readings([known.labels[0], *inside, known.labels[1]], [True, *[False] * len(inside), True])
    assert reading.problem == "it continues a word that is known"


def test_training_is_deterministic_and_the_size_is_kept() -> None:
    again = SentencePieces.trained(list(TEXT), 34)
    assert again == PIECES
    assert len(PIECES.labels()) == 34
    assert pickle.loads(pickle.dumps(PIECES)) == PIECES
    assert 2 <= len(SentencePieces.trained(["a"]).labels()) <= 36


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6).filter(lambda word: word.split() == [word]), min_size=1))
def test_any_text_has_pieces(words: list[str]) -> None:
    """Unicode of all kinds: a word is spelled and read back as it was, or is said to have no pieces."""
    try:
        pieces = SentencePieces.trained(words)
    except ValueError:  # nothing but characters that sentencepiece keeps for itself
        assert all(set(word) & set("▁▅\0") for word in words)
        return
    tokeniser = Tokeniser(Vocabulary(pieces.labels()), "word", unknown="drop", pieces=pieces)
    for word in words:
        encoded = tokeniser.encode(escape(word))
        assert encoded.unknown == (word,) or tokeniser.decode(encoded.labels) == word


def test_what_cannot_be_written_is_named() -> None:
    tokeniser = Tokeniser(VOCABULARY, "word", pieces=PIECES)
    with pytest.raises(
        ValueError, match="word 'zoo', number 2 of the text, cannot be written: character 'z' of the word"
    ):
        tokeniser.encode("go zoo")
    assert BOTH[0].encode("go zoo do", marked=True).open.count(True) == 1
    assert not tokeniser.writes("a▁b")
    with pytest.raises(ValueError, match="pieces: they are of words"):
        Tokeniser(VOCABULARY, "char", pieces=PIECES)


def test_sizes_that_the_text_does_not_support() -> None:
    with pytest.raises(ValueError, match=r"^900 pieces are more than the \d+ that the text supports$"):
        SentencePieces.trained(TEXT, 900)
    with pytest.raises(ValueError, match=r"^3 pieces are fewer than the \d+ that the characters of the text need$"):
        SentencePieces.trained(TEXT, 3)
    with pytest.raises(ValueError, match="no words to learn pieces from"):
        SentencePieces.trained(["▁"])


def test_files_that_are_no_model(tmp_path: Path) -> None:
    file = tmp_path / "x.model"
    with pytest.raises(ValueError, match=r"x\.model: no such file"):
        SentencePieces.load(file)
    for content in (b"", b"no model at all" * 9, PIECES.model[:-3]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.model: "):
            SentencePieces.load(file)
    with file.open("wb") as sparse:
        sparse.truncate((64 << 20) + 1)
    with pytest.raises(ValueError, match=r"x\.model: no model of pieces, for it has more than 64 MB"):
        SentencePieces.load(file)


def test_models_made_elsewhere() -> None:
    """A normaliser of their own, control symbols and bytes do no harm; a model that does not show where words begin is refused."""
    import io

    import sentencepiece

    def made(**options: object) -> bytes:
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(["going gone doing done", "naïve ongoing"] * 20), model_writer=out, num_threads=1,
            minloglevel=2, hard_vocab_limit=False, **options,
        )  # fmt: skip
        return out.getvalue()

    pieces = SentencePieces(made(vocab_size=320, byte_fallback=True, model_type="bpe", user_defined_symbols=["<sep>"]))
    assert not {"<unk>", "<s>", "</s>", "<0x41>"} & set(pieces.labels())
    tokeniser = Tokeniser(Vocabulary(pieces.labels()), "word", unknown="drop", pieces=pieces)
    assert tokeniser.encode("zoo", marked=True).unknown == ("zoo",)
    assert tokeniser.decode(tokeniser.encode("going \uff4f\uff4e").labels) == "going on"  # the model's own normaliser
    known = known_text(tokeniser, "\uff47\uff4fing * on", marked=True)
    assert known.write({}).text == "\uff47\uff4fing * on"
    for options in ({"treat_whitespace_as_suffix": True}, {"add_dummy_prefix": False}):
        with pytest.raises(ValueError, match="do not show where a word begins"):
            SentencePieces(made(vocab_size=30, **options))


def test_text_for_a_language_model_of_pieces() -> None:
    spell = Spelled(case="lower", spell=PIECES)
    assert spell(r"GOING \* zoo * ").split() == [*PIECES("going"), r"▁\*", "zoo", "*"]
    assert Normaliser(case="lower")("GOING") == "going"
