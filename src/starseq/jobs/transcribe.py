"""`starseq transcribe`: audio files or line images to text, with times or columns and confidences."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from starseq import runs
from starseq.data.dataset import LineReader
from starseq.data.errors import DataError
from starseq.data.images import image_size
from starseq.data.manifest import Row
from starseq.decode.align import align
from starseq.decode.greedy import Read, greedy_read
from starseq.jobs._search import Readings, Search, reading
from starseq.jobs._where import PathLike, Where

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
    folder: PathLike, files: Sequence[PathLike], *, search: Search = Search(), where: Where = Where()
) -> Iterator[Transcript | Failure]:
    """Reads each file with the run in `folder`, in the order given: greedily, or as the `search` asks.

    What the run was trained on says what the files are: audio, or images of text lines. A file that cannot be read gives a
    `Failure`, and the next one follows. ``where.progress`` counts files. A run, a language model or weights that cannot be used
    raise `DataError`.
    """
    run = runs.load(folder)
    waiting: deque[Callable[[], Transcript | Failure]] = deque()
    with reading(run, search, where) as begin:
        for done in range(len(files)):
            while len(waiting) + done < len(files) and len(waiting) <= 2 * where.workers:
                waiting.append(_begun(run, os.fspath(files[done + len(waiting)]), begin, where.torch_device))
            yield waiting.popleft()()
            where.step(done + 1, len(files))


class _Heard(NamedTuple):
    """A file as the model hears it."""

    log_probs: Tensor  # (T, V)
    unit: str
    scale: float  # of a frame, in this unit
    last: float  # where the file ends


_Begin = Callable[[str, Tensor], Callable[[], Readings]]


def _read(run: runs.Run, log_probs: Tensor, found: Readings) -> tuple[str, list[Read]]:
    """The best text, and its tokens with their frames."""
    method, hypothesis = list(found.items())[-1]
    if method != "greedy":
        return hypothesis.text, _placed(run, log_probs, hypothesis.tokens)
    (reads,) = greedy_read(log_probs[None], [len(log_probs)], merge_repeats=run.merges_repeats)
    return hypothesis.text, reads


def _placed(run: runs.Run, log_probs: Tensor, tokens: Sequence[int]) -> list[Read]:
    """The tokens of a text at the frames of its best alignment; confidences are those of greedy reading, what the model gives them
    there."""
    criterion = "ctc" if run.merges_repeats else "selfless_ctc"
    found = align(log_probs, tokens, criterion=criterion)
    return [Read(label.token, label.start, label.end, label.probability) for label in found.labels]


def _begun(run: runs.Run, path: str, begin: _Begin, device: str) -> Callable[[], Transcript | Failure]:
    """Runs the model on a file, and gives what waits for its transcript."""
    try:
        heard = _heard(run, path, device)
        result = begin(path, heard.log_probs)
    except (OSError, ValueError) as error:
        failure = _failure(path, error)
        return lambda: failure

    def transcript() -> Transcript | Failure:
        try:
            return _transcript(run, path, heard, *_read(run, heard.log_probs, result()))
        except (OSError, ValueError) as error:
            return _failure(path, error)

    return transcript


def _failure(path: str, error: OSError | ValueError) -> Failure:
    if isinstance(error, OSError):
        return Failure(path, f"{path}: {(error.strerror or str(error)).lower()}")
    sentence = " ".join(str(error).split())
    return Failure(path, sentence if path in sentence else f"{path}: {sentence}")


def _check_line(path: str, data: bytes) -> None:
    """Raises `DataError` for an image with the shape and the size of a page."""
    width, height = image_size(data, name=path)
    if height >= _PAGE and width < 2 * height:
        raise DataError(
            f"{path}: {width} x {height} pixels look like a whole page, and a run reads lines; `starseq prepare pagexml` and "
            "`alto` cut pages into lines"
        )


_PAGE = 800
"""pixels: no line of text is that high, unless it is a heading, which is long"""


def _heard(run: runs.Run, path: str, device: str) -> _Heard:
    reader = run.reader
    data = Path(path).read_bytes()
    if not data:
        raise DataError(f"{path}: the file is empty")
    if isinstance(reader, LineReader):
        _check_line(path, data)
    row = Row({"id": path, "path": path})
    x = reader(row, data)
    log_probs = runs.listen(run, x, device)
    if run.seconds_per_frame is not None:
        return _Heard(log_probs, "seconds", run.seconds_per_frame, reader.measure(row, data))
    # Frames count columns of the scaled line; the user has the file.
    width = image_size(data, name=path)[0] if isinstance(reader, LineReader) else len(x)
    return _Heard(log_probs, "columns", run.stride * width / len(x), width)


def _transcript(run: runs.Run, path: str, heard: _Heard, text: str, reads: Sequence[Read]) -> Transcript:
    tokens = tuple(
        Token(
            run.tokeniser.vocabulary[read.token],
            round(read.start * heard.scale, 3),
            round(min(read.end * heard.scale, heard.last), 3),
            round(read.confidence, 4),
        )
        for read in reads
    )
    mean = sum(token.confidence for token in tokens) / len(tokens) if tokens else 1.0
    return Transcript(path, text, round(mean, 4), heard.unit, tokens)
