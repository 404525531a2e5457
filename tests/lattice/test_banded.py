"""Forward-backward and Viterbi over banded graphs, against all paths enumerated; on large ones numba against torch."""

from __future__ import annotations

import itertools
import math
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import TOLERANCES, few
from torch import Tensor

from starseq.lattice import banded_numba, banded_torch
from starseq.lattice.topology import Topology

BACKENDS = [banded_torch, banded_numba]
ids = {"ids": lambda module: module.__name__.rpartition("_")[2]}
EXACT = TOLERANCES[torch.float64]

Lattice = tuple[
    Tensor, Tensor, Topology, Tensor
]  # log_stay, log_enter, topology, lengths: the arguments of both functions


def lattice(
    T: int,
    lengths: list[int],
    num_states: list[int],
    *,
    skip: bool,
    seed: int = 0,
    S: int | None = None,
    holes: float = 0.0,
) -> Lattice:
    """Random scores, NaN past frames and states; with `holes` some arcs are missing. An odd seed gives two ends."""
    random = torch.Generator().manual_seed(seed)
    B, S = len(lengths), S or max(num_states)

    def scores() -> Tensor:
        x = torch.randn(B, T, S, dtype=torch.float64, generator=random)
        return x.masked_fill(torch.rand(x.shape, generator=random) < holes, -math.inf)

    stay, enter = scores(), scores()
    skips = torch.rand(B, S, generator=random) < 0.5 if skip else None
    for b in range(B):
        for x in (stay[b], enter[b]):
            x[lengths[b] :] = math.nan
            x[:, num_states[b] :] = math.nan
    return stay, enter, Topology(torch.tensor(num_states), 1 + seed % 2, skips), torch.tensor(lengths)


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    T, B = draw(st.integers(0, 5)), draw(st.integers(1, 3))
    lengths = [draw(st.integers(0, T)) for _ in range(B)]
    states = [draw(st.integers(1, 4)) for _ in range(B)]
    return lattice(
        T, lengths, states, skip=draw(st.booleans()), seed=draw(st.integers(0, 999)),
        S=max(states) + draw(st.integers(0, 2)), holes=draw(st.sampled_from([0.0, 0.3])),
    )  # fmt: skip


def paths(graphs: Lattice, b: int) -> dict[tuple[int, ...], float]:
    """Every path of graph b, as the state after each frame, and its log-score."""
    stay, enter, topology, lengths = graphs
    found = {}
    for path in itertools.product(range(int(topology.num_states[b])), repeat=int(lengths[b])):
        score, state = 0.0, 0
        for t, following in enumerate(path):
            skips = topology.skip is not None and bool(topology.skip[b, following]) and following - state == 2
            if following == state:
                score += stay[b, t, following].item()
            elif following - state == 1 or skips:
                score += enter[b, t, following].item()
            else:
                break
            state = following
        else:
            if state >= topology.num_states[b] - topology.ends and score > -math.inf:
                found[path] = score
    return found


def log_sum(scores: list[float]) -> float:
    return torch.logsumexp(torch.tensor([-math.inf, *scores], dtype=torch.float64), 0).item()


@pytest.mark.parametrize("module", BACKENDS, **ids)
@few
@given(graphs=lattices())
def test_forward_backward_against_all_paths(module: ModuleType, graphs: Lattice) -> None:
    log_alpha, log_beta, log_z = module.forward_backward(*graphs)
    for b, (frames, states) in enumerate(zip(graphs[3].tolist(), graphs[2].num_states.tolist(), strict=True)):
        scored = paths(graphs, b)
        assert log_z[b].item() == pytest.approx(log_sum(list(scored.values())), rel=1e-10, abs=1e-11)
        # Through state s after t frames pass alpha * beta of all paths.
        for t, s in itertools.product(range(frames + 1), range(states)):
            through = log_sum([score for path, score in scored.items() if (0, *path)[t] == s])
            assert (log_alpha[b, t, s] + log_beta[b, t, s]).item() == pytest.approx(through, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("module", BACKENDS, **ids)
@few
@given(graphs=lattices())
def test_viterbi_against_all_paths(module: ModuleType, graphs: Lattice) -> None:
    path, log_score = module.viterbi(*graphs)
    for b, frames in enumerate(graphs[3].tolist()):
        scored = paths(graphs, b)
        best = max(scored, key=scored.__getitem__, default=None)
        assert log_score[b].item() == pytest.approx(-math.inf if best is None else scored[best])
        assert path[b, :frames].tolist() == ([-1] * frames if best is None else list(best))
        assert (path[b, frames:] == -1).all()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("skip", [False, True])
def test_numba_equals_torch_on_large_graphs(skip: bool, seed: int) -> None:
    graphs = lattice(150, [150, 140, 41, 0], [40, 3, 33, 2], skip=skip, seed=seed)
    ours, theirs = (module.forward_backward(*graphs) for module in (banded_numba, banded_torch))
    torch.testing.assert_close(ours[2], theirs[2], **EXACT)
    for b, frames in enumerate(graphs[3].tolist()):
        # Numba leaves out states that lie on no path: only where both arrays have mass they must agree.
        on_path = theirs[0][b, : frames + 1] + theirs[1][b, : frames + 1] > -math.inf
        for mine, exact in zip(ours[:2], theirs[:2], strict=True):
            torch.testing.assert_close(mine[b, : frames + 1][on_path], exact[b, : frames + 1][on_path], **EXACT)
    for mine, exact in zip(banded_numba.viterbi(*graphs), banded_torch.viterbi(*graphs), strict=True):
        torch.testing.assert_close(mine, exact, **EXACT)


@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_forward_alone(module: ModuleType) -> None:
    graphs = lattice(9, [9, 6], [4, 3], skip=True)
    _, nothing, log_z = module.forward_backward(*graphs, backward=False)
    assert nothing.numel() == 0
    assert torch.equal(log_z, module.forward_backward(*graphs)[2])


@pytest.mark.parametrize("skip", [False, True])
def test_corrections_in_float32_keep_seven_digits(skip: bool) -> None:
    graphs = lattice(300, [300, 250], [40, 30], skip=skip)
    rough, exact = (banded_numba.forward_backward(*graphs, exact=exact)[2] for exact in (False, True))
    torch.testing.assert_close(rough, exact, rtol=1e-7, atol=0)
    assert not torch.equal(rough, exact)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_a_path_planted_in_noise_is_found(module: ModuleType, skip: bool) -> None:
    T, S = 200, 40
    random = torch.Generator().manual_seed(1)
    stay, enter, topology, lengths = lattice(T, [T], [S], skip=skip)
    path, state = [], 0
    for t in range(T):
        left = T - t - 1
        move = int(torch.randint(0, 5, (), generator=random) == 0) if S - 1 - state < left else 1
        if skip and move and state + 2 < S and topology.skip[0, state + 2]:
            move = 2
        move = min(move, S - 1 - state)
        state += move
        (enter if move else stay)[0, t, state] += 8.0
        path.append(state)
    assert state == S - 1
    assert module.viterbi(stay, enter, topology, lengths)[0].tolist() == [path]


@pytest.mark.parametrize("module", BACKENDS, **ids)
def test_ties_go_to_the_self_loop_then_to_the_nearer_state(module: ModuleType) -> None:
    zeros = torch.zeros(1, 3, 3, dtype=torch.float64)
    topology = Topology(torch.tensor([3]), 1, torch.tensor([[False, False, True]]))
    path, _ = module.viterbi(zeros, zeros, topology, torch.tensor([3]))
    # Read from the end: in state 2 as long as possible, and entered by the skip only where there is no other way.
    assert path.tolist() == [[2, 2, 2]]
