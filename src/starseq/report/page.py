"""One self-contained HTML page: error rates, curves, examples, alignments. No script, nothing fetched, everything escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from typing import Any

from starseq.report.filled import FILLED_STYLE, FilledRow, filled_html
from starseq.report.marks import marked_html, pieces
from starseq.report.pictures import Picture
from starseq.report.plots import COLOURS, Rows, curves_svg
from starseq.text.gaps import Unit

__all__ = ["AlignmentView", "Example", "RunView", "document", "page"]


@dataclass(frozen=True)
class RunView:
    """A run as the page shows it."""

    name: str
    unit: Unit
    facts: Mapping[str, str]
    """what it is, in words: criterion, labels, steps"""
    evaluated: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """split -> method -> what `starseq evaluate` wrote"""
    metrics: Rows = ()


@dataclass(frozen=True)
class Example:
    """A row: what it looks like, its complete text, what is left of that, and what the runs read."""

    id: str
    reference: str
    readings: Mapping[str, str]
    """by the run's name (and its method, where it has several)"""
    unit: Unit = "char"
    partial: str | None = None
    """the labels that are known; None: all of them"""
    picture: Picture | None = None
    note: str = ""


@dataclass(frozen=True)
class AlignmentView:
    """An alignment picture, made by `alignment_svg`, of a run and a row."""

    run: str
    id: str
    svg: str
    facts: Mapping[str, str] = field(default_factory=dict)


def page(
    title: str,
    runs: Sequence[RunView],
    examples: Sequence[Example] = (),
    alignments: Sequence[AlignmentView] = (),
    *,
    filled: Sequence[FilledRow] = (),
    intro: Sequence[str] = (),
    footer: str = "",
) -> str:
    """The page as text. `intro` are paragraphs above the table, `filled` are rows whose gaps were filled; all texts are plain, and
    are escaped here.

    >>> html = page("<b>", [RunView("a & b", "char", {}, {})])
    >>> "<h1>&lt;b&gt;</h1>" in html, "a &amp; b" in html
    (True, True)
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="intro">{escape(paragraph)}</p>' for paragraph in intro),
        _section("Error rates", _table(runs)),
        _section("Curves", _curves(runs)),
        _section("What was read", _examples(examples, runs)),
        _section("What was filled in", _filled(filled)),
        _section("Where the labels stand", _alignments(alignments)),
        f"<footer>{escape(footer)}</footer>" if footer else "",
    ]
    body = "\n".join(part for part in parts if part)
    return document(title, body)


def document(title: str, body: str, *, script: str = "", style: str = "") -> str:
    """A whole HTML document. Nothing is fetched, and nothing runs but the `script`, even if a text should get past the escapes."""
    allowed = f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" if script else "'none'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{FILLED_STYLE}{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>" if content else ""


def _swatch(index: int) -> str:
    return f'<i class="swatch" style="background:{COLOURS[index % len(COLOURS)]}"></i>'


# --- error rates ------------------------------------------------------------------------------------------------------


def _table(runs: Sequence[RunView]) -> str:
    facts = list(dict.fromkeys(name for run in runs for name in run.facts))
    several = any(len(methods) > 1 for run in runs for methods in run.evaluated.values())
    words = any(run.unit == "word" or _has_words(run) for run in runs)
    head = ["run", *facts, "split", *(["method"] if several else []), *(["WER %"] if words else []), "CER %"]
    head += ["substituted", "inserted", "deleted", "lines right"]
    numbers = {"WER %", "CER %", "substituted", "inserted", "deleted", "lines right"}
    rows = []
    for index, run in enumerate(runs):
        name = f"<th scope=row>{_swatch(index)}{escape(run.name)}</th>"
        about = "".join(f"<td>{escape(run.facts.get(fact, ''))}</td>" for fact in facts)
        found = [
            (split, method, scores) for split, methods in run.evaluated.items() for method, scores in methods.items()
        ]
        for number, (split, method, scores) in enumerate(found):
            cells = [f"<td>{escape(split)}</td>", *([f"<td>{escape(method)}</td>"] if several else [])]
            cells += [_number(scores.get("wer"), strong=run.unit == "word")] if words else []
            cells += [_number(scores.get("cer"), strong=run.unit == "char")]
            counts = scores.get("words" if run.unit == "word" else "characters") or {}
            cells += [_number(counts.get(kind), whole=True) for kind in ("substitutions", "insertions", "deletions")]
            sentences = scores.get("sentences") or 0
            cells.append(_number(100 * scores.get("right", 0) / sentences if sentences else None, unit=" %"))
            start = name + about if number == 0 else "<td></td>" * (1 + len(facts))
            rows.append(f"<tr{' class=first' if number == 0 else ''}>{start}{''.join(cells)}</tr>")
        if not found:
            missing = f"<td class=quiet colspan={len(head) - 1 - len(facts)}>not evaluated yet: starseq evaluate</td>"
            rows.append(f"<tr class=first>{name}{about}{missing}</tr>")
    columns = "".join(f"<th{' class=number' if name in numbers else ''}>{escape(name)}</th>" for name in head)
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _has_words(run: RunView) -> bool:
    """Whether its texts have words at all: lines of digits have none, and their WER says nothing."""
    totals = (
        (sum((scores.get("words") or {}).get(kind, 0) for kind in ("hits", "substitutions", "deletions")), scores)
        for methods in run.evaluated.values()
        for scores in methods.values()
    )
    return any(words > scores.get("sentences", 0) for words, scores in totals)


def _number(value: float | None, *, whole: bool = False, strong: bool = False, unit: str = "") -> str:
    shown = "" if value is None else f"{value:,.0f}" if whole else f"{value:.2f}" if not unit else f"{value:.1f}{unit}"
    return f"<td class=number>{f'<b>{shown}</b>' if strong and shown else shown}</td>"


# --- curves, examples, alignments -------------------------------------------------------------------------------------


def _curves(runs: Sequence[RunView]) -> str:
    svg = curves_svg({f"{index} {run.name}": run.metrics for index, run in enumerate(runs)})
    if not svg:
        return ""
    legend = "".join(f"<span>{_swatch(index)}{escape(run.name)}</span>" for index, run in enumerate(runs))
    return f'<p class="legend">{legend}</p>\n<figure>{svg}</figure>'


def _examples(examples: Iterable[Example], runs: Sequence[RunView]) -> str:
    blocks = []
    some_partial = False
    colours = {run.name: _swatch(index) for index, run in enumerate(runs)}
    for example in examples:
        rows = []
        if example.partial is not None:
            some_partial = True
            rows.append(("label", "", _known(example.reference, example.partial, example.unit)))
        else:
            rows.append(("text", "", f"<span class=text>{escape(example.reference)}</span>"))
        for name, read in example.readings.items():
            right = ' <span class=right title="no error">✓</span>' if read == example.reference else ""
            marked = marked_html(example.reference, read, example.unit)
            rows.append((name, colours.get(name, ""), f"<span class=text>{marked}</span>{right}"))
        image = "" if example.picture is None else _image(example.picture, example.reference)
        lines = "".join(f"<dt>{swatch}{escape(name)}</dt><dd>{html}</dd>" for name, swatch, html in rows)
        note = f" · {escape(example.note)}" if example.note else ""
        blocks.append(f'<article>{image}<dl>{lines}</dl><p class="id">{escape(example.id)}{note}</p></article>')
    if not blocks:
        return ""
    key = ["<del>missing</del>", "<ins>too much</ins>", "<del>lost</del><ins>read instead</ins>"]
    if some_partial:
        key.insert(0, "<span class=kept>known</span><span class=lost>dropped</span> labels")
    return f'<p class="legend key">{"".join(f"<span>{one}</span>" for one in key)}</p>\n<div class="grid">{"".join(blocks)}</div>'


def _filled(rows: Sequence[FilledRow]) -> str:
    """Rows with gaps, the most doubtful first."""
    if not rows:
        return ""
    key = (
        '<p class="legend key"><span><mark class=in>filled in</mark></span><span><mark class=open>*</mark> left open</span>'
        "<span>what was read, how sure the run is of it, and the next best guesses; the most doubtful rows first</span></p>"
    )
    return f"{key}\n{''.join(map(filled_html, rows))}"


def _image(picture: Picture, text: str) -> str:
    uri, width, height = picture
    zoom = 2 if width <= 440 else 1
    return f'<img src="{uri}" width="{width * zoom}" height="{height * zoom}" alt="{escape(text)}">'


def _known(reference: str, partial: str, unit: Unit) -> str:
    """The complete text, what was dropped of it in grey."""
    parts = []
    for kind, lost, kept in pieces(reference, partial, unit):
        if kind == "hit":
            parts.append(f"<span class=kept>{escape(kept)}</span>")
        else:  # a partial label is a part of the text; where a normaliser changed it, its own letters are shown
            parts.append(
                f"<span class=lost>{escape(lost)}</span>" + (f"<span class=kept>{escape(kept)}</span>" if kept else "")
            )
    return f"<span class=text>{('' if unit == 'char' else ' ').join(parts)}</span>"


def _alignments(alignments: Sequence[AlignmentView]) -> str:
    if not alignments:
        return ""
    figures = []
    for one in alignments:
        facts = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in one.facts.items())
        figures.append(
            f'<figure class="wide">{one.svg}<figcaption><span>{escape(one.run)} · {escape(one.id)}</span>{facts}</figcaption>'
            "</figure>"
        )
    key = (
        '<p class="legend key"><span><b style="color:#0969da">known label</b> at its frame</span>'
        '<span><b style="color:#bc4c00">&lowast;</b> where labels are missing, and <b style="color:#bc4c00">what the star reads</b>'
        "</span><span>bars: how sure the model is of a token in that frame, and not of blank</span></p>"
    )
    return key + "\n".join(figures)


_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f8fa; color: #24292f;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 40px 36px 56px; background: #fff; min-height: 100vh; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 10px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 40px 0 12px; padding-bottom: 6px; border-bottom: 1px solid #d8dee4; }
p { margin: 0 0 10px; }
.intro { max-width: 46em; color: #424a53; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 12px 7px 0; text-align: left; vertical-align: baseline; white-space: nowrap; }
thead th { font-weight: 600; font-size: 12.5px; color: #57606a; border-bottom: 1px solid #d8dee4; }
tbody th { font-weight: 600; }
tr.first > * { border-top: 1px solid #eaeef2; }
.number { text-align: right; padding-right: 4px; padding-left: 16px; }
.quiet, footer, .id { color: #6e7781; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px; vertical-align: -1px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 24px; font-size: 13.5px; color: #424a53; margin: 4px 0 12px; }
figure { margin: 0 0 12px; }
figure svg { display: block; max-width: 100%; height: auto; }
figure.wide svg.alignment { max-width: none; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 22px; font-size: 13px; color: #57606a; padding: 2px 0 22px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 14px; }
article { border: 1px solid #d8dee4; border-radius: 8px; padding: 14px 16px 10px; overflow: hidden; break-inside: avoid; }
article img { display: block; max-width: 100%; height: auto; margin: 0 0 10px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; align-items: baseline; }
dt { color: #57606a; font-size: 13.5px; white-space: nowrap; }
dd { margin: 0; overflow-wrap: anywhere; }
.text { font: 15.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  letter-spacing: 0.06em; white-space: pre-wrap; }
.kept { font-weight: 700; }
.lost { color: #afb8c1; }
.right { color: #1a7f37; font-weight: 700; }
del, ins { text-decoration: none; border-radius: 3px; padding: 0 2px; margin: 0 1px; }
del { background: #ffebe9; color: #a40e26; text-decoration: line-through; text-decoration-thickness: 1px; }
ins { background: #ddf4ff; color: #0550ae; text-decoration: underline; text-underline-offset: 3px; }
.id { font-size: 12px; margin: 8px 0 0; overflow-wrap: anywhere; }
footer { margin-top: 40px; padding-top: 12px; border-top: 1px solid #d8dee4; font-size: 12.5px; }
@media (max-width: 560px) { main { padding: 24px 16px; } .grid { grid-template-columns: 1fr; } }
@media print {
  body { background: #fff; font-size: 11pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  figure.wide svg.alignment { max-width: 100%; }
  del, ins, .swatch, svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
