"""`starseq prepare`, as a command: help, messages, and what a killed one leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from benchmarks.data import read_audio, read_lines

from starseq import cli
from starseq.data import audio
from starseq.data.manifest import read_manifest
from starseq.jobs.prepare import prepare

COMMAND = [sys.executable, "-m", "starseq", "prepare"]


@pytest.fixture
def starseq(monkeypatch, capsys):
    """The command in this process: importing torch anew for every call would take seconds."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["starseq", "prepare", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def clips(folder, count: int = 3):
    folder.mkdir()
    data = audio.encode(0.1 * torch.randn(8_000), 16_000)
    for i in range(count):
        (folder / f"c{i:05d}.wav").write_bytes(data)
        (folder / f"c{i:05d}.txt").write_text("HELLO")
    return folder


def test_every_corpus_is_a_sub_verb(starseq):
    _, shown, _ = starseq("--help")
    for name in ("librispeech", "iam", "pagexml", "alto", "folder", "table", "digits", "archive", "features"):
        assert f"\n  {name} " in shown
    _, help, _ = starseq("table", "--help")
    assert "--path-column" in help
    assert "--skip-bad" in help
    assert "--check / --no-check" in help
    assert "--no-skip-bad" not in help


def test_rows_that_say_nothing_of_gaps_are_counted(tmp_path, starseq):
    folder = clips(tmp_path / "src")
    (folder / "c00001.txt").write_text("HE * LLO")
    _, printed, _ = starseq("folder", folder, folder, "--dev", "0", "--test", "0")
    sentence = "gaps: 2 rows say nothing of gaps, so text may be missing anywhere in them;"
    assert sentence in printed
    for name in range(3):
        (folder / f"c{name:05d}.txt").write_text("HE * LLO")
    _, printed, _ = starseq("folder", folder, folder, "--dev", "0", "--test", "0")
    assert "say nothing of gaps" not in printed


def test_marks_are_read_counted_and_shown(tmp_path, starseq):
    folder = clips(tmp_path / "src", 4)
    for name, text in zip("0123", ("HE [...] LLO", "[?] WORLD [?]", "(sic) [sic] @@", "SO *"), strict=True):
        (folder / f"c0000{name}.txt").write_text(text)
    code, printed, error = starseq("folder", folder, folder, "--marks", "speech", "--gap", "@+", "--gap", "never")
    assert (code, error) == (0, "")
    assert "gap: 2 x [?], as in '[?] WORLD [?]'" in printed
    assert "gap: 1 x --gap @+, as in 'ic) [sic] @@'" in printed
    assert "gaps without a rule, for they look like marks: '[sic]' 1 x; --gap or a file of rules" in printed
    assert "say nothing of gaps" not in printed
    rows = list(read_manifest(folder / "manifest.jsonl"))
    assert [row.text for row in rows] == ["HE * LLO", "* WORLD *", "(sic) * *", "SO *"]
    assert {row["gaps"] for row in rows} == {"marked"}
    stats = json.loads((folder / "STATS.json").read_text())
    assert stats["marks"]["[...]"] == {"action": "gap", "count": 1, "examples": ["HE [...] LLO"]}
    assert stats["marks_without_rule"] == {"[sic]": 1}
    code, printed, _ = starseq("folder", folder, folder)
    assert (
        "read as characters, though they look like a transcriber's marks: '[?]' 2 x, '[...]' 1 x, '[sic]' 1 x"
        in printed
    )
    for arguments, sentence in (
        (("--marks", "none"), "marks: 'none' is neither one of leiden, tei, transkribus, speech nor a file"),
        (("--gap", "("), "--gap '(': not a regular expression"),
    ):
        code, _, error = starseq("folder", folder, folder, *arguments)
        assert (code, error.count("\n")) == (2, 1)
        assert sentence in error


def test_prepare_then_features(tmp_path, starseq):
    code, printed, error = starseq("folder", clips(tmp_path / "src"), tmp_path / "src", "--dev", "0", "--test", "0")
    assert code == 0, error
    assert "folder: 3 rows" in printed
    assert "4 characters: 'LHEO'" in printed
    _, printed, _ = starseq("features", tmp_path / "src" / "manifest.jsonl", tmp_path / "store")
    assert "3 rows, 0 shards were there already" in printed
    assert "a recipe" not in printed
    _, printed, _ = starseq(
        "features", tmp_path / "src" / "manifest.jsonl", tmp_path / "other", "--rate", "8000", "--bands", "40"
    )
    assert "a recipe reads them with data.reader.rate=8000 data.reader.bands=40\n" in printed
    assert len(list(read_manifest(tmp_path / "store" / "manifest.jsonl"))) == 3


def test_errors_are_one_sentence_and_exit_2(tmp_path, starseq):
    source = clips(tmp_path / "src")
    (source / "c00001.wav").write_bytes(b"")
    code, _, error = starseq("folder", source, tmp_path / "out")
    assert code == 2
    assert error.count("\n") == 1
    assert "c00001.wav, line 1: the file is empty" in error
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    code, printed, _ = starseq("folder", source, tmp_path / "out", "--skip-bad")
    assert code == 0
    assert "bad: 1 rows, see" in printed
    assert starseq("folder", tmp_path / "none", tmp_path / "out")[2].endswith("none: no such folder\n")


def test_subsets_may_be_repeated(tmp_path, starseq):
    code, _, error = starseq("librispeech", tmp_path, tmp_path / "out", "--subset", "dev-clean", "--subset", "x")
    assert code == 2
    assert "no subset 'dev-clean' (there are none)" in error


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_job_leaves_nothing_half_written(tmp_path, before):
    """Killed in the middle: no manifest, or the old one as it was."""
    source, out = clips(tmp_path / "src", 40), tmp_path / "out"
    old = None
    if before:
        prepare("digits", out, train=2, dev=1, test=1)
        old = {path.name: path.read_bytes() for path in out.iterdir()}
    script = (
        "import sys, time; from starseq.jobs.prepare import prepare\n"
        "def progress(done, total):\n"
        "    if done == 20: print('half', flush=True); time.sleep(60)\n"
        f"prepare('folder', {str(source)!r}, {str(out)!r}, skip_bad=True, progress=progress)"
    )
    job = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    assert job.stdout.readline() == "half\n"
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    left = {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}
    assert left == (old or {})
    assert prepare("folder", source, out, skip_bad=True).rows == 40  # and the next run is not disturbed
    assert len(list(read_manifest(out / "manifest.jsonl"))) == 40


def test_a_job_killed_at_random_is_whole_or_absent(tmp_path):
    """Archive and manifest together: whatever the moment, a manifest that is there can be read to its end."""
    for trial in range(3):
        out = tmp_path / str(trial)
        job = subprocess.Popen([*COMMAND, "digits", str(out), "--train", "200"], stdout=subprocess.DEVNULL)
        time.sleep(1.5 + 0.5 * trial)
        job.kill()
        job.wait()
        if (out / "manifest.jsonl").exists():
            prepare("archive", out, tmp_path / f"read{trial}")


def test_the_benchmarks_read_what_they_say(tmp_path):
    prepare("digits", tmp_path / "digits", train=4, dev=1, test=1)
    lines = read_lines(tmp_path / "digits" / "manifest.jsonl", rows=5, workers=0)
    assert (lines.rows, lines.hours) == (5, 0.0)
    assert lines.rows_per_second > 0
    source = clips(tmp_path / "src")
    prepare("folder", source, source)
    speech = read_audio(source / "manifest.jsonl", workers=0)
    assert speech.rows == 3
    assert speech.hours == pytest.approx(1.5 / 3600)
    assert speech.hours_per_minute > 0
