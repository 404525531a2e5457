"""Sentences in place of recordings: what the loop needs to train a language model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from starseq.data.batching import BatchSampler, Sizes
from starseq.data.dataset import Item, PaddedBatch
from starseq.lm.transformer import BOUNDARY, TransformerLM
from starseq.train.data import RunSet
from starseq.train.loop import Loop
from starseq.train.objective import Objective, Scored


@dataclass(frozen=True)
class Tokens:
    """A frame is a token."""

    bands: int = 1
    seconds: None = None


class Sentences(torch.utils.data.Dataset[Item]):
    """Sentences as indices of a vocabulary. A model reads the boundary and the tokens, and predicts the tokens and the boundary."""

    reader = Tokens()

    def __init__(self, sentences: Sequence[NDArray[np.int32]], vocabulary: str = "") -> None:
        self.sentences = sentences
        self.sizes: Sizes = np.array([len(sentence) + 1 for sentence in sentences], np.float64)
        """tokens, the end included"""
        digest = hashlib.blake2b(vocabulary.encode(), digest_size=16)
        for sentence in sentences:
            digest.update(sentence.tobytes())
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Item:
        labels = torch.from_numpy(self.sentences[index]).long()
        read = F.pad(labels, (1, 0), value=BOUNDARY)[:, None]
        return Item(str(index), read, labels, torch.zeros(len(read), dtype=torch.bool), "")

    def fill(self, workers: int) -> None:
        """Nothing: they are in memory."""


class NextToken(Objective):
    """- log P of each sentence, its end included."""

    def __init__(self, precision: str) -> None:
        self.star, self.precision = False, precision

    def __call__(
        self, model: Callable[..., Any], batch: PaddedBatch, *, inserted: bool = False, blanks: bool = False
    ) -> Scored:
        with self.autocast(batch.x.device):
            logits: Tensor = model(batch.x[:, :, 0])
        frames = logits.shape[1]
        places = torch.arange(frames, device=logits.device)
        targets = F.pad(batch.targets, (0, frames - batch.targets.shape[1]), value=BOUNDARY)
        targets = targets.masked_fill(places >= batch.lengths[:, None], -100)
        losses = F.cross_entropy(logits.float().transpose(1, 2), targets, ignore_index=-100, reduction="none")
        return Scored(losses.sum(dim=1), None, None, logits.detach(), batch.lengths)


class TextLoop(Loop):
    """Trains a language model. What is lower for better weights is the perplexity of dev, per token and end of sentence."""

    mean_over = "frames"

    def make_objective(self) -> Objective:
        return NextToken(self.recipe.trainer.precision)

    @torch.no_grad()
    def dev_error(self, dev: RunSet) -> float:
        sentences = cast(Sentences, dev)
        model = cast(TransformerLM, self.network).eval()
        total = 0.0
        for items in BatchSampler(sentences.sizes, budget=self.recipe.data.budget, shuffle=False):
            with self.objective.autocast(self.fabric.device):
                total += float(model.losses([sentences.sentences[i] for i in items]).double().sum())
        # An untrained model may be beyond what a float can hold.
        return math.exp(min(700.0, total / sentences.sizes.sum()))
