"""Says that kernels are being compiled: the very first call of a loss would seem to hang, and a later one that needs others."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from numba.core import event

__all__ = ["Notice"]

_PAUSE = 10.0  # seconds without any compiling: what comes then is something else, and is told again


class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Listens to numba, which tells of functions that it compiles, and not of those that it finds in its cache."""

    def __init__(self) -> None:
        self._last = -math.inf

    def on_start(self, event: Any) -> None:
        if _ours(event):
            if time.monotonic() - self._last > _PAUSE:
                # A warning, for those are shown where nobody has set up logging.
                logging.getLogger("starseq").warning(
                    "starseq: compiling for this CPU, half a minute; the result is kept"
                )
            self._last = time.monotonic()

    def on_end(self, event: Any) -> None:
        if _ours(event):
            self._last = time.monotonic()


def _ours(event: Any) -> bool:
    module: str = event.data["dispatcher"].py_func.__module__
    return module.startswith("starseq.")


event.register("numba:compile", Notice())
