import itertools
import math
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lm.test_ngram import text

from starseq.data.errors import DataError
from starseq.lm.estimate import estimate
from starseq.lm.mix import best_weights, mix
from starseq.lm.ngram import NGram


def p_of(model, context, word):
    """By steps, as a search would ask; 0 for a word that the model does not know."""
    if word not in model:
        return 0.0
    state = tuple(model.numbers(context))[-max(1, model.order - 1) :]
    if state and model.order > 1:
        return math.exp(model.step(state, word)[0])
    # After nothing: `step` always has a word before, so this is what the file says.
    return 10 ** float(model.unigrams_by_hand[word])


def load(file):
    """A model, with its unigrams as they stand in the file."""
    model = NGram.load(file)
    section = file.read_text().split("\\1-grams:\n")[1].split("\n\n")[0]
    model.unigrams_by_hand = {line.split("\t")[1]: line.split("\t")[0] for line in section.splitlines()}
    return model


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Of different orders and words, one of them pruned."""
    folder = tmp_path_factory.mktemp("lm")
    files = [folder / f"{name}.arpa" for name in "abc"]
    estimate(text(0, 200, words=12), files[0], order=4, prune=(0, 0, 1))
    estimate(text(1, 60, words=20), files[1], order=3)
    estimate([["w1", "x", "x"], ["y"], []], files[2], order=2)
    return files


@pytest.mark.parametrize("weights", [(0.2, 0.5, 0.3), (1, 0, 0), (0, 0, 1)])
def test_every_ngram_has_the_weighted_mean_and_everything_sums_to_one(sources, tmp_path, weights):
    found = mix(sources, tmp_path / "mix.arpa", weights=weights)
    models, mixed = [load(file) for file in sources], load(tmp_path / "mix.arpa")
    assert mixed.order == 4
    assert found.counts[0] == len(mixed) == found.words + 3
    predicted = [word for word in mixed.words if word != "<s>"]
    lines = (tmp_path / "mix.arpa").read_text().split("\n")
    contexts = {()}
    for line in lines:
        parts = line.split("\t")
        if len(parts) < 2 or parts[1] == "<s>":
            continue
        *context, word = parts[1].split(" ")
        contexts.add(tuple(context))
        mean = sum(share * p_of(model, context, word) for share, model in zip(weights, models, strict=True))
        assert 10 ** float(parts[0]) == pytest.approx(mean, rel=2e-5, abs=1e-12), line
    assert len(contexts) > 100
    for context in [*contexts, ("w3", "w19"), ("y", "y"), ("<s>", "w1", "w2", "w1")]:
        assert sum(p_of(mixed, context, word) for word in predicted) == pytest.approx(1, abs=2e-4), context


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_two_models_make_one(tmp_path_factory, data):
    folder, sentences = (
        tmp_path_factory.mktemp("lm"),
        st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1),
    )
    for name in ("one", "two"):
        drawn = data.draw(sentences.filter(any))
        estimate(drawn, folder / f"{name}.arpa", order=data.draw(st.integers(2, 4)))
    weight = data.draw(st.floats(0.01, 0.99))
    mix([folder / "one.arpa", folder / "two.arpa"], folder / "mix.arpa", weights=(weight, 1 - weight))
    mixed = load(folder / "mix.arpa")
    words = [word for word in mixed.words if word != "<s>"]
    for context in itertools.product([w for w in mixed.words if w != "</s>"], repeat=2):
        assert sum(p_of(mixed, context, word) for word in words) == pytest.approx(1, abs=1e-3)


def test_kenlm_reads_it(sources, tmp_path):
    kenlm = pytest.importorskip("flashlight.lib.text.decoder.kenlm")
    from flashlight.lib.text.dictionary import Dictionary

    mix(sources, tmp_path / "mix.arpa", weights=(1, 1, 1))
    held_out = text(2, 50, words=20)
    names = sorted({word for sentence in held_out for word in sentence})
    peer = kenlm.KenLM(str(tmp_path / "mix.arpa"), Dictionary(names))
    for sentence, log_probs in zip(held_out, NGram.load(tmp_path / "mix.arpa").log_probs(held_out), strict=True):
        state, theirs = peer.start(False), []
        for word in sentence:
            state, score = peer.score(state, names.index(word))
            theirs.append(score)
        np.testing.assert_allclose(log_probs[:-1] / math.log(10), theirs, atol=1e-4)


def test_a_text_finds_the_weights_that_make_it_likeliest(sources, tmp_path):
    models, held_out = [NGram.load(file) for file in sources[:2]], text(1, 300, words=20)
    found = best_weights(models, held_out)
    p = np.stack([np.exp(np.concatenate(model.log_probs(held_out))) for model in models])
    p[0, [word not in models[0] for sentence in held_out for word in (*sentence, "</s>")]] = 0

    def likelihood(first):
        return np.log(first * p[0] + (1 - first) * p[1]).mean()

    assert sum(found) == pytest.approx(1)
    assert likelihood(found[0]) >= max(likelihood(first) for first in np.linspace(0.001, 0.999, 500)) - 1e-9
    assert found[1] > 0.5  # a text like the one that this model is of
    assert mix(sources[:2], tmp_path / "mix.arpa", sentences=held_out).weights == pytest.approx(found)


def test_what_ends_with_the_beginning_of_a_sentence_is_left_out(sources, tmp_path):
    """SRILM and others may write such n-grams, with next to no probability."""
    (tmp_path / "odd.arpa").write_text(
        "\\data\\\nngram 1=4\nngram 2=3\n\n\\1-grams:\n-99\t<s>\t-0.3\n-0.5\t</s>\n-0.4\tw1\t-0.2\n-0.6\tw2\n\n"
        "\\2-grams:\n-99\t<s> <s>\n-0.3\t<s> w1\n-99\tw1 <s>\n\n\\end\\\n"
    )
    mix([tmp_path / "odd.arpa", sources[2]], tmp_path / "mix.arpa", weights=(1, 1))
    text = (tmp_path / "mix.arpa").read_text()
    assert not any(line.split("\t")[1].endswith(" <s>") for line in text.splitlines() if "\t" in line)
    mixed = load(tmp_path / "mix.arpa")
    for context in ("<s>", "w1"):
        assert p_of(mixed, [context], "w2") > 0.02  # by backing off
        assert sum(p_of(mixed, [context], word) for word in mixed.words if word != "<s>") == pytest.approx(1, abs=0.02)


def test_the_end_of_an_ngram_may_be_missing_in_a_source(sources, tmp_path):
    """As after pruning by others: w1 w2 w1 is there, w2 w1 is not."""
    (tmp_path / "odd.arpa").write_text(
        "\\data\\\nngram 1=4\nngram 2=2\nngram 3=1\n\n\\1-grams:\n0\t<s>\t0\n-0.5\t</s>\n-0.4\tw1\t-0.1\n-0.55\tw2\t-0.05\n\n"
        "\\2-grams:\n-0.4\t<s> w1\n-0.3\tw1 w2\t-0.1\n\n\\3-grams:\n-0.2\tw1 w2 w1\n\n\\end\\\n"
    )
    mix([tmp_path / "odd.arpa", sources[2]], tmp_path / "mix.arpa", weights=(3, 1))
    assert "\tw2 w1" in (tmp_path / "mix.arpa").read_text()
    mixed, odd, other = load(tmp_path / "mix.arpa"), load(tmp_path / "odd.arpa"), load(sources[2])
    for context in (["w1", "w2"], ["w2"]):
        mean = 0.75 * p_of(odd, context, "w1") + 0.25 * p_of(other, context, "w1")
        assert p_of(mixed, context, "w1") == pytest.approx(mean, rel=1e-4)
        assert sum(p_of(mixed, context, word) for word in mixed.words if word != "<s>") == pytest.approx(1, abs=0.005)


def test_a_model_that_can_be_read_once_only(sources, tmp_path):
    mix(sources[:2], tmp_path / "files.arpa", weights=(1, 2))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(sources[0].read_bytes(),), daemon=True).start()
    mix([pipe, sources[1]], tmp_path / "pipe.arpa", weights=(1, 2))
    assert (tmp_path / "pipe.arpa").read_bytes() == (tmp_path / "files.arpa").read_bytes()


def test_progress_goes_from_nothing_to_everything(sources, tmp_path):
    seen = []
    mix(sources, tmp_path / "mix.arpa", weights=(1, 1, 1), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)
    assert {total for _, total in seen} == {1000}
    assert sum(done < 400 for done, _ in seen) >= 3  # while it reads


def test_mistakes(sources, tmp_path):
    target = tmp_path / "mix.arpa"
    for arguments, sentence in [
        ((sources[:1], {"weights": (1,)}), "a mixture is of two models or more; got 1"),
        ((sources[:2], {"weights": (1,)}), "1 weights for 2 models"),
        ((sources[:2], {"weights": (-1, 2)}), "weights are finite, not negative, and not all 0; got -1, 2"),
        ((sources[:2], {"weights": (0, 0)}), "weights are finite, not negative, and not all 0; got 0, 0"),
        ((sources[:2], {}), "a mixture needs weights, or a text to find them by"),
        (
            (sources[:2], {"weights": (1e308, 1e308)}),
            "weights are finite, not negative, and not all 0; got 1e+308, 1e+308",
        ),
        ((sources[:2], {"sentences": []}), "the text to weigh the models by is empty"),
        ((sources[:2], {"sentences": [[], []]}), "the text to weigh the models by is empty"),
        (
            (sources[:2], {"sentences": [["zzz", "w1", "yyy"]]}),
            "the models know 1 of the 3 tokens to weigh them by: is the unit another one, word or char?",
        ),
    ]:
        with pytest.raises(DataError) as error:
            mix(arguments[0], target, **arguments[1])
        assert str(error.value) == sentence
    assert not target.exists()
