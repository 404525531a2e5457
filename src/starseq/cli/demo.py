"""`starseq demo`: the main job on built-in data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import app, progress_bar


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write; a demo that was stopped goes on there.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps of each training.", show_default="those of the recipe digits")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the lines and the models.")] = 0,
) -> None:
    """Show why the star matters, in minutes on two CPU cores.

    Makes lines of handwritten digits and drops half of their labels. Trains CTC on all labels, CTC on the half and STC on
    the same half. Prints their error rates on digits that none of them has seen, and writes results.json and report.html.
    """
    from starseq.jobs import demo as job

    with progress_bar("Training", goes_on=True) as progress:
        result = job.demo(out, steps=steps, seed=seed, progress=progress, say=lambda line: typer.echo(line, err=True))
    typer.echo(f"\n{result.table()}\n\n{result.page}: curves, examples and alignments")
