"""What a trained model says about every frame of a manifest's rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from starseq.data.batching import BatchSampler, cut
from starseq.data.dataset import BatchLoader, LineReader, ManifestDataset
from starseq.data.manifest import Progress, Row
from starseq.runs.folder import Run
from starseq.text.gaps import escape, unescape
from starseq.text.known import known_text
from starseq.text.tokeniser import Tokeniser

SECONDS, COLUMNS = 120.0, 20_000.0
"""of a batch, where none is asked for"""


class Emission(NamedTuple):
    """One row: T' frames over V tokens, the blank first."""

    id: str
    log_probs: Tensor
    """(T', V) float32, on the CPU"""
    reference: str
    """the complete text after the run's normaliser; empty where the row has none"""
    labels: Tensor
    """(U,) int64: the row's text, what the vocabulary lacks left to its gap"""
    open: Tensor
    """(U + 1,) bool: which gaps may miss labels"""
    row: Row


@torch.no_grad()
def emissions(
    run: Run,
    manifest: str | os.PathLike[str],
    *,
    split: str | None = None,
    device: str | torch.device = "cpu",
    budget: float | None = None,
    root: str | os.PathLike[str] | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> Iterator[Emission]:
    """The emissions of a manifest's rows (of one `split`, if given), in its order, as a stream.

    `budget` bounds a batch, padding included, in the reader's unit: seconds or pixel columns. Rows may lack text. A file
    that cannot be read raises `ManifestError` with the manifest's line. `progress` counts rows.
    """
    data = ManifestDataset(manifest, run.reader, split=split, root=root)
    if budget is None:
        budget = COLUMNS if isinstance(run.reader, LineReader) else SECONDS
    batches = cut(range(len(data)), data.sizes, budget, max_items=len(data))
    loader = BatchLoader(data, cast(BatchSampler, batches), workers=workers)
    model = run.model.to(device)
    done = 0
    for indices, batch in zip(batches, loader, strict=True):
        logits, lengths = model(batch.x.to(device), batch.lengths.to(device))
        log_probs = logits.float().log_softmax(dim=2).cpu()
        for b, (index, frames) in enumerate(zip(indices, lengths.tolist(), strict=True)):
            row = data.row(index)
            labels, gaps = known_labels(run, row)
            yield Emission(
                row.id, log_probs[b, :frames], normal_text(run.tokeniser, batch.references[b]), labels, gaps, row
            )
        done += len(indices)
        if progress is not None:
            progress(done, len(data))


@torch.no_grad()
def listen(run: Run, x: Tensor, device: str | torch.device = "cpu") -> Tensor:
    """What a run says of one file, (T', V) log-probabilities on the CPU, from its frames (T, F)."""
    logits, lengths = run.model.to(device)(x[None].to(device), torch.tensor([len(x)], device=device))
    return cast(Tensor, logits[0, : int(lengths[0])].float().log_softmax(1).cpu())


def known_labels(run: Run, row: Row) -> tuple[Tensor, Tensor]:
    """The labels of a row, (U,), and its open gaps, (U + 1,). What the vocabulary lacks opens its gap."""
    known = known_text(run.tokeniser, row.text, marked=row.marked)
    return torch.tensor(known.labels, dtype=torch.int64), torch.tensor(known.open)


def normal_text(tokeniser: Tokeniser, literal: str) -> str:
    """A literal text as the normaliser leaves it: what a model's output is compared with."""
    text = literal if tokeniser.normaliser is None else unescape(tokeniser.normaliser(escape(literal)))
    if tokeniser.pieces is None:
        return text
    # A model of pieces that was given may change characters itself.
    words = ((word, tokeniser.indices(word) if tokeniser.writes(word) else None) for word in text.split())
    return " ".join(word if indices is None else tokeniser.decode(indices) for word, indices in words)
