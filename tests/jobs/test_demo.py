"""`starseq demo`: three trainings, one table, a page; a stopped one goes on; and the star is worth it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from starseq import cli
from starseq.data.errors import DataError
from starseq.jobs.demo import MODELS, demo

SMALL = ("data.corpus.train=8", "data.corpus.dev=2", "data.corpus.test=4", "model.width=16", "model.layers=1")
KEYS = ["ctc_full", "ctc_partial", "stc_partial"]


def test_a_small_demo_and_what_it_does_when_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    done: list[tuple[int, int | None]] = []
    result = demo(out, steps=2, overrides=SMALL, progress=lambda *counts: done.append(counts))
    assert done[-1] == (6, 6)
    saved = json.loads((out / "results.json").read_text())
    assert [saved[key] for key in KEYS] == [round(result.cer[key], 2) for key in KEYS]
    assert (saved["steps"], saved["seed"]) == (2, 0)
    assert 0.2 < result.kept < 0.8
    _, *lines = result.table().splitlines()
    assert [line.split()[0] for line in lines] == ["CTC", "CTC", "STC"]
    html = (out / "report.html").read_text()
    for part in (
        *(model.name for model in MODELS),
        "error on dev, %",
        '<svg class="alignment"',
        "class=lost",
        "<article>",
    ):
        assert part in html

    # Finished trainings stay; one that was lost is made again, the same.
    models = {key: out / key / "model.safetensors" for key in KEYS}
    before = {key: (path.stat().st_mtime_ns, path.read_bytes()) for key, path in models.items()}
    shutil.rmtree(out / "ctc_full")
    (out / "results.json").unlink()
    again = demo(out, steps=2, overrides=SMALL)
    assert again.cer == result.cer
    assert models["ctc_full"].read_bytes() == before["ctc_full"][1]
    assert all(models[key].stat().st_mtime_ns == before[key][0] for key in KEYS[1:])
    assert json.loads((out / "results.json").read_text()) == saved

    monkeypatch.chdir(tmp_path)
    assert demo(Path("demo"), steps=2, overrides=SMALL).cer == result.cer  # the same folder by another name
    with pytest.raises(DataError, match="holds a demo with other settings; choose another --out"):
        demo(out, steps=3, overrides=SMALL)


def test_what_a_training_says_is_wrong_stops_the_demo(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(DataError, match=r"manifest\.jsonl: no row is left for the splits none"):
        demo(tmp_path, steps=2, overrides=(*SMALL, "data.splits.dev=[none]"))
    assert time.monotonic() - started < 300  # the other trainings were ended, not waited for


def test_bad_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["starseq", "demo", "--steps", "0"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2
    assert capsys.readouterr().err == "starseq: steps: 0 is not a number of optimiser steps above 0\n"


@pytest.mark.slow
def test_the_star_is_worth_it(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo")
    assert result.cer["ctc_full"] < 2
    assert result.cer["stc_partial"] <= 5
    assert result.cer["ctc_partial"] > 40
    assert result.cer["ctc_full"] < result.cer["stc_partial"] < result.cer["ctc_partial"]
