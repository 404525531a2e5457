"""`starseq train` as a user runs it: killed and resumed, by several processes, with mistakes, dry."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.train.two_processes import SHARES
from typer.testing import CliRunner

from starseq import runs
from starseq.cli import app
from starseq.config import load_recipe, recipe_names
from starseq.data.dataset import collate
from starseq.data.errors import DataError
from starseq.data.files import locked
from starseq.jobs.train import build_loop, dry_run, train
from starseq.train.checkpoint import load_checkpoint, save_checkpoint
from starseq.train.loop import Hooks, Window
from starseq.train.metrics import read_metrics
from starseq.train.processes import start

ROOT = Path(__file__).parents[2]
RECIPE = ("digits", *tiny.SETTINGS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.corpus(tmp_path_factory.mktemp("digits"))


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starseq.jobs.train._draw_curves", lambda folder: None)


def python(*arguments: str, torchrun: int = 0) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(torchrun)] if torchrun else []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments], env=environment, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


STEPS = 120


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_weights(
    kills: int, corpus: Path, tmp_path: Path
) -> None:
    overrides = (f"trainer.max_steps={STEPS}", "trainer.log_every=1", "trainer.checkpoint_every=7")
    train(tiny.recipe(corpus, *overrides), tmp_path / "whole")
    draw, folder, killed_after = random.Random(), tmp_path / "killed", 0
    command = [
        "-m",
        "starseq",
        "train",
        *RECIPE,
        *overrides,
        f"data.root={corpus}",
        "--out",
        str(folder),
        "--resume",
    ]
    for _ in range(10 * kills):
        process = python(*command)
        until = killed_after + draw.randint(1, 25)
        while len(read_metrics(folder / "metrics.csv")) < until and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), output
        killed_after = len(read_metrics(folder / "metrics.csv"))
        if killed_after == STEPS:  # it was over before this process had its turn: once more, from nothing
            shutil.rmtree(folder)
            killed_after = 0
            continue
        kills -= 1
        if not kills:
            break
    assert kills == 0
    result = train(None, folder, resume=True)
    assert result.steps == STEPS
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    whole, killed = (load_checkpoint(run / "last.ckpt") for run in (tmp_path / "whole", folder))
    assert all(torch.equal(tensor, killed["model"][name]) for name, tensor in whole["model"].items())
    assert whole["penalty"]["step"] == killed["penalty"]["step"] == STEPS
    assert whole["sampler"] == killed["sampler"]
    rows = read_metrics(folder / "metrics.csv")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in rows] == [row["loss"] for row in read_metrics(tmp_path / "whole" / "metrics.csv")]


def test_two_processes_with_unequal_shards_are_one_with_the_joined_batch(corpus: Path, tmp_path: Path) -> None:
    finished(python(str(ROOT / "tests/train/two_processes.py"), str(corpus), str(tmp_path), torchrun=2))
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    loop = build_loop(tiny.recipe(corpus, "model.dropout=0"), tmp_path, start(accelerator="cpu"), Hooks())
    joined = sorted(i for share in SHARES for batch in share for i in batch)
    pending = loop.backward(Window(0, 0, [collate([loop.data.train[i] for i in joined])]))
    assert pending.counts[0] == 9
    torch.testing.assert_close(two["loss"], pending.total / pending.counts[0], rtol=1e-5, atol=0)
    for name, parameter in loop.network.named_parameters():
        torch.testing.assert_close(two["grads"][name], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_same_command_under_torchrun(corpus: Path, tmp_path: Path) -> None:
    """Two processes share each step; stopped and resumed, they end with the same weights."""
    common = [*RECIPE, f"data.root={corpus}", "optim.batches_per_step=4", "optim.schedule.name=constant"]

    def command(folder: str, steps: int, *more: str) -> str:
        arguments = [
            "-m",
            "starseq",
            "train",
            *common,
            f"trainer.max_steps={steps}",
            "--out",
            str(tmp_path / folder),
        ]
        return finished(python(*arguments, *more, torchrun=2))

    output = command("whole", 12)
    assert output.count("12 steps") == 1  # only the first process speaks
    command("parts", 6)
    command("parts", 12, "--resume")
    whole, parts = (load_checkpoint(tmp_path / name / "last.ckpt")["model"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def run_cli(*arguments: str) -> tuple[int, str, str]:
    """As the command runs: what it raises is what `main` prints."""
    result = CliRunner().invoke(app, list(arguments))
    error = "" if result.exception is None else str(result.exception)
    return result.exit_code, result.stdout, error


def mistakes(corpus: Path, folder: Path) -> dict[str, tuple[Sequence[str], str]]:
    there = ["digits", *tiny.SETTINGS, f"data.root={corpus}", "--out", str(folder)]
    return {
        "no recipe": ([], "which recipe?"),
        "unknown recipe": (["digit"], "did you mean digits?"),
        "no such manifest": (
            ["digits", f"data.root={folder}", "data.manifest=partial.jsonl", "--out", str(folder / "x")],
            "partial.jsonl: no such manifest",
        ),
        "no root": (["handwriting", "--out", str(folder / "x")], "data.root is not given: where is the corpus?"),
        "wrong root": (
            ["handwriting", f"data.root={folder}", "--out", str(folder / "x")],
            "no such manifest; data.root is",
        ),
        "a run is there": (
            there,
            f"there is a run here already: `starseq train --resume {folder}` goes on with it",
        ),
        "a file is there": (
            ["digits", f"data.root={corpus}", "--out", str(folder / "recipe.yaml")],
            "recipe.yaml: not a folder",
        ),
        "another recipe": (
            [*there, "optim.lr=0.5", "seed=1", "--resume"],
            "not the one that the run began with: optim.lr: 0.01 -> 0.5; seed: 0 -> 1",
        ),
        "another recipe, by what changes": (
            ["seed=1", "optim.lr=0.5", "--resume", "--out", str(folder)],
            "not the one that the run began with: optim.lr: 0.01 -> 0.5; seed: 0 -> 1",
        ),
        "nothing to change": (
            ["seed=1", "--resume", "--out", str(folder / "x")],
            "no run to resume, for it has no recipe.yaml",
        ),
        "a key that is none": (["sed=1", "--resume", "--out", str(folder)], "the nearest is seed"),
        "nothing to resume": (["--resume", "--out", str(folder / "x")], "no run to resume, for it has no recipe.yaml"),
        "no folder to resume": (["--resume", str(folder / "x")], "no run to resume, for it has no recipe.yaml"),
        "no such device": ([*there, "trainer.accelerator=cuda", "--resume"], "there is no CUDA device here"),
        "no such device, in Lightning's words": (
            [*there, "trainer.accelerator=gpu", "--resume"],
            "'gpu' is asked for, and",
        ),
    }


NAMES = list(mistakes(Path(), Path()))


@pytest.fixture(scope="module")
def run_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(tiny.recipe(corpus, "trainer.max_steps=2", "trainer.eval_every=2"), folder)
    return folder


@pytest.mark.parametrize("mistake", NAMES)
def test_a_mistake_is_one_sentence_and_touches_nothing(mistake: str, corpus: Path, run_folder: Path) -> None:
    if mistake.startswith("no such device") and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    arguments, sentence = mistakes(corpus, run_folder)[mistake]
    if mistake.startswith(("another recipe", "no such device")):
        arguments = [*arguments, "trainer.max_steps=2", "trainer.eval_every=2"]
    before = sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*"))
    code, _, error = run_cli("train", *arguments)
    assert code != 0
    assert sentence in error
    assert sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*")) == before


def test_a_folder_is_one_trainings(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(corpus, "trainer.max_steps=2", "trainer.eval_every=2")
    with locked(tmp_path, tmp_path / ".lock"):
        for resume in (False, True):
            with pytest.raises(DataError, match="another process is writing it"):
                train(recipe, tmp_path, resume=resume)
    assert not list(tmp_path.iterdir())


def test_a_finished_training_without_its_checkpoint_does_not_begin_anew(run_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (folder / "last.ckpt").unlink()
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(
        DataError, match=r"this training is over, and without last\.ckpt there is nothing to go on from"
    ):
        train(None, folder, resume=True)
    assert (folder / "model.safetensors").read_bytes() == before


def test_the_command(corpus: Path, tmp_path: Path) -> None:
    arguments = [*RECIPE, "trainer.max_steps=3", f"data.root={corpus}", "--out", str(tmp_path / "run")]
    code, output, error = run_cli("train", *arguments)
    assert (code, error) == (0, "")
    assert "3 steps" in output
    assert "best CER on dev" in output
    assert runs.load(tmp_path / "run").step == 3


def test_stopped_by_hand_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object, on_message: Callable[[str], None], **options: object) -> None:
        on_message("10 rows to train on")
        raise KeyboardInterrupt

    monkeypatch.setattr("starseq.jobs.train.train", stopped)
    folder = tmp_path / "run"
    resumes = f"stopped; `starseq train --resume {folder}` "
    for file, sentence in {
        ".": "stopped before training began; the same command begins anew",
        "recipe.yaml": f"{resumes}begins anew, for there is no checkpoint yet",
        "last.ckpt": f"{resumes}goes on from the last checkpoint",
    }.items():
        folder.mkdir(exist_ok=True)
        (folder / file).touch()
        result = CliRunner().invoke(app, ["train", "digits", "--out", str(folder)])
        assert result.exit_code == 130
        assert sentence in result.output


@pytest.mark.parametrize(
    ("recipe", "folder"),
    [
        ("digits", "digits"),
        ("{tmp}/my.yaml", "my"),
        ("{tmp}/my.yml", "my"),
        ("{tmp}/my.yaml2.yaml", "my.yaml2"),
    ],
)
def test_a_run_has_the_name_of_its_recipe(
    recipe: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("my.yaml", "my.yml", "my.yaml2.yaml"):
        (tmp_path / name).write_text("base: digits\n")
    found: list[Path] = []
    monkeypatch.setattr("starseq.jobs.train.train", lambda recipe, out, **options: found.append(out))
    CliRunner().invoke(app, ["train", recipe.format(tmp=tmp_path)])
    assert found == [Path("runs") / folder]


def test_a_run_that_goes_on_needs_only_what_changes(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    for arguments, log_every in (
        (["trainer.log_every=1", "--resume", "--out", str(folder)], 1),
        (["--resume", str(folder), "trainer.log_every=2"], 2),
        (["--resume", str(folder)], 2),
    ):
        code, _, error = run_cli("train", *arguments)
        assert code == 0, error
        found, before = (load_recipe(place / "recipe.yaml") for place in (folder, run_folder))
        assert (found.trainer.log_every, found.model, found.data) == (log_every, before.model, before.data)


@pytest.mark.parametrize("name", ["digits", "my.yaml"])
def test_a_recipe_that_goes_on_is_not_taken_for_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("base: digits\n")
    found: list[tuple[bool, Path]] = []
    monkeypatch.setattr("starseq.jobs.train.train", lambda recipe, out, **_: found.append((recipe is None, out)))
    run_cli("train", name, "--resume")
    assert found == [(False, Path("runs") / name.removesuffix(".yaml"))]


def test_a_live_folder_is_refused_before_anything_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from starseq.cli import app\n"
        "try: app(sys.argv[1:], standalone_mode=False)\n"
        "except ValueError as error: print(error, 'torch' in sys.modules)"
    )
    with locked(tmp_path / "run", tmp_path / "run" / ".lock"):
        for arguments in (["digits", "--out", str(tmp_path / "run")], ["--resume", "--out", str(tmp_path / "run")]):
            output = finished(python("-c", script, "train", *arguments))
            assert output == f"{tmp_path / 'run'}: another process is writing it False\n"
        assert os.listdir(tmp_path / "run") == [".lock"]


def test_only_the_first_of_several_processes_looks_whether_a_folder_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []
    monkeypatch.setattr("starseq.jobs.train.train", lambda recipe, out, **_: found.append(out))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "1")
    with locked(tmp_path, tmp_path / ".lock"):
        run_cli("train", "digits", "--out", str(tmp_path))
        assert found == [tmp_path]
        monkeypatch.setenv("RANK", "0")
        assert "another process is writing it" in run_cli("train", "digits", "--out", str(tmp_path))[2]
    assert found == [tmp_path]


def test_the_list_of_recipes() -> None:
    """Each with what it is for, on what data, and how long it takes, also in the help."""
    _, output, _ = run_cli("train", "--list")
    _, help_text, _ = run_cli("train", "--help")
    for name in recipe_names():
        assert f"\n{name}: " in f"\n{output}"
        assert f"{name}: " in help_text
    assert "Speech of 1 to 100 hours" in output
    assert "Speech of 1 to 100 hours" in help_text


def test_a_run_does_not_name_built_in_data_that_it_did_not_use(corpus: Path, tmp_path: Path) -> None:
    settings = [setting for setting in tiny.SETTINGS if not setting.startswith("data.corpus")]
    recipe = load_recipe("digits", [*settings, f"data.root={corpus}", "trainer.max_steps=2", "trainer.eval_every=2"])
    assert recipe.data.corpus is not None
    train(recipe, tmp_path / "run")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").data.corpus is None
    train(recipe, tmp_path / "run", resume=True)  # the same command
    with pytest.raises(DataError, match="no such manifest"):  # nor is it made in somebody's folder
        train(load_recipe("digits", [*settings, f"data.root={tmp_path}"]), tmp_path / "other")


def test_built_in_data_is_made_in_the_run_folder(tmp_path: Path) -> None:
    settings = [*tiny.SETTINGS, "data.corpus={name: digits, train: 12, dev: 3, test: 3}", "trainer.max_steps=2"]
    train(load_recipe("digits", settings), tmp_path / "run")
    assert runs.load(tmp_path / "run").manifest == tmp_path / "run" / "data" / "manifest.jsonl"
    assert runs.load(tmp_path / "run").manifest.exists()


SMALL = ("digits", "handwriting", "speech", "iam")
LARGE = {"librispeech-words": 107, "librispeech-letters": 256}


@pytest.mark.parametrize(
    ("name", "criterion"), [*((name, "stc") for name in SMALL), ("digits", "selfless_ctc"), ("digits", "ctc")]
)
def test_a_dry_run_needs_no_data(name: str, criterion: str) -> None:
    result = dry_run(load_recipe(name, [f"criterion.name={criterion}"]), frames=96)
    assert 0 < result.loss < float("inf")
    assert 0 < result.grad_norm < float("inf")


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_dry_run_of_the_large_ones(name: str) -> None:
    result = dry_run(load_recipe(name), items=1, frames=96)
    assert abs(result.parameters / 1e6 - LARGE[name]) < 1
    assert result.tokens == load_recipe(name).text.size + 1  # type: ignore[operator]
    assert 0 < result.loss < float("inf")


def test_a_failed_start_leaves_no_run_behind(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train(tiny.recipe(corpus, "data.splits.train=nothing"), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    broken = shutil.copytree(corpus, tmp_path / "broken")
    (broken / "lines.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"lines\.tar"):  # found in the first step
        train(tiny.recipe(broken, "trainer.max_steps=1"), tmp_path / "run")
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    train(tiny.recipe(corpus, "model.width=4"), tmp_path / "run")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").differences(tiny.recipe(corpus, "model.width=4")) == []
    (again / "tokens.txt").write_text("of another vocabulary\n")
    train(tiny.recipe(corpus, "model.width=4"), again, resume=True)  # nor with --resume
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()


def test_what_failed_before_its_first_checkpoint_goes_on(corpus: Path, tmp_path: Path) -> None:
    """There is a model, read on dev, and the checkpoint does not fit on the disk any more."""
    recipe = tiny.recipe(corpus, "trainer.eval_every=3", "trainer.checkpoint_every=3", "trainer.max_steps=6")
    real, full = save_checkpoint, True

    def save(path: Path, state: object) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("starseq.train.loop.save_checkpoint", save)
        with pytest.raises(DataError, match="nothing is saved yet: make room, then --resume"):
            train(recipe, tmp_path / "run")
        assert (tmp_path / "run" / "model.safetensors").exists()
        with pytest.raises(DataError, match="there is a run here already: `starseq train --resume"):
            train(recipe, tmp_path / "run")
        full = False
        train(None, tmp_path / "run", resume=True)
    train(recipe, tmp_path / "whole")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
