"""`starseq align`: where the known labels of a manifest's rows lie, and where something is missing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from starseq import runs
from starseq.data.files import atomic_writer, write_text
from starseq.data.manifest import Progress
from starseq.decode.align import align as align_one
from starseq.decode.alignment_formats import STAR, Interval, to_ctm, to_textgrid
from starseq.jobs._stream import Counts, outside_vocabulary, places_of, stream
from starseq.jobs.evaluate import device_of

__all__ = ["FORMATS", "Format", "align"]

Format = Literal["json", "ctm", "textgrid"]
FORMATS: tuple[Format, ...] = ("json", "ctm", "textgrid")

_NAMES = {"json": "alignment.jsonl", "ctm": "alignment.ctm", "textgrid": "textgrid"}


def align(
    folder: str | os.PathLike[str],
    manifest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: Format = "json",
    split: str | None = None,
    log_penalty: float | None = None,
    device: str = "auto",
    root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Counts:
    """Align the rows of `manifest` with the run in `folder`, and write the result to the folder `target`.

    "json" gives ``alignment.jsonl``, an object a row; "ctm" ``alignment.ctm``; "textgrid" the folder ``textgrid``, a file a row.
    Places are seconds of audio or pixel columns of an image. `log_penalty` is lambda, the run's own by default. Known labels
    that the run's vocabulary lacks are not aligned; a row that has some names them in ``outside_vocabulary``. A row that cannot
    be aligned is listed in ``failed.jsonl``; a file that cannot be read raises, or with `skip_bad` is listed too. A job that was
    stopped goes on where it was.
    """
    if format not in FORMATS:
        raise ValueError(f"format: {format!r} is none of {', '.join(FORMATS)}")
    run = runs.load(folder)
    penalty = log_penalty if log_penalty is not None else run.log_penalty
    penalty = math.log(0.5) if penalty is None else penalty
    if not penalty <= 0:
        raise ValueError(f"lambda: {penalty} is not a log-weight <= 0")

    def work(emission: runs.Emission) -> dict[str, Any]:
        return _record(run, emission, penalty)

    outside = 0

    def counted(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal outside
        for record in records:
            outside += len(record.get("outside_vocabulary", ()))
            yield record

    def write(records: Iterator[dict[str, Any]]) -> None:
        _write(counted(records), Path(target), format)

    counts = stream(
        run, manifest, Path(target) / _NAMES["json"], work, write, settings={"log_penalty": penalty}, split=split,
        device=device_of(device), root=root, skip_bad=skip_bad, progress=progress,
    )  # fmt: skip
    return replace(counts, outside=outside)


def _record(run: runs.Run, emission: runs.Emission, log_penalty: float) -> dict[str, Any]:
    found = align_one(
        emission.log_probs, emission.labels, emission.open, criterion=run.criterion, log_penalty=log_penalty,
        merge_repeats=run.merges_repeats,
    )  # fmt: skip
    place, name = places_of(run, emission.row), run.tokeniser.vocabulary
    labels = [
        {
            "label": name[label.token], "start": place(label.start), "end": place(label.end),
            "confidence": round(label.confidence, 4), "probability": round(label.probability, 4),
        }
        for label in found.labels
    ]  # fmt: skip
    spans = [
        {
            "gap": span.gap, "start": place(span.start), "end": place(span.end), "missing": round(span.missing, 3),
            "tokens": [
                {"label": name[token], "start": place(t), "end": place(t + 1), "confidence": round(confidence, 4)}
                for token, t, confidence in span.tokens
            ],
        }
        for span in found.spans
    ]  # fmt: skip
    outside = outside_vocabulary(run.tokeniser, emission.row)
    return {
        "id": emission.id, "unit": place.unit, "end": place(len(emission.log_probs)), "labels": labels, "spans": spans,
        "missing": [round(x, 3) for x in found.missing], "log_score": found.log_score, "log_z": found.log_z,
        **({"outside_vocabulary": outside} if outside else {}),
    }  # fmt: skip


def _write(records: Iterator[dict[str, Any]], folder: Path, format: Format) -> None:
    if format == "textgrid":
        for record in records:
            name = quote(record["id"], safe=" ")  # a slash would lead into another folder
            write_text(folder / _NAMES[format] / f"{name}.TextGrid", _textgrid(record))
        return
    with atomic_writer(folder / _NAMES[format]) as file:
        for record in records:
            text = json.dumps(record, ensure_ascii=False) + "\n" if format == "json" else _ctm(record)
            file.write(text.encode())


def _interval(part: dict[str, Any]) -> Interval:
    return Interval(part["start"], part["end"], part["label"], part["confidence"])


def _ctm(record: dict[str, Any]) -> str:
    """Known labels, and a `*` where something is missing, in the order of their times."""
    stars = (Interval(span["start"], span["end"], STAR) for span in record["spans"])
    return to_ctm(record["id"], sorted([*map(_interval, record["labels"]), *stars]))


def _textgrid(record: dict[str, Any]) -> str:
    missing = (_interval(token) for span in record["spans"] for token in span["tokens"])
    stars = (Interval(span["start"], span["end"], STAR) for span in record["spans"])
    tiers = {
        "labels": [_interval(label) for label in record["labels"]],
        "missing": list(stars),
        "best guess": list(missing),
    }
    return to_textgrid(record["end"], tiers)
