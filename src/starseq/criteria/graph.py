"""What a criterion is: a label graph for every utterance of a batch, as tensors over (batch, state)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from starseq import wfst
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.gaps import Gaps
from starseq.lattice.topology import Topology


class Form(NamedTuple):
    """What all graphs of a criterion look like, so that kernels can read them off the targets instead of being handed them.

    merging: state 2l+1 is entered by label l+1 and stays by it, the even ones likewise by blank; a label that differs from the one
        before is also entered from two states before; a path ends in the last two. Else a chain: state l is entered by label l
        and stays by blank; a path ends in the last.
    stars: the states that stay by blank have stars. Each leaves out the next label, where the next gap is open. In a merging graph
        inserted tokens last.
    """

    merging: bool
    stars: bool

    @property
    def lasting(self) -> bool:
        return self.merging and self.stars

    def states(self, labels: int) -> int:
        """Of a graph of so many labels."""
        return 2 * labels + 1 if self.merging else labels + 1


class LabelGraph(NamedTuple):
    """Where paths may go, and which tokens they consume on the way.

    The kernels' scores, the drawing and the graph that is compared with the reference all come from this description.
    """

    topology: Topology
    tokens: Tokens


def wide(targets: Tensor) -> Tensor:
    """The targets in an integer type that can hold NONE and any token."""
    return targets if targets.dtype in (torch.int32, torch.int64) else targets.int()


def gaps_of(label_graph: LabelGraph) -> Gaps:
    """The rows of a graph in which inserted tokens last: of its 2U+1 states the even ones are gaps, the odd ones labels.

    >>> from starseq.criteria import stc
    >>> targets, lengths, weights = torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[-0.5, -torch.inf, -0.5]])
    >>> gaps = gaps_of(stc.label_graph(targets, lengths, blank=0, log_penalty=weights))
    >>> gaps.labels.tolist(), gaps.weight.tolist(), gaps.left_out.tolist()
    ([[1, 2]], [[-0.5, -inf, -0.5]], [[-1, 2, -1]])
    """
    topology, tokens = label_graph
    assert tokens.lasting
    assert tokens.star_weight is not None
    assert tokens.star_except is not None
    counts = (topology.num_states - 1) // 2
    return Gaps(tokens.blank, counts, tokens.enter[:, 1::2], tokens.star_weight[:, ::2], tokens.star_except[:, ::2])


def to_wfst(label_graph: LabelGraph, b: int = 0, tokens: Sequence[int] | None = None) -> wfst.Graph:
    """The label graph of utterance b as a graph of the reference, to draw it or to compare it.

    tokens: all tokens but blank, to which stars are expanded; None leaves them as star labels, for drawing. What cannot be passed
    is left out: impossible tokens, closed gaps, states past the utterance's. Where tokens last, each state is a node for all that
    may stand there, see `_nodes`; without tokens they are numbered as in `wfst.stc_graph`, closed gaps or not.
    The weights of the stars stay differentiable.

        >>> from starseq.criteria import stc
        >>> targets, lengths, gaps = torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[-0.5, -0.5, -torch.inf]])
        >>> described = stc.label_graph(targets, lengths, blank=0, log_penalty=gaps, merge_repeats=False)
        >>> graph = to_wfst(described)
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
    if label_graph.tokens.lasting:
        return _lasting_to_wfst(label_graph, b, tokens)
    topology, (blank, enter, stay, star_weight, _, _) = label_graph
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
            left_out = _left_out(label_graph, b, s)
            builder.add_arc(s, s, wfst.STAR if left_out < 0 else wfst.star_label(left_out), weight=star_weight[b, s])
        if s + 1 < states:
            add(s, s + 1, enter[b, s + 1])
        if s + 2 < states and topology.skip is not None and topology.skip[b, s + 2]:
            add(s, s + 2, enter[b, s + 2])
    graph = builder.build()
    return graph if tokens is None else wfst.expand_stars(graph, tokens)


class _Node(NamedTuple):
    """What may stand in a state of a graph whose tokens last, and the log-weight at which it begins."""

    state: int
    stands: int
    weight: float | Tensor


def _lasting_to_wfst(label_graph: LabelGraph, b: int, tokens: Sequence[int] | None) -> wfst.Graph:
    """A graph of nodes, in which what stands may stand still, and whatever else is in the same state or the next ones may begin."""
    topology, nodes = label_graph.topology, _nodes(label_graph, b, tokens)
    states = int(topology.num_states[b])
    final = [n for n, node in enumerate(nodes) if node.state >= states - topology.ends]
    builder = wfst.GraphBuilder(len(nodes), start=[0], final=final)
    for (m, before), (n, after) in itertools.product(enumerate(nodes), repeat=2):
        step = after.state - before.state
        skips = step == 2 and topology.skip is not None and bool(topology.skip[b, after.state])
        if after.weight == -torch.inf or not (step in (0, 1) or skips):
            continue
        is_star = after.stands <= wfst.STAR
        if before.stands != after.stands or (m == n and is_star):  # of the tokens of a star another one may begin
            builder.add_arc(m, n, after.stands, weight=after.weight)
        if m == n:
            builder.add_arc(m, n, wfst.LASTING if is_star else after.stands)
    graph = builder.build()
    return graph if tokens is None else wfst.trim(graph)


def _nodes(label_graph: LabelGraph, b: int, tokens: Sequence[int] | None) -> list[_Node]:
    """A node for what each state stays by, label or blank; behind it, in a gap, one for each token, or one for the star."""
    blank, own, _, star_weight, _, _ = label_graph.tokens  # a state is entered by what it stays by
    assert star_weight is not None
    nodes: list[_Node] = []
    for s in range(int(label_graph.topology.num_states[b])):
        nodes.append(_Node(s, int(own[b, s]), 0.0 if own[b, s] >= 0 else -torch.inf))
        if own[b, s] == blank:
            left_out = _left_out(label_graph, b, s)
            star = wfst.STAR if left_out < 0 else wfst.star_label(left_out)
            inserted = [star] if tokens is None else [v for v in tokens if v != left_out]
            nodes += [_Node(s, v, star_weight[b, s]) for v in inserted]
    return nodes


def _left_out(label_graph: LabelGraph, b: int, s: int) -> int:
    """The token that the star of state s leaves out, or NONE."""
    left_out = label_graph.tokens.star_except
    return NONE if left_out is None or s + 1 == label_graph.topology.num_states[b] else int(left_out[b, s])
