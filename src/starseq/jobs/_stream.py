"""What jobs share that go through a manifest with a model, row by row: they stream, and go on where they were stopped."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, check_target, locked, write_text
from starseq.data.manifest import ManifestError, Progress, Row, manifest_writer, read_manifest, rebaser
from starseq.text.known import known_text
from starseq.text.tokeniser import Tokeniser

__all__ = ["WHOLE", "Counts", "Places", "Shard", "outside_vocabulary", "places_of", "shard_of", "state_of", "stream"]

_LARGEST_BLOCK, _FEWEST_BLOCKS = 64, 64

Record = dict[str, Any]
Work = Callable[..., "Record | Callable[[], Record]"]
"""the emission of a row, and those of other runs, to its record"""


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


@dataclass(frozen=True)
class Shard:
    """The part of a job that one process does: number `index` of `count`, from 1 on.

    Rows are dealt out in blocks, in turn: block b goes to shard b mod count. A block is so many rows in a row as `block` says
    of all of them: at most 64, and fewer where there are few, so that 64 shards have something to do.

    >>> Shard.parse("2/3"), str(Shard(2, 3))
    (Shard(index=2, count=3), '2-of-3')
    >>> Shard.block(18), Shard.block(1000), Shard.block(10**6)
    (1, 15, 64)
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(
                f"shard: {self.index}/{self.count} is not one of 1/{self.count} to {self.count}/{self.count}"
            )

    def __str__(self) -> str:
        return f"{self.index}-of-{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``i/n``; anything else is a `ValueError`."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(count)):
            raise ValueError(f"shard: {text!r} does not read like 2/4, the second of four")
        return cls(int(index), int(count))

    @staticmethod
    def block(rows: int) -> int:
        return max(1, min(_LARGEST_BLOCK, rows // _FEWEST_BLOCKS))


WHOLE = Shard(1, 1)


def shard_of(position: int, rows: int, count: int) -> int:
    """Which of `count` shards, from 0 on, has the row at `position` of all `rows`.

    >>> [shard_of(position, 6, 4) for position in range(6)]
    [0, 1, 2, 3, 0, 1]
    """
    return position // Shard.block(rows) % count


def outside_vocabulary(tokeniser: Tokeniser, row: Row) -> list[str]:
    """Known labels that a run cannot write, and that what it reads therefore lacks."""
    return list(known_text(tokeniser, row.text, marked=row.marked).unknown)


def state_of(path: str | os.PathLike[str]) -> list[Any]:
    """What tells one state of a file from another without reading it."""
    state = os.stat(path)
    return [os.path.realpath(path), state.st_size, state.st_mtime_ns]


def stream(
    run: runs.Run,
    manifest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    work: Work,
    write: Callable[[Iterator[Record]], None],
    *,
    settings: Mapping[str, Any],
    also: Sequence[runs.Run] = (),
    split: str | Collection[str] | None = None,
    prepare: Callable[[Row], Row] | None = None,
    shard: Shard = WHOLE,
    failed: Path | None = None,
    kept: Callable[[Row], Record] | None = None,
    in_flight: int = 0,
    device: str = "cpu",
    root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Counts:
    """`work` on the emissions of every row, and `write` the records to `target` when all are there.

    `work` gets the row's emission of `run`, then those of the runs in `also`, which `settings` have to name.
    Rows are those of `split`, one or several (None: all), changed by `prepare`, and of them the `shard`. They go through the
    model block by block, so that what a row gets depends on its block alone: on no shard, and on no stop. The records of a block
    go to a hidden file beside `target`. A job with the same run, manifest and settings that finds one goes on behind its last
    whole block; with others it begins anew. `work` may give a function in place of a record, for what other processes do: it is
    called when `in_flight` more rows are under way. A row for which either raises ValueError is listed in `failed`,
    ``failed.jsonl`` beside `target`; a file that cannot be read raises, or with `skip_bad` is listed too. With `kept` such rows
    are listed and come out, too: it makes their records. Paths in `Emission.row` are relative to the folder of `target`.
    """
    target = Path(target)
    failed = target.with_name("failed.jsonl") if failed is None else failed
    for path in (target, failed):
        check_target(path, manifest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, target.with_name(f".{target.name}.lock")):
        partial, wanted, rest = (target.with_name(f".{target.name}.{part}") for part in ("partial", "settings", "rest"))
        chosen = None if split is None else [split] if isinstance(split, str) else list(split)
        total = sum(1 for _ in _rows_of(manifest, chosen))
        if not total:
            raise DataError(f"{os.fspath(manifest)}: no row is in the split {' or '.join(map(repr, chosen or ()))}")
        size, rebase = Shard.block(total), rebaser(manifest, rest)
        key = json.dumps(
            {
                "model": state_of(run.folder / "model.safetensors"),
                "manifest": state_of(manifest),
                "split": chosen,
                "shard": str(shard),
                "block": size,
                **settings,
            },
            sort_keys=True,
        )
        if not (partial.exists() and wanted.exists() and wanted.read_text() == key):
            partial.unlink(missing_ok=True)  # first: killed in between, old records must not pass for new ones
            write_text(wanted, key)
        mine = sum(shard_of(position, total, shard.count) == shard.index - 1 for position in range(total))
        done, length = _taken_up(partial, size, mine)
        inside = Path(manifest).parent if root is None else root
        try:
            with open(partial, "ab") as file:
                file.truncate(length)
                for rows in islice(_blocks(_rows_of(manifest, chosen), size, shard), -(-done // size), None):
                    rows = [rebase(row if prepare is None else prepare(row)) for row in rows]
                    bad: dict[str, str] = {}
                    records: dict[str, Record] = {}
                    while len(records) < len(rows):
                        good = [row for row in rows if row.id not in bad]
                        with manifest_writer(rest, labelled=False, checked=True) as writer:
                            for row in good:
                                writer.write(row)
                        # Anew after a bad file: in a batch that it broke up, the other rows would get other bits.
                        records = {row.id: _failure(row, bad[row.id], kept) for row in rows if row.id in bad}
                        try:
                            for id, record in (
                                _worked((run, *also), rest, work, kept, in_flight, device, inside) if good else ()
                            ):
                                records[id] = record
                                if progress is not None:
                                    progress(done + len(records), mine)
                        except ManifestError as error:
                            row = good[error.line - 1]
                            if not skip_bad:
                                raise ManifestError(manifest, row.line, error.reason) from None
                            bad[row.id] = error.reason
                    file.write(b"".join(_line(records[row.id]) for row in rows))
                    file.flush()
                    os.fsync(file.fileno())
                    done += len(rows)
            count = _write_failed(partial, failed)
            write(record["done"] for record in _records(partial) if "done" in record)
        finally:
            rest.unlink(missing_ok=True)
        partial.unlink()
        wanted.unlink()
        return Counts(mine - count, count)


def _worked(
    several: Sequence[runs.Run], rest: Path, work: Work, kept: Callable[[Row], Record] | None, in_flight: int, device: str,
    root: str | os.PathLike[str],
) -> Iterator[tuple[str, Record]]:  # fmt: skip
    """The records of the rows in `rest`, in order, each with its id."""
    waiting: deque[tuple[str, Callable[[], Record]]] = deque()
    for emissions in zip(*(runs.emissions(run, rest, device=device, root=root) for run in several), strict=True):
        waiting.append((emissions[0].id, _begun(work, kept, emissions)))
        if len(waiting) > in_flight:
            id, record = waiting.popleft()
            yield id, record()
    for id, record in waiting:
        yield id, record()


def _begun(
    work: Work, kept: Callable[[Row], Record] | None, emissions: Sequence[runs.Emission]
) -> Callable[[], Record]:
    """Begins the work on a row, and gives what waits for its record: done, or failed."""
    row = emissions[0].row
    try:
        result = work(*emissions)
    except ValueError as error:
        failure = _failure(row, error, kept)
        return lambda: failure

    def record() -> Record:
        try:
            return {"done": result() if callable(result) else result}
        except ValueError as error:
            return _failure(row, error, kept)

    return record


def _failure(row: Row, reason: object, kept: Callable[[Row], Record] | None) -> Record:
    failed = {"failed": {"id": row.id, "reason": " ".join(str(reason).split())}}
    return failed if kept is None else {**failed, "done": kept(row)}


def _line(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _taken_up(partial: Path, block: int, rows: int) -> tuple[int, int]:
    """How many of the `rows` a stopped job has done, in whole blocks, and the bytes that they take."""
    ends = [0]
    if partial.exists():
        with open(partial, "rb") as file:
            for line in file:
                try:
                    json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                ends.append(ends[-1] + len(line))
    done = min(len(ends) - 1, rows)
    if done < rows:
        done -= done % block
    return done, ends[done]


def _records(partial: Path) -> Iterator[Record]:
    with open(partial, "rb") as file:
        yield from map(json.loads, file)


def _rows_of(manifest: str | os.PathLike[str], splits: Collection[str] | None) -> Iterator[Row]:
    return (
        row for row in read_manifest(manifest, labelled=False) if splits is None or row.get("split") in splits
    )  # fmt: skip


def _blocks(rows: Iterator[Row], size: int, shard: Shard) -> Iterator[list[Row]]:
    """The blocks of a shard."""
    number = 0
    while block := list(islice(rows, size)):
        if number % shard.count == shard.index - 1:
            yield block
        number += 1


def _write_failed(partial: Path, path: Path) -> int:
    """The rows that failed, even if none did, so that an old file never passes for new. How many they are."""
    count = 0
    with atomic_writer(path) as file:
        for record in _records(partial):
            if "failed" in record:
                file.write(_line(record["failed"]))
                count += 1
    return count
