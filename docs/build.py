"""Regenerates what commands make: the drawings that the pages name, and the tables between markers. Run by `make docs`.

A drawing is made by the command that stands beside it: every line of a page that reads ``starseq draw ... -o FILE``. A
table stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and comes from `starseq.jobs.bench_results.tables`, or, for
``experiments`` and ``summary``, from the results in experiments/*.jsonl.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `experiments`, when this is run as a program

from experiments import run as experiments
from starseq import cli
from starseq.jobs import bench_results

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.csv"
PLOT = ROOT / "docs" / "images" / "scaling.svg"


def pages() -> list[Path]:
    """README.md and everything under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    return {**bench_results.tables(RESULTS), **experiments.pages()}


def main() -> None:
    bench_results.plot(RESULTS, PLOT)
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
