"""`starseq pseudo`: every row that goes in comes out or is listed; stopped jobs give the same bytes; students can
train on what comes out."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.run_folder import CPU, grouped, make_run
from tests.tiny import SETTINGS

from starseq import cli, runs
from starseq.config import build, load_recipe
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.files import hash_of
from starseq.data.manifest import Row, read_bytes, read_manifest, write_manifest
from starseq.decode.complete import CompletedToken
from starseq.decode.confidence import Judge
from starseq.decode.greedy import greedy
from starseq.jobs import _label, _stream
from starseq.jobs import pseudo as job
from starseq.jobs._fill import Filled, fill, places_of_marks
from starseq.jobs.drop import drop
from starseq.jobs.evaluate import evaluate
from starseq.jobs.train import train
from starseq.lm.estimate import estimate
from starseq.runs.folder import save_model
from starseq.text.gaps import has_gap, parse, render
from starseq.text.known import known_text
from starseq.text.normalise import Normaliser
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary
from starseq.train.data import RunRows, training_data

LINES = 12
OUT = ("out.jsonl", "out.summary.json", "out.failed.jsonl", "out.left.jsonl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a manifest that has lost half of its labels."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "teacher", "data.drop=null", lines=LINES)
    (full,) = (folder / "data").glob("*.jsonl")
    dropper = Dropper(FixedDrop(0.5), unit="char", keep_text=True)
    drop(full, folder / "data" / "partial.jsonl", dropper)
    return folder


@pytest.fixture(scope="module")
def partial(run: Path) -> Path:
    return run / "data" / "partial.jsonl"


def label(run: Path, manifest: Path, target: Path, kind: Any = "keep-known", **settings: Any) -> job.Summary:
    return job.pseudo(
        run, manifest, target, kind=kind, **grouped(**{"device": "cpu", "workers": 0, "force": True, **settings})
    )


def contains(text: str, row: Row) -> bool:
    """Whether the labels of a row can be found in a text, in order."""
    left = iter(text)
    return all(label in left for label in row.partial("char").labels)


def added(row: Row) -> list[str]:
    """Characters that a run added, each where it says."""
    assert all(row.text[one["position"] :].startswith(one["text"]) for one in row["added"])
    return [character for one in row["added"] for character in one["text"] if character != "*"]


@pytest.mark.parametrize("kind", job.KINDS)
def test_in_is_out_and_failed(run: Path, partial: Path, tmp_path: Path, kind: job.Kind) -> None:
    target = tmp_path / "deep" / "out.jsonl"
    seen: list[tuple[int, int | None]] = []
    summary = label(run, partial, target, kind, threshold=0.15, progress=lambda *done: seen.append(done))
    before = list(read_manifest(partial))
    after = {row.id: row for row in read_manifest(target)}
    failed = [json.loads(line) for line in (tmp_path / "deep" / "out.failed.jsonl").read_text().splitlines()]
    training = [row for row in before if row["split"] == "train"]
    assert seen[-1] == (len(training), len(training))
    assert (summary.rows, summary.failed, summary.other) == (len(training), len(failed), len(before) - len(training))
    lost = {one["id"] for one in failed} if kind == "plain" else set()
    assert list(after) == [row.id for row in before if row.id not in lost]
    loaded = runs.load(run)
    emitted = {one.id: one for one in runs.emissions(loaded, partial, split="train", budget=1.0)}
    assert summary.done
    for old in before:
        if old.id not in after:
            continue
        new = after[old.id]
        assert read_bytes(new, target.parent, root=run)  # paths are seen from the new manifest
        if old["split"] != "train":
            assert {**new.fields, "archive": ""} == {**old.fields, "archive": ""}
            continue
        labels = new.partial("char").labels
        assert (new["text_partial"], new["gaps"], new["text_full"]) == (old.text, "marked", old["text_full"])
        assert 0 < new["confidence"] <= 1
        if len(added(new)) == 1:
            assert new["confidence"] == new["added"][0]["confidence"]
        assert {"run", "model", "kind", "method", "starseq"} <= set(new["source"])
        assert (new["source"]["run"], new["source"]["kind"]) == ("teacher", kind)
        if kind == "plain":
            frames = emitted[old.id].log_probs
            (tokens,) = greedy(frames[None], torch.tensor([len(frames)]), merge_repeats=True)
            assert new.text == loaded.tokeniser.decode(tokens)
            assert added(new) == list(new.text)
        else:
            assert contains("".join(labels), old)
            assert len(labels) == len(old.partial("char").labels) + len(added(new))
        if kind != "confident":
            assert not any(new.partial("char").open)
    if kind == "confident":
        assert summary.labels["taken_out"] > 0
        assert any(has_gap(row.text) for row in after.values())
    left = [json.loads(line) for line in (tmp_path / "deep" / "out.left.jsonl").read_text().splitlines()]
    assert {(one["id"], one["position"]) for one in left if "position" in one} == {
        (row.id, position)
        for row in after.values()
        if row["split"] == "train"
        for position in places_of_marks(row.text)
    }
    assert sum("position" in one for one in left) == summary.gaps["left"]
    assert (kind == "confident") == any("guess" in one for one in left)
    saved = json.loads((tmp_path / "deep" / "out.summary.json").read_text())
    assert saved == json.loads(json.dumps(summary.to_dict()))
    assert sum(saved["confidence"]["histogram"]) == summary.done
    assert saved["errors"]["pseudo"]["sentences"] == summary.done
    assert saved["errors"]["partial"]["characters"]["insertions"] == 0  # labels were only dropped
    assert "rows labelled" in summary.report()


def test_confident_takes_out_what_is_not_sure(run: Path, partial: Path, tmp_path: Path) -> None:
    """It is keep-known, less the added labels below the threshold; every run of them is one gap, and no other gap is open."""
    threshold = 0.12
    label(run, partial, tmp_path / "full.jsonl")
    label(run, partial, tmp_path / "sure.jsonl", "confident", threshold=threshold)
    full, sure = ({row.id: row for row in read_manifest(tmp_path / name)} for name in ("full.jsonl", "sure.jsonl"))
    emitted = runs.emissions(runs.load(run), partial, split="train")
    checked = 0
    for one in emitted:
        text = full[one.id].text
        judged = Judge(one.log_probs, merge_repeats=True)([int(digit) + 1 for digit in text]).confidence
        at = {
            position
            for add in full[one.id]["added"]
            for position in range(add["position"], add["position"] + len(add["text"]))
        }
        kept = [place not in at or share >= threshold for place, share in enumerate(judged)]
        expected = "".join(character if keep else "*" for character, keep in zip(text, kept, strict=True))
        assert sure[one.id].text == re.sub(r"\*+", "*", expected)
        shares = [share for place, share in enumerate(judged) if place in at and share >= threshold]
        mean = math.exp(sum(map(math.log, shares)) / len(shares)) if shares else 1.0
        assert sure[one.id]["confidence"] == pytest.approx(mean, abs=1e-3)
        checked += "*" in expected
    assert checked


def word_run(folder: Path) -> Path:
    """The same model, with words for its tokens."""
    made = make_run(folder, "data.drop=null", "text.unit=word", "text.normaliser.squeeze=true", "text.unknown=drop")
    words = ["the", "quick", "brown", "fox", "2*3", "dog", "over", "lazy", "it's", "a"]
    (made / "tokens.txt").write_text(Vocabulary(words).to_lines())
    texts = ["the zebu fox", "dog", "2\\*3 over", "a * dog"]
    rows = [row.fields for row in read_manifest(made / "data" / "manifest.jsonl")]
    for row, text in zip(rows[:4], texts, strict=True):
        row["text"] = text
        row["text_full"] = "the quick zebu fox" if "zebu" in text else "a lazy dog"
    for row in rows[4:]:
        row["text"] = "fox"
    write_manifest(made / "data" / "manifest.jsonl", rows)
    return made


def test_words_of_a_teacher_are_letters_of_a_student(tmp_path: Path) -> None:
    """Text travels: a gap between words is one gap between spaces for a tokeniser of letters."""
    made = word_run(tmp_path / "words")
    manifest = made / "data" / "manifest.jsonl"
    summary = label(made, manifest, tmp_path / "out.jsonl", "confident", threshold=0.9)
    assert summary.labels["outside_vocabulary"] == 1  # the zebu
    assert summary.labels["taken_out"] > 0
    letters = Tokeniser(Vocabulary("abcdefghijklmnopqrstuvwxyz'23* "), "char", normaliser=Normaliser(squeeze=True))
    marked = 0
    for row in read_manifest(tmp_path / "out.jsonl"):
        if row["split"] != "train":
            continue
        words = row.partial("word")
        assert render(words.labels, "word", words.open) == row.text  # marks stand alone: no word is cut
        encoded = letters.encode(row.text, marked=True)
        read = "".join(
            "*" * gap + letters.decode([token]) for gap, token in zip(encoded.open, encoded.labels, strict=False)
        )
        read += "*" * encoded.open[-1]
        literal = row.text.replace("\\*", "*")
        assert read == literal
        assert sum(encoded.open) == sum(words.open)
        marked += any(words.open)
    assert marked


def test_spelled_words_are_as_sure_as_their_least_sure_letter() -> None:
    tokeniser = Tokeniser(Vocabulary(["the", "o", "##o", "x", "##x"]), "word", unknown="letters")
    tokens = [
        CompletedToken(token, 0, 0, known, share)
        for token, known, share in [(1, False, 0.5), (2, False, 1.0), (5, False, 0.25), (2, True, 1.0)]
    ]
    filled = fill(known_text(tokeniser, "o"), tokens, threshold=0.3, whole=False)
    assert (filled.text, filled.labels, filled.taken_out) == ("the * o", [0.5], 1)


def test_what_contradicts_a_piece_of_a_word_is_not_written() -> None:
    """However sure the run is: it is left, with the reason."""
    tokens = [CompletedToken(token, 0, 0, token != 2, 0.99) for token in (1, 2, 3)]
    tokeniser = Tokeniser(Vocabulary(["the", "quick", "fox"]), "word")
    for whole in (False, True):
        filled = fill(known_text(tokeniser, "the bro* fox"), tokens, threshold=0.0, whole=whole)
        assert (filled.text, filled.added, filled.labels, filled.taken_out) == ("the bro* fox", [], [], 1)
        (left,) = filled.left
        assert left == {"guess": "quick", "confidence": 0.99, "reason": "it does not agree with 'bro*'", "position": 7}
        assert fill(known_text(tokeniser, "the qui* fox"), tokens, threshold=0.0, whole=whole).text == "the quick fox"


def test_gaps_that_are_known_to_hold_something_are_counted(
    run: Path, partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a reading was refused, and where part of a word stands; a gap in which nothing was read is none."""

    def refuses(*arguments: Any, **options: Any) -> Filled:
        return Filled("1 * qu* 2", [], [{"guess": "", "position": 2}, {"guess": "", "position": 6}], [], 2)

    monkeypatch.setattr(_label, "fill", refuses)
    label(run, partial, tmp_path / "out.jsonl")
    assert {row["refused"] for row in read_manifest(tmp_path / "out.jsonl") if row["split"] == "train"} == {2}
    words = Tokeniser(Vocabulary(["the", "fox"]), "word")
    teacher = _label.Labeller([SimpleNamespace(tokeniser=words)], "keep-known", 0.0, {}, None, (0.0, 0.0))  # type: ignore[list-item]
    assert teacher._in_words("the * qu* *x (*) \\* *") == {8, 10}
    letters = replace(teacher, several=[SimpleNamespace(tokeniser=Tokeniser(Vocabulary("aqu"), "char"))])
    assert letters._in_words("qu*") == set()


def test_rows_that_need_no_student_to_guess(run: Path, partial: Path, tmp_path: Path) -> None:
    """Complete rows, and rows with more labels than frames, come out to the byte; what is outside of the vocabulary is kept."""
    texts = ["n\u00b0 11\\*", "1*" + "1" * 500, "e\u03011*\u00e9 2", "7*"]
    rows = [row.fields for row in read_manifest(partial) if row["split"] == "train"][: len(texts)]
    manifest = partial.with_name("strange.jsonl")
    write_manifest(manifest, [{**row, "text": text, "gaps": "marked"} for row, text in zip(rows, texts, strict=True)])
    summary = label(run, manifest, tmp_path / "out.jsonl", lm=None)
    after = list(read_manifest(tmp_path / "out.jsonl"))
    assert [row.text for row in after[:2]] == texts[:2]
    assert (after[0]["confidence"], after[0]["added"]) == (1.0, [])
    assert "source" not in after[1].fields
    assert (summary.done, summary.failed, summary.gaps["filled"]) == (
        3,
        1,
        sum("added" in row.fields and bool(row["added"]) for row in after),
    )
    for text, row in zip(texts[2:], after[2:], strict=True):
        assert re.fullmatch(".*".join(map(re.escape, text.split("*"))), row.text)
    assert summary.labels["outside_vocabulary"] == 7  # an accent that stands alone is joined first
    (failed,) = (json.loads(line) for line in (tmp_path / "out.failed.jsonl").read_text().splitlines())
    assert failed["reason"].endswith("smaller model.stride has more frames")
    with pytest.raises(DataError, match="reads next to nothing"):
        label(run, manifest, tmp_path / "out.jsonl", force=False)
    label(run, manifest, tmp_path / "plain.jsonl", "plain", force=False)


def read_all(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUT}


KILLED = """
import os, signal, sys
from starseq.jobs import _label, _stream
from starseq.jobs import pseudo as job
from starseq.jobs._where import Where
_stream._FEWEST_BLOCKS = 3
real, count = _label.Labeller._winner, []
def dies(*arguments):
    count.append(0)
    if len(count) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
_label.Labeller._winner = dies
job.pseudo(*sys.argv[1:], kind="confident", threshold=0.15, force=True, where=Where("cpu", workers=2))
"""


def test_a_killed_job_goes_on(run: Path, partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second block of three rows; what was written of a block is not taken for all of it."""
    monkeypatch.setattr(_stream, "_FEWEST_BLOCKS", 3)
    settings: dict[str, Any] = {"kind": "confident", "threshold": 0.15}
    label(run, partial, tmp_path / "whole" / "out.jsonl", **settings)
    target = tmp_path / "killed" / "out.jsonl"
    arguments = [sys.executable, "-c", KILLED, *map(str, (run, partial, target))]
    # Reads until nobody can write: workers that outlived their parent would hold the pipe.
    killed = subprocess.run(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=-1, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    hidden = target.with_name(".out.jsonl.part-1")
    lines = hidden.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1
    hidden.write_bytes(b"".join([*lines, b'[1, [{"done": {"row"']))  # as if in the middle of a write
    assert not target.exists()
    worked: list[int] = []
    real = _label.Labeller._winner
    monkeypatch.setattr(_label.Labeller, "_winner", lambda *arguments: (worked.append(0), real(*arguments))[1])
    summary = label(run, partial, target, **settings)
    assert len(worked) == summary.rows - 3
    assert read_all(target.parent) == read_all(tmp_path / "whole")
    assert sorted(path.name for path in target.parent.iterdir()) == sorted(OUT)


def stop_at(row: int, patch: pytest.MonkeyPatch) -> None:
    """As if somebody stopped the job when so many rows are under way."""
    real, begun = _label.Labeller._winner, list[int]()

    def stops(*arguments: Any) -> Any:
        begun.append(0)
        if len(begun) == row:
            raise KeyboardInterrupt
        return real(*arguments)

    patch.setattr(_label.Labeller, "_winner", stops)


def test_other_settings_begin_anew(run: Path, partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(KeyboardInterrupt):
            label(run, partial, tmp_path / "out.jsonl")
    label(run, partial, tmp_path / "out.jsonl", beta=1.0)
    label(run, partial, tmp_path / "fresh.jsonl", beta=1.0)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "fresh.jsonl").read_bytes()


def test_bad_files(run: Path, partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One raises with its line; with skip_bad it is listed, and the others get what they get without it."""
    monkeypatch.setattr(_stream, "_FEWEST_BLOCKS", 2)  # in the middle of a batch
    rows = [row.fields for row in read_manifest(partial)]
    good = partial.with_name("good.jsonl")
    write_manifest(good, rows[:4] + rows[5:])
    rows[4]["nbytes"] = 7
    bad = partial.with_name("bad-file.jsonl")
    write_manifest(bad, rows)
    with pytest.raises(DataError, match=r"bad-file\.jsonl, line 5: .*not an image"):
        label(run, bad, tmp_path / "out.jsonl")
    summary = label(run, bad, tmp_path / "out.jsonl", skip_bad=True)
    (failed,) = (json.loads(line) for line in (tmp_path / "out.failed.jsonl").read_text().splitlines())
    assert (summary.failed, failed["id"]) == (1, rows[4]["id"])
    label(run, good, tmp_path / "good.jsonl")
    texts = [[row.text for row in read_manifest(tmp_path / name)] for name in ("out.jsonl", "good.jsonl")]
    assert texts[0].pop(4) == rows[4]["text"]  # what was known of it is there
    assert texts[0] == texts[1]


def test_a_manifest_that_is_named_as_the_failures_would_be(run: Path, partial: Path, tmp_path: Path) -> None:
    for name in ("out.failed.jsonl", "out.summary.json"):
        manifest = partial.with_name(name)
        manifest.write_bytes(partial.read_bytes())
        with pytest.raises(DataError, match="this is the file that is read"):
            label(run, manifest, manifest.with_name("out.jsonl"))
        assert manifest.read_bytes() == partial.read_bytes()
        manifest.unlink()


def test_empty_readings_are_no_rows(tmp_path: Path) -> None:
    """A model that says blank and nothing else."""
    folder = make_run(tmp_path / "run", "data.drop=null", lines=3)
    made = runs.load(folder)
    last = [parameter for parameter in made.model.parameters() if parameter.shape == (11,)][-1]
    with torch.no_grad():
        last[0] = 1e4
    save_model(folder, made.model, step=1, log_penalty=-1.0, dev_error=None)
    manifest = folder / "data" / "manifest.jsonl"
    summary = label(folder, manifest, tmp_path / "whole" / "out.jsonl", "plain")
    assert (summary.done, summary.failed, summary.other) == (0, 3, 6)
    reasons = {json.loads(line)["reason"] for line in (tmp_path / "whole" / OUT[2]).read_text().splitlines()}
    assert reasons == {"nothing was read"}
    assert summary.to_dict()["confidence"]["mean"] is None


@pytest.fixture(scope="module")
def sevens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "sevens.arpa"
    estimate([["7"] * n for n in (3, 4, 5, 6)], path, order=3)
    return path


def test_language_models(run: Path, partial: Path, tmp_path: Path, sevens: Path) -> None:
    """A model that has seen nothing but 7s: by the search, and by rescoring, what is added are 7s. Weights may be tuned."""
    teacher = Path(shutil.copytree(run, tmp_path / "teacher"))
    manifest = teacher / "data" / "partial.jsonl"
    with pytest.raises(DataError, match="the weights of beam are not tuned"):
        label(teacher, manifest, tmp_path / "out.jsonl", lm=sevens)
    weights = {"lm": str(sevens), "alpha": 5.0, "beta": 5.0}
    (teacher / "tuned.json").write_text(
        json.dumps({"beam": weights, "alone": weights | {"lm": None, "beta": 0.0, "rescore": weights}})
    )

    def shares(kind: job.Kind, name: str, **settings: Any) -> tuple[float, dict[str, Any]]:
        label(teacher, manifest, tmp_path / f"{name}.jsonl", kind, splits=["train"], **settings)
        rows = [row for row in read_manifest(tmp_path / f"{name}.jsonl") if row["split"] == "train"]
        new = [character for row in rows for character in added(row)]
        return new.count("7") / len(new), rows[0]["source"]

    share, source = shares("keep-known", "completion", lm=sevens)
    assert share == 1
    assert (source["method"], source["alpha"], source["beta"]) == ("completion", 5.0, 5.0)
    assert source["lm"].startswith("sevens.arpa ")
    share, source = shares("plain", "beam", lm=sevens)
    assert (share, source["method"]) == (1, "beam")
    without, source = shares("plain", "free", beam=20)
    assert (source["method"], source["beam"], source["alpha"]) == ("beam", 20, 0.0)
    rescored, source = shares("plain", "rescored", beam=20, rescore=sevens)
    assert rescored > without
    assert (source["rescore"]["alpha"], source["rescore"]["nbest"]) == (5.0, 20)
    alone, _ = shares("keep-known", "alone")
    again, source = shares("keep-known", "again", rescore=sevens, beam=50)
    assert again > alone
    assert source["rescore"]["lm"].startswith("sevens.arpa ")


@pytest.mark.parametrize("kind", ["keep-known", "confident"])
def test_several_runs(run: Path, partial: Path, tmp_path: Path, kind: job.Kind) -> None:
    """Each is heard, with its own collapse and confidence, and none more than the other."""
    alone, both, turned = (tmp_path / name / "out.jsonl" for name in ("alone", "both", "turned"))
    other = make_run(tmp_path / "other", "data.drop=null", "criterion.name=ctc", lines=LINES, seed=1)
    settings: dict[str, Any] = {"kind": kind, "threshold": 0.15, "beam": 30}
    label(run, partial, alone, **settings)
    label(run, partial, both, also=[other], workers=2, **settings)
    label(other, partial, turned, also=[run], **settings)

    def rows(path: Path) -> list[Row]:
        return [row for row in read_manifest(path) if row["split"] == "train"]

    assert [row.text for row in rows(both)] == [row.text for row in rows(turned)]
    assert [[one["confidence"] for one in row["added"]] for row in rows(both)] == [
        [one["confidence"] for one in row["added"]] for row in rows(turned)
    ]
    assert [row.text for row in rows(both)] != [row.text for row in rows(alone)]
    source = rows(both)[0]["source"]
    assert (source["run"], [origin["run"] for origin in source["also"]]) == ("teacher", ["other"])
    assert source["also"][0]["model"] == hash_of(other / "model.safetensors")[:16]
    assert "also" not in rows(alone)[0]["source"]
    known = {row.id: row for row in read_manifest(partial)}
    assert all(contains(row.text.replace("*", ""), known[row.id]) for row in rows(both))


def test_several_runs_of_other_frames_stopped_and_rescored(
    run: Path, partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sevens: Path
) -> None:
    """The other one sees larger images. With other runs a job begins anew, with the same it goes on."""
    monkeypatch.setattr(_stream, "_FEWEST_BLOCKS", 4)
    other = make_run(tmp_path / "other", "data.drop=null", "data.reader.height=48", lines=LINES, seed=1)
    label(run, partial, tmp_path / "whole" / "out.jsonl", also=[other], beam=20)
    for also in ([], [other]):
        with monkeypatch.context() as patch:
            stop_at(8, patch)
            with pytest.raises(KeyboardInterrupt):
                label(run, partial, tmp_path / "parts" / "out.jsonl", also=also, beam=20)
    real, worked = _label.Labeller._winner, list[int]()
    monkeypatch.setattr(_label.Labeller, "_winner", lambda *arguments: (worked.append(0), real(*arguments))[1])
    summary = label(run, partial, tmp_path / "parts" / "out.jsonl", also=[other], beam=20)
    assert 0 < len(worked) < summary.rows
    assert read_all(tmp_path / "parts") == read_all(tmp_path / "whole")
    label(
        run, partial, tmp_path / "7.jsonl", also=[other], beam=20, rescore=sevens, rescore_alpha=5.0, rescore_beta=0.0
    )
    texts = [
        "".join(row.text for row in read_manifest(path))
        for path in (tmp_path / "7.jsonl", tmp_path / "whole" / "out.jsonl")
    ]
    assert texts[0].count("7") / len(texts[0]) > texts[1].count("7") / len(texts[1])


def test_several_runs_need_the_same_tokens(run: Path, partial: Path, tmp_path: Path, command: Any) -> None:
    other = make_run(tmp_path / "other", "data.drop=null", lines=1)
    options = (run, partial, "--device", "cpu", "-o", tmp_path / "out.jsonl", "--also", other)
    code, _, err = command(*options, "--kind", "plain")
    assert (code, err) == (2, "starseq: also: the kind 'plain' is what one run reads\n")
    (other / "tokens.txt").write_text((run / "tokens.txt").read_text().replace("9", "x"))
    code, _, err = command(*options, "--kind", "keep-known")
    assert (code, err) == (2, f"starseq: {other}: its tokens are not those of {run}\n")


def test_the_runs_own_manifest_keeps_its_holes(tmp_path: Path) -> None:
    """Labels that training dropped on the fly are not known here."""
    folder = make_run(tmp_path / "run", lines=6)  # which drops half of its labels
    manifest = folder / "data" / "manifest.jsonl"
    summary = label(folder, manifest, tmp_path / "out.jsonl")
    full = {row.id: row.text for row in read_manifest(manifest)}
    dropper = build.dropper(runs.load(folder).recipe)
    assert dropper is not None
    for row in read_manifest(tmp_path / "out.jsonl"):
        if row["split"] == "train":
            assert row["text_full"] == full[row.id]
            assert row["text_partial"] == dropper(Row({"id": row.id, "path": "", "text": full[row.id]})).row.text
        else:
            assert row.text == full[row.id]
    assert summary.to_dict()["errors"]["partial"]["characters"]["deletions"] > 0
    summary = label(folder, manifest, tmp_path / "dev.jsonl", splits=["dev"])
    assert {row["text_partial"] for row in read_manifest(tmp_path / "dev.jsonl") if row["split"] == "dev"} == {
        row.text for row in read_manifest(manifest) if row["split"] == "dev"
    }  # training drops nothing there
    other = Path(shutil.copy(manifest, folder / "data" / "other.jsonl"))
    summary = label(folder, other, tmp_path / "other.jsonl")
    known = sum(len(row.text) for row in read_manifest(other) if row["split"] == "train")
    assert summary.labels["known"] == known  # what another manifest says is known


@pytest.mark.parametrize(("kind", "criterion"), [("plain", "ctc"), ("keep-known", "ctc"), ("confident", "stc")])
def test_a_student_trains_on_it(run: Path, partial: Path, tmp_path: Path, kind: job.Kind, criterion: str) -> None:
    """The manifest lies outside of the corpus: data.root is the corpus, data.manifest says where it is."""
    target = tmp_path / "elsewhere" / "labels.jsonl"
    summary = label(run, partial, target, kind, threshold=0.15)
    where = (f"data.root={run / 'data'}", f"data.manifest={target}")
    student = load_recipe(
        "digits", [*SETTINGS, f"criterion.name={criterion}", *where, "trainer.max_steps=2", "trainer.eval_every=2"]
    )
    splits, normaliser = student.data.splits, student.text.normaliser
    rows = RunRows(
        target, build.reader(student), train=splits.train, dev=splits.dev, root=run / "data",
        count=lambda text: parse(normaliser(text), "char").labels,
    )  # fmt: skip
    # Stride 1: an untrained teacher repeats itself, and repeats need frames.
    tokeniser = build.tokeniser(student, rows.vocabulary())
    data = training_data(rows, tokeniser, output_lengths=lambda frames: frames, repeats=criterion == "ctc")
    assert len(data.train) == summary.done
    gaps = [data.train[i].open.any().item() for i in range(len(data.train))]
    assert any(gaps) == (kind == "confident")
    if kind == "confident":
        train(student, tmp_path / "student")
        (split,) = evaluate(tmp_path / "student", splits=["test"], where=CPU).splits
        assert len(split.readings) == sum(row["split"] == "test" for row in read_manifest(partial))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[Any, str, str]]:
    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["starseq", "pseudo", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code or 0, *capsys.readouterr()

    return call


def test_the_command(run: Path, partial: Path, tmp_path: Path, command: Any, sevens: Path) -> None:
    target = tmp_path / "out.jsonl"
    options = (run, partial, "--device", "cpu", "--workers", 0, "--kind", "confident", "--threshold", 0.15, "--force")
    code, printed, _ = command(*options, "-o", target)
    assert (code, "rows labelled" in printed) == (0, True)
    assert "below 0.15 taken out" in printed
    assert "pseudo labels: WER" in printed
    assert target.exists()
    words = tmp_path / "words.txt"
    words.write_text("7\n")
    for arguments, sentence in {
        ("--threshold", "90"): "threshold: 90.0 is not a confidence from 0 to 1",
        ("--alpha", "0.5"): "alpha: a weight of 0.5 needs a language model",
        ("--lexicon", str(words)): "lexicon: a transcript of the kind 'confident'",
        ("--split", "trian"): "no row of split 'trian' (there are dev, test, train)",
        ("--lm", str(tmp_path / "none.arpa"), "--alpha", "1", "--beta", "0"): "none.arpa: no such file",
        ("--lm", str(sevens)): "the weights of beam are not tuned: run `starseq tune`",
        ("--beam", "0"): "beam: 0 is less than 1",
    }.items():
        code, _, err = command(*options, "-o", tmp_path / "other.jsonl", *arguments)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err
        assert not (tmp_path / "other.jsonl").exists()
    code, _, err = command(*options, "-o", tmp_path / "other.jsonl", "--kind", "keep-known")
    assert (code, err) == (2, "starseq: --threshold is for --kind confident, not keep-known\n")
    code, _, err = command(*options, "-o", partial)
    assert (code, "this is the file that is read" in err) == (2, True)


def test_a_manifest_without_splits_is_labelled_as_a_whole(run: Path, partial: Path, tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.fields.items() if name != "split"} for row in read_manifest(partial)]
    for row in rows:
        del row["text"], row["text_full"]
    write_manifest(partial.with_name("untold.jsonl"), rows, labelled=False)
    summary = label(run, partial.with_name("untold.jsonl"), tmp_path / "out.jsonl", "plain")
    assert (summary.rows, summary.other) == (len(rows), 0)
    assert summary.to_dict()["errors"] == {}
    assert all(parse(row.text, "char", marked=True).labels for row in read_manifest(tmp_path / "out.jsonl"))
