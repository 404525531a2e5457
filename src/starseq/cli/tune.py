"""`starseq tune`: the weights of the language model and of the length, on dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import (
    BeamTokens,
    Lexicon,
    NGram,
    Rescore,
    Root,
    RunFolder,
    Workers,
    app,
    progress_bar,
)


@app.command()
def tune(
    run: RunFolder,
    lm: NGram = None,
    lexicon: Lexicon = None,
    rescore: Rescore = None,
    rescore_unit: Annotated[Literal["char", "word"], typer.Option(help="What beta counts when rescoring.")] = "char",
    split: Annotated[str, typer.Option(help="The split to tune on.")] = "dev",
    manifest: Annotated[
        Path | None, typer.Option(help="Another manifest than the run's.", show_default="the run's")
    ] = None,
    root: Root = None,
    beam: Annotated[int, typer.Option(help="Hypotheses kept after each frame.")] = 500,
    beam_tokens: BeamTokens = 50,
    nbest: Annotated[int, typer.Option(help="Texts in each list.")] = 512,
    alpha: Annotated[float, typer.Option(help="Weight of the language model in the first search.")] = 0.5,
    beta: Annotated[float, typer.Option(help="Weight of the length in the first search.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Searches at most; 2 are the least.")] = 4,
    workers: Workers = 2,
    device: Annotated[
        str, typer.Option(help="Where models run: cpu, cuda, ...; auto is CUDA where there is one.")
    ] = "auto",
) -> None:
    """Find the weights of the search, on dev.

    alpha and beta of log P(y|x) + alpha log P_LM(y) + beta |y| with the fewest errors. Without --lm it finds beta
    alone: models that learned from partial labels read too little, and this makes up for it. Writes tuned.json into the
    run, which `starseq evaluate` and `starseq pseudo` read, and the error surface into its folder `plots`.
    """
    from starseq.decode.beam import Beam
    from starseq.jobs.evaluate import device_of
    from starseq.jobs.tune import tune as job

    settings = Beam(size=beam, tokens=beam_tokens, nbest=nbest)
    with progress_bar("Tuning", goes_on=True) as progress:
        result = job(
            run, lm=lm, lexicon=lexicon, rescore=rescore, rescore_unit=rescore_unit, split=split, manifest=manifest,
            root=root, beam=settings, alpha=alpha, beta=beta, rounds=rounds, workers=workers, device=device_of(device),
            progress=progress,
        )  # fmt: skip
    typer.echo(result.report())
    surface = "tune-alone.png" if lm is None else "tune-beam.png"
    typer.echo(f"{run / 'tuned.json'}, {run / 'plots' / surface}")
