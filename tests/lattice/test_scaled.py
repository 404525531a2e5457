"""The lattice without logarithms against the one with them, and where it must decline."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from starseq.lattice import banded_numba
from starseq.lattice.lanes_numba import LANES
from starseq.lattice.scaled_numba import sum_scaled
from starseq.lattice.topology import Topology

LIKE = np.empty(0, np.float32)


def run(stay, enter, ends=1, skip=None, visits=False):
    """log_z, alpha, beta and factor from weights (T, S)."""
    frames, states = stay.shape
    size = -(-states // LANES) * LANES

    def rows(values):
        flat = np.zeros(frames * size + LANES)
        flat[: frames * size].reshape(frames, size)[:, :states] = values
        return flat

    skips = np.zeros(0 if skip is None else size + LANES)
    if skip is not None:
        skips[:states] = skip
    sums = np.full((2, frames + 1, states + 3), np.nan)  # what lies past the states is neither read nor written
    factor = np.empty(frames)
    log_z = sum_scaled(
        rows(stay), rows(enter), ends, skips, frames, states, sums[0], sums[1], visits, factor, np.empty((2, frames + 1)),
        np.full(4 * (size + 2 * LANES), np.nan), LIKE,
    )  # fmt: skip
    assert np.isnan(sums[:, :, states:]).all()
    return log_z, sums[0, :, :states], sums[1, :, :states], factor


def expected(stay, enter, ends=1, skip=None):
    """log_alpha, log_beta and log_z, in float64."""
    frames, states = stay.shape
    topology = Topology(torch.tensor([states]), ends, None if skip is None else torch.from_numpy(skip)[None])
    with np.errstate(divide="ignore"):
        logs = [torch.from_numpy(np.log(x))[None] for x in (stay, enter)]
    results = banded_numba.forward_backward(*logs, topology, torch.tensor([frames]), backward=True, exact=True)
    return [x[0].numpy() for x in results]


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("spread", [1.0, 20.0])
@pytest.mark.parametrize("states", [1, 2, 3, LANES, LANES + 1, 2 * LANES + 1])
def test_as_with_logarithms(states: int, spread: float, merging: bool) -> None:
    random = np.random.default_rng(states)
    frames = 3 * states + 5
    stay, enter = np.exp(-spread * random.random((2, frames, states)))
    if merging:
        stay = enter
    else:
        enter[:, 0] = 0.0
    skip = random.random(states) < 0.5 if merging else None
    ends = 1 + merging
    log_z, alpha, beta, factor = run(stay, enter, ends, skip, visits=merging)
    log_alpha, log_beta, true_log_z = expected(stay, enter, ends, skip)
    assert log_z == pytest.approx(true_log_z, rel=1e-12)
    with np.errstate(divide="ignore"):
        if merging:
            ours, theirs = alpha[1:] * beta[1:] * factor[:, None], log_alpha[1:] + log_beta[1:] - true_log_z
        else:
            ours = alpha[:-1] * stay * beta[1:] * factor[:, None]
            theirs = log_alpha[:-1] + np.log(stay) + log_beta[1:] - true_log_z
    np.testing.assert_allclose(ours, np.exp(theirs), atol=1e-12)


def test_no_path() -> None:
    assert math.isnan(run(np.full((2, 4), 0.5), np.full((2, 4), 0.5))[0])
    assert math.isnan(run(np.full((9, 3), 0.5), np.zeros((9, 3)))[0])


@pytest.mark.parametrize(("small", "answers"), [(1e-20, True), (1e-28, False), (1e-200, False)])
def test_numbers_that_are_too_far_apart(small: float, answers: bool) -> None:
    """Nine labels of probability `small` beside a blank of nearly 1: no state of the first half is 2^-800 of the largest."""
    frames, states = 30, 10
    stay, enter = np.ones((frames, states)), np.full((frames, states), small)
    log_z = run(stay, enter)[0]
    assert math.isnan(log_z) != answers
    if answers:
        ways = math.comb(frames, states - 1)
        assert log_z == pytest.approx(math.log(ways) + (states - 1) * math.log(small), rel=1e-12)


def test_what_was_far_apart_on_the_way() -> None:
    """As above, but in the end the states before the last have fallen behind: of the last times alone, all would seem well."""
    stay, enter = np.ones((30, 10)), np.full((30, 10), 1e-28)
    stay[-13:, :-1] = 1e-20
    assert math.isnan(run(stay, enter)[0])


def test_weights_that_vanish_at_once_are_declined() -> None:
    assert math.isnan(run(np.full((40, 1), 1e-60), np.zeros((40, 1)))[0])
    assert run(np.full((40, 1), 1e-20), np.zeros((40, 1)))[0] == pytest.approx(40 * math.log(1e-20))
