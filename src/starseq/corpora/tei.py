"""TEI transcripts beside line images: a line is an `lb`, or an element, whose `facs` or id names an image."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_folders
from starseq.corpora._media import describe, files
from starseq.corpora._xml import Element, find_image, parse_xml
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.images import SUFFIXES
from starseq.data.manifest import Progress
from starseq.text.gaps import escape

_ROOTS = ("TEI", "teiCorpus", "TEI.2")
_LINES = ("l", "line", "ab", "seg", "p", "zone")
"""elements that are a line, where `facs` says so"""
_NOT_THERE = {"teiHeader", "facsimile", "standOff", "note", "fw", "reg", "corr", "expan", "ex", "figDesc", "metamark"}
"""what is said about the line, or put in by the editor"""
_MISSING = {"gap", "supplied", "del"}
"""something stands there that the text does not have, or nothing that it has"""
_LOOKED_AT = 20


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with TEI files and line images."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    dev: Annotated[float, "Share of files for dev, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of files for test, where no folder is called test."] = 0.1,
    check: Annotated[bool, "Decode every image, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad files and lines to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """TEI transcripts beside line images.

    Each lb, or element that is a line, names its image: by facs, itself or through a graphic or zone, or by its xml:id or n.
    What gap, supplied or del stand for is a gap; of a choice the text is as written: abbr, sic, orig.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    split = split_by_share(dev, test)
    xmls = [path for path in files(root) if path.suffix.lower() == ".xml"]
    with building("TEI", out, source=root, skip_bad=skip_bad) as build:
        for done, xml in enumerate(xmls, start=1):
            with build.trying(str(xml), 1):
                element = parse_xml(xml.read_bytes(), str(xml))
                if element.tag not in _ROOTS:
                    build.leave_out(f"XML file that is not TEI (root element {element.tag})")
                else:
                    relative = xml.relative_to(root)
                    where = split_of_folders(relative) or split(relative.as_posix())
                    _add(build, element, xml, root, where, check)
            if progress is not None:
                progress(done, len(xmls))
    return build.report


def understands(source: Path) -> bool:
    """Whether one of the first XML files of a folder is TEI with a line image beside it."""
    if not source.is_dir():
        return False
    root = source.resolve()
    for xml in islice((path for path in files(root) if path.suffix.lower() == ".xml"), _LOOKED_AT):
        with suppress(DataError):
            element = parse_xml(xml.read_bytes(), str(xml))
            if element.tag in _ROOTS and any(_image(line, element, xml, root) for line in _lines(element)):
                return True
    return False


@dataclass
class _Line:
    """A line of the text: the element that begins it, and its pieces; None is a gap."""

    element: Element
    pieces: list[str | None] = field(default_factory=list)

    @property
    def text(self) -> str:
        """In the form of our manifests."""
        joined = "".join("\0" if piece is None else escape(piece.replace("\0", "")) for piece in self.pieces)
        return re.sub(r"\0(\s*\0)*", "*", " ".join(joined.split()))


def _lines(root: Element) -> list[_Line]:
    """The lines of a document, with text or without."""
    lines: list[_Line] = []
    line: _Line | None = None

    def begin(element: Element | None) -> None:
        nonlocal line
        line = None if element is None else _Line(element)
        if line is not None:
            lines.append(line)

    def walk(element: Element) -> None:
        for piece in element.content:
            if isinstance(piece, str) or piece.tag in _MISSING:
                if line is not None:
                    line.pieces.append(piece if isinstance(piece, str) else None)
            elif piece.tag == "lb":
                begin(piece)
            elif piece.tag in ("pb", "cb"):
                begin(None)
            elif piece.tag in _LINES and (piece.get("facs") or piece.tag == "line"):
                begin(piece)
                walk(piece)
                begin(None)
            elif piece.tag not in _NOT_THERE:
                walk(piece)

    walk(root)
    return lines


def _add(build: Builder, root: Element, xml: Path, top: Path, split: str, check: bool) -> None:
    lines = _lines(root)
    name = xml.relative_to(top).with_suffix("").as_posix()
    if not lines and (image := find_image("", xml, top)) is not None:  # a file a line
        whole = _Line(root, list(_all_text(root)))
        _add_line(build, whole, image, name, xml, top, split, check, _marks_gaps(root))
        return
    if not lines:
        build.leave_out("TEI file without lines")
    marked = _marks_gaps(root)
    for number, line in enumerate(lines, start=1):
        with build.trying(str(xml), line.element.line, line.text):
            if not line.text:
                build.leave_out("line without text")
            elif (image := _image(line, root, xml, top)) is None:
                build.leave_out("line without an image of its own")
            else:
                id = f"{name}/{line.element.get('id') or line.element.get('n') or number}"
                _add_line(build, line, image, id, xml, top, split, check, marked)


def _add_line(
    build: Builder, line: _Line, image: Path, id: str, xml: Path, top: Path, split: str, check: bool, marked: bool
) -> None:
    relative = image.relative_to(top).as_posix()
    page = xml.relative_to(top).with_suffix("").as_posix()
    fields = {"id": id, "path": relative, "text": line.text, **describe(image, relative, check=check), "page": page}
    build.add({**fields, "split": split, **({"gaps": "marked"} if marked else {})}, str(xml), line.element.line)


def _marks_gaps(root: Element) -> bool:
    """Whether a document says where something is missing: then nothing is elsewhere."""
    return any(next(root.all(tag), None) is not None for tag in _MISSING)


def _all_text(element: Element) -> Iterator[str | None]:
    for piece in element.content:
        if isinstance(piece, str):
            yield piece
        elif piece.tag in _MISSING:
            yield None
        elif piece.tag not in _NOT_THERE:
            yield from _all_text(piece)


def _image(line: _Line, root: Element, xml: Path, top: Path) -> Path | None:
    """The image of a line: what `facs` names, else what is called like the line, beside the XML or in a folder of its name."""
    for reference in line.element.get("facs").split():
        named = _graphic(root, reference[1:]) if reference.startswith("#") else reference
        if named is not None:
            if "://" in named:
                raise DataError(f"the image {named} is not on this disk")
            file = _inside(named, xml, top)
            if file is None:
                raise DataError(f"the image {named!r} is not under {top}")
            return file
    for key in ("id", "n"):
        if name := line.element.get(key):
            for stem in (f"{xml.stem}/{name}", f"{xml.stem}_{name}", f"{xml.stem}-{name}", name):
                for suffix in sorted(SUFFIXES):
                    if (file := _inside(stem + suffix, xml, top)) is not None:
                        return file
    return None


def _inside(named: str, xml: Path, top: Path) -> Path | None:
    """An image by its name, if it is there; nothing outside of the folder counts."""
    with suppress(DataError):
        file = resolve_inside(named, xml.parent, top)
        if file.is_file() and file.suffix.lower() in SUFFIXES:
            return file
    return None


def _graphic(root: Element, id: str) -> str | None:
    """The file of the graphic, zone or surface of that id; None for a part of an image."""
    element = next((element for element in _all(root) if element.get("id") == id), None)
    if element is None:
        raise DataError(f"facs names #{id}, which is not there")
    graphic: Element | None = element if element.tag == "graphic" else element.child("graphic")
    return None if graphic is None else graphic.get("url") or None


def _all(element: Element) -> Iterator[Element]:
    for child in element.children:
        yield child
        yield from _all(child)
