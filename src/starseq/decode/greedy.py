"""Greedy reading: the best token of every frame, collapsed as the criterion collapses."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from starseq.arguments import Lengths, check_blank, lengths_of

__all__ = ["Read", "greedy", "greedy_read"]


class Read(NamedTuple):
    """A token that was read: its frames are start .. end - 1 (one frame where repeats do not merge).

    confidence: what the model gives this token, as the mean over its frames.
    """

    token: int
    start: int
    end: int
    confidence: float


def greedy(logits: Tensor, lengths: Lengths, *, merge_repeats: bool, blank: int = 0) -> list[list[int]]:
    """The tokens of the best token a frame: repeats merged if the criterion merges them, then blanks removed.

    logits: (B, T, V), logits or log-probabilities alike. lengths: (B,), as in the losses; frames past them mean nothing. CTC
    and STC merge repeats; published STC and selfless CTC do not: `starseq.criteria.merges_repeats` knows.
    What is wrong raises ValueError.

        >>> logits = torch.eye(3)[torch.tensor([[1, 1, 0, 1, 2]])]
        >>> greedy(logits, torch.tensor([5]), merge_repeats=True), greedy(logits, torch.tensor([4]), merge_repeats=False)
        ([[1, 1, 2]], [[1, 1, 1]])
    """
    best, starts, _ = _starts(logits, lengths, merge_repeats, blank)
    tokens: list[int] = best[starts].tolist()
    ends: list[int] = starts.sum(dim=1).cumsum(0).tolist()
    return [tokens[start:end] for start, end in pairwise([0, *ends])]


def greedy_read(logits: Tensor, lengths: Lengths, *, merge_repeats: bool, blank: int = 0) -> list[list[Read]]:
    """The same tokens with their frames and the model's confidence. Arguments as in `greedy`.

    >>> logits = torch.tensor([[[0.0, 0.9, 0.1], [0.2, 0.7, 0.1], [0.8, 0.1, 0.1]]]).log()
    >>> [(token,)] = greedy_read(logits, torch.tensor([3]), merge_repeats=True)
    >>> token.token, token.start, token.end, round(token.confidence, 4)
    (1, 0, 2, 0.8)
    """
    best, starts, ends = _starts(logits, lengths, merge_repeats, blank)
    floats = logits if logits.dtype == torch.float64 else logits.float()
    # As long as there is a frame, the largest logit less the log-sum; T = 0 has none to take.
    probability = (
        (floats.amax(dim=2) - floats.logsumexp(dim=2)).exp() if floats.shape[1] else floats.new_empty(best.shape)
    )
    reads: list[list[Read]] = []
    for tokens, begins, shares, frames in zip(
        best.tolist(), starts.tolist(), probability.tolist(), ends.tolist(), strict=True
    ):
        row: list[Read] = []
        for start in (t for t, begin in enumerate(begins) if begin):
            end = start + 1
            while merge_repeats and end < frames and tokens[end] == tokens[start]:
                end += 1
            row.append(Read(tokens[start], start, end, sum(shares[start:end]) / (end - start)))
        reads.append(row)
    return reads


def _starts(logits: Tensor, lengths: Lengths, merge_repeats: bool, blank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best token of every frame, (B, T), whether a label begins there, (B, T) bool, and the lengths, (B,)."""
    if logits.dim() != 3:
        raise ValueError(f"logits: expected (B, T, V), got {tuple(logits.shape)}")
    batch, frames, vocabulary = logits.shape
    blank = check_blank(blank, vocabulary)
    if len(lengths) != batch:
        raise ValueError(f"lengths: {len(lengths)} of them for {batch} utterances, for logits are (B, T, V)")
    ends = lengths_of("lengths", lengths, batch, logits.device)
    wrong = (ends < 0) | (ends > frames)
    if wrong.any():
        raise ValueError(f"lengths: {int(ends[wrong][0])} is outside 0..{frames}, the frames of the logits")
    best = logits.argmax(dim=2)
    starts = (best != blank) & (torch.arange(frames, device=logits.device) < ends[:, None])
    if merge_repeats:
        starts[:, 1:] &= best[:, 1:] != best[:, :-1]
    return best, starts, ends
