"""Sentences to learn from or to score: text files, one sentence a line, plain or packed, and manifests."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, BinaryIO, cast

from starseq.data.errors import DataError
from starseq.data.manifest import Progress, read_manifest
from starseq.text.gaps import Unit, escape, unescape
from starseq.text.normalise import Normaliser
from starseq.text.vocabulary import SPACE

__all__ = ["literal", "read_texts", "split", "tokens_of"]

_LINES_PER_PROGRESS = 5000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_texts(
    paths: Sequence[str | os.PathLike[str]], *, normaliser: Normaliser | None = None, progress: Progress | None = None
) -> Iterator[str]:
    """The sentences of text files (.gz and .xz are unpacked) and manifests (.jsonl, the field `text`), as literal texts.

    In a text file every line is a sentence and a star is a star; a blank line is an empty sentence, as for KenLM. A manifest's
    text must have no gap: half a sentence teaches a language model wrong. `progress` counts bytes of the files as they
    are. What cannot be read is a `DataError` that names the file and the line.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("the fox\\n2 * 3\\n")
    >>> list(read_texts([file]))
    ['the fox', '2 * 3']
    """
    normalise = literal(normaliser)
    sizes = [os.path.getsize(path) for path in paths]
    before = 0
    for path, size in zip(paths, sizes, strict=True):

        def report(done: int, total: int | None, before: int = before) -> None:
            if progress is not None:
                progress(before + done, sum(sizes))

        read = _manifest_texts if os.fspath(path).endswith(".jsonl") else _line_texts
        for number, text in read(path, report):
            text = normalise(text)
            if "\0" in text:
                raise DataError(f"{os.fspath(path)}, line {number}: holds a NUL character")
            yield text
        before += size
        report(0, None, before)


def _manifest_texts(path: str | os.PathLike[str], progress: Progress) -> Iterator[tuple[int, str]]:
    for row in read_manifest(path, progress=progress):
        try:
            yield row.line, unescape(row["text"])
        except (KeyError, ValueError) as error:
            reason = "has no text" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{os.fspath(path)}, line {row.line}: {reason}") from None


def _line_texts(path: str | os.PathLike[str], progress: Progress) -> Iterator[tuple[int, str]]:
    number = 0
    with open(path, "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            for number, line in enumerate(_unpacked(raw, os.fspath(path)), start=1):
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                yield number, line.rstrip(b"\r\n").decode()
                if number % _LINES_PER_PROGRESS == 0:
                    progress(raw.tell(), size)
        except UnicodeDecodeError as error:
            raise DataError(f"{os.fspath(path)}, line {number}: not UTF-8 at byte {error.start}") from None
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{os.fspath(path)}: cut or damaged after line {number} ({error})") from None


def _unpacked(raw: BinaryIO, name: str) -> IO[bytes]:
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(raw))
    return cast(IO[bytes], lzma.open(raw)) if name.endswith(".xz") else raw


def literal(normaliser: Normaliser | None) -> Callable[[str], str]:
    """The normaliser for texts without gaps: a star is a star.

    >>> literal(Normaliser(case="upper"))("2 * x")
    '2 * X'
    """
    return (lambda text: text) if normaliser is None else lambda text: unescape(normaliser(escape(text)))


def tokens_of(unit: Unit) -> Callable[[str], list[str]]:
    """What cuts a text into the tokens of a language model: words, or characters with ``<space>`` for the space.

    >>> tokens_of("char")("a b"), tokens_of("word")(" a  b ")
    (['a', '<space>', 'b'], ['a', 'b'])
    """
    if unit not in ("word", "char"):
        raise ValueError(f"unit must be 'word' or 'char', not {unit!r}")
    return str.split if unit == "word" else split


def split(text: str) -> list[str]:
    """The characters of a text, the space as ``<space>``."""
    return [SPACE if character == " " else character for character in text]
