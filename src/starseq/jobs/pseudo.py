"""`starseq pseudo`: a run labels a training manifest, and another model may train on what it says."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starseq import __version__, runs
from starseq.config import build
from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.exports import rows_writer
from starseq.data.files import atomic_writer, check_target, hash_of, write_text
from starseq.data.manifest import ManifestWriter, Progress, Row, read_manifest, rebaser
from starseq.decode.workers import work_ahead
from starseq.jobs._fill import check_reads, lines_of, mended, with_left
from starseq.jobs._label import KINDS, Kind, Labeller, method_of, scorer_for
from starseq.jobs._stream import WHOLE, Shard, shard_of, stream
from starseq.jobs.decode import BeamReader
from starseq.jobs.evaluate import Scores, device_of
from starseq.runs.folder import data_root
from starseq.text.error_rate import ErrorCounts

__all__ = ["KINDS", "THRESHOLD", "Kind", "Summary", "pseudo"]

BINS = 20
THRESHOLD = 0.9
"""of a confident label"""

PathLike = str | os.PathLike[str]


# --- what comes out ---------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What adds up over rows, and so over shards."""

    labels: Counter[str] = field(default_factory=Counter)
    """known, added, taken out, and those of the known that are outside of the run's vocabulary"""
    gaps: Counter[str] = field(default_factory=Counter)
    """filled, left (open in what comes out), and the rows that were left untouched"""
    scores: dict[str, Scores] = field(default_factory=dict)
    """of the labels that there were, "partial", and that there are now, "pseudo", against the complete texts"""

    def add(self, labels: Mapping[str, int], gaps: Mapping[str, int], scores: Mapping[str, Scores]) -> None:
        self.labels.update(labels)
        self.gaps.update(gaps)
        for name, more in scores.items():
            self.scores[name] = _sum(self.scores[name], more) if name in self.scores else more


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
    tally: Tally = field(default_factory=Tally)

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

    def add(self, row: Row) -> None:
        self.done += 1
        self.total += row["confidence"]
        self.histogram[min(int(BINS * row["confidence"]), BINS - 1)] += 1

    def to_dict(self) -> dict[str, Any]:
        mean = self.confidence
        return {
            "rows": {"in": self.rows, "out": self.out, "failed": self.failed, "other": self.other},
            "labels": {name: self.tally.labels[name] for name in ("known", "added", "taken_out", "outside_vocabulary")},
            "gaps": {name: self.tally.gaps[name] for name in ("filled", "left", "untouched")},
            "confidence": {"mean": None if mean is None else round(mean, 4), "histogram": self.histogram},
            "errors": {name: scores.to_dict() for name, scores in sorted(self.tally.scores.items())},
            "settings": self.settings,
        }

    def report(self) -> str:
        """A few lines of text."""
        labels, mean = self.tally.labels, self.confidence
        lines = [f"{self.target}: {self.done:,} of {self.rows:,} rows labelled, {self.other:,} rows of other splits"]
        parts = [f"{labels['known']:,} known", f"{labels['added']:,} added"]
        if "threshold" in self.settings:
            parts.append(f"{labels['taken_out']:,} below {self.settings['threshold']:g} taken out")
        if labels["outside_vocabulary"]:
            parts.append(f"{labels['outside_vocabulary']:,} of the known are outside of the run's vocabulary")
        lines.append(f"labels: {', '.join(parts)}; mean confidence {'-' if mean is None else f'{mean:.4f}'}")
        gaps = self.tally.gaps
        lines.append(
            f"{gaps['filled']:,} gaps filled, {gaps['left']:,} gaps left, {gaps['untouched']:,} rows untouched, "
            f"{self.failed:,} rows failed"
        )
        for name, scores in sorted(self.tally.scores.items()):
            rates = f"WER {scores.words.percent:.2f} %, CER {scores.characters.percent:.2f} %"
            lines.append(f"{name} labels: {rates} on {scores.sentences:,} rows with a complete text")
        return "\n".join(lines)


def _sum(one: Scores, other: Scores) -> Scores:
    return Scores(
        one.words + other.words, one.characters + other.characters, one.right + other.right,
        one.sentences + other.sentences,
    )  # fmt: skip


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
    lm: PathLike | None = None,
    lexicon: PathLike | None = None,
    rescore: PathLike | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    rescore_alpha: float | None = None,
    rescore_beta: float | None = None,
    beam: int | None = None,
    beam_tokens: int = 50,
    force: bool = False,
    workers: int = 0,
    device: str = "auto",
    root: PathLike | None = None,
    skip_bad: bool = False,
    shard: Shard | None = None,
    merge: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Label rows of `manifest` with the run in `folder`, and write all rows to the manifest `target`.

    Labelled are the rows of `splits`, by default the run's training splits (all rows of a manifest that has no splits); others
    are copied. `kind`: "plain" reads them as if nothing was known: greedily, or with `lm`, `lexicon`, `beam` or `beta` by beam
    search. "keep-known" puts what it reads into the gaps, as `starseq.jobs.complete.complete` does, however sure it is. What is
    known stays to the byte. "confident" does so too, and leaves out labels with a confidence below `threshold`: there a gap stays
    open. A run with an error on dev above 50 % raises for either, unless `force` is given. `rescore` reorders the n best of either
    search. `also` are runs with the same tokens whose opinion counts as much where known labels are kept: transcripts are ranked
    by the mean of all log P(y|x), and confidences are means. Weights that are None are those of ``tuned.json``. Where
    `manifest` is the run's own and its recipe drops labels on the fly, what it dropped is unknown here too.

    A row gets `text`, `gaps`, `text_partial`, `confidence`, `added`, `refused` and `source` (docs/training.md). A row
    that cannot be aligned comes out as it was, and is listed in ``STEM.failed.jsonl``; of the kind "plain" one in which nothing
    was read is listed alone. A file that cannot be read raises, or with `skip_bad` its row is listed too. ``STEM.left.jsonl``
    lists the gaps that stay open and the rows without one, as `starseq.jobs.complete.complete` does. ``STEM.summary.json``
    counts. A job that was stopped goes on where it was.

    `shard` does a part, into ``STEM.1-of-4.jsonl`` and so on; with `merge` the parts of so many shards become `target`, to the
    byte what one job writes. All other arguments have to be the same; if not, or if a shard is not whole, `DataError` says so.
    """
    target, run = Path(target), runs.load(folder)
    others = [runs.load(other) for other in also]
    _check_others(run, others, kind)
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is none of {', '.join(KINDS)}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: {threshold} is not a confidence from 0 to 1")
    if merge is not None and (shard is not None or merge < 1):
        raise ValueError("merge: the number of shards that are done, without a shard to do")
    if kind != "plain" and merge is None:
        check_reads(run, force)
    own = _is_own(run, manifest)
    chosen = _splits(run, manifest, splits)
    dropper = build.dropper(run.recipe) if own else None
    reader = BeamReader(lm, lexicon, rescore, alpha, beta, rescore_alpha, rescore_beta, device=device_of(device))
    method = method_of([run, *others], reader, kind, beam, beam_tokens)
    source: dict[str, Any] = {
        **_origin(run),
        **({"also": [_origin(other) for other in others]} if others else {}),
        "kind": kind,
        **({"threshold": threshold} if kind == "confident" else {}),
        **method.settings,
        "starseq": __version__,
    }
    dropped = None if dropper is None else asdict(dropper)
    settings = {**source, "manifest": hash_of(manifest)[:16], "splits": chosen, "drop": dropped}
    summary = Summary(target if shard is None else _beside(target, f"{shard}.jsonl"), settings)
    failed = _beside(summary.target, "failed.jsonl")
    for path in (summary.target, failed, *(_beside(summary.target, name) for name in ("left.jsonl", "summary.json"))):
        check_target(path, manifest)
    if merge is not None:
        parts = [_read_part(target, Shard(index, merge), summary) for index in range(1, merge + 1)]
        return _assemble(manifest, chosen, parts, summary, progress)

    processes = 0 if method.settings["method"] == "greedy" else workers
    with work_ahead(method.make(), processes) as submit:
        scorer = None if rescore is None else scorer_for(run, reader)  # here: forked workers need none
        label = Labeller([run, *others], kind, threshold, source, scorer, method.weights)

        def work(*emissions: runs.Emission) -> Callable[[], dict[str, Any]]:
            mine, frames = emissions[0], [emission.log_probs.numpy() for emission in emissions]
            if kind != "plain" and label.known(mine.row).complete:
                return lambda: label(emissions, ())
            found = submit(mine.id, frames, mine.labels.numpy(), mine.open.numpy())

            def labelled() -> dict[str, Any]:
                try:
                    candidates = found()
                except ValueError as error:
                    raise mended(run, error) from None
                return label(emissions, candidates)

            return labelled

        def write(records: Iterator[dict[str, Any]]) -> None:
            rows = _counted(records, summary.tally)
            if shard is None:
                _assemble(manifest, chosen, [_Part(os.fspath(target), rows, lines_of(failed))], summary)
            else:
                _write_part(rows, summary)

        stream(
            run, manifest, summary.target, work, write, settings=settings, also=others, split=chosen,
            prepare=_prepare(run, dropper), shard=WHOLE if shard is None else shard, failed=failed,
            kept=None if kind == "plain" else label.kept,
            in_flight=2 * processes, device=reader.device, skip_bad=skip_bad, progress=progress,
            root=data_root(run.recipe, run.folder) if own and root is None else root,
        )  # fmt: skip
    return summary


def _check_others(run: runs.Run, others: Sequence[runs.Run], kind: Kind) -> None:
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
    there = {row.get("split") for row in read_manifest(manifest, labelled=False)}
    chosen = list(dict.fromkeys(wanted or run.recipe.data.splits.train))
    if not wanted and there == {None}:
        return None
    found = [split for split in chosen if split in there]
    if not found or (wanted and len(found) < len(chosen)):
        missing = next(split for split in chosen if split not in there)
        names = ", ".join(sorted(split for split in there if split)) or "none"
        raise DataError(f"{os.fspath(manifest)}: no row of split {missing!r} (there are {names})")
    return found


def _prepare(run: runs.Run, dropper: Dropper | None) -> Callable[[Row], Row] | None:
    """Rows of the training splits as training saw them."""
    splits = run.recipe.data.splits.train
    return None if dropper is None else lambda row: dropper(row).row if row.get("split") in splits else row


def _beside(target: Path, ending: str) -> Path:
    """A file that belongs to `target`.

    >>> _beside(Path("out/labels.jsonl"), "2-of-3.jsonl").as_posix()
    'out/labels.2-of-3.jsonl'
    """
    return target.with_name(f"{target.stem}.{ending}")


# --- files ------------------------------------------------------------------------------------------------------------


Labelled = tuple[Row, list[dict[str, Any]]]
"""a row, and its lines in the list of what was left"""


class _Part:
    """What one process has labelled: rows and failures, each in the manifest's order. A row that failed may be in both."""

    def __init__(self, name: str, rows: Iterable[Labelled], failed: Iterable[Mapping[str, Any]]) -> None:
        self.name, self._rows, self._failed = name, iter(rows), iter(failed)
        self._row, self._failure = next(self._rows, None), next(self._failed, None)

    def take(self, id: str) -> tuple[Labelled | None, Mapping[str, Any] | None]:
        """The row of this id, and why it failed."""
        row, failure = self._row, self._failure
        row = row if row is not None and row[0].id == id else None
        failure = failure if failure is not None and failure["id"] == id else None
        if row is None and failure is None:
            raise DataError(f"{self.name}: row {id!r} is neither there nor among the failed where the manifest has it")
        if row is not None:
            self._row = next(self._rows, None)
        if failure is not None:
            self._failure = next(self._failed, None)
        return row, failure

    def end(self) -> None:
        """Check that nothing is left."""
        left = self._row[0].id if self._row is not None else self._failure["id"] if self._failure is not None else None
        if left is not None:
            raise DataError(f"{self.name}: row {left!r} is not one of this manifest's")


def _counted(records: Iterable[Mapping[str, Any]], tally: Tally) -> Iterator[Labelled]:
    for record in records:
        tally.add(
            record["labels"], record["gaps"], {name: _read_scores(scores) for name, scores in record["scores"].items()}
        )
        yield Row(record["row"]), record["left"]


def _read_scores(record: Mapping[str, Any]) -> Scores:
    """The inverse of `Scores.to_dict`."""
    words, characters = (ErrorCounts(**record[name]) for name in ("words", "characters"))
    return Scores(words, characters, record["right"], record["sentences"])


@contextmanager
def _writers(target: Path) -> Iterator[tuple[ManifestWriter, Callable[[Labelled], None]]]:
    """For the manifest, and for a labelled row: it goes there, and its lines to the list of what was left."""
    with rows_writer(target, labelled=False) as writer, atomic_writer(_beside(target, "left.jsonl")) as listing:

        def write(found: Labelled) -> None:
            writer.write(found[0])
            for line in found[1]:
                listing.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

        yield writer, write


def _assemble(
    manifest: PathLike, splits: Sequence[str] | None, parts: Sequence[_Part], summary: Summary,
    progress: Progress | None = None,
) -> Summary:  # fmt: skip
    """Write all rows in the manifest's order: labelled by one of the parts, or of another split and as they are."""

    def is_chosen(row: Row) -> bool:
        return splits is None or row.get("split") in splits

    rebase = rebaser(manifest, summary.target)
    total = sum(map(is_chosen, read_manifest(manifest, labelled=False)))
    failures = []
    with _writers(summary.target) as (writer, write):
        for row in read_manifest(manifest, labelled=False):
            if not is_chosen(row):
                summary.other += 1
                writer.write(rebase(row))
                continue
            found, failure = parts[shard_of(summary.rows, total, len(parts))].take(row.id)
            if found is not None:
                write(found)
            if failure is not None:
                summary.failed += 1
                failures.append(json.dumps(failure, ensure_ascii=False) + "\n")
            elif found is not None:
                summary.add(found[0])
            if progress is not None:
                progress(summary.rows, total)
        for part in parts:
            part.end()
        # Every utterance that went in is out or among the failed; nothing is written otherwise.
        if not (summary.rows == total and writer.rows == summary.out + summary.other):
            raise DataError(f"{summary.target}: {total} rows went in, {summary.done} came out, {summary.failed} failed")
        write_text(_beside(summary.target, "failed.jsonl"), "".join(failures))
    _save(summary)
    return summary


def _save(summary: Summary) -> None:
    write_text(
        _beside(summary.target, "summary.json"), json.dumps(summary.to_dict(), indent=1, ensure_ascii=False) + "\n"
    )


def _write_part(rows: Iterable[Labelled], summary: Summary) -> None:
    """A shard's own files; the summary comes last and says that it is whole."""
    _beside(summary.target, "summary.json").unlink(missing_ok=True)
    failed = _beside(summary.target, "failed.jsonl")
    failures = {failure["id"] for failure in lines_of(failed)}
    with _writers(summary.target) as (_, write):
        for found in rows:
            write(found)
            if found[0].id not in failures:
                summary.add(found[0])
    summary.failed = len(failures)
    _save(summary)


def _read_part(target: Path, shard: Shard, summary: Summary) -> _Part:
    """The files of a shard, whole and of the same settings; its counts join the summary."""
    rows = _beside(target, f"{shard}.jsonl")
    path, failed, left = (_beside(rows, name) for name in ("summary.json", "failed.jsonl", "left.jsonl"))
    missing = next((file for file in (path, rows, failed, left) if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file: shard {shard.index}/{shard.count} is not done")
    try:
        record = json.loads(path.read_text())
        settings, counts = record["settings"], record["rows"]
        scores = {name: _read_scores(one) for name, one in record["errors"].items()}
        summary.tally.add(record["labels"], record["gaps"], scores)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}: damaged; do shard {shard.index}/{shard.count} again") from None
    wanted = json.loads(json.dumps(summary.settings))
    for name in dict.fromkeys((*wanted, *settings)):
        if settings.get(name) != wanted.get(name):
            raise DataError(
                f"{path}: the shard was made with another {name}: {settings.get(name)!r}, and here it is {wanted.get(name)!r}"
            )
    lines = [sum(1 for _ in open(file, "rb")) for file in (rows, failed)]  # noqa: SIM115
    if lines != [counts["out"], counts["failed"]]:
        raise DataError(
            f"{rows}: {lines[0]} rows and {lines[1]} failed, where its summary counts {counts}: do it again"
        )
    there = read_manifest(rows, labelled=False) if counts["out"] else ()
    return _Part(os.fspath(rows), with_left(there, left), lines_of(failed))
