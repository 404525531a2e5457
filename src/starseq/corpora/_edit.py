"""Fillings go back into the files that the rows came from; whatever else a file holds stays, to the byte."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from xml.sax.saxutils import escape as escape_xml

from starseq.corpora._xml import Element, parse_xml
from starseq.data.errors import DataError
from starseq.data.files import write_bytes
from starseq.data.manifest import BadRowWriter, ManifestError, Row, refuse
from starseq.text.gaps import escape, literal_spans, split_gaps
from starseq.text.marks import suspects


class Filling(NamedTuple):
    """Text for characters start .. end - 1 of a source, which are a mark, or none."""

    start: int
    end: int
    text: str
    confidence: float | None


@dataclass
class PutBack:
    """What was put back: numbers of files and fillings, and of fillings that were not, by reason."""

    files: int = 0
    filled: int = 0
    left: Counter[str] = field(default_factory=Counter)
    bad: int = 0


# --- rows -------------------------------------------------------------------------------------------------------------


def source_of(row: Row) -> str:
    """The text of a row as its file has it, before its marks were read and its gaps were filled; a `*` may be a gap."""
    text: str = row.get("text_source", row.get("text_partial", row.text))
    return text


def fillings_of(row: Row, left: Counter[str]) -> list[Filling]:
    """The fillings of a row, with places in its source (see `source_of`; a gap and an escaped star are one character each). Those
    that cannot go back are counted in `left`."""
    added = row.get("added", [])
    if not added:
        return []
    try:
        records = sorted(added, key=lambda one: one["position"])
        if all("mark" in one for one in records):
            found = [_by_mark(one["mark"], one, left) for one in records]
        elif "text_source" in row.fields:
            found = _by_number(row, records, left)
        else:
            found = [_whole(filling, left) for filling in _by_place(row, records)]
        return [one for one in found if one is not None]
    except (KeyError, TypeError, AttributeError, IndexError):
        raise DataError("its field 'added' does not read like what `starseq complete` writes") from None


def _by_mark(mark: dict[str, Any], one: dict[str, Any], left: Counter[str]) -> Filling | None:
    if mark.get("holds"):
        left["a person read something there, which stays"] += 1
        return None
    if suspects(one["text"]):
        left["it would look like a transcriber's mark"] += 1
        return None
    text = _GAP.join(split_gaps(one["text"]))
    return _whole(Filling(int(mark["start"]), int(mark["end"]), text, one.get("confidence")), left)


def _whole(filling: Filling, left: Counter[str]) -> Filling | None:
    if _GAP in filling.text:
        left["filled in part"] += 1
        return None
    return filling


_GAP = "\ufdd0"


def _by_number(row: Row, records: Sequence[dict[str, Any]], left: Counter[str]) -> list[Filling | None]:
    """Where the row has the marks of all gaps, and the fillings do not name theirs."""
    source, marks = _GAP.join(split_gaps(row["text_partial"])), row.get("gap_marks", [])
    if len(marks) != source.count(_GAP):
        raise DataError("its fillings do not say which marks they stand for")
    found = []
    for one, filling in zip(records, _by_place(row, records), strict=True):
        first = source.count(_GAP, 0, filling.start)
        mark = {**marks[first], "end": marks[max(first, source.count(_GAP, 0, filling.end) - 1)]["end"]}
        found.append(_by_mark(mark, one, left))
    return found


def _by_place(row: Row, records: Sequence[dict[str, Any]]) -> list[Filling]:
    """By what is in the text and not in `text_partial`. Beside a word that was added without a mark there may be a space."""
    text, source = (_GAP.join(split_gaps(one)) for one in (row.text, row["text_partial"]))
    fillings, done, place = list[Filling](), 0, 0
    for one in records:
        new = _GAP.join(split_gaps(one["text"]))
        before, behind = text[done : one["position"]], text[one["position"] + len(new) :]
        if not text[one["position"] :].startswith(new):
            raise DataError(f"{one['text']!r} does not stand at {one['position']} in its text")
        lead = trail = ""
        if not source.startswith(before, place):
            if not (before.endswith(" ") and source.startswith(before[:-1], place)):
                raise DataError("its text does not hold what text_partial does")
            lead, before = " ", before[:-1]
        place += len(before)
        done = one["position"] + len(new)
        end = place
        while source.startswith(_GAP, end):
            end += 1
        if behind.startswith(" ") and end == place < len(source) and source[place] != " ":
            trail, done = " ", done + 1
        fillings.append(Filling(place, end, lead + new + trail, one.get("confidence")))
        place = end
    return fillings


def filled(source: str, fillings: Sequence[Filling]) -> tuple[str, list[tuple[int, int]]]:
    """A text with its fillings, and where they are in it."""
    out, places, done = "", list[tuple[int, int]](), 0
    for one in fillings:
        out += source[done : one.start]
        places.append((len(out), len(out) + len(one.text)))
        out += one.text
        done = one.end
    return out + source[done:], places


def filled_notation(source: str, fillings: Sequence[Filling]) -> tuple[str, list[tuple[int, int]]]:
    """The same for a text in which `*` is a gap: what is around the fillings stays as it is written."""
    spans = literal_spans(source)
    ends = [*(start for start, _ in spans), len(source)]
    raw = [one._replace(start=ends[one.start], end=ends[one.end], text=escape(one.text)) for one in fillings]
    return filled(source, raw)[0], filled("*".join(split_gaps(source)), fillings)[1]


class Putter:
    """What puts fillings into files: it takes the files that are done, what was put into them, and what could not be."""

    def __init__(self, manifest: str, folder: Path, listing: BinaryIO, on_bad: BadRowWriter | None) -> None:
        self.counts = PutBack()
        self._manifest, self._folder, self._listing, self._on_bad = manifest, folder, listing, on_bad

    def write(self, name: Path, data: bytes) -> None:
        """A file, by its place in the folder that is read."""
        write_bytes(self._folder / name, data)
        self.counts.files += 1

    @contextmanager
    def trying(self, row: Row) -> Iterator[None]:
        """What the block raises about its data is said of the row."""
        try:
            yield
        except DataError as error:
            self.counts.bad += self._on_bad is not None
            refuse(self._manifest, row, str(error), self._on_bad)

    def fillings(self, row: Row) -> list[Filling]:
        return fillings_of(row, self.counts.left)

    def leave(self, reason: str) -> None:
        self.counts.left[reason] += 1

    def put(self, name: Path, row: Row, fillings: Sequence[Filling], places: Sequence[tuple[int, int]]) -> None:
        """These fillings of a row are in a file, at these places of its text."""
        self.counts.filled += len(fillings)
        for one, (start, end) in zip(fillings, places, strict=True):
            fields = {"file": name.as_posix(), "id": row.id, "start": start, "end": end, "text": one.text}
            record = {**fields, "confidence": one.confidence, "text_before": source_of(row)}
            self._listing.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


# --- XML --------------------------------------------------------------------------------------------------------------

_CHARACTER = re.compile(rb"&(?:#[xX]?[0-9a-fA-F]+|\w+);|\r\n?|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE = re.compile(rb"\s+([^\s=/>]+)\s*=\s*(\"[^\"]*\"|'[^']*')")
_TAG_NAME = re.compile(rb"<[^\s/>]+")
_ENTITIES = {b"&amp;": "&", b"&lt;": "<", b"&gt;": ">", b"&quot;": '"', b"&apos;": "'"}


class Place(NamedTuple):
    """A character of a text line, and the bytes that it is written with; `owner` is the element, None where nothing can be put."""

    character: str
    start: int
    end: int
    owner: Element | None


class Document:
    """An XML file on the way to another: edits are collected, by bytes of the UTF-8 form, and done together."""

    def __init__(self, data: bytes, name: str) -> None:
        self._codec = _codec(data)
        try:
            text = data.decode(self._codec)
            self.data = text.encode()
            faithful = text.encode(self._codec) == data
        except (UnicodeError, LookupError):
            faithful = False
        if not faithful:
            raise ManifestError(name, 1, f"not {self._codec}, as it says")
        self.root = parse_xml(self.data, name, encoding="utf-8")
        self.declared = False
        """whether what the fillings refer to is in the file"""
        self._edits: list[tuple[int, int, bytes]] = []

    def replace(self, start: int, end: int, text: str) -> None:
        """Put text, or mark-up, in the place of bytes start .. end - 1."""
        self._edits.append((start, end, text.encode()))

    def result(self) -> bytes:
        """The file with its edits, in its own encoding. Of two in one place, the first stays in front."""
        data = self.data
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2])[::-1]:
            data = data[:start] + new + data[end:]
        return data.decode().encode(self._codec, "xmlcharrefreplace")

    def content(self, element: Element) -> list[Place]:
        """The characters of an element that holds nothing but text."""
        start, end = self.opening(element)[1], element.end
        if b"<" in self.data[start:end]:
            raise DataError(f"the text in line {element.line} holds a comment or the like")
        return [place._replace(owner=element) for place in _characters(self.data, start, end)]

    def attribute(self, element: Element, name: str) -> list[Place]:
        """The characters of an attribute; none where it is not there."""
        span = self._attributes(element).get(name)
        return [] if span is None else [place._replace(owner=element) for place in _characters(self.data, *span)]

    def remove_attribute(self, element: Element, name: str) -> None:
        """Take out an attribute that is there."""
        start = self._attributes(element)[name][1] + 1
        match = next(m for m in _ATTRIBUTE.finditer(self.data, element.start, start) if m.end() == start)
        self.replace(match.start(), start, "")

    def set_attribute(self, element: Element, name: str, value: str) -> None:
        """Change an attribute, or add it behind the others."""
        span = self._attributes(element).get(name)
        quoted = escape_xml(value, {'"': "&quot;", "'": "&apos;", "\n": "&#10;", "\t": "&#9;"})
        if span is None:
            end = self.opening(element)[0]
            self.replace(end, end, f' {name}="{quoted}"')
        else:
            self.replace(*span, quoted)

    def opening(self, element: Element) -> tuple[int, int]:
        """Where the attributes of an element's start tag end, and where the tag does."""
        end = max((span[1] + 1 for span in self._attributes(element).values()), default=self._name(element).end())
        return end, self.data.index(b">", end) + 1

    def prefix(self, element: Element) -> str:
        """The namespace prefix of an element, with its colon, as it is written."""
        name = self._name(element)[0][1:].decode()
        return name[: name.rfind(":") + 1]

    def _name(self, element: Element) -> re.Match[bytes]:
        name = _TAG_NAME.match(self.data, element.start)
        assert name is not None
        return name

    def _attributes(self, element: Element) -> dict[str, tuple[int, int]]:
        found, end = dict[str, tuple[int, int]](), self._name(element).end()
        while (match := _ATTRIBUTE.match(self.data, end)) is not None:
            found[match[1].decode()] = match.start(2) + 1, match.end(2) - 1
            end = match.end()
        return found


def _codec(data: bytes) -> str:
    """The encoding of an XML file, with any byte order mark as a character."""
    for mark, codec in (
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
        (b"<\0", "utf-16-le"),
        (b"\0<", "utf-16-be"),
    ):
        if data.startswith(mark):
            return codec
    declared = re.match(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)[\"']", data)
    return "utf-8" if declared is None else declared[1].decode().lower()


def _characters(data: bytes, start: int, end: int) -> list[Place]:
    places = []
    for match in _CHARACTER.finditer(data, start, end):
        raw = match[0]
        if raw.startswith(b"&#"):
            character = chr(int(raw[3:-1], 16) if raw[2:3] in b"xX" else int(raw[2:-1]))
        elif raw.startswith(b"&"):
            character = _ENTITIES[raw]
        else:
            character = "\n" if raw.startswith(b"\r") else raw.decode()
        places.append(Place(character, *match.span(), None))
    return places


def put(document: Document, places: Sequence[Place], one: Filling) -> Element | None:
    """Put a filling among the characters of a line; gives the element that it is in, or None where its mark is not inside one."""
    if _NOT_XML.search(one.text):
        return None
    if one.end > one.start:
        covered = places[one.start : one.end]
        start, end = covered[0].start, covered[-1].end
    else:  # behind the character before it, else before the one after it
        beside = places[one.start - 1 : one.start] or places[:1]
        covered = beside if beside and beside[0].owner is not None else places[one.start : one.start + 1]
        if not covered:
            return None
        start = end = covered[0].end if covered == places[one.start - 1 : one.start] else covered[0].start
    owner = covered[0].owner
    if owner is None or any(place.owner is not owner for place in covered):
        return None
    quotes = {"\n": " ", "\t": " ", '"': "&quot;", "'": "&apos;"}
    document.replace(start, end, escape_xml(one.text, quotes))
    return owner
