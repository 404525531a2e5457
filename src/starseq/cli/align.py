"""`starseq align`: times of every known label, and of what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import Device, Root, RunFolder, SkipUnreadable, app, echo_outside, progress_bar


@app.command()
def align(
    run: RunFolder,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Rows with full or partial labels.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write to.")],
    format: Annotated[
        Literal["json", "ctm", "textgrid"],
        typer.Option(help="JSON Lines, NIST's CTM, or a Praat TextGrid for each row."),
    ] = "json",
    split: Annotated[str | None, typer.Option(help="Only the rows of this split.")] = None,
    log_penalty: Annotated[
        float | None, typer.Option("--lambda", help="Log-weight of a missing label.", show_default="the run's")
    ] = None,
    device: Device = "auto",
    root: Root = None,
    skip_bad: SkipUnreadable = False,
) -> None:
    """Find where known labels lie, and where some are missing.

    Of every gap it says how many. Places are seconds of audio or pixel columns of an image. Rows that cannot be aligned
    are listed in failed.jsonl; then the exit code is 1. A job that was stopped goes on where it was.
    """
    from starseq.jobs import align as job

    with progress_bar("Aligning", goes_on=True) as progress:
        counts = job.align(
            run, manifest, out, format=format, split=split, log_penalty=log_penalty, device=device, root=root,
            skip_bad=skip_bad, progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: {counts.done:,} of {counts.rows:,} rows aligned")
    echo_outside(counts)
    if counts.failed:
        typer.echo(f"starseq: {counts.failed:,} rows failed, see {out / 'failed.jsonl'}", err=True)
        raise SystemExit(1)
