"""A CSV or TSV table of audio files or line images with their text."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from starseq.corpora._build import Report, building, split_by_share
from starseq.corpora._edit import Putter, filled_notation, source_of
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
    """Puts the fillings of rows into the table that they come from. A row is found by its id, or by its path where that is the id,
    and the text by its column `text`, or by what it says."""
    table = _table_at(source)
    data = table.read_bytes().decode()
    records = list(_records(table))
    header = records[0].cells
    waiting = {row.id: row for row in rows}
    edits: list[tuple[int, int, str]] = []
    name = Path(table.name)
    for record in records[1:]:
        cells = [record.cells[header.index("id")]] if "id" in header else record.cells
        ids = [id for cell in cells for id in (cell, os.path.splitext(cell)[0])]
        row = next((waiting.pop(id) for id in ids if id in waiting), None)
        if row is None:
            continue
        with putter.trying(row):
            text = source_of(row)
            columns = [header.index("text")] if "text" in header else range(len(record.cells))
            column = next((column for column in columns if record.cells[column] == text), None)
            if column is None:
                raise DataError(f"{table}, line {record.line}: the text there is not that of the row")
            fillings = putter.fillings(row)
            new, places = filled_notation(text, fillings)
            if fillings:
                start, end = record.spans[column]
                edits.append((start, end, _quoted(new, record.delimiter, data[start] == '"')))
            putter.put(name, row, fillings, places)
    for row in waiting.values():
        with putter.trying(row):
            raise DataError(f"no row {row.id!r} in {table}")
    for start, end, new in reversed(edits):
        data = data[:start] + new + data[end:]
    putter.write(name, data.encode())


def _quoted(cell: str, delimiter: str, is_quoted: bool) -> str:
    needs = is_quoted or any(character in cell for character in (delimiter, '"', "\r", "\n"))
    return '"' + cell.replace('"', '""') + '"' if needs else cell


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


class _Record(NamedTuple):
    """A row of a table: the line it begins on, its cells, and where each stands in the file's text."""

    line: int
    cells: list[str]
    spans: list[tuple[int, int]]
    delimiter: str


def _rows(table: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells; the delimiter is the one that the header line has most of."""
    return ((record.line, record.cells) for record in _records(table))


def _records(table: Path) -> Iterator[_Record]:
    data = table.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(table, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
    place = int(text.startswith("\ufeff"))
    first = text[place:].partition("\n")[0]
    delimiter = max("\t,;", key=first.count)
    lines = text[place:].splitlines(keepends=True)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in reader:
            raw = "".join(lines[start - 1 : reader.line_num])
            if any(cells):
                spans = [(place + first, place + last) for first, last in _cells(raw, delimiter)]
                yield _Record(start, cells, spans, delimiter)
            place += len(raw)
            start = reader.line_num + 1
    except csv.Error as error:
        raise ManifestError(table, start, f"not {'TSV' if delimiter == chr(9) else 'CSV'}: {error}") from None


def _cells(raw: str, delimiter: str) -> Iterator[tuple[int, int]]:
    """Where each cell of a record stands, with its quotes."""
    start, is_quoted = 0, False
    end = len(raw.rstrip("\r\n"))
    for place, character in enumerate(raw[:end]):
        if character == '"' and (is_quoted or place == start):
            is_quoted = not is_quoted
        elif character == '"' and raw[start] == raw[place - 1] == '"':
            is_quoted = True  # the second of two within quotes
        elif character == delimiter and not is_quoted:
            yield start, place
            start = place + 1
    yield start, end
