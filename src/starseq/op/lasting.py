"""The operation's middle where inserted tokens last: posteriors of tokens instead of scores of arcs.

A gap there remembers which token stands, so its states are as many as the vocabulary, and what lies outside of an arc cannot be
kept apart from what it consumes. So all is made with the loss: the gradient is P less the posteriors, or minus these.
Backends are the modules lattice/lasting_<name>.py.
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
from starseq.op.setting import Batch, Setting, loss_dtype


def sums_of(
    batch: Batch, graph: LabelGraph, setting: Setting, inserted: bool, differentiable: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `separate.sums_of`; what the gradient needs is norm, the posteriors (B, T, V), nothing, and log_z."""
    logits, _, lengths, _, _ = batch
    dtype = loss_dtype(logits)
    x, norm = log_scores(logits, lengths, setting.normalized)
    log_z, posteriors, insertions = _lattice(setting.backend).posteriors(
        x, gaps_of(graph), lengths, backward=differentiable or inserted, exact=logits.dtype == torch.float64
    )
    insertions = insertions.to(dtype) if inserted else logits.new_empty(0, dtype=dtype)
    posteriors = posteriors.to(dtype) if differentiable else logits.new_empty(0, dtype=dtype)
    return -log_z.to(dtype), insertions, norm, posteriors, logits.new_empty(0), log_z


def gradient(each: Tensor, batch: Batch, sums: Sequence[Tensor], setting: Setting) -> Tensor:
    """As `separate.gradient`."""
    norm, posteriors, _, log_z = sums
    result = -posteriors
    if setting.normalized:
        result = result + (batch[0].to(norm.dtype) - norm[:, :, None]).exp()  # the posteriors of a frame sum to one
    return for_logits(result, each, batch[0], batch[2], log_z)


@functools.cache
def _lattice(backend: str) -> ModuleType:
    return importlib.import_module(f"starseq.lattice.lasting_{backend}")
