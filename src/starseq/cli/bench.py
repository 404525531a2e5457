"""`starseq bench`: this machine against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import app, progress_bar


@app.command()
def bench(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this case, with --train also one such as train-iam; may be repeated.", show_default="all"
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Also steps of training, of the published models; on CUDA also with larger batches (40 GiB).",
        ),
    ] = False,
    scaling: Annotated[bool, typer.Option("--scaling", help="Also how cost grows with frames and vocabulary.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Also the data tools, on the corpora in --corpora.")] = False,
    corpora: Annotated[
        Path | None,
        typer.Option(
            help="Folder with NAME/manifest.jsonl, to read with --data, and lm-gutenberg-en/text.txt.xz, for --decode.",
            show_default="none",
        ),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Also greedy reading, beam search and rescoring.")] = False,
    lm: Annotated[
        Path | None, typer.Option(help="5-gram for --decode.", show_default="estimated, which takes minutes")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on each case.")] = 8.0,
    save: Annotated[Path | None, typer.Option(help="CSV file to add the results to.", show_default="none")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 where a ratio is above its target; a step's, by more than chance.")
    ] = False,
    targets: Annotated[Path, typer.Option(help="The targets of --check.")] = Path("benchmarks/targets.csv"),
) -> None:
    """Measure this machine: our losses against torch's.

    Against log_softmax and ctc_loss, forward and backward from logits, side by side in one run.
    """
    from starseq.jobs import bench as job
    from starseq.jobs import bench_results as results

    if save is not None:
        results.load(save)  # before anything is measured
    if check:
        results.read_targets(targets)
    if decode and corpora is None:
        raise ValueError("--decode makes its utterances from a text: give --corpora")
    steps = [name for name in case or () if train and name.startswith(results.TRAIN)]
    losses = [name for name in case or () if name not in steps]
    rows = []
    with progress_bar("Measuring") as progress:
        if losses or scaling or not steps:
            rows += job.bench(device, losses, scaling=scaling, seconds=seconds, progress=progress)
        if train:
            from starseq.jobs.bench_train import bench_train

            rows += bench_train(
                device, steps, seconds=seconds, note=lambda line: typer.echo(f"starseq: {line}", err=True),
                progress=progress,
            )  # fmt: skip
        if data:
            rows += job.bench_data(corpora, progress=progress)
        if decode:
            from starseq.jobs.bench_decode import bench_decode

            assert corpora is not None
            rows += bench_decode(corpora, lm, progress=progress)
    typer.echo(results.table(rows))
    if save is not None:
        results.save(rows, save)
    if check:
        failures = results.check(rows, targets)
        for line in (*failures, *results.undecided(rows, targets)):
            typer.echo(f"starseq: {line}", err=True)
        if failures:
            raise SystemExit(1)
