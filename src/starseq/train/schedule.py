"""The learning rate: a pure function of how far training is."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
