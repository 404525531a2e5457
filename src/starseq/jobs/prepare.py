"""`starseq prepare`: a corpus on disk to a manifest, and a manifest to stored features."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from starseq import corpora
from starseq.corpora import Report
from starseq.data.dataset import AudioReader
from starseq.data.features import LogMel
from starseq.data.precompute import Precomputed, precompute
from starseq.jobs._where import PathLike, Where
from starseq.text.marks import Marks

__all__ = ["Precomputed", "Report", "features", "prepare"]


def prepare(
    corpus: str,
    *arguments: Any,
    marks: str | Path | None = None,
    gap: Sequence[str] = (),
    unclear: Literal["keep", "gap"] = "keep",
    **options: Any,
) -> Report:
    """Writes the manifest of a corpus (one of `starseq.corpora.names()`) and reports on it.

    With `marks`, a convention or a file of rules, or with regular expressions in `gap`, the transcriber's marks become gaps (see
    `starseq.text.marks.Marks`), and every row says that only these are open. The other arguments are those of the corpus's own
    function, for example `starseq.corpora.folder.prepare`.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = prepare("digits", folder, train=3, dev=1, test=1)
    >>> report.rows, sorted(os.listdir(folder))
    (5, ['STATS.json', 'lines.tar', 'manifest.jsonl'])
    """
    rules = None if marks is None and not gap else Marks(marks, gap, unclear)
    write = corpora.load(corpus)
    with corpora.reading_marks(rules):
        report = write(*arguments, **options)
    _note_empty_splits(
        report, {name: one.default for name, one in inspect.signature(write).parameters.items()} | options
    )
    return report


def _note_empty_splits(report: Report, options: Mapping[str, Any]) -> None:
    """Says which split was to have a share of the rows and has none."""
    shares = {name: options.get(name) for name in ("dev", "test")}
    empty = [name for name, share in shares.items() if isinstance(share, float) and share and name not in report.splits]
    if empty and not options.get("split"):
        report.notes.append(
            f"no row is in the split {' or '.join(empty)}: the corpus is too small for its shares, or names other splits"
        )


def features(
    manifest: PathLike, out: PathLike, *, rate: int = 16_000, bands: int = 80, where: Where = Where()
) -> Precomputed:
    """Stores the log-mel features of a manifest of audio under `out` (see `starseq.data.precompute`)."""
    return precompute(
        manifest, out, AudioReader(LogMel(rate, bands)), root=where.root, workers=where.workers, skip_bad=where.skip_bad,
        progress=where.progress, together=where.ranks,
    )  # fmt: skip
