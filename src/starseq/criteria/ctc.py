"""Connectionist Temporal Classification: repeats merge, then blanks go.

State 2l+1 is label l+1, the even states are blanks. A state stays and is entered by the same token; a label may be entered past
the blank before it, unless that would join it to an equal label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import Form, LabelGraph, wide
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology

FORM = Form(merging=True, stars=False)


def label_graph(targets: Tensor, target_lengths: Tensor, *, blank: int) -> LabelGraph:
    """The graph of 2U+1 states for targets (B, U) and target_lengths (B,)."""
    labels = wide(targets)
    states = 2 * labels.shape[1] + 1
    token = labels.new_full((len(labels), states), blank)
    token[:, 1::2] = labels.masked_fill(labels == blank, NONE)  # as a label it is impossible
    # Blanks are all alike, so only labels are entered past a state.
    skip = torch.zeros_like(token, dtype=torch.bool)
    skip[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    return LabelGraph(Topology(num_states=2 * target_lengths + 1, ends=2, skip=skip), Tokens(blank, token, token))
