"""Reading what other toolkits hold, beside these toolkits: rows in long recordings, a million of them, and each format.

python benchmarks/parts.py                        # milliseconds a row: parts of recordings, files of their own, lhotse's cuts
python benchmarks/parts.py --million 1000000      # rows over a thousand files of an hour: opened and read, and the memory
python benchmarks/parts.py --formats 2000         # rows a second of each format: prepared, read, and by its own library

Times are those of the processor, on one core (`--million` reads on two), so that what else runs does not count.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch

from starseq.corpora import load
from starseq.data import audio
from starseq.data.dataset import AudioReader, BatchLoader, ManifestDataset
from starseq.data.extractor import WaveformReader
from starseq.data.manifest import Row, read_bytes, read_manifest, write_manifest

RATE, SECONDS, FILES = 16_000, 6.0, 50
FORMATS = {
    "wav": ("WAV", "PCM_16"), "flac": ("FLAC", "PCM_16"), "vorbis": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", None),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads rows in long recordings, and the formats of other toolkits.")
    parser.add_argument("--hours", type=int, default=2, help="recordings, of an hour each (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=300, help="rows of 6 seconds (default: %(default)s)")
    parser.add_argument("--million", type=int, metavar="ROWS", help="so many rows over a thousand recordings, instead")
    parser.add_argument("--formats", type=int, metavar="ROWS", help="so many rows of a second in each format, instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.million:
            _million(Path(folder), args.million, args.rows)
        elif args.formats:
            _formats(Path(folder), args.formats)
        else:
            _recordings(Path(folder), args.hours, args.rows)
    return 0


# --- parts of recordings ----------------------------------------------------------------------------------------------


def _recordings(folder: Path, hours: int, rows: int) -> None:
    print(f"{'':8}{'read':>24}{'lhotse':>12}{'read and features':>28}")
    print(f"{'ms a row':8}{'part':>12}{'file':>12}{'cut':>12}{'part':>16}{'file':>12}")
    for name, (format, subtype) in FORMATS.items():
        parts, files = _make(folder, hours, rows, format, subtype)
        cells = [_time(rows, folder, features) for features in (False, True) for rows in (parts, files)]
        cut = _lhotse(parts, folder)
        print(f"{name:8}{cells[0]:12.2f}{cells[1]:12.2f}{cut:12.2f}{cells[2]:16.2f}{cells[3]:12.2f}")


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
    reader = AudioReader()
    start = time.process_time()
    for row in rows:
        data = read_bytes(row, folder)
        if features:
            reader(row, data)
        else:
            audio.decode(data, name=row.path)
    return 1000 * (time.process_time() - start) / len(rows)


def _lhotse(rows: list[Row], folder: Path) -> float:
    """The same of cuts, whose audio lhotse loads."""
    from lhotse import MonoCut, Recording

    recordings = {row.path: Recording.from_file(folder / row.path, recording_id=row.path) for row in rows}
    cuts = [MonoCut(row.id, row["start"], SECONDS, 0, recording=recordings[row.path]) for row in rows]
    start = time.process_time()
    for cut in cuts:
        cut.load_audio()
    return 1000 * (time.process_time() - start) / len(rows)


# --- a million rows ---------------------------------------------------------------------------------------------------


def _million(folder: Path, rows: int, sample: int) -> None:
    """The recordings are sparse files of silence: they take no room, and are read as others are."""
    head = struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF",
        36 + 7200 * RATE,
        b"WAVEfmt ",
        16,
        1,
        1,
        RATE,
        2 * RATE,
        2,
        16,
        b"data",
        7200 * RATE,
    )
    for i in range(1000):
        with (folder / f"h{i}.wav").open("wb") as file:
            file.write(head)
            file.truncate(len(head) + 7200 * RATE)
    for i in range(FILES):
        soundfile.write(folder / f"f{i}.wav", np.zeros(int(SECONDS * RATE), np.int16), RATE)
    draw = np.random.default_rng(0)
    starts = draw.uniform(0, 3600 - SECONDS, rows).round(3).tolist()
    text = "a row of a dozen words or so as transcripts of speech have them"
    made = (
        {"id": f"r{i}", "path": f"h{i % 1000}.wav", "start": start, "end": round(start + SECONDS, 3), "text": text}
        for i, start in enumerate(starts)
    )
    write_manifest(folder / "parts.jsonl", made)
    whole = ({"id": f"r{i}", "path": f"f{i % FILES}.wav", "duration": SECONDS, "text": text} for i in range(rows))
    write_manifest(folder / "files.jsonl", whole)
    chosen = draw.choice(rows, sample, replace=False).tolist()
    for name in ("files", "parts"):
        before, start = _memory(), time.process_time()
        data = ManifestDataset(folder / f"{name}.jsonl", WaveformReader(RATE))
        opened = time.process_time() - start
        batches = [chosen[at : at + 10] for at in range(0, sample, 10)]
        begun, children = time.perf_counter(), _children()
        for _ in BatchLoader(data, batches, workers=2):  # type: ignore[arg-type]
            pass
        wall, cores = time.perf_counter() - begun, _children() - children
        print(
            f"{name}: {rows:,} rows opened in {opened:.1f} s, {_memory() - before:.0f} MiB more; {sample:,} of them read by two "
            f"workers in {wall:.1f} s, {1000 * cores / sample:.2f} ms of a core each, their start included"
        )


def _memory() -> float:
    """MiB that are in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- formats ----------------------------------------------------------------------------------------------------------


def _formats(folder: Path, rows: int) -> None:
    clips = folder / "clips"
    clips.mkdir()
    noise = (0.05 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    paths = [clips / f"c{i:06d}.flac" for i in range(rows)]
    for path in paths:
        soundfile.write(path, noise, RATE)
    print(f"{'rows a second':14}{'prepare':>12}{'read':>12}{'library':>12}   the library")
    for name, make, library, named in (
        ("lhotse", _make_cuts, _by_lhotse, "lhotse"),
        ("kaldi", _make_kaldi, _by_lhotse_of_kaldi, "lhotse.kaldi"),
        ("nemo", _make_nemo, _by_json, "json and soundfile, as NeMo's own reader"),
        ("table", _make_table, _by_csv, "csv and soundfile"),
        ("huggingface", _make_parquet, _by_datasets, "datasets, undecoded, and soundfile"),
    ):
        source = make(folder, paths)
        out = folder / f"out-{name}"
        start = time.process_time()
        report = load(name)(source, out)
        prepared = time.process_time() - start
        assert report.rows == rows, report
        start = time.process_time()
        for row in read_manifest(out / "manifest.jsonl"):
            audio.decode(read_bytes(row, out, folder), rate=None)
        read = time.process_time() - start
        start = time.process_time()
        assert sum(len(samples) > 0 for samples in library(source)) == rows
        beside = time.process_time() - start
        print(f"{name:14}{rows / prepared:12.0f}{rows / read:12.0f}{rows / beside:12.0f}   {named}")


def _make_cuts(folder: Path, paths: list[Path]) -> Path:
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

    one = Recording.from_file(paths[0])
    file = folder / "cuts.jsonl.gz"
    with CutSet.open_writer(file) as writer:
        for path in paths:
            fields = {**one.to_dict(), "id": path.stem}
            fields["sources"][0]["source"] = str(path)
            said = [SupervisionSegment(path.stem, path.stem, 0, 1.0, text="the quick * fox")]
            writer.write(MonoCut(path.stem, 0.0, 1.0, 0, supervisions=said, recording=Recording.from_dict(fields)))
    return file


def _by_lhotse(source: Path) -> Iterator[np.ndarray]:
    from lhotse import CutSet

    return (cut.load_audio()[0] for cut in CutSet.from_file(source))


def _make_kaldi(folder: Path, paths: list[Path]) -> Path:
    data = folder / "kaldi"
    data.mkdir()
    columns: dict[str, Callable[[Path], str]] = {
        "wav.scp": str, "text": lambda _: "the quick * fox", "utt2spk": lambda path: path.stem
    }  # fmt: skip
    for name, value in columns.items():
        (data / name).write_text("".join(f"{path.stem} {value(path)}\n" for path in paths))
    return data


def _by_lhotse_of_kaldi(source: Path) -> Iterator[np.ndarray]:
    from lhotse import CutSet
    from lhotse.kaldi import load_kaldi_data_dir

    recordings, supervisions, _ = load_kaldi_data_dir(source, RATE)
    cuts = CutSet.from_manifests(recordings, supervisions)
    return (cut.load_audio()[0] for cut in cuts.trim_to_supervisions())


def _make_nemo(folder: Path, paths: list[Path]) -> Path:
    rows = ({"audio_filepath": str(path), "duration": 1.0, "text": "the quick * fox"} for path in paths)
    file = folder / "train_manifest.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _by_json(source: Path) -> Iterator[np.ndarray]:
    with source.open() as file:
        yield from (soundfile.read(json.loads(line)["audio_filepath"], dtype="float32")[0] for line in file)


def _make_table(folder: Path, paths: list[Path]) -> Path:
    file = folder / "train.tsv"
    lines = (f"{path.relative_to(folder)}\tthe quick * fox\n" for path in paths)
    file.write_text("path\tsentence\n" + "".join(lines))
    return file


def _by_csv(source: Path) -> Iterator[np.ndarray]:
    with source.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield soundfile.read(source.parent / row["path"], dtype="float32")[0]


def _make_parquet(folder: Path, paths: list[Path]) -> Path:
    import datasets
    import pyarrow as pa
    from pyarrow import parquet

    features = datasets.Features({"audio": datasets.Audio(), "sentence": datasets.Value("string")})
    rows = [{"audio": {"bytes": path.read_bytes(), "path": path.name}, "sentence": "the quick * fox"} for path in paths]
    target = folder / "parquet"
    target.mkdir()
    parquet.write_table(pa.Table.from_pylist(rows, features.arrow_schema), target / "train-00000.parquet")
    return target


def _by_datasets(source: Path) -> Iterator[np.ndarray]:
    import datasets

    datasets.disable_progress_bars()
    files = [str(path) for path in source.glob("*.parquet")]
    data = datasets.Dataset.from_parquet(files, cache_dir=str(source / "cache"))
    for row in data.cast_column("audio", datasets.Audio(decode=False)):
        yield soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")[0]


if __name__ == "__main__":
    sys.exit(main())
