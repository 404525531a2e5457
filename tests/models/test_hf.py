"""Models of Hugging Face: every type that has a class for CTC, and Whisper's encoder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny_hf
from torch import Tensor

from starseq.loss import stc_loss
from starseq.models import load, load_initial, stride_of
from starseq.models.hf import CTCModel, WhisperCTC, build

transformers: Any = pytest.importorskip("transformers")

STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}  # how the large models of these families are made
TYPES = [*((kind, {}) for kind in (*tiny_hf.WITH_SAMPLES, *tiny_hf.WITH_FEATURES, "whisper")), ("wav2vec2", STABLE)]
WHISPER = Path(__file__).resolve().parents[3] / "shared" / "weights" / "whisper-base.en-encoder"
TOKENS = ["<blank>", " ", *"abcdefg"]


def bands(kind: str) -> int:
    return {"wav2vec2-bert": 160, "granite_speech5_ctc": 320, **dict.fromkeys(tiny_hf.WITH_SAMPLES, 1)}.get(kind, 80)


def model_of(kind: str, **settings: Any) -> CTCModel | WhisperCTC:
    torch.manual_seed(0)
    config = tiny_hf.config(kind, **settings)
    return WhisperCTC(config, 12) if kind == "whisper" else CTCModel(config, 12, [i for i in range(12) if i != 3])


def utterances(kind: str) -> tuple[list[Tensor], Tensor]:
    """Some, of other lengths. SEW reads frames in pairs, so an odd one at the end is mixed with what follows: these have none."""
    torch.manual_seed(1)
    samples = bands(kind) == 1
    lengths = [170 + 80 * frames for frames in (28, 15, 6)] if samples else [91, 64, 30]
    if kind.startswith("sew"):
        model = model_of(kind)
        even = (n for n in range(2000, 0, -1) if int(model.output_lengths(torch.tensor([n]))[0]) % 2 == 0)
        first = next(even)
        lengths = [first, first - 160 * 5, first - 160 * 9]
    return [torch.randn(n, bands(kind)) for n in lengths], torch.tensor(lengths)


@pytest.fixture(params=TYPES, ids=lambda param: f"{param[0]}{'-stable' if param[1] else ''}")
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_padding_is_not_seen_and_lengths_are_known(kind: Any) -> None:
    name, settings = kind
    model = model_of(name, **settings).eval()
    xs, lengths = utterances(name)
    padded = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=torch.nan)
    with torch.no_grad():
        logits, after = model(padded, lengths)
        assert after.equal(model.output_lengths(lengths))
        assert logits.shape[2] == 12
        for i, x in enumerate(xs):
            alone, frames = model(x[None], lengths[i : i + 1])
            assert alone.shape[1] == int(frames) == int(after[i]) > 1
            scale = float(alone.std())
            assert float((logits[i, : len(alone[0])] - alone[0]).abs().max()) < 1e-4 * scale


def test_logits_are_those_of_transformers(kind: Any) -> None:
    """Of one utterance alone, the blank first."""
    name, settings = kind
    if name == "whisper":
        pytest.skip("that class reads 30 seconds only: see below")
    model = model_of(name, **settings).eval()
    theirs = type(model.network)(model.config).eval()
    theirs.load_state_dict(model.network.state_dict())
    (x, *_), _ = utterances(name)
    key = theirs.main_input_name
    with torch.no_grad():
        expected = theirs(**{key: x[None, :, 0] if bands(name) == 1 else x[None]}).logits[0]
        found = model(x[None], torch.tensor([len(x)]))[0][0]
    blank = 3
    order = [blank, *(i for i in range(12) if i != blank)]
    torch.testing.assert_close(found, expected[:, order], rtol=1e-4, atol=1e-5)


def test_few_frames_are_read(kind: Any) -> None:
    name, settings = kind
    model = model_of(name, **settings).eval()
    for n in (0, 1, 7):
        lengths = torch.tensor([n, n // 2])
        logits, frames = model(torch.randn(2, n, bands(name)), lengths)
        assert logits.isfinite().all()
        assert frames.equal(model.output_lengths(lengths))


def test_a_step_of_training(kind: Any) -> None:
    """Every parameter that is to be trained gets a gradient, else several processes wait for it; masks follow torch's numbers."""
    name, settings = kind
    model = model_of(name, **settings).train()
    xs, lengths = utterances(name)
    padded = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True)

    def gradients() -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(5)
        model.zero_grad()
        logits, frames = model(padded, lengths)
        loss = stc_loss(
            logits,
            torch.tensor([[1, 2], [3, 3], [4, 1]]),
            frames,
            torch.tensor([2, 2, 2]),
            penalty=-0.5,
            batch_first=True,
        )
        loss.backward()
        named = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
        assert [name for name, gradient in named if gradient is None] == []
        return loss.detach(), [gradient.clone() for _, gradient in named if gradient is not None]

    # Running statistics of batch norms move, but are not read in training.
    (one, first), (two, second) = gradients(), gradients()
    assert one.isfinite()
    assert one.equal(two)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert any(float(a.abs().max()) > 0 for a in first)


def test_whisper_is_the_encoder_of_transformers_where_audio_fills_it() -> None:
    """Its class wants all positions filled; ours then gives the same."""
    model = model_of("whisper").eval()
    x = torch.randn(1, 80, 80)
    with torch.no_grad():
        expected = model.head(model.network(x.transpose(1, 2)).last_hidden_state)
        torch.testing.assert_close(model(x, torch.tensor([80]))[0], expected)


def test_whisper_reads_more_than_it_has_positions_for() -> None:
    """In pieces of 40 frames that overlap by half: far from the cuts the frames are those of a piece that is read alone."""
    model = model_of("whisper").eval()
    x = torch.randn(1, 236, 80)
    with torch.no_grad():
        whole, frames = model(x, torch.tensor([236]))
        y = model.network.conv1(x.transpose(1, 2))
        y = torch.nn.functional.gelu(model.network.conv2(torch.nn.functional.gelu(y))).transpose(1, 2)
        assert frames.tolist() == [118]
        for piece, (first, last) in enumerate(((0, 30), (30, 50), (50, 70), (70, 90), (90, 118))):
            start = 20 * piece
            alone = model.head(model._layers(y[:, start : start + 40], torch.tensor([min(40, 118 - start)])))
            torch.testing.assert_close(whole[:, first:last], alone[:, first - start : last - start])


def test_parts_are_frozen_by_name(tmp_path: Path) -> None:
    path = str(tiny_hf.save(tmp_path, "wav2vec2"))

    def trained(**settings: Any) -> set[str]:
        model = build(1, TOKENS, path=path, **settings)
        return {name for name, p in model.named_parameters() if p.requires_grad}

    assert not any("feature_extractor" in name for name in trained())
    assert any("feature_extractor" in name for name in trained(freeze=()))
    assert not any(".layers.0." in name for name in trained(freeze=("layers.0",)))
    assert any(".layers.1." in name for name in trained(freeze=("layers.0",)))
    with pytest.raises(ValueError, match=r"freeze: the model has no part 'layer'; it has network"):
        trained(freeze=("layer",))


def test_weights_come_and_the_new_head_is_new(tmp_path: Path) -> None:
    path = str(tiny_hf.save(tmp_path, "hubert"))
    theirs: Any = transformers.AutoModelForCTC.from_pretrained(path)
    own, new = build(1, TOKENS, path=path), build(1, TOKENS, path=path, head="new")
    names = {head: load_initial(model, "hf", path) for head, model in (("own", own), ("new", new))}
    assert names["own"] - names["new"] == {"network.lm_head.weight", "network.lm_head.bias"}
    for name, tensor in theirs.state_dict().items():
        assert tensor.equal(own.state_dict()[f"network.{name}"])
        assert tensor.equal(new.state_dict()[f"network.{name}"]) is not name.startswith("lm_head.")


def test_weights_of_a_base_model_and_of_halves(tmp_path: Path) -> None:
    """Without a head, under other names, in float16: what is trained is float32."""
    folder = tiny_hf.save(tmp_path / "ctc", "wav2vec2")
    theirs: Any = transformers.AutoModelForCTC.from_pretrained(folder)
    theirs.wav2vec2.half().save_pretrained(tmp_path / "base")
    for name in ("preprocessor_config.json", "vocab.json", "tokenizer_config.json"):
        (tmp_path / "base" / name).write_bytes((folder / name).read_bytes())
    model: Any = build(1, TOKENS, path=str(tmp_path / "base"))
    names = load_initial(model, "hf", str(tmp_path / "base"))
    assert not any("lm_head" in name for name in names)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, tensor in theirs.wav2vec2.state_dict().items():
        assert tensor.float().equal(model.state_dict()[f"network.wav2vec2.{name}"])


def test_own_labels_without_their_outputs_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_hf.save(tmp_path, "hubert")
    weights = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in weights.items() if "lm_head" not in n}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"of another model than its settings, for lm_head\..* is not there"):
        load_initial(build(1, TOKENS, path=str(folder)), "hf", str(folder))


def test_layers_are_dropped_and_recomputed(tmp_path: Path) -> None:
    """A dropped layer hands on what it was given; recomputed activations give the same gradients."""
    path = str(tiny_hf.save(tmp_path, "whisper"))
    x, lengths = torch.randn(2, 60, 80), torch.tensor([60, 31])

    def gradient(**settings: Any) -> Tensor:
        torch.manual_seed(3)
        model: Any = build(80, TOKENS, path=path, **settings)
        load_initial(model, "hf", path)
        torch.manual_seed(4)
        logits, _ = model.train()(x, lengths)
        (logits[0] * torch.arange(9.0)).sum().backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        return model.network.conv1.weight.grad

    plain = gradient()
    torch.testing.assert_close(gradient(checkpointing=True), plain)
    assert not torch.allclose(gradient(layer_drop=0.9), plain)
    with pytest.raises(ValueError, match="layer_drop is a probability below 1; got 1"):
        gradient(layer_drop=1)


def test_what_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    folder = tiny_hf.save(tmp_path / "wav2vec2", "wav2vec2")
    with pytest.raises(ValueError, match=r"nowhere: no such folder$"):
        build(1, TOKENS, path=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no model of Hugging Face, for it has no config.json$"):
        build(1, TOKENS, path=str(tmp_path / "empty"))
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(
        ValueError, match=r"is a model of type bert, which is neither whisper nor one of data2vec-audio, "
    ):
        build(1, TOKENS, path=str(tmp_path / "bert"))
    model = build(1, TOKENS, path=str(folder))
    (folder / "model.safetensors").rename(folder / "gone")
    with pytest.raises(ValueError, match=r"wav2vec2: its weights cannot be used \(.*no file named model.safetensors"):
        load_initial(model, "hf", str(folder))
    tiny_hf.config("wav2vec2", hidden_size=32).save_pretrained(folder)
    (folder / "gone").rename(folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"wav2vec2: its weights are of another model than its settings, for .* is of another size"
    ):
        load_initial(build(1, TOKENS, path=str(folder)), "hf", str(folder))
    tiny_hf.save(tmp_path / "hubert", "hubert")
    other = copy.copy(folder / "config.json")
    (tmp_path / "hubert" / "config.json").write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match=r"hubert: its weights are of another model than its settings"):
        load_initial(build(1, TOKENS, path=str(tmp_path / "hubert")), "hf", str(tmp_path / "hubert"))


def test_offline_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"no/such-model: no folder of that name is here, and Hugging Face "):
        build(1, TOKENS, path="no/such-model")


@pytest.mark.skipif(not WHISPER.is_dir(), reason=f"{WHISPER} is not here")
def test_real_weights() -> None:
    model: Any = load("hf")(80, TOKENS, path=str(WHISPER)).eval()
    names = load_initial(model, "hf", str(WHISPER))
    assert stride_of(model) == 2
    assert {name for name, _ in model.named_parameters()} - names == {"head.weight", "head.bias"}
    # The positions are sinusoids, as published.
    position = model.network.embed_positions.weight[1, :3].tolist()
    assert position == pytest.approx([0.8415, 0.8219, 0.8019], abs=1e-3)
