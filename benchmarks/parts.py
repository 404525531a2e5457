"""Reading rows in long recordings, beside files of the same length, and lhotse's cuts of the same recordings: milliseconds a row,
on one core, without the disk.

python benchmarks/parts.py --hours 2 --rows 300

A million rows over a thousand hours are read as these are: nothing is kept from row to row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

from starseq.data.dataset import AudioReader
from starseq.data.manifest import Row, read_bytes

RATE, SECONDS, FILES = 16_000, 6.0, 50
FORMATS = {
    "wav": ("WAV", "PCM_16"), "flac": ("FLAC", "PCM_16"), "vorbis": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", None),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads rows in long recordings, and files of their own.")
    parser.add_argument("--hours", type=int, default=2, help="recordings, of an hour each (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=300, help="rows of 6 seconds (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':8}{'read':>24}{'lhotse':>12}{'read and features':>28}")
    print(f"{'ms a row':8}{'part':>12}{'file':>12}{'cut':>12}{'part':>16}{'file':>12}")
    for name, (format, subtype) in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            parts, files = _make(Path(folder), args.hours, args.rows, format, subtype)
            cells = [_time(rows, Path(folder), features) for features in (False, True) for rows in (parts, files)]
            cut = _lhotse(parts, Path(folder))
        print(f"{name:8}{cells[0]:12.2f}{cells[1]:12.2f}{cut:12.2f}{cells[2]:16.2f}{cells[3]:12.2f}")
    return 0


def _make(folder: Path, hours: int, count: int, format: str, subtype: str | None) -> tuple[list[Row], list[Row]]:
    """Rows in recordings of an hour, and rows that are files, of the same lengths and in a shuffled order."""
    draw = np.random.default_rng(0)
    noise = (0.05 * draw.standard_normal(60 * RATE)).astype(np.float32)
    for i in range(hours):
        with soundfile.SoundFile(folder / f"h{i}", "w", RATE, 1, format=format, subtype=subtype) as file:
            for _ in range(60):
                file.write(noise)
    for i in range(FILES):
        soundfile.write(folder / f"f{i}", noise[: int(SECONDS * RATE)], RATE, format=format, subtype=subtype)
    parts, files = [], []
    for i in range(count):
        start = round(draw.uniform(0, 3600 - SECONDS), 3)
        parts.append(Row({"id": f"p{i}", "path": f"h{i % hours}", "start": start, "end": start + SECONDS}))
        files.append(Row({"id": f"f{i}", "path": f"f{i % FILES}"}))
    return parts, files


def _time(rows: list[Row], folder: Path, features: bool) -> float:
    """Milliseconds a row, until its samples are there, or its features."""
    from starseq.data import audio

    reader = AudioReader()
    start = time.perf_counter()
    for row in rows:
        data = read_bytes(row, folder)
        if features:
            reader(row, data)
        else:
            audio.decode(data, name=row.path)
    return 1000 * (time.perf_counter() - start) / len(rows)


def _lhotse(rows: list[Row], folder: Path) -> float:
    """The same of cuts, whose audio lhotse loads."""
    from lhotse import MonoCut, Recording

    recordings = {row.path: Recording.from_file(folder / row.path, recording_id=row.path) for row in rows}
    cuts = [MonoCut(row.id, row["start"], SECONDS, 0, recording=recordings[row.path]) for row in rows]
    start = time.perf_counter()
    for cut in cuts:
        cut.load_audio()
    return 1000 * (time.perf_counter() - start) / len(rows)


if __name__ == "__main__":
    sys.exit(main())
