"""`starseq evaluate`: error rates of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq.cli._app import RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs._search import Search


@app.command()
@options(
    search="lm lexicon rescore alpha beta rescore_alpha rescore_beta beam beam_tokens",
    where="device root workers",
    together=True,
)
def evaluate(
    run: RunFolder,
    manifest: Annotated[
        Path | None, typer.Argument(metavar="[MANIFEST]", help="Another manifest than the one it was trained on.")
    ] = None,
    *,
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split; may be repeated.", show_default="the run's dev and test")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Show so many of the worst readings, and as many others.")] = 3,
    search: Search,
    where: Machine,
) -> None:
    """Error rates: greedy, by beam search, rescored.

    Per split: greedy, with --lm, --lexicon, --beta or --beam by beam search, with --rescore after rescoring, side by side.
    Prints a table and examples, adds to results.json of the run, and leaves what was read in its folder `readings`.
    """
    from starseq.jobs import evaluate as job

    with where.at_work("Reading") as place:
        result = job.evaluate(run, manifest, splits=split or (), search=search, where=place)
    typer.echo(result.table())
    for part in result.splits:
        if part.left_out:
            typer.echo(f"{part.name}: {part.left_out:,} rows left out, for they have no complete text to compare with")
    shown = result.examples(examples, examples) if examples else ""
    if shown:
        typer.echo(f"\n{shown}")
