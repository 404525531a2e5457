"""A CSV or TSV table of audio files or line images with their text."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Report, building, split_by_share
from starseq.corpora._cells import put_back_cells
from starseq.corpora._edit import Putter
from starseq.corpora._media import SUFFIXES, describe
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import ManifestError, Progress, Row


def prepare(
    source: Annotated[str | os.PathLike[str], "CSV or TSV file with a header line, or a folder with one such file."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    path_column: Annotated[str, "Column with the file's path, relative to the table."] = "path",
    text_column: Annotated[str, "Column with the text."] = "text",
    id_column: Annotated[str, "Column with the id; without such a column the path is the id."] = "id",
    split_column: Annotated[str, "Column with the split; without it, a hash of the speaker or id decides."] = "split",
    split: Annotated[str | None, "Split of all rows, in place of a column."] = None,
    root: Annotated[str | os.PathLike[str] | None, "Folder that paths may not leave; by default the table's."] = None,
    dev: Annotated[float, "Share of rows for dev, where there is no split column."] = 0.05,
    test: Annotated[float, "Share of rows for test, where there is no split column."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad rows to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """CSV or TSV: one row an audio file or line image.

    Other columns are kept. A `*` in the text marks a gap.
    """
    table = _table_at(Path(source))
    if not table.is_file():
        raise DataError(f"{source}: no such file")
    by_share = split_by_share(dev, test)
    folder = table.parent.resolve()
    with building("table", out, source=folder, skip_bad=skip_bad) as build:
        rows = list(_rows(table))
        header = rows[0][1] if rows else []
        named = [column for column, usual in ((id_column, "id"), (split_column, "split")) if column != usual]
        for column in (path_column, text_column, *named):
            if column not in header:
                raise ManifestError(table, 1, f"no column {column!r} (there are {', '.join(header) or 'none'})")
        if split is None and split_column not in header:
            hashed = "a hash of the id decides, so one speaker or writer may be in several splits"
            hashed = "a hash of the speaker decides" if "speaker" in header else hashed
            build.report.notes.append(f"no column {split_column!r}: {hashed}")
        for done, (line, cells) in enumerate(rows[1:], start=1):
            with build.trying(str(table), line, cells):
                if len(cells) != len(header):
                    raise DataError(f"{len(cells)} cells, but the header has {len(header)}")
                row = dict(zip(header, cells, strict=True))
                path = resolve_inside(row[path_column], folder, root)
                if path.suffix.lower() not in SUFFIXES:
                    raise DataError(f"{row[path_column]}: neither audio nor an image by its name")
                id = row.pop(id_column, "") or Path(row[path_column]).with_suffix("").as_posix()
                name = row.pop(path_column)
                name = os.path.relpath(name, folder) if os.path.isabs(name) else name
                fields = {"id": id, "path": name, "text": row.pop(text_column)}
                own = row.pop(split_column, "")
                fields["split"] = split or own or by_share(row.get("speaker") or id)
                media = describe(path, fields["path"], check=check)
                build.add({**row, **fields, **media}, str(table), line)
            if progress is not None:
                progress(done, len(rows) - 1)
    return build.report


def put_back(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the tables that they come from."""
    put_back_cells(source, rows, putter)


def understands(source: Path) -> bool:
    """Whether it is a table, or a folder with one table, whose header has the usual columns."""
    table = _table_at(source)
    if not (table.is_file() and table.suffix.lower() in _TABLES):
        return False
    with suppress(DataError, StopIteration):
        _, header = next(_rows(table))
        return {"path", "text"} <= set(header)
    return False


_TABLES = (".csv", ".tsv")


def _table_at(source: Path) -> Path:
    """The file itself, or the only table of a folder."""
    if not source.is_dir():
        return source
    tables = sorted(path for path in source.iterdir() if path.suffix.lower() in _TABLES)
    return tables[0] if len(tables) == 1 else source


def _rows(table: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells; the delimiter is the one that the header line has most of."""
    data = table.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(table, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
    first = text.partition("\n")[0]
    delimiter = max("\t,;", key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in reader:
            if any(cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise ManifestError(table, start, f"not {'TSV' if delimiter == chr(9) else 'CSV'}: {error}") from None
