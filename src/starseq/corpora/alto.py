"""ALTO (v2 to v4), as libraries, eScriptorium and HTR-United data sets have it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Report
from starseq.corpora._pages import Dialect, Line, Page, holds_pages, prepare_pages, stripped, tag_span
from starseq.corpora._xml import Element, points
from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.text.marks import Span


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with ALTO files and their page images."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    dev: Annotated[float, "Share of pages for dev, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of pages for test, where no folder is called test."] = 0.1,
    skip_bad: Annotated[bool, "Write bad pages and lines to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """ALTO: lines cut out and straightened.

    Every transcribed line is cut out along its polygon and straightened along its baseline.
    """
    return prepare_pages(ALTO, source, out, dev=dev, test=test, skip_bad=skip_bad, progress=progress)


def read_page(root: Element) -> Page:
    """The page of an `alto` document."""
    page = next(root.all("Page"), None)
    if page is None:
        return Page("")
    unit = next((unit.text.strip() for unit in root.all("MeasurementUnit")), "pixel")
    size = _number(page.get("WIDTH")), _number(page.get("HEIGHT"))
    if unit != "pixel" and min(size) <= 0:
        raise DataError(f"coordinates are in {unit}, and the page's WIDTH and HEIGHT do not say how many make a pixel")
    tags = {tag.get("ID"): tag.get("LABEL") for group in root.each("Tags") for tag in group.children}
    return Page(next((file.text.strip() for file in root.all("fileName")), ""), size, list(page.all("TextLine")), tags)


def read_line(line: Element, number: int, page: Page) -> Line | str:
    (text, spans), outline = _text(line, page.tags), _outline(line)
    if not text:
        return "line without text"
    if not outline:
        return "line without an outline"
    return Line(line.get("ID", f"l{number}"), text, outline, _baseline(line, outline), line.line, spans)


ALTO = Dialect("ALTO", "alto", read_page, read_line)


def understands(source: Path) -> bool:
    """Whether the folder holds ALTO files."""
    return holds_pages(source, ALTO)


def _text(line: Element, tags: dict[str, str]) -> tuple[str, tuple[Span, ...]]:
    """Its strings, with a space for each SP, and the marks that tags set on them; strings without an SP between them stand apart
    too, as in v2 files."""
    text, spans = "", list[Span]()
    for child in line.each("String", "SP", "HYP"):
        if child.tag == "String":
            text += (" " if text and text[-1] != " " else "") + child.get("CONTENT")
            start = len(text) - len(child.get("CONTENT"))
            found = (tag_span(tags.get(id, ""), start, len(text)) for id in child.get("TAGREFS").split())
            spans += [span for span in found if span is not None]
        else:
            text += " " if child.tag == "SP" else child.get("CONTENT", "-")
    return stripped(text, spans)


def _outline(line: Element) -> list[tuple[float, float]]:
    shape = line.child("Shape")
    polygon = shape.child("Polygon") if shape is not None else None
    if polygon is not None and polygon.get("POINTS"):
        return points(polygon.get("POINTS"), "POINTS")
    x, y, width, height = (_number(line.get(name)) for name in ("HPOS", "VPOS", "WIDTH", "HEIGHT"))
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)] if width > 0 and height > 0 else []


def _baseline(line: Element, outline: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A polyline since v4.1; before, one number: the height of a level line."""
    text = line.get("BASELINE")
    if not text:
        return []
    if len(text.replace(",", " ").split()) == 1:
        y = _number(text)
        return [(min(x for x, _ in outline), y), (max(x for x, _ in outline), y)]
    return points(text, "BASELINE")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
