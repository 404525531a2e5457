"""`starseq align`: times of every known label, and of what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from starseq.cli._app import RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs.recording import Aligned


@app.command()
@options(where="device root skip_bad", together=True)
def align(
    run: RunFolder,
    source: Annotated[
        Path, typer.Argument(metavar="MANIFEST|AUDIO", help="Rows with full or partial labels; or one recording.")
    ],
    transcript: Annotated[
        Path | None, typer.Argument(metavar="[TEXT]", help="The recording's text, UTF-8.", show_default=False)
    ] = None,
    *,
    out: Annotated[
        list[Path],
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Folder to write to; or a file .jsonl, .json (NeMo), .jsonl.gz (lhotse), .csv, .tsv, .srt or .vtt, which gets a "
            "row for each known word. Of a recording: .json, .ctm, .TextGrid, .srt or .vtt; may be repeated.",
        ),
    ],
    format: Annotated[
        Literal["json", "ctm", "textgrid"],
        typer.Option(help="Of a folder: JSON Lines, NIST's CTM, or a Praat TextGrid for each row."),
    ] = "json",
    split: Annotated[str | None, typer.Option(help="Only the rows of this split.")] = None,
    log_penalty: Annotated[
        float | None, typer.Option("--lambda", help="Log-weight of a missing label.", show_default="the run's")
    ] = None,
    where: Machine,
) -> None:
    """Find where known labels lie, and where some are missing.

    Of every gap it says how many. Places are seconds of audio or pixel columns of an image. Rows that cannot be aligned
    are listed in failed.jsonl; then the exit code is 1. A job that was stopped goes on where it was.

    With a recording, of hours if need be, and its TEXT: where each word lies, which audio has no text, and which words have no
    audio. The suffix of PATH is the format. --format, --split, --lambda, --root and --skip-bad are for manifests.
    """
    if transcript is not None:
        from starseq.jobs.recording import align_file

        if format != "json" or split or log_penalty is not None or where.values["root"] or where.values["skip_bad"]:
            raise ValueError(
                "--format, --split, --lambda, --root and --skip-bad are for manifests; of a recording the suffix is the format"
            )
        with where.at_work("Listening") as place:
            found = align_file(run, source, transcript, out, where=place)
        typer.echo(f"{', '.join(map(str, out))}: {_summary(found)}")
        return
    from starseq.data import audio
    from starseq.jobs import align as job

    if source.suffix.lower() in audio.SUFFIXES:
        raise ValueError(f"{source}: a recording is aligned with its text: starseq align {run} {source} TEXT -o FILE")
    if len(out) > 1:
        raise ValueError("--out: the result of a manifest is one folder or file")
    (folder,) = out
    with where.at_work("Aligning") as place:
        counts = job.align(run, source, folder, format=format, split=split, log_penalty=log_penalty, where=place)
    typer.echo(f"{folder}: {counts.done:,} of {counts.rows:,} rows aligned")
    if counts.outside:
        typer.echo(
            f"starseq: {counts.outside:,} known labels are outside of the run's vocabulary, and no result holds them: "
            "see the field outside_vocabulary",
            err=True,
        )
    if counts.failed:
        typer.echo(f"starseq: {counts.failed:,} rows failed, see {job.failed_of(folder)}", err=True)
        raise SystemExit(1)


def _summary(found: Aligned) -> str:
    silent, unheard = found.audio_without_text, found.words_without_audio
    total = len(found.words) + len(unheard) + len(found.outside_vocabulary)
    text = (
        f"{len(found.words):,} of {total:,} words placed, {len(unheard):,} have no audio; {len(silent):,} stretches of audio have "
        f"no text, {sum(one['end'] - one['start'] for one in silent):,.1f} s"
    )
    if found.outside_vocabulary:
        text += f"; the model cannot write {len(found.outside_vocabulary):,} words"
    return text
