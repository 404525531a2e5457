"""PAGE-XML (2010 to 2019), as Transkribus, eScriptorium and HTR-United data sets have it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
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
    source: Annotated[str | os.PathLike[str], "Folder with PAGE-XML files and their page images."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    dev: Annotated[float, "Share of lines for dev, in whole pages, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of lines for test, in whole pages, where no folder is called test."] = 0.1,
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


def fill_line(document: Document, line: Element, fillings: Sequence[Filling]) -> list[Filling]:
    """Puts fillings into the transcript that `read_line` reads, and notes them in `custom`; gives those that have a place there.
    What the line's words and its region repeat of the transcript is filled, too."""
    places = _places(document, line)
    done = [one for one in fillings if put(document, places, one) is not None]
    if _unicode(line) is not None:
        for places_of in (_places_of_words, _places_in_region):
            with suppress(DataError):  # a comment in it, say: it stays as it is
                repeated = places_of(document, line)
                if [place.character for place in repeated] == [place.character for place in places]:
                    for one in done:
                        put(document, repeated, one)
    if done and b"pagecontent/2010" not in document.data[: document.opening(document.root)[1]]:  # which knows no custom
        document.set_attribute(line, "custom", _custom(line, done))
    return done


PAGE_XML = Dialect("PAGE-XML", "PcGts", read_page, read_line, fill_line)


def put_back(source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the files that they come from."""
    put_back_pages(PAGE_XML, source, rows, putter)


def understands(source: Path) -> bool:
    """Whether the folder holds PAGE-XML files."""
    return holds_pages(source, PAGE_XML)


def _unicode(line: Element) -> Element | None:
    """The line's own transcript, the one with the lowest index."""
    for equiv in sorted(line.each("TextEquiv"), key=lambda equiv: _number(equiv.get("index", "0"))):
        unicode = equiv.child("Unicode")
        if unicode is not None and unicode.text.strip():
            return unicode
    return None


def _text(line: Element) -> str:
    """The line's own transcript, else its words'."""
    own = _unicode(line)
    if own is not None:
        return " ".join(own.text.split("\n"))
    return " ".join(text for text in (_text(word).strip() for word in line.each("Word")) if text)


def _places(document: Document, line: Element) -> list[Place]:
    """The characters of the line's text, as `read_line` gives it."""
    own = _unicode(line)
    if own is not None:
        return stripped_places(
            [place._replace(character=" ") if place.character == "\n" else place for place in document.content(own)]
        )
    return _places_of_words(document, line)


def _places_of_words(document: Document, line: Element) -> list[Place]:
    """The characters of the line's words; none where they cannot be taken apart."""
    places = list[Place]()
    for word in (_places(document, word) for word in line.each("Word")):
        places += [Place(" ", places[-1].end, places[-1].end, None), *word] if places and word else word
    return places


def _places_in_region(document: Document, line: Element) -> list[Place]:
    """Where the text of the line's region has this line, if it is the text of all of its lines."""
    region = next(
        (one for one in document.root.all("TextRegion") if any(line is other for other in one.children)), None
    )
    own = None if region is None else _unicode(region)
    if region is None or own is None:
        return []
    lines = list(region.each("TextLine"))
    text, parts = own.text.strip(), [_text(one).strip() for one in lines]
    if [part.strip() for part in text.split("\n")] != parts:
        return []
    number = next(number for number, other in enumerate(lines) if other is line)
    places = stripped_places(document.content(own))
    breaks = [-1, *(at for at, place in enumerate(places) if place.character == "\n"), len(places)]
    return stripped_places(places[breaks[number] + 1 : breaks[number + 1]])


def _custom(line: Element, fillings: Sequence[Filling]) -> str:
    """The attribute `custom` with the fillings in it: the tags of gaps that are filled go, and all others move along."""
    old = _text(line)
    lead = len(old) - len(old.lstrip())
    moved = [one._replace(start=one.start + lead, end=one.end + lead) for one in fillings]
    new, places = filled(old, moved)
    filled_spans = {(one.start, one.end) for one in moved}

    def shifted(place: int, *, is_end: bool) -> int:
        for one, (_, last) in zip(reversed(moved), reversed(places), strict=True):
            if one.end <= place and not (is_end and one.start == place):
                return last + place - one.end
            if one.start < place:
                return last
        return place

    def rewrite(match: re.Match[str]) -> str:
        span = _span(match[2], old)
        if span is None:
            return match[0]
        if match[1].lower() in NO_TEXT and span in filled_spans:
            return ""
        first, last = shifted(span[0], is_end=False), shifted(span[1], is_end=True)
        start, length = _units(new[:first]), _units(new[first : max(first, last)])
        tag = re.sub(r"(\boffset\s*:\s*)\d+", rf"\g<1>{start}", match[0])
        return re.sub(r"(\blength\s*:\s*)\d+", rf"\g<1>{length}", tag)

    tags = [_TAG.sub(rewrite, line.get("custom")).strip()]
    for one, (start, end) in zip(moved, places, strict=True):
        if one.confidence is not None:  # else a person wrote it
            where = f"offset:{_units(new[:start])}; length:{_units(new[start:end])};"
            tags.append(f"filled {{{where} confidence:{one.confidence:g};}}")
    return " ".join(filter(None, tags))


def _units(text: str) -> int:
    """How long a text is in UTF-16, which the offsets of `custom` count, as Java does."""
    return len(text.encode("utf-16-le")) // 2


def _span(body: str, text: str) -> tuple[int, int] | None:
    """The characters that a tag of `custom` is about."""
    said = _said(body)
    start, length = said.get("offset", ""), said.get("length", "")
    if not (start.isdecimal() and length.isdecimal()):
        return None
    units = text.encode("utf-16-le")
    first, last = (
        len(units[: 2 * end].decode("utf-16-le", "ignore")) for end in (int(start), int(start) + int(length))
    )
    return first, last


def _said(body: str) -> dict[str, str]:
    pairs = (part.partition(":")[::2] for part in body.split(";") if ":" in part)
    return {name.strip(): value.strip() for name, value in pairs}


_TAG = re.compile(r"\s*\b(\w+)\s*\{([^{}]*)\}")


def _spans(line: Element) -> list[Span]:
    """The marks in the attribute `custom`: ``unclear {offset:4; length:3;}``."""
    spans = []
    for tag, body in _TAG.findall(line.get("custom")):
        place, said = _span(body, _text(line)), _said(body)
        if place is not None:
            name = "strikethrough" if said.get("strikethrough") == "true" else tag
            others = {key: value for key, value in said.items() if key not in ("offset", "length")}
            spans.append(tag_span(name, *place, others))
    return [span for span in spans if span is not None]


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
