"""Pictures of graphs: plain text, DOT for Graphviz, and SVG that needs nothing but a browser.

In all three, arcs between the same two states are drawn as one; their labels read ``a, b / -0.5``, weight last, where
it is not 0. An arc that writes something else than it reads says ``a:x``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple, TypeAlias

from starseq.wfst.graph import EPSILON, Graph
from starseq.wfst.topology import topological_levels

Symbols: TypeAlias = Callable[[int], str] | Mapping[int, str] | Sequence[str] | None
"""What labels are called: a function, or a table; labels that are not in the table are shown as numbers."""


class Caption(NamedTuple):
    """A line of text at an arc: what passes, and at what weight ("" for 0)."""

    labels: str
    weight: str

    def __str__(self) -> str:
        return f"{self.labels} / {self.weight}" if self.weight else self.labels


def to_text(graph: Graph, symbols: Symbols = None) -> str:
    """Return the graph as lines of text.

    Example:
        >>> from starseq.wfst.label_graphs import star_symbols, stc_chain
        >>> print(to_text(stc_chain([1], log_penalty=-0.5), star_symbols(["-", "a"])))
        start 0
        final 1
        0 -> 0  -
        0 -> 0  ∗∖a / -0.5
        0 -> 1  a
        1 -> 1  -
        1 -> 1  ∗ / -0.5
    """
    lines = [f"start {', '.join(map(str, graph.start))}", f"final {', '.join(map(str, graph.final))}"]
    for (source, target), captions in _captions(graph, symbols).items():
        lines += [f"{source} -> {target}  {caption}" for caption in captions]
    return "\n".join(lines)


def to_dot(graph: Graph, symbols: Symbols = None) -> str:
    """Return the graph in Graphviz' language.

    Example:
        >>> from starseq.wfst.label_graphs import stc_chain
        >>> print(to_dot(stc_chain([1], log_penalty=-0.5), {0: "-", 1: "a", -2: "*", -5: "not a"}))
        digraph {
          rankdir=LR; node [shape=circle];
          1 [shape=doublecircle];
          start0 [shape=point, style=invis]; start0 -> 0;
          0 -> 0 [label="-\\nnot a / -0.5"];
          0 -> 1 [label="a"];
          1 -> 1 [label="-\\n* / -0.5"];
        }
    """
    lines = ["digraph {", "  rankdir=LR; node [shape=circle];"]
    ends = {*graph.start, *graph.final}
    lines += [f"  {state};" for state in range(graph.num_states) if state not in ends]
    lines += [f"  {state} [shape=doublecircle];" for state in graph.final]
    lines += [f"  start{state} [shape=point, style=invis]; start{state} -> {state};" for state in graph.start]
    for (source, target), captions in _captions(graph, symbols).items():
        label = "\\n".join(str(caption).replace("\\", "\\\\").replace('"', '\\"') for caption in captions)
        lines.append(f'  {source} -> {target} [label="{label}"];')
    return "\n".join([*lines, "}"])


def to_svg(graph: Graph, symbols: Symbols = None, positions: Sequence[tuple[float, float]] | None = None) -> str:
    """Return the graph as an SVG picture on white ground, laid out for graphs that mostly go forward.

    A state's column is the longest way to it from the start, circles left aside; states of one column are stacked.

    Args:
        graph: the graph.
        symbols: what labels are called.
        positions: (column, row) of every state, rows counted downwards, to place them by hand.

    Example:
        >>> from starseq.wfst.label_graphs import star_symbols, stc_chain
        >>> svg = to_svg(stc_chain([1, 2], log_penalty=-0.5), star_symbols(["-", "a", "b"]))
        >>> svg.startswith("<svg xmlns="), svg.count('class="state"')
        (True, 3)
    """
    captions = _captions(graph, symbols)
    pitch = max([MIN_PITCH, *(_room(source == target, lines) for (source, target), lines in captions.items())])
    grid = _layout(graph) if positions is None else positions
    row_pitch = 80 + LINE_HEIGHT * max([2, *map(len, captions.values())])
    points = [Point(column * pitch, row * row_pitch) for column, row in grid]

    canvas = Canvas()
    for state in graph.start:
        x, y = points[state]
        canvas.line(Point(x - RADIUS - 30, y), Point(x - RADIUS - 16, y), Point(x - RADIUS - 1.5, y))
    for (source, target), lines in captions.items():
        if source == target:
            _draw_loop(canvas, points[source], _loop_side(source, points, captions), lines)
        else:
            bend = _bend(source, target, points, has_reverse=(target, source) in captions)
            _draw_arc(canvas, points[source], points[target], bend, lines)
    for state, point in enumerate(points):
        canvas.state(point, str(state), double=state in graph.final)
    return canvas.svg()


# --- what is written at an arc


MOST_LABELS = 8


def _captions(graph: Graph, symbols: Symbols) -> dict[tuple[int, int], list[Caption]]:
    """Return the captions between every two states that have an arc: one for each weight, in the order of the arcs."""
    name = _namer(symbols)
    bundles: dict[tuple[int, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for arc, weight in zip(graph.arcs, graph.weights.tolist(), strict=True):
        label = name(arc.input) if arc.input == arc.output else f"{name(arc.input)}:{name(arc.output)}"
        bundles[arc.source, arc.target][f"{weight:.3g}" if weight else ""].append(label)
    return {
        states: [Caption(_enumerate(labels), weight) for weight, labels in by_weight.items()]
        for states, by_weight in bundles.items()
    }


def _namer(symbols: Symbols) -> Callable[[int], str]:
    def name(label: int) -> str:
        if label == EPSILON:
            return "ε"
        if callable(symbols):
            symbol = symbols(label)
        elif isinstance(symbols, Mapping):
            symbol = symbols.get(label, str(label))
        else:
            symbol = symbols[label] if symbols is not None and 0 <= label < len(symbols) else str(label)
        symbol = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in symbol)  # XML knows no NUL
        return "␣" if symbol == " " else symbol

    return name


def _enumerate(labels: list[str]) -> str:
    if len(labels) > MOST_LABELS:
        labels = [*labels[:3], "…", labels[-1]]
    return ", ".join(labels)


# --- where things are


RADIUS = 20.0
MIN_PITCH = 120.0
FONT_SIZE = 15.0
LINE_HEIGHT = 20.0


class Point(NamedTuple):
    """A place on the canvas, x to the right and y downwards."""

    x: float
    y: float


def _layout(graph: Graph) -> list[tuple[float, float]]:
    """Return (column, row) of every state."""
    columns = topological_levels(graph.num_states, _without_circles(graph))
    stacks: dict[int, list[int]] = defaultdict(list)
    for state, column in enumerate(columns):
        stacks[column].append(state)
    row = {state: n - (len(stack) - 1) / 2 for stack in stacks.values() for n, state in enumerate(stack)}
    return [(column, row[state]) for state, column in enumerate(columns)]


def _without_circles(graph: Graph) -> list[tuple[int, int]]:
    """Return the steps of the graph less those that a depth-first search finds to lead back to where it came from."""
    successors: dict[int, list[int]] = defaultdict(list)
    for arc in graph.arcs:
        successors[arc.source].append(arc.target)
    on_the_way: dict[int, bool] = {}
    steps: list[tuple[int, int]] = []
    for seed in (*graph.start, *range(graph.num_states)):
        stack: list[tuple[int, Iterator[int]]] = [] if seed in on_the_way else [(seed, iter(successors[seed]))]
        while stack:
            state, targets = stack[-1]
            on_the_way[state] = True
            for target in targets:
                if on_the_way.get(target):
                    continue
                steps.append((state, target))
                if target not in on_the_way:
                    stack.append((target, iter(successors[target])))
                    break
            else:
                on_the_way[state] = False
                stack.pop()
    return steps


def _bend(source: int, target: int, points: list[Point], has_reverse: bool) -> float:
    """Return how far an arc swings out to its right hand: around a state in its way, or beside an arc that returns."""
    start, end = points[source], points[target]
    length = math.dist(start, end)
    others = (point for state, point in enumerate(points) if state not in (source, target))
    if any(_distance(point, start, end) < 1.5 * RADIUS for point in others):
        return RADIUS + 0.2 * length
    return 0.22 * length if has_reverse else 0.0


def _distance(point: Point, start: Point, end: Point) -> float:
    """Return the distance of a point from a line segment."""
    dx, dy = end.x - start.x, end.y - start.y
    along = ((point.x - start.x) * dx + (point.y - start.y) * dy) / (dx * dx + dy * dy)
    along = min(max(along, 0.0), 1.0)
    return math.dist(point, (start.x + along * dx, start.y + along * dy))


def _loop_side(state: int, points: list[Point], arcs: Mapping[tuple[int, int], object]) -> int:
    """Return -1 to loop above the state, or 1 below where arcs come or go above, and none more steeply below."""
    here = points[state]
    neighbours = [points[s + t - state] for s, t in arcs if state in (s, t) and s != t]
    slopes = [(here.y - there.y) / math.dist(here, there) for there in neighbours]
    above, below = max([0.0, *slopes]), -min([0.0, *slopes])
    return 1 if above > 0 and above >= below else -1


def _width(caption: Caption) -> float:
    """Estimate: a browser's fonts are not known here."""
    return FONT_SIZE * (0.56 * len(caption.labels) + 0.48 * len(str(caption)[len(caption.labels) :]))


def _room(is_loop: bool, captions: list[Caption]) -> float:
    """Return how far apart columns must be for captions not to run into each other."""
    return max(map(_width, captions)) + (RADIUS if is_loop else 2 * RADIUS + 28)


# --- ink


INK, QUIET, ACCENT, STATE_FILL = "#1f2328", "#57606a", "#b35900", "#eef4fb"


class Canvas:
    """Collects SVG elements, and how much room they take."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.extent: list[Point] = []

    def line(self, *points: Point) -> None:
        """Draw an arrow: a quadratic curve of three points or a cubic of four."""
        begin, *controls = (f"{x:.1f} {y:.1f}" for x, y in points)
        command = "Q" if len(points) == 3 else "C"
        self.elements.append(
            f'<path d="M{begin} {command}{", ".join(controls)}" fill="none" stroke="{QUIET}" stroke-width="1.6" '
            'marker-end="url(#arrow)"/>'
        )
        self.extent += [points[0], points[-1]]
        if len(points) == 3:
            self.extent.append(_on_curve(*points, share=0.5))

    def captions(self, centre: Point, captions: list[Caption]) -> None:
        """Write lines of text around a centre, on a white halo that keeps them legible across arcs."""
        top = centre.y - LINE_HEIGHT * (len(captions) - 1) / 2
        for n, caption in enumerate(captions):
            y = top + n * LINE_HEIGHT
            weight = ""
            if caption.weight:
                minus = caption.weight.replace("-", "\N{MINUS SIGN}").replace("inf", "∞")
                weight = f'<tspan fill="{ACCENT}" font-size="{FONT_SIZE - 2:g}"> / {minus}</tspan>'
            self.elements.append(
                f'<text class="label" x="{centre.x:.1f}" y="{y:.1f}" xml:space="preserve">'
                f"{escape(caption.labels)}{weight}</text>"
            )
            half = _width(caption) / 2
            self.extent += [Point(centre.x - half, y - LINE_HEIGHT / 2), Point(centre.x + half, y + LINE_HEIGHT / 2)]

    def state(self, centre: Point, name: str, double: bool) -> None:
        """Draw a state, with a second ring if it is final."""
        x, y = centre
        rings = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:g}" fill="{STATE_FILL}" stroke="{INK}"/>'
        if double:
            rings += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS - 4:g}" fill="none" stroke="{INK}"/>'
        text = f'<text x="{x:.1f}" y="{y:.1f}">{name}</text>'
        self.elements.append(f'<g class="state" stroke-width="1.6">{rings}{text}</g>')
        self.extent += [Point(x - RADIUS, y - RADIUS), Point(x + RADIUS, y + RADIUS)]

    def svg(self) -> str:
        """Return the picture, cropped to what was drawn."""
        margin = 14.0
        xs, ys = zip(*(self.extent or [Point(0.0, 0.0)]), strict=True)
        left, top = min(xs) - margin, min(ys) - margin
        width, height = max(xs) + margin - left, max(ys) + margin - top
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" '
            "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
            f'font-size="{FONT_SIZE:g}" fill="{INK}" text-anchor="middle" dominant-baseline="central">'
        )
        style = (
            "<style>.label{stroke:#fff;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}"
            ".state text{stroke:none;font-size:14px}</style>"
        )
        arrow = (
            '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.8 L10 5 L0 9.2 z" fill="{QUIET}"/></marker>'
        )
        ground = f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8" fill="#ffffff"/>'
        return "\n".join([head, f"<defs>{arrow}</defs>", style, ground, *self.elements, "</svg>"])


def _draw_arc(canvas: Canvas, start: Point, end: Point, bend: float, captions: list[Caption]) -> None:
    length = math.dist(start, end)
    across = Point((start.y - end.y) / length, (end.x - start.x) / length)  # to the right hand of who walks the arc
    middle = Point((start.x + end.x) / 2, (start.y + end.y) / 2)
    control = _move(middle, across, 2 * bend)
    begin, tip = _toward(start, control, RADIUS), _toward(end, control, RADIUS + 1.5)
    canvas.line(begin, control, tip)
    # The caption is above a straight arc and inside a bent one; nearer to the source where arcs are likely to cross.
    share = 0.5 if abs(across.y) > 0.99 else 0.35
    side = 1.0 if not bend and across.y < 0 else -1.0
    half_width, half_height = max(map(_width, captions)) / 2, LINE_HEIGHT * len(captions) / 2
    off = 4 + abs(across.x) * half_width + abs(across.y) * half_height
    canvas.captions(_move(_on_curve(begin, control, tip, share), across, side * off), captions)


def _draw_loop(canvas: Canvas, at: Point, side: int, captions: list[Caption]) -> None:
    foot, lean, reach = 0.5 * RADIUS, 30.0, RADIUS + 44.0
    rise = math.sqrt(RADIUS**2 - foot**2)
    canvas.line(
        Point(at.x - foot, at.y + side * rise),
        Point(at.x - lean, at.y + side * reach),
        Point(at.x + lean, at.y + side * reach),
        Point(at.x + foot + 0.5, at.y + side * (rise + 1.5)),
    )
    top = 0.25 * rise + 0.75 * reach  # where a cubic of these four points turns
    canvas.captions(Point(at.x, at.y + side * (top + 3 + LINE_HEIGHT * len(captions) / 2)), captions)


def _move(point: Point, direction: Point, distance: float) -> Point:
    return Point(point.x + direction.x * distance, point.y + direction.y * distance)


def _toward(point: Point, goal: Point, distance: float) -> Point:
    share = distance / math.dist(point, goal)
    return Point(point.x + share * (goal.x - point.x), point.y + share * (goal.y - point.y))


def _on_curve(begin: Point, control: Point, tip: Point, share: float) -> Point:
    """Return the point of a quadratic Bézier curve where `share` of the way is done."""
    a, b, c = (1 - share) ** 2, 2 * share * (1 - share), share**2
    return Point(a * begin.x + b * control.x + c * tip.x, a * begin.y + b * control.y + c * tip.y)
