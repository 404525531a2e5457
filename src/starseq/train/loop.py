"""The loop: batches to gradients to steps, with what is logged, evaluated and saved in between."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from starseq.config import Optim, Recipe, build
from starseq.data.batching import BatchSampler
from starseq.data.dataset import BatchLoader, PaddedBatch
from starseq.data.errors import DataError
from starseq.data.files import write_bytes
from starseq.data.manifest import Progress
from starseq.data.seeds import generator
from starseq.decode.greedy import greedy
from starseq.penalty import AdaptivePenalty, InsertionPenalty
from starseq.runs import folder as layout
from starseq.runs.emissions import normal_text
from starseq.text.error_rate import ErrorCounts, count_errors
from starseq.text.tokeniser import Tokeniser
from starseq.train.checkpoint import load_checkpoint, save_checkpoint, writing
from starseq.train.data import RunSet, TrainingData
from starseq.train.metrics import Log, Metrics
from starseq.train.objective import Objective
from starseq.train.processes import gathered
from starseq.train.schedule import Patience, Plateau, rate_factor
from starseq.train.time_left import TimeLeft

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SKIPS_IN_A_ROW = 20
"""so many steps without a finite loss, and nothing is learned any more"""
FRAMES_ON_GPU = 64
"""batches are padded to a multiple of so many frames, of 10 ms if they are audio: planning convolutions takes half a second"""
STEPS_PER_PROGRESS = 10
SECONDS_PER_PICTURE = 60
SECONDS_PER_CHECKPOINT = 300
"""at least so often, whatever `trainer.checkpoint_every` says, so that a run that is stopped loses minutes"""


@dataclass(frozen=True)
class Hooks:
    """What the loop calls, in the first process only."""

    progress: Progress | None = None
    """(optimiser steps done, of how many)"""
    metrics: Callable[[Metrics], None] | None = None
    message: Callable[[str], None] | None = None
    draw: Callable[[Path], None] | None = None
    """draws the curves of a run folder"""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    folder: Path
    steps: int
    epochs: int
    seconds: float
    skipped: int
    metric: str
    """wer for words, cer for characters"""
    best_error: float | None
    """greedy, on dev, in percent; None without a dev split"""
    best_step: int
    stopped_early: bool = False
    """whether it ended because dev error stood still, before its last step"""

    def __str__(self) -> str:
        done = f"{self.folder}: {self.steps:,} steps in {self.seconds:,.0f} s"
        if self.stopped_early:
            done += ", stopped early (trainer.patience)"
        if self.best_error is None:
            return done
        return f"{done}; best {self.metric.upper()} on dev {self.best_error:.2f} % at step {self.best_step:,}"


@dataclass
class _Position:
    """How far the run is: all that the next step depends on besides weights, optimiser and penalty."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """batches of this epoch that are done, by each process"""
    skipped: int = 0
    best_error: float = math.inf
    best_step: int = 0
    evaluated: int = 0
    """step of the last evaluation"""
    seconds: float = 0.0


@dataclass
class _Sums:
    """Since the last logged step, over all processes."""

    loss: float = 0.0
    norm: float = 0.0
    steps: int = 0
    utterances: int = 0
    labels: int = 0
    frames: int = 0
    seconds: float = 0.0


class Window(NamedTuple):
    """The batches of one optimiser step that this process has, on the CPU, and their place in the epoch."""

    epoch: int
    start: int
    batches: list[PaddedBatch]


@dataclass
class _Pending:
    """A window whose gradients are on their way; nothing has waited for them."""

    losses: list[Tensor]
    """(B,) of each batch"""
    total: Tensor
    """(): summed, over all processes"""
    counts: Tensor
    """(3,): utterances, labels, frames, over all processes"""
    blank_share: Tensor | None = None
    inserted_per_label: Tensor | None = None
    log_penalty: Tensor | None = None


class Loop:
    """A run from its recipe, data and model to the end of training, in one of `fabric`'s processes.

    Every process calls `run`; files are written by the first. For other tasks than reading, subclasses say what is learned
    (`make_objective`), over what the loss of a step is a mean, and what is lower for better weights (`dev_error`).
    """

    mean_over: Literal["utterances", "labels", "frames"] = "utterances"

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        data: TrainingData,
        tokeniser: Tokeniser,
        model: nn.Module,
        fabric: Fabric,
        hooks: Hooks | None = None,
        pretrained: Collection[str] = (),
    ) -> None:
        self.recipe, self.folder, self.data, self.tokeniser, self.fabric = recipe, folder, data, tokeniser, fabric
        self.hooks = hooks if hooks is not None else Hooks()
        self.accumulate = share_of(recipe.optim.batches_per_step, fabric.world_size)
        self.network = model
        self.penalty = build.insertion_penalty(recipe).to(fabric.device)
        self.objective = self.make_objective()
        self.model = fabric.setup_module(model)
        # Not wrapped by Fabric: a scaler of half-precision gradients must reach the optimiser itself.
        self.pretrained = sorted(pretrained)
        self.optimizer = optimizer_for(recipe.optim, model, fabric.device, pretrained)
        self.scaler = torch.amp.GradScaler(fabric.device.type, enabled=recipe.trainer.precision == "fp16")
        # Samples have no bands to mask: models that read them mask frames inside.
        self.augment = build.augmentation(recipe) if data.train.reader.bands > 1 else None
        self.sampler = BatchSampler(
            data.train.sizes, budget=recipe.data.budget, max_items=recipe.data.max_items, buckets=recipe.data.buckets,
            seed=recipe.seed, rank=fabric.global_rank, world=fabric.world_size,
        )  # fmt: skip
        self.plateau = Plateau(recipe.optim.schedule.factor, recipe.optim.schedule.patience)
        self.patience = Patience()
        self.at, self.sums = _Position(), _Sums()
        self.saved_step: int | None = None
        self._saved_epoch = 0
        self._missed: float | None = None
        self._skipped_in_a_row = 0
        self._drawn = self._saved = time.monotonic()
        self._left = TimeLeft()

    def make_objective(self) -> Objective:
        """What a batch is scored by."""
        criterion, precision = self.recipe.criterion, self.recipe.trainer.precision
        return Objective(criterion.name, self.penalty, precision=precision, **criterion.settings)

    # --- the course of a run ------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Trains from where the run stands to its end. Whatever it stopped at, `resume` before goes on from there."""
        first = self.fabric.global_rank == 0
        trainer, workers = self.recipe.trainer, self.recipe.data.workers
        board = self.folder / "tensorboard" if trainer.tensorboard else None
        with writing(self.folder, self.saved_step):
            log = Log(self.folder / layout.METRICS, step=self.at.step, tensorboard=board) if first else None
        self._log = log
        self.data.train.fill(workers)
        if self.data.dev is not None:
            self.data.dev.fill(workers)
        loader = self._loader(self.data.train, self.sampler, workers)
        self._clock = self._saved = time.monotonic()
        self._left = TimeLeft()
        try:
            while not self._done():
                self._epoch(loader)
            self._finish()
        finally:
            if log is not None:
                log.close()
        at = self.at
        return TrainResult(
            folder=self.folder,
            steps=at.step,
            epochs=at.epoch,
            seconds=at.seconds,
            skipped=at.skipped,
            metric="wer" if self.tokeniser.unit == "word" else "cer",
            best_error=None if self.data.dev is None else at.best_error,
            best_step=at.step if self.data.dev is None else at.best_step,
            stopped_early=self._stands_still() and not self._at_its_end(),
        )

    def _loader(self, data: RunSet, sampler: BatchSampler, workers: int) -> BatchLoader:
        return BatchLoader(data, sampler, workers=workers, pin_memory=self.fabric.device.type == "cuda")

    def _done(self) -> bool:
        return self._at_its_end() or self._stands_still()

    def _stands_still(self) -> bool:
        share = self.recipe.trainer.patience
        return share is not None and self.patience.is_over(share, self.recipe.trainer.max_steps or 0)

    def _at_its_end(self) -> bool:
        trainer = self.recipe.trainer
        return (trainer.max_steps is not None and self.at.step >= trainer.max_steps) or (
            trainer.max_epochs is not None and self.at.epoch >= trainer.max_epochs
        )

    def _epoch(self, loader: BatchLoader) -> None:
        """What is left of the present epoch."""
        self.sampler.set_epoch(self.at.epoch)
        windows = self._windows(loader)
        window = next(windows, None)
        while window is not None and not self._done():
            pending = self.backward(window)
            upcoming = next(windows, None)  # read and decoded while the device works
            stepped = self._update(window, pending)
            self.at.batch += len(window.batches)
            self._left.stepped()
            if stepped:
                self._after_step(pending)
            window = upcoming
        if window is None:
            self.at.epoch, self.at.batch = self.at.epoch + 1, 0

    def _windows(self, loader: BatchLoader) -> Iterator[Window]:
        batches = iter(loader)
        start = self.at.batch
        while batches_of_step := list(islice(batches, self.accumulate)):
            yield Window(self.at.epoch, start, batches_of_step)
            start += len(batches_of_step)

    # --- one step -----------------------------------------------------------------------------------------------------

    def backward(self, window: Window) -> _Pending:
        """Puts the gradients of a window on their way: those of the summed losses of all processes, divided by the
        utterances (or what `mean_over` says) of all of them. Waits for nothing."""
        device, world = self.fabric.device, self.fabric.world_size
        counts = torch.tensor([sum(values) for values in zip(*map(_counts, window.batches), strict=True)])
        if world > 1:
            counts = self._summed(counts.to(device))
        # Gradients are averaged over the processes, so each gets `world` times its part.
        scale = world / counts[("utterances", "labels", "frames").index(self.mean_over)]
        logged = self._is_logged(self.at.step + 1)
        observed = self.objective.star and isinstance(self.penalty, AdaptivePenalty)
        pending = _Pending([], torch.zeros((), device=device), counts)
        self.model.train()
        for i, batch in enumerate(window.batches):
            last = i == len(window.batches) - 1
            # Dropout as a function of the place in training: a resumed run draws what it would have drawn.
            torch.manual_seed(_dropout_seed(self.recipe.seed, window.epoch, window.start + i, self.fabric.global_rank))
            moved = self._moved(batch)
            if self.augment is not None:
                key = {"seed": self.recipe.seed, "epoch": window.epoch, "step": self.at.step}
                moved.x = self.augment(moved.x, batch.lengths, batch.ids, **key)
            with self.fabric.no_backward_sync(self.model, enabled=not last):
                scored = self.objective(self.model, moved, inserted=logged and last, blanks=logged and last)
                loss = scored.losses.sum()
                self.fabric.backward(self.scaler.scale(loss * scale))
            pending.losses.append(scored.losses.detach())
            pending.total += loss.detach()
            if observed:
                batch_of_loss = scored.logits, moved.targets, scored.lengths, moved.target_lengths
                cast(AdaptivePenalty, self.penalty).observe(*batch_of_loss, batch_first=True, open_gaps=moved.open)
            if logged and last:
                pending.blank_share = scored.blanks
                if scored.inserted is not None:
                    inserted = scored.inserted.detach().sum()
                    pending.inserted_per_label = inserted / moved.target_lengths.sum().clamp(min=1)
                    pending.log_penalty = self.penalty()
        pending.total = self._summed(pending.total)
        return pending

    def _moved(self, batch: PaddedBatch) -> PaddedBatch:
        """The batch on this process's device; on a GPU in one of few shapes."""
        moved = batch.to(self.fabric.device, non_blocking=True)
        seconds = self.data.train.reader.seconds or 0.01
        multiple = FRAMES_ON_GPU * max(1, round(0.01 / seconds))
        return moved.rounded(multiple) if self.fabric.device.type == "cuda" else moved

    def _update(self, window: Window, pending: _Pending) -> bool:
        """The optimiser's step, unless something is not finite; whether it was made."""
        optim, at = self.recipe.optim, self.at
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        groups = self.optimizer.param_groups
        if at.step < self._head_steps():
            for parameter in (p for group in groups if group["pretrained"] for p in group["params"]):
                parameter.grad = None
        parameters = [p for p in self.network.parameters() if p.grad is not None]
        norm = get_total_norm([cast(Tensor, p.grad) for p in parameters])
        if optim.clip is not None:
            clip_grads_with_norm_(parameters, optim.clip, norm)
        # The one place where a step waits for the device.
        loss, norm_value = torch.stack((pending.total, norm)).tolist()
        stepped = math.isfinite(loss) and math.isfinite(norm_value)
        if stepped:
            for group in groups:
                group["lr"] = self._rate(pretrained=group["pretrained"])
        if stepped or (self.scaler.is_enabled() and math.isfinite(loss)):
            self.scaler.step(self.optimizer)  # where a half-precision gradient overflowed, this does nothing
        else:
            self._report(window, pending, "loss" if not math.isfinite(loss) else "gradient")
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if not stepped:
            at.skipped, self._skipped_in_a_row = at.skipped + 1, self._skipped_in_a_row + 1
            if self._skipped_in_a_row >= SKIPS_IN_A_ROW:
                raise DataError(
                    f"step {at.step:,}: no finite loss or gradient in {SKIPS_IN_A_ROW} steps, so nothing is learned any more; "
                    "a lower optim.lr, a smaller optim.clip or another penalty may help"
                )
            return False
        self._skipped_in_a_row = 0
        if isinstance(self.penalty, InsertionPenalty):
            self.penalty.advance()
        at.step += 1
        sums, (utterances, labels, frames) = self.sums, pending.counts.tolist()
        sums.loss, sums.norm, sums.steps = sums.loss + loss, sums.norm + norm_value, sums.steps + 1
        sums.utterances, sums.labels, sums.frames = (
            sums.utterances + utterances,
            sums.labels + labels,
            sums.frames + frames,
        )
        return True

    def _rate(self, *, pretrained: bool) -> float:
        """The learning rate of new weights, or of those that were trained before, which warm up when they begin to learn."""
        optim, factor = self.recipe.optim, self._rate_factor()
        if not pretrained:
            return optim.lr * factor
        alone = self._head_steps()
        learned = max(0, self.at.step - alone + 1)
        warm = min(1.0, learned / optim.warmup_steps) if alone and optim.warmup_steps else 1.0
        return (optim.lr if optim.encoder_lr is None else optim.encoder_lr) * factor * warm

    def _head_steps(self) -> int:
        """For how many steps the new weights learn alone: none, where none are new."""
        old = {group["pretrained"] for group in self.optimizer.param_groups}
        return self.recipe.optim.head_steps if len(old) > 1 else 0

    def _rate_factor(self) -> float:
        optim, schedule = self.recipe.optim, self.recipe.optim.schedule
        return rate_factor(
            schedule.name, self.at.step, self.at.epoch, warmup_steps=optim.warmup_steps,
            max_steps=self.recipe.trainer.max_steps, first=schedule.first, every=schedule.every, gamma=schedule.gamma,
            final=schedule.final, reductions=self.plateau.reductions,
        )  # fmt: skip

    def _summed(self, value: Tensor) -> Tensor:
        return value if self.fabric.world_size == 1 else cast(Tensor, self.fabric.all_reduce(value, reduce_op="sum"))

    def _report(self, window: Window, pending: _Pending, what: str) -> None:
        """Names the utterances whose loss is not finite, saves their batches, and stops where the recipe says so."""
        bad: list[str] = []
        for batch, losses in zip(window.batches, pending.losses, strict=True):
            wrong = ~torch.isfinite(losses.cpu()) if what == "loss" else torch.ones(len(batch), dtype=torch.bool)
            if wrong.any():
                bad += [id for id, is_wrong in zip(batch.ids, wrong.tolist(), strict=True) if is_wrong]
                name = f"nonfinite-step{self.at.step}-batch{window.epoch}.{window.start}-rank{self.fabric.global_rank}"
                with writing(self.folder, self.saved_step):
                    save_batch(
                        self.folder / f"{name}.safetensors", batch, losses, epoch=window.epoch, step=self.at.step
                    )
        bad = gathered(self.fabric, bad)
        names = ", ".join(bad[:8]) + (", ..." if len(bad) > 8 else "")
        sentence = (
            f"step {self.at.step:,}: the {what} is not finite, from {names}; "
            f"the batch is saved as {self.folder}/nonfinite-step{self.at.step}-*.safetensors"
        )
        if self.recipe.trainer.on_nonfinite == "stop":
            raise DataError(sentence + "; trainer.on_nonfinite=skip would go on without it")
        if self.hooks.message is not None:
            self.hooks.message(sentence + "; skipped")

    # --- between steps ------------------------------------------------------------------------------------------------

    def _is_logged(self, step: int) -> bool:
        trainer = self.recipe.trainer
        return step % trainer.log_every == 0 or self._is_evaluated(step)

    def _is_evaluated(self, step: int) -> bool:
        trainer = self.recipe.trainer
        return step % trainer.eval_every == 0 or step == trainer.max_steps

    def _after_step(self, pending: _Pending) -> None:
        trainer, at = self.recipe.trainer, self.at
        if self._is_logged(at.step):
            self._write_log(pending, self._evaluate() if self._is_evaluated(at.step) else None)
            if self._stands_still() and not self._at_its_end() and self.hooks.message is not None:
                self.hooks.message(
                    f"step {at.step:,}: training stops early, for dev error has stood still since step "
                    f"{self.patience.since:,} (trainer.patience={trainer.patience:g}); the best was {at.best_error:.2f} % "
                    f"at step {at.best_step:,}"
                )
        if at.step % trainer.checkpoint_every == 0 or time.monotonic() - self._saved >= SECONDS_PER_CHECKPOINT:
            self.save()
        if self.hooks.progress is not None and at.step % STEPS_PER_PROGRESS == 0:
            self.hooks.progress(at.step, max(at.step, self._total_steps()))

    def _tick(self, *, training: bool = True) -> None:
        """Books the time since the last call: on the run, and, if it went into training, on the speed that is logged."""
        now = time.monotonic()
        passed, self._clock = now - self._clock, now
        self.at.seconds += passed
        if training:
            self.sums.seconds += passed

    def _total_steps(self) -> int:
        trainer = self.recipe.trainer
        steps = [math.inf if trainer.max_steps is None else trainer.max_steps]
        if trainer.max_epochs is not None:
            steps.append(trainer.max_epochs * -(-len(self.sampler) // self.accumulate))
        return int(min(steps))

    def _seconds_left(self) -> float:
        trainer, steps = self.recipe.trainer, max(0, self._total_steps() - self.at.step)
        evaluations = 0 if self.data.dev is None else -(-steps // trainer.eval_every)
        by_time = self._left(steps, evaluations=evaluations) / SECONDS_PER_CHECKPOINT
        checkpoints = max(by_time, steps / trainer.checkpoint_every)
        return self._left(steps, evaluations=evaluations, checkpoints=checkpoints)

    def _write_log(self, pending: _Pending, dev_error: float | None) -> None:
        self._tick()
        at, sums = self.at, self.sums
        metrics = Metrics(
            step=at.step,
            epoch=at.epoch,
            loss=sums.loss / sums.utterances,
            loss_per_label=sums.loss / max(1, sums.labels),
            blank_share=_number(pending.blank_share) or 0.0,
            inserted_per_label=_number(pending.inserted_per_label),
            p=None if pending.log_penalty is None else math.exp(pending.log_penalty.item()),
            grad_norm=sums.norm / sums.steps,
            lr=self.optimizer.param_groups[0]["lr"],
            frames_per_second=sums.frames / max(sums.seconds, 1e-9),
            skipped=at.skipped,
            seconds=at.seconds,
            seconds_left=0.0 if self._stands_still() else self._seconds_left(),
            dev_error=dev_error,
        )
        self.sums = _Sums()
        if self._log is not None:
            with writing(self.folder, self.saved_step):
                self._log.write(metrics)
        if self.hooks.metrics is not None:
            self.hooks.metrics(metrics)
        if dev_error is not None and time.monotonic() - self._drawn > SECONDS_PER_PICTURE:
            self._draw()

    def _evaluate(self) -> float | None:
        """Greedy error on dev; the best weights so far are saved."""
        self._tick()
        at, dev = self.at, self.data.dev
        at.evaluated = at.step
        if dev is None:
            return None
        with self._left.aside("evaluation"):
            error = self.dev_error(dev)
            self.plateau.observe(error)
            self.patience.observe(at.step, error)
            if error < at.best_error or at.best_step == 0:
                at.best_error, at.best_step = error, at.step
                self._save_model(error)
        self._tick(training=False)
        return error

    def dev_error(self, dev: RunSet) -> float:
        """In percent; the weights with the lowest are kept."""
        errors = self.dev_errors(dev)
        self._missed = errors.missed
        return errors.percent

    @torch.no_grad()
    def dev_errors(self, dev: RunSet) -> ErrorCounts:
        """Errors of greedy decoding against the full texts; each process takes its share of the batches."""
        fabric, data = self.fabric, self.recipe.data
        sampler = BatchSampler(dev.sizes, budget=data.budget, max_items=data.max_items, shuffle=False)
        batches = list(sampler)[fabric.global_rank :: fabric.world_size]
        merge = self.recipe.merges_repeats
        network = self.network.eval()
        total = ErrorCounts()
        workers = 0 if data.cache else data.workers
        for batch in self._loader(dev, cast(BatchSampler, batches), workers):
            moved = self._moved(batch)
            with self.objective.autocast(fabric.device):
                logits, lengths = network(moved.x, moved.lengths)
            for labels, reference in zip(greedy(logits, lengths, merge_repeats=merge), batch.references, strict=True):
                truth, read = normal_text(self.tokeniser, reference), self.tokeniser.decode(labels)
                in_words = self.tokeniser.unit == "word"
                total += count_errors(truth.split(), read.split()) if in_words else count_errors(truth, read)
        counts = torch.tensor(list(asdict(total).values()), device=fabric.device)
        return ErrorCounts(*self._summed(counts).tolist())

    def _finish(self) -> None:
        if self.at.evaluated != self.at.step and self.data.dev is not None:
            self._evaluate()
        if self.data.dev is None:
            self._save_model(None)
        self._tick()
        if (self.saved_step, self._saved_epoch) != (self.at.step, self.at.epoch):
            self.save()
        if self.hooks.progress is not None:
            self.hooks.progress(self.at.step, self.at.step)
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self.hooks.draw is not None:
            with writing(self.folder, self.saved_step), self._left.aside("picture"):
                self.hooks.draw(self.folder)

    # --- what is kept -------------------------------------------------------------------------------------------------

    def _save_model(self, error: float | None) -> None:
        if self.fabric.global_rank == 0:
            log_penalty = self.penalty().item() if self.objective.star else None
            with writing(self.folder, self.saved_step):
                layout.save_model(
                    self.folder,
                    self.network,
                    step=self.at.step,
                    log_penalty=log_penalty,
                    dev_error=error,
                    dev_missed=self._missed,
                )

    def save(self) -> None:
        """Writes the checkpoint: all that decides the steps to come."""
        self._tick()
        if self.fabric.global_rank == 0:
            state = {
                "recipe": self.recipe.to_yaml(),
                "model": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "pretrained": self.pretrained,
                "penalty": self.penalty.state_dict(),
                "scaler": self.scaler.state_dict(),
                "sampler": dict(self.sampler.state_dict(self.at.batch)),
                "labels": self.data.train.digest,
                "plateau": asdict(self.plateau),
                "patience": asdict(self.patience),
                "position": asdict(self.at),
                "sums": asdict(self.sums),
            }
            with writing(self.folder, self.saved_step), self._left.aside("checkpoint"):
                save_checkpoint(self.folder / layout.CHECKPOINT, state)
        self.saved_step, self._saved_epoch, self._saved = self.at.step, self.at.epoch, time.monotonic()
        self._tick(training=False)

    def resume(self) -> bool:
        """Goes on from the folder's checkpoint; False where there is none, and training starts from the beginning."""
        path = self.folder / layout.CHECKPOINT
        if not path.exists():
            return False
        state = load_checkpoint(path)
        try:
            self.sampler.load_state_dict(state["sampler"])
            if state.get("labels", self.data.train.digest) != self.data.train.digest:
                raise ValueError("the labels of the training rows are not those that the run began with")
            self.network.load_state_dict(state["model"])
            self.pretrained = state["pretrained"]
            self.optimizer = optimizer_for(self.recipe.optim, self.network, self.fabric.device, self.pretrained)
            self.optimizer.load_state_dict(state["optimizer"])
            self.penalty.load_state_dict(state["penalty"])
            self.scaler.load_state_dict(state["scaler"])
            self.plateau, self.at = Plateau(**state["plateau"]), _Position(**state["position"])
            self.patience = Patience(**state.get("patience", {}))
            self.sums = _Sums(**state["sums"])
        except ValueError as error:
            raise DataError(f"{path}: cannot go on from it, for {error}") from None
        except (RuntimeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: a checkpoint of another model ({' '.join(str(error).split())[:200]})") from None
        self.saved_step, self._saved_epoch = self.at.step, self.at.epoch
        steps = self.recipe.trainer.max_steps
        if steps is not None and steps < self.at.step:
            raise DataError(
                f"{path}: the run has made {self.at.step:,} steps already, and trainer.max_steps is {steps:,}"
            )
        if self.at.best_step and not (self.folder / layout.MODEL).exists():
            self._best_is_gone()
        return True

    def _best_is_gone(self) -> None:
        """The weights of the best step so far were deleted: the best is looked for anew from here on."""
        if self.hooks.message is not None:
            gone = f"{layout.MODEL} of step {self.at.best_step:,}, the best so far, is gone"
            self.hooks.message(f"{self.folder}: {gone}: the best from here on takes its place")
        self.at.best_error, self.at.best_step, self.at.evaluated = math.inf, 0, -1


def optimizer_for(
    optim: Optim, model: nn.Module, device: torch.device, pretrained: Collection[str] = ()
) -> torch.optim.Optimizer:
    """A group of the parameters that are new, one of those that are `pretrained`, where there are some."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = {old: [p for name, p in named if (name in pretrained) is old] for old in (False, True)}
    parameters: list[Any] = [{"params": group, "pretrained": old} for old, group in groups.items() if group]
    common: dict[str, Any] = {"lr": optim.lr, "weight_decay": optim.weight_decay}
    # One kernel for all parameters, where torch has it.
    fused = device.type == "cpu" or (device.type == "cuda" and optim.name != "adagrad")
    if optim.name == "adagrad":
        return torch.optim.Adagrad(parameters, fused=fused or None, **common)
    if optim.name == "sgd":
        return torch.optim.SGD(parameters, momentum=optim.momentum, fused=fused or None, **common)
    kind = torch.optim.Adam if optim.name == "adam" else torch.optim.AdamW
    return kind(parameters, betas=(optim.betas[0], optim.betas[1]), fused=fused or None, **common)


def share_of(batches: int, world: int) -> int:
    """How many batches each of `world` processes accumulates, so that all of them make up one step."""
    if batches % world and world != 1:
        raise DataError(
            f"optim.batches_per_step: {batches} batches cannot be shared equally by {world} processes: "
            f"choose a multiple of {world}"
        )
    return batches // world


def save_batch(path: Path, batch: PaddedBatch, losses: Tensor, *, epoch: int, step: int) -> None:
    """A batch as it was read, before augmentation, with its losses and, in the metadata, its ids."""
    from safetensors.torch import save

    tensors = {name: getattr(batch, name) for name in ("x", "lengths", "targets", "target_lengths", "open")}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in {**tensors, "losses": losses}.items()}
    facts = {"ids": batch.ids, "references": batch.references, "epoch": epoch, "step": step}
    write_bytes(path, save(tensors, {"starseq": json.dumps(facts)}))


def _counts(batch: PaddedBatch) -> tuple[int, int, int]:
    return len(batch), int(batch.target_lengths.sum()), int(batch.lengths.sum())


def _dropout_seed(*key: int) -> int:
    return generator("dropout", *key).initial_seed()


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
