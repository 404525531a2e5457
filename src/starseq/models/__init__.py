"""One file, one model, found by being there.

A model is a module of this package with a function `build(inputs, tokens, *, ...) -> nn.Module`: `inputs` is the number of
features of a frame (of an image line: its height), `tokens` the vocabulary with the blank first, the rest its settings.
What it builds has an attribute `stride` and is called as

    logits, lengths = model(x, lengths)      # (B, T, F) and (B,) -> (B, T', V) and (B,);  T' = ceil(T / stride), lengths alike

What lies past an utterance's length, whatever it is, changes nothing before it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from torch import nn

__all__ = ["load", "names"]


def names() -> list[str]:
    """The models there are.

    >>> names()
    ['conv_small', 'crnn', 'gated_conv', 'transformer', 'transformer_small']
    """
    # What is written for Triton is no model, and cannot be imported where there is none.
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.endswith("_triton"))
    return sorted(name for name in modules if hasattr(importlib.import_module(f"{__name__}.{name}"), "build"))


def load(name: str) -> Callable[..., nn.Module]:
    """The `build` function of a model; an unknown name raises ValueError.

    >>> load("crnn")(32, ["<blank>", "a", "b"]).stride
    4
    >>> load("rnn")
    Traceback (most recent call last):
    ...
    ValueError: model: 'rnn' is none of conv_small, crnn, gated_conv, transformer, transformer_small
    """
    if name not in names():
        raise ValueError(f"model: {name!r} is none of {', '.join(names())}")
    build: Callable[..., nn.Module] = importlib.import_module(f"{__name__}.{name}").build
    return build
