"""Scores of a label graph's arcs whose inserted tokens may last, and the gradient back, in plain torch, for every backend.

With P = softmax(logits), a token of frame t that stood at t-1 is the same token still, one that did not begins:

    begins[t, v] = P_t(v) * (1 - P_{t-1}(v))
    lasts[t, v]  = P_t(v) * P_{t-1}(v)

A state with a star is entered by a token that begins, at the star's weight; it stays by one, or, for nothing, by one that lasts:

    enter[t, s] = P_t(enter token of s) + weight_s * sum of begins[t, v]
    stay[t, s]  = P_t(stay token of s)  + weight_s * sum of begins[t, v] + sum of lasts[t, v]

over all v but blank and the token that s leaves out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.emissions.tokens import Scores, Tokens
from starseq.emissions.vocabulary_torch import (
    arc_posteriors,
    for_logits,
    gather,
    log_holding,
    log_scores,
    star_except,
    whole,
)
from starseq.lattice.banded_torch import outside
from starseq.lattice.topology import Topology


def scores(
    logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, *, normalized: bool, star: bool = False
) -> Scores:
    """Scores of all arcs. logits: (B, T, V). With `star` the part of tokens that begin is kept."""
    x, norm = log_scores(logits, lengths, normalized)
    begins, lasts = begins_and_lasts(x)
    enters, stays, left_out = whole(tokens, topology)
    weight, is_open = _stars(tokens)
    log_begins = weight.to(x.dtype)[:, None] + star_except(begins, left_out, tokens.blank)
    log_lasts = star_except(lasts, left_out, tokens.blank).masked_fill(~is_open[:, None], -torch.inf)
    enter = torch.logaddexp(gather(x, enters), log_begins)
    stay = torch.logaddexp(torch.logaddexp(gather(x, stays), log_begins), log_lasts)
    return Scores(stay, enter, log_begins if star else stay.new_empty(0), norm)


def gradient(
    grad: Tensor, logits: Tensor, tokens: Tokens, topology: Topology, lengths: Tensor, norm: Tensor,
    log_alpha: Tensor, log_beta: Tensor, log_z: Tensor, *, normalized: bool,
) -> Tensor:  # fmt: skip
    """grad * d(-log_z)/d logits, shaped, typed and laid out as the logits. grad: (B,), one factor an utterance.

    An utterance without any path (log_z = -inf) has gradient 0, one with log_z = NaN has gradient NaN.
    """
    x, _ = log_scores(logits, lengths, normalized)
    begins, lasts = begins_and_lasts(x)
    outside_stay, outside_enter = outside(log_alpha, log_beta, log_z, topology)
    enters, stays, left_out = whole(tokens, topology)
    weight, is_open = _stars(tokens)
    arcs, around = torch.cat([stays, enters], dim=1), torch.cat([outside_stay, outside_enter], dim=2)
    either = torch.logaddexp(outside_stay, outside_enter)
    # Past the states a weight may be NaN.
    around_begins = (either + weight.to(x.dtype)[:, None]).masked_fill(either == -torch.inf, -torch.inf)
    around_lasts = outside_stay.masked_fill(~is_open[:, None], -torch.inf)

    holding_begins = log_holding(left_out, around_begins, x.shape[2], tokens.blank)
    lasting = (lasts + log_holding(left_out, around_lasts, x.shape[2], tokens.blank)).exp()
    posteriors = arc_posteriors(x, arcs, around) + (begins + holding_begins).exp() + lasting
    # What frame t says of t-1: there a token stands that lasts, and any but one that begins, for 1 - P is the sum of the others.
    before = lasting[:, 1:] + (x[:, :-1] + _log_others((x + holding_begins)[:, 1:])).exp()
    past = torch.arange(x.shape[1], device=x.device)[1:] >= lengths[:, None]
    posteriors[:, :-1] += before.masked_fill(past[:, :, None], 0)
    result = -posteriors
    if normalized:
        result = result + x.exp() * posteriors.sum(dim=2, keepdim=True)
    return for_logits(result, grad, logits, lengths, log_z)


def begins_and_lasts(x: Tensor) -> tuple[Tensor, Tensor]:
    """log(P_t * (1 - P_{t-1})) and log(P_t * P_{t-1}) of x = log P, (B, T, V). Before the first frame nothing stood."""
    log_not = _log_others(x).masked_fill(
        (x == -torch.inf).all(dim=2, keepdim=True), 0
    )  # nothing stands without any mass
    was_not = torch.nn.functional.pad(log_not, (0, 0, 1, -1)) if x.shape[1] else log_not
    was = torch.nn.functional.pad(x, (0, 0, 1, -1), value=-torch.inf) if x.shape[1] else x
    return x + was_not, x + was


def _log_others(x: Tensor) -> Tensor:
    """(B, T, V): for each token the log-sum over all others."""
    # The largest is left out by adding up the others: a difference would lose what they hold. Any other is at most half of all.
    top, place = x.max(dim=2, keepdim=True)
    others = torch.logsumexp(x.scatter(2, place, -torch.inf), dim=2, keepdim=True)
    total = torch.logaddexp(top, others)
    share = (x - total).exp().masked_fill(x == -torch.inf, 0)
    return (total + torch.log1p(-share)).scatter(2, place, others)


def _stars(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The stars' weights, (B, S), and whether a state has one."""
    assert tokens.star_weight is not None
    return tokens.star_weight, tokens.star_weight != -torch.inf
