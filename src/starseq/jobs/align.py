"""`starseq align`: where the known labels of a manifest's rows lie, and where something is missing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from starseq import runs
from starseq.data.files import atomic_writer, write_text
from starseq.decode.align import align as align_one
from starseq.decode.alignment_formats import STAR, Interval, to_ctm, to_textgrid
from starseq.jobs._stream import Job, Record, Rows, outside_vocabulary, places_of, stream
from starseq.jobs._where import PathLike, Where

__all__ = ["FORMATS", "Counts", "Format", "align"]

Format = Literal["json", "ctm", "textgrid"]
FORMATS: tuple[Format, ...] = ("json", "ctm", "textgrid")

_NAMES = {"json": "alignment.jsonl", "ctm": "alignment.ctm", "textgrid": "textgrid"}


@dataclass(frozen=True)
class Counts:
    """Rows that went in: those that came out, and those that failed. `outside` are known labels that the run cannot write, for its
    vocabulary lacks them, and that what came out lacks, too; rows that have some name them in the field ``outside_vocabulary``."""

    done: int
    failed: int
    outside: int = 0

    @property
    def rows(self) -> int:
        return self.done + self.failed


def align(
    folder: PathLike,
    manifest: PathLike,
    target: PathLike,
    *,
    format: Format = "json",
    split: str | None = None,
    log_penalty: float | None = None,
    where: Where = Where(),
) -> Counts:
    """Align the rows of `manifest` with the run in `folder`, and write the result to the folder `target`.

    "json" gives ``alignment.jsonl``, an object a row; "ctm" ``alignment.ctm``; "textgrid" the folder ``textgrid``, a file a row.
    Places are seconds of audio or pixel columns of an image. `log_penalty` is lambda, the run's own by default. Known labels
    that the run's vocabulary lacks are not aligned; a row that has some names them in ``outside_vocabulary``. A row that cannot
    be aligned is listed in ``failed.jsonl``; a file that cannot be read raises, or with ``where.skip_bad`` is listed too. A job
    that was stopped goes on where it was.
    """
    if format not in FORMATS:
        raise ValueError(f"format: {format!r} is none of {', '.join(FORMATS)}")
    run, target = runs.load(folder), Path(target)
    penalty = log_penalty if log_penalty is not None else run.log_penalty
    penalty = math.log(0.5) if penalty is None else penalty
    if not penalty <= 0:
        raise ValueError(f"lambda: {penalty} is not a log-weight <= 0")
    counts: Counter[str] = Counter()

    def write(records: Iterator[Record]) -> None:
        def done() -> Iterator[Record]:
            for record in records:
                counts.update(done="done" in record, failed="failed" in record)
                if "done" in record:
                    counts["outside"] += len(record["done"].get("outside_vocabulary", ()))
                    yield record["done"]

        _write(done(), target, format)

    job = Job(lambda emission: _record(run, emission, penalty), {"log_penalty": penalty}, target / "failed.jsonl")
    rows = Rows(manifest, None if split is None else [split])
    stream([run], rows, target / _NAMES["json"], job, write, where)
    return Counts(counts["done"], counts["failed"], counts["outside"])


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
