"""What a run read, row by row: kept in its folder, so that pages and comparisons need not run the model again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.data.manifest import hash64
from starseq.text.error_rate import count_errors
from starseq.text.gaps import Unit

__all__ = ["Reading", "choose", "error_percent", "read_readings", "write_readings"]

FOLDER = "readings"


class Reading(NamedTuple):
    """A row: the complete text, and what each method read."""

    id: str
    reference: str
    hypotheses: dict[str, str]
    """by the method's name, the best last"""


def write_readings(folder: str | os.PathLike[str], split: str, readings: Iterable[Reading]) -> None:
    """Writes ``readings/SPLIT.jsonl`` of a run folder, a row a line."""
    lines = (json.dumps(reading._asdict(), ensure_ascii=False) for reading in readings)
    write_text(_path(folder, split), "".join(f"{line}\n" for line in lines))


def read_readings(folder: str | os.PathLike[str], split: str) -> list[Reading]:
    """The readings of a split; none where it was not evaluated. A damaged file is a `DataError`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> write_readings(folder, "test", [Reading("u1", "cat", {"greedy": "cut"})])
    >>> read_readings(folder, "test"), read_readings(folder, "dev")
    ([Reading(id='u1', reference='cat', hypotheses={'greedy': 'cut'})], [])
    """
    path = _path(folder, split)
    if not path.exists():
        return []
    readings = []
    for number, line in enumerate(path.read_text().split("\n")[:-1], start=1):
        try:
            fields = json.loads(line)
            readings.append(Reading(str(fields["id"]), str(fields["reference"]), dict(fields["hypotheses"])))
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}, line {number}: not a reading that `starseq evaluate` wrote") from None
    return readings


def error_percent(reference: str, read: str, unit: Unit) -> float:
    """The error rate of one reading, in words or characters.

    >>> error_percent("the fox", "the fax", "word"), round(error_percent("the fox", "the fax", "char"), 1)
    (50.0, 14.3)
    """
    return count_errors(*((reference.split(), read.split()) if unit == "word" else (reference, read))).percent


def choose(
    readings: Sequence[Reading], method: str, unit: Unit, worst: int, others: int, *, seed: int = 0
) -> dict[str, list[Reading]]:
    """The `worst` readings by their error rate, and `others` at random among the rest."""
    rates = {reading.id: error_percent(reading.reference, reading.hypotheses[method], unit) for reading in readings}
    ranked = sorted(readings, key=lambda reading: (-rates[reading.id], reading.id))
    bad = [reading for reading in ranked[:worst] if rates[reading.id] > 0]
    rest = sorted(ranked[len(bad) :], key=lambda reading: hash64("example", seed, reading.id))
    return {"worst": bad, "at random": rest[:others]}


def _path(folder: str | os.PathLike[str], split: str) -> Path:
    """A split's name may hold what a file's name must not."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in split).lstrip(".") or "all"
    return Path(folder) / FOLDER / f"{name}.jsonl"
