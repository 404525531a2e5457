"""`starseq pseudo`: a run labels a training manifest, and another model may train on what it says."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from starseq import __version__, runs
from starseq.config import build
from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.exports import rows_writer
from starseq.data.files import atomic_writer, check_target, hash_of, write_text
from starseq.data.manifest import Row, read_manifest, rebaser
from starseq.decode.workers import work_ahead
from starseq.jobs._fill import check_reads, mended
from starseq.jobs._label import KINDS, Kind, Labeller, method_of
from starseq.jobs._search import Search
from starseq.jobs._stream import Job, Record, Rows, splits_of, stream
from starseq.jobs._where import PathLike, Where
from starseq.jobs.evaluate import Scores
from starseq.runs.folder import data_root

__all__ = ["KINDS", "THRESHOLD", "Kind", "Summary", "pseudo"]

BINS = 20
THRESHOLD = 0.9
"""of a confident label"""


# --- what comes out ---------------------------------------------------------------------------------------------------


@dataclass
class Summary:
    """What `pseudo` did, as in ``OUT.summary.json``."""

    target: Path
    settings: dict[str, Any]
    done: int = 0
    failed: int = 0
    other: int = 0
    """rows of other splits, as they were"""
    total: float = 0.0
    """of the confidences of rows"""
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)
    """rows by confidence: bin i from i / 20 to (i + 1) / 20, the last one 1.0 too"""
    labels: Counter[str] = field(default_factory=Counter)
    """known, added, taken out, and those of the known that are outside of the run's vocabulary"""
    gaps: Counter[str] = field(default_factory=Counter)
    """filled, left (open in what comes out), and the rows that were left untouched"""
    scores: dict[str, Scores] = field(default_factory=dict)
    """of the labels that there were, "partial", and that there are now, "pseudo", against the complete texts"""

    @property
    def rows(self) -> int:
        """that were to be labelled: done and failed"""
        return self.done + self.failed

    @property
    def out(self) -> int:
        """that come out: with known labels kept those that failed do, too, as they were"""
        return self.done if self.settings["kind"] == "plain" else self.rows

    @property
    def confidence(self) -> float | None:
        """The mean over the rows that were labelled."""
        return self.total / self.done if self.done else None

    def add(self, record: Record) -> None:
        done = record.get("done")
        if done is not None:
            self.labels.update(done["labels"])
            self.gaps.update(done["gaps"])
            for name, found in done["scores"].items():
                more = Scores.from_dict(found)
                self.scores[name] = self.scores[name] + more if name in self.scores else more
        if "failed" in record:
            self.failed += 1
        elif done is not None:
            share = done["row"]["confidence"]
            self.done, self.total = self.done + 1, self.total + share
            self.histogram[min(int(BINS * share), BINS - 1)] += 1

    def to_dict(self) -> dict[str, Any]:
        mean = self.confidence
        return {
            "rows": {"in": self.rows, "out": self.out, "failed": self.failed, "other": self.other},
            "labels": {name: self.labels[name] for name in ("known", "added", "taken_out", "outside_vocabulary")},
            "gaps": {name: self.gaps[name] for name in ("filled", "left", "untouched")},
            "confidence": {"mean": None if mean is None else round(mean, 4), "histogram": self.histogram},
            "errors": {name: scores.to_dict() for name, scores in sorted(self.scores.items())},
            "settings": self.settings,
        }

    def report(self) -> str:
        """A few lines of text."""
        labels, mean = self.labels, self.confidence
        lines = [f"{self.target}: {self.done:,} of {self.rows:,} rows labelled, {self.other:,} rows of other splits"]
        parts = [f"{labels['known']:,} known", f"{labels['added']:,} added"]
        if "threshold" in self.settings:
            parts.append(f"{labels['taken_out']:,} below {self.settings['threshold']:g} taken out")
        if labels["outside_vocabulary"]:
            parts.append(f"{labels['outside_vocabulary']:,} of the known are outside of the run's vocabulary")
        lines.append(f"labels: {', '.join(parts)}; mean confidence {'-' if mean is None else f'{mean:.4f}'}")
        gaps = self.gaps
        lines.append(
            f"{gaps['filled']:,} gaps filled, {gaps['left']:,} gaps left, {gaps['untouched']:,} rows untouched, "
            f"{self.failed:,} rows failed"
        )
        for name, scores in sorted(self.scores.items()):
            rates = f"WER {scores.words.percent:.2f} %, CER {scores.characters.percent:.2f} %"
            lines.append(f"{name} labels: {rates} on {scores.sentences:,} rows with a complete text")
        return "\n".join(lines)


# --- the job ----------------------------------------------------------------------------------------------------------


def pseudo(
    folder: PathLike,
    manifest: PathLike,
    target: PathLike,
    *,
    kind: Kind,
    also: Sequence[PathLike] = (),
    threshold: float = THRESHOLD,
    splits: Sequence[str] = (),
    search: Search = Search(),
    force: bool = False,
    where: Where = Where(),
) -> Summary:
    """Label rows of `manifest` with the run in `folder`, and write all rows to the manifest `target`.

    Labelled are the rows of `splits`, by default the run's training splits (all rows of a manifest that has no splits); others
    are copied. `kind`: "plain" reads them as if nothing was known, greedily or as the `search` asks. "keep-known" puts what it
    reads into the gaps, as `starseq.jobs.complete.complete` does, however sure it is. What is known stays to the byte. "confident"
    does so too, and leaves out labels with a confidence below `threshold`: there a gap stays open. A run with an error on dev above
    50 % raises for either, unless `force` is given. `also` are runs with the same tokens whose opinion counts as much where known
    labels are kept: transcripts are ranked by the mean of all log P(y|x), and confidences are means. Where `manifest` is the run's
    own and its recipe drops labels on the fly, what it dropped is unknown here too.

    A row gets `text`, `gaps`, `text_partial`, `confidence`, `added`, `refused` and `source` (docs/training.md). A row
    that cannot be aligned comes out as it was, and is listed in ``STEM.failed.jsonl``; of the kind "plain" one in which nothing
    was read is listed alone. A file that cannot be read raises, or with ``where.skip_bad`` its row is listed too.
    ``STEM.left.jsonl`` lists the gaps that stay open and the rows without one, as `starseq.jobs.complete.complete` does.
    ``STEM.summary.json`` counts. A job that was stopped goes on where it was.
    """
    target, run = Path(target), runs.load(folder)
    several = [run, *map(runs.load, also)]
    _check_others(several, kind)
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is none of {', '.join(KINDS)}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: {threshold} is not a confidence from 0 to 1")
    if kind != "plain":
        check_reads(run, force)
    own = _is_own(run, manifest)
    dropper = build.dropper(run.recipe) if own else None
    rows = Rows(manifest, _splits(run, manifest, splits), prepare=_prepare(run, dropper))
    method = method_of(several, search, kind)
    first, *others = map(_origin, several)
    source: dict[str, Any] = {
        **first,
        **({"also": others} if others else {}),
        "kind": kind,
        **({"threshold": threshold} if kind == "confident" else {}),
        **method.settings,
        "starseq": __version__,
    }
    dropped = None if dropper is None else asdict(dropper)
    settings = {**source, "manifest": hash_of(manifest)[:16], "splits": rows.splits, "drop": dropped}
    summary = Summary(target, settings)
    failed = _beside(target, "failed.jsonl")
    for path in (target, failed, _beside(target, "left.jsonl"), _beside(target, "summary.json")):
        check_target(path, manifest)

    processes = 0 if method.settings["method"] == "greedy" else where.workers
    with work_ahead(method.make(), processes) as submit:
        scorer = search.scorer(run, where.torch_device)  # here: forked workers need none
        label = Labeller(several, kind, threshold, source, scorer, method.weights)

        def work(*emissions: runs.Emission) -> Callable[[], Record]:
            mine, frames = emissions[0], [emission.log_probs.numpy() for emission in emissions]
            if kind != "plain" and label.known(mine.row).complete:
                return lambda: label(emissions, ())
            found = submit(mine.id, frames, mine.labels.numpy(), mine.open.numpy())

            def labelled() -> Record:
                try:
                    candidates = found()
                except ValueError as error:
                    raise mended(run, error) from None
                return label(emissions, candidates)

            return labelled

        job = Job(work, settings, failed, None if kind == "plain" else label.kept, in_flight=2 * processes)
        if own and where.root is None:
            where = replace(where, root=data_root(run.recipe, run.folder))
        stream(several, rows, target, job, lambda records: _write(rows, records, summary), where)
    return summary


def _write(rows: Rows, records: Iterator[Record], summary: Summary) -> None:
    """All rows in the manifest's order: as they were labelled, or of another split and as they are. The summary comes last."""
    rebase = rebaser(rows.manifest, summary.target)
    with (
        rows_writer(summary.target, labelled=False) as writer,
        atomic_writer(_beside(summary.target, "left.jsonl")) as listing,
    ):
        for row in read_manifest(rows.manifest, labelled=False):
            if not rows.has(row):
                summary.other += 1
                writer.write(rebase(row))
                continue
            record = next(records)
            done = record.get("done")
            if done is not None:
                writer.write(Row(done["row"]))
                for line in done["left"]:
                    listing.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            summary.add(record)
        # Every utterance that went in is out or among the failed; nothing is written otherwise.
        if next(records, None) is not None or writer.rows != summary.out + summary.other:
            raise DataError(f"{summary.target}: {summary.rows} rows were labelled, and {writer.rows} came out")
    write_text(
        _beside(summary.target, "summary.json"), json.dumps(summary.to_dict(), indent=1, ensure_ascii=False) + "\n"
    )


def _check_others(several: Sequence[runs.Run], kind: Kind) -> None:
    run, *others = several
    if others and kind == "plain":
        raise ValueError("also: the kind 'plain' is what one run reads")
    for other in others:
        if other.tokeniser.vocabulary.tokens != run.tokeniser.vocabulary.tokens:
            raise DataError(f"{other.folder}: its tokens are not those of {run.folder}")


def _origin(run: runs.Run) -> dict[str, str]:
    """The run's name, and the beginning of its model's hash."""
    return {"run": Path(os.path.realpath(run.folder)).name, "model": hash_of(run.weights)[:16]}


def _is_own(run: runs.Run, manifest: PathLike) -> bool:
    """Whether the run was trained on this manifest."""
    data = run.recipe.data
    return not (data.root is None and data.corpus is None) and (
        os.path.realpath(run.manifest) == os.path.realpath(manifest)
    )


def _splits(run: runs.Run, manifest: PathLike, wanted: Sequence[str]) -> list[str] | None:
    """The splits to label; None for all of a manifest that has no splits."""
    there = splits_of(manifest, wanted)
    if not wanted and list(there) == [None]:
        return None
    chosen = list(dict.fromkeys(wanted)) or [split for split in run.recipe.data.splits.train if split in there]
    if not chosen:
        splits_of(manifest, run.recipe.data.splits.train)  # raises: none of them is there
    return chosen


def _prepare(run: runs.Run, dropper: Dropper | None) -> Callable[[Row], Row] | None:
    """Rows of the training splits as training saw them."""
    splits = run.recipe.data.splits.train
    return None if dropper is None else lambda row: dropper(row).row if row.get("split") in splits else row


def _beside(target: Path, ending: str) -> Path:
    """A file that belongs to `target`.

    >>> _beside(Path("out/labels.jsonl"), "failed.jsonl").as_posix()
    'out/labels.failed.jsonl'
    """
    return target.with_name(f"{target.stem}.{ending}")
