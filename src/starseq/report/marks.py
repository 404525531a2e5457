"""Errors, marked: a reference and what was read instead of it, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Literal, NamedTuple

from starseq.text.error_rate import Edit, edits_of
from starseq.text.gaps import Unit

__all__ = ["Piece", "marked_html", "marked_text", "pieces"]

Kind = Literal["hit", "substitute", "insert", "delete"]


class Piece(NamedTuple):
    """A run of labels of one kind. A deletion has nothing in `read`, an insertion nothing in `reference`."""

    kind: Kind
    reference: str
    read: str


def pieces(reference: str, read: str, unit: Unit = "char") -> list[Piece]:
    """The alignment that error rates count, in runs of equal kind.

    >>> pieces("the quick fox", "the fax fox", "word")
    [Piece(kind='hit', reference='the', read='the'), Piece(kind='substitute', reference='quick', read='fax'), \
Piece(kind='hit', reference='fox', read='fox')]
    >>> [(piece.kind, piece.reference, piece.read) for piece in pieces("2024", "204")]
    [('hit', '20', '20'), ('delete', '2', ''), ('hit', '4', '4')]
    """
    truth: Sequence[str] = reference if unit == "char" else reference.split()
    found: Sequence[str] = read if unit == "char" else read.split()
    between = "" if unit == "char" else " "

    def run(kind: Kind, edits: list[Edit]) -> Piece:
        lost = "" if kind == "insert" else between.join(truth[edit.reference] for edit in edits)
        got = "" if kind == "delete" else between.join(found[edit.hypothesis] for edit in edits)
        return Piece(kind, lost, got)

    return [run(kind, list(edits)) for kind, edits in groupby(edits_of(truth, found), key=lambda edit: edit.kind)]


def marked_text(reference: str, read: str, unit: Unit = "char") -> str:
    """One line of text: what is missing as `[-...-]`, what is too much as `{+...+}` (the notation of wdiff).

    >>> marked_text("the quick fox", "the fax fox", "word"), marked_text("2024", "204")
    ('the [-quick-]{+fax+} fox', '20[-2-]4')
    """
    parts = []
    for kind, lost, got in pieces(reference, read, unit):
        marks = {"hit": got, "delete": f"[-{lost}-]", "insert": f"{{+{got}+}}", "substitute": f"[-{lost}-]{{+{got}+}}"}
        parts.append(marks[kind])
    return ("" if unit == "char" else " ").join(parts)


def marked_html(reference: str, read: str, unit: Unit = "char") -> str:
    """The same as HTML: `<del>` for what is missing, `<ins>` for what is too much, spaces that can be seen.

    >>> marked_html("a<b", "a>b")
    'a<del>&lt;</del><ins>&gt;</ins>b'
    """
    parts = []
    for kind, lost, got in pieces(reference, read, unit):
        if kind == "hit":
            parts.append(escape(got))
            continue
        parts.append((f"<del>{_visible(lost)}</del>" if lost else "") + (f"<ins>{_visible(got)}</ins>" if got else ""))
    return ("" if unit == "char" else " ").join(parts)


def _visible(text: str) -> str:
    """A lone space inside a mark would not be seen."""
    return escape(text.replace(" ", "␣") if not text.strip() else text)
