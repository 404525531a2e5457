r"""STC with the collapse of CTC: labels may last, and in every open gap any number of other tokens at a price.

The graph is that of CTC, and its blanks have the stars: state 2l is gap l, state 2l+1 is label l+1.

    gap l      stays by blank, or by the star of gap l without y_{l+1}; it is entered by blank
    label l    stays by y_l and is entered by it: from its gap, or, where the labels differ, from the label before

A token that is inserted pays for every frame that it lasts. After a label that is there comes a blank, or the next label: what is
inserted right behind it, without a blank, is not an alignment. So each alignment counts once, by its leftmost match, except where
the *next* gap is closed: there nothing is left out, as in STC, and a label that lasts counts once more for every frame that may
pass for the star's.
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

    log_penalty: (B, U+1), the log-weight of each frame of a token inserted in gap l, after label l; -inf closes the gap.
    matching: "leftmost", or "all": nothing is left out.
    """
    topology, tokens = ctc.label_graph(targets, target_lengths, blank=blank)
    star = log_penalty.new_full(tokens.enter.shape, -torch.inf)
    star[:, ::2] = log_penalty
    left_out = None
    if matching == "leftmost":
        left_out = torch.full_like(tokens.enter, NONE)
        left_out[:, :-1:2] = wide(targets).masked_fill(log_penalty[:, 1:] == -torch.inf, NONE)
    return LabelGraph(topology, tokens._replace(star_weight=star, star_except=left_out))
