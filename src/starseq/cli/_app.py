"""What the verbs share: the application, errors as sentences, progress bars, options that several verbs have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from starseq.extras import STOPPED, missing

if TYPE_CHECKING:
    from starseq.jobs._stream import Counts

app = typer.Typer(
    name="starseq",
    help="Train sequence models from transcripts with holes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command. What the user can mend is one sentence on stderr and exit code 2; a failed check exits 1.

    With ``STARSEQ_TRACEBACK=1`` in the environment such errors keep their traceback.
    """
    try:
        app(prog_name="starseq")
    except SystemExit as end:
        if end.code == 130 and not isinstance(end, Said):  # Ctrl-C, while nothing was under way that knows more
            fail(STOPPED, 130)
        raise
    except KeyboardInterrupt:
        fail(STOPPED, 130)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("STARSEQ_TRACEBACK"):
            raise
        fail(_sentence(error))


def _sentence(error: Exception) -> str:
    """One line for an exception; Python's ``[Errno 2] ...: 'x'`` becomes ``x: no such file or directory``."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, ModuleNotFoundError):
        return missing(error.name)
    return " ".join(str(error).split()) or type(error).__name__


class Said(SystemExit):
    """An end of which the user was told."""


def fail(sentence: str, code: int = 2) -> NoReturn:
    typer.echo(f"starseq: {sentence}", err=True)
    raise Said(code)


@contextmanager
def progress_bar(what: str, *, goes_on: bool = False, but: str = "") -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, fed by ``progress(done, total)``; nothing is drawn where stderr is not a terminal.

    Ctrl-C ends the command with exit code 130 and one sentence, which says whether the same command goes on.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
    except KeyboardInterrupt:
        fail(f"stopped; the same command {'goes on where this one stopped' if goes_on else 'begins anew'}{but}", 130)


def numbers(text: str, option: str) -> tuple[float, ...]:
    """``"0.1,0.4,0.7"`` -> ``(0.1, 0.4, 0.7)``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a list of numbers like 0.1,0.4,0.7") from None


def _version(wanted: bool) -> None:
    if wanted:
        from starseq import __version__

        typer.echo(f"starseq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Write bad rows to bad.jsonl beside the result, and go on.")]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-bad", help="List files that cannot be read among the failed, and go on.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `starseq train`.")]
OutRows = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FILE",
        help="Manifest to write; .json is NeMo's, .jsonl.gz lhotse's, .csv and .tsv are tables, .srt and .vtt subtitles.",
    ),
]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto is CUDA where there is one.")]
Root = Annotated[
    Path | None,
    typer.Option(help="Folder that holds every file that the manifest names.", show_default="the manifest's folder"),
]
Alpha = Annotated[float | None, typer.Option(help="Weight of --lm.", show_default="as tuned")]
RescoreAlpha = Annotated[float | None, typer.Option(help="Weight of --rescore.", show_default="as tuned")]
Beta = Annotated[float | None, typer.Option(help="Weight of the length.", show_default="as tuned")]
NGram = Annotated[Path | None, typer.Option(help="n-gram model of the search: ARPA, plain or .gz, or KenLM's binary.")]
Lexicon = Annotated[Path | None, typer.Option(help="Words that a model of letters is held to, one a line.")]
Rescore = Annotated[
    Path | None, typer.Option(help="Language model that reorders the n best: ours, Hugging Face's, or ARPA.")
]
RescoreUnit = Annotated[Literal["char", "word"], typer.Option(help="What --rescore-beta counts.")]
BeamTokens = Annotated[int, typer.Option(help="Tokens of each frame that extend hypotheses.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that search; 0 is this one alone.")]
NoText = Annotated[bool, typer.Option("--no-text", help="Rows need no text: the manifest is not transcribed.")]


def echo_outside(counts: Counts) -> None:
    """Says how many known labels no result holds, if there are any."""
    if counts.outside:
        typer.echo(
            f"starseq: {counts.outside:,} known labels are outside of the run's vocabulary, and no result holds them: "
            "see the field outside_vocabulary",
            err=True,
        )


def echo_bad(folder: Path, rows: int) -> None:
    """Says where the bad rows are, if there are any."""
    if rows:
        typer.echo(f"{folder / 'bad.jsonl'}: {rows:,} bad rows")
