"""Model, criterion and penalty together: a batch to the loss of each of its utterances."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from starseq import criteria, loss
from starseq.data.dataset import PaddedBatch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Scored(NamedTuple):
    """What a batch gave. Insertions and blanks are None unless they were asked for."""

    losses: Tensor
    """(B,): the sum over an utterance's labels, not divided by their number"""
    inserted: Tensor | None
    """(B, U+1): expected insertions of each gap; None too for a criterion without star"""
    blanks: Tensor | None
    """(): the share of frames whose best token is the blank"""
    logits: Tensor
    """(B, T, V), without gradient"""
    lengths: Tensor
    """(B,): frames of the logits"""


class Objective:
    """A batch to losses. `model` may be wrapped for several processes; the penalty is what the batch's open gaps get.

    >>> from starseq.penalty import InsertionPenalty
    >>> class Table(nn.Module):
    ...     def forward(self, x, lengths):
    ...         return x, lengths
    >>> objective = Objective("stc", InsertionPenalty(0.5, 0.5, half_life=1), merge_repeats=False)
    >>> batch = PaddedBatch(["a"], torch.zeros(1, 3, 2), torch.tensor([3]), torch.tensor([[1]]), torch.tensor([1]),
    ...               torch.tensor([[False, False]]), ["x"])
    >>> round(objective(Table(), batch).losses.exp().reciprocal().item(), 4)      # 3 places for the one label, 2^-3 each
    0.375
    """

    def __init__(
        self,
        criterion: str,
        penalty: nn.Module,
        *,
        merge_repeats: bool = True,
        backend: str = "auto",
        precision: str = "32",
    ) -> None:
        self.star = criteria.form(criterion).stars
        self.penalty, self.precision = penalty, precision
        self._loss: Callable[..., Any] = getattr(loss, f"{criterion}_loss")
        self._options: dict[str, Any] = {"reduction": "none", "batch_first": True, "backend": backend}
        if self.star:
            self._options["merge_repeats"] = merge_repeats

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.precision == "32":
            return nullcontext()
        return torch.autocast(device.type, dtype=DTYPES[self.precision])

    def log_penalty(self, batch: PaddedBatch) -> Tensor:
        """lambda of every gap, (B, U+1): -inf where no label can be missing."""
        log_penalty: Tensor = self.penalty()
        return log_penalty.masked_fill(~batch.open, -math.inf)

    def __call__(
        self,
        model: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        batch: PaddedBatch,
        *,
        inserted: bool = False,
        blanks: bool = False,
    ) -> Scored:
        """`batch` lies on the model's device. Insertions and blanks are counted where they are asked for."""
        with self.autocast(batch.x.device):
            logits, lengths = model(batch.x, batch.lengths)
        options = dict(self._options)
        inserted = inserted and self.star
        if self.star:
            options |= {"penalty": self.log_penalty(batch), "return_inserted": inserted}
        result = self._loss(logits, batch.targets, lengths, batch.target_lengths, **options)
        losses, insertions = result if inserted else (result, None)
        share = None
        if blanks:
            inside = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
            share = ((logits.detach().argmax(dim=2) == 0) & inside).sum() / lengths.sum()
        return Scored(losses, insertions, share, logits.detach(), lengths)
