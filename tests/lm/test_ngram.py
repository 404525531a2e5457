import math
import random

import numpy as np
import pytest

from starseq.lm import Scorer
from starseq.lm.estimate import estimate
from starseq.lm.ngram import NGram

LOG_10 = math.log(10)


def text(seed, sentences, words=40):
    draw = random.Random(seed)
    weights = [1 / (i + 1) for i in range(words)]
    return [[f"w{i}" for i in draw.choices(range(words), weights, k=draw.randint(0, 9))] for _ in range(sentences)]


@pytest.fixture(scope="module", params=[1, 2, 5])
def arpa(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("lm") / "lm.arpa"
    estimate(text(0, 600), file, order=request.param, prune=(0, 0, 1) if request.param == 5 else (0,))
    return file


def test_scores_are_those_of_kenlm(arpa):
    kenlm = pytest.importorskip("flashlight.lib.text.decoder.kenlm")
    from flashlight.lib.text.dictionary import Dictionary

    if "ngram 2=" not in arpa.read_text()[:100]:
        pytest.skip("KenLM reads no unigram models")
    held_out = [*text(1, 200, words=50), []]  # ten words are unknown
    names = sorted({word for sentence in held_out for word in sentence})
    peer = kenlm.KenLM(str(arpa), Dictionary(names))
    ours = NGram.load(arpa)
    for sentence, log_probs in zip(held_out, ours.log_probs(held_out), strict=True):
        state, theirs = peer.start(False), []
        for word in sentence:
            state, score = peer.score(state, names.index(word))
            theirs.append(score)
        theirs.append(peer.finish(state)[1])
        np.testing.assert_allclose(log_probs / LOG_10, theirs, atol=1e-5)


def test_step_by_step_is_the_same(arpa):
    model = NGram.load(arpa)
    for sentence, log_probs in zip(text(2, 50, words=50), model.log_probs(text(2, 50, words=50)), strict=True):
        state, steps = model.begin, []
        for word in [*sentence, "</s>"]:
            log_p, state = model.step(state, word)
            steps.append(log_p)
        assert len(state) <= max(1, model.order - 1)
        np.testing.assert_allclose(log_probs, steps, atol=1e-9)


def test_backoff_by_hand(tmp_path):
    (tmp_path / "lm.arpa").write_text(
        "\\data\\\nngram 1=5\nngram 2=2\nngram 3=1\n\n"
        "\\1-grams:\n-2\t<unk>\n0\t<s>\t-0.5\n-0.75\t</s>\n-1\ta\t-0.25\n-1.5\tb\t-0.125\n"
        "\n\\2-grams:\n-0.3\t<s> a\t-0.0625\n-0.4\ta b\t-0.03125\n\n\\3-grams:\n-0.1\t<s> a b\n\n\\end\\\n"
    )
    model = NGram.load(tmp_path / "lm.arpa")
    # <s> a: found. <s> a b: found. a b </s>: b(a b) + b(b) + p(</s>).
    found = model.log_probs([["a", "b"]])[0] / LOG_10
    np.testing.assert_allclose(found, [-0.3, -0.1, -0.03125 - 0.125 - 0.75], atol=1e-6)
    # <s> a a: b(<s> a) + b(a) + p(a). Then zebra: b(a) + p(<unk>), as `a a` is no context. Then b: its own.
    found = model.log_probs([["a", "a", "zebra", "b"]])[0] / LOG_10
    np.testing.assert_allclose(found[:4], [-0.3, -0.0625 - 0.25 - 1, -0.25 - 2, -1.5], atol=1e-6)


def test_a_model_without_unk_pays_a_hundred(tmp_path):
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-99\t<s>\n-1\t</s>\n\n\\end\\\n")
    assert float(NGram.load(tmp_path / "lm.arpa").score(["x"])) == pytest.approx(-101 * LOG_10)


def test_perplexity(arpa):
    model = NGram.load(arpa)
    sentences = text(3, 100, words=50)
    log_probs = model.log_probs(sentences)
    flat = np.concatenate(log_probs)
    unknown = np.concatenate([[word not in model for word in [*sentence, "</s>"]] for sentence in sentences])
    found = model.perplexity(iter(sentences))
    assert (found.sentences, found.tokens, found.unknown) == (100, len(flat), unknown.sum())
    assert found.including_unknown == pytest.approx(math.exp(-flat.mean()))
    assert found.excluding_unknown == pytest.approx(math.exp(-flat[~unknown].mean()))


def test_texts_of_characters_and_specials(tmp_path):
    sentences = [["a", "<space>", "b"], ["b"]]
    estimate(sentences, tmp_path / "lm.arpa.gz", order=3)
    model: Scorer = NGram.load(tmp_path / "lm.arpa.gz", unit="char")
    expected = [log_p.sum() for log_p in model.log_probs(sentences)]
    np.testing.assert_allclose(model.score(["a b", "b"]).numpy(), expected, rtol=1e-6)
    words = NGram.load(tmp_path / "lm.arpa.gz")
    assert float(words.score(["</s> b"])) == float(words.score(["zebra b"]))  # spelled out, it is no end
    assert len(words.score([])) == 0
