import json
import math
import random

import pytest
import torch
from typer.testing import CliRunner

from starseq.cli import app
from starseq.data.errors import DataError
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.jobs import lm as job
from starseq.lm.transformer import TransformerLM
from starseq.text.vocabulary import Vocabulary
from starseq.train.metrics import read_metrics

SMALL = {"width": 16, "heads": 2, "hidden": 32, "layers": 1, "batch_tokens": 128, "warmup_steps": 5, "lr": 1e-2}


@pytest.fixture
def text(tmp_path):
    """Digits that count up: easy to learn, and n-grams see it too."""
    draw = random.Random(0)
    path = tmp_path / "text.txt"
    with path.open("w") as file:
        for _ in range(300):
            start, length = draw.randrange(10), draw.randint(1, 6)
            file.write(" ".join(str((start + i) % 10) for i in range(length)) + "\n")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_ngram_by_command(text, tmp_path):
    trained = run(
        "lm", "train", text, "--order", 3, "--out", tmp_path / "lm.arpa.gz", "--memory", "64kB", "--prune", "0,0,1"
    )
    assert trained.exit_code == 0
    assert "1-grams            13" in trained.output
    assert "too few n-grams to tell the discounts of order 1" in trained.output
    scored = run("lm", "score", tmp_path / "lm.arpa.gz", text)
    assert "300 sentences" in scored.output
    assert "0 unknown" in scored.output
    value = float(scored.output.split("perplexity ")[1].split()[0])
    assert 1 < value < 4  # 14 words, and the next one is known but for the end


def test_mixing_by_command(text, tmp_path):
    (tmp_path / "other.txt").write_text("9 8 7\n8 7 6\n7 6 5 x\n" * 9)
    for name in ("text", "other"):
        run("lm", "train", tmp_path / f"{name}.txt", "--order", 3, "--out", tmp_path / f"{name}.arpa")
    models, out = [tmp_path / "text.arpa", tmp_path / "other.arpa"], tmp_path / "mix.arpa"
    mixed = run("lm", "mix", *models, "--weights", "3,1", "--out", out)
    assert (
        mixed.output.splitlines()[0] == f"{out}: 11 words; n-grams 14, {mixed.output.split('14, ')[1].splitlines()[0]}"
    )
    assert [line.split() for line in mixed.output.splitlines()[1:]] == [
        ["0.7500", str(models[0])],
        ["0.2500", str(models[1])],
    ]
    assert run("lm", "mix", *models, "--dev", text, "--out", tmp_path / "dev.arpa.gz").exit_code == 0
    half, best = (job.score(tmp_path / name, [text]).including_unknown for name in ("mix.arpa", "dev.arpa.gz"))
    assert best < half < job.score(models[1], [text]).including_unknown
    for options in ([], ["--weights", "1,1", "--dev", text]):
        with pytest.raises(ValueError, match="either weights, or texts"):
            run("lm", "mix", *models, "--out", tmp_path / "none.arpa", *options)
    assert not (tmp_path / "none.arpa").exists()


def test_characters_with_a_recipe(tmp_path):
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("".join(json.dumps({"id": str(i), "path": "x", "text": "12 3"}) + "\n" for i in range(5)))
    unit, normaliser = job.text_settings("digits", None)
    assert unit == "char"
    job.train_ngram([manifest], tmp_path / "lm.arpa", order=2, unit=unit, normaliser=normaliser)
    assert "<space> 3" in (tmp_path / "lm.arpa").read_text()
    result = job.score(tmp_path / "lm.arpa", [manifest], unit=unit)
    assert (result.tokens, result.unknown) == (25, 0)


def test_limited_to_the_words_of_a_file(text, tmp_path):
    (tmp_path / "tokens.txt").write_text("<blank>\n1\n2\n")
    job.train_ngram([text], tmp_path / "lm.arpa", order=2, vocabulary=tmp_path / "tokens.txt")
    assert "ngram 1=5" in (tmp_path / "lm.arpa").read_text()
    assert job.score(tmp_path / "lm.arpa", [text]).unknown > 100


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--order", "0"], "at least 1"),
        (["--memory", "lots"], "no size like 64MB"),
        (["--resume"], "--resume is for --neural"),
        (["--neural", "--limit-vocabulary", "x"], "is for n-grams"),
        (["--prune", "x"], "not a list of numbers"),
    ],
)
def test_bad_options_are_one_sentence(text, tmp_path, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        run("lm", "train", text, "--out", tmp_path / "out" / "lm.arpa", *arguments)
    assert not (tmp_path / "out" / "lm.arpa").exists()


def test_empty_texts(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="the text is empty"):
        job.train_ngram([tmp_path / "empty.txt"], tmp_path / "lm.arpa")
    with pytest.raises(DataError, match="the text is empty"):
        job.train_neural([tmp_path / "empty.txt"], tmp_path / "lm")


def test_a_transformer_learns_to_count(text, tmp_path):
    settings = job.Neural(max_steps=120, eval_every=40, **SMALL)
    seen, evaluated = [], []
    result = job.train_neural(
        [text], tmp_path / "lm", settings, device="cpu", progress=lambda done, total: seen.append(done),
        on_evaluated=lambda step, value: evaluated.append((step, value)),
    )  # fmt: skip
    assert [step for step, _ in evaluated] == [40, 80, 120]
    assert result.best_perplexity == min(value for _, value in evaluated) < 4
    assert sorted(set(seen)) == list(range(10, 121, 10))
    lm = TransformerLM.load(tmp_path / "lm")
    right, wrong = lm.score(["3 4 5 6", "3 4 6 5"]).tolist()
    assert right > wrong + 3
    whole = job.score(tmp_path / "lm", [text])
    assert whole.including_unknown == pytest.approx(result.best_perplexity, rel=0.3)
    assert math.isnan(whole.excluding_unknown)
    assert len((tmp_path / "lm" / "metrics.csv").read_text().splitlines()) == 4
    assert sorted(file.name for file in (tmp_path / "lm").iterdir()) == [
        "last.ckpt", "lm.yaml", "metrics.csv", "model.safetensors", "tokens.txt",
    ]  # fmt: skip


class _Stop(Exception):
    pass


@pytest.mark.parametrize("stop_at", [30, 50])
def test_a_resumed_run_ends_with_the_same_weights(text, tmp_path, stop_at):
    settings = job.Neural(max_steps=60, eval_every=20, dropout=0.2, **SMALL)
    whole = job.train_neural([text], tmp_path / "whole", settings, device="cpu")

    def stop(done, total):
        if done == stop_at:
            raise _Stop

    with pytest.raises(_Stop):
        job.train_neural([text], tmp_path / "parts", settings, device="cpu", progress=stop)
    parts = job.train_neural([text], tmp_path / "parts", settings, device="cpu", resume=True)
    assert parts.best_perplexity == whole.best_perplexity
    assert parts.best_step == whole.best_step
    rows = [read_metrics(tmp_path / run / "metrics.csv") for run in ("parts", "whole")]
    assert [[row["loss"], row["dev_error"]] for row in rows[0]] == [[row["loss"], row["dev_error"]] for row in rows[1]]
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("parts", "whole")]
    assert weights[0] == weights[1]
    one, other = (torch.load(tmp_path / run / "last.ckpt", weights_only=True)["model"] for run in ("parts", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_cannot_be_resumed(text, tmp_path):
    settings = job.Neural(max_steps=2, eval_every=2, **SMALL)
    with pytest.raises(DataError, match=r"no last.ckpt to resume from"):
        job.train_neural([text], tmp_path / "lm", settings, resume=True)
    job.train_neural([text], tmp_path / "lm", settings, device="cpu")
    with pytest.raises(DataError, match="holds a run already"):
        job.train_neural([text], tmp_path / "lm", settings)
    with pytest.raises(DataError, match="needs the settings"):
        job.train_neural(
            [text], tmp_path / "lm", job.Neural(max_steps=2, eval_every=2, **{**SMALL, "lr": 0.1}), resume=True
        )


def test_a_transformer_of_characters_knows_the_space(text, tmp_path):
    (tmp_path / "dev.txt").write_text("1 2 z\n")
    settings = job.Neural(max_steps=2, eval_every=2, **SMALL)
    job.train_neural([text], tmp_path / "lm", settings, unit="char", dev=[tmp_path / "dev.txt"], device="cpu")
    lm = TransformerLM.load(tmp_path / "lm")
    unknown = lm.vocabulary.index("<unk>")
    assert [token == unknown for token in lm.encode("1 2 z")] == [False] * 4 + [True]
    assert lm.vocabulary[lm.encode(" ")[0]] == " "
    # The tokens that it was trained and evaluated on are those that it reads.
    _, trained, held_out = job._read([text], [tmp_path / "dev.txt"], tmp_path, settings, "char", None)
    assert held_out[0].tolist() == lm.encode("1 2 z")
    assert trained[0].tolist() == lm.encode(text.read_text().splitlines()[0])


def test_neural_by_command_with_dev_text_and_unknown_words(text, tmp_path):
    (tmp_path / "dev.txt").write_text("1 2 zebra\n")
    sizes = [f"--{name.replace('_steps', '').replace('_', '-')}={value}" for name, value in SMALL.items()]
    done = run(
        "lm", "train", text, "--neural", "--out", tmp_path / "lm", "--dev", tmp_path / "dev.txt", "--steps", 4,
        "--eval-every", 2, "--vocabulary-size", 5, "--device", "cpu", *sizes,
    )  # fmt: skip
    assert done.exit_code == 0
    assert "vocabulary 7" in done.output  # five digits, the boundary, <unk>
    known = set((tmp_path / "lm" / "tokens.txt").read_text().split())
    unknown = sum(word not in known for word in ("1", "2", "zebra"))
    assert f" {unknown} unknown" in run("lm", "score", tmp_path / "lm", tmp_path / "dev.txt").output


def test_white_space_that_is_a_token_is_a_word(tmp_path):
    """A no-break space, as a run's tokens.txt has it."""
    text, tokens, arpa = tmp_path / "a.txt", tmp_path / "tokens.txt", tmp_path / "lm.arpa"
    text.write_text("a\u00a0b a\u00a0b\n" * 5)
    tokens.write_text(Vocabulary(["a", "b", " ", "\u00a0"]).to_lines())
    job.train_ngram([text], arpa, order=2, vocabulary=tokens, unit="char")
    assert "\ta \u00a0" in arpa.read_text()
    lm = NGramAutomaton(arpa, ["<blank>", "a", "b", "\u00a0"])
    assert lm.score([1, 3, 2]) > lm.score([1, 2, 3])
