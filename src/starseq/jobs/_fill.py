"""What `starseq complete` and `starseq pseudo` share: what a run read goes into the gaps of a row, and nowhere else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.manifest import Row
from starseq.decode.complete import CompletedToken, Completion, embedded
from starseq.decode.confidence import Judge
from starseq.jobs._origins import Origins
from starseq.jobs._stream import Places
from starseq.text.gaps import split_gaps
from starseq.text.known import Known, Reading

__all__ = [
    "Filled",
    "check_reads",
    "fill",
    "gaps_in",
    "lines_of",
    "listed",
    "mended",
    "next_best",
    "no_gap",
    "places_of_marks",
    "reads_little",
    "unchanged",
    "with_left",
]  # fmt: skip

MOST_MISSED, MOST_ADDED = 50.0, 200.0
"""percent of the labels of dev, of a run that may fill gaps: those not read, and what is read besides, which dev may lack"""


@dataclass(frozen=True)
class Filled:
    """A text after its gaps were filled, and what became of each."""

    text: str
    added: list[dict[str, Any]]
    """the fillings: position, text, confidence, others, start and end"""
    left: list[dict[str, Any]]
    """the gaps that were left open: position and reason; guess, confidence, others, start and end of what was read there"""
    labels: list[float]
    """the confidence of each word or character that was added"""
    taken_out: int
    """words or characters that were read and not added"""
    gap_marks: list[Any] | None = None
    """of the gaps that are left, where they were given"""
    outside: int = 0
    """gaps in which more or less was read than their mark says"""


def fill(
    known: Known,
    tokens: Sequence[CompletedToken],
    *,
    threshold: float,
    whole: bool,
    places: Places | None = None,
    gap_marks: Sequence[dict[str, Any]] | None = None,
    others: Mapping[int, list[dict[str, Any]]] | None = None,
) -> Filled:
    """Put what was read into the gaps of a text.

    `tokens` is a transcript that contains the known labels. A filling whose confidence, the least of its tokens', is below
    `threshold` is left out; if it is not to be taken as a `whole`, its words or characters are left out one by one. Where
    something is left out the gap stays open. `places` turns frames into what the user has. `gap_marks` are those of the row: what
    they say of the extent has to be kept. `others` are the next best guesses by gap, of `next_best`.
    """
    origins = Origins(known, gap_marks)
    added, left, labels, taken_out = list[dict[str, Any]](), list[dict[str, Any]](), list[float](), 0
    items: dict[int, list[str | None]] = {gap: [None] for gap in known.marked_gaps}
    records: list[tuple[int, int, dict[str, Any]]] = []
    """the gap, how far behind its beginning, and the record"""
    more = {} if others is None else others
    for reading in known.readings([token.token for token in tokens], [token.known for token in tokens]):
        texts = [unit.text for unit in reading.units]
        sure = [min(tokens[number].confidence for number in unit.tokens) for unit in reading.units]
        least, problem = min(sure), reading.problem
        problem = problem or origins.problem(reading.gap, known.joined(texts))
        if problem is None and whole and least < threshold:
            problem = f"its confidence is below {threshold:g}"
        kept = [problem is None and share >= threshold for share in sure]
        written = [text if keep else None for text, keep in zip(texts, kept, strict=True)]
        if reading.marked and not any(text and not text.isspace() for text in written):
            kept, written = [False] * len(kept), [None]  # white space alone fills no mark
        items[reading.gap] = written

        if any(kept):
            labels += [share for share, keep in zip(sure, kept, strict=True) if keep]
            about = {**_about(reading, tokens, 0, len(kept), places, more), **origins.of_filling(reading.gap)}
            added.append({"text": known.joined(written), **about})
            records.append((reading.gap, 0, added[-1]))
        for first, end in _runs(kept):
            reason = problem or f"its confidence is below {threshold:g}"
            about = _about(reading, tokens, first, end, places, more)
            left.append({"guess": known.joined(texts[first:end]), "reason": reason, **about})
            records.append((reading.gap, known.length(written[:first]) if any(kept) else 0, left[-1]))
        taken_out += kept.count(False)
    result = known.write(items)
    for gap, further, one in records:
        one["position"] = result.positions[gap] + further
    text = _with_gap(result.text)
    silent = {place: gap for gap, place in result.positions.items() if gap in more}
    for position in sorted(set(places_of_marks(text)) - {one["position"] for one in left}):
        left.append({"reason": "nothing was read there", "position": position})
        if position in silent:
            left[-1]["others"] = more[silent[position]]
    return Filled(text, added, left, labels, taken_out, origins.remaining(items), origins.outside)


def _about(
    reading: Reading, tokens: Sequence[CompletedToken], first: int, end: int, places: Places | None,
    others: Mapping[int, list[dict[str, Any]]],
) -> dict[str, Any]:  # fmt: skip
    """Of units first .. end - 1: confidence, start and end; if they are all there are, what else may stand there."""
    mine = [tokens[number] for unit in reading.units[first:end] for number in unit.tokens]
    about: dict[str, Any] = {"confidence": round(min(token.confidence for token in mine), 4)}
    if reading.gap in others and end - first == len(reading.units):
        about["others"] = others[reading.gap]
    if places is not None:
        about |= {"start": places(mine[0].start), "end": places(mine[-1].end)}
    return about


def _runs(kept: Sequence[bool]) -> list[tuple[int, int]]:
    """Where neighbours are left out, from the first to the last + 1.

    >>> _runs([False, True, False, False])
    [(0, 1), (2, 4)]
    """
    ends = [*(number for number, keep in enumerate(kept) if keep), len(kept)]
    return [(first + 1, end) for first, end in zip([-1, *ends], ends, strict=False) if end > first + 1]


MOST_OTHERS = 3
"""next best guesses for a gap"""


def next_best(
    known: Known, found: Completion, log_probs: Tensor, *, merge_repeats: bool, count: int = MOST_OTHERS
) -> dict[int, list[dict[str, Any]]]:
    """What else may stand in a gap, all else being as it was found, from the transcripts that the search had left in its beam.

    For each gap that is marked, or in which something was found: text and confidence, its share of P(y|x) among what was found
    there, which may be nothing, and these. At most `count`, the surest first.
    """
    winner = _parts([token.token for token in found.tokens], [token.known for token in found.tokens])
    asked = [gap for gap in range(len(known.open)) if gap in known.marked_gaps or (known.open[gap] and winner[gap])]
    texts: dict[int, dict[str, list[tuple[int, ...]]]] = {gap: {} for gap in asked}
    seen = {gap: {winner[gap], ()} for gap in asked}
    for transcript in found.beam:
        parts = _parts(transcript, embedded(transcript, known.labels, known.open))
        for gap in asked:
            if parts[gap] in seen[gap] or len(texts[gap]) == count:
                continue
            seen[gap].add(parts[gap])
            there = [*winner[:gap], parts[gap], *winner[gap + 1 :]]
            text = _written(known, there, gap)
            if text is not None and text != _written(known, winner, gap):
                texts[gap].setdefault(text, there)
    if not any(texts.values()):
        return {}
    judge = Judge(log_probs, merge_repeats=merge_repeats)
    best = {}
    for gap, guesses in texts.items():
        weights = [math.exp(_log_p(judge, known, parts) - found.am) for parts in guesses.values()]
        shares = [round(weight / (1 + math.fsum(weights)), 4) for weight in weights]
        others = [{"text": text, "confidence": share} for text, share in zip(guesses, shares, strict=True) if share]
        if others:
            best[gap] = sorted(others, key=lambda one: -cast(float, one["confidence"]))
    return best


def _transcript(known: Known, parts: Sequence[tuple[int, ...]]) -> tuple[list[int], list[bool]]:
    """The tokens with these in the gaps, and which of them are labels: the inverse of `_parts`."""
    tokens, is_label = list[int](), list[bool]()
    for number, part in enumerate(parts):
        tokens += [*part, *known.labels[number : number + 1]]
        is_label += [False] * len(part) + [True] * (number < len(known.labels))
    return tokens, is_label


def _written(known: Known, parts: Sequence[tuple[int, ...]], gap: int) -> str | None:
    """What the tokens in a gap read there; None if that cannot be written."""
    reading = next((one for one in known.readings(*_transcript(known, parts)) if one.gap == gap), None)
    return None if reading is None or reading.problem else known.joined([unit.text for unit in reading.units])


def _log_p(judge: Judge, known: Known, parts: Sequence[tuple[int, ...]]) -> float:
    tokens, _ = _transcript(known, parts)
    return judge(tokens, [False] * len(tokens)).log_p


def _parts(tokens: Sequence[int], known: Sequence[bool]) -> list[tuple[int, ...]]:
    """The tokens in each gap of a transcript."""
    parts: list[list[int]] = [[]]
    for token, is_label in zip(tokens, known, strict=True):
        if is_label:
            parts.append([])
        else:
            parts[-1].append(token)
    return list(map(tuple, parts))


def listed(row: Row, known: Known, filled: Filled) -> list[dict[str, Any]]:
    """The lines of ``STEM.left.jsonl`` about a row that has a gap."""
    left = [{"id": row.id, **one} for one in filled.left]
    if known.empty:
        left.append({"id": row.id, "reason": "it is nothing but a gap: all of its text is the run's"})
    return left


def no_gap(row: Row) -> list[dict[str, Any]]:
    """The same about a row that has none."""
    return [{"id": row.id, "reason": "it has no gap"}]


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


def places_of_marks(text: str) -> list[int]:
    r"""Where the marks of a text stand, where a mark and an escaped star count as one character each.

    >>> places_of_marks(r"2 \* 3 * 4*")
    [6, 9]
    """
    ends = accumulate(len(segment) + 1 for segment in split_gaps(text)[:-1])
    return [end - 1 for end in ends]


def reads_little(run: runs.Run) -> bool:
    """Whether a run reads next to nothing, by its own errors on dev; False for one that knows of none.

    The texts of dev may lack words without saying so: what was read besides them counts only where it is much.
    """
    error = run.dev_error or 0.0
    missed = error if run.dev_missed is None else run.dev_missed
    return missed > MOST_MISSED or error - missed > MOST_ADDED


def check_reads(run: runs.Run, force: bool) -> None:
    """Raises `DataError` for a run that reads next to nothing."""
    if not force and reads_little(run):
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


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line, as the verbs write them."""
    with open(path, "rb") as file:
        yield from map(json.loads, file)


def with_left(rows: Iterable[Row], left: Path) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
    """Rows, with their lines in the list of what was left, which has them in the same order."""
    lines = lines_of(left)
    line = next(lines, None)
    for row in rows:
        mine = []
        while line is not None and line["id"] == row.id:
            mine.append(line)
            line = next(lines, None)
        yield row, mine
