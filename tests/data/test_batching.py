"""Batches: every item once an epoch over all ranks, within the budget, the same after a resume."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starseq.data.batching import BatchSampler, split_evenly

sizes = st.lists(st.floats(0.1, 60.0), min_size=1, max_size=120)
worlds = st.integers(1, 5)


def ranks(world: int, *args, **kwargs) -> list[list[list[int]]]:
    return [list(BatchSampler(*args, rank=rank, world=world, **kwargs)) for rank in range(world)]


@given(sizes, worlds, st.integers(0, 3), st.booleans(), st.floats(1.0, 240.0))
@settings(max_examples=150, deadline=None)
def test_every_item_exactly_once_over_all_ranks(sizes, world, seed, shuffle, budget):
    plan = ranks(world, sizes, seed=seed, shuffle=shuffle, budget=budget, buckets=5)
    assert len({len(batches) for batches in plan}) == 1  # equally many: no rank waits for ever
    batches = [batch for part in plan for batch in part]
    assert all(batches)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= budget * (1 + 1e-9)
    items = sorted(i for batch in batches for i in batch)
    if len(items) == len(sizes):
        assert items == list(range(len(sizes)))
    else:  # too few items to split: fewer than `world` single batches come twice
        assert set(items) == set(range(len(sizes)))
        assert len(items) - len(sizes) < world
        assert all(len(batch) == 1 for batch in batches)


@given(sizes, worlds, st.integers(0, 2), st.data())
@settings(max_examples=100, deadline=None)
def test_resume_in_mid_epoch_gives_the_remaining_batches(sizes, world, epoch, data):
    rank = data.draw(st.integers(0, world - 1))
    make = lambda: BatchSampler(sizes, budget=100.0, seed=7, rank=rank, world=world)  # noqa: E731
    whole = make()
    whole.set_epoch(epoch)
    batches = list(whole)
    done = data.draw(st.integers(0, len(batches)))
    state = whole.state_dict(done)
    random.seed(data.draw(st.integers()))  # whatever else has drawn random numbers meanwhile
    torch.manual_seed(0)
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == batches[done:]
    assert list(resumed) == batches  # the pass after is whole again
    resumed.set_epoch(epoch + 1)
    whole.set_epoch(epoch + 1)
    assert list(resumed) == list(whole)


def test_epochs_and_seeds_differ_and_repeat():
    sizes = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 20 + 1
    a, b = BatchSampler(sizes), BatchSampler(sizes)
    first = list(a)
    assert first == list(b) == list(a)
    a.set_epoch(1)
    assert list(a) != first
    assert list(BatchSampler(sizes, seed=1)) != first


def test_batches_are_shuffled_bucketed_and_the_ranks_are_balanced():
    rng = np.random.default_rng(0)
    sizes = rng.gamma(4.0, 3.0, 5_000)
    plan = ranks(4, sizes, budget=240.0, seed=1)
    padded = sum(len(b) * max(sizes[i] for i in b) for part in plan for b in part)
    assert sizes.sum() / padded > 0.93  # little is padding
    longest = np.array([[max(sizes[i] for i in batch) for batch in part] for part in plan])
    assert np.median(longest.max(axis=0) / longest.min(axis=0)) < 1.2  # one step, about one size
    assert abs(np.corrcoef(np.arange(longest.shape[1]), longest[0])[0, 1]) < 0.3  # not sorted by length


def test_unshuffled_is_longest_first():
    assert list(BatchSampler([1.0, 3.0, 2.0], budget=None, max_items=2, shuffle=False)) == [[1, 2], [0]]


def test_an_item_larger_than_the_budget_is_a_batch():
    batches = list(BatchSampler([300.0, 1.0, 2.0], budget=240.0))
    assert [0] in batches
    assert len(batches) == 2


def test_state_of_other_data_is_refused():
    state = BatchSampler([1.0, 2.0, 3.0]).state_dict(1)
    for other in (
        BatchSampler([1.0, 2.0, 4.0]),
        BatchSampler([1.0, 2.0, 3.0], seed=1),
        BatchSampler([1.0, 2.0, 3.0], world=2),
    ):
        with pytest.raises(ValueError, match="other data, seed, batch settings or number of ranks"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"0\.\.1 batches; got 2"):
        BatchSampler([1.0]).state_dict(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world": 2}, "rank is one of 0..1; got 2"),
        ({"budget": None}, "batches need a bound"),
        ({"budget": 0.0}, "budget=0.0"),
        ({"max_items": 0}, "max_items=0"),
        ({"sizes": [1.0, float("nan")]}, "item 1 has nan"),
        ({"sizes": [-1.0]}, "item 0 has -1.0"),
        ({"sizes": [[1.0]]}, r"shape \(1, 1\)"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        BatchSampler(**{"sizes": [1.0, 2.0], **options})


def test_split_evenly_and_empty():
    assert split_evenly([], 3) == []
    assert list(BatchSampler([])) == []
    assert [len(b) for b in split_evenly([list(range(8))], 4)] == [2, 2, 2, 2]
