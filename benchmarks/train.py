"""`benchmarks/measure.py train`: what a step of training costs with STC, with our CTC and with torch's, on the same model and data.

A step is forward, loss, backward and the optimiser, on a made batch, under bfloat16 autocast on CUDA. The paper reports an epoch
with STC at 1.20 (words) and 1.25 (IAM) of CTC's.

The criteria take turns on one model, one step each, and rounds go through all orders, so that what disturbs one disturbs the others
and none always comes after the same one.
A ratio is the median over the rounds of a criterion's time over that of the faster CTC *in the same round*: a machine that is slow
for some rounds is slow for both, whereas it could move one of two medians. The faster CTC is the one of the lower median.

At the published size a fast GPU waits for Python: a step costs what its thousands of launches cost, whatever the loss. So on CUDA
there are two more kinds. Batches several times as large keep the device busy. And our steps of the published size are also
captured and replayed as CUDA graphs, by the device's clock: a ratio among them is over our captured CTC. torch's CTC waits for the
device, so it cannot be captured. The optimiser is part of the graph. For that Adam is `capturable`, in all rows.
Adagrad has no such switch and needs none: at a constant rate its step reads nothing back from the device, and depends on no
number of the host that changes. Dropout and layer drop are drawn on the device, anew at each replay.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import starseq
from starseq import models
from starseq.jobs import bench
from starseq.jobs.bench import Progress, _captured, _machine, _peak_memory, _percentiles
from starseq.jobs.bench_results import BASELINE, REPLAYED, Measurement
from starseq.models.letter_to_word import LETTERS

__all__ = ["CASES", "TrainCase", "bench_train"]

STEPS = 20
CAPTURES = 4
"""of each step: where the memory of a capture lies decides several thousandths of its time, for as long as it lives"""


@dataclass(frozen=True)
class TrainCase:
    """A model of `V` tokens, and batches of `B` utterances of `T` frames of `F` features with `U` labels."""

    name: str
    model: str
    B: int
    T: int
    F: int
    V: int
    U: int
    optimiser: type[torch.optim.Optimizer]
    settings: Mapping[str, object] = field(default_factory=dict)
    busy: bool = False
    """the batch is so large that the device, not Python, is what one waits for"""

    def times(self, factor: int) -> TrainCase:
        """The same with batches so many times as large."""
        return replace(self, name=f"{self.name}-x{factor}", B=self.B * factor, busy=True)

    @property
    def shape(self) -> str:
        return f"{self.B}, {self.T}, {self.V}, {self.U}"

    def tokens(self) -> list[str]:
        """V tokens, the blank first: for words that are spelled, words."""
        if self.V > 1000:
            spelled = ("".join(letters) for letters in itertools.product(LETTERS, repeat=4))
            return ["<blank>", *itertools.islice(spelled, self.V - 1)]
        return ["<blank>", *map(chr, range(0x100, 0x100 + self.V - 1))]


LOSSES = {name: bench.PROVIDERS[name] for name in (BASELINE, "starseq stc", "starseq ctc")}
PUBLISHED = (
    TrainCase("train-words", "transformer", 16, 1500, 80, 50_001, 40, torch.optim.Adagrad),  # 240 s of audio
    TrainCase("train-words-1536", "transformer", 16, 1500, 80, 50_001, 40, torch.optim.Adagrad, {"hidden": 1536}),
    TrainCase("train-iam", "gated_conv", 8, 600, 32, 80, 42, torch.optim.Adam),
)
CASES = (*PUBLISHED, *(case.times(factor) for case, factor in zip(PUBLISHED, (8, 8, 4), strict=True)))
SMALL = (
    replace(PUBLISHED[0], B=2, T=200, V=5001, U=5, settings={"layers": 2}),
    replace(PUBLISHED[1], B=2, T=200, V=5001, U=5, settings={"layers": 2, "hidden": 1536}),
    replace(PUBLISHED[2], B=2, T=80, U=10, settings={"width": 0.125, "layers": 4}),
)
"""What two CPU cores do in seconds: it shows that all of it runs, not what it costs."""


def bench_train(
    device: str = "cpu", cases: Iterable[str] = (), *, steps: int = STEPS, seconds: float = 0.0,
    note: Callable[[str], None] = lambda line: None, progress: Progress = lambda done, total: None,
) -> list[Measurement]:  # fmt: skip
    """A step's time, its ratio to that with the faster CTC, utterances a second and peak memory, for each case and criterion.

    On CUDA under bfloat16 autocast, at the published sizes and with larger batches, and then the published ones as CUDA graphs; on
    the CPU in float32, and small. `steps` of each are timed at least, and more while the `seconds` of a case are not over. Where
    memory does not suffice, or a capture fails, `note` is told so in one line, and these rows are missing.
    An unknown case raises ValueError.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: this machine has no CUDA device")
    known, chosen = CASES if device == "cuda" else SMALL, list(cases)
    for name in chosen:
        if name not in {case.name for case in known}:
            raise ValueError(f"--case: {name!r} is none of {', '.join(case.name for case in known)}")
    todo = [case for case in known if not chosen or case.name in chosen]
    work: list[tuple[Callable[..., list[Measurement]], TrainCase]] = [
        (functools.partial(_from_python, note=note), case) for case in todo
    ]
    if device == "cuda":  # last: a broken capture may spoil what comes after it
        work += [(functools.partial(_replayed, note=note), case) for case in todo if not case.busy]
    rows: dict[str, list[Measurement]] = {case.name: [] for case in todo}
    runs: dict[str, dict[str, Callable[[], Tensor]]] = {}
    for done, (measure, case) in enumerate(work):
        progress(done, len(work))
        if case.name not in runs:
            runs[case.name] = _steps(case, device)
        rows[case.name] += measure(case, runs[case.name], device, steps, seconds)
        if case.busy:  # it is not captured later
            del runs[case.name]
    progress(len(work), len(work))
    return [row for found in rows.values() for row in found]


def _from_python(
    case: TrainCase, runs: Mapping[str, Callable[[], Tensor]], device: str, steps: int, seconds: float, *,
    note: Callable[[str], None],
) -> list[Measurement]:  # fmt: skip
    """The rows of steps that Python launches; none of them, and a note, where they do not fit."""
    try:
        with warnings.catch_warnings():  # once, of an optimiser that could be captured and is not: it will be
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
            for run in runs.values():
                run()  # compiles what is to be compiled, and makes the optimiser's state
        memory = {name: _peak_memory(run, device) for name, run in runs.items()}
        times = _turns(runs, functools.partial(_call_ms, device=device), steps, seconds)
    except torch.OutOfMemoryError:
        note(f"{case.name}: not measured, for the device's memory does not suffice")
        return []
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()
    return _rows(case, device, times, memory)


def _replayed(
    case: TrainCase, runs: Mapping[str, Callable[[], Tensor]], device: str, steps: int, seconds: float, *,
    note: Callable[[str], None],
) -> list[Measurement]:  # fmt: skip
    """The rows of steps as CUDA graphs; none of them, and a note, where one cannot be captured.

    Each is captured `CAPTURES` times, or, with a note, as often as it fits, which of them first in turns; all captures live to
    the end, so that they lie apart. A ratio errs as so few captures do, however many rounds there are.
    """
    ours = {f"{name}, {REPLAYED}": run for name, run in runs.items() if name != BASELINE}
    times: dict[str, list[float]] = {name: [] for name in ours}
    captures: list[dict[str, Callable[[], object]]] = []
    try:
        for i in range(CAPTURES):
            order = list(ours) if i % 2 == 0 else list(ours)[::-1]
            try:
                captures.append({name: _replay(ours[name], device) for name in order})
            except RuntimeError as error:
                # Of memory, too: what breaks inside a capture is raised once more at its end, as another error.
                if not captures:
                    raise
                note(f"{case.name}: captured {i} times, not {CAPTURES}: {_why(error)}")
                break
            for name, spent in _turns(captures[-1], _replay_ms, -(-steps // CAPTURES), seconds / CAPTURES).items():
                times[name] += spent
        return _rows(case, device, times, {}, independent=len(captures))
    except RuntimeError as error:
        note(f"{case.name}: not measured as a {REPLAYED}: {_why(error)}")
        return []


def _replay(run: Callable[[], Tensor], device: str) -> Callable[[], object]:
    """A step as a CUDA graph. One that does not compute what the step computes raises RuntimeError."""
    expected, loss = run().item(), torch.zeros((), device=device)
    replay = _captured(lambda: loss.copy_(run()))
    replay()
    if not abs(loss.item() - expected) <= 0.1 * abs(expected):  # dropout alone moves it by less
        raise RuntimeError(f"the loss is {loss.item():.4g} when replayed, {expected:.4g} otherwise")
    return replay


def _why(error: BaseException) -> str:
    """One line: what came first and where. A capture that breaks raises once more at its end, without a reason."""
    while error.__context__ is not None:
        error = error.__context__
    place = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{lines[0]} ({Path(place.filename).name}, line {place.lineno})"


def _turns(
    runs: Mapping[str, Callable[[], object]], clock: Callable[[Callable[[], object]], float], rounds: int,
    seconds: float = 0.0,
) -> dict[str, list[float]]:  # fmt: skip
    """What the clock says of each run in each round. Rounds go through all orders: one run may slow down the next.

    There are `rounds`, and more until `seconds` are over.

    Python collects its garbage between rounds only: in between it would do so every so many steps, which may always be the same
    criterion's.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    orders = itertools.cycle(itertools.permutations(runs))
    was_on = gc.isenabled()
    gc.disable()
    try:
        began = time.perf_counter()
        for done in itertools.count():
            if done >= rounds and time.perf_counter() - began >= seconds:
                break
            gc.collect()
            for name in next(orders):
                times[name].append(clock(runs[name]))
    finally:
        if was_on:
            gc.enable()
    return times


def _call_ms(run: Callable[[], object], device: str) -> float:
    """Milliseconds of a call, from an idle device to an idle device: nobody pays for what the one before left in the queue."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def _replay_ms(replay: Callable[[], object]) -> float:
    """Milliseconds of a replay by the device's clock. It is launched behind another one, so that the launch costs nothing."""
    start, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    replay()
    start.record()
    replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _rows(
    case: TrainCase, device: str, times: Mapping[str, list[float]], memory: Mapping[str, float], independent: int = 0
) -> list[Measurement]:
    """Four rows for each run, from its times in rounds that they have in common; memory is NaN where it is not known.

    `independent`: how many of the rounds tell something new; 0: all.
    """
    shared = (_machine(device), torch.__version__, starseq.__version__)
    dtype = "bfloat16" if device == "cuda" else "float32"
    middles = {name: _percentiles(spent) for name, spent in times.items()}
    base = min((name for name in times if name.split(",")[0].endswith("ctc")), key=lambda name: middles[name][1])
    rows = []
    for name, (low, half, high) in middles.items():
        what, count = (case.name, case.shape, dtype, name), independent or len(times[name])
        ratios = _percentiles([mine / its for mine, its in zip(times[name], times[base], strict=True)])
        speeds = (case.B / high * 1e3, case.B / half * 1e3, case.B / low * 1e3)
        rows.append(Measurement(*what, "time", "ms", low, half, high, count, *shared))
        rows.append(Measurement(*what, "ratio", "over the faster CTC", *ratios, count, *shared))
        rows.append(Measurement(*what, "speed", "utterances a second", *speeds, count, *shared))
        rows.append(Measurement(*what, "memory", "MiB", *(memory.get(name, math.nan),) * 3, 1, *shared))
    return rows


def _steps(case: TrainCase, device: str) -> dict[str, Callable[[], Tensor]]:
    """A step with each criterion, of one and the same model."""
    torch.manual_seed(0)
    model = models.load(case.model)(case.F, case.tokens(), **case.settings).to(device).train()
    # So slow that the last criterion finds the model that the first one found: at 1e-6 the loss fell by a tenth in two steps.
    options = {"capturable": True} if device == "cuda" and case.optimiser is torch.optim.Adam else {}
    optimiser = case.optimiser(model.parameters(), lr=1e-9, **options)  # type: ignore[arg-type, call-arg]
    x = torch.randn(case.B, case.T, case.F, device=device)
    targets = torch.randint(1, case.V, (case.B, case.U), device=device)
    lengths, labels = torch.full((case.B,), case.T, device=device), torch.full((case.B,), case.U, device=device)

    def step(name: str) -> Tensor:
        # A weight is cast once a step either way, and a graph must not find one that was cast before it.
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False):
            logits, frames = model(x, lengths)
        loss = LOSSES[name](logits.transpose(0, 1), targets, frames, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()  # to None: a graph makes its gradients itself, in its own memory
        return loss.detach()

    return {name: functools.partial(step, name) for name in LOSSES}
