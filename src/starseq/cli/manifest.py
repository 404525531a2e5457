"""`starseq manifest`: tools for manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import NoText, Root, SkipBad, app, echo_bad, progress_bar

manifest_app = typer.Typer(no_args_is_help=True, help="Check, count, split, merge and filter manifests.")
app.add_typer(manifest_app, name="manifest")


@manifest_app.command("validate")
def manifest_validate(
    path: Annotated[Path, typer.Argument(metavar="MANIFEST")],
    files: Annotated[bool, typer.Option("--files", help="Also read every file, or member of an archive.")] = False,
    root: Root = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Also check that every text can be written in tokens.txt.")
    ] = None,
    unit: Annotated[Literal["word", "char"], typer.Option(help="What a token is, with --tokens.")] = "char",
    no_text: NoText = False,
) -> None:
    """Check every row, and exit with 1 if one is bad."""
    from starseq.jobs import manifest as job
    from starseq.text.tokeniser import Tokeniser
    from starseq.text.vocabulary import Vocabulary

    tokeniser = Tokeniser(Vocabulary.load(tokens), unit) if tokens else None
    with progress_bar("Checking") as progress:
        result = job.validate(
            path, labelled=not no_text, files=files, root=root, tokeniser=tokeniser, progress=progress
        )
    for bad in result.first:
        typer.echo(f"{bad.file}, line {bad.line}: {bad.reason}", err=True)
    if result.bad > len(result.first):
        typer.echo(f"... and {result.bad - len(result.first):,} more", err=True)
    typer.echo(f"{path}: {result.rows:,} good rows, {result.bad:,} bad")
    if result.bad:
        raise typer.Exit(1)


@manifest_app.command("stats")
def manifest_stats(path: Annotated[Path, typer.Argument(metavar="MANIFEST")], no_text: NoText = False) -> None:
    """Count rows, gaps, words, characters and sizes."""
    from starseq.jobs import manifest as job

    with progress_bar("Counting") as progress:
        result = job.statistics(path, labelled=not no_text, progress=progress)
    typer.echo(f"rows        {result.rows:,}, of which {result.marked:,} mark their gaps")
    typer.echo(f"gaps        {result.gaps:,}, in {result.with_gaps:,} rows")
    if set(result.splits) != {""}:
        splits = ", ".join(f"{name or '(none)'} {count:,}" for name, count in sorted(result.splits.items()))
        typer.echo(f"splits      {splits}")
    if "duration" in result.numbers:
        typer.echo(f"hours       {result.numbers['duration'].total / 3600:,.2f}")
    for name, unit, numbers in (
        ("words", "a row", result.words),
        ("characters", "a row", result.length),
        *((name, "s" if name == "duration" else "px", numbers) for name, numbers in result.numbers.items()),
    ):
        typer.echo(f"{name:11} {numbers.low:,.6g} to {numbers.high:,.6g} {unit}, mean {numbers.mean:,.4g}")
    typer.echo(f"alphabet    {len(result.characters)} characters: {''.join(sorted(result.characters))}")


@manifest_app.command("split")
def manifest_split(
    source: Annotated[Path, typer.Argument(metavar="IN")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Gets a PART.jsonl for every part.")],
    parts: Annotated[
        str | None, typer.Option(metavar="NAME=SHARE,...", help="Random parts, e.g. train=0.8,dev=0.1,test=0.1.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Rows with the same value of this field stay together.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For random parts.")] = 0,
    no_text: NoText = False,
    skip_bad: SkipBad = False,
) -> None:
    """Split into parts, at random or by a field.

    With --parts rows fall at random, and --by keeps together those of a speaker, say. Without, each value of the field
    split, or of the one that --by names, is a part.
    """
    from starseq.jobs import manifest as job

    shares = _shares(parts) if parts is not None else None
    with progress_bar("Splitting") as progress:
        result = job.split(
            source, folder, shares, by=by, seed=seed, labelled=not no_text, skip_bad=skip_bad, progress=progress
        )
    for name, rows in result.parts.items():
        typer.echo(f"{folder / name}.jsonl: {rows:,} rows")
    echo_bad(folder, result.bad)


@manifest_app.command("merge")
def manifest_merge(
    sources: Annotated[list[Path], typer.Argument(metavar="IN...")],
    target: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The manifest to write.")],
    no_text: NoText = False,
    skip_bad: SkipBad = False,
) -> None:
    """Join manifests, one after the other.

    No two rows may share an id.
    """
    from starseq.jobs import manifest as job

    with progress_bar("Merging") as progress:
        result = job.merge(sources, target, labelled=not no_text, skip_bad=skip_bad, progress=progress)
    typer.echo(f"{target}: {result.rows:,} rows")
    echo_bad(target.parent, result.bad)


@manifest_app.command("filter")
def manifest_filter(
    source: Annotated[Path, typer.Argument(metavar="IN")],
    target: Annotated[Path, typer.Argument(metavar="OUT")],
    where: Annotated[
        list[str], typer.Option(metavar="CONDITION", help="FIELD=VALUE, or !=, <, <=, >, >=. All of them must hold.")
    ],
    no_text: NoText = False,
    skip_bad: SkipBad = False,
) -> None:
    """Keep the rows that meet every condition.

    For example: --where split=train --where 'duration<=15'. A row without the field is left out. With a number, gaps is how
    many gaps a text marks: --where 'gaps>0'.
    """
    from starseq.jobs import manifest as job

    conditions = [job.Condition.parse(text) for text in where]
    with progress_bar("Filtering") as progress:
        result = job.filter_manifest(
            source, target, conditions, labelled=not no_text, skip_bad=skip_bad, progress=progress
        )
    typer.echo(f"{target}: {result.kept:,} rows, {result.left_out:,} left out")
    echo_bad(target.parent, result.bad)


def _shares(text: str) -> dict[str, float]:
    """``"train=0.9,dev=0.1"`` -> ``{"train": 0.9, "dev": 0.1}``."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise ValueError(f"--parts: {text!r} does not read like train=0.8,dev=0.1,test=0.1") from None
