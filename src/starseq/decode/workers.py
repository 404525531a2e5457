"""Searches on several processes, and their results in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

import torch

from starseq.data.errors import DataError

__all__ = ["work_ahead"]

R = TypeVar("R")


@contextmanager
def work_ahead(function: Callable[..., R], workers: int) -> Iterator[Callable[..., Callable[[], R]]]:
    """Gives `submit(*arguments)`, which begins a call of `function` on one of `workers` processes and returns what waits for it.

    With 0 workers the call runs in this process, when it is waited for. What `function` raises is raised there. At the end
    calls that nobody waited for are cancelled. Whoever submits bounds what is in flight.

    >>> with work_ahead(pow, 0) as submit:
    ...     waiting = [submit(2, n) for n in range(3)]
    ...     [result() for result in waiting]
    [1, 2, 4]
    """
    if workers < 1:
        yield lambda *arguments: lambda: function(*arguments)
        return
    # A forked child has the language model already, and shares its memory; elsewhere each loads the file once.
    method = "fork" if "fork" in get_all_start_methods() and sys.platform == "linux" else "spawn"
    with ProcessPoolExecutor(workers, get_context(method), initializer=_adopt, initargs=(function,)) as pool:
        pool.submit(_nothing).result()  # forks now, before the caller has run a model on many threads

        def submit(*arguments: Any) -> Callable[[], R]:
            with _alive():
                future: Future[R] = pool.submit(_call, *arguments)

            def result() -> R:
                with _alive():
                    return future.result()

            return result

        try:
            yield submit
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise DataError(
            "a process of the search was killed, perhaps for want of memory: fewer workers need less"
        ) from None


_adopted: Callable[..., Any] | None = None


def _adopt(function: Callable[..., Any]) -> None:
    """In a worker: keeps the function, and one thread, since there are as many workers as are wanted."""
    global _adopted
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    torch.set_num_threads(1)
    _adopted = function
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, and they would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _call(*arguments: Any) -> Any:
    assert _adopted is not None
    return _adopted(*arguments)


def _nothing() -> None:
    pass
