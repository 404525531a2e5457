"""`starseq export`: a run for those who do not have starseq."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import RunFolder, app


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder, or the file of a graph.")],
    to: Annotated[
        Literal["hf", "onnx"], typer.Option(help="A folder that transformers loads, or a graph for onnxruntime.")
    ],
) -> None:
    """Write the model of a run for other programs.

    hf: for models that came from Hugging Face, with feature extractor and tokeniser. onnx: any model; batch and time may have any
    size. What is read greedily is the same.
    """
    from starseq.jobs import export as job

    typer.echo(str(job.export(run, out, to=to)))
