"""The losses against brute force and torch, value and gradient; and every way to have no alignment."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import brute_force
from tests.wfst.test_label_graphs import utterances

from starseq.wfst import ctc, selfless_ctc
from starseq.wfst import stc as merged_stc

stc = partial(merged_stc, merge_repeats=False)  # as published


def random_log_probs(T: int, V: int, seed: int = 0) -> torch.Tensor:
    logits = 2 * torch.randn(T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return logits.log_softmax(-1).requires_grad_()


@settings(max_examples=60, deadline=None)
@given(utterances(), st.booleans())
def test_against_brute_force(utterance, normalized: bool) -> None:
    T, V, target, penalties, seed = utterance
    log_probs = random_log_probs(min(T, 4), V, seed)
    if not normalized:  # any scores will do
        log_probs = (2 * log_probs + 1).detach().requires_grad_()
    log_penalty = torch.tensor(penalties, dtype=torch.float64, requires_grad=True)
    frames = log_probs.tolist()
    for loss, truth in (
        (
            stc(log_probs, target, log_penalty=log_penalty),
            brute_force.stc(frames, target, penalties, merge_repeats=False),
        ),
        (
            merged_stc(log_probs, target, log_penalty=log_penalty),
            brute_force.stc(frames, target, penalties),
        ),
        (ctc(log_probs, target), brute_force.ctc(frames, target)),
        (selfless_ctc(log_probs, target), brute_force.selfless_ctc(frames, target)),
    ):
        gradient, inserted = torch.autograd.grad(loss, (log_probs, log_penalty), allow_unused=True)
        assert loss.item() == pytest.approx(truth.loss, abs=1e-10)
        torch.testing.assert_close(gradient, torch.tensor(truth.grad_log_probs, dtype=torch.float64).reshape(-1, V))
        if inserted is not None:
            torch.testing.assert_close(-inserted, torch.tensor(truth.inserted, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(V=st.integers(2, 5), T=st.integers(1, 12), data=st.data())
def test_ctc_against_torch(V: int, T: int, data: st.DataObject) -> None:
    blank = data.draw(st.integers(0, V - 1))
    target = data.draw(st.lists(st.integers(0, V - 1).filter(lambda label: label != blank), max_size=5))
    # Torch's gradient is that of logits in disguise: take it through the log-softmax.
    logits = torch.randn(T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(T)).requires_grad_()
    ours = ctc(logits.log_softmax(-1), target, blank=blank)
    theirs = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1)[:, None],
        torch.tensor([target], dtype=torch.long),
        torch.tensor([T]),
        torch.tensor([len(target)]),
        blank=blank,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs)
    if theirs.isfinite():  # torch's gradient of an infinite loss is NaN
        torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("target", [[], [1], [1, 1, 2]])
def test_gradcheck(target: list[int]) -> None:
    log_probs = random_log_probs(5, 4)
    per_gap = torch.linspace(-2.0, -0.1, len(target) + 1, dtype=torch.float64, requires_grad=True)
    scalar = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    for log_penalty in (per_gap, scalar):
        for loss in (stc, merged_stc):
            assert torch.autograd.gradcheck(
                lambda x, penalty, loss=loss: loss(x, target, log_penalty=penalty),
                (log_probs, log_penalty),
            )
    assert torch.autograd.gradcheck(lambda x: ctc(x, target), log_probs)
    assert torch.autograd.gradcheck(lambda x: selfless_ctc(x, target), log_probs)


def test_stc_by_hand() -> None:
    # Two frames over blank, 1, 2; the target is 1. Of the alignments 1- -1 11 12 21 the last three insert a token.
    probs = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]
    z = 0.3 * 0.1 + 0.5 * 0.6 + 0.25 * (0.3 * 0.6 + 0.3 * 0.3 + 0.2 * 0.6)
    loss = stc(torch.tensor(probs).log(), [1], log_penalty=math.log(0.25))
    assert loss.item() == pytest.approx(-math.log(z))


def test_a_penalty_of_minus_infinity_is_selfless_ctc() -> None:
    log_probs = random_log_probs(6, 4)
    torch.testing.assert_close(stc(log_probs, [1, 1, 3], log_penalty=-math.inf), selfless_ctc(log_probs, [1, 1, 3]))


def test_a_penalty_of_minus_infinity_is_ctc_where_tokens_last() -> None:
    log_probs = random_log_probs(6, 4)
    torch.testing.assert_close(merged_stc(log_probs, [1, 1, 3], log_penalty=-math.inf), ctc(log_probs, [1, 1, 3]))


def test_the_blank_may_be_any_column() -> None:
    log_probs = random_log_probs(5, 4)
    moved = log_probs[:, [1, 2, 3, 0]]  # blank last, labels one down
    for loss, same in (
        (stc(log_probs, [1, 3], log_penalty=-0.5), stc(moved, [0, 2], log_penalty=-0.5, blank=3)),
        (merged_stc(log_probs, [1, 3], log_penalty=-0.5), merged_stc(moved, [0, 2], log_penalty=-0.5, blank=3)),
        (ctc(log_probs, [1, 3]), ctc(moved, [0, 2], blank=3)),
        (selfless_ctc(log_probs, [1, 3]), selfless_ctc(moved, [0, 2], blank=3)),
    ):
        torch.testing.assert_close(loss, same)


@pytest.mark.parametrize(
    ("T", "target"), [(1, [1, 2]), (0, [1]), (3, [7]), (3, [2])], ids=["T < U", "T = 0", "no such label", "P = 0"]
)
def test_infeasible_is_infinite_with_gradient_zero(T: int, target: list[int]) -> None:
    log_probs = random_log_probs(T, 3).detach()
    log_probs[:, 2] = -math.inf
    log_probs.requires_grad_()
    log_penalty = torch.tensor(-0.5, requires_grad=True)
    for loss in (
        stc(log_probs, target, log_penalty=log_penalty),
        merged_stc(log_probs, target, log_penalty=log_penalty),
        ctc(log_probs, target),
        selfless_ctc(log_probs, target),
    ):
        assert loss == math.inf
        gradient, _ = torch.autograd.grad(loss, (log_probs, log_penalty), allow_unused=True)
        assert torch.equal(gradient, torch.zeros_like(log_probs))


def test_an_impossible_frame_is_infinite_with_gradient_zero() -> None:
    log_probs = random_log_probs(4, 3).detach()
    log_probs[2] = -math.inf
    log_probs.requires_grad_()
    for criterion in (stc, merged_stc):
        loss = criterion(log_probs, [1], log_penalty=-0.5)
        assert loss == math.inf
        assert not torch.autograd.grad(loss, log_probs)[0].any()


def test_all_closed_gaps_still_give_a_gradient_of_zero() -> None:
    log_penalty = torch.full((3,), -math.inf, requires_grad=True)
    for criterion in (stc, merged_stc):
        loss = criterion(random_log_probs(4, 3), [1, 2], log_penalty=log_penalty)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, log_penalty)[0].tolist() == [0.0, 0.0, 0.0]


def test_nothing_to_read_and_nothing_read() -> None:
    nothing = torch.zeros(0, 3, requires_grad=True)
    of_stars = [loss(nothing, [], log_penalty=-0.5) for loss in (stc, merged_stc)]
    for loss in (*of_stars, ctc(nothing, []), selfless_ctc(nothing, [])):
        assert loss == 0.0
        assert torch.autograd.grad(loss, nothing)[0].shape == (0, 3)


def test_nan_gives_nan() -> None:
    log_probs = torch.zeros(4, 3)
    log_probs[1, 1] = math.nan
    assert stc(log_probs, [1], log_penalty=-0.5).isnan()
    assert merged_stc(log_probs, [1], log_penalty=-0.5).isnan()
    assert ctc(log_probs, [1]).isnan()


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_dtypes(dtype: torch.dtype, result: torch.dtype) -> None:
    log_probs = random_log_probs(5, 4).detach().to(dtype).requires_grad_()
    loss = stc(log_probs, [1, 2], log_penalty=-0.5)
    assert loss.dtype == result
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.dtype == dtype
    torch.testing.assert_close(loss.double(), stc(log_probs.double(), [1, 2], log_penalty=-0.5), rtol=1e-6, atol=0)
