"""Every form in which logits, targets, lengths and penalties may come gives the same loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import cases
from tests.cases import BACKENDS, CRITERIA, FAST, TOLERANCES, assert_same, loss_of, published_loss
from torch import Tensor

import starseq

T, B, V, U = 9, 3, 6, 4
TARGETS = torch.tensor([[1, 2, 2, 5], [3, 0, 0, 0], [4, 5, 1, 0]])
LENGTHS = ((9, 7, 8), (4, 1, 3))


def logits(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(T, B, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


def value_and_grad(
    x: Tensor, *arguments: Any, criterion: str = "published_stc", **options: Any
) -> tuple[Tensor, Tensor]:
    """The losses (B,) and their gradient, of x's shape."""
    x = x.detach().requires_grad_() if x.is_leaf or not x.requires_grad else x
    loss = loss_of(criterion)(x, *arguments, **{"reduction": "none"} | options)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]


# --- logits -----------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "batch first in memory": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "vocabulary first in memory": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second frame": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "every second utterance": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "every second token": lambda x: x.repeat_interleave(2, dim=2)[..., ::2],
    "inside a larger tensor": lambda x: torch.nn.functional.pad(x, (2, 3, 1, 1, 4, 2), value=math.nan)[
        4:-2, 1:-1, 2:-3
    ],
}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides(backend: str, layout: str, criterion: str) -> None:
    x = LAYOUTS[layout](logits().to(BACKENDS[backend]))
    options = {"criterion": criterion, "backend": backend}
    expected = value_and_grad(logits(), TARGETS, *LENGTHS, criterion=criterion, backend="torch")
    torch.testing.assert_close(value_and_grad(x, TARGETS, *LENGTHS, **options), expected)
    first = value_and_grad(x.transpose(0, 1), TARGETS, *LENGTHS, batch_first=True, **options)
    torch.testing.assert_close((first[0], first[1].transpose(0, 1)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_expanded_logits(backend: str) -> None:
    """One utterance's logits for three targets: the gradient sums up."""
    x = logits()[:, :1].requires_grad_()
    loss = published_loss(x.expand(T, B, V), TARGETS, *LENGTHS, reduction="sum", backend=backend)
    copies = x.detach().repeat(1, B, 1)
    expected, grad = value_and_grad(copies, TARGETS, *LENGTHS, backend="torch")
    torch.testing.assert_close(loss.detach(), expected.sum())
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], grad.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("backend", FAST)
def test_expanded_over_frames_and_tokens(backend: str) -> None:
    same = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    for x in (same.expand(5, 2, 3), same[:, None, None].expand(3, 2, 4), torch.tensor(0.5).double().expand(5, 2, 3)):
        arguments = (torch.tensor([[1, 1], [2, 1]]), (len(x),) * 2, (2, 1))
        ours = value_and_grad(x, *arguments, backend=backend)
        torch.testing.assert_close(ours, value_and_grad(x.contiguous(), *arguments, backend="torch"))


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_unbatched_and_batched_equal_single(backend: str, criterion: str) -> None:
    losses, grads = value_and_grad(logits(), TARGETS, *LENGTHS, criterion=criterion, backend=backend)
    for b in range(B):
        frames, labels = LENGTHS[0][b], LENGTHS[1][b]
        alone = (logits()[:frames, b], TARGETS[b, :labels], (frames,), (labels,))
        loss, grad = value_and_grad(*alone, criterion=criterion, backend=backend)
        assert loss.shape == ()
        torch.testing.assert_close(loss, losses[b])
        torch.testing.assert_close(grad, grads[:frames, b])
        scalars = (*alone[:2], torch.tensor(frames), torch.tensor(labels))
        assert value_and_grad(*scalars, criterion=criterion, backend=backend)[0] == loss


@pytest.mark.parametrize("backend", FAST)
def test_unbatched_penalty_and_insertions(backend: str) -> None:
    penalty = torch.tensor([-0.1, -2.0, -math.inf, -0.5, 0.0], dtype=torch.float64)
    options = {"reduction": "none", "return_inserted": True, "backend": backend}
    loss, inserted = published_loss(logits()[:, 0], TARGETS[0], (9,), (4,), penalty=penalty, **options)
    batched = published_loss(logits()[:, :1], TARGETS[:1], (9,), (4,), penalty=penalty[None], **options)
    assert inserted.shape == (5,)
    torch.testing.assert_close((loss[None], inserted[None]), batched)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probabilities_are_logits_too(backend: str, criterion: str) -> None:
    options = {"criterion": criterion, "backend": backend}
    losses, _ = value_and_grad(logits(), TARGETS, *LENGTHS, **options)
    log_probs = logits().log_softmax(-1)
    for normalized in (True, False):
        torch.testing.assert_close(
            value_and_grad(log_probs, TARGETS, *LENGTHS, normalized=normalized, **options)[0], losses
        )
    assert not torch.allclose(value_and_grad(logits(), TARGETS, *LENGTHS, normalized=False, **options)[0], losses)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_dtypes(backend: str, dtype: torch.dtype, criterion: str) -> None:
    """Sums are float32 or better: against the float64 truth on the same rounded logits only the result is rounded."""
    x = logits(dtype)
    loss, grad = value_and_grad(x, TARGETS, *LENGTHS, criterion=criterion, backend=backend)
    truth = value_and_grad(x.double(), TARGETS, *LENGTHS, criterion=criterion, backend="wfst")
    single = torch.promote_types(dtype, torch.float32)
    assert (loss.dtype, grad.dtype) == (single, dtype)
    torch.testing.assert_close(loss.double(), truth[0], **TOLERANCES[single])
    rounding = TOLERANCES[single] if dtype == single else {"rtol": torch.finfo(dtype).eps, "atol": 1e-7}
    torch.testing.assert_close(grad.double(), truth[1], **rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", FAST)
def test_error_budget(backend: str, dtype: torch.dtype) -> None:
    """Never worse than the plain float32 way through log_softmax and torch's CTC, both against float64."""
    batch = cases.random_batch(T=200, B=3, V=50, U=40, extra=0, spread=3.0)
    x, targets = batch.logits.nan_to_num(nan=0.0).to(dtype), batch.targets.where(batch.targets < 50, 1)
    lengths = (batch.input_lengths, batch.target_lengths)

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        wide = x if x.dtype == torch.float64 else x.float()
        loss = torch.nn.functional.ctc_loss(wide.log_softmax(-1), targets, *lengths, reduction="none")
        return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    ours, theirs = value_and_grad(x, targets, *lengths, criterion="ctc", backend=backend), plain(x)
    truth = plain(x.double())
    for mine, naive, exact in zip(ours, theirs, truth, strict=True):
        error, budget = ((y.double() - exact).abs().max().item() for y in (mine, naive))
        assert error <= budget + 1e-6 * exact.abs().max().item()


# --- targets and lengths ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_integer_types(backend: str, dtype: torch.dtype) -> None:
    expected = value_and_grad(logits(), TARGETS, *LENGTHS, backend=backend)
    lengths = [torch.tensor(x, dtype=dtype) for x in LENGTHS]
    for targets in (TARGETS, torch.cat([TARGETS[b, :n] for b, n in enumerate(LENGTHS[1])])):
        torch.testing.assert_close(value_and_grad(logits(), targets.to(dtype), *lengths, backend=backend), expected)


@pytest.mark.parametrize("form", [tuple, list, torch.tensor, lambda x: torch.tensor(x)[:, None]])
def test_forms_of_lengths(form: Callable[[tuple[int, ...]], Any]) -> None:
    expected = value_and_grad(logits(), TARGETS, *LENGTHS)
    torch.testing.assert_close(value_and_grad(logits(), TARGETS, *(form(x) for x in LENGTHS)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_target_length(backend: str) -> None:
    """The width of concatenated targets, or of what is read of padded ones. Larger than needed is fine."""
    expected = value_and_grad(logits(), TARGETS, *LENGTHS, backend=backend)
    concatenated = torch.cat([TARGETS[b, :n] for b, n in enumerate(LENGTHS[1])])
    for longest in (4, 7):
        for targets in (concatenated, torch.nn.functional.pad(TARGETS, (0, 9), value=cases.POISON)):
            result = value_and_grad(logits(), targets, *LENGTHS, max_target_length=longest, backend=backend)
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_labels_at_all(backend: str, criterion: str) -> None:
    x = logits()
    for targets in (torch.empty(B, 0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)):
        loss, grad = value_and_grad(x, targets, (T,) * B, (0,) * B, criterion=criterion, backend=backend)
        P = x.softmax(-1)
        stay = P[..., 0] + (0.5 * P[..., 1:].sum(-1) if criterion == "published_stc" else 0)
        torch.testing.assert_close(loss, -stay.log().sum(0))
        assert grad.any()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch(backend: str, criterion: str) -> None:
    """No utterances: no losses, whose sum is 0. Their mean is NaN, as torch's mean of nothing is."""
    x = torch.zeros(5, 0, 3, requires_grad=True)
    for targets in (torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)):
        arguments = (x, targets, (), ())
        loss = loss_of(criterion)(*arguments, reduction="none", backend=backend)
        assert loss.shape == (0,)
        loss.sum().backward()
        assert x.grad.shape == x.shape
        assert loss_of(criterion)(*arguments, reduction="sum", backend=backend) == 0
        assert loss_of(criterion)(*arguments, reduction="mean", backend=backend).isnan()


# --- penalty ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", BACKENDS)
def test_forms_of_the_penalty(backend: str, dtype: torch.dtype) -> None:
    x = logits(dtype)
    expected = value_and_grad(x, TARGETS, *LENGTHS, penalty=-0.5, backend=backend)
    for shape in [(), (1,) * 0, (B,), (B, 1), (B, U + 1)]:
        penalty = torch.full(shape, -0.5, dtype=dtype)
        torch.testing.assert_close(value_and_grad(x, TARGETS, *LENGTHS, penalty=penalty, backend=backend), expected)
    whole = value_and_grad(x, TARGETS, *LENGTHS, penalty=-1, backend=backend)
    torch.testing.assert_close(whole, value_and_grad(x, TARGETS, *LENGTHS, penalty=torch.tensor(-1), backend=backend))


def test_the_function_has_no_penalty_of_its_own() -> None:
    with pytest.raises(TypeError, match="penalty"):
        starseq.stc_loss(logits(), TARGETS, *LENGTHS)  # type: ignore[call-arg]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_penalty_for_each_utterance_or_gap(backend: str) -> None:
    per_utterance = torch.tensor([-0.1, -1.0, -math.inf], dtype=torch.float64)
    losses, _ = value_and_grad(logits(), TARGETS, *LENGTHS, penalty=per_utterance, backend=backend)
    for b, penalty in enumerate(per_utterance.tolist()):
        alone = value_and_grad(logits(), TARGETS, *LENGTHS, penalty=penalty, backend=backend)[0]
        torch.testing.assert_close(losses[b], alone[b])


@pytest.mark.parametrize("shape", [(), (B,), (B, U + 1)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_penalty_that_learns(backend: str, shape: tuple[int, ...]) -> None:
    """Its gradient is minus the insertions, alone or beside that of the logits, in its own shape and dtype."""
    for x in (logits(), logits().requires_grad_()):
        penalty = torch.full(shape, -0.5, dtype=torch.float32, requires_grad=True)
        loss, inserted = published_loss(
            x, TARGETS, *LENGTHS, penalty=penalty, reduction="sum", return_inserted=True, backend=backend
        )
        loss.backward()
        dims = tuple(range(2))[len(shape) :]
        torch.testing.assert_close(-penalty.grad, (inserted.sum(dim=dims) if dims else inserted).float())
        assert penalty.grad.any()


# --- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_reductions(backend: str, criterion: str) -> None:
    """As torch.nn.CTCLoss: the mean is over utterances, each divided by its labels, at least 1."""
    lengths = (LENGTHS[0], (4, 0, 3))
    each, grads = value_and_grad(logits(), TARGETS, *lengths, criterion=criterion, backend=backend)
    factors = {"none": torch.ones(3), "sum": torch.ones(3), "mean": torch.tensor([1 / 4, 1 / 1, 1 / 3]) / 3}
    for reduction, factor in factors.items():
        options = {"reduction": reduction, "criterion": criterion, "backend": backend}
        loss, grad = value_and_grad(logits(), TARGETS, *lengths, **options)
        torch.testing.assert_close(loss.sum(), (each * factor).sum())
        torch.testing.assert_close(grad, grads * factor[:, None])


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", FAST)
def test_an_utterance_does_not_see_its_batch(backend: str, criterion: str) -> None:
    """Bit for bit: alone, with others, in another order."""
    batch = cases.random_batch(T=40, B=4, V=20, U=12)
    together = cases.run(criterion, batch, backend, torch.float32)
    for b in range(4):
        alone = cases.run(criterion, cases.select(batch, b), backend, torch.float32)
        if backend == "torch":  # a matrix product may sum up in another order
            assert_same(alone, cases.Result(together.loss[b : b + 1], together.grad[:, b : b + 1], None), torch.float32)
        else:
            assert torch.equal(alone.loss[0], together.loss[b])
            assert torch.equal(alone.grad[:, 0], together.grad[:, b])
