"""Where what numba compiles is kept on the disk, and until when. All kernels for the CPU are compiled through `kept`."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

__all__ = ["can_keep", "forget_older", "kept"]

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
    return compiled


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
        with suppress(
            OSError
        ):  # another process may have been quicker; where nothing may be removed, nothing is stale for long
            if index.stat().st_mtime < time:
                index.unlink()
