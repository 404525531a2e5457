"""Manifests: what passes through untouched, what is refused and in which words, and the real ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import (
    BadRow,
    IdSet,
    ManifestError,
    Row,
    bad_rows_beside,
    open_member,
    read_bytes,
    read_manifest,
    rebaser,
    refuse,
    row_problem,
    write_manifest,
)

GOOD = {"id": "u1", "path": "u1.wav", "text": "the fox"}
SHARED = Path(__file__).parents[3] / "shared" / "data"


def line(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode() + b"\n"


# --- what passes through ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
EXTRA = st.dictionaries(st.text().filter(lambda name: name.startswith("x")), JSON, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1), EXTRA), max_size=5))
def test_rows_round_trip_with_unknown_fields_in_order(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    path = tmp_path_factory.mktemp("manifest") / "m.jsonl"
    written = [{**extra, "text": text, **GOOD, "id": f"u{i}"} for i, (text, extra) in enumerate(rows)]
    for row, (text, _) in zip(written, rows, strict=True):
        row["text"] = text
    assert write_manifest(path, written) == len(written)
    read = [list(row.fields.items()) for row in read_manifest(path)] if written else []
    assert read == [list(row.items()) for row in written]


def test_line_numbers_blank_lines_and_windows_files(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + line(id="a") + b"\r\n" + line(id="b").replace(b"\n", b"\r\n") + line(id="c")[:-1]
    )
    assert [(row.id, row.line) for row in read_manifest(path)] == [("a", 1), ("b", 3), ("c", 4)]


def test_reading_is_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(line() + b"not JSON\n")
    rows = read_manifest(path)
    assert next(rows).id == "u1"
    with pytest.raises(ManifestError):
        next(rows)


def test_progress_counts_bytes_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, ({**GOOD, "id": f"u{i}"} for i in range(2500)))
    calls: list[tuple[int, int | None]] = []
    assert sum(1 for _ in read_manifest(path, progress=lambda done, total: calls.append((done, total)))) == 2500
    size = path.stat().st_size
    assert len(calls) == 3
    assert calls[-1] == (size, size)
    assert calls == sorted(calls)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "u1"\n', "not JSON: expecting ',' delimiter in column 12"),
        (b'{"id": "u1", "path": "u1.wa', "the file ends in the middle of this line, after 27 bytes"),
        (b'{"id": "u\xe9"}\n', "not UTF-8: byte 0xe9 in column 10"),
        (b"[1, 2]\n", "not a JSON object but a list"),
        (b"null\n", "not a JSON object but null"),
        (b'{"x": NaN}\n', "not JSON: NaN is no number that JSON can hold"),
        (b'{"x": -1e999}\n', "not JSON: -1e999 is no number that JSON can hold"),
        (b"[" * 100_000 + b"\n", "not JSON: "),
        (line(text="\ud800"), "holds half of a surrogate pair"),
        (b'{"path": "u1.wav", "text": "a"}\n', "field 'id' is missing"),
        (b'{"id": "u1", "text": "a"}\n', "field 'path' is missing"),
        (b'{"id": "u1", "path": "u1.wav"}\n', "field 'text' is missing"),
        (line(id=""), "field 'id' is empty"),
        (line(text=""), "field 'text' is empty"),
        (line(text=None), "field 'text' must be text, not null"),
        (line(id=7), "field 'id' must be text, not a number"),
        (line(path=["a"]), "field 'path' must be text, not a list"),
        (line(text=True), "field 'text' must be text, not true or false"),
        (line(text_full=3), "field 'text_full' must be text, not a number"),
        (line(split={}), "field 'split' must be text, not an object"),
        (line(gaps="all"), "field 'gaps' must be \"marked\" or absent, not 'all'"),
        (line(sampling_rate=0), "field 'sampling_rate' must be a number above 0, not 0"),
        (line(duration=-1.5), "field 'duration' must be a number above 0, not -1.5"),
        (line(duration="2s"), "field 'duration' must be a number above 0, not '2s'"),
        (line(width=True), "field 'width' must be a number above 0, not True"),
        (line(offset=0), "field 'archive' is missing: a member of an archive has 'archive', 'offset' and 'nbytes'"),
        (line(offset=0, archive="a.tar"), "field 'nbytes' is missing"),
        (line(archive="a.tar", nbytes=1), "field 'offset' is missing"),
        (line(offset=-1, nbytes=1, archive="a.tar"), "field 'offset' must be a whole number from 0, not -1"),
        (line(offset=0, nbytes=0, archive="a.tar"), "field 'nbytes' must be a whole number from 1, not 0"),
        (line(offset=0.5, nbytes=1, archive="a.tar"), "field 'offset' must be a whole number from 0, not 0.5"),
        (line(offset=True, nbytes=1, archive="a.tar"), "field 'offset' must be a whole number from 0, not True"),
        (line(offset=0, nbytes=1, archive=""), "field 'archive' must be a file name, not ''"),
        (line(start=-1), "field 'start' must be seconds from 0, not -1"),
        (line(start="1"), "field 'start' must be seconds from 0, not '1'"),
        (line(start=1, end=1), "field 'end' must be seconds behind 'start', 1, not 1"),
        (line(end=None), "field 'end' must be seconds behind 'start', 0, not null"),
        (line(start=1, end=3, duration=3600), "field 'duration' is 3600, but 'end' - 'start' is 2"),
        (line(channel=0.5), "field 'channel' must be a whole number from 0, not 0.5"),
        (line(channel=True), "field 'channel' must be a whole number from 0, not True"),
        (line(id="u0"), "id 'u0' was used before"),
    ],
)
def test_a_bad_row_is_one_sentence_with_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(line(id="u0") + content)
    with pytest.raises(ManifestError) as caught:
        list(read_manifest(path))
    assert str(caught.value).startswith(f"{path}, line 2: {message.split(': ')[0]}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

    # The same row, skipped: the reason is kept, and reading goes on.
    path.write_bytes(line(id="u0") + content.removesuffix(b"\n") + b"\n" + line(id="last"))
    bad: list[BadRow] = []
    assert [row.id for row in read_manifest(path, on_bad=bad.append)] == ["u0", "last"]
    assert [(row.file, row.line) for row in bad] == [(str(path), 2)]


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_manifest(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"m.jsonl: the manifest is empty"):
        list(read_manifest(path))


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_manifest(tmp_path / "none.jsonl"))


def test_an_unlabelled_manifest_needs_no_text() -> None:
    assert row_problem({"id": "u1", "path": "p"}) == "field 'text' is missing"
    assert row_problem({"id": "u1", "path": "p"}, labelled=False) is None
    assert row_problem({**GOOD, "text": ""}, labelled=False) is None
    assert row_problem({**GOOD, "text": 3}, labelled=False) == "field 'text' must be text, not a number"


def test_the_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, [GOOD])
    for rows, message in (
        ([{**GOOD, "text": ""}], "line 1: not written, field 'text' is empty"),
        ([GOOD, GOOD], "line 2: not written, id 'u1' was used before"),
    ):
        with pytest.raises(ManifestError, match=message):
            write_manifest(path, rows)
    assert [row.fields for row in read_manifest(path)] == [GOOD]


def test_bad_rows_go_to_a_file_with_the_reason(tmp_path: Path) -> None:
    with bad_rows_beside(tmp_path / "out.jsonl", True) as bad:
        assert bad is not None
        bad(BadRow("m.jsonl", 3, "not UTF-8", "caf\\xe9 \ud800"))
        refuse("m.jsonl", Row(GOOD, 4), "corrupt audio", bad)
        assert bad.rows == 2
    first, second = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert (first["file"], first["line"], first["reason"]) == ("m.jsonl", 3, "not UTF-8")
    assert (second["reason"], json.loads(second["raw"])) == ("corrupt audio", GOOD)
    # An old list of bad rows does not stay beside a run that had none.
    with bad_rows_beside(tmp_path / "out.jsonl", True):
        pass
    assert (tmp_path / "bad.jsonl").read_text() == ""


def test_bad_rows_and_the_result_need_two_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose another"), bad_rows_beside(tmp_path / "bad.jsonl", True):
        pass
    with bad_rows_beside(tmp_path / "bad.jsonl", False) as nothing:
        assert nothing is None
    with pytest.raises(ManifestError, match=r"m.jsonl, line 4: corrupt audio"):
        refuse("m.jsonl", Row(GOOD, 4), "corrupt audio")


def test_an_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(ManifestError("m.jsonl", 3, "is bad")))
    assert (str(error), error.line) == ("m.jsonl, line 3: is bad", 3)


# --- ids --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=2)))
def test_a_set_of_ids_is_a_set(ids: list[str]) -> None:
    ours, theirs = IdSet(), set[str]()
    for id in ids:
        assert ours.add(id) == (id not in theirs)
        theirs.add(id)
    assert len(ours) == len(theirs)


def test_ids_stay_found_while_the_table_grows() -> None:
    ids = IdSet()
    assert all(ids.add(f"u{i}") for i in range(20_000))
    assert not any(ids.add(f"u{i}") for i in range(20_000))
    # 8 bytes a row in a table at least a quarter full.
    assert ids._table.itemsize * len(ids._table) <= 4 * 8 * 20_000


def test_one_set_for_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_manifest(tmp_path / f"{name}.jsonl", [GOOD])
    ids = IdSet()
    list(read_manifest(tmp_path / "a.jsonl", ids=ids))
    with pytest.raises(ManifestError, match=r"b.jsonl, line 1: id 'u1' was used before"):
        list(read_manifest(tmp_path / "b.jsonl", ids=ids))


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "marked", "gaps"),
    [
        ({"text": "a b"}, False, (True, True, True)),
        ({"text": "a * b"}, True, (False, True, False)),
        ({"text": "a b", "gaps": "marked"}, True, (False, False, False)),
        ({"text": r"a \* b"}, False, (True, True, True, True)),
    ],
)
def test_which_gaps_are_open(fields: dict[str, str], marked: bool, gaps: tuple[bool, ...]) -> None:
    row = Row({**GOOD, **fields})
    assert row.marked == marked
    assert row.partial("word").open == gaps


# --- members ----------------------------------------------------------------------------------------------------------


def test_files_and_members_of_archives(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    (tmp_path / "u1.wav").write_bytes(b"sound")
    member = Row({**GOOD, "archive": "a.tar", "offset": 2, "nbytes": 8})
    for row, content in ((Row(GOOD), b"sound"), (member, b"23456789")):
        assert read_bytes(row, tmp_path) == content
        with open_member(row, tmp_path) as file:
            assert file.read() == content


def test_parts_of_files_and_of_members(tmp_path: Path) -> None:
    left = torch.linspace(-0.5, 0.5, 8_000)
    data = audio.encode(torch.stack((left, -left), dim=1), 8_000, subtype="FLOAT")
    (tmp_path / "r.wav").write_bytes(data)
    (tmp_path / "a.tar").write_bytes(b"01" + data + b"0" * 100)
    for place in ({}, {"archive": "a.tar", "offset": 2, "nbytes": len(data)}):
        row = Row({**GOOD, "path": "r.wav", **place})
        assert read_bytes(row, tmp_path) == data
        for part, expected in (
            ({"start": 0.25, "end": 0.5, "channel": 1}, -left[2_000:4_000]),
            ({"end": 0.5, "channel": 0}, left[:4_000]),
            ({"start": 0.75, "channel": 0}, left[6_000:]),
            ({"channel": 1}, -left),
            ({"start": 0.25, "end": 0.5}, torch.zeros(2_000)),
        ):
            found = audio.decode(read_bytes(row.replace(**part), tmp_path), rate=None)
            assert torch.equal(found, expected)
        with pytest.raises(DataError, match=r"^r\.wav: there is nothing from 2 s to 3 s, for it has 1 s"):
            read_bytes(row.replace(start=2, end=3), tmp_path)
    with open_member(Row({**GOOD, "archive": "a.tar", "offset": 2, "nbytes": 10}), tmp_path) as file:
        assert (file.seek(-4, 2), file.read(2), file.tell(), file.read(), file.read()) == (
            6,
            data[6:8],
            8,
            data[8:10],
            b"",
        )


def test_how_long_a_row_is() -> None:
    assert Row({"duration": 2.5, "start": 1, "end": 4}).seconds == 2.5
    assert Row({"start": 1, "end": 4}).seconds == 3.0
    assert Row({"end": 4}).seconds == 4.0
    assert Row({"start": 1}).seconds is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "none.wav"}, "none.wav: no such file"),
        ({"path": "empty.wav"}, "empty.wav: the file is empty"),
        ({"path": "."}, r"\.: not a regular file"),
        ({"path": "../u1.wav"}, "'../u1.wav' leads out of the root"),
        ({"archive": "none.tar", "offset": 0, "nbytes": 1}, "none.tar: no such file"),
        ({"archive": "a.tar", "offset": 2, "nbytes": 9}, "a.tar: bytes 2 to 11 lie past its end at 10"),
        ({"archive": "a.tar", "offset": 10, "nbytes": 10**18}, "lie past its end at 10"),
        ({"archive": "/etc/passwd", "offset": 0, "nbytes": 1}, "leads out of the root"),
    ],
)
@pytest.mark.parametrize("read", [read_bytes, open_member])
def test_members_that_cannot_be_read(
    tmp_path: Path, fields: dict[str, Any], message: str, read: Callable[..., Any]
) -> None:
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    (tmp_path / "empty.wav").touch()
    with pytest.raises(DataError, match=message):
        read(Row({**GOOD, **fields}), tmp_path)


def test_paths_follow_a_manifest_to_another_folder(tmp_path: Path) -> None:
    for name in ("corpus", "runs/one"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "corpus/u1.wav").write_bytes(b"sound")
    (tmp_path / "corpus/a.tar").write_bytes(b"0123")
    rebase = rebaser(tmp_path / "corpus/m.jsonl", tmp_path / "runs/one/m.jsonl")
    member = {**GOOD, "archive": "a.tar", "offset": 1, "nbytes": 2}
    assert read_bytes(rebase(Row(GOOD)), tmp_path / "runs/one", tmp_path) == b"sound"
    assert read_bytes(rebase(Row(member)), tmp_path / "runs/one", tmp_path) == b"12"
    # Only what is read moves: the member's name stays a name.
    assert rebase(Row(member)).path == "u1.wav"
    assert rebaser(tmp_path / "corpus/m.jsonl", tmp_path / "corpus/n.jsonl")(Row(GOOD)).fields is GOOD


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"), [("hooker-en", 6855), ("librispeech-7h", 3657), ("audiomnist-strings", 2413)]
)
def test_every_real_row_is_good_and_its_member_is_there(name: str, rows: int) -> None:
    manifest = SHARED / name / "manifest.jsonl"
    if not manifest.exists():
        pytest.skip(f"no {name} in shared/data")
    count = 0
    for row in read_manifest(manifest):
        assert len(read_bytes(row, manifest.parent)) == row["nbytes"]
        assert not row.marked
        count += 1
    assert count == rows


def test_literal_stars_of_the_real_lines_are_no_gaps() -> None:
    manifest = SHARED / "hooker-en" / "manifest.jsonl"
    if not manifest.exists():
        pytest.skip("no hooker-en in shared/data")
    starred = [row for row in read_manifest(manifest) if "*" in row.text]
    assert len(starred) == 2
    for row in starred:
        assert "*" in row.partial("char").labels
        assert "*" in row["raw"]
