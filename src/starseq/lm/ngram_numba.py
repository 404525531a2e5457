"""Kernels of the n-gram model in memory: a hash table for each order, open addressing, 64 bits of hash in place of the words.

Two n-grams of one order with the same hash would be taken for one: with 10 million of them the odds are 1 in 400,000, and then
one of them has the other's probability. KenLM does the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from starseq.lm.records_numba import jit

__all__ = ["insert", "score"]


@jit
def _extend(value: Any, word: int) -> Any:
    """The hash of an n-gram with one more word before it (the finaliser of MurmurHash3); never 0, which means free."""
    value = (value ^ np.uint64(word + 1)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return value if value else np.uint64(1)


@jit
def _find(keys: Any, value: Any) -> Any:
    """Where a hash is, or where it would be."""
    place: Any = np.int64(value % np.uint64(len(keys)))
    while keys[place] != 0 and keys[place] != value:
        place += 1
        if place == len(keys):
            place = 0
    return place


@jit
def insert(words: Any, log10_p: Any, log10_backoff: Any, keys: Any, values: Any) -> int:
    """Enter n-grams (n, order) into the table `keys` (C,), `values` (C, 2); the first that is there already, or -1."""
    for i in range(len(words)):
        value = np.uint64(0)
        for k in range(words.shape[1] - 1, -1, -1):
            value = _extend(value, words[i, k])
        place = _find(keys, value)
        if keys[place] != 0:
            return i
        keys[place] = value
        values[place, 0], values[place, 1] = log10_p[i], log10_backoff[i]
    return -1


@jit
def score(words: Any, begins: Any, keys: Any, values: Any, bounds: Any, unigrams: Any, out: Any) -> None:
    """log10 p of each word (n,) after what stands before it, back to the last place that `begins` (n,); 0 for that itself.

    Order k + 2 has the tables keys[bounds[k]:bounds[k + 1]] and likewise values; `unigrams` (words, 2) are by number.
    """
    order = len(bounds)
    grams, contexts = np.zeros((2, order), np.uint64)  # hashes of the 1, 2, ... words that end here, and before here
    length = 0
    for i in range(len(words)):
        if begins[i]:
            length = 0
            out[i] = 0.0
        limit = min(length + 1, order)
        value = np.uint64(0)
        for k in range(limit):
            value = _extend(value, words[i - k])
            grams[k] = value
        if not begins[i]:
            found, total = 1, np.float64(unigrams[words[i], 0])
            for n in range(limit, 1, -1):
                start, end = bounds[n - 2], bounds[n - 1]
                place = start + _find(keys[start:end], grams[n - 1])
                if keys[place] != 0:
                    found, total = n, np.float64(values[place, 0])
                    break
            # Every context that is longer than the found n-gram's has to be paid for, if the model knows it.
            for n in range(found, limit):
                if n == 1:
                    total += unigrams[words[i - 1], 1]
                else:
                    start, end = bounds[n - 2], bounds[n - 1]
                    place = start + _find(keys[start:end], contexts[n - 1])
                    if keys[place] != 0:
                        total += values[place, 1]
            out[i] = total
        for k in range(limit):
            contexts[k] = grams[k]
        length += 1
