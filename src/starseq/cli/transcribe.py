"""`starseq transcribe`: text for audio files or line images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import Device, MergeRepeats, RunFolder, app, progress_bar


@app.command()
def transcribe(
    run: RunFolder,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Audio, or images of text lines.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write.", show_default="standard output")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON Lines with every token, its place and its confidence.")
    ] = False,
    merge_repeats: MergeRepeats = None,
    device: Device = "auto",
) -> None:
    """Read files with a trained model.

    A line for each: its name, a tab, the text. Places are seconds of audio, or pixel columns of an image. A file that
    cannot be read is named on standard error, the others are read, and the exit code is 1.
    """
    from starseq.data.files import check_target, write_text
    from starseq.jobs import transcribe as job

    if out is not None:
        check_target(out, *files)
    lines, failures = [], []
    with progress_bar("Reading") as progress:
        for result in job.transcribe(run, files, device=device, merge_repeats=merge_repeats, progress=progress):
            if isinstance(result, job.Failure):
                failures.append(result.reason)
                continue
            line = json.dumps(result.to_dict(), ensure_ascii=False) if as_json else f"{result.path}\t{result.text}"
            lines.append(line)
            if out is None:
                typer.echo(line)
    if out is not None:
        write_text(out, "".join(f"{line}\n" for line in lines))
    for reason in failures:
        typer.echo(f"starseq: {reason}", err=True)
    if failures:
        raise SystemExit(1)
