"""What lhotse writes: cuts, recordings with supervisions, Shar; and what is wrong by file and line."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, RecordingSet, SupervisionSegment, SupervisionSet

from starseq.corpora import load, reader_of
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("lhotse")
RATE = 8_000


@pytest.fixture
def wave(tmp_path: Path) -> np.ndarray:
    """r.flac, four seconds of two channels."""
    wave = np.random.default_rng(0).integers(-9_000, 9_000, (4 * RATE, 2)).astype(np.int16)
    soundfile.write(tmp_path / "r.flac", wave, RATE)
    return wave


def said(id: str, start: float, duration: float, text: str | None, **more: Any) -> SupervisionSegment:
    return SupervisionSegment(id, "r", start, duration, text=text, **more)


def cut(id: str, recording: Recording, start: float, duration: float, *supervisions: SupervisionSegment) -> MonoCut:
    return MonoCut(id, start, duration, 1, supervisions=list(supervisions), recording=recording)


@pytest.fixture
def cuts(tmp_path: Path, wave: np.ndarray) -> CutSet:
    recording = Recording.from_file(tmp_path / "r.flac", recording_id="r")
    recording.sources[0].source = "r.flac"
    return CutSet.from_cuts(
        [
            cut("one", recording, 0.5, 1.0, said("s1", 0.1, 0.5, "the * fox", speaker="ann", custom={"mood": "good"})),
            cut(
                "two",
                recording,
                1.0,
                2.0,
                said("s2", -0.5, 1.0, "a"),
                said("s3", 0.5, 0.25, "b"),
                said("s4", 1, 9, "c"),
            ),
            cut("three", recording, 0.0, 1.0, said("s5", 0, 1, None)),
        ]
    )


def samples(folder: Path, root: Path) -> dict[str, np.ndarray]:
    rows = read_manifest(folder / "manifest.jsonl")
    return {row.id: soundfile.read(io.BytesIO(read_bytes(row, folder, root)), dtype="int16")[0] for row in rows}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_cuts(tmp_path: Path, wave: np.ndarray, cuts: CutSet, suffix: str) -> None:
    cuts.to_file(tmp_path / f"cuts_dev{suffix}")
    assert reader_of(tmp_path / f"cuts_dev{suffix}") == "lhotse"
    report = prepare(tmp_path / f"cuts_dev{suffix}", tmp_path / "out", check=True)
    assert dict(report.left_out) == {"cut without text": 1}
    rows = {row.id: row.fields for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert rows["one"] == {
        "id": "one", "text": "the * fox", "speaker": "ann", "path": "../r.flac", "start": 0.5, "end": 1.5, "channel": 1,
        "duration": 1.0, "samples": 8_000, "sampling_rate": RATE, "mood": "good", "split": "dev",
    }  # fmt: skip
    right = wave[:, 1]
    expected = {
        "one": right[4_000:12_000], "s2": right[8_000:12_000], "s3": right[12_000:14_000], "s4": right[16_000:24_000]
    }  # fmt: skip
    found = samples(tmp_path / "out", tmp_path)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[id], part) for id, part in expected.items())


def test_supervisions_beside_their_recordings(tmp_path: Path, wave: np.ndarray) -> None:
    RecordingSet.from_recordings([Recording.from_file(tmp_path / "r.flac", recording_id="r")]).to_file(
        tmp_path / "x_recordings_train.jsonl.gz"
    )
    SupervisionSet.from_segments([said("s1", 0.5, 0.5, "one", channel=0), said("s2", 0, 1, "")]).to_file(
        tmp_path / "x_supervisions_train.jsonl.gz"
    )
    assert reader_of(tmp_path) == "lhotse"
    report = prepare(tmp_path, tmp_path / "out")
    assert dict(report.left_out) == {"supervision without text": 1}
    assert np.array_equal(samples(tmp_path / "out", tmp_path)["s1"], wave[4_000:8_000, 0])
    SupervisionSet.from_segments([SupervisionSegment("s1", "q", 0, 1, text="x")]).to_file(
        tmp_path / "x_supervisions_train.jsonl.gz"
    )
    with pytest.raises(ManifestError, match=r"x_supervisions_train\.jsonl\.gz, line 1: no recording 'q' beside"):
        prepare(tmp_path, tmp_path / "out")
    (tmp_path / "x_recordings_train.jsonl.gz").unlink()
    with pytest.raises(ManifestError, match="line 1: no recording, so there is no audio"):
        prepare(tmp_path, tmp_path / "out")


def test_shar(tmp_path: Path, wave: np.ndarray, cuts: CutSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shar").mkdir()
    first = [one for one in cuts if one.id != "three"]
    CutSet.from_cuts(first).to_shar(tmp_path / "shar", {"recording": "flac"}, shard_size=1)
    assert reader_of(tmp_path / "shar") == "lhotse"
    prepare(tmp_path / "shar", tmp_path / "out", split="train")
    rows = {row.id: row.fields for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert (rows["one"]["archive"], rows["one"]["path"]) == ("../shar/recording.000000.tar", "one.flac")
    assert not (tmp_path / "out" / "lines.tar").exists()
    found = samples(tmp_path / "out", tmp_path)
    right = wave[:, 1]
    assert np.array_equal(found["one"], right[4_000:12_000])
    assert np.array_equal(found["s3"], right[12_000:14_000])
    (tmp_path / "shar" / "recording.000001.tar").unlink()
    with pytest.raises(ManifestError, match=r"cuts\.000001\.jsonl\.gz, line 1: .*000001\.tar: no such tar of Shar"):
        prepare(tmp_path / "shar", tmp_path / "out")


def changed(line: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({**line, **changes}).encode() + b"\n"


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, cuts: CutSet) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "r.flac").rename(tmp_path / "in" / "r.flac")
    path = tmp_path / "in" / "cuts.jsonl"
    cuts.to_file(path)
    good = json.loads(path.read_text().splitlines()[0])
    source = {"type": "file", "channels": [0, 1], "source": "r.flac"}

    def with_source(**changes: Any) -> dict[str, Any]:
        return {"id": "new", "recording": {**good["recording"], "sources": [{**source, **changes}]}}

    wrong: list[tuple[bytes, str]] = [
        (b"{\n", "not JSON: "),
        (b"[]\n", "not a JSON object"),
        (changed(good, type="Sheep"), "not what lhotse reads .*Sheep"),
        (
            json.dumps({k: v for k, v in good.items() if k != "recording"}).encode() + b"\n",
            "no recording, so there is no audio",
        ),
        (changed(good, **with_source(type="command", source="touch ran")), "its source is a command, not a file"),
        (changed(good, **with_source(type="url", source="http://x/y.wav")), "its source is a url, not a file"),
        (changed(good, **with_source(source="../r.flac")), "leads out of the root"),
        (changed(good, **with_source(source="/etc/r.wav")), "leads out of the root"),
        (changed(good, **with_source(source="none.wav")), r"none\.wav: no such file"),
        (changed(good, id="new", start=90), r"r\.flac: there is nothing from 90 s to 91 s, for it has 4 s"),
        (changed(good), "id 'one' was used before"),
    ]
    for line, message in wrong:
        path.write_bytes(changed(good) + line)
        with pytest.raises(ManifestError, match=rf"in/cuts\.jsonl, line 2: .*{message}"):
            prepare(path, tmp_path / "out")
        assert prepare(path, tmp_path / "skipped", skip_bad=True).bad == 1
    assert not (tmp_path / "out").exists()
    (tmp_path / "in" / "cuts.jsonl.gz").write_bytes(gzip.compress(changed(good))[:-9])
    with pytest.raises(ManifestError, match="line 2: not gzip, or damaged"):
        prepare(tmp_path / "in" / "cuts.jsonl.gz", tmp_path / "out")
    (tmp_path / "in" / "cuts.jsonl.gz").write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(DataError, match="no cuts, and no supervisions, of lhotse in it"):
        prepare(tmp_path / "in" / "cuts.jsonl.gz", tmp_path / "out")
    with pytest.raises(DataError, match="no such file"):
        prepare(tmp_path / "none", tmp_path / "out")
