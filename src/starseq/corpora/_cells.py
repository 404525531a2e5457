"""Tables: which columns say what; and their cells as they stand in the file, so that one can be changed, and all else stays."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from starseq.corpora._build import split_of_name
from starseq.corpora._edit import Putter, filled_notation, source_of
from starseq.corpora._recordings import Part, part_id
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row

USUAL = {
    "path": (
        "path", "file", "file_name", "filename", "filepath", "file_path", "audio", "audio_path", "audio_file", "audio_filepath",
        "wav", "wav_path", "wav_filename", "image", "image_path", "clip",
    ),
    "text": ("text", "sentence", "transcription", "transcript", "transcripts", "label", "ground_truth", "utterance"),
    "id": ("id", "utt_id", "utterance_id", "segment_id"),
    "split": ("split", "subset", "partition", "set"),
    "speaker": ("speaker", "client_id", "speaker_id", "spk", "writer", "writer_id"),
    "start": ("start", "start_time", "begin", "offset"),
    "end": ("end", "end_time", "stop"),
    "duration": ("duration",),
    "channel": ("channel",),
}  # fmt: skip
"""What columns are usually called, whatever their case."""
TABLES = (".csv", ".tsv")
PLACE = ("offset", "nbytes")
"""of a member of an archive, as `starseq` writes it"""


def tables_in(source: Path) -> list[Path]:
    """The file itself, or the only table of a folder; of several, those that are called like a split."""
    if not source.is_dir():
        return [source] if source.is_file() else []
    tables = sorted(path for path in source.iterdir() if path.suffix.lower() in TABLES)
    return tables if len(tables) == 1 else [path for path in tables if split_of_name(Path(path.name))]


def has_archives(header: Sequence[str]) -> bool:
    return {"archive", *PLACE} <= set(header)


def columns_of(table: Path, header: Sequence[str], given: dict[str, str | None]) -> dict[str, str]:
    """The columns that mean something here, by what they mean."""
    lower = {column.strip().lower(): column for column in reversed(header)}
    found = {}
    for meaning, usual in USUAL.items():
        if (column := given.get(meaning)) is not None:
            if column not in header:
                raise ManifestError(table, 1, f"no column {column!r} (there are {', '.join(header) or 'none'})")
            found[meaning] = column
        elif (name := next((name for name in usual if name in lower), None)) is not None:
            found[meaning] = lower[name]
    if found.get("start") == "offset" and has_archives(header):
        del found["start"]  # of bytes
    return found


def part_of(known: dict[str, str]) -> Part:
    """The part of its file that a row is; a duration without a start says no more than the file does."""
    numbers: dict[str, Any] = {}
    for meaning in ("start", "end", "duration", "channel"):
        if text := known.get(meaning, "").strip():
            try:
                numbers[meaning] = int(text) if meaning == "channel" else float(text)
            except ValueError:
                raise DataError(f"{meaning} {text!r} is not a number") from None
    start, end = numbers.get("start", 0.0), numbers.get("end")
    if end is None and "start" in numbers and "duration" in numbers:
        end = start + numbers["duration"]
    return Part(start, end, numbers.get("channel"), about=True)


class Record(NamedTuple):
    """A row of a table: the line it begins on, its cells, and the text that it is written with."""

    line: int
    cells: list[str]
    raw: str


class Sheet:
    """The text of a table. The delimiter is the one that the header line has most of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes()
        try:
            self.text = data.decode()
        except UnicodeDecodeError as error:
            raise ManifestError(path, data[: error.start].count(b"\n") + 1, "not UTF-8") from None
        self.start = int(self.text.startswith("\ufeff"))
        self._lines = self.text[self.start :].splitlines(keepends=True)
        self.delimiter = max("\t,;", key=self.text.partition("\n")[0].count)
        self.is_quoted = not (self.delimiter == "\t" and _is_plain([line.rstrip("\r\n") for line in self._lines]))

    def records(self) -> Iterator[Record]:
        """The header, and the rows; empty lines have no cells."""
        reader = csv.reader(
            self._lines, delimiter=self.delimiter, strict=True,
            quoting=csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE,
        )  # fmt: skip
        start = 1
        try:
            for cells in reader:
                yield Record(start, cells if any(cells) else [], "".join(self._lines[start - 1 : reader.line_num]))
                start = reader.line_num + 1
        except csv.Error as error:
            kind = "TSV" if self.delimiter == "\t" else "CSV"
            raise ManifestError(self.path, start, f"not {kind}: {error}") from None

    def spans(self, raw: str) -> Iterator[tuple[int, int]]:
        """Where each cell of a record stands in its text, with its quotes."""
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

    def written(self, cell: str, was_quoted: bool) -> str:
        """A cell as it is written."""
        special = any(character in cell for character in (self.delimiter, '"', "\r", "\n"))
        if not self.is_quoted or not (special or was_quoted):
            return cell
        return '"' + cell.replace('"', '""') + '"'


def rows_of(table: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells, the header first."""
    return ((line, cells) for line, cells, _ in Sheet(table).records() if cells)


def _is_plain(lines: list[str]) -> bool:
    r"""Whether a quote in a TSV is a character of the text, as in Common Voice: it has every row in one line, and doubles none.

    >>> _is_plain(["path\ttext", 'a.wav\t"Ho," she said.']), _is_plain(["path\ttext", 'a.wav\t"two', 'lines"'])
    (True, False)
    """
    cells = [line.split("\t") for line in lines if line.strip()]
    whole = all(len(row) == len(cells[0]) for row in cells) and not any(
        '"' in name for row in cells[:1] for name in row
    )
    return whole and not any(cell[:1] == '"' == cell[-1:] and '""' in cell[1:-1] for row in cells for cell in row)


# --- back into the table ----------------------------------------------------------------------------------------------


def put_back_cells(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into a table, or the tables of a folder.

    A record is found by the row's id, or by its path where that is the id; its text, by the column of text, or by what it says.
    """
    folder = source if source.is_dir() else source.parent
    waiting = _Waiting(rows)
    for path in tables_in(source):
        sheet, name, found = Sheet(path), path.relative_to(folder), False
        new = [sheet.text[: sheet.start]]
        columns: dict[str, int] | None = None
        for record in sheet.records():
            new.append(record.raw)
            if not record.cells:
                continue
            if columns is None:
                header = record.cells
                columns = {meaning: header.index(column) for meaning, column in columns_of(path, header, {}).items()}
                continue
            row = waiting.take(columns, record.cells)
            if row is not None:
                found = True
                with putter.trying(row):
                    new[-1] = _filled(sheet, record, columns.get("text"), row, name, putter)
        if found:
            putter.write(name, "".join(new).encode())
    for row in waiting.rows.values():
        with putter.trying(row):
            raise DataError(f"no row {row.id!r} in {source}")


def _filled(sheet: Sheet, record: Record, column: int | None, row: Row, name: Path, putter: Putter) -> str:
    """The text of a record with the fillings of its row."""
    text = source_of(row)
    candidates = range(len(record.cells)) if column is None else (column,)
    column = next((one for one in candidates if one < len(record.cells) and record.cells[one] == text), None)
    if column is None:
        raise DataError(f"{sheet.path}, line {record.line}: the text there is not that of the row")
    fillings = putter.fillings(row)
    cell, places = filled_notation(text, fillings)
    putter.put(name, row, fillings, places)
    if not fillings:
        return record.raw
    start, end = list(sheet.spans(record.raw))[column]
    return record.raw[:start] + sheet.written(cell, record.raw.startswith('"', start)) + record.raw[end:]


class _Waiting:
    """Rows that are not found yet, by their ids; and those that are parts of a recording, by its name and their start."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row.id: row for row in rows}
        self._parts = defaultdict[str, list[str]](list)
        for row in rows:
            if "start" in row.fields:
                self._parts[row.id.rpartition("-")[0]].append(row.id)

    def take(self, columns: dict[str, int], cells: Sequence[str]) -> Row | None:
        """The row that `prepare table` makes of a record."""
        known = {meaning: cells[at] for meaning, at in columns.items() if at < len(cells)}
        found = [id for id in self._ids(known, cells) if id in self.rows]
        if not found:
            return None
        return self.rows.pop(next((id for id in found if source_of(self.rows[id]) in cells), found[0]))

    def _ids(self, known: dict[str, str], cells: Sequence[str]) -> Iterator[str]:
        if known.get("id"):
            yield known["id"]
            return
        stems = [PurePath(cell).with_suffix("").as_posix() for cell in cells if PurePath(cell).name]
        with suppress(DataError):
            part = part_of(known)
            for stem in stems if part.start or part.end is not None else ():
                place = {"start": part.start, "end": part.start if part.end is None else part.end}
                yield part_id(stem, place)
                yield from self._parts[part_id(stem, place).rpartition("-")[0]]  # an end may be that of the recording
        yield from stems
        yield from cells
