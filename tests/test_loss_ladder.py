"""The ladder of truth: brute force > wfst > torch > numba; value, gradient and insertions, with the same tolerances."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import brute_force, cases
from tests.cases import BACKENDS, CRITERIA, FAST, RUNGS, assert_same, few, loss_of, run, truth

VECTORS = [
    pytest.param(stem, case, id=f"{stem}: {case['name']}")
    for stem in ("ctc", "selfless_ctc", "stc", "stc_gaps")
    for case in brute_force.read_vectors(stem)
]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@few
@given(batch=cases.batches(), concatenate=st.booleans())
def test_against_brute_force(
    criterion: str, backend: str, dtype: torch.dtype, batch: cases.Batch, concatenate: bool
) -> None:
    assert_same(run(criterion, batch, backend, dtype, concatenate=concatenate), truth(criterion, batch), dtype)


@pytest.mark.parametrize(("backend", "dtype"), RUNGS)
@pytest.mark.parametrize(("stem", "case"), VECTORS)
def test_published_vectors(backend: str, dtype: torch.dtype, stem: str, case: dict[str, Any]) -> None:
    # Not through `cases`: the published files are read as a stranger would.
    criterion = "published_stc" if stem.startswith("stc") else stem
    logits = (
        torch.tensor(case["logits"], dtype=torch.float64)
        .reshape(case["shape"])
        .to(BACKENDS[backend], dtype)
        .requires_grad_()
    )
    target = torch.tensor(case["target"], dtype=torch.int64, device=logits.device)
    star = {}
    if criterion == "published_stc":
        penalty = torch.tensor(case["log_penalty"], dtype=torch.float64, device=logits.device)
        star = {"penalty": penalty, "return_inserted": True}
    loss = loss_of(criterion)(
        logits, target, (len(logits),), (len(target),), blank=case["blank"], reduction="none", backend=backend, **star
    )
    loss, inserted = loss if star else (loss, None)
    (grad,) = torch.autograd.grad(loss, logits)
    expected = torch.tensor(case["grad_logits"], dtype=torch.float64).reshape(case["shape"])
    tolerance = cases.TOLERANCES[dtype]
    torch.testing.assert_close(loss.cpu().double().item(), case["loss"], **tolerance)
    torch.testing.assert_close(grad.cpu().double(), expected, **tolerance)
    if inserted is not None:
        torch.testing.assert_close(inserted.tolist(), case["inserted"], **tolerance)


# Brute force ends at a thousand alignments. Above, the rungs are compared with one another: more tokens than a block
# holds, more states than a vector holds.
SHAPES = {
    "narrow": {"T": 90, "B": 4, "V": 7, "U": 30},
    "wide": {"T": 12, "B": 3, "V": 1300, "U": 5},
    "long": {"T": 300, "B": 2, "V": 30, "U": 3},
    "tight": {"T": 40, "B": 2, "V": 5, "U": 20},
    "peaked": {"T": 50, "B": 3, "V": 20, "U": 12, "spread": 12.0},
}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", cases.TOLERANCES)
@pytest.mark.parametrize("backend", [name for name in FAST if name != "torch"])
def test_larger_shapes_against_torch(criterion: str, shape: str, dtype: torch.dtype, backend: str) -> None:
    batch = cases.random_batch(**SHAPES[shape], blank=3)
    assert_same(run(criterion, batch, backend, dtype), run(criterion, batch, "torch"), dtype)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_larger_shapes_torch_against_wfst(criterion: str) -> None:
    batch = cases.random_batch(T=14, B=2, V=6, U=5, blank=3)
    assert_same(run(criterion, batch, "torch"), run(criterion, batch, "wfst"))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("label", [0, 1, 510, 511, 512, 513, 1023, 1024, 1299])
def test_labels_at_the_borders_of_blocks(backend: str, label: int) -> None:
    """The vocabulary is summed up in blocks: a label is left out of the one it lies in, first and last places too."""
    logits = torch.zeros(2, 1300, dtype=torch.float64)
    batch = cases.batch_of([logits], [[label]], -1.0, blank=7)
    P, p = 1 / 1300, math.exp(-1.0)
    stay_before, stay_after = P + p * 1298 * P, P + p * 1299 * P
    assert run("published_stc", batch, backend).loss.item() == pytest.approx(
        -math.log(P * (stay_before + stay_after)), abs=1e-7
    )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("normalized", [True, False])
def test_gradcheck_stc(backend: str, normalized: bool) -> None:
    batch = cases.random_batch(T=4, B=2, V=3, U=2, blank=1, extra=0)
    U = max(batch.target_lengths)
    options: dict[str, Any] = {
        "blank": 1, "normalized": normalized, "backend": backend, "reduction": "none"
    }  # fmt: skip

    def loss(logits: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
        return loss_of("published_stc")(
            logits, targets, batch.input_lengths, batch.target_lengths, penalty=penalty, **options
        )

    logits = batch.logits.nan_to_num(nan=0.5).requires_grad_()
    targets = batch.targets.clamp(max=2)
    for shape in [(), (2,), (2, U + 1)]:
        penalty = -torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert torch.autograd.gradcheck(loss, (logits, penalty.sub(0.1).requires_grad_()))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("criterion", ["ctc", "selfless_ctc"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_gradcheck_ctc(backend: str, criterion: str, reduction: str) -> None:
    batch = cases.random_batch(T=5, B=2, V=3, U=2, blank=1)
    logits = batch.logits.nan_to_num(nan=0.5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: loss_of(criterion)(
            x,
            batch.concatenated(),
            batch.input_lengths,
            batch.target_lengths,
            blank=1,
            reduction=reduction,
            backend=backend,
        ),
        logits,
    )


@pytest.mark.parametrize("backend", FAST)
def test_gradcheck_between_closed_gaps(backend: str) -> None:
    """-inf cannot be moved, so the open gaps alone are variables."""
    logits = torch.randn(5, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    open_gaps = torch.tensor([-0.3, -1.0], dtype=torch.float64, requires_grad=True)
    closed = torch.tensor([cases.CLOSED], dtype=torch.float64)

    def loss(x: torch.Tensor, gaps: torch.Tensor) -> torch.Tensor:
        penalty = torch.cat([gaps[:1], closed, gaps[1:]])[None]
        return loss_of("published_stc")(x, torch.tensor([[1, 2]]), (5,), (2,), penalty=penalty, backend=backend)

    assert torch.autograd.gradcheck(loss, (logits, open_gaps))
