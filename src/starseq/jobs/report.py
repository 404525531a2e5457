"""`starseq report`: one self-contained HTML page about some runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from starseq import __version__, criteria, runs
from starseq.config import build
from starseq.data.dataset import LineReader
from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.data.manifest import Row, read_bytes, read_manifest
from starseq.decode.align import align
from starseq.jobs.review import doubtful_rows
from starseq.report.alignment import alignment_svg
from starseq.report.page import AlignmentView, Example, RunView, page
from starseq.report.pictures import Picture, drawable, picture
from starseq.report.readings import Reading, choose, read_readings
from starseq.runs.emissions import known_labels, normal_text
from starseq.runs.folder import METRICS, data_root
from starseq.text.gaps import split_gaps
from starseq.train.metrics import read_metrics

__all__ = ["report"]


def report(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    examples: int = 6,
    alignments: int = 3,
    names: Sequence[str] | None = None,
    title: str | None = None,
    intro: Sequence[str] = (),
    completed: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Path:
    """Writes the page about the runs in `folders` and returns its path, by default `report.html` in the first of them.

    Error rates and readings are those that `starseq evaluate` left; `split` says which split's examples are shown, by default
    test, or the last one that was evaluated. Half of the `examples` are the worst of the last run, the others are at random.
    Their pictures come from its manifest. The `alignments` show the last run with a star. `names` stand for the folders' own.
    Of `completed`, a manifest of `starseq complete` or `starseq pseudo`, as many rows show what was read in their gaps, the most
    doubtful first. Their pictures and sounds lie under `root`.

    Raises `DataError` where a folder is not a run, or the split was not evaluated.
    """
    loaded = [runs.load(folder) for folder in folders]
    if not loaded:
        raise DataError("report: no run is given")
    shown = _names(loaded) if names is None else list(names)
    results = [runs.read_results(run.folder) for run in loaded]
    views = [
        RunView(
            name, run.tokeniser.unit, _facts(run, found), found.get("evaluate", {}), read_metrics(run.folder / METRICS)
        )
        for run, name, found in zip(loaded, shown, results, strict=True)
    ]
    part = _split(views, split)
    chosen = [] if part is None else _chosen(loaded[-1], part, examples)
    rows = _rows(loaded[-1], [reading.id for reading, _ in chosen])
    dropper = next((dropper for run in loaded if (dropper := build.dropper(run.recipe)) is not None), None)
    lines = [_line(loaded[-1], rows.get(reading.id), dropper) for reading, _ in chosen]
    texts = [_texts(run, part) for run in loaded]
    made = [
        Example(
            reading.id,
            reading.reference,
            {
                f"{name}, {method}" if len(read[reading.id].hypotheses) > 1 else name: text
                for name, read in zip(shown, texts, strict=True)
                if reading.id in read
                for method, text in read[reading.id].hypotheses.items()
            },
            unit=loaded[-1].tokeniser.unit,
            partial=None if line is None else line.partial,
            picture=None if line is None else _picture(loaded[-1], line.x)[0],
            note=note,
        )
        for (reading, note), line in zip(chosen, lines, strict=True)
    ]
    aligned = _alignments(loaded, shown, [line for line in lines if line is not None], alignments)
    target = Path(out) if out is not None else loaded[0].folder / "report.html"
    heading = title or ("Run " if len(shown) == 1 else "Runs ") + ", ".join(shown)
    footer = f"starseq {__version__}, torch {torch.__version__}"
    filled = [] if completed is None else doubtful_rows(loaded[-1], completed, examples, root=root)[0]
    write_text(target, page(heading, views, made, aligned, filled=filled, intro=intro, footer=footer))
    return target


def _names(loaded: Sequence[runs.Run]) -> list[str]:
    """The folders' names, longer ones where two are the same."""
    short = [run.folder.resolve().name for run in loaded]
    return short if len(set(short)) == len(short) else [str(run.folder) for run in loaded]


def _facts(run: runs.Run, results: dict[str, Any]) -> dict[str, str]:
    train = results.get("train") or {}
    labels, kept = train.get("labels"), train.get("labels_kept")
    share = f"{100 * kept / labels:.0f} % known" if labels and kept is not None and kept < labels else "all known"
    facts = {
        "criterion": run.criterion.upper().replace("_", " "),
        "labels": share,
        "steps": f"{train.get('steps', run.step):,}",
    }
    if run.log_penalty is not None:
        facts["criterion"] += f", p = {math.exp(run.log_penalty):.2g}"
    return facts


def _split(views: Sequence[RunView], wanted: str | None) -> str | None:
    found = list(views[-1].evaluated)
    if wanted is not None and wanted not in found:
        names = ", ".join(found) or "none"
        raise DataError(f"split {wanted!r} was not evaluated (there is {names}): run `starseq evaluate` first")
    return wanted or ("test" if "test" in found else found[-1] if found else None)


def _texts(run: runs.Run, split: str | None) -> dict[str, Reading]:
    return {} if split is None else {reading.id: reading for reading in read_readings(run.folder, split)}


def _chosen(run: runs.Run, split: str, count: int) -> list[tuple[Reading, str]]:
    """Readings to show, each with why."""
    readings = read_readings(run.folder, split)
    if not readings:
        return []
    best = list(readings[0].hypotheses)[-1]
    parts = choose(readings, best, run.tokeniser.unit, count // 2, count - count // 2)
    notes = {"worst": f"among the worst of {split}", "at random": f"{split}, at random"}
    return [(reading, notes[kind]) for kind in reversed(parts) for reading in parts[kind]]


def _rows(run: runs.Run, ids: Sequence[str]) -> dict[str, Row]:
    """The rows of these ids in the run's manifest, where that is still there."""
    wanted = set(ids)
    try:
        return {row.id: row for row in read_manifest(run.manifest, labelled=False) if row.id in wanted}
    except (OSError, DataError):  # the corpus was moved: the page has its texts, and no pictures
        return {}


@dataclass(frozen=True)
class _Line:
    """A row with its frames (T, F), and what is known of its labels (None: all)."""

    row: Row
    x: Tensor
    partial: str | None


def _line(run: runs.Run, row: Row | None, dropper: Dropper | None) -> _Line | None:
    if row is None:
        return None
    try:
        root = data_root(run.recipe, run.folder)
        x = run.reader(row, read_bytes(row, run.manifest.parent, root))
    except (OSError, DataError):
        return None
    if dropper is not None and row.get("text_full", row.text) == row.text:
        row = dropper(row).row
    known = (
        "".join(split_gaps(row.text))
        if run.tokeniser.unit == "char"
        else " ".join("".join(split_gaps(row.text)).split())
    )
    complete = "".join(split_gaps(row.get("text_full") or row.text))
    return _Line(row, x, None if known == complete else normal_text(run.tokeniser, known))


def _picture(run: runs.Run, x: Tensor) -> tuple[Picture, int]:
    """Of what the run reads of a row; and how many frames a column of it is."""
    shown, frames = drawable(x, run.reader)
    return picture(shown, ink=isinstance(run.reader, LineReader)), frames


def _alignments(
    loaded: Sequence[runs.Run], names: Sequence[str], lines: Sequence[_Line], count: int
) -> list[AlignmentView]:
    """Pictures of the last run with a star, or else of the last run, on the lines that have the most to show."""
    pairs = list(zip(loaded, names, strict=True))
    run, name = next((pair for pair in reversed(pairs) if criteria.form(pair[0].criterion).stars), pairs[-1])
    log_penalty = 0.0 if run.log_penalty is None else run.log_penalty  # which a criterion without star ignores
    views: list[AlignmentView] = []
    for line in lines:
        if len(views) == count:
            break
        labels, gaps = known_labels(run, line.row)
        log_probs = runs.listen(run, line.x)
        try:
            found = align(
                log_probs,
                labels,
                gaps,
                criterion=run.criterion,
                merge_repeats=run.merges_repeats,
                log_penalty=log_penalty,
            )
        except ValueError:  # more labels than frames: nothing to show
            continue
        drawn, frames = _picture(run, line.x)
        svg = alignment_svg(found, drawn, log_probs, run.tokeniser.vocabulary.tokens, stride=run.stride / frames)
        facts = {"known labels": str(len(labels))}
        if criteria.form(run.criterion).stars:
            facts["expected to be missing"] = f"{sum(found.missing):.1f}"
        views.append(AlignmentView(name, line.row.id, svg, facts))
    return views
