"""`starseq complete`: a manifest with partial labels to one with full transcripts that contain them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.manifest import Progress, Row, manifest_writer
from starseq.decode.complete import Completion, check_search
from starseq.decode.complete import complete as complete_one
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.jobs._stream import Counts, outside_vocabulary, places_of, state_of, stream
from starseq.jobs.decode import BeamReader
from starseq.jobs.evaluate import device_of
from starseq.text.gaps import escape

__all__ = ["complete"]


def complete(
    folder: str | os.PathLike[str],
    manifest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    split: str | None = None,
    lm: str | os.PathLike[str] | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    beam: int = 100,
    beam_threshold: float = 25.0,
    tokens_per_frame: int = 50,
    nbest: int = 1,
    device: str = "auto",
    root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Counts:
    """Complete the rows of `manifest` with the run in `folder`, and write them to the manifest `target`.

    A row keeps its fields. `text` becomes the full transcript (no gap of it is open), `text_partial` what it was, `added` the
    tokens that were added, each with its place and its confidence; `unit` says whether places are seconds or pixel columns. With
    `nbest` above 1 the best transcripts are in `hyps`. Known labels that the run's vocabulary lacks are in no transcript; a row
    that has some names them in ``outside_vocabulary``. `lm` is an ARPA file over the run's tokens. Weights that are None are
    those that `starseq tune` found with the same language model, or without one. A row without any completion is listed in
    ``STEM.failed.jsonl`` beside `target`; a file that cannot be read raises, or with `skip_bad` is listed too. A job that was
    stopped goes on where it was.
    """
    run, target = runs.load(folder), Path(target)
    model = None if lm is None else NGramAutomaton(lm, run.tokeniser.vocabulary.tokens)
    reader = BeamReader(lm, alpha=alpha, beta=beta)
    reader.methods()  # raises for a weight without a language model
    alpha, beta = reader.search_weights(run)
    search: dict[str, Any] = {
        "merge_repeats": run.merges_repeats, "alpha": alpha, "beta": beta, "beam": beam,
        "beam_threshold": beam_threshold, "tokens_per_frame": tokens_per_frame, "nbest": nbest,
    }  # fmt: skip
    check_search(beam, beam_threshold, tokens_per_frame, nbest, model, alpha, beta, len(run.tokeniser.vocabulary))

    def work(emission: runs.Emission) -> dict[str, Any]:
        found = complete_one(emission.log_probs, emission.labels, emission.open, lm=model, normalized=False, **search)
        return _row(run, emission, found, nbest).fields

    outside = 0

    def write(records: Iterator[dict[str, Any]]) -> None:
        nonlocal outside
        with manifest_writer(target, labelled=False) as writer:
            for fields in records:
                outside += len(fields.get("outside_vocabulary", ()))
                writer.write(Row(fields))

    counts = stream(
        run, manifest, target, work, write, settings={**search, "lm": None if lm is None else state_of(lm)},
        split=split, failed=target.with_name(f"{target.stem}.failed.jsonl"), device=device_of(device), root=root,
        skip_bad=skip_bad, progress=progress,
    )  # fmt: skip
    return replace(counts, outside=outside)


def _row(run: runs.Run, emission: runs.Emission, found: list[Completion], nbest: int) -> Row:
    best, place = found[0], places_of(run, emission.row)
    added = [
        {
            "position": number, "label": run.tokeniser.vocabulary[token.token], "start": place(token.start),
            "end": place(token.end), "confidence": round(token.confidence, 4),
        }
        for number, token in enumerate(best.tokens)
        if not token.known
    ]  # fmt: skip
    text = escape(run.tokeniser.decode(best.labels))
    if not text:
        raise ValueError("nothing was read, and no label is known: the completion is empty")
    row = emission.row.replace(text=text, gaps="marked", text_partial=emission.row.text, unit=place.unit, added=added)
    outside = outside_vocabulary(run.tokeniser, emission.row)
    if outside:
        row = row.replace(outside_vocabulary=outside)
    if nbest > 1:
        row = row.replace(hyps=[_hypothesis(run, one) for one in found])
    return row


def _hypothesis(run: runs.Run, one: Completion) -> dict[str, Any]:
    return {
        "text": run.tokeniser.decode(one.labels), "tokens": list(one.labels), "am": one.am, "lm": one.lm,
        "length": len(one.labels),
    }  # fmt: skip
