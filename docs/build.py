"""Regenerates what commands make: the drawings that the pages name, the tables between markers, and plots. Run by `make docs`.

A drawing is made by the command that stands beside it: every line of a page that reads ``starseq draw ... -o FILE``. A
table stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and comes from docs/tables.py.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for `docs` and `experiments`, when this is run as a program

from docs import tables  # noqa: E402

from starseq import cli  # noqa: E402


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


def fill(page: str, filling: Mapping[str, str]) -> str:
    """The page with the region of every table replaced by it.

    >>> fill("a <!-- x:begin --> old <!-- x:end --> b", {"x": "new", "y": "elsewhere"})
    'a <!-- x:begin -->\\nnew\\n<!-- x:end --> b'
    """
    for name, table in filling.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        region = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        replacement = f"{begin}\n{table.strip()}\n{end}"
        page = region.sub(lambda match: replacement, page)  # noqa: B023
    return page


def main() -> None:
    tables.plots()
    filling = tables.tables()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for arguments, file in drawings(text):
            draw(arguments, ROOT / file)
        filled = fill(text, filling)
        if filled != text:
            page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
