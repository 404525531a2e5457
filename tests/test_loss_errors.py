"""Bad input gets one sentence that names the argument, the value and its place."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from tests import cases
from tests.cases import BACKENDS, CRITERIA, STARRED, loss_of, published_loss

import starseq

T, B, V = 5, 2, 4
GOOD: dict[str, Any] = {
    "logits": torch.zeros(T, B, V),
    "targets": torch.tensor([[1, 2, 3], [3, 1, 0]]),
    "input_lengths": (5, 4),
    "target_lengths": (3, 2),
}

NAN, INF = math.nan, math.inf
ONE_EACH = "logits are (T, B, V), or (B, T, V) with batch_first=True"
NO_LOGITS = "logits: expected floating point in 2 or 3 dimensions, the last not empty, got"

BAD = [
    ({"logits": torch.zeros(T, B, V, dtype=torch.int64)}, f"{NO_LOGITS} torch.int64 of shape (5, 2, 4)"),
    ({"logits": torch.zeros(V)}, f"{NO_LOGITS} torch.float32 of shape (4,)"),
    ({"logits": torch.zeros(T, B, 0)}, f"{NO_LOGITS} torch.float32 of shape (5, 2, 0)"),
    ({"blank": 4}, "blank: 4 is outside 0..3, the vocabulary"),
    ({"blank": -1}, "blank: -1 is outside 0..3, the vocabulary"),
    ({"reduction": "max"}, "reduction: 'max' is none of none, sum, mean"),
    ({"backend": "gtn"}, "backend: 'gtn' is none of auto, torch, numba, triton, wfst"),
    ({"logits": [[[0.0]]]}, "logits: expected a tensor, got list"),
    ({"blank": 1.0}, "blank: expected a whole number, got 1.0"),
    ({"blank": "0"}, "blank: expected a whole number, got '0'"),
    ({"input_lengths": (5,)}, f"input_lengths: expected 2 integers, got torch.int64 of shape (1,); {ONE_EACH}"),
    (
        {"input_lengths": torch.ones(2)},
        f"input_lengths: expected 2 integers, got torch.float32 of shape (2,); {ONE_EACH}",
    ),
    (
        {"input_lengths": torch.tensor([True, True])},
        f"input_lengths: expected 2 integers, got torch.bool of shape (2,); {ONE_EACH}",
    ),
    ({"target_lengths": (3, 2, 1)}, f"target_lengths: expected 2 integers, got torch.int64 of shape (3,); {ONE_EACH}"),
    ({"input_lengths": None}, "input_lengths: expected a tensor or a sequence of integers, got NoneType"),
    ({"input_lengths": "55"}, "input_lengths: expected a tensor or a sequence of integers, got str"),
    ({"input_lengths": (5, 4.7)}, "input_lengths: expected integers, got 4.7"),
    ({"target_lengths": (True, 2)}, "target_lengths: expected integers, got True"),
    (
        {"targets": [[1, 2, 3], [3, 1, 2]]},
        "targets: expected a tensor of integers, (B, U) padded or all rows joined by torch.cat, got list",
    ),
    ({"input_lengths": (5, 6)}, "input_lengths: 6 for utterance 1 is outside 0..5, the frames of the logits"),
    ({"input_lengths": (-1, 5)}, "input_lengths: -1 for utterance 0 is outside 0..5, the frames of the logits"),
    ({"target_lengths": (3, 4)}, "target_lengths: 4 for utterance 1 is outside 0..3, the width of the targets"),
    ({"target_lengths": (-2, 2)}, "target_lengths: -2 for utterance 0 is outside 0..3, the width of the targets"),
    ({"targets": GOOD["targets"].float()}, "targets: expected integers, got torch.float32"),
    ({"targets": GOOD["targets"].bool()}, "targets: expected integers, got torch.bool"),
    ({"targets": GOOD["targets"][:1]}, "targets: expected 2 rows, got shape (1, 3)"),
    ({"targets": GOOD["targets"][None]}, "targets: expected (B, U) or one dimension, got shape (1, 2, 3)"),
    (
        {"targets": torch.tensor([1, 2, 3, 1])},
        "targets: 4 concatenated labels, but target_lengths come to 5",
    ),
    (
        {"targets": torch.tensor([1, 2, 3, 1, 2, 3])},
        "targets: 6 concatenated labels, but target_lengths come to 5",
    ),
    (
        {"targets": torch.tensor([[1, 2, 3], [3, 4, 0]])},
        "targets: label 4 at (utterance, position) (1, 1) is outside 0..3, the vocabulary",
    ),
    (
        {"targets": torch.tensor([[1, -1, 3], [3, 1, 0]])},
        "targets: label -1 at (utterance, position) (0, 1) is outside 0..3, the vocabulary",
    ),
    (
        {"targets": torch.tensor([1, 2, 3, 3, 9])},
        "targets: label 9 at (utterance, position) (1, 1) is outside 0..3, the vocabulary",
    ),
    (
        {"targets": torch.tensor([[1, 2, 0], [3, 1, 0]])},
        "targets: label 0 at (utterance, position) (0, 2) is the blank, which is no label",
    ),
    ({"blank": 3}, "targets: label 3 at (utterance, position) (0, 2) is the blank, which is no label"),
    ({"max_target_length": 2}, "target_lengths: 3 for utterance 0 is outside 0..2, the width of the targets"),
]

BAD_STAR = [
    ({"penalty": 0.5}, "penalty: 0.5 at (utterance, gap) (0, 0) is not a log-weight <= 0, such as math.log(0.5)"),
    ({"penalty": None}, "penalty: expected a number or a tensor, got NoneType"),
    ({"penalty": [-1.0, -1.0]}, "penalty: expected a number or a tensor, got list"),
    ({"penalty": "-1"}, "penalty: expected a number or a tensor, got str"),
    ({"penalty": NAN}, "penalty: nan at (utterance, gap) (0, 0) is not a log-weight <= 0, such as math.log(0.5)"),
    (
        {"penalty": torch.tensor([-1.0, 0.25])},
        "penalty: 0.25 at (utterance, gap) (1, 0) is not a log-weight <= 0, such as math.log(0.5)",
    ),
    (
        {"penalty": torch.tensor([[-1.0] * 4, [-1.0, 0.0, 3.0, 9.0]])},
        "penalty: 3.0 at (utterance, gap) (1, 2) is not a log-weight <= 0, such as math.log(0.5)",
    ),
    ({"penalty": torch.zeros(2, 3)}, "penalty: expected (), (2,) or (2, 4), got shape (2, 3)"),
    ({"penalty": torch.zeros(3)}, "penalty: expected (), (2,) or (2, 4), got shape (3,)"),
    ({"penalty": torch.zeros(2, 4, 1)}, "penalty: expected (), (2,) or (2, 4), got shape (2, 4, 1)"),
]

CALLS = [(c, *bad) for c in CRITERIA for bad in BAD] + [(c, *bad) for c in STARRED for bad in BAD_STAR]


@pytest.mark.parametrize(
    ("criterion", "change", "message"), [pytest.param(*call, id=f"{call[0]}: {call[2]}") for call in CALLS]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_messages(backend: str, criterion: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        loss_of(criterion)(**{"backend": backend} | GOOD | change)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_they_are_changes_of_is_good(backend: str, criterion: str) -> None:
    assert loss_of(criterion)(**GOOD, backend=backend).isfinite()


@pytest.mark.parametrize("module", [starseq.STCLoss, starseq.CTCLoss, starseq.SelflessCTCLoss])
@pytest.mark.parametrize("option", ["reduction", "backend"])
def test_modules_refuse_when_made(module: Any, option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}: 'nothing' is none of"):
        module(**{option: "nothing"})


def test_values_past_the_lengths_are_not_refused() -> None:
    penalty = torch.tensor([[-1.0] * 4, [-1.0, -1.0, -1.0, NAN]])
    targets = torch.tensor([[1, 2, 3], [3, 1, cases.POISON]])
    assert published_loss(**GOOD | {"targets": targets}, penalty=penalty).isfinite()


# --- a backend that cannot run raises, by name ------------------------------------------------------------------------


def test_numba_off_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"^backend: 'numba' runs on the CPU, the logits are on meta$"):
        published_loss(**GOOD | {"logits": GOOD["logits"].to("meta")}, backend="numba")


def test_triton_off_cuda() -> None:
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"^backend: 'triton' runs on CUDA, the logits are on cpu$"):
        published_loss(**GOOD, backend="triton")


def test_triton_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^backend: 'triton' is not installed$"):
        published_loss(**GOOD, backend="triton")


def test_auto_is_numba_on_the_cpu() -> None:
    losses = [published_loss(**GOOD, backend=backend) for backend in ("auto", "numba")]
    assert torch.equal(*losses)


@pytest.mark.parametrize("label", [4, -1, 10**6, 0], ids=str)
@pytest.mark.parametrize("backend", cases.FAST)
def test_a_bad_label_that_nobody_checked_is_impossible(backend: str, label: int) -> None:
    """As on a GPU without `validate`: inf, gradient 0 and no read out of bounds; the other utterance stays as it is."""
    from starseq.op import Options, score

    logits = torch.randn(B, T, V, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2], [3, label]])
    lengths, penalty = (torch.tensor([5, 5]), torch.tensor([2, 2])), torch.full((B, 3), -0.5)
    results = []
    for y in (targets, torch.tensor([[1, 2], [3, 3]])):
        x = logits.clone().requires_grad_()
        options = Options("stc", False, batch_first=True, inserted=True, reduction="none", backend=backend)
        loss, inserted = score((x, y, *lengths, penalty), options)
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), x)[0], inserted))
    (loss, grad, inserted), good = results
    assert loss[1] == INF
    assert not grad[1].any()
    assert not inserted[1].any()
    torch.testing.assert_close((loss[0], grad[0], inserted[0]), tuple(x[0] for x in good))
