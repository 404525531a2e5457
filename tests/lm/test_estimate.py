import importlib.util
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from starseq.data.errors import DataError
from starseq.data.files import locked
from starseq.lm import counts, records
from starseq.lm.estimate import estimate
from starseq.lm.ngram import NGram

_SPEC = importlib.util.spec_from_file_location("kneser_ney", Path(__file__).with_name("kneser_ney.py"))
kneser_ney = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(kneser_ney)

GUTENBERG = Path(__file__).parents[3] / "shared/data/lm-gutenberg-en/text.txt.xz"


def read(path):
    """{n-gram: (log10 p, log10 backoff)}, read with nothing but split."""
    grams, order = {}, None
    header = {}
    for line in path.read_text().splitlines():
        if line.startswith("ngram "):
            n, count = line[6:].split("=")
            header[int(n)] = int(count)
        elif line.endswith("-grams:"):
            order = int(line[1 : -len("-grams:")])
        elif line and not line.startswith("\\"):
            p, words, *backoff = line.split("\t")
            grams[tuple(words.split(" "))] = (float(p), float(backoff[0]) if backoff else None)
    assert header == {n: sum(len(gram) == n for gram in grams) for n in header}
    assert all(len(gram) <= order for gram in grams)
    return grams


def assert_same(ours, truth):
    assert ours.keys() == truth.keys()
    for gram, (p, backoff) in truth.items():
        assert ours[gram][0] == pytest.approx(p, abs=2e-7), gram
        assert (ours[gram][1] is None) == (backoff is None), gram
        if backoff is not None:
            assert ours[gram][1] == pytest.approx(backoff, abs=2e-7), gram


def corpus(seed=0, sentences=300, words=30):
    """Zipfian words with some memory, so that all counts of counts are there."""
    draw = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(words)]
    weights = [1 / (i + 1) for i in range(words)]
    text = []
    for _ in range(sentences):
        line = draw.choices(vocabulary, weights, k=draw.randint(0, 8))
        text.append(draw.choice(text) if text and draw.random() < 0.15 else line)
    return text


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=6), min_size=1, max_size=12).filter(any),
    st.integers(1, 4),
    st.lists(st.integers(0, 2), min_size=1, max_size=4).map(sorted),
    st.none() | st.sets(st.sampled_from("abcd"), min_size=1),
)
@example([[], ["a"], ["b"], ["b"], ["b", "a"]], 3, [0], None)  # a discount of 0, so a backoff of 0
@settings(max_examples=60)
def test_every_value_is_that_of_the_formulas(tmp_path_factory, sentences, order, prune, allowed):
    seen = {word for sentence in sentences for word in sentence}
    if allowed is not None and not allowed & seen:
        allowed = None
    file = tmp_path_factory.mktemp("lm") / "lm.arpa"
    thresholds = (prune + [prune[-1]] * order)[:order]
    estimate(sentences, file, order=order, prune=thresholds, vocabulary=allowed, memory=2000)
    assert_same(read(file), kneser_ney.logs(kneser_ney.model(sentences, order, thresholds, allowed)))


@pytest.mark.parametrize(("order", "prune"), [(1, [0]), (2, [0]), (3, [0, 0, 1]), (5, [0]), (5, [0, 1, 1, 2])])
def test_discounts_from_counts_of_counts(tmp_path, order, prune):
    sentences = corpus(sentences=300 if order < 5 else 120)
    result = estimate(sentences, tmp_path / "lm.arpa", order=order, prune=prune)
    if order > 2:
        assert len(result.fallback) < order  # otherwise the closed form is not tested
    thresholds = prune + [prune[-1]] * (order - len(prune))
    assert_same(read(tmp_path / "lm.arpa"), kneser_ney.logs(kneser_ney.model(sentences, order, thresholds)))


def test_most_frequent_words_alone(tmp_path):
    sentences = corpus()
    estimate(sentences, tmp_path / "lm.arpa", order=3, vocabulary_size=5)
    frequent = sorted(
        Counter(word for sentence in sentences for word in sentence).items(), key=lambda item: (-item[1], item[0])
    )[:5]
    truth = kneser_ney.model(sentences, 3, allowed={word for word, _ in frequent})
    assert_same(read(tmp_path / "lm.arpa"), kneser_ney.logs(truth))


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_spilling_changes_no_byte(tmp_path, monkeypatch, name):
    sentences = corpus(sentences=2000, words=200)
    runs = []
    spill = records.Sorter._spill
    monkeypatch.setattr(records.Sorter, "_spill", lambda self: (runs.append(self.name), spill(self)))
    estimate(sentences, tmp_path / name, order=5, prune=(0, 0, 1))
    whole, in_one = (tmp_path / name).read_bytes(), len(runs)
    estimate(sentences, tmp_path / name, order=5, prune=(0, 0, 1), memory=20_000)
    assert (tmp_path / name).read_bytes() == whole
    assert in_one < 20 < len(runs)  # it did spill
    assert [file.name for file in tmp_path.iterdir()] == [name]  # and swept up


def test_keys_of_several_words(tmp_path):
    """Twelve bits a word at order 12: keys of three uint64, with words across their bounds."""
    sentences = [[f"w{i}" for i in range(3000)], *([f"w{i * j % 3000}" for j in range(20)] for i in range(40))]
    estimate(sentences, tmp_path / "lm.arpa", order=12, memory=100_000)
    truth = kneser_ney.model(sentences[1:3], 12)
    estimate(sentences[1:3], tmp_path / "two.arpa", order=12)
    assert_same(read(tmp_path / "two.arpa"), kneser_ney.logs(truth))
    grams = read(tmp_path / "lm.arpa")
    assert tuple(f"w{i}" for i in range(100, 112)) in grams
    assert all(gram[1:] in grams and gram[:-1] in grams for gram in grams if len(gram) > 1)


@pytest.mark.parametrize("prune", [(0,), (0, 1), (1, 1, 2)])
@pytest.mark.parametrize("size", [None, 7])
def test_probabilities_sum_to_one(tmp_path, prune, size):
    sentences = corpus(3)
    estimate(sentences, tmp_path / "lm.arpa", order=4, prune=prune, vocabulary_size=size)
    model = NGram.load(tmp_path / "lm.arpa")
    draw = random.Random(0)
    words = [word for word in model.words if word != "<s>"]
    for _ in range(50):
        state = model.begin
        for _ in range(draw.randint(0, 5)):
            state = model.step(state, draw.choice(words))[1]
        total = sum(2.718281828459045 ** model.step(state, word)[0] for word in words)
        assert total == pytest.approx(1.0, abs=1e-5)


def test_numbers_come_in_the_order_of_the_text(tmp_path):
    text = counts.number([["b", "a"], [], ["b"]], records.Room(tmp_path, 1000))
    assert text.words == ("<unk>", "<s>", "</s>", "b", "a")
    assert [block.tolist() for block in text.blocks(100)] == [[3, 4, 2, 2, 3, 2]]
    assert (text.tokens, text.sentences, text.frequencies().tolist()) == (3, 3, [0, 0, 3, 2, 1])


@pytest.mark.parametrize(
    ("sentences", "settings", "reason"),
    [
        ([], {}, "the text is empty"),
        ([[], []], {}, "the text is empty"),
        ([["a"]], {"order": 0}, "at least 1; got 0"),
        ([["a"]], {"prune": (1, 0)}, "do not fall"),
        ([["a"]], {"order": 2, "prune": (0, 0, 0)}, "got 3 numbers"),
        ([["a"]], {"vocabulary_size": 0}, "at least one word"),
        ([["a"]], {"vocabulary": ["b"]}, "no word of the text is in the vocabulary"),
        ([["a"], ["b", "<s>"]], {}, "sentence 2: <unk>, <s> and </s>"),
        ([["a\tb"]], {}, "cannot stand in an ARPA file"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, sentences, settings, reason):
    with pytest.raises(DataError, match=reason):
        estimate(sentences, tmp_path / "lm.arpa", **settings)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_cleared(tmp_path):
    stale = tmp_path / ".lm.arpa.runs"
    stale.mkdir()
    (stale / "adjusted.1").write_bytes(b"x" * 99)
    estimate(corpus(), tmp_path / "lm.arpa", order=2)
    whole = (tmp_path / "lm.arpa").read_bytes()
    estimate(corpus(), tmp_path / "other.arpa", order=2)
    assert (tmp_path / "other.arpa").read_bytes() == whole
    assert not stale.exists()


def test_two_processes_do_not_write_one_model(tmp_path):
    busy = pytest.raises(DataError, match=r"lm\.arpa: another process is writing it")
    with locked("x", tmp_path / ".lm.arpa.lock"), busy:
        estimate([["a"]], tmp_path / "lm.arpa")


def test_a_failure_in_the_text_keeps_the_old_model(tmp_path):
    (tmp_path / "lm.arpa").write_text("old")

    def broken():
        yield ["a"]
        raise DataError("the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        estimate(broken(), tmp_path / "lm.arpa", order=2)
    assert (tmp_path / "lm.arpa").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_progress_rises_to_its_end(tmp_path):
    seen = []
    estimate(
        corpus(), tmp_path / "lm.arpa", order=3, memory=20_000, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)


@pytest.mark.slow
@pytest.mark.skipif(not GUTENBERG.is_file(), reason="shared/data/lm-gutenberg-en is not here")
def test_eight_million_words_bounded_or_not(tmp_path):
    from starseq.lm.text import read_texts

    def run(name, memory):
        return estimate(map(str.split, read_texts([GUTENBERG])), tmp_path / name, order=5, memory=memory)

    result = run("whole.arpa", 4 << 30)
    assert result.counts == (82_724, 1_636_070, 4_605_327, 6_452_985, 6_844_157)  # lmplz: the same
    run("bounded.arpa", 64 << 20)
    with open(tmp_path / "whole.arpa", "rb") as a, open(tmp_path / "bounded.arpa", "rb") as b:
        while block := a.read(1 << 24):
            assert block == b.read(1 << 24)
        assert not b.read(1)
