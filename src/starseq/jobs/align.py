"""`starseq align`: where the known labels of a manifest's rows lie, and where something is missing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.exports import rows_writer
from starseq.data.files import atomic_writer, write_text
from starseq.data.manifest import Row
from starseq.decode.align import AlignedLabel, Alignment
from starseq.decode.align import align as align_one
from starseq.decode.alignment_formats import STAR, Interval, to_ctm, to_textgrid
from starseq.jobs._stream import Job, Record, Rows, outside_vocabulary, places_of, stream
from starseq.jobs._where import PathLike, Where
from starseq.text.gaps import escape
from starseq.text.tokeniser import Tokeniser

__all__ = ["FORMATS", "SUFFIXES", "Counts", "Format", "align", "failed_of"]

Format = Literal["json", "ctm", "textgrid"]
FORMATS: tuple[Format, ...] = ("json", "ctm", "textgrid")

SUFFIXES = (".jsonl.gz", ".jsonl", ".json", ".csv", ".tsv", ".srt", ".vtt")
"""of files that get a row for each word"""
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
    """Align the rows of `manifest` with the run in `folder`, and write the result to the folder or the file `target`.

    A file has one of the `SUFFIXES`, and gets a row for each known word of audio: as a manifest, as NeMo's or lhotse's, as a table,
    or as subtitles. A folder gets what `format` says: ``alignment.jsonl``, an object a row; ``alignment.ctm``; or the folder
    ``textgrid``, a file a row. Places are seconds of audio or pixel columns of an image. Labels are words where the run spells them
    by letters or pieces, each as sure as the least sure of its tokens.

    `log_penalty` is lambda, the run's own by default. Known labels that the run's vocabulary lacks are not aligned; in a folder a
    row that has some names them in ``outside_vocabulary``. A row that cannot be aligned is listed in ``failed.jsonl``, or beside a
    file in ``STEM.failed.jsonl``; a file that cannot be read raises, or with ``where.skip_bad`` is listed too. A job that was
    stopped goes on where it was.
    """
    if format not in FORMATS:
        raise ValueError(f"format: {format!r} is none of {', '.join(FORMATS)}")
    run, target = runs.load(folder), Path(target)
    penalty = log_penalty if log_penalty is not None else run.log_penalty
    penalty = math.log(0.5) if penalty is None else penalty
    if not penalty <= 0:
        raise ValueError(f"lambda: {penalty} is not a log-weight <= 0")
    of_words = target.name.lower().endswith(SUFFIXES)
    if of_words and run.seconds_per_frame is None:
        raise DataError(f"{target}: rows of words are of audio, and {run.folder} reads images; give a folder")
    counts: Counter[str] = Counter()

    def write(records: Iterator[Record]) -> None:
        def done() -> Iterator[Record]:
            for record in records:
                counts.update(done="done" in record, failed="failed" in record)
                if "done" in record:
                    counts["outside"] += len(record["done"].get("outside_vocabulary", ()))
                    yield record["done"]

        if of_words:
            _write_rows(done(), target)
        else:
            _write(done(), target, format)

    def work(emission: runs.Emission) -> Record:
        found = align_one(
            emission.log_probs, emission.labels, emission.open, criterion=run.criterion, log_penalty=penalty,
            merge_repeats=run.merges_repeats,
        )  # fmt: skip
        return _words(run, emission, found) if of_words else _record(run, emission, found)

    job = Job(work, {"log_penalty": penalty, "words": of_words}, failed_of(target))
    rows = Rows(manifest, None if split is None else [split])
    stream([run], rows, target if of_words else target / _NAMES["json"], job, write, where)
    return Counts(counts["done"], counts["failed"], counts["outside"])


def failed_of(target: Path) -> Path:
    """The list of the rows that could not be aligned.

    >>> failed_of(Path("words.csv")).as_posix(), failed_of(Path("out")).as_posix()
    ('words.failed.jsonl', 'out/failed.jsonl')
    """
    suffix = next((suffix for suffix in SUFFIXES if target.name.lower().endswith(suffix)), None)
    return (
        target / "failed.jsonl" if suffix is None else target.with_name(f"{target.name[: -len(suffix)]}.failed.jsonl")
    )


def _words(run: runs.Run, emission: runs.Emission, found: Alignment) -> Record:
    """Rows of the known words, each a part of the audio. A `*` in a word marks a gap there."""
    place, row, text = places_of(run, emission.row), emission.row, ""
    words: list[tuple[str, list[AlignedLabel]]] = []
    tokens = [label.token for label in found.labels]
    for number, label in enumerate(found.labels):
        before, text = text, run.tokeniser.decode(tokens[: number + 1])
        piece = text[len(before) :]
        if not words or before[-1:].isspace() or piece[:1].isspace():
            words.append(("", []))
        if piece.strip():
            known, labels = words[-1]
            gap = "*" if labels and row.marked and emission.open[number] else ""
            words[-1] = (known + gap + escape(piece.strip()), [*labels, label])
    begin = float(row.get("start", 0.0))
    rows = []
    for number, (word, labels) in enumerate(word for word in words if word[1]):
        start, end = (round(begin + place(frame), 3) for frame in (labels[0].start, labels[-1].end))
        kept = {name: value for name, value in row.fields.items() if name in _KEPT}
        rows.append({
            **kept, "id": f"{row.id}-{number:04d}", "text": word, "gaps": "marked", "start": start, "end": end,
            "duration": round(end - start, 3), "confidence": round(min(label.confidence for label in labels), 4),
        })  # fmt: skip
    return {"rows": rows, "outside_vocabulary": outside_vocabulary(run.tokeniser, row)}


_KEPT = ("path", "archive", "offset", "nbytes", "channel", "speaker", "language", "split")
"""fields of a row that its words have, too"""


def _write_rows(records: Iterator[Record], target: Path) -> None:
    with rows_writer(target) as writer:
        for record in records:
            for fields in record["rows"]:
                writer.write(Row(fields))


def _record(run: runs.Run, emission: runs.Emission, found: Alignment) -> Record:
    place = places_of(run, emission.row)
    words = _whole(run.tokeniser, [label.token for label in found.labels])
    ends = [0, *(word.stop for word, _ in words)]
    labels = [
        {
            "label": text, "start": place(found.labels[word.start].start), "end": place(found.labels[word.stop - 1].end),
            "confidence": round(min(label.confidence for label in found.labels[word.start : word.stop]), 4),
            "probability": round(min(label.probability for label in found.labels[word.start : word.stop]), 4),
        }
        for word, text in words
    ]  # fmt: skip
    spans = [
        {
            "gap": ends.index(span.gap), "start": place(span.start), "end": place(span.end),
            "missing": round(span.missing, 3),
            "tokens": [
                {
                    "label": text, "start": place(span.tokens[word.start].frame),
                    "end": place(span.tokens[word.stop - 1].frame + 1),
                    "confidence": round(min(token.confidence for token in span.tokens[word.start : word.stop]), 4),
                }
                for word, text in _whole(run.tokeniser, [token.token for token in span.tokens])
            ],
        }
        for span in found.spans
    ]  # fmt: skip
    outside = outside_vocabulary(run.tokeniser, emission.row)
    return {
        "id": emission.id, "unit": place.unit, "end": place(len(emission.log_probs)), "labels": labels, "spans": spans,
        "missing": [round(found.missing[gap], 3) for gap in ends], "log_score": found.log_score, "log_z": found.log_z,
        **({"outside_vocabulary": outside} if outside else {}),
    }  # fmt: skip


def _whole(tokeniser: Tokeniser, tokens: Sequence[int]) -> list[tuple[range, str]]:
    """Where each label lies among the tokens, and its text: a token alone, or a word with all that continues it."""
    names = [tokeniser.vocabulary[token] for token in tokens]
    starts = [number for number, name in enumerate(names) if not (number and tokeniser.is_continuation(name))]
    words = [range(start, end) for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
    spelled = tokeniser.unit == "word"  # a space alone is named as it is
    return [
        (word, (tokeniser.decode(tokens[word.start : word.stop]) if spelled else "") or names[word.start])
        for word in words
    ]


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
