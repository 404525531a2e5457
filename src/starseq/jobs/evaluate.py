"""`starseq evaluate`: error rates of a run on the splits of a manifest, and what it read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.jobs._search import Search, reading
from starseq.jobs._stream import Job, Record, Rows, splits_of, stream
from starseq.jobs._where import PathLike, Where
from starseq.report.marks import marked_text
from starseq.report.readings import Reading, choose, write_readings
from starseq.runs.folder import data_root
from starseq.text.error_rate import ErrorCounts, cer, wer
from starseq.text.gaps import Unit

__all__ = ["Evaluation", "Scores", "SplitScores", "evaluate"]


@dataclass(frozen=True)
class Scores:
    """Errors of one method on one split: corpus-level counts, and sentences without any error.

    >>> scores = Scores.of(["the fox", "oh"], ["the fax", "oh"])
    >>> round(scores.words.percent, 1), round(scores.characters.percent, 1), scores.right, scores.sentences
    (33.3, 11.1, 1, 2)
    """

    words: ErrorCounts
    characters: ErrorCounts
    right: int
    sentences: int

    @classmethod
    def of(cls, references: Sequence[str], hypotheses: Sequence[str]) -> Scores:
        right = sum(reference == read for reference, read in zip(references, hypotheses, strict=True))
        return cls(wer(references, hypotheses), cer(references, hypotheses), right, len(references))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Scores:
        """The inverse of `to_dict`."""
        words, characters = (ErrorCounts(**record[name]) for name in ("words", "characters"))
        return cls(words, characters, record["right"], record["sentences"])

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            self.words + other.words, self.characters + other.characters, self.right + other.right,
            self.sentences + other.sentences,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Percentages first, then the counts they come from."""
        return {
            "wer": round(self.words.percent, 4),
            "cer": round(self.characters.percent, 4),
            "sentences": self.sentences,
            "right": self.right,
            "words": asdict(self.words),
            "characters": asdict(self.characters),
        }


@dataclass(frozen=True)
class SplitScores:
    """A split: the scores of each method, and every reading."""

    name: str
    """of the split in results.json"""
    methods: dict[str, Scores]
    readings: list[Reading]
    left_out: int
    """rows without a complete text to compare with"""


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found, by split."""

    folder: Path
    criterion: str
    unit: Unit
    splits: list[SplitScores]

    def table(self) -> str:
        """Error rates as text: a line for each split and method. The counts are of words, or of characters, by the run's unit."""
        counted = "words" if self.unit == "word" else "characters"
        lines = [
            ("split", "method", "WER %", "CER %", f"{counted}", "subst", "insert", "delete", "sentences", "right %")
        ]
        for split in self.splits:
            for method, scores in split.methods.items():
                counts: ErrorCounts = getattr(scores, counted)
                lines.append(
                    (
                        split.name, method,
                        f"{scores.words.percent:.2f}", f"{scores.characters.percent:.2f}",
                        f"{counts.reference_length:,}", f"{counts.substitutions:,}", f"{counts.insertions:,}",
                        f"{counts.deletions:,}", f"{scores.sentences:,}", f"{100 * scores.right / scores.sentences:.1f}",
                    )
                )  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def examples(self, worst: int = 3, others: int = 3, *, method: str | None = None, seed: int = 0) -> str:
        """The worst readings of every split, and some at random, with their errors marked: `[-missing-]{+too much+}`."""
        blocks = []
        for split in self.splits:
            name = next(reversed(split.methods)) if method is None else method
            for title, chosen in choose(split.readings, name, self.unit, worst, others, seed=seed).items():
                if chosen:
                    marked = (marked_text(one.reference, one.hypotheses[name], self.unit) for one in chosen)
                    lines = (f"  {one.id}  {line}" for one, line in zip(chosen, marked, strict=True))
                    blocks.append("\n".join((f"{split.name}, {name}, {title}:", *lines)))
        return "\n\n".join(blocks)


def evaluate(
    folder: PathLike,
    manifest: PathLike | None = None,
    *,
    splits: Sequence[str] = (),
    search: Search = Search(),
    where: Where = Where(),
) -> Evaluation:
    """Reads the splits of a manifest with the run in `folder` and counts errors against the complete texts.

    `manifest` is the run's own unless given. Of `splits`, by default those that the run calls dev and test, each has to
    be there; a manifest that has neither is one split, "all". Every row is decoded greedily; a `search` adds columns of its own.
    Rows without a complete text (none at all, or with a marked gap) are left out and counted.

    The results join those in the run's ``results.json``, section ``evaluate``: ``{split: {method: {"wer", "cer", ...}}}``,
    where splits of another manifest carry its name. What was read goes to ``readings/SPLIT.jsonl``. An evaluation that was
    stopped goes on where it was.

    Raises `DataError` where the run, the manifest or a split cannot be used.
    """
    run = runs.load(folder)
    own = manifest is None
    manifest = run.manifest if manifest is None else Path(manifest)
    if own and where.root is None:
        where = replace(where, root=data_root(run.recipe, run.folder))
    chosen = _splits(run, manifest, splits)
    readings: dict[str | None, list[Reading]] = {split: [] for split in chosen}

    def write(records: Iterator[Record]) -> None:
        for record in records:
            split = None if None in readings else record["done"]["split"]
            readings[split].append(Reading(*record["done"]["reading"]))

    rows = Rows(manifest, None if None in chosen else [str(split) for split in chosen], keep=lambda row: row.complete)
    with reading(run, search, where) as begin:

        def work(emission: runs.Emission) -> Callable[[], Record]:
            found = begin(emission.id, emission.log_probs)

            def record() -> Record:
                texts = {method: hypothesis.text for method, hypothesis in found().items()}
                return {"split": emission.row.get("split"), "reading": [emission.id, emission.reference, texts]}

            return record

        job = Job(work, search.settings(run), in_flight=2 * where.workers)
        name = hashlib.sha256(json.dumps([os.path.realpath(manifest), list(chosen)]).encode()).hexdigest()[:12]
        stream([run], rows, run.folder / f"evaluate-{name}", job, write, where)
    results = [
        SplitScores(
            split or "all" if own else f"{_name_of(manifest)}: {split or 'all'}", _scores(found), found, chosen[split]
        )
        for split, found in readings.items()
    ]
    _save(run.folder, results)
    return Evaluation(run.folder, run.criterion, run.tokeniser.unit, results)


def _splits(run: runs.Run, manifest: Path, wanted: Sequence[str]) -> dict[str | None, int]:
    """The splits to read, each with how many of its rows lack a complete text. None stands for all rows."""
    there, data = splits_of(manifest, wanted), run.recipe.data.splits
    names = wanted or [split for split in (*data.dev, *data.test) if split in there]
    chosen: dict[str | None, list[int]] = {name: there[name] for name in names}
    chosen = chosen or {None: [sum(counts) for counts in zip(*there.values(), strict=True)]}
    for split, (_, complete) in chosen.items():
        if not complete:
            where = f" of split {split!r}" if split else ""
            raise DataError(f"{manifest}: no row{where} has a complete text to compare with; `transcribe` needs none")
    return {split: lacking for split, (lacking, _) in chosen.items()}


def _name_of(manifest: Path) -> str:
    """What tells a manifest from others: most corpora's are called the same."""
    return manifest.stem if manifest.stem != "manifest" else manifest.absolute().parent.name or manifest.stem


def _scores(readings: Sequence[Reading]) -> dict[str, Scores]:
    references = [reading.reference for reading in readings]
    return {
        method: Scores.of(references, [reading.hypotheses[method] for reading in readings])
        for method in readings[0].hypotheses
    }


def _save(folder: Path, results: Iterable[SplitScores]) -> None:
    """Joins what is in results.json already: other splits, other methods, other sections stay."""
    section: dict[str, Any] = runs.read_results(folder).get("evaluate", {})
    for split in results:
        found = {method: scores.to_dict() for method, scores in split.methods.items()}
        section[split.name] = {**section.get(split.name, {}), **found}
        write_readings(folder, split.name, split.readings)
    runs.update_results(folder, evaluate=section)
