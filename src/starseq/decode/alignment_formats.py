"""Alignments as text: NIST's CTM, Praat's TextGrid, and subtitles, SRT and WebVTT."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from starseq.text.vocabulary import SPACE

__all__ = ["STAR", "Interval", "to_ctm", "to_srt", "to_textgrid", "to_vtt"]

STAR = "*"
"""In place of a label: something is missing here."""


_WHITE = re.compile(r"\s")


class Interval(NamedTuple):
    """A text from start to end; confidence is None where there is none to give."""

    start: float
    end: float
    text: str
    confidence: float | None = None


def to_ctm(id: str, intervals: Sequence[Interval]) -> str:
    """Lines ``id channel start duration text confidence``. White space ends a column: a text has ``<space>``, an id ``_`` for it.

    >>> print(to_ctm("u 1", [Interval(0.5, 0.54, "fox", 0.9), Interval(0.6, 0.8, "*")]), end="")
    u_1 1 0.500 0.040 fox 0.900
    u_1 1 0.600 0.200 * NA
    """
    name = _WHITE.sub("_", id)
    return "".join(
        f"{name} 1 {start:.3f} {end - start:.3f} {_WHITE.sub(SPACE, text)} "
        f"{'NA' if confidence is None else format(confidence, '.3f')}\n"
        for start, end, text, confidence in intervals
    )


def to_textgrid(end: float, tiers: Mapping[str, Sequence[Interval]]) -> str:
    """A TextGrid from 0 to `end` with a tier of intervals, which do not overlap, for each name. Empty ones fill up the rest.

    A quote in a text is doubled, as Praat wants it.

    >>> grid = to_textgrid(1.0, {"labels": [Interval(0.25, 0.5, 'a "b" c')]})
    >>> [line.strip() for line in grid.splitlines() if "text" in line]
    ['text = ""', 'text = "a ""b"" c"', 'text = ""']
    """
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {end:.3f}",
        "tiers? <exists>",
    ]
    lines += [f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        filled = _filled(intervals, end)
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += ["        xmin = 0", f"        xmax = {end:.3f}", f"        intervals: size = {len(filled)}"]
        for place, (start, stop, text, _) in enumerate(filled, start=1):
            lines += [
                f"        intervals [{place}]:",
                f"            xmin = {start:.3f}",
                f"            xmax = {stop:.3f}",
            ]
            lines.append(f"            text = {_quoted(text)}")
    return "\n".join(lines) + "\n"


_LONGEST, _WIDEST, _PAUSE = 7.0, 84, 1.0
"""of a subtitle: seconds, and characters; and the pause in seconds that ends one"""


def to_srt(intervals: Iterable[Interval]) -> str:
    """Subtitles of words in order, some of them at a time: until there is a pause, or no room.

    >>> print(to_srt([Interval(0.5, 0.75, "the"), Interval(1.0, 1.5, "fox"), Interval(3661.5, 3662.0, "*")]), end="")
    1
    00:00:00,500 --> 00:00:01,500
    the fox
    <BLANKLINE>
    2
    01:01:01,500 --> 01:01:02,000
    *
    """
    cues = (f"{n}\n{_cue(several, ',')}" for n, several in enumerate(_subtitles(intervals), start=1))
    return "\n".join(cues)


def to_vtt(intervals: Iterable[Interval], notes: Iterable[str] = ()) -> str:
    """The same as WebVTT. Notes are comments, which no player shows.

    >>> print(to_vtt([Interval(0.5, 0.75, "<i>")], ["a --> b"]), end="")
    WEBVTT
    <BLANKLINE>
    NOTE a -> b
    <BLANKLINE>
    00:00:00.500 --> 00:00:00.750
    &lt;i&gt;
    """
    comments = [f"NOTE {' '.join(note.split()).replace('-->', '->')}\n" for note in notes]
    return "\n".join(
        [
            "WEBVTT\n",
            *comments,
            *(
                html.escape(_cue(several, "."), quote=False).replace("--&gt;", "-->", 1)
                for several in _subtitles(intervals)
            ),
        ]
    )


def _subtitles(intervals: Iterable[Interval]) -> Iterable[list[Interval]]:
    cue: list[Interval] = []
    for interval in intervals:
        wide = sum(len(one.text) + 1 for one in cue) + len(interval.text)
        if cue and (interval.start - cue[-1].end > _PAUSE or interval.end - cue[0].start > _LONGEST or wide > _WIDEST):
            yield cue
            cue = []
        cue.append(interval)
    if cue:
        yield cue


def _cue(several: Sequence[Interval], point: str) -> str:
    start, end = (_clock(time, point) for time in (several[0].start, several[-1].end))
    return f"{start} --> {end}\n{' '.join(one.text for one in several)}\n"


def _clock(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(1000 * seconds), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{thousandths:03d}"


def _filled(intervals: Sequence[Interval], end: float) -> list[Interval]:
    """With an empty interval wherever none is: Praat wants a tier without holes."""
    filled: list[Interval] = []
    at = 0.0
    for interval in intervals:
        if interval.start > at:
            filled.append(Interval(at, interval.start, ""))
        filled.append(interval)
        at = interval.end
    if at < end or not filled:
        filled.append(Interval(at, end, ""))
    return filled


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
