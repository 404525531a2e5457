"""This machine: our losses against log_softmax + torch's ctc_loss, forward and backward from logits, side by side in one run."""

from __future__ import annotations

import csv
import functools
import io
import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

import starseq
from starseq.data.errors import DataError
from starseq.data.files import check_target, write_text
from starseq.data.manifest import read_manifest
from starseq.jobs.bench_data import drop_million, read_audio, read_lines

DECODE = "decode: "
"""begins the cases of `bench_decode`"""
TRAIN = "train-"
"""begins the cases of `bench_train`"""

Progress = Callable[[int, int], None]
Provider = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A batch of B utterances, T frames, V tokens with blank, U labels each."""

    name: str
    B: int
    T: int
    V: int
    U: int
    dtype: str = "float32"

    @property
    def shape(self) -> str:
        return f"{self.B}, {self.T}, {self.V}, {self.U}"


CASES = {
    "cpu": (
        Case("iam", 8, 150, 80, 22),
        Case("letters", 16, 500, 29, 150),
        Case("words", 4, 190, 50001, 25),
    ),
    "cuda": (
        Case("iam", 8, 150, 80, 22),
        Case("letters", 16, 500, 29, 150),
        Case("words", 16, 190, 50001, 25),
        Case("words-bf16", 16, 190, 50001, 25, "bfloat16"),
        Case("iam-64", 64, 150, 80, 22),
        Case("letters-64", 64, 500, 29, 150),
        Case("words-64", 64, 190, 50001, 25),
        Case("words-64-bf16", 64, 190, 50001, 25, "bfloat16"),
    ),
}
SCALING = (
    *(Case("frames", 8, T, 80, min(T // 5, 600)) for T in (100, 200, 500, 1000, 2000, 4000, 8000)),
    *(Case("vocabulary", 8, 200, V, 25) for V in (100, 300, 1000, 3000, 10000, 30000, 100000, 200000)),
)
"""How cost grows: with the frames, and with the vocabulary."""


def _torch_ctc(logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    # ctc_loss has no half precision; autocast widens in the log_softmax as well.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.nn.functional.ctc_loss(logits.log_softmax(2, dtype=dtype), targets, input_lengths, target_lengths)


BASELINE, REPLAYED = "torch ctc", "CUDA graph"
PROVIDERS: dict[str, Provider] = {
    BASELINE: _torch_ctc,
    "starseq stc": starseq.stc_loss,
    "starseq ctc": starseq.ctc_loss,
}


@dataclass(frozen=True)
class Measurement:
    """One row of results.csv. `ratio` is over the baseline's median of the same run."""

    case: str
    shape: str
    dtype: str
    provider: str
    metric: str
    unit: str
    p20: float
    p50: float
    p80: float
    runs: int
    device: str
    torch: str
    starseq: str


def bench(
    device: str = "cpu", cases: Iterable[str] = (), *, scaling: bool = False, seconds: float = 8.0,
    progress: Progress = lambda done, total: None,
) -> list[Measurement]:  # fmt: skip
    """Times and peak memory of every provider at every case (by name; by default all of the device's).

    Providers take turns within a case, so that what disturbs one disturbs the others. A result that disagrees with torch's
    raises before anything is timed.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: this machine has no CUDA device")
    known = CASES[device]
    chosen = list(cases)
    for name in chosen:
        if name not in {case.name for case in known}:
            raise ValueError(f"--case: {name!r} is none of {', '.join(case.name for case in known)}")
    todo = [case for case in known if not chosen or case.name in chosen] + list(SCALING if scaling else ())
    rows: list[Measurement] = []
    for done, case in enumerate(todo):
        progress(done, len(todo))
        rows += _measure(case, device, seconds)
    progress(len(todo), len(todo))
    return rows


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


def check(rows: Sequence[Measurement], targets: Path) -> list[str]:
    """One sentence for each ratio above its target; targets.csv has the columns device, case, provider, ratio.

    Steps of training cost about the same whatever the loss: one of them is above its target if it is so by more than twice its
    standard error, else chance would decide. See `undecided`.
    """
    return [
        f"{row.case}, {row.provider}: ratio {_with_error(row)} is above {target:g}"
        for row, target in _with_targets(rows, targets)
        if row.p50 - _doubt(row) > target
    ]


def undecided(rows: Sequence[Measurement], targets: Path) -> list[str]:
    """One sentence for each ratio that is above its target by no more than chance explains."""
    return [
        f"{row.case}, {row.provider}: ratio {_with_error(row)} may be above {target:g} or not: more --seconds would tell"
        for row, target in _with_targets(rows, targets)
        if row.p50 - _doubt(row) <= target < row.p50
    ]


def _with_targets(rows: Sequence[Measurement], targets: Path) -> list[tuple[Measurement, float]]:
    kind = "cuda" if any("NVIDIA" in row.device for row in rows) else "cpu"
    ratios = {(row.case, row.provider): row for row in rows if row.metric == "ratio"}
    found = [
        (ratios.get((case, provider)), ratio)
        for device, case, provider, ratio in read_targets(targets)
        if device == kind
    ]
    return [(row, target) for row, target in found if row is not None]


def read_targets(path: Path) -> list[tuple[str, str, str, float]]:
    """Device, case, provider and ratio, from the columns of that name. A `DataError` says what is not there."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            columns = next(reader, [])
            places = [columns.index(name) for name in ("device", "case", "provider", "ratio")]
            rows = [[row[place] for place in places] for row in reader]
        return [(device, case, provider, float(ratio)) for device, case, provider, ratio in rows]
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; starseq's own targets are benchmarks/targets.csv of its checkout"
        ) from None
    except (IndexError, ValueError, csv.Error):
        raise DataError(f"{path}: not targets: a CSV file with the columns device, case, provider, ratio") from None


def _doubt(ratio: Measurement) -> float:
    return 2 * _standard_error(ratio) if _is_step(ratio) else 0.0


def save(rows: Sequence[Measurement], path: Path) -> None:
    """Adds rows to a CSV file; measurements of the same case, provider, metric and device replace the older ones."""

    def key(row: Measurement) -> tuple[str, ...]:
        return (row.case, row.shape, row.dtype, row.provider, row.metric, row.device)

    fresh = {key(row) for row in rows}
    kept = [row for row in load(path) if key(row) not in fresh]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Measurement)], lineterminator="\n")
    writer.writeheader()
    for row in [*kept, *rows]:
        writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text(path, text.getvalue())


def load(path: Path) -> list[Measurement]:
    """The measurements of a file; none where there is no file, or an empty one. Any other file is a `DataError`."""
    check_target(path)
    if not path.exists() or not path.stat().st_size:
        return []
    numbers = {"p20": float, "p50": float, "p80": float, "runs": int}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if reader.fieldnames != [field.name for field in fields(Measurement)]:
                raise ValueError(reader.fieldnames)
            return [Measurement(**{k: numbers.get(k, str)(v) for k, v in row.items()}) for row in reader]
    except (TypeError, ValueError, csv.Error):
        raise DataError(f"{path}: not a file of `starseq bench`, so nothing is added to it") from None


def tables(path: Path) -> dict[str, str]:
    """Markdown tables from results.csv: "cpu" and "cuda", the cases; "scaling", what grows; "train", steps of training;
    "decode", reading and searching; "data", the tools for data."""
    rows = load(path)
    gpu = [row for row in rows if "NVIDIA" in row.device and _is_loss(row)]
    cpu = [row for row in rows if "NVIDIA" not in row.device and _is_loss(row)]
    growing = {case.name for case in SCALING}
    return {
        "bench": table([row for row in cpu + gpu if row.case not in growing and "-64" not in row.case], brief=True),
        "cpu": table(cpu),
        "cuda": table([row for row in gpu if row.case not in growing]),
        "scaling": table([row for row in gpu if row.case in growing]),
        "train": table([row for row in rows if _is_step(row)]),
        "decode": table([row for row in rows if row.case.startswith(DECODE)]),
        "data": table([r for r in rows if not (_is_loss(r) or _is_step(r) or r.case.startswith(DECODE))]),
    }


def table(rows: Sequence[Measurement], brief: bool = False) -> str:
    """Rows as Markdown: a line for each case and provider, the machine above; `brief` gives the ratios alone."""
    parts = []
    for machine in dict.fromkeys((row.device, row.torch, row.starseq) for row in rows):
        here = [row for row in rows if (row.device, row.torch, row.starseq) == machine]
        losses = [row for row in here if _is_loss(row)]
        steps = [row for row in here if _is_step(row)]
        others = [row for row in here if not _is_loss(row) and not _is_step(row)]
        lines = ["{}, torch {}, starseq {}:".format(*machine), ""]
        if losses:
            lines += _ratios(losses) if brief else _losses(losses)
        if steps:
            lines += ["", *_steps(steps)] if losses else _steps(steps)
        if others:
            lines += ["| what | of | measured |", "|---|---|---|"]
            lines += [f"| {row.case.removeprefix(DECODE)} | {row.shape} | {row.p50:.4g} {row.unit} |" for row in others]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "(not measured yet)"


def plot(path: Path, out: Path) -> None:
    """Draws how cost grows with frames and with the vocabulary, from results.csv, as SVG (the same bytes every time)."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    rows = [row for row in load(path) if row.metric == "time"]
    for place, (case, axis) in enumerate((("frames", 1), ("vocabulary", 2)), 1):
        axes = figure.add_subplot(1, 2, place)
        here = [row for row in rows if row.case == case]
        for provider in dict.fromkeys(row.provider for row in here):
            points = sorted((int(row.shape.split(", ")[axis]), row.p50) for row in here if row.provider == provider)
            axes.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=provider)
        axes.set_xlabel(
            {"frames": "frames (B = 8, V = 80, U = T / 5, at most 600)"}.get(
                case, "vocabulary (B = 8, T = 200, U = 25)"
            )
        )
        axes.set_ylabel("forward + backward, ms")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "starseq"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    write_text(out, text.getvalue())


def _is_loss(row: Measurement) -> bool:
    return row.provider.split(",")[0] in PROVIDERS and not _is_step(row)


def _is_step(row: Measurement) -> bool:
    """A row of `bench_train`."""
    return row.case.startswith(TRAIN)


def _standard_error(row: Measurement) -> float:
    """Of the median, as for normal noise: its deviation is (p80 - p20) / 1.683, and a median errs by 1.253 of a mean."""
    return 1.253 * (row.p80 - row.p20) / 1.683 / math.sqrt(row.runs)


def _with_error(ratio: Measurement) -> str:
    """Of a step, with its error, both to the second digit of that, but no further than files keep; else to four digits."""
    error = _standard_error(ratio)
    if not _is_step(ratio) or error == 0:
        return f"{ratio.p50:.4g}"
    decimals = min(4, max(2, 1 - math.floor(math.log10(error))))
    return f"{ratio.p50:.{decimals}f} ± {error:.{decimals}f}"


def _steps(rows: Sequence[Measurement]) -> list[str]:
    lines = [
        "| model | B, T, V, U | type | criterion | ms a step, median (20th to 80th percentile) "
        "| over the faster CTC, median ± standard error | utterances a second | peak memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {(row.case, row.shape, row.dtype, row.provider, row.metric): row for row in rows}
    for key in dict.fromkeys(key[:4] for key in found):
        spent, ratio, speed, memory = (found[(*key, metric)] for metric in ("time", "ratio", "speed", "memory"))
        times = f"{spent.p50:.4g} ({spent.p20:.4g} to {spent.p80:.4g})"
        over = _with_error(ratio) if ratio.p80 > ratio.p20 else f"{ratio.p50:.3f}"
        lines.append(f"| {' | '.join(key)} | {times} | {over} | {speed.p50:.4g} | {_mebibytes(memory)} |")
    return lines


def _losses(rows: Sequence[Measurement]) -> list[str]:
    lines = [
        "| case | B, T, V, U | type | what | ms, median (20th to 80th percentile) | over torch | peak memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {(row.case, row.shape, row.dtype, row.provider, row.metric): row for row in rows}
    for key in dict.fromkeys(key[:4] for key in found):
        spent, ratio, memory = (found[(*key, metric)] for metric in ("time", "ratio", "memory"))
        times = f"{spent.p50:.3g} ({spent.p20:.3g} to {spent.p80:.3g})"
        lines.append(f"| {' | '.join(key)} | {times} | {ratio.p50:.2f} | {_mebibytes(memory)} |")
    return lines


def _mebibytes(memory: Measurement) -> str:
    """Empty where it is not known: what is replayed takes no memory of its own when it runs."""
    if math.isnan(memory.p50):
        return ""
    return f"{memory.p50:.4g}" if memory.p50 < 10_000 else f"{memory.p50:,.0f}"


def _ratios(rows: Sequence[Measurement]) -> list[str]:
    ratios = {(row.case, row.provider): row for row in rows if row.metric == "ratio"}
    names = list(dict.fromkeys(case for case, _ in ratios))
    lines = ["| time over torch's | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for provider in dict.fromkeys(row.provider for row in rows if row.provider != BASELINE):
        lines.append(f"| {provider} | " + " | ".join(f"{ratios[name, provider].p50:.2f}" for name in names) + " |")
    return lines


def _measure(case: Case, device: str, seconds: float) -> list[Measurement]:
    generator = torch.Generator().manual_seed(0)
    logits = (
        torch.randn(case.T, case.B, case.V, generator=generator).to(device, getattr(torch, case.dtype)).requires_grad_()
    )
    targets = torch.randint(1, case.V, (case.B, case.U), generator=generator).to(device)
    lengths = (torch.full((case.B,), case.T, device=device), torch.full((case.B,), case.U, device=device))

    def once(provider: str) -> Tensor:
        logits.grad = None
        loss = PROVIDERS[provider](logits, targets, *lengths)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    losses = {provider: once(provider).item() for provider in PROVIDERS}
    if abs(losses["starseq ctc"] - losses[BASELINE]) > 1e-2 * abs(losses[BASELINE]):  # torch's bfloat16 is that coarse
        raise RuntimeError(f"{case.name}: our ctc is {losses['starseq ctc']}, torch's {losses[BASELINE]}: not timed")
    memory = {}
    for provider in PROVIDERS:
        logits.grad = None
        memory[provider] = _peak_memory(functools.partial(once, provider), device)
    runs: dict[str, Callable[[], object]] = {provider: functools.partial(once, provider) for provider in PROVIDERS}
    if device == "cuda":  # torch's own loss waits for the device, so it cannot be captured
        runs |= {f"{provider}, {REPLAYED}": _captured(runs[provider]) for provider in PROVIDERS if provider != BASELINE}
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while len(times[BASELINE]) < 5 or (time.perf_counter() < stop and len(times[BASELINE]) < 200):
        for name, run in runs.items():
            times[name] += _times(run, device)

    shared = (_machine(device), torch.__version__, starseq.__version__)
    rows = []
    base = _percentiles(times[BASELINE])[1]
    for provider, spent in times.items():
        what = (case.name, case.shape, case.dtype, provider)
        middle = _percentiles(spent)
        rows.append(Measurement(*what, "time", "ms", *middle, len(spent), *shared))
        low, half, high = (x / base for x in middle)
        rows.append(Measurement(*what, "ratio", "over torch", low, half, high, len(spent), *shared))
        rows.append(Measurement(*what, "memory", "MiB", *(memory.get(provider, math.nan),) * 3, 1, *shared))
    return rows


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph, to be replayed: what the device needs when nothing waits for Python.

    What cannot be captured raises RuntimeError, and leaves the device as it was.
    """
    before = torch.cuda.current_stream()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    before.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        # After a capture that broke, torch is still in its stream, and draws no random numbers outside of it.
        torch.cuda.set_stream(before)
        torch.cuda.default_generators[before.device_index].graphsafe_set_state(torch.Generator("cuda"))
        raise
    return graph.replay


def _times(run: Callable[[], object], device: str) -> list[float]:
    """Milliseconds of calls: on the CPU of one, on a GPU of each of ten in a row, as in training, by the device's clock."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return [(time.perf_counter() - start) * 1e3]
    marks = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(12)
    ]
    run()  # the queue is not empty when the first mark is passed
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks[1:], marks[2:], strict=False)]


def _peak_memory(run: Callable[[], object], device: str) -> float:
    """MiB in use at the peak of one call beyond what was in use before it; NaN where the system does not tell."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark starts anew
        before_kib = _status("VmRSS")
        run()
        return (_status("VmHWM") - before_kib) / 2**10
    except OSError:
        return float("nan")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _percentiles(values: list[float]) -> tuple[float, float, float]:
    quantiles = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))
    low, middle, high = quantiles.tolist()
    return low, middle, high


def _machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
