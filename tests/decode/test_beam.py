"""Beam search against brute force: every alignment enumerated, every text scored, the whole list in order."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from starseq.data.errors import DataError
from starseq.decode.beam import Beam, BeamSearch, LanguageModel, log_likelihoods, search_all
from starseq.decode.lexicon import Lexicon
from starseq.decode.nbest import Hypothesis
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.lm.estimate import estimate
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

UNIGRAMS = {
    "<unk>": (-1.9, 0), "<s>": (0, -0.31), "</s>": (-0.83, 0), "a": (-0.52, -0.22), "b": (-0.71, -0.25),
    "ab": (-1.3, -0.4), "<space>": (-1.05, -0.1),
}  # fmt: skip
BIGRAMS = {("<s>", "a"): -0.21, ("a", "b"): -0.44, ("b", "</s>"): -0.37, ("a", "a"): -0.62, ("ab", "a"): -0.15}
ARPA = "\n".join(
    [
        "",
        "\\data\\",
        f"ngram 1={len(UNIGRAMS)}",
        f"ngram 2={len(BIGRAMS)}",
        "",
        "\\1-grams:",
        *(f"{log10}\t{word}\t{backoff}" for word, (log10, backoff) in UNIGRAMS.items()),
        "",
        "\\2-grams:",
        *(f"{log10}\t{' '.join(words)}" for words, log10 in BIGRAMS.items()),
        "",
        "\\end\\",
        "",
    ]
)


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA)
    return path


def log_lm(words: Sequence[str]) -> float:
    """Back-off by its definition, from the tables above."""
    total, before = 0.0, "<s>"
    for word in (*("<space>" if word == " " else word for word in words), "</s>"):
        known = word if word in UNIGRAMS else "<unk>"
        total += BIGRAMS.get((before, known), UNIGRAMS[before][1] + UNIGRAMS[known][0])
        before = known
    return total * math.log(10)


def by_brute_force(
    log_probs: Tensor,
    tokens: Sequence[str],
    text_of: Callable[[list[str]], str | None],
    merge_repeats: bool,
    best=False,
) -> dict[str, float]:
    """log P(text|x) for every text that some alignment has; `best` takes the best alignment in place of the sum."""
    found = defaultdict(list)
    for path in itertools.product(range(len(tokens)), repeat=len(log_probs)):
        log_p = sum(log_probs[t, token].item() for t, token in enumerate(path))
        if log_p == -math.inf:
            continue
        kept = [
            token for t, token in enumerate(path) if token and not (merge_repeats and t > 0 and path[t - 1] == token)
        ]
        text = text_of([tokens[token] for token in kept])
        if text is not None:
            found[text].append(log_p)
    together = max if best else lambda values: torch.tensor(values, dtype=torch.float64).logsumexp(0).item()
    return {text: together(values) for text, values in found.items()}


def assert_same(
    hyps: list[Hypothesis], am: dict[str, float], lm: Callable[[str], float], length: Callable[[str], int], alpha, beta
) -> None:
    """All texts, in order, with every part of their score. Ties closer than rounding may stand either way."""
    total = {text: am[text] + alpha * lm(text) + beta * length(text) for text in am}
    assert {hyp.text for hyp in hyps} == set(total)
    assert len(hyps) == len(total)
    for hyp in hyps:
        assert hyp.am == pytest.approx(am[hyp.text], abs=2e-5)
        assert hyp.lm == pytest.approx(lm(hyp.text), abs=2e-5)
        assert hyp.length == length(hyp.text)
    ordered = [total[hyp.text] for hyp in hyps]
    assert all(first >= second - 4e-5 for first, second in itertools.pairwise(ordered))


def random_log_probs(T: int, V: int, seed: int, peaked: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (peaked * torch.randn(T, V, generator=generator, dtype=torch.float64)).log_softmax(1)


@pytest.mark.parametrize("merge_repeats", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.7, 0.0), (1.3, 0.9), (0.5, -1.1)])
def test_characters_equal_brute_force(arpa: Path, merge_repeats: bool, alpha: float, beta: float) -> None:
    tokens = ["<blank>", "a", "b", " "]
    tokeniser = Tokeniser(Vocabulary(tokens[1:]), "char")
    for seed in range(4):
        log_probs = random_log_probs(5, 4, seed)
        search = BeamSearch(
            tokeniser, merge_repeats=merge_repeats, lm=arpa, alpha=alpha, beta=beta, beam=Beam.unlimited()
        )
        as_searched = search.at(alpha, beta, replace(Beam.unlimited(), all_alignments=False))
        am = by_brute_force(log_probs, tokens, "".join, merge_repeats)
        assert_same(search(log_probs), am, lambda text: log_lm(list(text)), len, alpha, beta)
        assert_same(as_searched(log_probs), am, lambda text: log_lm(list(text)), len, alpha, beta)


@pytest.mark.parametrize("merge_repeats", [False, True])
def test_words_without_lexicon_equal_brute_force(arpa: Path, merge_repeats: bool) -> None:
    tokens = ["<blank>", "a", "ab", "zebu"]  # the last one is unknown to the model
    tokeniser = Tokeniser(Vocabulary(tokens[1:]), "word")
    log_probs = random_log_probs(5, 4, 7)
    search = BeamSearch(tokeniser, merge_repeats=merge_repeats, lm=arpa, alpha=0.8, beta=0.4, beam=Beam.unlimited())
    assert search.lm is not None
    assert search.lm.unknown == ("zebu",)
    am = by_brute_force(log_probs, tokens, " ".join, merge_repeats)
    assert_same(search(log_probs), am, lambda t: log_lm(t.split()), lambda t: len(t.split()), 0.8, 0.4)


@pytest.mark.parametrize("merge_repeats", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.9, 0.6), (1.7, -0.5)])
def test_lexicon_equals_brute_force(arpa: Path, merge_repeats: bool, alpha: float, beta: float) -> None:
    """Words with doubled letters, words of one letter, a word that begins another; spaces at both ends, and several."""
    tokens = ["<blank>", "a", "b", " "]
    tokeniser = Tokeniser(Vocabulary(tokens[1:]), "char")
    lexicon = Lexicon.of(["a", "b", "ab", "aab", "bb"], tokeniser.vocabulary)

    def words(characters: list[str]) -> str | None:
        found = "".join(characters).split()
        return " ".join(found) if all(word in lexicon.words for word in found) else None

    for seed in range(3):
        log_probs = random_log_probs(6, 4, seed, peaked=1.0)
        search = BeamSearch(
            tokeniser,
            merge_repeats=merge_repeats,
            lm=arpa,
            lexicon=lexicon,
            alpha=alpha,
            beta=beta,
            beam=Beam.unlimited(),
        )
        am = by_brute_force(log_probs, tokens, words, merge_repeats)
        assert len(am) > 40
        assert_same(search(log_probs), am, lambda t: log_lm(t.split()), lambda t: len(t.split()), alpha, beta)


@pytest.mark.parametrize("merge_repeats", [False, True])
def test_the_best_alignment_in_place_of_the_sum(merge_repeats: bool) -> None:
    tokens = ["<blank>", "a", "b"]
    beam = Beam(10**6, 10**6, math.inf, math.inf, 10**6, log_add=False)
    search = BeamSearch(Tokeniser(Vocabulary("ab"), "char"), merge_repeats=merge_repeats, beam=beam)
    log_probs = random_log_probs(6, 3, 1)
    am = by_brute_force(log_probs, tokens, "".join, merge_repeats, best=True)
    assert_same(search(log_probs), am, lambda text: 0.0, len, 0, 0)


@pytest.mark.parametrize("merge_repeats", [False, True])
@pytest.mark.parametrize("lexicon", [False, True])
def test_impossible_tokens_stay_impossible(merge_repeats: bool, lexicon: bool) -> None:
    """-inf anywhere: no text that needs it is found, no NaN spreads to the others."""
    tokens = ["<blank>", "a", "b", " "]
    vocabulary = Vocabulary(tokens[1:])
    words = Lexicon.of(["a", "ab"], vocabulary) if lexicon else None
    log_probs = random_log_probs(5, 4, 3)
    for t, token in ((0, 0), (1, 1), (2, 2), (2, 0), (4, 1), (4, 2), (4, 3)):
        log_probs[t, token] = -math.inf
    search = BeamSearch(
        Tokeniser(vocabulary, "char"), merge_repeats=merge_repeats, lexicon=words, beta=0.5, beam=Beam.unlimited()
    )

    def text_of(characters: list[str]) -> str | None:
        if words is None:
            return "".join(characters)
        found = "".join(characters).split()
        return " ".join(found) if all(word in words.words for word in found) else None

    am = by_brute_force(log_probs, tokens, text_of, merge_repeats)
    length = (lambda text: len(text.split())) if lexicon else len
    assert_same(search(log_probs), am, lambda text: 0.0, length, 0, 0.5)


@pytest.mark.parametrize("merge_repeats", [False, True])
def test_frames_of_nothing_but_blank(arpa: Path, merge_repeats: bool) -> None:
    """They are stepped over; 'a', sure blanks, 'a' is still two of them, and the scores are those of the full search."""
    tokens = ["<blank>", "a", "b"]
    log_probs = random_log_probs(6, 3, 2)
    log_probs[[0, 2, 3]] = torch.tensor([-1e-9, -40.0, -41.0], dtype=torch.float64)
    tokeniser = Tokeniser(Vocabulary("ab"), "char")
    narrow = BeamSearch(tokeniser, merge_repeats=merge_repeats, lm=arpa, alpha=0.5, beta=0.3)
    wide = narrow.at(0.5, 0.3, Beam.unlimited())
    am = by_brute_force(log_probs, tokens, "".join, merge_repeats)
    assert_same(wide(log_probs), am, lambda text: log_lm(list(text)), len, 0.5, 0.3)
    for found, expected in zip(narrow(log_probs), wide(log_probs), strict=False):
        assert found.text == expected.text
        assert found.am == pytest.approx(expected.am, abs=1e-5)


def test_no_frames_are_the_empty_text(arpa: Path) -> None:
    vocabulary = Vocabulary(["a", " "])
    for lexicon in (None, Lexicon.of(["a"], vocabulary)):
        search = BeamSearch(Tokeniser(vocabulary, "char"), merge_repeats=True, lm=arpa, lexicon=lexicon, alpha=1.0)
        (hyp,) = search(torch.zeros(0, 3))
        assert (hyp.text, hyp.tokens, hyp.am, hyp.length) == ("", (), 0.0, 0)
        assert hyp.lm == pytest.approx(log_lm([]), abs=1e-5)


@pytest.mark.parametrize("merge_repeats", [False, True])
def test_a_narrow_beam_reports_whole_scores(arpa: Path, merge_repeats: bool) -> None:
    """What falls out of the beam is missing from the list, not from the scores of what is in it."""
    tokens = ["<blank>", "a", "b", " "]
    log_probs = random_log_probs(6, 4, 11, peaked=0.7)
    tokeniser = Tokeniser(Vocabulary(tokens[1:]), "char")
    search = BeamSearch(tokeniser, merge_repeats=merge_repeats, lm=arpa, alpha=0.4, beta=0.2, beam=Beam(5, 2, 3.0))
    hyps = search(log_probs)
    am = by_brute_force(log_probs, tokens, "".join, merge_repeats)
    assert 1 <= len(hyps) <= 5
    for hyp in hyps:
        assert hyp.am == pytest.approx(am[hyp.text], abs=1e-5)
        assert hyp.lm == pytest.approx(log_lm(list(hyp.text)), abs=1e-5)
    scores = [hyp.score(0.4, 0.2) for hyp in hyps]
    assert scores == sorted(scores, reverse=True)


def test_a_lexicon_search_that_ends_inside_a_word_looks_again() -> None:
    """Beam 1 follows the likely 'b' into 'bab', which has no room to end; a wider beam finds the words that fit."""
    vocabulary = Vocabulary(["a", "b", " "])
    log_probs = torch.tensor([[0.05, 0.1, 0.8, 0.05], [0.5, 0.2, 0.2, 0.1]]).log()
    lexicon = Lexicon.of(["bab", "a"], vocabulary)
    search = BeamSearch(Tokeniser(vocabulary, "char"), merge_repeats=True, lexicon=lexicon, beam=Beam(1, 4))
    assert [hyp.text for hyp in search(log_probs)][:1] == ["a"]


def test_several_spellings_of_a_word_add_up() -> None:
    vocabulary = Vocabulary(["a", "b", " "])
    lexicon = Lexicon(("x",), (((1,), (2,)),))
    search = BeamSearch(Tokeniser(vocabulary, "char"), merge_repeats=True, lexicon=lexicon, beam=Beam.unlimited())
    log_probs = torch.tensor([[0.4, 0.25, 0.15, 0.2]]).log()
    assert {hyp.text: round(math.exp(hyp.am), 5) for hyp in search(log_probs)} == {"": 0.6, "x": 0.4}


def test_texts_are_distinct() -> None:
    """A word and its spelling in letters are one text: the better of the two stays."""
    tokeniser = Tokeniser(Vocabulary(["o", "ox", "##x"]), "word", unknown="letters")
    hyps = BeamSearch(tokeniser, merge_repeats=False, beam=Beam.unlimited())(random_log_probs(2, 4, 0))
    texts = [hyp.text for hyp in hyps]
    assert texts.count("ox") == 1
    assert len(set(texts)) == len(texts)


def test_log_likelihoods_look_only_at_their_columns() -> None:
    log_probs = random_log_probs(4, 6, 5).float()
    spoiled = log_probs.clone()
    spoiled[:, [1, 4]] = math.nan
    labels = [[2, 3], [5], [], [2, 2]]
    for merge_repeats in (False, True):
        expected = by_brute_force(log_probs, [*"_12345"], "".join, merge_repeats)
        found = log_likelihoods(spoiled, labels, merge_repeats).tolist()
        assert found == pytest.approx([expected["".join(map(str, sequence))] for sequence in labels], abs=1e-6)
    assert log_likelihoods(log_probs, [], True).shape == (0,)


def test_processes_give_what_one_gives(arpa: Path) -> None:
    tokeniser = Tokeniser(Vocabulary(["a", "b", " "]), "char")
    search = BeamSearch(tokeniser, merge_repeats=False, lm=arpa, alpha=0.6, beta=0.1)
    emissions = [(f"u{seed}", random_log_probs(4 + seed, 4, seed).float()) for seed in range(7)]
    seen: list[int] = []
    alone = list(search_all(search, emissions))
    together = list(search_all(search, iter(emissions), workers=2, progress=seen.append))
    assert together == alone
    assert [nbest.id for nbest in together] == [f"u{seed}" for seed in range(7)]
    assert seen == list(range(1, 8))
    bad = [*emissions, ("broken", torch.full((3, 4), math.nan))]
    with pytest.raises(DataError, match="'broken': its log-probabilities hold NaN"):
        list(search_all(search, bad, workers=2))


def test_a_search_can_be_sent_to_another_process(arpa: Path) -> None:
    """As spawned workers need it: the file is loaded again over there."""
    vocabulary = Vocabulary(["a", "b", " "])
    for lexicon in (None, Lexicon.of(["a", "ab"], vocabulary)):
        search = BeamSearch(
            Tokeniser(vocabulary, "char"), merge_repeats=True, lm=arpa, lexicon=lexicon, alpha=0.6, beta=0.1
        )
        log_probs = random_log_probs(5, 4, 0)
        assert pickle.loads(pickle.dumps(search))(log_probs) == search(log_probs)


def test_other_weights_share_the_model(arpa: Path) -> None:
    vocabulary = Vocabulary(["a", "b", " "])
    log_probs = random_log_probs(6, 4, 4)
    for lexicon in (None, Lexicon.of(["a", "b", "ab"], vocabulary)):
        settings = {"merge_repeats": False, "lm": arpa, "lexicon": lexicon}
        tokeniser = Tokeniser(vocabulary, "char")
        search = BeamSearch(tokeniser, **settings, alpha=0.1)
        other = search.at(2.0, 1.0)
        assert other.lm is search.lm
        assert other(log_probs) == BeamSearch(tokeniser, **settings, alpha=2.0, beta=1.0)(log_probs)


TOKENISER = Tokeniser(Vocabulary(["a", "b", " "]), "char")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace("ngram 2=5", "ngram 2=6"), "not a language model that can be read"),
        (lambda text: text[: len(text) // 2], "not a language model that can be read"),
        (lambda text: "hello\n", 'first non-empty line was "hello"'),
        (lambda text: "", "not a language model that can be read"),
        (lambda text: "\udc89PNG\n" + text, "not a language model that can be read"),
        (
            lambda text: text.replace("\ta", "\tA").replace("\tb", "\tB").replace(" a", " A").replace(" b", " B")
            .replace("<space>", "<SPACE>"),
            "a language model of another vocabulary: it knows none of the 3 tokens or words",
        ),
    ],
)  # fmt: skip
def test_a_language_model_that_cannot_be_used(arpa: Path, change: Callable[[str], str], sentence: str, capfd) -> None:
    arpa.write_bytes(change(ARPA).encode(errors="surrogateescape"))
    with pytest.raises(DataError) as error:
        BeamSearch(TOKENISER, merge_repeats=True, lm=arpa, alpha=0.5)
    assert sentence in str(error.value)
    assert str(arpa) in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_a_language_model_of_words_is_none_of_characters(tmp_path: Path) -> None:
    """`a` and `I` are words, too."""
    path = tmp_path / "words.arpa"
    estimate([["I", "saw", "a", "dog"], ["a", "dog", "saw", "I"]], path, order=2)
    vocabulary = Vocabulary([" ", "I", *"abcdefghijklmnopqrst"])
    sentence = "of another vocabulary: it knows 2 of the 22 tokens"
    with pytest.raises(DataError, match=sentence + " or words of this search .* and no space"):
        BeamSearch(Tokeniser(vocabulary, "char"), merge_repeats=True, lm=path, alpha=0.5)
    with pytest.raises(DataError, match=sentence + " .* and no space"):
        NGramAutomaton(path, ["<blank>", *list(vocabulary)[1:]])


def test_a_language_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LanguageModel(tmp_path / "none.arpa", ["a"])


def test_other_mistakes_are_sentences(arpa: Path) -> None:
    with pytest.raises(ValueError, match=r"alpha: a weight of 0\.5 needs a language model, and none was given"):
        BeamSearch(TOKENISER, merge_repeats=True, alpha=0.5)
    with pytest.raises(ValueError, match="must be finite"):
        BeamSearch(TOKENISER, merge_repeats=True, beta=math.nan)
    words = Tokeniser(Vocabulary(["a"]), "word")
    with pytest.raises(ValueError, match="the tokens of this model are words"):
        BeamSearch(words, merge_repeats=True, lexicon=Lexicon.of(["a"], TOKENISER.vocabulary))
    search = BeamSearch(TOKENISER, merge_repeats=True)
    with pytest.raises(DataError, match=r"'u': log-probabilities of shape \(2, 3\).*\(T, 4\)"):
        search(torch.zeros(2, 3), "u")
    broken = torch.zeros(5, 4)
    broken[3, 1] = math.nan
    with pytest.raises(DataError, match="'u': its log-probabilities hold NaN or inf, first in frame 3"):
        search(broken, "u")
    for wrong in ({"size": 0}, {"tokens": 0}, {"nbest": 0}, {"threshold": 0.0}, {"token_threshold": math.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Beam(**wrong)


def test_a_frame_without_any_probability_has_no_text() -> None:
    log_probs = torch.zeros(3, 4)
    log_probs[1] = -math.inf
    assert BeamSearch(TOKENISER, merge_repeats=True)(log_probs) == []
    vocabulary = TOKENISER.vocabulary
    assert BeamSearch(TOKENISER, merge_repeats=True, lexicon=Lexicon.of(["a"], vocabulary))(log_probs) == []


def test_lexicon_files(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("ab\n\nba\tb a |\nba b b <space>\n")
    lexicon = Lexicon.read(path, TOKENISER.vocabulary)
    assert lexicon == Lexicon(("ab", "ba"), (((1, 2),), ((2, 1), (2, 2))))
    for text, sentence in {
        "ab\nabc\n": "line 2: the word 'abc' needs the token 'c', which the vocabulary lacks",
        "x <blank>": "needs the token '<blank>'",
        "\n": "no words",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=sentence):
            Lexicon.read(path, TOKENISER.vocabulary)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8 at byte 0"):
        Lexicon.read(path, TOKENISER.vocabulary)
    with pytest.raises(DataError, match="words need a space between them"):
        Lexicon.of(["a"], Vocabulary(["a"]))
