"""The arcs' scores: what each token and star adds up to, worked out in plain probabilities."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import TOLERANCES, few
from torch import Tensor

from starseq.emissions import vocabulary_numba, vocabulary_torch
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology

BACKENDS = [vocabulary_torch, vocabulary_numba]
ids = {"ids": lambda module: module.__name__.rpartition("_")[2]}
INF = math.inf


ONE = Topology(torch.tensor([2]))


def one_star(left_out: int) -> Tokens:
    """A graph of two states over blank 0, whose first leaves a token out of its star. (The last leaves out nothing.)"""
    tokens = torch.tensor([[NONE, 1]], dtype=torch.int32)
    return Tokens(0, tokens, None, torch.zeros(1, 2, dtype=torch.float64), torch.full_like(tokens, left_out))


@pytest.mark.parametrize("module", BACKENDS, **ids)
@few
@given(
    V=st.integers(2, 6), states=st.lists(st.tuples(*[st.integers(-1, 6)] * 3), min_size=1, max_size=4),
    blank=st.integers(0, 1), only_blanks=st.booleans(), normalized=st.booleans(), seed=st.integers(0, 99),
    spread=st.sampled_from([1.0, 30.0]),
)  # fmt: skip
def test_scores_by_definition(
    module: ModuleType, V: int, states: list[tuple[int, int, int]], blank: int, only_blanks: bool, normalized: bool,
    seed: int, spread: float,
) -> None:  # fmt: skip
    """Tokens outside of 0..V-1 are impossible on an arc, and nothing to leave out of a star. Compiled code has stars on blanks."""
    only_blanks = only_blanks or module is vocabulary_numba
    states = [
        (e if e != blank else NONE, blank if only_blanks else y, out if out != blank else NONE) for e, y, out in states
    ]
    logits = spread * torch.randn(1, 3, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    enter, stay, left_out = (torch.tensor([column], dtype=torch.int32) for column in zip(*states, strict=True))
    weight = -torch.arange(len(states), dtype=torch.float64)[None]
    tokens = Tokens(blank, enter, None if only_blanks else stay, weight, left_out)
    topology = Topology(torch.tensor([len(states)]))
    scores = module.scores(logits, tokens, topology, torch.tensor([3]), normalized=normalized, star=True)
    log_p = logits.log_softmax(-1) if normalized else logits

    def log_sum(t: int, tokens: list[int]) -> Tensor:
        return torch.logsumexp(log_p[0, t][[v for v in tokens if 0 <= v < V]], 0)  # of nothing: -inf

    for t in range(3):
        for s, (e, y, out) in enumerate(states):
            absent = (blank, out) if s + 1 < len(states) else (blank,)
            star = log_sum(t, [v for v in range(V) if v not in absent]) - s
            expected = (log_sum(t, [e]), star, torch.logaddexp(log_sum(t, [y]), star))
            for ours, exact in zip((scores.enter, scores.star, scores.stay), expected, strict=True):
                torch.testing.assert_close(ours[0, t, s], exact, **TOLERANCES[torch.float64])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("L", [20.0, 60.0, 90.0, 1e4])
@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_the_star_without_what_dominates_it(module: ModuleType, L: float, dtype: torch.dtype) -> None:
    r"""Over b, 1, 2, 3 with logits 0, L, 0, 0: star\1 is 2 tokens of e^-L, to full precision."""
    logits = torch.tensor([[[0.0, L, 0.0, 0.0]]], dtype=dtype)
    scores = module.scores(logits, one_star(1), ONE, torch.tensor([1]), normalized=True, star=True)
    tolerance = {"rel": TOLERANCES[dtype]["rtol"]}
    assert scores.star[0, 0, 0].item() == pytest.approx(math.log(2) - L - math.log1p(3 * math.exp(-L)), **tolerance)
    assert scores.stay[0, 0, 0].item() == pytest.approx(math.log(3) - L - math.log1p(3 * math.exp(-L)), **tolerance)


@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_a_star_with_nothing_in_it(module: ModuleType) -> None:
    """Over b and 1, star\\1 is empty; and where the other tokens are impossible it is empty, too."""
    for frame in ([0.0, 1.0], [0.0, 1.0, -INF]):
        logits = torch.tensor([[frame]])
        scores = module.scores(logits, one_star(1), ONE, torch.tensor([1]), normalized=False, star=True)
        assert scores.star[0, 0, 0].item() == -INF
        assert scores.stay[0, 0, 0].item() == pytest.approx(0.0, abs=1e-7)  # of float32


@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_norm(module: ModuleType) -> None:
    """The log of the sum over the vocabulary; 0 for a frame without mass, and where scores are taken as they are."""
    logits = torch.tensor([[[1.0, 2.0, 3.0], [-INF, -INF, -INF]]], dtype=torch.float64)
    arguments = (logits, one_star(2), ONE, torch.tensor([2]))
    norm = module.scores(*arguments, normalized=True).norm
    torch.testing.assert_close(norm, torch.tensor([[logits[0, 0].logsumexp(0), 0.0]], dtype=torch.float64))
    assert not module.scores(*arguments, normalized=False).norm.any()
