"""The Triton backend on the CPU, through Triton's interpreter: value and gradient against the ladder, on small shapes.

The interpreter is chosen when kernels are defined, so these tests run in a process of their own, which the first one starts.
"""

from __future__ import annotations

import math

import pytest
import torch
from tests import brute_force
from tests.cases import CRITERIA, loss_of, merged_loss, published_loss
from tests.interpreter import inside, outside, run_again
from tests.test_penalty import some_batch

import starseq
from starseq import op
from starseq.lattice import banded_torch
from starseq.lattice.topology import Topology
from starseq.penalty import look_torch

pytest.importorskip("triton")
from starseq.penalty import look_triton

LOSSES = {name: loss_of(name) for name in CRITERIA}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}


@outside
def test_in_the_interpreter() -> None:
    run_again(__file__, "-k", "not lasting")


@outside
def test_lasting_in_the_interpreter() -> None:
    run_again(__file__, "-k", "lasting")


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter: log of 0, inf - inf under a select
@pytest.mark.parametrize("stem", ["stc", "stc_gaps", "stc_merged", "ctc", "selfless_ctc"])
def test_vectors(stem: str) -> None:
    cases = [case for case in brute_force.read_vectors(stem) if case["shape"][0]]
    for case in cases[::3]:
        logits = torch.tensor(case["logits"], dtype=torch.float64).reshape(case["shape"]).requires_grad_()
        target = torch.tensor(case["target"], dtype=torch.int64)
        options = {}
        if "log_penalty" in case:
            penalty = torch.tensor(case["log_penalty"], dtype=torch.float64)
            options = {"penalty": penalty, "merge_repeats": case["merge_repeats"], "return_inserted": True}
        loss = starseq.stc_loss if options else loss_of(stem)
        result = loss(
            logits,
            target,
            (len(logits),),
            (len(target),),
            blank=case["blank"],
            reduction="sum",
            backend="triton",
            **options,
        )
        value, inserted = result if options else (result, None)
        value.backward()
        assert value.item() == pytest.approx(case["loss"], rel=1e-9, abs=1e-9), case["name"]
        slope = torch.tensor(case["grad_logits"], dtype=torch.float64).reshape(case["shape"])
        torch.testing.assert_close(logits.grad, slope, rtol=0, atol=1e-9, msg=case["name"])
        if inserted is not None:
            torch.testing.assert_close(inserted, torch.tensor(case["inserted"], dtype=torch.float64), rtol=0, atol=1e-9)


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("T", "V", "U", "blank"), [(5, 9, 3, 0), (4, 301, 2, 300), (3, 1_203, 2, 7)])
def test_against_torch(T: int, V: int, U: int, blank: int, name: str, dtype: torch.dtype) -> None:
    """Short rows, rows longer than the graph, rows in pieces from their first aligned address; NaN past the lengths."""
    compare_with_torch(T, V, U, blank, name, dtype)


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("T", "V", "U", "blank"), [(4, 301, 2, 300), (3, 1_203, 2, 7)])
def test_scores_that_are_no_probabilities(T: int, V: int, U: int, blank: int, name: str) -> None:
    compare_with_torch(T, V, U, blank, name, torch.float32, normalized=False)


def compare_with_torch(
    T: int, V: int, U: int, blank: int, name: str, dtype: torch.dtype, normalized: bool = True
) -> None:
    generator = torch.Generator().manual_seed(T)
    logits = (3 * torch.randn(T, 3, V, generator=generator)).to(dtype)
    logits[T - 1 :, 1] = math.nan
    targets = torch.randint(1, V - 1, (3, U), generator=generator)
    targets[targets == blank] += 1
    targets[:, 1] = targets[:, 0]
    lengths = (torch.tensor([T, T - 1, T]), torch.tensor([U, 1, 0]))
    results = []
    for backend in ("torch", "triton"):
        x = logits.clone().requires_grad_()
        losses = LOSSES[name](
            x, targets, *lengths, reduction="none", backend=backend, blank=blank, zero_infinity=True, normalized=normalized
        )  # fmt: skip
        losses.sum().backward()
        results.append((losses.detach(), x.grad))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0, atol=TOLERANCE[dtype])


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["published_stc", "ctc"])
@pytest.mark.parametrize("V", [3_001, 17_001])
def test_long_rows_and_many_states(V: int, name: str) -> None:
    """Of 35 and 69 states: 16-bit rows in pieces of 2,048 and of 16,384, labels compared with the states 16 and 8 at a time."""
    generator = torch.Generator().manual_seed(V)
    logits = (3 * torch.randn(36, 1, V, generator=generator)).to(torch.bfloat16)
    targets = torch.randint(1, V, (1, 34), generator=generator)
    results = []
    for backend in ("torch", "triton"):
        x = logits.clone().requires_grad_()
        loss = LOSSES[name](x, targets, (36,), (34,), reduction="sum", backend=backend)
        loss.backward()
        results.append((loss.detach(), x.grad))
    (expected, slope), (loss, grad) = results
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad, slope, rtol=0, atol=2**-8)


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", LOSSES)
def test_reductions(name: str, reduction: str) -> None:
    """One of the utterances cannot be read; lengths and labels lie anyhow in memory; labels of any integer type."""
    logits = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2], [3, 3], [5, 4], [2, 1]])
    lengths = (torch.tensor([3, 0, 0, 0, 3, 0, 2, 0])[::2], torch.tensor([1]).expand(4))
    for dtype, weight in ((torch.int64, 1.0), (torch.uint8, -0.3)):
        targets = labels.to(dtype).t().contiguous().t()
        for zero_infinity in (False, True):
            results = []
            for backend in ("torch", "triton"):
                x = logits.clone().requires_grad_()
                loss = LOSSES[name](
                    x, targets, *lengths, reduction=reduction, zero_infinity=zero_infinity, backend=backend
                )
                (weight * loss).sum().backward()
                results.append((loss.detach(), x.grad))
            torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_insertions() -> None:
    """With closed gaps, a learned penalty, an utterance that cannot be read, and NaN where there is no gap."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, 5, dtype=torch.float64, generator=generator)
    targets, lengths = torch.tensor([[1, 2, 2], [3, 3, 1], [4, 1, 2], [2, 0, 0]]), (6, 4, 2, 6)
    gaps = -torch.rand(4, 4, generator=generator, dtype=torch.float64)
    gaps[0, 2] = gaps[1, 0] = gaps[1, 3] = -math.inf
    gaps[3, 2:] = math.nan
    results = []
    for backend in ("torch", "triton"):
        x, penalty = logits.clone().requires_grad_(), gaps.clone().requires_grad_()
        loss, inserted = published_loss(
            x, targets, lengths, (3, 3, 3, 1), penalty=penalty, return_inserted=True,
            zero_infinity=True, backend=backend,
        )  # fmt: skip
        loss.backward()
        results.append((loss.detach(), inserted, x.grad, penalty.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    assert results[0][1].sum() > 0


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_lasting_in_tiles() -> None:
    """9 rows, 8 at a time, of 301 tokens, 256 at a time; with and without a gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(11, 2, 301, dtype=torch.float64, generator=generator)
    logits[4:, 1] = math.nan
    targets = torch.randint(0, 300, (2, 8), generator=generator)
    targets[:, 4] = targets[:, 3]
    lengths = (11, 4), (8, 1)
    gaps = -torch.rand(2, 9, generator=generator, dtype=torch.float64)
    gaps[0, 2] = gaps[0, 5] = -math.inf
    gaps[1, 2:] = math.nan
    results = []
    for backend in ("torch", "triton"):
        x, penalty = logits.clone().requires_grad_(), gaps.clone().requires_grad_()
        options = {"blank": 300, "reduction": "none", "backend": backend}
        losses, inserted = merged_loss(x, targets, *lengths, penalty=penalty, return_inserted=True, **options)
        losses.sum().backward()
        alone = merged_loss(logits, targets, *lengths, penalty=gaps, **options)
        results.append((losses.detach(), alone, inserted, x.grad, penalty.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    assert (results[0][2].sum(dim=1) > 0).all()


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("spare", [32, 1], ids=["in registers", "in memory"])
def test_lasting_with_dead_tokens(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of 24 tokens are dead, some change at a chunk's end; more than slots are alive, too. Gaps, insertions, equal labels."""
    from starseq.op import lasting_triton

    for name, value in {"FEW": 8, "_SPARE": spare, "_PASS": 16, "_TOKENS": 4, "_ROWS": 4}.items():
        monkeypatch.setattr(lasting_triton, name, value)
    generator = torch.Generator().manual_seed(0)
    logits = 0.3 * torch.randn(21, 2, 24, generator=generator)
    logits[:, 0, 5] += 7  # the blank
    logits[:, 1, 5] += 6
    for first, token in ((2, 9), (13, 11), (14, 20), (16, 2), (17, 9), (4, 14), (18, 3)):
        logits[first : first + 4, 0, token] += 8
    for token in (14, 3):  # alive before a chunk's end or after it, and only there; at the end it stands for two frames
        logits[14:18, 0, token] += torch.tensor([-8, 7, 7, -8])
    logits[18:, 1] = math.nan
    targets, lengths = torch.tensor([[2, 2], [7, 10**9]]), ((21, 18), (2, 1))
    gaps = torch.tensor([[-0.7, -1.2, -math.inf], [-0.4, -0.8, math.nan]])
    results = []
    for backend, dtype in (("torch", torch.float64), ("triton", torch.float32)):
        x, penalty = logits.to(dtype, copy=True).requires_grad_(), gaps.to(dtype, copy=True).requires_grad_()
        losses, inserted = merged_loss(
            x, targets, *lengths, penalty=penalty, return_inserted=True, blank=5, reduction="none", backend=backend
        )
        losses.sum().backward()
        results.append([x.double() for x in (losses.detach(), inserted, x.grad, penalty.grad)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    assert (results[0][1].sum(dim=1) > 0).all()


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_strides(name: str, normalized: bool) -> None:
    wide, high = torch.randn(4, 2, 600).sub(6), torch.randn(1_201, 3, 2).sub(6)
    for view in (wide[:, :, ::2], high.permute(1, 2, 0)):
        results = []
        for backend in ("torch", "triton"):
            x = view.detach().requires_grad_()
            targets, lengths = torch.tensor([[3, 3], [5, 1]]), (torch.tensor([3, 3]), torch.tensor([1, 2]))
            LOSSES[name](x, targets, *lengths, backend=backend, normalized=normalized).backward()
            results.append(x.grad)
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)


@inside
@pytest.mark.parametrize("skips", [False, True])
def test_lattice_and_viterbi(skips: bool) -> None:
    from starseq.lattice import banded_triton

    generator = torch.Generator().manual_seed(0)
    B, T, S = 4, 9, 5
    log_stay, log_enter = torch.randn(2, B, T, S, generator=generator, dtype=torch.float64)
    topology = Topology(
        torch.tensor([5, 1, 2, 4]), 1 + skips, torch.rand(B, S, generator=generator) < 0.5 if skips else None
    )
    lengths = torch.tensor([9, 4, 0, 7])
    truth = banded_torch.forward_backward(log_stay, log_enter, topology, lengths)
    ours = banded_triton.forward_backward(log_stay, log_enter, topology, lengths)
    torch.testing.assert_close(ours[2], truth[2])
    for b in range(B):
        for x, y in zip(ours[:2], truth[:2], strict=True):
            end, n = int(lengths[b]) + 1, int(topology.num_states[b])
            torch.testing.assert_close(x[b, :end, :n], y[b, :end, :n])
    path, score = banded_triton.viterbi(log_stay, log_enter, topology, lengths)
    best = banded_torch.viterbi(log_stay, log_enter, topology, lengths)
    assert torch.equal(path, best[0])
    torch.testing.assert_close(score, best[1])


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(24))
def test_the_look_of_the_penalty(seed: int) -> None:
    """What it sees, and how it moves, are those of look_torch."""
    batch = some_batch(seed)
    expected, found = look_torch.look(*batch).double(), look_triton.look(*batch)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for share in (1.0, 0.25):
        ours, theirs = (
            [torch.tensor(1.5).double(), torch.tensor([3.0, 5, 7, 7, 2]).double(), torch.tensor([0.25, 0.7]).double()]
            for _ in range(2)
        )
        for one in (found, found + 2, 0 * found):
            look_triton.move(one, *ours, 0.02, 0.94, 0.04, share)
            look_torch.move(one, *theirs, 0.02, 0.94, 0.04, share)
            torch.testing.assert_close(ours, theirs)


@inside
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["ctc", "selfless_ctc", "stc"])
def test_scores_of_arcs(name: str) -> None:
    """What is aligned with: the same as from the graphs, stars by themselves."""
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    targets, lengths = (
        torch.tensor([[1, 2, 2], [3, 3, 1], [4, 0, 0]]),
        (torch.tensor([5, 4, 2]), torch.tensor([3, 3, 1])),
    )
    penalty = torch.tensor([[-0.5, -math.inf, -1.0, -0.2]] * 3) if name == "stc" else None
    batch = (logits, targets, *lengths, penalty)
    results = []
    for backend in ("torch", "triton"):
        options = op.Options(name, merge_repeats=False, batch_first=True, backend=backend, inserted=name == "stc")
        graph = op.label_graph(batch, options)
        scores = op.scores(batch, graph, options)
        states = torch.arange(graph.tokens.enter.shape[1]) < graph.topology.num_states[:, None]
        inside = (torch.arange(5) < lengths[0][:, None])[:, :, None] & states[:, None]
        results.append([x.masked_fill(~inside, 0) for x in (scores.stay, scores.enter, scores.star) if x.numel()])
        results[-1].append(scores.norm.masked_fill(~inside[:, :, 0], 0))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)
    assert len(results[0]) == (4 if name == "stc" else 3)
