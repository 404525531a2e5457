r"""A person's text, cut into what is known and what is open: a model reads beside it, and what it reads goes into the gaps.

The known part is kept as it was written, to the byte. A model sees it through its normaliser and its vocabulary, as labels; of
what it reads, only what stands in an open gap is put into the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from starseq.text.gaps import join_gaps, split_gaps
from starseq.text.tokeniser import Tokeniser

__all__ = ["Known", "Reading", "Unit", "Written", "known_text"]


class Unit(NamedTuple):
    """A word or a character that a model read: its text, and its tokens by their numbers in the transcript."""

    text: str
    tokens: tuple[int, ...]


class Reading(NamedTuple):
    """What was read in a gap, `marked` or not. `problem` says why it must not be written there, where it must not."""

    gap: int
    units: tuple[Unit, ...]
    marked: bool
    problem: str | None = None


class Written(NamedTuple):
    """A text with fillings. `positions`: of each gap that was given, where its filling, or its mark, stands in the text. A mark
    counts as one character there, and so does an escaped star."""

    text: str
    positions: dict[int, int]


class _Place(NamedTuple):
    """Where the filling of a gap goes: for a mark, or into the only segment."""

    mark: int
    """number of the first mark; -1 where the text has none"""
    last: int
    """of the marks that follow it with nothing between"""
    offset: int
    """in the segment, where there is no mark"""
    before: int
    """labels with a letter or digit that the model cannot write, between the known label before the gap and the place"""
    after: int
    """and between the place and the known label behind the gap"""
    left: str
    """the piece of a word that the mark touches"""
    right: str


class _Label(NamedTuple):
    """A label as the normaliser makes it, and where it comes from: characters start .. end - 1 of a segment."""

    text: str
    segment: int
    start: int
    end: int
    first: int
    """the number of the first piece that it comes from"""
    last: int


@dataclass(frozen=True)
class Known:
    """What is known of a text, made by `known_text`.

    labels: (U,) the known labels that the model can write, as indices. open: (U + 1,) the gaps in which it may read something:
    those in which text may be missing, and those of labels that it cannot write. unknown: these labels. complete: nothing is
    missing. empty: nothing is known. count: how many words or characters are known.
    """

    labels: tuple[int, ...]
    open: tuple[bool, ...]
    unknown: tuple[str, ...]
    complete: bool
    empty: bool
    count: int
    _tokeniser: Tokeniser
    _segments: tuple[str, ...]
    _places: tuple[_Place | None, ...]

    @property
    def marked_gaps(self) -> list[int]:
        """The gaps that a mark stands in."""
        return [gap for gap, place in enumerate(self._places) if place is not None and place.mark >= 0]

    def readings(self, tokens: Sequence[int], known: Iterable[bool]) -> list[Reading]:
        """What a transcript (n,) that contains the labels has in the open gaps; `known` (n,) says which tokens are labels.

        Where words or letters stand that the model cannot write, each takes one of what was read: the model's attempt at it.
        White space alone fills no mark.

        >>> from starseq.text.vocabulary import Vocabulary
        >>> tokeniser = Tokeniser(Vocabulary(["the", "quick", "cow", "fox"]), "word", unknown="drop")
        >>> text = known_text(tokeniser, "the * zebu fox")
        >>> [reading] = text.readings([1, 2, 3, 4], [True, False, False, True])        # it takes the zebu for a cow
        >>> [unit.text for unit in reading.units]
        ['quick']
        """
        gaps: list[list[int]] = [[]]
        for number, is_label in enumerate(known):
            if is_label:
                gaps.append([])
            else:
                gaps[-1].append(number)
        if len(gaps) != len(self._places):
            raise ValueError(
                f"known: {len(self.labels)} labels are known, and the transcript has {len(gaps) - 1} of them"
            )
        readings = []
        for gap, (place, added) in enumerate(zip(self._places, gaps, strict=True)):
            if place is None or not added:
                continue
            units = self._units(tokens, added)
            if place.mark < 0 and place.after:
                if len(units) > place.after:
                    problem = "it stands beside characters that the run cannot write, on one side or the other"
                    readings.append(Reading(gap, units, False, problem))
                continue
            reading = self._at(gap, place, units[place.before : len(units) - place.after], tokens)
            if reading.units and (place.mark < 0 or any(unit.text.strip() for unit in reading.units)):
                readings.append(reading)
        return readings

    def _at(self, gap: int, place: _Place, units: tuple[Unit, ...], tokens: Sequence[int]) -> Reading:
        if self._tokeniser.unit == "char" or not units:
            return Reading(gap, units, place.mark >= 0)
        if self._tokeniser.is_continuation(self._tokeniser.vocabulary[tokens[units[0].tokens[0]]]):
            if gap or place.before:
                return Reading(gap, units, place.mark >= 0, "it continues a word that is known")
            units = (units[0]._replace(text=self._tokeniser.decode_piece(units[0].text)), *units[1:])
        # A word that the mark touches is known in part: what was read has to agree with that part, and only the rest is new.
        left, right = (piece if any(map(str.isalnum, piece)) else "" for piece in (place.left, place.right))
        first, last = units[0].text, units[-1].text
        room = len(first) if len(units) == 1 else len(left) + len(right)
        if not (first.startswith(left) and last.endswith(right) and len(left) + len(right) <= room):
            return Reading(gap, units, place.mark >= 0, f"it does not agree with {left + '*' + right!r}")
        texts = [unit.text for unit in units]
        texts[0] = texts[0][len(left) :]
        texts[-1] = texts[-1][: len(texts[-1]) - len(right)]
        return Reading(
            gap, tuple(unit._replace(text=text) for unit, text in zip(units, texts, strict=True)), place.mark >= 0
        )

    def _units(self, tokens: Sequence[int], numbers: Sequence[int]) -> tuple[Unit, ...]:
        vocabulary, units = self._tokeniser.vocabulary, list[Unit]()
        for number in numbers:
            text = vocabulary[tokens[number]]
            if units and self._tokeniser.is_continuation(text):
                word = units.pop()
                units.append(Unit(word.text + self._tokeniser.decode_piece(text), (*word.tokens, number)))
            else:
                units.append(Unit(self._tokeniser.decode_first(text), (number,)))
        return tuple(units)

    def marks_in(self, gap: int) -> range:
        """The numbers of the marks, counted through the text, that a filling of this gap takes the place of."""
        place = self._places[gap]
        return range(0) if place is None or place.mark < 0 else range(place.mark, place.last + 1)

    def write(self, fillings: Mapping[int, Sequence[str | None]]) -> Written:
        r"""The text with `fillings`, by gap: words or characters, None for one that is open. All other marks stay.

        >>> from starseq.text.vocabulary import Vocabulary
        >>> text = known_text(Tokeniser(Vocabulary("abc"), "char", unknown="drop"), r"B\** (c*)")
        >>> text.write({0: "ab"}).text
        'B\\*ab (c*)'
        >>> text.write({0: "ab", 1: ["b", None]})
        Written(text='B\\*ab (cb*)', positions={0: 2, 1: 7})
        """
        marks: dict[int, int] = {}
        inside: list[tuple[int, int]] = []
        for gap, items in fillings.items():
            place = self._places[gap]
            if place is None:
                raise ValueError(f"gap {gap}: nothing is missing there")
            if place.mark >= 0:
                marks[place.mark] = gap
            elif items:
                inside.append((place.offset, gap))
        out, positions = _Text(), dict[int, int]()
        filled = -1  # marks up to this one are
        words = self._tokeniser.unit == "word"
        for number, segment in enumerate(self._segments):
            if number and number - 1 > filled:
                gap = marks.get(number - 1, -1)
                positions[gap] = out.length
                if any(item is not None for item in fillings.get(gap, ())):
                    self._put(out, fillings[gap])
                    filled = cast(_Place, self._places[gap]).last
                else:
                    out.gap()
            done = 0
            for offset, gap in sorted(inside):
                out.text(segment[done:offset])
                done = offset
                if words and offset and not segment[offset - 1].isspace():
                    out.text(" ")
                positions[gap] = out.length
                self._put(out, fillings[gap])
                if words and offset < len(segment) and not segment[offset].isspace():
                    out.text(" ")
            out.text(segment[done:])
        positions.pop(-1, None)
        return Written(join_gaps(out.segments), positions)

    def joined(self, items: Sequence[str | None]) -> str:
        """Words or characters, and gaps (None), as one text with marks."""
        return join_gaps(self._joined(items).segments)

    def length(self, items: Sequence[str | None]) -> int:
        """How far behind the first of some words or characters the next one stands."""
        return self._joined(items).length + (self._tokeniser.unit == "word" and bool(items))

    def _joined(self, items: Sequence[str | None]) -> _Text:
        out = _Text()
        self._put(out, items)
        return out

    def _put(self, out: _Text, items: Sequence[str | None]) -> None:
        was_open = False
        for number, item in enumerate(items):
            if item is None and was_open:
                continue
            if number and self._tokeniser.unit == "word":
                out.text(" ")
            was_open = item is None
            if item is None:
                out.gap()
            else:
                out.text(item)


class _Text:
    """A text under way: literal segments, with a gap between each two."""

    def __init__(self) -> None:
        self.segments = [""]
        self.length = 0

    def text(self, literal: str) -> None:
        self.segments[-1] += literal
        self.length += len(literal)

    def gap(self) -> None:
        self.segments.append("")
        self.length += 1


# --- cutting ----------------------------------------------------------------------------------------------------------


def known_text(tokeniser: Tokeniser, text: str, *, marked: bool = False) -> Known:
    """Cut a text into what is known and what is open. Labels and gaps are those of `Tokeniser.encode`, but for two things: a
    label that the vocabulary lacks is never an error, and what a single character of the text becomes (``ss`` of an ``ß``) is
    closed inside.

    >>> from starseq.text.vocabulary import Vocabulary
    >>> known = known_text(Tokeniser(Vocabulary("deMrRaphl "), "char"), "Mr Raphaël *")
    >>> "".join(known._tokeniser.decode(known.labels)), known.unknown, known.open.index(True)
    ('Mr Raphal ', ('ë',), 8)
    """
    segments = tuple(split_gaps(text))
    is_open_everywhere = len(segments) == 1 and not marked
    characters = _characters(tokeniser, segments)
    if tokeniser.unit == "char":
        labels, pieces = [character for each in characters for character in each], [("", "")] * len(segments)
    else:
        labels, pieces = _words(characters)
    gaps = _gaps(tokeniser, labels, segments) if is_open_everywhere else _marks(labels, len(segments))

    indices: list[int] = []
    opens: list[bool] = []
    places: list[_Place | None] = []
    unknown: list[str] = []
    since = 0  # the first label after the last one that can be written
    for position in range(len(labels) + 1):
        spelled = _spelled(tokeniser, labels[position].text) if position < len(labels) else []
        if position < len(labels) and not spelled:
            unknown.append(labels[position].text)
            continue
        here = next((gap for gap in range(since, position + 1) if gaps[gap]), None)
        opens.append(here is not None or position > since)
        places.append(None)
        if here is not None:
            before, after = (
                sum(any(map(str.isalnum, label.text)) for label in part)
                for part in (labels[since:here], labels[here:position])
            )
            if is_open_everywhere:
                offset = _offset(tokeniser, labels, here, segments[0])
                places[-1] = _Place(-1, -1, offset, before, after, "", "")
            else:
                mark = last = gaps[here][0]
                while last + 1 < len(segments) - 1 and not segments[last + 1]:
                    last += 1
                places[-1] = _Place(mark, last, 0, before, after, pieces[mark][1], pieces[last + 1][0])
        indices.extend(spelled)
        opens.extend([False] * (len(spelled) - 1))
        places.extend([None] * (len(spelled) - 1))
        since = position + 1
    return Known(
        tuple(indices), tuple(opens), tuple(unknown), complete=not is_open_everywhere and len(segments) == 1,
        empty=not any(segment.strip() for segment in segments), count=len(labels), _tokeniser=tokeniser,
        _segments=segments, _places=tuple(places),
    )  # fmt: skip


def _characters(tokeniser: Tokeniser, segments: Sequence[str]) -> list[list[_Label]]:
    """The characters of each segment as the normaliser leaves them, and where they come from."""
    normaliser = tokeniser.normaliser
    result = []
    for number, segment in enumerate(segments):
        pieces = [(c, c) for c in segment] if normaliser is None else normaliser.pieces(segment)
        characters, end = list[_Label](), 0
        for index, (raw, normal) in enumerate(pieces):
            start, end = end, end + len(raw)
            for character in normal:
                space = character.isspace() and normaliser is not None and normaliser.squeeze
                if space and characters and characters[-1].text.isspace():
                    characters[-1] = characters[-1]._replace(end=end, last=index)
                else:
                    characters.append(_Label(" " if space else character, number, start, end, index, index))
        result.append(characters)
    if normaliser is not None and normaliser.squeeze:
        if result[0] and result[0][0].text.isspace():
            result[0].pop(0)
        if result[-1] and result[-1][-1].text.isspace():
            result[-1].pop()
    return result


def _words(characters: Sequence[Sequence[_Label]]) -> tuple[list[_Label], list[tuple[str, str]]]:
    """The whole words, as `starseq.text.gaps.parse` has them, and for each segment the pieces that a mark before it and behind it
    touches."""
    words, pieces, last = list[_Label](), list[tuple[str, str]](), len(characters) - 1
    for number, segment in enumerate(characters):
        found, is_inside = list[_Label](), False
        for character in segment:
            if not character.text.isspace():
                if is_inside:
                    word = found[-1]
                    found[-1] = word._replace(text=word.text + character.text, end=character.end, last=character.last)
                else:
                    found.append(character)
            is_inside = not character.text.isspace()
        touches_next = bool(segment) and number < last and not segment[-1].text.isspace()
        touches_last = bool(segment) and number > 0 and not segment[0].text.isspace()
        pieces.append((found[0].text if touches_last else "", found[-1].text if touches_next else ""))
        if touches_next:
            found.pop()
        if touches_last and found:
            found.pop(0)
        words += found
    return words, pieces


def _gaps(tokeniser: Tokeniser, labels: Sequence[_Label], segments: Sequence[str]) -> list[list[int]]:
    """Of a text without marks: for each gap whether it is open (as a list that is not empty)."""
    inner = []
    for label, follows in zip(labels, labels[1:], strict=False):
        is_open = tokeniser.unit == "word" or tokeniser.missing != "word" or label.text.isspace()
        inner.append([0] if is_open and label.last < follows.first else [])
    return [[0], *inner, [0]] if labels else [[0]]


def _marks(labels: Sequence[_Label], segments: int) -> list[list[int]]:
    """For each gap the numbers of the marks in it."""
    gaps: list[list[int]] = [[] for _ in range(len(labels) + 1)]
    position = 0
    for mark in range(segments - 1):
        while position < len(labels) and labels[position].segment <= mark:
            position += 1
        gaps[position].append(mark)
    return gaps


def _offset(tokeniser: Tokeniser, labels: Sequence[_Label], gap: int, text: str) -> int:
    """Where in an unmarked text the filling of a gap goes: behind the label before it; for words, at white space, if any."""
    if not labels:
        return len(text)
    before, behind = (labels[gap - 1].end if gap else 0), (labels[gap].start if gap < len(labels) else len(text))
    if tokeniser.unit == "char":
        return before if gap else behind
    if not gap:
        while behind and not text[behind - 1].isspace():
            behind -= 1
        return behind
    place = before
    while place < behind and not text[place].isspace():
        place += 1
    return place


def _spelled(tokeniser: Tokeniser, label: str) -> list[int]:
    """The indices of a label; none if it cannot be written."""
    try:
        indices = tokeniser.indices(label)
    except ValueError:
        return []
    return indices if all(indices) else []  # a word that reads like the blank is none
