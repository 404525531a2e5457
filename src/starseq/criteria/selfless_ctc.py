"""CTC without self-loops: repeats are not merged, so `aa` needs no blank between. STC with every gap closed.

State l has read l labels: it stays by blank and is entered by label l.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import LabelGraph, labels_or_none
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology


def label_graph(targets: Tensor, target_lengths: Tensor, *, blank: int) -> LabelGraph:
    """The chain of U+1 states for targets (B, U) and target_lengths (B,)."""
    enter = torch.nn.functional.pad(labels_or_none(targets, target_lengths, blank), (1, 0), value=NONE)
    final = torch.arange(enter.shape[1], device=targets.device) == target_lengths[:, None]
    return LabelGraph(
        Topology(final=final, num_states=target_lengths + 1),
        Tokens(enter=enter, stay=torch.full_like(enter, blank)),
    )
