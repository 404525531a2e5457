"""The learning rate: a pure function of how far training is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median


def rate_factor(
    name: str,
    step: int,
    epoch: int,
    *,
    warmup_steps: int = 0,
    max_steps: int | None = None,
    first: int = 400,
    every: int = 200,
    gamma: float = 1.0,
    final: float = 0.0,
    reductions: float = 1.0,
) -> float:
    """What the learning rate is multiplied with at optimiser step `step` (from 0) of `epoch`.

    A linear warm-up, (step + 1) / warmup_steps, times the schedule: `constant`; `halve`, at epoch `first` and whenever
    `every` more are done; `exponential`, gamma^step; `cosine`, from 1 at the end of the warm-up to `final` at `max_steps`;
    `plateau`, the product of its `reductions` so far.

    >>> [rate_factor("halve", 10**6, epoch) for epoch in (399, 400, 599, 600)]
    [1.0, 0.5, 0.5, 0.25]
    >>> rate_factor("constant", 7, 0, warmup_steps=16), round(rate_factor("exponential", 90_000, 0, gamma=10 ** (-1 / 90_000)), 6)
    (0.5, 0.1)
    """
    warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    if name == "halve":
        return warm * (0.5 ** (1 + (epoch - first) // every) if epoch >= first else 1.0)
    if name == "exponential":
        return warm * gamma**step
    if name == "cosine":
        done = max(0, step - warmup_steps) / max(1, (max_steps or 0) - warmup_steps)
        return warm * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return warm * (reductions if name == "plateau" else 1.0)


@dataclass
class Plateau:
    """Lowers the learning rate whenever dev error has not fallen for `patience` evaluations.

    >>> plateau = Plateau(factor=0.5, patience=2)
    >>> for error in (30.0, 20.0, 21.0, 20.5, 20.1):
    ...     plateau.observe(error)
    >>> plateau.reductions
    0.5
    """

    factor: float
    patience: int
    best: float = math.inf
    waited: int = 0
    reductions: float = 1.0

    def observe(self, error: float) -> None:
        if error < self.best:
            self.best, self.waited = error, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.reductions, self.waited = self.reductions * self.factor, 0


READS = 50.0
"""dev error, in percent, above which a model hardly reads: there it may stand still for long and then begin"""
FEWEST_EVALUATIONS = 4
SMOOTHED = 3


@dataclass
class Patience:
    """Whether dev error has stood still for so long that a run had better end: for a share of all steps.

    What counts is the median of three evaluations in a row, so that one lucky evaluation early on is no mark that everything
    later has to beat, and a curve that hovers while it falls goes on. A run has to begin to read first.

    >>> patience = Patience()
    >>> for step, error in enumerate((90.0, 40.0, 30.0, 20.0, 10.0, 12.0, 11.0, 15.0, 16.0, 15.0), start=1):
    ...     patience.observe(step, error)
    >>> patience.best, patience.since, patience.is_over(0.5), patience.is_over(0.3)
    (11.0, 7, False, False)
    >>> for step in range(11, 15):
    ...     patience.observe(step, 15.0)
    >>> patience.is_over(0.5)
    True
    """

    best: float = math.inf
    """the lowest of the medians"""
    since: int = 0
    """the step that it was found at"""
    waited: int = 0
    """evaluations after it"""
    step: int = 0
    """of the last evaluation"""
    recent: list[float] = field(default_factory=list)

    def observe(self, step: int, error: float) -> None:
        if step == self.step:  # seen already
            return
        self.step, self.recent = step, [*self.recent, error][-SMOOTHED:]
        smooth = median(self.recent)
        if len(self.recent) == SMOOTHED and smooth < self.best:
            self.best, self.since, self.waited = smooth, step, 0
        else:
            self.waited += 1

    def is_over(self, share: float, planned: int = 0) -> bool:
        """Whether nothing became better for that share of the steps: of those planned, or of those done if these are more."""
        steps = max(self.step, planned)
        enough = self.waited >= FEWEST_EVALUATIONS and self.step - self.since >= share * steps
        return enough and self.best < READS
