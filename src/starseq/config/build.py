"""What a recipe names, built. Settings that a part refuses are a `DataError` that names their key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from starseq import corpora, criteria, models, penalty
from starseq.config.schema import HF, PRETRAINED, Component, Recipe
from starseq.data.augment import RandomProjective, SpecAugment
from starseq.data.dataset import AudioReader, LineReader, Reader
from starseq.data.drop import Dropper, FixedDrop, SampleSplit, Strategy, TypeSplit
from starseq.data.errors import DataError
from starseq.data.extractor import ExtractorReader, WaveformReader
from starseq.data.features import LogMel
from starseq.text.pieces import LongestPieces
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

__all__ = [
    "augmentation", "dropper", "insertion_penalty", "load_initial", "network", "own_labels", "reader", "tokeniser",
]  # fmt: skip

# --- components: by kind and name -------------------------------------------------------------------------------------

Backend: TypeAlias = Literal["auto", "torch", "numba", "triton", "wfst"]


@dataclass(frozen=True)
class Kind:
    """What components of one kind there are."""

    names: Callable[[], list[str]]
    load: Callable[[str], Callable[..., Any]]
    """the function whose keyword arguments are the component's settings"""
    given: tuple[str, ...] = ()
    """arguments that are not settings"""


def _audio(rate: int = 16_000, bands: int = 80) -> AudioReader:
    return AudioReader(LogMel(rate, bands))


# Of these only the signatures are used.


def _pretrained() -> None: ...


def _stc(merge_repeats: bool = True, backend: Backend = "auto") -> None: ...


def _without_star(backend: Backend = "auto") -> None: ...


_TABLES: dict[str, dict[str, Callable[..., Any]]] = {
    "penalty": {"schedule": penalty.InsertionPenalty, "adaptive": penalty.AdaptivePenalty},
    "reader": {"audio": _audio, "line": LineReader, "waveform": WaveformReader, PRETRAINED: _pretrained},
    "augment": {"spec_augment": SpecAugment, "random_projective": RandomProjective},
}


def kind_of(kind: str) -> Kind:
    """The components of a kind: model, criterion, corpus, penalty, reader or augment."""
    if kind == "model":
        return Kind(models.names, models.load, ("inputs", "tokens"))
    if kind == "criterion":
        return Kind(criteria.names, lambda name: _stc if criteria.form(name).stars else _without_star)
    if kind == "corpus":
        return Kind(lambda: ["digits"], corpora.load, ("out", "progress"))
    table = _TABLES[kind]
    return Kind(lambda: sorted(table), table.__getitem__, ("blank",) if kind == "penalty" else ())


def _built(path: str, component: Component) -> Any:
    try:
        return kind_of(path.rpartition(".")[2]).load(component.name)(**component.settings)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


# --- the parts --------------------------------------------------------------------------------------------------------


def reader(recipe: Recipe) -> Reader:
    """What turns a row's file into frames."""
    if recipe.data.reader.name == PRETRAINED:
        return ExtractorReader(str(recipe.model.settings["path"]))
    made: Reader = _built("data.reader", recipe.data.reader)
    return made


def tokeniser(recipe: Recipe, vocabulary: Vocabulary, pieces: Callable[[str], list[str]] | None = None) -> Tokeniser:
    """`pieces` spells words, where the labels are pieces; None: by the longest ones of the vocabulary."""
    text = recipe.text
    if text.unit == "piece":
        spell = pieces or LongestPieces(vocabulary)
        return Tokeniser(vocabulary, "word", text.unknown, text.normaliser, pieces=spell)
    return Tokeniser(vocabulary, text.unit, text.unknown, text.normaliser, text.missing)


def network(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    """The model, with weights as its module initialises them."""
    settings = {key: value for key, value in recipe.model.settings.items() if key != models.INIT}
    try:
        model: nn.Module = models.load(recipe.model.name)(reader(recipe).bands, vocabulary.tokens, **settings)
        models.output_lengths(model, torch.tensor([1]))
    except ValueError as error:
        raise DataError(f"model {recipe.model.name}: {error}") from None
    return model


def load_initial(recipe: Recipe, model: nn.Module) -> frozenset[str]:
    """Gives the model the weights that the recipe names, if any, and returns the parameters that have them."""
    path = recipe.model.settings.get(recipe.weights_key)
    if path is None:
        return frozenset()
    try:
        return models.load_initial(model, recipe.model.name, str(path))
    except ValueError as error:
        raise DataError(f"model {recipe.model.name}: {error}") from None


def own_labels(recipe: Recipe) -> list[str] | None:
    """The labels of a pretrained model that keeps its own; None: those of the data."""
    if recipe.model.name != HF or recipe.model.settings["head"] == "new":
        return None
    from starseq import pretrained

    path = str(recipe.model.settings["path"])
    try:
        if not pretrained.has_own_head(path):
            return None
        of_pieces = pretrained.is_of_pieces(pretrained.tokeniser_of(path))
        _, labels = pretrained.own_tokens(path)
    except ValueError as error:
        raise DataError(f"model {recipe.model.name}: {error}") from None
    wanted = "piece" if of_pieces else "char"
    if recipe.text.unit != wanted:
        kind = "pieces of words" if of_pieces else "characters"
        raise DataError(f"{path}: the model's own tokens are {kind}: text.unit={wanted}, or model.head=new")
    if recipe.text.pieces is not None:
        raise DataError(f"text.pieces: {path} has labels of its own; model.head=new takes others")
    return labels


def insertion_penalty(recipe: Recipe) -> nn.Module:
    """The rule for p."""
    rule: nn.Module = _built("penalty", recipe.penalty)
    return rule


def augmentation(recipe: Recipe) -> Callable[..., Tensor] | None:
    """(x, lengths, ids, *, seed, epoch, step) -> x, or None."""
    if recipe.data.augment is None:
        return None
    augment: Callable[..., Tensor] = _built("data.augment", recipe.data.augment)
    if isinstance(augment, SpecAugment) and augment.tract:
        name = recipe.data.reader.name
        source = reader(recipe) if name != PRETRAINED else None
        if not isinstance(source, AudioReader):
            raise DataError(f"data.augment.tract: it is for bands of sound, and data.reader.name is {name!r}")
        if augment.top != (top := source.log_mel.top):
            raise DataError(f"data.augment.top: the bands of data.reader end at {top:g} Hz, not at {augment.top:g}")
    return augment


def dropper(recipe: Recipe) -> Dropper | None:
    """What drops labels of the training rows, if the recipe asks for it."""
    drop = recipe.data.drop
    if drop is None:
        return None
    if drop.by == "label" and len(drop.p) != 1:
        raise DataError(f"data.drop.p: {list(drop.p)} has parts, so data.drop.by is 'sample' or 'type'")
    try:
        parts: dict[str, Callable[[tuple[float, ...]], Strategy]] = {"sample": SampleSplit, "type": TypeSplit}
        strategy = FixedDrop(drop.p[0]) if drop.by == "label" else parts[drop.by](drop.p)
    except ValueError as error:
        raise DataError(f"data.drop.p: {error}") from None
    unit = drop.unit or ("char" if recipe.text.unit == "char" else "word")
    return Dropper(strategy, unit=unit, seed=drop.seed, mark=drop.mark, keep_text=True)
