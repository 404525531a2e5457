"""TEI beside line images: what names an image, what is text and what a gap, and what is wrong by file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from starseq.corpora import load, reader_of
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row, read_manifest

prepare = load("tei")
HEAD = '<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><title>none</title></teiHeader>'


def picture(path: Path, width: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(images.encode(np.full((20, width), 200, np.uint8)))


def document(path: Path, body: str, facsimile: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEAD}<facsimile>{facsimile}</facsimile><text><body>\n{body}\n</body></text></TEI>")


def prepared(folder: Path, **options: bool) -> dict[str, Row]:
    prepare(folder, folder / "out", **options)
    return {row.id: row for row in read_manifest(folder / "out" / "manifest.jsonl")}


def test_what_names_an_image(tmp_path: Path) -> None:
    for i in range(1, 8):
        picture(tmp_path / "test" / "img" / f"{i}.png", 20 + i)
    picture(tmp_path / "test" / "a" / "l8.jpg")
    picture(tmp_path / "test" / "a_9.png")
    facsimile = """<graphic xml:id="g2" url="img/2.png"/><surface xml:id="s3"><graphic url="img/3.png"/></surface>
        <surface><graphic url="img/7.png"/><zone xml:id="z4"><graphic url="img/4.png"/></zone><zone xml:id="z5"/></surface>"""
    body = """before<p><lb facs="img/1.png"/>one <hi>and
        a half</hi><lb facs="#g2" n="2"/>two<lb facs="#s3"/>three</p><l facs="#z4" xml:id="four">four</l>not this
        <p><lb facs="#z5"/>no image <lb facs="img/6.png"/> <lb xml:id="l8"/>eight<pb/>nor this<lb n="9"/>nine</p>"""
    document(tmp_path / "test" / "a.xml", body, facsimile)
    assert reader_of(tmp_path) == "tei"
    report = prepare(tmp_path, tmp_path / "out")
    assert dict(report.left_out) == {"line without text": 1, "line without an image of its own": 1}
    rows = prepared(tmp_path)
    assert [(row.id, row.text, row.path) for row in rows.values()] == [
        ("test/a/1", "one and a half", "../test/img/1.png"),
        ("test/a/2", "two", "../test/img/2.png"),
        ("test/a/3", "three", "../test/img/3.png"),
        ("test/a/four", "four", "../test/img/4.png"),
        ("test/a/l8", "eight", "../test/a/l8.jpg"),
        ("test/a/9", "nine", "../test/a_9.png"),
    ]
    assert (rows["test/a/1"]["width"], rows["test/a/1"]["split"], rows["test/a/1"].marked) == (21, "test", False)


def test_what_is_text_and_what_a_gap(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    cases = {
        "a <gap reason='illegible'/> fox": "a * fox",
        "a<supplied>ll</supplied> <del>x</del><gap/> <gap/>b": "a*b",
        "<choice><abbr>Mr</abbr><expan>Mister</expan></choice> <choice><orig>u</orig><reg>v</reg></choice>": "Mr u",
        "m<ex>iste</ex>r<note>said</note> <unclear>x</unclear><add>y</add> 2 * 3": r"mr xy 2 \* 3",
    }
    for body, text in cases.items():
        document(tmp_path / "a.xml", f'<lb facs="1.png"/>{body}')
        (row,) = prepared(tmp_path).values()
        assert (row.text, row.marked) == (text, "*" in text.replace("\\*", ""))
    document(tmp_path / "a.xml", '<lb facs="1.png"/>whole<lb facs="1.png" n="2"/>with <gap/>')
    assert [row.get("gaps") for row in prepared(tmp_path).values()] == ["marked", "marked"]


def test_a_file_a_line(tmp_path: Path) -> None:
    picture(tmp_path / "b.png")
    document(tmp_path / "b.xml", "<p>one <gap/> <note>x</note>two</p>")
    (row,) = prepared(tmp_path).values()
    assert (row.id, row.text, row.path) == ("b", "one * two", "../b.png")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<lb facs="none.png"/>x', r"line 2: the image 'none\.png' is not under"),
        ('<lb facs="../../1.png"/>x', r"line 2: the image '\.\./\.\./1\.png' is not under"),
        ('<lb facs="http://x/1.png"/>x', r"line 2: the image http://x/1\.png is not on this disk"),
        ('<lb facs="#none"/>x', "line 2: facs names #none, which is not there"),
        ('<lb facs="bad.png"/>x', r"line 2: bad\.png: not an image"),
        ("<lb></p>", "line 2: not well-formed XML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    picture(tmp_path / "1.png")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.png").write_bytes(b"x")
    document(tmp_path / "in" / "a.xml", body)
    with pytest.raises(ManifestError, match=rf"a\.xml, {message}"):
        prepare(tmp_path / "in", tmp_path / "out")
    picture(tmp_path / "in" / "b.png")
    document(tmp_path / "in" / "b.xml", "<p>two</p>")
    report = prepare(tmp_path / "in", tmp_path / "out", skip_bad=True)
    assert (report.rows, report.bad) == (1, 1)


def test_no_entity_is_expanded(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "a.xml").write_text('<!DOCTYPE TEI [<!ENTITY x SYSTEM "/etc/passwd">]><TEI><text>&x;</text></TEI>')
    with pytest.raises(ManifestError, match="line 1: declares a document type, which is refused"):
        prepare(tmp_path, tmp_path / "out")
    assert reader_of(tmp_path) is None
    with pytest.raises(DataError, match="none: no such folder"):
        prepare(tmp_path / "none", tmp_path / "out")
