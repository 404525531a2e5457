import math

import pytest
import torch

from starseq.data.errors import DataError
from starseq.lm import scorers, transformer
from starseq.lm.transformer import TransformerLM
from starseq.text.normalise import Normaliser
from starseq.text.vocabulary import Vocabulary

SIZES = {"width": 16, "heads": 2, "hidden": 32, "layers": 2, "dropout": 0.3}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TransformerLM(Vocabulary(["a", "b", "c", "<unk>"]), "word", **SIZES)


def test_a_score_is_the_sum_over_the_tokens_and_the_end(model):
    model.eval()
    log_p = model(torch.tensor([[0, 1, 4, 2]])).log_softmax(-1)[0]  # <boundary> a zebra b
    expected = log_p[0, 1] + log_p[1, 4] + log_p[2, 2] + log_p[3, 0]
    assert model.score(["a zebra b"]).item() == pytest.approx(expected.item(), rel=1e-5)


@torch.inference_mode()
def test_all_sentences_of_all_lengths_sum_to_one(model):
    """Sentences of up to 2 tokens, and whatever is longer: 1 - P(end within 2)."""
    model.eval()
    words = ["a", "b", "c", "zebra"]
    texts = ["", *words, *(f"{x} {y}" for x in words for y in words)]
    total = model.score(texts).double().exp().sum()
    longer = sum(
        torch.stack([*(log_p[k, t] for k, t in enumerate(pair)), torch.log1p(-log_p[2, 0].exp())]).sum().exp()
        for x in range(1, 5)
        for y in range(1, 5)
        for pair, log_p in [((x, y), model(torch.tensor([[0, x, y]])).log_softmax(-1)[0])]
    )
    assert float(total + longer.double()) == pytest.approx(1.0, abs=1e-5)


def test_the_batch_does_not_matter_nor_training_mode(model, monkeypatch):
    texts = ["a b c", "", "c", "a a a a b b", "b zebra"] * 3
    together = model.score(texts)
    assert model.training
    single = torch.cat([model.score([text]) for text in texts])
    torch.testing.assert_close(together, single)
    monkeypatch.setattr(transformer, "_LOGITS_AT_ONCE", 40)
    torch.testing.assert_close(model.score(texts), single)
    assert model.score([]).shape == (0,)


def test_nothing_is_seen_before_its_time(model):
    model.eval()
    one, other = model(torch.tensor([[0, 1, 2, 3]])), model(torch.tensor([[0, 1, 3, 1]]))
    torch.testing.assert_close(one[:, :2], other[:, :2])
    assert not torch.allclose(one[:, 2], other[:, 2])


def test_saved_and_loaded(tmp_path):
    letters = Vocabulary(["a", "b", " ", "<unk>"])
    model = TransformerLM(letters, "char", normaliser=Normaliser(case="lower", replace={"-": " "}), **SIZES)
    model.save(tmp_path)
    again = scorers.load(tmp_path)
    assert isinstance(again, TransformerLM)
    torch.testing.assert_close(again.score(["A-b", "q"]), model.score(["a b", "z"]), rtol=0, atol=0)
    assert again.normaliser == model.normaliser
    assert not again.training


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("lm.yaml", "unit: [", "lm.yaml: not the settings"),
        ("lm.yaml", "unit: word\n", "lm.yaml: not the settings"),
        ("lm.yaml", "unit: word\nnormaliser: null\nwitdh: 3\n", "lm.yaml: not the settings"),
        ("model.safetensors", "xx", "model.safetensors: not the weights"),
        ("tokens.txt", "<blank>\na\n<unk>\n", "model.safetensors: not the weights"),
        ("tokens.txt", "a\n", "tokens.txt: line 1 must be <blank>"),
        ("tokens.txt", None, "tokens.txt is missing"),
    ],
)
def test_bad_files_are_one_sentence(model, tmp_path, name, data, reason):
    model.save(tmp_path)
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(data)
    with pytest.raises(ValueError, match=reason) as caught:
        TransformerLM.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(DataError, match=r"lm.yaml or config.json"):
        scorers.load(tmp_path)
    with pytest.raises(ValueError, match="<unk>"):
        TransformerLM(Vocabulary(["a"]), "word")


def test_an_untrained_model_knows_about_nothing(model):
    """The initial loss is near that of a uniform guess: the scale of the tied embedding is right."""
    torch.manual_seed(0)
    large = TransformerLM(
        Vocabulary([*(f"w{i}" for i in range(999)), "<unk>"]), "word", width=64, heads=4, hidden=128, layers=4
    )
    per_token = -large.score([" ".join(f"w{i}" for i in range(60))]).item() / 61
    assert per_token == pytest.approx(math.log(1001), abs=0.4)
