"""XML, read safely: no document type, so neither external entities nor entities that grow without end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.images import SUFFIXES
from starseq.data.manifest import ManifestError


@dataclass
class Element:
    """An element without its namespace, with the line that it starts on.

    >>> page = parse_xml(b'<p:Page xmlns:p="urn:x"><p:Line id="a">hi</p:Line></p:Page>', "page.xml")
    >>> [(line.tag, line.get("id"), line.text, line.line) for line in page.all("Line")]
    [('Line', 'a', 'hi', 1)]
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""
    content: list[Element | str] = field(default_factory=list)
    """children and pieces of text, in their order"""
    start: int = 0
    """the byte that its start tag begins on"""
    end: int = 0
    """and its end tag"""

    def get(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, default)

    def child(self, tag: str) -> Element | None:
        return next((child for child in self.children if child.tag == tag), None)

    def each(self, *tags: str) -> Iterator[Element]:
        """The children with one of these tags."""
        return (child for child in self.children if child.tag in tags)

    def all(self, tag: str) -> Iterator[Element]:
        """All descendants with this tag, in document order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)


def parse_xml(data: bytes, name: str, *, encoding: str | None = None) -> Element:
    """The root element of a document. What is not well formed, or declares a document type, is a `ManifestError`. An `encoding`
    counts whatever the document declares."""
    parser = expat.ParserCreate(encoding, namespace_separator=" ")
    top = Element("", {}, 0)
    stack = [top]

    def start(tag: str, attributes: dict[str, str]) -> None:
        plain = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        element = Element(tag.rpartition(" ")[2], plain, parser.CurrentLineNumber, start=parser.CurrentByteIndex)
        stack[-1].children.append(element)
        stack[-1].content.append(element)
        stack.append(element)
        if len(stack) > 200:
            raise ManifestError(name, parser.CurrentLineNumber, "elements are nested more than 200 deep")

    def end(_: str) -> None:
        stack.pop().end = parser.CurrentByteIndex

    def characters(text: str) -> None:
        stack[-1].text += text
        stack[-1].content.append(text)

    def doctype(*_: object) -> None:
        raise ManifestError(name, parser.CurrentLineNumber, "declares a document type, which is refused")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = characters, doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = f"not well-formed XML ({expat.ErrorString(error.code)})"
        raise ManifestError(name, error.lineno, reason) from None
    except LookupError as error:
        raise ManifestError(name, 1, f"an {error}") from None
    return top.children[0]


def points(text: str, name: str) -> list[tuple[float, float]]:
    """Coordinates, as ``x,y x,y`` or ``x y x y``.

    >>> points("1,2 3,4", "Coords") == points("1 2 3 4", "Coords")
    True
    """
    try:
        numbers = [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise DataError(f"{name} {text[:40]!r} are not coordinates") from None
    if len(numbers) % 2 or not all(abs(number) < 1e6 for number in numbers):
        raise DataError(f"{name} {text[:40]!r} are not pairs of coordinates")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def find_image(named: str, xml: Path, root: Path) -> Path | None:
    """The page image of an XML file: where `named` says, else by that name beside the XML or above it, else by the
    XML's own name. Nothing outside `root` counts, whatever the XML says. Both paths are absolute."""
    base = named.replace("\\", "/").rpartition("/")[2]
    candidates = [xml.parent / named, xml.parent / base, xml.parent.parent / base] if base else []
    for folder in (xml.parent, xml.parent.parent):
        candidates += [folder / (xml.stem + suffix) for suffix in sorted(SUFFIXES)]
    for candidate in candidates:
        try:
            real = resolve_inside(str(candidate), xml.parent, root)
        except DataError:
            continue
        if real.is_file() and real.suffix.lower() in SUFFIXES:
            return real
    return None
