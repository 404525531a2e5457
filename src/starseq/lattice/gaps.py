"""The shape of a graph in which inserted tokens last: labels, and the gaps around them, which remember the token that stands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NONE = -1
"""In place of a token: a row that leaves nothing out, or has no label."""


class Gaps(NamedTuple):
    """B graphs of U labels at most. Row l, 0..U, is label l with the gap after it; row 0 has no label.

    After every frame a path is in a row and in one of its V+1 states, which say what stands there: the token v, inserted; the
    blank, in the blank's own place; label l, in place V. Each frame takes one arc, and consumes what stands after it:

        the same token or label stands still    in the same row
        the blank                               in the same row
        a token begins, at the weight p_l       in the same row, from wherever another token stands; none that row l leaves out
        label l+1 begins                        in row l+1, from wherever another token stands

    A path starts with the blank of row 0 before the first frame, and ends in the last row.

    blank: the token that means nothing.
    counts: (B,) integers, how many labels there are; what belongs to others is never read.
    labels: (B, U) integers, label l in place l-1.
    weight: (B, U+1) floating, log p_l, at most 0; -inf closes the gap.
    left_out: (B, U+1) integers, the token that may not be inserted in row l, or NONE; the last row leaves out nothing.
    """

    blank: int
    counts: Tensor
    labels: Tensor
    weight: Tensor
    left_out: Tensor


class Rows(NamedTuple):
    """What the rows of B graphs say of tokens, (B, U+1) each; NONE where there is nothing.

    label: that of the row. following: the next row's. left_out: what may not be inserted. A token outside the vocabulary, and the
    blank, is no label.
    """

    label: Tensor
    following: Tensor
    left_out: Tensor


def rows_of(gaps: Gaps, size: int) -> Rows:
    """The rows for a vocabulary of `size` tokens; those that an utterance does not have are empty.

    >>> gaps = Gaps(0, torch.tensor([2]), torch.tensor([[1, 9, 2]]), torch.zeros(1, 4), torch.tensor([[1, 9, 2, 1]]))
    >>> [row.tolist() for row in rows_of(gaps, size=3)]
    [[[-1, 1, -1, -1]], [[1, -1, -1, -1]], [[1, -1, -1, -1]]]
    """
    row = torch.arange(gaps.labels.shape[1] + 1, device=gaps.labels.device)
    exists, last = row <= gaps.counts[:, None], row >= gaps.counts[:, None]
    pad = torch.nn.functional.pad
    label = pad(gaps.labels.long(), (1, 0), value=NONE).masked_fill(~exists, NONE)
    following = pad(gaps.labels.long(), (0, 1), value=NONE).masked_fill(last, NONE)
    left_out = gaps.left_out.long().masked_fill(last, NONE)
    return Rows(*(y.masked_fill((y < 0) | (y >= size) | (y == gaps.blank), NONE) for y in (label, following, left_out)))
