"""One file, one criterion, found by being there.

A criterion is a module of this package with a function `label_graph(targets, target_lengths, *, blank) -> LabelGraph`, and FORM,
what these graphs look like. One with stars takes `log_penalty` and `merge_repeats` as well, and has FORM_OF_KEPT_REPEATS.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from starseq.criteria.graph import Form, LabelGraph, to_wfst

__all__ = ["Form", "LabelGraph", "form", "load", "names", "to_wfst"]


def names() -> list[str]:
    """The criteria there are.

    >>> names()
    ['ctc', 'selfless_ctc', 'stc']
    """
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if hasattr(importlib.import_module(f"{__name__}.{name}"), "label_graph"))


def load(name: str) -> Callable[..., LabelGraph]:
    """The `label_graph` function of a criterion; an unknown name raises ValueError.

    >>> load("cctc")
    Traceback (most recent call last):
    ...
    ValueError: criterion: 'cctc' is none of ctc, selfless_ctc, stc
    """
    label_graph: Callable[..., LabelGraph] = _module(name).label_graph
    return label_graph


@functools.cache
def form(name: str, merge_repeats: bool = True) -> Form:
    """What a criterion's graphs look like.

    merge_repeats: as the loss was told, for a criterion with stars; the others have no choice.

    >>> form("stc"), form("stc", merge_repeats=False)
    (Form(merging=True, stars=True), Form(merging=False, stars=True))
    """
    module = _module(name)
    declared: Form = module.FORM if merge_repeats or not module.FORM.stars else module.FORM_OF_KEPT_REPEATS
    return declared


@functools.cache
def _module(name: str) -> ModuleType:
    if name not in names():
        raise ValueError(f"criterion: {name!r} is none of {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
