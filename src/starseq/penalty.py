"""The insertion penalty and how it changes while training goes on: by the published schedule, or by what the model reads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from starseq.arguments import (
    Lengths,
    backend_for,
    batch_of,
    check_blank,
    check_values,
    lengths_of,
    padded_targets,
    whole,
)
from starseq.op.separate import best_path
from starseq.op.setting import Setting


class InsertionPenalty(nn.Module):
    r"""The published schedule of the star's weight p, as its logarithm:

        lambda(t) = log(p_max + (p0 - p_max) * 2^(-t / half_life)),    t in optimiser steps

    `penalty(step)` is pure and returns a float-valued 0-d tensor; `penalty()` reads the saved step and stays a tensor, so
    that compiled code and CUDA graphs see it change. Call `advance()` once after every optimiser step, not after every
    backward: accumulating gradients does not move the schedule. The step is in `state_dict`, so a resumed run goes on.

        >>> penalty = InsertionPenalty(p0=0.5, p_max=0.9, half_life=10_000)
        >>> round(penalty().exp().item(), 4)
        0.5
        >>> round(penalty(10_000).exp().item(), 4)
        0.7
        >>> penalty.advance()
        >>> penalty.state_dict()["step"]
        tensor(1)

    Raises ValueError unless 0 < p0 <= 1, 0 < p_max <= 1 and half_life > 0.
    """

    step: Tensor

    def __init__(self, p0: float, p_max: float, half_life: float) -> None:
        super().__init__()
        for name, value in (("p0", p0), ("p_max", p_max)):
            if not 0 < value <= 1:
                raise ValueError(f"{name}: {value} is not a probability in (0, 1]")
        if not (half_life > 0 and math.isfinite(half_life)):
            raise ValueError(f"half_life: {half_life} is not a positive number of steps")
        self.p0, self.p_max, self.half_life = float(p0), float(p_max), float(half_life)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Back to the beginning: for who makes modules without memory and fills them later."""
        self.step.zero_()

    def forward(self, step: int | Tensor | None = None) -> Tensor:
        """lambda at `step`, by default the saved one: a 0-d float32 tensor."""
        if step is None:
            step = self.step
        elif not isinstance(step, Tensor):
            step = torch.tensor(step, device=self.step.device)
        # In float64: float32 would stop moving when the remaining difference falls under 1e-7.
        decay = torch.exp2(-step.double() / self.half_life)
        return torch.log(self.p_max + (self.p0 - self.p_max) * decay).float()

    @torch.no_grad()
    def advance(self) -> None:
        """One optimiser step is done."""
        self.step += 1

    def extra_repr(self) -> str:
        return f"p0={self.p0:g}, p_max={self.p_max:g}, half_life={self.half_life:g}"


class AdaptivePenalty(nn.Module):
    r"""The star's weight p, as its logarithm, tuned while training goes on: what the model reads against what the labels have.

        p = 1 - r^2 U / max(N, U)             the share of tokens that seem to be missing

    N tokens are read and U labels there; r is the share of the labels at which something is read.

    Call `observe` with a batch of every step, or of every few, and `advance` after every optimiser step. Counts are summed over the
    processes of `torch.distributed`. Nothing waits for the device, and everything is in `state_dict`.

    Args:
        p0: where p begins.
        p_min, p_max: p stays between them.
        rate: the log-odds of p move by no more at a step.
        window: counts are those of the last so many steps.
        threshold: something is read at a frame where the best token comes to more than this against the blank; the same token in
            neighbouring frames is read once.
        blank: that of the loss.

    Raises ValueError for a probability outside (0, 1), p0 outside [p_min, p_max], a rate that is not positive, a window under 1,
    and a blank below 0.

        >>> penalty = AdaptivePenalty()
        >>> round(penalty().exp().item(), 4)
        0.9
        >>> logits = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 0.0, 9.0]]])     # reads 1, 2
        >>> for _ in range(300):
        ...     penalty.observe(logits, torch.tensor([[2]]), (4,), (1,), batch_first=True)
        ...     penalty.advance()
        >>> round(penalty().exp().item(), 4)      # half of the tokens are missing
        0.5
    """

    log_odds: Tensor
    counts: Tensor
    """(3,): labels at which something is read, tokens read, labels; of the last steps."""
    step: Tensor

    def __init__(
        self,
        p0: float = 0.9,
        p_min: float = 0.02,
        p_max: float = 0.95,
        rate: float = 0.01,
        window: float = 100.0,
        threshold: float = 0.3,
        blank: int = 0,
    ) -> None:
        super().__init__()
        shares = {"p0": p0, "p_min": p_min, "p_max": p_max, "threshold": threshold}
        for name, value in shares.items():
            if not 0 < value < 1:
                raise ValueError(f"{name}: {value} is not a probability in (0, 1)")
        if not p_min <= p0 <= p_max:
            raise ValueError(f"p0: {p0} is not between p_min {p_min} and p_max {p_max}")
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate: {rate} is not a positive number")
        if not (window >= 1 and math.isfinite(window)):
            raise ValueError(f"window: {window} is not a number of steps")
        if whole("blank", blank) < 0:
            raise ValueError(f"blank: {blank} is not a token")
        self.p0, self.p_min, self.p_max, self.rate, self.window = p0, p_min, p_max, rate, window
        self.threshold, self.blank = threshold, blank
        self.register_buffer("log_odds", torch.tensor(_log_odds(p0), dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self._upcoming = torch.zeros_like(self.counts)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Back to the beginning: for who makes modules without memory and fills them later."""
        self.log_odds.fill_(_log_odds(self.p0))
        self.counts.zero_()
        self.step.zero_()
        self.upcoming.zero_()

    @property
    def upcoming(self) -> Tensor:
        """As `counts`, since the last step. Saved, but no buffer: DDP copies those from the first process at every forward."""
        if (
            self._upcoming.is_meta and not self.counts.is_meta
        ):  # made without memory; what is filled later are the buffers
            self._upcoming = torch.zeros_like(self.counts)
        return self._upcoming

    def forward(self) -> Tensor:
        """lambda now: a 0-d float32 tensor."""
        return nn.functional.logsigmoid(self.log_odds).float()

    @torch.no_grad()
    def observe(
        self,
        logits: Tensor,
        targets: Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        *,
        batch_first: bool = False,
    ) -> None:
        """What a batch tells: the arguments of the loss, in its forms. What is bad is a ValueError, as there: shapes always,
        values on the CPU."""
        x = batch_of(logits.detach(), batch_first)
        frames = lengths_of("input_lengths", input_lengths, len(x), x.device)
        labels = lengths_of("target_lengths", target_lengths, len(x), x.device)
        targets = padded_targets(targets, labels, logits.dim() == 3, None, x.device)
        if x.is_cpu:
            check_values(targets, frames, labels, None, x.shape, self.blank)
        check_blank(self.blank, x.shape[2])
        token, begins = find_read(x, frames, threshold=self.threshold, blank=self.blank)
        log_penalty = self().to(x.device).expand(len(x), targets.shape[1] + 1)
        setting = Setting("stc", False, self.blank, True, backend_for("auto", x.device))
        path = best_path((x, targets, frames, labels, log_penalty), setting)
        at_label = path > nn.functional.pad(path[:, :-1], (1, 0))
        counts = ((at_label & (token != self.blank)).sum(), begins.sum(), at_label.sum())
        self.upcoming.add_(torch.stack(counts).to(self.upcoming))

    @torch.no_grad()
    def advance(self) -> None:
        """One optimiser step is done."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.upcoming)
        self.counts.mul_(1 - 1 / self.window).add_(self.upcoming)
        self.upcoming.zero_()
        found, read, known = self.counts
        kept = found / known.clamp(min=1) * (found / torch.maximum(read, known).clamp(min=1))
        p = (1 - kept).clamp(self.p_min, self.p_max)
        towards = (torch.logit(p) - self.log_odds) * (self.counts[1:3].sum() > 0)  # nothing observed says nothing
        self.log_odds += towards.clamp(-self.rate, self.rate)
        self.step += 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptivePenalty:
        """Moves to another device with the model, but not to its precision: in bfloat16 p would stand still."""

        def of(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        for name, buffer in self._buffers.items():
            assert buffer is not None
            self._buffers[name] = of(buffer)
        self._upcoming = of(self._upcoming)
        return self

    def get_extra_state(self) -> Tensor:
        return self.upcoming

    def set_extra_state(self, state: Tensor) -> None:
        self._upcoming = state.to(self.counts.device, copy=True)

    def extra_repr(self) -> str:
        names = ("p0", "p_min", "p_max", "rate", "window", "threshold")
        return ", ".join(f"{name}={getattr(self, name):g}" for name in names)


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
    is_read = inside & (best.float() - logits[..., blank].float() > _log_odds(threshold))
    token = torch.where(is_read, token, blank)
    return token, is_read & (token != nn.functional.pad(token[:, :-1], (1, 0), value=blank))


def _log_odds(p: float) -> float:
    return math.log(p / (1 - p))
