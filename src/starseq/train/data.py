"""The data of a run: its vocabulary, its training and dev sets, and what had to be left out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from starseq.data.dataset import Item, ManifestDataset, Reader
from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress, Row, read_manifest
from starseq.data.pool import interrupts_held
from starseq.text.gaps import Unit
from starseq.text.normalise import Normaliser
from starseq.text.tokeniser import Tokeniser, UnknownLabel
from starseq.text.vocabulary import Vocabulary, count_labels
from starseq.train.check import no_rows, squeezed, unknown_labels
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


class LabelledSet(ManifestDataset):
    """Rows of some splits, their labels dropped on the fly, their decoded items kept in memory with `cache`. Without a tokeniser
    they are to be read, and only those with a complete text are there.

    Rows without any label left are pruned. `without` leaves out rows by id.
    """

    def __init__(
        self,
        manifest: str | os.PathLike[str],
        reader: Reader,
        tokeniser: Tokeniser | None,
        *,
        splits: Sequence[str],
        root: str | os.PathLike[str] | None = None,
        dropper: Dropper | None = None,
        cache: bool = False,
        without: frozenset[str] = frozenset(),
        progress: Progress | None = None,
    ) -> None:
        self._dropper = dropper
        self._items: dict[int, Item] | None = {} if cache else None
        self.labels = self.kept = self.pruned = self.incomplete = 0
        self.unknown: Counter[str] = Counter()
        """labels that the vocabulary lacks"""
        self.there: set[str] = set()
        self._digest = hashlib.blake2b(digest_size=16)

        def keep(row: Row) -> bool:
            self.there.add(str(row.get("split", "")))
            if row.get("split") not in splits or row.id in without:
                return False
            if tokeniser is not None:
                return self._count(row)
            self.incomplete += not row.complete
            return row.complete

        try:
            super().__init__(manifest, reader, tokeniser, root=root, keep=keep, progress=progress)
        except ManifestError:
            raise
        except DataError as error:
            if self.incomplete:
                raise DataError(
                    f"{self.manifest}: no row of the splits {', '.join(splits)} has a complete text to compare with; give some, "
                    "as text or text_full, or train without: data.splits.dev=[]"
                ) from None
            if not self.there & set(splits):
                raise no_rows(self.manifest, "dev" if tokeniser is None else "train", splits, self.there) from None
            if self.unknown and tokeniser is not None:
                lost = unknown_labels(self.unknown, self.unknown.total(), tokeniser.vocabulary)
                raise DataError(f"{self.manifest}: no label is left to train on; {lost}") from None
            raise DataError(f"{error} for the splits {', '.join(splits)}") from None

    def encode(self, row: Row) -> tuple[Sequence[int], Sequence[bool]]:
        return super().encode(row if self._dropper is None else self._dropper(row).row)

    def _count(self, row: Row) -> bool:
        """Counts labels before and after dropping; False for a row that has none left."""
        assert self.tokeniser is not None
        try:
            full = self.tokeniser.encode(row.text, marked=row.get("gaps") == "marked")
            labels, gaps = (full.labels, full.open) if self._dropper is None else self.encode(row)
            left, all_of_them = len(labels), len(full.labels)
            self._count_unknown(full.unknown)
        except ManifestError:
            raise
        except UnknownLabel as error:
            mend = (
                "text.vocabulary=null takes the labels of the training rows, text.unknown=drop makes such labels gaps"
            )
            raise ManifestError(self.manifest, row.line, f"{error}: {mend}") from None
        except ValueError as error:
            raise ManifestError(self.manifest, row.line, str(error)) from None
        if not left:
            self.pruned += 1
            return False
        self.labels, self.kept = self.labels + all_of_them, self.kept + left
        self._digest.update(repr((row.id, list(labels), list(gaps))).encode())
        return True

    def _count_unknown(self, labels: Iterable[str]) -> None:
        for label in labels:
            # A bound for words, of which there is no end; the most frequent come early.
            self.unknown[label if label in self.unknown or len(self.unknown) < 10_000 else "..."] += 1

    @property
    def digest(self) -> str:
        """Of ids, labels and gaps: another one is another training set."""
        return self._digest.hexdigest()

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


class _Decoded(torch.utils.data.Dataset["Item | ManifestError"]):
    """The items as they are decoded; an error is given, not raised, so that it arrives as it was."""

    def __init__(self, dataset: LabelledSet) -> None:
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
    dev: LabelledSet | None
    report: DataReport


def training_data(
    manifest: str | os.PathLike[str],
    reader: Reader,
    tokeniser: Tokeniser,
    *,
    train: Sequence[str],
    dev: Sequence[str],
    test: Sequence[str] = (),
    output_lengths: Callable[[Tensor], Tensor],
    repeats: bool,
    root: str | os.PathLike[str] | None = None,
    dropper: Dropper | None = None,
    cache: bool = False,
    stride: int | None = None,
    progress: Progress | None = None,
) -> TrainingData:
    """The training and dev sets of a manifest.

    Left out are rows that lose every label, and those whose labels do not fit the frames that a model has by its `output_lengths`
    (with `repeats` a repeated label needs a frame between); the report counts them, and says what mends it (another `stride`, where
    the model has that setting). More than half of the rows is a `DataError`. Dev is scored by its full text, so what the vocabulary
    lacks there costs an error, not the run.
    """

    def labelled(without: frozenset[str] = frozenset()) -> LabelledSet:
        return LabelledSet(
            manifest, reader, tokeniser, splits=train, root=root, dropper=dropper, cache=cache, without=without,
            progress=progress,
        )  # fmt: skip

    training = labelled()
    misfits = squeezed(training)
    if training.unknown and tokeniser.unknown == "drop":
        total = training.labels + training.unknown.total()
        misfits.append(unknown_labels(training.unknown, total, tokeniser.vocabulary))
        if tokeniser.unit == "char" and 2 * training.unknown.total() > total:
            raise DataError(f"{manifest}: too little is left to train on; {misfits[-1]}")
    too_long = training.too_long(output_lengths, repeats=repeats)
    if too_long:
        misfits.append(too_long_rows(training, too_long, stride))
        if 2 * len(too_long) > len(training):
            raise DataError(f"{manifest}: too little is left to train on; {misfits[-1]}")
        training = labelled(frozenset(too_long))
    held_out = LabelledSet(manifest, reader, None, splits=dev, root=root, cache=cache) if dev else None
    report = DataReport(
        rows=len(training),
        labels=training.labels,
        kept=training.kept,
        pruned=training.pruned,
        too_long=tuple(too_long),
        misfits=tuple(misfits),
        dev_rows=0 if held_out is None else len(held_out),
        dev_incomplete=0 if held_out is None else held_out.incomplete,
        absent=tuple(split for split in test if split not in training.there),
        unnamed=tuple(sorted(training.there - {"", *train, *dev, *test})),
        tokens=len(tokeniser.vocabulary),
    )
    return TrainingData(training, held_out, report)


def vocabulary_of(
    manifest: str | os.PathLike[str],
    *,
    unit: Unit,
    splits: Sequence[str],
    normaliser: Normaliser,
    size: int | None = None,
    letters: bool = False,
    max_letters: int | None = None,
    progress: Progress | None = None,
) -> Vocabulary:
    """The labels of a manifest's splits, the `size` most frequent of them. It is that of the texts as they stand in the
    manifest, before anything is dropped on the fly: which labels there are is taken to be known.

    A manifest whose splits have no text is a `DataError`.
    """
    there: set[str] = set()

    def texts() -> Iterator[str]:
        for row in read_manifest(manifest, progress=progress):
            there.add(str(row.get("split", "")))
            if row.get("split") in splits:
                yield row.text

    counts = count_labels(map(normaliser, texts()), unit)
    if not there & set(splits):
        raise no_rows(Path(manifest), "train", splits, there)
    if max_letters is not None:
        counts = type(counts)({label: count for label, count in counts.items() if len(label) <= max_letters})
    if not counts:
        raise DataError(f"{manifest}: no label in the splits {', '.join(splits)}, so there is no vocabulary")
    return Vocabulary.top(counts, size, letters=letters)


def synthetic_vocabulary(unit: Unit, size: int | None) -> Vocabulary:
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

    return Vocabulary(spelled(i) for i in range(size or 100))


def manifest_in(root: Path, manifest: str) -> Path:
    """The manifest under a corpus's folder; a missing one is a `DataError` that says what to do."""
    path = root / manifest
    if not path.is_file():
        raise DataError(f"{path}: no such manifest; data.root is the corpus's folder, data.manifest the file in it")
    return path
