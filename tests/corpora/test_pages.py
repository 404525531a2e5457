"""PAGE-XML and ALTO: lines found, cut out, straightened; XML that must not be trusted."""

import io
import json
import math
import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from starseq.corpora import load
from starseq.corpora._lines import straighten
from starseq.corpora._xml import parse_xml
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest
from starseq.data.split import split_groups
from starseq.jobs.prepare import prepare

PAGE = "http://schema.primaresearch.org/PAGE/gts/pagecontent/"
ALTO = "http://www.loc.gov/standards/alto/ns-"
INK, PAPER = 20, 230


def page_image(folder, name="p1.png", size=(600, 300), angle=0.0) -> list[tuple[float, float]]:
    """A page with a row of ten bars that stand on a line from (60, 200) at `angle`; gives the line's two ends."""
    image = Image.new("L", size, PAPER)
    draw = ImageDraw.Draw(image)
    c, s = math.cos(angle), math.sin(angle)
    at = lambda u, v: (60 + u * c - v * s, 200 + u * s + v * c)  # noqa: E731
    for k in range(10):
        draw.polygon([at(40 * k + 10, 0), at(40 * k + 20, 0), at(40 * k + 20, -30), at(40 * k + 10, -30)], fill=INK)
    draw.rectangle((0, 0, 20, 20), fill=INK)  # something that is not of the line
    image.save(folder / name)
    return [at(0, 0), at(410, 0)]


def outline(ends, up=40.0, down=10.0):
    (x0, y0), (x1, y1) = ends
    length = math.hypot(x1 - x0, y1 - y0)
    nx, ny = -(y1 - y0) / length, (x1 - x0) / length
    corners = [(x0, y0, -up), (x1, y1, -up), (x1, y1, down), (x0, y0, down)]
    return [(x + nx * d, y + ny * d) for x, y, d in corners]


def pairs(points) -> str:
    return " ".join(f"{x:.0f},{y:.0f}" for x, y in points)


def page_xml(ends, *, version="2019-07-15", image="p1.png", text="ten * bars", size=(600, 300), extra="") -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<PcGts xmlns="{PAGE}{version}">
 <Page imageFilename="{image}" imageWidth="{size[0]}" imageHeight="{size[1]}"><TextRegion id="r">
  <TextLine id="l1"><Coords points="{pairs(outline(ends))}"/><Baseline points="{pairs(ends)}"/>
   <Word id="w"><Coords points="0,0 1,1"/><TextEquiv><Unicode>wrong</Unicode></TextEquiv></Word>
   <TextEquiv index="1"><Unicode>second choice</Unicode></TextEquiv>
   <TextEquiv index="0"><Unicode>{text}</Unicode></TextEquiv></TextLine>
  <TextLine id="l2"><Coords points="1,1 9,1 9,9"/><TextEquiv><Unicode> </Unicode></TextEquiv></TextLine>
  {extra}
 </TextRegion></Page></PcGts>"""


def only_line(out) -> tuple[dict, np.ndarray]:
    (row,) = read_manifest(out / "manifest.jsonl")
    return row.fields, np.asarray(Image.open(io.BytesIO(read_bytes(row, out))))


def bars(pixels: np.ndarray) -> int:
    """How many separate dark stretches a level cut through the middle of the bars meets."""
    dark = pixels[25] < 128
    return int((dark[1:] & ~dark[:-1]).sum())


@pytest.mark.parametrize("version", ["2010-03-19", "2013-07-15", "2019-07-15"])
@pytest.mark.parametrize("angle", [0.0, 0.2, -0.15])
def test_page_lines_are_cut_and_straightened(tmp_path, version, angle):
    (tmp_path / "src" / "page").mkdir(parents=True)
    ends = page_image(tmp_path / "src", angle=angle)  # the image above the XML, as Transkribus exports
    (tmp_path / "src" / "page" / "p1.xml").write_text(page_xml(ends, version=version))
    report = load("pagexml")(tmp_path / "src", tmp_path / "out", dev=0.0, test=0.0)
    assert report.rows == 1
    assert report.left_out == {"line without text": 1}
    row, pixels = only_line(tmp_path / "out")
    assert row["text"] == r"ten \* bars"  # a literal star, not a gap
    assert row["id"] == "page/p1/l1"
    assert row["split"] == "train"
    assert pixels.shape == (row["height"], row["width"])
    assert abs(row["width"] - 410) <= 3
    assert abs(row["height"] - 50) <= 3
    assert bars(pixels) == 10
    assert pixels[43:].min() > 180  # below the baseline, paper: it is level
    assert pixels[:6].min() > 180


def test_page_2010_points_and_no_baseline(tmp_path):
    ends = page_image(tmp_path)
    xml = page_xml(ends).replace(
        f'<Coords points="{pairs(outline(ends))}"/>',
        "<Coords>" + "".join(f'<Point x="{x:.0f}" y="{y:.0f}"/>' for x, y in outline(ends)) + "</Coords>",
    )
    (tmp_path / "p1.xml").write_text(xml.replace(f'<Baseline points="{pairs(ends)}"/>', ""))
    notes = load("pagexml")(tmp_path, tmp_path / "out").notes  # and none about --root: the lines are in the archive
    assert notes == ["1 lines have no baseline: they are taken to be level"]
    assert bars(only_line(tmp_path / "out")[1]) == 10


@pytest.mark.parametrize("version", ["v2#", "v3#", "v4#"])
def test_alto_lines(tmp_path, version):
    ends = page_image(tmp_path, angle=0.1 if version == "v4#" else 0.0)
    corners = np.array(outline(ends))
    (x, y), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    shape = f'<Shape><Polygon POINTS="{pairs(outline(ends)).replace(",", " ")}"/></Shape>' if version == "v4#" else ""
    baseline = pairs(ends) if version == "v4#" else "200"
    (tmp_path / "p1.xml").write_text(f"""<alto xmlns="{ALTO}{version}">
 <Description><MeasurementUnit>pixel</MeasurementUnit>
  <sourceImageInformation><fileName>file:///somewhere/else/p1.png</fileName></sourceImageInformation></Description>
 <Layout><Page WIDTH="600" HEIGHT="300"><PrintSpace><TextBlock>
  <TextLine ID="a" HPOS="{x}" VPOS="{y}" WIDTH="{right - x}" HEIGHT="{bottom - y}" BASELINE="{baseline}">{shape}
   <String CONTENT="ten"/><SP/><String CONTENT="ba"/><HYP CONTENT="-"/></TextLine>
  <TextLine ID="b" HPOS="1" VPOS="1" WIDTH="5" HEIGHT="5"/>
 </TextBlock></PrintSpace></Page></Layout></alto>""")
    report = load("alto")(tmp_path, tmp_path / "out")
    row, pixels = only_line(tmp_path / "out")
    assert row["text"] == "ten ba-"
    assert report.left_out == {"line without text": 1}
    assert bars(pixels) == 10
    assert pixels[44:].min() > 180


def test_alto_in_tenths_of_millimetres(tmp_path):
    page_image(tmp_path)
    tenths = 254 / 300  # at 300 dpi
    box = {"HPOS": 60, "VPOS": 160, "WIDTH": 410, "HEIGHT": 50}
    attributes = " ".join(f'{name}="{value * tenths:.2f}"' for name, value in box.items())
    page = f'WIDTH="{600 * tenths:.2f}" HEIGHT="{300 * tenths:.2f}"'
    (tmp_path / "p1.xml").write_text(
        f"<alto><Description><MeasurementUnit>mm10</MeasurementUnit></Description><Layout><Page {page}>"
        f'<TextLine ID="a" {attributes}><String CONTENT="x"/></TextLine></Page></Layout></alto>'
    )
    load("alto")(tmp_path, tmp_path / "out")
    row, pixels = only_line(tmp_path / "out")
    assert abs(row["width"] - 410) <= 2
    assert bars(pixels) == 10


def test_a_bent_line_becomes_straight():
    x = np.arange(500)
    base = 100 + 30 * np.sin(x / 80)
    page = np.full((200, 500), PAPER, np.uint8)
    for column, y in zip(x, base, strict=True):
        page[int(y) - 3 : int(y) + 1, column] = INK  # a stroke along the baseline
    points = list(zip(x[20:480:10].tolist(), base[20:480:10].tolist(), strict=True))
    polygon = [(a, b - 30) for a, b in points] + [(a, b + 20) for a, b in points[::-1]]
    line = straighten(Image.fromarray(page), polygon, points)
    rows = [np.flatnonzero(line[:, column] < 128) for column in range(15, line.shape[1] - 15)]
    centres = np.array([r.mean() for r in rows])
    assert centres.max() - centres.min() < 4  # it went up and down by 60 pixels on the page
    assert line.shape[1] > 460  # as long as the arc, not as its chord


def test_baseline_drawn_from_the_right_stays_upright(tmp_path):
    ends = page_image(tmp_path)
    image = Image.open(tmp_path / "p1.png")
    forwards, backwards = (straighten(image, outline(ends), points) for points in (ends, ends[::-1]))
    assert np.array_equal(forwards, backwards)


@pytest.mark.parametrize(
    ("polygon", "message"),
    [
        ([(1, 1)], "1 points"),
        ([(5, 5), (5, 5), (5, 5)], "no area"),
        ([(-50, -50), (-10, -50), (-10, -10)], "no area"),
        ([(900, 10), (990, 10), (990, 90)], "no area"),
        ([(0, 0), (90_000, 0), (90_000, 90)], "90000 x 90 pixels"),
    ],
)
def test_impossible_outlines(polygon, message):
    with pytest.raises(DataError, match=message):
        straighten(Image.new("L", (600, 300), PAPER), polygon)


def test_document_types_are_refused():
    laughs = b'<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
    outside = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'
    for evil in (laughs, outside):
        with pytest.raises(ManifestError, match=r"p\.xml, line 1: declares a document type, which is refused"):
            parse_xml(evil, "p.xml")
    with pytest.raises(ManifestError, match=r"p\.xml, line 2: not well-formed XML"):
        parse_xml(b"<a>\n<b></a>", "p.xml")
    with pytest.raises(ManifestError, match="nested more than 200 deep"):
        parse_xml(b"<a>" * 300, "p.xml")


def test_images_outside_the_root_are_not_read(tmp_path):
    (tmp_path / "src").mkdir()
    ends = page_image(tmp_path, "secret.png")
    (tmp_path / "src" / "p1.xml").write_text(page_xml(ends, image="../secret.png"))
    with pytest.raises(ManifestError, match=r"page image '\.\./secret\.png' is not under"):
        load("pagexml")(tmp_path / "src", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_bad_pages_and_lines_are_skipped_with_their_place(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    ends = page_image(source)
    bad_line = '<TextLine id="l3"><Coords points="1,x 2,3"/><TextEquiv><Unicode>a</Unicode></TextEquiv></TextLine>'
    flat = '<TextLine id="l4"><Coords points="1,1 1,1 1,1"/><TextEquiv><Unicode>a</Unicode></TextEquiv></TextLine>'
    (source / "a.xml").write_text(page_xml(ends, extra=bad_line))
    (source / "b.xml").write_text(page_xml(ends, extra=flat))
    (source / "c.xml").write_text("<PcGts><Page")
    (source / "d.xml").write_text(page_xml(ends, size=(600, 900)))
    (source / "e.xml").write_text("<html/>")
    with pytest.raises(ManifestError, match=r"a\.xml, line"):
        load("pagexml")(source, tmp_path / "out")
    report = load("pagexml")(source, tmp_path / "out", skip_bad=True)
    assert report.rows == 2
    assert report.left_out["XML file that is not PAGE-XML (root element html)"] == 1
    bad = [json.loads(line) for line in (tmp_path / "out" / "bad.jsonl").read_text().splitlines()]
    places = {(row["file"].rpartition("/")[2], row["line"]): row["reason"] for row in bad}
    assert set(places) == {("a.xml", 9), ("b.xml", 9), ("c.xml", 1), ("d.xml", 1)}
    assert "no area" in places["b.xml", 9]
    assert "600 x 900 there, but its image is 600 x 300 pixels" in places["d.xml", 1]


def test_splits_by_folder_else_by_page(tmp_path):
    for folder in ("train", "val", "test", "pages"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        ends = page_image(tmp_path / "src" / folder)
        (tmp_path / "src" / folder / "p1.xml").write_text(page_xml(ends))
        if folder == "pages":
            for number, lines in ((2, 1), (3, 2), (4, 6)):
                more = page_xml(ends).replace('<TextLine id="l1">', '<TextLine id="more">').split("<TextRegion")[1]
                line = more[more.index("<TextLine") : more.index("</TextLine>") + len("</TextLine>")]
                extra = "".join(line.replace("more", f"more{n}") for n in range(lines - 1))
                (tmp_path / "src" / folder / f"p{number}.xml").write_text(page_xml(ends, image="p1.png", extra=extra))
    load("pagexml")(tmp_path / "src", tmp_path / "out", dev=0.0, test=0.6)
    splits = {row["page"]: row["split"] for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert {page: split for page, split in splits.items() if not page.startswith("pages")} == {
        "train/p1": "train", "val/p1": "dev", "test/p1": "test",
    }  # fmt: skip
    held = [row for row in read_manifest(tmp_path / "out" / "manifest.jsonl") if row["page"].startswith("pages")]
    assert len(held) == 10
    assert 4 <= sum(row["split"] == "test" for row in held) <= 7  # of the lines, whatever the pages have


def test_splits_hold_their_shares_of_the_lines():
    draw = random.Random(1)
    for seed in range(20):
        sizes = {f"page-{n}": draw.randint(20, 160) for n in range(30)}
        found = split_groups(sizes, {"test": 0.1, "dev": 0.05}, seed=seed)
        shares = {
            name: sum(sizes[page] for page in sizes if found[page] == name) / sum(sizes.values())
            for name in found.values()
        }
        assert abs(shares["test"] - 0.1) < 0.04
        assert abs(shares["dev"] - 0.05) < 0.04
    assert set(split_groups({"a": 9, "b": 9, "c": 9}, {"test": 0.1, "dev": 0.05}).values()) == {"train"}  # too few
    assert split_groups({}, {"dev": 0.1}) == {}


def test_an_empty_split_is_said(tmp_path):
    (tmp_path / "src").mkdir()
    ends = page_image(tmp_path / "src")
    for name in "ab":
        (tmp_path / "src" / f"{name}.xml").write_text(page_xml(ends))
    notes = prepare("pagexml", tmp_path / "src", tmp_path / "out").notes
    assert notes == [
        "no row is in the split dev or test: the corpus is too small for its shares, or names other splits"
    ]
    assert prepare("pagexml", tmp_path / "src", tmp_path / "out", dev=0.0, test=0.0).notes == []


def test_all_that_is_bad_is_counted_and_no_folder_is_left(tmp_path):
    (tmp_path / "src").mkdir()
    ends = page_image(tmp_path / "src")
    for name, text in (
        ("a", page_xml(ends)),
        ("b", "<PcGts"),
        ("c", page_xml(ends, image="none.png")),
        ("d", "<PcGts"),
    ):
        (tmp_path / "src" / f"{name}.xml").write_text(text)
    with pytest.raises(
        ManifestError, match=r"b\.xml, line 1: not well-formed .*; 2 more are bad: --skip-bad lists them"
    ):
        prepare("pagexml", tmp_path / "src", tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("pagexml", tmp_path / "src", tmp_path / "deep" / "out", skip_bad=True, progress=stop)
    assert not (tmp_path / "deep").exists()


def test_marks_of_page_xml_and_of_its_tags(tmp_path):
    (tmp_path / "src").mkdir()
    ends = page_image(tmp_path / "src")
    tags = "readingOrder {index:0;} gap {offset:5; length:0; extent:2 letters;} unclear {offset:6; length:4; continued:true;}"
    xml = page_xml(ends, text="  ten bars XXX &lt;s").replace("<TextLine id=", f'<TextLine custom="{tags}" id=', 1)
    (tmp_path / "src" / "p1.xml").write_text(xml)  # offsets count the white space at its beginning
    report = prepare("pagexml", tmp_path / "src", tmp_path / "out", marks="transkribus", unclear="gap", gap=["XXX"])
    row, _ = only_line(tmp_path / "out")
    assert (row["text"], row["text_source"]) == ("ten* * * *s", "ten bars XXX <s")
    assert row["gap_marks"] == [
        {"start": 3, "end": 3, "mark": 'gap extent="2 letters"', "least": 2, "most": 2, "unit": "char"},
        {"start": 4, "end": 8, "mark": 'unclear continued="true"', "holds": "bars"},
        {"start": 9, "end": 12, "mark": "XXX"},
        {"start": 13, "end": 14, "mark": "<", "holds": "<"},
    ]
    assert (row["gaps"], row["page"], row["line"]) == ("marked", "p1", "l1")
    assert report.unruled == {"<": 1}
    assert {name: (mark.action, mark.count) for name, mark in report.marks.items() if mark.action == "gap"} == {
        "tag gap": ("gap", 1), "--gap XXX": ("gap", 1), "no rule": ("gap", 1),
    }  # fmt: skip
    plain = prepare("pagexml", tmp_path / "src", tmp_path / "plain")
    assert only_line(tmp_path / "plain")[0]["text"] == "ten bars XXX <s"
    assert plain.unruled["XXX"] == 1
    assert "read as characters, though they look like" in str(plain)


def test_marks_of_alto_tags(tmp_path):
    page_image(tmp_path)
    (tmp_path / "p1.xml").write_text(
        '<alto><Tags><OtherTag ID="t1" LABEL="illegible"/><OtherTag ID="t2" LABEL="Supplied"/></Tags><Layout><Page>'
        '<TextLine ID="a" HPOS="60" VPOS="160" WIDTH="410" HEIGHT="50"><SP/><String CONTENT="ten"/><SP/>'
        '<String CONTENT="??" TAGREFS="x t1"/><SP/><String CONTENT="bars" TAGREFS="t2"/></TextLine></Page></Layout></alto>'
    )
    prepare("alto", tmp_path, tmp_path / "out", marks="leiden")
    row, _ = only_line(tmp_path / "out")
    assert row["text"] == "ten * *"
    assert [mark.get("holds") for mark in row["gap_marks"]] == [None, "bars"]
