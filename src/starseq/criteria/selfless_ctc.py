"""CTC without self-loops: repeats are not merged, so `aa` needs no blank between. Published STC with every gap closed.

State l has read l labels: it stays by blank and is entered by label l.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import Form, LabelGraph, wide
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology

FORM = Form(merging=False, stars=False)


def label_graph(targets: Tensor, target_lengths: Tensor, *, blank: int) -> LabelGraph:
    """The chain of U+1 states for targets (B, U) and target_lengths (B,)."""
    enter = torch.nn.functional.pad(wide(targets), (1, 0), value=NONE)
    return LabelGraph(Topology(num_states=target_lengths + 1), Tokens(blank, enter))
