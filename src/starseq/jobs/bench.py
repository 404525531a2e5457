"""This machine: our losses against log_softmax + torch's ctc_loss, forward and backward from logits, side by side in one run."""

from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import starseq
from starseq.jobs.bench_results import BASELINE, GROWING, LOSSES, REPLAYED, Measurement

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
    *(Case(GROWING[0], 8, T, 80, min(T // 5, 600)) for T in (100, 200, 500, 1000, 2000, 4000, 8000)),
    *(Case(GROWING[1], 8, 200, V, 25) for V in (100, 300, 1000, 3000, 10000, 30000, 100000, 200000)),
)
"""How cost grows: with the frames, and with the vocabulary."""


def _torch_ctc(logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    # ctc_loss has no half precision; autocast widens in the log_softmax as well.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.nn.functional.ctc_loss(logits.log_softmax(2, dtype=dtype), targets, input_lengths, target_lengths)


def _stc(logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """As published."""
    loss: Tensor = starseq.stc_loss(
        logits, targets, input_lengths, target_lengths, penalty=math.log(0.5), merge_repeats=False
    )
    return loss


PROVIDERS: dict[str, Provider] = dict(zip(LOSSES, (_torch_ctc, _stc, starseq.ctc_loss), strict=True))


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
