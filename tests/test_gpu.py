"""The Triton backend on a real GPU: what the interpreter cannot show. benchmarks/gpu.sh runs these; elsewhere they are skipped.

Truth is float64 on the CPU (numba), from the same rounded logits.

Compiling takes nearly all of the time: a kernel is compiled anew for each type, and for each power of two over V and over
the states. So tests share SHORT and LONG, and what is no matter of the type is tested in float32 alone.
"""

from __future__ import annotations

import math

import pytest
import torch
from tests.cases import CRITERIA, loss_of, merged_loss, published_loss
from torch import Tensor

import starseq
from starseq.lattice import banded_torch
from starseq.lattice.topology import Topology
from starseq.penalty import look_torch

look_triton = pytest.importorskip("starseq.penalty.look_triton", exc_type=ImportError)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LOSSES = {name: loss_of(name) for name in CRITERIA}
ALL = {**LOSSES, "stc": merged_loss}  # the last is for few tokens and labels
# T, V, U: every token is looked at; those of the graph alone, in rows that are read in pieces; the same with several warps a row.
SHORT, LONG, VERY_LONG = (63, 81, 20), (63, 3_000, 40), (63, 50_001, 25)
ODD = [
    (1, 7, 0),
    (1, 7, 1),
    (63, 7, 1),
    (33, 1_024, 5),
    (33, 1_025, 5),
    (63, 300, 200),
    (163, 50_001, 150),
    (4_000, 81, 600),
]
VALUES = [
    *((name, shape, torch.float32) for name in ("published_stc", "ctc") for shape in (SHORT, LONG, VERY_LONG, *ODD)),
    *(("selfless_ctc", shape, torch.float32) for shape in (SHORT, VERY_LONG, (63, 7, 1), (33, 1_025, 5))),
    *((name, shape, dtype) for name in ("published_stc", "ctc") for shape in (SHORT, LONG, VERY_LONG)
      for dtype in (torch.float64, torch.bfloat16)),
    *((name, (63, 50_001, 63), torch.bfloat16) for name in ("published_stc", "ctc")),  # the widest blocks are of 16 bits
    *(("published_stc", shape, torch.float16) for shape in (SHORT, VERY_LONG)),
]  # fmt: skip
# Of the loss, relative; of the gradient, absolute: rounding to the logits' type comes on top.
TOLERANCE = {
    torch.float64: (1e-12, 1e-9),
    torch.float32: (1e-6, 1e-4),
    torch.bfloat16: (1e-6, 5e-3),
    torch.float16: (1e-6, 1e-3),
}


def batch(T: int, V: int, U: int, B: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """(T, B, V) logits with NaN past the lengths, padded targets with absurd labels past theirs, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(T, B, V, generator=generator)).to(dtype)
    targets = torch.randint(1, V, (B, U), generator=generator)
    if U > 3:
        targets[:, 2] = targets[:, 1]
    input_lengths = torch.randint(T // 2, T + 1, (B,), generator=generator)
    target_lengths = torch.randint(0, U + 1, (B,), generator=generator)
    input_lengths[0], target_lengths[0] = T, U
    for b in range(B):
        logits[input_lengths[b] :, b] = math.nan
        targets[b, target_lengths[b] :] = 10**9
    return logits, targets, input_lengths, target_lengths


def run(loss, logits: Tensor, *others: Tensor, **options) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    losses = loss(logits, *others, reduction="none", **options)
    (grad,) = torch.autograd.grad(losses.masked_fill(losses == math.inf, 0).sum(), logits)
    return losses.detach(), grad


@pytest.fixture
def poison():
    """Fresh memory is filled with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (shape, torch.float32)
        for shape in ((1, 7, 0), (63, 7, 1), SHORT, LONG, VERY_LONG, (300, 81, 100), (40, 300, 150))
    ]
    + [(SHORT, torch.float64), (LONG, torch.float64), (LONG, torch.bfloat16), (VERY_LONG, torch.bfloat16)],
    ids=str,
)
def test_lasting(shape: tuple[int, int, int], dtype: torch.dtype, poison) -> None:
    """Its gaps remember the token that stands: all tokens, or those that are alive; rows of them in one tile and in many."""
    arrays = batch(*shape, dtype=dtype)
    truth, slope = run(merged_loss, arrays[0].double(), *arrays[1:])
    ours, grad = run(merged_loss, *(x.cuda() for x in arrays))
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(ours.double().cpu(), truth, rtol=10 * relative, atol=relative)
    torch.testing.assert_close(
        grad.double().cpu(), slope, rtol=0, atol=min(absolute, 1e-5 if dtype == torch.float32 else 1)
    )


@pytest.mark.parametrize("spare", [32, 1], ids=["in registers", "in memory"])
@pytest.mark.parametrize("penalty", [0.5, 0.9, 0.1])
@pytest.mark.parametrize("kind", ["flat", "half trained", "trained"])
@pytest.mark.parametrize("V", [250, 401, 1_000, 5_001])
def test_dead_tokens(V: int, kind: str, penalty: float, spare: int, poison, monkeypatch) -> None:
    """The loss within 1e-5 relative, every entry of the gradient within 1e-5; also where more tokens are alive than slots fit."""
    from tests.op.test_lasting_numba import outputs

    from starseq.op import lasting_triton

    monkeypatch.setattr(lasting_triton, "_SPARE", spare)
    logits, (_, targets, *lengths) = outputs(kind, 70, V), batch(70, V, 6, B=3)
    truth, slope = run(merged_loss, logits.double(), targets, *lengths, penalty=math.log(penalty))
    ours, grad = run(merged_loss, *(x.cuda() for x in (logits, targets, *lengths)), penalty=math.log(penalty))
    torch.testing.assert_close(ours.double().cpu(), truth, rtol=1e-5, atol=0)
    torch.testing.assert_close(grad.double().cpu(), slope, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "shape", "dtype"), VALUES, ids=str)
def test_value_and_gradient(name: str, shape: tuple[int, int, int], dtype: torch.dtype, poison) -> None:
    arrays = batch(*shape, dtype=dtype)
    truth, slope = run(LOSSES[name], arrays[0].double(), *arrays[1:])
    losses, grad = run(LOSSES[name], *(x.cuda() for x in arrays))
    assert grad.dtype == dtype
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(losses.cpu().double(), truth, rtol=relative, atol=relative)
    torch.testing.assert_close(grad.cpu().double(), slope, rtol=0, atol=absolute)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [(published_loss, SHORT), (published_loss, LONG), (merged_loss, SHORT), (merged_loss, (63, 700, 25))],
    ids=lambda x: x.__name__ if callable(x) else str(x),
)
def test_gaps_insertions_and_penalty(loss, shape: tuple[int, int, int], poison) -> None:
    arrays = batch(*shape)
    penalty = -3 * torch.rand(5, shape[2] + 1, generator=torch.Generator().manual_seed(1))
    penalty[torch.rand(penalty.shape, generator=torch.Generator().manual_seed(2)) < 0.3] = -math.inf
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        logits = arrays[0].to(device, dtype).requires_grad_()
        weights = penalty.to(device, dtype).requires_grad_()
        losses, inserted = loss(
            logits, *(x.to(device) for x in arrays[1:]), penalty=weights, reduction="none",
            return_inserted=True,
        )  # fmt: skip
        losses.masked_fill(losses == math.inf, 0).sum().backward()
        results.append([x.detach().cpu().double() for x in (losses, inserted, logits.grad, weights.grad)])
    for ours, truth in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("layout", "V", "U", "normalized"),
    [("batch first", 81, 20, True), ("batch first", 81, 20, False), ("batch first", 3_000, 40, False),
     ("every other", 81, 20, True),
     ("every other", 3_000, 40, True), ("vocabulary first", 81, 20, True), ("vocabulary first", 3_000, 40, False),
     ("offset", 3_000, 40, True)],
)  # fmt: skip
def test_strides(layout: str, V: int, U: int, normalized: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = {
        "batch first": (4, 20, V),
        "every other": (20, 4, 2 * V),
        "vocabulary first": (V, 20, 4),
        "offset": (20, 4, V + 3),
    }
    whole = torch.randn(shape[layout], generator=generator) - 8
    views = {
        "batch first": lambda x: x.transpose(0, 1),
        "every other": lambda x: x[:, :, ::2],
        "vocabulary first": lambda x: x.permute(1, 2, 0),
        "offset": lambda x: x[:, :, 3:],
    }
    others = (
        torch.randint(1, V, (4, U), generator=generator),
        torch.tensor([20, 19, 7, 20]),
        torch.tensor([6, 5, 6, 0]),
    )
    for loss in (published_loss, starseq.ctc_loss, merged_loss):
        truth = run(loss, views[layout](whole).double(), *others, normalized=normalized)
        ours = run(loss, views[layout](whole.cuda()), *(x.cuda() for x in others), normalized=normalized)
        for a, b in zip(ours, truth, strict=True):
            torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-5)


def test_no_host_sync_and_graph_replay() -> None:
    logits, *others = (x.cuda() for x in batch(*LONG))
    logits = logits.nan_to_num().requires_grad_()
    penalty = starseq.InsertionPenalty(p0=0.5, p_max=0.9, half_life=10_000).cuda()
    criteria = [starseq.STCLoss(zero_infinity=True, merge_repeats=merged) for merged in (False, True)]

    def step() -> Tensor:
        loss = starseq.ctc_loss(logits, *others, zero_infinity=True)
        loss = loss + sum(criterion(logits, *others, penalty=penalty()) for criterion in criteria)
        loss.backward()
        penalty.advance()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            logits.grad = None
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits.grad = None
        expected = step().detach().clone()
        gradient = logits.grad.clone()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    penalty.step -= 1
    graph = torch.cuda.CUDAGraph()
    logits.grad = None
    with torch.cuda.graph(graph):
        captured = step()
    kept = penalty.step.clone()
    graph.replay()
    assert torch.equal(captured.detach(), expected)
    assert torch.equal(logits.grad, gradient)
    assert penalty.step == kept + 1  # the schedule moves inside the graph


@pytest.mark.parametrize("shape", [SHORT, VERY_LONG], ids=str)
def test_same_bits_a_hundred_times(shape: tuple[int, int, int]) -> None:
    arrays = [x.cuda() for x in batch(*shape)]
    for loss in ALL.values():
        losses, grad = run(loss, *arrays)
        for _ in range(100):
            again = run(loss, *arrays)
            assert torch.equal(again[0], losses)
            assert torch.equal(again[1], grad)


@pytest.mark.parametrize("loss", [published_loss, merged_loss])
@pytest.mark.parametrize("shape", [SHORT, LONG], ids=str)
def test_batched_equals_single(shape: tuple[int, int, int], loss) -> None:
    logits, targets, input_lengths, target_lengths = (x.cuda() for x in batch(*shape))
    losses, grad = run(loss, logits, targets, input_lengths, target_lengths)
    for b in range(5):
        T = int(input_lengths[b])
        alone = run(
            loss,
            logits[:T, b : b + 1],
            targets[b : b + 1],
            input_lengths[b : b + 1],
            target_lengths[b : b + 1],
        )
        torch.testing.assert_close(alone[0][0], losses[b], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(alone[1][:, 0], grad[:T, b], rtol=0, atol=1e-6)


def test_bad_labels_are_impossible_and_validate_names_them() -> None:
    logits, targets, *lengths = (x.cuda() for x in batch(*SHORT))
    logits = logits.nan_to_num()
    targets[0, 0], targets[0, 3] = 10**9, -7
    for name, loss in ALL.items():
        losses, grad = run(loss, logits, targets, *lengths)
        assert losses[0] == math.inf, name
        assert not grad[:, 0].any()
        with pytest.raises(ValueError, match=r"targets: label 1000000000 at \(utterance, position\) \(0, 0\)"):
            loss(logits, targets, *lengths, validate=True)
    targets[0, 0], targets[0, 3] = 1, 0  # the blank is no label
    for loss in (published_loss, merged_loss):
        assert loss(logits, targets, *lengths, reduction="none")[0] == math.inf
    too_long = (lengths[0] + 1000, lengths[1])
    assert published_loss(logits, targets, *too_long, reduction="none").shape == (5,)  # never out of bounds


@pytest.mark.parametrize("shape", [SHORT, LONG], ids=str)
def test_compile(shape: tuple[int, int, int]) -> None:
    logits, *others = (x.cuda() for x in batch(*shape))
    logits = logits.nan_to_num()

    def losses(*arguments: Tensor) -> list[Tensor]:
        return [loss(*arguments, reduction="none", zero_infinity=True) for loss in ALL.values()]

    a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    for ours, eager in zip(torch.compile(losses, fullgraph=True)(a, *others), losses(b, *others), strict=True):
        (slope,) = torch.autograd.grad(eager.sum(), b)
        assert torch.equal(ours, eager)
        assert torch.equal(torch.autograd.grad(ours.sum(), a, retain_graph=True)[0], slope)


def test_autocast_and_concatenated_targets() -> None:
    logits, targets, *lengths = (x.cuda() for x in batch(*SHORT))
    logits = logits.nan_to_num()
    flat = torch.cat([targets[b, : lengths[1][b]] for b in range(5)])
    with torch.autocast("cuda", torch.bfloat16):
        weight = torch.eye(81, device="cuda", requires_grad=True)
        loss = published_loss(logits @ weight, targets, *lengths, zero_infinity=True)
        other = published_loss(logits @ weight, flat, *lengths, zero_infinity=True, max_target_length=20)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, other)
    loss.backward()
    assert weight.grad.isfinite().all()


def test_extreme_logits() -> None:
    """A label that outweighs the rest by e^90, -inf logits, frames without mass, +-1e4: as float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    for V, U in (SHORT[1:], LONG[1:]):
        logits = torch.randn(30, 6, V, generator=generator)
        logits[:, 0, 3] += 90
        logits[:, 1, 5:] = -math.inf
        logits[4, 2] = -math.inf
        logits[:, 3] *= 1e4
        logits[5, 4, 2] = math.nan
        targets = torch.tensor([[3, 4, 3], [1, 2, 3], [1, 2, 3], [1, 1, 2], [1, 2, 3], [7, 6, 5]])
        targets, lengths = torch.nn.functional.pad(targets, (0, U - 3)), (torch.full((6,), 30), torch.full((6,), 3))
        for loss in LOSSES.values():
            truth = run(loss, logits.double(), targets, *lengths)
            ours = run(loss, logits.cuda(), targets.cuda(), *(x.cuda() for x in lengths))
            torch.testing.assert_close(ours[0].cpu().double(), truth[0], rtol=1e-6, atol=1e-5, equal_nan=True)
            torch.testing.assert_close(ours[1].cpu().double(), truth[1], rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ["published_stc", "ctc"])
def test_reductions(name: str, reduction: str) -> None:
    """Of many utterances, so that their programs end in any order; labels of a narrow type, lengths with a stride."""
    logits, targets, *lengths = batch(40, 81, 20, B=300)
    targets[targets == 10**9] = 77
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        x = logits.to(device, dtype).requires_grad_()
        strided = [torch.stack([length, length], 1).to(device)[:, 0] for length in lengths]
        loss = LOSSES[name](x, targets.to(device, torch.uint8), *strided, reduction=reduction, zero_infinity=True)
        (3 * loss).backward()
        results.append((loss.detach().cpu().double(), x.grad.cpu().double()))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0, atol=1e-4)


def test_direct_launches_and_streams() -> None:
    """What a direct launch computes, in whichever stream, is what Triton's own launch computes."""
    from starseq.lattice import launch_triton
    from starseq.op import fused_triton

    arrays = [x.cuda() for x in batch(*SHORT)]
    if launch_triton._is_familiar(fused_triton._lattice):
        first = [run(loss, *arrays) for loss in LOSSES.values()]
        assert fused_triton._plan.cache_info().currsize
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            aside = [run(loss, *arrays) for loss in LOSSES.values()]
        stream.synchronize()
        usual = launch_triton.Launch._ask
        asked = []

        def counted(self, *arguments):
            asked.append(self)
            return usual(self, *arguments)

        launch_triton.Launch._ask = counted
        try:
            again = [run(loss, *arrays) for loss in LOSSES.values()]
            assert not asked  # all of them are known by now
            odd = torch.empty(arrays[0].numel() + 1, device="cuda")[1:].view_as(arrays[0]).copy_(arrays[0])
            other = [run(loss, odd, *arrays[1:]) for loss in LOSSES.values()]
            assert asked  # an odd address is Triton's to look at
        finally:
            launch_triton.Launch._ask = usual
        for results in (aside, again):
            for (loss, grad), (a, b) in zip(results, first, strict=True):
                assert torch.equal(loss, a)
                assert torch.equal(grad, b)
        for (loss, grad), (a, b) in zip(other, first, strict=True):
            torch.testing.assert_close(loss, a, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(grad, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("skips", [False, True])
def test_viterbi(skips: bool) -> None:
    from starseq.lattice import banded_triton

    generator = torch.Generator().manual_seed(0)
    B, T, S = 7, 90, 45
    log_stay, log_enter = torch.randn(2, B, T, S, generator=generator, dtype=torch.float64)
    num_states = torch.randint(1, S + 1, (B,), generator=generator)
    skip = torch.rand(B, S, generator=generator) < 0.5 if skips else None
    lengths = torch.randint(0, T + 1, (B,), generator=generator)
    truth = banded_torch.viterbi(log_stay, log_enter, Topology(num_states, 1 + skips, skip), lengths)
    here = Topology(num_states.cuda(), 1 + skips, None if skip is None else skip.cuda())
    path, score = banded_triton.viterbi(log_stay.cuda(), log_enter.cuda(), here, lengths.cuda())
    assert torch.equal(path.cpu(), truth[0])
    torch.testing.assert_close(score.cpu(), truth[1])


def criteria_and_batch() -> tuple[starseq.STCLoss, starseq.STCLoss, tuple[Tensor, ...]]:
    logits, *others = batch(*SHORT)
    return starseq.STCLoss(), starseq.STCLoss(), (logits.requires_grad_(), *others)


def on_gpu(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (arguments[0].detach().cuda().requires_grad_(), *(x.cuda() for x in arguments[1:]))


def test_the_star_tunes_itself_as_on_the_cpu() -> None:
    here, there, arguments = criteria_and_batch()
    for _ in range(9):
        here(*arguments), there(*on_gpu(arguments))
    assert there.penalty.counts.is_cuda
    torch.testing.assert_close(there.penalty.counts.cpu(), here.penalty.counts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(there.penalty().cpu(), here.penalty())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(150, 80, 22), (500, 29, 150), (60, 5_001, 12), (90, 2_100, 70)])
def test_the_look_of_the_star_is_that_of_plain_torch(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    """What it sees, to rounding, and twice the same bits; `factor` 0 is an untrained model."""
    frames, vocabulary, labels = sizes
    for factor in (0.0, 1.0, 5.0):
        generator = torch.Generator().manual_seed(frames)
        logits = (factor * torch.randn(frames, 3, vocabulary, generator=generator)).to("cuda", dtype).transpose(0, 1)
        targets = torch.randint(1, vocabulary, (3, labels), generator=generator).cuda()
        lengths = torch.tensor([frames, frames - 5, 0]).cuda(), torch.tensor([labels, labels // 2, 1]).cuda()
        open_gaps = (torch.rand(3, labels + 1, generator=generator) < 0.5).cuda() if factor else None
        batch = (logits, targets, *lengths, open_gaps, torch.tensor(1.3, dtype=torch.float64).cuda(), 0)
        found = look_triton.look(*batch)
        assert torch.equal(found, look_triton.look(*batch))
        torch.testing.assert_close(found, look_torch.look(*batch).double(), rtol=1e-4, atol=1e-4)


def test_the_star_tunes_itself_in_a_graph_and_waits_for_nothing() -> None:
    criterion, _, arguments = criteria_and_batch()
    arguments = on_gpu(arguments)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            criterion(*arguments).backward()
    stream.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            criterion(*arguments).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    arguments[0].grad = None
    graph, before = torch.cuda.CUDAGraph(), criterion.penalty.counts.clone()
    with torch.cuda.graph(graph):
        criterion(*arguments).backward()
    for _ in range(8):
        graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(before, criterion.penalty.counts)
    assert criterion.penalty.counts.isfinite().all()


def test_the_star_tunes_itself_in_compiled_code() -> None:
    eager, inner, arguments = criteria_and_batch()
    eager, inner, arguments = eager.cuda(), inner.cuda(), on_gpu(arguments)
    compiled = torch.compile(inner, fullgraph=True)
    for _ in range(6):
        torch.testing.assert_close(compiled(*arguments), eager(*arguments))
    assert torch.equal(inner.penalty.counts, eager.penalty.counts)
