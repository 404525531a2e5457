"""`starseq demo`: what the star does, on made-up sequences: a graph, four losses, three trained models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from starseq.data.manifest import Progress
from starseq.jobs.draw import draw
from starseq.loss import ctc_loss, stc_loss
from starseq.penalty import InsertionPenalty
from starseq.text.error_rate import ErrorCounts, count_errors

__all__ = ["DemoResult", "PlantedLoss", "TrainedModel", "demo"]

TOKENS, FEATURES, NOISE = 10, 16, 0.7
UTTERANCES, BATCH = 400, 16
P_DROP = 0.4


class PlantedLoss(NamedTuple):
    """The losses of a label, given a model that reads "cat" and is 90 % sure of every frame."""

    label: str
    ctc: float
    stc: float


class TrainedModel(NamedTuple):
    """A model by its criterion and the labels it was trained from, and its errors on unseen sequences."""

    criterion: str
    labels: str
    errors: ErrorCounts


@dataclass(frozen=True)
class DemoResult:
    """What `demo` found: a label graph as text, losses of a planted sequence, and trained models."""

    graph: str
    planted: tuple[PlantedLoss, ...]
    dropped: float
    steps: int
    models: tuple[TrainedModel, ...]

    def report(self) -> str:
        """All of it as text."""
        planted = [f"  {label:<6} {ctc:>6.2f} {stc:>6.2f}" for label, ctc, stc in self.planted]
        models = [
            f"  {criterion:<9} {labels:<9} {errors.percent:>8.1f} {errors.insertions:>10} {errors.deletions:>9} "
            f"{errors.substitutions:>13}"
            for criterion, labels, errors in self.models
        ]
        return "\n".join(
            [
                'The label graph of "cat": ∅ is blank, the star any token, or any but one, at log-weight log 0.5.',
                "",
                *(f"  {line}" for line in self.graph.splitlines()),
                "",
                'Losses where a model reads "cat", 90 % sure of every frame. STC forgives the missing "a".',
                "",
                "  label     CTC    STC",
                *planted,
                "",
                f"Small models after {self.steps:,} steps, errors on {UTTERANCES // 2} unseen sequences. "
                f"Partial: {100 * self.dropped:.0f} % of all labels lost.",
                "",
                "  criterion labels    errors % insertions deletions substitutions",
                *models,
            ]
        )


def demo(*, steps: int = 300, seed: int = 0, progress: Progress | None = None) -> DemoResult:
    """Draw, score and train: seconds on one CPU core. The same seed gives the same result.

    The sequences have 4 to 8 tokens of 10, each a few frames of its own noisy vector, silence between. The model is one
    convolution and one linear layer; CTC and STC see the same data in the same order. `progress` counts steps.

    Raises ValueError for a number of steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps: {steps} is not a number of optimiser steps above 0")
    generator = torch.Generator().manual_seed(seed)
    sounds = torch.randn(TOKENS + 1, FEATURES, generator=generator)  # silence, and one for each token
    train, test = _Corpus.make(UTTERANCES, sounds, generator), _Corpus.make(UTTERANCES // 2, sounds, generator)
    partial = train.drop(P_DROP, generator)
    count = sum(map(len, train.labels))

    plan: list[tuple[str, str, _Corpus]] = [
        ("CTC", "full", train),
        ("CTC", "partial", partial),
        ("STC", "partial", partial),
    ]
    models = []
    with _one_thread():
        for n, (criterion, labels, corpus) in enumerate(plan):
            model = _train(corpus, criterion, steps, seed, _later(progress, n * steps, len(plan) * steps))
            models.append(TrainedModel(criterion, labels, _errors(model, test, merge=criterion == "CTC")))
    return DemoResult(
        graph=draw("stc", "cat"),
        planted=tuple(_planted_loss(label) for label in ("cat", "ct")),
        dropped=1 - sum(map(len, partial.labels)) / count,
        steps=steps,
        models=tuple(models),
    )


def _planted_loss(label: str) -> PlantedLoss:
    alphabet = "∅abcdefghijklmnopqrstuvwxyz"
    probabilities = torch.full((7, len(alphabet)), 0.1 / (len(alphabet) - 1))
    for t, token in enumerate("∅c∅a∅t∅"):
        probabilities[t, alphabet.index(token)] = 0.9
    batch = (probabilities.log(), torch.tensor([alphabet.index(token) for token in label]), (7,), (len(label),))
    ctc = ctc_loss(*batch, reduction="sum")
    stc: Tensor = stc_loss(*batch, reduction="sum", penalty=math.log(0.5))
    return PlantedLoss(label, ctc.item(), stc.item())


class _Batch(NamedTuple):
    """inputs: (B, T, F). targets: (B, U). lengths: (B,) each."""

    inputs: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor


class _Corpus(NamedTuple):
    """Sequences (T, F) and their labels (U,)."""

    inputs: Sequence[Tensor]
    labels: Sequence[Tensor]

    @classmethod
    def make(cls, count: int, sounds: Tensor, generator: torch.Generator) -> _Corpus:
        def between(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=generator))

        inputs, labels = [], []
        for _ in range(count):
            label = torch.randint(1, TOKENS + 1, (between(4, 8),), generator=generator)
            frames = [0]
            for token in label.tolist():
                frames += [token] * between(2, 4) + [0] * between(1, 2)
            clean = sounds[frames]
            inputs.append(clean + NOISE * torch.randn(clean.shape, generator=generator))
            labels.append(label)
        return cls(inputs, labels)

    def drop(self, p: float, generator: torch.Generator) -> _Corpus:
        """Every label is lost with probability p; what loses all of them is left out."""
        kept = [label[torch.rand(len(label), generator=generator) >= p] for label in self.labels]
        pairs = [(x, label) for x, label in zip(self.inputs, kept, strict=True) if len(label)]
        return _Corpus([x for x, _ in pairs], [label for _, label in pairs])

    def batch(self, chosen: Sequence[int]) -> _Batch:
        inputs, labels = [self.inputs[i] for i in chosen], [self.labels[i] for i in chosen]
        return _Batch(
            nn.utils.rnn.pad_sequence(inputs, batch_first=True),
            nn.utils.rnn.pad_sequence(labels, batch_first=True),
            torch.tensor([len(x) for x in inputs]),
            torch.tensor([len(label) for label in labels]),
        )


class _Reader(nn.Module):
    """(B, T, F) -> logits (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, 64, kernel_size=7, padding=3)
        self.linear = nn.Linear(64, TOKENS + 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.convolution(inputs.transpose(1, 2)).relu().transpose(1, 2)
        logits: Tensor = self.linear(hidden)
        return logits


def _train(corpus: _Corpus, criterion: str, steps: int, seed: int, progress: Callable[[int], None]) -> _Reader:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    penalty = InsertionPenalty(p0=0.5, p_max=0.9, half_life=steps / 4)
    order = torch.Generator().manual_seed(seed)
    for step in range(steps):
        batch = corpus.batch(torch.randint(len(corpus.inputs), (BATCH,), generator=order).tolist())
        logits = model(batch.inputs)
        if criterion == "CTC":
            loss = ctc_loss(logits, *batch[1:], batch_first=True)
        else:
            loss = stc_loss(logits, *batch[1:], batch_first=True, penalty=penalty())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        penalty.advance()
        progress(step + 1)
    return model


@torch.no_grad()
def _errors(model: _Reader, corpus: _Corpus, *, merge: bool) -> ErrorCounts:
    """Greedy: the best token of every frame; CTC merges repeats, both remove blanks."""
    total = ErrorCounts()
    for inputs, label in zip(corpus.inputs, corpus.labels, strict=True):
        best: list[int] = model(inputs[None])[0].argmax(dim=1).tolist()
        tokens = [token for token, _ in groupby(best)] if merge else best
        total += count_errors(label.tolist(), [token for token in tokens if token])
    return total


def _later(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    return lambda done: None if progress is None else progress(before + done, total)


@contextmanager
def _one_thread() -> Iterator[None]:
    """On tensors this small, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
