"""`starseq draw`: label graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import app


@app.command()
def draw(
    criterion: Annotated[str, typer.Argument(help="stc, ctc or another module of starseq.criteria.")],
    text: Annotated[str, typer.Argument(help="The labels. With a * in it, labels may be missing only there.")],
    format: Annotated[
        Literal["text", "dot", "svg"] | None,
        typer.Option("--format", "-f", help="How to draw.", show_default="by the suffix of FILE, else text"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.", show_default="stdout")
    ] = None,
    unit: Annotated[Literal["char", "word"], typer.Option(help="What a label is. Spaces are characters.")] = "char",
    penalty: Annotated[
        float | None, typer.Option(metavar="LAMBDA", help="Log-weight of an inserted token.", show_default="log 0.5")
    ] = None,
    keep_repeats: Annotated[
        bool, typer.Option("--keep-repeats", help="Published STC: every frame is a token of its own.")
    ] = False,
    alphabet: Annotated[str, typer.Option(help="Tokens besides those of the text.")] = "",
    published: Annotated[
        bool, typer.Option("--published", help="As the papers draw it, not the smaller graph that is run.")
    ] = False,
    emissions: Annotated[
        int | None, typer.Option(metavar="T", help="Draw the emission graph of T frames instead.")
    ] = None,
    compose: Annotated[
        int | None, typer.Option(metavar="T", help="Draw the alignments of T frames instead: both graphs composed.")
    ] = None,
) -> None:
    """Draw the label graph of a text, or its alignments.

    With --emissions an emission graph. For example: starseq draw stc cat, or starseq draw stc 'the * fox' --unit word
    -o fox.svg.
    """
    from starseq.jobs import draw as job

    suffix = output.suffix.lower() if output else ""
    if format is None and suffix not in ("", *job.FORMATS):
        raise ValueError(f"{output}: a drawing is one of {', '.join(job.FORMATS)}; or say its --format")
    drawing = job.draw(
        criterion,
        text,
        format=format or job.FORMATS.get(suffix, "text"),
        unit=unit,
        penalty=penalty,
        merge_repeats=not keep_repeats,
        alphabet=alphabet,
        published=published,
        emissions=emissions,
        compose=compose,
    )
    if output is None:
        typer.echo(drawing)
    else:
        from starseq.data.files import write_text

        write_text(output, f"{drawing}\n")
