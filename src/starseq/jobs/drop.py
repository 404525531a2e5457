"""`starseq drop`: a manifest with full labels to one with partial labels, and what is left of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starseq.data.drop import Dropper
from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, check_target
from starseq.data.manifest import Progress, bad_rows_beside, manifest_writer, read_manifest, rebaser, refuse

__all__ = ["DropResult", "check_picture", "draw_histogram", "drop"]

BINS = 20


@dataclass(frozen=True)
class DropResult:
    """What `drop` did. `histogram` counts samples by the share of labels kept: bin i holds shares from i / 20 to
    (i + 1) / 20, the last one 1.0 too; pruned samples are in the first. Copied samples are in `rows` alone."""

    rows: int
    pruned: int
    bad: int
    labels: int
    kept: int
    histogram: tuple[int, ...]
    copied: int = 0
    """samples of other splits, as they were"""
    partial: tuple[str, ...] = ()
    """splits that lost labels"""

    @property
    def share_kept(self) -> float:
        """The share of all labels that are left (0 where there was none)."""
        return self.kept / self.labels if self.labels else 0.0

    def table(self, width: int = 50) -> str:
        """The histogram as text: a line for every bin.

        >>> print(DropResult(3, 1, 0, 8, 4, (1, *[0] * 9, 2, *[0] * 9)).table(width=4).splitlines()[10])
         50-55%  ████ 2
        """
        tallest = max(self.histogram) or 1
        bars = ("█" * -(-count * width // tallest) for count in self.histogram)
        lines = (
            f"{100 * i // BINS:3d}-{100 * (i + 1) // BINS}%".ljust(9) + f"{bar} {count}".lstrip()
            for i, (bar, count) in enumerate(zip(bars, self.histogram, strict=True))
        )
        return "\n".join(lines)


def drop(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dropper: Dropper,
    *,
    splits: Sequence[str] = (),
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> DropResult:
    """Drop labels from the manifest `source` and write what is left to the manifest `target`, as a stream.

    With `splits`, rows of other splits are copied; each split has to be there. Rows that lose every label are pruned.
    A bad row raises `ManifestError`; with `skip_bad` it goes to ``bad.jsonl`` beside `target` instead. `target`
    changes only when all is done. `progress` counts bytes of `source`.

    >>> import tempfile
    >>> from starseq.data.drop import FixedDrop
    >>> from starseq.data.manifest import write_manifest
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [{"id": f"u{i}", "path": f"u{i}.wav", "text": "the quick brown fox"} for i in range(1000)]
    >>> _ = write_manifest(folder / "full.jsonl", rows)
    >>> result = drop(folder / "full.jsonl", folder / "partial.jsonl", Dropper(FixedDrop(0.5)))
    >>> result.rows + result.pruned, round(result.share_kept, 1)
    (1000, 0.5)
    """
    check_target(target, source)
    histogram = [0] * BINS
    labels = kept = pruned = copied = 0
    there, partial = set[str](), set[str]()
    with bad_rows_beside(target, skip_bad, source) as bad, manifest_writer(target, checked=True) as writer:
        rebase = rebaser(source, target)
        for row in read_manifest(source, on_bad=bad, progress=progress):
            split = str(row.get("split") or "")
            there.add(split)
            if splits and split not in splits:
                writer.write(rebase(row))
                copied += 1
                continue
            try:
                dropped = dropper(row)
            except DataError as error:
                refuse(source, row, str(error), bad)
                continue
            labels += dropped.labels
            kept += dropped.kept
            histogram[_bin(dropped.kept, dropped.labels)] += 1
            if dropped.kept < dropped.labels:
                partial.add(split)
            if dropped.kept:
                writer.write(rebase(dropped.row))
            else:
                pruned += 1
        for split in splits:
            if split not in there:
                names = ", ".join(sorted(there - {""})) or "none"
                raise DataError(f"{os.fspath(source)}: no row of split {split!r} (there are {names})")
    return DropResult(
        writer.rows, pruned, bad.rows if bad else 0, labels, kept, tuple(histogram), copied, tuple(sorted(partial))
    )


def _bin(kept: int, labels: int) -> int:
    return min(BINS * kept // labels, BINS - 1) if labels else 0


def check_picture(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """Raises `DataError` unless `draw_histogram` can write there."""
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{os.fspath(path)}: pictures end in .png, .svg or .pdf")
    check_target(path, *sources)


def draw_histogram(result: DropResult, path: str | os.PathLike[str]) -> None:
    """The histogram as a picture, like the paper's: share of labels kept against samples. The suffix is the format."""
    check_picture(path)
    # `Figure` without pyplot: no window system, and no global state of the caller's is touched.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.bar([100 * (i + 0.5) / BINS for i in range(BINS)], result.histogram, width=94 / BINS)
    axes.set_xlabel("labels kept per sample, %")
    axes.set_ylabel("samples")
    axes.set_xlim(0, 100)
    axes.set_title(f"{100 * result.share_kept:.1f}% of {result.labels:,} labels kept, {result.pruned:,} samples pruned")
    with atomic_writer(path) as file:
        figure.savefig(file, format=Path(path).suffix.lstrip(".").lower())
