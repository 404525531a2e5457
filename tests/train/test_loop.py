"""The loop: a stopped run goes on exactly, what is not finite is skipped or stops, full disks and lost files are said."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests import tiny
from torch import Tensor

from starseq import runs
from starseq.config import Recipe, build
from starseq.data.dataset import collate
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest, write_manifest
from starseq.jobs.train import build_loop, train
from starseq.penalty import AdaptivePenalty
from starseq.train.checkpoint import load_checkpoint, save_checkpoint
from starseq.train.loop import Hooks, Loop, Window, share_of
from starseq.train.metrics import Appended, Log, Metrics, read_metrics
from starseq.train.processes import others_may_end, start
from starseq.train.schedule import Patience, rate_factor
from starseq.train.time_left import TimeLeft


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.corpus(tmp_path_factory.mktemp("digits"))


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than training here."""
    if request.node.name != "test_what_a_run_leaves":
        monkeypatch.setattr("starseq.jobs.train._draw_curves", lambda folder: None)


class Killed(Exception):
    pass


def kill_at(step: int) -> Callable[[Metrics], None]:
    def hook(metrics: Metrics) -> None:
        if metrics.step >= step:
            raise Killed

    return hook


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two trees of tensors and values are not the same, bit for bit."""
    if isinstance(one, Tensor):
        return [] if torch.equal(one, other) else [path]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: {set(one) ^ set(other)}"]
        return [place for key in one for place in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)}"]
        return [
            place for i, pair in enumerate(zip(one, other, strict=True)) for place in differences(*pair, f"{path}[{i}]")
        ]
    return [] if one == other else [f"{path}: {one} and {other}"]


def without_clock(folder: Path) -> tuple[Any, Any]:
    """The checkpoint and the metrics of a run, less what depends on the time of day."""
    state = load_checkpoint(folder / "last.ckpt")
    for part in ("position", "sums"):
        state[part].pop("seconds")
    rows = read_metrics(folder / "metrics.csv")
    for row in rows:
        for name in ("seconds", "seconds_left", "frames_per_second"):
            row.pop(name)
    return state, rows


CASES = {
    "dropout and augmentation": ("data.augment={name: random_projective, max_shift: 3}",),
    "accumulation": ("optim.batches_per_step=3",),
    "adagrad on a plateau": (
        "optim.name=adagrad", "optim.schedule={name: plateau, patience: 1}", "trainer.eval_every=2",
    ),
    "momentum, bf16": ("optim.name=sgd", "optim.momentum=0.9", "trainer.precision=bf16", "optim.lr=0.001"),
    "workers": ("data.workers=1", "data.cache=false"),
    "adaptive": ("penalty={name: adaptive}",),
    "evaluated often": ("trainer.eval_every=1", "trainer.patience=0.2"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on_exactly(case: str, root: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(root, *CASES[case])
    train(recipe, tmp_path / "whole")
    for step in (2, 9, 20):  # before the first checkpoint, after it, in the middle of an epoch
        with pytest.raises(Killed):
            train(recipe, tmp_path / "stopped", resume=True, on_metrics=kill_at(step))
    # What a kill can leave behind: a line cut off, a temporary file.
    with open(tmp_path / "stopped" / "metrics.csv", "a") as file:
        file.write("21,3,0.5")
    (tmp_path / "stopped" / ".last.ckpt.0000.tmp").write_bytes(b"half")
    result = train(None, tmp_path / "stopped", resume=True)
    assert result.steps == tiny.STEPS
    assert differences(without_clock(tmp_path / "whole"), without_clock(tmp_path / "stopped")) == []
    whole, stopped = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped"))
    assert whole == stopped


def scripted(monkeypatch: pytest.MonkeyPatch, *errors: float) -> None:
    """Dev errors by step, from 1 on; the last one stays."""

    def dev_errors(self: Loop, dev: object) -> SimpleNamespace:
        return SimpleNamespace(percent=errors[min(self.at.step, len(errors)) - 1], missed=0.0)

    monkeypatch.setattr(Loop, "dev_errors", dev_errors)


EARLY = ("trainer.eval_every=1", "trainer.log_every=1", "optim.schedule.name=constant")


def test_a_run_that_stands_still_stops_early_with_its_best(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smoothed it is at its lowest, 21, at step 6, and half of the 24 steps later it ends."""
    scripted(monkeypatch, 100.0, 99.0, 98.0, 42.0, 21.0, 20.0, 28.0, 36.0, 40.0)
    said: list[str] = []
    recipe = tiny.recipe(root, *EARLY)
    whole = train(recipe, tmp_path / "whole", on_message=said.append)
    assert (whole.steps, whole.best_step, whole.best_error, whole.stopped_early) == (18, 6, 20.0, True)
    assert sum("stops early" in sentence for sentence in said) == 1
    assert (
        "step 18: training stops early, for dev error has stood still since step 6 (trainer.patience=0.5)" in said[-1]
    )
    assert "stopped early" in str(whole)
    assert runs.load(tmp_path / "whole").step == 6
    assert runs.read_results(tmp_path / "whole")["train"]["stopped_early"] is True
    # Killed and resumed it stops at the same step, and once it has stopped it is over.
    for step in (5, 9, 16):
        with pytest.raises(Killed):
            train(recipe, tmp_path / "stopped", resume=True, on_metrics=kill_at(step))
    for _ in range(2):
        assert train(None, tmp_path / "stopped", resume=True).stopped_early
        assert differences(without_clock(tmp_path / "whole"), without_clock(tmp_path / "stopped")) == []
    # Unless its patience is taken away.
    patient = train(tiny.recipe(root, *EARLY, "trainer.patience=null"), tmp_path / "stopped", resume=True)
    assert (patient.steps, patient.best_step, patient.stopped_early) == (tiny.STEPS, 6, False)


@pytest.mark.parametrize(
    "curve",
    [
        (99.0, 100.0, 98.0, *(97.0,) * 30),  # reads nothing yet
        (90.0, 40.0, 10.0, 9.0, 9.5, 9.2, 9.1, 8.9, 9.0, 8.8, 8.9, 8.7, 8.9, 8.6, 8.7, 8.5, 8.6, 8.4, 8.5),  # hovers
        (60.0, 30.0, 5.0, 28.0, 27.0, 26.0, 25.0, 24.0, 23.0, 22.0, 21.0, 20.0, 19.0, 18.0, 17.0),  # was lucky once
    ],
    ids=["reads nothing", "hovers", "lucky"],
)
def test_a_run_that_may_still_get_better_goes_on(curve: tuple[float, ...]) -> None:
    patience = Patience()
    for step, error in enumerate(curve, start=1):
        patience.observe(step, error)
        assert not patience.is_over(0.5), step


def test_a_plateau_before_reading_does_not_count_afterwards() -> None:
    patience = Patience()
    over = []
    for step, error in enumerate([*(98.0,) * 20, 40.0, 30.0, *(31.0,) * 30], start=1):
        patience.observe(step, error)
        over.append(patience.is_over(0.5))
    assert over.index(True) + 1 == 46  # twice as many steps as at 23, where the last three had a new lowest median


def test_a_checkpoint_is_written_within_minutes(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the recipe says, and a run goes on from it exactly."""
    rare = ("trainer.checkpoint_every=1000", "trainer.log_every=1")
    train(tiny.recipe(root, *rare), tmp_path / "whole")
    now, saved = 0.0, list[tuple[float, int]]()
    monkeypatch.setattr("starseq.train.loop.time", SimpleNamespace(monotonic=lambda: now))
    real = save_checkpoint

    def save(path: Path, state: dict[str, Any]) -> None:
        saved.append((now, state["position"]["step"]))
        real(path, state)

    def hook(metrics: Metrics) -> None:
        nonlocal now
        now += 110.0
        if metrics.step == 11:
            raise Killed

    monkeypatch.setattr("starseq.train.loop.save_checkpoint", save)
    with pytest.raises(Killed):
        train(tiny.recipe(root, *rare), tmp_path / "stopped", on_metrics=hook)
    assert saved == [(330.0, 3), (660.0, 6), (990.0, 9)]
    said: list[str] = []
    train(None, tmp_path / "stopped", resume=True, on_message=said.append)
    assert any("goes on after step 9" in sentence for sentence in said)
    assert differences(without_clock(tmp_path / "whole"), without_clock(tmp_path / "stopped")) == []


class Clock:
    """Time that passes where the script says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_does_not_jump() -> None:
    """Steps of a second with a slow start, a stall and unequal batches; evaluations and checkpoints between them."""
    clock = Clock()
    left = TimeLeft(clock)
    draw = random.Random(1)
    steps = [40.0, 5.0, *(draw.uniform(0.5, 1.5) for _ in range(598))]
    steps[333] = 200.0
    told: list[tuple[int, float, float]] = []
    for step, took in enumerate(steps, start=1):
        clock.now += took
        left.stepped()
        if step % 50 == 0:
            with left.aside("evaluation"):
                clock.now += 20.0
        if step % 100 == 0:
            with left.aside("checkpoint"):
                clock.now += 5.0
        todo = len(steps) - step
        if step >= 20 and step % 10 == 0:
            told.append((step, clock.now, left(todo, evaluations=-(-todo // 50), checkpoints=-(-todo // 100))))
    for step, now, estimate in told:
        truth = clock.now - now - (200.0 if step <= 333 else 0.0)  # the stall to come is nobody's to know
        unknown = 300.0 if step < 100 else 0.0  # before the first evaluation and checkpoint, and from few steps
        assert abs(estimate - truth) < 60.0 + unknown, (step, estimate, truth)
    known = [(step, now + estimate) for step, now, estimate in told if step >= 100]
    for (before, end), (after, then) in itertools.pairwise(known):
        assert abs(then - end) < (225 if before <= 333 < after else 25), (after, end, then)
    assert told[-1][2] == 0


def test_the_time_left_of_steps_that_take_minutes() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    assert left(10) == 0
    for took in (300.0, 100.0, 100.0, 100.0):
        clock.now += took
        left.stepped()
    assert left(6, evaluations=3) == 600


def test_what_a_run_leaves(root: Path, tmp_path: Path) -> None:
    folder, said, seen, bars = tmp_path / "run", [], [], []
    recipe = tiny.recipe(root, "trainer.tensorboard=true")
    result = train(
        recipe, folder, progress=lambda done, total: bars.append((done, total)), on_metrics=seen.append, on_message=said.append
    )  # fmt: skip
    assert {"recipe.yaml", "tokens.txt", "model.safetensors", "last.ckpt", "metrics.csv", "results.json"} <= set(
        os.listdir(folder)
    )
    assert (folder / "plots" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert said[0].startswith("reading ")
    assert "rows to train on" in said[1]
    assert bars[-1] == (tiny.STEPS, tiny.STEPS)
    rows = read_metrics(folder / "metrics.csv")
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [
        (row["step"], pytest.approx(row["loss"], rel=1e-5)) for row in rows
    ]
    logged = {name for row in rows for name in row if name != "step" and row[name] is not None}
    assert set(board.Tags()["scalars"]) == logged
    steps = [row["step"] for row in rows]
    assert steps == sorted({*range(3, 25, 3), 8, 16, 24})  # logged every 3 steps and at evaluations, once each
    assert [metrics.step for metrics in seen] == steps
    evaluated = {row["step"]: row["dev_error"] for row in rows if row["dev_error"] is not None}
    assert list(evaluated) == [8, 16, 24]
    assert result.best_error == pytest.approx(min(e for e in evaluated.values() if e is not None), rel=1e-5)
    last = rows[-1]
    assert last["p"] == 0.5
    assert all(last[name] is not None for name in ("inserted_per_label", "blank_share", "grad_norm", "lr"))
    assert runs.read_results(folder)["train"]["steps"] == tiny.STEPS
    run = runs.load(folder)
    assert (run.step, run.dev_error) == (result.best_step, result.best_error)
    # A run that is done has nothing to resume.
    assert train(recipe, folder, resume=True).steps == tiny.STEPS


def test_penalty_and_rate_move_with_steps_not_with_batches(root: Path, tmp_path: Path) -> None:
    seen: list[Metrics] = []
    settings = (
        "optim.batches_per_step=2",
        "penalty={name: schedule, p0: 0.5, p_max: 0.9, half_life: 3}",
        "trainer.log_every=1",
    )
    train(tiny.recipe(root, *settings, "trainer.max_steps=7"), tmp_path / "run", on_metrics=seen.append)
    assert [metrics.p for metrics in seen] == pytest.approx([0.9 - 0.4 * 2 ** (-t / 3) for t in range(7)])
    expected = [0.01 * rate_factor("cosine", t, 0, warmup_steps=4, max_steps=7) for t in range(7)]
    assert [metrics.lr for metrics in seen] == pytest.approx(expected)


def test_epochs_end_a_run_too(root: Path, tmp_path: Path) -> None:
    settings = ("trainer.max_steps=null", "trainer.max_epochs=2", "optim.schedule.name=constant", "data.splits.dev=[]")
    result = train(tiny.recipe(root, *settings), tmp_path / "run")
    # 30 lines in batches of 4 make 8 steps or a few more, where buckets end.
    assert result.epochs == 2
    assert 14 <= result.steps <= 24
    assert result.best_error is None
    assert runs.load(tmp_path / "run").step == result.steps  # without dev, the last weights


class _Poison(torch.nn.Module):
    """The model, but NaN for the utterances of one step."""

    def __init__(self, model: torch.nn.Module, calls: set[int]) -> None:
        super().__init__()
        self.inner, self.calls, self.count = model, calls, 0
        self.output_lengths = model.output_lengths

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        logits, lengths = self.inner(x, lengths)
        if self.training:
            self.count += 1
            if self.count in self.calls:
                logits = logits.index_fill(0, torch.tensor([0]), torch.nan)
        return logits, lengths


def poisoned(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    network = build.network
    monkeypatch.setattr(build, "network", lambda recipe, vocabulary: _Poison(network(recipe, vocabulary), calls))


def test_a_loss_that_is_not_finite_is_skipped(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, {5})
    said: list[str] = []
    recipe = tiny.recipe(root, "trainer.on_nonfinite=skip", "trainer.max_steps=8")
    result = train(recipe, tmp_path / "run", on_message=said.append)
    assert (result.steps, result.skipped) == (8, 1)
    (saved,) = (tmp_path / "run").glob("nonfinite-step4-*.safetensors")
    with safe_open(saved, "pt") as file:
        facts = json.loads(file.metadata()["starseq"])
        losses = file.get_tensor("losses")
        assert file.get_tensor("x").shape[0] == len(facts["ids"])
    assert torch.isnan(losses).tolist() == [True] + [False] * (len(losses) - 1)
    sentence = next(sentence for sentence in said if "not finite" in sentence)
    assert facts["ids"][0] in sentence
    assert facts["ids"][1] not in sentence
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")
    assert state["penalty"]["step"] == 8  # a skipped step does not move it
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_half_precision_gradients_that_overflow_only_lower_their_scale(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, {8})
    scale = torch.amp.GradScaler
    monkeypatch.setattr(
        "torch.amp.GradScaler", lambda device, enabled: scale(device, init_scale=2.0**20, enabled=enabled)
    )
    said: list[str] = []
    recipe = tiny.recipe(root, "trainer.precision=fp16", "trainer.on_nonfinite=skip", "trainer.max_steps=6")
    result = train(recipe, tmp_path / "run", on_message=said.append)
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")
    assert state["scaler"]["scale"] < 2.0**20
    assert (result.steps, state["penalty"]["step"]) == (6, 6)
    assert result.skipped > 1
    assert sum("not finite" in sentence for sentence in said) == 1  # the loss, not the scale
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_a_loss_that_is_not_finite_stops(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, {5})
    with pytest.raises(
        DataError, match=r"step 4: the loss is not finite, from train-0\d+; the batch is saved as .*nonfinite"
    ):
        train(tiny.recipe(root), tmp_path / "run")


def test_a_run_that_learns_nothing_any_more_stops(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, set(range(3, 100)))
    with pytest.raises(DataError, match="no finite loss or gradient in 20 steps"):
        train(tiny.recipe(root, "trainer.on_nonfinite=skip", "trainer.max_steps=50"), tmp_path / "run")


def test_a_full_disk_is_one_sentence(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.fsync, False

    def fsync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    def hook(metrics: Metrics) -> None:
        nonlocal full
        full = metrics.step >= 9  # the checkpoint of step 6 is there, that of 12 fails

    monkeypatch.setattr("starseq.data.files.os.fsync", fsync)
    recipe = tiny.recipe(root)
    with pytest.raises(DataError, match=r"No space left on device\); the checkpoint of step 6 is whole: make room"):
        train(recipe, tmp_path / "run", on_metrics=hook)
    assert (tmp_path / "run" / "recipe.yaml").exists()
    full = False
    assert train(recipe, tmp_path / "run", resume=True).steps == tiny.STEPS
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_disk_that_is_full_when_a_row_is_logged_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = Appended.write, False

    def write(self: Appended, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data)

    def hook(metrics: Metrics) -> None:
        nonlocal full
        full = metrics.step >= 9

    monkeypatch.setattr(Appended, "write", write)
    with pytest.raises(DataError, match=r"No space left on device\); the checkpoint of step 6 is whole: make room"):
        train(tiny.recipe(root, "trainer.tensorboard=true"), tmp_path / "run", on_metrics=hook)


@pytest.mark.parametrize("name", ["update_results", "_draw_curves"])
def test_a_disk_that_is_full_at_the_end_is_one_sentence(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"starseq.jobs.train.{name}", full)
    with pytest.raises(DataError, match=r"No space left on device\); the checkpoint of step 24 is whole"):
        train(tiny.recipe(root), tmp_path / "run")


def test_what_is_written_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, parts = Appended(tmp_path / "a"), list[bytes]()
    monkeypatch.setattr(file, "_file", SimpleNamespace(write=lambda data: parts.append(data[:2]) or len(parts[-1])))
    file.write(b"12345")
    assert parts == [b"12", b"34", b"5"]


def test_a_resumed_run_has_each_step_once_in_tensorboard(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files are read in the order of their seconds, which are in their names.
    clock = iter(range(1, 1000))
    monkeypatch.setattr("starseq.train.metrics.time", SimpleNamespace(time=lambda: float(next(clock))))
    recipe = tiny.recipe(root, "trainer.tensorboard=true")
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(9))
    train(recipe, tmp_path / "run", resume=True)  # from step 6
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.csv")]
    assert [event.step for event in board.Scalars("loss")] == steps


def test_two_logs_of_one_second_have_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starseq.train.metrics.time", SimpleNamespace(time=lambda: 1.0))
    for name in "ab":
        Log(tmp_path / name, step=0, tensorboard=tmp_path / "board").close()
    assert len(list((tmp_path / "board").iterdir())) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_what_could_not_be_logged_is_not_tried_again() -> None:
    file = Appended("/dev/full")
    with pytest.raises(OSError, match="No space"):
        file.write(b"1,2\n")
    file.close()


def test_a_process_that_has_ended_is_named_by_the_others() -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")
    message = "process 1 stops, for another process of this training has ended"
    with pytest.raises(DataError, match=message), others_may_end(SimpleNamespace(world_size=2, global_rank=1)):
        raise lost
    with pytest.raises(RuntimeError, match="Connection closed"), others_may_end(SimpleNamespace(world_size=1)):
        raise lost
    with pytest.raises(RuntimeError, match="shape"), others_may_end(SimpleNamespace(world_size=2)):
        raise RuntimeError("shape")
    with pytest.raises(torch.OutOfMemoryError), others_may_end(SimpleNamespace(world_size=2)):
        raise torch.OutOfMemoryError("Broken pipe")


@pytest.mark.parametrize(
    "lost",
    [
        torch.distributed.DistBackendError("NCCL watchdog"),
        RuntimeError("Connection reset by peer"),
        RuntimeError("Broken pipe"),
    ],
    ids=lambda lost: type(lost).__name__,
)
def test_a_training_whose_peer_has_ended_says_so(
    lost: RuntimeError, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*arguments: Any, **options: Any) -> None:
        raise lost

    monkeypatch.setattr("starseq.jobs.train.start", lambda **options: SimpleNamespace(world_size=2, global_rank=1))
    monkeypatch.setattr("starseq.jobs.train._trained", trained)
    with pytest.raises(DataError, match="another process of this training has ended"):
        train(tiny.recipe(root), tmp_path / "run")


def test_a_file_that_vanishes_in_the_middle_of_an_epoch(root: Path, tmp_path: Path) -> None:
    rows = []
    for row in read_manifest(root / "manifest.jsonl"):
        (tmp_path / f"{row.id}.png").write_bytes(read_bytes(row, root))
        rows.append({key: row[key] for key in ("id", "path", "text", "split", "width", "height")})
    write_manifest(tmp_path / "manifest.jsonl", rows)

    def hook(metrics: Metrics) -> None:
        for path in tmp_path.glob("train-*.png"):
            path.unlink()

    with pytest.raises(ManifestError, match=r"manifest\.jsonl, line \d+: train-0\d+\.png: no such file"):
        train(tiny.recipe(tmp_path, "data.cache=false"), tmp_path / "run", on_metrics=hook)


def test_other_data_are_not_resumed_on(root: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(root)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(9))
    other = tiny.corpus(tmp_path / "other", train=20)
    with pytest.raises(DataError, match="the saved batches are those of other data"):
        train(tiny.recipe(other), tmp_path / "run", resume=True)


def test_other_labels_are_not_resumed_on(root: Path, tmp_path: Path) -> None:
    """Of the same rows: the batches are the same, and what would be learned is not."""
    recipe = tiny.recipe(root)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(9))
    manifest = (root / "manifest.jsonl").read_text()
    rows = [json.loads(line) for line in manifest.splitlines()]
    changed = next(row for row in rows if row["split"] == "train")
    changed["text"] = changed["text"][::-1]
    (root / "corrected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = tiny.recipe(root, "data.manifest=corrected.jsonl")
    (tmp_path / "run" / "recipe.yaml").write_text(other.to_yaml())
    with pytest.raises(DataError, match="the labels of the training rows are not those that the run began with"):
        train(other, tmp_path / "run", resume=True)


def test_a_checkpoint_from_before_labels_were_kept_in_it(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tiny.recipe(root), tmp_path / "run", on_metrics=kill_at(9))
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")
    del state["labels"], state["starseq"]
    save_checkpoint(tmp_path / "run" / "last.ckpt", state)
    assert train(None, tmp_path / "run", resume=True).steps == tiny.STEPS


def test_a_resume_that_fails_keeps_its_recipe(root: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(root, tmp_path / "broken"))
    recipe = tiny.recipe(broken)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(3))
    (broken / "lines.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"lines\.tar"):
        train(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "recipe.yaml").exists()


def test_a_run_cannot_end_before_where_it_stands(root: Path, tmp_path: Path) -> None:
    constant = "optim.schedule.name=constant"
    train(tiny.recipe(root, constant), tmp_path / "run")
    with pytest.raises(DataError, match=r"24 steps already, and trainer\.max_steps is 23"):
        train(tiny.recipe(root, constant, "trainer.max_steps=23"), tmp_path / "run", resume=True)


def test_resuming_what_is_over_changes_nothing(root: Path, tmp_path: Path) -> None:
    """Also where the last step was the last of its epoch, which is over only once the next batch was asked for."""
    recipe = tiny.recipe(root, "trainer.max_steps=null", "trainer.max_epochs=2", "optim.schedule.name=constant")
    first = train(recipe, tmp_path / "run")
    recipe = tiny.recipe(root, f"trainer.max_steps={first.steps}", f"trainer.checkpoint_every={first.steps}")
    first = train(recipe, tmp_path / "again")
    before = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir() if path.is_file()}
    written = (tmp_path / "again" / "last.ckpt").stat().st_mtime_ns
    assert train(recipe, tmp_path / "again", resume=True).epochs == first.epochs == 2
    after = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir() if path.is_file()}
    assert before.keys() == after.keys()
    assert (tmp_path / "again" / "last.ckpt").stat().st_mtime_ns == written
    for name in ("model.safetensors", "recipe.yaml", "tokens.txt", "metrics.csv"):
        assert before[name] == after[name]
    found, was = (json.loads(files["results.json"])["train"] for files in (after, before))
    assert {**found, "seconds": 0} == {**was, "seconds": 0}


def test_before_the_first_evaluation_no_model_is_gone(root: Path, tmp_path: Path) -> None:
    recipe, said = tiny.recipe(root, "trainer.eval_every=12"), list[str]()
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(9))
    train(recipe, tmp_path / "run", resume=True, on_message=said.append)
    assert any("goes on after step 6" in sentence for sentence in said)
    assert not any("is gone" in sentence for sentence in said)


def test_a_misspelt_test_split_is_said_by_the_training(root: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train(tiny.recipe(root, "data.splits.test=[tset]", "trainer.max_steps=1"), tmp_path / "run", on_message=said.append)
    assert "no row of data.splits.test, tset" in said[1]


def test_a_model_that_was_deleted_is_made_anew(root: Path, tmp_path: Path) -> None:
    recipe, said = tiny.recipe(root), list[str]()
    train(recipe, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    result = train(recipe, tmp_path / "run", resume=True, on_message=said.append)
    assert result.best_step == tiny.STEPS
    assert any("model.safetensors of step" in sentence and "is gone" in sentence for sentence in said)
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")["model"]
    with safe_open(str(tmp_path / "run" / "model.safetensors"), "pt") as file:
        assert all(torch.equal(file.get_tensor(name), state[name]) for name in state)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "step,loss\n3,high\n"])
def test_metrics_of_something_else_are_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(DataError, match=r"metrics\.csv: not the metrics of a run"):
        read_metrics(tmp_path / "metrics.csv")


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_checkpoint_is_said(damage: bytes | None, root: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(root)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_metrics=kill_at(9))
    path = tmp_path / "run" / "last.ckpt"
    whole = path.read_bytes()
    for length in (3000, 5000, 20_000, len(whole) - 1) if damage is None else (0,):
        path.write_bytes(whole[:length] if damage is None else damage)
        with pytest.raises(DataError, match=r"last\.ckpt: the checkpoint is damaged: begin again, in another folder$"):
            train(recipe, tmp_path / "run", resume=True)


def test_a_checkpoint_runs_nothing_when_it_is_read(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "evil"),)

    torch.save({"starseq": 1, "x": Evil()}, tmp_path / "last.ckpt")
    with pytest.raises(DataError, match="damaged"):
        load_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "evil").exists()


def test_an_adaptive_penalty_is_fed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Size, ...]] = []
    observe = AdaptivePenalty.observe

    def spy(self: AdaptivePenalty, *arguments: Tensor, batch_first: bool, open_gaps: Tensor) -> None:
        seen.append(tuple(argument.shape for argument in (*arguments, open_gaps)))
        observe(self, *arguments, batch_first=batch_first, open_gaps=open_gaps)

    monkeypatch.setattr(AdaptivePenalty, "observe", spy)
    adaptive = ("penalty={name: adaptive}", "optim.batches_per_step=2", "trainer.max_steps=5")
    train(tiny.recipe(root, *adaptive), tmp_path / "run")
    assert len(seen) > 5  # every batch
    assert all(len({shape[0] for shape in shapes}) == 1 for shapes in seen)
    state = load_checkpoint(tmp_path / "run" / "last.ckpt")["penalty"]
    assert state["counts"][2] > 0
    seen.clear()
    train(tiny.recipe(root, *adaptive, "criterion.name=ctc"), tmp_path / "ctc")
    assert not seen


def test_the_gradient_is_that_of_the_mean_over_the_window(root: Path, tmp_path: Path) -> None:
    """Batches of unequal size, accumulated, against one batch of all their items."""

    def gradients(window: list[list[int]]) -> tuple[float, list[Tensor]]:
        loop = loop_of(tiny.recipe(root, "model.dropout=0"), tmp_path)
        items = loop.data.train
        pending = loop.backward(Window(0, 0, [collate([items[i] for i in batch]) for batch in window]))
        grads = [p.grad for p in loop.network.parameters() if p.grad is not None]
        return float(pending.total / pending.counts[0]), grads

    apart, together = gradients([[0, 1, 2, 3, 4], [5], [6, 7]]), gradients([list(range(8))])
    assert apart[0] == pytest.approx(together[0], rel=1e-5)
    for one, other in zip(apart[1], together[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def loop_of(recipe: Recipe, folder: Path) -> Loop:
    return build_loop(recipe, folder, start(accelerator="cpu"), Hooks())


def test_shares_of_a_step() -> None:
    assert (share_of(32, 1), share_of(32, 8)) == (32, 4)
    with pytest.raises(DataError, match="32 batches cannot be shared equally by 6 processes"):
        share_of(32, 6)


def test_fabric_comes_without_what_it_does_not_use() -> None:
    """Half of the seconds before a training were torchmetrics, with scipy, matplotlib and transformers, for its version alone."""
    code = (
        "from starseq.train.processes import start; start(accelerator='cpu'); "
        "import sys; print(sorted({'torchmetrics', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
