"""How long a run will still take: from what its last steps, evaluations and checkpoints took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Literal

_WARM_UP, _GROUP, _GROUPS, _ASIDES = 2, 10, 30, 5


class TimeLeft:
    """Estimates the seconds to the end of training. It must be told of each step, and of all that is done between steps.

    Steps are timed in groups of ten, and the middle half of the last thirty groups counts: a step that waits for the disk, or
    for a compiler, changes nothing. The first two steps never count, unless they are all that there is.

    >>> clock = iter([0, 60, 62, 64, 64, 94])
    >>> left = TimeLeft(lambda: next(clock))
    >>> for _ in range(3):
    ...     left.stepped()
    >>> with left.aside("evaluation"):
    ...     pass
    >>> left(100, evaluations=2)
    260.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._steps = 0
        self._group: list[float] = []
        self._groups: deque[float] = deque(maxlen=_GROUPS)
        self._asides: dict[str, deque[float]] = {}

    def stepped(self) -> None:
        """A step has ended."""
        now = self._clock()
        took, self._since = now - self._since, now
        self._steps += 1
        if self._steps == _WARM_UP + 1:
            self._group.clear()
        self._group.append(took)
        if len(self._group) == _GROUP:
            self._groups.append(sum(self._group) / _GROUP)
            self._group.clear()

    @contextmanager
    def aside(self, kind: Literal["evaluation", "checkpoint", "picture"]) -> Iterator[None]:
        """What is done in this block is not part of a step."""
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            self._since += took
            self._asides.setdefault(kind, deque(maxlen=_ASIDES)).append(took)

    def of(self, kind: Literal["evaluation", "checkpoint", "picture"]) -> float:
        """The seconds that one takes; 0 before the first."""
        return median(self._asides.get(kind) or (0.0,))

    def __call__(self, steps: float, *, evaluations: float = 0, checkpoints: float = 0) -> float:
        """The seconds that so many steps, evaluations and checkpoints take; 0 before the first step."""
        groups = sorted(self._groups or self._group or (0.0,))
        per_step = fmean(groups[len(groups) // 4 : len(groups) - len(groups) // 4])
        return steps * per_step + evaluations * self.of("evaluation") + checkpoints * self.of("checkpoint")
