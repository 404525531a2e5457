"""Composition, union, concatenation and closure against languages enumerated in plain Python."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
import torch
from tests.wfst.paths import Words, enumerate_paths, language, log_sum, random_graph

from starseq.wfst import (
    EPSILON,
    Graph,
    GraphBuilder,
    closure,
    compose,
    concatenate,
    emission_graph,
    forward_score,
    intersect,
    union,
)

SEEDS = range(30)


def one_arc(label: int, output: int, weight: float = 0.0) -> Graph:
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, label, output, weight)
    return builder.build()


def product(left: dict[Words, float], right: dict[Words, float]) -> dict[Words, float]:
    """The language of a word of one, then a word of the other."""
    total: dict[Words, float] = defaultdict(float)
    for (read, written), p in left.items():
        for (read_on, written_on), q in right.items():
            total[read + read_on, written + written_on] += p * q
    return dict(total)


# --- composition


@pytest.mark.parametrize("seed", SEEDS)
def test_compose_pairs_every_matching_two_paths_once(seed: int) -> None:
    rng = random.Random(seed)
    first, second = random_graph(rng), random_graph(rng)
    expected = sorted(
        ((read, written), v + w)
        for (read, said), v in enumerate_paths(first)
        for (heard, written), w in enumerate_paths(second)
        if said == heard
    )
    found = sorted(enumerate_paths(compose(first, second)))
    assert [words for words, _ in found] == [words for words, _ in expected]
    assert sorted(w for _, w in found) == pytest.approx(sorted(w for _, w in expected))
    assert forward_score(compose(first, second)).item() == pytest.approx(log_sum([w for _, w in expected]))


def test_two_lone_moves_make_one_path() -> None:
    # 1:ε against ε:2. Both orders of moving alone, and moving together, would be three paths of the same pair.
    graph = compose(one_arc(1, EPSILON, -0.25), one_arc(EPSILON, 2, -0.5))
    assert enumerate_paths(graph) == [(((1,), (2,)), -0.75)]
    assert forward_score(graph).item() == -0.75


def test_many_lone_moves_make_one_path() -> None:
    # ε-runs on both sides around a match: 1:ε 1:ε 1:7 1:ε against ε:2 7:2 ε:2 ε:2. One pair of paths, one path.
    first = concatenate(one_arc(1, EPSILON), one_arc(1, EPSILON), one_arc(1, 7), one_arc(1, EPSILON))
    second = concatenate(one_arc(EPSILON, 2), one_arc(7, 2), one_arc(EPSILON, 2), one_arc(EPSILON, 2))
    graph = compose(first, second)
    assert enumerate_paths(graph) == [(((1,) * 4, (2,) * 4), 0.0)]
    assert forward_score(graph).item() == 0.0


def test_intersect_takes_acceptors_only() -> None:
    acceptor, transducer = one_arc(1, 1), one_arc(1, 2)
    assert intersect(acceptor, acceptor).arcs == acceptor.arcs
    with pytest.raises(ValueError, match="first: intersect takes acceptors"):
        intersect(transducer, acceptor)
    with pytest.raises(ValueError, match="second: intersect takes acceptors"):
        intersect(acceptor, transducer)


def test_composition_that_matches_nothing_is_empty() -> None:
    graph = compose(one_arc(1, 2), one_arc(3, 4))
    assert (graph.num_states, graph.arcs) == (0, ())


@pytest.mark.parametrize("seed", range(5))
def test_gradient_of_composition_reaches_both_graphs(seed: int) -> None:
    rng = random.Random(seed)
    first, second = random_graph(rng, num_arcs=14, num_labels=2), random_graph(rng, num_arcs=14, num_labels=2)
    assert len(compose(first, second).arcs) > 4

    def score(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = Graph(first.num_states, first.arcs, v, first.start, first.final)
        b = Graph(second.num_states, second.arcs, w, second.start, second.final)
        return forward_score(compose(a, b))

    leaves = (first.weights.requires_grad_(), second.weights.requires_grad_())
    assert torch.autograd.gradcheck(score, leaves)


# --- union, concatenation, closure


@pytest.mark.parametrize("seed", SEEDS)
def test_union_adds_languages(seed: int) -> None:
    rng = random.Random(seed)
    graphs = [random_graph(rng, num_states=4, num_arcs=5) for _ in range(3)]
    expected: dict[Words, float] = defaultdict(float)
    for graph in graphs:
        for words, p in language(enumerate_paths(graph)).items():
            expected[words] += p
    assert language(enumerate_paths(union(*graphs))) == pytest.approx(dict(expected))


@pytest.mark.parametrize("seed", SEEDS)
def test_concatenation_multiplies_languages(seed: int) -> None:
    rng = random.Random(seed)
    graphs = [random_graph(rng, num_states=4, num_arcs=5) for _ in range(3)]
    first, second, third = (language(enumerate_paths(graph)) for graph in graphs)
    expected = product(product(first, second), third)
    assert language(enumerate_paths(concatenate(*graphs))) == pytest.approx(expected)


def test_union_and_concatenation_of_nothing() -> None:
    assert enumerate_paths(union()) == []
    assert enumerate_paths(concatenate()) == [(((), ()), 0.0)]


def loopable_graph(seed: int) -> Graph:
    """A small graph that reads at least one label, so that its closure weighs finitely much of every length."""
    graph = random_graph(random.Random(seed), num_states=3, num_arcs=4, num_labels=2, epsilon=0.0)
    return Graph(3, graph.arcs, graph.weights, start=[0], final=[1, 2])


def repetitions(graph: Graph, length: int) -> dict[Words, float]:
    once = language(enumerate_paths(graph))
    total: dict[Words, float] = defaultdict(float)
    power = {((), ()): 1.0}
    for _ in range(length + 1):
        for words, p in power.items():
            total[words] += p
        power = {words: p for words, p in product(power, once).items() if len(words[0]) <= length}
    return dict(total)


@pytest.mark.parametrize("seed", SEEDS)
def test_closure_repeats_languages(seed: int) -> None:
    graph, length = loopable_graph(seed), 3
    # Every repetition takes at least one label and exactly two epsilons: at most 3 * 3 arcs.
    found = [path for path in enumerate_paths(closure(graph), max_arcs=9) if len(path[0][0]) <= length]
    assert language(found) == pytest.approx(repetitions(graph, length))


@pytest.mark.parametrize("seed", SEEDS)
def test_score_of_closure_with_emissions(seed: int) -> None:
    graph = loopable_graph(seed)
    expected = sum(p for (read, _), p in repetitions(graph, 3).items() if len(read) == 3)
    found = forward_score(compose(emission_graph(torch.zeros(3, 2, dtype=torch.float64)), closure(graph))).exp().item()
    assert found == pytest.approx(expected)


def test_rational_operations_keep_gradients() -> None:
    weights = torch.tensor([-0.3], dtype=torch.float64, requires_grad=True)
    graph = Graph(2, one_arc(0, 0).arcs, weights, [0], [1])
    # 0 read twice: once by the concatenation, once by the closure, so the weight counts 2 + 2 times, half each.
    both = union(concatenate(graph, graph), closure(graph))
    score = forward_score(compose(emission_graph(torch.zeros(2, 1, dtype=torch.float64)), both))
    assert score.item() == pytest.approx(2 * -0.3 + math.log(2))
    score.backward()
    assert weights.grad is not None
    assert weights.grad.item() == pytest.approx(2.0)
