"""Data directories of Kaldi: whole files and segments in their place, and what is wrong by file and line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tests.commands import Command

from starseq.corpora import load
from starseq.data import audio
from starseq.data.dataset import AudioReader, ManifestDataset
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("kaldi")


def sound(path: Path, frames: int, *, rate: int = 8_000, channels: int = 1, **options: str) -> np.ndarray:
    """A file of noise, and its samples as whole numbers of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = np.random.default_rng(frames).integers(-9_000, 9_000, (frames, channels)).astype(np.int16)
    soundfile.write(str(path), wave, rate, **options)
    return wave


def directory(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("wav", "wav.scp")).write_text(text)
    return folder


@pytest.fixture
def egs(tmp_path: Path) -> Path:
    """data/train and data/valid, whose wav.scp speaks of audio/ beside data/."""
    for name in "abc":
        sound(tmp_path / "audio" / f"{name}.wav", 4_000)
    directory(
        tmp_path / "data" / "train",
        wav="a audio/a.wav\nb audio/b.wav\n",
        text="a the *  fox\nb\n",
        utt2spk="a ann\nb ben\n",
    )
    directory(tmp_path / "data" / "valid", wav=f"c {tmp_path}/audio/c.wav\nd nowhere.wav", text="c oh\r\n")
    return tmp_path


def test_whole_files_stay_where_they_are(egs: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    report = prepare(egs / "data", egs / "out", base=egs, progress=lambda *counts: seen.append(counts))
    first, second = (row.fields for row in read_manifest(egs / "out" / "manifest.jsonl"))
    assert first == {
        "id": "a", "text": "the *  fox", "split": "train", "speaker": "ann", "path": "../audio/a.wav",
        "duration": 0.5, "samples": 4_000, "sampling_rate": 8_000,
    }  # fmt: skip
    assert (second["id"], second["split"], second["path"]) == ("c", "dev", "../audio/c.wav")
    assert "speaker" not in second
    assert dict(report.left_out) == {"utterance without words": 1, "recording without a text": 1}
    assert not (egs / "out" / "lines.tar").exists()
    assert f"--root {egs}" in str(report)
    data = ManifestDataset(egs / "out" / "manifest.jsonl", AudioReader(), root=egs)
    assert data[1].x.shape == (50, 80)
    assert seen[-1] == (3, 3)
    assert "several sampling rates" not in str(report)
    sound(egs / "audio" / "c.wav", 16_000, rate=16_000)
    mixed = prepare(egs / "data", egs / "out", base=egs)
    assert "several sampling rates: 8,000 Hz in 1 rows, 16,000 Hz in 1 rows; a reader brings all" in str(mixed)


def test_one_directory_and_a_split_by_name(egs: Path) -> None:
    prepare(egs / "data" / "train", egs / "out", base=egs, split="test")
    (row,) = read_manifest(egs / "out" / "manifest.jsonl")
    assert (row.id, row["split"]) == ("a", "test")


def test_paths_begin_from_the_current_folder(egs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(egs)
    assert prepare("data", "out").rows == 2
    monkeypatch.chdir(egs / "data")
    where = rf"audio/a\.wav: no such file; a path in wav\.scp begins from {egs}/data, or from --base"
    with pytest.raises(ManifestError, match=rf"train/text, line 1: {where}"):
        prepare("train", "out")


def test_segments_are_rows_in_their_recordings_sample_by_sample(tmp_path: Path) -> None:
    wave = sound(tmp_path / "r.wav", 16_000)
    sides = sound(tmp_path / "s.flac", 8_000, channels=2)
    directory(
        tmp_path / "train", wav=f"r {tmp_path}/r.wav\ns {tmp_path}/s.flac\n", utt2spk="u1 ann\n",
        segments="u1 r 0.5 1.25\nu2 r 1.5 -1\nu3 s 0.1 0.2 1\nu4 s 0.5 1.4\nu5 r 0 1\nu6 r 0 -1\n",
        text="u1 one\nu2 two\nu3 three\nu4 four\nu6 six\n",
    )  # fmt: skip
    whole = directory(tmp_path / "test", wav=f"r2 {tmp_path}/r.wav\n", text="r2 all\n")
    report = prepare(tmp_path, tmp_path / "out", check=True)
    assert dict(report.left_out) == {"segment without a text": 1}
    assert report.notes[0].startswith(f"the files lie outside {tmp_path}/out: read the manifest with --root {tmp_path}")
    rows = {row.id: row for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    expected = {
        "u1": wave[4_000:10_000],
        "u2": wave[12_000:],
        "u3": sides[800:1_600, 1:],
        "u4": sides[4_000:],
        "u6": wave,
        "r2": wave,
    }
    assert set(rows) == set(expected)
    for id, samples in expected.items():
        data = read_bytes(rows[id], tmp_path / "out", tmp_path)
        found, rate = soundfile.read(io.BytesIO(data), dtype="int16", always_2d=True)
        assert rate == 8_000
        assert np.array_equal(found, samples)
        assert rows[id]["samples"] == len(samples)
        assert rows[id]["duration"] == len(samples) / 8_000
    part = {"path": "../r.wav", "recording": "r", "start": 0.5, "end": 1.25, "speaker": "ann", "split": "train"}
    assert {name: rows["u1"][name] for name in part} == part
    assert (rows["u3"]["channel"], rows["u4"]["end"]) == (1, 1.0)
    assert (rows["r2"]["path"], rows["r2"]["split"]) == ("../r.wav", whole.name)
    assert not {"start", "end"} & (rows["r2"].fields.keys() | rows["u6"].fields.keys())


def test_times_that_are_none(tmp_path: Path) -> None:
    sound(tmp_path / "r.wav", 4_000)
    for start, end in ((float("nan"), 1.0), (0.0, float("inf")), (0.0, float("nan"))):
        with pytest.raises(DataError, match="there is nothing from"):
            audio.part(tmp_path / "r.wav", start, end)


def test_what_kaldi_keeps_for_itself_is_passed_over(egs: Path) -> None:
    for place in ("train/.backup", "train/split2/1", "local/train", ".old/train"):
        directory(egs / "data" / place, wav="a audio/a.wav\n", text="a other\n")
    prepare(egs / "data", egs / "out", base=egs)
    assert [(row.id, row.text) for row in read_manifest(egs / "out" / "manifest.jsonl")] == [
        ("a", "the *  fox"),
        ("c", "oh"),
    ]
    directory(egs / "data" / "train_sp", wav="a audio/a.wav\n", text="a again\n")
    message = r"train_sp/text, line 1: 'a' is in .*data/train/text, too; one folder alone may be given"
    with pytest.raises(ManifestError, match=message):
        prepare(egs / "data", egs / "out", base=egs)


def test_folders_that_are_linked(egs: Path) -> None:
    (egs / "data" / "train").rename(egs / "elsewhere")
    (egs / "data" / "train").symlink_to(egs / "elsewhere")
    (egs / "data" / "round").symlink_to(egs / "data")
    report = prepare(egs / "data", egs / "out", base=egs)
    assert {name: tally.rows for name, tally in report.splits.items()} == {"train": 1, "dev": 1}
    assert list(prepare(egs / "data" / "train", egs / "out", base=egs).splits) == ["train"]


def test_files_that_are_linked(tmp_path: Path) -> None:
    """The path of a manifest leads to the file that was described, and the root that is told holds it."""
    sound(tmp_path / "far" / "a.wav", 4_000)
    sound(tmp_path / "near" / "a.wav", 8_000)
    (tmp_path / "far" / "sub").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "sub")
    (tmp_path / "near" / "b.wav").symlink_to(tmp_path / "far" / "a.wav")
    directory(tmp_path / "near", wav="a link/../a.wav\nb b.wav\n", text="a one\nb two\n")
    report = prepare(tmp_path / "near", tmp_path / "near", base=tmp_path / "near")
    assert f"--root {tmp_path}," in str(report)
    data = ManifestDataset(tmp_path / "near" / "manifest.jsonl", AudioReader(), root=tmp_path)
    assert [len(item.x) for item in (data[0], data[1])] == [50, 50]
    directory(tmp_path / "near", wav="b b.wav\n", text="b two\n")
    assert f"--root {tmp_path}," in str(prepare(tmp_path / "near", tmp_path / "near", base=tmp_path / "near"))


def test_where_all_is_bad_the_first_is_named(egs: Path) -> None:
    directory(egs / "data" / "valid", wav="c c.wav\n")
    with pytest.raises(
        DataError, match=r"found nothing to put .*; 2 bad, first .*train/text, line 1: audio/a\.wav: no such"
    ):
        prepare(egs / "data", egs / "out", base=egs / "data", skip_bad=True)


WRONG = {
    "u1 r 0.5 9\n": r"r\.wav: there is nothing from 0\.5 s to 9 s, for it has 1 s",
    "u1 r 0.5 0.5\n": r"there is nothing from 0\.5 s to 0\.5 s",
    "u1 r 1 -1\n": r"there is nothing from 1 s to the end",
    "u1 r -0.5 1\n": r"there is nothing from -0\.5 s to 1 s",
    "u1 r 0 1 2\n": r"r\.wav: no channel 2, for it has 1",
    "u1 r 0\n": r"segments, line 1: 'r 0' is not a recording, its start and its end",
    "u1 r inf 1\n": r"segments, line 1: 'r inf 1' is not a recording, its start and its end",
    "u1 r 0 1e400\n": r"segments, line 1: 'r 0 1e400' is not a recording, its start and its end",
    "u1 r nan 1\n": r"segments, line 1: 'r nan 1' is not a recording, its start and its end",
    "u1 v 0 1\n": r"wav\.scp, line 4: recording 'v': no file behind it",
    "u1 w 0 1\n": r"wav\.scp, line 5: recording 'w': /a/b\.png is an image",
    "u1 x 0 1\n": r"text, line 1: n{300}: no such file",
    "u1 r zero 1\n": r"segments, line 1: 'r zero 1' is not a recording",
    "u1 q 0 1\n": r"text, line 1: no recording 'q' in wav\.scp",
    "u2 r 0 1\n": r"text, line 1: no segment 'u1' in segments",
    "u1 s 0 1\n": r"wav\.scp, line 2: recording 's': a command, which is not run: write what it gives to a file",
    "u1 t 0 1\n": r"wav\.scp, line 3: recording 't': x\.ark:123 is in an archive of Kaldi",
    "u2 r 0 1\nu2 r 0 1\n": r"segments, line 2: 'u2' is there already, in line 1",
}


@pytest.mark.parametrize("segments", WRONG)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, segments: str) -> None:
    sound(tmp_path / "r.wav", 8_000)
    ran = tmp_path / "ran"
    wav = f"\ufeffr {tmp_path}/r.wav\ns touch {ran} |\nt x.ark:123\nv\nw /a/b.png\nx {'n' * 300}\n"
    directory(tmp_path / "train", wav=wav, segments=segments, text="u1 one\n")
    with pytest.raises(DataError, match=WRONG[segments]):
        prepare(tmp_path, tmp_path / "out")
    assert not ran.exists()
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_bad_utterances_are_listed_and_the_others_kept(egs: Path, command: Command) -> None:
    (egs / "audio" / "c.wav").write_bytes(b"no audio")
    done = command("prepare", "kaldi", egs / "data", egs / "out", "--base", egs)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "c.wav: not audio that can be decoded" in done.err
    done = command("prepare", "kaldi", egs / "data", egs / "out", "--base", egs, "--skip-bad")
    assert done.code == 0
    assert [row.id for row in read_manifest(egs / "out" / "manifest.jsonl")] == ["a"]
    assert "c.wav: not audio" in (egs / "out" / "bad.jsonl").read_text()


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no wav\.scp in it"):
        prepare(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="nowhere: no such folder"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    directory(tmp_path / "train", wav="a a.wav\n")
    with pytest.raises(DataError, match=r"found nothing .*; 1 x folder with wav\.scp and without text"):
        prepare(tmp_path, tmp_path / "out")
    (tmp_path / "train" / "text").write_bytes(b"a one\nb \xff\n")
    with pytest.raises(DataError, match="train/text, line 2: not UTF-8"):
        prepare(tmp_path, tmp_path / "out")
