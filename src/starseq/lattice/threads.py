"""Runs a compiled kernel over a range, on as many threads as torch uses.

numba's own parallel loops are not used: their threading layers abort the process when two Python threads, or a forked child,
enter them. Kernels here release the GIL and write to disjoint places, so the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

_WORTH_A_THREAD = (
    100_000  # elementary steps: about a tenth of a millisecond, several times the price of handing work over
)
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run(kernel: Callable[..., None], items: int, cost: int, *arguments: Any) -> None:
    """Calls kernel(begin, end, *arguments) on pieces of range(items); `cost` is the elementary steps of the whole range."""
    threads = min(torch.get_num_threads(), items, cost // _WORTH_A_THREAD)
    if threads <= 1:
        kernel(0, items, *arguments)
        return
    pieces = min(items, 4 * threads)  # more pieces than threads: utterances differ in length
    bounds = [items * i // pieces for i in range(pieces + 1)]
    following = iter(list(zip(bounds, bounds[1:], strict=False)))

    def work() -> None:
        for begin, end in following:  # advancing a list iterator is atomic under the GIL
            kernel(begin, end, *arguments)

    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    wait(others)
    for other in others:
        other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool per size and process: a fork inherits the objects but not the threads."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="starseq")
    return _pools[key]
