r"""Star Temporal Classification: the labels in order, and in every open gap any number of other tokens at a price.

With merged repeats (the default) the alignments are read as CTC reads: a token may last for several frames, and an inserted one
pays once. The graph is that of CTC, and its blanks have the stars: state 2l is gap l, state 2l+1 is label l+1. A gap is left by
the next label, or by the blank or another token to itself. For that it remembers which token stands: see `starseq.lattice.gaps`,
which is what is computed with. With all gaps closed this is CTC.

With kept repeats, as published, every frame is a token of its own. State l has matched l labels. It is entered by label l; it
stays by blank, or by the star of gap l:

    stay(t, l)  = P_t(blank) + p_l * P_t(star \ y_{l+1})        (star alone for l = U)
    enter(t, l) = P_t(y_l)

Leaving out y_{l+1} makes every alignment count once, by its leftmost match. Where the *next* gap is closed this would forbid
true readings (`the * fox` with a closed end must allow "the fox fox"), so there nothing is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.criteria import ctc
from starseq.criteria.graph import Form, LabelGraph, wide
from starseq.emissions.tokens import NONE, Tokens
from starseq.lattice.topology import Topology

FORM = Form(merging=True, stars=True)
FORM_OF_KEPT_REPEATS = Form(merging=False, stars=True)


def label_graph(
    targets: Tensor, target_lengths: Tensor, *, blank: int, log_penalty: Tensor, merge_repeats: bool = True
) -> LabelGraph:
    """The graphs for targets (B, U) and target_lengths (B,): 2U+1 states, or with kept repeats the chain of U+1 states.

    log_penalty: (B, U+1), the log-weight of a token inserted in gap l, after label l; -inf closes the gap.
    """
    if merge_repeats:
        return _merged(targets, target_lengths, blank, log_penalty)
    around = torch.nn.functional.pad(wide(targets), (1, 1), value=NONE)
    enter, left_out = around[:, :-1], around[:, 1:]
    # Where one penalty serves all gaps of an utterance, they are closed together, and no star is passed at all.
    if log_penalty.stride(1) != 0:
        left_out = left_out.masked_fill((log_penalty == -torch.inf).roll(-1, dims=1), NONE)
    return LabelGraph(Topology(num_states=target_lengths + 1), Tokens(blank, enter, None, log_penalty, left_out))


def _merged(targets: Tensor, target_lengths: Tensor, blank: int, log_penalty: Tensor) -> LabelGraph:
    """CTC's graph with a star on every blank."""
    topology, tokens = ctc.label_graph(targets, target_lengths, blank=blank)
    star = log_penalty.new_full(tokens.enter.shape, -torch.inf)
    star[:, ::2] = log_penalty
    left_out = torch.full_like(tokens.enter, NONE)
    left_out[:, :-1:2] = wide(targets).masked_fill(log_penalty[:, 1:] == -torch.inf, NONE)
    return LabelGraph(topology, tokens._replace(star_weight=star, star_except=left_out, lasting=True))
