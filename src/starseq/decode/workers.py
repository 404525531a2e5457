"""Searches on several processes, and their results in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods
from typing import TypeVar

from starseq.data.pool import pool

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
    forks = "fork" in get_all_start_methods() and sys.platform == "linux"
    with pool(function, workers, "fork" if forks else "spawn") as submit:
        yield submit
