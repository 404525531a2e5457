"""Where a job runs, and what it may read: the options that most verbs share, as one object that the command builds once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.jobs._ranks import Ranks

__all__ = ["PathLike", "Where", "device_of"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Where:
    """On which device, with how many workers, below which folder, and whom the job tells how far it is."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto is CUDA where there is one, and of several processes each takes the next"""
    root: PathLike | None = None
    """the folder that holds every file that a manifest names; None: the manifest's"""
    workers: int = 0
    """processes that search; with 0 this one does"""
    skip_bad: bool = False
    """whether a file that cannot be read is listed, and is no error"""
    progress: Progress | None = None
    """``progress(done, total)``"""
    ranks: Ranks = field(default_factory=Ranks)
    """the processes that do this job together"""

    @property
    def torch_device(self) -> str:
        return device_of(self.device)

    def step(self, done: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(done, total)


def device_of(name: str) -> str:
    """`auto` is CUDA where there is one; a device that is not there, or that nobody knows, is a `DataError`.

    >>> device_of("cpu")
    'cpu'
    """
    if name == "auto":
        there = torch.cuda.device_count()
        local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0
        return "cpu" if not there else "cuda" if there == 1 else f"cuda:{int(local) % there}"
    kind, _, number = name.partition(":")
    if name not in ("cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise DataError(f"device {name!r} is none of auto, cpu, cuda, cuda:1, ...")
    if kind == "cuda" and int(number or 0) >= (there := torch.cuda.device_count()):
        raise DataError(
            f"device {name!r} is asked for, and there is {f'only {there}' if there else 'no'} CUDA device here"
        )
    return name
