"""Every item of numerics that has bitten others, each by itself, with the answer worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests import cases
from tests.cases import BACKENDS, CLOSED, CRITERIA, HALF, RUNGS, TOLERANCES, assert_same, batch_of, run

INF = math.inf
P = math.exp(HALF)


def close(ours: object, expected: object, dtype: torch.dtype) -> None:
    torch.testing.assert_close(torch.as_tensor(ours), torch.tensor(expected, dtype=torch.float64), **TOLERANCES[dtype])


# --- the star without the label that holds nearly all of it -----------------------------------------------------------


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize("L", [30.0, 60.0, 90.0, 1e4])
def test_star_without_a_label_that_dominates(backend: str, dtype: torch.dtype, L: float) -> None:
    r"""Label 1 holds all but 2 e^-L of each of three frames, and a token after it costs e^-L. The label is matched in

        frame 1, then two insertions    e^-2L
        frame 2: star\1, then one       2 e^-L e^-L
        frame 3: star\1 twice           4 e^-2L

    so Z = 7 e^-2L. Star minus label would give 0 for star\1, and Z = e^-2L. In frame 2 the label is an insertion with
    1/7, through the star behind it, while the star that leaves it out weighs e^L as much: total minus own would give 0.
    """
    batch = batch_of([[[-INF, L, 0.0, 0.0]] * 3], [[1]], [[0.0, -L]])
    result = run("published_stc", batch, backend, dtype)
    close(result.loss, [2 * L - math.log(7)], dtype)
    expected = [
        [0, 1 - 1 / 7, -3 / 7, -3 / 7],
        [0, 1 - (1 + 2) / 7, -2 / 7, -2 / 7],
        [0, 1 - (1 + 2 + 4) / 7, 0, 0],
    ]
    close(result.grad[:3, 0], expected, dtype)
    close(result.inserted[0, :2], [(2 + 2 * 4) / 7, (2 * 1 + 2) / 7], dtype)


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize("size", [90.0, 1e4])
def test_a_posterior_of_one_through_an_arc_of_e_to_the_minus(backend: str, dtype: torch.dtype, size: float) -> None:
    """The one alignment is 1, blank, 2, and the blank has e^-size. Dividing by it would overflow."""
    frames = [[-INF, 0.0, -INF, -INF], [0.0, -INF, -INF, size], [-INF, -INF, 0.0, -INF]]
    result = run("published_stc", batch_of([frames], [[1, 2]], CLOSED), backend, dtype)
    close(result.loss, [size], dtype)
    close(result.grad[:3, 0], [[0, 0, 0, 0], [-1, 0, 0, 1], [0, 0, 0, 0]], dtype)


# --- padding and NaN --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_padding_is_not_read(criterion: str, backend: str, dtype: torch.dtype) -> None:
    """NaN frames, absurd labels and NaN penalties past the lengths change no bit, and get a gradient of exactly 0."""
    batch = cases.random_batch(T=7, B=3, V=4, U=3, extra=2)
    tame = cases.replace(
        batch, logits=batch.logits.nan_to_num(nan=0.0), targets=batch.targets.where(batch.targets != cases.POISON, 1),
        penalty=batch.penalty.nan_to_num(nan=-1.0),
    )  # fmt: skip
    poisoned, clean = run(criterion, batch, backend, dtype), run(criterion, tame, backend, dtype)
    assert torch.equal(poisoned.loss, clean.loss)
    assert torch.equal(poisoned.grad, clean.grad)
    assert_same(poisoned, run(criterion, batch, "wfst"), dtype)  # which never sees the padding
    assert poisoned.loss.isfinite().all()
    for b, (T, U) in enumerate(zip(batch.input_lengths, batch.target_lengths, strict=True)):
        assert not poisoned.grad[T:, b].any()
        assert poisoned.grad[:T, b].any()
        if poisoned.inserted is not None:
            assert not poisoned.inserted[b, U + 1 :].any()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("token", [0, 1, 3], ids=["blank", "label", "rest"])
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_nan_inside_stays_in_its_utterance(criterion: str, token: int, backend: str, dtype: torch.dtype) -> None:
    batch = cases.random_batch(T=6, B=3, V=5, U=2)
    whole = run(criterion, batch, backend, dtype)
    logits = batch.logits.clone()
    logits[2, 1, token] = math.nan
    batch = cases.replace(batch, logits=logits, targets=batch.targets.clone())
    batch.targets[1, 0] = 1
    result = run(criterion, batch, backend, dtype)
    assert result.loss.isnan().tolist() == [False, True, False]
    assert result.grad[: batch.input_lengths[1], 1].isnan().any()
    assert torch.equal(result.grad[:, [0, 2]], whole.grad[:, [0, 2]])


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("vocabulary", [4, 1100])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_anywhere_in_the_star_is_seen(backend: str, vocabulary: int, normalized: bool) -> None:
    if backend == "wfst" and vocabulary > 100:
        pytest.skip("too slow for the reference")
    for token in {2, vocabulary // 2, vocabulary - 1}:
        frames = torch.zeros(3, vocabulary)
        frames[1, token] = math.nan
        assert (
            run("published_stc", batch_of([frames], [[1]], normalized=normalized), backend, torch.float32)
            .loss.isnan()
            .all()
        )


# --- infinities, certainty, and the smallest shapes -------------------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_a_frame_of_all_minus_inf(criterion: str, normalized: bool, backend: str, dtype: torch.dtype) -> None:
    frames = torch.zeros(3, 3)
    frames[1] = -INF
    batch = batch_of([frames, torch.zeros(3, 3)], [[1], [1]], normalized=normalized)
    result = run(criterion, batch, backend, dtype)
    assert result.loss[0] == INF
    assert result.loss[1].isfinite()
    assert not result.grad[:, 0].any()
    if result.inserted is not None:
        assert not result.inserted[0].any()


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_a_label_of_probability_one(backend: str, dtype: torch.dtype) -> None:
    """The frames say 1 and 2, for certain."""
    frames = [[-INF, 3.0, -INF], [-INF, -INF, 3.0]]
    for criterion in CRITERIA:
        result = run(criterion, batch_of([frames], [[1, 2]]), backend, dtype)
        assert result.loss.item() == pytest.approx(0.0, abs=1e-7)
        close(result.grad[:2], [[[0, 0, 0]], [[0, 0, 0]]], dtype)
    result = run("published_stc", batch_of([frames], [[2]]), backend, dtype)  # the 1 is inserted
    close(result.loss, [-HALF], dtype)
    close(result.inserted[0, :2], [1, 0], dtype)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_a_label_of_probability_zero(criterion: str, backend: str, dtype: torch.dtype) -> None:
    frames = torch.zeros(4, 3)
    frames[:, 2] = -INF
    result = run(criterion, batch_of([frames], [[1, 2]]), backend, dtype)
    assert result.loss == INF
    assert not result.grad.any()


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_smallest_shapes(backend: str, dtype: torch.dtype) -> None:
    """T = 0 and U = 0, T = 0, U = 0, T = U, T < U, in one batch over b, 1, 2 with probability 1/3 each and p = 1/2."""
    third = torch.zeros(2, 3)
    batch = batch_of([third[:0], third[:0], third, third, third[:1]], [[], [1], [], [1, 2], [1, 1]])
    result = run("published_stc", batch, backend, dtype)
    stay = (1 + P * 2) / 3
    close(result.loss, [0, INF, -2 * math.log(stay), 2 * math.log(3), INF], dtype)
    close(result.inserted[:, 0], [0, 0, 2 * (2 * P / 3) / stay, 0, 0], dtype)
    assert not result.grad[:, [0, 1, 4]].any()


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize(("T", "feasible"), [(1, [False, False]), (2, [True, False]), (3, [True, True])])
def test_repeats_need_a_blank_in_ctc_alone(backend: str, dtype: torch.dtype, T: int, feasible: list[bool]) -> None:
    for criterion, expected in zip(("published_stc", "ctc"), feasible, strict=True):
        result = run(criterion, batch_of([torch.zeros(T, 2)], [[1, 1]]), backend, dtype)
        assert result.loss.isfinite().item() == expected
        assert result.grad.any() == expected


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_lambda_zero(backend: str, dtype: torch.dtype) -> None:
    """At p = 1 a star is as good as a blank: Z is the probability that 1 occurs in one of three frames."""
    result = run("published_stc", batch_of([torch.zeros(3, 4)], [[1]], 0.0), backend, dtype)
    close(result.loss, [-math.log(1 - 0.75**3)], dtype)
    nothing = run("published_stc", batch_of([torch.zeros(3, 4)], [[]], 0.0), backend, dtype)
    close(nothing.loss, [0], dtype)


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_lambda_minus_inf_is_selfless_ctc(backend: str, dtype: torch.dtype) -> None:
    batch = cases.random_batch(T=8, B=3, V=4, U=4)
    closed = cases.replace(batch, penalty=torch.full_like(batch.penalty, CLOSED))
    result, selfless = run("published_stc", closed, backend, dtype), run("selfless_ctc", batch, backend, dtype)
    assert_same(result, selfless, dtype)
    assert not result.inserted.any()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_infeasible_is_inf_and_zero_infinity_is_zero(criterion: str, reduction: str, backend: str) -> None:
    logits = torch.randn(3, 2, 4, requires_grad=True)
    targets, lengths = torch.tensor([[1, 2, 3, 1], [1, 2, 0, 0]]), ((3, 3), (4, 2))
    loss, zeroed, alone = (
        cases.loss_of(criterion)(x, y, *n, reduction=reduction, zero_infinity=zero, backend=backend)
        for x, y, n, zero in (
            (logits, targets, lengths, False),
            (logits, targets, lengths, True),
            (logits[:, 1:], targets[1:], ((3,), (2,)), False),
        )
    )
    grads = [torch.autograd.grad(x.sum(), logits)[0] for x in (loss, zeroed, alone)]
    share = 0.5 if reduction == "mean" else 1.0
    expected = torch.tensor([0.0, alone.item()]) if reduction == "none" else share * alone.detach()
    torch.testing.assert_close(zeroed.detach(), expected.reshape(zeroed.shape))
    assert (loss == INF).any()
    for grad in grads[:2]:
        assert not grad[:, 0].any()
        torch.testing.assert_close(grad[:, 1], share * grads[2][:, 1])


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
def test_huge_logits(criterion: str, backend: str, dtype: torch.dtype) -> None:
    """+-1e4: one hot frames, right and wrong. Shifting all logits of a frame by 1e4 changes nothing."""
    signs = torch.tensor([[-1.0, 1, -1, -1], [1, -1, -1, -1], [-1, -1, -1, 1], [-1, -1, 1, -1]])
    batch = batch_of([1e4 * signs], [[1, 2]])
    result = run(criterion, batch, backend, dtype)
    assert_same(result, run(criterion, batch, "wfst"), dtype)
    # Without a star the third frame's 3 must be misread: as blank, or, where repeats merge, as the first of two 2s.
    right = {"published_stc": -HALF, "ctc": 2e4 - math.log(2), "selfless_ctc": 2e4}
    close(result.loss, [right[criterion]], dtype)
    shifted = batch_of([1e4 * signs + 1e4], [[1, 2]])
    assert_same(run(criterion, shifted, backend, dtype), result, dtype)
