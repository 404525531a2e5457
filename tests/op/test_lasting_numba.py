"""Sums in which inserted tokens last, on the CPU: what is left out with dead tokens, against float64 with all states."""

from __future__ import annotations

import math

import pytest
import torch

import starseq
from starseq.emissions.alive import DENSE, FEW


def both(logits: torch.Tensor, penalty: float, U: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Loss, gradient and insertions in float32, in which most tokens are dead, and in float64, in which none is."""
    T, B, V = logits.shape
    generator = torch.Generator().manual_seed(T + V)
    targets = torch.randint(1, V, (B, U), generator=generator)
    targets[0, 1] = targets[0, 0]
    lengths = torch.tensor([T] * (B - 1) + [T // 2 + 1]), torch.tensor([U] * (B - 1) + [U // 2])
    found = []
    for dtype in (torch.float32, torch.float64):
        x = logits.to(dtype, copy=True).requires_grad_()
        loss, inserted = starseq.stc_loss(
            x, targets, *lengths, penalty=penalty, reduction="none", return_inserted=True, backend="numba"
        )
        loss.sum().backward()
        found.append((loss.detach().double(), x.grad.double(), inserted.double()))
    return found


def outputs(kind: str, T: int, V: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(V)
    noise = torch.randn(T, 3, V, generator=generator)
    if kind == "flat":
        return 0.01 * noise
    if kind == "half trained":
        return 1.5 * noise
    logits = noise.clone()
    logits[:, :, 0] += 6
    for b in range(3):  # tokens of three to twenty frames, across the bounds of chunks
        t = 0
        while t < T:
            length, token = (int(x) for x in torch.randint(3, 20, (2,), generator=generator))
            logits[t : t + length, b, token * 7 % V] += 14
            t += length + 2
    return logits


@pytest.mark.parametrize("penalty", [0.5, 0.9, 0.1])
@pytest.mark.parametrize("kind", ["flat", "half trained", "trained"])
@pytest.mark.parametrize("V", [DENSE + 1, 250, FEW + 1, 1_000, 5_001])
def test_what_is_left_out_is_nothing(kind: str, V: int, penalty: float) -> None:
    """The loss within 1e-5 relative, every entry of the gradient within 1e-5."""
    found, truth = both(outputs(kind, 70, V), math.log(penalty), 6)
    torch.testing.assert_close(found[0], truth[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1], truth[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[2], truth[2], rtol=1e-4, atol=5e-4)


def test_a_token_of_three_frames_is_not_left_out_for_its_weak_middle() -> None:
    logits = torch.zeros(40, 2, 400)
    logits[:, :, 5] = 12
    logits[10:13, :, 9] = 30
    logits[11, :, 9] = 4
    found, truth = both(logits, math.log(0.5), 2)
    torch.testing.assert_close(found[1], truth[1], rtol=0, atol=1e-5)
