"""Work on other processes, which end without a word when Ctrl-C is pressed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Literal, TypeVar

import torch

from starseq.data.errors import DataError

__all__ = ["interrupts_held", "pool"]

R = TypeVar("R")
_CAN_BLOCK = hasattr(signal, "pthread_sigmask")  # not on Windows


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end of the block, and then does what it does otherwise. Processes that start in the block do not
    hear it, unless they change that themselves: until then it would be a traceback of theirs, or half of a lock."""
    held: list[tuple[int, FrameType | None]] = []
    in_main = current_thread() is main_thread()
    # Both are needed. A blocked signal reaches another thread, which wakes the main one; a handler does not outlive an exec.
    before: Any = signal.signal(signal.SIGINT, lambda *heard: held.append(heard)) if in_main else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if _CAN_BLOCK else set()
    try:
        yield
    finally:
        if _CAN_BLOCK:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if in_main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
            if held and callable(before):
                before(*held[0])


@contextmanager
def pool(
    function: Callable[..., R], workers: int, method: Literal["fork", "spawn"]
) -> Iterator[Callable[..., Callable[[], R]]]:
    """Gives `submit(*arguments)`, which begins a call of `function` on one of `workers` processes, started by `method`, and
    returns what waits for its result.

    What `function` raises is raised there; where a worker was killed, that is a `DataError`. When the block ends early,
    calls that wait are cancelled, and those that run get a `KeyboardInterrupt`. The caller must bound how many calls wait.
    """
    is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as with nohup
    executor = ProcessPoolExecutor(workers, get_context(method), initializer=_begin, initargs=(function, is_deaf))

    def submit(*arguments: Any) -> Callable[[], R]:
        with _alive(), interrupts_held():  # this starts processes
            future: Future[R] = executor.submit(_call, *arguments)

        def result() -> R:
            with _alive():
                return future.result()

        return result

    try:
        if method == "fork":
            with _alive(), interrupts_held():
                first = executor.submit(_nothing)
            first.result()  # forks now, before the caller has run a model on many threads
        yield submit
    except BaseException:
        with interrupts_held():
            _interrupt(executor)
        raise
    finally:
        with interrupts_held():
            executor.shutdown(cancel_futures=True)


def _interrupt(executor: ProcessPoolExecutor) -> None:
    """Ends the calls that run. Ctrl-C on a terminal has told the workers already; an error has not."""
    if sys.platform == "win32":  # there is no such signal for one process
        return
    for pid in list(executor._processes or ()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


@contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise DataError("a worker was killed, perhaps for want of memory: fewer workers need less") from None


# --- in a worker ------------------------------------------------------------------------------------------------------

_function: Callable[..., Any] | None = None
_is_called = False
_is_over = False


def _begin(function: Callable[..., Any], is_deaf: bool) -> None:
    """Keeps the function, and one thread, since there are as many workers as are wanted."""
    global _function
    _function = function
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN if is_deaf else _heard)
    if _CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _heard(*_: object) -> None:
    """Ctrl-C: the call ends, and none begins. The first process ends the workers, in good order."""
    global _is_over
    was_over, _is_over = _is_over, True
    if _is_called and not was_over:
        raise KeyboardInterrupt


def _call(*arguments: Any) -> Any:
    global _is_called
    assert _function is not None
    try:
        _is_called = True
        if _is_over:
            raise KeyboardInterrupt
        return _function(*arguments)
    finally:
        _is_called = False


def _nothing() -> None:
    pass


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, and they would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
