"""The fused operation on the CPU: the numbers of plain torch, whatever the threads, the padding, the ties and the scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from tests import cases
from tests.cases import CRITERIA, TOLERANCES, assert_same, published_loss

from starseq import op
from starseq.lattice import threads
from starseq.op import fused_numba, lasting_numba, readable
from starseq.op.known_numba import layout, scaled_of
from starseq.op.ways import way_of

SHAPES = [{"T": 40, "B": 5, "V": 33, "U": 14}, {"T": 9, "B": 3, "V": 4, "U": 3}, {"T": 50, "B": 2, "V": 70, "U": 20}]


@pytest.fixture(params=["ahead", "later"])
def _when(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of small batches are made with the loss, others in the backward pass."""
    if request.param == "later":
        monkeypatch.setattr(fused_numba, "_SMALL", 0)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_is_what_runs_on_the_cpu() -> None:
    ways = [
        way_of(op.Options("stc", merge_repeats, backend=name))
        for name in ("numba", "torch")
        for merge_repeats in (False, True)
    ]
    assert ways == [fused_numba, lasting_numba, readable, readable]


@pytest.mark.usefixtures("_when")
@pytest.mark.parametrize("blank", [0, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_ragged_and_poisoned(criterion: str, shape: dict[str, int], blank: int) -> None:
    """More states and tokens than lanes, one more and fewer; what lies past the lengths is NaN."""
    batch = cases.random_batch(**shape, blank=blank, extra=3)
    expected = cases.run(criterion, batch, "torch", torch.float64)
    for dtype in TOLERANCES:
        assert_same(cases.run(criterion, batch, "numba", dtype), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_ties(criterion: str, dtype: torch.dtype) -> None:
    """The largest score several times over, in labels, in the rest, and as blank: one of them is left out, not all."""
    for seed in range(6):
        batch = cases.random_batch(T=30, B=4, V=20, U=8, seed=seed)
        batch = replace(batch, logits=batch.logits.clamp(-1, 0.5).mul(2).round() * (1 + 20 * (seed % 2)))
        assert_same(
            cases.run(criterion, batch, "numba", dtype), cases.run(criterion, batch, "torch", torch.float64), dtype
        )


@pytest.mark.parametrize("shift", [-500.0, 90.0, 500.0])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_scores_of_any_size(criterion: str, shift: float) -> None:
    """Taken as they are, scores are no probabilities: neither e^500 nor e^-500 is a float32."""
    batch = cases.random_batch(T=12, B=3, V=9, U=4, normalized=False)
    batch = replace(batch, logits=(batch.logits + shift).float().double())
    expected = cases.run(criterion, batch, "torch", torch.float64)
    for dtype in TOLERANCES:
        assert_same(cases.run(criterion, batch, "numba", dtype), expected, dtype)


@pytest.mark.usefixtures("_when")
@pytest.mark.parametrize("far", [(), (1, 4)])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_bit_for_bit_on_any_number_of_threads_and_alone(
    criterion: str, far: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """far: these utterances are summed with logarithms, the others without."""
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    batch = cases.random_batch(T=37, B=5, V=21, U=9)
    for b in far:
        batch.logits[:, b, batch.targets[b, 0]] -= 1024
    assert watched(criterion, batch).scaled == [b not in far for b in range(5)]
    torch.set_num_threads(1)
    first = cases.run(criterion, batch, "numba", torch.float32)
    for count in (2, 3, 7):
        torch.set_num_threads(count)
        for ours, theirs in zip(cases.run(criterion, batch, "numba", torch.float32), first, strict=True):
            assert ours is theirs is None or torch.equal(ours, theirs)
    for b in range(5):
        alone = cases.run(criterion, cases.select(batch, b), "numba", torch.float32)
        assert torch.equal(alone.loss[0], first.loss[b])
        assert torch.equal(alone.grad[:, 0], first.grad[:, b])


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("infeasible", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("far", [False, True])
def test_reductions(reduction: str, zero_infinity: bool, infeasible: bool, dtype: torch.dtype, far: bool) -> None:
    """far: the first utterance has a label of e^-1024, and so is summed with logarithms."""
    logits = torch.randn(9, 3, 5, generator=torch.Generator().manual_seed(0))
    logits[:, 0, 4] -= 1024 * far
    targets, lengths = torch.tensor([[1, 2, 3, 4], [2, 2, 1, 1], [3, 0, 0, 0]]), (9, 3 if infeasible else 9, 9)
    results = []
    for backend in ("numba", "torch"):
        x = logits.to(dtype if backend == "numba" else torch.float64, copy=True).requires_grad_()
        penalty = torch.full((3,), -0.5, dtype=torch.float64, requires_grad=True)
        loss = published_loss(
            x,
            targets,
            lengths,
            (4, 4, 0),
            penalty=penalty,
            reduction=reduction,
            zero_infinity=zero_infinity,
            backend=backend,
        )
        scale = torch.arange(1.0, 4.0, dtype=torch.float64) if reduction == "none" else torch.tensor(2.5)
        loss.backward(scale.to(loss.dtype))
        assert x.grad is not None
        results.append((loss.detach().double(), x.grad.double(), penalty.grad))
    torch.testing.assert_close(*results, **TOLERANCES[dtype])


@pytest.mark.parametrize("criterion", CRITERIA)
def test_few_large_utterances_are_split_by_frames(criterion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = cases.random_batch(T=20, B=2, V=50, U=5)
    here = cases.run(criterion, batch, "numba", torch.float32)
    monkeypatch.setattr(fused_numba, "_MUCH", 0)
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    torch.set_num_threads(2)
    assert fused_numba._weigh in watched(criterion, batch).kernels
    for ours, theirs in zip(cases.run(criterion, batch, "numba", torch.float32), here, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)
    batch.logits[:, 0, batch.targets[0, 0]] = -torch.inf  # an utterance of which a frame is no good
    expected = cases.run(criterion, batch, "torch")
    assert_same(cases.run(criterion, batch, "numba", torch.float32), expected, torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_few_large_utterances_with_one_penalty_for_all_gaps(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a penalty is a view of one number, with strides of 0."""
    logits = torch.randn(9, 3, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    others = torch.tensor([[1, 2], [3, 4], [1, 1]]), torch.tensor([9, 8, 7]), torch.tensor([2, 2, 1])
    monkeypatch.setattr(fused_numba, "_MUCH", 0)
    torch.set_num_threads(2)
    results = []
    for backend in ("numba", "torch"):
        x = logits.clone().requires_grad_()
        loss = published_loss(x, *others, penalty=-0.3, backend=backend)
        loss.backward()
        results.append((loss.detach(), x.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_gradient_ahead_is_that_of_the_backward_pass(
    criterion: str, reduction: str, batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the loss is multiplied by, and in a second pass as well, which finds it given away."""
    batch = cases.random_batch(T=12, B=3, V=9, U=4)
    logits = (batch.logits.transpose(0, 1) if batch_first else batch.logits).float().contiguous()
    weight = torch.tensor([0.5, 2.0, -1.0]) if reduction == "none" else torch.tensor(3.0)

    def gradients() -> list[torch.Tensor]:
        x = logits.clone().requires_grad_()
        arguments = (x, batch.targets, batch.input_lengths, batch.target_lengths)
        loss = cases.loss_of(criterion)(*arguments, reduction=reduction, batch_first=batch_first, backend="numba")
        weighted = [torch.ones_like(loss), weight, torch.zeros_like(loss), weight]
        return [torch.autograd.grad(loss, x, w, retain_graph=True)[0] for w in weighted[::-1]] + list(
            torch.autograd.grad(loss.sum(), x)
        )

    ahead = gradients()
    monkeypatch.setattr(fused_numba, "_SMALL", 0)
    for ours, theirs in zip(ahead, gradients(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("_when")
@pytest.mark.parametrize("batch_first", [False, True])
def test_no_alignment_has_no_gradient_whatever_the_loss_s_own(batch_first: bool) -> None:
    """The root of a loss of 0 has an infinite slope, and infinity times nothing would be NaN; past the lengths as well."""
    x = torch.randn(
        (3, 9, 5) if batch_first else (9, 3, 5), generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    arguments = (x, torch.tensor([[1, 2, 3, 4], [2, 2, 1, 1], [3, 0, 0, 0]]), (9, 3, 6), (4, 4, 1))
    for reduction in ("none", "sum"):
        losses = published_loss(*arguments, reduction=reduction, zero_infinity=True, batch_first=batch_first)
        own = torch.tensor([1.0, torch.inf, torch.nan]) if reduction == "none" else torch.tensor(torch.inf)
        (grad,) = torch.autograd.grad(losses, x, own)
        by_utterance = grad if batch_first else grad.transpose(0, 1)
        assert not by_utterance[1].any()
        assert not by_utterance[2, 6:].any()
        assert not by_utterance[2, :6].isfinite().all()


def test_a_gradient_ahead_is_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes the leaf's own, and what a second pass adds to that does not change what a third one finds."""
    made = []

    def gradient_like(x: torch.Tensor) -> torch.Tensor:
        gradient = torch.empty_like(x)
        made.append(gradient.data_ptr())
        return gradient

    monkeypatch.setattr(fused_numba, "gradient_like", gradient_like)
    x = torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = published_loss(x, torch.tensor([[1, 2], [3, 3]]), (7, 6), (2, 2))
    loss.backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.data_ptr() == made[0]
    once = x.grad.clone()
    loss.backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 2 * once)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], once)


def test_no_gradient_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a gradient is made")

    monkeypatch.setattr(fused_numba, "gradient_like", never)
    logits, penalty = torch.randn(7, 1, 5), torch.tensor(-0.5, requires_grad=True)
    arguments = (torch.tensor([[1, 2]]), (7,), (2,))
    published_loss(logits, *arguments, penalty=penalty).backward()
    with torch.no_grad():
        published_loss(logits.requires_grad_(), *arguments)


def test_nothing_as_large_as_the_logits_is_kept_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_numba, "_SMALL", 1000)
    T, B, V, U = 30, 2, 500, 4
    logits = torch.randn(T, B, V, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = published_loss(logits, torch.full((B, U), 3), (T,) * B, (U,) * B)
    assert loss.grad_fn.other is None
    kept = [x for x in loss.grad_fn.saved_tensors if x is not None and x.data_ptr() != logits.data_ptr()]
    assert sum(x.numel() for x in kept) < 3 * B * (T + 1) * (U + 2)


class Watched(NamedTuple):
    scaled: list[bool]  # which utterances were summed without logarithms
    kernels: list[Any]  # what ran, and so was compiled


def watched(criterion: str, batch: cases.Batch) -> Watched:
    found, run = Watched([], []), threads.run

    def watch(kernel: Any, items: int, cost: int, *arguments: Any) -> int:
        pieces = run(kernel, items, cost, *arguments)
        found.kernels.append(kernel)
        if kernel is fused_numba._forward_scaled:
            size, memory = arguments[3], arguments[7]
            found.scaled.extend(scaled_of(memory, items, layout.py_func(size)).tolist())
        return pieces

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "run", watch)
        cases.run(criterion, batch, "numba", torch.float32)
    return found


@pytest.mark.usefixtures("_when")
@pytest.mark.parametrize("criterion", CRITERIA)
def test_logarithms_only_where_they_are_needed(criterion: str) -> None:
    """Labels of e^-40 each: 20 of them are too far from a path of blanks alone, 8 are not."""
    near = watched(criterion, cases.random_batch(T=60, B=2, V=33, U=20))
    assert near.scaled == [True, True]
    assert {fused_numba._forward, fused_numba._gradient}.isdisjoint(near.kernels)
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 60, 33, generator=random).double()
    logits[:, :, 0] += 40
    labels = torch.randint(1, 33, (20,), generator=random).tolist()
    batch = cases.batch_of(list(logits), [labels, labels[:8]])
    assert watched(criterion, batch).scaled == [False, True]
    short = cases.batch_of([logits[0, :9], logits[1, :3], logits[1, :4]], [labels[:3], labels[:4], [5, 5, 5]])
    assert watched(criterion, short).scaled == [True] * 3  # where there is no alignment, there is nothing to sum
    for each in (batch, short):
        expected = cases.run(criterion, each, "torch", torch.float64)
        assert_same(cases.run(criterion, each, "numba", torch.float32), expected, torch.float32)
