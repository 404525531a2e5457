"""Says that kernels are being compiled: the very first call of a loss would seem to hang, and a later one that needs others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from numba.core import event

from starseq.numba_cache import PLACE, can_keep

__all__ = ["NOTICE", "Notice"]

_PAUSE = 10.0  # seconds without any compiling: what comes then is something else, and is told again


class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Listens to numba, which tells of functions that it compiles, and not of those that it finds in its cache."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, -math.inf

    def on_start(self, event: Any) -> None:
        if _ours(event):
            if self._clock() - self._last > _PAUSE:
                # A warning, for those are shown where nobody has set up logging.
                logging.getLogger("starseq").warning(
                    "starseq: compiling for this CPU, for up to a minute; "
                    + ("the result is kept" if can_keep() else f"there is no place to keep the result; {PLACE}")
                )
            self._last = self._clock()

    def on_end(self, event: Any) -> None:
        if _ours(event):
            self._last = self._clock()


def _ours(event: Any) -> bool:
    """Of whatever the process compiles: functions of others may have no module, and must not fail here."""
    function = getattr(event.data.get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", None)).startswith("starseq.")


NOTICE = Notice()
event.register("numba:compile", NOTICE)
