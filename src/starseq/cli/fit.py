"""`starseq fit`: the whole way, from transcripts with holes to a finished recogniser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starseq.cli._app import app, fail

if TYPE_CHECKING:
    from starseq.jobs.fit import Moment

SECONDS_PER_LINE = 20
"""between two lines where there is no terminal to draw on"""


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

    options: dict[str, Any] = {"text": text, "overrides": overrides or (), "minutes": minutes}
    if dry_run:
        typer.echo("\n".join(job.plan(data, out, **options)))
        return
    if out is None:
        raise ValueError("--out FOLDER is missing: where is the recogniser to go?")
    display = _Display()
    try:
        with display:
            result = job.fit(data, out, **options, progress=display.progress, say=display.say)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on from here", 130)
    typer.echo(str(result))


class _Display:
    """One line on stderr for the whole: drawn on a terminal, printed now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._terminal, self._printed = console.is_terminal, time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bars.add_task("data", total=1.0)

    def __enter__(self) -> _Display:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        if self._terminal:
            self._bars.console.print(sentence, highlight=False, markup=False)
        else:
            typer.echo(sentence, err=True)

    def progress(self, moment: Moment) -> None:
        line = _line(moment)
        self._bars.update(self._task, completed=moment.share, description=line)
        if not self._terminal and time.monotonic() - self._printed > SECONDS_PER_LINE:
            self._printed = time.monotonic()
            typer.echo(f"{line}, {moment.share:.0%} of all", err=True)


def _line(moment: Moment) -> str:
    line = moment.part if moment.total is None else f"{moment.part} {moment.done:,} of {moment.total:,}"
    if moment.seconds_left is None:
        return line
    left = int(moment.seconds_left)
    return f"{line}, about {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
