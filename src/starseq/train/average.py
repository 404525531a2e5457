"""Averaged weights: what is read and saved moves less than what is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["Average"]


class Average:
    """A copy of a network whose weights are the mean of those after each step so far, the later the heavier: their mean age is
    about `share` of the steps, whether these are a hundred or a million.

        after step t:   average <- average + min(1, 1 / (share t)) (weights - average)

    so weights of step s count as s^(1 / share - 1). Nothing of it goes into training.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> average = Average(network, share=0.5)
    >>> for value in (7.0, 1.0, 4.0, 2.0):
    ...     _ = nn.init.constant_(network.weight, value)
    ...     average.update(network)
    >>> average.network.weight.item()     # the first two steps are forgotten: 1/1 and 1/1, then 2/3 and 2/4
    2.5

    Raises ValueError unless 0 < share < 1.
    """

    def __init__(self, network: nn.Module, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share is between 0 and 1; got {share}")
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        for module in self.network.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # which a copy has not kept: cuDNN would join them before every batch
        self.share, self.steps = share, 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Takes in the weights after one more step. Buffers are those of the network."""
        self.steps += 1
        kept = 1 - min(1.0, 1 / (self.share * self.steps))
        move = get_ema_multi_avg_fn(kept)  # type: ignore[no-untyped-call]
        move(list(self.network.parameters()), [p.detach() for p in network.parameters()], self.steps)
        for ours, theirs in zip(self.network.buffers(), network.buffers(), strict=True):
            ours.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "network": self.network.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.steps = state["steps"]
