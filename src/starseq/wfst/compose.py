"""Composition: run two graphs in step, one reading what the other writes."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from starseq.wfst.graph import EPSILON, Arc, Graph
from starseq.wfst.topology import trim


def compose(first: Graph, second: Graph) -> Graph:
    """Return the graph that maps x to z with weight sum over y of first(x, y) * second(y, z).

    A state is a triple (state of `first`, state of `second`, filter). Either graph may also move alone: `first` by
    an arc that writes epsilon, `second` by one that reads it. Two such moves could be taken in either order, and the
    log semiring would count both; so the filter fixes it: after `second` has moved alone, `first` may not
    until both have moved together. Every pair of matching paths is then exactly one path of the result.

    The weights are ``first.weights[i] + second.weights[j]``, differentiable in both. The result is trimmed.

    Example:
        >>> from starseq.wfst.graph import GraphBuilder
        >>> def one_arc(label: int, output: int, weight: float) -> Graph:
        ...     builder = GraphBuilder()
        ...     builder.add_arc(builder.add_state(start=True), builder.add_state(final=True), label, output, weight)
        ...     return builder.build()
        >>> graph = compose(one_arc(1, 2, -0.5), one_arc(2, 3, -1.0))
        >>> graph.arcs, graph.weights.tolist()
        ((Arc(source=0, target=1, input=1, output=3),), [-1.5])
    """
    leaving: dict[int, list[tuple[int, Arc]]] = defaultdict(list)
    for i, arc in enumerate(first.arcs):
        leaving[arc.source].append((i, arc))
    reading: dict[tuple[int, int], list[tuple[int, Arc]]] = defaultdict(list)
    for j, arc in enumerate(second.arcs):
        reading[arc.source, arc.input].append((j, arc))

    start = [(p, q, False) for p in first.start for q in second.start]
    number = {state: n for n, state in enumerate(start)}
    queue = list(start)
    arcs: list[Arc] = []
    made_of: list[tuple[int, int]] = []  # the arcs i of first and j of second whose weights add up
    stays_first, stays_second = len(first.arcs), len(second.arcs)

    def add(source: int, to: tuple[int, int, bool], reads: int, writes: int, i: int, j: int) -> None:
        if to not in number:
            number[to] = len(number)
            queue.append(to)
        arcs.append(Arc(source, number[to], reads, writes))
        made_of.append((i, j))

    for source, (p, q, second_alone) in enumerate(queue):  # the queue gmade_of while we walk it
        for i, a in leaving.get(p, ()):
            if a.output != EPSILON:
                for j, b in reading.get((q, a.output), ()):
                    add(source, (a.target, b.target, False), a.input, b.output, i, j)
            elif not second_alone:
                add(source, (a.target, q, False), a.input, EPSILON, i, stays_second)
        for j, b in reading.get((q, EPSILON), ()):
            add(source, (p, b.target, True), EPSILON, b.output, stays_first, j)

    of_first, of_second = torch.tensor(made_of, dtype=torch.long).reshape(-1, 2).unbind(1)
    weights = _or_stay(first.weights)[of_first] + _or_stay(second.weights)[of_second]
    first_final, second_final = set(first.final), set(second.final)
    final = [n for (p, q, _), n in number.items() if p in first_final and q in second_final]
    return trim(Graph(len(number), arcs, weights, range(len(start)), final))


def intersect(first: Graph, second: Graph) -> Graph:
    """Return the acceptor of what both acceptors accept, its weights added: `compose` for acceptors.

    Raises:
        ValueError: one of the graphs is not an acceptor.
    """
    for name, graph in (("first", first), ("second", second)):
        if not graph.is_acceptor:
            raise ValueError(f"{name}: intersect takes acceptors, this graph has arcs that write what they don't read")
    return compose(first, second)


def project(graph: Graph) -> Graph:
    """Return the acceptor of what the graph reads, whatever it writes; weights stay.

    Example:
        >>> project(Graph(2, [Arc(0, 1, 5, 6)], torch.zeros(1), start=[0], final=[1])).arcs
        (Arc(source=0, target=1, input=5, output=5),)
    """
    arcs = [arc._replace(output=arc.input) for arc in graph.arcs]
    return Graph(graph.num_states, arcs, graph.weights, graph.start, graph.final)


def _or_stay(weights: Tensor) -> Tensor:
    """Append the weight of not moving, log 1."""
    return torch.cat([weights, weights.new_zeros(1)])
