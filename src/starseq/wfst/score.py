"""The weight of all paths together, and the best of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

import torch
from torch import Tensor

from starseq.wfst.graph import EPSILON, Arc, Graph
from starseq.wfst.topology import live, topological_levels, trim

Semiring = Literal["log", "tropical"]


@dataclass(frozen=True, eq=False)
class Path:
    """A path through a graph: its arcs, and its weight as a 0-d tensor, differentiable in the graph's weights."""

    arcs: tuple[Arc, ...]
    score: Tensor

    @property
    def inputs(self) -> list[int]:
        """The labels that the path reads, without epsilons."""
        return [arc.input for arc in self.arcs if arc.input != EPSILON]

    @property
    def outputs(self) -> list[int]:
        """The labels that the path writes, without epsilons."""
        return [arc.output for arc in self.arcs if arc.output != EPSILON]


def forward_score(graph: Graph, semiring: Semiring = "log") -> Tensor:
    """Return the weight of all accepting paths together, as a 0-d tensor.

    .. math:: \\log \\sum_\\pi \\exp w(\\pi) \\;\\text{(log)} \\qquad \\max_\\pi w(\\pi) \\;\\text{(tropical)},
        \\qquad w(\\pi) = \\sum_{a \\in \\pi} \\text{weights}_a

    The gradient of an arc is the share of the weight that passes through it (log), or whether the best path does
    (tropical). Without any path the score is -inf and every gradient 0.

    Raises:
        ValueError: an accepting path can run in a circle, through epsilons or not; or the semiring is unknown.

    Example:
        >>> from starseq.wfst.emission import emission_graph
        >>> graph = emission_graph(torch.zeros(5, 2))  # 2 ** 5 paths of weight 1
        >>> forward_score(graph).exp(), forward_score(graph, "tropical")
        (tensor(32.), tensor(0.))
    """
    if semiring == "tropical":
        return viterbi_path(graph).score
    if semiring != "log":
        raise ValueError(f"semiring: expected 'log' or 'tropical', got {semiring!r}")

    graph = trim(graph)
    if not graph.num_states:
        return _log_zero(graph)
    # One state before every start and one after every final, so that the recursion has no special cases.
    source, sink = graph.num_states, graph.num_states + 1
    ends = [(source, state) for state in graph.start] + [(state, sink) for state in graph.final]
    steps = [(arc.source, arc.target) for arc in graph.arcs] + ends
    log_weights = torch.cat([graph.weights, graph.weights.new_zeros(len(ends))])

    # A step always climbs, so a level of states needs only what lies below it. States are counted level by level.
    level = topological_levels(graph.num_states + 2, steps)
    position = {state: n for n, state in enumerate(sorted(range(len(level)), key=level.__getitem__))}
    size = Counter(level)
    first = list(accumulate((size[k] for k in range(len(size))), initial=0))

    # The steps that arrive at each level, and their weights.
    order = sorted(range(len(steps)), key=lambda i: level[steps[i][1]])
    arrivals = [[steps[i] for i in group] for _, group in groupby(order, key=lambda i: level[steps[i][1]])]
    log_arrivals = torch.split(log_weights[order], [len(group) for group in arrivals])

    log_alpha = [log_weights.new_zeros(1)]  # level 0 is the source alone, the last one the sink
    for k, (group, log_weight) in enumerate(zip(arrivals, log_arrivals, strict=True), start=1):
        lowest = min(level[state] for state, _ in group)
        below = torch.cat(log_alpha[lowest:])
        here = torch.tensor([position[state] - first[lowest] for state, _ in group])
        there = torch.tensor([position[state] - first[k] for _, state in group])
        log_alpha.append(_segment_logsumexp(below[here] + log_weight, there, size[k]))
    return log_alpha[-1].squeeze()


def viterbi_path(graph: Graph) -> Path:
    """Return the best accepting path; of equals, the one whose arcs come first.

    Without any path, the result has no arcs and the score -inf (and 0 for a gradient).

    Raises:
        ValueError: an accepting path can run in a circle.

    Example:
        >>> from starseq.wfst.emission import emission_graph
        >>> path = viterbi_path(emission_graph(torch.tensor([[-1.0, -2.0], [-4.0, -3.0]])))
        >>> path.outputs, path.score
        ([0, 1], tensor(-4.))
    """
    states, arcs = live(graph)
    if not states:
        return Path((), _log_zero(graph))
    level = topological_levels(graph.num_states, [(graph.arcs[i].source, graph.arcs[i].target) for i in arcs])
    log_weights = graph.weights.tolist()
    best = dict.fromkeys(graph.start, 0.0)
    came_by: dict[int, int] = {}
    for i in sorted(arcs, key=lambda i: level[graph.arcs[i].source]):
        source, target, *_ = graph.arcs[i]
        score = best[source] + log_weights[i]
        if target not in best or score > best[target]:
            best[target], came_by[target] = score, i

    state = max((state for state in graph.final if state in best), key=best.__getitem__)
    path: list[int] = []
    while state in came_by:
        path.append(came_by[state])
        state = graph.arcs[path[-1]].source
    path.reverse()
    return Path(tuple(graph.arcs[i] for i in path), graph.weights[path].sum())


def _log_zero(graph: Graph) -> Tensor:
    """Return -inf, tied to the graph's weights by a gradient of 0."""
    return graph.weights[:0].sum() - math.inf


def _segment_logsumexp(terms: Tensor, index: Tensor, size: int) -> Tensor:
    """Return (size,): entry s is the log-sum-exp of the terms with index s.

    No entry may be without a term above -inf: the gradient would be NaN. A trimmed graph sees to that.
    """
    log_max = terms.new_full((size,), -math.inf).scatter_reduce(0, index, terms.detach(), "amax")
    return log_max + terms.new_zeros(size).index_add(0, index, torch.exp(terms - log_max[index])).log()
