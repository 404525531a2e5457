"""exp, log1p and what is built on them, over the whole range of float32 and at its special values."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest

from starseq.lattice import elementary_numba as elementary
from starseq.lattice.lanes_numba import load, narrow, store, width

INF, NAN = np.inf, np.nan


@numba.njit
def _exp(x, out):
    for i in range(x.size):
        out[i] = elementary.exp(x[i])


@numba.njit
def _log1p(x, out):
    for i in range(x.size):
        out[i] = elementary.log1p(x[i])


@numba.njit
def _logaddexp(a, b, like):
    return elementary.logaddexp(a, b, like)


@numba.njit
def _maximum(x, like):
    return elementary.maximum(x, like)


@numba.njit
def _over_lanes(a, b, exps, log1ps, logs, sums, like):
    for i in range(0, a.size, width(like)):
        x, y = load(a, i, 0.0, like), load(b, i, 0.0, like)
        store(elementary.exp(narrow(x, like)), exps, i)
        store(elementary.log1p(narrow(y, like)), log1ps, i)
        store(elementary.logaddexp(x, y, like), sums, i)
        store(elementary.log(load(logs, i, 1.0, like)), logs, i)


def over(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp(dtype) -> None:
    x = np.linspace(-87, 87, 200_001).astype(dtype)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(over(_exp, x) / exact - 1).max() < (3e-7 if dtype == np.float32 else 1e-15)


def test_exp_at_the_edges() -> None:
    x = np.array([0.0, -0.0, -INF, INF, NAN, -1e30, 1e30, -87.4, -104.0, 88.1, 1e-30], np.float32)
    np.testing.assert_array_equal(over(_exp, x), np.array([1, 1, 0, INF, NAN, 0, INF, 0, 0, INF, 1], np.float32))


@numba.njit
def _exp_down(x, out):
    for i in range(0, x.size, width(x)):
        store(elementary.exp_down(load(x, i, 0.0, x)), out, i)


def test_exp_down() -> None:
    x = np.linspace(-87, 0, 200_001).astype(np.float32)
    assert np.abs(over(_exp_down, x) / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    edges = np.array([0.0, -0.0, -INF, NAN, -1e30, -87.1, -104.0, -1e-30], np.float32)
    np.testing.assert_array_equal(over(_exp_down, edges), np.array([1, 1, 0, NAN, 0, 0, 0, 1], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log1p(dtype) -> None:
    x = np.linspace(-0.5, 1, 200_001).astype(dtype)
    x = x[x != 0]
    exact = np.log1p(x.astype(np.float64))
    assert np.abs(over(_log1p, x) / exact - 1).max() < (3e-7 if dtype == np.float32 else 1e-15)
    small = np.array([1e-30, -1e-20, 0.0], dtype)
    np.testing.assert_array_equal(over(_log1p, small), small)


@pytest.mark.parametrize("like", [np.float32, np.float64])
def test_logaddexp(like) -> None:
    for a, b in [
        (0.0, 0.0),
        (-3.0, 5.0),
        (-36000.0, -36000.5),
        (1.0, -INF),
        (-INF, 2.0),
        (-INF, -INF),
        (700.0, -700.0),
    ]:
        for x, y in ((a, b), (b, a)):
            ours, exact = _logaddexp(x, y, np.empty(0, like)), np.logaddexp(a, b)
            assert ours == exact or math.isclose(
                ours, exact, abs_tol=1e-7 if like == np.float32 else 1e-15, rel_tol=1e-15
            )
    for a, b in [(NAN, 0.0), (0.0, NAN), (NAN, -INF), (-INF, NAN), (NAN, NAN)]:
        assert math.isnan(_logaddexp(a, b, np.empty(0, like)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximum(dtype) -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 3, 8, 17, 100):
        for values in (random.normal(size=size), -np.exp(random.normal(size=size)), np.exp(random.normal(size=size))):
            x = values.astype(dtype)
            assert _maximum(x, x) == x.max()
    for values in ([-INF], [-INF, -1e38], [-INF, -INF, INF], [0.0, -0.0], [-1e-38, -INF]):
        x = np.array(values, dtype)
        assert _maximum(x, x) == x.max()
    assert _maximum(np.empty(0, dtype), np.empty(0, dtype)) == -INF


@pytest.mark.parametrize("size", [1, 15, 16, 17, 40])
def test_lanes_do_as_numbers(size) -> None:
    """The same functions on whole vectors and their masked ends, special values among them."""
    random = np.random.default_rng(size)
    for trial in range(20):
        a, b, logs = (
            30 * random.normal(size=size),
            random.uniform(-0.5, 1, size=size),
            np.exp(100 * random.normal(size=size)),
        )
        if trial % 2:
            a[random.integers(size)], b[random.integers(size)] = random.choice([INF, -INF, NAN, -200.0, 100.0]), 0.0
        exact = np.log(logs)
        exps, log1ps, sums = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size)
        _over_lanes(a, b, exps, log1ps, logs, sums, np.empty(0, np.float32))
        np.testing.assert_array_equal(exps, over(_exp, a.astype(np.float32)))
        np.testing.assert_array_equal(log1ps, over(_log1p, b.astype(np.float32)))
        np.testing.assert_array_equal(
            sums, [_logaddexp(x, y, np.empty(0, np.float32)) for x, y in zip(a, b, strict=True)]
        )
        np.testing.assert_allclose(logs, exact, rtol=1e-15, atol=1e-7)


@numba.njit
def _exp_of_doubles(x, out, like):
    for i in range(0, x.size, width(like)):
        store(elementary.exp(load(x, i, 0.0, like)), out, i)


def test_exp_of_lanes_of_float64() -> None:
    x = np.linspace(-708, 708, 100_001)
    out = np.empty_like(x)
    _exp_of_doubles(x, out, np.empty(0, np.float32))
    assert np.abs(out / np.exp(x) - 1).max() < 1e-9
    edges = np.array([0.0, -0.0, -INF, INF, NAN, -708.1, 708.1, 1e300, -1e300])
    out = np.empty_like(edges)
    _exp_of_doubles(edges, out, np.empty(0, np.float32))
    np.testing.assert_array_equal(out, np.array([1, 1, 0, INF, NAN, 0, INF, INF, 0]))
