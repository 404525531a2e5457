"""`starseq lm`: language models from text, n-gram and Transformer, and what a text costs under them."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from starseq.config import Component, Data, Optim, Recipe, Schedule, Text, Trainer
from starseq.data.errors import DataError
from starseq.data.files import check_target
from starseq.data.manifest import Progress
from starseq.jobs._where import device_of
from starseq.lm import Scorer, scorers
from starseq.lm.counts import SPECIALS, Numbered, number
from starseq.lm.estimate import Estimate, estimate
from starseq.lm.mix import Mixture, mix
from starseq.lm.ngram import NGram, Perplexity
from starseq.lm.records import Room
from starseq.lm.text import literal, read_texts, tokens_of
from starseq.lm.transformer import UNKNOWN, TransformerLM
from starseq.runs.folder import CHECKPOINT, load
from starseq.text.gaps import Unit
from starseq.text.normalise import Normaliser
from starseq.text.pieces import Spelled
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import BLANK, SPACE, Vocabulary
from starseq.train.checkpoint import load_checkpoint, writing
from starseq.train.data import TrainingData
from starseq.train.loop import Hooks
from starseq.train.metrics import Metrics
from starseq.train.processes import start
from starseq.train.text import Sentences, TextLoop

__all__ = ["Neural", "NeuralResult", "memory_of", "mix_ngrams", "score", "text_settings", "train_neural", "train_ngram"]

Paths = Sequence[str | os.PathLike[str]]
Indices = list[NDArray[np.int32]]

_TEXTS_AT_ONCE = 1000


def memory_of(text: str) -> int:
    """Bytes: ``64MB``, ``4G``, ``500000``; powers of 1,024.

    >>> memory_of("64MB"), memory_of("1.5g")
    (67108864, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found or not float(found[1]):
        raise DataError(f"memory: {text!r} is no size like 64MB or 4G")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))


def text_settings(
    recipe: str | os.PathLike[str] | None, unit: Unit | None, *, neural: bool = False
) -> tuple[Unit, Normaliser | None]:
    """Unit and normaliser of a recipe: by its name, its file, or the folder of a run. A `unit` that is given wins.

    A run of pieces has an n-gram model over its pieces, which a search needs: its normaliser spells the words. A `neural` model,
    which rescores, is of words.
    """
    if recipe is None:
        return unit or "word", None
    from starseq.config import load_recipe

    inside = Path(recipe) / "recipe.yaml"
    text = load_recipe(str(inside if inside.is_file() else recipe)).text
    if text.unit != "piece" or unit is not None or neural:
        return unit or ("char" if text.unit == "char" else "word"), text.normaliser
    if not inside.is_file():
        raise DataError(f"{os.fspath(recipe)}: the pieces of words are those of a run: name its folder, or give --unit")
    spell = load(recipe).tokeniser.pieces
    assert spell is not None
    return "word", Spelled(**vars(text.normaliser), spell=spell)


def train_ngram(
    texts: Paths,
    target: str | os.PathLike[str],
    *,
    order: int = 5,
    prune: Sequence[int] = (0,),
    vocabulary: str | os.PathLike[str] | None = None,
    vocabulary_size: int | None = None,
    memory: int = 4 << 30,
    unit: Unit = "word",
    normaliser: Normaliser | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """An ARPA file from texts (see `starseq.lm.text.read_texts` and `starseq.lm.estimate.estimate`).

    `vocabulary` is a file of the words to keep, separated by white space; a ``tokens.txt`` is one.
    """
    check_target(target, *texts, *([] if vocabulary is None else [vocabulary]))
    report = progress or (lambda done, total: None)
    words = None if vocabulary is None else _words(Path(vocabulary))
    if words is not None and not words:
        raise DataError(f"{os.fspath(vocabulary)}: no words")  # type: ignore[arg-type]
    split = tokens_of(unit)
    sentences = read_texts(
        texts, normaliser=normaliser, progress=lambda done, total: report(150 * done // max(1, total or 1), 1000)
    )
    return estimate(
        map(split, sentences), target, order=order, prune=prune, vocabulary=words, vocabulary_size=vocabulary_size,
        memory=memory, progress=lambda done, total: report(150 + 850 * done // (total or 1), 1000),
    )  # fmt: skip


def _words(file: Path) -> list[str]:
    """Words between white space; of a ``tokens.txt`` its lines, for a no-break space is one, too."""
    if file.read_bytes().startswith(BLANK.encode()):
        return [SPACE if token == " " else token for token in Vocabulary.load(file)]
    return file.read_text(encoding="utf-8").split()


def mix_ngrams(
    sources: Paths,
    target: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    dev: Paths = (),
    unit: Unit = "word",
    normaliser: Normaliser | None = None,
    progress: Progress | None = None,
) -> Mixture:
    """An ARPA file of others (see `starseq.lm.mix.mix`), with `weights`, or those that make the texts `dev` likeliest."""
    if (weights is None) == (not dev):
        raise DataError("a mixture has either weights, or texts to find them by")
    check_target(target, *sources, *dev)
    sentences = map(tokens_of(unit), read_texts(dev, normaliser=normaliser)) if dev else None
    return mix(sources, target, weights=weights, sentences=sentences, progress=progress)


def score(
    lm: str | os.PathLike[str],
    texts: Paths,
    *,
    unit: Unit = "word",
    normaliser: Normaliser | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Perplexity:
    """The perplexity of texts under an ARPA file or the folder of a Transformer.

    Per token of the model and end of sentence; under a model of Hugging Face per token of the `unit`, since it has its own.
    """
    model = scorers.load(lm, unit=unit, normaliser=normaliser, device=device)
    sentences = read_texts(texts, normaliser=normaliser, progress=progress)
    if isinstance(model, NGram):
        result = model.perplexity(map(tokens_of(unit), sentences))
    else:
        result = Perplexity(0, 0, 0, 0.0, 0.0)
        split = tokens_of(model.unit if isinstance(model, TransformerLM) else unit)
        own = literal(model.normaliser if isinstance(model, TransformerLM) else None)
        pending: list[str] = []
        for text in sentences:
            pending.append(text)
            if len(pending) == _TEXTS_AT_ONCE:
                result = _add(result, model, pending, split, own)
                pending = []
        result = _add(result, model, pending, split, own)
    if not result.sentences:
        raise DataError("the text is empty: there is nothing to score")
    return result


def _add(
    so_far: Perplexity,
    model: Scorer,
    texts: list[str],
    split: Callable[[str], list[str]],
    normalise: Callable[[str], str],
) -> Perplexity:
    tokens = [split(normalise(text)) for text in texts]
    unknown = 0
    if isinstance(model, TransformerLM):
        known = {SPACE if token == " " else token for token in model.vocabulary}
        unknown = sum(token not in known for sentence in tokens for token in sentence)
    log_p = float(model.score(texts).double().sum()) if texts else 0.0
    return Perplexity(
        so_far.sentences + len(texts),
        so_far.tokens + sum(map(len, tokens)) + len(texts),
        so_far.unknown + unknown,
        so_far.log_p + log_p,
        math.nan,
    )


# --- the Transformer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neural:
    """How a Transformer language model is built and trained."""

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    layers: int = 6
    dropout: float = 0.1
    vocabulary_size: int | None = None
    """the most frequent tokens; None: all"""
    batch_tokens: int = 8192
    """a batch, with its padding"""
    lr: float = 5e-4
    warmup_steps: int = 1000
    max_steps: int = 50_000
    clip: float = 1.0
    eval_every: int = 1000
    """steps from one evaluation and checkpoint to the next"""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_steps", "eval_every", "layers", "lr", "clip"):
            if not getattr(self, name) > 0:
                raise DataError(f"{name} is positive; got {getattr(self, name)}")


@dataclass(frozen=True)
class NeuralResult:
    """How training ended: the best dev perplexity (per token and end of sentence, <unk> a token like others), and when."""

    folder: Path
    steps: int
    tokens: int
    """of the training text"""
    vocabulary: int
    best_perplexity: float
    best_step: int


def train_neural(
    texts: Paths,
    folder: str | os.PathLike[str],
    settings: Neural = Neural(),
    *,
    dev: Paths = (),
    unit: Unit = "word",
    normaliser: Normaliser | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    on_evaluated: Callable[[int, float], None] | None = None,
) -> NeuralResult:
    """Train a Transformer language model on texts into `folder`, on one device; bfloat16 on a GPU.

    The folder gets ``model.safetensors`` (the best on dev), ``lm.yaml``, ``tokens.txt``, ``metrics.csv`` (whose dev_error is
    the perplexity) and ``last.ckpt``, from which `resume` goes on as `starseq train --resume` does: it is the same loop. Without
    `dev` texts, every 50th sentence is held out, or fewer, 2,000 at most. `progress` counts steps; `on_evaluated(step, perplexity)`
    is called after each evaluation.
    """
    folder = Path(folder)
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists() and not resume:
        raise DataError(f"{folder}: holds a run already: --resume goes on with it, or choose another folder")
    if resume and not checkpoint.exists():
        raise DataError(f"{folder}: no last.ckpt to resume from")
    recipe = _recipe(settings, unit, normaliser, "cuda" if device_of(device).startswith("cuda") else "cpu")
    if resume and load_checkpoint(checkpoint).get("recipe") != recipe.to_yaml():
        raise DataError(f"{folder}: --resume needs the settings of the run that it goes on with")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, train_set, dev_set = _read(texts, dev, folder, settings, unit, normaliser)
    torch.manual_seed(settings.seed)
    model = TransformerLM(vocabulary, unit, **recipe.model.settings, normaliser=normaliser)
    fabric = start(accelerator=recipe.trainer.accelerator)

    def evaluated(metrics: Metrics) -> None:
        if on_evaluated is not None and metrics.dev_error is not None:
            on_evaluated(metrics.step, metrics.dev_error)

    hooks = Hooks(progress, evaluated) if fabric.global_rank == 0 else Hooks()
    learned: Any = Sentences(train_set, vocabulary.to_lines())
    held_out: Any = Sentences(dev_set)
    data = TrainingData(learned, held_out, report=cast(Any, None))
    loop = TextLoop(recipe, folder, data, Tokeniser(vocabulary, unit, "drop"), model, fabric, hooks)
    if resume:
        loop.resume()
    elif fabric.global_rank == 0:
        with writing(folder, None):
            model.save_settings(folder)
    result = loop.run()
    best = cast(float, result.best_error)
    return NeuralResult(folder, result.steps, sum(map(len, train_set)), len(vocabulary), best, result.best_step)


def _recipe(settings: Neural, unit: Unit, normaliser: Normaliser | None, accelerator: Literal["cpu", "cuda"]) -> Recipe:
    """The settings, as the loop has them."""
    sizes = {name: getattr(settings, name) for name in ("width", "heads", "hidden", "layers", "dropout")}
    often = settings.eval_every
    return Recipe(
        data=Data(Component("text"), budget=float(settings.batch_tokens)),
        text=Text(unit, normaliser=normaliser or Normaliser(), size=settings.vocabulary_size),
        model=Component("language model", sizes),
        criterion=Component("next token"),
        optim=Optim(
            "adamw", settings.lr, weight_decay=0.01, betas=(0.9, 0.98), warmup_steps=settings.warmup_steps,
            schedule=Schedule("cosine"), clip=settings.clip,
        ),
        trainer=Trainer(
            max_steps=settings.max_steps, precision="32" if accelerator == "cpu" else "bf16", accelerator=accelerator,
            eval_every=often, checkpoint_every=often, log_every=often, patience=None, tensorboard=False,
        ),
        seed=settings.seed,
    )  # fmt: skip


def _read(
    texts: Paths, dev: Paths, folder: Path, settings: Neural, unit: Unit, normaliser: Normaliser | None
) -> tuple[Vocabulary, Indices, Indices]:
    """The vocabulary, and the sentences to train on and to evaluate, as its indices."""
    split = tokens_of(unit)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".text.") as scratch:
        text = number(map(split, read_texts(texts, normaliser=normaliser)), Room(Path(scratch), 64 << 20))
        frequencies = dict(zip(text.words, text.frequencies().tolist(), strict=True))
        spelled = {SPACE: " "} if unit == "char" else {}
        kept = {spelled.get(word, word): count for word, count in frequencies.items() if word not in SPECIALS}
        labels = Vocabulary.top(kept, settings.vocabulary_size).tokens[1:] if kept else ()
        vocabulary = Vocabulary([*labels, UNKNOWN])
        ranked = [SPACE if label in spelled.values() else label for label in labels]
        sentences = _sentences(text, ranked)
    if dev:
        index = {token: i for i, token in enumerate(ranked, start=1)}
        unknown = len(vocabulary) - 1
        held_out = [
            np.array([index.get(token, unknown) for token in split(line)], np.int32)
            for line in read_texts(dev, normaliser=normaliser)
        ]
    else:
        every = max(50, len(sentences) // 2000)
        held_out = sentences[every - 1 :: every]
        del sentences[every - 1 :: every]
    if not held_out:
        raise DataError(f"{len(sentences)} sentences are too few to hold some out: give dev texts")
    return vocabulary, sentences, held_out


def _sentences(text: Numbered, ranked: Sequence[str]) -> Indices:
    index = {token: i for i, token in enumerate(ranked, start=1)}
    table = np.array([index.get(word, len(ranked) + 1) for word in text.words], np.int32)
    numbers = np.fromfile(text.path, np.int32)
    ends = np.flatnonzero(numbers == SPECIALS.index("</s>"))
    numbers = table[numbers]
    return [numbers[start:end] for start, end in zip([0, *(ends[:-1] + 1).tolist()], ends.tolist(), strict=True)]
