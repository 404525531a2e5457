"""Regenerates what commands make: the drawings that the pages name, and the tables between markers. Run by `make docs`.

A drawing is made by the command that stands beside it: every line of a page that reads ``starseq draw ... -o FILE``. A
table stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and comes from `starseq.jobs.bench_results.tables`, or, for
``results``, from the runs whose own files lie in docs/results/; for ``table1``, ``table1-runs`` and so on, and for
``summary`` from the cells in docs/results/cells.jsonl.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks`, when this is run as a program

from benchmarks import page as experiments

from starseq import cli
from starseq.config import load_recipe
from starseq.data.files import write_text
from starseq.jobs import bench_results
from starseq.report.plots import training_curves
from starseq.runs import read_results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.csv"
PLOT = ROOT / "docs" / "images" / "scaling.svg"
RUNS = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / experiments.IMAGES


def pages() -> list[Path]:
    """README.md and everything under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(RUNS.glob("*.md"))]


def drawings(page: str) -> Iterator[tuple[list[str], str]]:
    """The arguments of every `starseq draw` on a page that writes a file, and the file.

    >>> list(drawings("starseq draw stc 'a b' -o docs/images/ab.svg"))
    [(['draw', 'stc', 'a b'], 'docs/images/ab.svg')]
    """
    for line in page.splitlines():
        if match := re.fullmatch(r"(?:\$ )?starseq (draw .+) -o (\S+)", line):
            yield shlex.split(match[1]), match[2]


def draw(arguments: list[str], target: Path) -> None:
    """Run the command, writing to `target`."""
    command = typer.main.get_command(cli.app)
    command.main([*arguments, "-o", str(target)], prog_name="starseq", standalone_mode=False)


def fill(page: str, tables: Mapping[str, str]) -> str:
    """The page with the region of every table replaced by it.

    >>> fill("a <!-- x:begin --> old <!-- x:end --> b", {"x": "new", "y": "elsewhere"})
    'a <!-- x:begin -->\\nnew\\n<!-- x:end --> b'
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        region = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        replacement = f"{begin}\n{table.strip()}\n{end}"
        page = region.sub(lambda match: replacement, page)  # noqa: B023
    return page


def tables() -> dict[str, str]:
    """The tables by name."""
    return {**bench_results.tables(RESULTS), "results": results_table(), **experiments.texts(experiments.load())}


def results_table() -> str:
    """A row for every run of which docs/results/ holds recipe.yaml and results.json, and every way in which it was read."""
    lines = [
        "| run | model | criterion | labels kept | steps | training, s | read | dev CER % | test CER % | dev WER % | test WER % |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for folder in sorted(path.parent for path in RUNS.glob("*/results.json")):
        results, recipe = read_results(folder), load_recipe(folder / "recipe.yaml")
        train, scores = results["train"], results["evaluate"]
        kept = 100 * train["labels_kept"] / train["labels"]
        cells = [f"[{folder.name}](results/{folder.name}/recipe.yaml)", recipe.model.name, recipe.criterion.name]
        cells += [f"{kept:.0f} %", f"{train['steps']:,}", f"{train['seconds']:.0f}"]
        for how in (name for name in scores["test"] if name in scores["dev"]):
            errors = [f"{scores[split][how][rate]:.1f}" for rate in ("cer", "wer") for split in ("dev", "test")]
            lines.append(f"| {' | '.join((*cells, how, *errors))} |")
    return "\n".join(lines)


def curves() -> None:
    """The learning curves of these runs, beside their files, where they are not drawn yet."""
    for metrics in sorted(RUNS.glob("*/metrics.csv")):
        if not (metrics.parent / "curves.png").exists():
            training_curves(metrics, metrics.parent)


def plots() -> dict[Path, str]:
    """The plots of the experiments, by file; their bytes depend on matplotlib's version."""
    return {IMAGES / name: svg for name, svg in experiments.plots(experiments.load()).items()}


def main() -> None:
    bench_results.plot(RESULTS, PLOT)
    curves()
    for path, svg in plots().items():
        write_text(path, svg)
    filling = tables()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for arguments, file in drawings(text):
            draw(arguments, ROOT / file)
        filled = fill(text, filling)
        if filled != text:
            page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
