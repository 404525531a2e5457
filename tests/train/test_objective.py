"""The objective: sums over labels, closed gaps, what is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from starseq.data.dataset import PaddedBatch
from starseq.loss import ctc_loss, selfless_ctc_loss, stc_loss
from starseq.penalty import InsertionPenalty
from starseq.train.objective import Objective

HALF = InsertionPenalty(0.5, 0.5, half_life=1)


def table(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """A model whose output is its input."""
    return x, lengths


@pytest.fixture
def batch() -> PaddedBatch:
    draw = torch.Generator().manual_seed(0)
    gaps = torch.tensor([[True, True, True, True], [False, True, False, False]])
    return PaddedBatch(
        ["a", "b"], torch.randn(2, 9, 5, generator=draw), torch.tensor([9, 7]), torch.tensor([[1, 2, 2], [3, 4, 0]]),
        torch.tensor([3, 2]), gaps, ["122", "34"],
    )  # fmt: skip


def test_the_loss_is_the_sum_over_labels_with_closed_gaps(batch: PaddedBatch) -> None:
    scored = Objective("stc", InsertionPenalty(0.4, 0.4, half_life=1))(table, batch, inserted=True, blanks=True)
    gaps = torch.where(batch.open, torch.tensor(0.4).log(), torch.tensor(-math.inf))
    expected = stc_loss(
        batch.x, batch.targets, batch.lengths, batch.target_lengths, penalty=gaps, reduction="none", batch_first=True
    )
    torch.testing.assert_close(scored.losses, expected)
    assert scored.inserted is not None
    assert scored.inserted.shape == (2, 4)
    assert not scored.inserted[1, [0, 2]].any()
    blanks = sum(int((batch.x[b, :n].argmax(1) == 0).sum()) for b, n in enumerate(batch.lengths.tolist()))
    assert scored.blanks is not None
    assert scored.blanks.item() == pytest.approx(blanks / 16)


@pytest.mark.parametrize(("merge_repeats", "loss"), [(True, ctc_loss), (False, selfless_ctc_loss)])
def test_all_gaps_closed_is_ctc(batch: PaddedBatch, merge_repeats: bool, loss: Any) -> None:
    batch.open = torch.zeros_like(batch.open)
    closed = Objective("stc", HALF, merge_repeats=merge_repeats)(table, batch).losses
    expected = loss(batch.x, batch.targets, batch.lengths, batch.target_lengths, reduction="none", batch_first=True)
    torch.testing.assert_close(closed, expected)


def test_without_star_nothing_is_inserted(batch: PaddedBatch) -> None:
    scored = Objective("ctc", HALF)(table, batch, inserted=True)
    assert scored.inserted is None
    assert scored.blanks is None


def test_half_precision_is_that_of_the_model_alone(batch: PaddedBatch) -> None:
    layer = torch.nn.Linear(5, 5)
    seen: list[torch.dtype] = []

    def model(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        logits = layer(x)
        seen.append(logits.dtype)
        return logits, lengths

    full = Objective("stc", HALF)(model, batch).losses
    half = Objective("stc", HALF, precision="bf16")(model, batch).losses
    assert seen == [torch.float32, torch.bfloat16]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.02, atol=0.05)
