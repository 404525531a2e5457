"""n-best lists: hypotheses with separate scores, and the JSON Lines files that hold them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from starseq.data.errors import DataError
from starseq.data.files import write_text

__all__ = ["Hypothesis", "NBest", "NBestWriter", "best", "merge", "read_nbest", "write_nbest"]


class Hypothesis(NamedTuple):
    """A text, its tokens, and what speaks for it. Natural logarithms.

    am: log P(y|x), summed over alignments. lm: log P_LM(y) with the end of the sentence, 0 without a language model.
    length: |y| in the unit that beta counts: tokens, or words where the search had a lexicon.

    >>> Hypothesis("a b", (1, 2), am=-1.0, lm=-4.0, length=2).score(alpha=0.5, beta=0.25)
    -2.5
    """

    text: str
    tokens: tuple[int, ...]
    am: float
    lm: float
    length: int

    def score(self, alpha: float = 0.0, beta: float = 0.0) -> float:
        """log P(y|x) + alpha log P_LM(y) + beta |y|."""
        return self.am + (alpha * self.lm if alpha else 0.0) + beta * self.length


class NBest(NamedTuple):
    """The hypotheses of one utterance, best first."""

    id: str
    hyps: tuple[Hypothesis, ...]


def best(nbest: NBest) -> Hypothesis:
    """The first hypothesis; a `DataError` where there is none.

    >>> best(NBest("a", ()))
    Traceback (most recent call last):
    ...
    starseq.data.errors.DataError: utterance 'a' has an empty n-best list: no alignment of its frames has any probability
    """
    if not nbest.hyps:
        raise DataError(
            f"utterance {nbest.id!r} has an empty n-best list: no alignment of its frames has any probability"
        )
    return nbest.hyps[0]


def merge(first: NBest, second: NBest) -> NBest:
    """Both lists as one: every text once, with the larger of its acoustic scores (a narrower search misses alignments).

    >>> a, b = Hypothesis("a", (1,), -1.0, -2.0, 1), Hypothesis("b", (2,), -3.0, -1.0, 1)
    >>> [hyp.text for hyp in merge(NBest("x", (a,)), NBest("x", (b, a))).hyps]
    ['a', 'b']
    """
    together: dict[str, Hypothesis] = {}
    for hyp in (*first.hyps, *second.hyps):
        if hyp.text not in together or together[hyp.text].am < hyp.am:
            together[hyp.text] = hyp
    return NBest(first.id, tuple(together.values()))


def read_nbest(path: str | os.PathLike[str]) -> Iterator[NBest]:
    """The lists of an n-best file, in its order; a `DataError` names the line that is not one."""
    name = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            yield _parsed(line, f"{name}, line {number}")


def write_nbest(path: str | os.PathLike[str], lists: Iterable[NBest]) -> None:
    """Write an n-best file, whole or not at all."""
    write_text(path, "".join(map(_line, lists)))


class NBestWriter:
    """Writes an n-best file list by list, so that a job that was stopped goes on where it was.

    The lists go to ``.NAME.partial`` in the same folder, flushed to the disk every `flush_every` lists; `finish` renames
    that file to NAME. A writer for the same NAME and the same `settings` takes up what is there (a last line that was cut
    is dropped): `done` has the ids. With other settings it begins anew.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "dev.nbest.jsonl")
    >>> with NBestWriter(path, {"beam": 10}) as writer:
    ...     writer.add(NBest("a", (Hypothesis("x", (1,), -1.0, 0.0, 1),)))
    >>> with NBestWriter(path, {"beam": 10}) as writer:
    ...     sorted(writer.done), path.exists()
    ...     writer.finish()
    (['a'], False)
    >>> [nbest.id for nbest in read_nbest(path)]
    ['a']
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None, *, flush_every: int = 20
    ) -> None:
        self.path = Path(path)
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        self._settings = self.path.with_name(f".{self.path.name}.settings")
        self._flush_every = flush_every
        self._unflushed = 0
        self.done: set[str] = set()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wanted = json.dumps(dict(settings or {}), sort_keys=True)
        length = self._take_up() if self._partial.exists() and self._written_settings() == wanted else 0
        if not length:
            write_text(self._settings, wanted)
        self._file: BinaryIO = open(self._partial, "r+b" if length else "wb")  # noqa: SIM115 - closed by close()
        self._file.truncate(length)
        self._file.seek(length)

    def _written_settings(self) -> str | None:
        with suppress(OSError):
            return self._settings.read_text()
        return None

    def _take_up(self) -> int:
        """Collects the ids that are there; the bytes that they take."""
        length = 0
        with open(self._partial, "rb") as file:
            for line in file:
                try:
                    nbest = _parsed(line.decode(), "")
                except ValueError:  # UnicodeDecodeError and DataError are ValueErrors
                    break
                if not line.endswith(b"\n"):
                    break
                self.done.add(nbest.id)
                length += len(line)
        return length

    def add(self, nbest: NBest) -> None:
        """Append one list."""
        self._file.write(_line(nbest).encode())
        self.done.add(nbest.id)
        self._unflushed += 1
        if self._unflushed >= self._flush_every:
            self._flush()

    def finish(self) -> None:
        """All lists are there: the file gets its name."""
        self.close()
        os.replace(self._partial, self.path)
        self._settings.unlink(missing_ok=True)

    def close(self) -> None:
        if not self._file.closed:
            self._flush()
            self._file.close()

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unflushed = 0

    def __enter__(self) -> NBestWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(nbest: NBest) -> str:
    record = {"id": nbest.id, "hyps": [hyp._asdict() for hyp in nbest.hyps]}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _parsed(line: str, where: str) -> NBest:
    try:
        record = json.loads(line, parse_constant=_no_constant)
        if not isinstance(record["id"], str):
            raise TypeError
        return NBest(record["id"], tuple(_hypothesis(hyp) for hyp in record["hyps"]))
    except (ValueError, TypeError, KeyError):
        raise DataError(f"{where}: not an n-best list like {{id, hyps: [{{text, tokens, am, lm, length}}]}}") from None


def _hypothesis(hyp: Mapping[str, Any]) -> Hypothesis:
    tokens: Sequence[int] = hyp["tokens"]
    made = Hypothesis(str(hyp["text"]), tuple(map(int, tokens)), float(hyp["am"]), float(hyp["lm"]), int(hyp["length"]))
    if not (math.isfinite(made.am) and math.isfinite(made.lm)):
        raise ValueError
    return made


def _no_constant(name: str) -> float:
    raise ValueError(name)
