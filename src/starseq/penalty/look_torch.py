"""What the adaptive penalty sees in a batch, and how it moves, in plain torch: the readable version, on any device.

`look_numba` does the first on the CPU, `look_triton` both on a GPU. All see the same, but for rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from starseq import criteria
from starseq.emissions import vocabulary_torch
from starseq.lattice import banded_torch

THRESHOLD = 0.3
"""something is read at a frame where the best token comes to more than this against the blank"""
KEPT = 0.9
"""of the counts, from look to look"""
FIRST_SURE = 0.2
"""while labels have less probability than this on average, nothing has been read, and p stays where it begins"""
FORGETS = 32.0
"""the power of `sure` by which what was missing is held"""


def look(
    x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, open_gaps: Tensor | None, log_odds: Tensor, blank: int
) -> Tensor:
    """What each utterance adds to `AdaptivePenalty.counts`, (N, 5): nothing where it has no label, or no path.

    x: (B, T, V), logits. targets: (B, U). frames, labels: (B,) lengths. open_gaps: (B, U+1) or None. log_odds: () of p.

    Labels lie where the best path of the published graph, whose tokens do not last, puts them.
    """
    if not (x.numel() and targets.numel()):
        return x.new_zeros(1, 5, dtype=torch.float32)
    token, begins = find_read(x, frames, threshold=THRESHOLD, blank=blank)
    log_penalty = nn.functional.logsigmoid(log_odds).float().to(x.device).expand(len(x), targets.shape[1] + 1)
    topology, tokens = criteria.load("stc")(targets, labels, blank=blank, log_penalty=log_penalty, merge_repeats=False)
    arcs = vocabulary_torch.scores(x, tokens, topology, frames, normalized=True)
    path, _ = banded_torch.viterbi(arcs.stay, arcs.enter, topology, frames)
    is_label = path > nn.functional.pad(path[:, :-1], (1, 0))
    probability = arcs.enter.gather(2, path.clamp(min=0)[:, :, None])[:, :, 0].exp().masked_fill(~is_label, 0)
    known = is_label.sum(dim=1)
    gaps = known.to(probability.dtype)
    if open_gaps is not None:
        inside = torch.arange(targets.shape[1] + 1, device=x.device) <= labels[:, None]
        gaps = gaps * (open_gaps.to(x.device) & inside).sum(dim=1) / (labels + 1)
    read = begins.sum(dim=1).masked_fill(known == 0, 0)
    is_found = is_label & (token != blank)
    return torch.stack([n.to(gaps) for n in (is_found.sum(dim=1), read, known, gaps, probability.sum(dim=1))], dim=1)


def move(
    found: Tensor,
    log_odds: Tensor,
    counts: Tensor,
    record: Tensor,
    p_min: float,
    p_max: float,
    rate: float,
    share: float,
) -> None:
    """Adds what was found, (N, 5), to the counts, and moves p towards what these say: see `AdaptivePenalty`.

    share: of a look. Changes log_odds, counts and record.
    """
    counts.mul_(KEPT**share).add_(found.sum(dim=0).to(counts) * share)
    found, read, labels, gaps, probability = counts
    known = labels.clamp(min=1)
    missing = 1 - (found / known) ** 2 * gaps / (gaps + (read - found).clamp(min=0)).clamp(min=1e-9)
    sure, (top, held) = (probability / known).clamp(max=1), record
    # The share of the past that is forgotten: most of it, whenever labels become a tenth surer.
    past = (top / torch.maximum(sure, top)) ** FORGETS
    held = past * held + (1 - past) * missing
    record.copy_(torch.stack((torch.maximum(sure, top), held)))
    wanted = (held + (held - missing).clamp(min=0)).clamp(1e-6, 0.95)
    p = (wanted ** (1 / (1 + 1.75 * record[0] ** 6))).clamp(p_min, p_max)
    step = (torch.logit(p) - log_odds).clamp(-rate * share, rate * share)
    log_odds += torch.where((gaps > 0) & (record[0] > FIRST_SURE), step, 0.0)  # nothing observed says nothing


def find_read(
    logits: Tensor, input_lengths: Tensor, *, threshold: float = 0.5, blank: int = 0
) -> tuple[Tensor, Tensor]:
    """What a model reads at each frame, (B, T): its best token where that comes to more than `threshold` against the blank alone,
    else the blank; and where a token begins: the same one in neighbouring frames is read once.

    >>> logits = torch.tensor([[[0.0, 9.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]]])
    >>> find_read(logits, torch.tensor([4]))
    (tensor([[1, 1, 2, 0]]), tensor([[ True, False,  True, False]]))
    """
    best = logits.new_full(logits.shape[:2], -math.inf)
    token = torch.full_like(best, blank, dtype=torch.int64)
    for first, part in ((0, logits[..., :blank]), (blank + 1, logits[..., blank + 1 :])):
        if part.shape[2]:
            top, index = part.max(dim=2)
            token = torch.where(top > best, index + first, token)
            best = torch.maximum(top, best)
    inside = torch.arange(logits.shape[1], device=logits.device) < input_lengths[:, None]
    is_read = inside & (best.float() - logits[..., blank].float() > math.log(threshold / (1 - threshold)))
    token = torch.where(is_read, token, blank)
    return token, is_read & (token != nn.functional.pad(token[:, :-1], (1, 0), value=blank))
