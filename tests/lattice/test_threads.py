"""Work is cut into pieces that cover the range once, whatever the number of threads; errors come back."""

from __future__ import annotations

import threading

import pytest
import torch

from starseq.lattice import threads


@pytest.mark.parametrize("items", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("cost", [0, 10**9])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_item_once(items: int, cost: int, count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    done: list[int] = []
    try:
        threads.run(lambda begin, end, out: out.extend(range(begin, end)), items, cost, done)
    finally:
        torch.set_num_threads(before)
    assert sorted(done) == list(range(items))


def test_little_work_stays_in_this_thread() -> None:
    seen: list[str] = []
    threads.run(lambda begin, end: seen.append(threading.current_thread().name), 100, 10)
    assert seen == [threading.current_thread().name]


def test_an_error_in_a_piece_is_raised() -> None:
    def fail(begin: int, end: int) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        threads.run(fail, 100, 10**9)
