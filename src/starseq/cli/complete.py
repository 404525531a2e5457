"""`starseq complete`: fills the holes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import Device, Root, RunFolder, SkipUnreadable, app, echo_outside, progress_bar


@app.command()
def complete(
    run: RunFolder,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Rows with partial labels.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Manifest to write.")],
    split: Annotated[str | None, typer.Option(help="Only the rows of this split.")] = None,
    lm: Annotated[Path | None, typer.Option(help="n-gram language model over the run's tokens, ARPA or .gz.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Weight of --lm.", show_default="what `starseq tune` found with it")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Added for every token.", show_default="what `starseq tune` found, else 0")
    ] = None,
    beam: Annotated[int, typer.Option(help="Prefixes that are kept after each frame.")] = 100,
    beam_threshold: Annotated[float, typer.Option(help="Drop prefixes that are worse than the best by more.")] = 25.0,
    beam_tokens: Annotated[int, typer.Option(help="The likeliest tokens of each frame extend prefixes.")] = 50,
    nbest: Annotated[int, typer.Option(help="Write so many transcripts of each row, in the field hyps.")] = 1,
    device: Device = "auto",
    root: Root = None,
    skip_bad: SkipUnreadable = False,
) -> None:
    """Fill the holes: the best text with the known labels.

    The best full transcript that contains them. Closed gaps stay closed. Each token that was added has a place and a
    confidence. Rows without any completion are listed in STEM.failed.jsonl; then the exit code is 1. A job that was
    stopped goes on where it was.
    """
    from starseq.jobs import complete as job

    with progress_bar("Completing", goes_on=True) as progress:
        counts = job.complete(
            run, manifest, out, split=split, lm=lm, alpha=alpha, beta=beta, beam=beam, beam_threshold=beam_threshold,
            tokens_per_frame=beam_tokens, nbest=nbest, device=device, root=root, skip_bad=skip_bad,
            progress=progress,
        )  # fmt: skip
    typer.echo(f"{out}: {counts.done:,} of {counts.rows:,} rows completed")
    echo_outside(counts)
    if counts.failed:
        failed = out.with_name(f"{out.stem}.failed.jsonl")
        typer.echo(f"starseq: {counts.failed:,} rows failed, see {failed}", err=True)
        raise SystemExit(1)
