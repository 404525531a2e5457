"""`starseq transcribe`: text for audio files or line images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq.cli._app import RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs._search import Search


@app.command()
@options(search="lm lexicon rescore alpha beta rescore_alpha rescore_beta beam beam_tokens", where="device workers")
def transcribe(
    run: RunFolder,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Audio, or images of text lines.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write.", show_default="standard output")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON Lines with every token, its place and its confidence.")
    ] = False,
    search: Search,
    where: Machine,
) -> None:
    """Read files with a trained model.

    Greedily, with --lm, --lexicon or --beam by beam search, with --rescore after rescoring. A line for each file: its
    name, a tab, the text. Places are seconds of audio, or pixel columns of an image. A file that cannot be read is named
    on standard error, the others are read, and the exit code is 1.
    """
    from starseq.data.files import check_target, write_bytes
    from starseq.jobs import transcribe as job

    if out is not None:
        check_target(out, *files)
    lines, failures = [], []
    with where.at_work("Reading", goes_on=False) as place:
        for result in job.transcribe(run, files, search=search, where=place):
            if isinstance(result, job.Failure):
                failures.append(result.reason)
                continue
            if as_json:
                text = json.dumps(result.to_dict(), ensure_ascii=not result.path.isprintable())
            else:
                text = f"{result.path}\t{result.text}"
            lines.append(f"{text}\n".encode(errors="surrogateescape"))  # names of files are any bytes
            if out is None:
                typer.echo(lines.pop(), nl=False)
    if out is not None:
        write_bytes(out, b"".join(lines))
    for reason in failures:
        typer.echo(f"starseq: {reason}", err=True)
    if failures:
        raise SystemExit(1)
