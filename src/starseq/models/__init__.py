"""One file, one model, found by being there.

A model is a module of this package with a function `build(inputs, tokens, *, ...) -> nn.Module`: `inputs` is the number of
features of a frame (of an image line: its height), `tokens` the vocabulary with the blank first, the rest its settings.
Other packages offer such functions, or classes that are called alike, as entry points of the group `starseq.models`; and
`package.module:Class` names one where Python finds it. What is built is called as

    logits, lengths = model(x, lengths)      # (B, T, F) and (B,) -> (B, T', V) and (B,)

and has a method `output_lengths`, (B,) -> (B,), that says the lengths beforehand. What lies past an utterance's length,
whatever it is, changes nothing before it. A model may have `load_pretrained(path)`, and `pretrained`, the names of the parameters
that this brings.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["INIT", "is_path", "load", "load_initial", "names", "output_lengths", "stride_of"]

INIT = "init"
"""the setting of a model by `package.module:Class` that names a file of weights to begin with"""
GROUP = "starseq.models"


def names() -> list[str]:
    """The models there are, but for those by `package.module:Class`.

    >>> names()
    ['conv_small', 'crnn', 'gated_conv', 'hf', 'transformer', 'transformer_small']
    """
    # What is written for Triton is no model, and cannot be imported where there is none.
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.endswith("_triton"))
    ours = [name for name in modules if hasattr(importlib.import_module(f"{__name__}.{name}"), "build")]
    return sorted({*ours, *(point.name for point in entry_points(group=GROUP))})


def is_path(name: str) -> bool:
    """Whether a model's name is of the form `package.module:Class`."""
    return ":" in name


def load(name: str) -> Callable[..., nn.Module]:
    """The `build` function of a model; an unknown name raises ValueError.

    >>> load("crnn")(32, ["<blank>", "a", "b"]).stride
    4
    >>> load("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    >>> load("rnn")
    Traceback (most recent call last):
    ...
    ValueError: model: 'rnn' is none of conv_small, crnn, gated_conv, hf, transformer, transformer_small
    """
    if is_path(name):
        return _imported(name)
    if name not in names():
        raise ValueError(f"model: {name!r} is none of {', '.join(names())}")
    for point in entry_points(group=GROUP, name=name):
        found: Callable[..., nn.Module] = point.load()
        return found
    build: Callable[..., nn.Module] = importlib.import_module(f"{__name__}.{name}").build
    return build


def _imported(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` does: a script's own folder, and this one
        sys.path.append(here)
    try:
        found: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"model {name}: cannot be imported ({error})") from None
    return found


def load_initial(model: nn.Module, name: str, path: str) -> frozenset[str]:
    """Puts weights that were trained before in place of those that were drawn. Returns the parameters that have got theirs.

    A model that knows how to, by `load_pretrained`, does it itself. Else `path` is a file of safetensors, of which every tensor
    that has a name and shape of the model's is taken. A file that has none of them, or another shape, raises ValueError.
    """
    own_way: Any = getattr(model, "load_pretrained", None)
    if own_way is not None:
        own_way(path)
        return frozenset(getattr(model, "pretrained", ()))
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: not a file of safetensors that can be read ({error})") from None
    own: dict[str, Any] = model.state_dict()
    both = own.keys() & weights.keys()
    if not both:
        raise ValueError(f"{path}: it has no weight of the model {name}, whose first is {next(iter(own), 'not there')}")
    with torch.no_grad():
        for key in sorted(both):
            if own[key].shape != weights[key].shape:
                shapes = f"{tuple(weights[key].shape)}, and the model's {tuple(own[key].shape)}"
                raise ValueError(f"{path}: {key} is {shapes}: leave it out of the file, if it is to be learned anew")
            own[key].copy_(weights[key])
    return frozenset(name for name, _ in model.named_parameters() if name in both)


def output_lengths(model: nn.Module, lengths: Tensor) -> Tensor:
    """What a model makes of so many frames; one without `output_lengths` raises ValueError."""
    method = getattr(model, "output_lengths", None)
    if method is None:
        raise ValueError(
            f"the model {type(model).__name__} has no output_lengths(lengths), which says how many frames it makes"
        )
    frames: Tensor = method(lengths)
    return frames


_MANY = 1 << 8
_PERIOD = 720_720 * _MANY  # a multiple of all strides up to 16, and of those of audio


def stride_of(model: nn.Module) -> float:
    """How many frames of the input a frame of the output covers, over a long input.

    >>> stride_of(load("crnn")(32, ["<blank>", "a", "b"]))
    4.0
    """
    once, twice = output_lengths(model, torch.tensor([_PERIOD, 2 * _PERIOD])).tolist()
    return _PERIOD / float(max(1, twice - once))
