"""This machine: our losses against log_softmax + torch's ctc_loss, forward and backward from logits, side by side in one run."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import starseq
from starseq.jobs.bench_results import BASELINE, REPLAYED, Measurement
from starseq.penalty import LOOKS

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
        Case("pieces", 8, 200, 1000, 20),
        Case("words", 4, 190, 50001, 25),
    ),
    "cuda": (
        Case("iam", 8, 150, 80, 22),
        Case("letters", 16, 500, 29, 150),
        Case("pieces", 16, 250, 1000, 60),
        Case("words", 16, 190, 50001, 25),
        Case("words-bf16", 16, 190, 50001, 25, "bfloat16"),
        Case("iam-64", 64, 150, 80, 22),
        Case("letters-64", 64, 500, 29, 150),
        Case("words-64", 64, 190, 50001, 25),
        Case("words-64-bf16", 64, 190, 50001, 25, "bfloat16"),
    ),
}
MODULE = "starseq STCLoss()"
"""The module as it comes, which looks at one call in so many: as many are timed together."""


def _torch_ctc(logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    # ctc_loss has no half precision; autocast widens in the log_softmax as well.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.nn.functional.ctc_loss(logits.log_softmax(2, dtype=dtype), targets, input_lengths, target_lengths)


def _stc(logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, merge_repeats: bool) -> Tensor:
    loss: Tensor = starseq.stc_loss(
        logits, targets, input_lengths, target_lengths, penalty=math.log(0.5), merge_repeats=merge_repeats
    )
    return loss


PROVIDERS: dict[str, Provider] = {
    BASELINE: _torch_ctc,
    "starseq ctc": starseq.ctc_loss,
    "starseq stc": functools.partial(_stc, merge_repeats=True),
    "starseq published stc": functools.partial(_stc, merge_repeats=False),
}


def _peers(targets: Tensor, lengths: tuple[Tensor, Tensor]) -> Iterator[tuple[str, Provider]]:
    """Other CTCs for GPUs, each with what it wants its arguments to be: cuDNN's on the GPU and on the CPU, FlagGems'."""
    labels, frames, sizes = (x.to(torch.int32) for x in (targets.reshape(-1), *lengths))

    def mean(each: Tensor) -> Tensor:
        return (each / lengths[1]).mean()

    def on_gpu(logits: Tensor, *unused: Tensor) -> Tensor:
        log_probs = logits.log_softmax(2, dtype=torch.float32)
        return mean(torch._cudnn_ctc_loss(log_probs, labels, frames, sizes, 0, False, False)[0])

    def on_cpu(logits: Tensor, *unused: Tensor) -> Tensor:
        log_probs = logits.log_softmax(2, dtype=torch.float32)
        return mean(torch._cudnn_ctc_loss(log_probs, labels_there, frames_there, sizes_there, 0, False, False)[0])

    def flaggems(logits: Tensor, *others: Tensor) -> Tensor:
        loss: Tensor = flag_gems.ctc_loss(logits.log_softmax(2, dtype=torch.float32), *others)
        return loss

    yield "cudnn ctc", on_gpu
    labels_there, frames_there, sizes_there = labels.cpu(), frames.tolist(), sizes.tolist()
    yield "cudnn ctc", on_cpu
    if importlib.util.find_spec("flag_gems") is not None:
        flag_gems = importlib.import_module("flag_gems")
        yield f"flaggems {importlib.metadata.version('flag_gems')} ctc", flaggems


def bench(
    device: str = "cpu", cases: Iterable[str] = (), *, seconds: float = 8.0,
    progress: Progress = lambda done, total: None,
) -> list[Measurement]:  # fmt: skip
    """Times and peak memory of every provider at every case (by name; by default all of the device's)."""
    known = CASES[device]
    chosen = list(cases)
    for name in chosen:
        if name not in {case.name for case in known}:
            raise ValueError(f"--case: {name!r} is none of {', '.join(case.name for case in known)}")
    return measure([case for case in known if not chosen or case.name in chosen], device, seconds, progress)


def measure(
    cases: Iterable[Case], device: str, seconds: float, progress: Progress = lambda done, total: None
) -> list[Measurement]:
    """Times and peak memory of every provider at every case.

    Providers take turns within a case, so that what disturbs one disturbs the others. A result of ours that disagrees with
    torch's raises before anything is timed; a peer that does, or cannot do a case, is left out.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: this machine has no CUDA device")
    rows: list[Measurement] = []
    todo = list(cases)
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

    def once(loss_of: Provider) -> Tensor:
        logits.grad = None
        loss = loss_of(logits, targets, *lengths)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def several(loss_of: Provider) -> None:
        for _ in range(LOOKS):
            once(loss_of)

    runs: dict[str, Callable[[], object]] = {name: functools.partial(once, of) for name, of in PROVIDERS.items()}
    expected = once(_torch_ctc).item()
    ours = once(starseq.ctc_loss).item()
    if not _agree(ours, expected):
        raise RuntimeError(f"{case.name}: our ctc is {ours}, torch's {expected}: not timed")
    if device == "cuda":
        for name, peer in _peers(targets, lengths):
            with suppress(RuntimeError, NotImplementedError):
                if name not in runs and _agree(once(peer).item(), expected):
                    runs[name] = functools.partial(once, peer)
    runs[MODULE] = functools.partial(several, starseq.STCLoss())
    memory = {}
    for name, run in runs.items():
        run()
        logits.grad = None
        memory[name] = _peak_memory(run, device)
    if device == "cuda":  # torch's own loss waits for the device, so it cannot be captured
        runs |= {f"{name}, {REPLAYED}": _captured(runs[name]) for name in (*list(PROVIDERS)[1:], MODULE)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while len(times[BASELINE]) < 5 or (time.perf_counter() < stop and len(times[BASELINE]) < 200):
        for name, run in runs.items():
            calls = LOOKS if name.startswith(MODULE) else 1
            times[name] += [spent / calls for spent in _times(run, device)]
    return _rows(case, device, times, memory)


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-2 * abs(other)  # torch's bfloat16 is that coarse


def _rows(case: Case, device: str, times: dict[str, list[float]], memory: dict[str, float]) -> list[Measurement]:
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
