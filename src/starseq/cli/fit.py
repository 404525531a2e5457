"""`starseq fit`: the whole way, from transcripts with holes to a finished recogniser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq.cli._app import Display, app, clock, fail

if TYPE_CHECKING:
    from starseq.jobs.fit import Moment


@app.command()
def fit(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A manifest, a folder or table that `starseq prepare` reads, or the word digits."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes of the recipe, such as trainer.max_steps=2000."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; a fit that was stopped goes on there.")] = None,
    text: Annotated[Path | None, typer.Option(help="More text for the language model, a sentence a line.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Shorten the trainings to about this time.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what to expect here; nothing is kept.")
    ] = False,
) -> None:
    """Make a recogniser from transcripts with holes.

    Chooses a recipe, and rows to judge by. Trains a teacher with STC, the criterion for texts in which labels are missing; the
    teacher fills them in. Trains a student on the result with CTC, the criterion for complete texts, and a language model. Tunes,
    evaluates, and writes report.html. Where nothing is missing, CTC alone is trained. A fit that was stopped goes on with the same
    command.
    """
    from starseq.jobs import fit as job

    request = job.Request(data, text, overrides or (), minutes)
    if dry_run:
        typer.echo("\n".join(job.plan(request, out)))
        return
    if out is None:
        raise ValueError("--out FOLDER is missing: where is the recogniser to go?")
    display = Display("data")

    def progress(moment: job.Moment) -> None:
        display.bar(moment.share, 1.0)
        display.line(_line(moment))

    try:
        with display:
            result = job.fit(request, out, progress=progress, say=display.say)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on from here", 130)
    typer.echo(str(result))


def _line(moment: Moment) -> str:
    line = moment.part if moment.total is None else f"{moment.part} {moment.done:,} of {moment.total:,}"
    return line if moment.seconds_left is None else f"{line}, about {clock(moment.seconds_left)} left"
