"""From sentences to n-grams with adjusted counts: words to numbers, numbers to n-grams, n-grams sorted and counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starseq.data.errors import DataError
from starseq.lm import kneser_ney_numba as kernels
from starseq.lm.kneser_ney_numba import BEGIN, END, SMALL
from starseq.lm.records import Records, Room, Sorter, Table, words_for

__all__ = ["SPECIALS", "Counts", "Numbered", "adjust_counts", "number"]

SPECIALS = ("<unk>", "<s>", "</s>")
"""Words 0, 1 and 2 of every model."""


@dataclass(frozen=True)
class Numbered:
    """A text as numbers (int32) in a file, each sentence closed by that of </s>; `words` in the order in which they came."""

    words: tuple[str, ...]
    path: Path
    tokens: int
    sentences: int

    @property
    def bits(self) -> int:
        """What the number of a word takes in a key."""
        return (len(self.words) - 1).bit_length()

    def __len__(self) -> int:
        return self.tokens + self.sentences

    def blocks(self, rows: int) -> Iterator[NDArray[np.int32]]:
        with open(self.path, "rb") as file:
            while len(block := np.fromfile(file, np.int32, rows)):
                yield block

    def frequencies(self) -> NDArray[np.int64]:
        """(words,): how often each word occurs."""
        total = np.zeros(len(self.words), np.int64)
        for block in self.blocks(1 << 20):
            total += np.bincount(block, minlength=len(total))
        return total


class _Numbers(dict[str, int]):
    """Words to numbers; a new word gets the next one."""

    def __missing__(self, word: str) -> int:
        self[word] = new = len(self)
        return new


def number(sentences: Iterable[Sequence[str]], room: Room) -> Numbered:
    """Number the words of a text. In memory are the different words, the rest is on the disk.

    A word that is called <unk>, <s> or </s>, or that ARPA cannot hold (it has white space in it), is a `DataError`, and so is
    a text without any word.
    """
    numbers = _Numbers(dict.fromkeys(SPECIALS, -1))  # a text must not hold these
    path = room.folder / "text"
    pending = array("i")
    tokens = count = 0
    flush_at = max(64, min(1 << 20, room.memory // 16))
    with open(path, "wb") as file:

        def flush() -> None:
            block = np.frombuffer(pending, np.int32)
            if len(bad := np.flatnonzero(block < 0)):
                at = count - np.count_nonzero(block[bad[0] :] == END) + 1
                raise DataError(f"sentence {at:,}: <unk>, <s> and </s> cannot be words of a text")
            file.write(block.data)  # not `tofile`, which does not say why it fails

        for sentence in sentences:
            before = len(pending)
            pending.extend(map(numbers.__getitem__, sentence))
            tokens += len(pending) - before
            count += 1
            pending.append(END)
            if len(pending) >= flush_at:
                flush()
                pending = array("i")
        flush()
    if not tokens:
        raise DataError("the text is empty: there is no word to learn from")
    for word in numbers:
        if not word or any(space in word for space in " \t\n\r\0"):
            raise DataError(f"the token {word!r} cannot stand in an ARPA file: normalise the text")
    return Numbered((*SPECIALS, *list(numbers)[3:]), path, tokens, count)


@dataclass(frozen=True)
class Counts:
    """n-grams of all orders: `tables[n - 1]` has (key, adjusted count) in suffix order, marked where pruned.

    `kept` counts those that are not, `of_counts` (order, 5) those with adjusted count 0..4.
    """

    tables: tuple[Table, ...]
    kept: tuple[int, ...]
    of_counts: NDArray[np.int64]


def adjust_counts(
    text: Numbered,
    room: Room,
    *,
    order: int,
    thresholds: Sequence[int],
    allowed: Collection[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Counts:
    """Count the n-grams of a text as Kneser-Ney wants it (see `kneser_ney_numba.adjust`).

    Pruned are n-grams of order n that occur `thresholds[n - 1]` times or less, and those with a word that is not `allowed`.
    `progress` is given the share that is done, 0 to 1.
    """
    bits, words = text.bits, words_for(order * text.bits)
    width = words + 1
    report = progress or (lambda share: None)

    sorter = Sorter(room, "counts", bits=order * bits, width=width, combine=True)
    done = 0
    before = np.full(order - 1, END, np.int32)
    for block in text.blocks(room.block):
        grams: Records = np.zeros((len(block), width), np.uint64)
        joint = np.concatenate((before, block))
        kernels.pack(joint, len(before), order, bits, grams)
        sorter.add(grams)
        before = joint[len(joint) - (order - 1) :]
        done += len(block)
        report(0.6 * done / len(text))

    pruned = np.zeros(1 << bits, np.bool_)
    if allowed is not None:
        pruned[: len(text.words)] = [word not in allowed for word in text.words]
        pruned[: len(SPECIALS)] = False
    stats = np.zeros((order, SMALL + 1), np.int64)
    tables = tuple(Table(room.folder / f"adjusted.{n}", words_for(n * bits) + 1) for n in range(1, order + 1))
    # <unk> and <s> occur nowhere as a word that is predicted, and come first in every order of keys.
    unseen = np.zeros((2, 2), np.uint64)
    unseen[1, 0] = BEGIN << (64 - bits)
    tables[0].append(unseen)
    stats[0, [0, SMALL]] += len(unseen)

    last = np.zeros(words, np.uint64)
    counts, totals = np.zeros((2, order), np.uint64)
    bounds = np.array(thresholds, np.uint64)
    opened = done = 0
    out = np.empty((order, room.block + 2, width), np.uint64)
    nothing: Records = np.empty((0, width), np.uint64)

    def adjust(block: Records, is_end: bool) -> int:
        sizes = np.zeros(order, np.int64)
        still_open = kernels.adjust(
            block, order, bits, last, counts, totals, opened, bounds, pruned, out, sizes, stats, is_end
        )
        for n, table in enumerate(tables):
            table.append(out[n, : sizes[n], [*range(table.width - 1), width - 1]].T)
        return int(still_open)

    for counted in sorter.blocks():
        opened = adjust(counted, False)
        done += len(counted)
        report(0.6 + 0.4 * done / len(text))
    adjust(nothing, True)
    return Counts(tables, tuple(stats[:, SMALL].tolist()), stats[:, :SMALL])
