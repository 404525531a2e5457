"""`starseq evaluate`: error rates of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starseq.cli._app import (
    Alpha,
    BeamTokens,
    Beta,
    Device,
    Lexicon,
    RescoreAlpha,
    RescoreUnit,
    Root,
    RunFolder,
    Workers,
    app,
    progress_bar,
)


@app.command()
def evaluate(
    run: RunFolder,
    manifest: Annotated[
        Path | None, typer.Argument(metavar="[MANIFEST]", help="Another manifest than the one it was trained on.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split; may be repeated.", show_default="the run's dev and test")
    ] = None,
    device: Device = "auto",
    root: Root = None,
    lm: Annotated[
        Path | None,
        typer.Option(help="Also a beam search with this n-gram model: ARPA, plain or .gz, or KenLM's binary."),
    ] = None,
    lexicon: Lexicon = None,
    rescore: Annotated[
        Path | None,
        typer.Option(help="Also its n best reordered by this language model: ours, Hugging Face's, or ARPA."),
    ] = None,
    alpha: Alpha = None,
    beta: Beta = None,
    rescore_alpha: RescoreAlpha = None,
    rescore_beta: Beta = None,
    rescore_unit: RescoreUnit = "char",
    beam: Annotated[
        int | None,
        typer.Option(
            help="Also a beam search, which keeps so many hypotheses after each frame.", show_default="500 with --lm"
        ),
    ] = None,
    beam_tokens: BeamTokens = 50,
    workers: Workers = 2,
    examples: Annotated[int, typer.Option(min=0, help="Show so many of the worst readings, and as many others.")] = 3,
) -> None:
    """Error rates: greedy, by beam search, rescored.

    Per split: by greedy reading, with --lm or --beam by beam search, with --rescore after rescoring, side by side.
    Prints a table and examples, adds to results.json of the run, and leaves what was read in its folder `readings`.
    """
    from starseq.decode.beam import Beam
    from starseq.jobs import evaluate as job
    from starseq.jobs.decode import BeamReader

    with progress_bar("Reading", but=", less what a search has read") as progress:
        reader = BeamReader(
            lm, lexicon, rescore, alpha, beta, rescore_alpha, rescore_beta, rescore_unit,
            Beam(size=500 if beam is None else beam, tokens=beam_tokens), workers, job.device_of(device), root, progress,
            searched=beam is not None,
        )  # fmt: skip
        result = job.evaluate(
            run,
            manifest,
            splits=split or (),
            device=device,
            root=root,
            methods=reader.methods(),
            progress=progress,
        )
    typer.echo(result.table())
    for part in result.splits:
        if part.left_out:
            typer.echo(f"{part.name}: {part.left_out:,} rows left out, for they have no complete text to compare with")
    shown = result.examples(examples, examples) if examples else ""
    if shown:
        typer.echo(f"\n{shown}")
