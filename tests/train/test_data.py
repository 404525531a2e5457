"""The data of a run: dropping on the fly, what is left out, what is kept in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.strided import strided

from starseq.data.dataset import LineReader
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row, read_manifest, write_manifest
from starseq.jobs.drop import drop
from starseq.text.normalise import Normaliser
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary
from starseq.train import data as data_module
from starseq.train.data import LabelledSet, RunRows, TrainingData, training_data

DIGITS = Tokeniser(Vocabulary("0123456789"), "char")
LINE = {"path": "a.png", "text": "12", "width": 80, "height": 32}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.corpus(tmp_path_factory.mktemp("digits"))


def rows_of(manifest: Path, train: str = "train", dev: str | None = None, root: Path | None = None) -> RunRows:
    return RunRows(manifest, LineReader(), train=[train], dev=[dev] if dev else [], root=root)


def test_dropping_on_the_fly_is_what_starseq_drop_does(root: Path, tmp_path: Path) -> None:
    dropper = Dropper(FixedDrop(0.7), unit="char", seed=3, keep_text=True)
    result = drop(root / "manifest.jsonl", tmp_path / "partial.jsonl", dropper)
    there = LabelledSet(rows_of(tmp_path / "partial.jsonl", root=root.parent), DIGITS)
    here = LabelledSet(rows_of(root / "manifest.jsonl"), DIGITS, dropper=dropper)
    assert len(here) == len(there)
    assert here.pruned > 0
    assert here.kept < here.labels
    assert result.pruned >= here.pruned
    for i in range(len(here)):
        assert torch.equal(here[i].labels, there[i].labels)
        assert here[i].reference == there[i].reference  # the full text
        assert len(here[i].labels) < len(here[i].reference) or here[i].open.all()


def test_a_cached_item_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = LabelledSet(rows_of(root / "manifest.jsonl", train="dev"), DIGITS, cache=True)
    first = [data[i] for i in range(len(data))]
    monkeypatch.setattr(data, "_data", lambda row: pytest.fail("read again"))
    assert all(data[i] is first[i] for i in range(len(data)))


def test_filling_the_cache_by_workers_gives_the_same(root: Path) -> None:
    plain = LabelledSet(rows_of(root / "manifest.jsonl", train="dev"), DIGITS)
    filled = LabelledSet(rows_of(root / "manifest.jsonl", train="dev"), DIGITS, cache=True)
    filled.fill(workers=1)
    assert filled._items is not None
    assert len(filled._items) == len(filled)
    for i in range(len(plain)):
        assert plain[i].id == filled[i].id
        assert torch.equal(plain[i].x, filled[i].x)
        assert torch.equal(plain[i].labels, filled[i].labels)


def test_a_bad_file_is_named_when_workers_fill_the_cache(root: Path, tmp_path: Path) -> None:
    rows = [{"id": "a", "path": "gone.png", "text": "1", "split": "dev", "width": 40, "height": 32}]
    write_manifest(tmp_path / "m.jsonl", rows)
    with pytest.raises(ManifestError, match=r"m\.jsonl, line 1: gone\.png: no such file"):
        LabelledSet(rows_of(tmp_path / "m.jsonl", train="dev"), DIGITS, cache=True).fill(workers=1)


def test_rows_that_do_not_fit_are_excluded_and_named(root: Path) -> None:
    def data(stride: int, repeats: bool = False) -> tuple[int, tuple[str, ...], str]:
        made = training_data(
            rows_of(root / "manifest.jsonl", dev="dev"),
            DIGITS,
            output_lengths=strided(stride),
            stride=stride,
            repeats=repeats,
        )
        assert all(made.train.row(i).id not in made.report.too_long for i in range(len(made.train)))
        return len(made.train), made.report.too_long, str(made.report)

    assert data(4)[:2] == (30, ())
    rows, too_long, sentence = data(22)
    assert 0 < rows == 30 - len(too_long)
    assert too_long[0] in sentence
    assert "more labels than frames" in sentence
    assert re.search(r"; data\.reader\.height=48 data\.reader\.max_width=900 leaves room for", sentence)
    assert len(data(22, repeats=True)[1]) >= len(too_long)
    with pytest.raises(DataError, match=r"too little is left to train on; 30 of 30 rows \(100 %\) excluded"):
        data(1000)


def test_a_split_that_is_not_there(root: Path) -> None:
    with pytest.raises(
        DataError, match=r"no row is left for the splits tran, data\.splits\.train \(there are dev, test, train\)"
    ):
        rows_of(root / "manifest.jsonl", train="tran")


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        (["test"], None),
        (["tset"], "no row of data.splits.test, tset; there are rows of test, which nothing reads"),
        ([], None),
    ],
)
def test_a_misspelt_test_split_is_said(root: Path, test: list[str], sentence: str | None) -> None:
    made = training_data(
        rows_of(root / "manifest.jsonl", dev="dev"),
        DIGITS,
        test=test,
        output_lengths=strided(4),
        stride=4,
        repeats=False,
    )
    assert ("data.splits.test" in str(made.report)) == (sentence is not None)
    assert sentence is None or sentence in str(made.report)


@pytest.mark.parametrize("more", [[], [{"id": "b"}]])
def test_no_row_to_test_on_is_no_mistake(more: list[dict[str, str]], tmp_path: Path) -> None:
    rows = [{**LINE, **row} for row in ({"id": "a", "split": "train"}, *more)]
    write_manifest(tmp_path / "m.jsonl", rows)
    made = training_data(
        rows_of(tmp_path / "m.jsonl"),
        DIGITS,
        test=["test"],
        output_lengths=strided(4),
        stride=4,
        repeats=False,
    )
    assert made.report.unnamed == ()
    assert "data.splits.test" not in str(made.report)


@pytest.mark.parametrize("change", [{"text": "1*"}, {"text": "2"}, {"id": "b"}])
def test_the_digest_is_of_ids_labels_and_gaps(change: dict[str, str], tmp_path: Path) -> None:
    def digest(name: str, **fields: str) -> str:
        write_manifest(tmp_path / name, [{**LINE, "id": "a", "split": "train", **fields}])
        return LabelledSet(rows_of(tmp_path / name), DIGITS).digest

    assert digest("one.jsonl") == digest("same.jsonl") != digest("other.jsonl", **change)


def test_dev_is_what_has_a_complete_text(root: Path, tmp_path: Path) -> None:
    """A text with a hole would count what is read right as an error."""

    def data(change: Callable[[int], dict[str, str]]) -> TrainingData:
        rows = read_manifest(root / "manifest.jsonl")
        changed = (row.replace(**change(i)) if row["split"] == "dev" else row for i, row in enumerate(rows))
        write_manifest(root / "holes.jsonl", changed)
        return training_data(
            rows_of(root / "holes.jsonl", dev="dev"),
            DIGITS,
            output_lengths=strided(4),
            stride=4,
            repeats=False,
        )

    every = data(lambda i: {}).report
    half = data(lambda i: {"text": "1 * 2"} if i % 2 else {})
    assert half.dev is not None
    assert 0 < half.report.dev_incomplete == every.dev_rows - len(half.dev)
    assert f"{half.report.dev_incomplete} rows of dev left out, for their text is not complete" in str(half.report)
    assert data(lambda i: {"text": "1 * 2", "text_full": "1 3 2"}).report == every
    with pytest.raises(DataError, match=r"no row of the splits dev has a complete text .* data\.splits\.dev=\[\]"):
        data(lambda i: {"text": "1 * 2"})


def test_a_label_outside_the_vocabulary_names_its_line(root: Path) -> None:
    few = Tokeniser(Vocabulary("01234"), "char")
    with pytest.raises(
        ManifestError, match=r"manifest\.jsonl, line \d+: character '\d', number \d+ of the text, .*text\.unknown=drop"
    ):
        LabelledSet(rows_of(root / "manifest.jsonl"), few)


def test_the_vocabulary_of_a_manifest(tmp_path: Path) -> None:
    rows = [("a", "THE FOX", "train"), ("b", "THE EXTRAORDINARY", "train"), ("c", "DOG", "dev")]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"id": i, "path": i, "text": t, "split": s}) + "\n" for i, t, s in rows))
    assert len(list(read_manifest(path))) == 3
    lower = Normaliser(case="lower")
    words = RunRows(path, LineReader(), train=["train"], count=lambda text: lower(text).split())
    assert words.vocabulary(max_letters=10).tokens == ("<blank>", "the", "fox")
    assert len(RunRows(path, LineReader(), train=["train", "dev"], count=list).vocabulary(5)) == 6


def test_a_manifest_is_read_once_and_a_row_encoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows are left out: those of 22 frames a label."""
    opened, encoded = [], []
    encode, read = Tokeniser.encode, data_module.read_manifest
    monkeypatch.setattr(
        Tokeniser, "encode", lambda self, text, **how: encoded.append(text) or encode(self, text, **how)
    )
    monkeypatch.setattr(data_module, "read_manifest", lambda path: opened.append(path) or read(path))
    rows = rows_of(root / "manifest.jsonl", dev="dev")
    made = training_data(rows, DIGITS, output_lengths=strided(22), stride=22, repeats=True)
    assert len(opened) == 1
    assert len(encoded) == len(made.train) + len(made.report.too_long) == 30
    assert made.report.too_long


def test_rows_that_are_left_out_leave_the_others_in_their_place(root: Path) -> None:
    whole = LabelledSet(rows_of(root / "manifest.jsonl"), DIGITS)
    ids, sizes = [whole.row(i).id for i in range(len(whole))], whole.sizes.tolist()
    labels, kept = whole.labels, len(whole.row(2).text)
    whole.leave_out([2])
    assert [whole.row(i).id for i in range(len(whole))] == ids[:2] + ids[3:]
    assert whole.sizes.tolist() == sizes[:2] + sizes[3:]
    assert whole.labels == labels - kept
    assert whole[2].id == ids[3]


def test_the_first_rows_are_looked_at_before_the_rest_is_read(tmp_path: Path) -> None:
    good = [json.dumps({**LINE, "id": str(i), "split": "train"}) for i in range(8)]
    (tmp_path / "m.jsonl").write_text("\n".join([*good, "no row"]) + "\n")

    def look(first: list[Row]) -> None:
        raise DataError(f"{len(first)} rows of another kind")

    with pytest.raises(DataError, match="8 rows of another kind"):
        RunRows(tmp_path / "m.jsonl", LineReader(), train=["train"], look=look)
