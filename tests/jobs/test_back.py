"""`starseq back`: fillings go into the files that rows came from; all else of them stays; what is read again is the same."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.commands import Command

from starseq.corpora import alto as alto_module
from starseq.corpora import pagexml
from starseq.corpora._edit import Document, Filling, filled, filled_notation, fillings_of
from starseq.corpora._pages import Page
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Row, read_manifest, write_manifest
from starseq.decode.complete import CompletedToken
from starseq.jobs._fill import fill
from starseq.jobs._origins import gap_marks_of
from starseq.jobs.back import back
from starseq.jobs.prepare import prepare
from starseq.text.known import known_text
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

LETTERS = Tokeniser(Vocabulary("abcdefghijklmnopqrstuvwxyzéAS&<>\"'. "), "char", unknown="drop")
WORDS = Tokeniser(Vocabulary(["quick", "brown", "the", "fox", "a", "b", "*"]), "word", unknown="drop")

PAGE = "http://schema.primaresearch.org/PAGE/gts/pagecontent/"
BOX = '<Coords points="10,10 200,10 200,60 10,60"/><Baseline points="10,50 200,50"/>'


def completed(row: Row, texts: Sequence[str], tokeniser: Tokeniser = LETTERS, confidence: float = 0.75) -> Row:
    """The row as `complete` writes it, if these texts were read in its open gaps."""
    known = known_text(tokeniser, row.text, marked=row.marked)
    waiting, tokens = list(texts), list[CompletedToken]()
    for gap, is_open in enumerate(known.open):
        if is_open and waiting:
            new = waiting.pop(0).split() if tokeniser.unit == "word" else list(waiting.pop(0))
            tokens += [CompletedToken(tokeniser.vocabulary.index(one), 0, 1, False, confidence) for one in new]
        if gap < len(known.labels):
            tokens.append(CompletedToken(known.labels[gap], 0, 1, True, 1.0))
    done = fill(known, tokens, threshold=0.5, whole=True, gap_marks=gap_marks_of(row))
    marks = {} if done.gap_marks is None else {"gap_marks": done.gap_marks}
    return row.replace(text=done.text, text_partial=row.text, added=done.added, gaps="marked", **marks)


def page(*lines: str, version: str = "2019-07-15", head: str = '<?xml version="1.0" encoding="UTF-8"?>\n') -> str:
    body = "\n".join(lines)
    return (
        f'{head}<PcGts xmlns="{PAGE}{version}">\n<Metadata><Creator>me</Creator><Created>2020-01-01T00:00:00</Created>'
        "<LastChange>2020-01-01T00:00:00</LastChange></Metadata>\n"
        f'<Page imageFilename="p.png" imageWidth="300" imageHeight="100"><!-- kept --><TextRegion id="r">'
        f'<Coords points="1,1 299,1 299,99"/>\n{body}\n</TextRegion></Page></PcGts>\n'
    )


def page_line(id: str, text: str, attributes: str = "") -> str:
    return f'<TextLine id="{id}"{attributes}>{BOX}<TextEquiv><Unicode>{text}</Unicode></TextEquiv></TextLine>'


def alto(*lines: str, version: str = "4", tags: str = "") -> str:
    body = "\n".join(
        f'<TextLine ID="{id}" HPOS="10" VPOS="10" WIDTH="190" HEIGHT="50">{strings}</TextLine>'
        for id, strings in (line.split("|", 1) for line in lines)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<alto xmlns="http://www.loc.gov/standards/alto/ns-v{version}#">'
        f"<Description><MeasurementUnit>pixel</MeasurementUnit></Description>{tags}\n<Layout>"
        '<Page ID="P" PHYSICAL_IMG_NR="1" WIDTH="300" HEIGHT="100"><PrintSpace HPOS="0" VPOS="0" WIDTH="300" HEIGHT="100">'
        f'<TextBlock ID="B" HPOS="0" VPOS="0" WIDTH="300" HEIGHT="100">\n{body}\n</TextBlock></PrintSpace></Page></Layout></alto>'
    )


class Corpus:
    """A folder of one format: prepared, filled, put back, prepared again."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.folder, self.kind, self.options = folder, kind, options
        self.source, self.out = folder / "src", folder / "back"
        self.source.mkdir(exist_ok=True)

    def file(self, name: str, text: str | bytes) -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def image(self, name: str = "p.png") -> None:
        Image.new("L", (300, 100), 230).save(self.source / name)

    def sound(self, name: str) -> None:
        self.file(name, audio.encode(0.1 * torch.randn(1600), 16_000))

    def rows(self, source: Path | None = None) -> list[Row]:
        out = self.folder / f"rows-of-{(source or self.source).name}"
        prepare(self.kind, source or self.source, out, **self.options)
        return list(read_manifest(out / "manifest.jsonl"))

    def put_back(self, rows: Sequence[Row], **options: Any) -> Any:
        write_manifest(self.folder / "complete.jsonl", rows)
        return back(self.folder / "complete.jsonl", self.source, self.out, **options)

    def check_again(self, rows: Sequence[Row]) -> None:
        """What is read from the result is what `rows` say."""
        for path in self.source.rglob("*"):
            if path.is_file() and not (self.out / path.relative_to(self.source)).exists():
                shutil.copy(path, self.out / path.relative_to(self.source))
        again = self.rows(self.out)
        assert [(row.id, row.text, row.get("gaps")) for row in again] == [
            (row.id, row.text, row.get("gaps")) for row in rows
        ]


def test_page_xml(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "pagexml", marks="transkribus")
    corpus.image()
    tags = ' custom="readingOrder {index:0;} gap {offset:3; length:0;} person {offset:4; length:5;}"'
    source = corpus.file("p.xml", page(
        page_line("l1", " Ste [...] &amp; &#x41;XXX\n ", ' custom="unclear {offset:13; length:4;} x"'),
        page_line("l2", "the quick fox", tags),
        page_line("l3", "a &gt;struck&lt; b [?]"),
        page_line("l4", "nothing [?] here"),
    ))  # fmt: skip
    rows = corpus.rows()
    assert [row.text for row in rows] == ["Ste * & AXXX", "the* quick fox", "a * b *", "nothing * here"]
    done = [completed(rows[0], ["Anne"]), completed(rows[1], [" very"]), completed(rows[2], ["x", "\"y&'"]), rows[3]]
    result = corpus.put_back(done)
    assert (result.files, result.filled, result.bad) == (1, 3, 0)
    assert result.left == {"a person read something there, which stays": 1}
    wanted = source.read_text(encoding="utf-8")
    for old, new in (
        ("<Unicode> Ste [...] &amp; &#x41;XXX\n </Unicode>", "<Unicode> Ste Anne &amp; &#x41;XXX\n </Unicode>"),
        ("unclear {offset:13; length:4;} x", "unclear {offset:12; length:4;} x filled {offset:5; length:4; confidence:0.75;}"),
        ("<Unicode>the quick", "<Unicode>the very quick"),
        (" gap {offset:3; length:0;} person {offset:4;", " person {offset:9;"),
        ("length:5;}", "length:5;} filled {offset:3; length:5; confidence:0.75;}"),
        (" b [?]", " b &quot;y&amp;&apos;"),
        ('<TextLine id="l3"', '<TextLine id="l3" custom="filled {offset:13; length:4; confidence:0.75;}"'),
    ):  # fmt: skip
        assert wanted.count(old) == 1, old
        wanted = wanted.replace(old, new)
    assert (corpus.out / "p.xml").read_text(encoding="utf-8") == wanted  # and all else is the same
    listed = [json.loads(line) for line in (corpus.out / "filled.jsonl").read_text().splitlines()]
    assert listed[0] == {
        "file": "p.xml", "id": "p/l1", "start": 4, "end": 8, "text": "Anne", "confidence": 0.75,
        "text_before": "Ste [...] & AXXX",
    }  # fmt: skip


def test_words_and_regions_repeat_what_was_filled(tmp_path: Path) -> None:
    """Where they have the same text as the line; other texts stay, and so does a region that a comment cuts."""
    corpus = Corpus(tmp_path, "pagexml", marks="leiden")
    corpus.image()
    word = '<Word id="w{}"><Coords points="1,1 2,2 2,1"/><TextEquiv><Unicode>{}</Unicode></TextEquiv></Word>'
    equiv = "<TextEquiv><Unicode>{}</Unicode></TextEquiv>"
    lines = [
        ("l1", "the [...] fox", ("the", "[...]", "fox")), ("l2", "a q[?]k &amp; b", ("a", "q[?]k", "&amp;", "b")),
        ("l3", "the [...]", ("the", "other", "text")),
    ]  # fmt: skip
    made = []
    for id, text, words in lines:
        parts = "".join(word.format(f"{id}{n}", one) for n, one in enumerate(words))
        made.append(f'<TextLine id="{id}">{BOX}{parts}{equiv.format(text)}</TextLine>')
    region = equiv.format(" the [...] fox\na q[?]k &amp; b\r\nthe [...] ")
    corpus.file("p.xml", page(*made, region))
    corpus.file("q.xml", page(*made, region.replace("fox", "<!-- x -->fox")).replace("p.png", "p.png"))
    rows = corpus.rows()
    done = [
        completed(row, ["brown quick"] if "fox" in row.text else ["uic"] if "q" in row.text else ["x"]) for row in rows
    ]
    assert corpus.put_back(done).filled == 6
    for name in ("p.xml", "q.xml"):
        root = ElementTree.fromstring((corpus.out / name).read_text(encoding="utf-8"))
        texts = "{*}Word/{*}TextEquiv/{*}Unicode"
        assert [[text.text for text in found.iterfind(texts)] for found in root.iterfind(".//{*}TextLine")] == [
            ["the", "brown quick", "fox"], ["a", "quick", "&", "b"], ["the", "other", "text"],
        ]  # fmt: skip
    whole = ElementTree.parse(corpus.out / "p.xml").find(".//{*}TextRegion/{*}TextEquiv/{*}Unicode")
    assert whole is not None
    assert whole.text == " the brown quick fox\na quick & b\nthe x "
    assert "the [...] <!-- x -->fox\na q[?]k" in (corpus.out / "q.xml").read_text(encoding="utf-8")
    corpus.check_again(done)


def test_tags_move_with_their_words(tmp_path: Path) -> None:
    tags = "a {offset:0; length:2;} b {length:2; offset:5;} c {offset:0; length:7;} d {offset:3; length:1;} e {offset:5; length:0;}"
    document = Document(page(page_line("l", "ab[?]cd", f' custom="{tags}"')).encode(), "p.xml")
    (line,) = pagexml.read_page(document.root).lines
    pagexml.fill_line(document, line, [Filling(2, 5, "𝄞xyz", None)])
    (line,) = pagexml.read_page(Document(document.result(), "p.xml").root).lines
    assert line.get("custom") == (
        "a {offset:0; length:2;} b {length:2; offset:7;} c {offset:0; length:9;} d {offset:7; length:0;} e {offset:7; length:0;}"
    )


def test_a_filling_without_a_mark_is_before_what_follows() -> None:
    source = page(page_line("l", "\r\n abcd", ' custom="a {offset:2; length:2;} b {offset:4; length:2;}"'))
    document = Document(source.encode(), "p.xml")
    (line,) = pagexml.read_page(document.root).lines
    pagexml.fill_line(document, line, [Filling(2, 2, "xy", None)])
    assert document.result().decode() == source.replace("abcd", "abxycd").replace("b {offset:4;", "b {offset:6;")


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
@pytest.mark.parametrize("version", ["2010-03-19", "2013-07-15", "2019-07-15"])
def test_page_xml_is_read_again_as_it_was_filled(tmp_path: Path, version: str, codec: str) -> None:
    corpus = Corpus(tmp_path, "pagexml", gap=["XXX"])
    corpus.image()
    word = '<Word id="w{0}"><Coords points="1,1 2,1 2,2"/><TextEquiv><Unicode>{1}</Unicode></TextEquiv></Word>'
    words = "".join(word.format(*one) for one in enumerate(["é", "XXX", "fox "]))
    head = f'<?xml version="1.0" encoding="{codec.removesuffix("-sig")}"?>\r\n'
    text = page(
        page_line("l1", "é XXX\r\nthe &quot;XXX"),
        f'<TextLine id="l2">{BOX}{words}</TextLine>',
        version=version,
        head=head,
    )
    source = corpus.file("deep/p.xml", text.encode(codec))
    shutil.move(corpus.source / "p.png", corpus.source / "deep" / "p.png")
    rows = corpus.rows()
    assert [row.text for row in rows] == ['é * the "*', "é * fox"]
    done = [completed(rows[0], ["", " A&'"]), completed(rows[1], ["the", ""])]
    assert [row.text for row in done] == ["é * the \" A&'", "é the fox"]
    assert corpus.put_back(done).filled == 2
    result = (corpus.out / "deep" / "p.xml").read_bytes()
    assert result.decode(codec).startswith(head)
    assert ("confidence:0.75" in result.decode(codec)) == (version != "2010-03-19")
    corpus.check_again(done)
    assert corpus.put_back([row.replace(added=[]) for row in done]).filled == 0
    assert (corpus.out / "deep" / "p.xml").read_bytes() == source.read_bytes()  # nothing to put back: the same file


def test_alto(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "alto", marks="leiden")
    corpus.image()
    corpus.file("p.xml", alto(
        'a|<String ID="s1" CONTENT="the" CC="1 2 3"/><SP/><String ID="s2"  CONTENT="[...]" WC="0.1"/><String CONTENT="f"/>',
        'b|<String CONTENT="the q[?]k XXX" CC="x"/><HYP CONTENT="-"/>',
        'c|<String CONTENT="x"/><SP/><String CONTENT="??" TAGREFS="t2 t1"/>',
        'd|<String CONTENT="[3"/><SP/><String CONTENT="letters]"/><SP/><String CONTENT="[supplied]"/>',
        tags='<Tags><OtherTag ID="t1" LABEL="illegible"/><OtherTag ID="t2" LABEL="x"/></Tags>',
    ))  # fmt: skip
    rows = corpus.rows()
    assert [row.text for row in rows] == ["the * f", "the q*k *-", "x *", "* *"]
    done = [
        completed(rows[0], ["quick", ""]), completed(rows[1], ["uic", "a b"], confidence=0.6), completed(rows[2], ["y"]),
        completed(rows[3], ["the"]),
    ]  # fmt: skip
    result = corpus.put_back(done)
    assert (result.filled, sum(result.left.values())) == (4, 1)
    text = (corpus.out / "p.xml").read_text()
    for piece in (
        '<Tags><OtherTag ID="starseq-filled" TYPE="filled" LABEL="filled in by a machine"/><OtherTag ID="t1"',
        '<String ID="s1" CONTENT="the" CC="1 2 3"/>',
        '<String ID="s2"  CONTENT="quick" WC="0.75" CC="2 2 2 2 2" TAGREFS="starseq-filled"/>',
        '<String CONTENT="the quick a b" CC="0 0 0 0 0 4 4 4 0 0 4 4 4" TAGREFS="starseq-filled"/>',
        '<String CONTENT="y" TAGREFS="t2 starseq-filled" CC="2" WC="0.75"/>',
        '<String CONTENT="[3"/><SP/><String CONTENT="letters]"/>',
    ):
        assert piece in text
    corpus.check_again([*done[:3], rows[3]])
    root = ElementTree.fromstring(text)
    ids = {element.get("ID") for element in root.iter()}
    assert all(id in ids for element in root.iterfind(".//{*}String") for id in element.get("TAGREFS", "").split())


@pytest.mark.parametrize(("version", "tags", "where"), [
    ("4", "", "<Tags><OtherTag"), ("3", "<Tags/>", "<Tags><OtherTag"), ("2", "<Tags>\n</Tags>", "<Tags><OtherTag"), ("1", "", None),
])  # fmt: skip
def test_alto_declares_its_tag_once(tmp_path: Path, version: str, tags: str, where: str | None) -> None:
    corpus = Corpus(tmp_path, "alto", marks="leiden")
    corpus.image()
    corpus.file("p.xml", alto('a|<String CONTENT="a [?]"/>', 'b|<String CONTENT="[?]"/>', version=version, tags=tags))
    done = [completed(row, ["the"]) for row in corpus.rows()]
    assert corpus.put_back(done).filled == 2
    text = (corpus.out / "p.xml").read_text()
    assert text.count("<Tags>") == text.count("</Tags>") == text.count('ID="starseq-filled"') == (where is not None)
    assert text.count('WC="0.75"') == 1
    if where is not None:
        assert text.index("</Description>") < text.index(where) < text.index("<Layout>")
    corpus.check_again(done)


def test_what_a_person_corrected_is_not_marked_as_a_machines(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "alto", marks="leiden")
    corpus.image()
    tags = '<Tags><OtherTag ID="t1" LABEL="gap"/></Tags>'
    corpus.file("p.xml", alto('a|<String CONTENT="a"/><SP/><String CONTENT="?" TAGREFS="t1"/>', tags=tags))
    (row,) = corpus.rows()
    done = completed(row, ["the"])
    for one in done["added"]:
        del one["confidence"]
        del one["mark"]  # another program wrote the row, and kept its marks
    assert corpus.put_back([done.replace(gap_marks=row["gap_marks"])]).filled == 1
    assert '<SP/><String CONTENT="the"/></TextLine>' in (corpus.out / "p.xml").read_text()


def test_kaldi(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "kaldi", marks="speech", base=tmp_path / "src")
    for split, text in (("train", "u1  the <unk> fox\r\nu2 a  b\t* b \n\nu3 so\n"), ("dev", "v1 the fox\n")):
        corpus.file(f"{split}/text", text)
        ids = re.findall(r"[uv]\d", text)
        for id in ids:
            corpus.sound(f"{split}/{id}.wav")
        corpus.file(f"{split}/wav.scp", "".join(f"{id} {split}/{id}.wav\n" for id in ids))
    rows = {row.id: row for row in corpus.rows()}
    done = {**rows, "u1": completed(rows["u1"], ["quick"], WORDS), "u2": completed(rows["u2"], ["brown"], WORDS)}
    assert corpus.put_back(list(done.values())).filled == 2
    assert (corpus.out / "train" / "text").read_bytes() == b"u1  the quick fox\r\nu2 a  b\tbrown b \n\nu3 so\n"
    assert (corpus.out / "dev" / "text").read_bytes() == (corpus.source / "dev" / "text").read_bytes()
    corpus.options["base"] = corpus.out
    corpus.check_again(list(done.values()))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_table(tmp_path: Path, newline: str) -> None:
    corpus = Corpus(tmp_path, "table")
    lines = ["\ufeffid,path,text,note", 'a,1.wav,"the ""*"", fox",x', 'b,2.wav,the * ,"1,2"', "c,1.wav,no gap,*", ""]
    corpus.file("t.csv", newline.join(lines))
    corpus.sound("1.wav")
    corpus.sound("2.wav")
    rows = corpus.rows()
    done = [completed(rows[0], ["quick"]), completed(rows[1], ['a "b" c']), rows[2]]
    assert corpus.put_back(done).filled == 2
    wanted = newline.join([lines[0], 'a,1.wav,"the ""quick"", fox",x', 'b,2.wav,"the a ""b"" c ","1,2"', *lines[3:]])
    assert (corpus.out / "t.csv").read_bytes().decode() == wanted
    for row in done[:2]:
        del row.fields["gaps"]  # a text without marks says nothing of gaps
    corpus.check_again(done)


def test_tables_that_quote_nothing(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "table")
    corpus.file("t.tsv", 'path\ttext\tnote\n1.wav\tthe * fox\t"so" he\n')
    corpus.sound("1.wav")
    row = completed(Row({"id": "1", "path": "1.wav", "text": "the * fox"}), ['"A"'])
    assert corpus.put_back([row]).filled == 1
    assert (corpus.out / "t.tsv").read_text() == 'path\ttext\tnote\n1.wav\tthe "A" fox\t"so" he\n'


def test_tables_as_common_voice_has_them(tmp_path: Path) -> None:
    """Several tables with other names of columns, quotes that are characters, and parts of one recording."""
    corpus = Corpus(tmp_path, "table")
    train = corpus.file("train.tsv", 'client_id\tfile_name\tsentence\tstart\tend\nme\t1.wav\t"the * fox"\t0\t0.5\n\n')
    test = corpus.file("test.tsv", "path\tsentence\tbegin\n1.wav\tthe *\t0.5\n1.wav\t* fox\t0\n")
    corpus.file("1.wav", audio.encode(torch.zeros(8_000), 8_000))
    rows = {row.text: row for row in corpus.rows()}
    done = [completed(rows[text], ["quick"]) for text in ("the *", "* fox", '"the * fox"')]
    assert corpus.put_back(done).filled == 3
    assert (corpus.out / "train.tsv").read_text() == train.read_text().replace("*", "quick")
    assert (corpus.out / "test.tsv").read_text() == test.read_text().replace("*", "quick")


def test_open_everywhere(tmp_path: Path) -> None:
    """Fillings of a row without marks stand between its characters or words."""
    corpus = Corpus(tmp_path, "table")
    corpus.file("t.tsv", "path\ttext\n1.wav\tthe fox\n2.wav\tfox\n")
    corpus.sound("1.wav")
    corpus.sound("2.wav")
    rows = corpus.rows()
    for tokeniser, first, second in (
        (WORDS, ["the", "quick brown"], ["", "the"]),
        (LETTERS, ["A", "", "ab"], ["", "", "", " x"]),
    ):
        done = [completed(rows[0], first, tokeniser), completed(rows[1], second, tokeniser)]
        assert corpus.put_back(done).filled >= 3
        table = (corpus.out / "t.tsv").read_text().splitlines()
        assert table == ["path\ttext", f"1.wav\t{done[0].text}", f"2.wav\t{done[1].text}"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"line": "l9"}, "no line 'l9' in p.xml"),
        ({"page": "q"}, "no page q.xml in"),
        ({"page": "../q"}, "leads out of the root"),
        ({"page": None}, "does not say which page and line"),
        ({"text_source": "other"}, "the text is 'a [?] b' there, and not that of the row"),
        ({"added": [{"position": 2, "mark": {"start": 2}}]}, "its field 'added' does not read like"),
        ({"added": [{"position": 2, "text": "the"}]}, "its fillings do not say which marks they stand for"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, change: dict[str, Any], sentence: str, command: Command) -> None:
    corpus = Corpus(tmp_path, "pagexml", marks="tei")
    corpus.image()
    corpus.file("p.xml", page(page_line("l1", "a [?] b"), page_line("l2", "a [?] b")))
    rows = [completed(row, ["the"]) for row in corpus.rows()]
    rows = [rows[0], rows[1].replace(**change)]
    with pytest.raises(ManifestError, match=re.escape(f"{tmp_path / 'complete.jsonl'}, line 2: ")) as caught:
        corpus.put_back(rows)
    assert sentence in str(caught.value)
    assert not corpus.out.exists()
    done = command("back", tmp_path / "complete.jsonl", corpus.source, "-o", corpus.out, "--skip-bad")
    assert (done.code, done.err) == (0, "")
    assert "1 files, 1 gaps filled" in done.out
    assert "bad.jsonl: 1 bad rows" in done.out
    assert "<Unicode>a the b</Unicode>" in (corpus.out / "p.xml").read_text()


def test_sources_that_take_nothing(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "pagexml", marks="tei")
    corpus.image()
    evil = '<!DOCTYPE PcGts [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    corpus.file("p.xml", page(page_line("l1", "a [?]")))
    rows = corpus.rows()
    write_manifest(tmp_path / "complete.jsonl", rows)
    with pytest.raises(DataError, match="holds the files that are read"):
        back(tmp_path / "complete.jsonl", corpus.source, corpus.source)
    with pytest.raises(DataError, match="no such file or folder"):
        back(tmp_path / "complete.jsonl", tmp_path / "none", corpus.out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="neither PAGE-XML, ALTO, a table nor Kaldi's files"):
        back(tmp_path / "complete.jsonl", tmp_path / "empty", corpus.out)
    corpus.file("q.xml", page(page_line("l1", "a [?]")))
    corpus.file("p.xml", evil + page(page_line("l1", "a [?]"), head=""))
    with pytest.raises(ManifestError, match="declares a document type, which is refused"):
        corpus.put_back(rows)
    corpus.file("p.xml", page(page_line("l1", "<![CDATA[a [?]]]>")))
    with pytest.raises(ManifestError, match="holds a comment or the like"):
        corpus.put_back([completed(rows[0], ["the"])])
    corpus.file("p.xml", page(page_line("l1", "a [?]"), head='<?xml version="1.0" encoding="latin9000"?>'))
    with pytest.raises(DataError, match="not latin9000, as it says"):
        corpus.put_back(rows)


def test_notation_around_a_filling_stays() -> None:
    assert filled_notation(r"a\b \* * \\* c", [Filling(6, 7, "x*", 1.0)]) == (r"a\b \* x\* \\* c", [(6, 8)])
    row = Row({"id": "u", "path": "p", "text": "ab"})
    assert fillings_of(row, Counter()) == []
    row = row.replace(text_partial="a", added=[{"position": 1, "text": "c"}])
    with pytest.raises(DataError, match="'c' does not stand at 1 in its text"):
        fillings_of(row, Counter())
    assert Document(b"<a/>", "a").result() == b"<a/>"


written = st.sampled_from(["a", "é", "&amp;", "&lt;", "&#233;", "&#x1F600;", "𝄞", " ", "&quot;", "\n", "\r\n"])


@given(
    st.lists(written, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
    st.data(),
)
def test_any_text_takes_any_filling(characters: list[str], spans: list[tuple[int, int]], data: st.DataObject) -> None:
    """What is read from a line of PAGE-XML or ALTO afterwards is the text with its fillings, and tags are about the same words."""
    raw = "".join(characters)
    for kind in (pagexml, alto_module):
        line_break = raw if kind is pagexml else re.sub(r"\r?\n", " ", raw)
        xml = (
            page(page_line("l", line_break, ' custom="x {offset:0; length:1;}"'))
            if kind is pagexml
            else alto(f'l|<String CONTENT="{line_break}"/>', version="4")
        )
        dialect = kind.PAGE_XML if kind is pagexml else kind.ALTO
        document = Document(xml.encode(), "p.xml")
        (line,) = dialect.read_page(document.root).lines
        read = dialect.read_line(line, 0, Page(""))
        if isinstance(read, str):
            return
        fillings, done = [], 0
        for start, end in sorted(spans):
            if done <= start <= end <= len(read.text) and (start < end or start > done):
                text = data.draw(st.text(st.sampled_from("xé&<>\"' 𝄞"), min_size=1, max_size=3).filter(str.strip))
                fillings.append(Filling(start, end, f"({text})", 0.5))
                done = end
        assert dialect.fill_line(document, line, fillings) == fillings
        after = Document(document.result(), "p.xml")
        (again,) = dialect.read_page(after.root).lines
        result = dialect.read_line(again, 0, Page(""))
        assert not isinstance(result, str)
        assert result.text == filled(read.text, fillings)[0].strip()
        if kind is pagexml:
            whole = after.root.child("Page").child("TextRegion").child("TextLine")  # type: ignore[union-attr]
            units = whole.child("TextEquiv").child("Unicode").text.encode("utf-16-le")  # type: ignore[union-attr]
            tags = re.findall(r"filled \{offset:(\d+); length:(\d+);", again.get("custom"))
            assert [units[2 * int(at) : 2 * (int(at) + int(n))].decode("utf-16-le") for at, n in tags] == [
                one.text for one in fillings
            ]
