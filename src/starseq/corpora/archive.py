"""A manifest that exists, with its archive or its files: every member read, sizes compared with what the rows state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from starseq.corpora._build import Builder, Report, building
from starseq.corpora._media import describe
from starseq.data.errors import DataError
from starseq.data.manifest import BadRow, Progress, Row, read_bytes, read_manifest


def prepare(
    source: Annotated[str | os.PathLike[str], "A manifest, or a folder that holds manifest.jsonl."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    split: Annotated[tuple[str, ...], "Only this split; may be repeated."] = (),
    root: Annotated[
        str | os.PathLike[str] | None, "Folder that paths may not leave; by default the manifest's."
    ] = None,
    check: Annotated[bool, "Decode every file, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad rows to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """A manifest and archive made elsewhere.

    Every member is read back and compared with what its row states.
    """
    manifest = Path(source) / "manifest.jsonl" if Path(source).is_dir() else Path(source)
    if not manifest.is_file():
        raise DataError(f"{manifest}: no such manifest")
    if (Path(out) / "manifest.jsonl").resolve() == manifest.resolve():
        raise DataError(f"{out}: the result would replace the manifest that is read")
    with building("archive", out, source=manifest.parent, skip_bad=skip_bad) as build:

        def on_bad(bad: BadRow) -> None:
            build.bad(bad.file, bad.line, bad.reason, bad.raw)

        for row in read_manifest(manifest, on_bad=on_bad, progress=progress):
            if split and row.get("split") not in split:
                build.leave_out(f"row of split {row.get('split')!r}")
            else:
                _add(build, manifest, row, root, check)
    return build.report


def _add(build: Builder, manifest: Path, row: Row, root: str | os.PathLike[str] | None, check: bool) -> None:
    with build.trying(str(manifest), row.line, row.fields):
        found = describe(read_bytes(row, manifest.parent, root), row.path, check=check)
        for name, value in found.items():
            if name in row.fields and not _same(name, row[name], value):
                raise DataError(f"{row.path}: {name} is {value}, but the row states {row[name]}")
        build.add({**found, **row.fields}, str(manifest), row.line)


def _same(name: str, stated: Any, found: float) -> bool:
    return bool(abs(stated - found) <= (0.002 if name == "duration" else 0))
