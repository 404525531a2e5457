"""Marks: the pieces give back both texts, the errors are those that are counted, and nothing of a text becomes markup."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from starseq.report.marks import marked_html, marked_text, pieces
from starseq.text.error_rate import count_errors

TEXTS = st.text(alphabet="ab <&>\"'", max_size=12)


@given(TEXTS, TEXTS)
def test_pieces_give_back_both_texts_and_count_as_the_error_rate_does(reference: str, read: str) -> None:
    found = pieces(reference, read)
    assert "".join(piece.reference for piece in found) == reference
    assert "".join(piece.read for piece in found) == read
    errors = sum(max(len(piece.reference), len(piece.read)) for piece in found if piece.kind != "hit")
    assert errors == count_errors(reference, read).errors
    words = pieces(reference, read, "word")
    assert " ".join(piece.read for piece in words if piece.read).split() == read.split()


@given(TEXTS, TEXTS)
def test_html_holds_no_tag_but_del_and_ins(reference: str, read: str) -> None:
    for unit in ("char", "word"):
        html = marked_html(reference, read, unit)  # type: ignore[arg-type]
        assert set(re.findall(r"<[^>]*>", html)) <= {"<del>", "</del>", "<ins>", "</ins>"}
        assert not re.search(r"&(?!lt;|gt;|amp;|quot;|#x27;)", html)


def test_a_lone_space_is_seen() -> None:
    assert marked_html("a b", "ab") == "a<del>␣</del>b"
    assert marked_text("a b", "ab") == "a[- -]b"
    assert marked_text("", "x") == "{+x+}"
    assert marked_text("a b c", "a x", "word") in ("a [-b-] [-c-]{+x+}", "a [-b-]{+x+} [-c-]")
