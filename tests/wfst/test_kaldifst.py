"""Composition and best paths against an independent library, OpenFst behind kaldifst."""

from __future__ import annotations

import random

import pytest
from tests.wfst.paths import enumerate_paths, random_graph

from starseq.wfst import EPSILON, Graph, compose, forward_score, trim, viterbi_path

kaldifst = pytest.importorskip("kaldifst")


def to_kaldi(graph: Graph):
    """Costs for log weights, 0 for epsilon, and one start state before ours."""
    fst = kaldifst.StdVectorFst()
    for _ in range(graph.num_states + 1):
        fst.add_state()
    fst.start = graph.num_states
    for state in graph.start:
        fst.add_arc(graph.num_states, kaldifst.StdArc(0, 0, 0.0, state))
    for state in graph.final:
        fst.set_final(state, 0.0)
    for arc, weight in zip(graph.arcs, graph.weights.tolist(), strict=True):
        fst.add_arc(arc.source, kaldifst.StdArc(arc.input - EPSILON, arc.output - EPSILON, -weight, arc.target))
    return fst


def kaldi_paths(fst) -> list:
    found = []
    todo = [(fst.start, (), (), 0.0)] if fst.start >= 0 else []
    while todo:
        state, reads, writes, cost = todo.pop()
        final = fst.final(state).value
        if final != float("inf"):
            found.append(((reads, writes), -(cost + final)))
        for arc in kaldifst.ArcIterator(fst, state):
            read = (*reads, arc.ilabel + EPSILON) if arc.ilabel else reads
            written = (*writes, arc.olabel + EPSILON) if arc.olabel else writes
            todo.append((arc.nextstate, read, written, cost + arc.weight.value))
    return found


def best_cost(fst) -> float:
    path = kaldifst.shortest_path(fst)
    found = kaldi_paths(path)
    return -float("inf") if not found else found[0][1]


def kaldi_compose(first: Graph, second: Graph):
    left, right = to_kaldi(first), to_kaldi(second)
    kaldifst.arcsort(left, sort_type="olabel")
    return kaldifst.compose(left, right)


@pytest.mark.parametrize("seed", range(60))
def test_composition_has_the_paths_of_openfst(seed: int) -> None:
    rng = random.Random(seed)
    first, second = random_graph(rng), random_graph(rng)
    ours = sorted(enumerate_paths(compose(first, second)))
    theirs = sorted(kaldi_paths(kaldi_compose(first, second)))
    assert [words for words, _ in ours] == [words for words, _ in theirs]  # as a multiset: each path once
    assert sorted(w for _, w in ours) == pytest.approx(sorted(w for _, w in theirs), abs=1e-4)


@pytest.mark.parametrize("seed", range(60))
def test_tropical_score_is_the_shortest_path_of_openfst(seed: int) -> None:
    rng = random.Random(seed)
    first, second = random_graph(rng), random_graph(rng)
    for graph, fst in ((first, to_kaldi(first)), (compose(first, second), kaldi_compose(first, second))):
        assert forward_score(graph, "tropical").item() == pytest.approx(best_cost(fst), abs=1e-4)
        path = viterbi_path(graph)
        if path.arcs:
            assert ((tuple(path.inputs), tuple(path.outputs)), pytest.approx(path.score.item())) in [
                (words, weight) for words, weight in enumerate_paths(graph)
            ]


def test_random_graphs_are_not_all_trivial() -> None:
    """A guard on the tests above: enough compositions have paths, and enough of those use epsilons."""
    sizes = []
    for seed in range(60):
        rng = random.Random(seed)
        sizes.append(len(enumerate_paths(compose(random_graph(rng), random_graph(rng)))))
    assert sum(size >= 2 for size in sizes) > 30
    assert max(sizes) > 20


@pytest.mark.parametrize("seed", range(20))
def test_trim_leaves_as_many_states_as_connect(seed: int) -> None:
    graph = random_graph(random.Random(seed), num_states=7, num_arcs=7)
    fst = to_kaldi(graph)
    kaldifst.connect(fst)
    ours = trim(graph)
    # Theirs has the extra start state, where there is any path at all.
    assert fst.num_states == (ours.num_states + 1 if ours.num_states else 0)
