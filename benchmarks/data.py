"""The data tools on this machine: seconds, and memory where it matters."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import starseq
from starseq.data.batching import BatchSampler
from starseq.data.dataset import AudioReader, BatchLoader, LineReader, ManifestDataset, Reader
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs.bench import Progress, _processor
from starseq.jobs.bench_results import Measurement

__all__ = ["DropBench", "ReadBench", "bench_data", "drop_million", "read_audio", "read_lines"]

# The peak is read by the process itself: the kernel's figure for a child counts what its parent held before the exec.
_RUN = """
import sys, resource
from starseq.cli import main
try:
    main()
finally:
    try:
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak {peak:.1f} MiB", file=sys.stderr)
"""


@dataclass(frozen=True)
class DropBench:
    """`starseq drop` as a command: wall time from start to exit, and peak resident memory."""

    rows: int
    seconds: float
    peak_mib: float


def drop_million(rows: int = 1_000_000, *, options: tuple[str, ...] = ("--p-drop", "0.4", "--mark")) -> DropBench:
    """Time `starseq drop` on a made manifest of a million rows of 5 to 35 words, about as LibriSpeech's.

    >>> drop_million(1000).rows
    1000
    """
    with tempfile.TemporaryDirectory() as folder:
        full, partial = Path(folder, "full.jsonl"), Path(folder, "partial.jsonl")
        write_manifest(full, _made_rows(rows))
        command = [sys.executable, "-c", _RUN, "drop", str(full), str(partial), *options]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    return DropBench(rows, seconds, float(done.stderr.split()[-2]))


def _made_rows(count: int) -> Iterator[dict[str, object]]:
    """Rows of random words, the frequent ones more often (rank ~ exp of a uniform number, which is Zipf's law)."""
    draw = random.Random(0)
    words = ["".join(draw.choices("ETAOINSHRDLU", k=draw.randint(2, 9))) for _ in range(50_000)]
    for number in range(count):
        text = " ".join(words[int(50_000 ** draw.random()) - 1] for _ in range(draw.randint(5, 35)))
        yield {
            "id": f"speaker{number % 997}-chapter{number % 31}-{number:07d}",
            "path": f"train/{number % 997}/{number:07d}.flac",
            "text": text,
            "duration": round(draw.uniform(2, 16), 3),
            "speaker": str(number % 997),
            "split": "train",
        }


@dataclass(frozen=True)
class ReadBench:
    """Reading a manifest into frames: rows, their hours (0 for images), and wall time without the workers' start."""

    rows: int
    hours: float
    seconds: float
    workers: int

    @property
    def hours_per_minute(self) -> float:
        return self.hours / (self.seconds / 60)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds


def read_audio(manifest: Path, *, rows: int = 600, workers: int = 2) -> ReadBench:
    """Decode and compute log-mel features of the first `rows` of a manifest of audio, `workers` cores at work."""
    return _read(manifest, AudioReader(), rows, workers)


def read_lines(
    manifest: Path, *, height: int = 64, max_width: int = 1200, rows: int = 6000, workers: int = 2
) -> ReadBench:
    """Decode and scale the first `rows` of a manifest of line images, `workers` cores at work."""
    return _read(manifest, LineReader(height, max_width), rows, workers)


def _read(manifest: Path, reader: Reader, rows: int, workers: int) -> ReadBench:
    left = iter(range(rows))
    data = ManifestDataset(manifest, reader, keep=lambda row: next(left, None) is not None)
    size = max(1, len(data) // 50)  # batches small enough that no worker is left with the last one
    loader = BatchLoader(data, BatchSampler(data.sizes, budget=None, max_items=size), workers=workers)
    if workers:
        next(iter(loader))  # starts the workers, which stay for the pass that counts
    start = time.perf_counter()
    frames = sum(int(batch.lengths.sum()) for batch in loader)
    seconds = time.perf_counter() - start
    assert frames > 0
    hours = float(data.sizes.sum()) / 3600 if isinstance(reader, AudioReader) else 0.0
    return ReadBench(len(data), hours, seconds, workers)


def bench_data(corpora: Path | None, *, progress: Progress = lambda done, total: None) -> list[Measurement]:
    """The data tools: `drop` on a million rows, and reading every manifest of a folder of corpora, on two processes."""
    manifests = [] if corpora is None else sorted(corpora.glob("*/manifest.jsonl"))
    shared = (f"{_processor()}, 2 processes", torch.__version__, starseq.__version__)

    def row(case: str, shape: str, metric: str, unit: str, value: float) -> Measurement:
        return Measurement(case, shape, "", "starseq", metric, unit, *(value,) * 3, 1, *shared)

    progress(0, len(manifests) + 1)
    dropped = drop_million()
    rows = [row("drop", f"{dropped.rows} rows", "time", "s", dropped.seconds)]
    rows.append(row("drop", f"{dropped.rows} rows", "memory", "MiB", dropped.peak_mib))
    for done, manifest in enumerate(manifests, 1):
        progress(done, len(manifests) + 1)
        name = manifest.parent.name
        if "duration" in next(read_manifest(manifest)).fields:
            read = read_audio(manifest)
            rows.append(
                row(f"audio: {name}", f"{read.rows} utterances", "speed", "hours a minute", read.hours_per_minute)
            )
        else:
            read = read_lines(manifest)
            rows.append(row(f"lines: {name}", f"{read.rows} lines", "speed", "lines a second", read.rows_per_second))
    progress(len(manifests) + 1, len(manifests) + 1)
    return rows
