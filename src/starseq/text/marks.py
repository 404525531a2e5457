r"""A transcriber's marks: what says that text cannot be read, is not sure, or is not there, becomes a gap, text, or nothing.

A mark is a gap (``[...]``), uncertain text (``[word?]``), text in brackets that are left out, or nothing at all. Rules say which;
`SETS` has those of common conventions. What looks like a mark and has no rule becomes a gap too, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from starseq.text.gaps import join_gaps, split_gaps

__all__ = ["SETS", "Action", "Extent", "Found", "GapMark", "Marked", "Marks", "Rule", "Span", "extent_of", "suspects"]

Action = Literal["gap", "unclear", "keep", "drop"]
Unclear = Literal["keep", "gap"]

UNKNOWN = "no rule"
STAR = "*"

_GAP = "\ufdd0"
"""stands for a `*` that is a gap, while marks are looked for; a noncharacter, which no text has"""


class Rule(NamedTuple):
    """What becomes of what `pattern` finds. Its group ``text`` is what a person read there: it is kept, or, in a gap, noted."""

    name: str
    action: Action
    pattern: re.Pattern[str]


class Span(NamedTuple):
    """A mark that stands beside a text, as the tags of PAGE-XML do: characters start .. end - 1. `mark` is how it is written,
    and `holds` says that these characters are what a person read there, and not only the mark of a gap."""

    start: int
    end: int
    action: Action
    name: str
    mark: str
    holds: bool = True


class Extent(NamedTuple):
    """How much is missing in a gap, as far as the transcriber knew: `least` to `most` characters or words."""

    least: int
    most: int
    unit: Literal["char", "word"]


class GapMark(NamedTuple):
    """Where a gap comes from: characters start .. end - 1 of the source. `holds` is what a person read there, if anything."""

    start: int
    end: int
    mark: str
    holds: str = ""
    extent: Extent | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the field `gap_marks` of a manifest has it."""
        fields: dict[str, Any] = {"start": self.start, "end": self.end, "mark": self.mark}
        if self.holds:
            fields["holds"] = self.holds
        return fields if self.extent is None else fields | self.extent._asdict()


class Found(NamedTuple):
    """A mark, and what became of it."""

    name: str
    action: Action
    start: int
    end: int


class Marked(NamedTuple):
    """A text whose marks were read: `gaps` has the origin of each gap of `text`, in order."""

    text: str
    gaps: tuple[GapMark, ...]
    found: tuple[Found, ...]


class _Piece(NamedTuple):
    text: str
    gap: GapMark | None = None


class Marks:
    """Rules, ready to read texts.

    Args:
        named: a set of `SETS`, or a file with a rule a line: an action, white space, a regular expression. None: `gap` alone.
        gap: more regular expressions, which go before the others.
        unclear: whether uncertain text is kept, or a gap.

    Raises ValueError for a set that there is not, and for what is no rule.

        >>> Marks("leiden")("Ste [...] of [3 letters], a(bc) [?]").text
        'Ste * of *, a *'
        >>> Marks("speech", unclear="gap")("so ((I think)) [laughter] yes <unk>").text
        'so * yes *'
        >>> Marks(gap=["@+"])("the @@ fox [sic]").found[1]
        Found(name='no rule', action='gap', start=11, end=16)
    """

    def __init__(self, named: str | Path | None = None, gap: Sequence[str] = (), unclear: Unclear = "keep") -> None:
        own = [Rule(f"--gap {pattern}", "gap", _compiled(pattern, f"--gap {pattern!r}")) for pattern in gap]
        if named is None:
            rules: Sequence[Rule] = ()
        elif str(named) in SETS:
            rules = SETS[str(named)]
        elif Path(named).is_file():
            rules = _read(Path(named))
        else:
            raise ValueError(f"marks: {str(named)!r} is neither one of {', '.join(SETS)} nor a file")
        if unclear not in get_args(Unclear):
            raise ValueError(f"unclear: {unclear!r} is neither keep nor gap")
        self._rules, self._unclear = [*own, *rules, _STAR_RULE], unclear

    def __call__(self, text: str, spans: Sequence[Span] = ()) -> Marked:
        """Reads the marks of `text`, in which a `*` is a gap. Places count it, and an escaped star, as one character."""
        if _GAP in text:
            raise ValueError("the text has U+FDD0, which is no character")
        source = _GAP.join(split_gaps(text))
        found: list[Found] = []
        pieces: list[_Piece] = []
        for piece in self._pieces(
            source, 0, len(source), sorted(spans, key=lambda span: (span.start, -span.end)), found
        ):
            before = pieces[-1].gap if pieces else None
            if before is not None and piece.gap is not None and not before.mark == piece.gap.mark == STAR:
                pieces[-1] = _Piece("", _joined(before, piece.gap, source))
            elif piece.text or piece.gap is not None:
                pieces.append(piece)
        segments = [""]
        for piece in pieces:
            if piece.gap is None:
                segments[-1] += piece.text
            else:
                segments.append("")
        found.sort(key=lambda one: (one.start, -one.end))
        return Marked(join_gaps(segments), tuple(piece.gap for piece in pieces if piece.gap is not None), tuple(found))

    def _pieces(self, text: str, start: int, end: int, spans: Sequence[Span], found: list[Found]) -> Iterator[_Piece]:
        done = start
        for begin, stop, action, name, content, mark in self._marks(text, start, end, spans):
            between = list(_plain(text, done, begin, found))
            done = stop
            if action == "drop" and _stands_alone(text, begin, stop):  # it goes with one of its two spaces
                while done < end and text[done].isspace():
                    done += 1
                if stop == end and between:
                    between[-1] = between[-1]._replace(text=between[-1].text.rstrip())
            yield from between
            if name != STAR:
                found.append(Found(name, action, begin, stop))
            first, last = content
            if action == "gap" or (action == "unclear" and self._unclear == "gap"):
                holds = text[first:last].replace(_GAP, "*") if first >= 0 else ""
                yield _Piece("", GapMark(begin, stop, mark, holds.strip(), None if holds else extent_of(mark)))
            elif action != "drop":
                inner = [span for span in spans if (span.start, span.end) != (begin, stop)]
                if first < 0 or ((first, last) == (begin, stop) and len(inner) == len(spans)):
                    yield _Piece(text[begin:stop])
                else:
                    yield from self._pieces(text, first, last, inner, found)
        yield from _plain(text, done, end, found)

    def _marks(
        self, text: str, start: int, end: int, spans: Sequence[Span]
    ) -> Iterator[tuple[int, int, Action, str, tuple[int, int], str]]:
        """The marks in characters start .. end - 1, from left to right: none within another."""
        waiting = [span for span in spans if start <= span.start and span.end <= end]
        ahead: dict[int, re.Match[str] | None] = {}
        place = start
        while True:
            waiting = [span for span in waiting if span.start >= place]
            best: re.Match[str] | None = None
            number = -1
            for index, rule in enumerate(self._rules):
                match = ahead.get(index)
                if index not in ahead or (match is not None and match.start() < place):
                    match = ahead[index] = _search(rule.pattern, text, place, end)
                if match is not None and (best is None or match.start() < best.start()):
                    best, number = match, index
            if waiting and (best is None or waiting[0].start <= best.start()):
                span = waiting.pop(0)
                content = (span.start, span.end) if span.holds else (-1, -1)
                yield span.start, span.end, span.action, span.name, content, span.mark
                place = span.end
            elif best is None:
                return
            else:
                rule = self._rules[number]
                content = best.span("text") if "text" in rule.pattern.groupindex else (-1, -1)
                yield best.start(), best.end(), rule.action, rule.name, content, best[0].replace(_GAP, STAR)
                place = best.end()


def suspects(text: str) -> list[str]:
    """What looks like a mark in a text (in which a `*` is a gap): brackets and what they hold, and runs of stars and the like.

    >>> suspects("a [sic] (or so) ## fox")
    ['[sic]', '##']
    """
    return [match[0] for segment in split_gaps(text) for match in _SUSPECT.finditer(segment)]


def extent_of(mark: str) -> Extent | None:
    """What a mark says of how much is missing.

    >>> extent_of("[3 letters]"), extent_of("[c. 4 mots]"), extent_of('<gap atLeast="2" atMost="5" unit="char"/>')
    (Extent(least=3, most=3, unit='char'), Extent(least=2, most=8, unit='word'), Extent(least=2, most=5, unit='char'))
    >>> extent_of("[...]") is None
    True
    """
    attributes = {name.lower(): value for name, value in re.findall(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']", mark)}
    unit = _unit(attributes.get("unit", ""))
    if unit is not None:
        quantity = attributes.get("quantity", attributes.get("extent", ""))
        least, most = attributes.get("atleast", quantity), attributes.get("atmost", quantity)
        if least.isdecimal() and most.isdecimal() and int(least) <= int(most):
            return Extent(int(least), int(most), unit)
    match = _COUNTED.search(mark) or _LEIDEN_COUNT.fullmatch(mark)
    if match is None:
        return None
    least_count = int(match["least"])
    most_count = int(match["most"] or least_count)
    if match["about"]:
        least_count, most_count = max(1, least_count // 2), 2 * most_count
    unit = _unit(match["unit"]) if "unit" in match.re.groupindex else "char"
    return Extent(least_count, most_count, unit) if unit is not None and least_count <= most_count else None


# --- rules ------------------------------------------------------------------------------------------------------------


def _compiled(pattern: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{what}: not a regular expression: {error}") from None


def _read(path: Path) -> list[Rule]:
    """Rules of a file. Blank lines, and lines that begin with #, say nothing; ``include NAME`` takes the rules of a set."""
    rules: list[Rule] = []
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(lines, start=1):
        action, _, pattern = line.strip().partition(" ")
        pattern = pattern.strip()
        where = f"{path}, line {number}"
        if not action or action.startswith("#"):
            continue
        if action == "include" and pattern in SETS:
            rules += SETS[pattern]
        elif action in get_args(Action) and pattern:
            rules.append(Rule(pattern, action, _compiled(pattern, where)))  # type: ignore[arg-type]
        else:
            raise ValueError(
                f"{where}: {line.strip()[:60]!r} is not a rule: gap, unclear, keep or drop with a regular expression, "
                f"or include with one of {', '.join(SETS)}"
            )
    return rules


def _rules(*rules: tuple[str, Action, str]) -> tuple[Rule, ...]:
    return tuple(Rule(name, action, re.compile(pattern, re.VERBOSE)) for name, action, pattern in rules)


_LOST_WORDS = r"""(?i:illegible|illisibles?|unleserliche?|unlesbar|ilegibles?|illeggibil[ei]|onleesbaar
    |inaudibles?|unintelligible|inintelligibles?|indistinct|unverst(?:ä|ae)ndlich|crosstalk|unclear|unreadable
    |missing|lost|lacuna|lacune|gap|damaged?|torn|manquante?s?|unk|unknown)"""
_CHARS = r"""(?i:lett(?:er|re|era|ere)s?|letras?|char(?:acter)?s?|caract[eè]res?|signs?|Buchstaben?|Zeichen)"""
_WORDS = r"""(?i:words?|mots?|W(?:o|ö)rte?r?|palabras?|parole|parola)"""
_UNITS = rf"(?:{_CHARS}|{_WORDS})"
_COUNTED = re.compile(
    r"(?P<about>(?i:ca?\.|ca|circa|about|env\.|environ|±|~)\s*)?(?P<least>\d{1,3})"
    rf"(?:\s*(?:-|\u2013|to|à|bis)\s*(?P<most>\d{{1,3}}))?\s*(?P<unit>{_UNITS})\b"
)
_LEIDEN_NUMBER = r"""\[ \s* (?:\.+|-)? \s* (?P<about>ca?\.?|±|~)? \s* (?P<least>\d{1,3})
    (?: \s*[-\u2013]\s* (?P<most>\d{1,3}) )? \s* \?? \s* (?:\.+|-)? \s* \]"""
_LEIDEN_COUNT = re.compile(_LEIDEN_NUMBER, re.VERBOSE)


def _unit(name: str) -> Literal["char", "word"] | None:
    return "char" if re.fullmatch(_CHARS, name) else "word" if re.fullmatch(_WORDS, name) else None


_COMMON = _rules(
    ("[...]", "gap", r"\[ \s* [.…·\u2013—-] [\s.…·\u2013—-]* \]"),
    ("[?]", "gap", r"\[{1,2} \s* (?: \?+ | X{2,} | x{2,} ) \s* \]{1,2} | \( \s* \?+ \s* \) (?<!\w\(\?\))"),
    ("[]", "gap", r"\[\s*\] (?!\]) | \[\[\s*\]\] | ⟦\s*⟧"),
    ("[3 letters]", "gap", rf"\[ [^\[\]]* \b\d{{1,3}} \s* {_UNITS}\b [^\[\]]* \]"),
    ("[illegible]", "gap", rf"\[{{1,2}} (?: [^\[\]]{{0,20}} \s )? {_LOST_WORDS}\b [^\[\]]{{0,20}} \]{{1,2}}"),
    ("[illegible]", "gap", rf"[(<{{] \s* {_LOST_WORDS} \s* [)>}}]"),
    ("[word?]", "unclear", r"\[{1,2} \s* (?P<text>[^\[\]?]+?) \s* \?+ \s* \]{1,2}"),
    ("⟦struck⟧", "gap", r"⟦ (?P<text>[^⟦⟧]*) ⟧"),
    ("XXX", "gap", r"(?<![^\W_]) (?: X{3,} | x{3,} ) (?![^\W_])"),
    ("***", "gap", r"\*{2,} | \#{2,} | (?<!\S)\?{3,}(?!\S)"),
)  # fmt: skip
_STRUCK = _rules(
    ("><", "gap", r">\s*< | <\s*>"),
    ("< struck >", "gap", r"< (?P<text>\s [^<>]*) >"),
    (">struck<", "gap", r"> (?P<text>[^<>]+) <"),
)  # fmt: skip
_LEIDEN = _rules(
    ("[.3.]", "gap", _LEIDEN_NUMBER),
    ("[[struck]]", "gap", r"\[\[ (?P<text>[^\[\]]*) \]\]"),
    ("(vacat)", "drop", r"\( \s* (?:vac(?:at|\.)?) [^()]* \)"),
    ("word(?)", "unclear", r"(?P<text>\w+) \(\?\)"),
    ("[supplied]", "gap", r"\[ (?P<text>[^\[\]]+) \]"),
    ("[supplied over lines]", "gap", r"\[ (?P<text>[^\[\]]*) $"),
    ("[supplied over lines]", "gap", r"^ (?P<text>[^\[\]]*) \]"),
    ("a(bc) expanded", "drop", r"(?<=\w) \( \w[^()]* \)"),
    ("{surplus}", "keep", r"\{ (?P<text>[^{}]+) \}"),
    ("<added>", "gap", r"[<⟨] (?P<text>[^<>⟨⟩]+) [>⟩]"),
    ("+++", "gap", r"\+ (?:\s*\+){2,}"),
)  # fmt: skip
_KEPT_TAGS = (
    "add|hi|sic|orig|abbr|am|subst|choice|expan|surplus|seg|w|name|persName|placeName|date|num|foreign|l|s|p|ab"
)
_TEI = _rules(
    ("<gap>", "gap", r"<gap\b [^<>]* /> | <gap\b [^<>]* > [^<>]* </gap\s*>"),
    ("<unclear>", "unclear", r"<unclear\b [^<>/]* > (?P<text>.*?) </unclear\s*>"),
    ("<supplied>", "gap", r"<supplied\b [^<>/]* > (?P<text>.*?) </supplied\s*>"),
    ("<del>", "gap", r"<del\b [^<>/]* > (?P<text>.*?) </del\s*> | <del\b [^<>]* />"),
    ("<ex> expanded", "drop", r"<ex\b [^<>/]* > .*? </ex\s*>"),
    ("<corr>, <reg>, <expan>", "drop", r"(?<=</sic>) \s* <corr\b .*? </corr\s*> | (?<=</orig>) \s* <reg\b .*? </reg\s*>"),
    ("<corr>, <reg>, <expan>", "drop", r"(?<=</abbr>) \s* <expan\b .*? </expan\s*>"),
    ("other tags", "keep", rf"</? (?:{_KEPT_TAGS})\b [^<>]* > (?P<text>)"),
    ("<lb>, <space>", "drop", r"<(?:lb|pb|cb|space|handShift|milestone|anchor)\b [^<>]* />"),
)  # fmt: skip
_OTHER_TAGS = _rules(
    (UNKNOWN, "gap", r"<(?P<tag>\w+)\b [^<>]* > (?P<text>.*?) </(?P=tag)\s*>"),
    (UNKNOWN, "gap", r"(?P<text></?\w [^<>]* >)"),
)
_NOISES = r"""(?:(?:vocalized|v|background)[-_\ ])?noise|laugh(?:ter|s)?|cough(?:ing|s)?|breath(?:ing|s)?|lipsmack|sneeze|applause
    |music|silence|sil|pause|rires?|bruit|lg|br|cg|ls|ns|/?s"""
_SPEECH = _rules(
    ("<unk>", "gap", r"[<\[] (?i: unk | spn | spoken_noise ) [>\]]"),
    ("(())", "gap", r"\(\( \s* \)\)"),
    ("((uncertain))", "unclear", r"\(\( \s* (?P<text>[^()]+?) \s* \)\)"),
    ("[laughter-word]", "keep", r"\[ (?i:laughter)- (?P<text>[^\[\]]+) \]"),
    ("[noise]", "drop", rf"[\[<{{] \s* (?i:{_NOISES}) \s* [\]>}}]"),
    ("[00:12:34]", "drop", r"\[ \s* \d{1,2} (?: :\d\d ){1,2} (?:\.\d+)? \s* \]"),
)  # fmt: skip

SETS: dict[str, Sequence[Rule]] = {
    "leiden": (*_LEIDEN[:1], *_COMMON, *_STRUCK, *_LEIDEN[1:]),
    "tei": (*_TEI, *_COMMON, *_OTHER_TAGS),
    "transkribus": (*_COMMON, *_STRUCK),
    "speech": (*_SPEECH, *_COMMON),
}
"""Rules by the name of their convention. What all conventions share is in each: ``[...]``, ``[?]``, ``[word?]``, ``XXX``, ..."""

_STAR_RULE = Rule(STAR, "gap", re.compile(_GAP))

_SUSPECT = re.compile(
    r"\[[^\[\]]*\]|⟦[^⟦⟧]*⟧|<[^<>]*>|>[^<>]*<|\{[^{}]*\}|\(\([^()]*\)\)|\(\?+\)|[\[\]⟦⟧⟨⟩<>{}]|\*+|#{2,}|\?{3,}"
    r"|(?<![^\W_])(?:X{3,}|x{3,})(?![^\W_])|(?<=[a-z])X{3,}|X{3,}(?=[a-z])"
)


def _stands_alone(text: str, start: int, end: int) -> bool:
    return (not start or text[start - 1].isspace()) and (end == len(text) or text[end].isspace())


def _search(pattern: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    """The first match that is not empty."""
    return next((match for match in pattern.finditer(text, start, end) if match[0]), None)


def _plain(text: str, start: int, end: int, found: list[Found]) -> Iterator[_Piece]:
    """Text that no rule took: what looks like a mark all the same becomes a gap."""
    for match in _SUSPECT.finditer(text, start, end):
        yield _Piece(text[start : match.start()])
        found.append(Found(UNKNOWN, "gap", *match.span()))
        yield _Piece("", GapMark(*match.span(), match[0], match[0]))
        start = match.end()
    yield _Piece(text[start:end])


def _joined(one: GapMark, other: GapMark, source: str) -> GapMark:
    """Two gaps with nothing between them."""
    extent = None
    if one.extent is not None and other.extent is not None and one.extent.unit == other.extent.unit:
        extent = Extent(one.extent.least + other.extent.least, one.extent.most + other.extent.most, one.extent.unit)
    mark = source[one.start : other.end].replace(_GAP, STAR)
    return GapMark(one.start, other.end, mark, " ".join(filter(None, (one.holds, other.holds))), extent)
