"""Whether a recipe fits the rows that it is given. What does not is one sentence, with the override that mends it."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import quantiles

import numpy as np

from starseq.data import audio, images
from starseq.data.dataset import AudioReader, LineReader, ManifestDataset, Reader
from starseq.data.errors import DataError
from starseq.data.extractor import ExtractorReader, WaveformReader
from starseq.data.manifest import Row, read_bytes
from starseq.text.tokeniser import Tokeniser

LOOKED_AT = 8
"""rows whose files are looked into: corpora are of one kind, and a million files are not opened"""
FEW = 0.01
"""a share of the rows for which no setting is changed"""


# --- the kind of files ------------------------------------------------------------------------------------------------


def check_files(
    manifest: Path, reader: Reader, rows: Sequence[Row], root: str | os.PathLike[str] | None = None
) -> list[str]:
    """Looks at some rows and their files. Raises `DataError` where the reader is for files of another kind; returns
    sentences about what can be read but is not what the reader expects."""
    for row in rows:
        _check_kind(manifest, reader, row)
    return _rate(manifest, reader, rows, root) if isinstance(reader, (AudioReader, WaveformReader)) else []


def _check_kind(manifest: Path, reader: Reader, row: Row) -> None:
    kind = _kind(row)
    wanted, name = ("images", "line") if isinstance(reader, LineReader) else ("audio", "audio")
    if isinstance(reader, AudioReader) and row.features not in (None, reader.key):
        there = re.search(r"rate=(\d+) bands=(\d+)", row["features"])
        mend = f": data.reader.rate={there[1]} data.reader.bands={there[2]}" if there else ""
        raise DataError(f"{manifest}: it holds {row['features']!r}, and the recipe asks for {reader.key!r}{mend}")
    if isinstance(reader, WaveformReader):
        name = "pretrained" if isinstance(reader, ExtractorReader) else "waveform"
        if row.features is not None:
            raise DataError(
                f"{manifest}: its rows are stored features ({row.path}), and data.reader.name={name} reads audio"
            )
    if kind in (None, wanted):
        return
    recipe, other = ("handwriting", "line") if kind == "images" else ("speech", "audio")
    raise DataError(
        f"{manifest}: its rows are {kind} ({row.path}), and data.reader.name={name} reads {wanted}: "
        f"begin with the recipe {recipe}, or give data.reader.name={other}"
    )


def _kind(row: Row) -> str | None:
    """What a row's file is, by what the row says; None: it does not say."""
    if row.features is not None:
        return "audio"
    suffix = os.path.splitext(row.path)[1].lower()
    if suffix in images.SUFFIXES or ("width" in row.fields and "height" in row.fields):
        return "images"
    return "audio" if suffix in audio.SUFFIXES or row.seconds is not None else None


def _rate(
    manifest: Path, reader: AudioReader | WaveformReader, rows: Sequence[Row], root: str | os.PathLike[str] | None
) -> list[str]:
    found = set()
    for row in rows:
        try:
            if row.features is None:
                found.add(audio.probe(read_bytes(row, manifest.parent, root), name=row.path).rate)
        except ValueError:
            continue  # what is wrong with a file is said where it is read
    rate, highest = reader.rate, max(found, default=0)
    if isinstance(reader, WaveformReader):
        others = ", ".join(f"{other:,}" for other in sorted(found - {rate}))
        return [f"the audio has {others} Hz and is resampled to {rate:,}, which the model reads"] if others else []
    if not 0 < highest < rate:
        return []
    return [
        f"the audio has {highest:,} Hz and is resampled to {rate:,}, which leaves the upper bands empty: "
        f"data.reader.rate={highest} uses all of them"
    ]


# --- rows of a split --------------------------------------------------------------------------------------------------


def no_rows(manifest: Path, key: str, splits: Sequence[str], there: Iterable[str]) -> DataError:
    """No row is of the splits that `data.splits.{key}` names; `there` are those that rows have."""
    names = sorted(name for name in there if name)
    asked = f"{manifest}: no row is left for the splits {', '.join(splits)}, data.splits.{key}"
    if not names:
        return DataError(f"{asked}: no row says its split; `starseq manifest split` writes one manifest for each")
    without = ", and data.splits.dev=[] trains without" if key == "dev" else ""
    return DataError(f"{asked} (there are {', '.join(names[:9])}): data.splits.{key}=NAME chooses others{without}")


# --- labels -----------------------------------------------------------------------------------------------------------


def unknown_labels(unknown: Mapping[str, int], labels: int, tokeniser: Tokeniser) -> str:
    """A sentence about labels that the vocabulary lacks; `labels` counts all of them."""
    count = sum(unknown.values())
    most = ", ".join(repr(label) for label, _ in Counter(unknown).most_common(5))
    cases = {"lower": str.lower, "upper": str.upper}
    mended = {
        name: sum(n for label, n in unknown.items() if tokeniser.writes(change(label)))
        for name, change in cases.items()
    }
    best = max(mended, key=mended.__getitem__)
    if 2 * mended[best] > count:
        mend = f"text.normaliser.case={best} finds most of them there"
    elif tokeniser.pieces is not None:
        mend = "text.pieces=null learns pieces from the training rows"
    else:
        mend = "text.vocabulary=null text.size=null takes the labels of the training rows"
    return f"{count:,} of {labels:,} labels ({_percent(count, labels)}) are not in the vocabulary, most often {most}: {mend}"


# --- lengths ----------------------------------------------------------------------------------------------------------


def too_long(data: ManifestDataset, needs: Mapping[str, float], stride: int | None) -> str:
    """A sentence about rows with more labels than frames. `needs` says of each how many times as many frames it needs."""
    names = ", ".join(list(needs)[:5]) + (", ..." if len(needs) > 5 else "")
    share = f"{len(needs):,} of {len(data):,} rows ({_percent(len(needs), len(data))})"
    sentence = f"{share} excluded, for they have more labels than frames: {names}"
    few = int(FEW * len(data))
    if len(needs) <= few:
        return sentence
    return f"{sentence}; {_more_frames(data, sorted(needs.values())[-1 - few], stride)}"


def _more_frames(data: ManifestDataset, factor: float, stride: int | None) -> str:
    """The override that makes so many times as many frames."""
    reader = data.reader
    if isinstance(reader, LineReader):
        if factor > 8:
            return "do these texts belong to these images?"
        height = 16 * math.ceil(reader.height * factor / 16)
        wider = math.ceil(reader.max_width * height / reader.height)
        return f"data.reader.height={height} data.reader.max_width={wider} leaves room for nearly all"
    if stride is None:
        return "a model with more frames is needed, or longer labels, text.unit=word"
    less = int(stride / factor)
    if less < 1:
        return "do these texts belong to this audio?"
    return f"model.stride={less} leaves room for nearly all"


def squeezed(data: ManifestDataset) -> list[str]:
    """A sentence, where many lines are so wide that they are squeezed to the reader's `max_width`."""
    reader = data.reader
    if not isinstance(reader, LineReader):
        return []
    wide = np.flatnonzero(np.asarray(data.sizes) >= reader.max_width)
    chosen = [data.row(int(i)) for i in wide[:: max(1, len(wide) // 1000)]]
    sized = [row for row in chosen if "width" in row.fields and "height" in row.fields]
    widths = [row["width"] * reader.height / row["height"] for row in sized]
    share = len(wide) / len(data) * sum(width > 1.1 * reader.max_width for width in widths) / max(1, len(widths))
    if share <= FEW:
        return []
    needed = 100 * math.ceil(max(quantiles(widths, n=100) if len(widths) > 1 else widths) / 100)
    return [
        f"{_percent(share, 1)} of the lines are wider than {reader.max_width:,} pixels at this height, and squeezed: "
        f"data.reader.max_width={needed} keeps the shape of their letters"
    ]


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
