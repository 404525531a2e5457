"""What is the star's alone: gaps and the insertions, against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from tests import brute_force, cases
from tests.cases import BACKENDS, CLOSED, FAST, HALF, batch_of, few, published_loss, run

P = math.exp(HALF)


# --- gaps -------------------------------------------------------------------------------------------------------------


def certain(*tokens: int) -> list[list[float]]:
    """Frames over blank, 1, 2, 3 that say exactly these tokens."""
    return [[0.0 if v == token else -math.inf for v in range(4)] for token in tokens]


READINGS = {
    # target, gaps, tokens: the weight of the reading
    "the * fox reads the fox": ([1, 2], [CLOSED, HALF, CLOSED], (1, 2), 1.0),
    "the * fox reads the fox fox": ([1, 2], [CLOSED, HALF, CLOSED], (1, 2, 2), P),
    "the * fox reads the red fox": ([1, 2], [CLOSED, HALF, CLOSED], (1, 3, 2), P),
    "the * fox does not read the fox ran": ([1, 2], [CLOSED, HALF, CLOSED], (1, 2, 3), 0.0),
    "the * fox does not read so the fox": ([1, 2], [CLOSED, HALF, CLOSED], (3, 1, 2), 0.0),
    "* the fox reads the the fox": ([1, 2], [HALF, CLOSED, CLOSED], (1, 1, 2), P),
    "* the fox does not read the red fox": ([1, 2], [HALF, CLOSED, CLOSED], (1, 3, 2), 0.0),
    "the fox * reads the fox fox once": ([1, 2], [CLOSED, CLOSED, HALF], (1, 2, 2), P),
    "* fox * reads fox fox once": ([2], [HALF, HALF], (2, 2), P),
    "* a a * reads a a a at both places": ([1, 1], [HALF, CLOSED, HALF], (1, 1, 1), 2 * P),
    "* a b * reads a b a b at both places": ([1, 2], [HALF, CLOSED, HALF], (1, 2, 1, 2), 2 * P**2),
    "a blank is no token": ([1, 2], [CLOSED, CLOSED, CLOSED], (0, 1, 0, 2, 0), 1.0),
}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_gaps(backend: str, name: str) -> None:
    target, gaps, tokens, weight = READINGS[name]
    loss = run("published_stc", batch_of([certain(*tokens)], [target], [gaps]), backend).loss.item()
    assert loss == (pytest.approx(-math.log(weight)) if weight else math.inf)


@few
@given(batch=cases.batches(longest=5, most_alignments=250))
def test_every_reading_counts_once_unless_an_inner_block_is_closed(batch: cases.Batch) -> None:
    """The exception that DESIGN.md and the docstrings name is the only one."""
    gaps = torch.where(batch.penalty.isnan() | (batch.penalty == CLOSED), batch.penalty, HALF)  # one penalty for all
    batch = replace(batch, penalty=gaps, normalized=True)
    losses = run("published_stc", batch, "numba").loss.tolist()
    for loss, (frames, target, penalty) in zip(losses, batch.utterances(), strict=True):
        once = brute_force.distinct_readings(brute_force.log_softmax(frames), target, penalty, batch.blank)
        if _has_inner_block(penalty):
            assert loss <= once + 1e-12
        else:
            assert loss == pytest.approx(once, rel=1e-10, abs=1e-11)


def _has_inner_block(penalty: list[float]) -> bool:
    """Whether two labels with a closed gap between them have open gaps somewhere on both sides."""
    opened = [l for l, x in enumerate(penalty) if x > CLOSED]
    return any(penalty[l] == CLOSED for l in range(opened[0], opened[-1])) if opened else False


# --- insertions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
def test_inserted_is_the_derivative_by_the_penalty(backend: str) -> None:
    batch = cases.random_batch(T=9, B=2, V=5, U=3, extra=0)
    inserted, step = run("published_stc", batch, backend).inserted, 1e-5
    for b, l in [(0, 0), (0, 1), (0, 3), (1, 0), (1, batch.target_lengths[1])]:
        moved = torch.zeros_like(batch.penalty)
        moved[b, l] = step
        above, below = (
            run("published_stc", replace(batch, penalty=batch.penalty + d), backend).loss[b] for d in (moved, -moved)
        )
        assert inserted[b, l].item() == pytest.approx((below - above).item() / (2 * step), rel=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inserted_counts_tokens(backend: str) -> None:
    """3 1 3 3 2 for certain: one token before the 1, two before the 2, none after it."""
    result = run("published_stc", batch_of([certain(3, 1, 0, 3, 3, 2)], [[1, 2]]), backend)
    torch.testing.assert_close(result.inserted[0, :3], torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("backend", FAST)
def test_asking_for_insertions_changes_nothing_else(backend: str) -> None:
    logits = torch.randn(9, 2, 5, generator=torch.Generator().manual_seed(0))
    arguments = (logits, torch.tensor([[1, 2], [3, 0]]), (9, 8), (2, 1))
    loss, inserted = published_loss(*arguments, return_inserted=True, backend=backend)  # without any gradient
    assert loss == published_loss(*arguments, backend=backend)
    assert inserted.shape == (2, 3)
    assert inserted.dtype == loss.dtype
    assert not inserted.requires_grad
    assert (inserted[:, 0] > 0).all()
