"""Models from outside, through the verbs: trained, resumed, used; and a folder of Hugging Face's in place of a run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny_hf
from tests.commands import Command
from tests.run_folder import CPU

from starseq import runs
from starseq.config import Recipe, load_recipe
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs.align import align
from starseq.jobs.complete import complete
from starseq.jobs.evaluate import evaluate
from starseq.jobs.prepare import prepare
from starseq.jobs.train import dry_run, train

transformers: Any = pytest.importorskip("transformers")

SHORT = (
    "data.workers=0", "data.budget=3", "text.missing=word", "trainer.max_steps=6",
    "trainer.eval_every=3", "trainer.checkpoint_every=3",
    "trainer.log_every=1", "trainer.precision=32", "trainer.tensorboard=false", "trainer.accelerator=cpu", "trainer.threads=1",
    "optim.head_steps=2", "optim.warmup_steps=2", "optim.schedule.name=constant", "data.augment.start_step=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    rows: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(0)
    for i, split in enumerate(["train"] * 6 + ["dev"] * 2):
        wave = 0.1 * torch.randn(6_000 + 1_000 * i, generator=generator)
        (root / f"{i}.wav").write_bytes(audio.encode(wave, 8_000 if i == 5 else 16_000))
        rows.append({"id": str(i), "path": f"{i}.wav", "text": "bad cab" if i % 2 else "a fed dab", "split": split})
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def recipe(corpus: Path, model: Path, *overrides: str) -> Recipe:
    return load_recipe("speech", [*SHORT, f"data.root={corpus}", "model.name=hf", f"model.path={model}", *overrides])


@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_a_run_stands_alone_and_goes_on_bit_for_bit(tmp_path: Path, corpus: Path, kind: str, command: Command) -> None:
    said: list[str] = []
    model = tiny_hf.save(tmp_path / "model", kind)
    straight = recipe(corpus, model)
    train(straight, tmp_path / "straight", on_message=said.append)
    assert "the audio has 8,000 Hz and is resampled to 16,000, which the model reads" in said
    train(recipe(corpus, model, "trainer.max_steps=3"), tmp_path / "stopped")
    shutil.rmtree(model)  # everything that is needed is in the run
    train(straight, tmp_path / "stopped", resume=True)
    one, two = runs.load(tmp_path / "straight"), runs.load(tmp_path / "stopped")
    assert set(one.tokeniser.vocabulary.tokens) == {"<blank>", " ", *("abcdefg" if kind == "wav2vec2" else "abcdef")}
    weights = one.model.state_dict()
    assert all(tensor.equal(weights[name]) for name, tensor in two.model.state_dict().items())
    assert one.seconds_per_frame == (0.005 if kind == "wav2vec2" else 0.02)
    evaluate(tmp_path / "stopped", splits=["dev"], where=CPU)
    assert set(runs.read_results(tmp_path / "stopped")["evaluate"]["dev"]) == {"greedy"}
    reported = command("report", tmp_path / "stopped", "--out", tmp_path / "report.html")
    assert (reported.code, "<svg" in (tmp_path / "report.html").read_text()) == (0, True)


def test_new_weights_learn_alone_first(tmp_path: Path, corpus: Path) -> None:
    model = tiny_hf.save(tmp_path / "model", "hubert")
    train(recipe(corpus, model, "model.head=new", "trainer.max_steps=2", "trainer.eval_every=2"), tmp_path / "run")
    before: Any = transformers.AutoModelForCTC.from_pretrained(model).state_dict()
    after = runs.load(tmp_path / "run").model.state_dict()
    assert after["network.lm_head.weight"].shape == (8, 16)
    same = {name: tensor.equal(after[f"network.{name}"]) for name, tensor in before.items() if "lm_head" not in name}
    assert all(same.values())
    settings = ("model.head=new", "optim.head_steps=1", "trainer.max_steps=2", "trainer.eval_every=2")
    train(recipe(corpus, model, *settings, "optim.encoder_lr=0.01"), tmp_path / "later")
    moved = runs.load(tmp_path / "later").model.state_dict()
    train(
        recipe(corpus, model, "trainer.max_steps=1", "trainer.eval_every=1"), tmp_path / "own"
    )  # nothing new to wait for
    own = runs.load(tmp_path / "own").model.state_dict()
    name = "hubert.encoder.layers.0.attention.k_proj.weight"
    assert not own[f"network.{name}"].equal(before[name])
    # AdamW's first step is the learning rate, of which half is left in the first of two steps of warming up.
    assert float((moved[f"network.{name}"] - before[name]).abs().max()) == pytest.approx(0.005, rel=0.05)


def test_what_does_not_fit_is_one_sentence(tmp_path: Path, corpus: Path) -> None:
    model = tiny_hf.save(tmp_path / "model", "wav2vec2", letters="ABCDEFG")
    with pytest.raises(DataError, match=r"too little is left to train on; .* text.normaliser.case=upper finds most"):
        train(recipe(corpus, model), tmp_path / "run")
    with pytest.raises(
        DataError, match=r"data.reader.name: 'audio' does not go with model.name=hf: data.reader=pretrained"
    ):
        recipe(corpus, model, "data.reader.name=audio")
    with pytest.raises(DataError, match=r"the model's own tokens are characters: text.unit=char, or model.head=new"):
        train(recipe(corpus, model, "text.unit=word", "text.missing=null"), tmp_path / "run")
    few = tiny_hf.save(tmp_path / "few", "wav2vec2", conv_stride=[320, 4, 4])
    with pytest.raises(
        DataError,
        match=r"more labels than frames: .*; a model with more frames is needed",
    ):
        train(recipe(corpus, few), tmp_path / "run")
    with pytest.raises(DataError, match=r"model hf: .*nowhere: no such folder$"):
        train(recipe(corpus, tmp_path / "nowhere"), tmp_path / "run")


def test_a_folder_of_hugging_face_is_used_like_a_run(tmp_path: Path, corpus: Path, command: Command) -> None:
    model, manifest = tiny_hf.save(tmp_path / "model", "wav2vec2", letters="ABCDEFG"), corpus / "manifest.jsonl"
    run = runs.load(model)
    assert (run.merges_repeats, run.tokeniser.vocabulary.tokens) == (True, ("<blank>", " ", *"ABCDEFG"))
    result = evaluate(model, manifest, splits=["dev"], where=CPU)
    assert result.splits[0].readings[0].reference == "A FED DAB"
    align(model, manifest, tmp_path / "aligned", split="dev", where=CPU)
    first = json.loads((tmp_path / "aligned" / "alignment.jsonl").read_text().splitlines()[0])
    assert "".join(label["label"] for label in first["labels"]) == "A FED DAB"
    complete(model, manifest, tmp_path / "completed.jsonl", split="dev", where=CPU)
    texts = [json.loads(line)["text"] for line in (tmp_path / "completed.jsonl").read_text().splitlines()]
    kept = ("bad .*cab", "a .*fed .*dab")  # a person's text is never changed
    assert all(any(re.search(known, text) for known in kept) for text in texts)
    heard = command("transcribe", model, corpus / "0.wav")
    assert heard.code == 0
    with pytest.raises(DataError, match="it was not trained here, so there is no manifest of its own: name one"):
        evaluate(model, where=CPU)


@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz", ".csv", ".tsv", ".srt", ".vtt"])
def test_words_are_rows_again(tmp_path: Path, corpus: Path, suffix: str) -> None:
    """What align writes for other toolkits gives the same rows, when prepare reads it: of subtitles those that they hold."""
    model, data = tiny_hf.save(tmp_path / "model", "wav2vec2", letters="ABCDEFG"), Path(tmp_path / "data")
    shutil.copytree(corpus, data)
    (row, *_) = (row for row in read_manifest(data / "manifest.jsonl") if row["split"] == "dev")
    rows = [row.replace(text="a * fe*d da*b", gaps="marked", speaker="ann", start=0.1, end=0.6)]
    write_manifest(data / "one.jsonl", rows)
    assert align(model, data / "one.jsonl", data / "words.jsonl", where=CPU).done == 1
    words = [word.fields for word in read_manifest(data / "words.jsonl")]
    assert [word["text"] for word in words] == ["A", "FE*D", "DA*B"]
    assert all(0.1 <= word["start"] < word["end"] <= 0.6 for word in words)
    target = data / f"{Path(row.path).stem}{suffix}"
    align(model, data / "one.jsonl", target, where=CPU)
    assert not [path for path in data.iterdir() if path.name.startswith(".")]
    reader = {".json": "nemo", ".jsonl.gz": "lhotse", ".srt": "subtitles", ".vtt": "subtitles"}.get(suffix, "table")
    (data / "alone").mkdir()
    source = target if reader != "subtitles" else Path(shutil.move(target, data / "alone")).parent
    if reader == "subtitles":
        shutil.copy(data / row.path, data / "alone")
    prepare(reader, source, tmp_path / "out")
    again = [word.fields for word in read_manifest(tmp_path / "out" / "manifest.jsonl")]
    names = ("text", "start", "end") if reader == "subtitles" else tuple(name for name in words[0] if name != "path")
    shown = [
        [[str(word[name]) for name in names] for word in found] for found in (again, words)
    ]  # a table has no numbers
    assert shown[0] == shown[1]


def test_pieces_of_words_are_labels(tmp_path: Path, corpus: Path) -> None:
    model = tiny_hf.save(tmp_path / "model", "parakeet_ctc")
    tokeniser = runs.load(model).tokeniser
    assert tokeniser.vocabulary.tokens == (
        "<blank>", "▁a", "▁b", "▁cab", "ad", "d", "▁", "fe", "e", "ab", "c",
    )  # fmt: skip
    encoded = tokeniser.encode("a bad cab fed", marked=True)
    assert [tokeniser.vocabulary[label] for label in encoded.labels] == ["▁a", "▁b", "ad", "▁cab", "▁", "fe", "d"]
    assert tokeniser.decode(encoded.labels) == "a bad cab fed"
    complete(model, corpus / "manifest.jsonl", tmp_path / "completed.jsonl", split="dev", where=CPU)
    texts = [json.loads(line)["text"] for line in (tmp_path / "completed.jsonl").read_text().splitlines()]
    assert all(re.search("bad .*cab|a .*fed .*dab", text) for text in texts)
    pieces = ("text.unit=piece", "data.drop.p=0.5")
    train(recipe(corpus, model, *pieces, "trainer.max_steps=1", "trainer.eval_every=1"), tmp_path / "run")
    assert runs.load(tmp_path / "run").tokeniser.vocabulary.tokens == tokeniser.vocabulary.tokens
    with pytest.raises(DataError, match=r"are pieces of words: text.unit=piece, or model"):
        train(recipe(corpus, model), tmp_path / "other")


def test_a_model_that_reads_nothing_yet_is_no_run(tmp_path: Path) -> None:
    model = tiny_hf.save(tmp_path, "whisper")
    with pytest.raises(DataError, match=r"without a head for CTC .*: `starseq train speech model.name=hf model.path="):
        runs.load(model)


def test_a_class_of_the_users_own(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By package.module:Class, with weights to begin with; the weights that came have their own learning rate, and resume."""
    from safetensors.torch import save_file

    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, inputs, tokens, *, width: int = 4):\n"
        "        super().__init__()\n"
        "        self.body, self.head = torch.nn.Conv1d(inputs, width, 400, 160), torch.nn.Linear(width, len(tokens))\n"
        "    def output_lengths(self, lengths):\n"
        "        return ((lengths - 400) // 160 + 1).clamp(min=0)\n"
        "    def forward(self, x, lengths):\n"
        "        inside = torch.arange(x.shape[1]) < lengths[:, None]\n"
        "        x = self.body((x * inside[:, :, None]).transpose(1, 2)).transpose(1, 2)\n"
        "        return self.head(x), self.output_lengths(lengths)\n"
    )
    monkeypatch.chdir(tmp_path)
    weights = {"body.weight": torch.randn(6, 1, 400), "body.bias": torch.zeros(6), "other": torch.zeros(3)}
    save_file(weights, tmp_path / "weights.safetensors")
    net = ("model.name=mine:Net", "model.width=6", "model.init=weights.safetensors")
    made = load_recipe("speech", [*SHORT, f"data.root={corpus}", "data.reader.name=waveform", *net, "data.drop=null"])
    train(made, tmp_path / "straight")
    stopped = load_recipe(
        "speech", [*SHORT, f"data.root={corpus}", "data.reader.name=waveform", *net, "trainer.max_steps=2"]
    )
    train(stopped, tmp_path / "run")
    after = runs.load(tmp_path / "run").model.state_dict()
    assert after["body.weight"].equal(weights["body.weight"])  # the head alone has moved
    (tmp_path / "weights.safetensors").unlink()
    train(None, tmp_path / "run", resume=True)
    with pytest.raises(DataError, match=r"model mine:Net: .*weights.safetensors: not a file of safetensors"):
        train(made, tmp_path / "again")
    with pytest.raises(DataError, match=r"model.name: model mine:Nets: cannot be imported"):
        load_recipe("speech", ["model.name=mine:Nets"])


def test_a_dry_run_reads_the_model(tmp_path: Path, corpus: Path) -> None:
    model = tiny_hf.save(tmp_path / "model", "wav2vec2")
    tried = dry_run(recipe(corpus, model))
    assert tried.tokens == 9
    assert tried.frames == 16 * 1_920 * 3 // 2
