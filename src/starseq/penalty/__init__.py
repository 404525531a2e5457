"""The insertion penalty and how it changes while training goes on: by the published schedule, or by what the model reads."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

from starseq.arguments import (
    Lengths,
    backend_for,
    batch_of,
    check_blank,
    lengths_of,
    padded_targets,
    whole,
)
from starseq.penalty.look_torch import FIRST_SURE

LOOKS = 4
"""an adaptive penalty looks at one batch of so many: p moves in tens of steps"""
_WITHOUT_FLOAT64 = ("mps",)
"""devices beside which the penalty stays on the CPU"""


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
        """Resets to the initial state. Needed after construction on the meta device."""
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
    r"""The star's weight p, as its logarithm, tuned while training goes on. `STCLoss` has one unless it is told otherwise.

    p follows the share of tokens that the transcripts lack. That share is measured by what the model reads:

        missing = 1 - (found / labels)^2 * gaps / (gaps + inserted)
        p       = share^(1 / (1 + 1.75 sure^6)),    share = held + max(held - missing, 0)

    `labels` are the known labels; `found` those of them at which the model reads something; `inserted` all else that it reads;
    `gaps` the labels again, or less where gaps are closed. `sure` is the mean probability of a known label at its frame, the
    highest so far. `held` is what was missing when `sure` reached its height.

    So p begins high, for only a high p gets a model to read. It comes down as labels are read. Later the model learns its holes by
    heart and reads less in them. That must not lower p, so p then rises as far as reading has fallen. docs/algorithm.md says why.

    Call `observe` with every batch that is trained on; it looks at the first and at every fourth after it. Counts are summed over
    the processes of `torch.distributed`, so all of them must call it equally often. Nothing waits for the device. All that it knows
    is in `state_dict`.

    Args:
        p0: where p begins.
        p_min, p_max: p stays between them.
        rate: the log-odds of p move by no more at a look.
        blank: that of the loss.

    Raises ValueError for a probability outside (0, 1), p0 outside [p_min, p_max], a rate that is not positive, and a blank below 0.

        >>> penalty = AdaptivePenalty()
        >>> round(penalty().exp().item(), 4)
        0.94
        >>> logits = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 0.0, 9.0]]])     # reads 1, 2
        >>> for _ in range(400):
        ...     penalty.observe(logits, torch.tensor([[2]]), (4,), (1,), batch_first=True)
        >>> round(penalty().exp().item(), 2)      # half of the tokens are missing: 0.5^(1 / 2.75)
        0.78
    """

    log_odds: Tensor
    counts: Tensor
    """(5,): labels that are found, tokens read, labels, gaps, summed probability of the labels; of the last looks"""
    record: Tensor
    """(2,): `sure` and `held`"""

    def __init__(
        self, p0: float = 0.94, p_min: float = 0.02, p_max: float = 0.94, rate: float = 0.04, blank: int = 0
    ) -> None:
        super().__init__()
        for name, value in {"p0": p0, "p_min": p_min, "p_max": p_max}.items():
            if not 0 < value < 1:
                raise ValueError(f"{name}: {value} is not a probability in (0, 1)")
        if not p_min <= p0 <= p_max:
            raise ValueError(f"p0: {p0} is not between p_min {p_min} and p_max {p_max}")
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate: {rate} is not a positive number")
        if whole("blank", blank) < 0:
            raise ValueError(f"blank: {blank} is not a token")
        self.p0, self.p_min, self.p_max, self.rate, self.blank = p0, p_min, p_max, rate, blank
        self.register_buffer("log_odds", torch.empty((), dtype=torch.float64))
        self.register_buffer("counts", torch.empty(5, dtype=torch.float64))
        self.register_buffer("record", torch.empty(2, dtype=torch.float64))
        # On the CPU whatever the device is: to ask for it there would wait. And no buffer: DDP could not copy it over NCCL.
        self._calls = torch.zeros((), dtype=torch.int64, device="cpu")
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Resets to the initial state. Needed after construction on the meta device."""
        self.log_odds.fill_(_log_odds(self.p0))
        self.counts.zero_()
        self.record[0], self.record[1] = FIRST_SURE, 1.0
        self._calls.zero_()

    def forward(self) -> Tensor:
        """lambda = log p now: a 0-d float32 tensor."""
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
        max_target_length: int | None = None,
        open_gaps: Tensor | None = None,
    ) -> None:
        """Takes note of a batch: looks at one in four, and moves p. In a CUDA graph every replay looks, and moves p by a quarter.

        The first arguments are those of the loss, in its forms. open_gaps: (B, U+1), whether labels may be missing there; None:
        everywhere. Where it looks, it raises ValueError for bad arguments, as the loss does: values on the CPU alone.
        """
        if not torch.compiler.is_compiling() and not _is_due(logits, self._calls):
            self._calls += 1
            return
        x = batch_of(logits.detach(), batch_first)
        frames = lengths_of("input_lengths", input_lengths, len(x), x.device)
        labels = lengths_of("target_lengths", target_lengths, len(x), x.device)
        targets = padded_targets(targets, labels, logits.dim() == 3, max_target_length, x.device)
        check_blank(self.blank, x.shape[2])
        if self.log_odds.device != x.device and x.device.type not in _WITHOUT_FLOAT64:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    f"the penalty is on {self.log_odds.device} and the logits are on {x.device}: move the loss to the device, "
                    "criterion.to(device), before it is compiled"
                )
            self.to(x.device)
        operation = _observe_op if torch.compiler.is_compiling() else _observe
        operation(
            x, targets, frames, labels, open_gaps, self.log_odds, self.counts, self.record, self._calls,
            self.p_min, self.p_max, self.rate, self.blank,
        )  # fmt: skip

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaptivePenalty:
        """Moves to another device with the model, but not to its precision: in bfloat16 p would stand still."""
        if fn(torch.zeros((), device=self.log_odds.device)).device.type in _WITHOUT_FLOAT64:
            return self
        for name, buffer in self._buffers.items():
            assert buffer is not None
            moved = fn(buffer)
            self._buffers[name] = moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
        return self

    def get_extra_state(self) -> Tensor:
        return self._calls.clone()

    def set_extra_state(self, state: Tensor) -> None:
        self._calls.copy_(state)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name):g}" for name in ("p0", "p_min", "p_max", "rate"))


def _observe(
    x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, open_gaps: Tensor | None, log_odds: Tensor, counts: Tensor,
    record: Tensor, calls: Tensor, p_min: float, p_max: float, rate: float, blank: int,
) -> None:  # fmt: skip
    """`AdaptivePenalty.observe` on logits (B, T, V) and targets (B, U). Changes log_odds, counts, record and calls."""
    is_due, captured = _is_due(x, calls), _is_captured(x)
    calls += 1
    if not is_due:
        return
    way = _way(backend_for("auto", x.device))
    found = way.look(x, targets, frames, labels, open_gaps, log_odds, blank).to(log_odds.device)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found = found.sum(dim=0, keepdim=True)
        torch.distributed.all_reduce(found)
    way.move(found, log_odds, counts, record, p_min, p_max, rate, 1 / LOOKS if captured else 1.0)


def _is_due(x: Tensor, calls: Tensor) -> bool:
    return calls.item() % LOOKS == 0 or _is_captured(x)


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@functools.cache
def _way(backend: str) -> ModuleType:
    """How a batch is looked at: see look_torch."""
    return importlib.import_module(f"{__name__}.look_{backend}")


_observe_op = torch.library.custom_op(
    "starseq::observe", _observe, mutates_args=("log_odds", "counts", "record", "calls"),
    schema="(Tensor x, Tensor targets, Tensor frames, Tensor labels, Tensor? open_gaps, Tensor(a!) log_odds, Tensor(b!) counts,"
    " Tensor(c!) record, Tensor(d!) calls, float p_min, float p_max, float rate, int blank) -> ()",
)  # fmt: skip


@_observe_op.register_fake
def _observe_fake(*arguments: object) -> None:
    return None


def _log_odds(p: float) -> float:
    return math.log(p / (1 - p))
