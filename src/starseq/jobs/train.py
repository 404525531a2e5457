"""`starseq train`: a recipe to a run folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from starseq import corpora, models, pretrained
from starseq.config import HF, Recipe, build, load_recipe
from starseq.data.dataset import PaddedBatch
from starseq.data.errors import DataError
from starseq.data.files import locked, write_bytes, write_text
from starseq.data.manifest import Progress, Row
from starseq.data.seeds import generator
from starseq.runs import folder as layout
from starseq.runs import read_results, update_results
from starseq.text.gaps import parse
from starseq.text.pieces import SentencePieces
from starseq.text.vocabulary import Vocabulary
from starseq.train.check import check_files
from starseq.train.checkpoint import writing
from starseq.train.data import RunRows, manifest_in, synthetic_vocabulary, training_data
from starseq.train.loop import Hooks, Loop, TrainResult, optimizer_for
from starseq.train.metrics import Metrics
from starseq.train.objective import Objective
from starseq.train.processes import others_may_end, start

__all__ = ["DryRun", "Metrics", "TrainResult", "build_loop", "dry_run", "goes_on", "train"]


def train(
    recipe: Recipe | None,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
    on_message: Callable[[str], None] | None = None,
) -> TrainResult:
    """Trains what the recipe says and leaves a run folder (see `starseq.runs`), from which `starseq.runs.load` reads.

    With `resume`, a run that was stopped at any moment goes on from its last checkpoint, and ends with the weights of one
    that was not stopped; the recipe, if it is given again, must be the same (None: that of the folder). A folder that holds
    a run already is not touched without it. `progress` counts optimiser steps, `on_metrics` gets every logged step,
    `on_message` sentences; all of them only in the first process.

    Raises `DataError` with one sentence for whatever the user can mend.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: not a folder, so no run can be in it")
    recipe = _checked_recipe(recipe, folder, resume)
    trainer = recipe.trainer
    layout.data_root(recipe, folder)  # says what is missing, before anything starts
    if trainer.threads is not None:
        torch.set_num_threads(trainer.threads)
    fabric = start(
        accelerator=trainer.accelerator, devices=trainer.devices, nodes=trainer.nodes, strategy=trainer.strategy
    )
    hooks = Hooks(progress, on_metrics, on_message, _draw_curves) if fabric.global_rank == 0 else Hooks()
    with locked(folder, folder / ".lock") if fabric.global_rank == 0 else nullcontext(), others_may_end(fabric):
        return _trained(recipe, folder, fabric, hooks, resume=resume)


def _trained(recipe: Recipe, folder: Path, fabric: Any, hooks: Hooks, *, resume: bool) -> TrainResult:
    """The run, in a folder that is this process's own."""
    if fabric.global_rank == 0:
        _refuse_what_is_there(folder, resume)
    say = hooks.message or (lambda sentence: None)
    say(f"reading {layout.data_root(recipe, folder) / recipe.data.manifest}")
    loop = build_loop(recipe, folder, fabric, hooks, resume=resume)
    report = loop.data.report
    fabric.barrier()
    if fabric.global_rank == 0:
        with writing(folder, loop.saved_step):
            write_text(folder / layout.TOKENS, loop.tokeniser.vocabulary.to_lines())
            if isinstance(loop.tokeniser.pieces, SentencePieces):
                write_bytes(folder / layout.PIECES, loop.tokeniser.pieces.model)
            write_text(folder / layout.RECIPE, recipe.to_yaml())
    say("the first step reads its files, and waits for the loss to be compiled where that was never done")
    result = loop.run()
    if fabric.global_rank == 0:
        found = {"metric": result.metric, "error": result.best_error, "step": result.best_step}
        ended = {
            "steps": result.steps, "epochs": result.epochs, "seconds": round(result.seconds, 1),
            "skipped": result.skipped, "stopped_early": result.stopped_early, "best_dev": found,
            "rows": report.rows, "pruned": report.pruned,
            "too_long": list(report.too_long), "labels": report.labels, "labels_kept": report.kept,
        }  # fmt: skip
        with writing(folder, loop.saved_step):
            update_results(folder, train=ended)
    fabric.barrier()
    return result


MADE = "manifest.jsonl"
"""what a recipe's own corpus is made as; a missing manifest of another name is a mistake"""


def build_loop(recipe: Recipe, folder: Path, fabric: Any, hooks: Hooks, *, resume: bool = False) -> Loop:
    """The loop of a run, ready to go: data read and checked, model built, and, with `resume`, the checkpoint loaded."""
    say = hooks.message or (lambda sentence: None)
    data, root = recipe.data, layout.data_root(recipe, folder)
    if fabric.global_rank == 0 and data.corpus is not None and data.manifest == MADE and not (root / MADE).exists():
        with writing(folder, None):
            corpora.load(data.corpus.name)(root, **data.corpus.settings)
    fabric.barrier()
    manifest = manifest_in(root, data.manifest)
    own = folder / layout.PRETRAINED
    if recipe.model.name == HF and fabric.global_rank == 0 and not (resume and _saved(folder)):
        with writing(folder, None):
            _copy_settings(recipe, own)
    fabric.barrier()
    named, recipe = recipe, recipe.at(own)
    reader = build.reader(recipe)
    vocabulary, pieces = _known_vocabulary(recipe, folder if resume and _saved(folder) else None)

    def look(first: list[Row]) -> None:
        for sentence in check_files(manifest, reader, first, root):
            say(sentence)

    text = recipe.text
    rows = RunRows(
        manifest, reader, train=data.splits.train, dev=data.splits.dev, root=root, look=look,
        count=None if vocabulary else lambda raw: parse(text.normaliser(raw), "char" if text.unit == "char" else "word").labels,
    )  # fmt: skip
    if vocabulary is None and text.unit == "piece":
        pieces = rows.pieces(text.size)
        vocabulary = Vocabulary(pieces.labels())
        say(f"labels are {len(vocabulary) - 1:,} pieces of words")
    elif vocabulary is None:
        vocabulary = rows.vocabulary(text.size, letters=text.unknown == "letters", max_letters=text.max_letters)
    tokeniser = build.tokeniser(recipe, vocabulary, pieces)
    torch.manual_seed(generator("model", recipe.seed).initial_seed())
    model = build.network(recipe, vocabulary)
    going_on = resume and (folder / layout.CHECKPOINT).exists()
    loaded = frozenset[str]() if going_on else build.load_initial(named, model)
    sets = training_data(
        rows, tokeniser, test=data.splits.test, output_lengths=partial(models.output_lengths, model),
        repeats=recipe.merges_repeats, dropper=build.dropper(recipe), cache=data.cache, stride=recipe.model.settings.get("stride"),
    )  # fmt: skip
    say(str(sets.report))
    say(f"{_parameters(model):,} parameters, {fabric.world_size} process(es) on {fabric.device.type}")
    loop = Loop(named, folder, sets, tokeniser, model, fabric, hooks, loaded)
    if resume and loop.resume():
        say(f"goes on after step {loop.at.step:,}")
    return loop


def goes_on(folder: str | os.PathLike[str]) -> str:
    """How a run that was stopped goes on, in one sentence."""
    folder = Path(folder)
    if not (folder / layout.RECIPE).is_file():
        return "stopped before training began; the same command begins anew"
    there = (folder / layout.CHECKPOINT).exists()
    what = "goes on from the last checkpoint" if there else "begins anew, for there is no checkpoint yet"
    return f"stopped; `starseq train --resume {folder}` {what}"


def _draw_curves(folder: Path) -> None:
    from starseq.report.plots import training_curves

    training_curves(folder / layout.METRICS, folder / layout.PLOTS)


def _checked_recipe(recipe: Recipe | None, folder: Path, resume: bool) -> Recipe:
    """The recipe to run, its root made absolute and built-in data that it does not use left out; sentences for a folder in
    use and for a recipe that changed."""
    saved = folder / layout.RECIPE
    _refuse_what_is_there(folder, resume)
    if recipe is None:
        if not saved.is_file():
            raise DataError(f"{folder}: no run to resume, for it has no {layout.RECIPE}")
        recipe = load_recipe(saved)
    if recipe.data.root is not None:
        # Built-in data is made where no folder is given; here it is not used, and the run does not name it.
        recipe = replace(recipe, data=replace(recipe.data, root=os.path.abspath(recipe.data.root), corpus=None))
    recipe = recipe.with_absolute_paths()
    if resume and _saved(folder) and saved.is_file():
        changed = load_recipe(saved).differences(recipe)
        if changed:
            raise DataError(
                f"{saved}: the recipe is not the one that the run began with: {'; '.join(changed)}; "
                f"`starseq train --resume {folder}` takes the run's own"
            )
    return recipe


def _refuse_what_is_there(folder: Path, resume: bool) -> None:
    """A run that would be overwritten is a `DataError`."""
    if _saved(folder) and not resume:
        raise DataError(
            f"{folder}: there is a run here already: `starseq train --resume {folder}` goes on with it; "
            "or choose another folder"
        )
    if resume and "train" in read_results(folder) and not (folder / layout.CHECKPOINT).exists():
        raise DataError(
            f"{folder}: this training is over, and without {layout.CHECKPOINT} there is nothing to go on from"
        )


def _saved(folder: Path) -> bool:
    """Whether a run is there: one that failed before it saved anything is none, and a corrected command begins in its place."""
    return any((folder / name).exists() for name in (layout.CHECKPOINT, layout.MODEL))


def _copy_settings(recipe: Recipe, to: Path) -> None:
    """Whole or not at all, in place of those of a run that failed before it saved anything."""
    made = to.with_name(f".{to.name}")
    for old in (made, to):
        shutil.rmtree(old, ignore_errors=True)
    try:
        pretrained.copy_settings(str(recipe.model.settings["path"]), made)
    except ValueError as error:
        raise DataError(f"model {recipe.model.name}: {error}") from None
    made.replace(to)


def _known_vocabulary(recipe: Recipe, resumed: Path | None) -> tuple[Vocabulary | None, SentencePieces | None]:
    """Of the run that goes on, of a file that the recipe names, or of the pretrained model; None: that of the training rows. And
    the model of its pieces, where it has one."""
    if resumed is not None and (resumed / layout.TOKENS).is_file():
        vocabulary = Vocabulary.load(resumed / layout.TOKENS)
        return vocabulary, layout.load_pieces(resumed, vocabulary)
    if recipe.text.vocabulary is not None:
        return Vocabulary.load(recipe.text.vocabulary), None
    own = build.own_labels(recipe)
    if own is not None:
        return Vocabulary(own), None
    if recipe.text.pieces is None:
        return None, None
    try:
        pieces = SentencePieces.load(recipe.text.pieces)
    except ValueError as error:
        raise DataError(f"text.pieces: {error}") from None
    return Vocabulary(pieces.labels()), pieces


# --- a dry run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DryRun:
    """What one synthetic batch gave: the recipe's model, criterion and optimiser work together."""

    parameters: int
    tokens: int
    frames: int
    loss: float
    grad_norm: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.tokens:,} tokens; one step on {self.frames:,} frames: "
            f"loss {self.loss:.2f}, gradient norm {self.grad_norm:.2f}, {self.seconds:.1f} s"
        )


def dry_run(recipe: Recipe, *, items: int = 2, frames: int = 192) -> DryRun:
    """One synthetic batch through the recipe's model, criterion and optimiser, on the CPU: no data is needed.

    The vocabulary is as large as the recipe says, its labels are made up. `items` and `frames` make up the
    batch; frames of audio are 10 ms.

    >>> dry_run(load_recipe("digits", ["model.width=16"])).loss > 0
    True
    """
    started = time.monotonic()
    draw = generator("dry run", recipe.seed)
    text = recipe.text
    vocabulary, _ = _known_vocabulary(recipe, None)
    vocabulary = vocabulary or synthetic_vocabulary(text.unit, text.size)
    torch.manual_seed(draw.initial_seed())
    model = build.network(recipe, vocabulary)
    reader = build.reader(recipe)
    if reader.seconds is not None:
        frames = round(frames * 0.01 / reader.seconds)
    lengths = torch.tensor([frames] * (items - 1) + [frames // 2])
    U = max(1, int(models.output_lengths(model, lengths)[0]) // 4)
    x = torch.randn(items, frames, reader.bands, generator=draw)
    targets = torch.randint(1, len(vocabulary), (items, U), generator=draw)
    ids = [f"synthetic-{i}" for i in range(items)]
    gaps = torch.ones(items, U + 1, dtype=torch.bool)
    batch = PaddedBatch(ids, x, lengths, targets, torch.full((items,), U), gaps, [""] * items)
    augment = build.augmentation(recipe)
    if augment is not None:
        batch.x = augment(batch.x, batch.lengths, ids, seed=recipe.seed, epoch=0, step=10**9)
    precision = "32" if recipe.trainer.precision == "fp16" else recipe.trainer.precision  # CPUs have no fp16 autocast
    objective = Objective(
        recipe.criterion.name, build.insertion_penalty(recipe), precision=precision, **recipe.criterion.settings
    )
    optimizer = optimizer_for(recipe.optim, model, torch.device("cpu"), build.load_initial(recipe, model))
    loss = objective(model.train(), batch).losses.mean()
    cast(Any, loss).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    optimizer.step()
    return DryRun(
        parameters=_parameters(model), tokens=len(vocabulary), frames=int(lengths.sum()), loss=loss.item(),
        grad_norm=norm.item(), seconds=time.monotonic() - started,
    )  # fmt: skip


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
