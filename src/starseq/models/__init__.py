"""One file, one model, found by being there.

A model is a module of this package with a function `build(inputs, tokens, *, ...) -> nn.Module`: `inputs` is the number of
features of a frame (of an image line: its height), `tokens` the vocabulary with the blank first, the rest its settings.
What it builds has an attribute `stride` and is called as

    logits, lengths = model(x, lengths)      # (B, T, F) and (B,) -> (B, T', V) and (B,);  T' = ceil(T / stride), lengths alike

What lies past an utterance's length, whatever it is, changes nothing before it.

Every model takes the setting `onsets`: its outputs are then log-probabilities of where tokens begin (`starseq.lasting`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from starseq.lasting import onsets as onsets_of

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

    @functools.wraps(build)
    def build_any(inputs: int, tokens: Sequence[str], *, onsets: bool = False, **settings: Any) -> nn.Module:
        model = build(inputs, tokens, **settings)
        if onsets:
            model.register_forward_hook(_to_onsets)
        return model

    signature = inspect.signature(build, eval_str=True)
    setting = inspect.Parameter("onsets", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
    build_any.__signature__ = signature.replace(parameters=[*signature.parameters.values(), setting])  # type: ignore[attr-defined]
    return build_any


def _to_onsets(model: nn.Module, arguments: Any, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """In float32 under autocast, too."""
    logits, lengths = outputs
    return onsets_of(logits, batch_first=True), lengths
