"""Which states matter, and in which order to visit them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from starseq.wfst.graph import Arc, Graph


def trim(graph: Graph) -> Graph:
    """Keep the states and arcs that lie on some path from a start to a final state, in their order.

    An arc of weight -inf leads nowhere, so it goes too. No path that weighs anything is lost.

    Example:
        >>> import torch
        >>> graph = Graph(3, [Arc(0, 1, 5, 5), Arc(0, 2, 6, 6)], torch.zeros(2), start=[0], final=[1])
        >>> trim(graph).arcs  # state 2 is a dead end
        (Arc(source=0, target=1, input=5, output=5),)
    """
    states, arcs = live(graph)
    if len(states) == graph.num_states and len(arcs) == len(graph.arcs):
        return graph
    number = {state: n for n, state in enumerate(states)}
    return Graph(
        len(states),
        [Arc(number[arc.source], number[arc.target], *arc[2:]) for arc in (graph.arcs[i] for i in arcs)],
        graph.weights[arcs],
        [number[state] for state in graph.start if state in number],
        [number[state] for state in graph.final if state in number],
    )


def live(graph: Graph) -> tuple[list[int], list[int]]:
    """Return the states, and the indices of the arcs, that lie on some accepting path of weight above -inf."""
    passable = [i for i, weight in enumerate(graph.weights.tolist()) if weight != -math.inf]
    steps = [(graph.arcs[i].source, graph.arcs[i].target) for i in passable]
    from_start = _reachable(graph.start, steps)
    to_final = _reachable(graph.final, [(target, source) for source, target in steps])
    arcs = [i for i in passable if graph.arcs[i].source in from_start and graph.arcs[i].target in to_final]
    return sorted(from_start & to_final), arcs


def topological_levels(num_states: int, steps: Iterable[tuple[int, int]]) -> list[int]:
    """Return for every state the length of the longest walk that ends there: a step always climbs.

    Raises:
        ValueError: the steps (source, target) contain a cycle.

    Example:
        >>> topological_levels(3, [(0, 1), (1, 2), (0, 2)])
        [0, 1, 2]
    """
    successors: list[list[int]] = [[] for _ in range(num_states)]
    waiting_for = [0] * num_states
    for source, target in steps:
        successors[source].append(target)
        waiting_for[target] += 1
    level = [0] * num_states
    ready = deque(state for state in range(num_states) if not waiting_for[state])
    while ready:
        state = ready.popleft()
        for target in successors[state]:
            waiting_for[target] -= 1
            if not waiting_for[target]:
                # First in, first out: states leave the queue lowest first, so the last one to lead here is the highest.
                level[target] = level[state] + 1
                ready.append(target)
    if any(waiting_for):
        stuck = [state for state in range(num_states) if waiting_for[state]]
        raise ValueError(f"the graph has a cycle (an epsilon cycle counts) on or before states {stuck[:10]}")
    return level


def _reachable(seeds: Iterable[int], steps: Iterable[tuple[int, int]]) -> set[int]:
    successors: dict[int, list[int]] = {}
    for source, target in steps:
        successors.setdefault(source, []).append(target)
    seen = set(seeds)
    stack = list(seen)
    while stack:
        fresh = set(successors.get(stack.pop(), ())) - seen
        seen |= fresh
        stack.extend(fresh)
    return seen
