"""exp and log1p as compilers see them, and log-sums built on them, for numbers and for lanes of numbers.

Sums are kept in float64 throughout; only the correction terms, which are small, are computed in the working precision. That is
given by `like`, an array: float32 takes polynomials (relative error about 1e-7), float64 takes the C library.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from starseq.lattice import notice_numba  # noqa: F401  # which listens from now on
from starseq.lattice.lanes_numba import (
    Lanes,
    largest,
    load,
    narrow,
    nearest,
    select,
    split,
    widen,
    width,
)
from starseq.numba_cache import kept

# Nobody calls a kernel from C: one wrapper less to compile.
OPTIONS: dict[str, Any] = {
    "nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True,
}  # fmt: skip
# `contract` allows fused multiply-adds and nothing else: infinities, NaN and the order of sums stay as written. Without numba's
# run-time (`_nrt`) nothing can be allocated, but a slice costs no counting of references, which is as much as a short loop.
jit: Any = partial(kept, fastmath={"contract"}, _nrt=False, **OPTIONS)
# For what is called at every frame: an array is seven arguments, and handing over a few costs as much as a short loop. (Not for
# all: what is inlined is compiled anew in each place.) Such a function has no wrapper for Python either: never call it from there.
jit_inline: Any = partial(kept, fastmath={"contract"}, _nrt=False, forceinline=True, no_cpython_wrapper=True, **OPTIONS)
# For the outermost functions, which allocate scratch space.
jit_outer: Any = partial(kept, **OPTIONS)

_ROUND = np.float32(1.4426950408889634)  # 1 / ln 2
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_SMALLEST, _LARGEST = np.float32(-87.33654), np.float32(88.0)
_LOW = np.float32(-87)
_ZERO, _ONE, _TWO, _HALF = np.float32(0), np.float32(1), np.float32(2), np.float32(0.5)
_INF = np.float32(np.inf)
_LN2, _LOWEST = math.log(2), -1.7976931348623157e308
# exp(r) for |r| <= ln 2 / 2, and atanh(z) / z in powers of z^2 for |z| <= 1/3, interpolated at Chebyshev nodes.
_E3, _E4 = np.float32(0.16666415333747864), np.float32(0.04166635125875473)
_E5, _E6 = np.float32(0.00837512593716383), np.float32(0.0013941108481958508)
_D2, _D3, _D4 = 0.5000000013465808, 0.16666666681623266, 0.04166646492528329
_D5, _D6, _D7 = 0.008333310925471906, 0.0013933649996558323, 0.0001989099083122203
_FAR = 708.0  # e^-708 is a normal float64
_A1, _A2 = np.float32(0.3333316147327423), np.float32(0.20012298226356506)
_A3, _A4 = np.float32(0.13982579112052917), np.float32(0.14078889787197113)


@jit_inline
def _exp_float32(x: Any) -> Any:
    bounded = select(x < _SMALLEST, _SMALLEST, x)
    bounded = select(bounded > _LARGEST, _LARGEST, bounded)
    n, two_to_the_n = nearest(bounded * _ROUND)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    power = _ONE + (r + r * r * (_HALF + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
    result = select(x < _SMALLEST, _ZERO, power * two_to_the_n)
    return select(x > _LARGEST, _INF, result)


@jit_inline
def exp_down(x: Any) -> Any:
    """e^x of float32 lanes that are not positive (what is has any result), and 0 below e^-87: in fewer steps than `exp`."""
    bounded = select(x < _LOW, _LOW, x)
    n, two_to_the_n = nearest(bounded * _ROUND)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    power = _ONE + r * (_ONE + r * (_HALF + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
    return select(x < _LOW, _ZERO, power * two_to_the_n)


@jit_inline
def _exp_float64(x: Any) -> Any:
    bounded = select(x < -_FAR, -_FAR, x)
    bounded = select(bounded > _FAR, _FAR, bounded)
    n, two_to_the_n = nearest(bounded * (1.0 / _LN2))
    r = bounded - n * _LN2
    power = 1.0 + (r + r * r * (_D2 + r * (_D3 + r * (_D4 + r * (_D5 + r * (_D6 + r * _D7))))))
    result = select(x < -_FAR, 0.0, power * two_to_the_n)
    return select(x > _FAR, np.inf, result)


@jit_inline
def _log1p_float32(x: Any) -> Any:
    z = x / (_TWO + x)
    q = z * z
    return _TWO * (z + z * q * (_A1 + q * (_A2 + q * (_A3 + q * _A4))))


def exp(x: Any) -> Any:
    """e^x in the precision of x, lanes of float64 to 3e-10; in float32 0 below the smallest normal number, inf above e^88."""
    raise NotImplementedError("compiled code only")


def log1p(x: Any) -> Any:
    """log(1 + x) in the precision of x, for -1/2 <= x <= 1 in float32."""
    raise NotImplementedError("compiled code only")


def log(x: Any) -> Any:
    """The logarithm of float64 numbers or lanes; of lanes to 1e-7, for positive numbers that are not subnormal."""
    raise NotImplementedError("compiled code only")


@overload(exp)  # type: ignore[untyped-decorator]
def _overload_exp(x: Any) -> Any:
    # numba wants the parameters of template and implementation to match, annotations included.
    def polynomial(x: Any) -> Any:
        return _exp_float32(x)

    def library(x: Any) -> Any:
        return math.exp(x)

    def double_polynomial(x: Any) -> Any:
        return _exp_float64(x)

    if x == types.float64:
        return library
    return double_polynomial if isinstance(x, Lanes) and x.dtype == types.float64 else polynomial


@overload(log1p)  # type: ignore[untyped-decorator]
def _overload_log1p(x: Any) -> Any:
    def polynomial(x: Any) -> Any:
        return _log1p_float32(x)

    def library(x: Any) -> Any:
        return math.log1p(x)

    return library if x == types.float64 else polynomial


@jit_inline
def _log_lanes(x: Any) -> Any:
    mantissa, power = split(x)
    return power * _LN2 + widen(_log1p_float32(narrow(mantissa - 1.0, x)))


@overload(log)  # type: ignore[untyped-decorator]
def _overload_log(x: Any) -> Any:
    def lanes(x: Any) -> Any:
        return _log_lanes(x)

    def library(x: Any) -> Any:
        return math.log(x)

    return lanes if isinstance(x, Lanes) else library


@jit_inline
def logaddexp(a: Any, b: Any, like: Any) -> Any:
    """log(e^a + e^b) for float64 a and b; -inf twice gives -inf, NaN gives NaN."""
    larger, smaller = select(b > a, b, a), select(b > a, a, b)
    base = select(larger < _LOWEST, _LOWEST, larger)  # -inf less -inf would be NaN
    return larger + widen(log1p(exp(narrow(smaller - base, like))))


@jit_inline
def maximum(values: Any, like: Any) -> Any:
    """The largest value of a contiguous array, as float64; -inf for none. NaN is passed over or returned, as it falls."""
    if values.size == 0:
        return -np.inf
    top = load(values, 0, -np.inf, like)
    for i in range(width(like), values.size, width(like)):
        here = load(values, i, -np.inf, like)
        top = select(here > top, here, top)
    return np.float64(largest(top))
