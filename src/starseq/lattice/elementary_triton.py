"""The log-sums of elementary_numba as Triton sees them: float64 sums, corrections in float32 unless EXACT."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """log(1 + x) for -1/2 <= x <= 1, without the digits that 1 + x loses in float32: 2 atanh(x / (2 + x))."""
    if x.dtype == tl.float64:
        return tl.log(1.0 + x)
    else:
        z = x / (2.0 + x)
        q = z * z
        series = q * (0.3333316147 + q * (0.2001229823 + q * (0.1398257911 + q * 0.1407888979)))
        return 2.0 * (z + z * series)


@triton.jit
def exp_of(x, EXACT: tl.constexpr):
    """e^x of a float64, as a float64 if EXACT, else as a float32."""
    if EXACT:
        return tl.exp(x)
    else:
        return tl.exp(x.to(tl.float32))


@triton.jit
def logaddexp(a, b, EXACT: tl.constexpr):
    """log(e^a + e^b) for float64 a and b; -inf twice gives -inf, NaN gives NaN."""
    larger = tl.where(b > a, b, a)
    smaller = tl.where(b > a, a, b)
    nothing = (a == float("-inf")) & (b == float("-inf"))
    correction = log1p(exp_of(smaller - larger, EXACT)).to(tl.float64)
    return tl.where(nothing, float("-inf"), larger + correction)


@triton.jit
def log_remainder(total, part, EXACT: tl.constexpr):
    """log(e^total - e^part) where part is at most half of total."""
    correction = log1p(-exp_of(part - total, EXACT)).to(tl.float64)
    return tl.where(part == float("-inf"), total, total + correction)


@triton.jit
def log_sum(values, EXACT: tl.constexpr):
    """The log-sum of a vector of float64 with its own maximum."""
    top = tl.max(values, axis=0)
    shift = tl.where(top > float("-inf"), top, 0.0)
    total = tl.sum(exp_of(values - shift, EXACT).to(tl.float64), axis=0)
    return shift + tl.log(total)


@triton.jit
def split(norm):
    """A float64 as two float32, so that `probability` loses nothing of it."""
    first = norm.to(tl.float32)
    return first, (norm - first.to(tl.float64)).to(tl.float32)


@triton.jit
def probability(x, first, second):
    """e^(x - norm) in float32, of a norm that `split` has split."""
    return tl.exp((x.to(tl.float32) - first) - second)


@triton.jit
def some_of(x_ptr, stride_t, STRIDE_V: tl.constexpr, norm_ptr, t, token, frames):
    """The probabilities of tokens at frames t, (frames, tokens); 0 outside of the frames, and of tokens below 0."""
    inside = (t >= 0) & (t < frames)
    first, second = split(tl.load(norm_ptr + t, mask=inside, other=0.0))
    place = t.to(tl.int64)[:, None] * stride_t + token.to(tl.int64)[None, :] * STRIDE_V
    x = tl.load(x_ptr + place, mask=inside[:, None] & (token >= 0)[None, :], other=float("-inf"))
    return probability(x, first[:, None], second[:, None])
