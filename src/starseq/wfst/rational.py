"""Sums, products and stars of graphs: union, concatenation, closure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

import torch

from starseq.wfst.graph import EPSILON, Arc, Graph


def union(*graphs: Graph) -> Graph:
    """Return the graph of all paths of all `graphs`, side by side: its weight of x is the sum of theirs.

    Example:
        >>> from starseq.wfst.emission import emission_graph
        >>> both = union(emission_graph(torch.zeros(1, 2)), emission_graph(torch.zeros(2, 2)))
        >>> both.num_states, both.start, both.final
        (5, (0, 2), (1, 4))
    """
    arcs: list[Arc] = []
    start: list[int] = []
    final: list[int] = []
    offsets = _offsets(graphs)
    for graph, offset in zip(graphs, offsets[:-1], strict=True):
        arcs += [Arc(arc.source + offset, arc.target + offset, *arc[2:]) for arc in graph.arcs]
        start += [state + offset for state in graph.start]
        final += [state + offset for state in graph.final]
    weights = [graph.weights for graph in graphs] or [torch.zeros(0)]
    return Graph(offsets[-1], arcs, torch.cat(weights), start, final)


def concatenate(*graphs: Graph) -> Graph:
    """Return the graph of a path of the first, then a path of the second, and so on, joined by epsilon arcs.

    Example:
        >>> from starseq.wfst.emission import emission_graph
        >>> chain = concatenate(emission_graph(torch.zeros(1, 2)), emission_graph(torch.zeros(1, 2)))
        >>> chain.arcs[-1], chain.start, chain.final
        (Arc(source=1, target=2, input=-1, output=-1), (0,), (3,))
    """
    if not graphs:
        return Graph(1, [], torch.zeros(0), start=[0], final=[0])
    side_by_side = union(*graphs)
    offsets = _offsets(graphs)
    joints = [
        (end + offsets[n], begin + offsets[n + 1])
        for n, (left, right) in enumerate(pairwise(graphs))
        for end in left.final
        for begin in right.start
    ]
    start = graphs[0].start
    final = [state + offsets[-2] for state in graphs[-1].final]
    return _with_epsilons(side_by_side, side_by_side.num_states, joints, start, final)


def closure(graph: Graph) -> Graph:
    """Return the graph of zero, one or more paths of `graph` in a row (Kleene's star).

    A new state, start and final at once, stands before, between and after the repetitions.

    Example:
        >>> from starseq.wfst.emission import emission_graph
        >>> loop = closure(emission_graph(torch.zeros(1, 1)))
        >>> [(arc.source, arc.target, arc.input) for arc in loop.arcs], loop.start, loop.final
        ([(0, 1, 0), (2, 0, -1), (1, 2, -1)], (2,), (2,))
    """
    hub = graph.num_states
    joints = [(hub, state) for state in graph.start] + [(state, hub) for state in graph.final]
    return _with_epsilons(graph, hub + 1, joints, [hub], [hub])


def _with_epsilons(
    graph: Graph, num_states: int, joints: list[tuple[int, int]], start: Iterable[int], final: Iterable[int]
) -> Graph:
    arcs = [*graph.arcs, *(Arc(source, target, EPSILON, EPSILON) for source, target in joints)]
    weights = torch.cat([graph.weights, graph.weights.new_zeros(len(joints))])
    return Graph(num_states, arcs, weights, start, final)


def _offsets(graphs: tuple[Graph, ...]) -> list[int]:
    """Return the number of each graph's first state when all stand side by side, and the number of all states."""
    return list(accumulate((graph.num_states for graph in graphs), initial=0))
