"""Which items make up which batch: by size, shuffled, sharded over ranks; a pure function of (seed, epoch, rank)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from starseq.data.seeds import generator

Sizes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class SamplerState(TypedDict):
    """Where a run stood: `start` batches of `epoch` were done. `plan` names the data and settings it holds for."""

    epoch: int
    start: int
    plan: str


class BatchSampler(Sampler[list[int]]):
    """Batches of item indices, for `DataLoader(dataset, batch_sampler=...)`.

    A batch costs (number of items) x (largest size in it), padding included, and that stays within `budget`: seconds
    of audio (240 in the published recipes) or columns of pixels; `max_items` bounds the number as well. An item larger
    than the budget is a batch by itself.

    Each epoch shuffles the items, sorts them by bucket (`buckets` groups of about equal size, so that a batch pads
    little), and cuts. The ranks then get equally many batches, and the batches of one step have about the same size, so
    that no rank waits. **Every item comes exactly once an epoch over all ranks**: where the number of batches is no
    multiple of `world`, the largest batches are split in two. Only where there are too few items to split, fewer than
    `world` batches are given twice.

    >>> sampler = BatchSampler([3.0, 5.0, 2.0, 8.0], budget=10.0)
    >>> sorted(i for batch in sampler for i in batch)
    [0, 1, 2, 3]

    To resume in the middle of an epoch, save `state_dict(done)` with the number of batches *trained on* (the workers of
    a `DataLoader` run ahead, so the sampler cannot know), and `load_state_dict` it: the next pass gives the remaining
    ones. `len` is that of the whole epoch.
    """

    def __init__(
        self,
        sizes: Sequence[float] | Sizes | Tensor,
        *,
        budget: float | None = 240.0,
        max_items: int | None = None,
        buckets: int = 30,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank is one of 0..{world - 1}; got {rank}")
        if budget is None and max_items is None:
            raise ValueError("batches need a bound: give budget, max_items or both")
        if (budget is not None and not budget > 0) or (max_items is not None and max_items < 1) or buckets < 1:
            raise ValueError(f"bounds are positive; got budget={budget}, max_items={max_items}, buckets={buckets}")
        self.sizes = np.asarray(sizes, dtype=np.float64)
        bad = np.flatnonzero(~(np.isfinite(self.sizes) & (self.sizes >= 0)))
        if self.sizes.ndim != 1 or len(bad):
            where = f"item {bad[0]} has {self.sizes[bad[0]]}" if len(bad) else f"shape {self.sizes.shape}"
            raise ValueError(f"sizes are finite and not negative; {where}")
        self.budget = np.inf if budget is None else float(budget)
        self.max_items = max_items or len(self.sizes) or 1
        self.buckets, self.shuffle, self.seed, self.rank, self.world = buckets, shuffle, seed, rank, world
        self.epoch = self.start = 0
        # Items of one bucket are of like size; the rank of a size, not the size, so that the groups are equally full.
        order = np.argsort(self.sizes, kind="stable")
        self._bucket = np.empty(len(order), dtype=np.int64)
        self._bucket[order] = np.arange(len(order)) * min(buckets, len(order)) // max(1, len(order))
        self._cache: tuple[int, list[list[list[int]]]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next pass gives. Another epoch than the present one starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __iter__(self) -> Iterator[list[int]]:
        steps, start = self._steps(), self.start
        self.start = 0
        for step in steps[start:]:
            yield list(step[self.rank])

    def __len__(self) -> int:
        return len(self._steps())

    def state_dict(self, done: int = 0) -> SamplerState:
        """What `load_state_dict` needs to go on after `done` batches of the present epoch."""
        if not 0 <= done <= len(self):
            raise ValueError(f"done is one of 0..{len(self)} batches; got {done}")
        return {"epoch": self.epoch, "start": done, "plan": self._plan()}

    def load_state_dict(self, state: SamplerState) -> None:
        """Go on where `state` was taken. Other data, settings or number of ranks give other batches: `ValueError`."""
        if state["plan"] != self._plan():
            raise ValueError("the saved batches are those of other data, seed, batch settings or number of ranks")
        self.epoch, self.start = state["epoch"], state["start"]

    def _plan(self) -> str:
        settings = (self.budget, self.max_items, self.buckets, self.shuffle, self.seed, self.world)
        return hashlib.blake2b(self.sizes.tobytes() + repr(settings).encode(), digest_size=8).hexdigest()

    def _steps(self) -> list[list[list[int]]]:
        """This epoch's steps: for each step, one batch for each rank."""
        if self._cache is None or self._cache[0] != self.epoch:
            self._cache = self.epoch, self._cut()
        return self._cache[1]

    def _cut(self) -> list[list[list[int]]]:
        draw = generator(self.seed, "batches", self.epoch)
        if self.shuffle:
            order = torch.randperm(len(self.sizes), generator=draw).numpy()
            order = order[np.argsort(self._bucket[order], kind="stable")]
        else:
            order = np.argsort(-self.sizes, kind="stable")  # longest first: memory runs out at once or never
        batches = split_evenly(cut(order.tolist(), self.sizes, self.budget, self.max_items), self.world)
        steps = [batches[i : i + self.world] for i in range(0, len(batches), self.world)]
        if self.shuffle:
            steps = [steps[i] for i in torch.randperm(len(steps), generator=draw).tolist()]
            steps = [[step[i] for i in torch.randperm(self.world, generator=draw).tolist()] for step in steps]
        return steps


def cut(order: Sequence[int], sizes: Sizes, budget: float, max_items: int) -> list[list[int]]:
    """`order` cut into runs, each as long as (items x largest size) <= `budget` and items <= `max_items` allow.

    >>> cut([0, 1, 2], np.array([4.0, 5.0, 1.0]), 10.0, 8)
    [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    largest = 0.0
    for item, size in zip(order, sizes[list(order)].tolist(), strict=True):
        grown = max(largest, size)
        if batches and len(batches[-1]) < max_items and (len(batches[-1]) + 1) * grown <= budget:
            batches[-1].append(item)
            largest = grown
        else:
            batches.append([item])
            largest = size
    return batches


def split_evenly(batches: list[list[int]], world: int) -> list[list[int]]:
    """A multiple of `world` batches: those with most items are split; where none can be split, some are repeated.

    >>> split_evenly([[0, 1, 2], [3]], 3)
    [[0], [1, 2], [3]]
    >>> split_evenly([[0]], 2)
    [[0], [0]]
    """
    batches = [list(batch) for batch in batches]
    while len(batches) % world:
        at = max(range(len(batches)), key=lambda i: (len(batches[i]), -i))
        batch = batches[at]
        if len(batch) == 1:
            missing = -len(batches) % world
            return batches + [list(batches[i % len(batches)]) for i in range(missing)]
        batches[at : at + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches
