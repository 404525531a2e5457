"""The jobs on manifests: each row goes where it should, and goes whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Command

from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_manifest, write_manifest
from starseq.jobs.manifest import Condition, filter_manifest, merge, split, statistics, validate
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary


def make(path: Path, count: int = 100, **fields: Any) -> Path:
    rows = (
        {"id": f"{path.stem}{i}", "path": "p", "text": r"a * \* b", "speaker": i % 10, "duration": 1.0 + i, **fields}
        for i in range(count)
    )
    write_manifest(path, rows)
    return path


def lines(*paths: Path) -> list[bytes]:
    return sorted(line for path in paths for line in path.read_bytes().splitlines())


def test_validate_reads_to_the_end(tmp_path: Path) -> None:
    path = make(tmp_path / "m.jsonl", 30)
    path.write_bytes(path.read_bytes() + b"no\n" * 25)
    result = validate(path, show=20)
    assert (result.rows, result.bad, len(result.first)) == (30, 25, 20)
    assert result.first[0].line == 31


def test_validate_reads_files(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"sound")
    path = tmp_path / "m.jsonl"
    write_manifest(path, [{"id": f"u{i}", "path": p, "text": "a"} for i, p in enumerate(("p", "missing", "../p"))])
    assert (validate(path).bad, validate(path, root=tmp_path.parent).bad) == (1, 0)
    result = validate(path, files=True)
    assert (result.rows, result.bad) == (1, 2)
    assert result.first[0].reason == "missing: no such file"
    assert "leads out of the root" in result.first[1].reason


def test_validate_finds_characters_outside_the_alphabet(tmp_path: Path) -> None:
    path = make(tmp_path / "m.jsonl", 3)
    assert validate(path, tokeniser=Tokeniser(Vocabulary("ab *"), "char")).bad == 0
    result = validate(path, tokeniser=Tokeniser(Vocabulary("a *"), "char"))
    assert result.bad == 3
    assert result.first[0].reason == "character 'b', number 6 of the text, is not in the vocabulary"


def test_statistics_count_what_is_there(tmp_path: Path) -> None:
    result = statistics(make(tmp_path / "m.jsonl", split="train"))
    assert (result.rows, result.marked, result.splits) == (100, 100, {"train": 100})
    assert (result.words.low, result.words.high) == (3, 3)
    assert (result.numbers["duration"].low, result.numbers["duration"].total) == (1.0, 5050.0)
    assert set(result.characters) == set("ab *")
    assert (result.gaps, result.with_gaps) == (100, 100)


def test_gaps_are_counted_and_selected(tmp_path: Path, command: Command) -> None:
    texts = ["a", r"a \* b", "a * b", "* a *"]
    path = tmp_path / "m.jsonl"
    write_manifest(path, [{"id": text, "path": "p", "text": text} for text in texts])
    assert (statistics(path).gaps, statistics(path).with_gaps, statistics(path).marked) == (3, 2, 2)
    assert "gaps        3, in 2 rows\n" in command("manifest", "stats", path).out
    for condition, kept in {
        "gaps>0": texts[2:],
        "gaps=0": texts[:2],
        "gaps >= 2": texts[3:],
        "gaps!=1": [*texts[:2], texts[3]],
    }.items():
        assert command("manifest", "filter", path, tmp_path / "o.jsonl", "--where", condition).code == 0
        assert [row.text for row in read_manifest(tmp_path / "o.jsonl")] == kept
    with pytest.raises(DataError, match="no row has the field 'gaps'"):  # which says nothing of how many
        filter_manifest(path, tmp_path / "o.jsonl", [Condition.parse("gaps=marked")])


def test_filter_keeps_rows_untouched(tmp_path: Path) -> None:
    source, target = make(tmp_path / "m.jsonl"), tmp_path / "out.jsonl"
    result = filter_manifest(source, target, [Condition.parse("duration<=10"), Condition.parse("speaker!=3")])
    assert (result.kept, result.left_out, result.bad) == (9, 91, 0)
    assert set(lines(target)) < set(lines(source))


@pytest.mark.parametrize(
    ("text", "kept"),
    [("duration > 99.5", 1), ("duration>=99", 2), ("id=m7", 1), ("duration<2", 1), ("duration<0", 0)],
)
def test_conditions(tmp_path: Path, text: str, kept: int) -> None:
    assert filter_manifest(make(tmp_path / "m.jsonl"), tmp_path / "o.jsonl", [Condition.parse(text)]).kept == kept


@pytest.mark.parametrize("text", ["durations<2", "none!=1"])
def test_a_field_that_no_row_has_is_a_mistake(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        DataError, match=r"m\.jsonl: no row has the field '(durations|none)' \(there are duration, .*text"
    ):
        filter_manifest(make(tmp_path / "m.jsonl"), tmp_path / "o.jsonl", [Condition.parse(text)])
    assert not (tmp_path / "o.jsonl").exists()


def test_no_good_row_misses_no_field(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("no\n")
    result = filter_manifest(tmp_path / "m.jsonl", tmp_path / "out.jsonl", [Condition.parse("a=1")], skip_bad=True)
    assert (result.kept, result.bad) == (0, 1)


def test_filter_does_not_replace_what_it_reads(tmp_path: Path) -> None:
    path = make(tmp_path / "m.jsonl")
    with pytest.raises(DataError, match="this is the file that is read"):
        filter_manifest(path, tmp_path / "." / "m.jsonl", [])


def test_bad_conditions(tmp_path: Path) -> None:
    for text in ("", "duration", "=3", "a == 3 b <"[:2]):
        with pytest.raises(DataError, match="does not read FIELD=VALUE"):
            Condition.parse(text)
    with pytest.raises(ManifestError, match="line 1: field 'duration' is a number here, and 'long' is not"):
        filter_manifest(make(tmp_path / "m.jsonl"), tmp_path / "o.jsonl", [Condition.parse("duration<long")])


def test_split_at_random_is_a_partition_of_about_the_shares(tmp_path: Path) -> None:
    source = make(tmp_path / "m.jsonl", 2000)
    result = split(source, tmp_path, {"train": 8, "dev": 1, "test": 1})
    merge([tmp_path / f"{name}.jsonl" for name in result.parts], tmp_path / "all.jsonl")
    without = [re.sub(rb', "split": "\w+"', b"", line) for line in lines(tmp_path / "all.jsonl")]
    assert without == lines(source)
    assert result.parts["train"] / 2000 == pytest.approx(0.8, abs=0.05)
    assert result.parts["dev"] / 2000 == pytest.approx(0.1, abs=0.04)


def test_parts_at_random_are_the_splits_of_their_rows(tmp_path: Path) -> None:
    """So merged they are one manifest again, which `train` takes."""
    source = make(tmp_path / "m.jsonl", 60)
    split(source, tmp_path / "parts", {"train": 0.5, "dev": 0.5})
    for part in ("train", "dev"):
        assert {row["split"] for row in read_manifest(tmp_path / "parts" / f"{part}.jsonl")} == {part}


def test_split_depends_on_the_row_alone(tmp_path: Path) -> None:
    source = make(tmp_path / "m.jsonl", 200)
    split(source, tmp_path / "all", {"a": 0.5, "b": 0.5})
    source.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[100:]))
    split(source, tmp_path / "half", {"a": 0.5, "b": 0.5})
    assert set(lines(tmp_path / "half/a.jsonl")) < set(lines(tmp_path / "all/a.jsonl"))


def test_split_keeps_speakers_together(tmp_path: Path) -> None:
    split(make(tmp_path / "m.jsonl"), tmp_path, {"a": 0.5, "b": 0.5}, by="speaker")
    speakers = [{row["speaker"] for row in read_manifest(tmp_path / f"{name}.jsonl")} for name in "ab"]
    assert not speakers[0] & speakers[1]


def test_split_by_a_field(tmp_path: Path) -> None:
    source = make(tmp_path / "m.jsonl")
    assert split(source, tmp_path / "by", by="speaker").parts == {str(i): 10 for i in range(10)}
    with pytest.raises(ManifestError, match="line 1: field 'split', by which rows are split, is missing"):
        split(source, tmp_path / "by")
    with pytest.raises(ManifestError, match=r"line 1: 'a \* .* cannot be the name of a part"):
        split(source, tmp_path / "by", by="text")
    with pytest.raises(DataError, match="field 'id' has over 100 values"):
        split(make(tmp_path / "n.jsonl", 101), tmp_path / "ids", by="id")


@pytest.mark.parametrize("name", ["../escape", "/tmp/x", "", ".hidden", "bad"])
def test_parts_cannot_escape_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be the name of a part"):
        split(make(tmp_path / "m.jsonl"), tmp_path / "by", {name: 1.0})
    assert not (tmp_path / "by").exists()


def test_shares_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"part 'a' must have a share above 0, not 0\.0"):
        split(make(tmp_path / "m.jsonl"), tmp_path, {"a": 0.0})


def test_merge_joins_in_order_and_watches_ids(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one.jsonl", 3), make(tmp_path / "two.jsonl", 2)
    done: list[tuple[int, int | None]] = []
    result = merge([one, two], tmp_path / "out.jsonl", progress=lambda *call: done.append(call))
    assert result.rows == 5
    assert (tmp_path / "out.jsonl").read_bytes() == one.read_bytes() + two.read_bytes()
    size = (tmp_path / "out.jsonl").stat().st_size
    assert done[-1] == (size, size)
    with pytest.raises(ManifestError, match=r"one.jsonl, line 1: id 'one0' was used before"):
        merge([one, two, one], tmp_path / "out.jsonl")
    assert merge([one, two, one], tmp_path / "out.jsonl", skip_bad=True).bad == 3


def test_unlabelled_manifests_pass_through_every_job(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, [{"id": "u1", "path": "p", "split": "train"}], labelled=False)
    assert validate(path, labelled=False).rows == 1
    assert statistics(path, labelled=False).rows == 1
    assert merge([path], tmp_path / "a.jsonl", labelled=False).rows == 1
    assert filter_manifest(path, tmp_path / "b.jsonl", [], labelled=False).kept == 1
    assert split(path, tmp_path / "c", labelled=False).parts == {"train": 1}
    assert validate(path).bad == 1
