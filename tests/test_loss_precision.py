"""float32 against float64 at T = 4,000, where plain float32 log-sums drift.

PYTHONPATH=. python tests/test_loss_precision.py        prints the table of errors
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from tests import cases

T, V, U = 4000, 30, 100
# The spread of the logits, and what is added to the penalties: without it STC's loss would not come to 35,000.
INPUTS = {"soft": (1.0, 0.0), "strong": (9.0, 0.0), "hopeless": (40.0, -16.0)}


class Errors(NamedTuple):
    """Of a backend against the torch backend in float64, on the same logits."""

    true_loss: float
    loss: float  # relative, in float32
    gradient: float  # the largest of all entries, in float32
    gradient_float64: float  # the same in float64


def batch_of(name: str) -> cases.Batch:
    spread, more = INPUTS[name]
    batch = cases.random_batch(T=T, B=1, V=V, U=U, extra=0, spread=spread)
    return replace(batch, penalty=(batch.penalty + more).float().double())


@functools.cache
def truth(criterion: str, name: str) -> cases.Result:
    return cases.run(criterion, batch_of(name), "torch")


def measure(backend: str, criterion: str, name: str) -> Errors:
    batch, true = batch_of(name), truth(criterion, name)
    single = cases.run(criterion, batch, backend, torch.float32)
    double = true if backend == "torch" else cases.run(criterion, batch, backend)
    return Errors(
        true_loss=true.loss.item(),
        loss=((single.loss - true.loss) / true.loss).abs().item(),
        gradient=(single.grad - true.grad).abs().max().item(),
        gradient_float64=(double.grad - true.grad).abs().max().item(),
    )


@pytest.mark.parametrize("criterion", cases.CRITERIA)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("backend", cases.FAST)
def test_float32_at_4000_frames(backend: str, name: str, criterion: str) -> None:
    errors = measure(backend, criterion, name)
    assert errors.loss < 1e-6
    assert errors.gradient < 1e-4
    assert errors.gradient_float64 < 1e-9
    if name == "hopeless":
        assert errors.true_loss > 35_000


if __name__ == "__main__":
    print(f"T = {T}, V = {V}, U = {U}; errors in float32, the last column in float64")
    print(f"{'backend':8}{'criterion':14}{'logits':10}{'loss':>10}{'relative':>10}{'gradient':>10}{'gradient':>10}")
    for backend, criterion, name in itertools.product(cases.FAST, cases.CRITERIA, INPUTS):
        true_loss, *errors = measure(backend, criterion, name)
        print(f"{backend:8}{criterion:14}{name:10}{true_loss:10.1f}", *(f"{error:9.1e}" for error in errors))
