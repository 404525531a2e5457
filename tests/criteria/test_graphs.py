"""The label graphs as tensors: which tokens stand where, and from how many frames on a path exists."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.cases import CLOSED, CRITERIA, HALF, POISON

from starseq import criteria
from starseq.criteria import Form, ctc, selfless_ctc, stc
from starseq.emissions import vocabulary_torch
from starseq.emissions.tokens import NONE
from starseq.lattice import banded_torch
from starseq.op import Options, label_graph

TARGETS, LENGTHS = torch.tensor([[1, 2, 2], [3, POISON, POISON]]), torch.tensor([3, 1])


def test_selfless_ctc() -> None:
    topology, tokens = selfless_ctc.label_graph(TARGETS, LENGTHS, blank=0)
    assert tokens.enter[0].tolist() == [NONE, 1, 2, 2]
    assert tokens.enter[1, :2].tolist() == [NONE, 3]  # states past an utterance's own may hold anything
    assert (tokens.blank, tokens.stay) == (0, None)  # every self-loop is the blank
    assert tokens.star_weight is None
    assert topology.ends == 1
    assert topology.num_states.tolist() == [4, 2]
    assert topology.skip is None


def test_ctc() -> None:
    topology, tokens = ctc.label_graph(TARGETS, LENGTHS, blank=9)
    assert tokens.enter[0].tolist() == [9, 1, 9, 2, 9, 2, 9]
    assert tokens.enter[1, :3].tolist() == [9, 3, 9]
    assert torch.equal(tokens.stay, tokens.enter)
    assert topology.skip[0].nonzero().flatten().tolist() == [3]  # 1 to 2, but not 2 to 2
    assert topology.ends == 2
    assert topology.num_states.tolist() == [7, 3]


def test_stc_leaves_out_the_next_label_where_the_next_gap_is_open() -> None:
    penalty = torch.tensor([[HALF, HALF, CLOSED, HALF], [HALF, CLOSED, math.nan, math.nan]])
    graph = stc.label_graph(TARGETS, LENGTHS, blank=0, log_penalty=penalty, merge_repeats=False)
    assert graph.tokens.star_except[0, :3].tolist() == [
        1,
        NONE,
        2,
    ]  # the last state leaves out nothing, whatever is here
    assert graph.tokens.star_except[1, :1].tolist() == [NONE]
    assert graph.tokens.star_weight is penalty
    chain = selfless_ctc.label_graph(TARGETS, LENGTHS, blank=0)
    assert torch.equal(graph.tokens.enter, chain.tokens.enter)
    assert torch.equal(graph.topology.num_states, chain.topology.num_states)
    assert graph.topology.ends == chain.topology.ends


def test_stc_with_merged_repeats_is_ctc_with_stars_on_its_blanks() -> None:
    penalty = torch.tensor([[HALF, HALF, CLOSED, HALF], [HALF, CLOSED, math.nan, math.nan]])
    topology, tokens = stc.label_graph(TARGETS, LENGTHS, blank=9, log_penalty=penalty)
    expected = ctc.label_graph(TARGETS, LENGTHS, blank=9)
    assert torch.equal(tokens.enter, expected.tokens.enter)
    assert torch.equal(topology.skip, expected.topology.skip)
    assert tokens.lasting
    assert tokens.star_weight[0].exp().tolist() == pytest.approx([0.5, 0, 0.5, 0, 0, 0, 0.5])
    assert tokens.star_except[0, :6].tolist() == [1, NONE, NONE, NONE, 2, NONE]  # nothing before a closed gap


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("target", [[], [1], [1, 1], [1, 2], [1, 1, 1], [2, 2, 1], [1, 2, 1, 1]])
def test_feasible_from_how_many_frames_on(criterion: str, target: list[int]) -> None:
    """STC from U frames on; CTC needs a blank more between equal neighbours."""
    needed = len(target)
    if criterion == "ctc":
        needed += sum(a == b for a, b in itertools.pairwise(target))
    targets, lengths = torch.tensor([target], dtype=torch.int64), torch.tensor([len(target)])
    penalty = torch.full((1, len(target) + 1), HALF) if criterion == "published_stc" else None
    options = Options(criterion.removeprefix("published_"), merge_repeats=False)
    graph = label_graph((torch.empty(0), targets, lengths, lengths, penalty), options)
    for T in range(needed + 2):
        frames = torch.tensor([T])
        scores = vocabulary_torch.scores(torch.zeros(1, T, 3), graph.tokens, graph.topology, frames, normalized=True)
        _, _, log_z = banded_torch.forward_backward(scores.stay, scores.enter, graph.topology, frames)
        assert log_z.isfinite().item() == (needed <= T)


def test_forms_as_declared() -> None:
    forms = {name: [criteria.form(name, merge_repeats) for merge_repeats in (True, False)] for name in criteria.names()}
    assert forms == {
        "ctc": [Form(merging=True, stars=False)] * 2,
        "selfless_ctc": [Form(merging=False, stars=False)] * 2,
        "stc": [Form(merging=True, stars=True), Form(merging=False, stars=True)],
    }


@pytest.mark.parametrize("merge_repeats", [True, False])
@pytest.mark.parametrize("name", criteria.names())
def test_graphs_have_the_form_that_is_declared(name: str, merge_repeats: bool) -> None:
    """Kernels never see the graphs: they go by the form, and by what `Form` says of it."""
    targets, lengths = torch.tensor([[5, 6, 6, 7], [6, 5, 7, 7]]), torch.tensor([4, 2])
    gaps = torch.tensor([[-1.0, -2.0, CLOSED, -3.0, -4.0], [CLOSED, -1.0, -1.0, -1.0, -1.0]])
    form = criteria.form(name, merge_repeats)
    options = Options(name, merge_repeats, blank=3)
    (num_states, ends, skip), tokens = label_graph(
        (torch.empty(0), targets, lengths, lengths, gaps if form.stars else None), options
    )
    assert num_states.tolist() == [form.states(4), form.states(2)]
    assert tokens.enter.shape[1] == form.states(4)
    assert tokens.lasting == form.lasting
    step = 2 if form.merging else 1
    assert tokens.enter[:, 1::step].tolist() == targets.tolist()
    assert ends == step
    if form.merging:
        assert torch.equal(tokens.stay, tokens.enter)
        assert (tokens.enter[:, ::2] == 3).all()
        assert skip.nonzero().tolist() == [[0, 3], [0, 7], [1, 3], [1, 5]]
    else:
        assert (tokens.stay, skip) == (None, None)
        assert tokens.enter[:, 0].tolist() == [NONE, NONE]
    assert (tokens.star_weight is not None) == form.stars
    if form.stars:
        assert torch.equal(tokens.star_weight[:, ::step], gaps)
        assert tokens.star_except[0, : 4 * step : step].tolist() == [5, NONE, 6, 7]
        assert tokens.star_except[1, : 2 * step : step].tolist() == [6, 5]
