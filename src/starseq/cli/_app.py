"""What the verbs share: the application, errors as sentences, progress bars, arguments that several verbs have."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from starseq.extras import STOPPED, missing

SECONDS_PER_LINE = 20
"""between two lines where there is no terminal to draw on"""

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
def progress_bar(
    what: str, *, goes_on: bool = False, but: str = "", first: bool = True
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, fed by ``progress(done, total)``; nothing is drawn where stderr is not a terminal.

    Ctrl-C ends the command with exit code 130 and one sentence, which says whether the same command goes on. Of several processes
    only the first draws and speaks.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not (first and console.is_terminal)) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
    except KeyboardInterrupt:
        if not first:
            raise Said(130) from None
        fail(f"stopped; the same command {'goes on where this one stopped' if goes_on else 'begins anew'}{but}", 130)


class Display:
    """What a long job says on stderr: a bar with a line before it on a terminal, that line now and then elsewhere."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._terminal, self._printed = console.is_terminal, time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bars.add_task(what, total=None)
        self.used = False
        """whether this process said anything: of several only the first does"""

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        self.used = True
        if self._terminal:
            self._bars.console.print(sentence, highlight=False, markup=False)
        else:
            typer.echo(sentence, err=True)

    def bar(self, done: float, total: float | None) -> None:
        self._bars.update(self._task, completed=done, total=total)

    def line(self, line: str, *, always: bool = False) -> None:
        """Stands before the bar. Where there is no bar it is said now and then, or `always`."""
        self._bars.update(self._task, description=line)
        if always or (not self._terminal and time.monotonic() - self._printed > SECONDS_PER_LINE):
            self._printed = time.monotonic()
            self.say(line)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725.8)
    '1:02:05'
    """
    left = int(seconds)
    return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"


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
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `starseq train`.")]
OutRows = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FILE",
        help="Manifest to write; .json is NeMo's, .jsonl.gz lhotse's, .csv and .tsv are tables, .srt and .vtt subtitles.",
    ),
]  # fmt: skip
Root = Annotated[
    Path | None,
    typer.Option(help="Folder that holds every file that the manifest names.", show_default="the manifest's folder"),
]
NoText = Annotated[bool, typer.Option("--no-text", help="Rows need no text: the manifest is not transcribed.")]


def echo_bad(folder: Path, rows: int) -> None:
    """Says where the bad rows are, if there are any."""
    if rows:
        typer.echo(f"{folder / 'bad.jsonl'}: {rows:,} bad rows")
