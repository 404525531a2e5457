"""How far a `starseq fit` is, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from starseq.config import Recipe
from starseq.jobs.train import Metrics, train

__all__ = ["Clock", "Moment", "expected", "seconds_of_step"]

SHARES = {"length": 0.1, "complete": 0.15, "lm": 0.02, "tune": 0.15, "evaluate": 0.1, "report": 0.02}
"""What a part takes, in times of a training, until it has begun: for the time left alone"""
MEASURED_SECONDS = 10.0


class Moment(NamedTuple):
    """How far a fit is."""

    part: str
    """what is done now, in words"""
    done: int
    total: int | None
    """of this part"""
    share: float
    """of the whole, from 0 to 1"""
    seconds_left: float | None
    """None: not known yet"""


def expected(trainings: int, steps: int, seconds: float) -> str:
    minutes = trainings * steps * seconds / 60
    each = f"{trainings} trainings of {steps:,} steps" if trainings > 1 else f"a training of {steps:,} steps"
    return f"expect {_span(minutes)} for {each} here, at {seconds:.3g} s a step; completing, tuning and evaluating come on top"


def _span(minutes: float) -> str:
    if minutes >= 120:
        return f"{minutes / 60:.1f} hours"
    return f"{minutes:.{1 if minutes < 10 else 0}f} minutes"


class _Enough(Exception):
    """The steps that were measured are enough."""


def seconds_of_step(recipe: Recipe, folder: Path) -> float:
    """Seconds of a step, from a training that is stopped after some."""
    seen: list[tuple[int, float]] = []

    def metrics(now: Metrics) -> None:
        seen.append((now.step, now.seconds))
        if len(seen) > 2 and seen[-1][1] - seen[0][1] > MEASURED_SECONDS:
            raise _Enough

    quick = replace(recipe.trainer, log_every=5, eval_every=10**9, checkpoint_every=10**9, tensorboard=False)
    with suppress(_Enough):
        train(replace(recipe, trainer=quick), folder, on_metrics=metrics)
    (first, begun), (last, ended) = (seen[0] if len(seen) > 1 else (0, 0.0)), seen[-1]
    return (ended - begun) / (last - first)


class Clock:
    """How far the whole is: what is done by its time, what is to come in times of a training."""

    def __init__(self, done: dict[str, float]) -> None:
        self.done = done
        self.begun, self.share = 0.0, 0.0
        self._first: tuple[int, float] | None = None

    def begin(self) -> None:
        self.begun, self._first = time.monotonic(), None

    def end(self) -> float:
        return round(time.monotonic() - self.begun, 1)

    def at(self, part: str, parts: Sequence[str], done: int, total: int | None) -> tuple[float, float | None]:
        """The share of the whole that is done, and the seconds left, None where nothing tells yet."""
        now = time.monotonic()
        if self._first is None or done < self._first[0]:
            self._first = (done, now)
        weight = {name: 1.0 if name in ("teacher", "student") else SHARES.get(name, 0.0) for name in parts}
        within = min(1.0, done / total) if total else 0.0
        before = sum(weight[name] for name in parts[: parts.index(part)])
        # A part that goes over its rows several times begins to count anew.
        self.share = max(self.share, (before + within * weight[part]) / (sum(weight.values()) or 1.0))
        ahead = sum(weight[name] for name in parts[parts.index(part) + 1 :])
        training = max((self.done[name] for name in ("teacher", "student") if name in self.done), default=None)
        rate = (now - self._first[1]) / (done - self._first[0]) if done > self._first[0] else None
        left = None if rate is None or not total else rate * (total - done)
        if part in ("teacher", "student"):
            training = training if rate is None or not total else rate * total
        elif training is not None:
            left = max(left or 0.0, training * weight[part] - (now - self.begun))
        return self.share, None if left is None or training is None else left + ahead * training
