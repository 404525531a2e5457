"""`starseq align`: every row comes out or is listed; formats; a stopped job goes on; one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.run_folder import CPU, make_run

from starseq import cli
from starseq.data.errors import DataError
from starseq.data.files import locked
from starseq.data.manifest import ManifestError, Row, read_manifest, write_manifest
from starseq.decode.alignment_formats import Interval, to_ctm, to_textgrid
from starseq.jobs import align as job
from starseq.jobs._where import Where
from starseq.jobs.align import Counts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), lines=6)


def manifest_of(run: Path) -> Path:
    (path,) = (run / "data").glob("*.jsonl")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_is_aligned(run: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    manifest = manifest_of(run)
    counts = job.align(
        run, manifest, tmp_path, split="dev", where=Where("cpu", progress=lambda *done: seen.append(done))
    )
    rows = [row for row in read_manifest(manifest) if row["split"] == "dev"]
    assert counts == Counts(len(rows), 0)
    assert seen[-1] == (len(rows), len(rows))
    records = lines_of(tmp_path / "alignment.jsonl")
    assert [record["id"] for record in records] == [row.id for row in rows]
    for record, row in zip(records, rows, strict=True):
        assert "".join(label["label"] for label in record["labels"]) == row.text
        assert record["unit"] == "columns"
        assert record["end"] == pytest.approx(
            row["width"], rel=0.25
        )  # a frame more, where the stride does not divide it
        places = [x for label in record["labels"] for x in (label["start"], label["end"])]
        assert places == sorted(places)
        assert len(record["missing"]) == len(record["labels"]) + 1
        assert all(0 <= label["confidence"] <= 1 for label in record["labels"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alignment.jsonl", "failed.jsonl"]


def test_two_jobs_do_not_write_one_result(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "alignment.jsonl"
    with (
        locked(target, tmp_path / f".{target.name}.lock"),
        pytest.raises(DataError, match="another process is writing it"),
    ):
        job.align(run, manifest_of(run), tmp_path, split="dev", where=CPU)
    assert not list(tmp_path.iterdir())


def test_ctm_and_textgrid(run: Path, tmp_path: Path) -> None:
    manifest = manifest_of(run)
    for format in ("ctm", "textgrid"):
        job.align(run, manifest, tmp_path, format=format, split="dev", where=CPU)
    rows = [row for row in read_manifest(manifest) if row["split"] == "dev"]
    for row in rows:
        columns = [line.split() for line in (tmp_path / "alignment.ctm").read_text().splitlines()]
        mine = [column for column in columns if column[0] == row.id]
        assert all(len(column) == 6 and float(column[3]) > 0 for column in mine)
        assert "".join(column[4] for column in mine).replace("*", "") == row.text
        grid = (tmp_path / "textgrid" / f"{row.id}.TextGrid".replace("/", "%2F")).read_text()
        tier = grid.split('name = "labels"')[1].split('name = "missing"')[0]
        assert "".join(re.findall(r'text = "(.*)"', tier)) == row.text
        bounds = [float(x) for x in re.findall(r"xm(?:in|ax) = ([\d.]+)", tier)[2:-2]]
        assert bounds == sorted(bounds)


def test_texts_that_formats_could_break_on() -> None:
    assert to_ctm("a b", [Interval(0, 1, " ", 0.5)]) == "a_b 1 0.000 1.000 <space> 0.500\n"
    grid = to_textgrid(2.0, {'x"y': [Interval(0, 1, '"'), Interval(1, 2, "*")], "none": []})
    assert 'name = "x""y"' in grid
    assert 'text = """"' in grid
    assert grid.count("intervals [") == 3


def test_a_stopped_job_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of(run)
    whole = job.align(run, manifest, tmp_path / "whole", where=CPU)
    done: list[str] = []
    real = job._record

    def stops(*arguments: Any) -> Any:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(arguments[1].id)
        return real(*arguments)

    monkeypatch.setattr(job, "_record", stops)
    with pytest.raises(KeyboardInterrupt):
        job.align(run, manifest, tmp_path / "parts", where=CPU)
    assert not (tmp_path / "parts" / "alignment.jsonl").exists()
    partial = tmp_path / "parts" / ".alignment.jsonl.part-1"
    partial.write_bytes(partial.read_bytes()[:-10])  # the last line was cut

    def counts(*arguments: Any) -> Any:
        done.append(arguments[1].id)
        return real(*arguments)

    monkeypatch.setattr(job, "_record", counts)
    assert job.align(run, manifest, tmp_path / "parts", where=CPU) == whole
    assert len(done) == whole.rows + 1  # the cut one twice
    parts, at_once = (lines_of(tmp_path / name / "alignment.jsonl") for name in ("parts", "whole"))
    assert [one["labels"] for one in parts] == [one["labels"] for one in at_once]
    assert [path.name for path in (tmp_path / "parts").iterdir() if path.name.startswith(".")] == []

    done.clear()
    job.align(run, manifest, tmp_path / "parts", log_penalty=-2.0, where=CPU)
    assert len(done) == whole.rows  # other settings: anew


def broken(run: Path, tmp_path: Path, **changes: Any) -> Path:
    rows = [row for row in read_manifest(manifest_of(run)) if row["split"] == "dev"]
    rows[2] = rows[2].replace(**changes)
    path = run / "data" / f"{tmp_path.name}.json"
    write_manifest(path, [Row(row.fields) for row in rows])
    return path


def test_rows_that_cannot_be_aligned_are_listed(run: Path, tmp_path: Path) -> None:
    manifest = broken(run, tmp_path, text="1" * 500)
    assert job.align(run, manifest, tmp_path, where=CPU) == Counts(5, 1)
    (failed,) = lines_of(tmp_path / "failed.jsonl")
    assert failed["reason"].startswith("no alignment: 500 labels need more than")
    assert failed["id"] not in [record["id"] for record in lines_of(tmp_path / "alignment.jsonl")]


def test_files_that_cannot_be_read(run: Path, tmp_path: Path) -> None:
    manifest = broken(run, tmp_path, archive="none.bin", path="none.bin")
    with pytest.raises(ManifestError, match=rf"{manifest.name}, line 3: .*none.bin: no such file"):
        job.align(run, manifest, tmp_path, where=CPU)
    assert not (tmp_path / "alignment.jsonl").exists()
    assert job.align(run, manifest, tmp_path, where=Where("cpu", skip_bad=True)) == Counts(5, 1)
    (failed,) = lines_of(tmp_path / "failed.jsonl")
    assert "no such file" in failed["reason"]


def test_the_command(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["starseq", "align", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    manifest = manifest_of(run)
    code, out, err = call(run, manifest, "-o", tmp_path, "--split", "test", "--device", "cpu", "--format", "ctm")
    assert (code or 0, err) == (0, "")
    assert "6 of 6 rows aligned" in out
    code, _, err = call(run, broken(run, tmp_path, text="1" * 500), "-o", tmp_path, "--device", "cpu")
    assert code == 1
    assert "1 rows failed, see" in err
    code, _, err = call(run, manifest, "-o", tmp_path, "--split", "tset")
    assert code == 2
    assert "no row is in the split 'tset'" in err
    code, _, err = call(run, manifest, "-o", tmp_path, "--lambda", "0.5")
    assert (code, "lambda: 0.5 is not a log-weight <= 0" in err) == (2, True)
    code, _, err = call(tmp_path / "none", manifest, "-o", tmp_path)
    assert (code, "no such run folder" in err) == (2, True)
