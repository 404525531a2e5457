"""How the losses behave in a program: repeatable, in threads, in forks, under autograd, saved, and light to import."""

from __future__ import annotations

import concurrent.futures
import copy
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests import cases
from tests.cases import BACKENDS, CRITERIA, FAST, loss_of, published_loss
from torch import Tensor

import starseq
from starseq.lattice import threads

# Large enough to be cut into pieces for several threads: see lattice/threads.py.
BIG = {"T": 60, "B": 5, "V": 1500, "U": 20}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def results(criterion: str, backend: str) -> cases.Result:
    return cases.run(criterion, cases.random_batch(**BIG), backend, torch.float32)


def assert_identical(ours: cases.Result, theirs: cases.Result) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", FAST)
def test_bit_for_bit_from_run_to_run_and_on_any_number_of_threads(backend: str, criterion: str) -> None:
    first = results(criterion, backend)
    assert first.grad.any()
    for count in (2, 2, 1, 3):
        torch.set_num_threads(count)
        assert_identical(results(criterion, backend), first)


@pytest.mark.parametrize("backend", FAST)
def test_python_threads_at_once(backend: str) -> None:
    first = results("published_stc", backend)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for other in pool.map(lambda _: results("published_stc", backend), range(24)):
            assert_identical(other, first)


class Losses(torch.utils.data.Dataset):
    """Items that are losses: what somebody computes in a worker, to sort or filter by."""

    def __init__(self) -> None:
        self.logits = torch.randn(60, 5, 1500, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        torch.set_num_threads(2)  # a worker starts with one
        return published_loss(self.logits, torch.full((5, 20), 7), (60,) * 5, (20,) * 5, reduction="none")


def test_in_a_forked_worker_after_use_in_the_parent() -> None:
    """The child inherits the parent's pool without its threads: waiting for them would hang, and time out here."""
    losses = Losses()
    here = losses[0]
    assert threads._pools, "the input is too small to be shared out"
    loader = torch.utils.data.DataLoader(
        losses, batch_size=None, num_workers=2, timeout=30, multiprocessing_context="fork"
    )
    for there in loader:
        assert torch.equal(there, here)


# --- autograd ---------------------------------------------------------------------------------------------------------


def small(backend: str, **options: object) -> tuple[Tensor, Tensor]:
    logits = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return logits, published_loss(logits, torch.tensor([[1, 2], [3, 0]]), (6, 5), (2, 1), backend=backend, **options)


@pytest.mark.parametrize("backend", FAST)
def test_double_backward_raises(backend: str) -> None:
    """Also where the gradient is only a part of what is differentiated: it must not pass for a constant."""
    for build in (lambda g, x: g.pow(2).sum(), lambda g, x: g.pow(2).sum() + x.sum(), lambda g, x: (g * x).sum()):
        logits, loss = small(backend)
        (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
        assert grad.any()
        with pytest.raises(RuntimeError, match="differentiated once, not twice"):
            build(grad, logits).backward()
    penalty = torch.tensor(-0.5, requires_grad=True)
    _, loss = small(backend, penalty=penalty)
    (grad,) = torch.autograd.grad(loss, penalty, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once, not twice"):
        grad.backward()


@pytest.mark.parametrize("backend", FAST)
def test_backward_twice_through_a_kept_graph(backend: str) -> None:
    logits, loss = small(backend)
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    torch.autograd.grad(loss, logits)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, logits)


@pytest.mark.parametrize("backend", FAST)
def test_the_gradient_scales_with_what_comes_from_above(backend: str) -> None:
    logits, losses = small(backend, reduction="none")
    each = [torch.autograd.grad(losses[b], logits, retain_graph=True)[0] for b in range(2)]
    (mixed,) = torch.autograd.grad(3 * losses[0] - 0.5 * losses[1], logits)
    torch.testing.assert_close(mixed, 3 * each[0] - 0.5 * each[1])


@pytest.mark.parametrize("backend", FAST)
def test_no_gradient_wanted(backend: str) -> None:
    _, loss = small(backend)
    with torch.no_grad():
        assert torch.equal(small(backend)[1], loss)
        assert not small(backend)[1].requires_grad
    with torch.inference_mode():
        assert torch.equal(small(backend)[1], loss)


@pytest.mark.parametrize("backend", FAST)
def test_inputs_are_left_as_they_are(backend: str) -> None:
    batch = cases.random_batch(**BIG)
    kept = copy.deepcopy(batch)
    cases.run("published_stc", batch, backend)
    for name in ("logits", "targets", "penalty"):
        torch.testing.assert_close(getattr(batch, name), getattr(kept, name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", FAST)
def test_autocast(backend: str, criterion: str) -> None:
    """The loss takes what the layer below gives, and computes in float32 nonetheless."""
    random = torch.Generator().manual_seed(0)
    features, weight = torch.randn(6, 2, 8, generator=random), torch.randn(8, 4, generator=random, requires_grad=True)
    arguments = (torch.tensor([[1, 2], [3, 0]]), (6, 5), (2, 1))
    with torch.autocast("cpu", torch.bfloat16):
        logits = features @ weight
        loss = loss_of(criterion)(logits, *arguments, backend=backend)
        same = loss_of(criterion)(logits.float(), *arguments, backend=backend)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, same)
    loss.backward()
    assert weight.grad.dtype == torch.float32
    assert weight.grad.any()


# --- modules and imports ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [starseq.STCLoss, starseq.CTCLoss, starseq.SelflessCTCLoss])
def test_modules_pickle_copy_and_show_their_options(module: type[torch.nn.Module]) -> None:
    star = {"penalty": -1.0} if module is starseq.STCLoss else {}
    criterion = module(blank=3, reduction="sum", zero_infinity=True, batch_first=True, backend="torch", **star)
    logits = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    arguments = (logits, torch.tensor([[1, 2], [2, 0]]), (6, 5), (2, 1))
    expected = criterion(*arguments)
    for other in (pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion)):
        assert torch.equal(other(*arguments), expected)
    assert criterion.state_dict() == {}
    assert "blank=3, reduction='sum', zero_infinity=True" in repr(criterion)


@pytest.mark.parametrize("criterion", [*CRITERIA, "stc"])
def test_modules_are_their_functions(criterion: str) -> None:
    modules = {
        "published_stc": partial(starseq.STCLoss, penalty=math.log(0.5), merge_repeats=False),
        "stc": partial(starseq.STCLoss, penalty=math.log(0.5)),
        "ctc": starseq.CTCLoss,
        "selfless_ctc": starseq.SelflessCTCLoss,
    }
    module: Any = modules[criterion]
    batch = cases.random_batch(T=8, B=2, V=5, U=3, blank=4)
    arguments = (batch.logits, batch.targets, batch.input_lengths, batch.target_lengths)
    options = {"blank": 4, "reduction": "sum", "zero_infinity": True, "normalized": False, "max_target_length": 3}
    expected = loss_of(criterion)(*arguments, **options)
    assert torch.equal(module(**options)(*arguments), expected)
    assert expected != loss_of(criterion)(*arguments, **options | {"normalized": True})


@pytest.mark.parametrize("blank", [np.int64(2), torch.tensor(2)])
def test_settings_are_there_to_be_read_and_the_blank_is_a_whole_number_of_any_library(blank: Any) -> None:
    criterion = starseq.CTCLoss(blank=blank, reduction="sum", zero_infinity=True)
    assert (criterion.blank, criterion.reduction, criterion.zero_infinity) == (2, "sum", True)
    batch = torch.randn(4, 1, 3), torch.tensor([[1, 0]]), (4,), (2,)
    assert torch.equal(criterion(*batch), starseq.ctc_loss(*batch, blank=2, reduction="sum"))
    assert torch.equal(starseq.ctc_loss(*batch, blank=blank), starseq.ctc_loss(*batch, blank=2))
    with pytest.raises(ValueError, match="blank: expected a whole number, got '0'"):
        starseq.STCLoss(blank="0")  # type: ignore[arg-type]


def test_the_stc_module_passes_on_what_is_the_stars() -> None:
    batch = cases.random_batch(T=8, B=2, V=5, U=3, extra=0)
    arguments = (batch.logits, batch.concatenated(), batch.input_lengths, batch.target_lengths)
    ours = starseq.STCLoss(merge_repeats=False, return_inserted=True)(*arguments, penalty=-2.0)
    expected = starseq.stc_loss(*arguments, merge_repeats=False, return_inserted=True, penalty=-2.0)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a, b)


def test_the_penalty_of_the_stc_module() -> None:
    batch = cases.random_batch(T=8, B=2, V=5, U=3, extra=0)
    arguments = (batch.logits, batch.concatenated(), batch.input_lengths, batch.target_lengths)
    expected = starseq.stc_loss(*arguments, penalty=-2.0)
    schedule = starseq.InsertionPenalty(p0=math.exp(-2), p_max=0.9, half_life=1)
    learnt = torch.nn.Parameter(torch.tensor(-2.0))
    for penalty in (-2.0, torch.tensor(-2.0), torch.full((2, 4), -2.0), schedule, learnt):
        criterion = starseq.STCLoss(penalty=penalty)
        torch.testing.assert_close(criterion(*arguments), expected)
        assert criterion(*arguments, penalty=-1.0) == starseq.stc_loss(*arguments, penalty=-1.0)
    assert list(starseq.STCLoss(penalty=torch.tensor(-2.0)).state_dict()) == ["penalty"]
    assert list(starseq.STCLoss(penalty=learnt).parameters()) == [learnt]
    assert starseq.STCLoss(penalty=schedule).penalty is schedule
    assert isinstance(starseq.STCLoss(blank=3).penalty, starseq.AdaptivePenalty)
    assert starseq.STCLoss(blank=3).penalty.blank == 3
    with pytest.raises(ValueError, match=r"^penalty: 'steady' is none of adaptive$"):
        starseq.STCLoss(penalty="steady")


@pytest.mark.parametrize("module", [starseq.STCLoss, starseq.CTCLoss, starseq.SelflessCTCLoss])
def test_modules_refuse_keywords_that_they_do_not_have(module: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{module.__name__}\(\) got an unexpected keyword argument 'margin'$"):
        module(margin=1)


def test_import_is_light() -> None:
    """Also a torch-backend loss must not need numba."""
    program = """if True:
        import json, sys
        import starseq, torch
        imported = sorted(sys.modules)
        starseq.stc_loss(torch.zeros(4, 1, 3), torch.tensor([[1]]), (4,), (1,), penalty=-1.0, backend="torch")
        print(json.dumps([imported, sorted(sys.modules)]))
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for modules in json.loads(run.stdout):
        assert "starseq" in modules
        assert not {"numba", "triton", "lightning", "lhotse", "matplotlib", "typer"} & set(modules)


def test_every_backend_is_tested_here() -> None:
    """A backend that is added to the library is added to tests/cases.py, or named here with its reason."""
    from starseq.arguments import BACKENDS as names

    elsewhere = {"auto", "triton"}  # by device; needs CUDA
    assert set(names) - elsewhere <= set(BACKENDS)


def test_a_number_as_penalty_is_good_for_a_gradient_after_inference() -> None:
    """The tensor that stands for the number is kept from call to call."""
    logits, targets, lengths = (
        torch.randn(2, 5, 4),
        torch.tensor([[1], [2]]),
        (torch.tensor([5, 5]), torch.tensor([1, 1])),
    )
    with torch.inference_mode():
        published_loss(logits, targets, *lengths, penalty=-0.1234, batch_first=True)
    kept, fresh = (logits.clone().requires_grad_() for _ in range(2))
    published_loss(kept, targets, *lengths, penalty=-0.1234, batch_first=True).backward()
    published_loss(fresh, targets, *lengths, penalty=torch.tensor(-0.1234), batch_first=True).backward()
    assert kept.grad is not None
    assert torch.equal(kept.grad, fresh.grad)
