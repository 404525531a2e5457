"""`starseq demo`: the main job on built-in data. Lines of handwritten digits, half of their labels dropped, three models."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from starseq import runs
from starseq.config import Recipe, load_recipe
from starseq.corpora import digits
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.data.manifest import Progress
from starseq.data.pool import interrupts_held
from starseq.jobs.evaluate import Evaluation, evaluate
from starseq.jobs.report import report

__all__ = ["MODELS", "DemoModel", "DemoResult", "demo"]


class DemoModel(NamedTuple):
    """One of the three: what it learns by, and from."""

    key: str
    criterion: str
    labels: str
    overrides: tuple[str, ...] = ()
    """of the recipe"""

    @property
    def name(self) -> str:
        return f"{self.criterion.upper()}, {self.labels} labels"


MODELS = (
    DemoModel("ctc_full", "ctc", "full"),
    DemoModel("ctc_partial", "ctc", "partial", ("data.drop.p=0.5",)),
    DemoModel("stc_partial", "stc", "partial", ("data.drop.p=0.5",)),
)
_SETTINGS = "demo.json"


@dataclass(frozen=True)
class DemoResult:
    """What `demo` found: the character error rate of every model on test, in percent, and the page."""

    out: Path
    steps: int
    kept: float
    """share of the labels that the partial ones keep"""
    cer: dict[str, float]
    evaluations: dict[str, Evaluation]
    page: Path

    def table(self) -> str:
        """The one table."""
        lines = [
            f"{'criterion':<10} {'labels':<18} {'CER %':>6} {'subst':>6} {'insert':>6} {'delete':>6} {'lines right':>12}"
        ]
        for model in MODELS:
            (split,) = self.evaluations[model.key].splits
            scores = split.methods["greedy"]
            counts = scores.characters
            share = "all" if model.labels == "full" else f"{100 * self.kept:.0f} % of them"
            lines.append(
                f"{model.criterion.upper():<10} {share:<18} {self.cer[model.key]:>6.2f} {counts.substitutions:>6,} "
                f"{counts.insertions:>6,} {counts.deletions:>6,} {100 * scores.right / scores.sentences:>10.1f} %"
            )
        return "\n".join(lines)


def demo(
    out: str | os.PathLike[str] = "runs/demo",
    *,
    steps: int | None = None,
    seed: int = 0,
    overrides: Sequence[str] = (),
    processes: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> DemoResult:
    """Builds digit lines, trains CTC on all labels, CTC on half of them and STC on the same half, compares them on test.

    Leaves a folder for the data and one for each run in `out`, ``results.json`` (`ctc_full`, `ctc_partial`, `stc_partial`: CER
    in percent) and ``report.html``. The recipe is `digits`; `steps` of each training, and `overrides` of its keys, may differ.
    Two trainings run side by side where there are two cores (`processes`), each on one thread. A demo that was stopped goes
    on when it is called again: what is finished is not repeated. `progress` counts optimiser steps over all trainings, `say`
    gets a sentence now and then.

    Raises `DataError` if `out` holds a demo of other settings, ValueError for a number of steps below 1.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps: {steps} is not a number of optimiser steps above 0")
    out = Path(out)
    say = say or (lambda sentence: None)
    chosen = _overrides(steps, seed, out / "data", overrides)
    recipes = {
        model.key: load_recipe("digits", [*model.overrides, *chosen, f"criterion.name={model.criterion}"])
        for model in MODELS
    }
    _same_settings(out, {"seed": seed, "overrides": sorted(c for c in chosen if not c.startswith("data.root="))})

    corpus = recipes["ctc_full"].data.corpus
    manifest = out / "data" / recipes["ctc_full"].data.manifest
    if not manifest.exists():
        settings: dict[str, Any] = {} if corpus is None else dict(corpus.settings)
        built = digits.prepare(manifest.parent, **{**settings, "seed": seed})
        say(f"{manifest}: {built.rows:,} lines of digits")
    _train_all(recipes, out, processes or min(2, _cores()), progress, say)

    found = {model.key: evaluate(out / model.key, splits=["test"]) for model in MODELS}
    rates = {key: one.splits[0].methods["greedy"].characters.percent for key, one in found.items()}
    training = runs.read_results(out / "stc_partial")["train"]
    kept = training["labels_kept"] / training["labels"]
    path = report(
        [out / model.key for model in MODELS],
        out / "report.html",
        split="test",
        examples=8,
        names=[model.name for model in MODELS],
        title="Reading digits, from half of the labels",
        intro=_intro(kept, rates),
    )
    total = max(recipe.trainer.max_steps or 0 for recipe in recipes.values())
    result = DemoResult(out, total, kept, rates, found, path)
    summary = {key: round(rate, 2) for key, rate in rates.items()}
    details = {"steps": total, "seed": seed, "labels_kept": round(kept, 4), "split": "test", "unit": "CER, percent"}
    write_text(out / "results.json", json.dumps({**summary, **details}, indent=1) + "\n")
    return result


def _overrides(steps: int | None, seed: int, root: Path, more: Sequence[str]) -> list[str]:
    chosen = [f"seed={seed}", f"data.root={json.dumps(str(root))}", "trainer.threads=1", "trainer.accelerator=cpu"]
    if steps is not None:
        # Seen at least once on dev, and a resumed demo does not begin anew.
        often = max(1, steps // 4)
        chosen += [f"trainer.max_steps={steps}", f"trainer.eval_every={often}", f"trainer.checkpoint_every={often}"]
        chosen += [f"optim.warmup_steps={min(100, steps // 10)}"]
    return [*chosen, *more]


def _intro(kept: float, cer: dict[str, float]) -> list[str]:
    return [
        f"Three small models learned to read lines of handwritten digits. One was given all labels. The other two were given "
        f"the same lines with {100 - 100 * kept:.0f} % of the labels dropped at random, and nobody told them where: “3 8 1 7” "
        f"may have become “8 7”.",
        f"CTC takes a label for the whole truth, so it learns to leave digits out: {cer['ctc_partial']:.1f} % of the characters "
        f"are wrong on test lines, whose digits no model has seen. STC puts a star into every gap, which stands for any "
        f"number of missing labels: {cer['stc_partial']:.1f} %, with the default penalty. With all labels CTC is at "
        f"{cer['ctc_full']:.1f} %.",
    ]


def _same_settings(out: Path, settings: dict[str, Any]) -> None:
    """What is in `out` goes on only with the settings it began with."""
    path = out / _SETTINGS
    if path.exists():
        if json.loads(path.read_text()) != settings:
            raise DataError(f"{out}: holds a demo with other settings; choose another --out, or delete that folder")
    else:
        write_text(path, json.dumps(settings, indent=1) + "\n")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- trainings in processes of their own ------------------------------------------------------------------------------


def _train_all(
    recipes: dict[str, Recipe], out: Path, processes: int, progress: Progress | None, say: Callable[[str], None]
) -> None:
    """Trains what is not trained yet, `processes` at a time. A training that fails stops all, with its sentence."""
    total = {key: recipe.trainer.max_steps or 0 for key, recipe in recipes.items()}
    done = {key: _finished_steps(out / key) for key in recipes}
    # The one that takes longest begins first.
    waiting = [key for key in reversed(recipes) if done[key] < total[key]]
    running: dict[Connection, tuple[str, Any]] = {}
    names = {model.key: model.name for model in MODELS}
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                key = waiting.pop(0)
                receiving, sending = context.Pipe(duplex=False)
                process = context.Process(
                    target=_train_one, args=(recipes[key], out / key, sending, os.getpid()), daemon=True
                )
                with interrupts_held():
                    process.start()
                sending.close()
                running[receiving] = (key, process)
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                key, process = running[pipe]
                try:
                    kind, value = pipe.recv()
                except EOFError:  # it is over, well or not
                    process.join()
                    del running[pipe]
                    if process.exitcode:
                        raise DataError(
                            f"training of {names[key]!r} stopped with exit code {process.exitcode}"
                        ) from None
                    continue
                if kind == "error":
                    raise DataError(value)
                if kind == "said":
                    say(f"{names[key]}: {value}")
                elif progress is not None:
                    done[key] = value
                    progress(sum(done.values()), sum(total.values()))
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _finished_steps(folder: Path) -> int:
    """The steps of a training that ended; 0 where none did."""
    train = runs.read_results(folder).get("train") if folder.is_dir() else None
    return int(train["steps"]) if train and (folder / "model.safetensors").exists() else 0


def _train_one(recipe: Recipe, folder: Path, pipe: Connection, parent: int) -> None:
    """In a process of its own: trains, and sends ("steps", n), ("said", sentence), ("error", sentence)."""
    from starseq.jobs.train import train

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others

    def step(done: int, total: int | None) -> None:
        if os.getppid() != parent:  # nobody waits for this any more
            raise SystemExit(1)
        pipe.send(("steps", done))

    def metrics(now: Any) -> None:
        if now.dev_error is not None:
            pipe.send(
                ("said", f"step {now.step:,}, loss {now.loss_per_label:.2f} a label, CER on dev {now.dev_error:.2f} %")
            )

    try:
        train(recipe, folder, resume=True, progress=step, on_metrics=metrics)
    except (ValueError, OSError) as error:
        with suppress(OSError):  # the other end may be gone, and that be the error
            pipe.send(("error", " ".join(str(error).split())))
        raise SystemExit(1) from None
