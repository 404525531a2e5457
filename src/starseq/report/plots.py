"""Curves of training runs, as PNG files and as SVG to put into a page; and what many runs say together."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starseq.data.files import write_bytes
from starseq.train.metrics import read_metrics

__all__ = ["COLOURS", "curves_svg", "histograms_svg", "series_svg", "training_curves"]

Rows = Sequence[Mapping[str, float | None]]

COLOURS = ("#6e7781", "#d1242f", "#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#1b7c83")
"""of the runs of a page, in their order"""

_TITLES = {
    "dev_error": "error on dev, %",
    "loss": "loss per line",
    "loss_per_label": "loss per label",
    "blank_share": "share of blank frames",
    "inserted_per_label": "insertions per label",
    "p": "weight p of a star's token",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
    "frames_per_second": "frames per second",
}
_MAIN = ("dev_error", "loss_per_label", "inserted_per_label", "blank_share")
_NOT_DRAWN = frozenset({"step", "epoch", "seconds", "seconds_left", "skipped"})


def training_curves(metrics_csv: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Draws every column of a metrics.csv against the step, and returns the PNG files: `curves.png` in `folder`.

    Columns are taken as they are found. Where nothing was logged yet, nothing is drawn.
    """
    rows = read_metrics(metrics_csv)
    columns = [name for name in _columns({"": rows}) if name not in _NOT_DRAWN]
    if not columns:
        return []
    path = Path(folder) / "curves.png"
    buffer = io.BytesIO()
    with _style():
        _figure({"": rows}, columns, across=3).savefig(buffer, format="png", dpi=110)
    write_bytes(path, buffer.getvalue())
    return [path]


def curves_svg(runs: Mapping[str, Rows]) -> str:
    """The main curves of some runs, each in its colour of `COLOURS`, as an `<svg>` element; empty where nothing was logged."""
    columns = [name for name in _MAIN if name in _columns(runs)]
    if not columns:
        return ""
    with _style():
        svg = _svg(_figure(runs, columns, across=2), transparent=True)
    # As wide as the page, whatever size the figure had.
    return re.sub(
        r'(<svg[^>]*?) height="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1), count=1
    )


def series_svg(
    series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, log: bool = False, diagonal: str = ""
) -> str:
    """Lines through the points (x, y) of each of `series`, its name in the legend, as an `<svg>` element of the same bytes
    every time. `log` is a logarithmic scale of percentages; `diagonal` names a dashed line y = x.

    >>> svg = series_svg({"CTC": [(0, 20.0), (0.5, 97.0)], "STC": [(0, 21.0), (0.5, 38.0)]}, x="pDrop", y="CER, %")
    >>> svg.startswith("<svg"), "pDrop" in svg, "STC" in svg
    (True, True, True)
    """
    from matplotlib.figure import Figure

    with _style():
        below = len(series) > 4  # many names would cover the lines
        columns = 1 if max(map(len, series)) > 50 else 2
        height = 3.8 + 0.17 * -(-len(series) // columns) if below else 3.8
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(series.items()):
            again, colour = divmod(index, len(COLOURS))
            axes.plot(
                *zip(*sorted(points), strict=True), color=COLOURS[colour], linestyle="--" if again % 2 else "-", marker="o",
                markersize=4, label=name,
            )  # fmt: skip
        values = [value for points in series.values() for _, value in points]
        if diagonal:
            ends = [place for points in series.values() for place, _ in points]
            axes.plot([0, max(ends)], [0, max(ends)], color="#8c959f", linestyle="--", linewidth=1, label=diagonal)
        if log and min(values) > 0:
            _percent_scale(axes, min(values), max(values))
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if below:
            figure.legend(loc="outside lower left", ncols=columns, fontsize=8, frameon=False, handlelength=3)
        else:
            axes.legend(fontsize=8, frameon=False)
        return _svg(figure)


def histograms_svg(histograms: Mapping[str, Sequence[int]], *, x: str, y: str) -> str:
    """A small histogram of shares from 0 to 100 % for each name, side by side, as an `<svg>` element.

    >>> histograms_svg({"pDrop 0.4": [0, 3, 5, 1]}, x="labels kept, %", y="samples").startswith("<svg")
    True
    """
    from matplotlib.figure import Figure

    across = min(len(histograms), 3)
    down = -(-len(histograms) // across)
    with _style():
        figure = Figure(figsize=(3.3 * across, 2.4 * down), layout="constrained")
        for number, (name, counts) in enumerate(histograms.items()):
            axes = figure.add_subplot(down, across, number + 1)
            width = 100 / len(counts)
            axes.bar([width * (i + 0.5) for i in range(len(counts))], counts, width=0.94 * width, color=COLOURS[2])
            axes.set_axisbelow(True)
            axes.set_title(name, loc="left")
            axes.set_xlim(0, 100)
            if number // across == down - 1:
                axes.set_xlabel(x)
            if number % across == 0:
                axes.set_ylabel(y)
        return _svg(figure)


def _svg(figure: Any, *, transparent: bool = False) -> str:
    """The `<svg>` element of a figure, without what would differ from day to day."""
    buffer = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, transparent=transparent)
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)


def _columns(runs: Mapping[str, Rows]) -> list[str]:
    """Those that hold a number anywhere, in the order in which they are found."""
    found = (name for rows in runs.values() for row in rows for name, value in row.items() if value is not None)
    return list(dict.fromkeys(found))


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    style = {
        "svg.fonttype": "none",  # text stays text: small, and in the page's own face
        "svg.hashsalt": "starseq",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.parse_math": False,  # a name is a name, whatever signs it holds
        "axes.edgecolor": "#8c959f",
        "axes.labelcolor": "#57606a",
        "axes.titlesize": 10,
        "axes.titlecolor": "#24292f",
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#eaeef2",
        "xtick.color": "#57606a",
        "ytick.color": "#57606a",
        "lines.linewidth": 1.6,
    }
    with matplotlib.rc_context(style):
        yield


def _figure(runs: Mapping[str, Rows], columns: Sequence[str], *, across: int) -> Any:
    # `Figure` without pyplot: no window system, and no global state of the caller's is touched.
    from matplotlib.figure import Figure

    down = -(-len(columns) // across)
    figure = Figure(figsize=(9.6 if across == 2 else 12, 2.7 * down), layout="constrained")
    for number, name in enumerate(columns, start=1):
        axes = figure.add_subplot(down, across, number)
        lowest, highest = float("inf"), 0.0
        for index, rows in enumerate(runs.values()):
            points = [(row.get("step") or 0, value) for row in rows if (value := row.get(name)) is not None]
            if not points:
                continue
            lowest = min(lowest, *(value for _, value in points))
            highest = max(highest, *(value for _, value in points))
            dots = "." if len(points) < 30 else ""
            axes.plot(*zip(*points, strict=True), color=COLOURS[index % len(COLOURS)], marker=dots, clip_on=False)
        axes.set_title(_TITLES.get(name, name.replace("_", " ")), loc="left")
        axes.set_xlabel("step")
        axes.margins(x=0.01)
        if name == "dev_error" and lowest > 0:
            _percent_scale(axes, lowest, highest)
        else:
            axes.set_ylim(bottom=min(0, lowest))
    return figure


def _percent_scale(axes: Any, lowest: float, highest: float) -> None:
    """Logarithmic: 80 % and 3 % on one picture. Labelled with plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    marks = (1, 2, 5) if highest > 8 * lowest else (1, 1.5, 2, 3, 4, 5, 7)
    axes.yaxis.set_major_locator(FixedLocator([mark * power for power in (0.1, 1, 10, 100) for mark in marks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(0.8 * lowest, 1.25 * highest)
