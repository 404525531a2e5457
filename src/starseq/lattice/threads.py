"""Runs a compiled kernel over a range, on as many threads as torch uses.

numba's own parallel loops are not used: their threading layers abort the process when two Python threads, or a forked child,
enter them. Kernels here release the GIL and write to disjoint places, so the result does not depend on the number of threads.
Nor are concurrent.futures: for the loss of a small batch, their bookkeeping costs as much as the second thread saves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

# Elementary steps, of a nanosecond or two. Handing work over takes a tenth of a millisecond, and more where torch's own threads
# still spin on the other core.
_WORTH_A_THREAD = 200_000
_Task = tuple[Callable[[], None], "SimpleQueue[BaseException | None]"]
_pools: dict[tuple[int, int], SimpleQueue[_Task]] = {}


def run(kernel: Callable[..., None], items: int, cost: int, *arguments: Any) -> int:
    """Calls kernel(begin, end, *arguments) on pieces of range(items); `cost` is the elementary steps of the whole range.

    Returns the number of pieces. One thread has the whole range in one piece.
    """
    threads = min(torch.get_num_threads(), items, cost // _WORTH_A_THREAD)
    if threads <= 1:
        kernel(0, items, *arguments)
        return 1
    # More pieces than threads: utterances differ in length.
    pieces = min(items, 4 * threads, max(threads, 2 * cost // _WORTH_A_THREAD))
    bounds = [items * i // pieces for i in range(pieces + 1)]
    following = iter(list(zip(bounds, bounds[1:], strict=False)))

    def work() -> None:
        for begin, end in following:  # advancing a list iterator is atomic under the GIL
            kernel(begin, end, *arguments)

    done: SimpleQueue[BaseException | None] = SimpleQueue()
    pool = _pool(threads - 1)
    for _ in range(threads - 1):
        pool.put((work, done))
    try:
        work()
    finally:
        errors = [done.get() for _ in range(threads - 1)]
    for error in errors:
        if error is not None:
            raise error
    return pieces


def _pool(threads: int) -> SimpleQueue[_Task]:
    """Where so many threads wait for work. One per size and process: a fork inherits the objects but not the threads."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = SimpleQueue()
        for _ in range(threads):
            Thread(target=_serve, args=(_pools[key],), name="starseq", daemon=True).start()
    return _pools[key]


def _serve(tasks: SimpleQueue[_Task]) -> None:
    while True:
        work, done = tasks.get()
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        done.put(error)
        del work, done, error  # what they hold may be large, and the next task may be long in coming
