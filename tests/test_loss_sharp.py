"""Sums of powers of weights: the ladder of truth, what they are at both ends, and what they are for."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from hypothesis import given
from hypothesis import strategies as st
from tests import brute_force, cases
from tests.cases import FAST, MATCHINGS, RUNGS, STARRED, assert_same, few, run, truth

import starseq
from starseq import Sharpness

SHARPNESS = st.sampled_from([0.5, 1.5, 2.0, 4.0])


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize("criterion", STARRED)
@few
@given(batch=cases.batches(most_alignments=260), sharpness=SHARPNESS, concatenate=st.booleans())
def test_against_brute_force(
    criterion: str, backend: str, dtype: torch.dtype, batch: cases.Batch, sharpness: float, concatenate: bool
) -> None:
    batch = replace(batch, sharpness=sharpness)
    assert_same(run(criterion, batch, backend, dtype, concatenate=concatenate), truth(criterion, batch), dtype)


@pytest.mark.parametrize("criterion", STARRED)
@pytest.mark.parametrize("matching", MATCHINGS)
@pytest.mark.parametrize("backend", [name for name in FAST if name != "torch"])
def test_larger_shapes_against_torch(criterion: str, matching: str, backend: str) -> None:
    batch = replace(cases.random_batch(T=40, B=3, V=7, U=9, blank=3, matching=matching), sharpness=3.0)
    assert_same(run(criterion, batch, backend), run(criterion, batch, "torch"))


@pytest.mark.parametrize("criterion", STARRED)
def test_far_from_one_it_is_the_best_alignment(criterion: str) -> None:
    batch = cases.random_batch(T=5, B=1, V=3, U=2, extra=0)
    ((frames, target, penalty),) = batch.utterances()
    best = getattr(brute_force, criterion)(brute_force.log_softmax(frames), target, penalty, sharpness=1000.0).loss
    assert abs(run(criterion, replace(batch, sharpness=1000.0), "torch").loss.item() - best) < 1e-6
    # Of equal alignments there may be a few, and their number counts by its root.
    collapse = brute_force.merged if criterion == "lasting_stc" else brute_force._without
    weights = [
        weight * math.prod(math.exp(p[v]) for p, v in zip(brute_force.log_softmax(frames), alignment, strict=True))
        for alignment in _alignments(len(frames), 3)
        for weight, _ in brute_force.readings_of(collapse(0, alignment), target, penalty, "leftmost")
    ]
    assert abs(best + math.log(max(weights))) < 0.01


def _alignments(frames: int, vocabulary: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for _ in range(frames):
        found = [(*head, v) for head in found for v in range(vocabulary)]
    return found


@pytest.mark.parametrize("criterion", STARRED)
@pytest.mark.parametrize("backend", FAST)
def test_as_a_tensor(criterion: str, backend: str) -> None:
    batch = cases.random_batch(T=7, B=2, V=4, U=3)
    for sharpness in (1.0, 2.5):
        number = run(criterion, replace(batch, sharpness=sharpness), backend)
        tensor = run(criterion, replace(batch, sharpness=torch.tensor(sharpness)), backend)  # type: ignore[arg-type]
        assert_same(tensor, number)


@pytest.mark.parametrize("sharpness", [2, np.float32(2), np.int64(2), torch.tensor(2), torch.tensor(2.0).double()])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_kinds_of_numbers(sharpness: Any, reduction: str) -> None:
    arguments = torch.randn(5, 1, 3), torch.tensor([[1]]), (5,), (1,)
    loss = starseq.stc_loss(*arguments, sharpness=sharpness, reduction=reduction)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, starseq.stc_loss(*arguments, sharpness=2.0, reduction=reduction))


@pytest.mark.parametrize("criterion", STARRED)
def test_single_precision_over_many_frames(criterion: str) -> None:
    batch = replace(cases.random_batch(T=400, B=2, V=20, U=40), sharpness=4.0)
    exact, single = run(criterion, batch, "torch"), run(criterion, batch, "numba", torch.float32)
    torch.testing.assert_close(single.loss, exact.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.grad, exact.grad, rtol=0, atol=2e-5)


@pytest.mark.parametrize("criterion", STARRED)
@pytest.mark.parametrize("backend", FAST)
def test_a_frame_that_no_token_fits(criterion: str, backend: str) -> None:
    logits = torch.randn(6, 2, 4, dtype=torch.float64)
    logits[2, 0], logits[5, 1] = -math.inf, -math.inf  # the second is past the length
    logits.requires_grad_()
    loss = cases.loss_of(criterion)(
        logits, torch.tensor([[1], [2]]), (6, 5), (1, 1), sharpness=2.0, reduction="none", backend=backend
    )
    assert loss[0] == math.inf
    (grad,) = torch.autograd.grad(loss[1], logits)
    assert loss[1].isfinite()
    assert grad.isfinite().all()
    assert not grad[:, 0].any()


@pytest.mark.parametrize("criterion", STARRED)
@pytest.mark.parametrize("backend", FAST)
def test_gradcheck(criterion: str, backend: str) -> None:
    batch = cases.random_batch(T=5, B=2, V=3, U=2, blank=1, extra=0)
    logits = batch.logits.nan_to_num(nan=0.5).requires_grad_()

    def loss(x: torch.Tensor, penalty: torch.Tensor) -> Any:
        return cases.loss_of(criterion)(
            x, batch.targets.clamp(max=2), batch.input_lengths, batch.target_lengths, penalty=penalty, sharpness=2.0,
            blank=1, reduction="none", backend=backend,
        )  # fmt: skip

    for shape in [(), (2,), (2, max(batch.target_lengths) + 1)]:
        penalty = -torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert torch.autograd.gradcheck(loss, (logits, penalty.sub(0.1).requires_grad_()))


@pytest.mark.parametrize("criterion", STARRED)
def test_forms_of_input(criterion: str) -> None:
    """One utterance without a batch, the batch first, half precisions, every reduction, modules."""
    loss = cases.loss_of(criterion)
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 2, 4), torch.tensor([[1, 2], [3, 0]])
    arguments: dict[str, Any] = {"penalty": math.log(0.6), "sharpness": 3.0}
    each = loss(logits, targets, (6, 4), (2, 1), reduction="none", **arguments)
    alone = loss(logits[:4, 1], targets[1, :1], (4,), (1,), reduction="none", **arguments)
    torch.testing.assert_close(alone, each[1])
    first = loss(logits.transpose(0, 1), targets, (6, 4), (2, 1), batch_first=True, **arguments)
    torch.testing.assert_close(first, (each / torch.tensor([2.0, 1.0])).mean())
    torch.testing.assert_close(loss(logits, targets, (6, 4), (2, 1), reduction="sum", **arguments), each.sum())
    half = loss(logits.bfloat16(), targets, (6, 4), (2, 1), reduction="none", **arguments)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, each, rtol=0.02, atol=0.02)
    module = {"stc": starseq.STCLoss, "lasting_stc": starseq.LastingSTCLoss}[criterion](reduction="none")
    torch.testing.assert_close(module(logits, targets, (6, 4), (2, 1), math.log(0.6), 3.0), each)


@pytest.mark.parametrize("criterion", STARRED)
def test_without_an_alignment(criterion: str) -> None:
    logits = torch.randn(2, 1, 4, requires_grad=True)
    loss = cases.loss_of(criterion)(
        logits, torch.tensor([[1, 2, 3]]), (2,), (3,), sharpness=2.0, zero_infinity=True, reduction="sum"
    )
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("criterion", STARRED)
@pytest.mark.parametrize("k", [1.0, 2.0, 4.0])
def test_what_the_model_is_sure_of_it_stays_sure_of(criterion: str, k: float) -> None:
    """A token without a label, alone in its frame: the loss asks for its odds, times p, to the power k."""
    p, target = 0.5, torch.tensor([[1]])
    bound = math.inf if k == 1 else p ** (-k / (k - 1))
    for odds in (0.5 * min(bound, 8.0), 2 * min(bound, 1e6)):
        # Frames: the label surely, a blank surely, then perhaps token 2, and a blank.
        sure = [[-99.0, 0.0, -99.0], [0.0, -99.0, -99.0], [0.0, -99.0, math.log(odds)], [0.0, -99.0, -99.0]]
        logits = torch.tensor(sure, dtype=torch.float64)[:, None].requires_grad_()
        loss = cases.loss_of(criterion)(logits, target, (4,), (1,), penalty=math.log(p), sharpness=k, reduction="sum")
        (grad,) = torch.autograd.grad(loss, logits)
        share = odds / (1 + odds)
        wanted = (p * odds) ** k / (1 + (p * odds) ** k)
        assert abs(-grad[2, 0, 2].item() - (wanted - share)) < 1e-9
        assert (-grad[2, 0, 2].item() > 0) == (odds > bound)


def test_compiled() -> None:
    """A tensor that changes does not compile anew."""
    batch = cases.random_batch(T=12, B=2, V=5, U=3, extra=0)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def loss(x: torch.Tensor, sharpness: torch.Tensor) -> Any:
        return starseq.stc_loss(x, batch.targets, batch.input_lengths, batch.target_lengths, sharpness=sharpness)

    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    for sharpness in (1.0, 2.0, 3.0):
        results = []
        for function in (loss, compiled):
            logits = batch.logits.nan_to_num(nan=0.0).requires_grad_()
            value = function(logits, torch.tensor(sharpness))
            results.append((value.detach(), *torch.autograd.grad(value, logits)))
        torch.testing.assert_close(results[1], results[0])
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("sharpness", "sentence"),
    [
        (0, "sharpness: 0 is not a positive number"),
        (-1.0, "sharpness: -1.0 is not a positive number"),
        (math.nan, "sharpness: nan is not a positive number"),
        (math.inf, "sharpness: inf is not a positive number"),
        ("2", "sharpness: expected a number or a tensor, got str"),
        (True, "sharpness: expected a number or a tensor, got bool"),
        (torch.ones(2), "sharpness: expected a number or a tensor (), got shape (2,)"),
        (torch.tensor(0), "sharpness: 0 is not a positive number"),
        (torch.tensor(-2.0), "sharpness: -2.0 is not a positive number"),
        (torch.tensor(math.nan), "sharpness: nan is not a positive number"),
        (torch.tensor(math.inf), "sharpness: inf is not a positive number"),
    ],
)
def test_mistakes(sharpness: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        starseq.stc_loss(torch.zeros(3, 1, 3), torch.tensor([[1]]), (3,), (1,), sharpness=sharpness)


def test_a_bad_penalty_is_named_as_it_was_given() -> None:
    for first in (False, True):
        logits = torch.zeros(2, 5, 3) if first else torch.zeros(5, 2, 3)
        with pytest.raises(ValueError, match=r"penalty: 0\.25"):
            starseq.stc_loss(
                logits, torch.tensor([[1], [1]]), (5, 5), (1, 1), penalty=0.25, sharpness=2.0, batch_first=first
            )


def test_the_course() -> None:
    sharpness = Sharpness(5.0, begin=20, end=60)
    assert [sharpness(passes) for passes in (0, 20, 40, 59, 60, 1000)] == pytest.approx([1, 1, 3, 4.9, 5, 5])
    assert [Sharpness(3.0, begin=5, end=5)(passes) for passes in (4, 5)] == [1, 3]
    assert [Sharpness()(passes) for passes in (0, 5, 15)] == [1, 1, 4]
    assert repr(Sharpness()) == "Sharpness(4, begin=5, end=15)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"final": 0.5}, "final: 0.5 is not a number >= 1"),
        ({"final": math.inf}, "final: inf is not a number >= 1"),
        ({"begin": 16}, "begin, end: 16 and 15.0 are not passes"),
        ({"begin": -1}, "begin, end: -1 and 15.0 are not passes"),
        ({"end": math.inf}, "begin, end: 5.0 and inf are not passes"),
    ],
)
def test_mistakes_of_the_course(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Sharpness(**arguments)
