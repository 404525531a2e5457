"""Scores of a label graph's arcs from logits, and the gradient back, in plain torch: the readable version, on any device.

In linear terms, with P = softmax(logits) or exp(logits):

    enter[t, s] = P_t(enter token of s)
    stay[t, s]  = P_t(stay token of s) + weight_s * sum of P_t(v) over all v but blank and the token that s leaves out

The sums "all but one" are made by not adding, never by subtracting what dominates: see docs/algorithm.md, "Leaving one out".
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.emissions.tokens import NONE, Scores, Tokens
from starseq.lattice.banded_torch import outside
from starseq.lattice.topology import Topology


def scores(
    logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, *, normalized: bool, star: bool = False
) -> Scores:
    """Scores of all arcs. logits: (B, T, V). With `normalized` a log-softmax comes first; with `star` its part is kept."""
    x, norm = log_scores(logits, lengths, normalized)
    enters, stays, left_out = _whole(tokens, topology)
    enter, stay = _gather(x, enters), _gather(x, stays)
    if tokens.star_weight is None:
        return Scores(stay, enter, stay.new_empty(0), norm)
    log_star = tokens.star_weight.to(x.dtype)[:, None] + _star_except(x, left_out, tokens.blank)
    return Scores(torch.logaddexp(stay, log_star), enter, log_star if star else stay.new_empty(0), norm)


def gradient(
    grad: Tensor, logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, norm: Tensor,
    log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, *, normalized: bool,
) -> Tensor:  # fmt: skip
    """grad * d(-log_z)/d logits, shaped, typed and laid out as the logits. grad: (B,), one factor an utterance.

    An utterance without any path (log_z = -inf) has gradient 0, one with log_z = NaN has gradient NaN.
    """
    x = _wide(logits, lengths) - norm[:, :, None]
    outside_stay, outside_enter = outside(log_alpha, log_beta, log_z, topology)

    result = x.exp() if normalized else torch.zeros_like(x)  # the posteriors of each frame sum to one
    enter, stay, left_out = _whole(tokens, topology)
    if tokens.star_weight is not None:
        weighted = (outside_stay + tokens.star_weight[:, None]).masked_fill(outside_stay == -torch.inf, -torch.inf)
        # Past the states a weight may be NaN.
        result = result - (x + _log_holding(left_out, weighted, x.shape[2], tokens.blank)).exp()
    arcs, around = torch.cat([stay, enter], dim=1), torch.cat([outside_stay, outside_enter], dim=2)
    return for_logits(result - _arc_posteriors(x, arcs, around), grad, logits, lengths, log_z)


def for_logits(result: Tensor, grad: Tensor, logits: Tensor, lengths: Tensor, log_z: Tensor) -> Tensor:
    """grad * result, (B, T, V), as the gradient of the logits: theirs in type and layout, 0 past the lengths and without a path."""
    result = result * grad.to(result.dtype)[:, None, None]
    result = result.masked_fill((log_z == -torch.inf)[:, None, None], 0).masked_fill(
        log_z.isnan()[:, None, None], torch.nan
    )
    past = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
    return torch.empty_like(logits).copy_(result.masked_fill(past[:, :, None], 0))


def _whole(tokens: Tokens, topology: Topology) -> tuple[Tensor, Tensor, Tensor]:
    """What each state's entering arcs consume, its self-loop, and what its star leaves out, with nothing left unsaid."""
    nothing = torch.full_like(tokens.enter, NONE)
    enter, stay = tokens.enter, tokens.stay
    if stay is None:
        enter, stay = enter.masked_fill(enter == tokens.blank, NONE), torch.full_like(enter, tokens.blank)
    left_out = nothing if tokens.star_except is None else tokens.star_except
    last = torch.arange(enter.shape[1], device=enter.device) >= topology.num_states[:, None] - 1
    left_out = left_out.masked_fill(last | (left_out == tokens.blank), NONE)
    return enter, stay, left_out


def log_scores(logits: Tensor, lengths: Tensor, normalized: bool) -> tuple[Tensor, Tensor]:
    """log P, (B, T, V), and the log of the sum over the vocabulary that was taken off, (B, T): 0 for scores as they are."""
    x = _wide(logits, lengths)
    norm = torch.logsumexp(x, dim=2) if normalized else x.new_zeros(x.shape[:2])
    norm = norm.masked_fill(norm == -torch.inf, 0)  # a frame without any mass: every score stays -inf
    return x - norm[:, :, None], norm


def _wide(logits: Tensor, lengths: Tensor) -> Tensor:
    """The logits in double precision (single where a device has no other), with zeros past the lengths."""
    x = logits.to(torch.float32 if logits.device.type == "mps" else torch.float64)
    past = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(past[:, :, None], 0)


def _gather(x: Tensor, tokens: Tensor) -> Tensor:
    """x (B, T, V) at tokens (B, S): (B, T, S), with -inf for impossible tokens."""
    possible = _possible(tokens, x.shape[2])
    index = tokens.masked_fill(~possible, 0).long()[:, None].expand(-1, x.shape[1], -1)
    return x.gather(2, index).masked_fill(~possible[:, None], -torch.inf)


def _arc_posteriors(x: Tensor, arcs: Tensor, log_outside: Tensor) -> Tensor:
    """(B, T, V): the posterior of each token on arcs that consume `arcs`, (B, A), with `log_outside`, (B, T, A), around them."""
    vocabulary = x.shape[2]
    posteriors = (_gather(x, arcs) + log_outside).exp()
    summed = posteriors @ _same(arcs, vocabulary).to(x.dtype)
    # Each token once; the rest go to a spare column.
    index = _first_or(arcs, vocabulary)[:, None].expand(-1, x.shape[1], -1)
    return x.new_zeros(*x.shape[:2], vocabulary + 1).scatter(2, index, summed)[:, :, :vocabulary]


def _possible(tokens: Tensor, vocabulary: int) -> Tensor:
    return (tokens >= 0) & (tokens < vocabulary)


def _same(tokens: Tensor, vocabulary: int) -> Tensor:
    """(B, S, S): whether two places hold the same possible token."""
    return (tokens[:, :, None] == tokens[:, None, :]) & _possible(tokens, vocabulary)[:, None, :]


def _first_or(tokens: Tensor, other: int) -> Tensor:
    """The tokens (B, S) where each stands for the first time, `other` elsewhere."""
    again = _same(tokens, other).tril(-1).any(dim=2)
    return tokens.masked_fill(again | ~_possible(tokens, other), other).long()


def _holds_largest(sizes: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """(B, T, S): whether a place holds the token that has the largest of `sizes` (B, T, S) at that frame."""
    largest = tokens[:, None].expand_as(sizes).gather(2, sizes.argmax(dim=2, keepdim=True))
    return (tokens[:, None] == largest) & _possible(tokens, vocabulary)[:, None]


def _star_except(x: Tensor, tokens: Tensor, blank: int) -> Tensor:
    """(B, T, S): the log-sum over all tokens but blank and the one given for each state."""
    blanks = torch.arange(x.shape[2], device=x.device) == blank
    x = x.masked_fill(blanks, -torch.inf)
    top, place = x.max(dim=2, keepdim=True)
    # At most one token can hold more than half of the star: that one is left out by adding up the others.
    others = torch.logsumexp(x.scatter(2, place, -torch.inf), dim=2, keepdim=True)
    star = torch.logaddexp(others, top)
    left_out = _gather(x, tokens)
    share = (left_out - star).exp().masked_fill(left_out == -torch.inf, 0)
    return torch.where(left_out == top, others, star + torch.log1p(-share))


def _log_holding(tokens: Tensor, log_outside: Tensor, vocabulary: int, blank: int) -> Tensor:
    """(B, T, V): for each token the log-sum of `log_outside`, (B, T, S), over the stars that hold it: that do not leave it out."""
    top = log_outside.max(dim=2, keepdim=True).values.clamp(min=torch.finfo(log_outside.dtype).min)
    sizes = (log_outside - top).exp()
    total = sizes.sum(dim=2, keepdim=True)
    own = sizes @ _same(tokens, vocabulary).to(sizes.dtype)
    largest = _holds_largest(own, tokens, vocabulary)
    others = torch.logsumexp(log_outside.masked_fill(largest, -torch.inf), dim=2, keepdim=True)
    of_left_out = torch.where(largest, others, top + (total - own).log())

    result = (top + total.log()).repeat(1, 1, vocabulary + 1)
    result[:, :, blank] = -torch.inf
    index = _first_or(tokens, vocabulary)[:, None].expand(-1, top.shape[1], -1)
    return result.scatter(2, index, of_left_out)[:, :, :vocabulary]
