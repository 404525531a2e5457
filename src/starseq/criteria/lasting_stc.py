"""STC with the collapse of CTC: tokens may last, labels and inserted ones alike.

The graph is that of CTC, and its blanks have the stars: state 2l is gap l, state 2l+1 is label l+1. In a gap any token may be
inserted, at p_l once, however long it lasts; a gap is left by the next label, or by the blank or another token to itself. For that
it remembers which token stands: see `starseq.lattice.gaps`, which is what is computed with. With all gaps closed this is CTC. What
is left out, and where nothing is, is as in `stc`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria import ctc
from starseq.criteria.graph import LabelGraph, wide
from starseq.emissions.tokens import NONE


def label_graph(
    targets: Tensor, target_lengths: Tensor, *, blank: int, log_penalty: Tensor, matching: str = "leftmost"
) -> LabelGraph:
    """The graph of 2U+1 states for targets (B, U) and target_lengths (B,).

    log_penalty: (B, U+1), the log-weight of a token inserted in gap l, after label l; -inf closes the gap.
    matching: "leftmost", or "all": nothing is left out.
    """
    topology, tokens = ctc.label_graph(targets, target_lengths, blank=blank)
    star = log_penalty.new_full(tokens.enter.shape, -torch.inf)
    star[:, ::2] = log_penalty
    left_out = None
    if matching == "leftmost":
        left_out = torch.full_like(tokens.enter, NONE)
        left_out[:, :-1:2] = wide(targets).masked_fill(log_penalty[:, 1:] == -torch.inf, NONE)
    return LabelGraph(topology, tokens._replace(star_weight=star, star_except=left_out, lasting=True))
