"""`starseq draw`: what is drawn is the graph that is run; bad input is one sentence; files are whole."""

# ruff: noqa: RUF001 (the star and the set minus of the drawings)

from __future__ import annotations

import itertools
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from starseq import cli, criteria
from starseq.jobs.draw import draw


def test_every_criterion_is_drawn_in_every_format() -> None:
    for criterion in criteria.names():
        for published, merge_repeats in itertools.product((False, True), repeat=2):
            how: Any = {"published": published, "merge_repeats": merge_repeats}
            assert draw(criterion, "cat", **how).startswith("start 0\n")
            assert draw(criterion, "cat", **how, format="dot").startswith("digraph {")
            ElementTree.fromstring(draw(criterion, "cat", **how, format="svg"))


@pytest.mark.parametrize(
    ("criterion", "published", "states"),
    [("ctc", False, 7), ("ctc", True, 7), ("selfless_ctc", False, 4), ("selfless_ctc", True, 7), ("stc", False, 11),
     ("stc", True, 11)],
)  # fmt: skip
def test_the_published_graph_has_more_states(criterion: str, published: bool, states: int) -> None:
    assert draw(criterion, "cat", published=published, format="svg").count('class="state"') == states
    if criterion == "stc":
        kept = draw(criterion, "cat", published=published, merge_repeats=False, format="svg")
        assert kept.count('class="state"') == (11 if published else 4)


def test_a_token_that_lasts_pays_once() -> None:
    # The label stands in 2, 4 and 7, and lasts. An inserted x stands in 6 and 9, an inserted a in 10.
    assert draw("stc", "a*", alphabet="x", penalty=-0.5, compose=3).splitlines()[2:] == [
        "0 -> 1  ∅", "0 -> 2  a",
        "1 -> 3  ∅", "1 -> 4  a",
        "2 -> 5  ∅", "2 -> 4  a", "2 -> 6  x / -0.5",
        "3 -> 7  a",
        "4 -> 8  ∅", "4 -> 7  a", "4 -> 9  x / -0.5",
        "5 -> 8  ∅", "5 -> 10  a / -0.5", "5 -> 9  x / -0.5",
        "6 -> 8  ∅", "6 -> 10  a / -0.5", "6 -> 9  x",
    ]  # fmt: skip


@pytest.mark.parametrize("published", [False, True])
def test_a_closed_gap_has_no_star(published: bool) -> None:
    drawing = draw("stc", "the * fox", unit="word", penalty=-0.5, published=published)
    stars = [line for line in drawing.splitlines() if "∗" in line]
    assert stars == ["1 -> 3  ∗ / -0.5", "2 -> 3  ∗ / -0.5", "3 -> 3  ∗ / -0.5", "3 -> 3  ∗…"]
    assert "1 -> 1  the" in drawing
    assert draw("stc", "the * fox", unit="word", published=published, format="svg").count('class="state"') == 6
    kept = draw("stc", "the * fox", unit="word", published=published, merge_repeats=False, format="svg")
    assert "∞" not in kept


def test_a_star_in_the_text_closes_the_other_gaps() -> None:
    drawing = draw("stc", "the * fox", unit="word", penalty=-0.5, merge_repeats=False)
    assert [line for line in drawing.splitlines() if "∗" in line] == ["1 -> 1  ∗ / -0.5"]
    literal = draw("stc", r"2\*3", penalty=-0.5, merge_repeats=False)
    assert "1 -> 2  *" in literal
    assert literal.count("∗") == 4


def test_emissions_show_all_tokens_and_no_scores() -> None:
    drawing = draw("ctc", "see", alphabet="ab", emissions=2)
    assert drawing == "start 0\nfinal 2\n0 -> 1  ∅, s, e, a, b\n1 -> 2  ∅, s, e, a, b"


def test_the_composition_holds_the_alignments() -> None:
    # "a" in two frames, with a second token x: first a then anything, or blank or x and then a.
    assert draw("stc", "a", alphabet="x", penalty=-0.5, compose=2, merge_repeats=False) == (
        "start 0\nfinal 3\n0 -> 1  ∅\n0 -> 1  x / -0.5\n0 -> 2  a\n1 -> 3  a\n2 -> 3  ∅\n2 -> 3  a, x / -0.5"
    )


def test_the_composition_is_laid_out_by_frame_and_state() -> None:
    root = ElementTree.fromstring(draw("stc", "a", compose=2, merge_repeats=False, format="svg"))
    circles = root.iter("{http://www.w3.org/2000/svg}circle")
    places = list(dict.fromkeys((float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in circles))
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = places
    assert (x0 < x1 == x2 < x3) and (y0 == y1 < y2 == y3)  # noqa: PT018


def test_no_labels_at_all() -> None:
    assert draw("stc", "", penalty=-0.5, merge_repeats=False) == "start 0\nfinal 0\n0 -> 0  ∅\n0 -> 0  ∗ / -0.5"
    assert draw("ctc", "") == "start 0\nfinal 0\n0 -> 0  ∅"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("cctc", "cat"), {}, r"^criterion: 'cctc' is none of ctc, selfless_ctc, stc$"),
        (("ctc", "c*t"), {}, r"^text: 'c\*t' marks gaps, and ctc has none$"),
        (("ctc", "cat"), {"penalty": -0.5}, r"^penalty: ctc has no star to weigh$"),
        (("stc", "cat"), {"penalty": 0.5}, r"^penalty: 0.5 is not a log-weight <= 0$"),
        (("stc", "cat"), {"penalty": float("nan")}, r"^penalty: nan is not a log-weight <= 0$"),
        (("stc", "cat"), {"compose": 2}, r"^compose: 'cat' has no alignment with 2 frames$"),
        (("stc", "cat"), {"compose": 0}, r"^compose: 0 is not a number of frames above 0$"),
        (("stc", "cat"), {"emissions": -1}, r"^emissions: -1 is not a number of frames above 0$"),
        (("stc", "cat"), {"emissions": 3, "compose": 3}, r"^draw either emissions or a composition, not both$"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(*arguments, **options)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["starseq", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return int(exit.value.code or 0)


def test_the_command_writes_to_stdout_or_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "draw", "stc", "cat", "--penalty", "-0.5") == 0
    assert capsys.readouterr().out == draw("stc", "cat", penalty=-0.5) + "\n"
    assert run(monkeypatch, "draw", "stc", "cat", "--keep-repeats") == 0
    assert capsys.readouterr().out == draw("stc", "cat", merge_repeats=False) + "\n"
    for name, format in (("a.svg", "svg"), ("a.dot", "dot"), ("a.txt", "text"), ("a", "text")):
        assert run(monkeypatch, "draw", "stc", "cat", "-o", tmp_path / name) == 0
        assert (tmp_path / name).read_text() == draw("stc", "cat", format=format) + "\n"  # type: ignore[arg-type]
    assert run(monkeypatch, "draw", "stc", "cat", "-o", tmp_path / "b.svg", "--format", "dot") == 0
    assert (tmp_path / "b.svg").read_text().startswith("digraph")
    assert capsys.readouterr().out == ""


def test_the_command_fails_in_one_sentence_and_leaves_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.svg"
    path.write_text("old")
    assert run(monkeypatch, "draw", "stc", "cat", "--penalty", "1", "-o", path) == 2
    assert capsys.readouterr().err == "starseq: penalty: 1 is not a log-weight <= 0\n"
    assert path.read_text() == "old"
    assert run(monkeypatch, "draw", "stc", "cat", "-o", tmp_path / "a.pdf") == 2
    assert "a drawing is one of .txt, .dot, .gv, .svg; or say its --format" in capsys.readouterr().err
    assert not (tmp_path / "a.pdf").exists()
