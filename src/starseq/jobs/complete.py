"""`starseq complete`: what a run reads goes into the gaps of a manifest; what is known stays as it is."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.files import atomic_writer, check_target
from starseq.data.manifest import Progress, Row, manifest_writer
from starseq.decode.complete import check_search
from starseq.decode.complete import complete as complete_one
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.jobs._fill import check_reads, fill, gaps_in, listed, mended, next_best, no_gap, unchanged
from starseq.jobs._stream import places_of, state_of, stream
from starseq.jobs.decode import BeamReader
from starseq.jobs.evaluate import device_of
from starseq.text.known import known_text

__all__ = ["THRESHOLD", "Counts", "complete"]

THRESHOLD = 0.5
"""of a filling: the run finds it as likely as everything else that could stand there, or nothing at all"""


@dataclass(frozen=True)
class Counts:
    """What `complete` did."""

    rows: int
    filled: int
    """gaps"""
    left: int
    """gaps that are open in the result"""
    untouched: int
    """rows whose text is what it was, without a failure"""
    failed: int
    """rows that could not be read or aligned; they come out as they were"""
    unmarked: int
    """rows that said nothing of gaps: text could be missing anywhere"""


def complete(
    folder: str | os.PathLike[str],
    manifest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    threshold: float = THRESHOLD,
    split: str | None = None,
    lm: str | os.PathLike[str] | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    beam: int = 100,
    force: bool = False,
    device: str = "auto",
    root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Counts:
    """Fill the gaps in the rows of `manifest` with what the run in `folder` reads there, and write all rows to `target`.

    What a row says is kept to the byte; fillings stand in its gaps alone. A gap that was not filled is `*`. A filling with a
    confidence below `threshold` is not written. A row in which something was done gets `gaps` ("marked"), `text_partial` (what
    `text` was), `added` (position, text, confidence, start and end of each filling) and `unit` (of start and end). All others
    come out as they were.

    ``STEM.left.jsonl`` beside `target` lists what was read and not written, rows without a gap and rows that are nothing but a
    gap; ``STEM.failed.jsonl`` those that cannot be aligned. A file that cannot be read raises, or with `skip_bad` is listed
    there. `lm` is an ARPA file over the run's tokens. Weights that are None are those that `starseq tune` found with the same
    language model, or without one. A run with an error on dev above 50 % raises `DataError`, unless `force` is given. A job that
    was stopped goes on where it was.
    """
    run, target = runs.load(folder), Path(target)
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: {threshold} is not a confidence from 0 to 1")
    model = None if lm is None else NGramAutomaton(lm, run.tokeniser.vocabulary.tokens)
    reader = BeamReader(lm, alpha=alpha, beta=beta)
    reader.methods()  # raises for a weight without a language model
    alpha, beta = reader.search_weights(run)
    search: dict[str, Any] = {"merge_repeats": run.merges_repeats, "alpha": alpha, "beta": beta, "beam": beam}
    check_search(beam, 0.0, 1, 1, model, alpha, beta, len(run.tokeniser.vocabulary))
    check_reads(run, force)
    listing = target.with_name(f"{target.stem}.left.jsonl")
    check_target(listing, manifest)

    def work(emission: runs.Emission) -> dict[str, Any]:
        known = known_text(run.tokeniser, emission.row.text, marked=emission.row.marked)
        if known.complete:
            return _kept(emission.row, no_gap(emission.row))
        try:
            (found,) = complete_one(
                emission.log_probs, known.labels, known.open, lm=model, normalized=False, keep_beam=True, **search
            )
        except ValueError as error:
            raise mended(run, error) from None
        others = next_best(known, found, emission.log_probs, merge_repeats=run.merges_repeats)
        places = places_of(run, emission.row)
        filled = fill(known, found.tokens, threshold=threshold, whole=True, places=places, others=others)
        left = listed(emission.row, known, filled)
        if filled.text == emission.row.text:
            return _kept(emission.row, left)
        row = emission.row.replace(
            text=filled.text, gaps="marked", text_partial=emission.row.text, unit=places.unit, added=filled.added
        )
        return _record(
            row, left, filled=len(filled.added), untouched=not filled.added, unmarked=not emission.row.marked
        )

    counts: Counter[str] = Counter()

    def write(records: Iterator[dict[str, Any]]) -> None:
        with manifest_writer(target, labelled=False) as writer, atomic_writer(listing) as file:
            for record in records:
                counts.update(record["counts"])
                for left in record["left"]:
                    file.write(json.dumps(left, ensure_ascii=False).encode() + b"\n")
                writer.write(Row(record["row"]))

    done = stream(
        run, manifest, target, work, write, settings={**search, "threshold": threshold, "lm": None if lm is None else state_of(lm)},
        split=split, failed=target.with_name(f"{target.stem}.failed.jsonl"), kept=lambda row: _kept(row, untouched=False),
        device=device_of(device), root=root, skip_bad=skip_bad, progress=progress,
    )  # fmt: skip
    return Counts(
        rows=done.rows, filled=counts["filled"], left=counts["left"], untouched=counts["untouched"], failed=done.failed,
        unmarked=counts["unmarked"],
    )  # fmt: skip


def _kept(row: Row, left: list[dict[str, Any]] | None = None, *, untouched: bool = True) -> dict[str, Any]:
    """The record of a row that comes out as it was."""
    return _record(unchanged(row), left or [], untouched=untouched, unmarked=not row.marked)


def _record(row: Row, left: list[dict[str, Any]], **counts: int) -> dict[str, Any]:
    return {"row": row.fields, "left": left, "counts": {**counts, "left": gaps_in(row.text)}}
