"""`starseq train`: a recipe to a run folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq import recipes
from starseq.cli._app import Display, Said, app, clock
from starseq.data.files import check_unlocked

if TYPE_CHECKING:
    from starseq.jobs.train import Metrics


@app.command(epilog="Recipes of the package:\n\n" + recipes.listing())
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="A recipe of the package, such as handwriting, or a YAML file; with --resume, a run's folder.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as optim.lr=0.01 data.root=corpus."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.", show_default="runs/RECIPE", metavar="FOLDER")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run from its last checkpoint: --resume FOLDER is enough.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="One synthetic batch, no data, nothing is written.")
    ] = False,
    list_recipes: Annotated[
        bool, typer.Option("--list", help="Say what the recipes of the package are for and exit.")
    ] = False,
) -> None:
    """Train a model as a recipe says.

    The run folder holds the model, its recipe and tokens, the metrics and the curves: `starseq evaluate` and `transcribe`
    need nothing else. The same command runs under torchrun and SLURM.
    """
    if list_recipes:
        typer.echo(recipes.listing())
        return
    changes = list(overrides or ())
    if recipe is not None and resume and "=" in recipe and not Path(recipe).exists():
        changes.insert(0, recipe)
        recipe = None
    if recipe is not None and resume and out is None and _is_folder(recipe):
        out = Path(recipe)
        recipe = None
    if recipe is None and not (resume and out is not None):
        raise ValueError(
            "which recipe? `starseq train --list` names them; only --resume with a run's folder needs none"
        )
    folder = out or Path("runs") / re.sub(r"\.ya?ml$", "", Path(str(recipe)).name)
    if not dry_run and _is_first_process():
        check_unlocked(folder, folder / ".lock")  # at once, before torch is imported
    from starseq.config import load_recipe

    if recipe is None and changes and (folder / "recipe.yaml").is_file():
        recipe = str(folder / "recipe.yaml")
    loaded = None if recipe is None else load_recipe(recipe, changes)
    from starseq.jobs import train as job

    if dry_run:
        if loaded is None:
            raise ValueError("--dry-run needs a recipe")
        typer.echo(str(job.dry_run(loaded)))
        return
    display = Display("training")

    def metrics(now: Metrics) -> None:
        display.line(_line(now), always=now.dev_error is not None)

    try:
        with display:
            result = job.train(
                loaded, folder, resume=resume, progress=display.bar, on_metrics=metrics, on_message=display.say
            )
    except KeyboardInterrupt:
        if _is_first_process():
            display.say(job.goes_on(folder))
        raise Said(130) from None
    if display.used:
        typer.echo(str(result))


def _is_folder(name: str) -> bool:
    """Whether a name is that of a run's folder, not of a recipe."""
    if (Path(name) / "recipe.yaml").is_file():
        return True
    return not Path(name).is_file() and name not in recipes.names() and not re.search(r"\.ya?ml$", name)


def _is_first_process() -> bool:
    """Of several that torchrun, SLURM or this command itself has started: the first has the folder."""
    rank = next((os.environ[name] for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID") if name in os.environ), "0")
    return rank == "0"


def _line(metrics: Metrics) -> str:
    parts = [f"step {metrics.step:,}", f"loss {metrics.loss:.3g}"]
    if metrics.inserted_per_label is not None and metrics.p is not None:
        parts.append(f"inserted/label {metrics.inserted_per_label:.2f} at p {metrics.p:.2f}")
    parts += [f"blank {100 * metrics.blank_share:.0f} %", f"{metrics.frames_per_second:,.0f} frames/s"]
    parts.append(f"{clock(metrics.seconds_left)} left")
    if metrics.dev_error is not None:
        parts.append(f"dev error {metrics.dev_error:.2f} %")
    return ", ".join(parts)
