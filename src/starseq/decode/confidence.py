"""How sure the acoustic model is of every token of a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from starseq.arguments import check_blank
from starseq.decode import complete_numba

__all__ = ["Judge", "Judgement"]


class Judgement(NamedTuple):
    """log_p: log P(y|x), summed over all alignments of the transcript y. confidence: one number for each of its tokens."""

    log_p: float
    confidence: tuple[float, ...]


class Judge:
    """Judges transcripts of one utterance.

    The confidence of a token is its share against everything that could stand in its place, all other tokens being as they are:

        P(y|x) / (P(y without it|x) + sum over v of P(y with v for it|x)),        P(y|x) = sum over the alignments of y

    Args:
        log_probs: (T, V) log-probabilities, float32.
        merge_repeats: the collapse: True for CTC and STC, False for published STC and selfless CTC.
        tokens_per_frame: where repeats merge, tokens but the likeliest so many of a frame count as if they lasted for one frame.
        blank: the token that means nothing.

    `top`, (T, k): those likeliest tokens of each frame but the blank, in falling order.

        >>> import torch
        >>> probs = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
        >>> judge = Judge(probs.log(), merge_repeats=False)
        >>> [round(share, 2) for share in judge([1, 2]).confidence]
        [0.67, 0.76]
        >>> [round(share, 2) for share in judge([1, 2], [True, False]).confidence]      # the second is known
        [0.67, 1.0]
    """

    def __init__(self, log_probs: Tensor, *, merge_repeats: bool, tokens_per_frame: int = 50, blank: int = 0) -> None:
        blank = check_blank(blank, log_probs.shape[1])
        self._log_probs, self._blank, self._merge = log_probs.detach().contiguous().numpy(), blank, merge_repeats
        self.top = _likeliest(self._log_probs, blank, min(tokens_per_frame, self._log_probs.shape[1] - 1))
        self._log_star, self._log_rest = _star(self._log_probs, blank, self.top)

    def __call__(self, tokens: Sequence[int] | Any, wanted: Sequence[bool] | Any | None = None) -> Judgement:
        """The judgement on a transcript (n,); a token that is not `wanted` (n,) has confidence 1. Without any probability: 0.
        A token outside of the vocabulary, or the blank, raises ValueError."""
        transcript = np.asarray(tokens, np.int64).reshape(-1)
        vocabulary = self._log_probs.shape[1]
        bad = (transcript < 0) | (transcript >= vocabulary) | (transcript == self._blank)
        if bad.any():
            raise ValueError(
                f"tokens: {transcript[bad][0]} is none of 0..{vocabulary - 1} but the blank, {self._blank}"
            )
        asked = np.ones(len(transcript), np.bool_) if wanted is None else np.asarray(wanted, np.bool_)
        if asked.shape != transcript.shape:
            raise ValueError(f"wanted: expected {len(transcript)} values, got {asked.size}")
        confidence = np.where(asked, 0.0, 1.0)
        log_p = complete_numba.certainty(
            self._log_probs, self._blank, self._merge, self._log_star, self.top, self._log_rest, transcript, asked,
            confidence,
        )  # fmt: skip
        return Judgement(float(log_p), tuple(confidence.tolist()))


def _likeliest(log_probs: Any, blank: int, k: int) -> Any:
    """The k likeliest tokens of each frame but blank, (T, k), in falling order."""
    if k > 256:  # sorting beats inserting
        order = np.argsort(-log_probs, axis=1, kind="stable")
        return order[order != blank].reshape(len(log_probs), -1)[:, :k]
    top = np.empty((len(log_probs), k), np.int64)
    complete_numba.largest(log_probs, blank, top)
    return top


def _star(log_probs: Any, blank: int, top: Any) -> tuple[Any, Any]:
    """The log-sum over the tokens of each frame but blank, (T,), and over those of them that are not in top (T, k)."""
    star = -np.expm1(log_probs[:, blank].astype(np.float64))
    rest = star - np.exp(np.take_along_axis(log_probs, top, axis=1).astype(np.float64)).sum(axis=1)
    if top.shape[1] == log_probs.shape[1] - 1:
        rest[:] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(star.clip(min=0.0)), np.log(rest.clip(min=0.0))
