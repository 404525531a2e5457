"""Where tokens begin: what a model gives out, so that a token which lasts for several frames is one.

STC reads a token in every frame that is no blank: one that lasts for three frames is three. So its models must decide on a single
frame, which is harder to learn than what CTC asks. Here a token of frame t that was there at t-1 is the same token still:

    Q_t(v)     = P_t(v) * (1 - P_{t-1}(v))                        it begins
    Q_t(blank) = P_t(blank) + sum over v of P_t(v) * P_{t-1}(v)   nothing begins

These are probabilities again: any loss takes them, any decoder reads them, and no kernel knows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from starseq.arguments import check_blank, check_logits

__all__ = ["onsets"]


def onsets(logits: Tensor, *, blank: int = 0, batch_first: bool = False) -> Tensor:
    """The log-probabilities that each token begins in a frame, from logits or log-probabilities of its being there.

    logits: (T, B, V), (B, T, V) with `batch_first`, or (T, V). Half precisions give float32. A frame of -inf alone, which no token
    fits, stays one.

        >>> sure = torch.tensor([[-50.0, 50.0, -50.0], [-50.0, 50.0, -50.0], [-50.0, -50.0, 50.0]])       # a a b
        >>> onsets(sure).exp().round(decimals=3).tolist()                                                # a, nothing, b
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    vocabulary = check_logits(logits)[-1]
    blank = check_blank(blank, vocabulary)
    time = 1 if batch_first and logits.dim() == 3 else 0
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    impossible = (logits == -math.inf).all(-1, keepdim=True)
    log_p = logits.masked_fill(impossible, 0.0).log_softmax(-1, dtype=dtype).masked_fill(impossible, -math.inf)

    # 1 - P of the likeliest token would lose what the others hold: it is their sum. Of any other token P is at most 1/2.
    top = log_p.argmax(-1, keepdim=True)
    others = log_p.scatter(-1, top, -math.inf)
    log_not = torch.log1p(-others.exp()).scatter(-1, top, _log_sum(others)).masked_fill(impossible, 0.0)

    is_blank = torch.arange(vocabulary, device=log_p.device) == blank
    begins = log_p + _one_later(log_not, time, first=0.0)
    lasts = log_p + _one_later(log_p, time, first=-math.inf).masked_fill(is_blank, 0.0)
    return torch.where(is_blank, _log_sum(lasts), begins)


def _one_later(x: Tensor, time: int, *, first: float) -> Tensor:
    """What was a frame before, and `first` in the first frame."""
    frames = x.shape[time]
    start = torch.full_like(x.narrow(time, 0, min(frames, 1)), first)
    return torch.cat((start, x.narrow(time, 0, max(frames - 1, 0))), time)


def _log_sum(x: Tensor) -> Tensor:
    """Of the last dimension, which is kept. Where all are -inf so is the sum, and there is no gradient."""
    empty = (x == -math.inf).all(-1, keepdim=True)
    return x.masked_fill(empty, 0.0).logsumexp(-1, keepdim=True).masked_fill(empty, -math.inf)
