"""The graph: integer arcs, and one tensor that holds the weight of every arc."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = -1
"""The label that reads (or writes) nothing."""


class Arc(NamedTuple):
    """An arc from ``source`` to ``target`` that reads the label ``input`` and writes the label ``output``."""

    source: int
    target: int
    input: int
    output: int


class Graph:
    """A weighted finite-state transducer; an acceptor when every arc writes what it reads.

    The weight of a path is the sum of the log weights of its arcs. Paths lead from any start state to any final state,
    and neither costs anything. Every operation gathers and adds `weights` as tensors, so that torch's autograd
    carries the gradient of a score back to the arcs of whatever graphs it was made of. Operations return new graphs;
    none changes its arguments.

    Args:
        num_states: states are 0 .. num_states - 1.
        arcs: the A arcs.
        weights: (A,) log weights in the order of `arcs`, floating point; may require grad.
        start: the states where a path may begin.
        final: the states where a path may end.

    Raises:
        ValueError: a state is out of range, or `weights` is not one floating-point number per arc.

    Example:
        >>> graph = Graph(2, [Arc(0, 1, 7, 7), Arc(0, 1, 8, 8)], torch.tensor([-1.0, -2.0]), start=[0], final=[1])
        >>> graph.arcs[1].input, graph.final, graph.is_acceptor
        (8, (1,), True)
    """

    def __init__(
        self, num_states: int, arcs: Iterable[Arc], weights: Tensor, start: Iterable[int], final: Iterable[int]
    ) -> None:
        self.num_states = num_states
        self.arcs = tuple(arcs)
        self.weights = weights
        self.start = tuple(sorted(set(start)))
        self.final = tuple(sorted(set(final)))
        if weights.shape != (len(self.arcs),) or not weights.is_floating_point():
            raise ValueError(
                f"weights: expected {len(self.arcs)} floating-point numbers, one per arc, "
                f"got {weights.dtype} of shape {tuple(weights.shape)}"
            )
        for state in (*self.start, *self.final, *(state for arc in self.arcs for state in arc[:2])):
            if not 0 <= state < num_states:
                raise ValueError(f"state {state} is out of range for a graph of {num_states} states")

    def __repr__(self) -> str:
        return f"Graph({self.num_states} states, {len(self.arcs)} arcs, start={self.start}, final={self.final})"

    @property
    def is_acceptor(self) -> bool:
        """Whether every arc writes the label that it reads."""
        return all(arc.input == arc.output for arc in self.arcs)


class GraphBuilder:
    """Writes a graph by hand, an arc at a time, on states given at once or a state at a time.

    Args:
        num_states, start, final: the states to begin with, as in `Graph`; by default none.

    Example:
        ``a*b``, where every a costs 0.5:

        >>> builder = GraphBuilder()
        >>> first, last = builder.add_state(start=True), builder.add_state(final=True)
        >>> builder.add_arc(first, first, ord("a"), weight=-0.5)
        >>> builder.add_arc(first, last, ord("b"))
        >>> builder.build().weights
        tensor([-0.5000,  0.0000], dtype=torch.float64)
    """

    def __init__(self, num_states: int = 0, start: Iterable[int] = (), final: Iterable[int] = ()) -> None:
        self._num_states = num_states
        self._start = list(start)
        self._final = list(final)
        self._arcs: list[Arc] = []
        self._weights: list[float | Tensor] = []

    def add_state(self, *, start: bool = False, final: bool = False) -> int:
        """Add a state and return its number: 0, 1, 2, ..."""
        state = self._num_states
        self._num_states += 1
        if start:
            self._start.append(state)
        if final:
            self._final.append(state)
        return state

    def add_arc(
        self, source: int, target: int, label: int, output: int | None = None, weight: float | Tensor = 0.0
    ) -> None:
        """Add an arc that reads `label` and writes `output` (by default the same); `weight`: a number or 0-d tensor."""
        self._arcs.append(Arc(source, target, label, label if output is None else output))
        self._weights.append(weight)

    def build(self) -> Graph:
        """Return the graph, its weights in float64."""
        weights = [torch.as_tensor(weight, dtype=torch.float64) for weight in self._weights]
        stacked = torch.stack(weights) if weights else torch.zeros(0, dtype=torch.float64)
        return Graph(self._num_states, self._arcs, stacked, self._start, self._final)
