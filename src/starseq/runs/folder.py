"""A run folder: names of its files, saving a model, loading it again with everything it needs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from starseq import models, pretrained
from starseq.config import Recipe, build, load_recipe
from starseq.data.dataset import Reader
from starseq.data.errors import DataError
from starseq.data.files import write_bytes, write_text
from starseq.pretrained import CONFIG
from starseq.text.pieces import SentencePieces
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

RECIPE, TOKENS, MODEL = "recipe.yaml", "tokens.txt", "model.safetensors"
PIECES = "pieces.model"
CHECKPOINT, METRICS, RESULTS, PLOTS = "last.ckpt", "metrics.csv", "results.json", "plots"
DATA = "data"
"""built-in data that the run made for itself"""
PRETRAINED = "pretrained"
"""settings, feature extractor and tokeniser of a model from outside"""


@dataclass(frozen=True)
class Run:
    """A trained model with all that belongs to it."""

    folder: Path
    recipe: Recipe
    tokeniser: Tokeniser
    model: nn.Module
    """in eval mode, on the CPU; (B, T, F), (B,) -> logits (B, T', V), (B,)"""
    reader: Reader
    log_penalty: float | None
    """lambda when these weights were saved; None for a criterion without star"""
    step: int
    """optimiser steps that made these weights"""
    dev_error: float | None
    """their greedy error on dev, in percent; None where nothing was evaluated"""
    dev_missed: float | None = None
    """how much of dev's text they did not read, in percent: what they read besides may be missing there"""

    @property
    def criterion(self) -> str:
        return self.recipe.criterion.name

    @property
    def merges_repeats(self) -> bool:
        """Whether equal tokens in neighbouring frames are read as one."""
        return self.recipe.merges_repeats

    @property
    def stride(self) -> float:
        """How many frames of the input a frame of the output covers."""
        return models.stride_of(self.model)

    @property
    def seconds_per_frame(self) -> float | None:
        """How much time a frame of the output covers; None for images."""
        seconds = self.reader.seconds
        return None if seconds is None else self.stride * seconds

    @property
    def trained_here(self) -> bool:
        """Whether it is a run, and not a folder of Hugging Face's."""
        return (self.folder / RECIPE).is_file()

    @property
    def weights(self) -> Path:
        """The file of its weights, or, of a model from outside that has several, their list."""
        one, several = self.folder / MODEL, self.folder / f"{MODEL}.index.json"
        return several if several.is_file() and not one.is_file() else one

    @property
    def manifest(self) -> Path:
        """The manifest that the run was trained on; a model from outside has none, which is a `DataError`."""
        if not self.trained_here:
            raise DataError(f"{self.folder}: it was not trained here, so there is no manifest of its own: name one")
        return data_root(self.recipe, self.folder) / self.recipe.data.manifest


def data_root(recipe: Recipe, folder: str | os.PathLike[str]) -> Path:
    """The corpus's folder: as the recipe says, or built-in data inside the run folder.

    Without either, a `DataError` says how to give it.
    """
    if recipe.data.root is not None:
        return Path(recipe.data.root)
    if recipe.data.corpus is not None:
        return Path(folder) / DATA
    raise DataError("data.root is not given: where is the corpus? Add data.root=FOLDER, the folder with its manifest")


def save_model(
    folder: str | os.PathLike[str],
    model: nn.Module,
    *,
    step: int,
    log_penalty: float | None,
    dev_error: float | None,
    dev_missed: float | None = None,
) -> None:
    """Writes `model.safetensors`, whole or not at all."""
    from safetensors.torch import save

    # Copies: tied weights share memory, which the format does not allow.
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    facts = {"step": step, "log_penalty": log_penalty, "dev_error": dev_error, "dev_missed": dev_missed}
    # One entry: the format keeps several in no order, and the same weights are to be the same bytes.
    write_bytes(Path(folder) / MODEL, save(weights, {"starseq": json.dumps(facts)}))


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in `folder`, or a model for CTC in a folder of Hugging Face's in place of one. What is missing, damaged or neither
    raises `DataError` with one sentence."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such run folder")
    if not (folder / RECIPE).is_file() and (folder / CONFIG).is_file():
        return _from_outside(folder)
    missing = [name for name in (RECIPE, TOKENS, MODEL) if not (folder / name).is_file()]
    if missing:
        lacks = " and ".join(missing)
        hint = "training has saved no model yet" if missing == [MODEL] else "is it the --out of `starseq train`?"
        raise DataError(f"{folder}: not a run folder that can be used, for it lacks {lacks} ({hint})")
    recipe = load_recipe(folder / RECIPE).at(folder / PRETRAINED)
    vocabulary = Vocabulary.load(folder / TOKENS)
    pieces = load_pieces(folder, vocabulary)
    if recipe.text.unit == "piece" and pieces is None and build.own_labels(recipe) is None:
        raise DataError(f"{folder}: not a run folder that can be used, for it lacks {PIECES}")
    model = build.network(recipe, vocabulary)
    facts = _load_weights(model, folder / MODEL)
    return Run(
        folder=folder,
        recipe=recipe,
        tokeniser=build.tokeniser(recipe, vocabulary, pieces),
        model=model.eval(),
        reader=build.reader(recipe),
        log_penalty=facts.get("log_penalty"),
        step=int(facts.get("step") or 0),
        dev_error=facts.get("dev_error"),
        dev_missed=facts.get("dev_missed"),
    )


def load_pieces(folder: Path, vocabulary: Vocabulary) -> SentencePieces | None:
    """The run's own model of pieces; None where it has none."""
    if not (folder / PIECES).is_file():
        return None
    try:
        pieces = SentencePieces.load(folder / PIECES)
    except ValueError as error:
        raise DataError(str(error)) from None
    if tuple(pieces.labels()) != vocabulary.tokens[1:]:
        raise DataError(f"{folder / PIECES}: its pieces are not those of {TOKENS}")
    return pieces


def _from_outside(folder: Path) -> Run:
    """A model that was trained elsewhere, which reads with its own labels."""
    try:
        if not pretrained.has_own_head(str(folder)):
            raise DataError(
                f"{folder}: a model of Hugging Face without a head for CTC and labels of its own, which reads nothing yet: "
                f"`starseq train speech model.name=hf model.path={folder}` trains one"
            )
        _, labels = pretrained.own_tokens(str(folder))
        of_pieces = pretrained.is_of_pieces(pretrained.tokeniser_of(str(folder)))
    except ValueError as error:
        raise DataError(str(error)) from None
    unit = f"text.unit={'piece' if of_pieces else 'char'}"
    case = f"text.normaliser.case={_case(labels)}"
    recipe = load_recipe("speech", ["model.name=hf", "model.path=.", case, unit]).at(folder)
    vocabulary = Vocabulary(labels)
    model = build.network(recipe, vocabulary)
    build.load_initial(recipe, model)
    return Run(
        folder=folder, recipe=recipe, tokeniser=build.tokeniser(recipe, vocabulary), model=model.eval(),
        reader=build.reader(recipe), log_penalty=None, step=0, dev_error=None,
    )  # fmt: skip


def _case(labels: Sequence[str]) -> str:
    """What a text is turned into, so that these labels write it."""
    letters = "".join(labels)
    upper, lower = letters != letters.lower(), letters != letters.upper()
    return "keep" if upper and lower else "upper" if upper else "lower"


def _load_weights(model: nn.Module, path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("starseq", "{}"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, EOFError) as error:
        raise DataError(f"{path}: the weights are damaged ({error})") from None
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            what = f"{name} is {found.get(name, 'not there')}, and the recipe's model has {expected.get(name, 'none')}"
            raise DataError(f"{path}: weights of another model or vocabulary: {what}")
    with torch.no_grad():
        model.load_state_dict(weights)
    return facts if isinstance(facts, dict) else {}


def read_results(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """`results.json`; empty where there is none."""
    path = Path(folder) / RESULTS
    if not path.exists():
        return {}
    try:
        results = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    if not isinstance(results, dict):
        raise DataError(f"{path}: not a JSON object")
    return results


def update_results(folder: str | os.PathLike[str], **sections: Any) -> dict[str, Any]:
    """Puts sections into `results.json`, beside those of other jobs, and returns all of it.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = update_results(folder, train={"steps": 10})
    >>> update_results(folder, test={"cer": 2.5})
    {'train': {'steps': 10}, 'test': {'cer': 2.5}}
    """
    results = {**read_results(folder), **sections}
    write_text(Path(folder) / RESULTS, json.dumps(_finite(results), indent=1, ensure_ascii=False) + "\n")
    return results


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
