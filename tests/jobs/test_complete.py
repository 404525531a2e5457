"""`starseq complete`: every row comes out with what it had in it; a stopped job goes on; one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.commands import Command
from tests.run_folder import grouped, make_run

from starseq import runs
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.manifest import Row, read_bytes, read_manifest, write_manifest
from starseq.jobs import complete as job
from starseq.jobs._where import Where
from starseq.jobs.drop import drop
from starseq.lm.estimate import estimate
from starseq.runs.folder import save_model
from starseq.text.gaps import has_gap, split_gaps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"), lines=6)
    (full,) = (folder / "data").glob("*.jsonl")
    for mark in (False, True):
        drop(full, folder / "data" / f"partial{mark:d}.json", Dropper(FixedDrop(0.5), unit="char", mark=mark))
    return folder


def call(run: Path, manifest: Path, target: Path, **options: Any) -> job.Counts:
    """The run was never trained: whatever it is unsure of is written."""
    return job.complete(
        run, manifest, target, **grouped(**{"device": "cpu", "force": True, "threshold": 0.0, **options})
    )


def without(row: Row) -> str:
    """The text of a row without what was added to it: a mark where one was filled."""
    text = row.text
    marked = has_gap(row["text_partial"])
    for one in reversed(row["added"]):
        assert text[one["position"] :].startswith(one["text"])
        text = text[: one["position"]] + "*" * marked + text[one["position"] + len(one["text"]) :]
    return text


@pytest.mark.parametrize("mark", [False, True])
def test_every_row_is_completed(run: Path, tmp_path: Path, mark: bool) -> None:
    manifest, target = run / "data" / f"partial{mark:d}.json", tmp_path / "deep" / "complete.jsonl"
    counts = call(run, manifest, target)
    before, after = list(read_manifest(manifest)), list(read_manifest(target))
    filled = untouched = 0
    for old, new in zip(before, after, strict=True):
        assert new.id == old.id
        assert read_bytes(new, target.parent, root=run)  # paths are seen from the new manifest
        untouched += new.text == old.text
        if "added" not in new.fields:
            assert {**new.fields, "archive": ""} == {**old.fields, "archive": ""}
            assert new.text == old.text  # nothing was filled, or nothing was missing
            continue
        assert (new["text_partial"], new["gaps"], new["unit"]) == (old.text, "marked", "columns")
        assert without(new) == old.text
        assert all(0 <= one["confidence"] <= 1 and one["start"] < one["end"] for one in new["added"])
        filled += len(new["added"])
    left = sum(row.text.count("*") for row in after)
    assert counts == job.Counts(len(before), filled, left, untouched, 0, 0 if mark else len(before))
    assert filled
    if not mark:
        assert not left


def test_what_a_mark_says_of_the_extent_is_kept(run: Path, tmp_path: Path) -> None:
    """Whatever is filled in is as long as the marks say, and what is left keeps its marks."""
    rows = list(read_manifest(run / "data" / "partial1.json"))[:8]
    lengths = set()
    for least, most in ((2, 2), (3, 4)):
        marks = [
            [
                {"start": 2 * i, "end": 2 * i + 1, "mark": "?", "least": least, "most": most, "unit": "char"}
                for i in range(row.text.count("*"))
            ]
            for row in rows
        ]
        manifest, target = run / "data" / "bounded.json", tmp_path / "out.jsonl"
        write_manifest(manifest, [row.replace(gap_marks=one) for row, one in zip(rows, marks, strict=True)])
        call(run, manifest, target)
        for before, new in zip(marks, read_manifest(target), strict=True):
            assert all(least <= len(one["text"].replace(" ", "")) <= most for one in new.get("added", []))
            filled = [one["mark"] for one in new.get("added", [])]
            assert len(new["gap_marks"]) == new.text.count("*")
            assert [one for one in before if one not in filled] == new["gap_marks"]
            lengths |= {len(one["text"]) for one in new.get("added", [])}
    assert lengths
    assert lengths <= {2, 3, 4}


def test_tokens_last_where_repeats_are_merged(run: Path, tmp_path: Path) -> None:
    longest = {}
    kept = shutil.copytree(run, tmp_path / "kept")
    recipe = (run / "recipe.yaml").read_text()
    assert "merge_repeats: true" in recipe
    (kept / "recipe.yaml").write_text(recipe.replace("merge_repeats: true", "merge_repeats: false"))
    for folder, merged in ((run, True), (kept, False)):
        call(folder, run / "data" / "partial0.json", tmp_path / "out.jsonl")
        spans = [
            one["end"] - one["start"]
            for row in read_manifest(tmp_path / "out.jsonl")
            for one in row["added"]
            if len(one["text"]) == 1
        ]
        longest[merged] = max(spans) / min(spans)
    assert longest[False] == 1  # a token is a frame
    assert longest[True] > 1


def test_a_stopped_job_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = run / "data" / "partial0.json"
    call(run, manifest, tmp_path / "whole.jsonl")
    done: list[str] = []
    real = job.fill

    def stops(*arguments: Any, **options: Any) -> Any:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append("row")
        return real(*arguments, **options)

    monkeypatch.setattr(job, "fill", stops)
    with pytest.raises(KeyboardInterrupt):
        call(run, manifest, tmp_path / "parts.jsonl")
    assert not (tmp_path / "parts.jsonl").exists()
    monkeypatch.setattr(job, "fill", real)
    counts = call(run, manifest, tmp_path / "parts.jsonl")
    assert counts.rows == len(list(read_manifest(manifest)))
    for ending in ("jsonl", "left.jsonl", "failed.jsonl"):
        assert (tmp_path / f"parts.{ending}").read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert counts == call(run, manifest, tmp_path / "whole.jsonl")


def test_language_model(run: Path, tmp_path: Path) -> None:
    """A model that has seen nothing but 7s makes the rest of them 7s."""
    lm = tmp_path / "sevens.arpa"
    estimate([["7"] * n for n in (3, 4, 5, 6)], lm, order=3)
    manifest = run / "data" / "partial0.json"
    call(run, manifest, tmp_path / "out.jsonl", lm=lm, alpha=5.0, beta=5.0)
    added = "".join(one["text"] for row in read_manifest(tmp_path / "out.jsonl") for one in row["added"])
    assert added
    assert set(added) == {"7"}


def test_the_command(run: Path, tmp_path: Path, command: Command) -> None:
    manifest, out = run / "data" / "partial0.json", tmp_path / "out.jsonl"
    code, printed, err = command("complete", run, manifest, "-o", out, "--split", "dev", "--device", "cpu", "--force")
    assert code == 0
    assert re.match(
        r".*out.jsonl: 6 rows; \d+ gaps filled, \d+ gaps left, \d+ rows untouched, 0 rows failed\n", printed
    )
    assert "out.left.jsonl: what was left as it was, and why" in printed
    assert err.startswith(
        "starseq: 6 rows say nothing of gaps, so text may be missing anywhere in them; where that is wrong"
    )
    rows = len(list(read_manifest(run / "data" / "partial1.json")))
    code, printed, err = command(
        "complete", run, run / "data" / "partial1.json", "-o", out, "--device", "cpu", "--force", "--threshold", "1"
    )
    assert (code, f": {rows} rows; 0 gaps filled, " in printed, f"{rows} rows untouched" in printed, err) == (
        0,
        True,
        True,
        "",
    )
    before, lm_file = manifest.read_text(), tmp_path / "lm.arpa"
    estimate([list("0123456789")], lm_file, order=2)
    for arguments, sentence in {
        ("--force", "--alpha", "0.5"): "alpha: a weight of 0.5 needs a language model, and none was given",
        ("--force", "--beam", "0"): "beam: 0 is less than 1",
        ("--force", "--threshold", "50"): "threshold: 50.0 is not a confidence from 0 to 1",
        ("--force", "--lm", str(tmp_path / "none.arpa")): "none.arpa: no such file",
        ("--force", "--lm", str(manifest)): "not an ARPA file",
        ("--force", "--lm", str(lm_file)): "the weights of beam are not tuned: run `starseq tune` with",
        ("--force", "-o", str(tmp_path)): "not a regular file, so it cannot be replaced",
        ("--force", "-o", str(manifest)): "this is the file that is read; choose another name",
        ("--device", "gpu", "--force"): "device 'gpu' is none of auto, cpu, cuda, cuda:1, ...",
        (): "this run reads next to nothing, its error on dev is 61.5 %, so it would fill gaps with guesses: train it on",
    }.items():
        code, _, err = command("complete", run, manifest, "-o", tmp_path / "other.jsonl", "--device", "cpu", *arguments)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err
        assert not (tmp_path / "other.jsonl").exists()
    assert manifest.read_text() == before


def rows_of(run: Path, name: str, *texts: str, **fields: Any) -> Path:
    """A manifest of digit lines with these texts."""
    rows = [row.fields for row in read_manifest(run / "data" / "partial0.json")][: len(texts)]
    manifest = run / "data" / f"{name}.json"
    write_manifest(
        manifest, [{**row, "text": text, **fields} for row, text in zip(rows, texts, strict=True)], labelled=False
    )
    return manifest


def test_no_row_is_missing(run: Path, tmp_path: Path, command: Command) -> None:
    """Rows that cannot be aligned, with no gap or nothing else, and that cannot be read, come out as they were, with a reason."""
    texts = ["1*" + "1" * 500, "n\u00b011\\*, e\u0301", "*", "12 *", " "]
    manifest = rows_of(run, "awkward", *texts, gaps="marked")
    rows = [row.fields for row in read_manifest(manifest)]
    rows[3]["nbytes"] = 7
    write_manifest(manifest, rows)
    out = tmp_path / "out.jsonl"
    with pytest.raises(DataError, match=r"awkward\.json, line 4: .*not an image"):
        call(run, manifest, out, threshold=1.0)
    counts = call(run, manifest, out, threshold=1.0, skip_bad=True)
    assert counts == job.Counts(rows=5, filled=0, left=3, untouched=3, failed=2, unmarked=0)
    after = list(read_manifest(out))
    assert [row.text for row in after] == texts
    assert all("added" not in row.fields for row in after)
    failed = [json.loads(line) for line in (tmp_path / "out.failed.jsonl").read_text().splitlines()]
    assert [one["id"] for one in failed] == [rows[0]["id"], rows[3]["id"]]
    assert failed[0]["reason"].endswith(
        "; a run with a larger data.reader.height or with a smaller model.stride has more frames"
    )
    left = [json.loads(line) for line in (tmp_path / "out.left.jsonl").read_text().splitlines()]
    reasons = {id: [one["reason"] for one in left if one["id"] == id] for id in (row["id"] for row in rows)}
    assert reasons[rows[1]["id"]] == reasons[rows[4]["id"]] == ["it has no gap"]
    assert reasons[rows[2]["id"]][-1] == "it is nothing but a gap: all of its text is the run's"
    code, _, err = command("complete", run, manifest, "-o", out, "--force", "--device", "cpu", "--skip-bad")
    assert (code, "2 rows failed, see" in err) == (1, True)


def test_a_row_without_text_is_a_gap(run: Path, tmp_path: Path) -> None:
    manifest = rows_of(run, "untold", "", "")
    counts = call(run, manifest, tmp_path / "out.jsonl", threshold=1.0)
    assert [(row.text, row["gaps"]) for row in read_manifest(tmp_path / "out.jsonl")] == [("*", "marked")] * 2
    assert (counts.left, counts.filled, counts.unmarked) == (2, 0, 2)


def test_white_space_is_a_gap_and_an_unmarked_row_stays_as_it_was(run: Path, tmp_path: Path) -> None:
    """Where nothing was read."""
    silent = tmp_path / "silent"
    shutil.copytree(run, silent)
    network = runs.load(silent).model
    for weight in network.parameters():
        weight.data.zero_()
    last = list(network.parameters())[-1]
    assert last.shape == (len(runs.load(silent).tokeniser.vocabulary),)
    last.data[0] = 50.0  # blanks alone
    save_model(silent, network, step=1, log_penalty=-1.0, dev_error=None)
    call(silent, rows_of(silent, "silent", "12", " "), tmp_path / "out.jsonl")
    stays, blank = read_manifest(tmp_path / "out.jsonl")
    assert stays.text == "12"
    assert not {"gaps", "added", "text_partial"} & stays.fields.keys()
    assert (blank.text, blank["gaps"]) == (" *", "marked")


def test_every_gap_that_is_left_is_listed(run: Path, tmp_path: Path) -> None:
    manifest = rows_of(run, "many", "1*2*3*", "*9* *", gaps="marked")
    for threshold in (0.0, 0.2, 1.0):
        counts = call(run, manifest, tmp_path / "out.jsonl", threshold=threshold)
        left = [json.loads(line) for line in (tmp_path / "out.left.jsonl").read_text().splitlines()]
        texts = {row.id: split_gaps(row.text) for row in read_manifest(tmp_path / "out.jsonl")}
        marks = {
            (id, len("*".join(segments[: n + 1]))) for id, segments in texts.items() for n in range(len(segments) - 1)
        }
        places = [(one["id"], one["position"]) for one in left if "position" in one]
        assert len(places) == counts.left
        assert set(places) == marks
        assert all(("guess" in one) != (one["reason"] == "nothing was read there") for one in left if "position" in one)
        assert counts.left + counts.filled == 6
    assert counts.filled == 0


def test_what_is_not_sure_is_listed(run: Path, tmp_path: Path) -> None:
    """With its place, so that it can be put there by hand."""
    manifest, all_of_it = run / "data" / "partial0.json", tmp_path / "all.jsonl"
    call(run, manifest, all_of_it)
    sure = sorted(one["confidence"] for row in read_manifest(all_of_it) for one in row["added"])
    middle = sure[len(sure) // 2]
    counts = call(run, manifest, tmp_path / "out.jsonl", threshold=middle)
    left = [json.loads(line) for line in (tmp_path / "out.left.jsonl").read_text().splitlines()]
    guesses = [one for one in left if "guess" in one]
    assert len(guesses) == counts.left > 0
    assert len(guesses) + counts.filled == len(sure)
    assert all(one["confidence"] <= middle for one in guesses)
    assert {one["reason"] for one in guesses} == {f"its confidence is below {middle:g}"}
    rows = {row.id: row for row in read_manifest(tmp_path / "out.jsonl")}
    for row in read_manifest(all_of_it):
        text = rows[row.id].text
        for guess in reversed([one for one in guesses if one["id"] == row.id]):
            assert text[guess["position"]] == "*"
            text = text[: guess["position"]] + guess["guess"] + text[guess["position"] + 1 :]
        assert text == row.text


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text("0123 *\\ab\u00e9\u0301\u00df\u2009n\u00b0,", max_size=12), min_size=1, max_size=6), st.booleans()
)
def test_known_text_is_kept(run: Path, tmp_path: Path, texts: list[str], marked: bool) -> None:
    """To the byte, by a model that reads anything: only marks are filled, and a text without marks is inside of what comes out."""
    manifest = rows_of(run, "any", *texts, **({"gaps": "marked"} if marked else {}))
    counts = call(run, manifest, tmp_path / "out.jsonl")
    after = list(read_manifest(tmp_path / "out.jsonl", labelled=False))
    assert counts.rows == len(after) == len(texts)
    for text, row in zip(texts, after, strict=True):
        if has_gap(text):
            segments = [re.escape(segment) for segment in split_gaps(text)]
            assert re.fullmatch(".*".join(segments), "*".join(split_gaps(row.text)), re.DOTALL)
        elif marked and text:
            assert row.text == text
        else:
            rest = iter("".join(split_gaps(row.text)))
            assert all(character in rest for character in split_gaps(text)[0])


def test_what_would_be_lost(run: Path, tmp_path: Path) -> None:
    """A manifest that is named as the list of failures would be."""
    manifest = run / "data" / "out.failed.jsonl"
    manifest.write_text((run / "data" / "partial0.json").read_text())
    before = manifest.read_text()
    with pytest.raises(DataError, match=r"out\.failed\.jsonl: this is the file that is read"):
        call(run, manifest, manifest.with_name("out.jsonl"))
    assert manifest.read_text() == before
    manifest.unlink()


def test_labels_outside_of_the_vocabulary_are_kept(run: Path, tmp_path: Path, command: Command) -> None:
    rows = [row.fields for row in read_manifest(run / "data" / "partial0.json")][:2]
    rows[0]["text"] = "z" + rows[0]["text"] + "z"
    manifest = run / "data" / "strange.json"
    write_manifest(manifest, rows)
    call(run, manifest, tmp_path / "out.jsonl")
    after = list(read_manifest(tmp_path / "out.jsonl"))
    assert [without(row).replace("*", "") for row in after] == [
        row["text"] for row in rows
    ]  # beside a z it is not sure
    _, _, err = command("align", run, manifest, "-o", tmp_path / "aligned")
    assert "starseq: 2 known labels are outside of the run's vocabulary" in err
    aligned = [json.loads(line) for line in (tmp_path / "aligned" / "alignment.jsonl").read_text().splitlines()]
    assert [row.get("outside_vocabulary") for row in aligned] == [["z", "z"], None]


def test_a_run_that_knows_of_no_error_goes_on(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    model = runs.load(run).model
    cases = (None, None, True), (50.0, None, True), (50.1, None, False), (160.0, 20.0, True), (50.1, 50.1, False)
    for error, missed, reads in cases:  # with texts of dev that lack words, a run reads more than they have
        save_model(other, model, step=1, log_penalty=-1.0, dev_error=error, dev_missed=missed)
        if reads:
            job.complete(other, run / "data" / "partial1.json", tmp_path / "out.jsonl", where=Where("cpu", run))
        else:
            with pytest.raises(DataError, match=r"reads next to nothing, its error on dev is 50\.1 %"):
                job.complete(other, run / "data" / "partial1.json", tmp_path / "no.jsonl", where=Where("cpu", run))
    assert not (tmp_path / "no.jsonl").exists()


def test_weights_are_those_that_were_tuned(run: Path, tmp_path: Path) -> None:
    manifest, tuned = run / "data" / "partial0.json", run / "tuned.json"

    def texts(**options: Any) -> list[str]:
        call(run, manifest, tmp_path / "out.jsonl", **options)
        return [row.text for row in read_manifest(tmp_path / "out.jsonl")]

    plain, longer = texts(), texts(beta=8.0)
    assert sum(map(len, longer)) > sum(map(len, plain))
    record = {"alpha": 0.0, "beta": 8.0, "lm": None, "lexicon": None}
    tuned.write_text(json.dumps({"alone": record}))
    try:
        assert texts() == longer
        assert texts(beta=0.0) == plain
    finally:
        tuned.unlink()
