"""A criterion is written once, and what is made of it is one: its WFST, the hand-written one and the kernels agree.

Criteria are found by being there. Each must have a hand-written graph and loss of its name under `wfst`, and a loss
function of its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import starseq
from starseq import criteria, wfst
from starseq.wfst import STAR, star_label

CRITERIA = criteria.names()
PENALTIES = st.one_of(st.just(-math.inf), st.just(0.0), st.floats(-5, 0))


class Case(NamedTuple):
    """A ragged batch in float64. log_penalty: (B, U+1)."""

    logits: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    log_penalty: Tensor
    merge_repeats: bool
    blank: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    B, T, V, U = (draw(st.integers(*bounds)) for bounds in ((1, 3), (0, 5), (2, 5), (0, 3)))
    blank = draw(st.integers(0, V - 1))
    labels = [v for v in range(V) if v != blank]
    seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return Case(
        2 * torch.randn(B, T, V, dtype=torch.float64, generator=seed),
        torch.tensor([[draw(st.sampled_from(labels)) for _ in range(U)] for _ in range(B)]).reshape(B, U).long(),
        torch.tensor([draw(st.integers(0, T)) for _ in range(B)]),
        torch.tensor([draw(st.integers(0, U)) for _ in range(B)]),
        torch.tensor([[draw(PENALTIES) for _ in range(U + 1)] for _ in range(B)], dtype=torch.float64),
        draw(st.booleans()),
        blank,
    )


class Outcome(NamedTuple):
    losses: Tensor
    for_logits: Tensor
    for_penalty: Tensor


def differentiate(loss: Callable[[Case], Tensor], case: Case) -> Outcome:
    """The losses (B,) that `loss(case)` gives, and their gradients."""
    logits, log_penalty = case.logits.clone().requires_grad_(), case.log_penalty.clone().requires_grad_()
    losses = loss(case._replace(logits=logits, log_penalty=log_penalty))
    # Distinct factors: a gradient that lands in another utterance shows. An infinite loss has gradient 0.
    factors = torch.arange(1, len(losses) + 1, dtype=torch.float64).masked_fill(losses == math.inf, 0)
    total = (losses.masked_fill(losses == math.inf, 0) * factors).sum() + 0 * (logits.sum() + log_penalty.exp().sum())
    for_logits, for_penalty = torch.autograd.grad(total, (logits, log_penalty))
    return Outcome(losses.detach(), for_logits, for_penalty)


def stars(name: str, case: Case) -> dict[str, Any]:
    return {"log_penalty": case.log_penalty, "merge_repeats": case.merge_repeats} if criteria.form(name).stars else {}


def by_description(name: str, case: Case) -> Tensor:
    """What the kernels run, made a WFST and intersected with the emissions."""
    described = criteria.load(name)(case.targets, case.target_lengths, blank=case.blank, **stars(name, case))
    tokens = [v for v in range(case.logits.shape[2]) if v != case.blank]
    losses = []
    for b, frames in enumerate(case.input_lengths.tolist()):
        log_probs = case.logits[b, :frames].log_softmax(dim=1)
        emissions = wfst.emission_graph(log_probs)
        losses.append(-wfst.forward_score(wfst.intersect(emissions, criteria.to_wfst(described, b, tokens))))
    return torch.stack(losses)


def by_hand(name: str, case: Case) -> Tensor:
    """The graphs of the papers."""
    losses = []
    for b, (frames, length) in enumerate(zip(case.input_lengths.tolist(), case.target_lengths.tolist(), strict=True)):
        options = stars(name, case)
        if options:
            options["log_penalty"] = case.log_penalty[b, : length + 1]
        log_probs, target = case.logits[b, :frames].log_softmax(dim=1), case.targets[b, :length].tolist()
        losses.append(getattr(wfst, name)(log_probs, target, blank=case.blank, **options))
    return torch.stack(losses)


def by_kernels(name: str, case: Case, backend: str) -> Tensor:
    options = {"penalty" if key == "log_penalty" else key: value for key, value in stars(name, case).items()}
    losses: Tensor = getattr(starseq, f"{name}_loss")(
        case.logits, case.targets, case.input_lengths, case.target_lengths, blank=case.blank, batch_first=True,
        reduction="none", backend=backend, **options,
    )  # fmt: skip
    return losses


def test_all_criteria_are_found() -> None:
    assert CRITERIA == ["ctc", "selfless_ctc", "stc"]
    assert [name for name in CRITERIA if criteria.form(name).stars] == ["stc"]
    with pytest.raises(ValueError, match=r"^criterion: 'graph' is none of ctc, selfless_ctc, stc$"):
        criteria.load("graph")


@pytest.mark.parametrize("name", CRITERIA)
@given(case=cases())
@settings(deadline=None, max_examples=60)
def test_description_reference_and_kernels_agree(name: str, case: Case) -> None:
    expected = differentiate(partial(by_hand, name), case)
    described = differentiate(partial(by_description, name), case)
    torch.testing.assert_close(described, expected, rtol=1e-9, atol=1e-12)
    for backend in ("torch", "numba"):
        kernels = differentiate(partial(by_kernels, name, backend=backend), case)
        torch.testing.assert_close(kernels, expected, rtol=1e-9, atol=1e-9)


def test_arcs_that_cannot_be_passed_are_left_out() -> None:
    # One label of two: state 2 does not exist. The last gap is closed, so gap 0 leaves nothing out.
    gaps = torch.tensor([[-0.5, -math.inf, -0.5]])
    graph = criteria.to_wfst(
        criteria.load("stc")(torch.tensor([[1, 9]]), torch.tensor([1]), blank=0, log_penalty=gaps, merge_repeats=False)
    )
    assert [arc[:3] for arc in graph.arcs] == [(0, 0, 0), (0, 0, STAR), (0, 1, 1), (1, 1, 0)]
    assert (graph.start, graph.final) == ((0,), (1,))


def test_an_impossible_label_is_no_arc() -> None:
    graph = criteria.to_wfst(criteria.load("selfless_ctc")(torch.tensor([[0]]), torch.tensor([1]), blank=0))
    assert all(arc.source == arc.target for arc in graph.arcs)
    assert wfst.forward_score(wfst.intersect(wfst.emission_graph(torch.zeros(3, 2)), graph)) == -math.inf


def test_stars_are_symbols_until_tokens_are_given() -> None:
    gaps = torch.full((1, 2), -0.5, requires_grad=True)
    described = criteria.load("stc")(
        torch.tensor([[2]]), torch.tensor([1]), blank=0, log_penalty=gaps, merge_repeats=False
    )
    assert [arc.input for arc in criteria.to_wfst(described).arcs] == [0, star_label(2), 2, 0, STAR]
    expanded = criteria.to_wfst(described, tokens=[1, 2])
    assert [arc.input for arc in expanded.arcs] == [0, 1, 2, 0, 1, 2]
    expanded.weights.sum().backward()
    assert gaps.grad is not None
    assert gaps.grad.tolist() == [[1, 2]]  # the arcs that each weight is on


@given(case=cases())
@settings(deadline=None, max_examples=40)
def test_tokens_that_last_are_drawn_as_by_hand(case: Case) -> None:
    described = criteria.load("stc")(case.targets, case.target_lengths, blank=case.blank, log_penalty=case.log_penalty)
    for b, length in enumerate(case.target_lengths.tolist()):
        target, log_penalty = case.targets[b, :length].tolist(), case.log_penalty[b, : length + 1]
        by_hand = wfst.stc_graph(target, case.blank, None, log_penalty)
        described_graph = criteria.to_wfst(described, b)
        assert described_graph.num_states == by_hand.num_states == 3 * length + 2
        assert arcs_of(wfst.trim(described_graph)) == arcs_of(wfst.trim(by_hand))


def arcs_of(graph: wfst.Graph) -> list[Any]:
    """All that a graph is, in an order that does not depend on how it was written."""
    return [*sorted(zip(graph.arcs, graph.weights.tolist(), strict=True)), graph.start, graph.final]


def test_a_token_that_lasts_is_a_state_of_its_own() -> None:
    gaps = torch.tensor([[-math.inf, -0.5]], requires_grad=True)
    described = criteria.load("stc")(torch.tensor([[1]]), torch.tensor([1]), blank=0, log_penalty=gaps)
    # 0 is the blank before label 1, the label is 1. Then come the blank, an inserted 1 and an inserted 2.
    graph = criteria.to_wfst(described, tokens=[1, 2])
    assert [arc[:3] for arc in graph.arcs] == [
        (0, 0, 0), (0, 1, 1),
        (1, 1, 1), (1, 2, 0), (1, 4, 2),  # where the label stands, 1 is the label still
        (2, 2, 0), (2, 3, 1), (2, 4, 2),
        (3, 2, 0), (3, 3, 1), (3, 4, 2),
        (4, 2, 0), (4, 3, 1), (4, 4, 2),
    ]  # fmt: skip
    assert graph.final == (1, 2, 3, 4)
    graph.weights.sum().backward()
    assert gaps.grad is not None
    assert gaps.grad.tolist() == [[0, 5]]  # a token pays where it begins, not where it lasts
