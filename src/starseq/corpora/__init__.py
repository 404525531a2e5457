"""Corpora on disk to manifests: one file, one corpus, found by being there.

A corpus is a module of this package with a function `prepare(source, out, *, ..., skip_bad, progress) -> Report`. Its
docstring, its parameters and their `Annotated` notes become the command `starseq prepare NAME`. Modules whose names
begin with an underscore are what the corpora share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from starseq.corpora._build import Report

__all__ = ["Report", "load", "names"]


def names() -> list[str]:
    """The corpora there are.

    >>> "librispeech" in names()
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Callable[..., Report]:
    """The `prepare` function of a corpus; an unknown name raises `ValueError`."""
    if name not in names():
        raise ValueError(f"corpus {name!r} is not one of {', '.join(names())}")
    prepare: Callable[..., Report] = importlib.import_module(f"{__name__}.{name}").prepare
    return prepare
