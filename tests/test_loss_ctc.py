"""Our CTC against torch's, in values and gradients, in every form of its arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import cases
from tests.cases import BACKENDS, FAST, TOLERANCES, few

import starseq

# torch's own CTC in float32 is only about this good: its log-sums are float32 throughout.
LOOSE = {torch.float64: TOLERANCES[torch.float64], torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def by_torch(logits: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
    return torch.nn.functional.ctc_loss(logits.log_softmax(-1), *arguments, **options)


@st.composite
def calls(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int], int]:
    """logits (T, B, V), padded targets (B, U), input and target lengths, blank."""
    V, T, U, B = draw(st.integers(2, 6)), draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    blank = draw(st.integers(0, V - 1))
    token = st.integers(0, V - 1).filter(lambda v: v != blank)
    targets = torch.tensor(draw(st.lists(st.lists(token, min_size=U, max_size=U), min_size=B, max_size=B)))
    lengths = [[draw(st.integers(1, T)) for _ in range(B)], [draw(st.integers(0, U)) for _ in range(B)]]
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    return 2 * torch.randn(T, B, V, dtype=torch.float64, generator=random), targets, *lengths, blank


@pytest.mark.parametrize("dtype", LOOSE)
@pytest.mark.parametrize("backend", FAST)
@few
@given(
    call=calls(),
    reduction=st.sampled_from(["none", "sum", "mean"]),
    concatenate=st.booleans(),
    as_tensors=st.booleans(),
)
def test_ragged_batches(
    backend: str, dtype: torch.dtype, call, reduction: str, concatenate: bool, as_tensors: bool
) -> None:
    logits, targets, inputs, lengths, blank = call
    logits = logits.to(dtype).requires_grad_()
    if concatenate:
        targets = torch.cat([row[:length] for row, length in zip(targets, lengths, strict=True)])
    form = torch.tensor if as_tensors else tuple
    arguments = (targets, form(inputs), form(lengths))
    # Torch's gradient of an infinite loss is NaN, so infinite ones are compared by zero_infinity.
    options = {"blank": blank, "reduction": reduction, "zero_infinity": True}
    ours = starseq.ctc_loss(logits, *arguments, **options, backend=backend)
    theirs = by_torch(logits, *arguments, **options)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, **LOOSE[dtype])
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), logits)[0] for x in (ours, theirs)), **LOOSE[dtype])
    options["zero_infinity"] = False
    ours = starseq.ctc_loss(logits, *arguments, **options, backend=backend)
    torch.testing.assert_close(ours, by_torch(logits, *arguments, **options), **LOOSE[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", [[], [1], [3, 3, 1]])
def test_unbatched(backend: str, target: list[int]) -> None:
    logits = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    arguments = (torch.tensor(target, dtype=torch.int64), torch.tensor(8), torch.tensor(len(target)))
    for reduction in ("none", "sum", "mean"):
        ours = starseq.ctc_loss(logits, *arguments, reduction=reduction, backend=backend)
        theirs = by_torch(logits, *arguments, reduction=reduction)
        assert ours.shape == theirs.shape == ()
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (ours, theirs)))


def test_the_module_takes_the_place_of_torchs() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 3, 6, generator=random, requires_grad=True)
    arguments = (torch.randint(0, 5, (3, 4), generator=random), torch.tensor([20, 15, 12]), torch.tensor([4, 2, 3]))
    ours, theirs = starseq.CTCLoss(5, "sum", True), torch.nn.CTCLoss(5, "sum", True)
    values = ours(logits, *arguments), theirs(logits.log_softmax(-1), *arguments)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in values), **LOOSE[torch.float32])


@pytest.mark.parametrize("backend", FAST)
def test_a_large_batch(backend: str) -> None:
    batch = cases.random_batch(T=120, B=6, V=29, U=40, blank=28, extra=0)
    logits, targets = batch.logits.nan_to_num(nan=0.0).requires_grad_(), batch.targets.where(batch.targets < 29, 0)
    arguments = (targets, batch.input_lengths, batch.target_lengths)
    values = (
        starseq.ctc_loss(logits, *arguments, blank=28, reduction="none", backend=backend),
        by_torch(logits, *arguments, blank=28, reduction="none"),
    )
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), logits)[0] for x in values))
