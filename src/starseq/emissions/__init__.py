"""From logits to the scores of a label graph's arcs, one pass over the vocabulary, and one back."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType


@functools.cache
def load(backend: str, lasting: bool) -> ModuleType:
    """The module with `scores` and `gradient` for a backend, and for graphs in which inserted tokens last (`Tokens.lasting`).

    The latter are in plain torch whatever the backend is: what such graphs cost is mostly in the lattice.
    """
    return importlib.import_module(f"{__name__}.{'lasting_torch' if lasting else f'vocabulary_{backend}'}")
