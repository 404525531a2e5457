"""How the cost of the losses grows: with the labels, and with the vocabulary."""

from __future__ import annotations

from starseq.jobs.bench import Case, Progress, measure
from starseq.jobs.bench_results import GROWING, Measurement

CASES = (
    *(Case(GROWING[0], 8, 1000, 80, U) for U in (5, 10, 20, 40, 80, 160, 320)),
    *(Case(GROWING[1], 8, 200, V, 25) for V in (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 200000)),
)


def bench_growth(
    device: str = "cpu", *, seconds: float = 1.0, progress: Progress = lambda done, total: None
) -> list[Measurement]:
    """As `starseq bench`, of these cases; `seconds` for each."""
    return measure(CASES, device, seconds, progress)
