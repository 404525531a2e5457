"""The shape of a banded graph: which states exist, which arcs join them, where paths may end."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Topology(NamedTuple):
    """States of B graphs, S at most. A path starts in state 0 before the first frame and ends in one of the last `ends` states.

    Each frame takes one arc. Three kinds of arcs lead to state s: its self-loop, the arc from s-1, and, where `skip` says so,
    the arc from s-2. A self-loop has its own score; the arcs that enter s from other states share one.

    num_states: (B,) integer; states from there on do not exist, and their scores are never read.
    ends: 1 or 2.
    skip: (B, S) bool, or None where no graph has such arcs.
    """

    num_states: Tensor
    ends: int = 1
    skip: Tensor | None = None
