"""CSV or TSV tables of audio files or line images with their text, as Common Voice and many others have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_name
from starseq.corpora._cells import PLACE, TABLES, columns_of, has_archives, part_of, put_back_cells, rows_of, tables_in
from starseq.corpora._edit import Putter
from starseq.corpora._recordings import describe_stored, file_of, part_id
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress, Row

_FOLDERS = ("", "clips", "audio", "wavs", "images")
"""where the files of a table lie: beside it, or in one of these"""


def prepare(
    source: Annotated[
        str | os.PathLike[str],
        "CSV or TSV file with a header line, or a folder with one, or with train.tsv, dev.tsv and test.tsv.",
    ],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    path_column: Annotated[str | None, "Column with the file's path; by default found by its usual names."] = None,
    text_column: Annotated[str | None, "Column with the text; by default found by its usual names."] = None,
    id_column: Annotated[str | None, "Column with the id; without such a column the path is the id."] = None,
    split_column: Annotated[
        str | None, "Column with the split; without it the table's name tells, or a hash of the speaker or id."
    ] = None,
    split: Annotated[str | None, "Split of all rows, in place of a column."] = None,
    root: Annotated[str | os.PathLike[str] | None, "Folder that paths may not leave; by default the table's."] = None,
    dev: Annotated[float, "Share of rows for dev, where nothing tells the split."] = 0.05,
    test: Annotated[float, "Share of rows for test, where nothing tells the split."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad rows to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """CSV or TSV: one row an audio file or line image.

    Columns are found by what they are usually called, as in Common Voice; other columns are kept. With a start and an end
    a row is a part of its file. A `*` in the text marks a gap.
    """
    tables = tables_in(Path(source))
    if not tables:
        raise DataError(f"{source}: no such file, or no table in it")
    given = {"path": path_column, "text": text_column, "id": id_column, "split": split_column}
    by_share = split_by_share(dev, test)
    with building("table", out, source=tables[0].parent.resolve(), skip_bad=skip_bad) as build:
        read = [_Table(table, given, root, check) for table in tables]
        total, done = sum(len(table.rows) for table in read), 0
        for table in read:
            if split is None and table.named is None and "split" not in table.columns:
                hashed = "a hash of the id decides, so one speaker or writer may be in several splits"
                hashed = "a hash of the speaker decides" if "speaker" in table.columns else hashed
                build.report.notes.append(f"no column 'split': {hashed}")
            for line, cells in table.rows:
                with build.trying(str(table.path), line, cells):
                    table.add(build, line, cells, split, by_share)
                done += 1
                if progress is not None:
                    progress(done, total)
    return build.report


def put_back(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the tables that they come from."""
    put_back_cells(source, rows, putter)


def understands(source: Path) -> bool:
    """Whether it is a table, or a folder with tables, whose header has the usual columns."""
    tables = [table for table in tables_in(source) if table.suffix.lower() in TABLES]
    for table in tables[:1]:
        with suppress(DataError, StopIteration):
            _, header = next(rows_of(table))
            return {"path", "text"} <= columns_of(table, header, {}).keys()
    return False


class _Table:
    """A table in memory."""

    def __init__(
        self, path: Path, given: dict[str, str | None], root: str | os.PathLike[str] | None, check: bool
    ) -> None:
        self.path, self.folder, self.root, self.check = path, path.parent.resolve(), root, check
        rows = list(rows_of(path))
        self.header = rows[0][1] if rows else []
        self.rows = rows[1:]
        self.has_archives = has_archives(self.header)
        self.columns = columns_of(path, self.header, given)
        self.named = split_of_name(Path(path.name))
        """the split that the table's name speaks of"""
        for meaning in ("path", "text"):
            if meaning not in self.columns:
                there = ", ".join(self.header) or "none"
                raise ManifestError(
                    path, 1, f"no column is called {meaning} (there are {there}): name it with --{meaning}-column"
                )

    def add(
        self, build: Builder, line: int, cells: list[str], split: str | None, by_share: Callable[[str], str]
    ) -> None:
        if len(cells) != len(self.header):
            raise DataError(f"{len(cells)} cells, but the header has {len(self.header)}")
        row = dict(zip(self.header, cells, strict=True))
        known = {meaning: row.pop(column) for meaning, column in self.columns.items() if column in row}
        name, part = known["path"], part_of(known)
        for optional in ("gaps", "text_full", "features"):  # as `starseq` writes them: absent, not empty
            if row.get(optional) == "":
                del row[optional]
        if row.get("archive"):
            place = {"path": name, "archive": row.pop("archive"), **{one: _whole(row.pop(one)) for one in PLACE}}
            media = describe_stored(place, self.folder, self.root, part, check=self.check)
        else:
            for one in ("archive", *PLACE) if self.has_archives else ():
                row.pop(one, None)
            folder = next((folder for folder in _FOLDERS if self._file(folder, name).is_file()), "")
            media = describe_stored(
                {"path": os.path.join(folder, name)}, self.folder, self.root, part, check=self.check
            )
        id = known.get("id") or part_id(Path(name).with_suffix("").as_posix(), media)
        fields = {"id": id, "text": known["text"]}
        if "speaker" in known:
            fields["speaker"] = known["speaker"]
        fields["split"] = split or known.get("split") or self.named or by_share(known.get("speaker") or id)
        build.add({**row, **fields, **media}, str(self.path), line)

    def _file(self, folder: str, name: str) -> Path:
        return file_of(os.path.join(folder, name), self.folder, self.root)


def _whole(cell: str) -> Any:
    return int(cell) if cell.strip().isdecimal() else cell
