"""The tables and plots of the pages, from benchmarks/results.csv and experiments/*.jsonl; used by docs/build.py."""

from __future__ import annotations

import io
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for `experiments`, when this is run as a program

from experiments.run import Line, Table  # noqa: E402

from experiments import run as experiments  # noqa: E402
from starseq.jobs import bench_results  # noqa: E402
from starseq.jobs.bench_results import BASELINE, DECODE, GROWING, REPLAYED, TRAIN, Measurement  # noqa: E402

MEASURED = ROOT / "benchmarks" / "results.csv"
IMAGES = ROOT / "docs" / "images"
ALL_LABELS = "CTC, all labels"


# --- results ----------------------------------------------------------------------------------------------------------


def trained() -> list[tuple[Table, list[Line]]]:
    """The experiments that have results."""
    tables = [Table.load(str(path)) for path in sorted((ROOT / "experiments").glob("*.yaml"))]
    return [(table, lines) for table in tables if (lines := experiments.read_lines(_lines_of(table)))]


def _lines_of(table: Table) -> Path:
    return ROOT / "experiments" / f"{table.name}.jsonl"


def summary() -> str:
    """One row an experiment: the error rates at the share of labels that its file calls `front`."""
    there = [(table, lines) for table, lines in trained() if table.front]
    headings = list(dict.fromkeys(heading for table, _ in there for heading in table.summary))
    text = [f"| test error, % | {' | '.join([*headings, ALL_LABELS])} |", "|---" * (2 + len(headings)) + "|"]
    for table, lines in there:
        cells = [
            experiments.shown(table, lines, table.front, table.summary[h]) if h in table.summary else ""
            for h in headings
        ]
        base = experiments.shown(table, lines, *table.base.split("/")) if table.base else ""
        what = f"{table.title}: {table.front} ({table.metric.upper()})"
        text.append(f"| {what} | {' | '.join(cell or 'not run' for cell in [*cells, base])} |")
    return "\n".join(text)


def results() -> str:
    """Every experiment: what was trained, its table, its plot, its conditions, the commands of its rows."""
    return "\n\n".join(_result(table, lines) for table, lines in trained()) or "Nothing was run yet."


def _result(table: Table, lines: Sequence[Line]) -> str:
    order = {(cell.row, cell.column, cell.seed): place for place, cell in enumerate(table.cells())}
    whole = [line for line in lines if (line["row"], line["column"], line["seed"]) in order and not line.get("partial")]
    whole.sort(key=lambda line: order[line["row"], line["column"], line["seed"]])
    heading, about, *rows = experiments.page(table, lines).split("\n\n")
    body = rows[0] if table.about else about
    where = sorted({f"{line['machine']}, commit {line['commit']}" for line in lines})
    image = f"images/results-{table.name}.svg"
    text = [heading.replace("###", "##"), f"{table.about.strip()}[^{table.name}]", body, f"![{table.title}]({image})"]
    commands = [
        f"# {line['row']}, {line['column']}\n" + "\n".join(line["commands"][:-1] or line["commands"]) for line in whole
    ]
    text += [
        "The command of each row; `starseq evaluate` with the run's folder follows.",
        "```console\n" + "\n".join(commands) + "\n```",
    ]
    return "\n\n".join([*text, f"[^{table.name}]: Run on {'; '.join(where)}."])


def plot_results() -> None:
    """A bar for each cell of each experiment."""
    for table, lines in trained():
        save(IMAGES / f"results-{table.name}.svg", lambda figure, t=table, n=lines: _bars(figure, t, n), (7, 3))


def _bars(figure: Any, table: Table, lines: Sequence[Line]) -> None:
    axes = figure.subplots()
    rows = experiments.rows_run(table, lines)
    columns = [name for name in table.columns if any(line["column"] == name and "errors" in line for line in lines)]
    width = 0.8 / max(1, len(columns))
    for place, column in enumerate(columns):
        title = (table.columns[column] or {}).get("title", column)
        points = [(row, _rate(table, lines, rows[row], column)) for row in range(len(rows))]
        drawn = [(row + (place - (len(columns) - 1) / 2) * width, rate) for row, rate in points if rate is not None]
        axes.bar([x for x, _ in drawn], [rate for _, rate in drawn], width, label=title)
    if table.base and (base := _rate(table, lines, *table.base.split("/"))) is not None:
        axes.axhline(base, color="grey", linewidth=0.8, linestyle="--", label=ALL_LABELS)
    axes.set_xticks(range(len(rows)), rows)
    axes.set_xlabel("labels dropped")
    axes.set_ylabel(f"{table.metric.upper()} on test, %")
    axes.legend(fontsize=8)


def _rate(table: Table, lines: Sequence[Line], row: str, column: str) -> float | None:
    newest = {
        line["seed"]: line for line in lines if (line["row"], line["column"]) == (row, column) and "errors" in line
    }
    rates = [line["errors"]["test"][table.metric] for line in newest.values()]
    return statistics.fmean(rates) if rates else None


# --- performance ------------------------------------------------------------------------------------------------------


def losses(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of `starseq bench` that time a loss at one size."""
    return [
        row for row in rows
        if row.metric in ("time", "ratio") and row.case not in GROWING and row.shape.count(",") == 3
        and not row.case.startswith((TRAIN, DECODE))
    ]  # fmt: skip


def speed(rows: Sequence[Measurement]) -> str:
    """For the front page: times over torch's, a line for each device and case."""
    ratios = [
        row for row in losses(rows)
        if row.metric == "ratio" and "-64" not in row.case and row.provider != BASELINE and REPLAYED not in row.provider
    ]  # fmt: skip
    providers = _in_order(row.provider for row in ratios)
    found = {(row.device, row.case, row.provider): row.p50 for row in ratios}
    text = [f"| time over torch's CTC | {' | '.join(providers)} |", "|---" * (1 + len(providers)) + "|"]
    for device, case, shape in dict.fromkeys((row.device, row.case, row.shape) for row in ratios):
        cells = [found.get((device, case, name)) for name in providers]
        shown = " | ".join("" if ratio is None else f"{ratio:.2f}" for ratio in cells)
        text.append(f"| {_short(device)}: {case} ({shape}) | {shown} |")
    machines = dict.fromkeys(f"{_short(row.device)}: {row.device}, torch {row.torch}" for row in ratios)
    return "\n".join(
        [*text, "", f"(B, T, V, U). `STCLoss()` tunes itself, `stc` is the loss alone. {'. '.join(machines)}."]
    )


def _in_order(providers: Iterable[str]) -> list[str]:
    """As columns: what people compare with, the loss as they get it, its parts and forms; replayed ones behind the others."""
    first = (BASELINE, "cudnn ctc", "starseq STCLoss()", "starseq stc", "starseq published stc", "starseq ctc")
    rank = {name: place for place, name in enumerate(first)}
    return sorted(
        dict.fromkeys(providers), key=lambda name: (REPLAYED in name, rank.get(name.removesuffix(f", {REPLAYED}"), 9))
    )


def _short(device: str) -> str:
    """What a device is called in a table."""
    return device.removeprefix("NVIDIA ") if device.startswith("NVIDIA ") else "CPU"


def times(rows: Sequence[Measurement]) -> str:
    """Milliseconds, a table a device."""
    found = [row for row in losses(rows) if row.metric == "time"]
    return _by_machine(found, lambda here: _grid(here, "ms", lambda row: f"{row.p50:.3g}"))


def _grid(rows: Sequence[Measurement], what: str, shown: Callable[[Measurement], str]) -> str:
    """A line for each case, a column for each provider."""
    providers = _in_order(row.provider for row in rows)
    found = {(row.provider, row.case, row.shape, row.dtype): shown(row) for row in rows}
    text = [f"| {what} | B, T, V, U | {' | '.join(providers)} |", "|---" * (2 + len(providers)) + "|"]
    for case in dict.fromkeys((row.case, row.shape, row.dtype) for row in rows):
        cells = [found.get((name, *case), "") for name in providers]
        text.append(f"| {case[0]} | {case[1]} | {' | '.join(cells)} |")
    return "\n".join(text)


def _by_machine(rows: Sequence[Measurement], made: Callable[[list[Measurement]], str]) -> str:
    parts = []
    for machine in dict.fromkeys((row.device, row.torch) for row in rows):
        here = [row for row in rows if (row.device, row.torch) == machine]
        parts.append(f"{machine[0]}, torch {machine[1]}:\n\n{made(here)}")
    return "\n\n".join(parts) or "(not measured yet)"


def steps(rows: Sequence[Measurement]) -> str:
    """Whole steps of training, over those with the faster CTC."""
    found = [
        row for row in rows if row.case.startswith(TRAIN) and row.metric == "ratio" and REPLAYED not in row.provider
    ]
    return _by_machine(found, lambda here: _grid(here, "time of a step", lambda row: f"{row.p50:.2f}"))


def others(rows: Sequence[Measurement]) -> str:
    """Decoding and data: a line a measurement."""
    done = {(row.case, row.metric) for row in losses(rows)}
    found = [
        row for row in rows
        if not row.case.startswith(TRAIN) and row.case not in GROWING and (row.case, row.metric) not in done
        and row.metric != "memory"
    ]  # fmt: skip

    def made(here: list[Measurement]) -> str:
        lines = [f"| {row.case.removeprefix(DECODE)} | {row.shape} | {row.p50:.4g} {row.unit} |" for row in here]
        return "\n".join(["| what | of | measured |", "|---|---|---|", *lines])

    return _by_machine([row for row in found if row.case.startswith(DECODE) or row.shape.count(",") != 3], made)


def plot_growth(rows: Sequence[Measurement]) -> None:
    save(IMAGES / "growth.svg", lambda figure: _growth(figure, rows), (8, 3.2))


AXES = {"labels": (3, "labels (B = 8, T = 1,000, V = 80)"), "vocabulary": (2, "vocabulary (B = 8, T = 200, U = 25)")}
"""of what grows: its place in a shape, and what is said below it"""


def _growth(figure: Any, rows: Sequence[Measurement]) -> None:
    spent = [row for row in rows if row.metric == "time" and REPLAYED not in row.provider]
    cases = [case for case in GROWING if any(row.case == case for row in spent)]
    for place, case in enumerate(cases, start=1):
        axes, (axis, label) = figure.add_subplot(1, len(cases), place), AXES[case]
        here = [row for row in spent if row.case == case]
        for provider in dict.fromkeys(row.provider for row in here):
            points = sorted((int(row.shape.split(", ")[axis]), row.p50) for row in here if row.provider == provider)
            axes.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=provider)
        axes.set_xlabel(label, fontsize=8)
        axes.set_ylabel("ms", fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


# --- the house --------------------------------------------------------------------------------------------------------


def house() -> str:
    """The rows of src/starseq as an SVG drawing, from the layers that import-linter checks and the docstrings of their rooms."""
    import tomllib  # Python 3.11 has it

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    rows = [layer.split(" | ") for layer in next(c["layers"] for c in contracts if c["type"] == "layers")]
    high, wide, gap = 34, 760, 6
    total = (high + gap) * len(rows)
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {total}" width="{wide}" font-family="sans-serif" role="img">'
    ]
    for level, rooms in enumerate(rows):
        each = (wide - gap * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            x, y = place * (each + gap), level * (high + gap)
            said = _shortened(_docstring(room), int((each - 16) / 5.4))
            text.append(
                f'<rect x="{x:g}" y="{y}" width="{each:g}" height="{high}" rx="4" fill="#eef2fb" stroke="#5c6bc0"/>'
                f'<text x="{x + 8:g}" y="{y + 14}" font-size="13" font-weight="600">{room}</text>'
                f'<text x="{x + 8:g}" y="{y + 27}" font-size="10" fill="#444">{escape(said)}</text>'
            )
    return "\n".join([*text, "</svg>"]) + "\n"


def _docstring(room: str) -> str:
    folder = ROOT / "src" / "starseq" / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    found = re.match(r'"""(.*?)(?:\.\s|\.?"""|:\s|\n\n)', path.read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rsplit(" ", 1)[0] + " …"


def save(path: Path, draw: Callable[[Any], None], size: tuple[float, float]) -> None:
    """Draws into an SVG file whose bytes are the same each time, for one version of matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "starseq", "svg.fonttype": "none"}):
        draw(figure)
        figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", encoding="utf-8")


def tables() -> dict[str, str]:
    """All of them by name."""
    rows = bench_results.load(MEASURED)
    return {
        "summary": summary(), "results": results(), "speed": speed(rows), "times": times(rows), "steps": steps(rows),
        "others": others(rows),
    }  # fmt: skip


def plots() -> None:
    """Draws growth.svg, results-*.svg and house.svg."""
    plot_growth(bench_results.load(MEASURED))
    plot_results()
    (IMAGES / "house.svg").write_text(house(), encoding="utf-8")
