"""`starseq back`: fillings go back to where their rows came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import SkipBad, app, echo_bad, progress_bar


@app.command()
def back(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="What `starseq complete` wrote.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="What `starseq prepare` read.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the files with their fillings.")
    ],
    skip_bad: SkipBad = False,
) -> None:
    """Put fillings back into pages, tables or Kaldi's text.

    PAGE-XML, ALTO, CSV and TSV. Each filling is marked as a machine's, with its confidence; everything else of a file stays,
    to the byte. filled.jsonl lists them.
    """
    from starseq.jobs import back as job

    with progress_bar("Reading") as progress:
        done = job.back(manifest, source, out, skip_bad=skip_bad, progress=progress)
    typer.echo(f"{out}: {done.files:,} files, {done.filled:,} gaps filled, see {out / job.LISTING}")
    for reason, count in sorted(done.left.items()):
        typer.echo(f"left as it was: {count:,} x {reason}")
    echo_bad(out, done.bad)
