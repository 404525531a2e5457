"""`starseq demo`: the main job on built-in data."""

from __future__ import annotations

from typing import Annotated

import typer

from starseq.cli._app import app, progress_bar


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Optimiser steps of each training run.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the data, the drops and the models.")] = 0,
) -> None:
    """Show the loss at work on made-up sequences, in seconds on a CPU.

    Draws a label graph, scores full and partial labels, and trains a small model from labels half of which are lost.
    """
    from starseq.jobs import demo as job

    with progress_bar("Training") as progress:
        result = job.demo(steps=steps, seed=seed, progress=progress)
    typer.echo(result.report())
