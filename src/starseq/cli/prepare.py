"""`starseq prepare`: corpora to manifests."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from typer.core import TyperGroup

from starseq.cli._app import app, echo_bad, progress_bar
from starseq.cli._options import Machine, options


class _CorpusVerbs(TyperGroup):
    """A sub-verb for every corpus that is there, made from its `prepare` function when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from starseq import corpora

        return [*corpora.names(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from starseq import corpora

        if cmd_name not in corpora.names():
            return super().get_command(ctx, cmd_name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(_corpus_verb(cmd_name, corpora.load(cmd_name)))
        return typer.main.get_command(single)


def _option(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_MARKS = [
    _option("marks", None, Annotated[str | None, typer.Option(
        help="How the transcriber marked what is missing or unsure: leiden, tei, transkribus, speech, or a file of rules.",
        metavar="NAME|FILE",
    )]),
    _option("gap", [], Annotated[list[str], typer.Option(
        help="Regular expression of what marks a gap; may be repeated.", metavar="REGEX", show_default=False
    )]),
    _option("unclear", "keep", Annotated[Literal["keep", "gap"], typer.Option(help="What uncertain text becomes.")]),
]  # fmt: skip
"""options of every corpus that reads texts"""


def _corpus_verb(name: str, prepare: Callable[..., object]) -> Callable[..., None]:
    """The function as a command: what is positional is an argument, what is keyword-only an option."""

    def verb(**values: Any) -> None:
        from starseq.jobs import prepare as job

        with progress_bar(f"Preparing {name}") as progress:
            typer.echo(job.prepare(name, **values, progress=progress))

    parameters = []
    for parameter in inspect.signature(prepare, eval_str=True).parameters.values():
        if parameter.name == "progress":
            continue
        kind, help = get_args(parameter.annotation)
        default = parameter.default
        if os.PathLike[str] in get_args(kind):
            kind = Path | None if default is None else Path
        elif kind == tuple[str, ...]:
            kind = list[str]
        flag = "--" + parameter.name.replace("_", "-")
        note: object
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            note = typer.Argument(help=help, metavar=parameter.name.upper())
        elif default is False:  # a flag has no need of its negation
            note = typer.Option(flag, help=help)
        else:
            note = typer.Option(help=help, show_default=default is not None)
        parameters.append(
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=list(default) if isinstance(default, tuple) else default,
                annotation=Annotated[kind, note],
            )
        )
    if any(parameter.name == "source" for parameter in parameters):
        parameters += _MARKS
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__doc__ = prepare.__doc__
    return verb


prepare_app = typer.Typer(
    cls=_CorpusVerbs,
    no_args_is_help=True,
    help="Turn a corpus on disk into a manifest. It tells counts, durations or widths, and what was left out and why.",
)
app.add_typer(prepare_app, name="prepare")


@prepare_app.command("features")
@options(where="root workers skip_bad", together=True)
def prepare_features(
    source: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest of audio.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write: manifest.jsonl and shards.")],
    *,
    rate: Annotated[int, typer.Option(help="Sampling rate, Hz; audio of another one is resampled.")] = 16_000,
    bands: Annotated[int, typer.Option(help="Mel bands.")] = 80,
    where: Machine,
) -> None:
    """Log-mel features of a manifest, stored.

    Spares computing them in every epoch. A run that was stopped goes on where it was.
    """
    from starseq.jobs import prepare as job

    with where.at_work("Computing features") as place:
        result = job.features(source, target, rate=rate, bands=bands, where=place)
    typer.echo(f"{target}: {result.rows:,} rows, {result.reused_shards:,} shards were there already")
    if (rate, bands) != (16_000, 80):
        typer.echo(f"a recipe reads them with data.reader.rate={rate} data.reader.bands={bands}")
    echo_bad(target, result.bad)
