"""The label graphs: their sizes, their alignments counted by hand, that both STC graphs are one; and CTC's collapse."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starseq.wfst import (
    LASTING,
    STAR,
    Graph,
    compose,
    ctc_collapse,
    ctc_graph,
    emission_graph,
    expand_stars,
    forward_score,
    intersect,
    selfless_ctc_graph,
    star_label,
    star_symbols,
    stc_chain,
    stc_positions,
)
from starseq.wfst import stc_graph as merged_stc_graph

stc_graph = partial(merged_stc_graph, merge_repeats=False)  # as published

TARGETS = [[], [1], [1, 2], [1, 1], [2, 1, 1, 3]]


def count(graph: Graph, T: int, V: int) -> int:
    """How many of the V^T alignments the graph accepts, one for each path."""
    score = forward_score(intersect(emission_graph(torch.zeros(T, V, dtype=torch.float64)), graph))
    return round(score.exp().item())


# --- sizes


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_of_states_and_arcs(target: list[int]) -> None:
    U = len(target)
    repeats = sum(a == b for a, b in pairwise(target))
    assert ctc_graph(target).num_states == 2 * U + 1
    assert selfless_ctc_graph(target).num_states == 2 * U + 1
    assert stc_graph(target).num_states == 3 * U + 2
    assert stc_chain(target).num_states == U + 1
    # CTC: a self-loop per state, an arc between neighbours, a skip per pair of different labels.
    assert len(ctc_graph(target).arcs) == (2 * U + 1) + 2 * U + max(U - 1, 0) - repeats
    # Selfless: the loops of the blanks only, and all skips.
    assert len(selfless_ctc_graph(target).arcs) == (U + 1) + 2 * U + max(U - 1, 0)
    # Published: 3 arcs from each of 3U + 2 nodes, but no label to go on to from those of the last gap.
    assert len(stc_graph(target).arcs) == 3 * (3 * U + 2) - (3 if U else 2)
    assert len(stc_chain(target).arcs) == 2 * (U + 1) + U
    # Where tokens last: loops of labels and of stars more, and no arc between equal labels.
    assert merged_stc_graph(target).num_states == 3 * U + 2
    assert len(merged_stc_graph(target).arcs) == len(stc_graph(target).arcs) + U + (U + 1) - repeats


def test_stars_expand_to_every_token_they_let_pass() -> None:
    # The chain of "1" over 4 tokens: blank + 3 others, label; blank + 4 others.
    graph = stc_chain([1], blank=0, tokens=[1, 2, 3, 4], log_penalty=-0.5)
    loops = [sorted(arc.input for arc in graph.arcs if arc.source == arc.target == state) for state in (0, 1)]
    assert loops == [[0, 2, 3, 4], [0, 1, 2, 3, 4]]
    for arc, weight in zip(graph.arcs, graph.weights.tolist(), strict=True):
        assert weight == (-0.5 if arc.source == arc.target and arc.input != 0 else 0.0)


def test_unexpanded_stars() -> None:
    # For drawing: star∖1 before label 1, star∖2 before label 2, star after.
    graph = stc_chain([1, 2], log_penalty=-0.5)
    assert [arc.input for arc in graph.arcs] == [0, star_label(1), 1, 0, star_label(2), 2, 0, STAR]
    assert expand_stars(graph, [1, 2]).arcs == stc_chain([1, 2], tokens=[1, 2], log_penalty=-0.5).arcs
    name = star_symbols({0: "-", 1: "x", 2: "y"})
    assert [name(arc.input) for arc in graph.arcs] == ["-", "∗∖x", "x", "-", "∗∖y", "y", "-", "∗"]  # noqa: RUF001


def test_a_token_that_lasts_is_drawn_and_not_expanded() -> None:
    graph = merged_stc_graph([1], log_penalty=-0.5)
    loops = {
        arc.source: weight
        for arc, weight in zip(graph.arcs, graph.weights.tolist(), strict=True)
        if arc.input == LASTING
    }
    assert loops == {1: 0.0, 4: 0.0}
    assert star_symbols(["-", "a"])(LASTING) == "∗…"  # noqa: RUF001
    with pytest.raises(ValueError, match="graph: a token that lasts cannot be expanded"):
        expand_stars(graph, [1, 2])


def test_every_state_has_its_own_position() -> None:
    positions = stc_positions(3)
    assert len(set(positions)) == len(positions) == stc_graph([1, 2, 3]).num_states


# --- alignments, counted by hand (V counts the blank, 0)


def test_ctc_alignments() -> None:
    # "1 2" in 3 frames: 112 122 and -12 1-2 12-
    assert count(ctc_graph([1, 2]), T=3, V=3) == 5
    # "1 1" in 4 frames, the blank between is a must: -1-1 11-1 1--1 1-11 1-1-
    assert count(ctc_graph([1, 1]), T=4, V=3) == 5
    assert count(ctc_graph([1, 1]), T=2, V=3) == 0
    # "" in 2 frames: --
    assert count(ctc_graph([]), T=2, V=3) == 1


def test_selfless_ctc_alignments() -> None:
    # Which U of the T frames carry the labels: 4 choose 2.
    assert count(selfless_ctc_graph([1, 2]), T=4, V=3) == 6
    assert count(selfless_ctc_graph([1, 1]), T=4, V=3) == 6
    # 11
    assert count(selfless_ctc_graph([1, 1]), T=2, V=3) == 1


@pytest.mark.parametrize("graph", [stc_graph, stc_chain])
def test_stc_alignments(graph) -> None:
    # All that hold a 1, each once: 3^3 less the 2^3 that don't.
    assert count(graph([1], tokens=[1, 2]), T=3, V=3) == 19
    # At least two 1s: 11- 1-1 -11 111
    assert count(graph([1, 1], tokens=[1]), T=3, V=2) == 4
    # Nothing is known: everything fits. No frames: only nothing fits.
    assert count(graph([], tokens=[1, 2]), T=3, V=3) == 27
    assert count(graph([], tokens=[1, 2]), T=0, V=3) == 1
    assert count(graph([1], tokens=[1, 2]), T=0, V=3) == 0


@pytest.mark.parametrize("graph", [stc_graph, stc_chain])
def test_stc_alignments_with_closed_gaps(graph) -> None:
    inf = math.inf
    # "1 * 2" in 3 frames: -12 1-2 12- 112 122. The last is the fox's: the 2 in the gap must not be taken for the label.
    penalty = torch.tensor([-inf, 0.0, -inf])
    assert count(graph([1, 2], tokens=[1, 2], log_penalty=penalty), T=3, V=3) == 5
    # "1 2 *": the labels come first. -12 1-2 12- 121 122
    penalty = torch.tensor([-inf, -inf, 0.0])
    assert count(graph([1, 2], tokens=[1, 2], log_penalty=penalty), T=3, V=3) == 5
    # All closed is selfless CTC: which 2 of 4 frames.
    assert count(graph([1, 2], tokens=[1, 2], log_penalty=-inf), T=4, V=3) == 6
    # "* 1 2 *", an inner closed block, counts at each place where it fits, here in 4 frames over 1 and 2 alone (their
    # probability is 1, the blank's 0): 12xx x12x xx12, x free, are 3 * 4, and 1212 is counted twice among them.
    log_probs = torch.tensor([[-inf, 0.0, 0.0]] * 4, dtype=torch.float64)
    labels = graph([1, 2], tokens=[1, 2], log_penalty=torch.tensor([0.0, -inf, 0.0]))
    assert forward_score(intersect(emission_graph(log_probs), labels)).exp().item() == pytest.approx(12)


def test_alignments_with_merged_repeats() -> None:
    # "1" in 2 frames: -1 1- 11 12 21. Each counts once, for 11 is one token.
    assert count(merged_stc_graph([1], tokens=[1, 2]), T=2, V=3) == 5
    # In 3 frames all that hold a 1.
    assert count(merged_stc_graph([1], tokens=[1, 2]), T=3, V=3) == 19
    # "1 1" in 3 frames: 1-1 121. In 2 frames there is no room.
    assert count(merged_stc_graph([1, 1], tokens=[1, 2]), T=3, V=3) == 2
    assert count(merged_stc_graph([1, 1], tokens=[1, 2]), T=2, V=3) == 0
    # "1 * 2" in 3 frames: -12 1-2 12- 112 122.
    penalty = torch.tensor([-math.inf, 0.0, -math.inf])
    assert count(merged_stc_graph([1, 2], tokens=[1, 2], log_penalty=penalty), T=3, V=3) == 5
    # Nothing is known: everything fits. No frames: only nothing fits.
    assert count(merged_stc_graph([], tokens=[1, 2]), T=3, V=3) == 27
    assert count(merged_stc_graph([], tokens=[1, 2]), T=0, V=3) == 1
    assert count(merged_stc_graph([1], tokens=[1, 2]), T=0, V=3) == 0


def test_an_inserted_token_pays_once() -> None:
    # Certain frames 1 2 2 1, p = 1/2: of "1" the 2 and the second 1 are insertions; with both ends to match, the 2 alone.
    frames = torch.full((4, 3), -math.inf, dtype=torch.float64)
    frames[range(4), [1, 2, 2, 1]] = 0.0
    for target, expected in (([1], 0.25), ([1, 1], 0.5), ([2], 0.25), ([], 0.125)):
        graph = merged_stc_graph(target, tokens=[1, 2], log_penalty=math.log(0.5))
        assert forward_score(intersect(emission_graph(frames), graph)).exp().item() == pytest.approx(expected)


@pytest.mark.parametrize("T", range(6))
def test_the_collapse_reads_every_alignment_once(T: int) -> None:
    emissions = emission_graph(torch.zeros(T, 3, dtype=torch.float64))
    assert forward_score(compose(emissions, ctc_collapse([1, 2]))).exp().item() == pytest.approx(3**T)


# --- the published graph and the chain are one


@st.composite
def utterances(draw: st.DrawFn):
    V = draw(st.integers(2, 5))
    target = draw(st.lists(st.integers(1, V - 1), max_size=4))
    T = draw(st.integers(0, 6))
    penalty = st.one_of(st.just(-math.inf), st.floats(-4.0, 0.0))
    penalties = draw(st.lists(penalty, min_size=len(target) + 1, max_size=len(target) + 1))
    return T, V, target, penalties, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=150, deadline=None)
@given(utterances())
def test_published_graph_equals_chain(utterance) -> None:
    T, V, target, penalties, seed = utterance
    logits = torch.randn(T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    log_probs = logits.log_softmax(-1).requires_grad_()
    log_penalty = torch.tensor(penalties, dtype=torch.float64, requires_grad=True)
    results = []
    for graph in (stc_graph, stc_chain):
        labels = graph(target, tokens=range(1, V), log_penalty=log_penalty)
        score = forward_score(intersect(emission_graph(log_probs), labels))
        results.append((score, *torch.autograd.grad(score, (log_probs, log_penalty))))
    for published, chain in zip(*results, strict=True):
        torch.testing.assert_close(published, chain, rtol=1e-10, atol=1e-10)


# --- bad input


@pytest.mark.parametrize("graph", [ctc_graph, selfless_ctc_graph, stc_graph, stc_chain, merged_stc_graph])
def test_the_blank_is_no_label(graph) -> None:
    with pytest.raises(ValueError, match="target: the blank 3 is among the labels, at position 1"):
        graph([1, 3], blank=3)


@pytest.mark.parametrize("graph", [stc_graph, stc_chain, merged_stc_graph])
def test_bad_penalty(graph) -> None:
    with pytest.raises(ValueError, match=r"log_penalty: expected a number or shape \(3,\), got shape \(2,\)"):
        graph([1, 2], log_penalty=torch.zeros(2))
