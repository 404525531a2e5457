"""`starseq bench`: this machine against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import app, progress_bar


@app.command()
def bench(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
    case: Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.", show_default="all")] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on each case.")] = 8.0,
    save: Annotated[Path | None, typer.Option(help="CSV file to add the results to.", show_default="none")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 where a ratio is above its target.")] = False,
    targets: Annotated[Path, typer.Option(help="The targets of --check.")] = Path("benchmarks/targets.csv"),
) -> None:
    """Measure this machine: our losses against torch's.

    Forward and backward from logits, side by side in one run. On a GPU also cuDNN's CTC, and FlagGems' where it is installed.
    """
    from starseq.jobs import bench as job
    from starseq.jobs import bench_results as results

    if save is not None:
        results.load(save)  # before anything is measured
    if check:
        results.read_targets(targets)
    with progress_bar("Measuring") as progress:
        rows = job.bench(device, case or (), seconds=seconds, progress=progress)
    typer.echo(results.table(rows))
    if save is not None:
        results.save(rows, save)
    if check:
        failures = results.check(rows, targets)
        for line in failures:
            typer.echo(f"starseq: {line}", err=True)
        if failures:
            raise SystemExit(1)
