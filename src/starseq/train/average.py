"""Averaged weights: what is read and saved moves less than what is trained."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["Average"]


class Average:
    """A copy of a network whose weights are the mean of those after each step so far, the later the heavier:

        after step t = 1, 2, ...:   average <- average + min(1, 1 / (share t)) (weights - average)

    so the weights of step s count as s^(1 / share - 1), and their mean age is share / (1 + share) of the steps, however many these
    are. Buffers are those of the network itself.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> average = Average(network, share=0.5)
    >>> for step, value in enumerate((7.0, 1.0, 4.0, 2.0), start=1):
    ...     _ = nn.init.constant_(network.weight, value)
    ...     average.update(network, step)
    >>> average.network.weight.item()     # the first step is forgotten, the others count 1, 2, 3
    2.5

    Raises ValueError unless 0 < share < 1.
    """

    def __init__(self, network: nn.Module, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share is between 0 and 1; got {share}")
        shared = {id(buffer): buffer for buffer in network.buffers()}
        self.network = copy.deepcopy(network, shared).requires_grad_(False)
        for module in self.network.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # which a copy has not kept: cuDNN would join them before every batch
        self.share = share

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Takes in the weights after a step; the first is 1."""
        kept = 1 - min(1.0, 1 / (self.share * step))
        move = get_ema_multi_avg_fn(kept)  # type: ignore[no-untyped-call]
        move(list(self.network.parameters()), list(network.parameters()), step)
