"""From a manifest to batches of tensors: a map-style dataset, readers of its files, and the collation.

A reader turns the bytes of a row's file into (T, F): `AudioReader` decodes and computes log-mel features, or loads what
`starseq.data.precompute` stored of them; `LineReader` scales a line image. The dataset does not care which.
"""

from __future__ import annotations

import io
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from starseq.data import audio, images
from starseq.data.batching import BatchSampler, Sizes
from starseq.data.errors import DataError
from starseq.data.features import LogMel
from starseq.data.manifest import ManifestError, Row, read_bytes, read_manifest
from starseq.data.pool import interrupts_held
from starseq.text.gaps import split_gaps
from starseq.text.tokeniser import Tokeniser

Counts: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class Reader(Protocol):
    """Turns a row's file into a sequence of frames."""

    @property
    def bands(self) -> int:
        """F, the features of a frame: bands of sound, or the pixels of a column."""
        ...

    @property
    def seconds(self) -> float | None:
        """From one frame to the next; None for images."""
        ...

    @property
    def key(self) -> str:
        """What the frames depend on besides the file: equal keys, equal frames."""
        ...

    def __call__(self, row: Row, data: bytes) -> Tensor:
        """The frames, (T, F)."""
        ...

    def size(self, row: Row) -> float | None:
        """What batches are measured in, seconds or columns of pixels, as the row states it; None if it does not."""
        ...

    def measure(self, row: Row, data: bytes) -> float:
        """The same, from the file's header."""
        ...

    def frames(self, size: float) -> int:
        """T for a file of that size (for audio to within a frame, because a manifest's `duration` is rounded)."""
        ...


class AudioReader:
    """Audio to log-mel features, or such features as they were stored; sizes are seconds."""

    def __init__(self, log_mel: LogMel | None = None) -> None:
        self.log_mel = LogMel() if log_mel is None else log_mel
        self.rate, self.bands = self.log_mel.rate, self.log_mel.bands
        self.seconds = self.log_mel.shift / self.log_mel.rate

    @property
    def key(self) -> str:
        return f"log-mel {self.log_mel.settings}"

    def __call__(self, row: Row, data: bytes) -> Tensor:
        if row.features is not None:
            return self._stored(row, data)
        wave = audio.decode(data, rate=self.log_mel.rate, name=row.path)
        if self.log_mel.frames(len(wave)) < 1:
            raise DataError(f"{row.path}: {len(wave)} samples are too short for one frame of features")
        features: Tensor = self.log_mel(wave)
        return features

    def _stored(self, row: Row, data: bytes) -> Tensor:
        if row.features != self.key:
            raise DataError(f"{row.path}: holds {row.features!r}, but {self.key!r} is asked for")
        try:
            frames = np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"{row.path}: not an array of features ({error})") from None
        if frames.ndim != 2 or frames.dtype != np.float32:
            raise DataError(f"{row.path}: features are (T, F) float32, not {frames.shape} {frames.dtype}")
        return torch.from_numpy(frames)

    def size(self, row: Row) -> float | None:
        return row.seconds if row.features is None else row.get("size")

    def measure(self, row: Row, data: bytes) -> float:
        if row.features is not None:
            return len(self._stored(row, data)) * self.log_mel.shift / self.log_mel.rate
        return audio.probe(data, name=row.path).seconds

    def frames(self, size: float) -> int:
        return self.log_mel.frames(round(size * self.log_mel.rate))


@dataclass(frozen=True)
class LineReader:
    """A line image to (W, H), ink-positive; sizes are columns."""

    height: int = 32
    max_width: int = 600

    @property
    def bands(self) -> int:
        return self.height

    @property
    def seconds(self) -> None:
        return None

    @property
    def key(self) -> str:
        return f"line {self.height} {self.max_width}"

    def __call__(self, row: Row, data: bytes) -> Tensor:
        return images.load_line(data, height=self.height, max_width=self.max_width, name=row.path)

    def size(self, row: Row) -> float | None:
        width, height = row.get("width"), row.get("height")
        return None if width is None or height is None else self._columns(width, height)

    def measure(self, row: Row, data: bytes) -> float:
        return self._columns(*images.image_size(data, name=row.path))

    def _columns(self, width: int, height: int) -> int:
        return images.fitted_width(width, height, to_height=self.height, max_width=self.max_width)

    def frames(self, size: float) -> int:
        return int(size)


class Item(NamedTuple):
    """One utterance or line. `open` says for each of the U + 1 gaps whether labels may be missing there."""

    id: str
    x: Tensor
    """(T, F)"""
    labels: Tensor
    """(U,) int64"""
    open: Tensor
    """(U + 1,) bool"""
    reference: str
    """the complete text, for scoring: `text_full` where labels were dropped"""


@dataclass
class PaddedBatch:
    """Padded items. What lies past a length is 0 (False in `open`) and means nothing."""

    ids: list[str]
    x: Tensor
    """(B, T, F)"""
    lengths: Tensor
    """(B,) frames"""
    targets: Tensor
    """(B, U) int64"""
    target_lengths: Tensor
    """(B,)"""
    open: Tensor
    """(B, U + 1) bool: gap l of utterance b may miss labels"""
    references: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PaddedBatch:
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def rounded(self, multiple: int) -> PaddedBatch:
        """With frames padded to a multiple of so many: a GPU then meets few shapes, and plans its convolutions once for each.

        >>> item = Item("a", torch.ones(3, 2), torch.tensor([1]), torch.tensor([True, True]), "x")
        >>> collate([item]).rounded(64).x.shape
        torch.Size([1, 64, 2])
        """
        return replace(self, x=torch.nn.functional.pad(self.x, (0, 0, 0, -self.x.shape[1] % multiple)))

    def pin_memory(self) -> PaddedBatch:
        """`DataLoader(pin_memory=True)` calls this."""
        return self._map(lambda t: t.pin_memory())

    def _map(self, move: Callable[[Tensor], Tensor]) -> PaddedBatch:
        x, lengths, targets = move(self.x), move(self.lengths), move(self.targets)
        return PaddedBatch(self.ids, x, lengths, targets, move(self.target_lengths), move(self.open), self.references)


def collate(items: Sequence[Item]) -> PaddedBatch:
    """Pads items to one batch: the `collate_fn` of a `DataLoader`.

    >>> a = Item("a", torch.ones(3, 2), torch.tensor([1]), torch.tensor([True, True]), "x")
    >>> b = Item("b", torch.ones(1, 2), torch.tensor([2, 1]), torch.tensor([True, False, True]), "yx")
    >>> batch = collate([a, b])
    >>> batch.x.shape, batch.lengths.tolist(), batch.targets.tolist(), batch.target_lengths.tolist()
    (torch.Size([2, 3, 2]), [3, 1], [[1, 0], [2, 1]], [1, 2])
    """
    return PaddedBatch(
        ids=[item.id for item in items],
        x=pad_sequence([item.x for item in items], batch_first=True),
        lengths=torch.tensor([len(item.x) for item in items]),
        targets=pad_sequence([item.labels for item in items], batch_first=True),
        target_lengths=torch.tensor([len(item.labels) for item in items]),
        open=pad_sequence([item.open for item in items], batch_first=True),
        references=[item.reference for item in items],
    )


class PackedRows:
    """Rows of a manifest and their sizes (nan: not stated), which cost little more than their text.

    They lie as JSON in one buffer: no reference counts, so forked workers share its pages.
    """

    def __init__(self) -> None:
        self._text, self._ends, self._lines = bytearray(), array("q", [0]), array("q")
        self.sizes = array("d")

    def append(self, row: Row, size: float | None = None) -> None:
        self._text += _encode(row.fields).encode()
        self._ends.append(len(self._text))
        self._lines.append(row.line)
        self.sizes.append(math.nan if size is None else size)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        index = range(len(self))[index]  # also of those counted from the end
        return Row(json.loads(self._text[self._ends[index] : self._ends[index + 1]]), self._lines[index])


class ManifestDataset(Dataset[Item]):
    """The rows of a manifest (of one `split`, if given), read by `reader`, labelled by `tokeniser`.

    Without a tokeniser the rows may lack text, and the labels are empty. `root` is where files may lie, by default the
    manifest's folder. `keep` leaves rows out; `rows` are those of the manifest where it was read before. Rows that the reader
    or the tokeniser cannot use raise `ManifestError` with the manifest's file and line, when they are read.
    """

    def __init__(
        self,
        manifest: str | os.PathLike[str],
        reader: Reader,
        tokeniser: Tokeniser | None = None,
        *,
        split: str | None = None,
        root: str | os.PathLike[str] | None = None,
        keep: Callable[[Row], bool] | None = None,
        rows: PackedRows | None = None,
    ) -> None:
        self.manifest, self.reader, self.tokeniser = Path(manifest), reader, tokeniser
        self.folder, self.root = self.manifest.parent, root
        found: set[str] = set()
        if rows is None:
            rows = PackedRows()
            for row in read_manifest(manifest, labelled=tokeniser is not None):
                found.add(row.get("split", ""))
                if (split is None or row.get("split") == split) and (keep is None or keep(row)):
                    rows.append(row, reader.size(row))
        if not len(rows):
            where = "" if split is None else f" of split {split!r} (there are {', '.join(sorted(found))})"
            raise DataError(f"{self.manifest}: no row{where} is left")
        self._rows, self._sizes = rows, np.array(rows.sizes)
        self._used = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self._used)

    def row(self, index: int) -> Row:
        return self._rows[self._used[index]]

    def leave_out(self, indices: Sequence[int] | Counts) -> None:
        """From now on without these rows; those behind them move up."""
        self._used = np.delete(self._used, indices)

    def __getitem__(self, index: int) -> Item:
        row = self.row(index)
        with at_line(self.manifest, row):
            x = self.reader(row, self._data(row))
            labels, gaps = self.encode(row)
        return Item(row.id, x, torch.tensor(labels, dtype=torch.int64), torch.tensor(gaps), _reference(row))

    def encode(self, row: Row) -> tuple[Sequence[int], Sequence[bool]]:
        """The labels of a row, and its open gaps."""
        if self.tokeniser is None:
            return (), (True,)
        encoded = self.tokeniser.encode(row.text, marked=row.get("gaps") == "marked")
        return encoded.labels, encoded.open

    @property
    def sizes(self) -> Sizes:
        """Each row's size in the reader's unit, for `BatchSampler`: from the manifest, else from the files."""
        for i in self._used[np.isnan(self._sizes[self._used])].tolist():
            row = self._rows[i]
            with at_line(self.manifest, row):
                self._sizes[i] = self.reader.measure(row, self._data(row))
        return self._sizes[self._used]

    def too_long(self, output_lengths: Callable[[Tensor], Tensor], *, repeats: bool = False) -> dict[int, float]:
        """The rows whose labels do not fit into the frames that a model leaves, with how many times as many frames they need: their
        loss would be inf. `output_lengths` is the model's: (B,) frames -> (B,) frames.

        A label needs a frame. Where repeats are merged, one is needed between equal labels, too: `repeats` counts these.
        """
        frames = np.fromiter(map(self.reader.frames, self.sizes.tolist()), np.int64, len(self))
        left = output_lengths(torch.from_numpy(frames)).numpy()
        need = self._frames_needed(repeats)
        return {i: float(need[i] / max(1, left[i])) for i in np.flatnonzero(left < need).tolist()}

    def _frames_needed(self, repeats: bool) -> Counts:
        """(N,): by the labels of each row."""
        return np.array([count_frames(self.encode(self.row(i))[0], repeats) for i in range(len(self))])

    def _data(self, row: Row) -> bytes:
        return read_bytes(row, self.folder, self.root)


class BatchLoader(DataLoader[Any]):
    """A `DataLoader` of `PaddedBatch`es. What goes wrong in a worker arrives as it was raised there, in one sentence.

    torch's own wraps it into a `RuntimeError` with the worker's traceback. `workers` processes prepare batches ahead.
    """

    def __init__(
        self, dataset: Dataset[Item], sampler: BatchSampler, *, workers: int = 0, pin_memory: bool = False
    ) -> None:
        super().__init__(
            _Quiet(dataset),
            batch_sampler=sampler,
            collate_fn=_collate_or_error,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
        )

    def __iter__(self) -> Any:
        with interrupts_held():  # this starts the workers
            batches = super().__iter__()
        for batch in batches:
            if isinstance(batch, ManifestError):
                raise batch
            yield batch


class _Quiet(Dataset["Item | ManifestError"]):
    """Gives the error as an item instead of raising it."""

    def __init__(self, dataset: Dataset[Item]) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Item | ManifestError:
        try:
            return self.dataset[index]
        except ManifestError as error:
            return error


def _collate_or_error(items: list[Item | ManifestError]) -> PaddedBatch | ManifestError:
    error = next((item for item in items if isinstance(item, ManifestError)), None)
    return error or collate([item for item in items if isinstance(item, Item)])


def count_frames(labels: Sequence[int], repeats: bool) -> int:
    """How many frames labels need at least: one each and, with `repeats`, one between equal ones.

    >>> count_frames([3, 3, 5], True), count_frames([3, 3, 5], False)
    (4, 3)
    """
    return len(labels) + (sum(map(eq, labels, labels[1:])) if repeats else 0)


@contextmanager
def at_line(manifest: Path, row: Row) -> Iterator[None]:
    """Adds the manifest's file and line to what goes wrong with a row."""
    try:
        yield
    except ManifestError:
        raise
    except ValueError as error:
        raise ManifestError(manifest, row.line, str(error)) from None


def _reference(row: Row) -> str:
    return "".join(split_gaps(row.get("text_full") or row.text))
