"""Sums over graphs in which inserted tokens last, in plain torch: the readable version, on any device.

The states of a row are those of `Gaps`. With `rest` the sum over a row's states, and `but(v)` that over those where v does not
stand:

    alpha[t+1, l, v]     = P_t(v) * (alpha[t, l, v] + p_l * but_l(v))
    alpha[t+1, l, blank] = P_t(blank) * rest_l
    alpha[t+1, l, label] = P_t(y_l) * (alpha[t, l, label] + but_{l-1}(y_l))

but(v) would be another sum for every v. Instead (1 - p) * alpha[v] + p * (rest, without the label if that is v) is computed: it
is the same, and nothing cancels in it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from starseq.lattice.gaps import NONE, Gaps, rows_of


def posteriors(
    x: Tensor, gaps: Gaps, lengths: Tensor, *, backward: bool = True, exact: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """log_z (B,), the posterior of every token at every frame (B, T, V), and the expected insertions of every gap (B, U+1).

    x: (B, T, V), log-probabilities or other log-scores. lengths: (B,) frames. Nothing past frames and labels is read. Without
    `backward` the last two are empty; past the frames, and where there is no path, they are 0. All have x's type. Without `exact` a
    backend may compute the corrections of log-sums in float32; this one does not.
    """
    rows = _Rows(x, gaps)
    log_alpha = _forward(rows, lengths)
    log_z = rows.log_z(log_alpha)
    if not backward:
        return log_z, log_z.new_empty(0), log_z.new_empty(0)
    after = _backward(rows, lengths)[:, 1:] - torch.where(log_z == -torch.inf, torch.inf, log_z)[:, None, None, None]
    inside = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
    states = (log_alpha[:, 1:] + after).exp()
    of_tokens = states[..., :-1].sum(dim=2)
    labels = rows.label.clamp(min=0)[:, None].expand(*states.shape[:3])
    of_tokens.scatter_add_(2, labels, states[..., -1])  # rows without a label have no such state
    stood, begun = log_alpha[:, :-1, :, :-1], rows.x[:, :, None] + after[..., :-1] + rows.weight[:, None]
    totals = torch.stack([rows.totals(before) for before in log_alpha[:, :-1].unbind(1)], 1) if x.shape[1] else stood
    # A token begins wherever another one stands.
    begins = (totals + begun).exp() - (stood + begun).exp()
    inserted = begins.sum(dim=3).masked_fill(~inside, 0).sum(dim=1)
    return log_z, of_tokens.masked_fill(~inside, 0), inserted


def forward_backward(x: Tensor, gaps: Gaps, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-sums over all paths into, and out of, every state: log_alpha, log_beta (B, T+1, U+1, V+1) and log_z (B,).

    exp(log_alpha + log_beta - log_z) is the posterior of a state after a frame.
    """
    rows = _Rows(x, gaps)
    log_alpha = _forward(rows, lengths)
    return log_alpha, _backward(rows, lengths), rows.log_z(log_alpha)


def viterbi(x: Tensor, gaps: Gaps, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row and the place, see `Gaps`, after every frame of the best path, (B, T) each, and its log-score (B,).

    A path weighs what its frames do, and p for every token that begins. -1 stands past the frames, and where there is no path.
    Of equals standing still is best.
    """
    rows, frames = _Rows(x, gaps), x.shape[1]
    best, steps = rows.start, []
    for t in range(frames):
        after, step = _best_step(rows, best, t)
        best = torch.where((t < lengths)[:, None, None], after, best)
        steps.append(step)
    log_score, place = (best + rows.end).flatten(1).max(dim=1)
    row, place = place // best.shape[2], place % best.shape[2]
    path = torch.full((2, len(x), frames), NONE, device=x.device)
    for t in reversed(range(frames)):
        inside = (t < lengths) & (log_score > -torch.inf)
        path[:, :, t] = torch.where(inside, torch.stack([row, place]), NONE)
        row_before, place_before = steps[t].back(row, place)
        row, place = torch.where(inside, row_before, row), torch.where(inside, place_before, place)
    return path[0], path[1], log_score


class _Step(NamedTuple):
    """Where the best path to every state comes from, at one frame: tokens that begin in a row all come from the same place."""

    stays: Tensor  # (B, U+1, V+1), whether it stood before
    begins: Tensor  # (B, U+1), the place that a token comes from
    enters: Tensor  # (B, U+1), the place in the row before that the label comes from

    def back(self, row: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """The row and the place before those given, (B,) each."""
        b = torch.arange(len(row), device=row.device)
        stays, is_label = self.stays[b, row, place], place == self.stays.shape[2] - 1
        before = torch.where(is_label, self.enters[b, row], self.begins[b, row])
        return row - (is_label & ~stays).long(), torch.where(stays, place, before)


def _best_step(rows: _Rows, before: Tensor, t: int) -> tuple[Tensor, _Step]:
    (of_tokens, begins), label = before[..., :-1].max(dim=2), before[..., -1]
    # As p is at most 1, a token need not be kept from beginning where it stands: to go on is no worse. Nor need `begins` be kept
    # from leading the label to its own token: where the label is best, to go on with it is better.
    begins = begins.masked_fill(label > of_tokens, before.shape[2] - 1)
    highest = torch.where(rows.is_label, of_tokens[..., None], torch.maximum(of_tokens, label)[..., None])
    going_on, enters = before.masked_fill(~rows.may_go_on, -torch.inf).max(dim=2)
    going_on = torch.nn.functional.pad(going_on, (1, -1), value=-torch.inf)
    others = torch.cat([rows.begins + highest, going_on[..., None]], dim=2)
    step = _Step(before >= others, begins, torch.nn.functional.pad(enters, (1, -1), value=NONE))
    return torch.maximum(before, others) + rows.consumed(t), step


class _Rows:
    """What the states of all rows consume, and at what weight, of every frame alike: (B, U+1, V) or (B, U+1)."""

    def __init__(self, x: Tensor, gaps: Gaps) -> None:
        self.x = x
        row, token = torch.arange(gaps.labels.shape[1] + 1, device=x.device), torch.arange(x.shape[2], device=x.device)
        exists = row <= gaps.counts[:, None]
        self.label, self.following, left_out = rows_of(gaps, x.shape[2])
        log_p = gaps.weight.to(x.dtype).masked_fill(~exists, -torch.inf)[:, :, None]
        inserts = (token != gaps.blank) & (token != left_out[:, :, None])
        self.weight = torch.where(inserts, log_p, -torch.inf)
        self.begins = torch.where(exists[:, :, None] & (token == gaps.blank), 0.0, self.weight)
        self.stays = torch.where(self.weight > -torch.inf, torch.log(-torch.expm1(log_p)), -torch.inf)
        self.is_label = token == self.label[:, :, None]
        stands = torch.cat([token.expand_as(self.is_label), self.label[:, :, None]], dim=2)
        self.may_go_on = (self.following[:, :, None] != NONE) & (stands != self.following[:, :, None])
        start, end = torch.zeros_like(self.may_go_on), (row == gaps.counts[:, None])[:, :, None]
        start[:, 0, gaps.blank] = True
        self.start, self.end = _log(start, x), _log(end.expand_as(start), x)

    def consumed(self, t: int) -> Tensor:
        """The score of what each state consumes at frame t, (B, U+1, V+1)."""
        x = self.x[:, t]
        label = x.gather(1, self.label.clamp(min=0)).masked_fill(self.label == NONE, -torch.inf)
        return torch.cat([x[:, None].expand_as(self.is_label), label[:, :, None]], dim=2)

    def totals(self, before: Tensor) -> Tensor:
        """(B, U+1, V): the sum over a row's states, without the label where that is the token."""
        without, rest = _sum(before[..., :-1])[..., None], _sum(before)[..., None]
        return torch.where(self.is_label, without, rest)

    def log_z(self, log_alpha: Tensor) -> Tensor:
        return _sum((log_alpha[:, -1] + self.end).flatten(1))


def _forward(rows: _Rows, lengths: Tensor) -> Tensor:
    frames = rows.x.shape[1]
    log_alpha = rows.start[:, None].repeat(1, frames + 1, 1, 1)
    for t in range(frames):
        before = log_alpha[:, t]
        gap = torch.logaddexp(before[..., :-1] + rows.stays, rows.begins + rows.totals(before))
        going_on = _sum(before.masked_fill(~rows.may_go_on, -torch.inf))
        label = torch.logaddexp(before[..., -1], torch.nn.functional.pad(going_on, (1, -1), value=-torch.inf))
        after = torch.cat([gap, label[..., None]], dim=2) + rows.consumed(t)
        log_alpha[:, t + 1] = torch.where((t < lengths)[:, None, None], after, before)
    return log_alpha


def _backward(rows: _Rows, lengths: Tensor) -> Tensor:
    frames = rows.x.shape[1]
    log_beta = rows.end[:, None].repeat(1, frames + 1, 1, 1)
    for t in reversed(range(frames)):
        after = log_beta[:, t + 1] + rows.consumed(t)
        begins = rows.begins + after[..., :-1]
        from_label = _sum(begins.masked_fill(rows.is_label, -torch.inf))
        from_tokens = _sum(begins)[..., None].expand_as(begins)
        going_on = torch.nn.functional.pad(after[..., -1], (-1, 1), value=-torch.inf)[..., None]
        stays = torch.cat([rows.stays + after[..., :-1], after[..., -1:]], dim=2)
        others = torch.cat([from_tokens, from_label[..., None]], dim=2)
        before = torch.logaddexp(torch.logaddexp(stays, others), going_on.masked_fill(~rows.may_go_on, -torch.inf))
        log_beta[:, t] = torch.where((t < lengths)[:, None, None], before, log_beta[:, t + 1])
    return log_beta


_sum = functools.partial(torch.logsumexp, dim=-1)


def _log(mask: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf)
