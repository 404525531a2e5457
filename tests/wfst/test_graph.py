"""Building graphs, and trimming them."""

from __future__ import annotations

import math

import pytest
import torch

from starseq.wfst import Arc, Graph, GraphBuilder, emission_graph, trim
from starseq.wfst.topology import topological_levels


def test_builder_numbers_states_and_keeps_the_order_of_arcs() -> None:
    builder = GraphBuilder(1, start=[0])
    last = builder.add_state(start=True, final=True)
    builder.add_arc(0, last, 5, 6, weight=-1.5)
    builder.add_arc(last, 0, 7)
    graph = builder.build()
    assert graph.num_states == 2
    assert graph.arcs == (Arc(0, 1, 5, 6), Arc(1, 0, 7, 7))
    assert graph.weights.tolist() == [-1.5, 0.0]
    assert (graph.start, graph.final) == ((0, 1), (1,))
    assert not graph.is_acceptor


def test_builder_keeps_the_gradient_of_tensor_weights() -> None:
    weight = torch.tensor(-2.0, dtype=torch.float32, requires_grad=True)
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, 3, weight=weight)
    builder.add_arc(0, 1, 4, weight=3 * weight)
    builder.build().weights.sum().backward()
    assert weight.grad == 4.0


def test_an_empty_graph_is_a_graph() -> None:
    graph = GraphBuilder().build()
    assert graph.num_states == 0
    assert graph.weights.shape == (0,)


@pytest.mark.parametrize("weights", [torch.zeros(2), torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)])
def test_weights_are_one_float_per_arc(weights: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="weights: expected 1 floating-point"):
        Graph(2, [Arc(0, 1, 0, 0)], weights, [0], [1])


@pytest.mark.parametrize(("arc", "start", "final"), [((0, 2), 0, 1), ((-1, 1), 0, 1), ((0, 1), 2, 1), ((0, 1), 0, 2)])
def test_states_must_exist(arc: tuple[int, int], start: int, final: int) -> None:
    with pytest.raises(ValueError, match=r"state (2|-1) is out of range for a graph of 2 states"):
        Graph(2, [Arc(*arc, 0, 0)], torch.zeros(1), [start], [final])


def test_emission_graph_has_an_arc_per_frame_and_label() -> None:
    log_probs = torch.randn(4, 3, requires_grad=True)
    graph = emission_graph(log_probs)
    assert graph.num_states == 5
    for arc, weight in zip(graph.arcs, graph.weights, strict=True):
        assert arc.target == arc.source + 1
        assert weight == log_probs[arc.source, arc.input]
    with pytest.raises(ValueError, match=r"log_probs: expected shape \(T, V\), got \(4,\)"):
        emission_graph(torch.zeros(4))


def test_trim_drops_dead_ends_unreachable_states_and_impossible_arcs() -> None:
    arcs = [
        Arc(0, 1, 0, 0),  # stays: 0 -> 1 -> 4
        Arc(0, 2, 1, 1),  # 2 is a dead end
        Arc(3, 4, 2, 2),  # nothing leads to 3
        Arc(1, 4, 3, 3),
        Arc(0, 5, 4, 4),  # 5 goes on to 4, but only by weight -inf
        Arc(5, 4, 5, 5),
        Arc(1, 1, 6, 6),  # a loop on the way stays
    ]
    weights = torch.tensor([-0.1, -0.2, -0.3, -0.4, -0.5, -math.inf, -0.7])
    graph = trim(Graph(6, arcs, weights, start=[0, 3, 2], final=[4]))
    assert graph.num_states == 4  # 0, 1, 3, 4 become 0, 1, 2, 3; start 3 does reach the end
    assert graph.arcs == (Arc(0, 1, 0, 0), Arc(2, 3, 2, 2), Arc(1, 3, 3, 3), Arc(1, 1, 6, 6))
    assert graph.weights.tolist() == pytest.approx([-0.1, -0.3, -0.4, -0.7])
    assert (graph.start, graph.final) == ((0, 2), (3,))


def test_trim_of_a_graph_without_paths_is_empty_and_differentiable() -> None:
    weights = torch.zeros(1, requires_grad=True)
    graph = trim(Graph(3, [Arc(0, 1, 0, 0)], weights, start=[0], final=[2]))
    assert (graph.num_states, graph.arcs) == (0, ())
    assert graph.weights.requires_grad


def test_levels_are_longest_distances() -> None:
    assert topological_levels(4, [(0, 3), (0, 1), (1, 2), (2, 3)]) == [0, 1, 2, 3]
    assert topological_levels(5, [(4, 0), (3, 0), (1, 3), (2, 1)]) == [3, 1, 0, 2, 0]
    with pytest.raises(ValueError, match=r"cycle .* states \[1, 2\]"):
        topological_levels(3, [(0, 1), (1, 2), (2, 1)])
