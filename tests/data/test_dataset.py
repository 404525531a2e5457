"""Manifest to batch: labels, gaps, lengths; on the fly and precomputed alike; bad rows by file and line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.strided import strided
from torch.utils.data import DataLoader

from starseq.data import audio, images, precompute
from starseq.data.batching import BatchSampler
from starseq.data.dataset import AudioReader, BatchLoader, LineReader, ManifestDataset, collate
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_manifest, rebaser, write_manifest
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
LETTERS = Tokeniser(Vocabulary(["a", "b", " "]), "char")


def speech(folder: Path, **extra: object) -> Path:
    rows = []
    for i, seconds in enumerate((0.5, 1.0, 0.3, 0.8)):
        wave = 0.1 * torch.randn(int(16_000 * seconds), generator=torch.Generator().manual_seed(i))
        (folder / f"u{i}.wav").write_bytes(audio.encode(wave, 16_000))
        split = "train" if i < 3 else "dev"
        rows.append({"id": f"u{i}", "path": f"u{i}.wav", "text": "ab a"[: i + 1], "duration": seconds, "split": split})
    rows[1] |= {"text": "a*", "text_full": r"a\*b"}
    rows[2] |= {"gaps": "marked"}
    write_manifest(folder / "m.jsonl", [row | extra for row in rows])
    return folder / "m.jsonl"


def lines(folder: Path) -> Path:
    rows = []
    for i, width in enumerate((40, 90, 25)):
        (folder / f"l{i}.png").write_bytes(images.encode(np.full((32, width), 200, np.uint8)))
        rows.append({"id": f"l{i}", "path": f"l{i}.png", "text": "ab"})
    write_manifest(folder / "m.jsonl", rows)
    return folder / "m.jsonl"


def test_items_carry_labels_gaps_and_references(tmp_path):
    data = ManifestDataset(speech(tmp_path), AudioReader(), LETTERS)
    assert len(data) == 4
    first, second, third = data[0], data[1], data[2]
    assert first.x.shape == (50, 80)
    assert (first.labels.tolist(), first.open.tolist()) == ([1], [True, True])
    assert (second.labels.tolist(), second.open.tolist()) == ([1], [False, True])  # only the marked gap
    assert second.reference == "a*b"
    assert (third.labels.tolist(), third.open.tolist()) == ([1, 2, 3], [False] * 4)  # marked, and no mark: complete
    assert data[-1].id == "u3"
    with pytest.raises(IndexError):
        data[4]


def test_batches_through_a_loader_with_workers(tmp_path):
    data = ManifestDataset(speech(tmp_path), AudioReader(), LETTERS, split="train")
    sampler = BatchSampler(data.sizes, budget=240.0)
    assert data.sizes.tolist() == [0.5, 1.0, 0.3]
    (batch,) = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=1)
    order = np.argsort(batch.ids)
    assert batch.x.shape == (3, 100, 80)
    assert batch.lengths[order].tolist() == [50, 100, 30]
    assert batch.target_lengths[order].tolist() == [1, 1, 3]
    assert batch.targets.shape == (3, 3)
    assert batch.open.shape == (3, 4)
    assert len(batch) == 3
    for row, length in zip(batch.x, batch.lengths, strict=True):
        assert not row[length:].any()
    assert batch.to("cpu").ids == batch.ids


def test_lines_in_columns_without_sizes_in_the_manifest(tmp_path):
    data = ManifestDataset(lines(tmp_path), LineReader(16, 40), LETTERS)
    assert data.sizes.tolist() == [20, 40, 12]
    assert collate([data[i] for i in range(3)]).x.shape == (3, 40, 16)
    assert data.too_long(strided(8)) == {}
    assert [data.row(i).id for i in data.too_long(strided(16))] == ["l2"]


def test_too_long_counts_repeats_for_ctc(tmp_path):
    write_manifest(tmp_path / "m.jsonl", [{"id": "x", "path": "x.png", "text": "aab", "width": 24, "height": 32}])
    data = ManifestDataset(tmp_path / "m.jsonl", LineReader(), LETTERS)
    assert data.too_long(strided(8)) == {}
    assert [data.row(i).id for i in data.too_long(strided(8), repeats=True)] == ["x"]


@pytest.mark.parametrize("workers", [0, 1])
def test_precomputed_features_are_equal_bit_for_bit(tmp_path, workers):
    reader, manifest = AudioReader(), speech(tmp_path)
    seen = []
    result = precompute.precompute(
        manifest, tmp_path / "store", reader, workers=workers, progress=lambda done, total: seen.append((done, total))
    )
    assert result == (4, 0, 0)
    assert seen[-1] == (4, 4)
    fly = ManifestDataset(manifest, reader, LETTERS)
    stored = ManifestDataset(tmp_path / "store" / "manifest.jsonl", reader, LETTERS)
    assert all(torch.equal(fly[i].x, stored[i].x) for i in range(4))
    assert fly.sizes.tolist() == stored.sizes.tolist()  # so the batches are the same
    assert [fly[i].open.tolist() for i in range(4)] == [stored[i].open.tolist() for i in range(4)]


class Deadly:
    """A shard that takes its worker with it."""

    def is_whole(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_a_sentence():
    with pytest.raises(DataError, match="a worker was killed, perhaps for want of memory: fewer workers need less"):
        list(precompute._run([Deadly()], 1))


def test_ctrl_c_while_feature_workers_start(tmp_path):
    """They do not hear it yet: what they begin with, the module of the first process, sleeps here."""
    script = tmp_path / "script.py"
    script.write_text("""
import os, time
if __name__ == "__mp_main__":
    os.write(1, b"begun\\n")
    time.sleep(1)
from starseq.data.precompute import _run
if __name__ == "__main__":
    try:
        list(_run([None, None], 2))
    except KeyboardInterrupt:
        print("stopped")
""")
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, error = process.communicate(timeout=300)
    assert (process.returncode, out.replace("begun\n", ""), error) == (0, "stopped\n", "")


def test_precompute_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(precompute, "SHARD_ROWS", 2)
    manifest, store = speech(tmp_path), tmp_path / "store"
    good = (tmp_path / "u3.wav").read_bytes()
    (tmp_path / "u3.wav").write_bytes(b"broken")
    with pytest.raises(ManifestError, match=r"m\.jsonl, line 4: u3\.wav: not audio"):
        precompute.precompute(manifest, store, AudioReader())
    assert not (store / "manifest.jsonl").exists()
    assert precompute.precompute(manifest, store, AudioReader(), skip_bad=True) == (3, 1, 1)
    assert json.loads((store / "bad.jsonl").read_text())["line"] == 4
    (tmp_path / "u3.wav").write_bytes(good)
    assert precompute.precompute(manifest, store, AudioReader()) == (4, 0, 1)
    assert precompute.precompute(manifest, store, AudioReader()) == (4, 0, 2)


def test_stored_features_of_other_settings_are_refused(tmp_path):
    from starseq.data.features import LogMel

    precompute.precompute(speech(tmp_path), tmp_path / "store", AudioReader())
    other = AudioReader(LogMel(bands=40))
    with pytest.raises(ManifestError, match=r"bands=80.* but .*bands=40.* is asked for"):
        ManifestDataset(tmp_path / "store" / "manifest.jsonl", other)[0]
    with pytest.raises(DataError, match="folder of its own"):
        precompute.precompute(tmp_path / "m.jsonl", tmp_path, AudioReader())


def test_stored_features_and_audio_in_one_manifest(tmp_path):
    manifest = speech(tmp_path)
    precompute.precompute(manifest, tmp_path / "store", AudioReader())
    stored = list(read_manifest(tmp_path / "store" / "manifest.jsonl"))
    fly = ManifestDataset(manifest, AudioReader(), LETTERS)
    rebase = rebaser(tmp_path / "store" / "manifest.jsonl", tmp_path / "mixed.jsonl")
    unsized = rebase(stored[0])
    del unsized.fields["size"]
    write_manifest(tmp_path / "mixed.jsonl", [unsized, *(fly.row(i) for i in (1, 2)), rebase(stored[3])])
    mixed = ManifestDataset(tmp_path / "mixed.jsonl", AudioReader(), LETTERS)
    assert all(torch.equal(fly[i].x, mixed[i].x) for i in range(4))
    assert mixed.sizes == pytest.approx(fly.sizes, abs=0.01)


def parts(folder: Path) -> Path:
    """Rows in the longer of the files of `speech`: u1.wav."""
    rows = [{"id": f"p{i}", "path": "u1.wav", "text": "ab", "start": 0.1 * i, "end": 0.1 * i + 0.5} for i in range(4)]
    write_manifest(folder / "parts.jsonl", rows)
    return folder / "parts.jsonl"


def test_rows_in_a_longer_file(tmp_path):
    speech(tmp_path)
    data = ManifestDataset(parts(tmp_path), AudioReader(), LETTERS)
    whole = audio.decode(tmp_path / "u1.wav")
    for i in range(4):
        assert torch.equal(data[i].x, AudioReader().log_mel(whole[1_600 * i : 1_600 * i + 8_000]))
    assert data.sizes == pytest.approx([0.5] * 4)  # as the rows say
    row = data.row(3).fields
    del row["end"]
    write_manifest(tmp_path / "open.jsonl", [row])
    assert ManifestDataset(tmp_path / "open.jsonl", AudioReader(), LETTERS).sizes == pytest.approx([0.7])  # measured


def test_features_of_rows_in_a_longer_file(tmp_path):
    speech(tmp_path)
    data = ManifestDataset(parts(tmp_path), AudioReader(), LETTERS)
    precompute.precompute(parts(tmp_path), tmp_path / "store", AudioReader())
    stored = ManifestDataset(tmp_path / "store" / "manifest.jsonl", AudioReader(), LETTERS)
    assert all(torch.equal(stored[i].x, data[i].x) for i in range(4))
    assert (stored.row(1)["start"], stored.row(1)["end"]) == (0.1, 0.6)


def test_a_field_called_features_may_be_the_users_own(tmp_path):
    assert len(ManifestDataset(speech(tmp_path, features="creaky voice"), AudioReader())[0].x) == 50


def test_stored_features_are_never_unpickled(tmp_path):
    blob = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "evil.npy", blob, allow_pickle=True)
    row = {"id": "x", "path": "evil.npy", "text": "a", "features": AudioReader().key, "size": 1.0}
    write_manifest(tmp_path / "m.jsonl", [row])
    with pytest.raises(ManifestError, match="not an array of features"):
        ManifestDataset(tmp_path / "m.jsonl", AudioReader())[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "none.wav"}, r"m\.jsonl, line 1: none\.wav: no such file"),
        ({"path": "../u0.wav"}, r"m\.jsonl, line 1: path '\.\./u0\.wav' leads out of the root"),
        ({"path": "empty.wav"}, r"m\.jsonl, line 1: empty\.wav: the file is empty"),
        ({"path": "short.wav"}, r"m\.jsonl, line 1: short\.wav: 79 samples are too short"),
        ({"text": "aXb"}, r"m\.jsonl, line 1: character 'X', number 2 of the text, is not in the vocabulary"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, change, message):
    manifest = speech(tmp_path)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "short.wav").write_bytes(audio.encode(torch.zeros(79), 16_000))
    row = json.loads(manifest.read_text().splitlines()[0]) | change
    write_manifest(manifest, [row])
    with pytest.raises(ManifestError, match=message):
        ManifestDataset(manifest, AudioReader(), LETTERS)[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_raises_what_its_workers_met(tmp_path, workers):
    data = ManifestDataset(speech(tmp_path), AudioReader(), LETTERS)
    (tmp_path / "u3.wav").write_bytes(b"broken")
    loader = BatchLoader(data, BatchSampler(data.sizes, max_items=1, shuffle=False), workers=workers)
    batches = iter(loader)
    assert next(batches).ids == ["u1"]
    with pytest.raises(ManifestError, match=r"m\.jsonl, line 4: u3\.wav: not audio that can be decoded") as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    assert len(loader) == 4


def test_no_rows_left(tmp_path):
    with pytest.raises(DataError, match=r"no row of split 'tset' \(there are dev, train\) is left"):
        ManifestDataset(speech(tmp_path), AudioReader(), split="tset")
    assert len(ManifestDataset(tmp_path / "m.jsonl", AudioReader(), keep=lambda row: row["duration"] < 0.6)) == 2


@pytest.mark.skipif(not (SHARED / "hooker-en").is_dir(), reason="shared/data/hooker-en is not here")
def test_hooker_fits_at_64_pixels():
    manifest = SHARED / "hooker-en" / "manifest.jsonl"
    characters = Tokeniser(
        Vocabulary(sorted(json.loads((manifest.parent / "STATS.json").read_text())["chars"])), "char"
    )
    counts = {
        split: len(ManifestDataset(manifest, LineReader(64, 1200), characters, split=split))
        for split in ("train", "dev", "test")
    }
    assert counts == {"train": 5466, "dev": 497, "test": 892}
    small = ManifestDataset(manifest, LineReader(32, 600), characters, split="train").too_long(strided(4), repeats=True)
    large = ManifestDataset(manifest, LineReader(64, 1200), characters, split="train").too_long(
        strided(4), repeats=True
    )
    assert len(large) < len(small)
