"""Where a run runs: Lightning's Fabric for one process or many, started by itself, by torchrun or by SLURM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from starseq.data.errors import DataError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def start(*, accelerator: str = "auto", devices: int = 1, nodes: int = 1, strategy: str = "auto") -> Fabric:
    """A launched Fabric. Under torchrun and SLURM, these say how many processes there are; otherwise the arguments do.

    Precision is none of its business: it would turn half-precision logits into float32, which the loss does not need.
    """
    with _without_torchmetrics():
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


@contextmanager
def _without_torchmetrics() -> Iterator[None]:
    """Fabric imports torchmetrics for its version alone, and with it scipy, matplotlib and transformers: half of its time."""
    if "torchmetrics" in sys.modules:
        yield
        return
    sys.modules["torchmetrics"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        del sys.modules["torchmetrics"]


@contextmanager
def others_may_end(fabric: Any) -> Iterator[None]:
    """Where another process has ended, and with it the connection, a `DataError` says so: that one knows why."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or any(
            words in str(error) for words in ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
        )
        if fabric.world_size == 1 or not lost or isinstance(error, torch.OutOfMemoryError):
            raise
        raise DataError(
            f"process {fabric.global_rank} stops, for another process of this training has ended; "
            "that one says why, unless it was killed"
        ) from None


def gathered(fabric: Any, items: list[str]) -> list[str]:
    """The items of all processes, in the order of their ranks."""
    if fabric.world_size == 1:
        return items
    lists: list[list[str]] = [[] for _ in range(fabric.world_size)]
    torch.distributed.all_gather_object(lists, items)
    return [item for part in lists for item in part]
