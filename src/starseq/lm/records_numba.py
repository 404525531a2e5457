"""Kernels over records: rows of uint64 whose first words are a key, compared word by word, and whose rest is a payload.

Keys are aligned to the left: a key of n bits fills the highest bits of the first word first. So the first bits of a key are the
key of something shorter, and an order of keys is an order of their beginnings too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from starseq.numba_cache import kept

__all__ = ["bits_at", "jit", "match", "merge", "same_start", "sort"]

_DIGIT = 11
_DIGITS = 1 << _DIGIT

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiled at the first call and kept on the disk; it lets other threads run."""
    compiled: F = kept(function, nogil=True, boundscheck=False, error_model="numpy")
    return compiled


@jit
def bits_at(row: Any, start: int, count: int) -> Any:
    """Bits start .. start + count of a key, as a number; count < 64."""
    word, offset = start >> 6, start & 63
    value = (row[word] << np.uint64(offset)) >> np.uint64(64 - count)
    over = offset + count - 64
    if over > 0:
        value |= row[word + 1] >> np.uint64(64 - over)
    return value


@jit
def same_start(a: Any, b: Any, bits: int) -> bool:
    """Whether two keys agree in their first bits."""
    for word in range(bits >> 6):
        if a[word] != b[word]:
            return False
    rest = bits & 63
    return rest == 0 or (a[bits >> 6] ^ b[bits >> 6]) >> np.uint64(64 - rest) == 0


@jit
def _compare(a: Any, b: Any, bits: int) -> int:
    """-1, 0, 1: how the first bits of `a` stand to those of `b`."""
    for word in range((bits + 63) >> 6):
        x, y = a[word], b[word]
        left = bits - 64 * word
        if left < 64:
            x >>= np.uint64(64 - left)
            y >>= np.uint64(64 - left)
        if x != y:
            return -1 if x < y else 1
    return 0


@jit
def sort(records: Any, scratch: Any, bits: int) -> Any:
    """The records (n, W) by the first bits of their keys: `records` or `scratch`, (n, W) too; both are overwritten.

    A radix sort from the lowest digit up: its time does not depend on what is in the keys, and it is stable.
    """
    n, width = records.shape
    a, b = records, scratch
    starts = np.empty(_DIGITS, np.int64)
    for word in range((bits + 63) // 64 - 1, -1, -1):
        shift = max(0, 64 * (word + 1) - bits)
        while shift < 64:
            starts[:] = 0
            by, mask = np.uint64(shift), np.uint64(_DIGITS - 1)
            for i in range(n):
                starts[np.int64((a[i, word] >> by) & mask)] += 1
            total, largest = 0, 0
            for digit in range(_DIGITS):
                count = starts[digit]
                largest = max(largest, count)
                starts[digit] = total
                total += count
            if largest < n:
                for i in range(n):
                    to = np.int64((a[i, word] >> by) & mask)
                    at = starts[to]
                    starts[to] = at + 1
                    for k in range(width):
                        b[at, k] = a[i, k]
                a, b = b, a
            shift += _DIGIT
    return a


@jit
def combine(records: Any, bits: int) -> int:
    """Adds up the last words of neighbours with equal keys, in place; how many records are left."""
    n, width = records.shape
    kept = 0
    for i in range(n):
        if kept and same_start(records[kept - 1], records[i], bits):
            records[kept - 1, width - 1] += records[i, width - 1]
        else:
            for k in range(width):
                records[kept, k] = records[i, k]
            kept += 1
    return kept


@jit
def _sift(heap: Any, size: int, at: int, blocks: Any, position: Any, bits: int) -> None:
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size:
            left, right = heap[child], heap[child + 1]
            if _compare(blocks[right, position[right]], blocks[left, position[left]], bits) < 0:
                child += 1
        parent, other = heap[at], heap[child]
        if _compare(blocks[parent, position[parent]], blocks[other, position[other]], bits) <= 0:
            return
        heap[at], heap[child] = other, parent
        at = child


@jit
def merge(
    blocks: Any, position: Any, end: Any, last: Any, bits: int, add: bool, out: Any, filled: int
) -> tuple[int, int]:
    """Merge sorted runs, of which `blocks` (runs, n, W) holds the present pieces, from `position` to `end` (runs,).

    Goes on until `out` (m, W) is full or a piece that is not the `last` of its run is used up; returns how much of `out` is
    filled and the run to read on, or -1. With `add`, equal keys become one record, and their last words add up.
    """
    runs, _, width = blocks.shape
    heap = np.empty(runs, np.int64)
    size = 0
    for run in range(runs):
        if position[run] < end[run]:
            heap[size] = run
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sift(heap, size, at, blocks, position, bits)
    while size:
        run = heap[0]
        record = blocks[run, position[run]]
        if add and filled and same_start(out[filled - 1], record, bits):
            out[filled - 1, width - 1] += record[width - 1]
        else:
            if filled == len(out):
                return filled, -1
            for k in range(width):
                out[filled, k] = record[k]
            filled += 1
        position[run] += 1
        if position[run] == end[run]:
            if not last[run]:
                return filled, run
            size -= 1
            heap[0] = heap[size]
        _sift(heap, size, 0, blocks, position, bits)
    return filled, -1


@jit
def match(left: Any, i: int, right: Any, j: int, bits: int, words: int, found: Any, is_last: bool) -> tuple[int, int]:
    """For records i.. of `left`: the payload (behind `words` words) of the record of `right` whose key is their first bits.

    Both are in order. `found` (n, P) is written where there is one. Stops where `right` from j on is used up, unless that
    `is_last`; returns how far both got.
    """
    while i < len(left):
        while j < len(right) and _compare(right[j], left[i], bits) < 0:
            j += 1
        if j == len(right):
            return (len(left) if is_last else i), j
        if same_start(right[j], left[i], bits):
            for k in range(found.shape[1]):
                found[i, k] = right[j, words + k]
        i += 1
    return i, j
