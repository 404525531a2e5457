"""Rows in which gaps were filled, to look at: the picture or the sound, where each gap stands, and what was read in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from starseq.report.pictures import Picture

__all__ = ["FILLED_STYLE", "FilledRow", "Gap", "Guess", "filled_html", "percent"]


@dataclass(frozen=True)
class Guess:
    """What may stand in a gap, and how sure the run is (None: a person wrote it)."""

    text: str
    confidence: float | None


@dataclass(frozen=True)
class Gap:
    """A gap, filled or open."""

    position: int
    """in the row's text, where a `*` and an escaped star count as one character each"""
    written: bool
    """whether the text has the first guess in it"""
    guesses: tuple[Guess, ...] = ()
    """the best first"""
    note: str = ""
    """why it is open, or who has seen it"""
    span: tuple[float, float] | None = None
    """where it begins and ends, from 0, the beginning of the picture or sound, to 1"""

    @property
    def confidence(self) -> float:
        """Of what was read; 0 where that was nothing."""
        return (self.guesses[0].confidence or 0.0) if self.guesses else 0.0


@dataclass(frozen=True)
class FilledRow:
    """A row: known texts, with a gap between each two, and what it looks or sounds like."""

    id: str
    line: int
    """of the manifest"""
    known: tuple[str, ...]
    gaps: tuple[Gap, ...]
    picture: Picture | None = None
    sound: str = ""
    """a data URI"""

    @property
    def confidence(self) -> float:
        """Of the gap that is least sure."""
        return min(gap.confidence for gap in self.gaps)


def percent(confidence: float | None) -> str:
    """
    >>> percent(0.501), percent(0.9999), percent(0.0001), percent(None)
    ('50 %', '> 99 %', '< 1 %', '')
    """
    if confidence is None:
        return ""
    bounds = "< 1" if confidence < 0.01 else "> 99" if confidence > 0.99 else f"{100 * confidence:.0f}"
    return f"{bounds} %"


def filled_html(row: FilledRow, *, controls: Sequence[str] | None = None) -> str:
    """A row as an `<article>`. `controls` are what stands below the text, for each gap; by default what was read there.

    >>> html = filled_html(FilledRow("<b>", 1, ("a & ", ""), (Gap(4, True, (Guess("<i>", 0.5),)),)))
    >>> "&lt;b&gt;" in html, "a &amp; " in html, "<mark class=in>&lt;i&gt;</mark>" in html
    (True, True, True)
    """
    below = [_read(gap) for gap in row.gaps] if controls is None else controls
    parts = [f"<span class=kept>{escape(row.known[0])}</span>"]
    for gap, after in zip(row.gaps, row.known[1:], strict=True):
        filling = escape(gap.guesses[0].text) if gap.written else "*"
        parts.append(f"<mark class={'in' if gap.written else 'open'}>{filling}</mark>")
        parts.append(f"<span class=kept>{escape(after)}</span>")
    return (
        f'<article class="filled" data-line="{row.line}">{_shown(row)}<p class="text line">{"".join(parts)}</p>'
        f'<ol class="gaps">{"".join(below)}</ol><p class="id">{escape(row.id)}</p></article>'
    )


def _read(gap: Gap) -> str:
    guesses = [
        f"<span class=text>{escape(guess.text)}</span> <b>{escape(percent(guess.confidence))}</b>"
        for guess in gap.guesses
    ]
    note = [f"<span class=quiet>{escape(gap.note)}</span>"] if gap.note else []
    return f"<li>{' · '.join(guesses + note)}</li>"


def _shown(row: FilledRow) -> str:
    """The picture with a frame around each gap, and the sound."""
    parts: list[Any] = []
    if row.picture is not None:
        frames = "".join(
            f'<i class="where" data-gap="{number}" style="left:{100 * left:.2f}%;width:{100 * (right - left):.2f}%"></i>'
            for number, (left, right) in ((n, gap.span) for n, gap in enumerate(row.gaps) if gap.span is not None)
        )
        text = "*".join(row.known)
        parts.append(
            f'<div class="strip"><div><img src="{row.picture.uri}" width="{row.picture.width}" height="{row.picture.height}" '
            f'alt="{escape(text)}">{frames}</div></div>'
        )
    if row.sound:
        parts.append(f'<audio controls preload="metadata" src="{row.sound}"></audio>')
    return "".join(parts)


FILLED_STYLE = """
.filled { margin: 0 0 14px; }
.strip { overflow-x: auto; margin: 0 0 8px; }
.strip > div { position: relative; display: inline-block; vertical-align: top; }
.strip > div > img { display: block; height: 72px; width: auto; max-width: none; margin: 0; }
.where { position: absolute; top: 0; bottom: 0; min-width: 6px; border: 2px solid #bc4c00; border-radius: 3px;
  background: rgba(188, 76, 0, 0.12); }
audio { display: block; width: 100%; max-width: 420px; height: 36px; margin: 0 0 8px; }
.line { margin: 0 0 6px; overflow-wrap: anywhere; }
.line .kept { font-weight: 400; }
mark { border-radius: 3px; padding: 1px 3px; color: inherit; white-space: pre-wrap; }
mark.in { background: #fff1b8; }
mark.open { background: #ffe0d1; color: #953800; }
.gaps { margin: 0; padding: 0 0 0 22px; font-size: 13.5px; color: #424a53; }
.gaps b { white-space: nowrap; }
"""
