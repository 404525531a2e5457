"""What a criterion is: a label graph for every utterance of a batch, as tensors over (batch, state)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from starseq import wfst
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology


class LabelGraph(NamedTuple):
    """Where paths may go, and which tokens they consume on the way.

    The kernels' scores, the drawing and the graph that is compared with the reference all come from this description.
    """

    topology: Topology
    tokens: Tokens


def wide(targets: Tensor) -> Tensor:
    """The targets in an integer type that can hold NONE and any token."""
    return targets if targets.dtype in (torch.int32, torch.int64) else targets.int()


def to_wfst(label_graph: LabelGraph, b: int = 0, tokens: Sequence[int] | None = None) -> wfst.Graph:
    """The label graph of utterance b as a graph of the reference, to draw it or to compare it.

    tokens: all tokens but blank, to which stars are expanded; None leaves them as star labels, for drawing. Where tokens last,
    inserted ones have labels of their own then: see `wfst.expand_stars`. What cannot be passed is left out: impossible
    tokens, closed gaps, states past the utterance's. The weights of the stars stay differentiable.

        >>> from starseq.criteria import stc
        >>> targets, lengths, gaps = torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[-0.5, -0.5, -torch.inf]])
        >>> graph = to_wfst(stc.label_graph(targets, lengths, blank=0, log_penalty=gaps))
        >>> print(wfst.to_text(graph, wfst.star_symbols(["∅", "a", "b"])))
        start 0
        final 2
        0 -> 0  ∅
        0 -> 0  ∗∖a / -0.5
        0 -> 1  a
        1 -> 1  ∅
        1 -> 1  ∗ / -0.5
        1 -> 2  b
        2 -> 2  ∅
    """
    topology, (blank, enter, stay, star_weight, star_except, lasting) = label_graph
    states = int(topology.num_states[b])
    builder = wfst.GraphBuilder(states, start=[0], final=range(max(states - topology.ends, 0), states))

    def add(source: int, target: int, token: Tensor) -> None:
        if token >= 0 and not (stay is None and token == blank):
            builder.add_arc(source, target, int(token))

    for s in range(states):
        if stay is None:
            builder.add_arc(s, s, blank)
        else:
            add(s, s, stay[b, s])
        if star_weight is not None and star_weight[b, s] != -torch.inf:
            left_out = NONE if star_except is None or s + 1 == states else int(star_except[b, s])
            star = wfst.STAR if left_out < 0 else wfst.star_label(left_out)
            for source in (s - 1, s) if lasting and s > 0 else (s,):
                builder.add_arc(source, s, star, weight=star_weight[b, s])
            if lasting:
                builder.add_arc(s, s, wfst.LASTING if left_out < 0 else wfst.lasting_star_label(left_out))
        if s + 1 < states:
            add(s, s + 1, enter[b, s + 1])
        if s + 2 < states and topology.skip is not None and topology.skip[b, s + 2]:
            add(s, s + 2, enter[b, s + 2])
    graph = builder.build()
    if tokens is None:
        return graph
    return wfst.expand_stars(graph, tokens, size=len(tokens) + 1 if lasting else None)
