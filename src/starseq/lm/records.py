"""Sorted files of records that need no more memory than they are given: external sort, merge and join.

A record is a row of uint64: a key (see `records_numba`), then a payload. Files hold nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starseq.lm import records_numba as kernels

__all__ = ["Records", "Room", "Sorter", "Table", "joined", "words_for"]

Records: TypeAlias = NDArray[np.uint64]
"""(n, W): n records of W words."""


def words_for(bits: int) -> int:
    """How many words hold a key of so many bits."""
    return (bits + 63) // 64


@dataclass(frozen=True)
class Room:
    """A folder for what does not fit, and the bytes of memory that buffers may take."""

    folder: Path
    memory: int

    @property
    def block(self) -> int:
        """Records to handle at once: enough that Python's part is small, few enough that dozens of blocks fit in."""
        return min(1 << 16, max(16, self.memory // 4096))

    def in_memory(self, width: int) -> int:
        """Records to sort at once: these and as many again as scratch space take three quarters of the memory."""
        return max(16, self.memory * 3 // 8 // (8 * width))

    def fan_in(self, width: int) -> int:
        """Runs to merge at once: each has a piece of 4 kB or more in memory and an open file."""
        return int(np.clip(self.memory // 4 // max(4096, 8 * width), 2, 256))


@dataclass(frozen=True)
class Table:
    """A file of records, to be read in pieces."""

    path: Path
    width: int

    def __len__(self) -> int:
        return os.path.getsize(self.path) // (8 * self.width)

    def blocks(self, rows: int) -> Iterator[Records]:
        with open(self.path, "rb") as file:
            while len(block := read(file, rows, self.width)):
                yield block

    def append(self, records: Records) -> None:
        with open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(records).data)  # not `tofile`, which does not say why it fails

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def read(file: BinaryIO, rows: int, width: int) -> Records:
    """The next records of a file; fewer, or none, at its end."""
    block: Records = np.fromfile(file, np.uint64, rows * width).reshape(-1, width)
    return block


class Sorter:
    """Sorts more records than fit in memory: `add` them in any order, then read `blocks`, or keep them as a `table`.

    The order is that of the first `bits` of the keys. With `combine`, records with equal keys become one, whose last word is
    the sum of theirs.

    >>> import tempfile
    >>> sorter = Sorter(Room(Path(tempfile.mkdtemp()), 1000), "n", bits=64, width=2, combine=True)
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(20):
    ...     sorter.add(np.stack((rng.integers(0, 99, 100), np.ones(100)), axis=1).astype(np.uint64))
    >>> whole = np.concatenate(list(sorter.blocks()))
    >>> whole[:, 0].tolist() == list(range(99)), int(whole[:, 1].sum())
    (True, 2000)
    """

    def __init__(self, room: Room, name: str, *, bits: int, width: int, combine: bool = False) -> None:
        self.room, self.name, self.bits, self.width, self.combine = room, name, bits, width, combine
        self._capacity = room.in_memory(width)
        self._buffer: list[Records] = []
        self._filled = 0
        self._runs: list[Table] = []
        self._written = 0

    def add(self, records: Records) -> None:
        while len(records):
            # Copied: a piece of a block must not keep the whole of it alive.
            piece = records[: self._capacity - self._filled].copy()
            self._buffer.append(piece)
            self._filled += len(piece)
            records = records[len(piece) :]
            if self._filled == self._capacity:
                self._spill()

    def close(self) -> None:
        """Nothing is to be added any more: what is in memory goes to the disk."""
        if self._filled or not self._runs:
            self._spill()

    def table(self) -> Table:
        """All records in one sorted file."""
        runs = self._finish()
        if len(runs) == 1:
            return runs[0]
        return self._merged_file(runs)

    def blocks(self) -> Iterator[Records]:
        """All records in order, in pieces; the runs go from the disk when the last piece was taken."""
        runs = self._finish()
        yield from self._merge(runs)
        for run in runs:
            run.remove()

    def _spill(self) -> None:
        records = np.concatenate(self._buffer) if self._buffer else np.empty((0, self.width), np.uint64)
        self._buffer, self._filled = [], 0
        records = kernels.sort(records, np.empty_like(records), self.bits)
        if self.combine:
            records = records[: kernels.combine(records, self.bits)]
        run = self._new_run()
        run.append(records)
        self._runs.append(run)

    def _new_run(self) -> Table:
        self._written += 1
        return Table(self.room.folder / f"{self.name}.{self._written}", self.width)

    def _finish(self) -> list[Table]:
        self.close()
        fan_in = self.room.fan_in(self.width)
        while len(self._runs) > fan_in:
            self._runs = [*self._runs[fan_in:], self._merged_file(self._runs[:fan_in])]
        return self._runs

    def _merged_file(self, runs: list[Table]) -> Table:
        merged = self._new_run()
        for block in self._merge(runs):
            merged.append(block)
        for run in runs:
            run.remove()
        return merged

    def _merge(self, runs: list[Table]) -> Iterator[Records]:
        if len(runs) == 1:
            yield from runs[0].blocks(self.room.block)
            return
        rows = max(1, self.room.memory // 4 // (8 * self.width * len(runs)))
        blocks = np.empty((len(runs), rows, self.width), np.uint64)
        position, end = np.zeros((2, len(runs)), np.int64)
        last = np.zeros(len(runs), np.bool_)
        with ExitStack() as stack:
            files = [stack.enter_context(open(run.path, "rb")) for run in runs]

            def fill(run: int) -> None:
                block = read(files[run], rows, self.width)
                blocks[run, : len(block)] = block
                position[run], end[run], last[run] = 0, len(block), len(block) < rows

            for run in range(len(runs)):
                fill(run)
            out, filled = np.empty((self.room.block + 1, self.width), np.uint64), 0
            while True:
                filled, run = kernels.merge(blocks, position, end, last, self.bits, self.combine, out, filled)
                if run >= 0:
                    fill(run)
                elif filled < len(out):
                    break
                else:  # the last record stays: its key may come again
                    yield out[:-1].copy()
                    out[0], filled = out[-1], 1
            yield out[:filled]


def joined(
    blocks: Iterable[Records], right: Table, *, bits: int, default: Records, rows: int
) -> Iterator[tuple[Records, Records]]:
    """Every block (n, W) with what `right` says about its records: (n, P), the payloads found by the first `bits` of the keys.

    Both sides are in order. Where `right` has no such key, the row is `default` (P,).
    """
    words = words_for(bits)
    pieces = right.blocks(rows)
    piece, j = np.empty((0, right.width), np.uint64), 0
    is_last = False
    for block in blocks:
        found: Records = np.tile(default, (len(block), 1))
        i = 0
        while i < len(block):
            i, j = kernels.match(block, i, piece, j, bits, words, found, is_last)
            if i < len(block):
                following = next(pieces, None)
                is_last = following is None
                if following is not None:
                    piece, j = following, 0
        yield block, found
