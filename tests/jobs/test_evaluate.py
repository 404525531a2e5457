"""`starseq evaluate`: rates that jiwer agrees with, results that join others, sentences for mistakes."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import jiwer
import pytest
from tests.commands import Command
from tests.run_folder import CPU, make_run

from starseq import runs
from starseq.data.errors import DataError
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs import _search, _stream
from starseq.jobs._search import Search
from starseq.jobs._where import Where
from starseq.jobs.evaluate import Scores, evaluate
from starseq.jobs.report import report
from starseq.report.readings import read_readings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "stc")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "stc"))


def test_rates_are_those_of_jiwer_and_join_what_was_found_before(run: Path) -> None:
    runs.update_results(run, evaluate={"test": {"beam": {"wer": 1.0}}, "old": {"greedy": {}}})
    done: list[tuple[int, int | None]] = []
    result = evaluate(run, where=Where("cpu", progress=lambda *counts: done.append(counts)))
    assert [split.name for split in result.splits] == ["dev", "test"]
    assert done[-1] == (8, 8)
    saved = runs.read_results(run)
    assert saved["train"]["steps"] == 20
    assert saved["evaluate"]["old"] == {"greedy": {}}
    assert saved["evaluate"]["test"]["beam"] == {"wer": 1.0}
    for split in result.splits:
        references = [reading.reference for reading in split.readings]
        read = [reading.hypotheses["greedy"] for reading in split.readings]
        truth = [row.text for row in read_manifest(run / "data" / "manifest.jsonl") if row["split"] == split.name]
        assert references == truth  # the complete texts, not what the recipe's dropping leaves
        found = saved["evaluate"][split.name]["greedy"]
        assert found["cer"] == pytest.approx(100 * jiwer.cer(references, read), abs=1e-3)
        assert found["wer"] == pytest.approx(100 * jiwer.wer(references, read), abs=1e-3)
        assert found["sentences"] == 4
        assert read_readings(run, split.name) == split.readings


def test_a_search_stands_beside_greedy(run: Path) -> None:
    result = evaluate(run, splits=["test"], search=Search(beam=5), where=Where("cpu", workers=1))
    (split,) = result.splits
    assert list(split.methods) == ["greedy", "beam"]
    assert "beam" in result.table().splitlines()[2]
    assert "[-" in result.examples(method="greedy")
    page = report([run], examples=2, alignments=0).read_text()
    assert "stc, beam" in page
    alone = evaluate(run, splits=["test"], where=CPU).splits[0]
    assert [one.hypotheses["greedy"] for one in split.readings] == [one.hypotheses["greedy"] for one in alone.readings]


def test_a_stopped_evaluation_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "_FEWEST_BLOCKS", 4)
    whole = evaluate(run, where=CPU)
    real, read = _search.greedily, list[int]()

    def stops(*arguments: Any) -> Any:
        read.append(0)
        if len(read) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(_search, "greedily", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, where=CPU)
    assert evaluate(run, where=CPU) == whole
    assert len(read) == 5 + 8 - 4  # what two blocks had is kept
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("criterion", "merged"), [("name=stc", True), ("merge_repeats=false", False), ("name=ctc", True)]
)
def test_repeats_are_read_as_the_run_was_trained(tmp_path: Path, criterion: str, merged: bool) -> None:
    run = make_run(tmp_path / "run", f"criterion.{criterion}")
    expected = {}
    for emission in runs.emissions(runs.load(run), run / "data" / "manifest.jsonl", split="test"):
        frames = emission.log_probs.argmax(dim=1).tolist()
        tokens = [token for token, _ in itertools.groupby(frames)] if merged else frames
        expected[emission.id] = "".join("0123456789"[token - 1] for token in tokens if token)
    own = evaluate(run, splits=["test"], where=CPU).splits[0].readings
    assert {reading.id: reading.hypotheses["greedy"] for reading in own} == expected


def test_another_manifest_is_named_and_rows_without_a_complete_text_are_left_out(run: Path, tmp_path: Path) -> None:
    rows = [row.fields for row in read_manifest(run / "data" / "manifest.jsonl")][:4]
    for row in rows:
        del row["split"]
    rows[0]["text"] = "1*2"
    rows[1] |= {"text": "1*2", "text_full": "1342"}
    del rows[2]["text"]
    write_manifest(run / "data" / "other.jsonl", rows, labelled=False)
    (split,) = evaluate(run, run / "data" / "other.jsonl", where=CPU).splits
    assert (split.name, split.left_out, len(split.readings)) == ("other: all", 2, 2)
    assert split.readings[0].reference == "1342"
    assert "other: all" in runs.read_results(run)["evaluate"]
    for corpus in ("a", "b"):  # whose manifests have the same name
        (tmp_path / corpus).mkdir()
        shutil.copytree(run / "data", tmp_path / corpus, dirs_exist_ok=True)
        evaluate(run, tmp_path / corpus / "manifest.jsonl", splits=["dev"], where=CPU)
    assert {"a: dev", "b: dev"} <= set(runs.read_results(run)["evaluate"])
    write_manifest(run / "data" / "none.jsonl", [rows[2]], labelled=False)
    with pytest.raises(DataError, match=r"none\.jsonl: no row has a complete text to compare with"):
        evaluate(run, run / "data" / "none.jsonl", where=CPU)


def test_scores_of_words_and_characters() -> None:
    scores = Scores.of(["the quick fox", "oh"], ["the fox", "oh"])
    assert (scores.words.deletions, scores.words.percent, scores.right) == (1, 25.0, 1)
    assert scores.to_dict()["characters"]["deletions"] == 6


def test_the_commands(run: Path, command: Command, tmp_path: Path) -> None:
    done = command("evaluate", run, "--split", "test", "--device", "cpu")
    assert done.code == 0
    head, line, *_ = done.out.splitlines()
    assert head.split()[:6] == ["split", "method", "WER", "%", "CER", "%"]
    cer = runs.read_results(run)["evaluate"]["test"]["greedy"]["cer"]
    assert f"{cer:.2f}" in line
    assert "test, greedy, worst:" in done.out

    done = command(
        "evaluate", run, "--device", "cpu", "--split", "dev", "--beam", "5", "--workers", "0", "--examples", "0"
    )
    assert (done.code, done.err) == (0, "")
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("dev ")] == ["greedy", "beam"]
    done = command("report", run)
    assert (done.code, done.out) == (0, f"{run / 'report.html'}\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "{run}", "--split", "tset"], "no row of split 'tset' (there are dev, test, train)"),
        (["evaluate", "{run}", "none.jsonl"], "none.jsonl: no such file or directory"),
        (["evaluate", "{tmp}"], "not a run folder that can be used"),
        (["evaluate", "{run}", "--device", "cuda"], "device 'cuda' is asked for, and there is no CUDA device here"),
        (["evaluate", "{run}", "--device", "gpu"], "device 'gpu' is none of auto, cpu, cuda, cuda:1, ..."),
        (["evaluate", "{run}", "--device", "cuda:x"], "device 'cuda:x' is none of auto, cpu, cuda, cuda:1, ..."),
        (["evaluate", "{run}", "--lm", "none.arpa"], "none.arpa: no such file or directory"),
        (["tune", "{run}", "--rescore", "none.arpa"], "none.arpa: no such file or directory"),
        (["report", "{run}", "--split", "test"], "split 'test' was not evaluated (there is none)"),
    ],
)
def test_mistakes_are_one_sentence(
    run: Path, command: Command, tmp_path: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    done = command(*(argument.format(run=run, tmp=tmp_path) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_a_page_about_runs_whatever_their_texts_and_names_hold(run: Path, tmp_path: Path) -> None:
    evil = tmp_path / "<script>alert(1)<"
    shutil.copytree(run, evil)
    for folder in (run, evil):
        evaluate(folder, splits=["test"], where=CPU)
    readings = (evil / "readings" / "test.jsonl").read_text()
    (evil / "readings" / "test.jsonl").write_text(readings.replace('"greedy": "', '"greedy": "<script>&'))
    page = report([run, evil], tmp_path / "page.html", examples=4, alignments=2)
    html = page.read_text()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<article>") == 4
    assert html.count('<svg class="alignment"') == 2
    assert html.count('<img src="data:image/png;base64,') == 4
    assert "class=lost" in html  # the recipe drops labels, so what is left of them is shown
    assert "50 % known" in html

    shutil.rmtree(evil / "data")  # a corpus that was moved: texts, and no pictures
    html = report([run, evil], tmp_path / "page.html", examples=4).read_text()
    assert html.count("<article>") == 4
    assert "<img" not in html


def test_a_page_about_a_run_that_was_not_evaluated(run: Path) -> None:
    html = report([run]).read_text()
    assert "not evaluated yet" in html
    assert "<article>" not in html
    assert "error on dev, %" in html
