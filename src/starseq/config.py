"""Typed recipes: YAML and `key=value` overrides to frozen dataclasses, every key and type checked; and the parts that
they name, built.

A section with a `name` is a component: the name is that of a module (a model, a criterion, a penalty, a reader, ...), the
other keys are its keyword arguments, checked against its signature. What is built gets plain values: no class below this
file knows what a recipe is.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from starseq import corpora, criteria, models, penalty, recipes
from starseq.data.augment import RandomProjective, SpecAugment
from starseq.data.dataset import AudioReader, LineReader, Reader
from starseq.data.drop import Dropper, FixedDrop, SampleSplit, Strategy, TypeSplit
from starseq.data.errors import DataError
from starseq.data.extractor import ExtractorReader, WaveformReader
from starseq.data.features import LogMel
from starseq.text.normalise import Normaliser
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

__all__ = [
    "Component", "Data", "Drop", "Optim", "Recipe", "Schedule", "Splits", "Text", "Trainer", "load_recipe", "recipe_names",
]  # fmt: skip

T = TypeVar("T")


# --- what a recipe holds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Component:
    """A module by its name, and its keyword arguments."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """every one that there is, once a recipe is loaded"""


HF, PRETRAINED = "hf", "pretrained"
"""the model from outside, and the reader that goes with it; also the key of a recipe that holds what is otherwise then"""
FREE = "free"
"""Marks a key that a resumed run may change: it moves no weight of the steps that are done."""


@dataclass(frozen=True)
class Splits:
    """Which rows, by their field `split`, are for what. Several splits together are one."""

    train: tuple[str, ...] = ("train",)
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)


@dataclass(frozen=True)
class Drop:
    """Labels of the training split that are dropped on the fly, as `starseq drop` would (see `starseq.data.drop`)."""

    p: tuple[float, ...]
    """one probability, or one for each part"""
    by: Literal["label", "sample", "type"] = "label"
    """parts of the samples, or of the types of labels, have a p each"""
    unit: Literal["word", "char"] | None = None
    """what is dropped; None: what `text.unit` says"""
    seed: int = 0
    mark: bool = False
    """leave a star where labels were: the other gaps are closed"""


@dataclass(frozen=True)
class Data:
    """Where the data is, how it is read and put into batches."""

    reader: Annotated[Component, "reader"]
    root: Annotated[str | None, FREE] = None
    """the corpus's folder, under which all its files lie"""
    manifest: str = "manifest.jsonl"
    """relative to `root`"""
    corpus: Annotated[Component | None, "corpus"] = None
    """built-in data: where no `root` is given, it is made in the run folder"""
    splits: Splits = field(default_factory=Splits)
    drop: Drop | None = None
    augment: Annotated[Component | None, "augment"] = None
    budget: float | None = None
    """of a batch, padding included: seconds of audio, columns of an image"""
    max_items: int | None = None
    buckets: int = 30
    workers: Annotated[int, FREE] = 0
    cache: Annotated[bool, FREE] = False
    """keep decoded items in memory"""


@dataclass(frozen=True)
class Text:
    """What a label is, and which labels there are."""

    unit: Literal["word", "char"]
    normaliser: Normaliser = field(default_factory=Normaliser)
    vocabulary: str | None = None
    """a tokens.txt; None: the labels of the training split"""
    size: int | None = None
    """how many of them, the most frequent; None: all"""
    max_letters: int | None = None
    """a longer word is no label"""
    unknown: Literal["raise", "drop", "letters"] = "raise"
    missing: Literal["word", "char"] | None = None
    """what can be missing where no gap is marked; None: any label. Words, with characters as labels: none inside words is open"""


@dataclass(frozen=True)
class Schedule:
    """How the learning rate falls after the warm-up. Each name uses the keys beside it."""

    name: Literal["constant", "halve", "exponential", "plateau", "cosine"] = "constant"
    first: int = 400
    """halve: at this epoch ..."""
    every: int = 200
    """... and whenever so many more are done"""
    gamma: float = 1.0
    """exponential: factor of each step"""
    factor: float = 0.5
    """plateau: factor whenever dev error has not fallen ..."""
    patience: int = 3
    """... for so many evaluations"""
    final: float = 0.0
    """cosine: share of the learning rate that is left at the end"""


@dataclass(frozen=True)
class Optim:
    """The optimiser, its learning rate, and what makes up one step."""

    name: Literal["adagrad", "adam", "adamw", "sgd"]
    lr: float
    encoder_lr: float | None = None
    """of the weights that were trained before; None: lr for all"""
    head_steps: int = 0
    """before these learn, the new ones learn alone for so many steps"""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """of sgd"""
    betas: tuple[float, ...] = (0.9, 0.999)
    """of adam and adamw"""
    warmup_steps: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    clip: float | None = None
    """largest norm of the gradient"""
    batches_per_step: int = 1
    """over all processes: each accumulates its share of them"""


@dataclass(frozen=True)
class Trainer:
    """How long, on what, and how often something is written. All intervals are in optimiser steps."""

    max_steps: Annotated[int | None, FREE] = None
    max_epochs: Annotated[int | None, FREE] = None
    precision: Literal["32", "bf16", "fp16"] = "32"
    accelerator: Annotated[Literal["auto", "cpu", "cuda", "gpu"], FREE] = "auto"
    devices: int = 1
    """processes on each machine; torchrun and SLURM say it themselves"""
    nodes: int = 1
    strategy: Annotated[Literal["auto", "ddp"], FREE] = "auto"
    threads: Annotated[int | None, FREE] = None
    """of each process, on the CPU"""
    eval_every: int = 1000
    patience: Annotated[float | None, FREE] = 0.5
    """the run ends when dev error has stood still for this share of its steps; null: it goes on to its end"""
    checkpoint_every: Annotated[int, FREE] = 1000
    """a checkpoint is also written every few minutes"""
    log_every: Annotated[int, FREE] = 50
    on_nonfinite: Annotated[Literal["skip", "stop"], FREE] = "stop"
    tensorboard: Annotated[bool, FREE] = True


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training run does.

    >>> recipe = load_recipe("digits", ["optim.lr=0.01", "criterion.name=ctc"])
    >>> recipe.optim.lr, recipe.criterion.name, recipe.text.unit
    (0.01, 'ctc', 'char')
    """

    data: Data
    text: Text
    model: Annotated[Component, "model"]
    criterion: Annotated[Component, "criterion"]
    optim: Optim
    trainer: Trainer
    penalty: Annotated[Component, "penalty"] = Component("adaptive")
    seed: int = 0

    def to_yaml(self) -> str:
        """The recipe as YAML that `load_recipe` reads back, with every default written out."""
        from omegaconf import OmegaConf

        text: str = OmegaConf.to_yaml(OmegaConf.create(_tree(self)))
        return text

    def differences(self, other: Recipe) -> list[str]:
        """The keys in which another recipe differs and that a resumed run must not change, as `key: this -> that`.

        >>> one = load_recipe("digits")
        >>> one.differences(load_recipe("digits", ["optim.lr=1", "data.workers=4"]))[0].startswith("optim.lr: ")
        True
        """
        ours, theirs = dict(_leaves(_tree(self))), dict(_leaves(_tree(other)))
        keys = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
        free = _free_keys()
        if self.optim.schedule.name == "cosine":  # its whole course depends on where it ends
            free.remove("trainer.max_steps")
        why = {"trainer.max_steps": " (the cosine schedule depends on it)"}
        return [f"{key}: {ours.get(key)!r} -> {theirs.get(key)!r}{why.get(key, '')}" for key in keys if key not in free]

    # What the recipe names, built.

    def reader(self) -> Reader:
        if self.data.reader.name == PRETRAINED:
            return ExtractorReader(str(self.model.settings["path"]))
        reader: Reader = _build("data.reader", "reader", self.data.reader)
        return reader

    def with_absolute_paths(self) -> Recipe:
        """With the model's own files found from everywhere."""
        key = "path" if self.model.name == HF else models.INIT
        path = self.model.settings.get(key)
        if path is None or not os.path.exists(path):
            return self
        return replace(self, model=Component(self.model.name, {**self.model.settings, key: os.path.abspath(path)}))

    def at(self, path: str | os.PathLike[str]) -> Recipe:
        """With a pretrained model's settings read at `path`, a run's own copy of them."""
        if self.model.name != HF or not os.path.isdir(path):
            return self
        return replace(self, model=Component(HF, {**self.model.settings, "path": os.fspath(path)}))

    def tokeniser(self, vocabulary: Vocabulary) -> Tokeniser:
        return Tokeniser(vocabulary, self.text.unit, self.text.unknown, self.text.normaliser, self.text.missing)

    def network(self, vocabulary: Vocabulary) -> nn.Module:
        """The model, with weights as its module initialises them."""
        settings = {key: value for key, value in self.model.settings.items() if key != models.INIT}
        try:
            model: nn.Module = models.load(self.model.name)(self.reader().bands, vocabulary.tokens, **settings)
            models.output_lengths(model, torch.tensor([1]))
        except ValueError as error:
            raise DataError(f"model {self.model.name}: {error}") from None
        return model

    def load_initial(self, model: nn.Module) -> frozenset[str]:
        """Gives the model the weights that the recipe names, if any, and returns the parameters that have them."""
        path = self.model.settings.get("path" if self.model.name == HF else models.INIT)
        if path is None:
            return frozenset()
        try:
            return models.load_initial(model, self.model.name, str(path))
        except ValueError as error:
            raise DataError(f"model {self.model.name}: {error}") from None

    def own_labels(self) -> list[str] | None:
        """The labels of a pretrained model that keeps its own; None: those of the data."""
        if self.model.name != HF or self.model.settings["head"] == "new":
            return None
        from starseq import pretrained

        path = str(self.model.settings["path"])
        try:
            if not pretrained.has_own_head(path):
                return None
            of_pieces = pretrained.is_of_pieces(pretrained.tokeniser_of(path))
            _, labels = pretrained.own_tokens(path)
        except ValueError as error:
            raise DataError(f"model {self.model.name}: {error}") from None
        wanted = ("word", "letters") if of_pieces else ("char",)
        if self.text.unit != wanted[0] or (of_pieces and self.text.unknown != "letters"):
            mend = "text.unit=word text.unknown=letters text.missing=null" if of_pieces else "text.unit=char"
            kind = "pieces of words" if of_pieces else "characters"
            raise DataError(f"{path}: the model's own tokens are {kind}: {mend}, or model.head=new")
        return labels

    def insertion_penalty(self) -> nn.Module:
        """The rule for p."""
        rule: nn.Module = _build("penalty", "penalty", self.penalty)
        return rule

    @property
    def merges_repeats(self) -> bool:
        """Whether equal tokens in neighbouring frames are read as one."""
        return criteria.merges_repeats(self.criterion.name, self.criterion.settings.get("merge_repeats", True))

    def augmentation(self) -> Callable[..., Tensor] | None:
        """(x, lengths, ids, *, seed, epoch, step) -> x, or None."""
        if self.data.augment is None:
            return None
        augment: Callable[..., Tensor] = _build("data.augment", "augment", self.data.augment)
        if isinstance(augment, SpecAugment) and augment.tract:
            source = self.reader() if self.data.reader.name != PRETRAINED else None
            if not isinstance(source, AudioReader):
                raise DataError(
                    f"data.augment.tract: it is for bands of sound, and data.reader.name is {self.data.reader.name!r}"
                )
            if augment.top != (top := source.log_mel.top):
                raise DataError(f"data.augment.top: the bands of data.reader end at {top:g} Hz, not at {augment.top:g}")
        return augment

    def dropper(self) -> Dropper | None:
        drop = self.data.drop
        if drop is None:
            return None
        if drop.by == "label" and len(drop.p) != 1:
            raise DataError(f"data.drop.p: {list(drop.p)} has parts, so data.drop.by is 'sample' or 'type'")
        try:
            parts: dict[str, Callable[[tuple[float, ...]], Strategy]] = {"sample": SampleSplit, "type": TypeSplit}
            strategy = FixedDrop(drop.p[0]) if drop.by == "label" else parts[drop.by](drop.p)
        except ValueError as error:
            raise DataError(f"data.drop.p: {error}") from None
        return Dropper(strategy, unit=drop.unit or self.text.unit, seed=drop.seed, mark=drop.mark, keep_text=True)


# --- components: by kind and name -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    names: Callable[[], list[str]]
    load: Callable[[str], Callable[..., Any]]
    """the function whose keyword arguments are the component's settings"""
    given: tuple[str, ...] = ()
    """arguments that are not settings"""


def _audio(rate: int = 16_000, bands: int = 80) -> AudioReader:
    return AudioReader(LogMel(rate, bands))


def _pretrained() -> None:
    """Only a signature: the reader is that of the model."""


def _loss_settings(
    merge_repeats: bool = True,
    backend: Literal["auto", "torch", "numba", "triton", "wfst"] = "auto",
) -> None:
    """Only a signature."""


def _loss_settings_without_star(backend: Literal["auto", "torch", "numba", "triton", "wfst"] = "auto") -> None:
    """Only a signature."""


def _kind(kind: str) -> _Kind:
    if kind == "model":
        return _Kind(models.names, models.load, ("inputs", "tokens"))
    if kind == "criterion":
        settings = (_loss_settings_without_star, _loss_settings)
        return _Kind(criteria.names, lambda name: settings[criteria.has_star(name)])
    if kind == "corpus":
        built_in = {name: corpora.load(name) for name in ("digits",)}
        return _Kind(lambda: sorted(built_in), built_in.__getitem__, ("out", "progress"))
    tables: dict[str, dict[str, Callable[..., Any]]] = {
        "penalty": {"schedule": penalty.InsertionPenalty, "adaptive": penalty.AdaptivePenalty},
        "reader": {"audio": _audio, "line": LineReader, "waveform": WaveformReader, PRETRAINED: _pretrained},
        "augment": {"spec_augment": SpecAugment, "random_projective": RandomProjective},
    }
    return _Kind(lambda: sorted(tables[kind]), tables[kind].__getitem__, ("blank",) if kind == "penalty" else ())


def _build(path: str, kind: str, component: Component, **known: Any) -> Any:
    try:
        return _kind(kind).load(component.name)(**component.settings, **known)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


# --- loading ----------------------------------------------------------------------------------------------------------


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
    otherwise = tree.pop(PRETRAINED, {})
    if dict(_leaves(_merged(tree, changes))).get("model.name") == HF:
        tree = _merged(tree, otherwise)
    recipe: Recipe = _typed(_merged(tree, changes), Recipe, "")
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
    tree = _parsed(text, name)
    base = tree.pop("base", None)
    if base is None:
        return tree
    base = str(base)
    if "/" in base or base.endswith((".yaml", ".yml")):
        base = os.path.normpath(
            os.path.join(os.path.dirname(name), base)
        )  # as the file means it, wherever the command runs
    if base in above:
        raise DataError(f"recipe {name}: its base {base!r} leads back to it")
    merged: dict[str, Any] = _merged(_read(base, (*above, base)), tree)
    return merged


def _parsed(text: str, name: str) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        # Values only: what looks like an interpolation stays the text that it is.
        tree = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (YAMLError, OmegaConfBaseException) as error:
        raise DataError(f"recipe {name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise DataError(f"recipe {name}: not a mapping of keys to values")
    return {str(key): value for key, value in tree.items()}


def override_tree(overrides: Sequence[str]) -> dict[str, Any]:
    """What overrides say, as a tree: ``a.b=1`` and ``a={b: 1}`` are the same."""
    tree: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise DataError(f"override {override!r} is not of the form key=value")
        # A lone value is YAML too; a comma or colon in it must not make it something else.
        plain = _parsed(f"value: {value}" if value else "value: ''", override)
        _put(tree, key.strip().split("."), plain["value"])
    return tree


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[keys[-1]] = value


def _merged(base: Any, update: Any, path: str = "") -> Any:
    if not (isinstance(base, dict) and isinstance(update, dict)):
        return update
    if path in _COMPONENTS and update.get("name", base.get("name")) != base.get("name"):
        return update  # the settings of another module mean nothing to this one
    below = {key: _merged(base.get(key), value, f"{path}.{key}".lstrip(".")) for key, value in update.items()}
    return {**base, **below}


# --- checking ---------------------------------------------------------------------------------------------------------


def _typed(value: Any, kind: Any, path: str) -> Any:
    """`value` as an instance of the annotation `kind`, or a `DataError` that names `path`."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, note = get_args(kind)
        if Component not in (inner, *get_args(inner)):
            return _typed(value, inner, path)
        return None if value is None and inner is not Component else _typed_component(value, note, path)
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        if value is None and type(None) in options:
            return None
        return _typed(value, next(option for option in options if option is not type(None)), path)
    if is_dataclass(kind) and isinstance(kind, type):
        return _typed_section(value, kind, path)
    if origin is Literal:
        options = get_args(kind)
        matched = next((o for o in options if o == value or (isinstance(o, str) and o == str(value))), None)
        if matched is None:
            raise DataError(f"{path}: {value!r} is none of {', '.join(map(str, options))}{_near(str(value), options)}")
        return matched
    if origin is tuple or kind is tuple:
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_typed(v, get_args(kind)[0], f"{path}[{i}]") for i, v in enumerate(values))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise DataError(f"{path}: {value!r} is not a mapping of keys to values")
        return {str(key): _typed(v, get_args(kind)[1], f"{path}.{key}") for key, v in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():  # 1e5
        return int(value)
    what = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if kind in what and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise DataError(f"{path}: {value!r} is not {what[kind]}")
    return value


def _typed_section(value: Any, kind: type[T], path: str) -> T:
    if not isinstance(value, dict):
        raise DataError(f"{path or 'recipe'}: {value!r} is not a section with keys")
    hints, known = get_type_hints(kind, include_extras=True), {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise _unknown_key(f"{path}.{key}".lstrip("."), [f"{path}.{name}".lstrip(".") for name in known])
    made = {}
    for name, f in known.items():
        inner = f"{path}.{name}".lstrip(".")
        if isinstance(f.default, Component) and isinstance(value.get(name, {}), dict):
            made[name] = _typed({"name": f.default.name, **value.get(name, {})}, hints[name], inner)
        elif name not in value:
            if f.default is MISSING and f.default_factory is MISSING:
                raise DataError(f"{inner} is missing: the recipe must give it")
        else:
            made[name] = _typed(value[name], hints[name], inner)
    return kind(**made)


def _typed_component(value: Any, kind: str, path: str) -> Component:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DataError(f"{path}.name is missing: it is one of {', '.join(_kind(kind).names())}")
    entry, name = _kind(kind), value["name"]
    by_path = kind == "model" and models.is_path(name)
    if not by_path and name not in entry.names():
        raise DataError(f"{path}.name: {name!r} is none of {', '.join(entry.names())}{_near(name, entry.names())}")
    known = _settings_of(entry, name, path)
    made = {}
    for key, setting in value.items():
        if key == "name":
            continue
        if key not in known:
            others = [o for o in entry.names() if key in _settings_of(entry, o, path)]
            if others and key not in entry.given:
                raise DataError(
                    f"{path}.{key} is not a key of a recipe whose {path}.name is {name}, but of one where it is "
                    f"{' or '.join(others)}"
                )
            raise _unknown_key(f"{path}.{key}", [f"{path}.{setting}" for setting in ("name", *known)])
        made[key] = _typed(setting, known[key].annotation, f"{path}.{key}")
    for key, parameter in known.items():
        if key in made:
            continue
        if parameter.default is inspect.Parameter.empty:
            raise DataError(f"{path}.{key} is missing: {name} must be given it")
        # Written out, so that a run stays what it was when a default changes.
        made[key] = _typed(parameter.default, parameter.annotation, f"{path}.{key}")
    return Component(name, {key: made[key] for key in known})


def _settings_of(entry: _Kind, name: str, path: str) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a component that a recipe can give."""
    try:
        parameters = inspect.signature(entry.load(name), eval_str=True).parameters
    except (ValueError, NameError) as error:
        raise DataError(f"{path}.name: {error}") from None
    plain = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = {key: p for key, p in parameters.items() if key not in entry.given and p.kind not in plain}
    if entry.given == ("inputs", "tokens") and name != HF:
        known[models.INIT] = inspect.Parameter(
            models.INIT, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None
        )
    return known


def _unknown_key(path: str, known: Sequence[str]) -> DataError:
    """Says which key is nearest: one beside it, or one of the same name elsewhere."""
    last = path.rpartition(".")[2]
    initials = "".join(word[:1] for word in last.split("_"))  # learning_rate: lr

    def likeness(key: str) -> float:
        name = key.rpartition(".")[2]
        return 1.0 if name == initials else difflib.SequenceMatcher(None, last, name).ratio()

    beside = [key for key in known if key.rpartition(".")[2].startswith(last)]
    elsewhere = [key for key in _all_keys() if key.rpartition(".")[2] == last]
    nearest = elsewhere[0] if elsewhere and not beside else max(beside or known, key=likeness)
    return DataError(f"{path} is not a key of a recipe; the nearest is {nearest}")


def _near(value: str, options: Sequence[object]) -> str:
    close = difflib.get_close_matches(value, [str(option) for option in options], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _all_keys(kind: type[Any] = Recipe, path: str = "", *, free: bool = False) -> list[str]:
    """The dotted keys that the dataclasses have; with `free`, those that a resumed run may change."""
    keys, hints = [], get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        inner, hint = f"{path}.{f.name}".lstrip("."), hints[f.name]
        below = [section for section in (hint, *get_args(hint)) if is_dataclass(section) and section is not Component]
        if below and isinstance(below[0], type):
            keys += _all_keys(below[0], inner, free=free)
        elif not free or FREE in get_args(hint):
            keys.append(inner)
    return keys


def _free_keys() -> set[str]:
    return set(_all_keys(free=True))


_COMPONENTS = {"model", "criterion", "penalty", "data.reader", "data.corpus", "data.augment"}


def _check(recipe: Recipe) -> None:
    """What types do not say. Building the small parts checks the ranges of their settings."""
    data, trainer, optim = recipe.data, recipe.trainer, recipe.optim
    _check_pretrained(recipe)
    if data.reader.name != PRETRAINED:  # which asks for files of the model
        recipe.reader()
    recipe.augmentation(), recipe.insertion_penalty(), recipe.dropper()
    if trainer.max_steps is None and trainer.max_epochs is None:
        raise DataError("trainer.max_steps or trainer.max_epochs must be given: when is the run done?")
    if data.budget is None and data.max_items is None:
        raise DataError("data.budget or data.max_items must be given: how large is a batch?")
    if recipe.text.unknown == "letters" and recipe.text.unit == "char":
        raise DataError("text.unknown: 'letters' spells words, and text.unit is 'char'")
    if recipe.text.missing == "char" and recipe.text.unit == "word":
        raise DataError("text.missing: a word that lost a 'char' is not a label, and text.unit is 'word'")
    positive = {
        "data.budget": data.budget, "data.max_items": data.max_items, "data.buckets": data.buckets,
        "text.size": recipe.text.size, "optim.lr": optim.lr, "optim.clip": optim.clip,
        "optim.batches_per_step": optim.batches_per_step, "optim.schedule.every": optim.schedule.every,
        "optim.schedule.gamma": optim.schedule.gamma, "optim.schedule.patience": optim.schedule.patience,
        "trainer.max_steps": trainer.max_steps, "trainer.max_epochs": trainer.max_epochs, "trainer.devices": trainer.devices,
        "trainer.nodes": trainer.nodes, "trainer.threads": trainer.threads, "trainer.eval_every": trainer.eval_every,
        "trainer.checkpoint_every": trainer.checkpoint_every, "trainer.log_every": trainer.log_every,
    }  # fmt: skip
    sizes = {
        **{
            f"model.{name}": value
            for name, value in recipe.model.settings.items()
            if type(value) is int or name == "width"
        },
        **{f"data.reader.{name}": data.reader.settings.get(name) for name in ("height", "max_width")},
    }
    positive |= sizes
    for key, value in positive.items():
        if value is not None and not value > 0:
            raise DataError(f"{key}: {value} is not above 0")
        if value is not None and math.isinf(value):
            raise DataError(f"{key}: {value} is not a finite number")
    if optim.schedule.name == "cosine" and trainer.max_steps is None:
        raise DataError("trainer.max_steps must be given: the cosine schedule ends there")
    if trainer.patience is not None and not 0 < trainer.patience < 1:
        raise DataError(
            f"trainer.patience: {trainer.patience} is not a share of the steps, above 0 and below 1, or null"
        )
    for key, value in {"data.workers": data.workers, "optim.warmup_steps": optim.warmup_steps}.items():
        if value < 0:
            raise DataError(f"{key}: {value} is below 0")
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise DataError(f"optim.betas: {list(optim.betas)} are not two numbers of at least 0 and below 1")


def _check_pretrained(recipe: Recipe) -> None:
    """The model from outside and its reader go together; a learning rate of the encoder needs one."""
    data, optim, hf = recipe.data, recipe.optim, recipe.model.name == HF
    if hf != (data.reader.name == PRETRAINED):
        mend = f"data.reader={PRETRAINED}" if hf else "another data.reader.name"
        raise DataError(
            f"data.reader.name: {data.reader.name!r} does not go with model.name={recipe.model.name}: {mend}"
        )
    for key, value in {"optim.encoder_lr": optim.encoder_lr, "optim.head_steps": optim.head_steps}.items():
        if value is not None and not 0 <= value < math.inf:
            raise DataError(f"{key}: {value} is not a finite number of at least 0")


# --- trees ------------------------------------------------------------------------------------------------------------


def _tree(value: Any) -> Any:
    """Plain dicts, lists and values, as YAML holds them."""
    if isinstance(value, Component):
        return {"name": value.name, **_tree(dict(value.settings))}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _tree(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _tree(v) for key, v in value.items()}
    return [_tree(v) for v in value] if isinstance(value, (list, tuple)) else value


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, tree
