"""`starseq complete`: every row comes out with what it had in it; a stopped job goes on; one sentence for what is wrong."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.run_folder import make_run

from starseq import cli
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.manifest import read_bytes, read_manifest
from starseq.jobs import complete as job
from starseq.jobs._stream import Counts
from starseq.jobs.drop import drop
from starseq.lm.estimate import estimate
from starseq.text.gaps import parse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"), lines=6)
    (full,) = (folder / "data").glob("*.jsonl")
    for mark in (False, True):
        drop(full, folder / "data" / f"partial{mark:d}.json", Dropper(FixedDrop(0.5), unit="char", mark=mark))
    return folder


def contains(text: str, partial: Any) -> bool:
    """Whether the labels can be found in order, nothing between them where a gap is closed."""
    positions = {0}
    for token in text:
        stays = {l for l in positions if partial.open[l]}
        moves = {l + 1 for l in positions if l < len(partial.labels) and partial.labels[l] == token}
        positions = stays | moves
    return len(partial.labels) in positions


@pytest.mark.parametrize("mark", [False, True])
def test_every_row_is_completed(run: Path, tmp_path: Path, mark: bool) -> None:
    manifest, target = run / "data" / f"partial{mark:d}.json", tmp_path / "deep" / "complete.jsonl"
    counts = job.complete(run, manifest, target, device="cpu", nbest=3)
    before, after = list(read_manifest(manifest)), list(read_manifest(target))
    assert counts == Counts(len(before), 0)
    for old, new in zip(before, after, strict=True):
        assert (new.id, new["text_partial"], new["gaps"]) == (old.id, old.text, "marked")
        assert contains(new.text, old.partial("char"))
        assert new.partial("char").open == (False,) * (len(new.text) + 1)
        added = new["added"]
        assert len(new.text) == len(old.partial("char").labels) + len(added)
        assert [new.text[token["position"]] for token in added] == [token["label"] for token in added]
        assert all(0 <= token["confidence"] <= 1 and token["start"] < token["end"] for token in added)
        assert new["unit"] == "columns"
        assert new["hyps"][0]["text"] == new.text
        assert read_bytes(new, target.parent, root=run)  # paths are seen from the new manifest
    if mark:
        assert any(not all(parse(row.text, "char").open) for row in before)


def test_tokens_last_where_repeats_are_merged(run: Path, tmp_path: Path) -> None:
    longest = {}
    kept = shutil.copytree(run, tmp_path / "kept")
    recipe = (run / "recipe.yaml").read_text()
    assert "merge_repeats: true" in recipe
    (kept / "recipe.yaml").write_text(recipe.replace("merge_repeats: true", "merge_repeats: false"))
    for folder, merged in ((run, True), (kept, False)):
        job.complete(folder, run / "data" / "partial0.json", tmp_path / f"{merged}.jsonl", device="cpu")
        spans = [
            token["end"] - token["start"]
            for row in read_manifest(tmp_path / f"{merged}.jsonl")
            for token in row["added"]
        ]
        longest[merged] = max(spans) / min(spans)
    assert longest[False] == 1  # a token is a frame
    assert longest[True] > 1


def test_a_stopped_job_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = run / "data" / "partial0.json"
    job.complete(run, manifest, tmp_path / "whole.jsonl", device="cpu")
    done: list[str] = []
    real = job._row

    def stops(*arguments: Any) -> Any:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(arguments[1].id)
        return real(*arguments)

    monkeypatch.setattr(job, "_row", stops)
    with pytest.raises(KeyboardInterrupt):
        job.complete(run, manifest, tmp_path / "parts.jsonl", device="cpu")
    assert not (tmp_path / "parts.jsonl").exists()
    monkeypatch.setattr(job, "_row", real)
    counts = job.complete(run, manifest, tmp_path / "parts.jsonl", device="cpu")
    assert counts.rows == len(list(read_manifest(manifest)))
    texts = [[row.text for row in read_manifest(tmp_path / name)] for name in ("parts.jsonl", "whole.jsonl")]
    assert texts[0] == texts[1]


def test_language_model(run: Path, tmp_path: Path) -> None:
    """A model that has seen nothing but 7s makes the rest of them 7s."""
    lm = tmp_path / "sevens.arpa"
    estimate([["7"] * n for n in (3, 4, 5, 6)], lm, order=3)
    manifest = run / "data" / "partial0.json"
    job.complete(run, manifest, tmp_path / "out.jsonl", device="cpu", lm=lm, alpha=50.0, beta=20.0)
    added = [token["label"] for row in read_manifest(tmp_path / "out.jsonl") for token in row["added"]]
    assert added
    assert set(added) == {"7"}


def test_the_command(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["starseq", "complete", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    manifest, out = run / "data" / "partial0.json", tmp_path / "out.jsonl"
    code, printed, err = call(run, manifest, "-o", out, "--split", "dev", "--device", "cpu")
    assert (code or 0, err) == (0, "")
    assert "rows completed" in printed
    before, lm_file = manifest.read_text(), tmp_path / "lm.arpa"
    estimate([list("0123456789")], lm_file, order=2)
    for arguments, sentence in {
        ("--alpha", "0.5"): "alpha: a weight of 0.5 needs a language model, and none was given",
        ("--beam", "0"): "beam: 0 is less than 1",
        ("--lm", str(tmp_path / "none.arpa")): "none.arpa: no such file",
        ("--lm", str(manifest)): "not an ARPA file",
        ("--lm", str(lm_file)): "the weights of beam are not tuned: run `starseq tune` with",
        ("-o", str(tmp_path)): "not a regular file, so it cannot be replaced",
        ("-o", str(manifest)): "this is the file that is read; choose another name",
        ("--device", "gpu"): "device 'gpu' is none of auto, cpu, cuda, cuda:1, ...",
    }.items():
        code, _, err = call(run, manifest, "-o", tmp_path / "other.jsonl", "--device", "cpu", *arguments)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err
        assert not (tmp_path / "other.jsonl").exists()
    assert manifest.read_text() == before
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows[0]["text"] = "1" * 500
    long = run / "data" / "long.json"
    long.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = call(run, long, "-o", out, "--device", "cpu")
    assert code == 1
    assert "1 rows failed, see" in err
    (failed,) = (json.loads(line) for line in (tmp_path / "out.failed.jsonl").read_text().splitlines())
    assert "500 labels need more than" in failed["reason"]


def test_what_would_be_lost(run: Path, tmp_path: Path) -> None:
    """A manifest that is named as the list of failures would be."""
    manifest = run / "data" / "out.failed.jsonl"
    manifest.write_text((run / "data" / "partial0.json").read_text())
    before = manifest.read_text()
    with pytest.raises(DataError, match=r"out\.failed\.jsonl: this is the file that is read"):
        job.complete(run, manifest, manifest.with_name("out.jsonl"), device="cpu")
    assert manifest.read_text() == before
    manifest.unlink()


def test_labels_outside_of_the_vocabulary_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rows = [json.loads(line) for line in (run / "data" / "partial0.json").read_text().splitlines()][:2]
    rows[0]["text"] = "z" + rows[0]["text"] + "z"
    manifest = run / "data" / "strange.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = job.complete(run, manifest, tmp_path / "out.jsonl", device="cpu")
    assert (counts.done, counts.failed, counts.outside) == (2, 0, 2)
    found = list(read_manifest(tmp_path / "out.jsonl"))
    assert [row.get("outside_vocabulary") for row in found] == [["z", "z"], None]
    monkeypatch.setattr(sys, "argv", ["starseq", "align", *map(str, (run, manifest, "-o", tmp_path / "aligned"))])
    with pytest.raises(SystemExit):
        cli.main()
    assert "starseq: 2 known labels are outside of the run's vocabulary" in capsys.readouterr().err
    aligned = [json.loads(line) for line in (tmp_path / "aligned" / "alignment.jsonl").read_text().splitlines()]
    assert [row.get("outside_vocabulary") for row in aligned] == [["z", "z"], None]


def test_weights_are_those_that_were_tuned(run: Path, tmp_path: Path) -> None:
    manifest, tuned = run / "data" / "partial0.json", run / "tuned.json"

    def texts(**options: Any) -> list[str]:
        job.complete(run, manifest, tmp_path / "out.jsonl", device="cpu", **options)
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
