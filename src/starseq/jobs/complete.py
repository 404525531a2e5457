"""`starseq complete`: what a run reads goes into the gaps of a manifest; what is known stays as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.exports import rows_writer
from starseq.data.files import atomic_writer, check_target
from starseq.data.manifest import Row
from starseq.decode.complete import Completion, check_search
from starseq.decode.complete import complete as complete_one
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.jobs._fill import Filled, check_reads, fill, gaps_in, listed, mended, next_best, no_gap, unchanged
from starseq.jobs._label import BEAM
from starseq.jobs._origins import Origins, gap_marks_of
from starseq.jobs._search import Search
from starseq.jobs._stream import Job, Record, Rows, places_of, state_of, stream
from starseq.jobs._where import PathLike, Where
from starseq.text.known import Known, known_text

__all__ = ["THRESHOLD", "Counts", "complete"]

THRESHOLD = 0.5
"""of a filling: the run finds it as likely as everything else that could stand there, or nothing at all"""
_TRIED, _LENGTHS = 20, (0.0, 1.0, -1.0, 3.0, -3.0, 7.0, -7.0)
"""where marks say how much is missing: transcripts that are tried, and what is added to beta until one of them is as long"""


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
    folder: PathLike,
    manifest: PathLike,
    target: PathLike,
    *,
    threshold: float = THRESHOLD,
    split: str | None = None,
    search: Search = Search(),
    force: bool = False,
    where: Where = Where(),
) -> Counts:
    """Fill the gaps in the rows of `manifest` with what the run in `folder` reads there, and write all rows to `target`.

    What a row says is kept to the byte; fillings stand in its gaps alone. A gap that was not filled is `*`. A filling with a
    confidence below `threshold` is not written. A row in which something was done gets `gaps` ("marked"), `text_partial` (what
    `text` was), `added` (position, text, confidence, start and end of each filling) and `unit` (of start and end). All others
    come out as they were.

    ``STEM.left.jsonl`` beside `target` lists what was read and not written, rows without a gap and rows that are nothing but a
    gap; ``STEM.failed.jsonl`` those that cannot be aligned. A file that cannot be read raises, or with ``where.skip_bad`` is
    listed there. The `search` keeps 100 prefixes unless it says otherwise; its language model is an ARPA file over the run's
    tokens. A run with an error on dev above 50 % raises `DataError`, unless `force` is given. A job that was stopped goes on where
    it was.
    """
    run, target = runs.load(folder), Path(target)
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: {threshold} is not a confidence from 0 to 1")
    model = None if search.lm is None else NGramAutomaton(search.lm, run.tokeniser.vocabulary.tokens)
    alpha, beta = search.weights(run)
    beam = BEAM if search.beam is None else search.beam
    settings: dict[str, Any] = {"merge_repeats": run.merges_repeats, "alpha": alpha, "beta": beta, "beam": beam}
    check_search(beam, 0.0, 1, 1, model, alpha, beta, len(run.tokeniser.vocabulary))
    check_reads(run, force)
    listing = target.with_name(f"{target.stem}.left.jsonl")
    check_target(listing, manifest)

    def best_filled(emission: runs.Emission, known: Known) -> Filled:
        """The best transcript; where marks say how much is missing, the best of those that are as long, as far as one is found."""
        marks, places = gap_marks_of(emission.row), places_of(run, emission.row)
        bounded = Origins(known, marks).bounded > 0
        options: dict[str, Any] = {"threshold": threshold, "whole": True, "places": places, "gap_marks": marks}
        ways: list[tuple[int, float, Completion]] = []
        for more in _LENGTHS if bounded else (0.0,):
            found = complete_one(
                emission.log_probs, known.labels, known.open, lm=model, normalized=False, keep_beam=True,
                nbest=min(_TRIED, beam) if bounded else 1, **{**settings, "beta": beta + more},
            )  # fmt: skip
            for one in found:
                outside = fill(known, one.tokens, **options).outside if bounded else 0
                ways.append((outside, more * len(one.tokens) - one.score, one._replace(beam=found[0].beam)))
            if not min(outside for outside, *_ in ways):
                break
        best = min(ways, key=lambda way: way[:2])[2]
        others = next_best(known, best, emission.log_probs, merge_repeats=run.merges_repeats)
        return fill(known, best.tokens, others=others, **options)

    def work(emission: runs.Emission) -> dict[str, Any]:
        known = known_text(run.tokeniser, emission.row.text, marked=emission.row.marked)
        if known.complete:
            return _kept(emission.row, no_gap(emission.row))
        try:
            filled = best_filled(emission, known)
        except ValueError as error:
            raise mended(run, error) from None
        left = listed(emission.row, known, filled)
        if filled.text == emission.row.text:
            return _kept(emission.row, left)
        marks = {} if filled.gap_marks is None else {"gap_marks": filled.gap_marks}
        row = emission.row.replace(
            text=filled.text, gaps="marked", text_partial=emission.row.text, unit=places_of(run, emission.row).unit,
            added=filled.added, **marks,
        )  # fmt: skip
        return _record(
            row, left, filled=len(filled.added), untouched=not filled.added, unmarked=not emission.row.marked
        )

    counts: Counter[str] = Counter()

    def write(records: Iterator[Record]) -> None:
        with rows_writer(target, labelled=False) as writer, atomic_writer(listing) as file:
            for record in records:
                done = record["done"]
                counts.update(done["counts"], rows=1, failed="failed" in record)
                for left in done["left"]:
                    file.write(json.dumps(left, ensure_ascii=False).encode() + b"\n")
                writer.write(Row(done["row"]))

    decides = {**settings, "threshold": threshold, "lm": None if search.lm is None else state_of(search.lm)}
    failed = target.with_name(f"{target.stem}.failed.jsonl")
    job = Job(work, decides, failed, kept=lambda row: _kept(row, untouched=False))
    stream([run], Rows(manifest, None if split is None else [split]), target, job, write, where)
    return Counts(**{field.name: counts[field.name] for field in fields(Counts)})


def _kept(row: Row, left: list[dict[str, Any]] | None = None, *, untouched: bool = True) -> dict[str, Any]:
    """The record of a row that comes out as it was."""
    return _record(unchanged(row), left or [], untouched=untouched, unmarked=not row.marked)


def _record(row: Row, left: list[dict[str, Any]], **counts: int) -> dict[str, Any]:
    return {"row": row.fields, "left": left, "counts": {**counts, "left": gaps_in(row.text)}}
