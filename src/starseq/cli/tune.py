"""`starseq tune`: the weights of the language model and of the length, on dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq.cli._app import RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs._search import Search


@app.command()
@options(search="lm lexicon rescore beam beam_tokens", where="device root workers")
def tune(
    run: RunFolder,
    *,
    split: Annotated[str, typer.Option(help="The split to tune on.")] = "dev",
    manifest: Annotated[
        Path | None, typer.Option(help="Another manifest than the run's.", show_default="the run's")
    ] = None,
    search: Search,
    where: Machine,
) -> None:
    """Find the weights of the search, on dev.

    alpha and beta of log P(y|x) + alpha log P_LM(y) + beta |y| with the fewest errors. Without --lm it finds beta
    alone: models that learned from partial labels read too little, and this makes up for it. Writes tuned.json into the
    run, which `starseq evaluate` and `starseq pseudo` read, and the error surface into its folder `plots`.
    """
    from starseq.jobs.tune import tune as job

    with where.at_work("Tuning") as place:
        result = job(run, search=search, split=split, manifest=manifest, where=place)
    typer.echo(result.report())
    surface = "tune-alone.png" if search.lm is None else "tune-beam.png"
    typer.echo(f"{run / 'tuned.json'}, {run / 'plots' / surface}")
