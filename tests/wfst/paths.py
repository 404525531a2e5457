"""Plain-Python truths about small graphs: enumerate paths, and read languages off them."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import torch

from starseq.wfst import EPSILON, Arc, Graph

Words = tuple[tuple[int, ...], tuple[int, ...]]


def random_graph(
    rng: random.Random, num_states: int = 5, num_arcs: int = 9, num_labels: int = 3, epsilon: float = 0.3
) -> Graph:
    """An acyclic transducer with several starts and finals; each label is epsilon with probability `epsilon`."""

    def label() -> int:
        return EPSILON if rng.random() < epsilon else rng.randrange(num_labels)

    arcs = []
    for _ in range(num_arcs):
        source, target = sorted(rng.sample(range(num_states), 2))
        arcs.append(Arc(source, target, label(), label()))
    weights = torch.tensor([rng.uniform(-3.0, 1.0) for _ in arcs], dtype=torch.float64)
    start = rng.sample(range(3), 2)
    final = rng.sample(range(num_states - 3, num_states), 2)
    return Graph(num_states, arcs, weights, start, final)


def enumerate_paths(graph: Graph, max_arcs: int = 30) -> list[tuple[Words, float]]:
    """Every accepting path of at most `max_arcs` arcs: (labels read, labels written), epsilons left out, and weight."""
    weights = graph.weights.tolist()
    found = []
    todo = [(state, (), (), 0.0, 0) for state in graph.start]
    while todo:
        state, reads, writes, weight, steps = todo.pop()
        if state in graph.final:
            found.append(((reads, writes), weight))
        if steps == max_arcs:
            continue
        for arc, arc_weight in zip(graph.arcs, weights, strict=True):
            if arc.source == state:
                read = reads if arc.input == EPSILON else (*reads, arc.input)
                written = writes if arc.output == EPSILON else (*writes, arc.output)
                todo.append((arc.target, read, written, weight + arc_weight, steps + 1))
    return found


def language(paths: list[tuple[Words, float]]) -> dict[Words, float]:
    """The total probability of every (read, written) pair."""
    total: dict[Words, float] = defaultdict(float)
    for words, weight in paths:
        total[words] += math.exp(weight)
    return dict(total)


def log_sum(weights: list[float]) -> float:
    """The log of a sum of exponentials, -inf of nothing."""
    return math.log(sum(map(math.exp, weights))) if weights else -math.inf
