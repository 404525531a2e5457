"""The page: whatever texts and names hold, no markup of theirs gets through; nothing is fetched, nothing runs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tests.run_folder import METRICS_CSV

from starseq.decode.align import align
from starseq.report.alignment import alignment_svg
from starseq.report.page import AlignmentView, Example, RunView, page
from starseq.report.pictures import picture
from starseq.report.plots import COLOURS, curves_svg, series_svg, training_curves
from starseq.train.metrics import read_metrics

EVIL = "<script>alert('x')</script>\"&$x_1^"
SCORES = {
    "wer": 50.0, "cer": 12.5, "sentences": 4, "right": 1,
    "words": {"hits": 4, "substitutions": 4, "insertions": 0, "deletions": 0},
    "characters": {"hits": 70, "substitutions": 1200, "insertions": 3, "deletions": 4},
}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img", "rect", "path", "use", "image"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "path", "use", "image"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, float | None]]:
    (tmp_path / "metrics.csv").write_text(METRICS_CSV)
    return read_metrics(tmp_path / "metrics.csv")


def test_everything_is_escaped(rows: list[dict[str, float | None]]) -> None:
    drawn = picture(torch.rand(40, 8), ink=True)
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    svg = alignment_svg(align(probs.log(), [1]), drawn, probs.log(), ["<blank>", EVIL, "</svg>"], stride=10)
    ET.fromstring(svg.replace("&lowast;", "*"))
    runs = [
        RunView(EVIL, "char", {EVIL: EVIL}, {EVIL: {EVIL: SCORES, "b": SCORES}}, rows),
        RunView("_x", "word", {}, {}, rows),
    ]
    examples = [
        Example(EVIL, EVIL, {EVIL: EVIL + "x", "_x": ""}, partial="script", picture=drawn, note=EVIL),
        Example("b", "a b", {EVIL: "a b"}, unit="word"),
    ]
    html = page(EVIL, runs, examples, [AlignmentView(EVIL, EVIL, svg, {EVIL: EVIL})], intro=[EVIL], footer=EVIL)
    tags = Tags(html)
    assert tags.open == []
    assert "script" not in tags.found
    assert tags.text.count("<script>alert") >= 12
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in tags.links)
    assert "default-src 'none'" in html
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)
    assert "12.50" in tags.text
    assert "1,200" in tags.text
    assert "not evaluated yet" in tags.text


def test_partial_labels_errors_and_ticks_are_shown() -> None:
    examples = [Example("u1", "2047", {"a": "2047", "b": "207"}, partial="24")]
    html = page("t", [RunView("a", "char", {}, {}), RunView("b", "char", {}, {})], examples)
    assert (
        "<span class=kept>2</span><span class=lost>0</span><span class=kept>4</span><span class=lost>7</span>" in html
    )
    assert html.count("✓") == 1
    assert "20<del>4</del>7" in html


def test_curves_take_columns_as_they_are_found(rows: list[dict[str, float | None]], tmp_path: Path) -> None:
    (path,) = training_curves(tmp_path / "metrics.csv", tmp_path / "plots")
    assert path == tmp_path / "plots" / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    svg = curves_svg({"a": rows, "b": rows[:1]})
    ET.fromstring(svg)
    for title in ("error on dev, %", "loss per label", "insertions per label", "share of blank frames"):
        assert title in svg
    assert curves_svg({"a": rows}) == curves_svg({"a": rows})


def test_no_curves_where_nothing_was_logged(tmp_path: Path) -> None:
    assert training_curves(tmp_path / "none.csv", tmp_path) == []
    (tmp_path / "head.csv").write_text("step,loss\n")
    assert training_curves(tmp_path / "head.csv", tmp_path) == []
    assert curves_svg({"a": []}) == ""
    assert "<h2>Curves</h2>" not in page("t", [RunView("a", "char", {}, {})])


def test_the_alignment_picture_puts_labels_and_star_at_their_columns() -> None:
    probs = torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]])
    found = align(probs.log(), [1])
    svg = alignment_svg(found, picture(torch.zeros(40, 8), ink=True), probs.log(), ["<blank>", "a", "b"], stride=10)
    root = ET.fromstring(svg.replace("&lowast;", "*"))
    space = "{http://www.w3.org/2000/svg}"
    texts = {(text.text or ""): float(text.get("x", "nan")) for text in root.iter(f"{space}text")}
    assert texts == {"a": 60.0, "b": 100.0, "*": 100.0}  # frames 1 and 2, of 10 columns each, four times as large
    titles = [title.text for title in root.iter(f"{space}title")]
    assert titles[0] == "a: known, 80 %"
    assert (titles[1] or "").startswith("b: read by the star, ")


def test_a_picture_of_sound_has_low_bands_down() -> None:
    import base64
    import io

    import numpy as np
    from PIL import Image

    def pixels(uri: str) -> np.ndarray:  # type: ignore[type-arg]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))

    x = torch.zeros(6, 4)
    x[:, 0] = 1.0
    sound, line = pixels(picture(x, ink=False).uri), pixels(picture(x, ink=True).uri)
    assert sound.shape == line.shape == (4, 6)
    assert (sound[-1] == 0).all()
    assert (sound[0] == 255).all()
    assert (line[0] == 0).all()
    assert (line[-1] == 255).all()


def test_names_of_many_lines_stand_below_the_plot():
    def height(lines: int) -> float:
        series = {f"line {i}": [(0.0, 10.0 + i), (1.0, 20.0)] for i in range(lines)}
        return float(series_svg(series, x="x", y="y").partition('height="')[2].partition("pt")[0])

    assert height(1) == height(4) < height(5) < height(9)


@pytest.mark.parametrize("more", [0, 1])
def test_lines_that_share_a_colour_differ_in_their_dashes(more: int) -> None:
    series = {f"line {i}": [(0.0, 10.0 + i), (1.0, 20.0)] for i in range(len(COLOURS) + more)}
    dashed = {part.partition('"')[0] for part in series_svg(series, x="x", y="y").split("stroke-dasharray")[1:]}
    assert bool(dashed) == bool(more)
