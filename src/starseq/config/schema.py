"""What a recipe holds: one dataclass a section, with the type, range and default of every key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_type_hints

from starseq import criteria, models
from starseq.config.tree import dump, leaves, tree_of
from starseq.text.normalise import Normaliser

HF, PRETRAINED = "hf", "pretrained"
"""the model from outside, and the reader that goes with it; also the key of a recipe that holds what is otherwise then"""

# Notes beside a type.
FREE = "free"
"""A resumed run may change this key: it moves no weight of the steps that are done."""
POSITIVE, NOT_NEGATIVE = "positive", "not negative"
"""The range of a number, which is finite then."""


@dataclass(frozen=True)
class Component:
    """A module by its name, and its keyword arguments. Where one stands, the note beside it says its kind."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """every one that there is, once a recipe is loaded"""


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
    budget: Annotated[float | None, POSITIVE] = None
    """of a batch, padding included: seconds of audio, columns of an image"""
    max_items: Annotated[int | None, POSITIVE] = None
    buckets: Annotated[int, POSITIVE] = 30
    workers: Annotated[int, FREE, NOT_NEGATIVE] = 0
    cache: Annotated[bool, FREE] = False
    """keep decoded items in memory"""


@dataclass(frozen=True)
class Text:
    """What a label is, and which labels there are."""

    unit: Literal["word", "char", "piece"]
    """pieces of words are learned from the training split, or those of a pretrained model"""
    normaliser: Normaliser = field(default_factory=Normaliser)
    vocabulary: str | None = None
    """a tokens.txt; None: the labels of the training split"""
    size: Annotated[int | None, POSITIVE] = None
    """how many of them, the most frequent; None: all. Of pieces None is as many as suit the amount of text"""
    pieces: str | None = None
    """a model of sentencepiece, in place of one that is learned"""
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
    every: Annotated[int, POSITIVE] = 200
    """... and whenever so many more are done"""
    gamma: Annotated[float, POSITIVE] = 1.0
    """exponential: factor of each step"""
    factor: float = 0.5
    """plateau: factor whenever dev error has not fallen ..."""
    patience: Annotated[int, POSITIVE] = 3
    """... for so many evaluations"""
    final: float = 0.0
    """cosine: share of the learning rate that is left at the end"""


@dataclass(frozen=True)
class Optim:
    """The optimiser, its learning rate, and what makes up one step."""

    name: Literal["adagrad", "adam", "adamw", "sgd"]
    lr: Annotated[float, POSITIVE]
    encoder_lr: Annotated[float | None, NOT_NEGATIVE] = None
    """of the weights that were trained before; None: lr for all"""
    head_steps: Annotated[int, NOT_NEGATIVE] = 0
    """before these learn, the new ones learn alone for so many steps"""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """of sgd"""
    betas: tuple[float, ...] = (0.9, 0.999)
    """of adam and adamw"""
    warmup_steps: Annotated[int, NOT_NEGATIVE] = 0
    schedule: Schedule = field(default_factory=Schedule)
    clip: Annotated[float | None, POSITIVE] = None
    """largest norm of the gradient"""
    batches_per_step: Annotated[int, POSITIVE] = 1
    """over all processes: each accumulates its share of them"""


@dataclass(frozen=True)
class Trainer:
    """How long, on what, and how often something is written. All intervals are in optimiser steps."""

    max_steps: Annotated[int | None, FREE, POSITIVE] = None
    max_epochs: Annotated[int | None, FREE, POSITIVE] = None
    precision: Literal["32", "bf16", "fp16"] = "32"
    accelerator: Annotated[Literal["auto", "cpu", "cuda", "gpu"], FREE] = "auto"
    devices: Annotated[int, POSITIVE] = 1
    """processes on each machine; torchrun and SLURM say it themselves"""
    nodes: Annotated[int, POSITIVE] = 1
    strategy: Annotated[Literal["auto", "ddp"], FREE] = "auto"
    threads: Annotated[int | None, FREE, POSITIVE] = None
    """of each process, on the CPU"""
    eval_every: Annotated[int, POSITIVE] = 1000
    patience: Annotated[float | None, FREE] = 0.5
    """the run ends when dev error has stood still for this share of its steps; null: it goes on to its end"""
    checkpoint_every: Annotated[int, FREE, POSITIVE] = 1000
    """a checkpoint is also written every few minutes"""
    log_every: Annotated[int, FREE, POSITIVE] = 50
    on_nonfinite: Annotated[Literal["skip", "stop"], FREE] = "stop"
    tensorboard: Annotated[bool, FREE] = True


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training run does.

    >>> from starseq.config import load_recipe
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
        return dump(tree_of(self))

    def differences(self, other: Recipe) -> list[str]:
        """The keys in which another recipe differs and that a resumed run must not change, as `key: this -> that`.

        >>> from starseq.config import load_recipe
        >>> one = load_recipe("digits")
        >>> one.differences(load_recipe("digits", ["optim.lr=1", "data.workers=4"]))[0].startswith("optim.lr: ")
        True
        """
        ours, theirs = dict(leaves(tree_of(self))), dict(leaves(tree_of(other)))
        keys = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
        free = set(keys_of(free=True))
        if self.optim.schedule.name == "cosine":  # its whole course depends on where it ends
            free.remove("trainer.max_steps")
        why = {"trainer.max_steps": " (the cosine schedule depends on it)"}
        return [f"{key}: {ours.get(key)!r} -> {theirs.get(key)!r}{why.get(key, '')}" for key in keys if key not in free]

    @property
    def merges_repeats(self) -> bool:
        """Whether equal tokens in neighbouring frames are read as one."""
        return criteria.form(self.criterion.name, self.criterion.settings.get("merge_repeats", True)).merging

    @property
    def weights_key(self) -> str:
        """The setting of the model that names the weights to begin with."""
        return "path" if self.model.name == HF else models.INIT

    def with_absolute_paths(self) -> Recipe:
        """With the model's own files found from everywhere."""
        path = self.model.settings.get(self.weights_key)
        if path is None or not os.path.exists(path):
            return self
        return self._with_model(**{self.weights_key: os.path.abspath(path)})

    def at(self, path: str | os.PathLike[str]) -> Recipe:
        """With a pretrained model's settings read at `path`, a run's own copy of them."""
        return self._with_model(path=os.fspath(path)) if self.model.name == HF and os.path.isdir(path) else self

    def _with_model(self, **settings: Any) -> Recipe:
        return replace(self, model=Component(self.model.name, {**self.model.settings, **settings}))


def keys_of(kind: type[Any] = Recipe, path: str = "", *, free: bool = False) -> list[str]:
    """The dotted keys that the dataclasses have; with `free`, those that a resumed run may change."""
    keys, hints = [], get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        inner, hint = f"{path}.{f.name}".lstrip("."), hints[f.name]
        below = [section for section in (hint, *get_args(hint)) if is_dataclass(section) and section is not Component]
        if below and isinstance(below[0], type):
            keys += keys_of(below[0], inner, free=free)
        elif not free or FREE in get_args(hint):
            keys.append(inner)
    return keys
