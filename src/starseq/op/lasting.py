"""The operation's middle where inserted tokens last.

A gap there remembers which token stands, so what lies outside of an arc cannot be kept apart from what it consumes. So the gradient
is made with the loss, for a loss whose own is 1, and multiplied backwards. Backends but torch have a way of their own,
`lasting_<backend>`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from starseq.criteria.graph import LabelGraph, gaps_of
from starseq.emissions.vocabulary_torch import for_logits, log_scores
from starseq.lattice import lasting_torch
from starseq.op.setting import Batch, Request, Setting, loss_dtype


def sums_of(
    batch: Batch, graph: LabelGraph, setting: Setting, inserted: bool, differentiable: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `separate.sums_of`; what the gradient needs is nothing, itself but for its factor (B, T, V), nothing, and log_z."""
    logits, _, lengths, _, _ = batch
    dtype = loss_dtype(logits)
    nothing, norm = logits.new_empty(0), logits.new_zeros(logits.shape[:2], dtype=torch.float64)
    slope, begun = logits.new_empty(0, dtype=dtype), logits.new_empty(0, dtype=dtype)
    if setting.backend != "torch":
        request = Request(setting, True, False, inserted, differentiable, "none", False)
        way = way_of(setting.backend)
        loss, insertions, saved = way.forward(batch, request)
        if differentiable:
            ones = torch.ones_like(loss)
            slope = way.backward(ones, batch, saved, request, needs_logits=True, needs_penalty=False)[0]
            slope = slope.to(dtype).contiguous()
        return (
            loss,
            begun if insertions is None else insertions,
            norm,
            slope,
            nothing,
            -loss.to(torch.float64, copy=True),
        )
    x, _ = log_scores(logits, lengths, setting.normalized)
    log_z, posteriors, insertions = lasting_torch.posteriors(
        x, gaps_of(graph), lengths, backward=differentiable or inserted
    )
    if differentiable:
        slope = (x.exp() - posteriors if setting.normalized else -posteriors).to(dtype).contiguous()
    return -log_z.to(dtype), insertions.to(dtype) if inserted else begun, norm, slope, nothing, log_z


def gradient(each: Tensor, batch: Batch, sums: Sequence[Tensor]) -> Tensor:
    """As `separate.gradient`."""
    _, slope, _, log_z = sums
    return for_logits(slope, each, batch[0], batch[2], log_z)


@functools.cache
def way_of(backend: str) -> ModuleType:
    """How a backend computes all at once."""
    return importlib.import_module(f"starseq.op.lasting_{backend}")
