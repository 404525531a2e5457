"""`starseq fit`: the whole way in one command; stopped anywhere it goes on to the same result; what it refuses, it says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.commands import Command
from tests.run_folder import CPU

from starseq import runs
from starseq.corpora import digits
from starseq.data import audio
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.manifest import Row, read_bytes, read_manifest, write_manifest
from starseq.data.split import choose_dev
from starseq.jobs import _material, _plan, _survey
from starseq.jobs import fit as job
from starseq.jobs.drop import drop
from starseq.text.gaps import parse

SMALL = (
    "model.width=8", "model.layers=1", "trainer.max_steps=12", "trainer.accelerator=cpu", "trainer.threads=1",
    "trainer.tensorboard=false", "trainer.eval_every=6", "trainer.checkpoint_every=3", "optim.lr=0.01", "data.max_items=8",
)  # fmt: skip
PARTS = (
    "training the teacher",
    "tuning the teacher",
    "completing",
    "training",
    "language model",
    "tuning",
    "evaluating",
)
UNTOLD = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of digits: `manifest.jsonl` complete, `partial.jsonl` with marked gaps and some rows without a text."""
    folder = tmp_path_factory.mktemp("digits")
    digits.prepare(folder, train=40, dev=8, test=6)
    dropper = Dropper(FixedDrop(0.4), unit="char", mark=True, keep_text=True)
    drop(folder / "manifest.jsonl", folder / "partial.jsonl", dropper, splits=["train"])
    rows = [row.fields for row in read_manifest(folder / "partial.jsonl")]
    for row in rows[:UNTOLD]:
        del row["text"], row["text_full"], row["gaps"]
    write_manifest(folder / "partial.jsonl", rows, labelled=False)
    return folder


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_workers", lambda: 0)


def fitted(data: Path, out: Path, *more: str, **options: Any) -> tuple[job.FitResult, list[str]]:
    said: list[str] = []
    settings = {name: options.pop(name) for name in ("text", "minutes") if name in options}
    request = job.Request(data, overrides=(*SMALL, *more), **settings)
    return job.fit(request, out, say=said.append, **options), said


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[job.Moment]]:
    """A fit that nothing stopped, what it said, and how far it said that it was."""
    out = tmp_path_factory.mktemp("fits") / "whole"
    moments: list[job.Moment] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "_workers", lambda: 0)
        _, said = fitted(data / "partial.jsonl", out, progress=moments.append)
    return out, said, moments


def outcome(out: Path) -> dict[str, Any]:
    """All that may not depend on when a fit was stopped."""
    state = json.loads((out / "fit.json").read_text())
    return {
        "tables": state["plan"]["tables"],
        "manifest": (out / "manifest.jsonl").read_text(),
        "completed": [(row.id, row.text) for row in read_manifest(out / "completed.jsonl")],
        "models": [(out / name / "model.safetensors").read_bytes() for name in ("teacher", "student")],
        "lm": (out / "lm.arpa").read_text(),
        "weights": json.loads((out / "student" / "tuned.json").read_text())["beam"]["searches"],
    }


def test_the_whole_way(data: Path, whole: tuple[Path, list[str], list[job.Moment]]) -> None:
    out, said, moments = whole
    for part in (
        "recipe digits: 39 rows to train on are images, of built-in digits",
        "of them mark a gap): STC trains a teacher, which completes them",
        f"{UNTOLD} rows without text are read by the teacher",
        "dev: 8 rows of dev",
        "test: 6 rows of test",
        "each training has 12 steps",
    ):
        assert any(part in line for line in said), part
    before = {row.id: row for row in read_manifest(data / "partial.jsonl", labelled=False)}
    brought = list(read_manifest(out / "manifest.jsonl"))
    assert [row.id for row in brought] == list(before)
    assert [row["split"] for row in brought] == [row["split"] for row in before.values()]
    assert [row.text for row in brought[:UNTOLD]] == ["*"] * UNTOLD
    assert all(row.text == before[row.id].text for row in brought[UNTOLD:])
    completed = {row.id: row for row in read_manifest(out / "completed.jsonl")}
    failed = {json.loads(line)["id"] for line in (out / "completed.failed.jsonl").read_text().splitlines()}
    assert completed.keys() | failed == before.keys()
    for row in completed.values():
        left = iter(row.text)
        assert all(label in left for label in parse(before[row.id].text, "char").labels)
    for name, criterion in (("teacher", "stc"), ("student", "ctc")):
        run = runs.load(out / name)
        assert run.criterion == criterion
        assert set(runs.read_results(out / name)["evaluate"]) == {"dev", "test"}
    assert run.manifest.samefile(out / "student.jsonl")
    learned = {row.id: row for row in read_manifest(run.manifest)}
    silent = {id for id, row in completed.items() if row.get("refused") or not _material.without_gaps(row.text)}
    assert learned.keys() == completed.keys() - failed - silent
    assert not any("*" in row.text for row in learned.values())
    assert all("*" in completed[id].text or row.text == completed[id].text for id, row in learned.items())
    for name in ("teacher", "student"):
        assert set(runs.read_results(out / name)["evaluate"]["test"]) == {"greedy", "beam"}
    # What is judged on is in no language model.
    assert {row["split"] for row in read_manifest(out / "lm" / "train.jsonl")} == {"train"}
    html = (out / "report.html").read_text()
    for part in ("teacher (STC)", "student (CTC)", "What was filled in", "<mark class=in>", "data:image/jpeg"):
        assert part in html, part
    assert [moment.share for moment in moments] == sorted(moment.share for moment in moments)
    assert {*PARTS} <= {moment.part for moment in moments}
    assert all(moment.seconds_left is None or moment.seconds_left >= 0 for moment in moments)


def test_one_that_is_over_is_shown_again_and_nothing_is_done(
    data: Path, whole: tuple[Path, list[str], list[job.Moment]]
) -> None:
    out, _, _ = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again, said = fitted(data / "partial.jsonl", out)
    assert said == []
    assert again.tables == outcome(out)["tables"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    with pytest.raises(DataError, match=r"whole: began with overrides .* and now it is .*; choose another --out"):
        fitted(data / "partial.jsonl", out, "seed=1")
    with pytest.raises(DataError, match="began with data"):
        fitted(data / "manifest.jsonl", out)


def test_stopped_in_every_part_it_ends_the_same(
    data: Path, whole: tuple[Path, list[str], list[job.Moment]], tmp_path: Path
) -> None:
    out, last = tmp_path / "stopped", ""

    def stopping_in(part: str) -> Callable[[job.Moment], None]:
        def progress(moment: job.Moment) -> None:
            nonlocal last
            last = moment.part
            if moment.part == part:
                raise KeyboardInterrupt

        return progress

    for part in PARTS:
        with pytest.raises(KeyboardInterrupt):
            fitted(data / "partial.jsonl", out, progress=stopping_in(part))
        assert last == part
    _, said = fitted(data / "partial.jsonl", out)
    assert not any("step" in line for line in said)  # the trainings are over
    # The folder lies elsewhere, and so do the files that its manifest names.
    assert relocated(outcome(out)) == relocated(outcome(whole[0]))


def relocated(found: dict[str, Any]) -> dict[str, Any]:
    rows = [json.loads(line) for line in found["manifest"].splitlines()]
    return {**found, "manifest": [{**row, "archive": Path(row["archive"]).name} for row in rows]}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_in_the_students_training(
    data: Path, whole: tuple[Path, list[str], list[job.Moment]], tmp_path: Path
) -> None:
    program = (
        "import sys, os, signal\nfrom pathlib import Path\nfrom starseq.jobs import fit as job\njob._workers = lambda: 0\n"
        "def say(line):\n"
        "    if line.startswith('student: step 6,'): os.kill(os.getpid(), signal.SIGKILL)\n"
        "job.fit(job.Request(sys.argv[1], overrides=sys.argv[3:]), sys.argv[2], say=say)\n"
    )
    out = tmp_path / "killed"
    arguments = [sys.executable, "-c", program, str(data / "partial.jsonl"), str(out), *SMALL]
    killed = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert set(json.loads((out / "fit.json").read_text())["done"]) == {"data", "teacher", "length", "complete"}
    fitted(data / "partial.jsonl", out)
    assert relocated(outcome(out)) == relocated(outcome(whole[0]))


def test_without_holes_ctc_will_do_and_more_text_is_mixed_in(data: Path, tmp_path: Path) -> None:
    text = tmp_path / "more.txt"
    text.write_text("1234\n777\n" * 20)
    out = tmp_path / "out"
    result, said = fitted(data / "manifest.jsonl", out, text=text)
    assert any("CTC will do" in line for line in said)
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["lm", "student"]
    assert not (out / "completed.jsonl").exists()
    assert runs.load(out / "student").criterion == "ctc"
    assert any("more.txt" in line and "%" in line for line in said)
    assert (out / "lm.arpa").stat().st_size > 0
    assert list(result.tables) == ["student"]
    assert "transcribe" in str(result)


def test_a_folder_without_dev_and_a_bad_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines as files, each with its text beside it, some with a star in it."""
    monkeypatch.setattr(_plan, "_recipe_for", lambda found: "digits")  # a small model
    source, out = tmp_path / "lines", tmp_path / "out"
    source.mkdir()
    for row in read_manifest(data / "manifest.jsonl"):
        (source / f"{row.id}.png").write_bytes(read_bytes(row, data))
        (source / f"{row.id}.txt").write_text(row.text if row.id.endswith("1") else row.text[:1] + "*" + row.text[3:])
    (source / "broken.png").write_bytes(b"no image")
    (source / "broken.txt").write_text("12")
    result, said = fitted(source, out)
    assert f"{source}: read as folder, 54 rows" in said
    assert f"left out: 1 bad rows, see {out / 'data' / 'bad.jsonl'}" in said
    rows = list(read_manifest(out / "manifest.jsonl"))
    dev = [row for row in rows if row["split"] == "dev"]
    assert dev
    assert all(row.complete for row in dev)
    assert {row["split"] for row in rows} == {"train", "dev"}
    assert {row.get("gaps") for row in rows if row["split"] == "train" and "*" not in row.text} == {"marked"}
    assert any(line.startswith(f"dev: there is none, so {len(dev)} rows are taken from train") for line in said)
    assert "test" not in result.tables["student"]


def test_nothing_to_judge_on(data: Path, tmp_path: Path) -> None:
    """All rows have gaps and no text_full: no dev, no error rates, and a recogniser all the same."""
    rows = [row.fields for row in read_manifest(data / "partial.jsonl", labelled=False) if "*" in row.text]
    for row in rows:
        del row["text_full"], row["split"]
    write_manifest(data / "gaps.jsonl", rows)
    result, said = fitted(data / "gaps.jsonl", tmp_path / "out")
    assert any("fewer than two training rows have a text that is known to be complete" in line for line in said)
    assert "no error rate will be known: no row of dev or test has a complete text" in said
    assert result.tables == {}
    assert (result.lm, "no error rate is known" in str(result)) == (None, True)
    assert runs.load(result.run).dev_error is None
    assert "What was filled in" in result.page.read_text()


def test_built_in_digits_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that the recipe drops on the fly are filled in, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_material, "prepare", lambda name, out, **more: digits.prepare(out, train=16, dev=4, test=4))
    result, said = fitted(Path("digits"), tmp_path / "out", "data.drop.p=0.5", "data.drop.unit=char")
    assert any("data.drop drops labels): STC trains a teacher" in line for line in said)
    assert list(result.tables) == ["teacher", "student"]
    rows = [row for row in read_manifest(tmp_path / "out" / "completed.jsonl") if row["split"] == "train"]
    assert rows
    assert all(len(row["text_partial"]) <= len(row["text_full"]) for row in rows)
    assert any(len(row["text_partial"]) < len(row["text_full"]) for row in rows)
    assert runs.load(result.run).recipe.data.drop is None


def test_the_plan_alone(data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = command("fit", data / "partial.jsonl", "--dry-run", *SMALL)
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("recipe digits: 39 rows")
    assert lines[-2].startswith("expect ")
    assert "for 2 trainings of 12 steps here, at " in lines[-2]
    assert lines[-1] == (
        "parts: data, training the teacher, tuning the teacher, completing, training, language model, tuning, evaluating, report"
    )
    assert list(tmp_path.iterdir()) == []


def test_minutes_shorten_the_trainings(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job._Fit, "seconds_per_step", lambda self: 0.5)

    def steps(minutes: float | None, *overrides: str) -> tuple[int, str]:
        state = job._State(tmp_path / "out", {}, {})
        said: list[str] = []
        request = job.Request(data / "partial.jsonl", None, overrides, minutes)
        one = job._Fit(request, state, lambda _: None, said.append)
        one.do("data")
        return one.steps, said[-1]

    chosen, _ = steps(None)
    assert chosen == 180  # the fewest that the recipe allows
    assert steps(60)[0] == chosen
    allowed, sentence = steps(2)
    assert allowed == 90  # three quarters of 120 s, for two trainings, at 0.5 s a step
    assert sentence == (
        "each training has 90 steps, for 2 minutes and 0.5 s a step; the data would have 180, so expect more errors"
    )
    assert steps(2, "trainer.max_steps=77")[0] == 77


# --- what is decided --------------------------------------------------------------------------------------------------


def planned(folder: Path, rows: list[dict[str, Any]], *overrides: str) -> _plan.Plan:
    manifest = folder / "m.jsonl"
    write_manifest(manifest, [{"id": f"u{i}", **row} for i, row in enumerate(rows)], labelled=False)
    return _plan.make_plan(_survey.survey(manifest), overrides)


def spoken(text: str, **fields: Any) -> dict[str, Any]:
    return {"path": "a.wav", "text": text, "duration": 2.0, **fields}


def line(text: str, **fields: Any) -> dict[str, Any]:
    return {"path": "a.png", "text": text, "width": 200, "height": 50, **fields}


def test_criterion_by_what_the_rows_say(tmp_path: Path) -> None:
    full = [line(f"complete text {i}") for i in range(30)]
    told = planned(tmp_path, full)
    assert (told.recipe, told.criterion, told.teacher) == ("handwriting", "ctc", False)
    assert planned(tmp_path, full, "criterion.name=stc").teacher
    assert planned(tmp_path, full, "data.drop.p=0.5").criterion == "stc"
    gaps = planned(tmp_path, [*full, line("a * text")])
    assert (gaps.criterion, gaps.teacher) == ("stc", True)
    assert planned(tmp_path, [*full, line("te", text_full="text")]).criterion == "stc"
    assert gaps.closes  # who marks gaps marks them all
    assert any(one.startswith("30 rows mark no gap, and are taken for complete") for one in gaps.why)
    asked = planned(tmp_path, [*full, line("a * text")], "criterion.name=stc")
    assert (asked.criterion, asked.closes, asked.dev) == ("stc", False, None)
    untold = planned(tmp_path, [*full, {"path": "b.png"}, line("*")])
    assert (untold.criterion, untold.teacher, untold.closes) == ("ctc", True, True)
    assert any(one.startswith("2 rows without text are read by the teacher") for one in untold.why)


def test_overrides_say_the_same_in_every_form(tmp_path: Path) -> None:
    full = [line(f"complete text {i}") for i in range(30)]
    assert planned(tmp_path, full, "criterion={name: stc}").teacher
    assert planned(tmp_path, full, "criterion.name=ctc", "criterion={name: stc}").criterion == "stc"
    assert planned(tmp_path, full, "data.drop={p: 0.5}").drops
    assert planned(tmp_path, full, "data={drop: {p: 0.5}}").drops
    assert not planned(tmp_path, full, "data.drop=null").drops


def test_another_spelling_is_no_lost_label(tmp_path: Path) -> None:
    rows = [line("Text", text_full="text"), line("texts", text_full="text")]
    assert planned(tmp_path, rows * 1).criterion == "ctc"
    assert planned(tmp_path, [*rows, line("tex", text_full="text")]).criterion == "stc"


def test_few_marks_are_a_warning(tmp_path: Path) -> None:
    rows = [line(f"complete text {i}") for i in range(99)]
    many = planned(tmp_path, [*rows, line("a *")])
    assert any(why.startswith("99 rows mark no gap") for why in many.why)
    few = planned(tmp_path, [*rows, line("more"), line("a *")])
    assert any(why.startswith("warning: only 1 rows mark a gap; 100 rows mark no gap") for why in few.why), few.why


def test_missing_labels_without_a_mark_show_beside_dev(tmp_path: Path) -> None:
    """Half of the characters for the same width."""
    held_out = [line("complete text", split="dev") for _ in range(30)]
    thin = planned(tmp_path, [*[line("cmplte", split="train") for _ in range(30)], *held_out])
    assert (thin.criterion, thin.teacher) == ("stc", True)
    assert any("they have 1.50 characters a line height, and those of dev and test 3.25" in why for why in thin.why)
    like = planned(tmp_path, [*[line("complete txt", split="train") for _ in range(30)], *held_out])
    assert (like.criterion, like.teacher) == ("ctc", False)
    few = planned(tmp_path, [*[line("cmplte", split="train") for _ in range(30)], *held_out[:10]])
    assert few.criterion == "ctc"


def test_words_or_characters(tmp_path: Path) -> None:
    names = [f"word{i} of * rest{i}" for i in range(300)]
    words = planned(tmp_path, [spoken(name) for name in names])
    assert (words.recipe, "text.missing=word" in words.changes) == ("speech", True)
    inside = planned(tmp_path, [line(name.replace(" * ", " a*b ")) for name in names])
    assert "text.missing=null" in inside.changes
    lost = planned(tmp_path, [spoken(f"word{i} rest", text_full=f"word{i} of rest") for i in range(300)])
    assert "text.missing=word" in lost.changes
    letters = planned(tmp_path, [spoken(f"wrd{i} rest", text_full=f"word{i} of rest") for i in range(300)])
    assert "text.missing=null" in letters.changes


def test_a_closed_vocabulary_is_one_of_words(tmp_path: Path) -> None:
    rows = [spoken("one two * three", speaker=str(i % 9)) for i in range(60)]
    closed = planned(tmp_path, rows)
    assert "text.unit=word" in closed.changes
    assert any("labels are words: there are 3" in why for why in closed.why)
    assert "text.unit=word" not in planned(tmp_path, rows[:9]).changes  # each too rarely
    assert "text.unit=word" not in planned(tmp_path, [line("one two * three") for _ in range(60)]).changes
    assert "text.unit=word" not in planned(tmp_path, [spoken("one tw*o three") for _ in range(60)]).changes


def test_a_unit_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    rows = [spoken("one two * three") for _ in range(60)]
    for override in ("text.unit=char", "text={unit: char}"):
        assert not {"text.unit=word", "model.stride=8"} & set(planned(tmp_path, rows, override).changes)
    words = planned(tmp_path, rows, "text.unit=word")
    assert "model.stride=8" not in words.changes
    assert "labels are words, as text.unit asks for" in words.why


def test_splits(tmp_path: Path) -> None:
    rows = [line(f"some text {i}", split="train-clean-100", speaker=str(i % 20)) for i in range(200)]
    rows += [line("held out", split="test-other"), line("a * b", split="test-clean"), line("a", split="notes")]
    found = planned(tmp_path, rows)
    assert found.judged == ["dev", "test-other"]
    assert found.tests == ["test-other", "test-clean"]
    assert found.dev is not None
    assert (found.dev.by, found.dev.rows) == ("speaker", 20)
    assert any("not used: 1 rows of notes" in why for why in found.why)
    assert any("none of the 1 rows of test-clean has a complete text" in why for why in found.why)
    unjudged = planned(tmp_path, [*rows[:200], line("a * b", split="val")])
    assert unjudged.judged == ["dev"]
    assert any(why.startswith("dev: none of the 1 rows of val has a complete text, so 20 rows") for why in unjudged.why)
    other = planned(tmp_path, [{**row, "split": "mini"} for row in rows[:200]])
    assert (other.judged, other.dev is None) == (["dev"], False)
    found = planned(tmp_path, rows)
    manifest = tmp_path / "in" / "manifest.jsonl"
    _material.bring_in(_survey.survey(tmp_path / "m.jsonl"), found, manifest)
    brought = list(read_manifest(manifest))
    assert {row["split"] for row in brought} == {"train", "dev", "test-other", "test-clean", "notes"}
    speakers = {split: {row["speaker"] for row in brought if row["split"] == split} for split in ("train", "dev")}
    assert not speakers["train"] & speakers["dev"]


def test_names_of_splits(tmp_path: Path) -> None:
    for role, names in {
        "train": ("train1", "trainset", "Training_2"),
        "dev": ("dev2", "development", "devel", "val1"),
        "test": ("test1", "testset", "evaluation"),
        "none": ("1", "trains-are-fast", "notes"),
    }.items():
        assert {_survey.role_of(name) for name in names} == {role}, role
    with pytest.raises(DataError, match="each of a, b could be meant"):
        planned(tmp_path, [line("x", split=split) for split in ("a", "b", "test1")])


def test_one_complete_row_is_too_few_for_dev(tmp_path: Path) -> None:
    found = planned(tmp_path, [line("a * b"), line("a text", gaps="marked")])
    assert any("fewer than two training rows have a text that is known to be complete" in why for why in found.why)


def test_white_space_of_lines_is_no_label(tmp_path: Path) -> None:
    found = planned(tmp_path, [line("a\tb\r\n* c", text_full="a\tb d\rc"), line("text")])
    _material.bring_in(_survey.survey(tmp_path / "m.jsonl"), found, tmp_path / "in.jsonl")
    row = next(read_manifest(tmp_path / "in.jsonl"))
    assert (row.text, row["text_full"]) == ("a b * c", "a b d c")


def test_files_lie_beside_what_was_prepared_or_in_data(tmp_path: Path) -> None:
    """Of a corpus elsewhere; nothing else is read, though one folder holds it all."""
    manifest, corpus = tmp_path / "out" / "data" / "manifest.jsonl", tmp_path / "corpus"
    write_manifest(manifest, [{"id": "a", "path": "../../corpus/a.png", "text": "x"}])
    folders = [manifest.parent, corpus]
    assert _material.root_of(manifest, tmp_path / "out", folders) == tmp_path.resolve()
    with pytest.raises(DataError, match=r"line 1: ../../corpus/a.png lies outside of .*data, so it is not read"):
        _material.root_of(manifest, tmp_path / "out", folders[:1])


def test_a_plan_reads_the_files_that_a_fit_would(tmp_path: Path) -> None:
    """Also where they lie beside DATA: between it and --out."""
    out, data = tmp_path / "fit", tmp_path / "data"
    data.mkdir()
    for planned in (Path("/elsewhere/fit"), out):
        assert tmp_path.resolve() in _material.allowed(data, out, planned, planned / "data" / "manifest.jsonl")


# --- what the student learns from -------------------------------------------------------------------------------------


def closing(out: Path, rows: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The texts that the student learns from, and what was said."""
    write_manifest(out / "completed.jsonl", [{"id": f"u{i}", "split": "train", **row} for i, row in enumerate(rows)])
    (out / "completed.failed.jsonl").write_text('{"id": "u0"}\n')
    said: list[str] = []
    _material.close(out, said.append)
    return [row.text for row in read_manifest(out / "student.jsonl")], said


def test_gaps_are_closed_where_nothing_was_read(tmp_path: Path) -> None:
    rows = [line("failed"), line("(Ste *) * end", refused=0), line("a * c", refused=1), line("*"), line("b")]
    assert closing(tmp_path, rows) == (
        ["(Ste) end", "b"],
        [
            "1 rows are left out: what was read in their gaps does not fit beside what is known",
            "1 rows without a text in which nothing was read are left out",
            "2 gaps in which nothing was read are taken for empty",
        ],
    )
    with pytest.raises(DataError, match="no training row was completed"):
        closing(tmp_path, rows[:1])


def test_digits_are_prepared_whatever_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_material, "prepare", lambda name, out, **more: digits.prepare(out, train=4, dev=2, test=2))
    foreign = tmp_path / "out" / "data" / "manifest.jsonl"
    write_manifest(foreign, [{"id": "foreign", "path": "a.png", "text": "x"}])
    made = _material.source_of(Path("digits"), tmp_path / "out", print, lambda done, total: None)
    assert "foreign" not in {row.id for row in read_manifest(made)}


def test_a_manifest_of_another_toolkit_is_prepared(tmp_path: Path) -> None:
    source = tmp_path / "train_manifest.json"
    (tmp_path / "a.wav").write_bytes(audio.encode(torch.zeros(8_000), 8_000))
    source.write_text('{"audio_filepath": "a.wav", "offset": 0.25, "duration": 0.5, "text": "the * fox"}\n')
    said: list[str] = []
    step: Callable[[int, int | None], None] = lambda done, total: None  # noqa: E731
    (row,) = read_manifest(_material.source_of(source, tmp_path / "out", said.append, step))
    assert (row.text, row["start"], row["end"], row["split"]) == ("the * fox", 0.25, 0.75, "train")
    assert said == [f"{source}: read as NeMo, 1 rows"]
    ours = tmp_path / "ours.json"
    write_manifest(ours, [{"id": "a", "path": "a.wav", "text": "x"}])
    assert _material.source_of(ours, tmp_path / "out", said.append, step) == ours


def test_a_weak_teacher_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Weak:
        dev_error, dev_missed = 81.2, 70.0

    def done(*arguments: Any, **options: Any) -> Any:
        assert options["where"].skip_bad
        return SimpleNamespace(failed=2, report=lambda: "the report")

    said: list[str] = []
    state = job._State(tmp_path, {}, {}, {"root": str(tmp_path), "judged": [], "teacher": True})
    one = job._Fit(job.Request(tmp_path), state, lambda _: None, said.append)
    monkeypatch.setattr(runs, "load", lambda folder: Weak)
    monkeypatch.setattr(job._Fit, "_where", lambda self, part: CPU)
    monkeypatch.setattr(job, "pseudo", done)
    one._complete()
    assert said[-1].startswith("2 rows that have more labels than frames, or that cannot be opened, are left out")
    assert said[0].startswith("the teacher's error on dev is 81 %: what it fills in is mostly guesses")


def test_a_dev_split_is_a_tenth_and_never_empty() -> None:
    def rows(count: int, **fields: Callable[[int], str]) -> list[tuple[Row, bool]]:
        made = [{"id": f"u{i}", **{name: make(i) for name, make in fields.items()}} for i in range(count)]
        return [(Row(one), True) for one in made]

    for count in (2, 5, 30, 400, 3000):
        found = choose_dev(rows(count))
        assert found is not None
        assert found.rows == found.judged == min(max(round(count / 10), 20), 500, max(1, count // 4))
    assert choose_dev(rows(1)) is None
    assert choose_dev([(row, False) for row, _ in rows(50)]) is None
    one_page = choose_dev(rows(100, page=lambda i: "p"))  # nothing would be left to train on
    assert one_page is not None
    assert (one_page.by, one_page.rows) == ("id", 20)
    both = choose_dev(rows(400, page=lambda i: f"p{i % 100}", speaker=lambda i: f"s{i % 25}"))
    assert both is not None
    assert (both.by, both.rows) == ("speaker", 48)
    assert choose_dev(reversed(rows(400))) == choose_dev(rows(400))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_bad_data_is_one_sentence(data: Path, tmp_path: Path, command: Command) -> None:
    empty = tmp_path / "empty.jsonl"
    rows = [{"id": f"u{i}", "path": f"{i}.png", "text": text} for i, text in enumerate(("", "*", " "))]
    write_manifest(empty, [{**row, "text": row["text"] or " "} for row in rows])
    folder = tmp_path / "folder"
    folder.mkdir()
    mixed = tmp_path / "mixed.jsonl"
    write_manifest(mixed, [{"id": "a", "path": "a.png", "text": "x"}, {"id": "b", "path": "b.wav", "text": "x"}])
    held_out = tmp_path / "dev.jsonl"
    write_manifest(held_out, [{"id": "a", "path": "a.png", "text": "x", "split": "dev"}])
    folds = tmp_path / "folds.jsonl"
    write_manifest(folds, [{**rows[0], "id": split, "text": "x", "split": split} for split in ("fold", "left", "dev")])
    outside = folder / "outside.jsonl"
    write_manifest(outside, [{"id": "a", "path": "../secret/a.png", "text": "x"}])
    blank, latin = tmp_path / "blank.txt", tmp_path / "latin.txt"
    blank.write_text("\n \n")
    latin.write_bytes(b"\xe9t\xe9\n")
    for arguments, sentence in {
        (empty,): "no row has a text to learn from",
        (folder,): "nothing to read there; `starseq fit` takes a manifest, or audio or images",
        (mixed,): "1 rows of images and 1 rows of audio; one recogniser reads either",
        (held_out,): "no row to train on, for none is of a split called train (there are dev)",
        (tmp_path / "none",): "no such file or folder",
        (data / "partial.jsonl", "optim.learning_rate=1"): "the nearest is optim.lr",
        (data / "partial.jsonl", "--minutes", "0"): "minutes: 0 is not a number above 0",
        (data / "partial.jsonl", "--minutes", "inf"): "minutes: inf is not a number above 0",
        (
            data / "partial.jsonl",
            "data.root=/",
        ): "data.root: `starseq fit` takes files and splits from DATA, so leave this out",
        (data / "partial.jsonl", "data.splits.train=[x]"): "data.splits: `starseq fit` takes files and splits",
        (data / "partial.jsonl", "data={manifest: x}"): "data.manifest: `starseq fit` takes files and splits",
        (folds,): "no split is called train, and each of fold, left could be meant: call one of them train",
        (outside,): "outside.jsonl, line 1: ../secret/a.png lies outside of",
        (data / "partial.jsonl", "--text", blank): "blank.txt: no line has a text",
        (data / "partial.jsonl", "--text", latin): "latin.txt, line 1: not UTF-8",
        (data / "partial.jsonl", "--text", tmp_path / "none.txt"): "none.txt: no such file",
    }.items():
        found = command("fit", *arguments, "--out", tmp_path / "out")
        assert (found.code, found.out) == (2, "")
        assert sentence in found.err.splitlines()[-1], found.err
        assert found.err.splitlines()[-1].startswith("starseq: ")
    found = command("fit", data / "partial.jsonl")
    assert (found.code, found.err) == (2, "starseq: --out FOLDER is missing: where is the recogniser to go?\n")


def test_a_folder_with_something_else_is_left_alone(data: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(data, tmp_path / "corpus"))
    before = (out / "manifest.jsonl").read_bytes()
    with pytest.raises(DataError, match="corpus: holds something else; choose a new folder for --out"):
        fitted(data / "partial.jsonl", out)
    assert (out / "manifest.jsonl").read_bytes() == before
    assert not (out / "fit.json").exists()


def test_ctrl_c_is_one_sentence(data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "train", stopped)
    found = command("fit", data / "partial.jsonl", "--out", tmp_path / "out")
    assert found.code == 130
    assert found.err.splitlines()[-1] == "starseq: stopped; the same command goes on from here"
    assert os.path.exists(tmp_path / "out" / "fit.json")
    assert tarfile.is_tarfile(data / "lines.tar")


def test_what_is_decided_fits_the_recipes() -> None:
    for changes in ((), _plan.CLOSED, ("text.missing=word", "criterion.name=stc")):
        speech = _plan.recipe_for_steps("speech", [*changes], 3000, ["optim.lr=0.002"])
        assert (speech.trainer.max_steps, speech.trainer.eval_every, speech.optim.warmup_steps) == (3000, 300, 300)
        assert speech.optim.lr == 0.002
    closed = _plan.recipe_for_steps("speech", _plan.CLOSED, 3000, [])
    assert (closed.text.unit, closed.text.missing, closed.model.settings["stride"]) == ("word", None, 8)
    assert _plan.recipe_for_steps("handwriting", ["text.missing=null"], 7, []).trainer.eval_every == 1
    assert set(_plan.PASSES) == {"speech", "handwriting", "digits"}
