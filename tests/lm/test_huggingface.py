import pytest
import torch

from starseq.data.errors import DataError
from starseq.lm import scorers
from starseq.lm.huggingface import HuggingFaceLM
from starseq.text.normalise import Normaliser

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("gpt")
    words = {"<end>": 0, "a": 1, "b": 2, "c": 3, "?": 4}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>").save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=5, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def test_a_score_is_the_sum_over_the_tokens_and_the_end(folder):
    lm = scorers.load(folder)
    assert isinstance(lm, HuggingFaceLM)
    log_p = lm.model(torch.tensor([[0, 1, 4, 2]])).logits.log_softmax(-1)[0].detach()
    expected = log_p[0, 1] + log_p[1, 4] + log_p[2, 2] + log_p[3, 0]
    assert lm.score(["a zebra b"]).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_batch_does_not_matter(folder):
    lm = HuggingFaceLM(folder, normaliser=Normaliser(case="lower"))
    texts = ["a b c", "", "C", "a a a a b b", "b zebra"] * 2
    torch.testing.assert_close(lm.score(texts), torch.cat([lm.score([text]) for text in texts]))
    assert lm.score(["C"]) == lm.score(["c"])


def test_too_long_a_text_and_no_model_are_one_sentence(folder, tmp_path):
    with pytest.raises(DataError, match="17 tokens is longer than the model reads, 16"):
        HuggingFaceLM(folder).score(["a", "a " * 16])
    HuggingFaceLM(folder).score(["a " * 15])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="no causal language model of Hugging Face") as caught:
        scorers.load(tmp_path)
    assert "\n" not in str(caught.value)
