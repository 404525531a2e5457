"""STC with merged repeats: the ladder of truth, and what it is at its ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import brute_force, cases
from tests.cases import BACKENDS, CLOSED, FAST, HALF, RUNGS, assert_same, few, merged_loss, published_loss, run, truth
from tests.test_loss_ladder import SHAPES

import starseq

NAME = "stc"


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@few
@given(batch=cases.batches(most_alignments=260), concatenate=st.booleans())
def test_against_brute_force(backend: str, dtype: torch.dtype, batch: cases.Batch, concatenate: bool) -> None:
    assert_same(run(NAME, batch, backend, dtype, concatenate=concatenate), truth(NAME, batch), dtype)


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize("case", brute_force.read_vectors("stc_merged"), ids=lambda case: case["name"])
def test_published_vectors(backend: str, dtype: torch.dtype, case: dict[str, Any]) -> None:
    logits = torch.tensor(case["logits"], dtype=torch.float64).reshape(case["shape"])
    logits = logits.to(BACKENDS[backend], dtype).requires_grad_()
    loss, inserted = merged_loss(
        logits, torch.tensor(case["target"], dtype=torch.int64), (len(logits),), (len(case["target"]),),
        penalty=torch.tensor(case["log_penalty"], dtype=torch.float64), blank=case["blank"],
        reduction="none", return_inserted=True, backend=backend,
    )  # fmt: skip
    (grad,) = torch.autograd.grad(loss, logits)
    expected = torch.tensor(case["grad_logits"], dtype=torch.float64).reshape(case["shape"])
    tolerance = cases.TOLERANCES[dtype]
    torch.testing.assert_close(loss.cpu().double().item(), case["loss"], **tolerance)
    torch.testing.assert_close(grad.cpu().double(), expected, **tolerance)
    torch.testing.assert_close(inserted.tolist(), case["inserted"], **tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", cases.TOLERANCES)
@pytest.mark.parametrize("backend", [name for name in FAST if name != "torch"])
def test_larger_shapes_against_torch(shape: str, dtype: torch.dtype, backend: str) -> None:
    batch = cases.random_batch(**SHAPES[shape], blank=3)
    assert_same(run(NAME, batch, backend, dtype), run(NAME, batch, "torch"), dtype)


def test_larger_shapes_torch_against_wfst() -> None:
    batch = cases.random_batch(T=14, B=2, V=6, U=5, blank=3)
    assert_same(run(NAME, batch, "torch"), run(NAME, batch, "wfst"))


@pytest.mark.parametrize("backend", FAST)
def test_gradcheck(backend: str) -> None:
    batch = cases.random_batch(T=5, B=2, V=3, U=2, blank=1, extra=0)
    logits = batch.logits.nan_to_num(nan=0.5).requires_grad_()
    targets = batch.targets.clamp(max=2)

    def loss(x: torch.Tensor, penalty: torch.Tensor) -> Any:
        return merged_loss(
            x, targets, batch.input_lengths, batch.target_lengths, penalty=penalty, blank=1,
            reduction="none", backend=backend,
        )  # fmt: skip

    for shape in [(), (2,), (2, max(batch.target_lengths) + 1)]:
        penalty = -torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert torch.autograd.gradcheck(loss, (logits, penalty.sub(0.1).requires_grad_()))


@pytest.mark.parametrize("backend", FAST)
@few
@given(batch=cases.batches())
def test_with_every_gap_closed_it_is_ctc(backend: str, batch: cases.Batch) -> None:
    closed = cases.replace(batch, penalty=torch.full_like(batch.penalty, CLOSED), normalized=True)
    ours, theirs = run(NAME, closed, backend), run("ctc", closed, backend)
    assert_same(ours, theirs._replace(inserted=torch.zeros_like(batch.penalty)))


@pytest.mark.parametrize("backend", FAST)
def test_an_inserted_token_pays_once_however_long_it_lasts(backend: str) -> None:
    sure = [[30.0, 0, 0], [0, 0, 30.0], [0, 0, 30.0], [0, 0, 30.0], [0, 30.0, 0], [0, 30.0, 0]]  # nothing, 2 2 2, 1 1
    batch = cases.batch_of([torch.tensor(sure)], [[1]], HALF)
    result = run(NAME, batch, backend)
    assert result.loss.item() == pytest.approx(-HALF, abs=1e-9)
    assert result.inserted is not None
    assert result.inserted[0, :2].tolist() == pytest.approx([1.0, 0.0], abs=1e-9)
    assert run("published_stc", batch, backend).loss.item() == pytest.approx(
        -4 * HALF, abs=0.01
    )  # for each frame too many


@pytest.mark.parametrize("backend", FAST)
def test_insertions_are_the_slope_of_the_penalty(backend: str) -> None:
    batch = cases.random_batch(T=12, B=3, V=5, U=4)
    penalty = batch.penalty.nan_to_num(nan=-1.0).requires_grad_()
    logits = batch.logits.nan_to_num(nan=0.0)
    loss, inserted = merged_loss(
        logits, batch.targets.clamp(1, 4), batch.input_lengths, batch.target_lengths, penalty=penalty, reduction="sum",
        return_inserted=True, backend=backend,
    )  # fmt: skip
    (slope,) = torch.autograd.grad(loss, penalty)
    torch.testing.assert_close(inserted, -slope)
    assert inserted.sum() > 0


@pytest.mark.parametrize("backend", FAST)
def test_without_an_alignment(backend: str) -> None:
    """Two equal labels need a frame between them."""
    logits = torch.zeros(2, 1, 3, requires_grad=True)
    arguments = torch.tensor([[1, 1]]), (2,), (2,)
    loss = merged_loss(logits, *arguments, backend=backend, reduction="sum")
    assert loss.item() == math.inf
    assert not torch.autograd.grad(loss, logits)[0].any()
    assert published_loss(logits, *arguments, backend=backend, reduction="sum").isfinite()
    zero = starseq.STCLoss(penalty=HALF, zero_infinity=True, reduction="sum", backend=backend)(logits, *arguments)
    (grad,) = torch.autograd.grad(zero, logits)
    assert (zero.item(), grad.abs().sum().item()) == (0, 0)


@pytest.mark.parametrize("dtype", cases.TOLERANCES)
@pytest.mark.parametrize("backend", [name for name in FAST if name != "torch"])
def test_states_of_which_only_some_frames_are_kept(backend: str, dtype: torch.dtype) -> None:
    """130 frames of 61 rows of 40 tokens are more than are kept."""
    batch = cases.random_batch(T=130, B=2, V=40, U=60, blank=3)
    batch.penalty[0, 5:50:7] = CLOSED
    assert_same(run(NAME, batch, backend, dtype), run(NAME, batch, "torch"), dtype)


def far_apart() -> cases.Batch:
    """The best alignment begins with labels e^-800 times as likely as blanks: without logarithms, the second one is lost. What is
    left are alignments that take it later, and weigh e^-1000. Beside it lies an ordinary utterance."""
    steep = torch.tensor([[0, -400.0, -900], [0, -900, -400.0], [0, -600.0, -900], [0, -900, -600.0]])
    return cases.batch_of([steep, steep / 400], [[1, 2], [2, 1]], [[CLOSED, HALF, CLOSED], [HALF] * 3])


@pytest.mark.parametrize("backend", [name for name in FAST if name != "torch"])
def test_probabilities_far_apart(backend: str) -> None:
    expected = run(NAME, far_apart(), "torch")
    assert expected.loss[0].item() == pytest.approx(800)
    assert_same(run(NAME, far_apart(), backend), expected)


@pytest.mark.parametrize("backend", FAST)
def test_without_a_gradient(backend: str) -> None:
    """The loss, or the loss with its insertions, are the same without what the gradient needs."""
    shapes = cases.random_batch(T=20, B=4, V=6, U=9), cases.batch_of([torch.zeros(0, 3)], [[]]), far_apart()
    for batch in shapes:
        expected = run(NAME, batch, "torch")

        @torch.no_grad()
        def loss(batch: cases.Batch = batch, **options: bool) -> Any:
            return merged_loss(
                batch.logits, batch.targets, batch.input_lengths, batch.target_lengths, penalty=batch.penalty,
                reduction="none", backend=backend, **options,
            )  # fmt: skip

        torch.testing.assert_close(loss(), expected.loss, **cases.TOLERANCES[torch.float64])
        torch.testing.assert_close(loss(return_inserted=True), expected[::2], **cases.TOLERANCES[torch.float64])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [-690, -705, -715, -725, -735, -745, -800])
def test_all_that_is_left_of_a_frame_is_hardly_a_number(far: int, dtype: torch.dtype) -> None:
    """Both frames must go to labels, and the first shows its own at e^far: sums without logarithms come to less than 1e-300."""
    logits = torch.zeros(2, 3)
    logits[0, 1], logits[1, 2] = far, 30
    batch = cases.batch_of([logits], [[1, 2]])
    assert_same(run(NAME, batch, "numba", dtype), run(NAME, batch, "torch"), dtype)


@pytest.mark.parametrize("penalty", [-600.0, -700.0, -750.0, -1500.0])
def test_a_price_that_nobody_pays_closes_no_gap(penalty: float) -> None:
    logits = torch.tensor([[-400.0, 0.0, 0.0]]).repeat(4, 1)
    batch = cases.batch_of([logits], [[]], penalty)
    result = run(NAME, batch, "numba")
    assert_same(result, run(NAME, batch, "torch"))
    assert result.inserted is not None
    assert result.inserted[0, 0] == pytest.approx(1)  # four blanks come to e^-1600


@pytest.mark.parametrize("backend", FAST)
def test_nan_among_too_few_frames(backend: str) -> None:
    logits = torch.full((1, 1, 3), math.nan)
    loss = merged_loss(logits, torch.tensor([[1, 1]]), (1,), (2,), backend=backend, zero_infinity=True)
    assert loss.isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", FAST)
def test_half_precisions(backend: str, dtype: torch.dtype) -> None:
    batch = cases.random_batch(T=40, B=3, V=20, U=10, extra=0)
    logits = batch.logits.nan_to_num(nan=0.0).to(dtype)
    arguments = batch.targets, batch.input_lengths, batch.target_lengths
    gradients = []
    for x in (logits.double(), logits):
        x = x.detach().requires_grad_()
        loss = merged_loss(x, *arguments, backend=backend)
        loss.backward()
        gradients.append((loss.detach().double(), x.grad.double()))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("inserted", [False, True])
def test_compiled(inserted: bool) -> None:
    batch = cases.random_batch(T=12, B=2, V=5, U=3, extra=0)
    targets, results = batch.targets, []

    def loss(x: torch.Tensor) -> Any:
        return merged_loss(x, targets, batch.input_lengths, batch.target_lengths, return_inserted=inserted)

    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        logits = batch.logits.nan_to_num(nan=0.0).requires_grad_()
        value, counts = function(logits) if inserted else (function(logits), torch.zeros(0))
        results.append((value.detach(), counts, *torch.autograd.grad(value, logits)))
    torch.testing.assert_close(results[1], results[0])
