"""Averaged weights: what each step counts, that training does not know of them, and that they are what is read and saved."""

from __future__ import annotations

from math import comb
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny
from torch import Tensor, nn

from starseq import runs
from starseq.config import load_recipe
from starseq.data.errors import DataError
from starseq.jobs.train import train
from starseq.train.average import Average
from starseq.train.checkpoint import load_checkpoint
from starseq.train.loop import Loop


@pytest.mark.parametrize("times", [2, 3, 7])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_what_a_step_counts(times: int, steps: int) -> None:
    """With 1 / share a whole number c the weight of step s of t is C(s - 1, c - 1) / C(t, c): about s^(c - 1)."""
    torch.manual_seed(0)
    network, seen = nn.Linear(3, 2).double(), []
    average = Average(network, 1 / times)
    for step in range(1, steps + 1):
        for parameter in network.parameters():
            nn.init.normal_(parameter)
        seen.append(network.weight.detach().clone())
        average.update(network, step)
    if steps < times:  # all is forgotten but the last
        expected = seen[-1]
    else:
        counts = [comb(s - 1, times - 1) / comb(steps, times) for s in range(1, steps + 1)]
        assert sum(counts) == pytest.approx(1)
        expected = sum(count * weight for count, weight in zip(counts, seen, strict=True))
    torch.testing.assert_close(average.network.weight, expected, rtol=1e-12, atol=1e-12)
    assert not any(parameter.requires_grad for parameter in average.network.parameters())


def test_buffers_are_those_of_the_network() -> None:
    network = nn.BatchNorm1d(2)
    average = Average(network, 0.1)
    for step in range(1, 31):
        network(torch.randn(4, 2) + 3)
        average.update(network, step)
    assert average.network.num_batches_tracked == 30
    assert torch.equal(average.network.running_mean, network.running_mean)
    assert average.network.weight.data_ptr() != network.weight.data_ptr()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ValueError, match="share is between 0 and 1"):
        Average(nn.Linear(1, 1), share)


def test_a_recipe_with_a_share_that_is_none() -> None:
    with pytest.raises(DataError, match=r"optim\.average: 1\.0 is not a share of the steps, at least 0 and below 1"):
        load_recipe("digits", ["optim.average=1"])


def test_averages_are_read_and_saved_and_training_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tiny.corpus(tmp_path / "digits")
    read: list[dict[str, Tensor]] = []
    after: list[dict[str, Tensor]] = []
    init, after_step = Loop.__init__, Loop._after_step

    def weights(network: nn.Module) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in network.state_dict().items()}

    def watched(self: Loop, *arguments: Any) -> None:
        init(self, *arguments)
        networks = [self.network] if self.average is None else [self.network, self.average.network]
        for network in networks:
            network.register_forward_hook(
                lambda network, inputs, output: None if network.training else read.append(weights(network))
            )

    def step(self: Loop, *arguments: Any) -> None:
        after.append(weights(self.network))
        after_step(self, *arguments)

    monkeypatch.setattr(Loop, "__init__", watched)
    monkeypatch.setattr(Loop, "_after_step", step)
    monkeypatch.setattr("starseq.jobs.train._draw_curves", lambda folder: None)
    plain, averaged = (("trainer.max_steps=8", f"optim.average={share}") for share in (0, 0.25))
    train(tiny.recipe(root, *plain), tmp_path / "plain")
    read.clear()
    after.clear()
    train(tiny.recipe(root, *averaged), tmp_path / "averaged")
    one, other = (load_checkpoint(tmp_path / name / "last.ckpt") for name in ("plain", "averaged"))
    assert all(torch.equal(one["model"][name], weight) for name, weight in other["model"].items())
    counts = [comb(s - 1, 3) / comb(8, 4) for s in range(1, 9)]
    saved = load_file(tmp_path / "averaged" / "model.safetensors")
    run = runs.load(tmp_path / "averaged").model.state_dict()
    assert len(after) == 8
    assert read
    for name, weight in saved.items():
        expected = sum(count * step[name].double() for count, step in zip(counts, after, strict=True))
        torch.testing.assert_close(weight.double(), expected, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(weight, network[name]) for network in read)
        assert torch.equal(weight, run[name])
