"""Where what numba compiles is kept on the disk, and until when. All kernels for the CPU are compiled through `kept`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

__all__ = ["PLACE", "can_keep", "forget_older", "kept"]

PLACE = "NUMBA_CACHE_DIR may name another folder"

_nowhere = False


def kept(function: Any, **options: Any) -> Any:
    """`numba.njit` whose result is kept on the disk, where there is a place for it: beside the source, in the folder that
    NUMBA_CACHE_DIR names, or in the user's own. Where there is none, each process compiles anew."""
    global _nowhere
    try:
        compiled = numba.njit(function, cache=True, **options)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _nowhere = True
        return numba.njit(function, **options)
    _forget_stale(compiled.stats.cache_path)
    compiled._cache.save_overload = _as_possible(compiled._cache.save_overload)
    return compiled


def _as_possible(save: Callable[..., None]) -> Callable[..., None]:
    """As numba saves, but a full disk, or a quota, is no reason to give up what is compiled already."""

    def attempt(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            _tell_once(f"starseq: what was compiled could not be kept: {error.strerror}; {PLACE}")

    return attempt


@functools.cache
def _tell_once(sentence: str) -> None:
    logging.getLogger("starseq").warning(sentence)


def can_keep() -> bool:
    """Whether there was a place for all that was to be kept."""
    return not _nowhere


@functools.cache
def _forget_stale(folder: str) -> None:
    """numba itself looks at a function's own file alone: after a change in what it calls, it would go on with what it has."""
    sources = Path(__file__).parent.glob("*/*_numba.py")
    forget_older(Path(folder), max(path.stat().st_mtime for path in sources))


def forget_older(folder: Path, time: float) -> None:
    """Removes the indices of compiled code in the folder that are from before that time."""
    for index in folder.glob("*.nbi"):
        with suppress(OSError):  # another process may have been quicker
            if index.stat().st_mtime < time:
                index.unlink()
