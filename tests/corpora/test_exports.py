"""Our rows as other toolkits have them: their own readers read them, and ours gives the same rows again."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

import lhotse
import numpy as np
import pytest
import soundfile

from starseq.corpora import load
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.exports import rows_writer
from starseq.data.manifest import ManifestError, Row, read_manifest, write_manifest
from starseq.jobs.manifest import Condition, filter_manifest

RATE = 8_000
READERS = {"json": "nemo", "jsonl.gz": "lhotse", "csv": "table", "tsv": "table"}


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """Whole files, parts, and members of a tar, as `prepare` writes them."""
    noise = np.random.default_rng(0).integers(-9_000, 9_000, (3 * RATE, 2)).astype(np.int16)
    (tmp_path / "clips").mkdir()
    soundfile.write(tmp_path / "clips" / "a.wav", noise, RATE)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "clips" / "a.wav", arcname="b.wav")
    with tarfile.open(tmp_path / "x.tar") as tar:
        (member,) = tar
    whole = {
        "duration": 3.0,
        "samples": 3 * RATE,
        "sampling_rate": RATE,
        "speaker": "ann",
        "mood": "good",
        "split": "dev",
    }
    part = {**whole, "start": 0.5, "end": 1.75, "duration": 1.25, "samples": 10_000, "speaker": "ben"}
    place = {"archive": "x.tar", "offset": member.offset_data, "nbytes": member.size}
    return [
        {"id": "a", "path": "clips/a.wav", "text": 'the * "fox", \\* & <more>', "gaps": "marked", **whole},
        {"id": "a/2", "path": "clips/a.wav", "text": "one", "text_full": "one two", "channel": 1, **part},
        {"id": "b", "path": "b.wav", "text": "three", **place, **whole},
        {"id": "b-2", "path": "b.wav", "text": "4", **place, **part, "split": "odd"},
    ]


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    with rows_writer(folder / name) as writer:
        for row in rows:
            writer.write(Row(row))
    return folder / name


@pytest.mark.parametrize("suffix", READERS)
def test_the_same_rows_again(tmp_path: Path, rows: list[dict[str, Any]], suffix: str) -> None:
    path = written(tmp_path, f"train.{suffix}", rows)
    load(READERS[suffix])(path, tmp_path / "out")
    again = [row.fields for row in read_manifest(tmp_path / "out" / "manifest.jsonl")]
    for row in rows:  # their files are named from the folder of the manifest
        name = "archive" if "archive" in row else "path"
        row[name] = f"../{row[name]}"
    assert again == rows


def test_their_own_readers(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    supervisions = {one.id: one for one in lhotse.load_manifest(written(tmp_path, "x.jsonl.gz", rows))}
    part = supervisions["a/2"]
    assert (part.start, part.duration, part.end, part.channel, part.text, part.speaker) == (
        0.5,
        1.25,
        1.75,
        1,
        "one",
        "ben",
    )
    assert (part.recording_id, part.custom["mood"], part.custom["path"]) == ("clips/a", "good", "clips/a.wav")
    lines = [json.loads(line) for line in written(tmp_path, "x.json", rows).read_text().splitlines()]
    assert {name: lines[1][name] for name in ("audio_filepath", "offset", "duration", "text")} == {
        "audio_filepath": "clips/a.wav", "offset": 0.5, "duration": 1.25, "text": "one"
    }  # fmt: skip
    assert (lines[2]["audio_filepath"], lines[2]["tar"], "offset" in lines[2]) == ("b.wav", "x.tar", False)
    with open(written(tmp_path, "x.csv", [{**row, "added": [1]} for row in rows]), newline="") as file:
        cells = list(csv.DictReader(file))
    assert [cell["text"] for cell in cells] == [row["text"] for row in rows]
    assert "added" not in cells[0]


@pytest.mark.parametrize("suffix", ["srt", "vtt"])
def test_subtitles_again(tmp_path: Path, rows: list[dict[str, Any]], suffix: str) -> None:
    texts = ["the * fox", "one & <two>", "&lt;"]
    parts = [
        {"id": f"talk-{at:07d}-{at + 900:07d}", "path": "talk.wav", "text": text, "start": at / 1000, "end": (at + 900) / 1000}
        for at, text in zip((0, 1000, 2050), texts, strict=True)
    ]  # fmt: skip
    soundfile.write(tmp_path / "talk.wav", np.zeros(3 * RATE), RATE)
    written(tmp_path, f"talk.{suffix}", parts)
    load("subtitles")(tmp_path, tmp_path / "out")
    again = [row.fields for row in read_manifest(tmp_path / "out" / "manifest.jsonl")]
    assert [{name: row[name] for name in part} for row, part in zip(again, parts, strict=True)] == [
        {**part, "path": "../talk.wav"} for part in parts
    ]
    with pytest.raises(
        DataError, match=r"x\.srt: subtitles are of one recording, and there are clips/a\.wav and b\.wav"
    ):
        written(tmp_path, "x.srt", rows)
    assert not (tmp_path / "x.srt").exists()


def test_what_cannot_be_written(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    row = {"id": "a", "path": "a.wav", "text": "x", "duration": 1.0}
    (tmp_path / "x.json").write_text("old")
    for changes, message in (
        ({"path": "a.png"}, r"x\.json: row 'a' is an image, and NeMo's manifests are of audio"),
        ({"features": "log-mel x"}, "row 'a' is stored features"),
        ({"archive": "x.bin", "offset": 0, "nbytes": 1}, r"row 'a' is in x\.bin, and NeMo reads tars alone"),
    ):
        with pytest.raises(DataError, match=message):
            written(tmp_path, "x.json", [{**row, **changes}])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz: row 'a' does not say how long it is"):
        written(tmp_path, "x.jsonl.gz", [{"id": "a", "path": "a.wav", "text": "x", "start": 1.0}])
    with pytest.raises(ManifestError, match=r"x\.json, line 2: not written, id 'a' was used before"):
        written(tmp_path, "x.json", [row, row])
    assert (tmp_path / "x.json").read_text() == "old"
    assert not (tmp_path / "x.jsonl.gz").exists()


def test_images_in_a_table(tmp_path: Path) -> None:
    data = images.encode(np.full((20, 30), 200, np.uint8))
    (tmp_path / "lines.tar").write_bytes(b"01" + data)
    place = {"archive": "lines.tar", "offset": 2, "nbytes": len(data), "width": 30, "height": 20}
    write_manifest(tmp_path / "m.jsonl", [{"id": "l", "path": "l.png", "text": "x", "split": "dev", **place}])
    filter_manifest(tmp_path / "m.jsonl", tmp_path / "t.csv", [Condition.parse("split=dev")])
    load("table")(tmp_path / "t.csv", tmp_path / "out")
    (row,) = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert row.fields == {"id": "l", "path": "l.png", "text": "x", "split": "dev", **place, "archive": "../lines.tar"}
    bad = (tmp_path / "t.csv").read_text().replace("lines.tar,2", "../../lines.tar,x")
    (tmp_path / "t.csv").write_text(bad)
    with pytest.raises(ManifestError, match="line 2: field 'offset' must be a whole number from 0, not 'x'"):
        load("table")(tmp_path / "t.csv", tmp_path / "out")
    (tmp_path / "t.csv").write_text(bad.replace(",x,", ",2,"))
    with pytest.raises(ManifestError, match=r"line 2: .*leads out of the root"):
        load("table")(tmp_path / "t.csv", tmp_path / "out")
