"""The command `starseq`: one small function a verb. It reads options, calls the job, prints what the job returns.

Jobs are imported inside their verb, so that `starseq --help` imports neither torch nor numba.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args

import typer
from typer.core import TyperGroup

app = typer.Typer(
    name="starseq",
    help="Train sequence models from transcripts with holes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# --- what the verbs share ---------------------------------------------------------------------------------------------


def main() -> None:
    """Run the command. What the user can mend is one sentence on stderr and exit code 2; a failed check exits 1.

    With ``STARSEQ_TRACEBACK=1`` in the environment such errors keep their traceback.
    """
    try:
        app(prog_name="starseq")
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("STARSEQ_TRACEBACK"):
            raise
        _fail(_sentence(error))


def _sentence(error: Exception) -> str:
    """One line for an exception; Python's ``[Errno 2] ...: 'x'`` becomes ``x: no such file or directory``."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, ModuleNotFoundError):
        return f"this needs the package {error.name!r}, which is not installed: pip install 'starseq[all]'"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(sentence: str, code: int = 2) -> NoReturn:
    typer.echo(f"starseq: {sentence}", err=True)
    raise SystemExit(code)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, fed by ``progress(done, total)``; nothing is drawn where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    """``"0.1,0.4,0.7"`` -> ``(0.1, 0.4, 0.7)``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a list of numbers like 0.1,0.4,0.7") from None


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"starseq {version('starseq')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Write bad rows to bad.jsonl beside the result, and go on.")]
NoText = Annotated[bool, typer.Option("--no-text", help="Rows need no text: the manifest is not transcribed.")]


# --- bench ------------------------------------------------------------------------------------------------------------


@app.command()
def bench(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")] = "cpu",
    case: Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.", show_default="all")] = None,
    scaling: Annotated[bool, typer.Option("--scaling", help="Also how cost grows with frames and vocabulary.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Also the data tools, on the corpora in --corpora.")] = False,
    corpora: Annotated[Path, typer.Option(help="Folder of manifests and archives for --data.")] = Path(
        "../shared/data"
    ),
    seconds: Annotated[float, typer.Option(help="Time to spend on each case.")] = 8.0,
    save: Annotated[Path | None, typer.Option(help="CSV file to add the results to.", show_default="none")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 where a ratio is above its target.")] = False,
    targets: Annotated[Path, typer.Option(help="The targets of --check.")] = Path("benchmarks/targets.csv"),
) -> None:
    """Measure this machine: our losses against log_softmax and torch's ctc_loss, side by side in one run."""
    from starseq.jobs import bench as job

    with _progress("Measuring") as progress:
        rows = job.bench(device, case or (), scaling=scaling, seconds=seconds, progress=progress)
        if data:
            rows += job.bench_data(corpora, progress=progress)
    typer.echo(job.table(rows))
    if save is not None:
        job.save(rows, save)
    failures = job.check(rows, targets) if check else []
    for failure in failures:
        typer.echo(f"starseq: {failure}", err=True)
    if failures:
        raise SystemExit(1)


# --- demo -------------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Optimiser steps of each training run.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the data, the drops and the models.")] = 0,
) -> None:
    """Show the loss at work on made-up sequences, in seconds on a CPU.

    Draws a label graph, scores full and partial labels, and trains a small model from labels half of which are lost.
    """
    from starseq.jobs import demo as job

    with _progress("Training") as progress:
        result = job.demo(steps=steps, seed=seed, progress=progress)
    typer.echo(result.report())


# --- draw -------------------------------------------------------------------------------------------------------------


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
    matching: Annotated[
        Literal["leftmost", "all"], typer.Option(help="Which embeddings of the labels count.")
    ] = "leftmost",
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
    """Draw the label graph of a text, an emission graph, or their composition.

    For example: starseq draw stc cat, or starseq draw stc 'the * fox' --unit word -o fox.svg.
    """
    from starseq.jobs import draw as job

    drawing = job.draw(
        criterion,
        text,
        format=format or job.FORMATS.get(output.suffix.lower() if output else "", "text"),
        unit=unit,
        penalty=penalty,
        matching=matching,
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


# --- drop -------------------------------------------------------------------------------------------------------------


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
        strategies.append(SampleSplit(_numbers(sample_splits, "--sample-splits")))
    if word_splits is not None:
        strategies.append(TypeSplit(_numbers(word_splits, "--word-splits")))
    if len(strategies) != 1:
        raise ValueError("give one of --p-drop, --sample-splits and --word-splits")
    dropper = Dropper(strategies[0], unit=unit, seed=seed, mark=mark, keep_text=keep_text)
    with _progress("Dropping labels") as progress:
        result = job.drop(source, target, dropper, skip_bad=skip_bad, progress=progress)

    typer.echo(f"{target}: {result.rows:,} samples, {result.pruned:,} pruned as nothing of them was left")
    _echo_bad(target.parent, result.bad)
    typer.echo(f"{result.kept:,} of {result.labels:,} labels kept ({100 * result.share_kept:.1f}%)")
    typer.echo(f"\nlabels kept per sample\n{result.table()}")
    if not no_plot:
        picture = plot or target.with_suffix(".png")
        job.draw_histogram(result, picture)
        typer.echo(f"\n{picture}: the same as a picture")


# --- manifest ---------------------------------------------------------------------------------------------------------

manifest_app = typer.Typer(no_args_is_help=True, help="Check, count, split, merge and filter manifests.")
app.add_typer(manifest_app, name="manifest")


@manifest_app.command("validate")
def manifest_validate(
    path: Annotated[Path, typer.Argument(metavar="MANIFEST")],
    files: Annotated[bool, typer.Option("--files", help="Also read every file, or member of an archive.")] = False,
    root: Annotated[
        Path | None, typer.Option(help="No path may lead out of this folder.", show_default="the manifest's folder")
    ] = None,
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
    with _progress("Checking") as progress:
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
    """Count rows, splits, words, characters, durations and sizes."""
    from starseq.jobs import manifest as job

    with _progress("Counting") as progress:
        result = job.statistics(path, labelled=not no_text, progress=progress)
    typer.echo(f"rows        {result.rows:,}, of which {result.marked:,} mark their gaps")
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
    with _progress("Splitting") as progress:
        result = job.split(
            source, folder, shares, by=by, seed=seed, labelled=not no_text, skip_bad=skip_bad, progress=progress
        )
    for name, rows in result.parts.items():
        typer.echo(f"{folder / name}.jsonl: {rows:,} rows")
    _echo_bad(folder, result.bad)


@manifest_app.command("merge")
def manifest_merge(
    sources: Annotated[list[Path], typer.Argument(metavar="IN...")],
    target: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The manifest to write.")],
    no_text: NoText = False,
    skip_bad: SkipBad = False,
) -> None:
    """Join manifests, one after the other; no two rows may share an id."""
    from starseq.jobs import manifest as job

    with _progress("Merging") as progress:
        result = job.merge(sources, target, labelled=not no_text, skip_bad=skip_bad, progress=progress)
    typer.echo(f"{target}: {result.rows:,} rows")
    _echo_bad(target.parent, result.bad)


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

    For example: --where split=train --where 'duration<=15'. A row without the field is left out.
    """
    from starseq.jobs import manifest as job

    conditions = [job.Condition.parse(text) for text in where]
    with _progress("Filtering") as progress:
        result = job.filter_manifest(
            source, target, conditions, labelled=not no_text, skip_bad=skip_bad, progress=progress
        )
    typer.echo(f"{target}: {result.kept:,} rows, {result.left_out:,} left out")
    _echo_bad(target.parent, result.bad)


def _shares(text: str) -> dict[str, float]:
    """``"train=0.9,dev=0.1"`` -> ``{"train": 0.9, "dev": 0.1}``."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise ValueError(f"--parts: {text!r} does not read like train=0.8,dev=0.1,test=0.1") from None


def _echo_bad(folder: Path, rows: int) -> None:
    if rows:
        typer.echo(f"{folder / 'bad.jsonl'}: {rows:,} bad rows")


# --- prepare ----------------------------------------------------------------------------------------------------------


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


def _corpus_verb(name: str, prepare: Callable[..., object]) -> Callable[..., None]:
    """The function as a command: what is positional is an argument, what is keyword-only an option."""

    def verb(**values: Any) -> None:
        from starseq.jobs import prepare as job

        with _progress(f"Preparing {name}") as progress:
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
def prepare_features(
    source: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest of audio.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write: manifest.jsonl and shards.")],
    rate: Annotated[int, typer.Option(help="Sampling rate, Hz; audio of another one is resampled.")] = 16_000,
    bands: Annotated[int, typer.Option(help="Mel bands.")] = 80,
    root: Annotated[
        Path | None, typer.Option(help="No path may lead out of this folder.", show_default="the manifest's folder")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 works in this one.")] = 0,
    skip_bad: SkipBad = False,
) -> None:
    """Log-mel features of a manifest, stored.

    Spares computing them in every epoch. A run that was stopped goes on where it was.
    """
    from starseq.jobs import prepare as job

    with _progress("Computing features") as progress:
        result = job.features(
            source, target, rate=rate, bands=bands, root=root, workers=workers, skip_bad=skip_bad, progress=progress
        )
    typer.echo(f"{target}: {result.rows:,} rows, {result.reused_shards:,} shards were there already")
    _echo_bad(target, result.bad)


if __name__ == "__main__":
    main()
