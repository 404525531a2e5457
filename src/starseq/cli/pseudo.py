"""`starseq pseudo`: pseudo-labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from starseq.cli._app import OutRows, RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs._search import Search


@app.command()
@options(
    search="lm lexicon rescore alpha beta rescore_alpha rescore_beta beam beam_tokens",
    where="device root workers skip_bad",
    together=True,
)
def pseudo(
    run: RunFolder,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Rows to label, with partial labels or none.")],
    out: OutRows,
    *,
    kind: Annotated[
        Literal["plain", "keep-known", "confident"],
        typer.Option(help="What becomes of known labels, and of labels that are not sure: see above."),
    ],
    also: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Another run with the same tokens, whose opinion counts as much; may be repeated.",
            show_default="none",
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Confident: labels below become gaps again.", show_default="0.9")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Label this split; may be repeated.", show_default="what the run was trained on"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Keep known labels with a run whose error on dev is above 50 %.")
    ] = False,
    search: Search,
    where: Machine,
) -> None:
    """Label a manifest with a trained run, for a student.

    plain: reads as if no label was known: greedily, or with --lm, --lexicon or --beam by beam search. keep-known: what is
    known stays to the byte, and the gaps are filled. confident: the same, but labels with a confidence below --threshold
    are left out, for a student that trains with STC. Both may be what several runs agree on, with --also. --rescore
    reorders the n best of any search.

    Rows of other splits are copied, so that FILE can be trained on as it is. Beside it, .summary.json counts, .left.jsonl
    lists what was read but not written, and rows without a gap, and .failed.jsonl the rows that could not be aligned, which
    come out as they were, and with plain those in which nothing was read. A job that was stopped goes on where it was.
    """
    from starseq.jobs import pseudo as job

    if threshold is not None and kind != "confident":
        raise ValueError(f"--threshold is for --kind confident, not {kind}")
    with where.at_work("Labelling") as place:
        summary = job.pseudo(
            run, manifest, out, kind=kind, also=also or (), splits=split or (), search=search, force=force, where=place,
            threshold=job.THRESHOLD if threshold is None else threshold,
        )  # fmt: skip
    typer.echo(summary.report())
    if kind != "plain":
        typer.echo(f"{summary.target.with_name(f'{summary.target.stem}.left.jsonl')}: what was left as it was, and why")
    if summary.failed:
        failed = summary.target.with_name(f"{summary.target.stem}.failed.jsonl")
        typer.echo(f"starseq: {summary.failed:,} rows failed, see {failed}", err=True)
