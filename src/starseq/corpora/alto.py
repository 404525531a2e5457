"""ALTO (v2 to v4), as libraries, eScriptorium and HTR-United data sets have it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Report
from starseq.corpora._edit import Document, Filling, Place, Putter, filled, put
from starseq.corpora._pages import (
    NO_TEXT,
    Dialect,
    Line,
    Page,
    holds_pages,
    prepare_pages,
    put_back_pages,
    stripped,
    stripped_places,
    tag_span,
)
from starseq.corpora._xml import Element, points
from starseq.data.errors import DataError
from starseq.data.manifest import Progress, Row
from starseq.text.marks import Span


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with ALTO files and their page images."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    dev: Annotated[float, "Share of lines for dev, in whole pages, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of lines for test, in whole pages, where no folder is called test."] = 0.1,
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


def fill_line(document: Document, line: Element, fillings: Sequence[Filling]) -> list[Filling]:
    """Puts fillings into the strings that `read_line` reads, with what is known of each; gives those that have a place there."""
    places = _places(document, line)
    done, of_string = list[Filling](), dict[int, list[Filling]]()
    for one in fillings:
        owner = put(document, places, one)
        if owner is not None:
            done.append(one)
            of_string.setdefault(owner.start, []).append(one)
    for string in line.each("String"):
        if string.start in of_string:
            start = next((at for at, place in enumerate(places) if place.owner is string), 0)
            own = [one._replace(start=one.start - start, end=one.end - start) for one in of_string[string.start]]
            _note(document, string, own)
    return done


ALTO = Dialect("ALTO", "alto", read_page, read_line, fill_line)


def put_back(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the files that they come from."""
    put_back_pages(ALTO, source, rows, putter)


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


def _places(document: Document, line: Element) -> list[Place]:
    """The characters of the line's text, as `read_line` gives it."""
    places = list[Place]()
    for child in line.each("String", "SP", "HYP"):
        here = document.opening(child)[0]
        if child.tag == "String":
            if places and places[-1].character != " ":
                places.append(Place(" ", here, here, None))
            places += document.attribute(child, "CONTENT")
        else:
            text = " " if child.tag == "SP" else child.get("CONTENT", "-")
            places += [Place(character, here, here, None) for character in text]
    return stripped_places(places)


_TAG = "starseq-filled"


def _note(document: Document, string: Element, fillings: Sequence[Filling]) -> None:
    """What the standard has for what a machine wrote: confidences of the word (WC) and of its characters (CC), and a tag."""
    content = string.get("CONTENT")
    new, places = filled(content, fillings)
    by_machine = [one for one in fillings if one.confidence is not None]
    digits = re.findall(r"\d", string.get("CC"))
    doubts = digits if len(digits) == len(content) else ["0"] * len(content)
    for one in reversed(fillings):
        doubt = 0 if one.confidence is None else round(9 * (1 - one.confidence))
        doubts[one.start : one.end] = [str(doubt)] * len(one.text)
    if by_machine or string.get("CC"):
        document.set_attribute(string, "CC", " ".join(doubts))
    if by_machine and len(places) == 1 and places[0] == (0, len(new)):
        document.set_attribute(string, "WC", f"{by_machine[0].confidence:g}")
    tags = {tag.get("ID"): tag.get("LABEL").lower() for group in document.root.each("Tags") for tag in group.children}
    refs = [id for id in string.get("TAGREFS").split() if tags.get(id) not in NO_TEXT]
    if by_machine and _has_tags(document):
        _declare(document, tags)
        refs = list(dict.fromkeys([*refs, _TAG]))
    if not refs and string.get("TAGREFS"):
        document.remove_attribute(string, "TAGREFS")
    elif refs != string.get("TAGREFS").split():
        document.set_attribute(string, "TAGREFS", " ".join(refs))


def _has_tags(document: Document) -> bool:
    """Whether the file's version knows tags: from 2.1 on."""
    opening = document.data[document.root.start : document.opening(document.root)[1]]
    return re.search(rb"ns-v[2-9]", opening) is not None and not re.search(rb"alto-(?:v2[.]0|2-0)", opening)


def _declare(document: Document, tags: dict[str, str]) -> None:
    if document.declared or _TAG in tags:
        return
    document.declared = True
    prefix = document.prefix(document.root)
    tag = f'<{prefix}OtherTag ID="{_TAG}" TYPE="filled" LABEL="filled in by a machine"/>'
    group = document.root.child("Tags")
    if group is not None and group.children:
        document.replace(group.children[0].start, group.children[0].start, tag)
        return
    whole = f"<{prefix}Tags>{tag}</{prefix}Tags>"
    if group is not None:
        end = document.opening(group)[1]
        is_closed = document.data[end - 2 : end] == b"/>"
        document.replace(group.start, end if is_closed else document.data.index(b">", group.end) + 1, whole)
        return
    place = next(document.root.each("ReadingOrder", "Layout")).start
    document.replace(place, place, whole)


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
