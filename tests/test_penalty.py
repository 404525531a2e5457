"""The schedule of the insertion penalty: its formula, its step, and how it is saved."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from starseq import InsertionPenalty


@pytest.mark.parametrize(
    ("p0", "p_max", "half_life"), [(0.5, 0.9, 10_000), (0.1, 0.3, 8000), (0.7, 0.2, 3), (1.0, 1.0, 1)]
)
@pytest.mark.parametrize("step", [0, 1, 3, 8000, 10_000, 10**7])
def test_formula(p0: float, p_max: float, half_life: float, step: int) -> None:
    p = p_max + (p0 - p_max) * 2 ** (-step / half_life)
    penalty = InsertionPenalty(p0, p_max, half_life)(step)
    assert penalty.shape == ()
    assert penalty.dtype == torch.float32
    assert penalty.item() == pytest.approx(math.log(p), rel=1e-6, abs=1e-7)
    assert penalty <= 0


def test_the_schedule_moves_at_every_step_in_its_later_half() -> None:
    """In float32 arithmetic p would stand still long before it is there."""
    penalty = InsertionPenalty(p0=0.5, p_max=0.9, half_life=10_000)
    late = [penalty(step).item() for step in range(100_000, 140_000, 10_000)]
    assert late == sorted(set(late))


def test_calling_with_a_step_is_pure() -> None:
    penalty = InsertionPenalty()
    before = penalty()
    assert torch.equal(penalty(torch.tensor(500)), penalty(500))
    assert penalty(500) > before
    assert torch.equal(penalty(), before)
    assert penalty.step == 0


def test_advance_is_one_optimiser_step() -> None:
    """With gradients accumulated over two batches, the schedule moves once for both."""
    penalty = InsertionPenalty(p0=0.1, p_max=0.9, half_life=2)
    seen = []
    for batch in range(6):
        seen.append(penalty().item())
        if batch % 2 == 1:
            penalty.advance()
    expected = [penalty(step).item() for step in (0, 0, 1, 1, 2, 2)]
    assert seen == expected


def test_the_values_given_out_do_not_change_later() -> None:
    """What the loss saved for its backward must be what it was called with."""
    penalty = InsertionPenalty()
    first = penalty()
    kept = first.clone()
    penalty.advance()
    assert torch.equal(first, kept)
    assert not torch.equal(penalty(), kept)


def test_a_resumed_run_goes_on() -> None:
    penalty = InsertionPenalty(p0=0.1, p_max=0.9, half_life=5)
    for _ in range(7):
        penalty.advance()
    resumed = InsertionPenalty(p0=0.1, p_max=0.9, half_life=5)
    resumed.load_state_dict(penalty.state_dict())
    for other in (resumed, pickle.loads(pickle.dumps(penalty))):
        assert torch.equal(other(), penalty(7))
        other.advance()
        assert torch.equal(other(), penalty(8))
    assert list(penalty.state_dict()) == ["step"]


def test_a_model_carries_its_state_and_its_dtype_does_not_matter() -> None:
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(2, 2), "penalty": InsertionPenalty()})
    for _ in range(3):
        model["penalty"].advance()
    assert model.state_dict()["penalty.step"] == 3
    model.to(torch.bfloat16)  # floats only: a step counted in bfloat16 would stop at 256
    assert model["penalty"].step.dtype == torch.int64
    assert torch.equal(model["penalty"](), InsertionPenalty()(3))
    assert not list(model["penalty"].parameters())


def test_device() -> None:
    assert InsertionPenalty().to("meta")().device.type == "meta"
    assert InsertionPenalty().to("meta")(3).device.type == "meta"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p0": 0.0}, "p0: 0.0 is not a probability in (0, 1]"),
        ({"p0": 1.1}, "p0: 1.1 is not a probability in (0, 1]"),
        ({"p0": math.nan}, "p0: nan is not a probability in (0, 1]"),
        ({"p_max": -0.5}, "p_max: -0.5 is not a probability in (0, 1]"),
        ({"p_max": 2}, "p_max: 2 is not a probability in (0, 1]"),
        ({"half_life": 0}, "half_life: 0 is not a positive number of steps"),
        ({"half_life": -3}, "half_life: -3 is not a positive number of steps"),
        ({"half_life": math.inf}, "half_life: inf is not a positive number of steps"),
    ],
)
def test_bad_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        InsertionPenalty(**arguments)
    assert str(error.value) == message


def test_repr() -> None:
    assert repr(InsertionPenalty(0.5, 0.9, 10_000)) == "InsertionPenalty(p0=0.5, p_max=0.9, half_life=10000)"
