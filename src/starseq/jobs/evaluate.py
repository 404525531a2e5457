"""`starseq evaluate`: error rates of a run on the splits of a manifest, and what it read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.manifest import Progress, read_manifest
from starseq.decode.greedy import greedy
from starseq.report.marks import marked_text
from starseq.report.readings import Reading, choose, write_readings
from starseq.runs.folder import data_root
from starseq.text.error_rate import ErrorCounts, cer, wer
from starseq.text.gaps import Unit

__all__ = ["Decoder", "Evaluation", "Scores", "SplitResult", "evaluate"]

Decoder = Callable[[runs.Run, Path, "str | None"], Mapping[str, str]]
"""``decoder(run, manifest, split)`` -> the text of every row, by id: a method beside greedy reading"""


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
class SplitResult:
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
    splits: list[SplitResult]

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
    folder: str | os.PathLike[str],
    manifest: str | os.PathLike[str] | None = None,
    *,
    splits: Sequence[str] = (),
    device: str = "auto",
    root: str | os.PathLike[str] | None = None,
    methods: Mapping[str, Decoder] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Reads the splits of a manifest with the run in `folder` and counts errors against the complete texts.

    `manifest` is the run's own unless given. Of `splits`, by default those that the run calls dev and test, each has to
    be there; a manifest that has neither is one split, "all". `methods` adds decoders to greedy reading, each a column of
    its own.
    Rows without a complete text (none at all, or with a marked gap) are left out and counted.

    The results join those in the run's ``results.json``, section ``evaluate``: ``{split: {method: {"wer", "cer", ...}}}``,
    where splits of another manifest carry its name. What was read goes to ``readings/SPLIT.jsonl``. `progress` counts rows.

    Raises `DataError` where the run, the manifest or a split cannot be used.
    """
    run = runs.load(folder)
    own = manifest is None
    manifest = run.manifest if manifest is None else Path(manifest)
    root = data_root(run.recipe, run.folder) if own and root is None else root
    chosen = _splits(run, manifest, splits)
    results = []
    for split in chosen:
        readings, left_out = [], 0
        for emission in runs.emissions(
            run, manifest, split=split, device=device_of(device), root=root, progress=progress
        ):
            if not emission.row.complete:
                left_out += 1
                continue
            (tokens,) = greedy(
                emission.log_probs[None], torch.tensor([len(emission.log_probs)]), merge_repeats=run.merges_repeats
            )
            readings.append(Reading(emission.id, emission.reference, {"greedy": run.tokeniser.decode(tokens)}))
        for name, decoder in (methods or {}).items():
            texts = decoder(run, manifest, split)
            for reading in readings:
                reading.hypotheses[name] = texts[reading.id]
        if not readings:
            where = f" of split {split!r}" if split else ""
            raise DataError(f"{manifest}: no row{where} has a complete text to compare with; `transcribe` needs none")
        name = split or "all"
        results.append(
            SplitResult(name if own else f"{_name_of(manifest)}: {name}", _scores(readings), readings, left_out)
        )
    _save(run.folder, results)
    return Evaluation(run.folder, run.criterion, run.tokeniser.unit, results)


def device_of(name: str) -> str:
    """`auto` is CUDA where there is one; a device that is not there, or that nobody knows, is a `DataError`.

    >>> device_of("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if name not in ("cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise DataError(f"device {name!r} is none of auto, cpu, cuda, cuda:1, ...")
    if kind == "cuda" and int(number or 0) >= (there := torch.cuda.device_count()):
        raise DataError(
            f"device {name!r} is asked for, and there is {f'only {there}' if there else 'no'} CUDA device here"
        )
    return name


def _splits(run: runs.Run, manifest: Path, wanted: Sequence[str]) -> list[str | None]:
    there = dict.fromkeys(row.get("split") for row in read_manifest(manifest, labelled=False))
    if wanted:
        missing = [split for split in wanted if split not in there]
        if missing:
            names = ", ".join(sorted(split for split in there if split)) or "none"
            raise DataError(f"{manifest}: no row of split {missing[0]!r} (there are {names})")
        return list(dict.fromkeys(wanted))
    held_out = (*run.recipe.data.splits.dev, *run.recipe.data.splits.test)
    return [split for split in dict.fromkeys(held_out) if split in there] or [None]


def _name_of(manifest: Path) -> str:
    """What tells a manifest from others: most corpora's are called the same."""
    return manifest.stem if manifest.stem != "manifest" else manifest.absolute().parent.name or manifest.stem


def _scores(readings: Sequence[Reading]) -> dict[str, Scores]:
    references = [reading.reference for reading in readings]
    return {
        method: Scores.of(references, [reading.hypotheses[method] for reading in readings])
        for method in readings[0].hypotheses
    }


def _save(folder: Path, results: Iterable[SplitResult]) -> None:
    """Joins what is in results.json already: other splits, other methods, other sections stay."""
    section: dict[str, Any] = runs.read_results(folder).get("evaluate", {})
    for split in results:
        found = {method: scores.to_dict() for method, scores in split.methods.items()}
        section[split.name] = {**section.get(split.name, {}), **found}
        write_readings(folder, split.name, split.readings)
    runs.update_results(folder, evaluate=section)
