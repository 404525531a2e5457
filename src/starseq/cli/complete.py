"""`starseq complete`: fills the holes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starseq.cli._app import OutRows, RunFolder, app
from starseq.cli._options import Machine, options

if TYPE_CHECKING:
    from starseq.jobs._search import Search


@app.command()
@options(search="lm alpha beta beam", where="device root skip_bad", together=True)
def complete(
    run: RunFolder,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Rows with gaps.")],
    out: OutRows,
    *,
    threshold: Annotated[
        float, typer.Option(help="Write a filling only if its least sure token has at least this confidence.")
    ] = 0.5,
    split: Annotated[str | None, typer.Option(help="Only the rows of this split.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Fill gaps with a run whose error on dev is above 50 %.")
    ] = False,
    review: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write a sheet on which a person accepts and corrects."),
    ] = None,
    reviewed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Nothing is read: write MANIFEST with what a person decided on its sheet."
        ),
    ] = None,
    search: Search,
    where: Machine,
) -> None:
    """Fill the gaps, and keep what is known to the byte.

    A gap that is not filled stays `*`. Every row comes out. A confidence of 0.5 says that the run gives a token as much
    as everything else that could stand there, or nothing at all.

    Beside FILE, .left.jsonl lists what was read but not written, and rows without a gap; .failed.jsonl the rows that could
    not be aligned, which come out as they were: then the exit code is 1. A job that was stopped goes on where it was.

    --review writes an HTML file that a person opens in a browser, ticks, and saves as JSON. Then MANIFEST is what was written
    with the sheet: complete RUN MANIFEST --out FILE --reviewed FILE.json.
    """
    from starseq.data.files import check_target
    from starseq.data.manifest import OPEN_EVERYWHERE
    from starseq.jobs import complete as job
    from starseq.jobs.review import apply_review, write_sheet

    if reviewed is not None:
        if review is not None:
            raise ValueError("give one of --review and --reviewed: first the sheet, then what was decided on it")
        done = apply_review(manifest, reviewed, out)
        typer.echo(
            f"{out}: {done.rows:,} rows; {done.accepted:,} gaps accepted, {done.corrected:,} corrected, {done.opened:,} left "
            f"open, {done.undecided:,} as they were"
        )
        return
    if review is not None:
        check_target(review, manifest, out)
    with where.at_work("Completing") as place:
        counts = job.complete(
            run, manifest, out, threshold=threshold, split=split, search=search, force=force, where=place
        )
    typer.echo(
        f"{out}: {counts.rows:,} rows; {counts.filled:,} gaps filled, {counts.left:,} gaps left, "
        f"{counts.untouched:,} rows untouched, {counts.failed:,} rows failed"
    )
    typer.echo(f"{out.with_name(out.stem + '.left.jsonl')}: what was left as it was, and why")
    if counts.unmarked:
        typer.echo(f"starseq: {counts.unmarked:,} rows {OPEN_EVERYWHERE}", err=True)
    if review is not None:
        rows, total = write_sheet(run, out, review, root=where.values["root"] or manifest.parent)
        typer.echo(
            f"{review}: {rows:,} of {total:,} rows with gaps, to open in a browser; then, with the file that it saves:"
        )
        typer.echo(f"  starseq complete {run} {out} --out REVIEWED.jsonl --reviewed {out.stem}.review.json")
    if counts.failed:
        failed = out.with_name(f"{out.stem}.failed.jsonl")
        typer.echo(f"starseq: {counts.failed:,} rows failed, see {failed}", err=True)
        raise SystemExit(1)
