"""Completion: with an unlimited beam it is brute force, in score, order and confidence; whatever the beam, the labels are in it."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.brute_force import letters
from tests.text.test_known import TEXTS, check_kept, tokenisers

from starseq.decode.complete import Completion, complete, complete_together
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.jobs._fill import fill, next_best
from starseq.text.gaps import has_gap, split_gaps
from starseq.text.known import known_text
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

UNLIMITED: dict[str, Any] = {"beam": 10**6, "beam_threshold": math.inf, "tokens_per_frame": 10**6}

ARPA = r"""\data\
ngram 1=5
ngram 2=4
ngram 3=2

\1-grams:
-99 <s> -0.3
-0.6 </s>
-0.7 a -0.2
-0.5 b -0.4
-1.1 <unk> 0

\2-grams:
-0.4 <s> a -0.1
-0.2 a b -0.3
-0.5 b a
-0.8 b </s>

\3-grams:
-0.1 <s> a b
-0.9 a b a

\end\
"""


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> NGramAutomaton:
    path = tmp_path_factory.mktemp("lm") / "tiny.arpa"
    path.write_text(ARPA)
    return NGramAutomaton(path, ["<blank>", "a", "b", "c"])


def collapse(pi: Sequence[int], merge: bool) -> tuple[int, ...]:
    return tuple(token for token in ([token for token, _ in itertools.groupby(pi)] if merge else pi) if token != 0)


def contains(y: Sequence[int], labels: Sequence[int], is_open: Sequence[bool]) -> bool:
    """Whether y matches the regular expression that has .* at the open gaps."""
    stars = [".*" if gap else "" for gap in is_open]
    pattern = "".join(label + star for label, star in zip(["", *letters(labels)], stars, strict=True))
    return re.fullmatch(pattern, letters(y)) is not None


def probabilities(log_probs: torch.Tensor, merge: bool) -> dict[tuple[int, ...], float]:
    """P(y|x) of every y, by enumerating the alignments."""
    terms = defaultdict(list)
    rows = log_probs.double().tolist()
    for pi in itertools.product(range(log_probs.shape[1]), repeat=len(rows)):
        terms[collapse(pi, merge)].append(math.exp(math.fsum(rows[t][v] for t, v in enumerate(pi))))
    return {y: math.fsum(weights) for y, weights in terms.items()}


def arpa_score(y: Sequence[int]) -> float:
    """log P of the tiny model by the definition: the longest n-gram there is, and the backoffs of longer contexts."""
    words = ["<s>", *({1: "a", 2: "b"}.get(token, "<unk>") for token in y), "</s>"]
    log_p, log_b = {}, {}
    for line in ARPA.splitlines():
        parts = line.split()
        if re.match(r"-\d", line):
            gram = [part for part in parts[1:] if not re.match(r"-?\d", part)]
            log_p[tuple(gram)] = float(parts[0])
            log_b[tuple(gram)] = float(parts[-1]) if len(parts) > len(gram) + 1 else 0.0
    total = 0.0
    for i in range(1, len(words)):
        for start in range(max(0, i - 2), i + 1):
            gram = tuple(words[start : i + 1])
            if gram in log_p:
                total += log_p[gram]
                break
            total += log_b.get(gram[:-1], 0.0)
    return total * math.log(10)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], list[bool], bool]:
    V = draw(st.integers(2, 4))
    T = draw(st.integers(0, 5 if V < 4 else 4))
    labels = draw(st.lists(st.integers(1, V - 1), max_size=4))
    is_open = draw(st.lists(st.booleans(), min_size=len(labels) + 1, max_size=len(labels) + 1))
    if draw(st.booleans()):
        is_open = [True] * (len(labels) + 1)
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    logits = draw(st.sampled_from([0.5, 2.0, 6.0])) * torch.randn(T, V, generator=random)
    if T and draw(st.booleans()):
        logits[draw(st.integers(0, T - 1)), draw(st.integers(0, V - 1))] = -math.inf
    return logits.log_softmax(dim=1), labels, is_open, draw(st.booleans())


SURE_END = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.4, 0.6], [0.0, 1.0]]).log()


@settings(max_examples=100)
@given(cases())
@example((SURE_END, [1], [True, False], False))  # the last frame can only be the last label, whatever came before it
def test_unlimited_beam_is_brute_force(case: tuple[torch.Tensor, list[int], list[bool], bool]) -> None:
    """Score, n-best order, and the confidence of what was added."""
    log_probs, labels, is_open, merge = case
    everything = probabilities(log_probs, merge)
    truth = {y: p for y, p in everything.items() if p > 0 and contains(y, labels, is_open)}
    beta = 0.3
    if not truth:
        with pytest.raises(ValueError, match="no completion"):
            complete(log_probs, labels, is_open, merge_repeats=merge, nbest=10**6, beta=beta, **UNLIMITED)
        return
    found = complete(log_probs, labels, is_open, merge_repeats=merge, nbest=10**6, beta=beta, **UNLIMITED)
    assert {one.labels for one in found} == set(truth)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    for one in found:
        assert one.am == pytest.approx(math.log(truth[one.labels]), abs=1e-4)
        assert one.score == pytest.approx(one.am + beta * len(one.labels))
        check_confidence(one, everything, log_probs.shape[1])
        check_places(one, labels, is_open, merge)


def check_confidence(one: Completion, everything: dict[tuple[int, ...], float], V: int) -> None:
    """P(y) against all that has another token, or none, in the place of an added one."""
    y = one.labels
    for j, token in enumerate(one.tokens):
        if token.known:
            assert token.confidence == 1
            continue
        others = [(*y[:j], v, *y[j + 1 :]) for v in range(1, V)] + [(*y[:j], *y[j + 1 :])]
        share = everything[y] / math.fsum(everything.get(other, 0.0) for other in others)
        assert token.confidence == pytest.approx(share, abs=1e-4)


def check_places(one: Completion, labels: list[int], is_open: list[bool], merge: bool) -> None:
    """The known tokens are the labels in places that the gaps allow; frames follow one another."""
    assert [token.token for token in one.tokens if token.known] == labels
    gap, used = 0, set()
    for token in one.tokens:
        if token.known:
            gap += 1
        else:
            used.add(gap)
    assert all(is_open[gap] for gap in used)
    ends = [0, *(token.end for token in one.tokens)]
    assert all(before <= token.start < token.end for before, token in zip(ends, one.tokens, strict=False))
    if not merge:
        assert all(token.end == token.start + 1 for token in one.tokens)


@settings(max_examples=60)
@given(cases(), st.floats(0, 2), st.floats(-1, 1))
def test_language_model_and_length(
    lm: NGramAutomaton, case: tuple[torch.Tensor, list[int], list[bool], bool], alpha: float, beta: float
) -> None:
    log_probs, labels, is_open, merge = case
    if log_probs.shape[1] != 4:
        return
    truth = {
        y: math.log(p) + alpha * arpa_score(y) + beta * len(y)
        for y, p in probabilities(log_probs, merge).items()
        if p > 0 and contains(y, labels, is_open)
    }
    if not truth:
        return
    options = {"merge_repeats": merge, "lm": lm, "alpha": alpha, "beta": beta, **UNLIMITED}
    found = complete(log_probs, labels, is_open, nbest=10**6, **options)
    assert {one.labels for one in found} == set(truth)
    for one in found:
        assert one.lm == pytest.approx(arpa_score(one.labels), abs=1e-5)
        assert one.score == pytest.approx(truth[one.labels], abs=1e-4)
    assert [one.labels for one in found[:3]] == [
        one.labels for one in sorted(found, key=lambda one: -truth[one.labels])[:3]
    ] or found[0].score - found[min(3, len(found) - 1)].score < 1e-3


@settings(max_examples=60)
@given(cases(), st.integers(0, 2**16), st.integers(0, 5), st.booleans(), st.floats(-1, 1))
def test_several_models_are_brute_force_too(
    lm: NGramAutomaton, case: tuple[torch.Tensor, list[int], list[bool], bool], seed: int, T: int, merge: bool, beta: float
) -> None:  # fmt: skip
    """The mean of what they say, of other frames and another collapse as well; one model alone is `complete`."""
    log_probs, labels, is_open, first_merge = case
    other = torch.randn(T, log_probs.shape[1], generator=torch.Generator().manual_seed(seed)).log_softmax(dim=1)
    model = {"lm": lm, "alpha": 0.7} if log_probs.shape[1] == 4 else {}
    options: dict[str, Any] = {"nbest": 10**6, "beta": beta, "normalized": False, **model, **UNLIMITED}
    one, two = probabilities(log_probs, first_merge), probabilities(other, merge)
    truth = {
        y: (math.log(one[y]) + math.log(two[y])) / 2
        for y in one.keys() & two.keys()
        if one[y] > 0 and two[y] > 0 and contains(y, labels, is_open)
    }
    together = [log_probs, other], labels, is_open
    if not truth:
        with pytest.raises(ValueError, match="no completion"):
            complete_together(*together, merge_repeats=[first_merge, merge], **options)
        return
    found = complete_together(*together, merge_repeats=[first_merge, merge], **options)
    assert {one.labels for one in found} == set(truth)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    for each in found:
        assert each.am == pytest.approx(truth[each.labels], abs=1e-4)
        lm_score = 0.7 * arpa_score(each.labels) if model else 0.0
        assert each.score == pytest.approx(each.am + lm_score + beta * len(each.labels), abs=1e-4)
        assert [token.token for token in each.tokens if token.known] == labels
    alone = complete_together([log_probs], labels, is_open, merge_repeats=[first_merge], **options)
    expected = complete(log_probs, labels, is_open, merge_repeats=first_merge, judged=False, **options)
    assert [one.labels for one in alone] == [one.labels for one in expected]
    best = complete_together(*together, merge_repeats=[first_merge, merge], **options | {"nbest": 1})
    assert best == found[:1]


def test_each_of_several_models_searches() -> None:
    """What they agree on is the second of the one, and the best of the other."""
    one = torch.tensor([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8]]).log()
    other = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.1, 0.8]]).log()
    for models in ([one, other], [other, one]):
        (best,) = complete_together(models, merge_repeats=[False, False], beam=1)
        assert best.labels == (2, 2)
        assert best.am == pytest.approx((math.log(0.3 * 0.8) + math.log(0.7 * 0.8)) / 2, abs=1e-6)


def test_whole_numbers_are_weights_too(lm: NGramAutomaton) -> None:
    log_probs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).log_softmax(dim=1)
    one, same = (complete(log_probs, [1, 2], lm=lm, alpha=a, beta=b)[0] for a, b in ((1, 2), (1.0, 2.0)))
    assert one == same


def test_models_of_other_tokens_have_no_opinion_in_common() -> None:
    for frames, merge in (
        ([torch.zeros(2, 3), torch.zeros(2, 4)], [False, False]),
        ([torch.zeros(2, 3)], []),
        ([torch.zeros(())], [False]),
    ):
        with pytest.raises(ValueError, match="which need the same tokens"):
            complete_together(frames, merge_repeats=merge)
    for nbest in (0, -1):
        with pytest.raises(ValueError, match=f"nbest: {nbest} is less than 1"):
            complete_together([torch.zeros(2, 3)], merge_repeats=[False], nbest=nbest)


@settings(max_examples=80)
@given(
    st.integers(0, 2**16), st.integers(3, 40), st.integers(0, 12), st.booleans(), st.integers(1, 8), st.integers(1, 5),
    st.sampled_from([0.0, 2.0, 25.0]), st.floats(0.0, 1.0),
)  # fmt: skip
def test_labels_are_in_it_whatever_the_beam(
    seed: int, T: int, U: int, merge: bool, beam: int, tokens: int, threshold: float, closed: float
) -> None:
    random = torch.Generator().manual_seed(seed)
    V = 12
    labels = torch.randint(1, V, (U,), generator=random).tolist()
    is_open = (torch.rand(U + 1, generator=random) >= closed).tolist()
    logits = 5 * torch.randn(T, V, generator=random)
    if U + sum(a == b for a, b in itertools.pairwise(labels)) * merge > T:
        with pytest.raises(ValueError, match=f"{U} labels need more than {T} frames"):
            complete(logits, labels, is_open, merge_repeats=merge)
        return
    found = complete(
        logits, labels, is_open, merge_repeats=merge, beam=beam, tokens_per_frame=tokens, beam_threshold=threshold,
        nbest=beam, beta=-0.5,
    )  # fmt: skip
    assert found
    for one in found:
        assert contains(one.labels, labels, is_open)
        check_places(one, labels, is_open, merge)
        assert all(0 <= token.confidence <= 1 for token in one.tokens)
    assert len({one.labels for one in found}) == len(found)


def test_a_long_planted_text_is_found_with_a_small_beam() -> None:
    """The look-ahead keeps prefixes that leave room for the labels, though the frames say nothing of some of them."""
    random = torch.Generator().manual_seed(1)
    V, T, U = 30, 300, 70
    places = torch.randperm(T, generator=random)[:U].sort().values
    text = torch.randint(1, V, (U,), generator=random)
    logits = torch.randn(T, V, generator=random)
    logits[:, 0] += 8
    logits[places, 0] -= 6
    logits[places, text] += 8
    wrong = places[::7]
    logits[wrong] = torch.randn(len(wrong), V, generator=random)
    logits[wrong, 0] += 5  # here the frames say blank
    known = torch.zeros(U, dtype=torch.bool)
    known[::7] = True
    known |= torch.rand(U, generator=random) < 0.3
    (best,) = complete(logits, text[known], beam=10, tokens_per_frame=10)
    (thorough,) = complete(logits, text[known], beam=500)
    (planted,) = complete(logits, text, [False] * (U + 1))
    assert best.score >= planted.score
    assert best.labels == thorough.labels
    assert contains(best.labels, text[known].tolist(), [True] * (int(known.sum()) + 1))


def test_confidence_says_how_sure() -> None:
    """One token is 0.7 against 0.3 of another, one is 0.6 against blank: these shares come back."""
    frame = torch.full((5, 4), 1e-6)
    frame[:, 0] = 1
    frame[1] = torch.tensor([1e-6, 0.7, 0.3, 1e-6])
    frame[3] = torch.tensor([0.4, 1e-6, 1e-6, 0.6])
    for merge in (False, True):
        (best,) = complete(frame.log(), merge_repeats=merge)
        assert best.labels == (1, 3)
        assert [token.confidence for token in best.tokens] == pytest.approx([0.7, 0.6], abs=1e-3)
        assert [(token.start, token.end) for token in best.tokens] == [(1, 2), (3, 4)]


def test_closed_gaps_are_honoured() -> None:
    """`the * fox` with "a the fox fox b" in the frames: nothing before "the", nothing after the last "fox"."""
    path = torch.tensor([3, 1, 2, 0, 2, 3])
    logits = torch.zeros(6, 4).scatter(1, path[:, None], 6.0)
    (open_ends,) = complete(logits, [1, 2])
    assert open_ends.labels == (3, 1, 2, 2, 3)
    (closed,) = complete(logits, [1, 2], [False, True, False])
    assert closed.labels[0] == 1
    assert closed.labels[-1] == 2
    (complete_text,) = complete(logits, [1, 2], [False] * 3)
    assert complete_text.labels == (1, 2)


def test_automaton_scores_as_the_definition(lm: NGramAutomaton) -> None:
    for n in range(5):
        for y in itertools.product((1, 2, 3), repeat=n):
            assert lm.score(y) == pytest.approx(arpa_score(y), abs=1e-9)


def test_automaton_agrees_with_kenlm(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("flashlight.lib.text.decoder.kenlm")
    from flashlight.lib.text.dictionary import Dictionary

    from starseq.lm.estimate import estimate

    random = np.random.default_rng(0)
    words = ["a", "b", "c", "d", "<space>"]
    texts = [[words[i] for i in random.integers(0, 5, random.integers(1, 12))] for _ in range(200)]
    path = tmp_path / "letters.arpa.gz"
    estimate(texts, path, order=4)
    ours = NGramAutomaton(path, ["<blank>", "a", "b", "c", "d", " ", "e"])
    dictionary = Dictionary()
    for word in ["<blank>", *words, "e"]:
        dictionary.add_entry(word)
    theirs = kenlm.KenLM(str(path), dictionary)
    for _ in range(50):
        y = random.integers(1, 7, random.integers(0, 10)).tolist()
        state, total = theirs.start(False), 0.0
        for token in y:
            state, log10_p = theirs.score(state, token)
            total += log10_p
        total += theirs.finish(state)[1]
        assert ours.score(y) == pytest.approx(total * math.log(10), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"labels": [1, 2, 3, 1]}, "no completion: 4 labels need more than 3 frames"),
        ({"labels": [1, 1], "merge_repeats": True, "logits": torch.zeros(2, 4)}, "2 labels need more than 2 frames"),
        ({"labels": [4]}, "targets: label 4 at .* is outside 0..3"),
        ({"labels": [0]}, "is the blank"),
        ({"labels": [1], "open": [True]}, "open: 1 labels have 2 gaps, not 1"),
        ({"alpha": 0.5}, "alpha: 0.5 is the weight of a language model, and none was given"),
        ({"beta": math.nan}, "alpha, beta: expected finite numbers"),
        ({"beam": 0}, "beam: 0 is less than 1"),
        ({"nbest": 200}, "nbest: 200 transcripts do not come out of a beam of 100"),
        ({"beam_threshold": -1.0}, "beam_threshold: -1.0"),
        ({"logits": torch.zeros(3)}, r"logits: expected floating point \(T, V\)"),
        ({"logits": torch.zeros(3, 4).index_fill(0, torch.tensor([2]), math.nan)}, "logits: NaN in frame 2"),
        ({"logits": torch.full((2, 3), -math.inf)}, "no completion: every transcript with the 0 labels in it has prob"),
    ],
)
def test_bad_input(arguments: dict[str, Any], sentence: str) -> None:
    logits, labels = arguments.pop("logits", torch.zeros(3, 4)), arguments.pop("labels", [])
    with pytest.raises(ValueError, match=sentence):
        complete(logits, labels, arguments.pop("open", None), **arguments)


def test_bad_language_models(tmp_path: Path, lm: NGramAutomaton) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA)
    with pytest.raises(ValueError, match="of another vocabulary: it knows none of the 2 tokens"):
        NGramAutomaton(path, ["<blank>", "x", "y"])
    with pytest.raises(ValueError, match="the language model knows 4 tokens, the logits have 3"):
        complete(torch.zeros(3, 3), lm=lm, alpha=1.0)
    path.write_text(ARPA[:200])
    with pytest.raises(ValueError, match="cut"):
        NGramAutomaton(path, ["<blank>", "a"])
    path.write_text(ARPA.replace("-0.5 b a", "-0.5 a b"))
    with pytest.raises(ValueError, match="'a b' comes twice"):
        NGramAutomaton(path, ["<blank>", "a"])


def test_no_frames() -> None:
    (nothing,) = complete(torch.zeros(0, 4))
    assert nothing == Completion((), 0.0, 0.0, 0.0)


@given(
    TEXTS,
    st.booleans(),
    tokenisers(),
    st.integers(0, 2**16),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_a_text_is_kept_by_a_model_that_reads_anything(
    text: str, marked: bool, tokeniser: Tokeniser, seed: int, merge: bool, threshold: float, whole: bool
) -> None:
    """Any text, any vocabulary, any normaliser: every character goes out, in order, to the byte outside of gaps."""
    known = known_text(tokeniser, text, marked=marked)
    frames, random = 2 * len(known.labels) + 6, torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(frames, len(tokeniser.vocabulary), generator=random)
    (found,) = complete(logits, known.labels, known.open, merge_repeats=merge, beam=4)
    filled = fill(known, found.tokens, threshold=threshold, whole=whole)
    before, after = split_gaps(text), split_gaps(filled.text)
    if known.complete:
        assert filled.text == (text if text.strip() else text + "*")  # a row without any text is a gap
    elif has_gap(text):
        # Marks with nothing between them are one gap; all other text stands as it is, and marks or fillings between.
        pattern = ".*".join(re.escape(segment) for segment in before)
        assert re.fullmatch(pattern, "*".join(after), re.DOTALL)
        if not filled.added:
            assert filled.text == text
    else:
        rest = iter("".join(after))
        assert all(character in rest for character in before[0])
    if threshold == 1.0 and whole:
        assert all(one["confidence"] == 1.0 for one in filled.added)
    items = {
        reading.gap: [None if reading.problem else unit.text for unit in reading.units]
        for reading in known.readings(found.labels, [token.known for token in found.tokens])
    }
    check_kept(text, known, items, tokeniser.unit)


@settings(max_examples=30)
@given(st.integers(0, 2**16), st.sampled_from(["*", "a*", "*b*", "ab"]), st.booleans())
def test_the_next_best_are_those_of_brute_force(seed: int, text: str, merge: bool) -> None:
    """By their share of P(y|x) among what was found and them, in order."""
    log_probs = (3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))).log_softmax(1)
    tokeniser = Tokeniser(Vocabulary("abc"), "char")
    known = known_text(tokeniser, text)
    (found,) = complete(log_probs, known.labels, known.open, merge_repeats=merge, keep_beam=True, **UNLIMITED)
    everything = probabilities(log_probs, merge)
    assert set(found.beam) == {y for y in everything if contains(y, known.labels, known.open)}
    others = next_best(known, found, log_probs, merge_repeats=merge)
    assert set(others) <= {gap for gap, is_open in enumerate(known.open) if is_open}
    if text in ("*", "a*"):
        start = len(known.labels)
        rest = [y for y in found.beam if y != found.labels and y[:start] == known.labels and len(y) > start]
        best = sorted(rest, key=lambda y: -everything[y])[:3]
        whole = everything[found.labels] + math.fsum(everything[y] for y in best)
        expected = [("".join("?abc"[token] for token in y[start:]), everything[y] / whole) for y in best]
        guesses = [(one["text"], one["confidence"]) for one in others[start]]
        shown = [(filling, share) for filling, share in expected if share >= 5e-5]
        assert [filling for filling, _ in guesses] == [filling for filling, _ in shown]
        assert [share for _, share in guesses] == pytest.approx([share for _, share in shown], abs=1e-3)


def test_without_a_beam_there_is_nothing_next() -> None:
    known = known_text(Tokeniser(Vocabulary("ab"), "char"), "a*")
    log_probs = torch.zeros(3, 3).log_softmax(1)
    (found,) = complete(log_probs, known.labels, known.open)
    assert found.beam == ()
    assert next_best(known, found, log_probs, merge_repeats=False) == {}
