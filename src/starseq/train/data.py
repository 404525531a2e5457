"""The data of a run: its vocabulary, its training and dev sets, and what had to be left out."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from starseq.data.dataset import Counts, Item, ManifestDataset, PackedRows, Reader, count_frames
from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row, read_manifest
from starseq.data.pool import interrupts_held
from starseq.text.gaps import Unit
from starseq.text.pieces import SentencePieces
from starseq.text.tokeniser import Tokeniser, UnknownLabel
from starseq.text.vocabulary import BEGINS, Vocabulary
from starseq.train.check import LOOKED_AT, no_rows, squeezed, unknown_labels
from starseq.train.check import too_long as too_long_rows


@dataclass(frozen=True)
class DataReport:
    """What a run trains on, and what it leaves out."""

    rows: int
    labels: int
    """of these rows, before any was dropped"""
    kept: int
    """labels that are left"""
    pruned: int
    """rows without any label left"""
    too_long: tuple[str, ...]
    """ids of rows whose labels do not fit their frames"""
    misfits: tuple[str, ...]
    """sentences: what in the rows does not fit the recipe, and what mends it"""
    dev_rows: int
    dev_incomplete: int
    """rows of dev without a complete text"""
    absent: tuple[str, ...]
    """splits to test on that no row has"""
    unnamed: tuple[str, ...]
    """splits of the manifest that the recipe does not name"""
    tokens: int
    """V, with the blank"""

    def __str__(self) -> str:
        lines = [f"{self.rows:,} rows to train on, {self.dev_rows:,} of dev, {self.tokens:,} tokens with the blank"]
        if self.kept < self.labels:
            share = 100 * self.kept / self.labels
            lines.append(f"{self.kept:,} of {self.labels:,} labels kept ({share:.1f} %)")
        if self.pruned:
            lines.append(f"{self.pruned:,} rows pruned, for no label of them is left")
        if self.dev_incomplete:
            lines.append(f"{self.dev_incomplete:,} rows of dev left out, for their text is not complete")
        if self.absent and self.unnamed:
            found = ", ".join(self.unnamed)
            lines.append(
                f"no row of data.splits.test, {', '.join(self.absent)}; there are rows of {found}, which nothing reads"
            )
        lines.extend(self.misfits)
        return "\n".join(lines)


class RunRows:
    """The rows that a run needs of its manifest, read once: those to train on, and of dev those with a complete text.

    `count` gives the labels of a text, which are counted in the rows to train on. `look` is given the first rows to train on
    as soon as they are there. A split that no row has is a `DataError`.
    """

    def __init__(
        self,
        manifest: str | os.PathLike[str],
        reader: Reader,
        *,
        train: Sequence[str],
        dev: Sequence[str] = (),
        root: str | os.PathLike[str] | None = None,
        count: Callable[[str], Iterable[str]] | None = None,
        look: Callable[[list[Row]], None] | None = None,
    ) -> None:
        self.manifest, self.reader, self.root = Path(manifest), reader, root
        self.splits = {"train": tuple(train), "dev": tuple(dev)}
        self.train, self.dev = PackedRows(), PackedRows()
        self.incomplete = 0
        """rows of dev without a complete text"""
        self.there: set[str] = set()
        """the splits that rows have"""
        self.counts: Counter[str] = Counter()
        first: list[Row] = []
        for row in read_manifest(manifest):
            split = str(row.get("split", ""))
            self.there.add(split)
            if split in train:
                self.train.append(row, reader.size(row))
                if count is not None:
                    self.counts.update(count(row.text))
                if len(first) < LOOKED_AT:
                    first.append(row)
                    if look is not None and len(first) == LOOKED_AT:
                        look(first)
            if split in dev:
                if row.complete:
                    self.dev.append(row, reader.size(row))
                self.incomplete += not row.complete
        if look is not None and len(first) < LOOKED_AT:
            look(first)
        for key, splits in self.splits.items():
            if splits and not self.there & set(splits):
                raise no_rows(self.manifest, key, splits, self.there)
        if dev and not len(self.dev):
            raise DataError(
                f"{self.manifest}: no row of the splits {', '.join(dev)} has a complete text to compare with; give some, "
                "as text or text_full, or train without: data.splits.dev=[]"
            )

    def vocabulary(
        self, size: int | None = None, *, letters: bool = False, max_letters: int | None = None
    ) -> Vocabulary:
        """The labels that were counted, the `size` most frequent of them. They are those of the texts as they stand in the
        manifest, before anything is dropped on the fly: which labels there are is taken to be known."""
        kept = {label: n for label, n in self.counts.items() if max_letters is None or len(label) <= max_letters}
        if not kept:
            splits = ", ".join(self.splits["train"])
            raise DataError(f"{self.manifest}: no label in the splits {splits}, so there is no vocabulary")
        return Vocabulary.top(kept, size, letters=letters)

    def pieces(self, size: int | None = None) -> SentencePieces:
        """Pieces of the words that were counted."""
        try:
            return SentencePieces.trained(self.counts.elements(), size)
        except ValueError as error:
            key = "" if size is None else "text.size: "
            raise DataError(f"{self.manifest}: {key}{error}") from None


class RunSet(ManifestDataset):
    """Rows of a run. With `cache`, items are kept in memory once they are decoded."""

    def __init__(
        self, rows: RunRows, of: PackedRows, tokeniser: Tokeniser | None = None, *, cache: bool = False
    ) -> None:
        super().__init__(rows.manifest, rows.reader, tokeniser, root=rows.root, rows=of)
        self._items: dict[int, Item] | None = {} if cache else None

    def __getitem__(self, index: int) -> Item:
        if self._items is None:
            return super().__getitem__(index)
        item = self._items.get(index)
        if item is None:
            item = self._items[index] = super().__getitem__(index)
        return item

    def fill(self, workers: int) -> None:
        """Decodes everything now, by `workers` processes, so that those of a loader share it. Without cache: nothing."""
        if self._items is None or workers == 0:
            return
        loader = DataLoader(_Decoded(self), batch_size=None, num_workers=workers)
        with interrupts_held():
            items = iter(loader)
        for index, item in enumerate(items):
            if isinstance(item, ManifestError):
                raise item
            # A copy: what comes from a worker holds a file descriptor, of which there are few.
            self._items[index] = Item(item.id, item.x.clone(), item.labels.clone(), item.open.clone(), item.reference)


class LabelledSet(RunSet):
    """Rows to train on: their labels are encoded and counted once, and dropped on the fly. Rows without any label left are out."""

    def __init__(
        self, rows: RunRows, tokeniser: Tokeniser, *, dropper: Dropper | None = None, cache: bool = False
    ) -> None:
        super().__init__(rows, rows.train, tokeniser, cache=cache)
        self._dropper, self._tokeniser = dropper, tokeniser
        self.unknown: Counter[str] = Counter()
        """labels that the vocabulary lacks"""
        digest = hashlib.blake2b(digest_size=16)
        counted = (self._encoded(self._rows[i], digest) for i in range(len(self)))
        self._counts = np.fromiter(counted, np.dtype((np.int64, 3)), len(self))
        """(N, 3) of every row: labels before and after dropping, and how many of these follow an equal one"""
        self.digest = digest.hexdigest()
        """of ids, labels and gaps: another one is another training set"""
        lost = np.flatnonzero(self._counts[:, 1] == 0)
        self.pruned = len(lost)
        self.leave_out(lost)
        if not len(self):
            splits = ", ".join(rows.splits["train"])
            raise DataError(
                f"{self.manifest}: no label is left to train on; "
                + unknown_labels(self.unknown, self.unknown.total(), tokeniser)
                if self.unknown
                else f"{self.manifest}: no row is left for the splits {splits}"
            )

    @property
    def labels(self) -> int:
        """Labels of the rows, before any was dropped."""
        return int(self._counts[self._used, 0].sum())

    @property
    def kept(self) -> int:
        """Labels that are left."""
        return int(self._counts[self._used, 1].sum())

    def encode(self, row: Row) -> tuple[Sequence[int], Sequence[bool]]:
        return super().encode(row if self._dropper is None else self._dropper(row).row)

    def _encoded(self, row: Row, digest: Any) -> tuple[int, int, int]:
        """What is counted of a row, which goes into the digest if labels are left."""
        try:
            full = self._tokeniser.encode(row.text, marked=row.get("gaps") == "marked")
            labels, gaps = (full.labels, full.open) if self._dropper is None else self.encode(row)
        except UnknownLabel as error:
            own = "vocabulary=null takes the labels of" if self._tokeniser.pieces is None else "pieces=null learns from"
            mend = f"text.{own} the training rows, text.unknown=drop makes such labels gaps"
            raise ManifestError(self.manifest, row.line, f"{error}: {mend}") from None
        except ValueError as error:
            raise ManifestError(self.manifest, row.line, str(error)) from None
        for label in full.unknown:
            # A bound for words, of which there is no end; the most frequent come early.
            self.unknown[label if label in self.unknown or len(self.unknown) < 10_000 else "..."] += 1
        if labels:
            digest.update(f"{row.id}\0{len(labels)}\0".encode() + array("I", labels).tobytes() + bytes(gaps))
        return len(full.labels), len(labels), count_frames(labels, repeats=True) - len(labels)

    def _frames_needed(self, repeats: bool) -> Counts:
        needed: Counts = self._counts[self._used, 1] + repeats * self._counts[self._used, 2]
        return needed


class _Decoded(torch.utils.data.Dataset["Item | ManifestError"]):
    """The items as they are decoded; an error is given, not raised, so that it arrives as it was."""

    def __init__(self, dataset: RunSet) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Item | ManifestError:
        try:
            return ManifestDataset.__getitem__(self.dataset, index)
        except ManifestError as error:
            return error


@dataclass(frozen=True)
class TrainingData:
    """What the loop draws batches from. `dev` is None where the recipe names no dev split."""

    train: LabelledSet
    dev: RunSet | None
    report: DataReport


def training_data(
    rows: RunRows,
    tokeniser: Tokeniser,
    *,
    test: Sequence[str] = (),
    output_lengths: Callable[[Tensor], Tensor],
    repeats: bool,
    dropper: Dropper | None = None,
    cache: bool = False,
    stride: int | None = None,
) -> TrainingData:
    """The training and dev sets of a manifest.

    Left out are rows that lose every label, and those whose labels do not fit the frames that a model has by its `output_lengths`
    (with `repeats` a repeated label needs a frame between); the report counts them, and says what mends it (another `stride`, where
    the model has that setting). More than half of the rows is a `DataError`. Dev is scored by its full text, so what the vocabulary
    lacks there costs an error, not the run.
    """
    training = LabelledSet(rows, tokeniser, dropper=dropper, cache=cache)
    misfits = squeezed(training)
    if training.unknown and tokeniser.unknown == "drop":
        total = training.labels + training.unknown.total()
        misfits.append(unknown_labels(training.unknown, total, tokeniser))
        if tokeniser.unit == "char" and 2 * training.unknown.total() > total:
            raise DataError(f"{rows.manifest}: too little is left to train on; {misfits[-1]}")
    needs = training.too_long(output_lengths, repeats=repeats)
    too_long = tuple(training.row(i).id for i in needs)
    if too_long:
        misfits.append(too_long_rows(training, dict(zip(too_long, needs.values(), strict=True)), stride))
        if 2 * len(too_long) > len(training):
            raise DataError(f"{rows.manifest}: too little is left to train on; {misfits[-1]}")
        training.leave_out(list(needs))
    held_out = RunSet(rows, rows.dev, cache=cache) if rows.splits["dev"] else None
    report = DataReport(
        rows=len(training),
        labels=training.labels,
        kept=training.kept,
        pruned=training.pruned,
        too_long=too_long,
        misfits=tuple(misfits),
        dev_rows=0 if held_out is None else len(held_out),
        dev_incomplete=rows.incomplete,
        absent=tuple(split for split in test if split not in rows.there),
        unnamed=tuple(sorted(rows.there - {"", *rows.splits["train"], *rows.splits["dev"], *test})),
        tokens=len(tokeniser.vocabulary),
    )
    return TrainingData(training, held_out, report)


def synthetic_vocabulary(unit: Unit | Literal["piece"], size: int | None) -> Vocabulary:
    """Made-up labels, as many as asked for, when there is no data: characters, or words of letters.

    >>> synthetic_vocabulary("word", 3).tokens, synthetic_vocabulary("char", 2).tokens
    (('<blank>', 'aaaa', 'aaab', 'aaac'), ('<blank>', '!', '"'))
    """
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    if unit == "char":
        return Vocabulary(chr(33 + i) for i in range(size or 80))

    def spelled(number: int) -> str:
        letters = ""
        for _ in range(4):
            number, digit = divmod(number, 26)
            letters = alphabet[digit] + letters
        return letters

    begins = BEGINS if unit == "piece" else ""
    return Vocabulary(begins + spelled(i) for i in range(size or 100))


def manifest_in(root: Path, manifest: str) -> Path:
    """The manifest under a corpus's folder; a missing one is a `DataError` that says what to do."""
    path = root / manifest
    if not path.is_file():
        raise DataError(f"{path}: no such manifest; data.root is the corpus's folder, data.manifest the file in it")
    return path
