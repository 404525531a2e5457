r"""Star Temporal Classification: the labels in order, and in every open gap any number of other tokens at a price.

State l has matched l labels. It is entered by label l; it stays by blank, or by the star of gap l:

    stay(t, l)  = P_t(blank) + p_l * P_t(star \ y_{l+1})        (star alone for l = U)
    enter(t, l) = P_t(y_l)

Leaving out y_{l+1} makes every alignment count once, by its leftmost match. Where the *next* gap is closed this would forbid
true readings (`the * fox` with a closed end must allow "the fox fox"), so there nothing is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria.graph import LabelGraph, wide
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology


def label_graph(
    targets: Tensor, target_lengths: Tensor, *, blank: int, log_penalty: Tensor, matching: str = "leftmost"
) -> LabelGraph:
    """The chain of U+1 states for targets (B, U) and target_lengths (B,).

    log_penalty: (B, U+1), the log-weight of a token inserted in gap l, after label l; -inf closes the gap.
    matching: "leftmost" counts an alignment once, "all" once for every embedding of the labels (nothing is left out).
    """
    around = torch.nn.functional.pad(wide(targets), (1, 1), value=NONE)
    enter, following = around[:, :-1], around[:, 1:]
    left_out = following if matching == "leftmost" else None
    # Where one penalty serves all gaps of an utterance, they are closed together, and no star is passed at all.
    if left_out is not None and log_penalty.stride(1) != 0:
        left_out = left_out.masked_fill((log_penalty == -torch.inf).roll(-1, dims=1), NONE)
    return LabelGraph(Topology(num_states=target_lengths + 1), Tokens(blank, enter, None, log_penalty, left_out))
