"""Labels that are pieces of words, from the command that trains to the text that comes out: made lines of words of syllables."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.commands import Command

from starseq import runs
from starseq.config import load_recipe
from starseq.data.errors import DataError
from starseq.jobs.train import train
from starseq.text.gaps import split_gaps
from starseq.text.pieces import SentencePieces

LETTERS, CELL = "kamilotu", 12
WORDS = ["ka", "kamimi", "katulo", "lo", "lokaka", "lomilo", "lotuka", "mi", "mitutu", "tu", "tuka", "tulo"]
SETTINGS = (
    "data.corpus=null", "text.unit=piece", "text.size=20", "text.unknown=drop", "data.max_items=8", "data.reader.height=32",
    "model.width=64", "model.dropout=0", "optim.lr=0.005", "optim.warmup_steps=20", "data.drop.p=0.2",
    "penalty={name: schedule, p0: 0.3, p_max: 0.3, half_life: 9}", "trainer.max_steps=300", "trainer.eval_every=100",
    "trainer.checkpoint_every=300", "trainer.log_every=60", "trainer.threads=1", "trainer.accelerator=cpu",
    "trainer.tensorboard=false", "data.cache=true",
)  # fmt: skip


def picture(text: str, noise: np.random.Generator) -> Image.Image:
    """Each letter is two bars; a space is three cells of nothing."""
    text = text.replace(" ", "   ")
    line = noise.normal(0, 12, (32, CELL * len(text)))
    for place, letter in enumerate(text):
        if letter in LETTERS:
            k, x = LETTERS.index(letter), CELL * place
            line[4 * k : 4 * k + 4, x + 1 : x + 11] = 255
            line[4 * ((3 * k + 1) % 8) :, x + 4 : x + 8][:4] = 255
    return Image.fromarray(255 - line.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, draw, noise = tmp_path_factory.mktemp("pieces"), random.Random(0), np.random.default_rng(0)
    rows = []
    for split, count in (("train", 240), ("dev", 12), ("test", 8)):
        for number in range(count):
            text = " ".join(draw.choices(WORDS, k=draw.randint(2, 4)))
            name = f"{split}{number}.png"
            image = picture(text, noise)
            image.save(root / name)
            size = {"width": image.width, "height": 32}
            rows.append({"id": f"{split}{number}", "path": name, "text": text, "split": split, **size})
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture(scope="module")
def run(corpus: Path) -> Path:
    """Trained by the command; `test_from_training_to_text` looks at it first."""
    folder = corpus / "run"
    train(load_recipe("digits", [*SETTINGS, f"data.root={corpus}"]), folder)
    return folder


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_training_to_text(corpus: Path, run: Path, tmp_path: Path, command: Command) -> None:
    """The run learns, and stands alone: it goes on elsewhere. Marked rows keep what is known, words have their times."""
    alone = tmp_path / "run"
    shutil.copytree(run, alone)
    loaded = runs.load(alone)
    assert len(loaded.tokeniser.vocabulary) == 21
    assert isinstance(loaded.tokeniser.pieces, SentencePieces)
    done = command("evaluate", alone, corpus / "manifest.jsonl", "--split", "test", "--device", "cpu")
    assert done.code == 0, done.err
    found = json.loads((alone / "results.json").read_text())
    assert found["train"]["best_dev"]["metric"] == "wer"
    assert found["train"]["best_dev"]["error"] < 30, found

    truth = [row for row in lines(corpus / "manifest.jsonl") if row["split"] == "test"]
    marked = tmp_path / "marked.jsonl"
    holes = [{**row, "path": str(corpus / str(row["path"])), "gaps": "marked"} for row in truth]
    for number, row in enumerate(holes):
        words = str(row["text"]).split()
        words[number % len(words)] = "*"
        row["text"] = "  ".join(words) + "  Ω"  # two spaces, and a letter that no piece has
    marked.write_text("".join(json.dumps(row) + "\n" for row in holes))

    done = command(
        "align", alone, marked, "-o", tmp_path / "aligned", "--device", "cpu", "--root", corpus, "--format", "json"
    )
    assert done.code == 0, done.err
    for row, aligned in zip(holes, lines(tmp_path / "aligned" / "alignment.jsonl"), strict=True):
        known = [word for word in str(row["text"]).split() if word not in "*Ω"]
        assert [label["label"] for label in aligned["labels"]] == known  # type: ignore[attr-defined]
        assert len(aligned["missing"]) == len(known) + 1  # type: ignore[arg-type]
        assert aligned["outside_vocabulary"] == ["Ω"]

    done = command("complete", alone, marked, "-o", tmp_path / "out.jsonl", "--device", "cpu", "--root", corpus)
    assert done.code == 0, done.err
    right = 0
    for row, true, came in zip(holes, truth, lines(tmp_path / "out.jsonl"), strict=True):
        before, behind = split_gaps(str(row["text"]))
        assert str(came["text"]).startswith(before)
        assert str(came["text"]).endswith(behind)
        right += str(came["text"]).split()[:-1] == str(true["text"]).split()
    assert right >= 4


def test_a_language_model_of_pieces(corpus: Path, run: Path, tmp_path: Path, command: Command) -> None:
    """`lm train --recipe RUN` spells its text by the run's pieces; the search with it knows where words begin."""
    arpa, text = tmp_path / "lm.arpa", tmp_path / "text.txt"
    text.write_text("".join(f"{row['text']}\n" for row in lines(corpus / "manifest.jsonl") if row["split"] == "train"))
    assert command("lm", "train", text, "--out", arpa, "--order", 3, "--recipe", run).code == 0
    unigrams = arpa.read_text().partition("\\1-grams:")[2].partition("\\2-grams:")[0].split("\n")
    known = {line.split("\t")[1] for line in unigrams if line} - {"<unk>", "<s>", "</s>"}
    assert {"▁ka", "ka"} < known < set(runs.load(run).tokeniser.vocabulary)
    assert command("lm", "score", arpa, text, "--recipe", run).code == 0
    words = tmp_path / "words.arpa"
    assert command("lm", "train", text, "--out", words, "--order", 2, "--recipe", run, "--unit", "word").code == 0
    tuned = command(
        "tune",
        run,
        "--lm",
        arpa,
        "--rescore",
        words,
        "--beam",
        30,
        "--device",
        "cpu",
    )
    assert tuned.code == 0, tuned.err
    done = command("transcribe", run, corpus / "test0.png", "--lm", arpa, "--device", "cpu")
    assert done.code == 0, done.err
    assert set(done.out.split()) & set(WORDS)
    pseudo = (
        "pseudo",
        run,
        corpus / "manifest.jsonl",
        "-o",
        tmp_path / "pseudo.jsonl",
        "--split",
        "dev",
        "--device",
        "cpu",
    )
    made = command(*pseudo, "--kind", "keep-known", "--lm", arpa)
    assert made.code == 0, made.err


def test_the_same_text_gives_the_same_run(corpus: Path, run: Path, tmp_path: Path) -> None:
    """And a model that is given is copied: the run needs the file no more."""
    given = tmp_path / "given.model"
    shutil.copy(run / "pieces.model", given)
    settings = [*SETTINGS, "trainer.max_steps=1", "trainer.eval_every=1", "text.size=null", f"text.pieces={given}"]
    train(load_recipe("digits", [*settings, f"data.root={corpus}"]), tmp_path / "run")
    given.unlink()
    assert (tmp_path / "run" / "pieces.model").read_bytes() == (run / "pieces.model").read_bytes()
    assert runs.load(tmp_path / "run").tokeniser == runs.load(run).tokeniser
    again = [*SETTINGS, "trainer.max_steps=1", "trainer.eval_every=1", f"data.root={corpus}"]
    train(load_recipe("digits", again), tmp_path / "again")
    assert (tmp_path / "again" / "pieces.model").read_bytes() == (run / "pieces.model").read_bytes()
    (tmp_path / "run" / "pieces.model").write_bytes(SentencePieces.trained(["ab", "abc"]).model)
    with pytest.raises(DataError, match=r"pieces.model: its pieces are not those of tokens.txt"):
        runs.load(tmp_path / "run")
    (tmp_path / "run" / "pieces.model").unlink()
    with pytest.raises(DataError, match=r"not a run folder that can be used, for it lacks pieces.model"):
        runs.load(tmp_path / "run")


BAD = [
    (["text.size=9000"], r"manifest.jsonl: text.size: 9,000 pieces are more than the \d+ that the text supports"),
    (["text.size=3"], r"text.size: 3 pieces are fewer than the 9 that the characters of the text need"),
    (["text.size=null", "text.pieces=/nowhere/x.model"], r"text.pieces: /nowhere/x.model: no such file"),
    (["text.pieces=x.model"], r"text.size: the labels are pieces, and the model of pieces says which there are"),
    (["text.unit=char", "text.pieces=x.model"], r"text.pieces: a model of pieces needs text.unit=piece, and it is 'char'"),
    (["text.unknown=letters"], r"text.unknown: 'letters' spells words, and text.unit is 'piece'"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "sentence"), BAD)
def test_bad_settings_are_one_sentence(corpus: Path, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        train(load_recipe("digits", [*SETTINGS, f"data.root={corpus}", *overrides]), tmp_path / "run")


def test_pieces_that_lack_letters_of_the_text(corpus: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.model"
    given.write_bytes(SentencePieces.trained(["kami", "kaka", "lomi"]).model)
    settings = [*SETTINGS, f"data.root={corpus}", "text.size=null", f"text.pieces={given}", "trainer.max_steps=1"]
    with pytest.raises(
        DataError, match=r"cannot be written: character '[tu]' of the word .*: text.pieces=null learns from the"
    ):
        train(load_recipe("digits", [*settings, "text.unknown=raise"]), tmp_path / "run")
    said: list[str] = []
    train(load_recipe("digits", [*settings, "trainer.eval_every=1"]), tmp_path / "run", on_message=said.append)
    assert any("are not in the vocabulary, most often" in line and "text.pieces=null" in line for line in said), said
