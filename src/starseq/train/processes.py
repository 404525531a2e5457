"""Where a run runs: Lightning's Fabric for one process or many, started by itself, by torchrun or by SLURM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from starseq.data.errors import DataError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def start(*, accelerator: str = "auto", devices: int = 1, nodes: int = 1, strategy: str = "auto") -> Fabric:
    """A launched Fabric. Under torchrun and SLURM, these say how many processes there are; otherwise the arguments do.

    Precision is none of its business: it would turn half-precision logits into float32, which the loss does not need.
    """
    from lightning_fabric import Fabric

    if accelerator in ("cuda", "gpu"):  # Lightning's word for it
        if not torch.cuda.is_available():
            raise DataError(f"trainer.accelerator: {accelerator!r} is asked for, and there is no CUDA device here")
        accelerator = "cuda"
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        devices, nodes = int(environment["LOCAL_WORLD_SIZE"]), int(environment.get("GROUP_WORLD_SIZE", 1))
    elif int(environment.get("SLURM_NTASKS", 1)) > 1:
        nodes = int(environment.get("SLURM_NNODES", 1))
        devices = int(environment.get("SLURM_NTASKS_PER_NODE", int(environment["SLURM_NTASKS"]) // nodes))
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy)
    fabric.launch()
    return fabric


def gathered(fabric: Any, items: list[str]) -> list[str]:
    """The items of all processes, in the order of their ranks."""
    if fabric.world_size == 1:
        return items
    lists: list[list[str]] = [[] for _ in range(fabric.world_size)]
    torch.distributed.all_gather_object(lists, items)
    return [item for part in lists for item in part]
