"""Rows as other toolkits have them: a manifest of NeMo, supervisions of lhotse, a table, subtitles; the file's name says which.

`starseq prepare` reads all of them again, and gives the same rows: those of subtitles without what subtitles cannot hold.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, check_target
from starseq.data.manifest import ManifestWriter, Row, manifest_writer, read_manifest

__all__ = ["rows_writer"]


@contextmanager
def rows_writer(
    path: str | os.PathLike[str], *, labelled: bool = True, checked: bool = False
) -> Iterator[ManifestWriter]:
    """`manifest_writer`, or one of another toolkit's files: .json is NeMo's, .jsonl.gz lhotse's (supervisions), .csv and .tsv are
    tables, .srt and .vtt subtitles of one recording. Atomic as that is; a row that such a file cannot hold is a `DataError`.

    >>> path = os.path.join(tempfile.mkdtemp(), "talk.vtt")
    >>> with rows_writer(path) as writer:
    ...     writer.write(Row({"id": "u1", "path": "talk.mp3", "text": "the * fox", "start": 61.5, "end": 63.0}))
    >>> print(Path(path).read_text(), end="")
    WEBVTT
    <BLANKLINE>
    u1
    00:01:01.500 --> 00:01:03.000
    the * fox
    """
    name = os.fspath(path)
    make = next((make for suffix, make in _FORMATS.items() if name.lower().endswith(suffix)), None)
    if make is None:
        with manifest_writer(path, labelled=labelled, checked=checked) as plain:
            yield plain
        return
    check_target(path)
    with tempfile.TemporaryDirectory() as folder:
        # The rows wait in a manifest: a table has the columns of all of them, and what is no row is refused as ever.
        waiting = Path(folder, "rows.jsonl")
        with manifest_writer(waiting, labelled=labelled, checked=checked, name=name) as writer:
            yield writer
        rows = read_manifest(waiting, labelled=False) if writer.rows else iter(())
        with atomic_writer(path) as file:
            make(rows, file, name)


_Rows = Iterator[Row]


def _heard(row: Row, name: str, what: str) -> None:
    """Refuses rows whose files these toolkits cannot read."""
    if row.features is not None:
        raise DataError(f"{name}: row {row.id!r} is stored features, and {what} are of audio")
    if os.path.splitext(row.path)[1].lower() in images.SUFFIXES:
        raise DataError(f"{name}: row {row.id!r} is an image, and {what} are of audio")


def _seconds(row: Row, name: str) -> float:
    if row.seconds is None:
        raise DataError(f"{name}: row {row.id!r} does not say how long it is, with duration or end")
    return round(row.seconds, 6)


# --- NeMo and lhotse --------------------------------------------------------------------------------------------------


def _nemo(rows: _Rows, file: BinaryIO, name: str) -> None:
    for row in rows:
        _heard(row, name, "NeMo's manifests")
        rest = dict(row.fields)
        line = {"audio_filepath": rest.pop("path"), "text": rest.pop("text", ""), "duration": _seconds(row, name)}
        if "start" in rest:
            line["offset"] = rest.pop("start")
        if "archive" in rest:
            if not rest["archive"].endswith(".tar"):
                raise DataError(f"{name}: row {row.id!r} is in {rest['archive']}, and NeMo reads tars alone")
            line["tar"] = rest.pop("archive")
        for known in ("offset", "nbytes", "end", "duration"):
            rest.pop(known, None)
        file.write(_json({**line, **rest}))


def _lhotse(rows: _Rows, file: BinaryIO, name: str) -> None:
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        for row in rows:
            _heard(row, name, "supervisions")
            rest = dict(row.fields)
            line = {
                "id": rest.pop("id"),
                "recording_id": str(rest.get("recording") or os.path.splitext(row.path)[0]),
                "start": rest.pop("start", 0.0),
                "duration": _seconds(row, name),
                "channel": rest.get("channel", 0),
                "text": rest.pop("text", ""),
            }
            for known in ("speaker", "language"):
                if isinstance(rest.get(known), str):
                    line[known] = rest.pop(known)
            for known in ("end", "duration"):
                rest.pop(known, None)
            packed.write(_json({**line, "custom": rest}))


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode() + b"\n"


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(delimiter: str) -> Callable[[_Rows, BinaryIO, str], None]:
    def write(rows: _Rows, file: BinaryIO, name: str) -> None:
        kept = list(rows)
        columns = list(dict.fromkeys(column for row in kept for column in row.fields if column not in _NESTED))
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        table.writerow(columns or ["id", "path", "text"])
        for row in kept:
            table.writerow([_cell(row.get(column)) for column in columns])
        text.detach()

    return write


_NESTED = ("added", "gap_marks", "outside_vocabulary", "refused", "source")
"""what a table cannot hold: lists and objects"""


def _cell(value: Any) -> Any:
    return "" if value is None or isinstance(value, (list, dict)) else value


# --- subtitles --------------------------------------------------------------------------------------------------------


def _srt(rows: _Rows, file: BinaryIO, name: str) -> None:
    for number, (_, start, end, text) in enumerate(_cues(rows, name), start=1):
        times = f"{_time(start)} --> {_time(end)}".replace(".", ",")
        file.write(f"{number}\n{times}\n{_escaped(text)}\n\n".encode())


def _vtt(rows: _Rows, file: BinaryIO, name: str) -> None:
    file.write(b"WEBVTT\n")
    for id, start, end, text in _cues(rows, name):
        label = _escaped(id).replace("--&gt;", "->")
        file.write(f"\n{label}\n{_time(start)} --> {_time(end)}\n{_escaped(text)}\n".encode())


def _cues(rows: _Rows, name: str) -> Iterator[tuple[str, float, float, str]]:
    """Ids, times and texts of one recording."""
    recording = None
    for row in rows:
        _heard(row, name, "subtitles")
        if recording not in (None, row.path):
            raise DataError(f"{name}: subtitles are of one recording, and there are {recording} and {row.path}")
        recording, start = row.path, float(row.get("start", 0.0))
        if row.text.strip():
            yield row.id, start, start + _seconds(row, name), " ".join(row.text.split())


def _escaped(text: str) -> str:
    """What is no tag is not taken for one."""
    return html.escape(text, quote=False) if re.search(r"[<>]|&\w*;", text) else text


def _time(seconds: float) -> str:
    whole, thousandths = divmod(round(1000 * seconds), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{thousandths:03d}"


_FORMATS: dict[str, Callable[[_Rows, BinaryIO, str], None]] = {
    ".json": _nemo, ".jsonl.gz": _lhotse, ".csv": _table(","), ".tsv": _table("\t"), ".srt": _srt, ".vtt": _vtt,
}  # fmt: skip
