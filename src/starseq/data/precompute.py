"""Features computed once and stored, bit for bit those that are computed on the fly.

A store is a folder with a `manifest.jsonl` like any other: its rows point by `archive`, `offset` and `nbytes` into
shards of concatenated `.npy` arrays. An hour of speech takes 115 MB (360,000 frames of 80 float32).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from starseq.data.dataset import Reader
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, write_text
from starseq.data.manifest import (
    BadRow,
    ManifestError,
    Progress,
    Row,
    bad_rows_beside,
    manifest_writer,
    read_bytes,
    read_manifest,
)
from starseq.data.pool import pool

SHARD_ROWS = 256


class Precomputed(NamedTuple):
    """What `precompute` did: rows stored, rows that were bad, shards that an earlier run had finished."""

    rows: int
    bad: int
    reused_shards: int


class Together(Protocol):
    """Several processes that store features together: shards are dealt out to them, and the first goes on when all are there."""

    def mine(self, number: int) -> bool: ...

    def begin(self) -> None: ...

    def finish(self) -> None: ...


def precompute(
    manifest: str | os.PathLike[str],
    out: str | os.PathLike[str],
    reader: Reader,
    *,
    root: str | os.PathLike[str] | None = None,
    workers: int = 0,
    skip_bad: bool = False,
    progress: Progress | None = None,
    together: Together | None = None,
) -> Precomputed:
    """Stores the frames of every row of `manifest` under the folder `out`; `reader` takes them in place of audio.

    Shards are named by what they hold (the rows and the reader's settings), written atomically, and reused: a run that
    was stopped goes on where it was. The manifest comes last. `workers` processes share the work; 0 works in this one.
    A bad row raises `ManifestError`; with `skip_bad` it goes to `bad.jsonl`. `progress` counts rows. Of several processes that
    are `together` in it each computes its shards.
    """
    manifest, out = Path(manifest), Path(out)
    if out.resolve() == manifest.parent.resolve():
        raise DataError(f"{out}: a store needs a folder of its own, because its manifest is called manifest.jsonl too")
    bad: list[BadRow] = []
    rows = read_manifest(manifest, labelled=False, on_bad=bad.append if skip_bad else None)
    shards = [_Shard(manifest, chunk, out, reader, root) for chunk in _chunks(rows)]
    mine = [shard for number, shard in enumerate(shards) if together is None or together.mine(number)]
    there = {shard.name() for shard in shards if shard.is_whole()}
    if together is not None:
        together.begin()
    total, done = sum(len(shard.rows) for shard in mine), 0
    for shard, problems in zip(mine, _run(mine, workers), strict=True):
        if problems and not skip_bad:
            raise ManifestError(problems[0].file, problems[0].line, problems[0].reason)
        done += len(shard.rows)
        if progress is not None:
            progress(done, total)
    if together is not None:
        together.finish()
    stored = [_load(shard.listing) for shard in shards]
    bad += [BadRow(**one) for found in stored for one in found["bad"]]
    with bad_rows_beside(out / "manifest.jsonl", skip_bad, manifest) as write_bad:
        if write_bad is not None:
            for row in bad:
                write_bad(row)
    with manifest_writer(out / "manifest.jsonl", labelled=False) as writer:
        for found in stored:
            for fields in found["rows"]:
                writer.write(Row(fields))
        if not writer.rows:
            raise DataError(f"{manifest}: no row could be read, so no features were stored")
    return Precomputed(writer.rows, len(bad), len(there))


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(islice(rows, SHARD_ROWS)):
        yield chunk


def _run(shards: Sequence[_Shard], workers: int) -> Iterator[list[BadRow]]:
    """The shards' bad rows, in their order."""
    if workers < 1:
        yield from (shard.write() for shard in shards)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with pool(_Shard.write, workers, "spawn") as submit:
        yield from (result() for result in [submit(shard) for shard in shards])


def _load(path: Path) -> dict[str, list[dict[str, Any]]]:
    loaded: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())
    return loaded


class _Shard(NamedTuple):
    """One shard's work; it travels to another process."""

    manifest: Path
    rows: list[Row]
    out: Path
    reader: Reader
    root: str | os.PathLike[str] | None

    def name(self) -> str:
        digest = hashlib.blake2b(self.reader.key.encode(), digest_size=8)
        for row in self.rows:
            digest.update(json.dumps(row.fields, ensure_ascii=False).encode() + b"\n")
        return f"features-{digest.hexdigest()}"

    @property
    def listing(self) -> Path:
        return self.out / f"{self.name()}.json"

    def is_whole(self) -> bool:
        """One with bad rows is not, and is computed again: their files may have been mended."""
        index = self.listing
        return index.is_file() and index.with_suffix(".bin").is_file() and not _load(index)["bad"]

    def write(self) -> list[BadRow]:
        """Its bad rows. Its index comes last: then it is whole."""
        if self.is_whole():
            return []
        name = self.name()
        stored, bad = [], []
        with atomic_writer(self.out / f"{name}.bin") as file:
            for row in self.rows:
                try:
                    blob, size = self._frames(row)
                except ValueError as error:
                    raw = json.dumps(row.fields, ensure_ascii=False)
                    bad.append(BadRow(os.fspath(self.manifest), row.line, str(error), raw))
                    continue
                place = {"archive": f"{name}.bin", "offset": file.tell(), "nbytes": len(blob)}
                kept = row.replace(path=f"{row.id}.npy", features=self.reader.key, size=size, **place)
                stored.append(kept.fields)
                file.write(blob)
        write_text(self.listing, json.dumps({"rows": stored, "bad": [asdict(b) for b in bad]}, ensure_ascii=False))
        return bad

    def _frames(self, row: Row) -> tuple[bytes, float]:
        data = read_bytes(row, self.manifest.parent, self.root)
        buffer = io.BytesIO()
        np.save(buffer, self.reader(row, data).numpy().astype(np.float32, copy=False), allow_pickle=False)
        size = self.reader.size(row)
        return buffer.getvalue(), self.reader.measure(row, data) if size is None else size
