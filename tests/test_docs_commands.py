"""Every command on a page is one that there is, and all of them run, in order, in a folder like the one that the page speaks of.

A line of a block of ```sh or ```console is run if it begins with `starseq`. So that this takes minutes, trainings are made small by
overrides that the page does not have. What needs many processes, a GPU or a browser is looked at, and not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer
from docs import build
from PIL import Image
from tests import tiny_hf
from tests.commands import Command
from tests.test_docs import FENCE

from starseq import cli
from starseq.corpora import digits
from starseq.data import audio
from starseq.data.files import hash_of
from starseq.data.manifest import read_bytes, read_manifest

PAGES = [*build.pages(), build.ROOT / "CONTRIBUTING.md"]
NOT_RUN = ("bench", "draw", "demo")
"""takes long, and has tests of its own; `draw` is run by `make docs`"""
SMALL = (
    "trainer.max_steps=4", "trainer.eval_every=2", "trainer.checkpoint_every=2", "trainer.accelerator=cpu", "trainer.threads=1",
    "trainer.tensorboard=false", "trainer.precision=32", "optim.warmup_steps=1", "data.workers=0", "data.cache=false",
)  # fmt: skip
MODELS = {
    "audio": ("model.width=16", "model.hidden=16", "model.layers=1", "model.dropout=0"),
    "images": (
        "model.name=conv_small",
        "model.width=8",
        "model.layers=1",
        "data.reader.height=32",
        "data.augment=null",
    ),
    "pretrained": ("optim.head_steps=1",),
}
INSTEAD = {"facebook/wav2vec2-base": "weights/encoder", "DATA": "clips", "DIR": "fitted"}
"""what a page says, and what stands for it here"""


class Step(NamedTuple):
    """A command of a page, and what it prints there, if the page says so."""

    command: str
    expected: str | None


def steps(page: Path) -> list[Step]:
    found = []
    for language, source in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            for step in re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]:
                document = re.match(r".*<<'END'\n.*?^END\n", step, re.DOTALL | re.MULTILINE)
                command = document[0] if document else step.partition("\n")[0] + "\n"
                found.append(Step(command.rstrip("\n"), step.removeprefix(command)))
        elif language in ("sh", "bash"):
            found += [Step(line.partition(" #")[0].strip(), None) for line in source.splitlines() if line[:1] != "#"]
    return [step for step in found if step.command]


def of_starseq(command: str) -> list[str] | None:
    """The words behind `starseq`, also under torchrun and srun; None where it is another program."""
    words = shlex.split(command.partition(" | ")[0].partition("<<")[0])
    if "starseq" not in words or "python" in words[0]:
        return None
    return words[words.index("starseq") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_there(page: Path) -> None:
    """Names and options, checked by the parser; files and targets by being there."""
    makefile = (build.ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps(page):
        words = of_starseq(step.command)
        program, *rest = shlex.split(step.command.partition("<<")[0])
        if words is not None:
            context, command = None, typer.main.get_command(cli.app)
            while hasattr(command, "list_commands"):
                assert words[:1], step.command
                assert words[0] in command.list_commands(None), step.command
                command, words = command.get_command(None, words[0]), words[1:]
            with command.make_context(step.command, list(words), parent=context):
                pass
        elif program == "make":
            assert re.search(rf"^{rest[0]}:", makefile, re.MULTILINE), step.command
        elif program == "python":
            assert (build.ROOT / rest[0]).exists(), step.command
        elif program.startswith(("benchmarks/", ".ci/")):
            assert os.access(build.ROOT / program, os.X_OK), step.command
        else:
            assert program in ("pip", "cat", "cut", "git"), step.command


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader of the pages has: clips with texts, a Kaldi folder, pages, weights, runs."""
    folder = tmp_path_factory.mktemp("world")
    _speech(folder)
    _pages(folder)
    (folder / "text.txt").write_text("the quick fox\na lazy dog\nthe dog\n" * 20)
    (folder / "heldout.txt").write_text("the lazy fox\n")
    tiny_hf.save(
        folder / "weights" / "encoder", "whisper", max_source_positions=400
    )  # as a graph it reads no longer audio
    tiny_hf.save(folder / "weights" / "ctc-model", "wav2vec2", letters="abcdefg")
    shutil.copytree(folder / "clips", folder / "corpus")
    run("starseq prepare folder corpus corpus", folder)
    run("starseq prepare pagexml pages letters --marks transkribus", folder)
    run("starseq train speech data.root=corpus --out runs/mine", folder)
    run("starseq train handwriting data.root=letters --out runs/letters", folder)
    run("starseq lm train text.txt --recipe runs/mine --out other.arpa", folder)
    return folder


def _speech(folder: Path) -> None:
    words = ["the", "quick", "fox", "lazy", "dog"]
    generator = torch.Generator().manual_seed(0)
    lines = []
    (folder / "clips").mkdir()
    (folder / "data" / "train").mkdir(parents=True)
    for number in range(40):
        said = [words[int(i)] for i in torch.randint(0, 5, (3,), generator=generator)]
        wave = 0.1 * torch.randn(16_000 + 1_000 * (number % 5), generator=generator)
        if number % 3 == 0:
            said[number % 2] = "*"
        (folder / "clips" / f"{number}.wav").write_bytes(audio.encode(wave, 16_000))
        (folder / "clips" / f"{number}.txt").write_text(" ".join(said))
        lines.append((f"u{number}", f"{folder}/clips/{number}.wav", " ".join(said)))
    (folder / "data" / "train" / "wav.scp").write_text("".join(f"{id} {wav}\n" for id, wav, _ in lines))
    (folder / "data" / "train" / "text").write_text("".join(f"{id} {text}\n" for id, _, text in lines))
    shutil.copy(folder / "clips" / "1.wav", folder / "new.wav")
    (folder / "long.wav").write_bytes(audio.encode(0.1 * torch.randn(16_000 * 40, generator=generator), 16_000))
    (folder / "words.txt").write_text("the quick fox")


def _pages(folder: Path) -> None:
    """Two pages of lines of digits, some of which nobody could read."""
    digits.prepare(folder / "made", train=40, dev=2, test=2)
    (folder / "pages").mkdir()
    rows = [row for row in read_manifest(folder / "made" / "manifest.jsonl") if row["split"] == "train"]
    for number in range(5):
        page, lines = Image.new("L", (300, 8 * 40), 255), []
        for place, row in enumerate(rows[8 * number : 8 * number + 8]):
            with Image.open(_bytes(row, folder / "made")) as line:
                page.paste(line.convert("L"), (10, 40 * place + 4))
                right, low = 10 + line.width, 40 * place + 36
            text = row.text[:2] + "[...]" + row.text[3:] if place % 2 else row.text
            box = f"10,{low - 32} {right},{low - 32} {right},{low} 10,{low}"
            lines.append(
                f'<TextLine id="l{place}"><Coords points="{box}"/><Baseline points="10,{low} {right},{low}"/>'
                f"<TextEquiv><Unicode>{text}</Unicode></TextEquiv></TextLine>"
            )
        page.save(folder / "pages" / f"p{number}.png")
        (folder / "pages" / f"p{number}.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15">'
            f'<Page imageFilename="p{number}.png" imageWidth="300" imageHeight="320"><TextRegion id="r">'
            f"{''.join(lines)}</TextRegion></Page></PcGts>"
        )


def _bytes(row: object, folder: Path) -> object:
    import io

    return io.BytesIO(read_bytes(row, folder))  # type: ignore[arg-type]


def small(words: list[str]) -> list[str]:
    """The command with what makes it short. What it says itself comes last, and so holds."""
    words = [INSTEAD.get(word, word) for word in words]
    words = [word.replace("facebook/wav2vec2-base", "weights/encoder") for word in words]
    if words[0] in ("train", "fit") and not {"--list", "--resume"} & set(words):
        kind = "images" if {"letters", "handwriting", "digits"} & set(words) else "audio"
        kind = "pretrained" if any(word.startswith("model.path") for word in words) else kind
        at = 2 if words[0] == "train" or len(words) > 1 else 1
        extra = [*SMALL, *MODELS[kind]]
        return [*words[:at], *extra, *words[at:]]
    if words[:3] == ["lm", "train", "--neural"]:
        sizes = "--steps 4 --eval-every 2 --width 8 --heads 2 --hidden 8 --layers 1 --warmup 1 --device cpu"
        return [*words, *sizes.split()]
    if words[0] in ("complete", "pseudo") and "--reviewed" not in words:
        return [*words, *([] if "--force" in words else ["--force"]), "--device", "cpu"]
    return words


def run(command: str, folder: Path) -> str:
    """What it prints; the exit code is 0, or the program says why."""
    words = of_starseq(command)
    made_small = words is not None and " | " not in command
    line = shlex.join([sys.executable, "-m", "starseq", *small(words or [])]) if made_small else command
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, text=True, stdout=-1, stderr=-1)
    mistake = done.returncode == 2 and "optim.learning_rate" in command  # which a page shows
    # 1: rows that cannot be aligned are listed
    assert done.returncode == 0 or mistake or (done.returncode == 1 and "align" in line), (
        f"{line}\n{done.stdout}{done.stderr}"
    )
    return done.stdout + (done.stderr if mistake else "")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_commands_run_in_order(page: Path, world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    todo = [step for step in steps(page) if of_starseq(step.command) or step.command.startswith(("cat", "cut"))]
    todo = [step for step in todo if not step.command.startswith(("torchrun", "srun"))]
    todo = [step for step in todo if (of_starseq(step.command) or [""])[0] not in NOT_RUN]
    if not todo:
        return
    shutil.copytree(world, folder)
    recordings = folder / "data" / "train" / "wav.scp"
    recordings.write_text(recordings.read_text().replace(str(world), str(folder)))
    for step in todo:
        made = re.search(r"^starseq (?:train|fit) .*--out (\S+)", step.command)
        if made is not None:  # of the world, or of another story on the page
            shutil.rmtree(folder / made[1], ignore_errors=True)
        if (reviewed := re.search(r" (\S+) -o \S+ --reviewed (\S+)", step.command)) is not None:
            record = {"manifest": hash_of(folder / reviewed[1]), "rows": []}  # as the sheet saves it
            (folder / reviewed[2]).write_text(json.dumps(record))
        printed = run(step.command, folder)
        if step.expected:
            assert printed == step.expected, step.command


def test_the_command_reference_has_every_verb(command: Command) -> None:
    from docs import hooks

    text = hooks.commands()
    for verb in typer.main.get_command(cli.app).commands:
        assert f"## starseq {verb}\n" in text
    assert "--threshold" in text
