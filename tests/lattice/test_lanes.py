"""Numbers in lanes: what is read, written, chosen and summed, up to the last element and not beyond."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from starseq.lattice.lanes_numba import (
    LANES,
    ROWS,
    alike,
    each,
    every,
    largest,
    load,
    load_each,
    load_lanes,
    load_rows,
    narrow,
    select,
    spread,
    store,
    store_rows,
    total,
    turn,
    widen,
    width,
)

SIZES = [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES - 2]


@numba.njit
def _choose(truth, a, b, out, like):
    """truth ? a + 2 : b / a, one vector after the other."""
    for i in range(0, out.size, width(like)):
        x, y = load(a, i, 1.0, like), load(b, i, 1.0, like)
        store(select(load(truth, i, 0.0, like), x + 2.0, y / x), out, i)


@numba.njit
def _sum_and_largest(x, like):
    sums, top = widen(every(0.0, like)), every(-np.inf, like)
    for i in range(0, x.size, width(like)):
        here = load(x, i, 0.0, like)
        sums = sums + widen(here)
        found = narrow(widen(load(x, i, -np.inf, like)), like)
        top = select((found > top) & (found == found), found, top)
    return total(sums), largest(top)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("like", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_read_choose_and_write_within_bounds(dtype, like, size) -> None:
    """Memory on both sides of every array is poisoned, or must not change. float64 may be computed either way."""
    if dtype == np.float32 and like == np.float64:
        pytest.skip("float32 is never computed one by one")
    random = np.random.default_rng(0)

    def inside(fill, values):
        around = np.full(size + 2 * LANES, fill, values.dtype)
        around[LANES : LANES + size] = values
        return around, around[LANES : LANES + size]

    _, a = inside(np.nan, np.exp(random.normal(size=size)).astype(dtype))
    _, b = inside(np.nan, random.normal(size=size).astype(dtype))
    _, truth = inside(True, random.random(size) < 0.5)
    around, out = inside(7.0, np.zeros(size, dtype))
    _choose(truth, a, b, out, np.empty(0, like))
    np.testing.assert_array_equal(out, np.where(truth, a + dtype(2), b / a))
    assert (around[:LANES] == 7).all()
    assert (around[LANES + size :] == 7).all()


@pytest.mark.parametrize("like", [np.float32, np.float64])
def test_contiguous_arrays_alone(like) -> None:
    with pytest.raises(TypeError, match="lanes are read from contiguous arrays"):
        _sum_and_largest(np.zeros(8, like)[::2], np.empty(0, like))


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("like", [np.float32, np.float64])
def test_sums_and_largest(like, size) -> None:
    x = np.random.default_rng(1).normal(size=size).astype(like)
    sums, top = _sum_and_largest(x, np.empty(0, like))
    assert sums == pytest.approx(x.astype(np.float64).sum(), abs=1e-12)
    assert top == x.max()


@numba.njit
def _less_largest(flat, places, length, out, out_places, numbers):
    """out = row - its largest; numbers: the largest of each row, and the sum of the row with 100 times that."""
    top = load_rows(flat, places, 0, length, -np.inf)
    for i in range(LANES, length, LANES):
        here = load_rows(flat, places, i, length - i, -np.inf)
        top = select(here > top, here, top)
    store(widen(largest(top)), numbers, 0)
    highest = load_each(numbers, 0)
    sums = widen(alike(0.0, top))
    for i in range(0, length, LANES):
        here = load_rows(flat, places, i, length - i, 0.0)
        sums = sums + widen(here)
        store_rows(here - spread(narrow(highest, flat)), out, out_places, i, length - i)
    factors = each((100.0, 100.0, 100.0, 100.0))
    store(total(sums) + highest * factors, numbers, ROWS)


@pytest.mark.parametrize("size", SIZES[1:])
def test_several_rows(size: int) -> None:
    """Rows anywhere, also one twice; what lies between them is poisoned, or must not change."""
    random = np.random.default_rng(2)
    starts = np.array([3, 0, 2, 2]) * (size + 5) + 1
    flat = np.full(4 * (size + 5) + 2, np.nan, np.float32)
    for start in starts:
        flat[start : start + size] = random.normal(size=size)
    rows = np.stack([flat[start : start + size] for start in starts])
    numbers, out = np.full(2 * ROWS + 1, 7.0), np.full(flat.size + ROWS, 7, np.float32)
    _less_largest(flat, tuple(starts), size, out, tuple(starts + ROWS), numbers)
    np.testing.assert_array_equal(numbers[:ROWS], rows.max(1))
    np.testing.assert_allclose(numbers[ROWS:-1], rows.sum(1, dtype=np.float64) + 100 * rows.max(1).astype(np.float64))
    assert numbers[-1] == 7
    expected = np.full_like(out, 7)
    for start, row in zip(starts + ROWS, rows, strict=True):
        expected[start : start + size] = row - row.max()
    np.testing.assert_array_equal(out, expected)


@numba.njit
def _turned(source, at, step, rows, columns, out, to, out_step):
    turn(source, at, step, rows, columns, out, to, out_step)


@pytest.mark.parametrize("rows", [1, 7, LANES])
@pytest.mark.parametrize("columns", [1, LANES // 2, LANES // 2 + 1, LANES])
def test_turn(rows: int, columns: int) -> None:
    """Nothing past the columns is read or written; past the rows the last is repeated."""
    matrix = np.random.default_rng(3).normal(size=(rows, columns))
    source = np.full(2 + rows * (columns + 3), np.nan)
    source[2:].reshape(rows, -1)[:, :columns] = matrix
    source = source[: source.size - 3]  # nor is there anything after the last
    out = np.full((columns + 1, LANES + 2), 7.0)
    _turned(source, 2, columns + 3, rows, columns, out.reshape(-1), 1, LANES + 2)
    expected = np.full_like(out, 7)
    expected[:columns, 1 : LANES + 1] = matrix[np.minimum(np.arange(LANES), rows - 1)].T
    np.testing.assert_array_equal(out, expected)


@numba.njit
def _twice(x, out):
    for i in range(0, out.size, LANES):
        store(load_lanes(x, i) + load_lanes(x, i), out, i)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_of_either_precision(dtype) -> None:
    x = np.arange(LANES + 3).astype(dtype)
    out = np.empty_like(x)
    _twice(x, out)
    np.testing.assert_array_equal(out, 2 * x)
