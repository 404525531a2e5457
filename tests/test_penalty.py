"""The insertion penalty: the formula of the schedule, what the adaptive rule counts and finds, and how both are saved."""

from __future__ import annotations

import copy
import itertools
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

from starseq import AdaptivePenalty, InsertionPenalty, STCLoss
from starseq.penalty import LOOKS, look_numba, look_torch
from starseq.penalty.look_torch import find_read, move


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


def look(penalty: AdaptivePenalty, *batch: Any, times: int = 1, **options: Any) -> None:
    """So many looks: a call that is due, and those up to the next."""
    for _ in range(times * LOOKS):
        penalty.observe(*batch, batch_first=True, **options)


def test_what_it_counts() -> None:
    """Labels 1 and 3 are read, with 2 between them; label 4 is not; and what lies past the length is not looked at."""
    penalty = AdaptivePenalty()
    logits = one_hot([[1, 0, 2, 2, 0, 3, 0, 0, 4, 4]], 5)
    logits[:, 7:] = math.nan
    look(penalty, logits, torch.tensor([[1, 3, 4, -9]]), torch.tensor([7]), torch.tensor([3]))
    found, read, labels, gaps, probability = penalty.counts.tolist()
    assert [found, read, labels, gaps] == [2, 3, 3, 3]
    sure = math.exp(9) / (math.exp(9) + 4)
    assert probability == pytest.approx(2 * sure + (1 - sure) / 4, abs=1e-6)


def test_closed_gaps_and_utterances_that_say_nothing() -> None:
    """Of the gaps of two labels one of three is open; the second utterance has no label, the third no path."""
    penalty = AdaptivePenalty()
    logits, targets = one_hot([[1, 3, 2], [3, 0, 3], [1, 2, 3]], 4), torch.tensor([[1, 2, 0, 0], [0] * 4, [1, 2, 3, 1]])
    open_gaps = torch.tensor([[False, True, False, True, True], [True] * 5, [True] * 5])
    look(penalty, logits, targets, (3, 3, 3), (2, 0, 4), open_gaps=open_gaps)
    assert penalty.counts[:4].tolist() == pytest.approx([2, 3, 2, 2 / 3])
    closed = AdaptivePenalty(p0=0.5)
    look(closed, logits, targets, (3, 3, 3), (2, 0, 4), open_gaps=torch.zeros_like(open_gaps), times=5)
    assert closed().exp().item() == pytest.approx(0.5)  # without an open gap nothing can be missing


def test_it_takes_what_the_loss_takes() -> None:
    """Time first, batch first, one utterance alone, joined targets, lengths in tuples."""
    logits, targets = one_hot([[1, 0, 2], [3, 3, 0]], 4), torch.tensor([[1, 2], [3, 0]])
    first, second, third, alone = (AdaptivePenalty() for _ in range(4))
    first.observe(logits, targets, (3, 2), (2, 1), batch_first=True)
    second.observe(logits.transpose(0, 1), targets, torch.tensor([3, 2]), torch.tensor([2, 1]))
    third.observe(logits, torch.tensor([1, 2, 3]), (3, 2), (2, 1), batch_first=True, max_target_length=2)
    assert first.counts.tolist() == second.counts.tolist() == third.counts.tolist()
    assert first.counts[:4].tolist() == [3, 3, 3, 3]
    alone.observe(logits[0], targets[0], (3,), (2,))
    assert alone.counts[:4].tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="input_lengths: expected 2 integers"):
        AdaptivePenalty().observe(logits, targets, (3,), (2, 1), batch_first=True)
    with pytest.raises(ValueError, match="logits: expected floating point"):
        AdaptivePenalty().observe(logits[0, 0], targets, (3,), (2, 1), batch_first=True)


def by_the_equations(looks: list[tuple[float, float, float, float, float]], p0: float = 0.94) -> float:
    """The rule of the docstring in plain numbers; each look: found, read, labels, gaps, probability."""
    total, sure, held, x = [0.0] * 5, 0.2, 1.0, math.log(p0 / (1 - p0))
    for counts in looks:
        total = [0.9 * old + new for old, new in zip(total, counts, strict=True)]
        found, read, labels, gaps, probability = total
        missing = 1 - (found / labels) ** 2 * gaps / (gaps + max(read - found, 0))
        if probability / labels > sure:
            past = (sure / (probability / labels)) ** 32
            sure, held = probability / labels, past * held + (1 - past) * missing
        if sure > 0.2:
            share = min(max(held + max(held - missing, 0), 1e-6), 0.95)
            p = min(max(share ** (1 / (1 + 1.75 * sure**6)), 0.02), 0.94)
            x += min(max(math.log(p / (1 - p)) - x, -0.04), 0.04)
    return 1 / (1 + math.exp(-x))


@given(seed=st.integers(0, 10**6))
def test_it_moves_by_its_equations(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    looks = []
    penalty = AdaptivePenalty()
    for _ in range(60):
        labels = 20 + 10 * torch.rand((), generator=generator).item()
        found, sure, more = torch.rand(3, generator=generator).tolist()
        looks.append((found * labels, labels * 3 * more, labels, labels, sure * labels))
        move(torch.tensor([looks[-1]]), *penalty.buffers(), penalty.p_min, penalty.p_max, penalty.rate, 1.0)
    assert penalty().exp().item() == pytest.approx(by_the_equations(looks), abs=1e-6)


def reading_of(text: Tensor, sure: float = 9.0) -> Tensor:
    """Logits of a model that reads the text, with a blank after each token."""
    return one_hot([torch.stack((text, torch.zeros_like(text)), dim=1).reshape(-1).tolist()], 30, sure=sure)


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.5, 0.7])
def test_it_finds_the_share_that_is_missing(missing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    penalty = AdaptivePenalty(rate=0.3)
    for _ in range(60):
        text = torch.randint(1, 30, (200,), generator=generator)
        labels = text[torch.rand(200, generator=generator) >= missing]
        look(penalty, reading_of(text), labels[None], (400,), (len(labels),))
    assert penalty().exp().item() == pytest.approx(max(missing ** (1 / 2.75), 0.02), abs=0.03)


def test_holes_that_are_learned_by_heart_do_not_lower_p() -> None:
    """Half is missing. Once it reads all, the model reads a token less of those without a label at every look."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, 30, (200,), generator=generator)
    has_label = torch.arange(200) % 2 == 0
    labels = text[has_label]
    penalty = AdaptivePenalty()
    look(penalty, reading_of(text), labels[None], (400,), (100,), times=60)
    at_its_best = penalty()
    for forgotten in range(1, 100, 2):
        gone = (~has_label).nonzero()[:forgotten, 0]
        look(penalty, reading_of(text.index_fill(0, gone, 0)), labels[None], (400,), (100,))
        assert penalty() >= at_its_best - 0.01
    assert penalty() > at_its_best + 0.1


def test_a_model_that_reads_nothing_leaves_p_where_it_began() -> None:
    penalty = AdaptivePenalty(p0=0.9)
    look(penalty, one_hot([[0, 0, 0]], 4), torch.tensor([[1]]), (3,), (1,), times=50)
    assert penalty().exp().item() == pytest.approx(0.9)


def some_batch(seed: int, most: int = 12) -> tuple[Any, ...]:
    """What `look` takes, of any kind, of so many frames at most: logits, targets, lengths, open gaps, log-odds, blank."""
    generator = torch.Generator().manual_seed(seed)
    B, T, V, U = (
        int(torch.randint(*bounds, (), generator=generator)) for bounds in ((1, 4), (1, most), (2, 40), (1, 8))
    )
    blank, factor = int(torch.randint(V, (), generator=generator)), (0.0, 1.0, 3.0, 200.0)[seed % 4]
    logits = (factor * torch.randn(T, B, V, generator=generator)).to(
        (torch.float32, torch.float64, torch.float16)[seed % 3]
    )
    logits[:, 0] = math.nan if seed % 11 == 10 else logits[:, 0]
    targets = torch.randint(V - 1, (B, U), generator=generator)
    frames, labels = (torch.randint(n + 1, (B,), generator=generator) for n in (T, U))
    open_gaps = torch.rand(B, U + 1, generator=generator) < 0.5 if seed % 2 else None
    log_odds = 2 * torch.randn((), generator=generator, dtype=torch.float64)
    return logits.transpose(0, 1), targets + (targets >= blank), frames, labels, open_gaps, log_odds, blank


@pytest.mark.parametrize("seed", range(44))
def test_both_ways_on_a_cpu_see_the_same(seed: int) -> None:
    batch = some_batch(seed, most=60)
    expected = look_torch.look(*batch).double()
    torch.testing.assert_close(look_numba.look(*batch), expected, atol=1e-5, rtol=1e-5)


def best_by_hand(x: Tensor, target: list[int], p: float) -> tuple[int, ...]:
    """The frames of the labels on the best path: every other frame is blank, or any token but the next label."""
    P, best = x.double().softmax(1), (-1.0, ())
    for frames in itertools.combinations(range(len(x)), len(target)):
        weight = 1.0
        for t, row in enumerate(P):
            if t in frames:
                weight *= float(row[target[frames.index(t)]])
            else:
                following = sum(frame < t for frame in frames)
                left_out = float(row[target[following]]) if following < len(target) else 0.0
                weight *= float(row[0]) + p * (1 - float(row[0]) - left_out)
        best = max(best, (weight, frames))
    return best[1]


@pytest.mark.parametrize("seed", range(8))
def test_labels_lie_where_the_best_of_all_paths_puts_them(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, target = 2 * torch.randn(7, 5, generator=generator), torch.randint(1, 5, (3,), generator=generator).tolist()
    token, _ = find_read(x[None], torch.tensor([7]), threshold=0.3)
    frames = best_by_hand(x, target, 0.6)
    P = [float(x[t].softmax(0)[v]) for t, v in zip(frames, target, strict=True)]
    log_odds = torch.tensor(math.log(0.6 / 0.4), dtype=torch.float64)
    for way in (look_torch, look_numba):
        arguments = torch.tensor([target]), torch.tensor([7]), torch.tensor([3]), None, log_odds, 0
        found = way.look(x[None], *arguments)[0].tolist()
        assert found[0] == sum(int(token[0, t]) != 0 for t in frames)
        assert found[4] == pytest.approx(sum(P), abs=1e-5)


def test_what_is_not_finite_is_not_counted() -> None:
    penalty, batch = AdaptivePenalty(), (torch.tensor([[1]]), (3,), (1,))
    look(penalty, torch.full((1, 3, 4), math.nan), *batch)
    assert penalty.counts.tolist() == [0.0] * 5
    look(penalty, one_hot([[1, 0, 0]], 4), *batch)
    assert penalty.counts.isfinite().all()


@pytest.mark.parametrize("padding", [0, 5, 99, 2**40, -100])
def test_padding_is_not_read(padding: int) -> None:
    penalty = AdaptivePenalty()
    look(penalty, one_hot([[1, 0, 2], [3, 0, 0]], 5), torch.tensor([[1, 2], [3, padding]]), (3, 3), (2, 1))
    assert penalty.counts[:4].tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 3, 5)])
def test_batches_without_anything(shape: tuple[int, int, int]) -> None:
    criterion, batch = STCLoss(batch_first=True, zero_infinity=True, reduction="sum"), shape[0]
    lengths = torch.full((batch,), shape[1])
    targets = torch.ones(batch, 2, dtype=torch.int64)
    assert criterion(torch.zeros(shape, requires_grad=True), targets, lengths, lengths.clamp(max=2)) == 0
    assert not criterion.penalty.counts.any()


def test_an_utterance_without_frames_spoils_no_other() -> None:
    penalty, logits = AdaptivePenalty(), one_hot([[1, 0, 2], [3, 0, 0]], 5)
    logits[1] = math.nan
    look(penalty, logits, torch.tensor([[1, 2], [3, 0]]), (3, 0), (2, 1))
    assert penalty.counts[:4].tolist() == [2, 2, 2, 2]


def test_it_looks_at_one_call_in_four() -> None:
    penalty, seen = AdaptivePenalty(), []
    for _ in range(9):
        before = penalty.counts.clone()
        penalty.observe(one_hot([[1, 0, 2]], 4), torch.tensor([[1]]), (3,), (1,), batch_first=True)
        seen.append(not torch.equal(before, penalty.counts))
    assert seen == [True, False, False, False] * 2 + [True]


def test_the_adaptive_rule_is_saved_whole_and_stays_exact_in_a_model_of_low_precision() -> None:
    batch = (one_hot([[1, 2, 0]], 4), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1]))
    penalty = AdaptivePenalty()
    for _ in range(7):  # in the middle of four
        penalty.observe(*batch, batch_first=True)
    resumed = AdaptivePenalty()
    resumed.load_state_dict(penalty.state_dict())
    in_model = torch.nn.ModuleDict({"penalty": pickle.loads(pickle.dumps(penalty))}).to(torch.bfloat16)["penalty"]
    for _ in range(10):
        for rule in (penalty, resumed, in_model):
            rule.observe(*batch, batch_first=True)
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
        ({"p0": 0.01}, "p0: 0.01 is not between p_min 0.02 and p_max 0.94"),
        ({"rate": 0.0}, "rate: 0.0 is not a positive number"),
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
    assert not penalty.counts.any()


def _train_in_a_process(rank: int, port: int, folder: str) -> None:
    """The criterion is part of the model, whose buffers are made those of the first process at every forward."""
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.Module()
    model.scale, model.criterion = torch.nn.Parameter(torch.ones(())), STCLoss(batch_first=True)
    model.forward = lambda logits, *rest: model.criterion(logits * model.scale, *rest)
    together = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(9):  # gradients are accumulated
        together(*_share_of(rank)).backward()
    torch.save(model.criterion.penalty.state_dict(), Path(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


def _share_of(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    reading = [[1, 2, 0, 3], [2, 0, 2, 2]][rank]
    return one_hot([reading], 4), torch.tensor([[2]]), torch.tensor([4]), torch.tensor([1])


def test_two_processes_have_one_penalty(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_train_in_a_process, (port, str(tmp_path)), nprocs=2)
    alone = AdaptivePenalty()
    both = [torch.cat(x) for x in zip(_share_of(0), _share_of(1), strict=True)]
    for _ in range(9):
        alone.observe(*both, batch_first=True)
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(value, state[name])


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
            look(one, logits, torch.tensor([[2]]), (3,), (1,))
        else:
            one.advance()
    assert made() == begun()
    made.reset_parameters()
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in penalty().state_dict().items())


# --- the criterion that owns one --------------------------------------------------------------------------------------


def batch(V: int = 6, T: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(V)
    logits = torch.randn(2, T, V, generator=generator).requires_grad_()
    return logits, torch.tensor([[1, 2, 3], [2, 1, 0]]), torch.tensor([T, T - 2]), torch.tensor([3, 2])


def state(criterion: STCLoss) -> list[Any]:
    return [value.tolist() for value in criterion.state_dict().values()]


def test_the_criterion_observes_what_it_scores_in_training() -> None:
    criterion, alone = STCLoss(batch_first=True), AdaptivePenalty()
    for _ in range(6):
        criterion(*batch()).backward()
        alone.observe(*batch(), batch_first=True)
    assert criterion.penalty.counts[2] > 0
    assert all(
        torch.equal(value, criterion.state_dict()[f"penalty.{name}"]) for name, value in alone.state_dict().items()
    )


@pytest.mark.parametrize("case", ["eval", "no_grad", "no gradient", "override", "number", "tensor", "module"])
def test_when_it_does_not_observe(case: str) -> None:
    own = {"number": -0.5, "tensor": torch.tensor(-0.5), "module": schedule(0.3)}
    criterion = STCLoss(batch_first=True, penalty=own.get(case, "adaptive"))
    before, (logits, *rest) = state(criterion), batch()
    if case == "eval":
        criterion.eval()
    with torch.set_grad_enabled(case != "no_grad"):
        given = {"penalty": -0.3} if case == "override" else {}
        loss = criterion(logits.detach() if case == "no gradient" else logits, *rest, **given)
    assert loss.isfinite()
    assert state(criterion) == before


def test_a_copy_goes_its_own_way_and_a_resumed_one_the_same() -> None:
    criterion = STCLoss(batch_first=True)
    for _ in range(5):
        criterion(*batch())
    copied, resumed = copy.deepcopy(criterion), STCLoss(batch_first=True)
    resumed.load_state_dict(criterion.state_dict())
    for _ in range(7):
        criterion(*batch()), resumed(*batch())
    assert state(criterion) == state(resumed) != state(copied)


def test_accumulated_gradients_are_those_of_one_batch_at_the_same_penalty() -> None:
    logits, *rest = batch()
    whole = STCLoss(batch_first=True, reduction="sum")
    whole(logits, *rest).backward()
    expected, parts = logits.grad.clone(), STCLoss(batch_first=True, reduction="sum")
    logits.grad = None
    for b in range(2):
        parts(logits[b : b + 1], *(x[b : b + 1] for x in rest)).backward()
    # The first part was looked at, which moves p by at most `rate` before the second is scored.
    torch.testing.assert_close(logits.grad[0], expected[0])
    torch.testing.assert_close(logits.grad[1], expected[1], atol=0.02, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    logits, *rest = batch()
    criterion = STCLoss(batch_first=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert criterion(logits.to(dtype), *rest).isfinite()
    assert criterion.penalty.counts[2] == 5
    assert criterion.penalty.log_odds.dtype == torch.float64


def test_compiled_it_is_one_graph_and_moves_as_in_eager_mode() -> None:
    eager, inner = STCLoss(batch_first=True), STCLoss(batch_first=True)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(inner, fullgraph=True, backend="aot_eager")
    for _ in range(10):
        torch.testing.assert_close(compiled(*batch()), eager(*batch()))
    assert state(eager) == state(inner)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_the_blanks_must_agree() -> None:
    with pytest.raises(ValueError, match="blank: the loss has 4 and its penalty 0"):
        STCLoss(blank=4, penalty=AdaptivePenalty())


def test_marked_gaps_are_closed_but_for_the_open_ones_and_still_tune_the_star() -> None:
    logits, *rest = batch()
    open_gaps = torch.tensor([[True, False, True, False], [False, False, True, True]])
    criterion, given = STCLoss(batch_first=True), STCLoss(batch_first=True)
    by_hand = torch.where(open_gaps, criterion.penalty(), -torch.inf)
    assert torch.equal(criterion(logits, *rest, open_gaps=open_gaps), given(logits, *rest, penalty=by_hand))
    assert criterion.penalty.counts[3] == pytest.approx(3 * 2 / 4 + 2 * 1 / 3)  # past its labels no gap is counted
    one_each = given(logits, *rest, penalty=torch.tensor([-0.5, -0.7]), open_gaps=open_gaps)
    by_hand = torch.where(open_gaps, torch.tensor([[-0.5], [-0.7]]), -torch.inf)
    assert torch.equal(one_each, given(logits, *rest, penalty=by_hand))
    for wrong, name in ((open_gaps.float(), "torch.float32"), (open_gaps.tolist(), "list")):
        with pytest.raises(ValueError, match=rf"open_gaps: expected a tensor of bools, \(B, U\+1\), got {name}"):
            criterion(logits, *rest, open_gaps=wrong)
