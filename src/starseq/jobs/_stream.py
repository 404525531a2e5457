"""What jobs share that go through a manifest with a model, row by row: they stream, and go on where they were stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starseq import runs
from starseq.data.dataset import FeatureReader
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, write_text
from starseq.data.manifest import ManifestError, Progress, Row, manifest_writer, read_manifest, rebaser

__all__ = ["Counts", "Places", "places_of", "state_of", "stream"]

_FLUSH_EVERY = 20

Record = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """Rows that went in: those that came out, and those that failed, with their reasons in ``failed.jsonl``."""

    done: int
    failed: int

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
    reader = run.reader.source if isinstance(run.reader, FeatureReader) else run.reader
    scaled, width = reader.size(row), row.get("width")
    return Places("columns", run.stride * (width / scaled if scaled and width else 1.0))


def state_of(path: str | os.PathLike[str]) -> list[Any]:
    """What tells one state of a file from another without reading it."""
    state = os.stat(path)
    return [os.path.realpath(path), state.st_size, state.st_mtime_ns]


def stream(
    run: runs.Run,
    manifest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    work: Callable[[runs.Emission], Record],
    write: Callable[[Iterator[Record]], None],
    *,
    settings: Mapping[str, Any],
    split: str | None = None,
    device: str = "cpu",
    root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Counts:
    """`work` on the emissions of every row, and `write` the records to `target` when all are there.

    Records go to a hidden file beside `target` as they come. A job with the same run, manifest and settings that finds one goes
    on behind its last whole line; with others it begins anew. A row for which `work` raises ValueError is listed in
    ``failed.jsonl`` beside `target`; a file that cannot be read raises, or with `skip_bad` is listed too. Paths in
    `Emission.row` are relative to the folder of `target`.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, wanted, rest = (target.with_name(f".{target.name}.{part}") for part in ("partial", "settings", "rest"))
    key = json.dumps(
        {
            "model": state_of(run.folder / "model.safetensors"),
            "manifest": state_of(manifest),
            "split": split,
            **settings,
        },
        sort_keys=True,
    )
    if not (partial.exists() and wanted.exists() and wanted.read_text() == key):
        write_text(wanted, key)
        partial.unlink(missing_ok=True)
    ids, length = _taken_up(partial)
    try:
        with open(partial, "ab") as file:
            file.truncate(length)
            while True:
                total = _write_rest(manifest, rest, split, ids)
                if total == len(ids):
                    break
                inside = Path(manifest).parent if root is None else root
                try:
                    _go_on(run, rest, file, work, ids, total, device=device, root=inside, progress=progress)
                except ManifestError as error:
                    row = next((row for row in read_manifest(rest, labelled=False) if row.line == error.line), None)
                    if row is None or not skip_bad:
                        raise ManifestError(manifest, _line_of(manifest, row), error.reason) from None
                    _append(file, {"failed": {"id": row.id, "reason": error.reason}})
                    ids.add(row.id)
        failed = _write_failed(partial, target.with_name("failed.jsonl"))
        write(record["done"] for record in _records(partial) if "done" in record)
    finally:
        rest.unlink(missing_ok=True)
    partial.unlink()
    wanted.unlink()
    return Counts(len(ids) - failed, failed)


def _go_on(
    run: runs.Run, rest: Path, file: BinaryIO, work: Callable[[runs.Emission], Record], ids: set[str], total: int, *,
    device: str, root: str | os.PathLike[str], progress: Progress | None,
) -> None:  # fmt: skip
    unflushed = 0
    for emission in runs.emissions(run, rest, device=device, root=root):
        try:
            record = {"done": work(emission)}
        except ValueError as error:
            record = {"failed": {"id": emission.id, "reason": " ".join(str(error).split())}}
        _append(file, record)
        ids.add(emission.id)
        unflushed += 1
        if unflushed == _FLUSH_EVERY:
            file.flush()
            os.fsync(file.fileno())
            unflushed = 0
        if progress is not None:
            progress(len(ids), total)


def _append(file: BinaryIO, record: Record) -> None:
    file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _taken_up(partial: Path) -> tuple[set[str], int]:
    """The ids that a stopped job has done, and the bytes that they take."""
    ids: set[str] = set()
    length = 0
    if partial.exists():
        with open(partial, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    (record,) = json.loads(line).values()
                except ValueError:
                    break
                ids.add(record["id"])
                length += len(line)
    return ids, length


def _records(partial: Path) -> Iterator[Record]:
    with open(partial, "rb") as file:
        yield from map(json.loads, file)


def _write_rest(manifest: str | os.PathLike[str], rest: Path, split: str | None, done: set[str]) -> int:
    """Write the rows that are still to do, their paths seen from the folder of `rest`; the number of all rows."""
    rebase = rebaser(manifest, rest)
    total = 0
    with manifest_writer(rest, labelled=False, checked=True) as writer:
        for row in read_manifest(manifest, labelled=False):
            if split is None or row.get("split") == split:
                total += 1
                if row.id not in done:
                    writer.write(rebase(row))
    if not total:
        raise DataError(f"{os.fspath(manifest)}: no row is in the split {split!r}")
    return total


def _line_of(manifest: str | os.PathLike[str], wanted: Row | None) -> int:
    rows = read_manifest(manifest, labelled=False)
    return next((row.line for row in rows if wanted is not None and row.id == wanted.id), 0)


def _write_failed(partial: Path, path: Path) -> int:
    """``failed.jsonl``, even if none failed, so that an old one never passes for new. How many they are."""
    count = 0
    with atomic_writer(path) as file:
        for record in _records(partial):
            if "failed" in record:
                _append(file, record["failed"])
                count += 1
    return count
