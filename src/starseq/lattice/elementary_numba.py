"""exp and log1p that compilers vectorise, and log-sums built on them.

Sums are kept in float64 throughout; only the correction terms, which are small, are computed in the working precision. That is
given by `like`, an array: float32 takes polynomials (relative error about 1e-7), float64 takes the C library.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
# `contract` allows fused multiply-adds and nothing else: infinities, NaN and the order of sums stay as written. Without numba's
# run-time (`_nrt`) nothing can be allocated, but a slice costs no counting of references, which is as much as a short loop.
jit = numba.njit(fastmath={"contract"}, _nrt=False, **_OPTIONS)
# Sums may also be split into lanes, in an order that the compiler fixes: what vectorises a reduction.
jit_sum = numba.njit(fastmath={"contract", "reassoc"}, _nrt=False, **_OPTIONS)
# For the outermost functions, which allocate scratch space.
jit_outer = numba.njit(**_OPTIONS)

_ROUND = np.float32(1.4426950408889634)  # 1 / ln 2
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_SMALLEST, _LARGEST = np.float32(-87.33654), np.float32(88.0)
_ZERO, _ONE, _TWO, _HALF = np.float32(0), np.float32(1), np.float32(2), np.float32(0.5)
_INF = np.float32(np.inf)
# exp(r) for |r| <= ln 2 / 2, and atanh(z) / z in powers of z^2 for |z| <= 1/3, interpolated at Chebyshev nodes.
_E3, _E4 = np.float32(0.16666415333747864), np.float32(0.04166635125875473)
_E5, _E6 = np.float32(0.00837512593716383), np.float32(0.0013941108481958508)
_A1, _A2 = np.float32(0.3333316147327423), np.float32(0.20012298226356506)
_A3, _A4 = np.float32(0.13982579112052917), np.float32(0.14078889787197113)


def _bitcast(source: Any, target: Any, target_ir: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def reinterpret(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], target_ir)

        return target(source), generate

    return reinterpret


_bits = _bitcast(types.float32, types.int32, ir.IntType(32))
_from_bits = _bitcast(types.int32, types.float32, ir.FloatType())


@jit
def _exp_float32(x: Any) -> Any:
    bounded = _SMALLEST if x < _SMALLEST else x
    bounded = _LARGEST if bounded > _LARGEST else bounded
    n = np.floor(bounded * _ROUND + _HALF)
    n = n if n == n else _ZERO  # the conversion of NaN to an integer is undefined; `r` carries it on
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    power = _ONE + (r + r * r * (_HALF + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
    result = power * _from_bits((np.int32(n) + np.int32(127)) << np.int32(23))  # times 2^n, made of its bits
    result = _ZERO if x < _SMALLEST else result
    return _INF if x > _LARGEST else result


@jit
def _log1p_float32(x: Any) -> Any:
    z = x / (_TWO + x)
    q = z * z
    return _TWO * (z + z * q * (_A1 + q * (_A2 + q * (_A3 + q * _A4))))


def exp(x: float) -> float:
    """e^x in the precision of x; in float32 0 below the smallest normal number, inf above e^88."""
    raise NotImplementedError("compiled code only")


def log1p(x: float) -> float:
    """log(1 + x) in the precision of x, for -1/2 <= x <= 1 in float32."""
    raise NotImplementedError("compiled code only")


@overload(exp)  # type: ignore[untyped-decorator]
def _overload_exp(x: Any) -> Any:
    # numba wants the parameters of template and implementation to match, annotations included.
    def polynomial(x: Any) -> Any:
        return _exp_float32(x)

    def library(x: Any) -> Any:
        return math.exp(x)

    return polynomial if x == types.float32 else library


@overload(log1p)  # type: ignore[untyped-decorator]
def _overload_log1p(x: Any) -> Any:
    # numba wants the parameters of template and implementation to match, annotations included.
    def polynomial(x: Any) -> Any:
        return _log1p_float32(x)

    def library(x: Any) -> Any:
        return math.log1p(x)

    return polynomial if x == types.float32 else library


@jit
def logaddexp(a: Any, b: Any, like: Any) -> Any:
    """log(e^a + e^b) for float64 a and b; -inf twice gives -inf, NaN gives NaN."""
    larger = b if b > a else a
    smaller = a if b > a else b
    nothing = (a == -np.inf) & (b == -np.inf)
    correction = np.float64(log1p(exp(like.dtype.type(smaller - larger))))
    return -np.inf if nothing else larger + correction


@jit_sum
def sum_exp(values: Any, shift: Any) -> Any:
    """The sum of exp(values - shift), computed in the precision of the values."""
    total = values.dtype.type(0)
    for i in range(values.size):
        total += exp(values[i] - shift)
    return np.float64(total)


def maximum(values: Any) -> Any:
    """The largest value of an array; -inf for none. NaN is passed over or returned, as it falls."""
    raise NotImplementedError("compiled code only")


@jit
def _maximum_float32(values: Any) -> Any:
    # As integers, floats of either sign keep their order once the negative ones have their lower bits flipped; and integer
    # maxima vectorise, which those of floats do not, because of NaN.
    top = np.int32(-0x7F800001)  # -inf
    for i in range(values.size):
        bits = _bits(values[i])
        key = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
        top = key if key > top else top
    return _from_bits(np.int32(top ^ ((top >> np.int32(31)) & np.int32(0x7FFFFFFF))))


@jit
def _maximum_float64(values: Any) -> Any:
    even, odd = -np.inf, -np.inf  # two chains of comparisons instead of one: half the latency
    for i in range(values.size // 2):
        even = values[2 * i] if values[2 * i] > even else even
        odd = values[2 * i + 1] if values[2 * i + 1] > odd else odd
    if values.size % 2:
        last = values[values.size - 1]
        even = last if last > even else even
    return even if even > odd else odd


@overload(maximum)  # type: ignore[untyped-decorator]
def _overload_maximum(values: Any) -> Any:
    def single(values: Any) -> Any:
        return _maximum_float32(values)

    def double(values: Any) -> Any:
        return _maximum_float64(values)

    return single if values.dtype == types.float32 else double


@jit
def log_remainder(total: Any, part: Any, like: Any) -> Any:
    """log(e^total - e^part) where part is at most half of total, so that the difference keeps its digits."""
    share = exp(like.dtype.type(part - total))
    correction = np.float64(log1p(-share))
    return total if part == -np.inf else total + correction
