"""`starseq drop`: partial labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import SkipBad, app, echo_bad, numbers, progress_bar


@app.command()
def drop(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Manifest with full labels.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Manifest with partial labels, written when all is done.")
    ],
    p_drop: Annotated[float | None, typer.Option(help="Drop every label with this probability.")] = None,
    sample_splits: Annotated[
        str | None, typer.Option(metavar="P,P,...", help="Split the samples at random into parts with a pDrop each.")
    ] = None,
    word_splits: Annotated[
        str | None, typer.Option(metavar="P,P,...", help="Split the vocabulary at random into parts with a pDrop each.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Only rows of this split lose labels; may be repeated.", show_default="all rows"),
    ] = None,
    unit: Annotated[Literal["word", "char"], typer.Option(help="What a label is. Spaces are characters.")] = "word",
    seed: Annotated[int, typer.Option(help="The choice depends on the seed, the row's id and the position alone.")] = 0,
    mark: Annotated[bool, typer.Option("--mark", help="Leave a * where labels were dropped.")] = False,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep the full text in the field text_full.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Histogram as a picture.", show_default="OUT with the suffix .png")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Make labels partial: drop words or characters at random.

    Choose one of --p-drop, --sample-splits and --word-splits, the three published strategies. Samples that lose every
    label are pruned.
    """
    from starseq.data.drop import Dropper, FixedDrop, SampleSplit, Strategy, TypeSplit
    from starseq.jobs import drop as job

    strategies: list[Strategy] = []
    if p_drop is not None:
        strategies.append(FixedDrop(p_drop))
    if sample_splits is not None:
        strategies.append(SampleSplit(numbers(sample_splits, "--sample-splits")))
    if word_splits is not None:
        strategies.append(TypeSplit(numbers(word_splits, "--word-splits")))
    if len(strategies) != 1:
        raise ValueError("give one of --p-drop, --sample-splits and --word-splits")
    dropper = Dropper(strategies[0], unit=unit, seed=seed, mark=mark, keep_text=keep_text)
    picture = None if no_plot else plot or target.with_suffix(".png")
    if picture is not None:
        job.check_picture(picture, source, target)
    with progress_bar("Dropping labels") as progress:
        result = job.drop(source, target, dropper, splits=split or (), skip_bad=skip_bad, progress=progress)

    copied = f", {result.copied:,} of other splits as they were" if result.copied else ""
    typer.echo(f"{target}: {result.rows:,} samples, {result.pruned:,} pruned as nothing of them was left{copied}")
    if len(result.partial) > 1:
        names = ", ".join(name or "no split" for name in result.partial)
        kept = "what is read of them is scored by text_full" if keep_text else "nothing read of them can be scored now"
        typer.echo(f"labels were dropped from {names}: {kept}; --split NAME drops from one and leaves the others whole")
    echo_bad(target.parent, result.bad)
    typer.echo(f"{result.kept:,} of {result.labels:,} labels kept ({100 * result.share_kept:.1f}%)")
    typer.echo(f"\nlabels kept per sample\n{result.table()}")
    if picture is not None:
        job.draw_histogram(result, picture)
        typer.echo(f"\n{picture}: the same as a picture")
