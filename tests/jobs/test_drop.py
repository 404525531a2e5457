"""The job `drop`: files in, files out, counts that add up, and nothing half-written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.data import drop_million
from typer.testing import CliRunner

from starseq.cli import app
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_manifest, write_manifest
from starseq.jobs.drop import BINS, DropResult, draw_histogram, drop

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full.jsonl"
    write_manifest(path, ({"id": f"u{i}", "path": f"{i}.wav", "text": "one two three four"} for i in range(500)))
    return path


def test_counts_add_up(full: Path, tmp_path: Path) -> None:
    result = drop(full, tmp_path / "out.jsonl", Dropper(FixedDrop(0.5)))
    rows = list(read_manifest(tmp_path / "out.jsonl"))
    assert len(rows) == result.rows
    assert result.rows + result.pruned == 500 == sum(result.histogram)
    assert result.pruned == result.histogram[0] > 0
    assert result.labels == 2000
    assert result.kept == sum(len(row.text.split()) for row in rows)
    # 0, 1, 2, 3 or 4 of 4 labels.
    assert [i for i, count in enumerate(result.histogram) if count] == [0, 5, 10, 15, BINS - 1]


def test_everything_dropped_prunes_everything(full: Path, tmp_path: Path) -> None:
    result = drop(full, tmp_path / "out.jsonl", Dropper(FixedDrop(1.0), mark=True))
    assert (result.rows, result.pruned, result.share_kept) == (0, 500, 0.0)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_other_splits_stay_whole(tmp_path: Path) -> None:
    rows = [{"id": f"u{i}", "path": f"{i}.wav", "text": "one two", "split": ("train", "dev")[i % 2]} for i in range(60)]
    write_manifest(tmp_path / "full.jsonl", rows)
    everywhere = drop(tmp_path / "full.jsonl", tmp_path / "out.jsonl", Dropper(FixedDrop(0.5)))
    assert (everywhere.copied, everywhere.partial) == (0, ("dev", "train"))
    result = drop(tmp_path / "full.jsonl", tmp_path / "out.jsonl", Dropper(FixedDrop(0.5)), splits=["train"])
    assert (result.copied, result.partial, result.labels, sum(result.histogram)) == (30, ("train",), 60, 30)
    found = list(read_manifest(tmp_path / "out.jsonl"))
    assert len(found) == result.rows == 60 - result.pruned
    assert [row.text for row in found if row["split"] == "dev"] == ["one two"] * 30
    assert {row.text for row in found if row["split"] == "train"} == {"one", "two", "one two"}
    with pytest.raises(DataError, match=r"full.jsonl: no row of split 'trian' \(there are dev, train\)"):
        drop(tmp_path / "full.jsonl", tmp_path / "out.jsonl", Dropper(FixedDrop(0.5)), splits=["trian"])
    assert len(list(read_manifest(tmp_path / "out.jsonl"))) == len(found)


def test_rows_without_a_split(tmp_path: Path) -> None:
    rows = [{"id": f"u{i}", "path": f"{i}.wav", "text": "one two"} for i in range(30)]
    write_manifest(tmp_path / "full.jsonl", rows)
    for more, there in (([], "none"), ([{"id": "b", "path": "b.wav", "text": "x", "split": "dev"}], "dev")):
        write_manifest(tmp_path / "full.jsonl", [*rows, *more])
        with pytest.raises(DataError, match=rf"no row of split 'x' \(there are {there}\)"):
            drop(tmp_path / "full.jsonl", tmp_path / "out.jsonl", Dropper(FixedDrop(0.5)), splits=["x"])
    whole = drop(tmp_path / "full.jsonl", tmp_path / "out.jsonl", Dropper(FixedDrop(0.0)))
    assert whole.partial == ()
    command = ["drop", str(tmp_path / "full.jsonl"), str(tmp_path / "out.jsonl"), "--p-drop", "0.9", "--no-plot"]
    assert "labels were dropped from no split, dev:" in CliRunner().invoke(app, [*command, "--seed", "1"]).output


def test_the_command_says_that_dev_lost_labels_too(tmp_path: Path) -> None:
    rows = [{"id": f"u{i}", "path": f"{i}.wav", "text": "one two", "split": ("train", "dev")[i % 2]} for i in range(60)]
    write_manifest(tmp_path / "full.jsonl", rows)

    def said(*options: str) -> str:
        command = ["drop", str(tmp_path / "full.jsonl"), str(tmp_path / "out.jsonl"), "--p-drop", "0.5", "--no-plot"]
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 0
        return result.output

    assert "labels were dropped from dev, train: nothing read of them can be scored now; --split NAME" in said()
    assert "labels were dropped from dev, train: what is read of them is scored by text_full" in said("--keep-text")
    assert "labels were dropped" not in (output := said("--split", "train"))
    assert ", 30 of other splits as they were" in output


def test_shards_together_are_the_whole(full: Path, tmp_path: Path) -> None:
    lines = full.read_bytes().splitlines(keepends=True)
    dropper = Dropper(FixedDrop(0.5), mark=True, seed=4)
    drop(full, tmp_path / "whole.jsonl", dropper)
    shards = b""
    for number, part in enumerate((lines[300:], lines[:300])):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(part))
        drop(tmp_path / f"{number}.jsonl", tmp_path / f"{number}.out", dropper)
        shards += (tmp_path / f"{number}.out").read_bytes()
    assert sorted(shards.splitlines()) == sorted((tmp_path / "whole.jsonl").read_bytes().splitlines())


def test_the_labels_that_are_read_stay(full: Path) -> None:
    before = full.read_bytes()
    with pytest.raises(DataError, match="this is the file that is read; choose another name for the result"):
        drop(full, full, Dropper(FixedDrop(0.5), mark=True))
    assert full.read_bytes() == before


def test_copied_rows_still_lead_to_their_files(tmp_path: Path) -> None:
    rows = [{"id": split, "path": f"{split}.wav", "text": "x", "split": split} for split in ("dev", "train")]
    write_manifest(tmp_path / "full.jsonl", rows)
    drop(tmp_path / "full.jsonl", tmp_path / "sub" / "out.jsonl", Dropper(FixedDrop(0.0)), splits=["train"])
    assert [row.path for row in read_manifest(tmp_path / "sub" / "out.jsonl")] == ["../dev.wav", "../train.wav"]


def test_a_bad_row_stops_the_job_and_leaves_the_old_result(full: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    full.write_bytes(full.read_bytes()[:-10])
    with pytest.raises(ManifestError, match="line 500: the file ends in the middle of this line"):
        drop(full, out, Dropper(FixedDrop(0.5)))
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.jsonl", "out.jsonl"]


def test_bad_rows_are_skipped_and_kept_aside(full: Path, tmp_path: Path) -> None:
    rows = full.read_bytes() + b'{"id": "u1", "path": "p", "text": "a"}\n{"id": "cut'
    full.write_bytes(rows)
    result = drop(full, tmp_path / "out.jsonl", Dropper(FixedDrop(0.0)), skip_bad=True)
    assert (result.rows, result.bad) == (500, 2)
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in bad] == [
        (501, "id 'u1' was used before"),
        (502, "the file ends in the middle of this line, after 11 bytes"),
    ]


def test_rows_that_cannot_be_marked_are_bad_rows(full: Path, tmp_path: Path) -> None:
    once = tmp_path / "once.jsonl"
    drop(full, once, Dropper(FixedDrop(0.5), keep_text=True))
    with pytest.raises(ManifestError, match=r"once.jsonl, line 1: row 'u\d' lost labels before without marks"):
        drop(once, tmp_path / "out.jsonl", Dropper(FixedDrop(0.5), mark=True))
    assert drop(once, tmp_path / "out.jsonl", Dropper(FixedDrop(0.5), mark=True), skip_bad=True).bad > 0


def test_paths_still_lead_to_the_files(full: Path, tmp_path: Path) -> None:
    drop(full, tmp_path / "deep/er/out.jsonl", Dropper(FixedDrop(0.0)))
    assert next(read_manifest(tmp_path / "deep/er/out.jsonl")).path == "../../0.wav"


KILLED = """
import os, signal, sys
from starseq.data.drop import Dropper, FixedDrop
from starseq.jobs.drop import drop
calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
drop(sys.argv[1], sys.argv[2], Dropper(FixedDrop(0.5)), skip_bad=True, progress=progress)
"""


@pytest.mark.parametrize("old", [None, b"old\n"])
def test_a_kill_in_the_middle_leaves_nothing_half_written(tmp_path: Path, old: bytes | None) -> None:
    full, out = tmp_path / "full.jsonl", tmp_path / "out.jsonl"
    write_manifest(full, ({"id": f"u{i}", "path": "p", "text": "one two three"} for i in range(10_000)))
    if old is not None:
        out.write_bytes(old)
    done = subprocess.run([sys.executable, "-c", KILLED, str(full), str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (out.read_bytes() if out.exists() else None) == old
    assert not (tmp_path / "bad.jsonl").exists()
    # It was in the middle: some of the result had been written, elsewhere.
    assert any(path.name.startswith(".out.jsonl.") and path.stat().st_size > 0 for path in tmp_path.iterdir())


def test_the_command_killed_from_outside(tmp_path: Path) -> None:
    full, out = tmp_path / "full.jsonl", tmp_path / "out.jsonl"
    write_manifest(full, ({"id": f"u{i}", "path": "p", "text": "one two three"} for i in range(100_000)))
    out.write_bytes(b"old\n")
    command = [sys.executable, "-m", "starseq", "drop", str(full), str(out), "--p-drop", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not any(path.name.startswith(".out.jsonl.") and path.stat().st_size for path in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert out.read_bytes() == b"old\n"


def test_the_histogram_as_text_and_as_a_picture(tmp_path: Path) -> None:
    result = DropResult(3, 1, 0, 8, 4, (1, *[0] * (BINS - 2), 3))
    lines = result.table(width=6).splitlines()
    assert len(lines) == BINS
    assert (lines[0], lines[1], lines[-1]) == ("  0-5%   ██ 1", "  5-10%  0", " 95-100% ██████ 3")
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `cli`")
    draw_histogram(result, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"a.xyz: pictures end in .png, .svg or .pdf"):
        draw_histogram(result, tmp_path / "a.xyz")


@pytest.mark.parametrize("name", ["hooker-en", "librispeech-7h", "audiomnist-strings"])
def test_real_manifests(name: str, tmp_path: Path) -> None:
    manifest = SHARED / name / "manifest.jsonl"
    if not manifest.exists():
        pytest.skip(f"no {name} in shared/data")
    unit = "char" if name == "hooker-en" else "word"
    result = drop(manifest, tmp_path / "out.jsonl", Dropper(FixedDrop(0.3), unit=unit, mark=True, keep_text=True))
    assert result.share_kept == pytest.approx(0.7, abs=0.01)
    full = {row.id: row for row in read_manifest(manifest)}
    for row in read_manifest(tmp_path / "out.jsonl"):
        assert row["text_full"] == full[row.id].text
        assert row["raw"] == full[row.id]["raw"] if "raw" in row.fields else True


@pytest.mark.slow
def test_a_million_rows_in_300_megabytes() -> None:
    bench = drop_million()
    assert bench.seconds < 600  # a minute where nothing else runs: `benchmarks/measure.py data` measures that
    assert bench.peak_mib * 2**20 < 300e6
