"""Arrow files as kraken's build_binary_dataset writes them: struct(text, im), three flags, JSON beside the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starseq.corpora import load, reader_of
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("kraken")
FLAGS = ("train", "validation", "test")


def image(width: int) -> bytes:
    return images.encode(np.full((20, width), 200, np.uint8))


def compiled(path: Path, lines: list[dict[str, Any]], flags: list[str] | None = None, size: int = 2) -> Path:
    columns: list[Any] = [pa.array(lines, type=pa.struct([("text", pa.string()), ("im", pa.binary())]))]
    columns += [pa.array([flag == name for name in flags or [""] * len(lines)]) for flag in FLAGS]
    table = pa.Table.from_arrays(columns, names=["lines", *FLAGS])
    about = {"type": "kraken_recognition_baseline", "alphabet": {}, "text_type": "raw", "image_type": "raw"}
    table = table.replace_schema_metadata({"lines": json.dumps(about)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=size)
    return path


def test_lines_and_their_splits(tmp_path: Path) -> None:
    lines = [{"text": text, "im": image(30 + i)} for i, text in enumerate(("one *", "two", "three", "", "four"))]
    path = compiled(tmp_path / "set.arrow", lines, ["train", "validation", "test", "train", ""])
    compiled(tmp_path / "validation-2.arrow", lines[:1])
    assert reader_of(path) == reader_of(tmp_path) == "kraken"
    report = prepare(tmp_path, tmp_path / "out", dev=0, test=0)
    assert dict(report.left_out) == {"line without text": 1}
    rows = list(read_manifest(tmp_path / "out" / "manifest.jsonl"))
    assert [(row.id, row["split"]) for row in rows] == [
        ("set-000001", "train"), ("set-000002", "dev"), ("set-000003", "test"), ("set-000005", "train"),
        ("validation-2-000001", "dev"),
    ]  # fmt: skip
    assert (rows[0].text, rows[1].text, rows[2]["width"]) == (r"one \*", "two", 32)  # a star is a character here
    assert [read_bytes(row, tmp_path / "out") for row in rows[:2]] == [lines[0]["im"], lines[1]["im"]]


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    lines = [{"text": "one", "im": image(30)}, {"text": "two", "im": b"no image"}, {"text": "three", "im": None}]
    path = compiled(tmp_path / "set.arrow", lines)
    with pytest.raises(ManifestError, match=r"set\.arrow, line 2: set-000002\.png: not an image"):
        prepare(path, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    report = prepare(path, tmp_path / "out", skip_bad=True)
    assert (report.rows, report.bad) == (1, 2)
    assert json.loads((tmp_path / "out" / "bad.jsonl").read_text().splitlines()[1])["reason"] == "no image"


def test_what_is_no_set_of_lines(tmp_path: Path) -> None:
    path = compiled(tmp_path / "set.arrow", [{"text": "one", "im": image(3_000)}])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"set\.arrow: no lines of kraken in it"):
        prepare(path, tmp_path / "out")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("x", pa.int32())])) as writer:
        writer.write_batch(pa.record_batch([pa.array([1], pa.int32())], names=["x"]))
    assert reader_of(path) is None
    with pytest.raises(DataError, match="none: no such file or folder"):
        prepare(tmp_path / "none", tmp_path / "out")
