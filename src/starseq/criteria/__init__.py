"""One file, one criterion, found by being there.

A criterion is a module of this package with a function `label_graph(targets, target_lengths, *, blank) -> LabelGraph`.
One with stars takes `log_penalty` and `merge_repeats` as well.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import torch

from starseq.criteria.graph import LabelGraph, to_wfst

__all__ = ["LabelGraph", "has_star", "load", "merges_repeats", "names", "to_wfst"]


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
    if name not in names():
        raise ValueError(f"criterion: {name!r} is none of {', '.join(names())}")
    label_graph: Callable[..., LabelGraph] = importlib.import_module(f"{__name__}.{name}").label_graph
    return label_graph


def has_star(name: str) -> bool:
    """Whether a criterion has stars, and so takes `log_penalty` and `merge_repeats`.

    >>> [has_star(name) for name in names()]
    [False, False, True]
    """
    return "log_penalty" in inspect.signature(load(name)).parameters


def merges_repeats(name: str, merge_repeats: bool = True) -> bool:
    """Whether a label may last for several frames, so that repeats in a row of frames are one label.

    merge_repeats: as the loss was told, for a criterion that has the choice; the others have none.

    >>> [merges_repeats(name) for name in names()], merges_repeats("stc", merge_repeats=False)
    ([True, False, True], False)
    """
    stars = {"log_penalty": torch.zeros(1, 2), "merge_repeats": merge_repeats} if has_star(name) else {}
    graph = load(name)(torch.tensor([[1]]), torch.tensor([1]), blank=0, **stars)
    return graph.tokens.stay is not None
