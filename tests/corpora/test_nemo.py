"""NeMo's manifests: whole files, offsets, tars as NeMo writes them, and what is wrong by file and line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tests.commands import Command

from starseq.corpora import load, reader_of
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("nemo")
RATE = 8_000


def sound(path: Path, seconds: float) -> np.ndarray:
    wave = np.random.default_rng(len(path.name)).integers(-9_000, 9_000, round(seconds * RATE)).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, RATE)
    return wave


def manifest(path: Path, *rows: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def samples(folder: Path, root: Path) -> dict[str, np.ndarray]:
    """What every row of a prepared manifest reads, by its id."""
    rows = read_manifest(folder / "manifest.jsonl")
    return {row.id: soundfile.read(io.BytesIO(read_bytes(row, folder, root)), dtype="int16")[0] for row in rows}


def test_files_and_offsets(tmp_path: Path) -> None:
    a, hour = sound(tmp_path / "clips/a.wav", 1.0), sound(tmp_path / "hour.flac", 4.0)
    manifest(
        tmp_path / "train_manifest.json",
        {"audio_filepath": "clips/a.wav", "duration": 0.98, "text": "the * fox", "lang": "en"},
        {"audio_filepath": "hour.flac", "offset": 1.5, "duration": 0.25, "text": "one", "speaker": "ann"},
        {"audio_filepath": str(tmp_path / "hour.flac"), "offset": 3.0, "duration": 1.02, "text": "two"},
        {"audio_filepath": "hour.flac", "duration": 2, "text": "three", "id": "mine"},
        {"audio_filepath": "hour.flac", "duration": 2.0, "text": ""},
    )
    manifest(tmp_path / "val.jsonl", {"audio_file": "hour.flac", "text": "all"})
    assert reader_of(tmp_path) == reader_of(tmp_path / "val.jsonl") == "nemo"
    seen: list[tuple[int, int | None]] = []
    report = prepare(tmp_path, tmp_path / "out", check=True, progress=lambda *counts: seen.append(counts))
    assert dict(report.left_out) == {"row without text": 1}
    assert seen[-1][0] == seen[-1][1]
    expected = {
        "clips/a": a,
        "hour-0001500-0001750": hour[12_000:14_000],
        "hour-0003000-0004000": hour[24_000:],
        "mine": hour[:16_000],
        "hour": hour,
    }
    found = samples(tmp_path / "out", tmp_path)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[id], wave) for id, wave in expected.items())
    rows = {row.id: row.fields for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert rows["clips/a"] == {
        "id": "clips/a", "path": "../clips/a.wav", "text": "the * fox", "lang": "en", "split": "train",
        "duration": 1.0, "samples": 8_000, "sampling_rate": RATE,
    }  # fmt: skip
    part = {"path": "../hour.flac", "start": 1.5, "end": 1.75, "duration": 0.25, "speaker": "ann", "split": "train"}
    assert {name: rows["hour-0001500-0001750"][name] for name in part} == part
    assert rows["hour"]["split"] == "dev"


def test_tars(tmp_path: Path) -> None:
    """As convert_to_tarred_audio_dataset.py writes them: a recording once, its utterances called -sub1 and so on."""
    waves = {name: sound(tmp_path / "src" / name, seconds) for name, seconds in (("a.wav", 1.0), ("b.wav", 2.0))}
    for shard, name in enumerate(waves):
        with tarfile.open(tmp_path / f"audio_{shard}.tar", "w") as tar:
            tar.add(tmp_path / "src" / name, arcname=f"data_{name}")
    rows = [
        {"audio_filepath": "data_a.wav", "duration": 1.0, "text": "one", "shard_id": 0},
        {"audio_filepath": "data_b.wav", "offset": 0.5, "duration": 0.5, "text": "two", "shard_id": 1},
        {"audio_filepath": "data_b-sub1.wav", "offset": 1.0, "duration": 0.5, "text": "three", "shard_id": 1},
    ]
    manifest(tmp_path / "tarred_audio_manifest.json", *rows)
    manifest(tmp_path / "sharded_manifests" / "manifest_1.json", rows[1])
    prepare(tmp_path / "tarred_audio_manifest.json", tmp_path / "out")
    found = samples(tmp_path / "out", tmp_path)
    expected = [waves["a.wav"], waves["b.wav"][4_000:8_000], waves["b.wav"][8_000:12_000]]
    assert list(found) == ["data_a", "data_b-0000500-0001000", "data_b-sub1-0001000-0001500"]
    assert all(np.array_equal(*pair) for pair in zip(found.values(), expected, strict=True))
    assert not (tmp_path / "out" / "lines.tar").exists()
    prepare(tmp_path / "sharded_manifests", tmp_path / "shard")
    assert len(samples(tmp_path / "shard", tmp_path)) == 1
    manifest(tmp_path / "tarred_audio_manifest.json", {**rows[0], "shard_id": 1})
    with pytest.raises(ManifestError, match=r"json, line 1: data_a\.wav: in no tar of shard 1 beside the manifest"):
        prepare(tmp_path / "tarred_audio_manifest.json", tmp_path / "out")
    (tmp_path / "audio_1.tar").write_bytes(b"\x1f\x8b no tar")
    with pytest.raises(ManifestError, match=r"line 1: .*audio_1\.tar: not a tar that can be read, or a compressed one"):
        prepare(tmp_path / "tarred_audio_manifest.json", tmp_path / "out")


WRONG: list[tuple[dict[str, object] | str, str]] = [
    ("{", "not JSON: "),
    ("[]", "not a JSON object"),
    ({"text": "x"}, "field 'audio_filepath' is missing"),
    ({"audio_filepath": 3}, "field 'audio_filepath' must be text"),
    ({"audio_filepath": "a.wav", "offset": "1"}, "field 'offset' must be seconds, not '1'"),
    (
        {"audio_filepath": "a.wav", "offset": 7, "duration": 1},
        r"a\.wav: there is nothing from 7 s to 8 s, for it has 1 s",
    ),
    ({"audio_filepath": "a.wav", "duration": 2}, r"a\.wav: there is nothing from 0 s to 2 s, for it has 1 s"),
    ({"audio_filepath": "b.wav"}, r"b\.wav: no such file"),
    ({"audio_filepath": "b.exe"}, r"b\.exe: neither audio nor an image"),
    ({"audio_filepath": "../a.wav"}, "leads out of the root"),
    ({"audio_filepath": "/etc/a.wav"}, "leads out of the root"),
    ({"audio_filepath": "a.wav", "tar": "../../x.tar"}, "leads out of the root"),
    ({"audio_filepath": "a.wav", "channel": 4}, r"a\.wav: no channel 4, for it has 1"),
    ({"audio_filepath": "a.wav", "id": "a"}, "id 'a' was used before"),
]


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, row: dict[str, object] | str, message: str) -> None:
    sound(tmp_path / "in" / "a.wav", 1.0)
    good = {"audio_filepath": "a.wav", "text": "one", "id": "a"}
    line = row if isinstance(row, str) else json.dumps({"text": "two", **row})
    path = tmp_path / "in" / "train.json"
    path.write_text(f"{json.dumps(good)}\n\n{line}\n")
    with pytest.raises(ManifestError, match=rf"in/train\.json, line 3: .*{message}"):
        prepare(path, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    report = prepare(path, tmp_path / "out", skip_bad=True)
    assert (report.rows, report.bad) == (1, 1)


def test_in_place_of_our_manifest_it_is_one_sentence(tmp_path: Path, command: Command) -> None:
    path = manifest(tmp_path / "train.json", *({"audio_filepath": f"{i}.wav", "text": "x"} for i in range(100)))
    done = command("manifest", "validate", path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.endswith("train.json: a manifest of another kind, which `starseq prepare nemo` reads\n")
    with pytest.raises(DataError, match="starseq prepare nemo"):
        next(read_manifest(path))
    with pytest.raises(DataError, match="none: no such file"):
        prepare(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no manifest of NeMo in it"):
        prepare(tmp_path / "empty", tmp_path / "out")
