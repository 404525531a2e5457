"""PAGE-XML (2010 to 2019), as Transkribus, eScriptorium and HTR-United data sets have it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Report
from starseq.corpora._pages import Dialect, Line, Page, holds_pages, prepare_pages, stripped, tag_span
from starseq.corpora._xml import Element, points
from starseq.data.manifest import Progress
from starseq.text.marks import Span


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with PAGE-XML files and their page images."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    dev: Annotated[float, "Share of pages for dev, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of pages for test, where no folder is called test."] = 0.1,
    skip_bad: Annotated[bool, "Write bad pages and lines to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """PAGE-XML: lines cut out and straightened.

    Every transcribed line is cut out along its polygon and straightened along its baseline.
    """
    return prepare_pages(PAGE_XML, source, out, dev=dev, test=test, skip_bad=skip_bad, progress=progress)


def read_page(root: Element) -> Page:
    """The page of a `PcGts` document."""
    page = root.child("Page")
    if page is None:
        return Page("")
    size = _number(page.get("imageWidth")), _number(page.get("imageHeight"))
    return Page(page.get("imageFilename"), size, list(page.all("TextLine")))


def read_line(line: Element, number: int, page: Page) -> Line | str:
    (text, spans), outline = stripped(_text(line), _spans(line)), _points(line, "Coords")
    if not text:
        return "line without text"
    if not outline:
        return "line without an outline"
    return Line(line.get("id", f"l{number}"), text, outline, _points(line, "Baseline"), line.line, spans)


PAGE_XML = Dialect("PAGE-XML", "PcGts", read_page, read_line)


def understands(source: Path) -> bool:
    """Whether the folder holds PAGE-XML files."""
    return holds_pages(source, PAGE_XML)


def _text(line: Element) -> str:
    """The line's own transcript, the one with the lowest index; else its words'."""
    own = sorted(line.each("TextEquiv"), key=lambda equiv: _number(equiv.get("index", "0")))
    for equiv in own:
        unicode = equiv.child("Unicode")
        if unicode is not None and unicode.text.strip():
            return " ".join(unicode.text.split("\n"))
    return " ".join(text for text in (_text(word).strip() for word in line.each("Word")) if text)


_TAG = re.compile(r"(\w+)\s*\{([^{}]*)\}")


def _spans(line: Element) -> list[Span]:
    """The marks in the attribute `custom`: ``unclear {offset:4; length:3;}``. Offsets count UTF-16, as Java does."""
    spans = []
    for tag, body in _TAG.findall(line.get("custom")):
        said = dict(part.strip().partition(":")[::2] for part in body.split(";") if ":" in part)
        if said.get("strikethrough") == "true":
            tag = "strikethrough"
        start, length = (said.pop(name, "").strip() for name in ("offset", "length"))
        if not (start.isdecimal() and length.isdecimal()):
            continue
        units = _text(line).encode("utf-16-le")
        first, last = (
            len(units[: 2 * end].decode("utf-16-le", "ignore")) for end in (int(start), int(start) + int(length))
        )
        span = tag_span(tag, first, last, {name: value.strip() for name, value in said.items()})
        if span is not None:
            spans.append(span)
    return spans


def _points(line: Element, tag: str) -> list[tuple[float, float]]:
    element = line.child(tag)
    if element is None:
        return []
    if "points" in element.attributes:
        return points(element.get("points"), f"{tag} points")
    return points(" ".join(f"{p.get('x')},{p.get('y')}" for p in element.each("Point")), f"{tag} points")  # PAGE 2010


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
