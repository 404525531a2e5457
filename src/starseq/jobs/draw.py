"""`starseq draw`: the label graph of a text, the emission graph, or both composed, as text, DOT or SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from starseq import criteria, wfst
from starseq.text import gaps
from starseq.wfst import Graph

__all__ = ["FORMATS", "Format", "draw"]

Format = Literal["text", "dot", "svg"]
FORMATS: dict[str, Format] = {".txt": "text", ".dot": "dot", ".gv": "dot", ".svg": "svg"}
"""What the suffix of a file says about its format."""

BLANK = "∅"

Positions = Sequence[tuple[float, float]]


def draw(
    criterion: str,
    text: str,
    *,
    format: Format = "text",
    unit: gaps.Unit = "char",
    penalty: float | None = None,
    merge_repeats: bool = True,
    alphabet: str = "",
    published: bool = False,
    emissions: int | None = None,
    compose: int | None = None,
) -> str:
    r"""The label graph of `text` under a criterion, drawn.

    Args:
        criterion: one of `starseq.criteria.names()`.
        text: the labels. ``*`` marks a gap, and then only marked gaps are open; ``\*`` is a star of the text's own.
        format: "text", "dot" for Graphviz, or "svg".
        unit: whether a label is a "char" or a "word".
        penalty: the log-weight lambda <= 0 of an inserted token, log 0.5 if None. -inf closes every gap.
        merge_repeats: as in `starseq.stc_loss`; for a criterion without stars it says nothing.
        alphabet: tokens besides those of the text, written as it is. They show where tokens are drawn one by one.
        published: draw the graph as the papers do, instead of the smaller one that the kernels run.
        emissions: draw instead the emission graph of so many frames. The scores are the model's, so none are shown.
        compose: draw instead the alignments of so many frames: the emission graph composed with the label graph.

    Raises ValueError for an unknown criterion, gaps or a penalty where the criterion has no star, a penalty that is not
    a log-weight, frames that are no number above 0, and a composition without any alignment.

        >>> print(draw("stc", "c*t", penalty=-0.5, merge_repeats=False))
        start 0
        final 2
        0 -> 0  ∅
        0 -> 1  c
        1 -> 1  ∅
        1 -> 1  ∗ / -0.5
        1 -> 2  t
        2 -> 2  ∅
    """
    if emissions is not None and compose is not None:
        raise ValueError("draw either emissions or a composition, not both")
    if gaps.has_gap(text) and not criteria.form(criterion).stars:
        raise ValueError(f"text: {text!r} marks gaps, and {criterion} has none")
    partial = gaps.parse(text, unit)
    names = [BLANK, *dict.fromkeys([*partial.labels, *gaps.parse(alphabet, unit).labels])]
    tokens = None if compose is None else range(1, len(names))
    graph = _label_graph(criterion, partial, names, penalty, merge_repeats, published, tokens)
    positions: Positions | None = None
    if emissions is not None:
        graph = _emission_graph("emissions", emissions, len(names))
    elif compose is not None:
        graph, positions = _trellis(_emission_graph("compose", compose, len(names)), graph)
        if not graph.num_states:
            raise ValueError(f"compose: {text!r} has no alignment with {compose} frames")
    elif criterion == "stc" and (published or merge_repeats):
        graph, positions = _without_dead_ends(graph, wfst.stc_positions(len(partial.labels)))
    symbols = wfst.star_symbols(names)
    if format == "svg":
        return wfst.to_svg(graph, symbols, positions)
    return wfst.to_dot(graph, symbols) if format == "dot" else wfst.to_text(graph, symbols)


def _label_graph(
    criterion: str,
    partial: gaps.Partial,
    names: Sequence[str],
    penalty: float | None,
    merge_repeats: bool,
    published: bool,
    tokens: Sequence[int] | None,
) -> Graph:
    """The label graph, with its stars expanded to `tokens` or else as symbols; blank is token 0."""
    target = [names.index(label, 1) for label in partial.labels]
    options: dict[str, Any] = {}
    if criteria.form(criterion).stars:
        weight = math.log(0.5) if penalty is None else penalty
        if not weight <= 0:
            raise ValueError(f"penalty: {weight:g} is not a log-weight <= 0")
        log_penalty = torch.tensor([weight if is_open else -math.inf for is_open in partial.open], dtype=torch.float64)
        options = {"log_penalty": log_penalty if published else log_penalty[None], "merge_repeats": merge_repeats}
    elif penalty is not None:
        raise ValueError(f"penalty: {criterion} has no star to weigh")
    if published:
        graph: Graph = getattr(wfst, f"{criterion}_graph")(target, **options, **({"tokens": tokens} if options else {}))
        return graph
    targets = torch.tensor([target], dtype=torch.int64)
    described = criteria.load(criterion)(targets, torch.tensor([len(target)]), blank=0, **options)
    return criteria.to_wfst(described, tokens=tokens)


def _emission_graph(option: str, frames: int, tokens: int) -> Graph:
    if frames < 1:
        raise ValueError(f"{option}: {frames} is not a number of frames above 0")
    return wfst.emission_graph(torch.zeros(frames, tokens, dtype=torch.float64))


def _trellis(emissions: Graph, labels: Graph) -> tuple[Graph, Positions]:
    """The composition, and the place of each of its states: the frame across, the state of the label graph down.

    States that no alignment of so many frames is in have no row.
    """
    # Arcs that write the state they lead to: what the composition writes then says where its states come from.
    telling = Graph(
        labels.num_states, [arc._replace(output=arc.target) for arc in labels.arcs], labels.weights,
        labels.start, labels.final,
    )  # fmt: skip
    both = wfst.compose(emissions, telling)
    place = dict.fromkeys(both.start, (0, 0))
    for source, target, _, row in both.arcs:  # a state is arrived at before it is left
        place[target] = (place[source][0] + 1, row)
    rows = sorted({row for _, row in place.values()})
    return wfst.project(both), [(place[state][0], rows.index(place[state][1])) for state in range(both.num_states)]


def _without_dead_ends(graph: Graph, positions: Positions) -> tuple[Graph, Positions]:
    """The graph without the star nodes of closed gaps, and the places of what is left."""
    states, _ = wfst.live(graph)
    return wfst.trim(graph), [positions[state] for state in states]
