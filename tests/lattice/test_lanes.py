"""Numbers in lanes: what is read, written, chosen and summed, up to the last element and not beyond."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from starseq.lattice.lanes_numba import LANES, every, largest, load, narrow, select, store, total, widen, width

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


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("like", [np.float32, np.float64])
def test_sums_and_largest(like, size) -> None:
    x = np.random.default_rng(1).normal(size=size).astype(like)
    sums, top = _sum_and_largest(x, np.empty(0, like))
    assert sums == pytest.approx(x.astype(np.float64).sum(), abs=1e-12)
    assert top == x.max()
