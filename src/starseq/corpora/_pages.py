"""Pages with an XML file each, whatever its dialect: lines are cut out, straightened and stored in one archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from starseq.corpora._build import Builder, Report, building, split_of_folders
from starseq.corpora._edit import Document, Filling, Place, Putter, filled, source_of
from starseq.corpora._lines import Points, straighten
from starseq.corpora._media import files
from starseq.corpora._xml import Element, find_image, parse_xml
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import ManifestError, Progress, Row
from starseq.data.split import split_groups
from starseq.text.gaps import escape, unescape
from starseq.text.marks import Action, Span


class Line(NamedTuple):
    """A text line as the XML has it, in the XML's own coordinates; `at` is its line in the XML file. `spans` are marks that the XML
    sets on parts of the text."""

    id: str
    text: str
    outline: Points
    baseline: Points
    at: int
    spans: tuple[Span, ...] = ()


@dataclass
class Page:
    """A page: its image's name, its size in the XML's units (0: not said), and its text lines."""

    image: str
    size: tuple[float, float] = (0.0, 0.0)
    lines: list[Element] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    """what a tag that text refers to says, by its id"""


_TAGS: dict[str, Action] = {
    "gap": "gap", "illegible": "gap", "unclear": "unclear", "supplied": "gap", "del": "gap", "deleted": "gap", "struck": "gap",
    "strikethrough": "gap", "blackening": "gap",
}  # fmt: skip


NO_TEXT = ("gap", "illegible")
"""tags of what a person could not read: what they stand on is a mark"""


def tag_span(tag: str, start: int, end: int, attributes: Mapping[str, str] = MappingProxyType({})) -> Span | None:
    """The mark that a tag sets on characters start .. end - 1; None for one that says nothing of what can be read."""
    name = tag.lower()
    if name not in _TAGS:
        return None
    mark = " ".join([name, *(f'{key}="{value}"' for key, value in attributes.items())])
    return Span(start, end, _TAGS[name], f"tag {name}", mark, holds=name not in NO_TEXT)


def stripped(text: str, spans: Sequence[Span]) -> tuple[str, tuple[Span, ...]]:
    """A text without the white space at its ends, and its marks where they are then."""
    short = text.strip()
    start = len(text) - len(text.lstrip())
    at = [min(max(place - start, 0), len(short)) for span in spans for place in (span.start, span.end)]
    moved = zip(spans, at[::2], at[1::2], strict=True)
    return short, tuple(span._replace(start=first, end=last) for span, first, last in moved)


def stripped_places(places: list[Place]) -> list[Place]:
    """Characters without the white space at their ends."""
    text = "".join(place.character for place in places)
    start = len(text) - len(text.lstrip())
    return places[start : start + len(text.strip())]


class Dialect(NamedTuple):
    """A kind of XML: the tag of its root element, how to read its page, and how a line.

    What `read_line` gives instead of a line is why it is left out; what it raises (`DataError`) makes the line bad. `fill_line`
    puts fillings into the text of such a line, and gives those that have a place there.
    """

    name: str
    root: str
    read_page: Callable[[Element], Page]
    read_line: Callable[[Element, int, Page], Line | str]
    fill_line: Callable[[Document, Element, Sequence[Filling]], list[Filling]]


def prepare_pages(
    dialect: Dialect,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dev: float,
    test: float,
    skip_bad: bool,
    progress: Progress | None,
) -> Report:
    """All XML files of that dialect under `source`.

    A folder called train, val or test (or the like) decides the split. The other pages are shared out, by hashes of their names, so
    that the splits hold their shares of the lines.
    """
    if not (dev >= 0 and test >= 0 and dev + test < 1):
        raise ValueError(f"dev and test are shares that leave something to train on; got dev={dev}, test={test}")
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    xmls = [path for path in files(root) if path.suffix.lower() == ".xml"]
    sizes = {
        xml.relative_to(root).as_posix(): _count_lines(dialect, xml) for xml in xmls if not _folder_split(xml, root)
    }
    split_of = split_groups(sizes, {"test": test, "dev": dev})
    with building(dialect.name, out, source=root, skip_bad=skip_bad, archive=True) as build:
        level = 0
        for done, xml in enumerate(xmls, start=1):
            with build.trying(str(xml), 1):
                element = parse_xml(xml.read_bytes(), str(xml))
                if element.tag != dialect.root:
                    build.leave_out(f"XML file that is not {dialect.name} (root element {element.tag})")
                else:
                    where = _folder_split(xml, root) or split_of[xml.relative_to(root).as_posix()]
                    level += _add_page(build, dialect, dialect.read_page(element), xml, root, where)
            if progress is not None:
                progress(done, len(xmls))
        if level:
            build.report.notes.append(f"{level:,} lines have no baseline: they are taken to be level")
    return build.report


def _folder_split(xml: Path, root: Path) -> str | None:
    return split_of_folders(xml.relative_to(root))


def _count_lines(dialect: Dialect, xml: Path) -> int:
    """How many lines of a page have a text. One that cannot be read has none: its place is named later."""
    count = 0
    with suppress(DataError):
        element = parse_xml(xml.read_bytes(), str(xml))
        page = dialect.read_page(element) if element.tag == dialect.root else Page("")
        for number, line in enumerate(page.lines):
            with suppress(DataError):
                count += not isinstance(dialect.read_line(line, number, page), str)
    return count


def holds_pages(source: Path, dialect: Dialect) -> bool:
    """Whether one of the first XML files of a folder is of that dialect."""
    if not source.is_dir():
        return False
    xmls = (path for path in files(source) if path.suffix.lower() == ".xml")
    for xml in islice(xmls, _LOOKED_AT):
        with suppress(DataError):
            if parse_xml(xml.read_bytes(), str(xml)).tag == dialect.root:
                return True
    return False


_LOOKED_AT = 20
"""XML files: others, such as METS, may lie beside the pages"""


def _add_page(build: Builder, dialect: Dialect, page: Page, xml: Path, root: Path, split: str) -> int:
    """Adds the lines of a page; gives how many of them have no baseline."""
    lines: list[Line] = []
    for number, element in enumerate(page.lines):
        with build.trying(str(xml), element.line):
            line = dialect.read_line(element, number, page)
            if isinstance(line, str):
                build.leave_out(line)
            else:
                lines.append(line)
    if not lines:
        build.leave_out("page without a transcribed line")
        return 0
    found = find_image(page.image, xml, root)
    if found is None:
        raise DataError(f"the page image {page.image!r} is not under {root}")
    image = images.open_image(found)
    scale = _scale(page.size, image.size, str(xml))
    name = xml.relative_to(root).with_suffix("").as_posix()
    for line in lines:
        with build.trying(str(xml), line.at, {"id": line.id, "text": line.text}):
            outline = [(x * scale[0], y * scale[1]) for x, y in line.outline]
            baseline = [(x * scale[0], y * scale[1]) for x, y in line.baseline]
            pixels = straighten(image, outline, baseline)
            fields = {
                "id": f"{name}/{line.id}",
                "path": f"{name}/{line.id}.png".replace("..", "_"),  # a name in the archive, which others may unpack
                "text": escape(line.text),
                "width": pixels.shape[1],
                "height": pixels.shape[0],
                "page": name,
                "line": line.id,
                "split": split,
            }
            build.add(fields, str(xml), line.at, member=images.encode(pixels), spans=line.spans)
    return sum(not line.baseline for line in lines)


def put_back_pages(dialect: Dialect, source: Path, rows: Sequence[Row], putter: Putter) -> None:
    """Puts the fillings of rows into the pages that they come from, by `page` and `line`; all pages that rows name are written."""
    pages: dict[str, list[Row]] = {}
    for row in rows:
        with putter.trying(row):
            if not isinstance(row.get("page"), str) or not isinstance(row.get("line"), str):
                raise DataError("it does not say which page and line it comes from: prepare the pages again")
            pages.setdefault(row["page"], []).append(row)
    for page, of_page in pages.items():
        xml = None
        with putter.trying(of_page[0]):
            named = (resolve_inside(page + end, source) for end in (".xml", ".XML"))
            xml = next((path for path in named if path.is_file()), None)
            if xml is None:
                raise DataError(f"no page {page}.xml in {source}")
        if xml is None:
            continue
        document = Document(xml.read_bytes(), str(xml))
        if document.root.tag != dialect.root:
            raise ManifestError(xml, 1, f"not {dialect.name} (root element {document.root.tag})")
        name = xml.relative_to(os.path.realpath(source))
        lines = _lines_of(dialect, document)
        for row in of_page:
            with putter.trying(row):
                _fill_row(dialect, document, lines, row, name, putter)
        putter.write(name, document.result())


def _lines_of(dialect: Dialect, document: Document) -> dict[str, tuple[Element, str]]:
    """The text lines of a page by their ids, each with its text."""
    lines = {}
    page = dialect.read_page(document.root)
    for number, element in enumerate(page.lines):
        with suppress(DataError):
            line = dialect.read_line(element, number, page)
            if not isinstance(line, str):
                lines[line.id] = element, line.text
    return lines


def _fill_row(
    dialect: Dialect, document: Document, lines: dict[str, tuple[Element, str]], row: Row, name: Path, putter: Putter
) -> None:
    if row["line"] not in lines:
        raise DataError(f"no line {row['line']!r} in {name}")
    element, text = lines[row["line"]]
    if unescape(source_of(row)) != text:
        raise DataError(f"{name}, line {element.line}: the text is {text!r} there, and not that of the row")
    fillings = putter.fillings(row)
    done = dialect.fill_line(document, element, fillings)
    for _ in range(len(fillings) - len(done)):
        putter.leave("its mark runs over several pieces of the file, or it holds what XML cannot")
    putter.put(name, row, done, filled(text, done)[1])


def _scale(stated: tuple[float, float], real: tuple[int, int], xml: str) -> tuple[float, float]:
    """What takes the XML's coordinates to pixels: pages are also measured in 1/10 mm, or were scanned anew."""
    if min(stated) <= 0:
        return 1.0, 1.0
    x, y = real[0] / stated[0], real[1] / stated[1]
    if abs(x / y - 1) > 0.02:
        size = f"{stated[0]:g} x {stated[1]:g}"
        raise ManifestError(xml, 1, f"the page is {size} there, but its image is {real[0]} x {real[1]} pixels")
    return x, y
