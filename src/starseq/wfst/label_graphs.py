"""Label graphs of one utterance, written by hand as the papers draw them: CTC, selfless CTC and STC, and STC with merged repeats.

A label graph accepts the alignments of a target: the sequences of one token per frame that mean it.

A star arc of the published STC graph is passed by any token, or by any token but y. Here such an arc first carries a
label of its own, `STAR` or ``star_label(y)``: that is the form to draw. `expand_stars` replaces it by one arc per
token: that is the form to compute with.

Where tokens last, what may follow depends on the token that stands. `LASTING` draws that in one arc; to compute, every
token has a state of its own: see `stc_graph`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from starseq.wfst.collapse import ctc_collapse
from starseq.wfst.compose import compose, project
from starseq.wfst.graph import Arc, Graph, GraphBuilder

STAR = -2
"""The label of an arc that any token passes."""


LASTING = -3
"""The label of an arc that the token passes which stands already, whichever that is."""


def star_label(excluded: int) -> int:
    """Return the label of an arc that any token passes but one, written star∖excluded."""
    return LASTING - 1 - excluded


def star_symbols(symbols: Mapping[int, str] | Sequence[str]) -> Callable[[int], str]:
    """Return a function that names labels for drawing: tokens by `symbols`, stars as ``∗`` and ``∗∖a``, `LASTING` as ``∗…``.

    Example:
        >>> name = star_symbols(["-", "a", "b"])
        >>> name(1), name(STAR), name(star_label(2)), name(LASTING)
        ('a', '∗', '∗∖b', '∗…')
    """
    star = "\N{ASTERISK OPERATOR}"

    def name(label: int) -> str:
        if label > STAR:
            return symbols[label]
        if label >= LASTING:
            return star if label == STAR else f"{star}\N{HORIZONTAL ELLIPSIS}"
        return f"{star}\N{SET MINUS}{symbols[LASTING - 1 - label]}"

    return name


def expand_stars(graph: Graph, tokens: Iterable[int]) -> Graph:
    """Replace every star arc by an arc for each of `tokens` that it lets pass, all of the star arc's weight.

    Args:
        graph: an acceptor with star arcs.
        tokens: the alphabet, without the blank.

    Raises:
        ValueError: the graph has an arc of a token that lasts, and no state that says which.

    Example:
        >>> builder = GraphBuilder()
        >>> builder.add_arc(builder.add_state(start=True), builder.add_state(final=True), star_label(2), weight=-1.0)
        >>> graph = expand_stars(builder.build(), tokens=[1, 2, 3])
        >>> [arc.input for arc in graph.arcs], graph.weights.tolist()
        ([1, 3], [-1.0, -1.0])
    """
    tokens = list(tokens)
    arcs: list[Arc] = []
    comes_from: list[int] = []
    for i, arc in enumerate(graph.arcs):
        if arc.input == LASTING:
            raise ValueError("graph: a token that lasts cannot be expanded; make the graph with its tokens instead")
        labels = [v for v in tokens if star_label(v) != arc.input] if arc.input <= STAR else [arc.input]
        arcs += [Arc(arc.source, arc.target, label, label) for label in labels]
        comes_from += [i] * len(labels)
    return Graph(graph.num_states, arcs, graph.weights[comes_from], graph.start, graph.final)


def ctc_graph(target: Sequence[int], blank: int = 0) -> Graph:
    """Return CTC's label graph, 2U + 1 states: state 2l is the blank after label l, state 2l - 1 is label l.

    Labels and blanks may repeat; the blank between two labels may be skipped unless the labels are equal.

    Args:
        target: the U labels.
        blank: the blank.

    Raises:
        ValueError: the blank is among the labels.

    Example:
        >>> graph = ctc_graph([3, 3], blank=0)
        >>> graph.num_states, [arc.input for arc in graph.arcs if arc.source == 1]  # again, on to the blank, no skip
        (5, [3, 0])
    """
    U = _count_labels(target, blank)
    builder = GraphBuilder(2 * U + 1, start=[0], final=range(max(2 * U - 1, 0), 2 * U + 1))
    for l in range(U + 1):
        label_node, blank_node, next_node = 2 * l - 1, 2 * l, 2 * l + 1
        builder.add_arc(blank_node, blank_node, blank)
        if l > 0:
            builder.add_arc(label_node, label_node, target[l - 1])
            builder.add_arc(label_node, blank_node, blank)
        if l < U:
            builder.add_arc(blank_node, next_node, target[l])
        if 0 < l < U and target[l] != target[l - 1]:
            builder.add_arc(label_node, next_node, target[l])
    return builder.build()


def selfless_ctc_graph(target: Sequence[int], blank: int = 0) -> Graph:
    """Return the label graph of CTC without self-loops on labels, 2U + 1 states numbered as in `ctc_graph`.

    A label takes exactly one frame, repeats are not merged, and so the blank between two labels may always be skipped.

    Example:
        >>> graph = selfless_ctc_graph([3, 3], blank=0)
        >>> graph.num_states, [arc.input for arc in graph.arcs if arc.source == 1]  # on to the blank, on to label 2
        (5, [0, 3])
    """
    U = _count_labels(target, blank)
    builder = GraphBuilder(2 * U + 1, start=[0], final=range(max(2 * U - 1, 0), 2 * U + 1))
    for l in range(U + 1):
        label_node, blank_node, next_node = 2 * l - 1, 2 * l, 2 * l + 1
        for node in (label_node, blank_node) if l > 0 else (blank_node,):
            builder.add_arc(node, blank_node, blank)
            if l < U:
                builder.add_arc(node, next_node, target[l])
    return builder.build()


def stc_graph(
    target: Sequence[int],
    blank: int = 0,
    tokens: Iterable[int] | None = None,
    log_penalty: float | Tensor = 0.0,
    merge_repeats: bool = True,
) -> Graph:
    """Return STC's label graph, drawn as published on 3U + 2 states.

    For every gap l = 0 .. U, after label l, there are the blank node 3l, the star node 3l + 1, and the label node
    3l - 1 through which it was entered (none for l = 0). From each of them the blank leads to the blank node, a star
    to the star node, and label l + 1 to its node. All three have the same arcs: that is why `stc_chain` needs but one.

    The star is star∖y_{l+1} for l < U, so that a label is matched where it first occurs and no alignment counts twice;
    and star for l = U. Where gap l + 1 is closed, gap l takes star too: label l + 1 need not be the first of its kind.

    With merged repeats labels and inserted tokens last. A label node has a self-loop of its label, and a star node one of
    `LASTING`: the token that stands there still does, and costs nothing. All others are passed by the blank or by a token that
    begins, which is any but the one that stands; so there is no arc between equal labels. That is the graph to draw. With
    `tokens` it is CTC's collapse composed with the chain of STC: a state is a gap, and the token that stands there.

    Args:
        target: the U labels.
        blank: the blank.
        tokens: the alphabet, without the blank, to expand the stars to; None leaves them as star labels, for drawing.
        log_penalty: the weight of an inserted token: a number, or a tensor, 0-d or (U + 1,) with one weight for each
            gap; differentiable. -inf closes a gap.
        merge_repeats: whether tokens last, as in CTC, or every frame is a token of its own, as published.

    Raises:
        ValueError: the blank is among the labels, or the shape of `log_penalty` is wrong.

    Example:
        >>> stc_graph([1, 1], log_penalty=-0.5, merge_repeats=False)
        Graph(8 states, 21 arcs, start=(0,), final=(5, 6, 7))
        >>> stc_graph([1, 1], log_penalty=-0.5)  # 5 loops more, and an arc less
        Graph(8 states, 25 arcs, start=(0,), final=(5, 6, 7))
        >>> stc_graph([1], tokens=[1, 2], log_penalty=-0.5)  # the blank or 2 before the label; any of three after it
        Graph(5 states, 15 arcs, start=(0,), final=(1, 3, 4))
    """
    if merge_repeats and tokens is not None:
        tokens = list(tokens)
        return project(compose(ctc_collapse(tokens, blank), stc_chain(target, blank, tokens, log_penalty)))
    U = _count_labels(target, blank)
    builder = GraphBuilder(3 * U + 2, start=[0], final=range(max(3 * U - 1, 0), 3 * U + 2))
    for l, (star, weight) in enumerate(_stars(target, log_penalty)):
        label_node, blank_node, star_node, next_node = 3 * l - 1, 3 * l, 3 * l + 1, 3 * l + 2
        for node in (label_node, blank_node, star_node) if l > 0 else (blank_node, star_node):
            builder.add_arc(node, blank_node, blank)
            builder.add_arc(node, star_node, star, weight=weight)
            joins = merge_repeats and 0 < l < U and node == label_node and target[l] == target[l - 1]
            if l < U and not joins:
                builder.add_arc(node, next_node, target[l])
        if merge_repeats:
            if l > 0:
                builder.add_arc(label_node, label_node, target[l - 1])
            builder.add_arc(star_node, star_node, LASTING)
    graph = builder.build()
    return graph if tokens is None else expand_stars(graph, tokens)


def stc_chain(
    target: Sequence[int],
    blank: int = 0,
    tokens: Iterable[int] | None = None,
    log_penalty: float | Tensor = 0.0,
) -> Graph:
    """Return the smallest STC label graph with kept repeats, a chain of U + 1 states: state l has matched l labels.

    It stays by the blank or by the star of its gap, and goes on by label l + 1. Arguments and errors as in `stc_graph`,
    to which, with kept repeats, it is equivalent.

    Example:
        >>> stc_chain([1, 2], tokens=range(1, 4), log_penalty=-0.5)
        Graph(3 states, 12 arcs, start=(0,), final=(2,))
    """
    U = _count_labels(target, blank)
    builder = GraphBuilder(U + 1, start=[0], final=[U])
    for l, (star, weight) in enumerate(_stars(target, log_penalty)):
        builder.add_arc(l, l, blank)
        builder.add_arc(l, l, star, weight=weight)
        if l < U:
            builder.add_arc(l, l + 1, target[l])
    graph = builder.build()
    return graph if tokens is None else expand_stars(graph, tokens)


def stc_positions(U: int) -> list[tuple[float, float]]:
    """Return (column, row) of every state of `stc_graph` as it is drawn: stars above, blanks below."""
    return [(2 * (n // 3) + (n % 3 == 2), (1.0, -1.0, 0.0)[n % 3]) for n in range(3 * U + 2)]


def _count_labels(target: Sequence[int], blank: int) -> int:
    if blank in target:
        raise ValueError(f"target: the blank {blank} is among the labels, at position {list(target).index(blank)}")
    return len(target)


def _stars(target: Sequence[int], log_penalty: float | Tensor) -> list[tuple[int, Tensor]]:
    """Return the star label and the weight of every gap."""
    U = len(target)
    weights = torch.as_tensor(log_penalty, dtype=torch.float64)
    if weights.shape not in ((), (U + 1,)):
        raise ValueError(f"log_penalty: expected a number or shape ({U + 1},), got shape {tuple(weights.shape)}")
    weights = weights.expand(U + 1)
    is_open = [weight != -math.inf for weight in weights.tolist()]
    stars = [star_label(target[l]) if l < U and is_open[l + 1] else STAR for l in range(U + 1)]
    return list(zip(stars, weights.unbind(), strict=True))
