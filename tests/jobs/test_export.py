"""Runs for other programs: what they read is what the run reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny_hf
from tests.run_folder import make_run

from starseq import runs
from starseq.config import build, load_recipe
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.data.manifest import Row
from starseq.decode.greedy import greedy
from starseq.jobs.export import export
from starseq.pretrained import copy_settings
from starseq.runs.folder import save_model
from starseq.text.vocabulary import Vocabulary

transformers: Any = pytest.importorskip("transformers")
onnxruntime: Any = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def wave() -> torch.Tensor:
    return 0.1 * torch.randn(9_000, generator=torch.Generator().manual_seed(3))


def run_of(folder: Path, kind: str, *overrides: str, **settings: Any) -> runs.Run:
    """A run that was not trained: its head is new, of letters, and its weights are those that were drawn."""
    model = tiny_hf.save(folder / "model", kind, **settings)
    recipe = load_recipe("speech", ["model.name=hf", f"model.path={model}", "model.head=new", *overrides])
    vocabulary = Vocabulary([" ", *"abc'"])
    copy_settings(str(model), folder / "run" / "pretrained")
    torch.manual_seed(1)
    network = build.network(recipe, vocabulary)
    with torch.no_grad():
        for parameter in network.parameters():  # larger: a model of no training would read one token
            parameter.mul_(4)
    save_model(folder / "run", network, step=1, log_penalty=None, dev_error=None)
    write_text(folder / "run" / "tokens.txt", vocabulary.to_lines())
    write_text(folder / "run" / "recipe.yaml", recipe.to_yaml())
    return runs.load(folder / "run")


@torch.no_grad()
def read(run: runs.Run, wave: torch.Tensor) -> tuple[torch.Tensor, str]:
    x = run.reader(Row({"id": "a", "path": "a.wav"}), audio.encode(wave, 16_000, subtype="FLOAT"))
    logits, lengths = run.model(x[None], torch.tensor([len(x)]))
    return logits[0], run.tokeniser.decode(greedy(logits, lengths, merge_repeats=True)[0])


@pytest.mark.parametrize("kind", ["hubert", "wav2vec2-bert"])
def test_transformers_reads_what_the_run_reads(tmp_path: Path, wave: torch.Tensor, kind: str) -> None:
    run = run_of(tmp_path, kind)
    export(run.folder, tmp_path / "out", to="hf")
    model = transformers.AutoModelForCTC.from_pretrained(tmp_path / "out").eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    logits, text = read(run, wave)
    inputs = processor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**inputs).logits[0, : len(logits)]
    torch.testing.assert_close(theirs, logits, rtol=1e-3, atol=1e-3)
    assert len(set(text)) > 1
    assert processor.batch_decode(theirs[None].argmax(2)) == [text.strip()]
    pipeline = transformers.pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    assert pipeline(wave.numpy())["text"].strip() == text.strip()
    assert runs.load(tmp_path / "out").tokeniser.vocabulary.tokens == run.tokeniser.vocabulary.tokens


def test_a_model_with_its_own_labels_goes_back_as_it_came(tmp_path: Path, wave: torch.Tensor) -> None:
    folder = tiny_hf.save(tmp_path / "model", "wav2vec2")
    export(folder, tmp_path / "out", to="hf")
    one, two = (transformers.AutoModelForCTC.from_pretrained(path).state_dict() for path in (folder, tmp_path / "out"))
    assert all(tensor.equal(two[name]) for name, tensor in one.items())
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").word_delimiter_token == "|"
    assert read(runs.load(folder), wave)[1] == read(runs.load(tmp_path / "out"), wave)[1]


def test_whisper_has_a_class_of_ours(tmp_path: Path, wave: torch.Tensor) -> None:
    from starseq.models.hf import WhisperCTC

    run = run_of(tmp_path, "whisper")
    assert "WhisperCTC.from_pretrained" in str(export(run.folder, tmp_path / "out", to="hf"))
    model = WhisperCTC.from_pretrained(tmp_path / "out")
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    found = processor.feature_extractor(
        wave.numpy(), sampling_rate=16_000, padding="do_not_pad", truncation=False, return_tensors="pt"
    )
    x = found["input_features"].transpose(1, 2)
    with torch.no_grad():
        theirs, _ = model(x, torch.tensor([x.shape[1]]))
    logits, text = read(run, wave)
    torch.testing.assert_close(theirs[0], logits)
    assert processor.batch_decode(theirs.argmax(2)) == [text.strip()]
    assert read(runs.load(tmp_path / "out"), wave)[1] == text


@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_onnxruntime_reads_what_the_run_reads(tmp_path: Path, wave: torch.Tensor, kind: str) -> None:
    run = run_of(
        tmp_path, kind, **({"max_source_positions": 200} if kind == "whisper" else {})
    )  # the pieces have no graph
    export(run.folder, tmp_path / "model.onnx", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["starseq"])
    assert facts["tokens"] == ["<blank>", " ", "a", "b", "c", "'"]
    half = wave[:5_000]
    xs = [run.reader(Row({"id": "a", "path": "a"}), audio.encode(w, 16_000, subtype="FLOAT")) for w in (wave, half)]
    padded = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True)
    lengths = np.array([len(x) for x in xs])
    logits, frames = session.run(None, {"x": padded.numpy(), "lengths": lengths})
    tokens = greedy(torch.from_numpy(logits), torch.from_numpy(frames), merge_repeats=True)
    assert [run.tokeniser.decode(one) for one in tokens] == [read(run, w)[1] for w in (wave, half)]


@pytest.mark.parametrize("model", ["conv_small", "gated_conv"])
def test_our_own_models_have_graphs(tmp_path: Path, model: str) -> None:
    small = ["model={name: gated_conv, width: 0.125}"] if model == "gated_conv" else []
    run = runs.load(make_run(tmp_path / "run", *small))
    export(run.folder, tmp_path / "model.onnx", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(3, 50, run.reader.bands)
    lengths = torch.tensor([50, 33, 7])
    logits, frames = session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()})
    with torch.no_grad():
        expected, after = run.model(x, lengths)
    assert frames.tolist() == after.tolist()
    for found, true, length in zip(torch.from_numpy(logits), expected, after.tolist(), strict=True):
        torch.testing.assert_close(found[:length], true[:length], rtol=1e-4, atol=1e-4)


def test_what_has_no_place_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make_run(tmp_path / "ours")
    with pytest.raises(DataError, match=r"transformers has no model like conv_small; --to onnx takes every model"):
        export(ours, tmp_path / "out", to="hf")
    published = run_of(tmp_path / "published", "whisper", "criterion.merge_repeats=false")
    with pytest.raises(DataError, match="reads repeats as several labels"):
        export(published.folder, tmp_path / "out", to="hf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(DataError, match="there is something already; choose another folder"):
        export(run_of(tmp_path / "good", "whisper").folder, tmp_path / "full", to="hf")
    # A graph that is another function than the model is not written.
    from starseq.jobs import export as job

    monkeypatch.setattr(job, "AGREE", -1.0)
    with pytest.raises(
        DataError, match=r"torch makes no ONNX graph of the model conv_small \(its outputs are others\)"
    ):
        export(ours, tmp_path / "model.onnx", to="onnx")
    assert not (tmp_path / "model.onnx").exists()
