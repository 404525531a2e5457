"""What `starseq complete` and `starseq pseudo` share: what a run read goes into the gaps of a row, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.manifest import Row
from starseq.decode.complete import CompletedToken
from starseq.jobs._stream import Places
from starseq.text.gaps import split_gaps
from starseq.text.known import Known

__all__ = ["Filled", "check_reads", "fill", "gaps_in", "mended", "unchanged"]

MOST_ERRORS = 50.0
"""percent on dev, of a run that may fill gaps"""


@dataclass(frozen=True)
class Filled:
    """A text after its gaps were filled, and what became of each."""

    text: str
    added: list[dict[str, Any]]
    """the fillings: position, text, confidence, start and end"""
    left: list[dict[str, Any]]
    """what was read in gaps that were left open: position, guess, confidence, reason"""
    labels: list[float]
    """the confidence of each word or character that was added"""
    taken_out: int
    """words or characters that were read and not added"""


def fill(
    known: Known, tokens: Sequence[CompletedToken], *, threshold: float, whole: bool, places: Places | None = None
) -> Filled:
    """Put what was read into the gaps of a text.

    `tokens` is a transcript that contains the known labels. A filling whose confidence, the least of its tokens', is below
    `threshold` is left out; if it is not to be taken as a `whole`, its words or characters are left out one by one. Where
    something is left out the gap stays open. `places` turns frames into what the user has.
    """
    added, left, labels, taken_out = list[dict[str, Any]](), list[dict[str, Any]](), list[float](), 0
    items: dict[int, list[str | None]] = {}
    records: dict[int, dict[str, Any]] = {}
    for reading in known.readings([token.token for token in tokens], [token.known for token in tokens]):
        texts = [unit.text for unit in reading.units]
        sure = [min(tokens[number].confidence for number in unit.tokens) for unit in reading.units]
        least, problem = min(sure), reading.problem
        if problem is None and whole and least < threshold:
            problem = f"its confidence is below {threshold:g}"
        kept = [problem is None and share >= threshold for share in sure]
        written = [text if keep else None for text, keep in zip(texts, kept, strict=True)]
        if reading.marked and not any(text and not text.isspace() for text in written):
            kept, written = [False] * len(kept), [None]  # white space alone fills no mark
        items[reading.gap] = written
        if any(kept):
            labels += [share for share, keep in zip(sure, kept, strict=True) if keep]
            record = {"text": known.joined(written), "confidence": round(least, 4)}
            added.append(record)
        else:
            reason = problem or f"its confidence is below {threshold:g}"
            record = {"guess": known.joined(texts), "confidence": round(least, 4), "reason": reason}
            left.append(record)
        taken_out += kept.count(False)
        if places is not None:
            first, last = reading.units[0].tokens[0], reading.units[-1].tokens[-1]
            record |= {"start": places(tokens[first].start), "end": places(tokens[last].end)}
        records[reading.gap] = record
    result = known.write(items)
    for gap, record in records.items():
        record["position"] = result.positions[gap]
    return Filled(_with_gap(result.text), added, left, labels, taken_out)


def unchanged(row: Row) -> Row:
    """A row as it was; without any text it is one gap."""
    text = row.text if row.text and row.marked else _with_gap(row.text)
    return row if text == row.text else row.replace(text=text, gaps="marked")


def _with_gap(text: str) -> str:
    """Marks a text of which nothing is known, and in which nothing was read, as one gap."""
    return text if text.strip() else text + "*"


def gaps_in(text: str) -> int:
    """How many gaps a text marks."""
    return len(split_gaps(text)) - 1


def check_reads(run: runs.Run, force: bool) -> None:
    """Raises `DataError` for a run that reads next to nothing, by its own error on dev. One that knows of none passes."""
    if not force and run.dev_error is not None and run.dev_error > MOST_ERRORS:
        raise DataError(
            f"{run.folder}: this run reads next to nothing, its error on dev is {run.dev_error:.1f} %, so it would fill "
            "gaps with guesses: train it on, or give --force"
        )


def mended(run: runs.Run, error: ValueError) -> ValueError:
    """What a search says of labels that do not fit into the frames, with what would help."""
    reason = str(error)
    if "need more than" in reason:
        taller = "" if run.seconds_per_frame is not None else "with a larger data.reader.height or "
        finer = "a smaller model.stride" if "stride" in run.recipe.model.settings else "another model"
        reason += f"; a run {taller}with {finer} has more frames"
    return ValueError(reason)
