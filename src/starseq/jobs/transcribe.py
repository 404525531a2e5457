"""`starseq transcribe`: audio files or line images to text, with times or columns and confidences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from starseq import runs
from starseq.data.dataset import FeatureReader, LineReader
from starseq.data.errors import DataError
from starseq.data.images import image_size
from starseq.data.manifest import Progress, Row
from starseq.decode.greedy import greedy_read
from starseq.jobs.evaluate import device_of

__all__ = ["Failure", "Token", "Transcript", "transcribe"]


class Token(NamedTuple):
    """A token of a transcript. `start` and `end` are seconds, or columns of the image as it is in its file."""

    token: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True)
class Transcript:
    """What was read in one file. `confidence` is the mean of the tokens', 1 where nothing was read."""

    path: str
    text: str
    confidence: float
    unit: str
    """of the tokens' start and end: "seconds" or "columns" """
    tokens: tuple[Token, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens": [token._asdict() for token in self.tokens]}


@dataclass(frozen=True)
class Failure:
    """A file that could not be read, and why, in one sentence."""

    path: str
    reason: str


def transcribe(
    folder: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    *,
    device: str = "auto",
    merge_repeats: bool | None = None,
    progress: Progress | None = None,
) -> Iterator[Transcript | Failure]:
    """Reads each file with the run in `folder`, greedily, in the order given.

    What the run was trained on says what the files are: audio, or images of text lines. A file that cannot be read gives a
    `Failure`, and the next one follows. `merge_repeats` is how the run is read, by default as its criterion has it. `progress`
    counts files. A run that cannot be used raises `DataError`.
    """
    run = runs.load(folder, merge_repeats=merge_repeats)
    model = run.model.to(device_of(device))
    for number, file in enumerate(files, start=1):
        path = os.fspath(file)
        try:
            yield _read(run, model, path)
        except OSError as error:
            yield Failure(path, f"{path}: {(error.strerror or str(error)).lower()}")
        except ValueError as error:
            sentence = " ".join(str(error).split())
            yield Failure(path, sentence if path in sentence else f"{path}: {sentence}")
        if progress is not None:
            progress(number, len(files))


@torch.no_grad()
def _read(run: runs.Run, model: torch.nn.Module, path: str) -> Transcript:
    reader = run.reader.source if isinstance(run.reader, FeatureReader) else run.reader
    data = Path(path).read_bytes()
    if not data:
        raise DataError(f"{path}: the file is empty")
    x = reader(Row({"id": path, "path": path}), data)
    logits, lengths = model(x[None].to(next(model.parameters()).device), torch.tensor([len(x)]))
    (reads,) = greedy_read(logits.float(), lengths.cpu(), merge_repeats=run.merges_repeats)
    if run.seconds_per_frame is not None:
        unit, scale, last = "seconds", run.seconds_per_frame, reader.measure(Row({"id": path, "path": path}), data)
    else:
        # Frames count columns of the scaled line; the user has the file.
        width = image_size(data, name=path)[0] if isinstance(reader, LineReader) else len(x)
        unit, scale, last = "columns", run.stride * width / len(x), width
    tokens = tuple(
        Token(
            run.tokeniser.vocabulary[read.token], round(read.start * scale, 3), round(min(read.end * scale, last), 3),
            round(read.confidence, 4),
        )
        for read in reads
    )  # fmt: skip
    mean = sum(token.confidence for token in tokens) / len(tokens) if tokens else 1.0
    return Transcript(path, run.tokeniser.decode([read.token for read in reads]), round(mean, 4), unit, tokens)
