"""Drawings: golden strings for text and DOT; SVG that is well-formed, complete and safe."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from starseq.wfst import (
    EPSILON,
    Graph,
    GraphBuilder,
    ctc_graph,
    emission_graph,
    intersect,
    star_symbols,
    stc_chain,
    stc_graph,
    stc_positions,
    to_dot,
    to_svg,
    to_text,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ['<b a="1">', "&amp;", "\\", '"', "]]>", "\n", "\x00", "'", "</text><script>alert(1)</script>"]


def small_graph() -> Graph:
    builder = GraphBuilder(4, start=[0, 1], final=[2])
    builder.add_arc(0, 1, 1)
    builder.add_arc(0, 1, 2)
    builder.add_arc(0, 1, 3, 4, weight=-0.5)
    builder.add_arc(1, 2, EPSILON, weight=-1.25)
    builder.add_arc(1, 3, 9)
    builder.add_arc(3, 2, 5)
    return builder.build()


SYMBOLS = ["-", "a", "b", "c", "d", " "]


def texts(svg: str, states: bool) -> list[str]:
    root = ElementTree.fromstring(svg)
    of_states = {id(text) for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")}
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text") if (id(text) in of_states) == states]


def test_text() -> None:
    assert to_text(small_graph(), SYMBOLS) == (
        "start 0, 1\n"
        "final 2\n"
        "0 -> 1  a, b\n"
        "0 -> 1  c:d / -0.5\n"
        "1 -> 2  ε / -1.25\n"
        "1 -> 3  9\n"  # not in the table
        "3 -> 2  ␣"
    )


def test_dot() -> None:
    assert to_dot(small_graph(), SYMBOLS) == (
        "digraph {\n"
        "  rankdir=LR; node [shape=circle];\n"
        "  3;\n"
        "  2 [shape=doublecircle];\n"
        "  start0 [shape=point, style=invis]; start0 -> 0;\n"
        "  start1 [shape=point, style=invis]; start1 -> 1;\n"
        '  0 -> 1 [label="a, b\\nc:d / -0.5"];\n'
        '  1 -> 2 [label="ε / -1.25"];\n'
        '  1 -> 3 [label="9"];\n'
        '  3 -> 2 [label="␣"];\n'
        "}"
    )


def test_symbols_may_be_a_function_a_table_or_nothing() -> None:
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, 1)
    graph = builder.build()
    for symbols in (["-", "a"], {1: "a"}, "-a", lambda label: "-a"[label]):
        assert to_text(graph, symbols).endswith("0 -> 1  a")
    assert to_text(graph).endswith("0 -> 1  1")
    assert to_text(stc_chain([1]), ["-", "a"]).endswith("1 -> 1  -, -2")  # a star has no name in a plain table


def test_many_labels_are_abridged() -> None:
    graph = emission_graph(torch.zeros(1, 26))
    assert to_text(graph, "abcdefghijklmnopqrstuvwxyz").endswith("0 -> 1  a, b, c, …, z")


@pytest.mark.parametrize(
    ("graph", "positions"),
    [
        (stc_chain([1, 2, 2], log_penalty=-0.5), None),
        (stc_graph([1, 2, 2], log_penalty=-0.5), None),
        (stc_graph([1, 2, 2], log_penalty=-0.5), stc_positions(3)),
        (ctc_graph([1, 2, 2]), None),
        (emission_graph(torch.zeros(3, 3)), None),
        (intersect(emission_graph(torch.randn(4, 3)), stc_chain([1, 2], tokens=[1, 2])), None),
        (GraphBuilder().build(), None),
        (GraphBuilder(3).build(), None),
    ],
)
def test_svg_shows_every_state_and_arc(graph: Graph, positions) -> None:
    svg = to_svg(graph, star_symbols(["-", "a", "b"]), positions)
    root = ElementTree.fromstring(svg)
    assert texts(svg, states=True) == [str(state) for state in range(graph.num_states)]
    assert len(list(root.iter(f"{SVG}circle"))) == graph.num_states + len(graph.final)
    pairs = {arc[:2] for arc in graph.arcs}
    assert len([p for p in root.iter(f"{SVG}path") if "marker-end" in p.attrib]) == len(pairs) + len(graph.start)
    assert "nan" not in svg.replace("dominant", "")


def test_svg_states_do_not_overlap_and_lie_inside() -> None:
    for graph, positions in ((stc_graph([1, 2]), stc_positions(2)), (ctc_graph([1, 2, 3]), None)):
        root = ElementTree.fromstring(to_svg(graph, None, positions))
        left, top, width, height = map(float, root.attrib["viewBox"].split())
        places = {(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")}
        assert len(places) == graph.num_states
        for x, y in places:
            assert left + 20 <= x <= left + width - 20
            assert top + 20 <= y <= top + height - 20


def test_svg_lays_a_chain_out_in_a_row() -> None:
    root = ElementTree.fromstring(to_svg(stc_chain([1, 2, 3])))
    places = list(dict.fromkeys((float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")))
    assert len({y for _, y in places}) == 1
    assert places == sorted(places)


def test_svg_has_light_ground_and_merged_labels() -> None:
    svg = to_svg(small_graph(), SYMBOLS)
    assert 'fill="#ffffff"' in svg
    labels = texts(svg, states=False)
    assert "a, b" in labels
    assert "c:d / \N{MINUS SIGN}0.5" in labels


@pytest.mark.parametrize("symbol", HOSTILE)
def test_svg_escapes_hostile_symbols(symbol: str) -> None:
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, 0)
    svg = to_svg(builder.build(), [symbol])
    shown = symbol if symbol.isprintable() else "\N{REPLACEMENT CHARACTER}"
    assert texts(svg, states=False) == [shown]
    assert "<script" not in svg


@pytest.mark.parametrize("symbol", HOSTILE)
def test_dot_escapes_hostile_symbols(symbol: str) -> None:
    builder = GraphBuilder(2, start=[0], final=[1])
    builder.add_arc(0, 1, 0)
    (line,) = [line for line in to_dot(builder.build(), [symbol]).splitlines() if "label=" in line]
    quoted = line.removeprefix('  0 -> 1 [label="').removesuffix('"];')
    assert line == f'  0 -> 1 [label="{quoted}"];'
    # Reading the quoted string as DOT does gives the symbol back.
    assert quoted.replace('\\"', "").replace("\\\\", "").count('"') == 0
    shown = symbol if symbol.isprintable() else "\N{REPLACEMENT CHARACTER}"
    assert quoted.replace('\\"', '"').replace("\\\\", "\\") == shown
