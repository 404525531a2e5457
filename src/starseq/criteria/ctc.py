"""Connectionist Temporal Classification: repeats merge, then blanks go.

State 2l+1 is label l+1, the even states are blanks. A state stays and is entered by the same token; a label may be entered past
the blank before it, unless that would join it to an equal label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import LabelGraph, wide
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology


def label_graph(targets: Tensor, target_lengths: Tensor, *, blank: int) -> LabelGraph:
    """The graph of 2U+1 states for targets (B, U) and target_lengths (B,)."""
    pad = torch.nn.functional.pad
    labels = wide(targets)
    labels = labels.masked_fill(labels == blank, NONE)  # as a label it is impossible
    token = pad(pad(labels[:, :, None], (1, 0), value=blank).flatten(1), (0, 1), value=blank)
    # Blanks are all alike, so only labels are entered past a state. (Without labels there is one state, and no room for two.)
    skip = pad(token[:, 2:] != token[:, :-2], (2, 0), value=False)[:, : token.shape[1]].contiguous()
    twice = target_lengths + target_lengths
    return LabelGraph(Topology(num_states=twice + 1, ends=2, skip=skip), Tokens(blank, token, token))
