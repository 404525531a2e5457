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

from starseq.criteria import selfless_ctc
from starseq.criteria.graph import LabelGraph
from starseq.emissions.tokens import NONE

MATCHINGS = ("leftmost", "all")


def label_graph(
    targets: Tensor, target_lengths: Tensor, *, blank: int, log_penalty: Tensor, matching: str = "leftmost"
) -> LabelGraph:
    """The chain of U+1 states for targets (B, U) and target_lengths (B,).

    log_penalty: (B, U+1), the log-weight of a token inserted in gap l, after label l; -inf closes the gap.
    matching: "leftmost" counts an alignment once, "all" once for every embedding of the labels (nothing is left out).
    """
    topology, tokens = selfless_ctc.label_graph(targets, target_lengths, blank=blank)
    if matching == "all":
        left_out = torch.full_like(tokens.enter, NONE)
    else:
        left_out = tokens.enter.roll(-1, dims=1)  # y_{l+1}; state 0 is entered by nothing, which comes to stand last
        left_out.masked_fill_((log_penalty == -torch.inf).roll(-1, dims=1), NONE)
    return LabelGraph(topology, tokens._replace(star_weight=log_penalty, star_except=left_out))
