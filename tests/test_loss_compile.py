"""torch.compile without a graph break, and the custom operators that make it possible."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from tests import cases
from tests.cases import CRITERIA, FAST, STARRED, loss_of, published_loss
from torch import Tensor

import starseq
from starseq.op import Options, compiled

COMPILERS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")),
]
TARGETS, LENGTHS = torch.tensor([[1, 2, 2], [3, 0, 0]]), (torch.tensor([7, 6]), torch.tensor([3, 1]))


def logits(seed: int = 0) -> Tensor:
    return torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def value_and_grad(function: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    loss = function(x, *arguments)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("criterion", STARRED)
def test_value_and_gradient(criterion: str, backend: str, compiler: str) -> None:
    def loss(x: Tensor, scale: Tensor) -> Tensor:
        return loss_of(criterion)(x * scale, TARGETS, *LENGTHS, penalty=-0.5, backend=backend).exp()

    compiled = torch.compile(loss, fullgraph=True, backend=compiler)
    for seed in range(2):
        arguments = (logits(seed), torch.tensor(1.5))
        torch.testing.assert_close(value_and_grad(compiled, *arguments), value_and_grad(loss, *arguments))


@pytest.mark.parametrize("criterion", STARRED)
def test_a_number_that_changes_is_no_constant(criterion: str) -> None:
    def loss(x: Tensor, value: float) -> Tensor:
        return loss_of(criterion)(x, TARGETS, *LENGTHS, penalty=value)

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    for step in range(10):
        value = -0.05 - 0.1 * step
        torch.testing.assert_close(compiled(logits(step), value), loss(logits(step), value))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("criterion", [*CRITERIA, "stc"])
def test_criteria_and_concatenated_targets(criterion: str) -> None:
    targets = torch.tensor([1, 2, 2, 3])

    def loss(x: Tensor) -> Tensor:
        return loss_of(criterion)(x, targets, *LENGTHS, max_target_length=3, reduction="sum")

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value_and_grad(compiled, logits()), value_and_grad(loss, logits()))


def test_the_penalty_learns_and_insertions_come_out() -> None:
    def both(x: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
        return published_loss(x, TARGETS, *LENGTHS, penalty=penalty, return_inserted=True)

    results = []
    for function in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        x, penalty = logits(), torch.full((2, 4), -0.5, requires_grad=True)
        loss, inserted = function(x, penalty)
        loss.backward()
        results.append((loss.detach(), inserted, x.grad, penalty.grad))
    torch.testing.assert_close(*results)
    assert results[0][3].any()


def test_a_schedule_that_advances_does_not_recompile() -> None:
    criterion, penalty = starseq.STCLoss(), starseq.InsertionPenalty(p0=0.1, p_max=0.9, half_life=1)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def step(x: Tensor) -> Tensor:
        return criterion(x, TARGETS, *LENGTHS, penalty=penalty())

    losses = []
    for _ in range(4):
        losses.append(step(logits()).item())
        assert losses[-1] == pytest.approx(criterion(logits(), TARGETS, *LENGTHS, penalty=penalty()).item())
        penalty.advance()
    assert counter.frame_count == 1
    assert losses == sorted(losses, reverse=True)  # a star that costs less
    assert losses[-1] < losses[0]


def test_dynamic_shapes_compile_at_most_twice() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def loss(x: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor) -> Tensor:
        return published_loss(x, targets, inputs, lengths)

    for T, U in ((7, 3), (9, 4), (13, 6)):
        x = torch.randn(T, 2, 5, generator=torch.Generator().manual_seed(T)).requires_grad_()
        arguments = (torch.full((2, U), 3), torch.tensor([T, T - 1]), torch.tensor([U, U - 1]))
        eager = value_and_grad(published_loss, x, *arguments)
        torch.testing.assert_close(value_and_grad(loss, x, *arguments), eager)
    assert counter.frame_count <= 2  # three shapes


def test_bad_values_raise_in_compiled_code_too() -> None:
    compiled = torch.compile(published_loss, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"targets: label 9 at \(utterance, position\) \(0, 1\) is outside 0..4"):
        compiled(logits(), torch.tensor([[1, 9, 2], [3, 0, 0]]), *LENGTHS)


@pytest.mark.parametrize("criterion", [*CRITERIA, "stc"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", FAST)
def test_custom_operators(backend: str, dtype: torch.dtype, criterion: str) -> None:
    """The fake implementations agree with the real ones in shapes, dtypes and layouts."""
    device = cases.BACKENDS[backend]
    x = logits().detach().transpose(0, 1).to(device, dtype)  # (B, T, V), as loss.py passes it
    penalty = torch.full((2, 4), -0.5, device=device) if criterion in STARRED else None
    tensors = (x, TARGETS.to(device), *(n.to(device) for n in LENGTHS), penalty)
    options = Options(
        criterion.removeprefix("published_"),
        criterion != "published_stc",
        batch_first=True,
        validate=True,
        backend=backend,
    )
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for inserted in {False, criterion in STARRED}:
        for differentiable in (False, True):
            reduction = "none" if inserted else "mean"
            values = options._replace(reduction=reduction, inserted=inserted, differentiable=differentiable)
            torch.library.opcheck(compiled.loss_op, (*tensors, *values), test_utils=checks)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_s_own_gradient_may_be_infinite(reduction: str) -> None:
    """Where an utterance has no alignment it still has no gradient."""
    targets, lengths = torch.tensor([[1, 2, 2], [3, 3, 3]]), (torch.tensor([7, 2]), torch.tensor([3, 3]))
    compiled_loss = torch.compile(published_loss, fullgraph=True, backend="aot_eager")
    x = logits()
    loss = compiled_loss(x, targets, *lengths, zero_infinity=True, reduction=reduction)
    (grad,) = torch.autograd.grad(loss, x, torch.full_like(loss, torch.inf))
    assert not grad[:, 1].any()
    assert not grad[:, 0].isfinite().any()
