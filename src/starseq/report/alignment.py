"""The alignment picture: where each known label stands, and where the star stands and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from torch import Tensor

from starseq.decode.align import Alignment
from starseq.report.pictures import Picture

__all__ = ["alignment_svg"]

_KNOWN, _STAR, _QUIET = "#0969da", "#bc4c00", "#d0d7de"
_BAR, _LETTER, _GAP = 34, 15, 6
"""heights in the drawing's pixels: the strip of probabilities, letters, space between parts"""


class _Mark(NamedTuple):
    text: str
    start: float
    end: float
    confidence: float
    known: bool


def alignment_svg(
    alignment: Alignment, picture: Picture, log_probs: Tensor, tokens: Sequence[str], *, stride: float, blank: int = 0
) -> str:
    """An `<svg>` element: known labels above the picture at their columns, below it what the star stands for, then how sure the
    model is of a token, frame by frame.

    picture: a column for every input frame. log_probs: (T', V), of which each frame covers `stride` columns. tokens: (V,).
    """
    zoom = min(4.0, max(1.0, 980 / picture.width))
    width, height = picture.width * zoom, picture.height * zoom
    step = stride * zoom
    names = [" ␣ " if token == " " else token for token in tokens]
    known = [
        _Mark(names[label.token], label.start * step, min(label.end * step, width), label.probability, True)
        for label in alignment.labels
    ]
    filled = [
        _Mark(names[one.token], one.frame * step, min((one.frame + 1) * step, width), one.confidence, False)
        for span in alignment.spans
        for one in span.tokens
    ]
    above, below = _rows(known), _rows(filled)
    top = _LETTER * (max(above, default=0) + 1) + _GAP
    under = top + height + _GAP + _LETTER
    strip = under + _LETTER * (max(below, default=0) + 1) + 2 * _GAP
    total = strip + _BAR + _GAP
    parts = [
        f'<svg class="alignment" viewBox="0 0 {width:g} {total:g}" width="{width:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13" text-anchor="middle">'
    ]
    parts.append(f'<image href="{picture.uri}" y="{top:g}" width="{width:g}" height="{height:g}" opacity="0.85"/>')
    for span in alignment.spans:
        left, right = span.start * step, min(span.end * step, width)
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{height + _GAP + _LETTER:g}" rx="3" '
            f'fill="{_STAR}" fill-opacity="0.10"/>'
            f'<text x="{(left + right) / 2:g}" y="{top + height + _LETTER + 2:g}" fill="{_STAR}" font-size="18">&lowast;</text>'
        )
    for mark, row in zip(known, above, strict=True):
        parts.append(_mark(mark, y=top - _GAP - _LETTER * row, line=(top - _GAP + 2, top + height)))
    for mark, row in zip(filled, below, strict=True):
        y = under + _LETTER * (row + 1)
        parts.append(_mark(mark, y=y, line=(top, top + height)))
    parts.append(_strip(log_probs, {*known, *filled}, strip, step, blank))
    return "".join((*parts, "</svg>"))


def _mark(mark: _Mark, *, y: float, line: tuple[float, float]) -> str:
    colour, middle = (_KNOWN if mark.known else _STAR), (mark.start + mark.end) / 2
    kind = "known" if mark.known else "read by the star"
    return (
        f'<rect x="{mark.start:g}" y="{line[0]:g}" width="{mark.end - mark.start:g}" height="{line[1] - line[0]:g}" '
        f'fill="{colour}" fill-opacity="0.22"/>'
        f'<text x="{middle:g}" y="{y:g}" fill="{colour}" font-weight="{600 if mark.known else 400}">{escape(mark.text)}'
        f"<title>{escape(mark.text)}: {kind}, {100 * mark.confidence:.0f} %</title></text>"
    )


def _strip(log_probs: Tensor, marks: set[_Mark], top: float, step: float, blank: int) -> str:
    """A bar a frame: how sure the model is that there is a token, and not nothing."""
    share = 1 - log_probs[:, blank].exp()
    colours = {round(mark.start / step): _KNOWN if mark.known else _STAR for mark in marks}
    bars = "".join(
        f'<rect x="{t * step + 0.5:g}" y="{top + _BAR * (1 - p):.1f}" width="{step - 1:g}" height="{_BAR * p:.1f}" '
        f'fill="{colours.get(t, "#8c959f")}"/>'
        for t, p in enumerate(share.clamp(0, 1).tolist())
        if p > 0.01
    )
    width = len(log_probs) * step
    return f'<path d="M0 {top + _BAR:g}H{width:g}" stroke="{_QUIET}"/>{bars}'


def _rows(marks: Sequence[_Mark]) -> list[int]:
    """In which row each text goes, so that none covers its neighbour: the first one with room, at most three."""
    ends = [-1e9] * 3
    rows = []
    for mark in marks:
        half = 4.2 * len(mark.text.strip()) + 2
        middle = (mark.start + mark.end) / 2
        row = next((r for r, end in enumerate(ends) if middle - half >= end), len(ends) - 1)
        ends[row] = middle + half
        rows.append(row)
    return rows
