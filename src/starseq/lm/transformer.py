"""A causal Transformer language model over words or characters, of the blocks that acoustic models are made of.

Index 0 of the vocabulary, a recogniser's blank, is the boundary of sentences here: the model reads it first and predicts it
last. What the vocabulary lacks is <unk>.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starseq.data.batching import cut
from starseq.data.errors import DataError
from starseq.data.files import write_bytes, write_text
from starseq.lm.text import literal
from starseq.models.blocks import Transformer
from starseq.text.gaps import Unit
from starseq.text.normalise import Normaliser
from starseq.text.vocabulary import Vocabulary

__all__ = ["UNKNOWN", "TransformerLM", "batched_scores", "padded"]

UNKNOWN = "<unk>"
BOUNDARY = 0
_LOGITS_AT_ONCE = 1 << 26  # 256 MB


class TransformerLM(nn.Module):
    """log P(y_1 .. y_U, end) = sum over u of log P(y_u | boundary, y_1 .. y_{u-1}), over the tokens of `vocabulary`.

    The vocabulary must hold ``<unk>``. Input and output share their embedding. Texts pass `normaliser` first.

    >>> model = TransformerLM(Vocabulary(["a", "b", "<unk>"]), "word", width=16, heads=2, hidden=32, layers=1).eval()
    >>> model.score(["a b", "b zebra a", ""]).shape
    torch.Size([3])
    >>> model(torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        unit: Unit,
        *,
        width: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
        normaliser: Normaliser | None = None,
    ) -> None:
        super().__init__()
        if UNKNOWN not in vocabulary:
            raise ValueError(f"the vocabulary of a language model holds {UNKNOWN}")
        if unit not in ("word", "char"):
            raise ValueError(f"unit must be 'word' or 'char', not {unit!r}")
        self.vocabulary, self.unit, self.normaliser = vocabulary, unit, normaliser
        self.sizes = {"width": width, "heads": heads, "hidden": hidden, "layers": layers, "dropout": dropout}
        self.embedding = nn.Embedding(len(vocabulary), width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(dropout)
        # Between the stack and the shared embedding, so that an untrained model does not predict the token that it reads.
        self.outward = nn.Linear(width, width)
        self.stack = Transformer(width, heads=heads, hidden=hidden, layers=layers, dropout=dropout, causal=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) int64 -> logits (B, T, V) of what comes after each."""
        # Embeddings have length 1 for the output; at the input they are scaled to entries of size 1.
        x = self.dropout(self.embedding(tokens) * self.embedding.embedding_dim**0.5)
        return F.linear(self.outward(self.stack(x)), self.embedding.weight)

    def losses(self, sentences: Sequence[Sequence[int] | Any]) -> Tensor:
        """(B, T) float32: - log p of each token of each sentence and of its end; 0 in the padding. T is the longest plus 1."""
        inputs, targets = (tokens.to(self.embedding.weight.device) for tokens in padded(sentences))
        logits = self(inputs).float()
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")

    def encode(self, text: str) -> list[int]:
        """The tokens of a literal text, without the boundaries."""
        text = literal(self.normaliser)(text)
        labels: Iterable[str] = text.split() if self.unit == "word" else text
        unknown = self.vocabulary.index(UNKNOWN)
        return [self.vocabulary.index(label) if label in self.vocabulary else unknown for label in labels]

    def score(self, texts: Sequence[str]) -> Tensor:
        """(N,) float32 on the CPU: log P of each text, the end included; texts of like length go together."""
        sentences = [self.encode(text) for text in texts]
        was_training = self.training
        self.eval()
        try:
            return batched_scores(
                [len(sentence) + 1 for sentence in sentences],
                lambda items: -self.losses([sentences[i] for i in items]).sum(dim=1),
                budget=max(1, _LOGITS_AT_ONCE // len(self.vocabulary)),
            )
        finally:
            self.train(was_training)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokens.txt``, ``lm.yaml`` and ``model.safetensors``, each whole or not at all."""
        from safetensors.torch import save

        self.save_settings(folder)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        write_bytes(Path(folder) / "model.safetensors", save(weights))

    def save_settings(self, folder: str | os.PathLike[str]) -> None:
        """Write all but the weights: ``tokens.txt`` and ``lm.yaml``."""
        import yaml

        normaliser = None if self.normaliser is None else asdict(self.normaliser)
        settings = {"unit": self.unit, **self.sizes, "normaliser": normaliser}
        write_text(Path(folder) / "tokens.txt", self.vocabulary.to_lines())
        write_text(Path(folder) / "lm.yaml", yaml.safe_dump(settings, allow_unicode=True, sort_keys=False))

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, normaliser: Normaliser | None = None, device: str = "cpu"
    ) -> TransformerLM:
        """What `save` wrote, in eval mode. A `normaliser` replaces the saved one; a bad file is a `DataError`."""
        import yaml
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = Path(folder)
        for name in ("lm.yaml", "tokens.txt", "model.safetensors"):
            if not (path / name).is_file():
                raise DataError(f"{path}: no language model of ours: {name} is missing")
        try:
            settings = yaml.safe_load((path / "lm.yaml").read_text(encoding="utf-8"))
            saved = settings.pop("normaliser")
            used = normaliser or (None if saved is None else Normaliser(**saved))
            model = cls(Vocabulary.load(path / "tokens.txt"), settings.pop("unit"), normaliser=used, **settings)
        except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{path / 'lm.yaml'}: not the settings of a language model ({reason})") from None
        try:
            model.load_state_dict(load((path / "model.safetensors").read_bytes()))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path / 'model.safetensors'}: not the weights of this model ({reason})") from None
        return model.to(device).eval()


def padded(sentences: Sequence[Sequence[int] | Any]) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T): boundary y_1 .. y_U and y_1 .. y_U boundary; behind them 0 and, not to be counted, -100.

    >>> padded([[5, 6], [7]])
    (tensor([[0, 5, 6],
            [0, 7, 0]]), tensor([[   5,    6,    0],
            [   7,    0, -100]]))
    """
    length = max(map(len, sentences), default=0) + 1
    inputs = torch.full((len(sentences), length), BOUNDARY)
    targets = torch.full((len(sentences), length), -100)
    for row, sentence in enumerate(sentences):
        tokens, size = torch.as_tensor(sentence, dtype=torch.int64), len(sentence)
        inputs[row, 1 : size + 1] = tokens
        targets[row, :size] = tokens
        targets[row, size] = BOUNDARY
    return inputs, targets


@torch.inference_mode()
def batched_scores(lengths: Sequence[int], score: Any, *, budget: int) -> Tensor:
    """(N,) float32: `score(items) -> (B,)` of all items, in batches of like length and of `budget` tokens with the padding."""
    sizes = np.array(lengths, dtype=np.float64)
    order = np.argsort(-sizes, kind="stable").tolist()
    result = torch.empty(len(lengths))
    for items in cut(order, sizes, float(budget), len(lengths) or 1):
        result[items] = score(items).float().cpu()
    return result
