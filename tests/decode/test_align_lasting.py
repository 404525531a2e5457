"""Alignment where tokens last: the best path is the best reading there is, and what it inserts is told once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests import brute_force

import starseq
from starseq.decode.align import align

BACKENDS = ["torch", "numba"]


def best_reading(log_probs: torch.Tensor, target: list[int], penalties: list[float], matching: str) -> float:
    """The log-weight of the reading that weighs most, by enumerating all."""
    P = log_probs.exp().tolist()
    is_open = [x > -math.inf for x in penalties]
    best = 0.0
    for alignment in itertools.product(range(len(P[0])), repeat=len(P)):
        for reading in brute_force._lasting_readings(alignment, target, is_open, 0, matching):  # type: ignore[arg-type]
            weight = 1.0
            for t, (v, (role, l)) in enumerate(zip(alignment, reading, strict=True)):
                weight *= P[t][v]
                if role == "begins":
                    weight *= math.exp(penalties[l]) * (1 - (P[t - 1][v] if t else 0.0))
                elif role == "lasts":
                    weight *= P[t - 1][v]
            best = max(best, weight)
    return math.log(best)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("matching", ["leftmost", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_path_is_the_best_reading(backend: str, matching: str, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(5, 4, generator=random, dtype=torch.float64)).log_softmax(1)
    target = torch.randint(1, 4, (seed % 3,), generator=random).tolist()
    penalties = (-2 * torch.rand(len(target) + 1, generator=random, dtype=torch.float64)).tolist()
    if seed == 5:
        penalties[0] = -math.inf
    result = align(
        log_probs, target, criterion="lasting_stc", log_penalty=torch.tensor(penalties, dtype=torch.float64),
        matching=matching, backend=backend,
    )  # fmt: skip
    assert result.log_score == pytest.approx(best_reading(log_probs, target, penalties, matching), abs=1e-9)
    loss, inserted = starseq.lasting_stc_loss(
        log_probs, torch.tensor(target, dtype=torch.int64), (5,), (len(target),),
        penalty=torch.tensor(penalties, dtype=torch.float64), matching=matching, return_inserted=True, reduction="sum",
    )  # fmt: skip
    assert result.log_z == pytest.approx(-loss.item(), abs=1e-9)
    assert result.missing == pytest.approx(inserted.tolist(), abs=1e-9)
    assert [label.token for label in result.labels] == target


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_lasts_is_filled_in_once(backend: str) -> None:
    reads = [0, 1, 1, 3, 3, 3, 0, 2, 2, 2, 0, 1]  # 1 _ 3 _ 2 _ 1, and the labels are 1 and 2
    logits = 9.0 * torch.nn.functional.one_hot(torch.tensor(reads), 4).double()
    result = align(logits, [1, 2], criterion="lasting_stc", backend=backend)
    assert [(label.start, label.end) for label in result.labels] == [(1, 3), (7, 10)]
    middle, end = result.spans
    assert (middle.gap, middle.start, middle.end, [token for token, *_ in middle.tokens]) == (1, 3, 6, [3])
    assert (end.gap, end.start, end.end, [(token, frame) for token, frame, _ in end.tokens]) == (2, 11, 12, [(1, 11)])
    assert middle.missing == pytest.approx(1, abs=0.05)
