"""The insertion penalty: the formula of the schedule, what the adaptive rule counts and finds, and how both are saved."""

from __future__ import annotations

import math
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from starseq import AdaptivePenalty, InsertionPenalty
from starseq.penalty import find_read


def schedule(p0: float = 0.5) -> InsertionPenalty:
    return InsertionPenalty(p0, p_max=0.9, half_life=10_000)


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
    penalty = schedule()
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
    penalty = schedule()
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
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(2, 2), "penalty": schedule()})
    for _ in range(3):
        model["penalty"].advance()
    assert model.state_dict()["penalty.step"] == 3
    model.to(torch.bfloat16)  # floats only: a step counted in bfloat16 would stop at 256
    assert model["penalty"].step.dtype == torch.int64
    assert torch.equal(model["penalty"](), schedule()(3))
    assert not list(model["penalty"].parameters())


def test_device() -> None:
    assert schedule().to("meta")().device.type == "meta"
    assert schedule().to("meta")(3).device.type == "meta"


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
        InsertionPenalty(**{"p0": 0.5, "p_max": 0.9, "half_life": 9, **arguments})
    assert str(error.value) == message


def test_repr() -> None:
    assert repr(InsertionPenalty(0.5, 0.9, 10_000)) == "InsertionPenalty(p0=0.5, p_max=0.9, half_life=10000)"


# --- the adaptive rule ------------------------------------------------------------------------------------------------


def one_hot(readings: list[list[int]], V: int, *, sure: float = 9.0) -> Tensor:
    """Logits (B, T, V) whose best tokens are the readings, 0 is the blank."""
    logits = torch.zeros(len(readings), max(map(len, readings)), V)
    for b, reading in enumerate(readings):
        logits[b, torch.arange(len(reading)), torch.tensor(reading, dtype=torch.long)] = sure
    return logits


def read_slowly(logits: Tensor, lengths: Tensor, threshold: float, blank: int) -> list[list[tuple[int, bool]]]:
    """`find_read` as one would say it."""
    found = []
    for frames, length in zip(logits.tolist(), lengths.tolist(), strict=True):
        last, marks = blank, []
        for t, frame in enumerate(frames):
            token = max((v for v in range(len(frame)) if v != blank), key=lambda v: frame[v])
            share = math.exp(frame[token]) / (math.exp(frame[token]) + math.exp(frame[blank]))
            token = token if share > threshold and t < length else blank
            marks.append((token, token not in (blank, last)))
            last = token
        found.append(marks)
    return found


@given(data=st.data())
def test_reading_is_found_as_one_would_say_it(data: st.DataObject) -> None:
    B, T, V = (data.draw(st.integers(*bounds)) for bounds in ((1, 3), (1, 9), (2, 5)))
    blank, threshold = data.draw(st.integers(0, V - 1)), data.draw(st.sampled_from((0.1, 0.3, 0.5, 0.8)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    logits = 2 * torch.randn(B, T, V, generator=generator)
    lengths = torch.randint(0, T + 1, (B,), generator=generator)
    token, begins = find_read(logits, lengths, threshold=threshold, blank=blank)
    assert torch.stack((token, begins), dim=2).tolist() == [
        [list(marks) for marks in row] for row in read_slowly(logits, lengths, threshold, blank)
    ]


def test_what_it_counts() -> None:
    """Labels 1 and 3 are read, with 2 between them; label 4 is not; and what lies past the length is not looked at."""
    penalty = AdaptivePenalty()
    logits = one_hot([[1, 0, 2, 2, 0, 3, 0, 0, 4, 4]], 5)
    logits[:, 7:] = math.nan
    penalty.observe(logits, torch.tensor([[1, 3, 4, -9]]), torch.tensor([7]), torch.tensor([3]), batch_first=True)
    assert penalty.upcoming.tolist() == [2, 3, 3]


def test_it_takes_what_the_loss_takes() -> None:
    """Time first, batch first, one utterance alone, joined targets, lengths in tuples."""
    logits, targets = one_hot([[1, 0, 2], [3, 3, 0]], 4), torch.tensor([[1, 2], [3, 0]])
    first, second, third, alone = (AdaptivePenalty() for _ in range(4))
    first.observe(logits, targets, (3, 2), (2, 1), batch_first=True)
    second.observe(logits.transpose(0, 1), targets, torch.tensor([3, 2]), torch.tensor([2, 1]))
    third.observe(logits, torch.tensor([1, 2, 3]), (3, 2), (2, 1), batch_first=True)
    assert first.upcoming.tolist() == second.upcoming.tolist() == third.upcoming.tolist() == [3, 3, 3]
    alone.observe(logits[0], targets[0], (3,), (2,))
    assert alone.upcoming.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="input_lengths: expected 2 integers"):
        first.observe(logits, targets, (3,), (2, 1), batch_first=True)
    with pytest.raises(ValueError, match="logits: expected floating point"):
        first.observe(logits[0, 0], targets, (3,), (2, 1), batch_first=True)


def test_counts_fade_with_the_window() -> None:
    penalty = AdaptivePenalty(window=2)
    penalty.observe(
        one_hot([[1, 0, 2]], 4), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]), batch_first=True
    )
    for share in (1, 0.5, 0.25):
        penalty.advance()
        assert penalty.counts.tolist() == [share, 2 * share, share]


def test_an_utterance_without_any_path_is_read_but_has_no_labels() -> None:
    penalty = AdaptivePenalty()
    penalty.observe(
        one_hot([[1, 2]], 4), torch.tensor([[1, 2, 3]]), torch.tensor([2]), torch.tensor([3]), batch_first=True
    )
    assert penalty.upcoming.tolist() == [0, 2, 0]


@pytest.mark.parametrize("p0", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.5, 0.7])
def test_it_finds_the_share_that_is_missing_from_above_and_from_below(p0: float, missing: float) -> None:
    """A model that reads every token, one that is half sure as one beside a p that is too low, and one that repeats each."""
    generator = torch.Generator().manual_seed(0)
    for sure, repeats in ((9.0, 1), (0.0, 1), (9.0, 2)):
        penalty = AdaptivePenalty(p0=p0, rate=0.1, window=20)
        for _ in range(100):
            text = torch.randint(1, 30, (200,), generator=generator)
            labels = text[torch.rand(200, generator=generator) >= missing]
            frames = torch.stack((*[text] * repeats, torch.zeros_like(text)), dim=1).reshape(-1)
            logits = one_hot([frames.tolist()], 30)
            logits[..., 0] = torch.where(frames == 0, 9.0, 9.0 - sure)
            penalty.observe(
                logits, labels[None], torch.tensor([len(frames)]), torch.tensor([len(labels)]), batch_first=True
            )
            penalty.advance()
        assert penalty().exp().item() == pytest.approx(max(missing, penalty.p_min), abs=0.03)


def test_a_model_that_reads_nothing_gets_all_the_freedom() -> None:
    penalty = AdaptivePenalty(p0=0.1)
    for _ in range(700):
        penalty.observe(
            one_hot([[0, 0, 0]], 4), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]), batch_first=True
        )
        penalty.advance()
    assert penalty().exp().item() == pytest.approx(penalty.p_max)


def test_it_moves_once_a_step_by_the_batches_of_the_step_together() -> None:
    apart, together = AdaptivePenalty(window=2), AdaptivePenalty(window=2)
    readings, labels = [[1, 0, 2], [3, 0, 0], [2, 2, 1]], torch.tensor([[1], [3], [2]])
    lengths, ones = torch.tensor([3, 1, 3]), torch.tensor([1, 1, 1])
    for _ in range(5):
        together.observe(one_hot(readings, 4), labels, lengths, ones, batch_first=True)
        for b in range(3):
            apart.observe(
                one_hot(readings, 4)[b : b + 1],
                labels[b : b + 1],
                lengths[b : b + 1],
                ones[b : b + 1],
                batch_first=True,
            )
            assert torch.equal(apart(), together())
        apart.advance(), together.advance()
        assert torch.equal(apart(), together())
    assert apart.step == 5


def test_the_adaptive_rule_is_saved_whole_and_stays_exact_in_a_model_of_low_precision() -> None:
    batch = (one_hot([[1, 2, 0]], 4), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]))
    penalty = AdaptivePenalty()
    for _ in range(7):
        penalty.observe(*batch, batch_first=True), penalty.advance()
    penalty.observe(*batch, batch_first=True)  # in the middle of a step
    resumed = AdaptivePenalty()
    resumed.load_state_dict(penalty.state_dict())
    in_model = torch.nn.ModuleDict({"penalty": pickle.loads(pickle.dumps(penalty))}).to(torch.bfloat16)["penalty"]
    for _ in range(5):
        for rule in (penalty, resumed, in_model):
            rule.observe(*batch, batch_first=True), rule.advance()
        assert torch.equal(penalty(), resumed())
        assert torch.equal(penalty(), in_model())
    assert penalty.to("meta")().device.type == "meta"


def test_nan_is_not_read() -> None:
    logits = torch.full((1, 3, 4), math.nan)
    assert not find_read(logits, torch.tensor([3]))[0].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p0": 1.0}, "p0: 1.0 is not a probability in (0, 1)"),
        ({"threshold": 0.0}, "threshold: 0.0 is not a probability in (0, 1)"),
        ({"p0": 0.01}, "p0: 0.01 is not between p_min 0.02 and p_max 0.95"),
        ({"rate": 0.0}, "rate: 0.0 is not a positive number"),
        ({"window": math.inf}, "window: inf is not a number of steps"),
        ({"window": 0.5}, "window: 0.5 is not a number of steps"),
        ({"blank": -1}, "blank: -1 is not a token"),
    ],
)
def test_bad_arguments_of_the_adaptive_rule(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        AdaptivePenalty(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_lengths": (6, 5)}, "input_lengths: 6 for utterance 0 is outside 0..5, the frames of the logits"),
        ({"target_lengths": (2, 3)}, "target_lengths: 3 for utterance 1 is outside 0..2, the width of the targets"),
        ({"target_lengths": (-2, 2)}, "target_lengths: -2 for utterance 0 is outside 0..2, the width of the targets"),
        (
            {"targets": torch.tensor([[1, 2], [9, 1]])},
            "targets: label 9 at (utterance, position) (1, 0) is outside 0..3",
        ),
        ({"targets": torch.tensor([[1, 2], [1, 0]])}, "targets: label 0 at (utterance, position) (1, 1) is the blank"),
        ({"blank": 4}, "blank: 4 is outside 0..3, the vocabulary"),
    ],
)
def test_what_it_looks_at_is_checked_as_in_the_loss(changes: dict[str, Any], message: str) -> None:
    good = {"targets": torch.tensor([[1, 2], [2, 1]]), "input_lengths": (5, 5), "target_lengths": (2, 2)}
    penalty = AdaptivePenalty(blank=changes.pop("blank", 0))
    with pytest.raises(ValueError, match=re.escape(message)):
        penalty.observe(torch.zeros(2, 5, 4), **{**good, **changes}, batch_first=True)
    assert not penalty.upcoming.any()


def test_what_has_seen_nothing_stays() -> None:
    penalty = AdaptivePenalty()
    before = penalty()
    for _ in range(20):
        penalty.advance()
    assert penalty() == before


def _observe_in_a_process(rank: int, port: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    penalty = AdaptivePenalty()
    model = torch.nn.Linear(1, 1)
    model.penalty = penalty  # part of the model, whose buffers are made those of the first process at every forward
    together = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):  # gradients are accumulated
        together(torch.ones(1, 1)).sum().backward()
        penalty.observe(*_share_of(rank), batch_first=True)
    penalty.advance()
    torch.save(penalty.state_dict(), Path(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


def _share_of(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    reading = [[1, 2, 0, 3], [2, 0, 2, 2]][rank]
    return one_hot([reading], 4), torch.tensor([[2]]), torch.tensor([4]), torch.tensor([1])


def test_two_processes_count_together(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_observe_in_a_process, (port, str(tmp_path)), nprocs=2)
    alone = AdaptivePenalty()
    for rank in range(4):
        alone.observe(*_share_of(rank % 2), batch_first=True)
    alone.advance()
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert all(torch.equal(value, state[name]) for name, value in alone.state_dict().items())


@pytest.mark.parametrize("penalty", [lambda: schedule(0.3), AdaptivePenalty])
def test_who_makes_modules_without_memory_can_set_them_to_their_beginning(penalty: Callable[[], Any]) -> None:
    """As transformers does: buffers that a checkpoint lacks come one by one, and hold anything."""
    with torch.device("meta"):
        made = penalty()
    for name, buffer in list(made._buffers.items()):
        made._buffers[name] = torch.full_like(buffer, 12345, device="cpu")
    made.reset_parameters()
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in penalty().state_dict().items())
    logits = one_hot([[1, 0, 2]], 4)
    for one in (made, begun := penalty()):
        if isinstance(one, AdaptivePenalty):
            one.observe(logits, torch.tensor([[2]]), (3,), (1,), batch_first=True)
        one.advance()
    assert made() == begun()
    made.reset_parameters()
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in penalty().state_dict().items())
