"""This machine: our losses against log_softmax + torch's ctc_loss, forward and backward from logits, side by side in one run."""

from __future__ import annotations

import csv
import io
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

import starseq
from starseq.data.files import write_text

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
    return torch.nn.functional.ctc_loss(logits.log_softmax(2), targets, input_lengths, target_lengths)


BASELINE = "torch ctc"
PROVIDERS: dict[str, Provider] = {BASELINE: _torch_ctc, "starseq stc": starseq.stc_loss, "starseq ctc": starseq.ctc_loss}


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


def check(rows: Sequence[Measurement], targets: Path) -> list[str]:
    """One sentence for each ratio above its target; targets.csv has the columns device, case, provider, ratio."""
    kind = "cuda" if any("NVIDIA" in row.device for row in rows) else "cpu"
    ratios = {(row.case, row.provider): row.p50 for row in rows if row.metric == "ratio"}
    failures = []
    with targets.open(newline="") as file:
        for target in csv.DictReader(file):
            found = ratios.get((target["case"], target["provider"]))
            if target["device"] == kind and found is not None and found > float(target["ratio"]):
                failures.append(f"{target['case']}, {target['provider']}: ratio {found:.2f} is above {target['ratio']}")
    return failures


def save(rows: Sequence[Measurement], path: Path) -> None:
    """Adds rows to a CSV file; measurements of the same case, provider, metric and device replace the older ones."""
    def key(row: Measurement) -> tuple[str, ...]:
        return (row.case, row.shape, row.dtype, row.provider, row.metric, row.device)

    fresh = {key(row) for row in rows}
    kept = [row for row in (load(path) if path.exists() else []) if key(row) not in fresh]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Measurement)], lineterminator="\n")
    writer.writeheader()
    for row in [*kept, *rows]:
        writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text(path, text.getvalue())


def load(path: Path) -> list[Measurement]:
    with path.open(newline="") as file:
        numbers = {"p20": float, "p50": float, "p80": float, "runs": int}
        return [Measurement(**{k: numbers.get(k, str)(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def tables(path: Path) -> dict[str, str]:
    """Markdown tables from results.csv: "cpu" and "cuda", the cases; "scaling", what grows."""
    rows = load(path)
    result = {}
    for kind in ("cpu", "cuda"):
        here = [row for row in rows if ("NVIDIA" in row.device) == (kind == "cuda")]
        result[kind] = _table([row for row in here if row.case not in {case.name for case in SCALING}])
        if kind == "cuda":
            result["scaling"] = _table([row for row in here if row.case in {case.name for case in SCALING}])
    return result


def _table(rows: Sequence[Measurement]) -> str:
    if not rows:
        return "(not measured yet)"
    lines = [
        f"{rows[0].device}, torch {rows[0].torch}, starseq {rows[0].starseq}. Medians, with the 20th and 80th percentile.",
        "",
        "| case | B, T, V, U | type | what | time, ms | over torch | peak memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {(row.case, row.shape, row.dtype, row.provider, row.metric): row for row in rows}
    for case, shape, dtype, provider in dict.fromkeys(key[:4] for key in found):
        spent = found[case, shape, dtype, provider, "time"]
        ratio = found[case, shape, dtype, provider, "ratio"]
        memory = found[case, shape, dtype, provider, "memory"]
        lines.append(
            f"| {case} | {shape} | {dtype} | {provider} | {spent.p50:.3g} ({spent.p20:.3g} to {spent.p80:.3g}) "
            f"| {ratio.p50:.2f} | {memory.p50:.4g} |"
        )
    return "\n".join(lines)


def _measure(case: Case, device: str, seconds: float) -> list[Measurement]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(case.T, case.B, case.V, generator=generator).to(device, getattr(torch, case.dtype)).requires_grad_()
    targets = torch.randint(1, case.V, (case.B, case.U), generator=generator).to(device)
    lengths = (torch.full((case.B,), case.T, device=device), torch.full((case.B,), case.U, device=device))

    def once(provider: str) -> Tensor:
        logits.grad = None
        loss = PROVIDERS[provider](logits, targets, *lengths)
        loss.backward()
        return loss.detach()

    losses = {provider: once(provider).item() for provider in PROVIDERS}
    if abs(losses["starseq ctc"] - losses[BASELINE]) > 1e-2 * abs(losses[BASELINE]):  # torch's bfloat16 is that coarse
        raise RuntimeError(f"{case.name}: our ctc is {losses['starseq ctc']}, torch's {losses[BASELINE]}: not timed")
    memory = {provider: _peak_memory(lambda p=provider: once(p), device) for provider in PROVIDERS}  # type: ignore[misc]
    times: dict[str, list[float]] = {provider: [] for provider in PROVIDERS}
    stop = time.perf_counter() + seconds
    while len(times[BASELINE]) < 5 or (time.perf_counter() < stop and len(times[BASELINE]) < 200):
        for provider in PROVIDERS:
            times[provider].append(_time(lambda p=provider: once(p), device))  # type: ignore[misc]

    name = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} threads"
    shared = (name, torch.__version__, starseq.__version__)
    rows = []
    base = _percentiles(times[BASELINE])[1]
    for provider, spent in times.items():
        what = (case.name, case.shape, case.dtype, provider)
        middle = _percentiles(spent)
        rows.append(Measurement(*what, "time", "ms", *middle, len(spent), *shared))
        rows.append(Measurement(*what, "ratio", "over torch", *(x / base for x in middle), len(spent), *shared))
        rows.append(Measurement(*what, "memory", "MiB", *(memory[provider],) * 3, 1, *shared))
    return rows


def _time(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one call, until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
