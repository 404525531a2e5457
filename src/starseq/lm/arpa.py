"""ARPA files: n-gram models as text, for KenLM, SRILM, flashlight and us. The logarithms in them are common ones."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from starseq.data.errors import DataError
from starseq.data.files import atomic_writer
from starseq.lm import arpa_numba as kernels
from starseq.lm.records import Records

__all__ = ["ArpaReader", "ArpaWriter", "Grams", "log10_of"]

_BUFFER = 1 << 20
_ROWS = 1 << 14


def log10_of(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Common logarithms, -99 for 0 as ARPA files have it.

    >>> log10_of(np.array([0.0, 0.1])).tolist()
    [-99.0, -1.0]
    """
    return np.log10(p, out=np.full(p.shape, -99.0), where=p > 0)


class ArpaWriter:
    """Writes a model, order by order, to `target`, which is there when the block ends well, or not at all.

    A name that ends in .gz is packed, the same bytes every time. `words` by their numbers; `bits` of a key hold one; `counts`
    of n-grams per order, which stand first in the file.
    """

    def __init__(self, target: str | os.PathLike[str], words: Sequence[str], bits: int, counts: Sequence[int]) -> None:
        self.target, self.bits, self.counts = target, bits, counts
        self._letters, self._starts = _letters([word.encode() for word in words])
        self._stack = ExitStack()

    def __enter__(self) -> ArpaWriter:
        with ExitStack() as stack:
            self._file: IO[bytes] = stack.enter_context(atomic_writer(self.target))
            if os.fspath(self.target).endswith(".gz"):
                # Neither name nor time, so that the same model is the same file.
                packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file, mtime=0)
                self._file = cast(IO[bytes], stack.enter_context(packed))
            lines = (f"ngram {n}={count}\n" for n, count in enumerate(self.counts, start=1))
            self._file.write(f"\\data\\\n{''.join(lines)}".encode())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is not None:
                raise error
            self._file.write(b"\n\\end\\\n")

    def section(
        self, n: int, blocks: Iterable[tuple[Records, NDArray[np.float64], NDArray[np.float64] | None]]
    ) -> None:
        """All n-grams of order n: blocks of keys (see `kneser_ney_numba`), log10 p and log10 backoff, if there are any."""
        self._file.write(f"\n\\{n}-grams:\n".encode())
        longest = int(np.diff(self._starts).max())
        out = np.empty(max(_BUFFER, n * (longest + 1) + 64), np.uint8)
        written = 0
        for keys, log10_p, log10_backoff in blocks:
            backoff = np.empty(0) if log10_backoff is None else log10_backoff
            at = 0
            while at < len(keys):
                at, size = kernels.write(keys, at, n, self.bits, log10_p, backoff, self._letters, self._starts, out)
                self._file.write(out[:size].data)
            written += len(keys)
        if written != self.counts[n - 1]:
            raise AssertionError(f"{written} n-grams of order {n}, but {self.counts[n - 1]} were announced")


def _letters(words: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in words], out=starts[1:])
    return np.frombuffer(b"".join(words), np.uint8), starts


class Grams(NamedTuple):
    """Some n-grams of one order: the numbers of their words (n, order), and common logarithms (n,)."""

    words: NDArray[np.int64]
    log10_p: NDArray[np.float64]
    log10_backoff: NDArray[np.float64]


_PROBLEMS = {
    kernels.NOT_A_NUMBER: "does not begin with a number",
    kernels.TOO_FEW_WORDS: "has fewer than {order} words",
    kernels.UNKNOWN_WORD: "has a word that is not among the 1-grams",
    kernels.TOO_MUCH: "has more than {order} words and a number",
    kernels.POSITIVE: "has a positive logarithm, which is no probability",
}


class ArpaReader:
    """Reads a model, plain or .gz: `counts` at once, then `sections()`, in which the 1-grams come first and give `words`.

    A file that is cut, or that has more or fewer n-grams than it says, is a `DataError` that names the section and the line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.words: tuple[str, ...] = ()
        self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115  closed by `close`
        self.size, self._raw = os.path.getsize(path), self._file
        if self.path.endswith(".gz"):
            self._file = cast(IO[bytes], gzip.open(self._raw))  # noqa: SIM115
        self._text, self._at, self._line = b"", 0, 0
        self._letters, self._starts = _letters([])
        self._lookup = np.empty(0, np.int64)
        try:
            self.counts = self._header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ArpaReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    @property
    def done(self) -> int:
        """Bytes of the file that were read, of `size`; of a pipe 0."""
        return self._raw.tell() if self._raw.seekable() else 0

    def sections(self) -> Iterator[tuple[int, Iterator[Grams]]]:
        """(order, its n-grams in pieces) for each order; all pieces must be taken before the next order."""
        for n, count in enumerate(self.counts, start=1):
            self._expect(f"\\{n}-grams:", n)
            yield n, self._section(n, count)
        self._expect("\\end\\", len(self.counts))

    def _header(self) -> tuple[int, ...]:
        while (line := self._next()) is not None and line != "\\data\\":
            if line.startswith("\\") or self._line > 1000:
                line = None
                break
        if line is None:
            raise DataError(f"{self.path}: not an ARPA file, which has a line \\data\\ first")
        counts: list[int] = []
        while line := self._next():
            found = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
            if not found or int(found[1]) != len(counts) + 1:
                raise self._error("\\data\\", f"ngram {len(counts) + 1}=COUNT should stand here, not {line[:40]!r}")
            counts.append(int(found[2]))
        if not counts:
            raise self._error("\\data\\", "no counts of n-grams")
        return tuple(counts)

    def _expect(self, header: str, n: int) -> None:
        while (line := self._next()) == "":
            pass
        if line is None:
            raise self._error(header, "the file ends here: it is cut")
        if line != header:
            raise self._error(header, f"{header} should stand here, not {line[:40]!r}")

    def _section(self, n: int, count: int) -> Iterator[Grams]:
        name, seen = f"\\{n}-grams:", 0
        letters: list[bytes] = []
        while True:
            size = min(_ROWS, count - seen)
            grams = Grams(np.empty((size, max(2, n)), np.int64), np.empty(size), np.empty(size))
            text = np.frombuffer(self._text, np.uint8)
            at, rows, why = kernels.parse(
                text, self._at, n, self._letters, self._starts, self._lookup if n > 1 else self._lookup[:0], *grams
            )
            self._line += rows
            seen += rows
            piece = Grams(grams.words[:rows], grams.log10_p[:rows], grams.log10_backoff[:rows])
            if n == 1:
                letters += [self._text[start:end] for start, end in piece.words.tolist()]
                piece = piece._replace(words=np.arange(seen - rows, seen)[:, None])
            self._at = at
            if rows:
                yield piece
            if why in _PROBLEMS:
                self._line += 1
                raise self._error(name, f"the line {_PROBLEMS[why].format(order=n)}")
            if why == kernels.SECTION_ENDS:
                break
            if why == kernels.FULL and seen == count:
                self._line += 1
                raise self._error(name, f"more than the {count:,} n-grams that the file announces")
            if why in (kernels.CUT, kernels.WHOLE) and not self._more():
                break
        if seen < count:
            raise self._error(name, f"{seen:,} n-grams, but the file announces {count:,}: it is cut or damaged")
        if n == 1:
            self._enter(letters)

    def _enter(self, words: list[bytes]) -> None:
        try:
            self.words = tuple(word.decode() for word in words)
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}, \\1-grams:: the word {error.object!r} is not UTF-8") from None
        self._letters, self._starts = _letters(words)
        self._lookup = np.full(1 << (2 * len(words)).bit_length(), -1, np.int64)
        if (again := kernels.fill_lookup(self._letters, self._starts, self._lookup)) >= 0:
            raise self._error("\\1-grams:", f"the word {self.words[again]!r} comes twice")

    def _next(self) -> str | None:
        """The next line, or None."""
        while (end := self._text.find(b"\n", self._at)) < 0:
            if not self._more():
                if self._at == len(self._text):
                    return None
                end = len(self._text)
                break
        line, self._at = self._text[self._at : end], end + 1
        self._line += 1
        return line.decode(errors="replace").strip()

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        try:
            more = self._file.read(_BUFFER)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{self.path}: cut or damaged after line {self._line:,} ({error})") from None
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def _error(self, section: str, reason: str) -> DataError:
        return DataError(f"{self.path}, section {section.rstrip(':')}, line {self._line:,}: {reason}")
