"""The insertion penalty and how it changes while training goes on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


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

    def __init__(self, p0: float = 0.5, p_max: float = 0.9, half_life: float = 10_000) -> None:
        super().__init__()
        for name, value in (("p0", p0), ("p_max", p_max)):
            if not 0 < value <= 1:
                raise ValueError(f"{name}: {value} is not a probability in (0, 1]")
        if not (half_life > 0 and math.isfinite(half_life)):
            raise ValueError(f"half_life: {half_life} is not a positive number of steps")
        self.p0, self.p_max, self.half_life = float(p0), float(p_max), float(half_life)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

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
