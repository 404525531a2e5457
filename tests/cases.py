"""What the tests of the losses share: the backends, one table of tolerances, ragged batches, and their truth.

Every batch is padded with poison, so that what reads the padding is found out: NaN frames, NaN penalties, labels that
are real but wrong in one row, absurd in the next, and blanks in the third.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tests import brute_force
from torch import Tensor

import starseq

BACKENDS = {"wfst": "cpu", "torch": "cpu", "numba": "cpu"}
"""Every backend and the device its tests run on. Add one here, and all tests below know it."""

FAST = {name: device for name, device in BACKENDS.items() if name != "wfst"}
"""The backends made of emissions/ and lattice/."""

CRITERIA = ("published_stc", "ctc", "selfless_ctc")
"""Those whose states are few: published STC keeps repeats."""

STARRED = ("published_stc", "stc")

TOLERANCES = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-11},
    torch.float32: {"rtol": 3e-6, "atol": 3e-6},
}
"""By the dtype of the logits, the same for losses, gradients and insertions, and for every backend."""

RUNGS = [
    pytest.param(backend, dtype, id=f"{backend}-{str(dtype).removeprefix('torch.')}")
    for backend in BACKENDS
    for dtype in TOLERANCES
]
"""The ladder below brute force, as parameters (backend, dtype)."""

POISON = 10**6  # as a label: outside of any vocabulary
HALF = torch.tensor(0.5).log().item()  # as float32 has it
CLOSED = -math.inf

few = settings(max_examples=40, deadline=None, derandomize=True)
"""For hypothesis: the same examples each run, no limit on the first call's compilation."""


class Result(NamedTuple):
    """Losses (B,), their gradients by the logits (T, B, V), and the insertions (B, U+1): all float64 on the CPU."""

    loss: Tensor
    grad: Tensor
    inserted: Tensor | None


@dataclass(frozen=True)
class Batch:
    """Ragged utterances in one padded batch. All numbers are float32 values: rounding is no part of an error."""

    logits: Tensor  # (T, B, V) float64
    targets: Tensor  # (B, U)
    input_lengths: Sequence[int]
    target_lengths: Sequence[int]
    penalty: Tensor  # (B, U+1) float64
    blank: int = 0
    normalized: bool = True

    def utterances(self) -> Iterator[tuple[list[list[float]], list[int], list[float]]]:
        """Frames (T, V), labels (U,) and penalties (U+1,) of each utterance, without the padding."""
        for b, (T, U) in enumerate(zip(self.input_lengths, self.target_lengths, strict=True)):
            yield self.logits[:T, b].tolist(), self.targets[b, :U].tolist(), self.penalty[b, : U + 1].tolist()

    def concatenated(self) -> Tensor:
        """The targets one after the other."""
        return torch.cat([self.targets[b, :U] for b, U in enumerate(self.target_lengths)])


def batch_of(
    logits: Any, targets: Sequence[Sequence[int]], penalties: Sequence[Sequence[float]] | float = HALF, *,
    extra: int = 1, **options: Any,
) -> Batch:  # fmt: skip
    """A batch of utterances [(T_b, V)], padded with poison by `extra` more frames and labels than any of them needs."""
    logits = [torch.as_tensor(x, dtype=torch.float64) for x in logits]
    frames, widths = [len(x) for x in logits], [len(y) for y in targets]
    T, U, V = max(frames, default=0) + extra, max(widths, default=0) + extra, logits[0].shape[1]
    padded = torch.full((T, len(logits), V), math.nan, dtype=torch.float64)
    labels = torch.full((len(logits), U), POISON)
    labels[::3] = (options.get("blank", 0) + 1) % V
    labels[2::3] = options.get("blank", 0)
    weights = torch.full((len(logits), U + 1), math.nan, dtype=torch.float64)
    for b, (x, y) in enumerate(zip(logits, targets, strict=True)):
        padded[: len(x), b] = x
        labels[b, : len(y)] = torch.tensor(y, dtype=torch.int64)
        weights[b, : len(y) + 1] = torch.tensor(penalties if isinstance(penalties, float) else penalties[b])
    return Batch(padded.float().double(), labels, frames, widths, weights.float().double(), **options)


def random_batch(
    T: int, B: int, V: int, U: int, *, seed: int = 0, spread: float = 1.0, blank: int = 0, **options: Any
) -> Batch:
    """Random utterances, the first of full length, the others shorter; open gaps, each with its own penalty."""
    random = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high + 1, shape, generator=random).tolist()

    widths = [U, *integers(U // 2, U, B - 1)]
    frames = [T, *(integers(min(T, 2 * width), T, 1)[0] for width in widths[1:])]
    tokens = [v for v in range(V) if v != blank]
    targets = [[tokens[i] for i in integers(0, V - 2, width)] for width in widths]
    logits = [spread * torch.randn(n, V, generator=random, dtype=torch.float64) for n in frames]
    penalties = [(-3 * torch.rand(width + 1, generator=random)).tolist() for width in widths]
    return batch_of(logits, targets, penalties, blank=blank, **options)


@st.composite
def batches(draw: st.DrawFn, longest: int = 6, most_alignments: int = 1100) -> Batch:
    """Ragged batches that brute force can still enumerate, with ties, repeats, closed gaps, spikes and holes."""
    V = draw(st.integers(2, 5))
    T = draw(st.integers(0, min(longest, int(math.log(most_alignments, V)))))
    blank = draw(st.integers(0, V - 1))
    token = st.integers(0, V - 1).filter(lambda v: v != blank)
    targets = draw(st.lists(st.lists(token, max_size=4), min_size=1, max_size=3))
    frames = [draw(st.integers(0, T)) for _ in targets]
    gap = st.sampled_from([0.0, -0.125, HALF, -3.0, CLOSED])
    penalties = [draw(st.lists(gap, min_size=len(y) + 1, max_size=len(y) + 1)) for y in targets]

    random = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    spread = draw(st.sampled_from([0.0, 1.0, 10.0]))
    logits = [spread * torch.randn(n, V, generator=random, dtype=torch.float64) for n in frames]
    for x in logits:
        if len(x) and draw(st.booleans()):
            t, v = draw(st.integers(0, len(x) - 1)), draw(st.integers(0, V - 1))
            x[t, v] = draw(st.sampled_from([-math.inf, 0.0, 40.0, 60.0]))
    return batch_of(
        logits, targets, penalties, extra=draw(st.integers(0, 2)), blank=blank,
        normalized=draw(st.booleans()),
    )  # fmt: skip


def run(
    criterion: str, batch: Batch, backend: str, dtype: torch.dtype = torch.float64, *, concatenate: bool = False
) -> Result:
    """The loss of every utterance, what backward gives, and for STC the insertions."""
    device = BACKENDS[backend]
    logits = batch.logits.to(device, dtype).requires_grad_()
    targets, penalty = batch.targets, batch.penalty
    if concatenate:
        targets, penalty = batch.concatenated(), penalty[:, : max(batch.target_lengths) + 1]
    star: dict[str, Any] = {}
    if criterion in STARRED:
        star = {"penalty": penalty.to(device, dtype), "return_inserted": True}
    loss = loss_of(criterion)(
        logits, targets.to(device), batch.input_lengths, batch.target_lengths, blank=batch.blank, reduction="none",
        backend=backend, normalized=batch.normalized, **star,
    )  # fmt: skip
    loss, inserted = loss if criterion in STARRED else (loss, None)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    if inserted is not None:
        inserted = torch.nn.functional.pad(inserted, (0, batch.penalty.shape[1] - inserted.shape[1])).cpu().double()
    return Result(loss.detach().cpu().double(), grad.cpu().double(), inserted)


def truth(criterion: str, batch: Batch) -> Result:
    """The same by brute force."""
    loss, inserted = [], torch.zeros_like(batch.penalty)
    grad = torch.zeros_like(batch.logits)
    for b, (frames, target, penalty) in enumerate(batch.utterances()):
        log_probs = brute_force.log_softmax(frames) if batch.normalized else frames
        star: dict[str, Any] = {}
        if criterion in STARRED:
            star = {"log_penalty": penalty, "merge_repeats": criterion == "stc"}
        result = getattr(brute_force, criterion.removeprefix("published_"))(
            log_probs, target, blank=batch.blank, **star
        )
        loss.append(result.loss)
        by_frame = result.grad_log_probs
        if batch.normalized:
            by_frame = brute_force.grad_logits(log_probs, by_frame)
        if frames:
            grad[: len(frames), b] = torch.tensor(by_frame, dtype=torch.float64)
        inserted[b, : len(target) + 1] = torch.tensor(result.inserted, dtype=torch.float64)
    return Result(torch.tensor(loss, dtype=torch.float64), grad, inserted if criterion in STARRED else None)


def assert_same(result: Result, expected: Result, dtype: torch.dtype = torch.float64) -> None:
    """All three parts within the tolerances of the dtype. Infinities must be the same; NaN is never right."""
    for name, ours, theirs in zip(Result._fields, result, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, **TOLERANCES[dtype], msg=lambda text, name=name: f"{name}: {text}")


def select(batch: Batch, b: int) -> Batch:
    """Utterance b alone, in its own padding."""
    return replace(
        batch, logits=batch.logits[:, b : b + 1], targets=batch.targets[b : b + 1], penalty=batch.penalty[b : b + 1],
        input_lengths=batch.input_lengths[b : b + 1], target_lengths=batch.target_lengths[b : b + 1],
    )  # fmt: skip


def loss_of(criterion: str) -> Any:
    """The public function of a criterion, those of stars with p = 0.5 unless another is given."""
    return {"stc": merged_loss, "published_stc": published_loss}.get(criterion) or getattr(starseq, f"{criterion}_loss")


def merged_loss(*arguments: Any, penalty: float | Tensor = math.log(0.5), **options: Any) -> Any:
    """stc_loss, at p = 0.5 unless another is given."""
    return starseq.stc_loss(*arguments, penalty=penalty, **options)


def published_loss(*arguments: Any, penalty: float | Tensor = math.log(0.5), **options: Any) -> Any:
    """Likewise, with kept repeats."""
    return starseq.stc_loss(*arguments, penalty=penalty, merge_repeats=False, **options)
