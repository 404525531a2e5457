"""Run by torchrun: each process takes its own, unequal batches; the first writes loss and gradients to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tests import tiny

from starseq.data.dataset import collate
from starseq.jobs.train import build_loop
from starseq.train.loop import Hooks, Window
from starseq.train.processes import start

SHARES = (([0, 1, 2, 3, 4], [5]), ([6], [7, 8]))
"""of each process, the batches that it accumulates"""


def main(root: str, out: str) -> None:
    fabric = start(accelerator="cpu")
    assert fabric.world_size == 2
    recipe = tiny.recipe(Path(root), "model.dropout=0", "optim.batches_per_step=4")
    loop = build_loop(recipe, Path(out), fabric, Hooks())
    batches = [collate([loop.data.train[i] for i in batch]) for batch in SHARES[fabric.global_rank]]
    pending = loop.backward(Window(0, 0, batches))
    if fabric.global_rank == 0:
        grads = {name: p.grad for name, p in loop.network.named_parameters()}
        torch.save({"loss": pending.total / pending.counts[0], "grads": grads}, Path(out) / "two.pt")
    fabric.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
