"""The sheet that a person ticks: rows with gaps as one HTML file that needs nothing else, and saves a small file."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

from starseq.report.filled import FilledRow, Gap, filled_html, percent
from starseq.report.page import document

__all__ = ["sheet"]

_KEYS = (
    ("Enter", "accept"), ("2 3 4", "another guess"), ("c", "correct"), ("x", "leave open"), ("n", "nothing missing"),
    ("u", "undo"), ("j k", "next, back"), ("p", "play"), ("s", "save"),
)  # fmt: skip


def sheet(rows: Sequence[FilledRow], *, total: int, manifest: str, key: str) -> str:
    """The page. `total` rows have gaps, if not all of them are here; `manifest` is the file's name, `key` its hash, which goes into
    the file that the page saves.

    What a person decides is kept in the browser at once, so that a reload loses nothing.
    """
    script = Path(__file__).with_name("sheet.js").read_text(encoding="utf-8")
    keys = "".join(f"<span><kbd>{escape(name)}</kbd> {escape(what)}</span>" for name, what in _KEYS)
    gaps = sum(len(row.gaps) for row in rows)
    more = f" These are the most doubtful of {total:,} rows with gaps." if total > len(rows) else ""
    body = "".join(
        filled_html(row, controls=[_controls(gap, number) for number, gap in enumerate(row.gaps)]) for row in rows
    )
    name = sha256(body.encode()).hexdigest()[:16]
    return document(
        f"Review of {manifest}",
        f"<h1>Review of {escape(manifest)}</h1>\n"
        f"<p class=intro>{gaps:,} gaps in {len(rows):,} rows, the most doubtful first.{more} "
        "What you do not decide stays as it is. Decisions are kept in this browser; save them to a file when you are done.</p>\n"
        '<div id="bar"><button id="save">Save</button><label class=button>Open <input id="open" type="file" accept=".json"></label>'
        f'<b id="done" role="status"></b><div class=keys>{keys}</div></div>\n'
        f'<div id="sheet" data-manifest="{escape(key)}" data-file="{escape(Path(manifest).stem)}.review.json" '
        f'data-name="{name}">{body}</div>',
        script=script,
        style=_STYLE,
    )  # fmt: skip


def _controls(gap: Gap, number: int) -> str:
    """Buttons for the guesses, a field for another text, and one that leaves the gap open."""
    guesses = "".join(
        f'<button class=guess data-text="{escape(guess.text)}"><span class=text>{escape(guess.text)}</span> '
        f"<b>{escape(percent(guess.confidence))}</b></button>"
        for guess in gap.guesses
    )
    first = escape(gap.guesses[0].text) if gap.guesses else ""
    note = f"<span class=quiet>{escape(gap.note)}</span>" if gap.note else ""
    written = "yes" if gap.written else "no"
    return (
        f'<li class=gap data-position="{gap.position}" data-gap="{number}" data-written="{written}" tabindex=-1>'
        f'{guesses}<input class="typed text" value="{first}" aria-label="another text" autocomplete=off spellcheck=false>'
        "<button class=leave>leave open</button><button class=nothing>nothing missing</button><span class=state></span>"
        f"{note}</li>"
    )


_STYLE = """
article { scroll-margin-top: 90px; }
#bar { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; margin: 0 0 16px;
  padding: 10px 0; background: #fff; border-bottom: 1px solid #d8dee4; }
.keys { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12.5px; color: #57606a; }
kbd { font: 11.5px ui-monospace, Menlo, Consolas, monospace; padding: 1px 5px; border: 1px solid #d0d7de; border-radius: 4px;
  background: #f6f8fa; }
button, .button { font: inherit; font-size: 13.5px; padding: 3px 10px; border: 1px solid #d0d7de; border-radius: 6px;
  background: #f6f8fa; color: inherit; cursor: pointer; }
button .text { font-size: 14px; }
#save { background: #1f883d; border-color: #1f883d; color: #fff; }
#open { position: absolute; opacity: 0; width: 1px; height: 1px; }
.button:focus-within { outline: 2px solid #0969da; }
.gap { display: flex; flex-wrap: wrap; gap: 5px 6px; align-items: center; padding: 5px 6px; border-radius: 6px; }
.gap::before { content: ""; width: 8px; height: 8px; border-radius: 50%; background: #d0d7de; }
.gap[data-decision]::before { background: #1f883d; }
.gap[data-decision=open]::before { background: #bc4c00; }
.gap.now { background: #ddf4ff; outline: 2px solid #0969da; }
.gap .chosen { background: #dafbe1; border-color: #1f883d; }
.gap .leave.chosen { background: #ffe0d1; border-color: #bc4c00; }
.gaps { padding: 0; list-style: none; }
.typed { flex: 0 1 15em; min-width: 6em; padding: 2px 6px; border: 1px solid #d0d7de; border-radius: 6px; font-size: 14px; }
.typed.chosen { background: #dafbe1; }
.state { font-weight: 600; font-size: 12.5px; }
mark.decided { background: #c8f0d2; }
mark.now, .where.now { outline: 2px solid #0969da; }
.where.now { border-color: #0969da; background: rgba(9, 105, 218, 0.14); }
@media (max-width: 560px) { .keys { display: none; } button, .button { padding: 7px 12px; }
  .typed { font-size: 16px; flex: 1 1 8em; } }
"""
