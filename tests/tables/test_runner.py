"""The runner of the experiments, with a `starseq` that only writes files: order, sharing, resuming, limits of time, packs."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks import tables, work
from benchmarks.steps import BEST, TABLES, Mistake, Table

FAKE = f"{sys.executable} -I -S {Path(__file__).with_name('fake_starseq.py')}"

TABLE = """
title: small
corpus: corpus
metric: wer
recipe: digits
steps: 4
overrides: [model.width=8]
drop: {unit: word, seed: 7}
conditions:
  "0": {}
  "0.4": {p-drop: 0.4}
  parts: {sample-splits: [0.1, 0.7]}
schedules: {grid: [[0.1, 0.6], [0.3, 0.7]], half_life: 2}
methods:
  ctc: {train: [criterion.name=ctc]}
  stc: {train: [criterion.name=stc]}
  stc+beam: {from: stc, lm: {text: pseudo, options: [--order, 3]}}
  stc+pseudo: {from: stc, pseudo: [--kind, keep-known], train: [criterion.name=ctc]}
  labels: {labels: true}
runs:
  - {conditions: ["0", "0.4"], methods: [ctc, stc], seeds: [0]}
  - {conditions: ["0.4"], methods: [stc+pseudo, stc+beam, labels], seeds: [0]}
  - {conditions: ["0.4"], methods: [stc-0.1-0.6, stc-0.3-0.7], seeds: [0]}
  - {conditions: ["0.4"], methods: [best], seeds: [1]}
"""


class Place:
    """A folder with a table, a corpus, results and a work folder, and the command to run in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.data, self.results = folder / "t.yaml", folder / "data", folder / "cells.jsonl"
        self.work, self.log = folder / "work", folder / "log"
        self.table.write_text(TABLE)
        (self.data / "corpus").mkdir(parents=True)
        (self.data / "corpus" / "manifest.jsonl").write_text("{}\n")
        monkeypatch.setenv("FAKE_LOG", str(self.log))

    def run(self, *options: str, work: Path | None = None, results: Path | None = None) -> int:
        places = ["--work", str(work or self.work), "--results", str(results or self.results), "--data", str(self.data)]
        return tables.main(["run", str(self.table), *places, "--starseq", FAKE, "--machine", "a test", *options])

    def names(self) -> list[str]:
        return [f"{line['condition']}/{line['method']}/{line['seed']}" for line in work.read_lines(self.results)]

    def commands(self, verb: str = "") -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [command for line in lines if (command := json.loads(line))[0].startswith(verb)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def value(command: Sequence[str], key: str) -> str | None:
    return next((part.partition("=")[2] for part in command if part.startswith(f"{key}=")), None)


def test_cells_in_the_tables_order_and_what_they_share_once(place: Place) -> None:
    assert place.run() == 0
    assert place.names() == [
        "0/ctc/0", "0/stc/0", "0.4/ctc/0", "0.4/stc/0", "0.4/labels/0", "0.4/stc+pseudo/0", "0.4/stc+beam/0",
        "0.4/stc-0.1-0.6/0", "0.4/stc-0.3-0.7/0", "0.4/stc-0.3-0.7/1",
    ]  # fmt: skip
    trained = [(value(c, "data.drop.p"), value(c, "criterion.name"), value(c, "seed")) for c in place.commands("train")]
    # The student's teacher is the cell before it; the best schedule alone gets a second seed.
    assert trained == [
        (None, "ctc", "0"), (None, "stc", "0"), ("0.4", "ctc", "0"), ("0.4", "stc", "0"), (None, "ctc", "0"),
        ("0.4", "stc", "0"), ("0.4", "stc", "0"), ("0.4", "stc", "1"),
    ]  # fmt: skip
    assert [value(c, "penalty.p0") for c in place.commands("train")][-3:] == ["0.1", "0.3", "0.3"]
    assert len(place.commands("drop")) == 1
    assert len(place.commands("pseudo")) == 1  # for the student and for the language model
    before = len(place.commands())
    assert place.run() == 0
    assert len(place.commands()) == before


@pytest.mark.parametrize("given", [False, True])
def test_pseudo_labels_are_read_with_the_language_model_of_the_method_they_are_from(place: Place, given: bool) -> None:
    """The first ones, without one, are what it learns from, mixed with books; the student's own learns from the second ones."""
    (place.data / "books").mkdir()
    (place.data / "books" / "text.txt").write_text("one\n")
    lm = "{text: pseudo, mix: {text: books/text.txt, recipe: letters, options: [--order, 4]}}"
    weights = ", --alpha, 0.5, --beta, 1" if given else ""
    methods = (
        f"a: {{from: stc, lm: {lm}}}",
        f"b: {{from: a, pseudo: [--kind, plain{weights}], train: []}}",
        f"c: {{from: b, lm: {lm}}}",
    )
    with_them = TABLE.replace("  labels: {", "".join(f"  {method}\n" for method in methods) + "  labels: {")
    place.table.write_text(with_them.replace("[stc+pseudo, stc+beam, labels]", "[c]"))
    assert place.run("--cell", "0.4/c/0") == 0
    assert place.names() == ["0.4/c/0"]
    first, second = place.commands("pseudo")
    teacher, student = (c[c.index("--out") + 1] for c in place.commands("train"))
    own, books, mix, again, mixed = (c for c in place.commands("lm") if c[0] == "lm")
    arpa = [c[c.index("--out") + 1] for c in (own, books, mix, again, mixed)]
    assert "--lm" not in first
    assert books[2:] == ["data/books/text.txt", "--recipe", "letters", "--out", arpa[1], "--order", "4"]
    assert mix[:4] == ["lm", "mix", arpa[0], arpa[1]]
    assert mixed[:4] == ["lm", "mix", arpa[3], arpa[1]]
    tuned = [(c[1], c[c.index("--lm") + 1]) for c in place.commands("tune")]
    assert tuned == [(teacher, arpa[2]), (student, arpa[4])][given:]  # weights that are given need no tuning
    assert second[:5] == ["pseudo", teacher, first[2], "--out", second[4]]
    assert second[5:9] == ["--lm", arpa[2], "--kind", "plain"]
    # The beam search of the teacher is not needed for that.
    assert [c[1] for c in place.commands("evaluate")] == [teacher, student, student]
    filtered = [c for c in place.commands("manifest") if c[1] == "filter"]
    assert [c[2] for c in filtered if c[-1] == "split=train"] == [first[4], second[4]]


def test_a_search_without_a_language_model_tunes_the_length_and_pseudo_labels_have_its_weight(place: Place) -> None:
    methods = (
        "a: {from: stc, lm: {search: [--beam, 7]}}",
        "b: {from: a, pseudo: [--kind, plain], train: []}",
        "c: {from: stc, lm: {text: pseudo, search: [--beam, 7]}}",
    )
    with_them = TABLE.replace("  labels: {", "".join(f"  {method}\n" for method in methods) + "  labels: {")
    place.table.write_text(with_them.replace("[stc+pseudo, stc+beam, labels]", "[a, b, c]"))
    assert place.run("--cell", "0.4/[abc]/0") == 0
    lines = {line["method"]: line for line in work.read_lines(place.results)}
    assert (lines["a"]["weights"], lines["c"]["weights"]) == ({"alpha": 0, "beta": 0.3}, {"alpha": 0.5, "beta": 0.1})
    errors = [lines[method]["errors"]["test"]["beam"]["wer"] for method in "ac"]
    assert errors == [9.5, 9.0]
    teacher = place.commands("train")[0]
    run = teacher[teacher.index("--out") + 1]
    assert place.commands("tune")[0] == ["tune", run, "--beam", "7", "--device", "cpu", "--workers", "2"]
    tuned, read = (place.commands().index(next(iter(place.commands(name)))) for name in ("tune", "pseudo"))
    assert tuned < read
    student, text = place.commands("pseudo")
    assert student[5:] == ["--beam", "7", "--kind", "plain", "--beta", "0.3", "--device", "cpu", "--workers", "2"]
    assert text[5:] == ["--kind", "keep-known", "--beta", "0", "--device", "cpu", "--workers", "2"]
    searched = [c for c in place.commands("evaluate") if "--beam" in c]
    assert [c[c.index("--beta") + 1] for c in searched] == ["0.3", "0.1"]
    assert [c[c.index("--alpha") + 1] for c in searched if "--lm" in c] == ["0.5"]
    place.table.write_text(with_them.replace("{search: [--beam, 7]}", "{search: [--beam, 7], mix: {}}"))
    with pytest.raises(Mistake, match="'mix' is not a key of `lm` without `text`"):
        Table.load(str(place.table)).cell("0.4", "a", 0)
    place.table.write_text(with_them.replace("{search: [--beam, 7]}", "{search: [--beam-tokens, 7]}"))
    with pytest.raises(Mistake, match="`lm` without `text` needs a `search` with --beam"):
        Table.load(str(place.table)).cell("0.4", "a", 0)


def test_several_teachers_label_together(place: Place) -> None:
    """Another seed, and then the teachers beside their student, of which none is trained twice."""
    methods = (
        "a: {from: stc, also: [[stc, 1]], pseudo: [--kind, keep-known], train: []}",
        "b: {from: a, also: [[stc, 0], [stc, 1]], pseudo: [--kind, keep-known], train: []}",
    )
    with_them = TABLE.replace("  labels: {", "".join(f"  {method}\n" for method in methods) + "  labels: {")
    place.table.write_text(with_them.replace("[stc+pseudo, stc+beam, labels]", "[a, b]"))
    assert place.run("--cell", "0.4/[ab]/0") == 0
    runs = {c[c.index("--out") + 1]: c for c in place.commands("train")}
    assert len(runs) == len(place.commands("train")) == 4
    teachers = {
        seed: next(run for run, c in runs.items() if f"seed={seed}" in c and "data.drop.p=0.4" in c) for seed in (0, 1)
    }
    first, second = place.commands("pseudo")
    student = second[1]
    assert first[1] == teachers[0]
    assert first[5:9] == ["--also", teachers[1], "--kind", "keep-known"]
    assert student not in teachers.values()
    assert second[5:9] == ["--also", teachers[0], "--also", teachers[1]]
    # Of the other seed only its training is needed.
    assert teachers[1] not in [c[1] for c in place.commands("evaluate")]
    # A teacher beside its own student: the teacher's labels, although the student was trained later.
    place.table.write_text(with_them.replace("from: a, also: [[stc, 0], [stc, 1]]", "from: stc, also: [[a, 0]]"))
    pseudo = next(s for s in Table.load(str(place.table)).cell("0.4", "b", 0).steps[::-1] if s.stage == "pseudo")
    assert pseudo.commands[0][1] == teachers[0]
    assert pseudo.option("--also") == student
    place.table.write_text(with_them.replace("also: [[stc, 1]], pseudo: [--kind, keep-known],", "also: [[stc, 1]],"))
    with pytest.raises(Mistake, match="`also` is for pseudo-labels"):
        Table.load(str(place.table)).cell("0.4", "a", 0)


def test_two_searches_of_one_run_take_turns(place: Place) -> None:
    """Each adds to the run's results.json and tuned.json what the other would read."""
    methods = ("a: {from: stc, lm: {search: [--beam, 7]}}", "c: {from: stc, lm: {text: pseudo, search: [--beam, 7]}}")
    with_them = TABLE.replace("  labels: {", "".join(f"  {method}\n" for method in methods) + "  labels: {")
    place.table.write_text(with_them.replace("[stc+pseudo, stc+beam, labels]", "[a, c]"))
    place.run("--cell", "0.4/[ac]/0", "--stages", "drop,train,greedy,pseudo,lm")
    for turn in range(4):
        own, results = place.work.with_name(f"work{turn}"), place.results.with_name(f"cells{turn}.jsonl")
        shutil.copytree(place.work, own)
        assert place.run("--cell", "0.4/[ac]/0", "--jobs", "2", work=own, results=results) == 0
        found = {line["method"]: line["errors"]["test"]["beam"]["wer"] for line in work.read_lines(results)}
        assert found == {"a": 9.5, "c": 9.0}


@pytest.mark.parametrize(
    ("lm", "said"),
    [
        ("{text: pseudo, mix: {text: x.txt}}", "`mix` has text, recipe and maybe options; got text"),
        ("{text: pseudo, mix: {text: x.txt, recipe: r, option: 1}}", "got text, recipe, option"),
        ("{text: pseudo, lexicon: true}", "pseudo-labels of a would need its `rescore` or `lexicon`"),
        ("{text: pseudo, rescore: [--steps, 1]}", "pseudo-labels of a would need its `rescore` or `lexicon`"),
    ],
)
def test_a_language_model_that_pseudo_labels_cannot_have_is_one_sentence(place: Place, lm: str, said: str) -> None:
    methods = f"  a: {{from: stc, lm: {lm}}}\n  b: {{from: a, pseudo: [--kind, plain], train: []}}\n  labels: {{"
    place.table.write_text(TABLE.replace("  labels: {", methods))
    with pytest.raises(Mistake) as mistake:
        Table.load(str(place.table)).cell("0.4", "b", 0)
    assert said in str(mistake.value)


def test_a_command_that_is_not_there_is_one_sentence(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.run("--starseq", "no/such/starseq") != 0
    assert "--starseq: 'no/such/starseq' is not a program that can be found" in capsys.readouterr().err


def test_a_line_holds_what_the_page_says(place: Place) -> None:
    place.run("--jobs", "3")
    lines = {f"{line['condition']}/{line['method']}": line for line in work.read_lines(place.results)}
    line = lines["0.4/stc"]
    assert line["errors"]["test"] == {"greedy": {"wer": 10.0, "cer": 5.0}}
    assert line["train"]["steps"] == 4
    assert line["train"]["parameters"] == 6
    assert line["train"]["p"] == 0.1
    assert line["train"]["inserted_per_label"] == 0.25
    assert line["train"]["steps_per_second"] == 0.5
    assert (line["machine"], line["made"][0]["jobs"]) == ("a test", 3)
    assert line["made"][0]["commands"][0].startswith("starseq train digits data.root=data/corpus data.drop.p=0.4 ")
    assert lines["0.4/stc+beam"]["errors"]["dev"]["beam"] == {"wer": 9.0, "cer": 4.0}
    assert lines["0.4/stc+beam"]["weights"] == {"alpha": 0.5, "beta": 0.1}
    assert lines["0.4/stc+pseudo"]["pseudo"]["errors"] == {"pseudo": {"wer": 3.0, "cer": 2.0}}
    assert lines["0.4/labels"]["labels"] == {
        "kept": 50, "labels": 1250, "rows": 8, "pruned": 1, "histogram": [1, *[0] * 9, 8, *[0] * 9],
    }  # fmt: skip
    (words,) = place.work.glob("lm/*.words")
    assert words.read_text() == "one\ntwo\n"


def test_labels_are_the_same_on_the_fly_and_in_the_manifest(place: Place, tmp_path: Path) -> None:
    """Both spellings of a condition, by the real thing."""
    from typer.testing import CliRunner

    from starseq.cli import app
    from starseq.config import load_recipe
    from starseq.data.manifest import read_manifest, write_manifest

    full = tmp_path / "full.jsonl"
    text = "one two three four five six seven"
    write_manifest(full, [{"id": f"u{i}", "path": "a", "text": text, "split": "train"} for i in range(40)])
    for condition in ("0.4", "parts"):
        cell = Table.load(str(place.table)).cell(condition, "stc+pseudo", 0)
        train, drop = cell.steps[0].commands[0], next(step for step in cell.steps if step.stage == "drop").commands[1]
        dropper = load_recipe("digits", [part for part in train if part.startswith("data.drop")]).dropper()
        assert dropper is not None
        out = tmp_path / f"{condition}.jsonl"
        done = CliRunner().invoke(app, ["drop", str(full), str(out), *drop[3:]])
        assert done.exit_code == 0, done.output
        rows = [dropper(row) for row in read_manifest(full)]
        assert [row.text for row in read_manifest(out)] == [dropped.row.text for dropped in rows if dropped.kept]
        kept = sum(dropped.kept for dropped in rows)
        assert kept < 40 * 7
        printed = work._histogram(done.output)
        assert (printed["kept"], printed["labels"], sum(printed["histogram"])) == (kept, 40 * 7, 40)
        assert len(printed["histogram"]) == 20


def test_only_what_is_asked_for(place: Place) -> None:
    assert place.run("--cell", "0.4/*/0", "--stages", "train,greedy") == 0
    assert place.names() == ["0.4/ctc/0", "0.4/stc/0", "0.4/stc-0.1-0.6/0", "0.4/stc-0.3-0.7/0"]
    assert place.run("--cell", "0.4/stc+pseudo/0", "--stages", "drop,pseudo") == 0
    assert len(place.names()) == 4  # the student is not trained here
    assert place.run("--cell", "0.4/stc+pseudo/0", "--stages", "train,greedy") == 0
    assert place.names()[-1] == "0.4/stc+pseudo/0"
    assert len(place.commands("train")) == 5


def test_another_setting_is_another_line(place: Place) -> None:
    place.run("--cell", "0/ctc/0")
    place.run("--cell", "0/ctc/0", "--set", "optim.lr=0.5")
    assert place.names() == ["0/ctc/0", "0/ctc/0"]
    table, lines = Table.load(str(place.table)), work.read_lines(place.results)
    assert work.current(table, lines) == lines[:1]
    assert work.current(table, [*lines, {**lines[0], "table": "another that has this cell too"}]) == lines[:1]
    place.table.write_text(TABLE + "revision: 2\n")
    assert work.current(Table.load(str(place.table)), lines) == []


def test_several_globs_choose_what_any_of_them_matches(place):
    assert place.run("--cell", "0/ctc/0", "--cell", "0.4/labels/*") == 0
    assert sorted(place.names()) == ["0.4/labels/0", "0/ctc/0"]


def test_what_decides_no_result_leaves_the_cell_as_it_is(place: Place) -> None:
    place.run("--cell", "0/ctc/0", "--free", "data.workers=2")
    assert value(place.commands("train")[0], "data.workers") == "2"
    place.run("--cell", "0/ctc/0")
    assert len(place.commands("train")) == 1


@pytest.mark.parametrize(
    ("options", "workers"), [((), "2"), (("--jobs", "2"), "0"), (("--jobs", "2", "--workers", "5"), "5")]
)
def test_processes_of_a_search(place: Place, options: tuple[str, ...], workers: str) -> None:
    place.run("--cell", "0.4/stc+beam/0", *options)
    searches = [*place.commands("tune"), *(c for c in place.commands("evaluate") if "--lm" in c)]
    assert len(searches) == 2
    assert {command[command.index("--workers") + 1] for command in searches} == {workers}


def test_files_that_are_not_left_are_a_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_NOTHING", "evaluate")
    assert place.run("--cell", "0/ctc/0") == 1
    assert "ended, but not with the files that it is to leave: KeyError('evaluate')" in capsys.readouterr().out
    assert place.names() == []


def test_time_cuts_a_training_and_it_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_STILL", "2")
    assert place.run("--cell", "0/ctc/0", "--minutes", "0.1") == 0
    assert "cut; goes on from its checkpoint" in capsys.readouterr().out
    assert place.names() == []
    (checkpoint,) = place.work.glob("runs/*/last.ckpt")
    assert checkpoint.read_text() == "2"
    monkeypatch.delenv("FAKE_STILL")
    assert place.run("--cell", "0/ctc/0") == 0
    assert "train goes on" in capsys.readouterr().out
    assert place.names() == ["0/ctc/0"]


def test_nothing_is_started_that_cannot_end(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.run("--cell", "0/ctc/0")
    (record,) = [path for path in place.work.glob("steps/*.json") if json.loads(path.read_text())["stage"] == "train"]
    slow = json.loads(record.read_text())
    record.write_text(json.dumps({**slow, "seconds": 300}))
    assert place.run("--cell", "0/stc/0", "--minutes", "1") == 0
    assert "train not started, for it takes about 300 s" in capsys.readouterr().out
    assert len(place.commands("train")) == 1
    # What another machine took says nothing.
    record.write_text(json.dumps({**slow, "seconds": 300, "machine": "another"}))
    lines = work.read_lines(place.results)
    place.results.write_text(json.dumps({**lines[0], "made": []}) + "\n")
    assert place.run("--cell", "0/stc/0", "--minutes", "1") == 0
    assert place.names() == ["0/ctc/0", "0/stc/0"]


def test_a_failure_is_told_and_the_others_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "criterion.name=stc trainer")
    assert place.run("--cell", "*/0", "--jobs", "2") == 1
    assert "failed with exit code 1" in (out := capsys.readouterr().out)
    assert "starseq: it was to fail" in out
    assert sorted(place.names()) == ["0.4/ctc/0", "0.4/labels/0", "0.4/stc-0.1-0.6/0", "0.4/stc-0.3-0.7/0", "0/ctc/0"]
    monkeypatch.delenv("FAKE_FAIL")
    assert place.run("--cell", "*/0") == 0
    assert len(place.names()) == 9


def test_packed_and_gone_on_with_elsewhere(place: Place, tmp_path: Path) -> None:
    """Trained on one machine; the search, on another, finds models and results, and trains nothing."""
    pack = tmp_path / "out" / "back.tar"
    assert place.run("--cell", "0.4/stc*/0", "--stages", "drop,train,greedy,pseudo", "--pack", str(pack)) == 0
    first, shutil_work = place.names(), place.work
    shutil.rmtree(shutil_work)
    place.log.unlink()
    elsewhere, results = tmp_path / "elsewhere", tmp_path / "elsewhere.jsonl"
    options = ["--cell", "0.4/stc+beam/0", "--stages", "lm,tune,beam", "--unpack", str(pack)]
    assert place.run(*options, work=elsewhere, results=results) == 0
    assert not place.commands("train")
    names = [line["method"] for line in work.read_lines(results)]
    assert names == [*(name.split("/")[1] for name in first), "stc+beam"]
    for recipe in elsewhere.glob("runs/*/recipe.yaml"):
        assert f'root: "{elsewhere.resolve()}/data/corpus"' in recipe.read_text()
    # A machine that only reads finds the corpus, too.
    other = tmp_path / "other"
    for options in (
        ["--stages", "train", "--pack", str(other / "p.tar")],
        ["--stages", "greedy", "--unpack", str(other / "p.tar")],
    ):
        there = other / options[1]
        assert place.run("--cell", "0/ctc/0", *options, work=there, results=there / "cells.jsonl") == 0
    assert len(work.read_lines(other / "greedy" / "cells.jsonl")) == 1
    # Home again, twice: each line once; and runs know where their data is.
    for _ in range(2):
        work.unpack(place.work, place.results, [pack])
    assert place.names() == first
    moved = tmp_path / "moved"
    work.unpack(moved, tmp_path / "moved.jsonl", [pack])
    roots = {recipe.read_text().splitlines()[1] for recipe in moved.glob("runs/*/recipe.yaml")}
    assert roots == {f'  root: "{moved.resolve()}/data/corpus"'}


def test_a_pack_has_a_size_and_takes_first_what_is_needed(place: Place, tmp_path: Path) -> None:
    place.run("--cell", "0.4/*/0", "--stages", "train,greedy")
    table, target = Table.load(str(place.table)), tmp_path / "p.tar"
    teacher = str(table.cell("0.4", "stc", 0).steps[0].run)
    models = sorted(place.work.glob("runs/*/model.safetensors"))
    for model in models:
        model.write_bytes(b"m" * 1_500_000)
    assert work.Work(place.work).needs(table.cell("0.4", "stc+beam", 0)) == [teacher]
    (place.work / "lm").mkdir()
    (place.work / "lm" / "large.arpa").write_bytes(
        b"l" * 1_500_000
    )  # soon made again, so it comes after what is needed
    (tmp_path / "p.tar.1").write_bytes(b"old")
    (tmp_path / "p.tar.2").write_bytes(b"old")
    place.run("--cell", "0.4/ctc/0", "--pack", str(target), "--pack-mib", "1", "--pack-parts", "2")
    assert sorted(path.name for path in tmp_path.glob("p.tar*")) == ["p.tar", "p.tar.1"]
    assert all(path.stat().st_size <= 2**20 for path in tmp_path.glob("p.tar*"))
    moved = tmp_path / "moved"
    assert work.unpack(moved, tmp_path / "moved.jsonl", [target]) == len(place.names())
    assert [str(path.parent.relative_to(moved)) for path in moved.glob("runs/*/model.safetensors")] == [teacher]
    assert len(list(moved.glob("runs/*/metrics.csv"))) == len(models)
    # Finished runs need no checkpoint; others do.
    assert not list(moved.glob("runs/*/last.ckpt"))
    for path in (*place.work.glob("steps/*.json"), *models):
        path.unlink()
    _, left_out = work.pack(place.work, place.results, target, mib=1, parts=2)
    assert left_out == []
    work.unpack(moved, tmp_path / "moved.jsonl", [target])
    assert len(list(moved.glob("runs/*/last.ckpt"))) == len(models)
    target.write_bytes(target.read_bytes()[:700])
    with pytest.raises(Mistake, match="not a pack, or not all of it"):
        work.unpack(moved, tmp_path / "moved.jsonl", [target])


def test_a_model_that_is_gone_is_made_again_only_for_those_who_need_it(place: Place) -> None:
    place.run("--cell", "0.4/stc+pseudo/0", "--stages", "train,greedy,drop,pseudo")
    (student,) = [c for c in place.commands("train") if value(c, "data.manifest")]
    student_run = place.work / student[student.index("--out") + 1]
    for model in place.work.glob("runs/*/model.safetensors"):
        if model.parent != student_run:
            model.unlink()
    place.results.unlink()
    for record in place.work.glob("steps/*.json"):
        if json.loads(record.read_text())["stage"] == "greedy":
            record.unlink()
    table = Table.load(str(place.table))
    todo = work.Work(place.work).todo(table.cell("0.4", "stc+pseudo", 0))
    # The teacher's own reading needs the teacher; had that been kept, nothing but the student's would be left.
    assert [step.stage for step in todo] == ["train", "greedy", "greedy"]
    work.Work(place.work).save(todo[1], {"stage": "greedy"})
    assert [step.stage for step in work.Work(place.work).todo(table.cell("0.4", "stc+pseudo", 0))] == ["greedy"]


def test_lines_are_appended_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cells.jsonl"
    line = {"table": "1", "condition": "0", "method": "ctc", "seed": 0, "key": "a"}

    def write(seed: int) -> None:
        for key in "abc":
            work.append(path, [{**line, "seed": seed % 4, "key": key, "text": "é" * 5000}])

    real = work.identity  # between reading and writing: without a lock, others would come in between
    monkeypatch.setattr(work, "identity", lambda record: (time.sleep(0.002), real(record))[1])
    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(work.read_lines(path)) == 12
    with open(path, "a") as file:
        file.write('{"table": "1", "cond')  # killed
    assert len(work.read_lines(path)) == 12
    assert work.append(path, [{**line, "key": "d"}]) == 1
    assert [found["key"] for found in work.read_lines(path)][-1] == "d"


def test_two_runners_do_not_share_a_work_folder(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with work.Work(place.work).locked():
        assert place.run() == 2
    assert "another runner is at work here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("steps: 4", "stepps: 4"), "'stepps' is not a key of a table"),
        (("metric: wer\n", ""), "missing 1 required"),
        (("methods: [best]", "methods: [beast]"), "'beast' is none of the methods ctc, stc, "),
        (("{p-drop: 0.4}", "{pdrop: 0.4}"), "one of p-drop, sample-splits, word-splits"),
        (("stc: {train:", "stc: {trian:"), "'trian' is not a key of a method"),
        (("runs:\n", "summary: {stc: stcc}\nruns:\n"), "summary: 'stcc' is none of the methods ctc, stc, "),
        (("runs:\n", "summary:\nruns:\n"), "summary: expected names of methods by column, got None"),
        (("runs:\n", "summary: {stc: [stc]}\nruns:\n"), "summary: expected names of methods by column, got {"),
        (("runs:\n", "summary: {star: stc}\nruns:\n"), "summary: 'star' is none of title, ctc, stc, "),
    ],
)
def test_a_mistake_in_a_table_is_one_sentence(
    place: Place, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    assert change[0] in TABLE
    place.table.write_text(TABLE.replace(*change))
    assert place.run() == 2
    assert said in (err := capsys.readouterr().err)
    assert len(err.splitlines()) == 1


def test_other_mistakes(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["list", "77"]) == 2
    assert "table '77' is none of 1, 2" in capsys.readouterr().err
    assert place.run("--stages", "train,bean") == 2
    assert "'bean' is none of drop, train" in capsys.readouterr().err
    (place.data / "corpus").rename(place.data / "moved")
    assert place.run() == 2
    assert "no such corpus; --data is the folder of corpora" in capsys.readouterr().err


def test_listing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.run("--cell", "0.4/stc/0")
    capsys.readouterr()
    assert tables.main(["list", str(place.table), "--work", str(place.work), "--results", str(place.results)]) == 0
    out = capsys.readouterr().out
    assert "table t, small: 1 of 9 cells" in out
    assert "0.4/stc/0                        dev WER 10.00 % greedy, test WER 10.00 % greedy, p 0.10" in out
    assert "0.4/stc+beam/0                   to do: drop, ..." in out
    assert "0/ctc/0                          missing" in out
    place.results.write_text("")
    assert tables.main(["list", str(place.table), "--work", str(place.work), "--results", str(place.results)]) == 0
    assert "done in the work folder, not among the results" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_tables_of_the_repository(path: Path) -> None:
    """Every method at one condition, and every condition with one method, is a recipe that loads."""
    from starseq.config import load_recipe

    table, seen = Table.load(path.stem), set[str]()
    for cell in table.cells():
        if not {cell.method, cell.condition} - seen:
            continue
        seen |= {cell.method, cell.condition}
        for step in cell.steps:
            for command in step.commands:
                if command[0] == "train":
                    load_recipe(command[1], [part for part in command[2:] if "=" in part])
    wanted = {name for block in table.runs for name in (*block["conditions"], *block["methods"])}
    assert wanted - {BEST} <= seen


def test_schedules_have_overrides_of_their_own(place: Place) -> None:
    place.table.write_text(TABLE.replace("half_life: 2}", "half_life: 2, train: [text.missing=word]}"))
    table = Table.load(str(place.table))
    assert all(spec["train"][-1] == "text.missing=word" for spec in table.grid().values())
    assert "text.missing=word" in table.cell("0.4", "stc-0.1-0.6", 0).steps[0].commands[0]
    assert "text.missing=word" not in table.cell("0.4", "ctc", 0).steps[0].commands[0]
