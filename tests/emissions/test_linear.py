"""The arcs' probabilities without logarithms, from their definition: rows longer than a block, frames that fill no vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from starseq.emissions.linear_numba import weigh_frames
from starseq.emissions.tokens import NONE, Tokens
from starseq.emissions.vocabulary_numba import BLOCK, FRAMES, columns_of
from starseq.lattice.lanes_numba import LANES
from starseq.lattice.topology import Topology

LONG = 2 * BLOCK + 300


def weigh(logits, blank, labels, log_weight):
    """stay, enter and star (T, S) of a chain whose states leave their next label out; whether all went well."""
    frames, vocabulary = logits.shape
    states = len(labels) + 1
    size = -(-states // LANES) * LANES
    tokens = Tokens(
        blank, torch.tensor([[NONE, *labels]], dtype=torch.int32), None,
        torch.full((1, states), log_weight, dtype=torch.float64), torch.tensor([[*labels, NONE]], dtype=torch.int32),
    )  # fmt: skip
    columns = columns_of(tokens, Topology(torch.tensor([states])), vocabulary)
    count = columns.token.shape[1]
    rows = np.full((3, frames * size + LANES), np.nan)
    tops, inverses = np.empty((2, frames))
    good = weigh_frames(
        0, frames, logits.reshape(-1), 0, vocabulary, vocabulary, 0, states, columns, *rows, tops, inverses,
        np.full(2 * FRAMES, np.nan), np.full(FRAMES * count, np.nan, np.float32), np.full(FRAMES * (count + 1), np.nan),
        np.full(2 * FRAMES * size, np.nan), np.empty(0, np.float32),
    )  # fmt: skip
    stay, enter, star = (row[: frames * size].reshape(frames, size) for row in rows)
    if good:
        assert (enter[:, states:] == 0).all()
        assert np.isfinite(stay).all()
    return stay[:, :states], enter[:, :states], star[:, :states], good


def expected(logits, blank, labels, log_weight):
    x = logits.astype(np.float64)
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    enter = np.stack([np.zeros(len(p)), *(p[:, label] for label in labels)], 1)
    others = [[v for v in range(p.shape[1]) if v not in (blank, label)] for label in [*labels, blank]]
    star = math.exp(log_weight) * np.stack([p[:, tokens].sum(1) for tokens in others], 1)
    return p[:, [blank]] + star, enter, star


def shaped(kind, logits):
    """Logits whose largest come late, or several times, or so high that all others together are nothing beside one."""
    vocabulary = logits.shape[1]
    if kind == "rising":
        logits += np.linspace(0, 60, vocabulary, dtype=np.float32)
    elif kind == "ties":
        logits[:, [1, vocabulary // 2, vocabulary - 2]] = 9
    elif kind == "one":
        logits[:, vocabulary - 2] = 150
    return logits


@pytest.mark.parametrize("kind", ["plain", "rising", "ties", "one"])
@pytest.mark.parametrize("place", ["first", "inside", "last"])
@pytest.mark.parametrize(("frames", "vocabulary"), [(1, 9), (3, LONG), (FRAMES + 5, 80), (2 * FRAMES, LANES + 1)])
def test_by_definition(frames: int, vocabulary: int, place: str, kind: str) -> None:
    random = np.random.default_rng(vocabulary + frames)
    logits = shaped(kind, random.normal(size=(frames, vocabulary)).astype(np.float32))
    blank = {"first": 0, "inside": vocabulary // 2 + 1, "last": vocabulary - 1}[place]
    some = [int(v) for v in random.permutation(vocabulary)[:4] if v != blank]
    labels = [vocabulary - 2, *some, vocabulary - 2, some[0]]
    *ours, good = weigh(logits, blank, labels, -0.5)
    assert good
    for result, definition in zip(ours, expected(logits, blank, labels, -0.5), strict=True):
        np.testing.assert_allclose(result, definition, rtol=2e-6, atol=1e-280)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("frame", [0, FRAMES + 2])
def test_frames_without_probabilities_are_declined(frame: int, bad: float) -> None:
    logits = np.zeros((FRAMES + 3, LONG), np.float32)
    assert weigh(logits, 0, [3, 4], -0.5)[-1]
    logits[frame] = bad
    assert not weigh(logits, 0, [3, 4], -0.5)[-1]
    logits[frame, 1:] = 0
    assert weigh(logits, 0, [3, 4], -0.5)[-1] == (bad == -np.inf)  # a blank of probability 0 is no trouble
