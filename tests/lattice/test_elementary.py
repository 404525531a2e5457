"""exp, log1p and what is built on them, over the whole range of float32 and at its special values."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest

from starseq.lattice import elementary_numba as elementary

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
def _maximum(x):
    return elementary.maximum(x)


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
            assert _maximum(x) == x.max()
    for values in ([-INF], [-INF, -1e38], [-INF, -INF, INF], [0.0, -0.0], [-1e-38, -INF]):
        x = np.array(values, dtype)
        assert _maximum(x) == x.max()
    assert _maximum(np.empty(0, dtype)) == -INF
