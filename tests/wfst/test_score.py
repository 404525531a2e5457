"""Forward scores against path enumeration; gradients; best paths; what cannot be scored."""

from __future__ import annotations

import math
import random

import pytest
import torch
from tests.wfst.paths import enumerate_paths, log_sum, random_graph

from starseq.wfst import EPSILON, Arc, Graph, GraphBuilder, closure, emission_graph, forward_score, viterbi_path

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_against_enumeration(seed: int) -> None:
    graph = random_graph(random.Random(seed), num_states=7, num_arcs=14)
    weights = [weight for _, weight in enumerate_paths(graph)]
    assert forward_score(graph).item() == pytest.approx(log_sum(weights))
    assert forward_score(graph, "tropical").item() == pytest.approx(max(weights, default=-math.inf))


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients(seed: int) -> None:
    graph = random_graph(random.Random(seed), num_states=6, num_arcs=12)

    def score(weights: torch.Tensor, semiring: str) -> torch.Tensor:
        return forward_score(Graph(graph.num_states, graph.arcs, weights, graph.start, graph.final), semiring)

    weights = graph.weights.requires_grad_()
    if enumerate_paths(graph):
        assert torch.autograd.gradcheck(score, (weights, "log"))
        assert torch.autograd.gradgradcheck(score, (weights, "log"))
        assert torch.autograd.gradcheck(score, (weights, "tropical"))
    else:
        (gradient,) = torch.autograd.grad(score(weights, "log"), weights)
        assert not gradient.any()


def test_gradient_is_the_share_of_the_paths_through_an_arc() -> None:
    # 0 -a-> 1 -b-> 2 and 0 -c-> 2: weights 2 * 3 and 4, so 0.6 of the weight passes a and b, and 0.4 passes c.
    weights = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64).log().requires_grad_()
    graph = Graph(3, [Arc(0, 1, 0, 0), Arc(1, 2, 1, 1), Arc(0, 2, 2, 2)], weights, [0], [2])
    score = forward_score(graph)
    assert score.exp().item() == pytest.approx(10)
    (gradient,) = torch.autograd.grad(score, weights)
    assert gradient.tolist() == pytest.approx([0.6, 0.6, 0.4])
    (gradient,) = torch.autograd.grad(forward_score(graph, "tropical"), weights)
    assert gradient.tolist() == [1.0, 1.0, 0.0]


def test_a_state_may_start_and_end_and_lie_on_the_way() -> None:
    # Every state starts and ends: paths ε (three times), 0, 1, 01: six paths.
    arcs = [Arc(0, 1, 0, 0), Arc(1, 2, 1, 1)]
    graph = Graph(3, arcs, torch.zeros(2), start=[0, 1, 2], final=[0, 1, 2])
    assert forward_score(graph).exp().item() == pytest.approx(6)


@pytest.mark.parametrize("semiring", ["log", "tropical"])
@pytest.mark.parametrize(
    "graph",
    [
        GraphBuilder().build(),
        GraphBuilder(2, start=[0], final=[1]).build(),
        GraphBuilder(2, start=[0]).build(),
        GraphBuilder(2, final=[0]).build(),
        emission_graph(torch.full((3, 2), -math.inf)),
    ],
    ids=["empty", "no arcs", "no final", "no start", "impossible"],
)
def test_without_a_path_the_score_is_minus_infinity_and_the_gradient_zero(graph: Graph, semiring: str) -> None:
    weights = graph.weights.clone().requires_grad_()
    score = forward_score(Graph(graph.num_states, graph.arcs, weights, graph.start, graph.final), semiring)
    assert score.shape == ()
    assert score == -math.inf
    (gradient,) = torch.autograd.grad(score, weights)
    assert torch.equal(gradient, torch.zeros_like(weights))


def test_impossible_arcs_beside_possible_ones_get_gradient_zero() -> None:
    log_probs = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    score = forward_score(emission_graph(log_probs))
    assert score == 0.0
    (gradient,) = torch.autograd.grad(score, log_probs)
    assert gradient.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_nan_is_not_hidden() -> None:
    log_probs = torch.zeros(3, 2)
    log_probs[1, 0] = math.nan
    assert forward_score(emission_graph(log_probs)).isnan()


def test_scores_do_not_overflow() -> None:
    for shift in (-2000.0, 2000.0):
        log_probs = torch.full((4, 3), shift, dtype=torch.float64)
        assert forward_score(emission_graph(log_probs)).item() == pytest.approx(4 * (shift + math.log(3)))


@pytest.mark.parametrize("label", [0, EPSILON])
@pytest.mark.parametrize("score", [forward_score, lambda graph: forward_score(graph, "tropical"), viterbi_path])
def test_a_circle_on_the_way_raises(score, label: int) -> None:
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, 1)
    builder.add_arc(1, 1, label)
    with pytest.raises(ValueError, match="the graph has a cycle"):
        score(builder.build())


def test_closure_of_the_empty_word_raises() -> None:
    empty_word = GraphBuilder(1, start=[0], final=[0]).build()
    with pytest.raises(ValueError, match="cycle"):
        forward_score(closure(empty_word))


def test_a_circle_that_no_accepting_path_meets_does_not_matter() -> None:
    builder = GraphBuilder(3, start=[0], final=[1])
    builder.add_arc(0, 1, 1, weight=-0.5)
    builder.add_arc(0, 2, 2)
    builder.add_arc(2, 2, 2)
    assert forward_score(builder.build()).item() == viterbi_path(builder.build()).score.item() == -0.5


def test_unknown_semiring() -> None:
    with pytest.raises(ValueError, match="semiring: expected 'log' or 'tropical', got 'real'"):
        forward_score(GraphBuilder().build(), "real")  # type: ignore[arg-type]


def test_viterbi_path_reads_writes_and_scores() -> None:
    builder = GraphBuilder(3, start=[0], final=[2])
    builder.add_arc(0, 1, 1, 5, weight=-1.0)
    builder.add_arc(0, 1, EPSILON, 6, weight=-0.25)  # better
    builder.add_arc(1, 2, 2, EPSILON, weight=-0.5)
    path = viterbi_path(builder.build())
    assert path.arcs == (Arc(0, 1, EPSILON, 6), Arc(1, 2, 2, EPSILON))
    assert (path.inputs, path.outputs, path.score.item()) == ([2], [6], -0.75)


def test_viterbi_path_of_equals_is_the_first() -> None:
    assert viterbi_path(emission_graph(torch.zeros(3, 4))).outputs == [0, 0, 0]


def test_viterbi_path_finds_a_planted_path() -> None:
    generator = torch.Generator().manual_seed(0)
    planted = torch.randint(5, (12,), generator=generator)
    log_probs = torch.rand(12, 5, generator=generator)
    log_probs[torch.arange(12), planted] += 1
    assert viterbi_path(emission_graph(log_probs)).inputs == planted.tolist()


def test_viterbi_path_of_nothing() -> None:
    path = viterbi_path(GraphBuilder(2, start=[0], final=[1]).build())
    assert (path.arcs, path.inputs, path.score.item()) == ((), [], -math.inf)
