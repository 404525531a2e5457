"""The cells of a table as they stand in its file: one can be changed, and all else stays."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from starseq.corpora._edit import Putter, filled_notation, source_of
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row

_TABLES = (".csv", ".tsv")


class _Record(NamedTuple):
    """A row of a table: the line it begins on, its cells, and where each stands in the file's text."""

    line: int
    cells: list[str]
    spans: list[tuple[int, int]]


class _Table:
    """A table in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes()
        try:
            self.text = data.decode()
        except UnicodeDecodeError as error:
            raise ManifestError(path, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
        self.delimiter = max("\t,;", key=self.text.partition("\n")[0].count)
        self.is_quoted = True
        try:
            records = list(self._records())
        except csv.Error as error:
            if self.delimiter != "\t":
                raise ManifestError(path, 1, f"not CSV: {error}") from None
            self.is_quoted = False  # in such tables a quotation mark is a character
            records = list(self._records())
        self.header = records[0].cells if records else []
        self.records = records[1:]

    def _records(self) -> Iterator[_Record]:
        place = int(self.text.startswith("\ufeff"))
        lines = self.text[place:].splitlines(keepends=True)
        start, reader = 1, csv.reader(
            lines, delimiter=self.delimiter, strict=True, quoting=csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE
        )  # fmt: skip
        for cells in reader:
            raw = "".join(lines[start - 1 : reader.line_num])
            if any(cells):
                spans = [(place + first, place + last) for first, last in self._spans(raw)]
                yield _Record(start, cells, spans)
            place += len(raw)
            start = reader.line_num + 1

    def _spans(self, raw: str) -> Iterator[tuple[int, int]]:
        """Where each cell of a record stands, with its quotes."""
        start, is_inside = 0, False
        end = len(raw.rstrip("\r\n"))
        for place, character in enumerate(raw[:end]):
            if (
                character == '"'
                and self.is_quoted
                and (is_inside or place == start or raw[start] == raw[place - 1] == '"')
            ):
                is_inside = not is_inside  # the second of two within quotes opens them again
            elif character == self.delimiter and not is_inside:
                yield start, place
                start = place + 1
        yield start, end

    def written(self, cell: str, start: int) -> str:
        """A cell as it is written, where the one that begins at `start` stood."""
        special = any(character in cell for character in (self.delimiter, '"', "\r", "\n"))
        if not self.is_quoted or not (special or self.text.startswith('"', start)):
            return cell
        return '"' + cell.replace('"', '""') + '"'


def put_back_cells(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into a table, or the tables of a folder.

    A record is found by the row's id, or by its path where that is the id; its text, by the column `text`, or by what it says.
    """
    folder = source if source.is_dir() else source.parent
    paths = sorted(path for path in source.iterdir() if path.suffix.lower() in _TABLES) if source.is_dir() else [source]
    waiting = {row.id: row for row in rows}
    for path in paths:
        table, edits, found = _Table(path), list[tuple[int, int, str]](), False
        for record in table.records:
            row = next((waiting.pop(id) for id in _ids(table, record) if id in waiting), None)
            if row is None:
                continue
            found = True
            with putter.trying(row):
                column = _text_column(table, record, source_of(row))
                fillings = putter.fillings(row)
                new, places = filled_notation(source_of(row), fillings)
                if fillings:
                    start, end = record.spans[column]
                    edits.append((start, end, table.written(new, start)))
                putter.put(path.relative_to(folder), row, fillings, places)
        text = table.text
        for start, end, new in reversed(edits):
            text = text[:start] + new + text[end:]
        if found:
            putter.write(path.relative_to(folder), text.encode())
    for row in waiting.values():
        with putter.trying(row):
            raise DataError(f"no row {row.id!r} in {source}")


def _ids(table: _Table, record: _Record) -> Iterator[str]:
    if "id" in table.header:
        yield dict(zip(table.header, record.cells, strict=False)).get("id", "")
        return
    for cell in record.cells:
        yield cell
        yield os.path.splitext(cell)[0]


def _text_column(table: _Table, record: _Record, text: str) -> int:
    columns = [table.header.index("text")] if "text" in table.header else range(len(record.cells))
    for column in columns:
        if column < len(record.cells) and record.cells[column] == text:
            return column
    raise DataError(f"{table.path}, line {record.line}: the text there is not that of the row")
