"""`starseq back`: fillings go into the pages, the table or the transcripts that their rows came from."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from starseq import corpora
from starseq.corpora import PutBack, Putter
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, folder_if_done
from starseq.data.manifest import Progress, bad_rows_beside, read_manifest

__all__ = ["LISTING", "PutBack", "back"]

LISTING = "filled.jsonl"


def back(
    manifest: str | os.PathLike[str],
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> PutBack:
    """Put the fillings of `manifest`, which `complete` wrote, into the files of `source`, which `prepare` read, and write these
    to the folder `out`, at their places.

    A filling takes the place of its mark. It is marked as a machine's, with its confidence, as the format has it; one without a
    confidence is a person's. ``filled.jsonl`` lists all of them. Everything else of a file is the same to the byte. Text that a
    person read stays, also where its mark made it a gap.

    Formats: PAGE-XML, ALTO, a table, data directories of Kaldi. A row that does not fit its file is a `ManifestError`, or with
    `skip_bad` goes to ``bad.jsonl``. Nothing is written until all of it is right.
    """
    source, out = Path(source), Path(out)
    name = corpora.reader_of(source) if source.exists() else None
    put_back = None if name is None else corpora.putter_back(name)
    if put_back is None:
        what = "no such file or folder" if not source.exists() else "neither PAGE-XML, ALTO, a table nor Kaldi's files"
        raise DataError(f"{source}: {what}, so no text can go back into it")
    folder = source if source.is_dir() else source.parent
    if os.path.realpath(out) == os.path.realpath(folder):
        raise DataError(f"{out}: holds the files that are read; choose another folder for the result")
    rows = list(read_manifest(manifest, labelled=False, progress=progress))
    staged = out / f".back.{secrets.token_hex(4)}.tmp"
    with folder_if_done(out):
        try:
            with bad_rows_beside(out / LISTING, skip_bad, manifest) as on_bad, atomic_writer(out / LISTING) as listing:
                putter = Putter(os.fspath(manifest), staged, listing, on_bad)
                put_back(source, rows, putter)
                for path in sorted(path for path in staged.rglob("*") if path.is_file()):
                    target = out / path.relative_to(staged)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return putter.counts
