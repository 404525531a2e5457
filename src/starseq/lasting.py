"""Where tokens begin: what a model gives out, so that a token which lasts for several frames is one.

STC reads a token in every frame that is no blank: one that lasts for three frames is three. So its models must decide on a single
frame, which is harder to learn than what CTC asks. Here a token of frame t that was there at t-1 is the same token still:

    Q_t(v)     = P_t(v) * (1 - P_{t-1}(v))                        it begins
    Q_t(blank) = P_t(blank) + sum over v of P_t(v) * P_{t-1}(v)   nothing begins

These are probabilities again: any loss takes them, any decoder reads them, and no kernel knows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.arguments import check_logits

__all__ = ["onsets"]


def onsets(logits: Tensor, *, blank: int = 0, batch_first: bool = False) -> Tensor:
    """The log-probabilities that each token begins in a frame, from logits or log-probabilities of its being there.

    logits: (T, B, V), (B, T, V) with `batch_first`, or (T, V). Half precisions give float32. A token that is sure to be there at
    t-1 begins at t with a probability of the precision's last digit, not with none: so there is a gradient that can undo it.

        >>> sure = torch.tensor([[-50.0, 50.0, -50.0], [-50.0, 50.0, -50.0], [-50.0, -50.0, 50.0]])       # a a b
        >>> onsets(sure).exp().round(decimals=3).tolist()                                                # a, nothing, b
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    vocabulary = check_logits(logits)[-1]
    if not 0 <= blank < vocabulary:
        raise ValueError(f"blank: {blank} is not in 0..{vocabulary - 1}")
    time = 1 if batch_first and logits.dim() == 3 else 0
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_p = logits.log_softmax(-1, dtype=dtype)
    p = log_p.exp()
    frames = p.shape[time]
    nothing = torch.zeros_like(p.narrow(time, 0, min(frames, 1)))
    before = torch.cat((nothing, p.narrow(time, 0, max(frames - 1, 0))), time)
    begins = log_p + torch.log1p(-before * (1 - torch.finfo(dtype).eps))
    lasts = (p * before).sum(-1) + (p * (1 - before)).select(-1, blank)  # for blank both are blank
    is_blank = torch.arange(vocabulary, device=p.device) == blank
    return torch.where(is_blank, lasts.clamp(min=torch.finfo(dtype).tiny).log()[..., None], begins)
