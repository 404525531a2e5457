"""`starseq bench --train`: what a step of training costs with STC, with our CTC and with torch's, on the same model and data.

A step is forward, loss, backward and the optimiser, on a made batch of the published size. The criteria take turns on one model,
so that what disturbs one disturbs the others. The paper reports an epoch with STC at 1.20 (words) and 1.25 (IAM) of CTC's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

import starseq
from starseq import models
from starseq.jobs.bench import (
    BASELINE,
    PROVIDERS,
    Measurement,
    Progress,
    _peak_memory,
    _percentiles,
    _processor,
    _times,
)
from starseq.models.letter_to_word import LETTERS

__all__ = ["CASES", "TrainCase", "bench_train"]

STEPS = 20


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

    @property
    def shape(self) -> str:
        return f"{self.B}, {self.T}, {self.V}, {self.U}"

    def tokens(self) -> list[str]:
        """V tokens, the blank first: for words that are spelled, words."""
        if self.V > 1000:
            spelled = ("".join(letters) for letters in itertools.product(LETTERS, repeat=4))
            return ["<blank>", *itertools.islice(spelled, self.V - 1)]
        return ["<blank>", *map(chr, range(0x100, 0x100 + self.V - 1))]


CASES = (
    TrainCase("train-words", "transformer", 16, 1500, 80, 50_001, 40, torch.optim.Adagrad),  # 240 s of audio
    TrainCase("train-words-1536", "transformer", 16, 1500, 80, 50_001, 40, torch.optim.Adagrad, {"hidden": 1536}),
    TrainCase("train-iam", "gated_conv", 8, 600, 32, 80, 42, torch.optim.Adam),
)
SMALL = (
    replace(CASES[0], B=2, T=200, V=5001, U=5, settings={"layers": 2}),
    replace(CASES[1], B=2, T=200, V=5001, U=5, settings={"layers": 2, "hidden": 1536}),
    replace(CASES[2], B=2, T=80, U=10, settings={"width": 0.125, "layers": 4}),
)
"""What two CPU cores do in seconds: it shows that all of it runs, not what it costs."""


def bench_train(
    device: str = "cpu", cases: Iterable[str] = (), *, steps: int = STEPS, progress: Progress = lambda done, total: None
) -> list[Measurement]:
    """A step's time, its ratio to that with the faster CTC, utterances a second and peak memory, for each case and criterion.

    On CUDA under bfloat16 autocast, at the published sizes; on the CPU in float32, and small. `steps` is how many of each are
    timed. An unknown case raises ValueError.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: this machine has no CUDA device")
    known, chosen = CASES if device == "cuda" else SMALL, list(cases)
    for name in chosen:
        if name not in {case.name for case in known}:
            raise ValueError(f"--case: {name!r} is none of {', '.join(case.name for case in known)}")
    todo = [case for case in known if not chosen or case.name in chosen]
    rows: list[Measurement] = []
    for done, case in enumerate(todo):
        progress(done, len(todo))
        rows += _measure(case, device, steps)
        if device == "cuda":
            torch.cuda.empty_cache()
    progress(len(todo), len(todo))
    return rows


def _measure(case: TrainCase, device: str, steps: int) -> list[Measurement]:
    runs = _steps(case, device)
    for run in runs.values():
        run()  # compiles what is to be compiled, and makes the optimiser's state
    memory = {name: _peak_memory(run, device) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    while len(times[BASELINE]) < steps:
        for name, run in runs.items():
            times[name] += _times(run, device)

    machine = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} threads"
    shared = (machine, torch.__version__, starseq.__version__)
    dtype = "bfloat16" if device == "cuda" else "float32"
    middles = {name: _percentiles(spent) for name, spent in times.items()}
    base = min(middle[1] for name, middle in middles.items() if name.endswith("ctc"))
    rows = []
    for name, (low, half, high) in middles.items():
        what, count = (case.name, case.shape, dtype, name), len(times[name])
        ratios = (low / base, half / base, high / base)
        speeds = (case.B / high * 1e3, case.B / half * 1e3, case.B / low * 1e3)
        rows.append(Measurement(*what, "time", "ms", low, half, high, count, *shared))
        rows.append(Measurement(*what, "ratio", "over the faster CTC", *ratios, count, *shared))
        rows.append(Measurement(*what, "speed", "utterances a second", *speeds, count, *shared))
        rows.append(Measurement(*what, "memory", "MiB", *(memory[name],) * 3, 1, *shared))
    return rows


def _steps(case: TrainCase, device: str) -> dict[str, Callable[[], Tensor]]:
    """A step with each criterion, of one and the same model."""
    torch.manual_seed(0)
    model = models.load(case.model)(case.F, case.tokens(), **case.settings).to(device).train()
    # So slow that the last criterion finds about the model that the first one found.
    optimiser = case.optimiser(model.parameters(), lr=1e-6)  # type: ignore[call-arg]
    x = torch.randn(case.B, case.T, case.F, device=device)
    targets = torch.randint(1, case.V, (case.B, case.U), device=device)
    lengths, labels = torch.full((case.B,), case.T, device=device), torch.full((case.B,), case.U, device=device)

    def step(name: str) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits, frames = model(x, lengths)
        loss = PROVIDERS[name](logits.transpose(0, 1), targets, frames, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    return {name: functools.partial(step, name) for name in PROVIDERS}
