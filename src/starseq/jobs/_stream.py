"""What jobs share that go through a manifest with a model, row by row, on several processes; stopped, they go on."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, check_target, locked, write_text
from starseq.data.manifest import ManifestError, Row, manifest_writer, read_manifest, rebaser
from starseq.jobs._where import PathLike, Where
from starseq.text.known import known_text
from starseq.text.tokeniser import Tokeniser

__all__ = ["Job", "Places", "Rows", "outside_vocabulary", "places_of", "splits_of", "state_of", "stream"]

_LARGEST_BLOCK, _FEWEST_BLOCKS = 64, 64

Record = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """What a frame of the model's output is for the user: seconds, or pixel columns of the line image."""

    unit: str
    scale: float

    def __call__(self, frame: int) -> float:
        return round(frame * self.scale, 3)


def places_of(run: runs.Run, row: Row) -> Places:
    """Columns are those of the file where the manifest states its width and height, else those of the scaled line."""
    if run.seconds_per_frame is not None:
        return Places("seconds", run.seconds_per_frame)
    scaled, width = run.reader.size(row), row.get("width")
    return Places("columns", run.stride * (width / scaled if scaled and width else 1.0))


def outside_vocabulary(tokeniser: Tokeniser, row: Row) -> list[str]:
    """Known labels that a run cannot write, and that what it reads therefore lacks."""
    return list(known_text(tokeniser, row.text, marked=row.marked).unknown)


def state_of(path: PathLike) -> list[Any]:
    """What tells one state of a file from another without reading it."""
    state = os.stat(path)
    return [os.path.realpath(path), state.st_size, state.st_mtime_ns]


def splits_of(manifest: PathLike, wanted: Iterable[str] = ()) -> dict[str | None, list[int]]:
    """The splits of a manifest, each with its rows that lack a complete text, and those that have one. A wanted split that is not
    there is a `DataError`."""
    there: dict[str | None, list[int]] = {}
    for row in read_manifest(manifest, labelled=False):
        there.setdefault(row.get("split"), [0, 0])[row.complete] += 1
    for split in wanted:
        if split not in there:
            names = ", ".join(sorted(split for split in there if split)) or "none"
            raise DataError(f"{os.fspath(manifest)}: no row of split {split!r} (there are {names})")
    return there


@dataclass(frozen=True)
class Rows:
    """The rows that a job is about: of some splits (None: of all) those that `keep` likes, changed by `prepare`."""

    manifest: PathLike
    splits: Collection[str] | None = None
    keep: Callable[[Row], bool] | None = None
    prepare: Callable[[Row], Row] | None = None

    def has(self, row: Row) -> bool:
        return (self.splits is None or row.get("split") in self.splits) and (self.keep is None or self.keep(row))

    def __iter__(self) -> Iterator[Row]:
        return filter(self.has, read_manifest(self.manifest, labelled=False))


@dataclass(frozen=True)
class Job:
    """What a verb does with a row.

    `work` gets the row's emissions, one of each run, and gives a record, or a function that waits for it: that is called when
    `in_flight` more rows are under way. A row for which either raises ValueError is listed in the file `failed`; without one it
    raises. `kept` makes the record of such a row, if it is to come out nevertheless. `settings` are all that decides what comes
    out, besides the first run and the rows.
    """

    work: Callable[..., Record | Callable[[], Record]]
    settings: Mapping[str, Any]
    failed: Path | None = None
    kept: Callable[[Row], Record] | None = None
    in_flight: int = 0

    def begun(self, emissions: Sequence[runs.Emission]) -> Callable[[], Record]:
        """Begins the work on a row, and gives what waits for its record: done, or failed."""
        row = emissions[0].row
        try:
            result = self.work(*emissions)
        except ValueError as error:
            failure = self.failure(row, error)
            return lambda: failure

        def record() -> Record:
            try:
                return {"done": result() if callable(result) else result}
            except ValueError as error:
                return self.failure(row, error)

        return record

    def failure(self, row: Row, reason: ValueError | str) -> Record:
        if self.failed is None:
            raise reason if isinstance(reason, ValueError) else DataError(reason)
        failed = {"failed": {"id": row.id, "reason": " ".join(str(reason).split())}}
        return failed if self.kept is None else {**failed, "done": self.kept(row)}


def stream(
    several: Sequence[runs.Run],
    rows: Rows,
    target: Path,
    job: Job,
    write: Callable[[Iterator[Record]], None],
    where: Where,
) -> None:
    """Does the `job` on every row with the runs in `several`, and calls `write` with all records, in the manifest's order.

    A record has ``done``, what the job gives, or ``failed``, a row's id and the reason, or both. Rows go through the models block
    by block, so that what a row gets depends on its block alone. Blocks are dealt out to the processes in `where`; the first one
    writes. What is done goes to hidden files beside `target`, a line for each block. A job with the same runs, rows and settings
    goes on from there, on as many processes as it has then; with others it begins anew. A file that cannot be read raises
    `ManifestError`, or with ``where.skip_bad`` its row failed. Paths in `Emission.row` are relative to the folder of `target`.
    """
    where = replace(where, device=where.torch_device)
    ranks, parts = where.ranks, _Parts(target)
    for path in (target, *([] if job.failed is None else [job.failed])):
        check_target(path, rows.manifest)
    target.parent.mkdir(parents=True, exist_ok=True)
    total = sum(1 for _ in rows)
    if not total:
        names = " or ".join(map(repr, rows.splits or ()))
        raise DataError(f"{os.fspath(rows.manifest)}: no row is in the split {names}")
    size = max(1, min(_LARGEST_BLOCK, total // _FEWEST_BLOCKS))
    blocks = -(-total // size)
    with locked(target, parts.hidden("lock" if ranks.first else f"lock-{ranks.index + 1}")):
        if ranks.first:
            found = {"model": state_of(several[0].weights), "manifest": state_of(rows.manifest)}
            chosen = None if rows.splits is None else list(rows.splits)
            parts.settle({**found, "split": chosen, "block": size, **job.settings})
        ranks.begin()
        left = [number for number in range(blocks) if ranks.mine(number)]
        there = parts.done()
        counts = [min(size, total - number * size) for number in left]
        done = sum(count for number, count in zip(left, counts, strict=True) if number in there)
        with parts.appending(ranks.index) as append:
            worker = _Worker(several, rows, job, where, parts.hidden(f"rest-{ranks.index + 1}"), done, sum(counts))
            for number, block in enumerate(_blocks(iter(rows), size)):
                if ranks.mine(number) and number not in there:
                    append(number, worker.records(block))
        ranks.finish()
        if job.failed is not None:  # even if none did, so that an old file never passes for new
            with atomic_writer(job.failed) as file:
                file.writelines(_line(record["failed"]) for record in parts.records(blocks) if "failed" in record)
        write(parts.records(blocks))
        parts.remove()
        for path in parts.files("rest", "lock"):  # of processes that were killed
            path.unlink()


class _Parts:
    """What is done of a job: hidden files beside its target, one for each process, a line for each block."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._wanted = self.hidden("settings")

    def hidden(self, part: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{part}")

    def files(self, *kinds: str) -> list[Path]:
        starts = tuple(self.hidden(f"{kind}-").name for kind in kinds or ("part",))
        return sorted(path for path in self._target.parent.iterdir() if path.name.startswith(starts))

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Removes what was done with other settings, and writes these down."""
        key = json.dumps(settings, sort_keys=True)
        if not (self._wanted.exists() and self._wanted.read_text() == key):
            self.remove()
            write_text(self._wanted, key)

    def remove(self) -> None:
        for path in (
            *self.files(),
            self._wanted,
        ):  # parts first: killed in between, old records must not pass for new ones
            path.unlink(missing_ok=True)

    def done(self) -> dict[int, tuple[Path, int]]:
        """The file and the place of each block that is done."""
        return {number: (path, start) for path in self.files() for number, start, _ in _whole_lines(path)}

    def appending(self, index: int) -> _Appending:
        return _Appending(self.hidden(f"part-{index + 1}"))

    def records(self, blocks: int) -> Iterator[Record]:
        """All records, in the order of their blocks."""
        there = self.done()
        if len(there) != blocks:
            raise DataError(
                f"{self._target}: {blocks - len(there)} blocks of rows are not there: do all processes see one disk?"
            )
        for number in range(blocks):
            path, start = there[number]
            with open(path, "rb") as file:
                file.seek(start)
                yield from json.loads(file.readline())[1]


class _Appending:
    """Appends blocks to a file, each on the disk before the next; half of one, from a process that was killed, is cut off."""

    def __init__(self, path: Path) -> None:
        length = max((end for *_, end in _whole_lines(path)), default=0) if path.exists() else 0
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(length)

    def __enter__(self) -> Callable[[int, list[Record]], None]:
        return self._append

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _append(self, number: int, records: list[Record]) -> None:
        self._file.write(_line([number, records]))
        self._file.flush()
        os.fsync(self._file.fileno())


def _whole_lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """Block, start and end of the lines that were written to their end."""
    start = 0
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"]\n"):
                return
            yield int(line[1 : line.index(b",")]), start, start + len(line)
            start += len(line)


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _blocks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while block := list(islice(rows, size)):
        yield block


class _Worker:
    """Makes the records of blocks."""

    def __init__(
        self, several: Sequence[runs.Run], rows: Rows, job: Job, where: Where, rest: Path, done: int, total: int
    ) -> None:
        self._several, self._rows, self._job, self._where, self._rest = several, rows, job, where, rest
        self._done, self._total = done, total
        """rows of this process"""

    def records(self, block: Sequence[Row]) -> list[Record]:
        rebase, prepare = rebaser(self._rows.manifest, self._rest), self._rows.prepare
        rows = [rebase(row if prepare is None else prepare(row)) for row in block]
        records: dict[str, Record] = {}
        bad: dict[str, str] = {}
        try:
            while len(records) < len(rows):
                good = [row for row in rows if row.id not in bad]
                # Anew after a bad file: in a batch that it broke up, the other rows would get other bits.
                records = {row.id: self._job.failure(row, bad[row.id]) for row in rows if row.id in bad}
                try:
                    for id, record in self._worked(good):
                        records[id] = record
                        self._where.step(self._done + len(records), self._total)
                except ManifestError as error:
                    row = good[error.line - 1]
                    if not self._where.skip_bad:
                        raise ManifestError(self._rows.manifest, row.line, error.reason) from None
                    bad[row.id] = error.reason
        finally:
            self._rest.unlink(missing_ok=True)
        self._done += len(rows)
        return [records[row.id] for row in rows]

    def _worked(self, rows: Sequence[Row]) -> Iterator[tuple[str, Record]]:
        """The records of rows, in order, each with its id."""
        if not rows:
            return
        with manifest_writer(self._rest, labelled=False, checked=True) as writer:
            for row in rows:
                writer.write(row)
        root = Path(self._rows.manifest).parent if self._where.root is None else self._where.root
        waiting: deque[tuple[str, Callable[[], Record]]] = deque()
        emitted = (runs.emissions(run, self._rest, device=self._where.device, root=root) for run in self._several)
        for emissions in zip(*emitted, strict=True):
            waiting.append((emissions[0].id, self._job.begun(emissions)))
            if len(waiting) > self._job.in_flight:
                id, record = waiting.popleft()
                yield id, record()
        for id, record in waiting:
            yield id, record()
