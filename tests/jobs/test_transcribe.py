"""`starseq transcribe`: what a run reads in files, greedily and by a search, at which places, and sentences for bad files."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.commands import Command
from tests.run_folder import CPU, make_run

from starseq import runs
from starseq.data.manifest import read_bytes, read_manifest
from starseq.jobs._search import Search
from starseq.jobs._where import Where
from starseq.jobs.evaluate import evaluate
from starseq.jobs.transcribe import Failure, Transcript, transcribe

# A language model that has read digits in pairs.
ARPA = "\n\\data\\\nngram 1=13\nngram 2=10\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\t-0.5\n-1\t</s>\n" + "".join(
    f"-1.1\t{digit}\t-0.6\n" for digit in range(10)
) + "\n\\2-grams:\n" + "".join(f"-0.2\t{digit} {digit}\n" for digit in range(10)) + "\n\\end\\\n"  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "stc")
    (folder / "lm.arpa").write_text(ARPA)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "stc"))


def images(run: Path, folder: Path) -> dict[str, Path]:
    """The test lines as files, by id."""
    loaded, files = runs.load(run), {}
    for row in read_manifest(loaded.manifest):
        if row["split"] == "test":
            files[row.id] = folder / f"{len(files)}.png"
            files[row.id].write_bytes(read_bytes(row, loaded.manifest.parent))
    return files


def image(run: Path, folder: Path) -> Path:
    return next(iter(images(run, folder).values()))


def transcripts(*arguments: Any, **options: Any) -> list[Transcript]:
    found = list(transcribe(*arguments, **{"where": CPU, **options}))
    assert all(isinstance(one, Transcript) for one in found)
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_it_reads_what_evaluate_reads(run: Path, tmp_path: Path, workers: int) -> None:
    lm, files, done = run / "lm.arpa", images(run, tmp_path), []
    search = Search(lm, None, lm, 2.0, 1.0, 0.5, 3.0, beam=20)
    (split,) = evaluate(run, splits=["test"], search=search, where=CPU).splits
    read = {
        method: {reading.id: reading.hypotheses[method] for reading in split.readings}
        for method in ("greedy", "beam", "rescored")
    }
    assert len({tuple(texts.values()) for texts in read.values()}) == 3  # else this proves little
    beam = replace(search, rescore=None, rescore_alpha=None, rescore_beta=None)
    searches = {"greedy": Search(), "beam": beam, "rescored": search}
    loaded = runs.load(run)
    heard = runs.emissions(loaded, loaded.manifest, split="test", root=loaded.manifest.parent)
    probs = {str(files[emission.id]): emission.log_probs.exp() for emission in heard}
    for method, texts in read.items():
        count = lambda *numbers: done.append(numbers)  # noqa: E731
        where = Where("cpu", workers=workers, progress=count)
        found = transcripts(run, list(files.values()), search=searches[method], where=where)
        assert [one.path for one in found] == [str(path) for path in files.values()]
        assert {id: one.text for id, one in zip(files, found, strict=True)} == texts
        for one in found:
            assert one.text == "".join(token.token for token in one.tokens)
            assert all(token.start < token.end for token in one.tokens)
            assert [token.start for token in one.tokens] == sorted(token.start for token in one.tokens)
            for token in one.tokens:  # what the model gives it where it stands, whoever chose it
                shares = probs[one.path][int(token.start) // 4 : -(-int(token.end) // 4), int(token.token) + 1]
                assert token.confidence == pytest.approx(float(shares.mean()), abs=1e-3)
    assert done == [(n, 4) for n in (1, 2, 3, 4)] * 3


@pytest.mark.parametrize("merge_repeats", [False, True])
def test_where_the_search_reads_the_same_the_places_are_the_same(
    run: Path, tmp_path: Path, merge_repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runs.load

    def sure(*given: Any, **options: Any) -> runs.Run:
        found = real(*given, **options)
        settings = found.recipe.criterion.settings | {"merge_repeats": merge_repeats}
        recipe = replace(found.recipe, criterion=replace(found.recipe.criterion, settings=settings))
        found = replace(found, recipe=recipe)
        assert found.merges_repeats == merge_repeats
        with torch.no_grad():
            for parameter in found.model.output.parameters():
                parameter *= 500
        return found

    monkeypatch.setattr(runs, "load", sure)
    path = image(run, tmp_path)
    (greedy,) = transcripts(run, [path])
    (searched,) = transcripts(run, [path], search=Search(beam=500))
    assert greedy.text == searched.text
    assert len(greedy.text) > 3
    for one, two in zip(greedy.tokens, searched.tokens, strict=True):
        assert one[:3] == two[:3]
        assert one.confidence == pytest.approx(two.confidence, abs=1e-3)


def test_a_file_that_cannot_be_read_keeps_its_place(run: Path, tmp_path: Path) -> None:
    good, bad = image(run, tmp_path), tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    found = list(transcribe(run, [good, bad, good], search=Search(beam=5), where=Where("cpu", workers=1)))
    assert found[0] == found[2]
    assert found[1] == Failure(str(bad), f"{bad}: not an image that can be decoded")


def test_a_whole_page_is_no_line(run: Path, tmp_path: Path) -> None:
    page, heading = tmp_path / "page.png", tmp_path / "heading.png"
    Image.new("L", (900, 1200), 230).save(page)
    Image.new("L", (2000, 900), 230).save(heading)
    refused, read = transcribe(run, [page, heading], where=CPU)
    assert isinstance(refused, Failure)
    assert refused.reason.startswith(f"{page}: 900 x 1200 pixels look like a whole page, and a run reads lines;")
    assert not isinstance(read, Failure)


def test_transcripts_have_places_in_the_file_as_it_is(run: Path, tmp_path: Path) -> None:
    small = image(run, tmp_path)
    large = tmp_path / "b.png"
    with Image.open(small) as opened:
        width, height = opened.size
        opened.resize((2 * width, 2 * height)).save(large)
    empty = tmp_path / "c.png"
    empty.touch()
    one, two, three = transcribe(run, [small, large, empty], where=CPU)
    assert isinstance(one, Transcript)
    assert isinstance(two, Transcript)
    assert three == Failure(str(empty), f"{empty}: the file is empty")
    assert one.text == "".join(token.token for token in one.tokens)
    assert one.tokens  # a model with the weights it was born with reads something
    for transcript, scale in ((one, 1), (two, 2)):
        for token in transcript.tokens:
            assert token.start % (4 * scale) == 0
            assert token.start < token.end <= scale * width
            assert 0 < token.confidence <= 1


def test_speech_has_seconds(tmp_path: Path) -> None:
    import numpy as np
    import soundfile

    overrides = ("data.reader={name: audio, rate: 16000, bands: 80}", "model.stride=3", "criterion.name=ctc")
    run = make_run(tmp_path / "run", *overrides, lines=1)
    noise = np.random.default_rng(0).normal(size=16_000).astype("float32") * 0.1
    soundfile.write(tmp_path / "a.wav", noise, 16_000)
    (found,) = transcribe(run, [tmp_path / "a.wav"], where=CPU)
    assert isinstance(found, Transcript)
    assert found.unit == "seconds"
    assert all(0 <= token.start < token.end <= 1.0 for token in found.tokens)


def test_the_command(run: Path, command: Command, tmp_path: Path) -> None:
    good, bad = image(run, tmp_path), tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    out = tmp_path / "texts.jsonl"
    done = command("transcribe", run, bad, good, tmp_path / "none.png", "--json", "-o", out, "--device", "cpu")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        f"starseq: {bad}: not an image that can be decoded",
        f"starseq: {tmp_path / 'none.png'}: no such file or directory",
    ]
    (found,) = map(json.loads, out.read_text().splitlines())
    assert found["path"] == str(good)
    assert found["unit"] == "columns"
    done = command("transcribe", run, good, "--device", "cpu")
    assert (done.code, done.out) == (0, f"{good}\t{found['text']}\n")

    weights = ["--alpha", "3", "--beta", "1", "--beam", "20", "--device", "cpu"]
    searched = command("transcribe", run, good, "--lm", run / "lm.arpa", *weights)
    assert (searched.code, searched.err) == (0, "")
    assert searched.out != done.out
    (run / "tuned.json").write_text(
        json.dumps({"beam": {"alpha": 3.0, "beta": 1.0, "lm": str(run / "lm.arpa"), "lexicon": None}})
    )
    tuned = command("transcribe", run, good, "--lm", run / "lm.arpa", "--beam", "20", "--device", "cpu")
    assert tuned == searched


def test_a_beta_alone_asks_for_a_search(run: Path, tmp_path: Path) -> None:
    path = image(run, tmp_path)
    (greedy,), (short,) = (transcripts(run, [path], search=Search(beta=beta)) for beta in (None, -5.0))
    assert len(short.text) < len(greedy.text)


def test_a_file_whose_name_is_no_text(run: Path, command: Command, tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/\xff.png")
    image(run, tmp_path).rename(name)
    done = command("transcribe", run, name, "-o", tmp_path / "texts", "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "texts").read_bytes().startswith(os.fsencode(name) + b"\t")
    assert command("transcribe", run, name, "--json", "-o", tmp_path / "texts", "--device", "cpu").code == 0
    assert json.loads((tmp_path / "texts").read_text())["path"] == name


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{tmp}/none", "a.png"], "no such run folder"),
        (["{run}", "a.png", "--device", "gpu"], "device 'gpu' is none of auto, cpu"),
        (["{run}", "a.png", "--lm", "none.arpa"], "none.arpa: no such file or directory"),
        (["{run}", "a.png", "--lm", "{run}/lm.arpa"], "weights of beam are not tuned: run `starseq tune` with"),
        (["{run}", "a.png", "--rescore", "{run}/lm.arpa"], "weights of rescore are not tuned: run `starseq tune` with"),
        (["{run}", "a.png", "--alpha", "1"], "alpha: a weight of 1 needs a language model, and none was given"),
        (["{run}", "a.png", "--rescore-beta", "2"], "rescore beta: a weight of 2 needs a language model to rescore"),
        (["{run}", "a.png", "--rescore-alpha", "2"], "rescore alpha: a weight of 2 needs a language model to rescore"),
        (["{run}", "a.png", "--beam", "0"], "beam: size must be at least 1, not 0"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Path, command: Command, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = command("transcribe", *(argument.format(run=run, tmp=tmp_path) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
