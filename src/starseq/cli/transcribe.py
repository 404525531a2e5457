"""`starseq transcribe`: text for audio files or line images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import (
    Alpha,
    BeamTokens,
    Beta,
    Device,
    Lexicon,
    NGram,
    Rescore,
    RescoreAlpha,
    RescoreUnit,
    RunFolder,
    Workers,
    app,
    progress_bar,
)


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
    lm: NGram = None,
    lexicon: Lexicon = None,
    rescore: Rescore = None,
    alpha: Alpha = None,
    beta: Beta = None,
    rescore_alpha: RescoreAlpha = None,
    rescore_beta: Beta = None,
    rescore_unit: RescoreUnit = "char",
    beam: Annotated[
        int | None,
        typer.Option(help="Hypotheses that the search keeps after each frame.", show_default="500 with --lm"),
    ] = None,
    beam_tokens: BeamTokens = 50,
    workers: Workers = 0,
    device: Device = "auto",
) -> None:
    """Read files with a trained model.

    Greedily, with --lm, --lexicon or --beam by beam search, with --rescore after rescoring. A line for each file: its
    name, a tab, the text. Places are seconds of audio, or pixel columns of an image. A file that cannot be read is named
    on standard error, the others are read, and the exit code is 1.
    """
    from starseq.data.files import check_target, write_bytes
    from starseq.decode.beam import Beam
    from starseq.jobs import transcribe as job
    from starseq.jobs.decode import BeamReader
    from starseq.jobs.evaluate import device_of

    if out is not None:
        check_target(out, *files)
    lines, failures = [], []
    reader = BeamReader(
        lm, lexicon, rescore, alpha, beta, rescore_alpha, rescore_beta, rescore_unit,
        Beam(size=500 if beam is None else beam, tokens=beam_tokens), workers, device_of(device),
        searched=beam is not None,
    )  # fmt: skip
    with progress_bar("Reading") as progress:
        for result in job.transcribe(run, files, reader=reader, device=device, progress=progress):
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
