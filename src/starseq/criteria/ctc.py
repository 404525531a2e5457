"""Connectionist Temporal Classification: repeats merge, then blanks go.

State 2l+1 is label l+1, the even states are blanks. A state stays and is entered by the same token; a label may be entered past
the blank before it, unless that would join it to an equal label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import LabelGraph, labels_or_none
from starseq.emissions.tokens import Tokens
from starseq.lattice.topology import Topology


def label_graph(targets: Tensor, target_lengths: Tensor, *, blank: int) -> LabelGraph:
    """The graph of 2U+1 states for targets (B, U) and target_lengths (B,)."""
    labels = labels_or_none(targets, target_lengths, blank)
    token = labels.new_full((labels.shape[0], 2 * labels.shape[1] + 1), blank)
    token[:, 1::2] = labels
    skip = torch.zeros_like(token, dtype=torch.bool)
    skip[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    last = 2 * target_lengths[:, None]
    state = torch.arange(token.shape[1], device=targets.device)
    return LabelGraph(
        Topology(final=(state == last) | (state == last - 1), num_states=2 * target_lengths + 1, skip=skip),
        Tokens(enter=token, stay=token),
    )
