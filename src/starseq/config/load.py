"""From YAML and `key=value` to a recipe: every key, type and range is checked. What is wrong is one sentence."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from starseq import models, recipes
from starseq.config import build
from starseq.config.schema import HF, NOT_NEGATIVE, POSITIVE, PRETRAINED, Component, Recipe, keys_of
from starseq.config.tree import leaves, merged, parse, put
from starseq.data.errors import DataError

__all__ = ["load_recipe", "override_tree", "recipe_names"]


def recipe_names() -> list[str]:
    """The recipes of the package.

    >>> "digits" in recipe_names()
    True
    """
    return recipes.names()


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe of the package by its name, or a YAML file by its path, with `key=value` overrides.

    A recipe may begin with the keys of another, its `base`; its section `pretrained` has keys for where the model is `hf`.
    Where a component gets another name, the settings of the old one go. An unknown key, a wrong type or a value out of range is a
    `DataError` that names the key's full path, and for a key or name the nearest one that there is.

    >>> load_recipe("digits", ["optim.learning_rate=0.1"])
    Traceback (most recent call last):
    ...
    starseq.data.errors.DataError: optim.learning_rate is not a key of a recipe; the nearest is optim.lr
    """
    tree, changes = _read(str(name)), override_tree(overrides)
    for_pretrained = tree.pop(PRETRAINED, {})
    if dict(leaves(merged(tree, changes))).get("model.name") == HF:
        tree = merged(tree, for_pretrained)
    recipe: Recipe = _section(merged(tree, changes), Recipe, "")
    _check(recipe)
    return recipe


def _read(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tree of a recipe: its base, then its own keys."""
    shipped = recipes.names()
    if name in shipped:
        text = recipes.text(name)
    elif name.endswith((".yaml", ".yml")) or "/" in name:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise DataError(f"recipe {name}: not a text file in UTF-8") from None
    else:
        raise DataError(f"recipe {name!r} is none of {', '.join(shipped)}, and not a .yaml file{_near(name, shipped)}")
    tree = parse(text, name)
    base = tree.pop("base", None)
    if base is None:
        return tree
    base = str(base)
    if "/" in base or base.endswith((".yaml", ".yml")):  # as the file means it, wherever the command runs
        base = os.path.normpath(os.path.join(os.path.dirname(name), base))
    if base in above:
        raise DataError(f"recipe {name}: its base {base!r} leads back to it")
    whole: dict[str, Any] = merged(_read(base, (*above, base)), tree)
    return whole


def override_tree(overrides: Sequence[str]) -> dict[str, Any]:
    """What overrides say, as a tree: ``a.b=1`` and ``a={b: 1}`` are the same."""
    tree: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise DataError(f"override {override!r} is not of the form key=value")
        # A lone value is YAML too; a comma or colon in it must not make it something else.
        plain = parse(f"value: {value}" if value else "value: ''", override)
        put(tree, key.strip().split("."), plain["value"])
    return tree


# --- types and ranges -------------------------------------------------------------------------------------------------

_CALLED = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _typed(value: Any, kind: Any, path: str, notes: tuple[Any, ...] = ()) -> Any:
    """`value` as an instance of the annotation `kind`, or a `DataError` that names `path`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _typed(value, args[0], path, args[1:])
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in args:
            return None
        return _typed(value, next(option for option in args if option is not types.NoneType), path, notes)
    if kind is Component:
        return _component(value, notes[0], path)
    if is_dataclass(kind) and isinstance(kind, type):
        return _section(value, kind, path)
    if origin is Literal:
        found = next((option for option in args if option == value or str(option) == str(value)), None)
        if found is None:
            raise DataError(f"{path}: {value!r} is none of {', '.join(map(str, args))}{_near(str(value), args)}")
        return found
    if origin is tuple:
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_typed(v, args[0], f"{path}[{i}]") for i, v in enumerate(values))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise DataError(f"{path}: {value!r} is not a mapping of keys to values")
        return {str(key): _typed(v, args[1], f"{path}.{key}") for key, v in value.items()}
    return _plain(value, kind, path, notes)


def _plain(value: Any, kind: Any, path: str, notes: tuple[Any, ...]) -> Any:
    """A number, text, or truth value, within the range that its notes say."""
    if (kind is float and type(value) is int) or (kind is int and type(value) is float and value.is_integer()):
        value = kind(value)  # 1e5 is a whole number too
    if kind in _CALLED and type(value) is not kind:
        raise DataError(f"{path}: {value!r} is not {_CALLED[kind]}")
    if POSITIVE in notes and not value > 0:
        raise DataError(f"{path}: {value} is not above 0")
    if NOT_NEGATIVE in notes and not value >= 0:
        raise DataError(f"{path}: {value} is below 0")
    if (POSITIVE in notes or NOT_NEGATIVE in notes) and math.isinf(value):
        raise DataError(f"{path}: {value} is not a finite number")
    return value


def _section(value: Any, kind: type[Any], path: str) -> Any:
    if not isinstance(value, dict):
        raise DataError(f"{path or 'recipe'}: {value!r} is not a section with keys")
    hints, known = get_type_hints(kind, include_extras=True), {f.name: f for f in fields(kind)}
    paths = {name: f"{path}.{name}".lstrip(".") for name in known}
    for key in value.keys() - known.keys():
        raise _unknown_key(f"{path}.{key}".lstrip("."), list(paths.values()))
    made = {}
    for name, f in known.items():
        if isinstance(f.default, Component) and isinstance(value.get(name, {}), dict):
            made[name] = _typed({"name": f.default.name, **value.get(name, {})}, hints[name], paths[name])
        elif name in value:
            made[name] = _typed(value[name], hints[name], paths[name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise DataError(f"{paths[name]} is missing: the recipe must give it")
    return kind(**made)


def _component(value: Any, kind: str, path: str) -> Component:
    if isinstance(value, str):
        value = {"name": value}
    names = build.kind_of(kind).names()
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DataError(f"{path}.name is missing: it is one of {', '.join(names)}")
    given, name = {key: v for key, v in value.items() if key != "name"}, value["name"]
    if name not in names and not (kind == "model" and models.is_path(name)):
        raise DataError(f"{path}.name: {name!r} is none of {', '.join(names)}{_near(name, names)}")
    known = _settings_of(kind, name, path)
    for key in given.keys() - known.keys():
        others = [other for other in names if key in _settings_of(kind, other, path)]
        if others:
            raise DataError(
                f"{path}.{key} is not a key of a recipe whose {path}.name is {name}, but of one where it is "
                f"{' or '.join(others)}"
            )
        raise _unknown_key(f"{path}.{key}", [f"{path}.{setting}" for setting in ("name", *known)])
    settings = {}
    for key, parameter in known.items():
        # Defaults are written out, so that a run stays what it was when one changes.
        setting = given.get(key, parameter.default)
        if setting is inspect.Parameter.empty:
            raise DataError(f"{path}.{key} is missing: {name} must be given it")
        wanted = parameter.annotation
        is_size = kind in ("model", "reader") and (wanted is int or int in get_args(wanted) or key == "width")
        settings[key] = _typed(setting, wanted, f"{path}.{key}", (POSITIVE,) if is_size else ())
    return Component(name, settings)


def _settings_of(kind: str, name: str, path: str) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a component that a recipe can give."""
    entry = build.kind_of(kind)
    try:
        parameters = inspect.signature(entry.load(name), eval_str=True).parameters
    except (ValueError, NameError) as error:
        raise DataError(f"{path}.name: {error}") from None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = {key: p for key, p in parameters.items() if key not in entry.given and p.kind not in variable}
    if kind == "model" and name != HF:
        weights = inspect.Parameter(models.INIT, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
        known[models.INIT] = weights
    return known


# --- sentences --------------------------------------------------------------------------------------------------------


def _unknown_key(path: str, known: Sequence[str]) -> DataError:
    """Says which key is nearest: one beside it, or one of the same name elsewhere."""
    last = path.rpartition(".")[2]
    initials = "".join(word[:1] for word in last.split("_"))  # learning_rate: lr

    def likeness(key: str) -> float:
        name = key.rpartition(".")[2]
        return 1.0 if name == initials else difflib.SequenceMatcher(None, last, name).ratio()

    beside = [key for key in known if key.rpartition(".")[2].startswith(last)]
    elsewhere = [key for key in keys_of() if key.rpartition(".")[2] == last]
    nearest = elsewhere[0] if elsewhere and not beside else max(beside or known, key=likeness)
    return DataError(f"{path} is not a key of a recipe; the nearest is {nearest}")


def _near(value: str, options: Sequence[object]) -> str:
    close = difflib.get_close_matches(value, [str(option) for option in options], n=1)
    return f"; did you mean {close[0]}?" if close else ""


# --- what keys say together -------------------------------------------------------------------------------------------


def _check(recipe: Recipe) -> None:
    """How keys go together. The small parts are built, which checks their settings."""
    data, trainer, optim, text = recipe.data, recipe.trainer, recipe.optim, recipe.text
    name, hf = data.reader.name, recipe.model.name == HF
    if hf != (name == PRETRAINED):
        mend = f"data.reader={PRETRAINED}" if hf else "another data.reader.name"
        raise DataError(f"data.reader.name: {name!r} does not go with model.name={recipe.model.name}: {mend}")
    if not hf:  # otherwise it asks for files of the model
        build.reader(recipe)
    build.augmentation(recipe), build.insertion_penalty(recipe), build.dropper(recipe)
    if trainer.max_steps is None and trainer.max_epochs is None:
        raise DataError("trainer.max_steps or trainer.max_epochs must be given: when is the run done?")
    if data.budget is None and data.max_items is None:
        raise DataError("data.budget or data.max_items must be given: how large is a batch?")
    if text.unknown == "letters" and text.unit != "word":
        raise DataError(f"text.unknown: 'letters' spells words, and text.unit is {text.unit!r}")
    if text.missing == "char" and text.unit != "char":
        raise DataError(f"text.missing: gaps inside of words need text.unit=char, and it is {text.unit!r}")
    if text.pieces is not None and text.unit != "piece":
        raise DataError(f"text.pieces: a model of pieces needs text.unit=piece, and it is {text.unit!r}")
    if text.unit == "piece":
        for key in ("vocabulary", "max_letters", *(["size"] if text.pieces is not None else [])):
            if getattr(text, key) is not None:
                raise DataError(f"text.{key}: the labels are pieces, and the model of pieces says which there are")
    if optim.schedule.name == "cosine" and trainer.max_steps is None:
        raise DataError("trainer.max_steps must be given: the cosine schedule ends there")
    patience = trainer.patience
    if patience is not None and not 0 < patience < 1:
        raise DataError(f"trainer.patience: {patience} is not a share of the steps, above 0 and below 1, or null")
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise DataError(f"optim.betas: {list(optim.betas)} are not two numbers of at least 0 and below 1")
