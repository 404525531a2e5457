"""Several numbers in one register: a type for compiled code that is added, compared and chosen from like a number.

Loops over two dozen states are too short for what a compiler makes of them: several vectors at a time, the remainder one by one.
Here loops are written over whole vectors, and the last one is masked:

    for i in range(0, out.size, width(like)):
        store(load(a, i, 0.0, like) + load(b, i, 0.0, like), out, i)

`like` is an array whose type says how to compute. float32: LANES elements at a time, float32 or float64. float64: one by one, as
plain numbers, for the C library's functions; so the same code does for both.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

LANES = 16  # float32: one register of AVX-512, two of AVX2. Compilers split what is too wide for a machine.

# Not strict: else the annotations of a template would have to be those of the function that it returns.
_overload = functools.partial(overload, strict=False)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.boolean: ir.IntType(1)}
_SUFFIX = {
    types.float32: f"v{LANES}f32", types.float64: f"v{LANES}f64", types.boolean: f"v{LANES}i8",
}  # fmt: skip


class Lanes(types.Type):  # type: ignore[misc]
    """LANES numbers, or truths, of one type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)  # type: ignore[untyped-decorator]
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, ir.VectorType(_ELEMENTS[fe_type.dtype], LANES))


_SINGLE, _DOUBLE, _TRUTHS = Lanes(types.float32), Lanes(types.float64), Lanes(types.boolean)


def _constants(kind: Any, values: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, len(values)), list(values))


def _splat(builder: Any, value: Any) -> Any:
    """The number in every lane."""
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, nothing, _constants(_I32, [0] * LANES))


def _alike(context: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """The values as lanes: numbers among them are brought to the others' type and put into every lane."""
    lanes = next(kind for kind in kinds if isinstance(kind, Lanes))
    return [
        value if isinstance(kind, Lanes) else _splat(builder, context.cast(builder, value, kind, lanes.dtype))
        for kind, value in zip(kinds, values, strict=True)
    ]


def _binary(operation: Any, instruction: Callable[[Any, Any, Any], Any], truth: bool = False) -> None:
    """Makes an operator work on lanes, where one side may be a number."""

    @intrinsic  # type: ignore[untyped-decorator]
    def apply(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return instruction(builder, *_alike(context, builder, signature.args, arguments))

        return (_TRUTHS if truth else a if isinstance(a, Lanes) else b)(a, b), generate

    @_overload(operation)  # type: ignore[untyped-decorator]
    def _template(a: Any, b: Any) -> Any:
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            return lambda a, b: apply(a, b)
        return None


_FUSED = (
    "contract",
)  # allows fused multiply-adds and nothing else: infinities, NaN and the order of sums stay as written
_binary(operator.add, lambda builder, a, b: builder.fadd(a, b, flags=_FUSED))
_binary(operator.sub, lambda builder, a, b: builder.fsub(a, b, flags=_FUSED))
_binary(operator.mul, lambda builder, a, b: builder.fmul(a, b, flags=_FUSED))
_binary(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))
_binary(operator.lt, lambda builder, a, b: builder.fcmp_ordered("<", a, b), truth=True)
_binary(operator.gt, lambda builder, a, b: builder.fcmp_ordered(">", a, b), truth=True)
_binary(operator.eq, lambda builder, a, b: builder.fcmp_ordered("==", a, b), truth=True)
_binary(operator.and_, lambda builder, a, b: builder.and_(a, b), truth=True)


def width(like: Any) -> int:
    """How many elements `load` reads."""
    raise NotImplementedError("compiled code only")


def load(array: Any, i: int, fill: float, like: Any) -> Any:
    """Elements i, i+1, ... of a contiguous array; `fill` in the lanes past its end. Truths are false there."""
    raise NotImplementedError("compiled code only")


def store(value: Any, array: Any, i: int) -> None:
    """Writes what lies within the array."""
    raise NotImplementedError("compiled code only")


def prefetch(array: Any, i: int) -> None:
    """Says that element i will soon be read or written; it need not exist."""
    raise NotImplementedError("compiled code only")


def select(truth: Any, a: Any, b: Any) -> Any:
    """a where it is true, else b, lane by lane."""
    raise NotImplementedError("compiled code only")


def narrow(x: Any, like: Any) -> Any:
    """float64 in the precision of `like`."""
    raise NotImplementedError("compiled code only")


def widen(x: Any) -> Any:
    """As float64."""
    raise NotImplementedError("compiled code only")


def every(number: float, like: Any) -> Any:
    """The number in every lane, in the precision of `like`."""
    raise NotImplementedError("compiled code only")


def total(x: Any) -> float:
    """The sum of the lanes, in a fixed order."""
    raise NotImplementedError("compiled code only")


def largest(x: Any) -> float:
    """The largest lane; NaN is passed over or returned, as it falls."""
    raise NotImplementedError("compiled code only")


def nearest(x: Any) -> Any:
    """(n, 2^n) with n the whole number nearest to x, where 2^n is a normal number; NaN gives NaN and any number."""
    raise NotImplementedError("compiled code only")


def split(x: Any) -> Any:
    """(m, n) with x = m * 2^n and m within 1/sqrt(2)..sqrt(2), for float64 lanes that are positive and not subnormal."""
    raise NotImplementedError("compiled code only")


def _parted(like: Any) -> bool:
    return bool(like.dtype == types.float32)


@_overload(width)  # type: ignore[untyped-decorator]
def _overload_width(like: Any) -> Any:
    return (lambda like: LANES) if _parted(like) else (lambda like: 1)


@_overload(load)  # type: ignore[untyped-decorator]
def _overload_load(array: Any, i: Any, fill: Any, like: Any) -> Any:
    if _parted(like):
        return lambda array, i, fill, like: _load(array, i, fill)
    return lambda array, i, fill, like: array[i]


@_overload(store)  # type: ignore[untyped-decorator]
def _overload_store(value: Any, array: Any, i: Any) -> Any:
    if isinstance(value, Lanes):
        return lambda value, array, i: _store(value, array, i)

    def one(value: Any, array: Any, i: Any) -> None:
        array[i] = value

    return one


@_overload(prefetch)  # type: ignore[untyped-decorator]
def _overload_prefetch(array: Any, i: Any) -> Any:
    return lambda array, i: _prefetch(array, i)


@_overload(select)  # type: ignore[untyped-decorator]
def _overload_select(truth: Any, a: Any, b: Any) -> Any:
    if isinstance(truth, Lanes):
        return lambda truth, a, b: _select(truth, a, b)
    return lambda truth, a, b: a if truth else b


@_overload(narrow)  # type: ignore[untyped-decorator]
def _overload_narrow(x: Any, like: Any) -> Any:
    if isinstance(x, Lanes):
        return lambda x, like: _narrow(x)
    return lambda x, like: like.dtype.type(x)


@_overload(widen)  # type: ignore[untyped-decorator]
def _overload_widen(x: Any) -> Any:
    if isinstance(x, Lanes):
        return (lambda x: x) if x == _DOUBLE else (lambda x: _widen(x))
    return lambda x: np.float64(x)


@_overload(every)  # type: ignore[untyped-decorator]
def _overload_every(number: Any, like: Any) -> Any:
    return (lambda number, like: _every(number)) if _parted(like) else (lambda number, like: np.float64(number))


@_overload(total)  # type: ignore[untyped-decorator]
def _overload_total(x: Any) -> Any:
    return (lambda x: _total(x)) if isinstance(x, Lanes) else (lambda x: x)


@_overload(largest)  # type: ignore[untyped-decorator]
def _overload_largest(x: Any) -> Any:
    return (lambda x: _largest(x)) if isinstance(x, Lanes) else (lambda x: x)


@_overload(nearest)  # type: ignore[untyped-decorator]
def _overload_nearest(x: Any) -> Any:
    return lambda x: _nearest(x)


@_overload(split)  # type: ignore[untyped-decorator]
def _overload_split(x: Any) -> Any:
    return lambda x: _split(x)


def _address(context: Any, builder: Any, kind: Any, array: Any, i: Any) -> tuple[Any, Any, Any]:
    """Where element i lies, whether a whole vector lies there, and the mask of the lanes that do."""
    struct = context.make_array(kind)(context, builder, array)
    left = builder.sub(struct.nitems, i)
    whole = builder.icmp_signed(">=", left, ir.Constant(left.type, LANES))
    limit = _splat(builder, builder.trunc(left, _I32))
    mask = builder.icmp_signed("<", _constants(_I32, range(LANES)), limit)
    return cgutils.gep_inbounds(builder, struct.data, i), whole, mask


def _bytes(dtype: Any) -> int:
    return 1 if dtype == types.boolean else int(dtype.bitwidth) // 8


def _masked(builder: Any, name: str, suffix: str, result: Any, arguments: Any) -> Any:
    """Calls one of LLVM's masked operations: load, store."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.{name}.{suffix}")
    return builder.call(function, arguments)


def _read(context: Any, builder: Any, kind: Any, array: Any, i: Any, fill: Any) -> Any:
    """Elements from i on, `fill` (a vector) past the end."""
    vector = fill.type
    align = _bytes(kind.dtype)
    pointer, whole, mask = _address(context, builder, kind, array, i)
    pointer = builder.bitcast(pointer, vector.as_pointer())
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            plain = builder.load(pointer, align=align)
            plain_block = builder.block
        with otherwise:
            masked = [pointer, ir.Constant(_I32, align), mask, fill]
            part = _masked(builder, "load", f"{_SUFFIX[kind.dtype]}.p0", vector, masked)
            part_block = builder.block
    result = builder.phi(vector)
    result.add_incoming(plain, plain_block)
    result.add_incoming(part, part_block)
    return result


@intrinsic  # type: ignore[untyped-decorator]
def _load(typing_context: Any, array: Any, i: Any, fill: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, start, outside = arguments
        if array.dtype == types.boolean:  # a byte each in memory; past the end false
            nothing = _constants(ir.IntType(8), [0] * LANES)
            return builder.icmp_unsigned("!=", _read(context, builder, array, values, start, nothing), nothing)
        other = _splat(builder, context.cast(builder, outside, signature.args[2], array.dtype))
        return _read(context, builder, array, values, start, other)

    return Lanes(array.dtype)(array, types.intp, fill), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store(typing_context: Any, value: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, target, start = arguments
        align = _bytes(array.dtype)
        pointer, whole, mask = _address(context, builder, array, target, start)
        pointer = builder.bitcast(pointer, lanes.type.as_pointer())
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                builder.store(lanes, pointer, align=align)
            with otherwise:
                masked = [lanes, pointer, ir.Constant(_I32, align), mask]
                _masked(builder, "store", f"{_SUFFIX[array.dtype]}.p0", ir.VoidType(), masked)
        return context.get_dummy_value()

    return types.none(value, array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, place = arguments
        data = context.make_array(array)(context, builder, values).data
        pointer = builder.bitcast(builder.gep(data, [place]), ir.IntType(8).as_pointer())
        flags = [ir.Constant(_I32, n) for n in (0, 3, 1)]  # to read, in the nearest cache, data
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0"), [pointer, *flags])
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _select(typing_context: Any, truth: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(arguments[0], *_alike(context, builder, signature.args[1:], arguments[1:]))

    return (a if isinstance(a, Lanes) else b)(truth, a, b), generate


@intrinsic  # type: ignore[untyped-decorator]
def _narrow(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptrunc(arguments[0], ir.VectorType(ir.FloatType(), LANES))

    return _SINGLE(x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _widen(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(arguments[0], ir.VectorType(ir.DoubleType(), LANES))

    return _DOUBLE(x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _every(typing_context: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, context.cast(builder, arguments[0], signature.args[0], types.float32))

    return _SINGLE(number), generate


def _folded(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """The lanes brought down to one: the upper half onto the lower, and again."""

    @intrinsic  # type: ignore[untyped-decorator]
    def fold(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (rest,), count = arguments, LANES
            while count > 1:
                count //= 2
                lower, upper = _constants(_I32, range(count)), _constants(_I32, range(count, 2 * count))
                rest = combine(
                    builder, builder.shuffle_vector(rest, rest, lower), builder.shuffle_vector(rest, rest, upper)
                )
            return builder.extract_element(rest, ir.Constant(_I32, 0))

        return x.dtype(x), generate

    return fold


_total = _folded(lambda builder, a, b: builder.fadd(a, b))
_largest = _folded(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a))


@intrinsic  # type: ignore[untyped-decorator]
def _nearest(typing_context: Any, x: Any) -> Any:
    result = types.Tuple((x, x))  # type: ignore[attr-defined]
    dtype = x.dtype if isinstance(x, Lanes) else x
    whole, digits, bias = (_I32, 23, 127) if dtype == types.float32 else (_I64, 52, 1023)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def constant(kind: Any, number: Any) -> Any:
            return _constants(kind, [number] * LANES) if isinstance(x, Lanes) else ir.Constant(kind, number)

        (value,) = arguments
        # Beside so large a number there is no room for a fraction, and the last bits are n. Not by converting to an integer:
        # that is undefined for NaN.
        large = constant(_ELEMENTS[dtype], 1.5 * 2.0**digits)
        sum_of_both = builder.fadd(value, large)
        bits = builder.bitcast(sum_of_both, constant(whole, 0).type)
        power = builder.add(builder.shl(bits, constant(whole, digits)), constant(whole, bias << digits))
        return context.make_tuple(
            builder, result, [builder.fsub(sum_of_both, large), builder.bitcast(power, value.type)]
        )

    return result(x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _split(typing_context: Any, x: Any) -> Any:
    result = types.Tuple((_DOUBLE, _DOUBLE))  # type: ignore[attr-defined]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        bits = builder.bitcast(value, ir.VectorType(_I64, LANES))
        # From 1/sqrt(2) on the number counts as one of the next power of two.
        half_root = _constants(_I64, [0x3FE6A09E667F3BCD] * LANES)
        exponent = builder.ashr(builder.sub(bits, half_root), _constants(_I64, [52] * LANES))
        mantissa = builder.sub(bits, builder.shl(exponent, _constants(_I64, [52] * LANES)))
        power = builder.sitofp(builder.trunc(exponent, ir.VectorType(_I32, LANES)), value.type)
        return context.make_tuple(builder, result, [builder.bitcast(mantissa, value.type), power])

    return result(x), generate
