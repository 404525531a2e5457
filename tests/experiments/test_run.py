"""The runner of experiments, with a made-up `starseq` that sleeps, writes what a run folder holds, and remembers its calls."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from experiments.run import Cell, Mistake, Runner, Table, append, page, read_lines

from experiments import run as experiments
from starseq.config import load_recipe
from starseq.runs import read_results

FAKE = """
import json, os, pathlib, signal, sys, time
verb, words = sys.argv[1], sys.argv[2:]
with open("calls", "a") as file:
    print(verb, *words, file=file)
if verb == "train":
    out = pathlib.Path(words[words.index("--out") + 1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "metrics.csv").write_text("step,p,dev_error\\n10,0.5,80\\n20,0.4,\\n")
    (out / "last.ckpt").touch()
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while "slow" in words:
        time.sleep(0.01)
    if "together" in words:  # until two of them are there
        pathlib.Path(out.parent / "there").touch()
        while len(list(pathlib.Path(".").glob("*/*/*/there"))) < 2:
            time.sleep(0.01)
    if "bad" in words:
        sys.exit("this cannot be trained")
    (out / "model.safetensors").touch()
    (out / "results.json").write_text(json.dumps({"train": {"steps": 30, "seconds": 1.5}}))
if verb == "fit":
    out = pathlib.Path(words[words.index("--out") + 1])
    for part, rate in (("teacher", 40.0), ("student", 30.0)):
        (out / part).mkdir(parents=True)
        (out / part / "model.safetensors").touch()
        ways = {"beam": {"cer": rate, "wer": rate}}
        (out / part / "results.json").write_text(json.dumps({"evaluate": {"dev": ways, "test": ways}}))
if verb == "evaluate":
    file = pathlib.Path(words[0]) / "results.json"
    found = json.loads(file.read_text())
    ways = {**found.get("evaluate", {}).get("test", {}), "greedy": {"cer": 20.0, "wer": 50.0}}
    if "--beam" in words:
        ways["beam"] = {"cer": 10.0, "wer": 30.0}
    file.write_text(json.dumps({**found, "evaluate": {"dev": ways, "test": ways}}))
"""
TABLE = """
title: Made up
metric: cer
base: none/ctc
commands: ["train {here}/x {set} {row} seed={seed} --out {run} --resume", "evaluate {run}"]
rows: {none: , "0.5": data.drop.p=0.5}
columns:
  ctc: {title: CTC, set: criterion.name=ctc}
  stc: {rows: ["0.5"], seeds: [0, 1]}
  searched: {from: stc, rows: ["0.5"], commands: ["evaluate {from} --beam 20"]}
front: "0.5"
summary: {CTC: ctc, STC: stc}
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "work").mkdir()
    starseq = (sys.executable, str(tmp_path / "fake.py"))
    facts = {"machine": "a machine", "commit": "abc", "version": "0"}
    return Runner(tmp_path / "made.jsonl", tmp_path / "work", tmp_path, "cer", facts, jobs=2, starseq=starseq)


def table(folder: Path, text: str = TABLE) -> Table:
    (folder / "made.yaml").write_text(text)
    return Table.load(str(folder / "made.yaml"))


def calls(runner: Runner) -> list[str]:
    path = runner.work / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_cells_are_run_and_written_once(runner: Runner, tmp_path: Path) -> None:
    cells = table(tmp_path).cells()
    assert [cell.name for cell in cells] == ["none/ctc/0", "0.5/ctc/0", "0.5/stc/0", "0.5/searched/0", "0.5/stc/1"]
    assert runner.run(cells)
    lines = read_lines(runner.results)
    assert sorted(f"{line['row']}/{line['column']}/{line['seed']}" for line in lines) == sorted(c.name for c in cells)
    line = next(line for line in lines if line["column"] == "ctc" and line["row"] == "0.5")
    assert line["errors"]["test"] == {"read": "greedy", "cer": 20.0, "wer": 50.0}
    assert line["train"]["steps"] == 30
    assert {line[name] for name in ("machine", "commit", "version")} == {"a machine", "abc", "0"}
    assert line["commands"] == [
        "starseq train experiments/x criterion.name=ctc data.drop.p=0.5 seed=0 --out runs/made/0.5/ctc/0 --resume",
        "starseq evaluate runs/made/0.5/ctc/0",
    ]
    searched = next(line for line in lines if line["column"] == "searched")
    assert searched["errors"]["test"]["read"] == "beam"
    made = calls(runner)
    assert len(made) == 9
    assert runner.run(cells)  # all of them are there
    assert calls(runner) == made


def test_a_run_inside_of_a_run_and_the_reading_that_counts(runner: Runner, tmp_path: Path) -> None:
    """`starseq fit` leaves a teacher and a student, each read greedily and with a language model."""
    text = """
    title: Made up
    metric: cer
    rows: {half: }
    columns:
      stc: {read: greedy, commands: ["fit x --out {run}", "evaluate {run}/teacher"]}
      student: {from: stc, read: beam, commands: ["evaluate {from}/student"]}
    """
    cells = table(tmp_path, text).cells()
    assert [cell.reads for cell in cells] == ["made/half/stc/0/teacher", "made/half/stc/0/student"]
    assert runner.run(cells)
    found = {line["column"]: line["errors"]["test"] for line in read_lines(runner.results)}
    assert found == {
        "stc": {"read": "greedy", "cer": 20.0, "wer": 50.0},
        "student": {"read": "beam", "cer": 30.0, "wer": 30.0},
    }
    assert runner.missing(cells) == []


def test_what_changes_is_run_again_with_what_it_reads(runner: Runner, tmp_path: Path) -> None:
    runner.run(table(tmp_path).cells())
    changed = table(tmp_path, TABLE.replace("{row} seed", "{row} optim.lr=1 seed").replace("criterion.name=ctc", "a=1"))
    assert len(runner.missing(changed.cells())) == 5
    other = table(tmp_path, TABLE.replace("--beam 20", "--beam 30"))
    assert [cell.name for cell in runner.missing(other.cells())] == ["0.5/searched/0"]
    (runner.work / "made/0.5/stc/0/model.safetensors").unlink()  # of another machine
    assert [cell.name for cell in runner.missing(other.cells())] == ["0.5/stc/0", "0.5/searched/0"]


def test_a_recipe_that_changes_is_another_cell(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    keys = set()
    for text in ("seed: 1", "seed: 2"):
        recipe.write_text(text)
        keys.add(Cell("t", "r", "c", 0, (("train", str(recipe)),)).key)
    assert len(keys) == 2


def test_cells_run_side_by_side(runner: Runner, tmp_path: Path) -> None:
    """Two that wait for one another end."""
    text = TABLE.replace("{set} {row}", "{set} {row} together")
    runner.minutes = 5
    assert runner.run([cell for cell in table(tmp_path, text).cells() if cell.column == "ctc"])


def test_two_that_write_into_one_run_take_turns(runner: Runner, tmp_path: Path) -> None:
    text = TABLE.replace("front", "  again: {from: stc, rows: ['0.5'], commands: ['evaluate {from} --beam 9']}\nfront")
    one, two, three = (
        c for c in table(tmp_path, text).cells() if c.column in ("stc", "searched", "again") and not c.seed
    )
    assert not runner._may_start(two, [one], [])
    job = runner._start(one)
    assert not runner._may_start(two, [], [job])
    job.process.wait()
    job.cell = two
    assert not runner._may_start(three, [], [job])
    assert runner._may_start(three, [], [])


@pytest.mark.parametrize("how", ["slow", "slow stubborn"])
def test_when_the_time_is_over_what_is_done_is_kept(
    how: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "END_SECONDS", 0.5)
    text = TABLE.replace("criterion.name=ctc}", f"criterion.name=ctc {how}, rows: [none]}}")
    cells = table(tmp_path, text).cells()
    clock, real = 0.0, time.monotonic

    def now() -> float:  # the time is over when all others are done
        done = len(read_lines(runner.results)) == 3
        there = (runner.work / "made/none/ctc/0/last.ckpt").exists()
        return real() + (1e6 if done and there else clock)

    runner.minutes = 60
    monkeypatch.setattr(experiments.time, "monotonic", now)
    assert not runner.run(cells)
    lines = read_lines(runner.results)
    assert [line["partial"] for line in lines if "partial" in line] == [{"step": 20, "dev_error": 80, "p": 0.4}]
    assert "*dev 80.0 at step 20*" in page(table(tmp_path, text), lines)
    assert [cell.name for cell in runner.missing(cells)] == ["none/ctc/0"]
    assert sum(" --out " in call and "/none/ctc" in call for call in calls(runner)) == 1
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    ours = [pid for pid in pids if str(tmp_path / "fake.py") in _command(pid)]
    assert ours == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_cell_that_fails_is_said_and_the_others_go_on(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TABLE.replace('{rows: ["0.5"], seeds: [0, 1]}', '{rows: ["0.5"], set: bad}')
    assert not runner.run(table(tmp_path, text).cells())
    assert {line["column"] for line in read_lines(runner.results)} == {"ctc"}
    assert "made 0.5/stc/0: failed, exit code 1: this cannot be trained (see " in capsys.readouterr().out
    assert not any("--beam" in call for call in calls(runner))


def line(row: str, column: str, seed: int, error: float, **more: Any) -> dict[str, Any]:
    errors = {"test": {"cer": error, "wer": 2 * error}}
    return {
        "table": "made",
        "row": row,
        "column": column,
        "seed": seed,
        "errors": errors,
        "machine": "m",
        "commit": "c",
        **more,
    }


def test_the_page(tmp_path: Path) -> None:
    lines = [line("none", "ctc", 0, 8), line("0.5", "stc", 0, 11), line("0.5", "stc", 1, 13)]
    lines.insert(0, {**line("0.5", "stc", 0, 0), "partial": {"step": 5, "dev_error": 9}})
    del lines[0]["errors"]
    made = table(tmp_path)
    assert page(made, lines).splitlines()[2:6] == [
        "| test CER % | CTC | stc |",  # and not what was never run
        "|---|---|---|",
        "| none | 8.00, 1.00 x |  |",
        "| 0.5 |  | 12.0 ± 1.41, 1.50 x |",
    ]
    append(tmp_path / "made.jsonl", lines)
    assert append(tmp_path / "made.jsonl", lines) == 0


def test_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.write_text(json.dumps(line("a", "b", 0, 1)) + '\n{"table": "ma')
    assert append(path, [line("a", "b", 1, 1)]) == 1
    assert [one["seed"] for one in read_lines(path)] == [0, 1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TABLE + "colour: red\n", "'colour' is none of title"),
        (TABLE.replace("title: CTC", "name: CTC"), "ctc: 'name' is none of title"),
        (TABLE.replace("metric: cer", ""), "made.yaml: 'metric' is missing"),
        (TABLE.replace("[0, 1]", "[0, 1"), "made.yaml: not YAML: "),
    ],
)
def test_a_mistake_in_a_table(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match=sentence):
        table(tmp_path, text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(TABLE)
    places = ["--work", str(tmp_path / "w"), "--results", str(tmp_path / "r.jsonl")]
    assert experiments.main([str(path), "--dry-run", "--cell", "0.5/searched/*", *places]) == 0
    assert [text.split()[1] for text in capsys.readouterr().out.splitlines()] == ["train", "evaluate", "evaluate"]
    append(tmp_path / "other.jsonl", [line("none", "ctc", 0, 8, key="k")])
    assert experiments.main([str(path), "--add", str(tmp_path / "other.jsonl"), *places]) == 0
    assert len(read_lines(tmp_path / "r.jsonl")) == 1
    assert experiments.main([str(tmp_path / "none.yaml")]) == 2
    assert "no such table" in capsys.readouterr().err


TABLES = [path.stem for path in experiments.HERE.glob("*.yaml")]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_names_recipes_and_overrides_that_there_are(name: str) -> None:
    cells = Table.load(name).cells()
    assert cells
    for cell in cells:
        for words in cell.words("runs", "data", "cpu", str(experiments.HERE)):
            if words[0] == "train":
                recipe = load_recipe(words[1], [word for word in words[2:] if "=" in word])
                assert recipe.data.root is not None
                assert recipe.seed == cell.seed


def test_a_real_run_has_what_a_line_needs(tmp_path: Path) -> None:
    """The made-up program above writes files like those of the real one."""
    from tests.run_folder import CPU, make_run

    from starseq.jobs.evaluate import evaluate

    folder = make_run(tmp_path / "run", lines=2)
    evaluate(folder, splits=["dev", "test"], where=CPU)
    found = experiments.result(folder, "cer")
    assert found["errors"]["test"]["cer"] == read_results(folder)["evaluate"]["test"]["greedy"]["cer"]
    assert found["train"]["p"] == 0.5
    assert experiments.so_far(folder) == {"step": 20, "dev_error": 61.5, "p": 0.5}
