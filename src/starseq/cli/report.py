"""`starseq report`: one page about some runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import Root, app


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of `starseq train`.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page.", show_default="report.html in the first folder")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split whose examples are shown.", show_default="test, or the last evaluated")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Lines to show: half of them the worst, half at random; and rows of --completed.")
    ] = 6,
    alignments: Annotated[int, typer.Option(min=0, help="Alignment pictures.")] = 3,
    completed: Annotated[
        Path | None,
        typer.Option(
            metavar="MANIFEST",
            help="Also show what was filled in, most doubtful first: OUT of `starseq complete` or `pseudo`.",
        ),
    ] = None,
    root: Root = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.", show_default="the runs' names")] = None,
) -> None:
    """Write one HTML page: error rates, curves, alignments.

    Self-contained, with examples whose errors are marked. Error rates and examples are those of `starseq evaluate`.
    """
    from starseq.jobs import report as job

    page = job.report(
        runs, out, split=split, examples=examples, alignments=alignments, title=title, completed=completed, root=root
    )
    typer.echo(f"{page}")
