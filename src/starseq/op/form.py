"""What the label graphs of a criterion look like, for kernels that read them off the targets instead of building them.

    chain    state l is entered by label l and stays by blank, and by the star of gap l where there are stars; ends in the last
    merging  state 2l+1 is entered by label l+1 and stays by it, the even ones likewise by blank; an odd one is also entered from
             two states before, where the labels differ; ends in the last two

The criterion remains the one place where its graph is written: it is asked for the graphs of a sample.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from starseq.op.separate import label_graph


class Form(NamedTuple):
    """merging or a chain; whether states have stars, which leave out the next label, where the next gap is open."""

    merging: bool
    stars: bool


@functools.cache
def form_of(criterion: str, merge_repeats: bool, stars: bool) -> Form | None:
    """The form of a criterion's graphs, or None if it is neither of these.

    >>> form_of("ctc", True, False)
    Form(merging=True, stars=False)
    >>> form_of("stc", False, True)
    Form(merging=False, stars=True)
    """
    targets, lengths = torch.tensor([[5, 6, 6, 7], [6, 5, 7, 7]]), torch.tensor([4, 2])
    gaps = torch.tensor([[-1.0, -2.0, -torch.inf, -3.0, -4.0], [-torch.inf, -1.0, -1.0, -1.0, -1.0]]) if stars else None
    (num_states, ends, skip), tokens = label_graph(criterion, targets, lengths, gaps, merge_repeats, blank=3)
    if tokens.lasting:
        return None
    found = [
        ends, None if skip is None else skip.tolist(),
        *(None if x is None else x.tolist() for x in (num_states, tokens.enter, tokens.stay, tokens.star_weight)),
    ]  # fmt: skip
    weights = None if gaps is None else gaps.tolist()
    merged = [[3, 5, 3, 6, 3, 6, 3, 7, 3], [3, 6, 3, 5, 3, 7, 3, 7, 3]]
    no, yes = False, True
    unequal = [[no, no, no, yes, no, no, no, yes, no], [no, no, no, yes, no, yes, no, no, no]]
    following = None if tokens.star_except is None else tokens.star_except.tolist()
    if found == [2, unequal, [9, 5], merged, merged, None]:
        return Form(True, False)
    # Where the next gap is closed nothing is left out; the last state of a graph has no next label.
    good = following is None or [following[0][:4], following[1][:2]] == [[5, -1, 6, 7], [6, 5]]
    if good and found == [1, None, [5, 3], [[-1, 5, 6, 6, 7], [-1, 6, 5, 7, 7]], None, weights]:
        return Form(False, stars)
    return None
