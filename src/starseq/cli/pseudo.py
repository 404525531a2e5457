"""`starseq pseudo`: pseudo-labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starseq.cli._app import (
    Alpha,
    BeamTokens,
    Beta,
    Device,
    OutRows,
    Rescore,
    RescoreAlpha,
    Root,
    RunFolder,
    SkipUnreadable,
    Workers,
    app,
    progress_bar,
)


@app.command()
def pseudo(
    run: RunFolder,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Rows to label, with partial labels or none.")],
    out: OutRows,
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
    device: Device = "auto",
    root: Root = None,
    lm: Annotated[
        Path | None,
        typer.Option(help="n-gram model of the search: ARPA, plain or .gz; if plain, also KenLM's binary."),
    ] = None,
    lexicon: Annotated[
        Path | None, typer.Option(help="Plain: words that a model of letters is held to, one a line.")
    ] = None,
    rescore: Rescore = None,
    alpha: Alpha = None,
    beta: Beta = None,
    rescore_alpha: RescoreAlpha = None,
    rescore_beta: Beta = None,
    beam: Annotated[
        int | None,
        typer.Option(
            help="Hypotheses that the search keeps after each frame.", show_default="500 if plain, 100 otherwise"
        ),
    ] = None,
    beam_tokens: BeamTokens = 50,
    force: Annotated[
        bool, typer.Option("--force", help="Keep known labels with a run whose error on dev is above 50 %.")
    ] = False,
    workers: Workers = 2,
    skip_bad: SkipUnreadable = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Do only this of N parts, on any machine, in any order.")
    ] = None,
    merge: Annotated[
        int | None, typer.Option(metavar="N", help="Join N shards that are done; all other options as with them.")
    ] = None,
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
    from starseq.jobs._stream import Shard

    if threshold is not None and kind != "confident":
        raise ValueError(f"--threshold is for --kind confident, not {kind}")
    with progress_bar("Labelling" if merge is None else "Merging", goes_on=True) as progress:
        summary = job.pseudo(
            run, manifest, out, kind=kind, also=also or (), splits=split or (),
            threshold=job.THRESHOLD if threshold is None else threshold, lm=lm, lexicon=lexicon, rescore=rescore, alpha=alpha,
            beta=beta, rescore_alpha=rescore_alpha, rescore_beta=rescore_beta, beam=beam,
            beam_tokens=beam_tokens, force=force,
            workers=workers, device=device, root=root, skip_bad=skip_bad,
            shard=None if shard is None else Shard.parse(shard), merge=merge, progress=progress,
        )  # fmt: skip
    typer.echo(summary.report())
    if kind != "plain":
        typer.echo(f"{summary.target.with_name(f'{summary.target.stem}.left.jsonl')}: what was left as it was, and why")
    if summary.failed:
        failed = summary.target.with_name(f"{summary.target.stem}.failed.jsonl")
        typer.echo(f"starseq: {summary.failed:,} rows failed, see {failed}", err=True)
