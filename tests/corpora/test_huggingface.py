"""What `datasets` writes, and the folders that it reads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import soundfile
from pyarrow import parquet

from starseq.corpora import load, reader_of
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("huggingface")
RATE = 8_000


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def sound(samples: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full(samples, 100, np.int16), RATE, format="FLAC")
    return buffer.getvalue()


def speech(*rows: dict[str, Any]) -> datasets.Dataset:
    features = datasets.Features(
        {
            "audio": datasets.Audio(),
            "sentence": datasets.Value("string"),
            "client_id": datasets.Value("string"),
            "age": datasets.Value("int32"),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    table = pa.Table.from_pylist(
        [{"client_id": "ann", "age": 9, "words": ["x"], **row} for row in rows], features.arrow_schema
    )
    return datasets.Dataset(table)  # made of a table, for `datasets` itself cannot write audio without torchcodec


@pytest.fixture
def ones() -> datasets.Dataset:
    return speech(
        {"audio": {"bytes": sound(800), "path": "a.flac"}, "sentence": "one * two"},
        {"audio": {"bytes": sound(1_600), "path": None}, "sentence": "three"},
        {"audio": {"bytes": sound(1_600), "path": None}, "sentence": ""},
    )


def prepared(source: Path, out: Path, **options: Any) -> dict[str, dict[str, Any]]:
    prepare(source, out, **options)
    return {row.id: row.fields for row in read_manifest(out / "manifest.jsonl")}


def check_ones(rows: dict[str, dict[str, Any]], out: Path, split: str) -> None:
    first, second = (rows[f"{split}-000000{i}"] for i in (1, 2))
    about = {
        "text": "one * two",
        "path": f"{split}-0000001.flac",
        "speaker": "ann",
        "age": 9,
        "samples": 800,
        "split": split,
    }
    assert {name: first[name] for name in about} == about
    assert (second["text"], second["duration"], "words" in second) == ("three", 0.2, False)
    found = {row.id: row for row in read_manifest(out / "manifest.jsonl")}
    assert read_bytes(found[f"{split}-0000002"], out) == sound(1_600)


def test_what_save_to_disk_writes(tmp_path: Path, ones: datasets.Dataset) -> None:
    parts = datasets.DatasetDict({"train": ones, "validation": ones, "odd": ones})
    parts.save_to_disk(tmp_path / "in")
    assert reader_of(tmp_path / "in") == "huggingface"
    rows = prepared(tmp_path / "in", tmp_path / "out", check=True)
    assert len(rows) == 6
    for split in ("train", "dev", "odd"):
        check_ones(rows, tmp_path / "out", split)
    assert reader_of(tmp_path / "in" / "train") == "huggingface"
    assert list(prepared(tmp_path / "in" / "train", tmp_path / "out")) == ["row-0000001", "row-0000002"]


def test_parquet(tmp_path: Path, ones: datasets.Dataset) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        (tmp_path / "in" / "data").mkdir(parents=True, exist_ok=True)
        ones.to_parquet(tmp_path / "in" / "data" / f"{name}.parquet")
    assert reader_of(tmp_path / "in") == reader_of(tmp_path / "in/data/test-00000-of-00001.parquet") == "huggingface"
    rows = prepared(tmp_path / "in", tmp_path / "out")
    assert [id for id in rows if id.startswith("train")] == [f"train-000000{i}" for i in (1, 2, 4, 5)]
    check_ones(rows, tmp_path / "out", "test")


def test_folders_with_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for split in ("train", "test"):
        (folder / split / "clips").mkdir(parents=True)
        (folder / split / "clips" / "a.flac").write_bytes(sound(8_000))
    lines = [
        {"file_name": "clips/a.flac", "transcription": "one", "start": 0.25, "end": 0.5},
        {"file_name": "clips/a.flac", "text": "*"},
    ]
    (folder / "train" / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "test" / "metadata.csv").write_text("file_name,transcription\nclips/a.flac,two\n")
    assert reader_of(folder) == "huggingface"
    rows = prepared(folder, tmp_path / "out")
    assert [(id, row["text"], row["path"]) for id, row in rows.items()] == [
        ("test-0000001", "two", "../in/test/clips/a.flac"), ("train-0000001", "one", "../in/train/clips/a.flac"),
        ("train-0000002", "*", "../in/train/clips/a.flac"),
    ]  # fmt: skip
    assert [rows["train-0000001"][name] for name in ("start", "end", "duration")] == [0.25, 0.5, 0.25]
    assert not (tmp_path / "out" / "lines.tar").exists()


def test_images(tmp_path: Path) -> None:
    picture = images.encode(np.full((20, 30), 200, np.uint8))
    schema = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")}).arrow_schema
    table = pa.Table.from_pylist([{"image": {"bytes": picture, "path": None}, "text": "one"}], schema)
    datasets.Dataset(table).to_parquet(tmp_path / "lines.parquet")
    (row,) = prepared(tmp_path / "lines.parquet", tmp_path / "out", dev=0, test=0).values()
    assert (row["path"], row["width"], row["height"], row["split"]) == ("row-0000001.png", 30, 20, "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio": {"bytes": b"none", "path": "a.wav"}}, r"row-0000002\.wav: not audio"),
        ({"audio": {"bytes": None, "path": "../a.wav"}}, "leads out of the root"),
        ({"audio": {"bytes": None, "path": "a.exe"}}, r"a\.exe: neither audio nor an image"),
        ({"audio": {"bytes": None, "path": None}}, "no audio and no image"),
        ({"audio": None}, r"no column of media \(there are audio, .*\): name it with --media-column"),
    ],
)
def test_what_is_wrong_is_named_with_its_row(
    tmp_path: Path, ones: datasets.Dataset, change: dict[str, Any], message: str
) -> None:
    good = {"audio": {"bytes": sound(800), "path": "a.flac"}, "sentence": "one"}
    parquet.write_table(
        speech(good, {**good, **change}, {**good, "sentence": None}).data.table, tmp_path / "in.parquet"
    )
    with pytest.raises(ManifestError, match=rf"in\.parquet, line 2: .*{message}"):
        prepare(tmp_path / "in.parquet", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    assert len(prepared(tmp_path / "in.parquet", tmp_path / "out", skip_bad=True)) == 1
    with pytest.raises(ManifestError, match=r"no column 'words2' \(there are audio"):
        prepare(tmp_path / "in.parquet", tmp_path / "out", text_column="words2")


def test_what_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read"):
        prepare(tmp_path / "x.parquet", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no dataset of Hugging Face in it"):
        prepare(tmp_path / "empty", tmp_path / "out")


def test_names_in_a_dataset_do_not_lead_out_of_it(tmp_path: Path, ones: datasets.Dataset) -> None:
    ones.save_to_disk(tmp_path / "far")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["../far"]}')
    with pytest.raises(DataError, match=r"in/far/state\.json: not JSON that can be read"):
        prepare(tmp_path / "in", tmp_path / "out")
    state = (tmp_path / "far" / "state.json").read_text()
    (tmp_path / "in" / "dataset_dict.json").unlink()
    (tmp_path / "in" / "state.json").write_text(state.replace("data-", "../far/data-"))
    with pytest.raises(DataError, match=r"in/data-00000-of-00001\.arrow: cannot be read"):
        prepare(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "state.json").write_text("[]")
    assert reader_of(tmp_path / "in") is None
