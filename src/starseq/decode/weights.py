"""The weights alpha and beta that read n-best lists with the fewest errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starseq.data.errors import DataError
from starseq.decode.nbest import NBest
from starseq.text.error_rate import count_errors
from starseq.text.gaps import Unit

__all__ = ["ALPHAS", "BETAS", "Surface", "Weights", "best_weights"]

ALPHAS = tuple(np.arange(0, 3.01, 0.25).tolist())
BETAS = tuple(np.arange(-4, 4.01, 0.5).tolist())


@dataclass(frozen=True)
class Surface:
    """Error rates, in percent, at every pair of weights: percent[i][j] at alphas[i], betas[j]."""

    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    percent: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Weights:
    """The best weights, the error rate of the lists with them, and the surface where they were looked for first."""

    alpha: float
    beta: float
    percent: float
    surface: Surface


def best_weights(
    lists: Sequence[NBest], references: Sequence[str], *, unit: Unit, alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS, refinements: int = 3, progress: Callable[[int, int], None] = lambda done, total: None,
) -> Weights:  # fmt: skip
    """A grid, then ever finer ones around its best point, which may leave the grid; alpha stays at or above 0, and a weight
    with one value only stays as it is.

    Where several points are equally good, the one with the better neighbours wins, then the smaller weights. Word errors
    for ``unit="word"``, character errors for ``"char"``.

    >>> from starseq.decode.nbest import Hypothesis
    >>> hyps = (Hypothesis("no", (1,), -1.0, -9.0, 1), Hypothesis("yes", (2,), -2.0, -2.0, 1))
    >>> found = best_weights([NBest("x", hyps)], ["yes"], unit="word")
    >>> found.percent, 7 * found.alpha > 1
    (0.0, True)
    """
    if not lists:
        raise DataError("there is nothing to tune the weights on: no n-best list")
    corpus = _Corpus(lists, references, unit)
    if not corpus.length:
        raise DataError("there is nothing to tune the weights on: every reference is empty")
    grid = (np.array(sorted(set(alphas))), np.array(sorted(set(betas))))
    steps = [float(np.diff(axis).min()) if len(axis) > 1 else 0.0 for axis in grid]
    errors = corpus.errors(*grid, progress)
    surface = Surface(
        tuple(grid[0].tolist()),
        tuple(grid[1].tolist()),
        tuple(tuple((100 * row / corpus.length).tolist()) for row in errors),
    )
    alpha, beta, fewest = _lowest(*grid, errors)
    for refinement in range(refinements + 1):
        while True:  # walk with this step until the middle is the best
            near_alphas = np.unique(np.maximum(alpha + steps[0] * np.arange(-2, 3), 0).round(6))
            near_betas = np.asarray(beta + steps[1] * np.arange(-2, 3), dtype=np.float64).round(6)
            here = corpus.errors(near_alphas, near_betas)
            next_alpha, next_beta, count = _lowest(near_alphas, near_betas, here)
            if count >= fewest:
                break
            alpha, beta, fewest = next_alpha, next_beta, count
        if refinement < refinements:
            steps = [step / 2 for step in steps]
    return Weights(alpha, beta, 100 * fewest / corpus.length, surface)


def _lowest(
    alphas: NDArray[np.float64], betas: NDArray[np.float64], errors: NDArray[np.int64]
) -> tuple[float, float, int]:
    padded = np.pad(errors.astype(np.float64), 1, mode="edge")
    around = sum(padded[i : i + len(alphas), j : j + len(betas)] for i in range(3) for j in range(3))
    lowest = np.argwhere(errors == errors.min())
    i, j = min(lowest.tolist(), key=lambda at: (around[at[0], at[1]], alphas[at[0]], abs(betas[at[1]])))  # type: ignore[index]
    return float(alphas[i]), float(betas[j]), int(errors[i, j])


class _Corpus:
    """n-best lists as arrays. Errors are counted only for texts that win somewhere, once."""

    def __init__(self, lists: Sequence[NBest], references: Sequence[str], unit: Unit) -> None:
        self._parts = []
        self.length = 0
        for nbest, reference in zip(lists, references, strict=True):
            if not nbest.hyps:
                raise DataError(f"utterance {nbest.id!r} has an empty n-best list: it cannot be tuned on")
            scores = np.array([(hyp.am, hyp.lm, hyp.length) for hyp in nbest.hyps])
            truth = reference.split() if unit == "word" else list(reference)
            texts = [hyp.text.split() if unit == "word" else list(hyp.text) for hyp in nbest.hyps]
            self._parts.append((scores, truth, texts, np.full(len(texts), -1, dtype=np.int64)))
            self.length += len(truth)

    def errors(
        self, alphas: NDArray[np.float64], betas: NDArray[np.float64],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """The errors of the whole corpus at each pair of weights: (len(alphas), len(betas))."""
        total = np.zeros((len(alphas), len(betas)), dtype=np.int64)
        for done, (scores, truth, texts, counts) in enumerate(self._parts, start=1):
            am, lm, length = scores.T
            by_alpha = am + alphas[:, None] * lm
            winners = np.stack([(by_alpha + beta * length).argmax(axis=1) for beta in betas], axis=1)
            for winner in np.unique(winners):
                if counts[winner] < 0:
                    counts[winner] = count_errors(truth, texts[winner]).errors
            total += counts[winners]
            progress(done, len(self._parts))
        return total
