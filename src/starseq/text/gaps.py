r"""Marked gaps: a `*` in a text stands for any number of missing labels.

Backslashes mean something only right before a star: there ``\*`` is a literal star and ``\\`` a literal backslash, so
``\\*`` is a backslash and then a gap. Everywhere else a backslash is itself.

Gap l (0..U) lies after label l, as in the loss. `Partial` says which of them are open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

__all__ = [
    "Partial",
    "Unit",
    "check_missing",
    "escape",
    "has_gap",
    "join_gaps",
    "literal_spans",
    "parse",
    "render",
    "split_gaps",
    "unescape",
]

Unit = Literal["word", "char"]

_STAR = re.compile(r"(\\*)\*")
_LAST_BACKSLASHES = re.compile(r"\\+\Z")


class Partial(NamedTuple):
    """A partial label: U labels, and for each of the U + 1 gaps whether labels may be missing there."""

    labels: tuple[str, ...]
    open: tuple[bool, ...]


def split_gaps(text: str) -> list[str]:
    r"""The literal texts between the gaps: n gaps give n + 1 of them.

    >>> split_gaps(r"the * fox, 3 \* 4")
    ['the ', ' fox, 3 * 4']
    """
    if "*" not in text:
        return [text]
    segments, literal, end = [], "", 0
    for match in _STAR.finditer(text):
        backslashes, is_star = divmod(len(match[1]), 2)
        literal += text[end : match.start()] + "\\" * backslashes
        if is_star:
            literal += "*"
        else:
            segments.append(literal)
            literal = ""
        end = match.end()
    return [*segments, literal + text[end:]]


def join_gaps(segments: Sequence[str]) -> str:
    r"""The inverse of `split_gaps`: literal texts, joined by `*` and escaped where they need it.

    >>> join_gaps(["the ", " fox, 3 * 4"])
    'the * fox, 3 \\* 4'
    """
    *before_gap, last = map(escape, segments)
    return "".join(_LAST_BACKSLASHES.sub(lambda m: m[0] * 2, text) + "*" for text in before_gap) + last


def escape(literal: str) -> str:
    r"""A text without gaps that reads back as `literal`.

    >>> escape("2*3"), escape(r"C:\dir")
    ('2\\*3', 'C:\\dir')
    """
    return _STAR.sub(lambda m: m[1] * 2 + r"\*", literal) if "*" in literal else literal


def literal_spans(text: str) -> list[tuple[int, int]]:
    r"""Where each character that `text` stands for is written, a gap being one: start and end.

    >>> literal_spans(r"a\\** *")
    [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    """
    spans, end = list[tuple[int, int]](), 0
    for match in _STAR.finditer(text):
        spans += [(place, place + 1) for place in range(end, match.start())]
        backslashes, is_star = divmod(len(match[1]), 2)
        spans += [(match.start() + 2 * n, match.start() + 2 * n + 2) for n in range(backslashes)]
        spans.append((match.end() - 1 - is_star, match.end()))
        end = match.end()
    return spans + [(place, place + 1) for place in range(end, len(text))]


def unescape(text: str) -> str:
    r"""The literal text that `text` stands for, which must not hold a gap: the inverse of `escape`.

    >>> unescape(r"2 \* 3")
    '2 * 3'
    """
    literal, *after_gap = split_gaps(text)
    if after_gap:
        raise ValueError(f"text {text!r} has a gap, so it stands for no one text")
    return literal


def has_gap(text: str) -> bool:
    r"""Whether `text` marks a gap.

    >>> has_gap("the * fox"), has_gap(r"2 \* 3")
    (True, False)
    """
    return "*" in text and any(len(match[1]) % 2 == 0 for match in _STAR.finditer(text))


def parse(text: str, unit: Unit, *, marked: bool = False, missing: Unit | None = None) -> Partial:
    """The labels of `text`, and its open gaps.

    Gaps are open where `text` marks them. A text without a mark is open everywhere, or, if it is known that gaps are
    `marked`, complete. If characters are labels, but only whole words can be `missing`, it is open at its ends and
    before each word (a lost word goes with the space after it; the last one, with the space before), and closed inside words.

    With ``unit="char"`` every character is a label, spaces too. With ``unit="word"`` a word that a star touches (``qu*``)
    is a piece of a word: it is not a label, and the gap takes it.

    >>> parse("the * fox", "word")
    Partial(labels=('the', 'fox'), open=(False, True, False))
    >>> parse("a b", "char").labels, parse("a b", "char").open
    (('a', ' ', 'b'), (True, True, True, True))
    >>> parse("a b", "word", marked=True).open
    (False, False, False)
    >>> parse("ab c", "char", missing="word").open
    (True, False, False, True, True)
    >>> parse("the qu* fox", "word")
    Partial(labels=('the', 'fox'), open=(False, True, False))
    """
    check_missing(unit, missing)
    segments = split_gaps(text)
    pieces = [list(segment) for segment in segments] if unit == "char" else _words(segments)
    labels = tuple(chain.from_iterable(pieces))
    if len(segments) == 1 and unit == "char" and missing == "word" and not marked:
        return Partial(labels, (True, *map(str.isspace, labels[:-1]), True) if labels else (True,))
    if len(segments) == 1:
        return Partial(labels, (not marked,) * (len(labels) + 1))
    gaps = [False] * (len(labels) + 1)
    position = 0
    for piece in pieces[:-1]:
        position += len(piece)
        gaps[position] = True
    return Partial(labels, tuple(gaps))


def check_missing(unit: Unit, missing: Unit | None) -> None:
    """Raises ValueError where what can be missing is smaller than a label."""
    if missing not in (None, "word", "char"):
        raise ValueError(f"missing must be 'word', 'char' or None, not {missing!r}")
    if (unit, missing) == ("word", "char"):
        raise ValueError("missing='char' needs unit='char': a word that lost characters is not a label")


def _words(segments: Sequence[str]) -> list[list[str]]:
    """The whole words of each segment; a word that runs into a gap is not whole."""
    last = len(segments) - 1
    pieces = []
    for index, segment in enumerate(segments):
        words = segment.split()
        if words and index < last and not segment[-1].isspace():
            words.pop()
        # The same word may touch the gaps on both sides: then it is gone already.
        if words and index > 0 and not segment[0].isspace():
            words.pop(0)
        pieces.append(words)
    return pieces


def render(labels: Sequence[str], unit: Unit, gaps: Iterable[bool] | None = None) -> str:
    """The text of `labels`, with a `*` at every open gap; `gaps=None` writes no marks. The inverse of `parse`.

    >>> render(["the", "fox"], "word", [False, True, False])
    'the * fox'
    >>> render(["t", "e", " "], "char", [False, True, False, True])
    't*e *'
    >>> render(["2*3", "=", "6"], "word")
    '2\\\\*3 = 6'
    """
    if gaps is None:
        return " ".join(map(escape, labels)) if unit == "word" else escape("".join(labels))
    opens = list(gaps)
    if len(opens) != len(labels) + 1:
        raise ValueError(f"gaps: {len(labels)} labels have {len(labels) + 1} gaps, not {len(opens)}")
    if unit == "word":
        parts = ["*"] if opens[0] else []
        for label, is_open in zip(labels, opens[1:], strict=True):
            parts.append(escape(label))
            if is_open:
                parts.append("*")
        return " ".join(parts)
    marks = [position for position, is_open in enumerate(opens) if is_open]
    bounds = zip([0, *marks], [*marks, len(labels)], strict=True)
    return join_gaps(["".join(labels[start:end]) for start, end in bounds])
