"""Several numbers in one register: a type for compiled code that is added, compared and chosen from like a number.

Loops over two dozen states are too short for what a compiler makes of them: several vectors at a time, the remainder one by one.
Here loops are written over whole vectors, and the last one is masked:

    for i in range(0, out.size, width(like)):
        store(load(a, i, 0.0, like) + load(b, i, 0.0, like), out, i)

`like` is an array whose type says how to compute. float32: LANES elements at a time, float32 or float64. float64: one by one, as
plain numbers, for the C library's functions; so the same code does for both.

Short rows are handled ROWS at a time: in one alone, each instruction would wait for the one before it. Such a value has the lanes
of all these rows, and what is one number for each row has ROWS lanes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model

LANES = 16  # float32: one register of AVX-512, two of AVX2. Compilers split what is too wide for a machine.
ROWS = 4

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.boolean: ir.IntType(1)}
_SUFFIX = {types.float32: "f32", types.float64: "f64", types.boolean: "i8"}


class Lanes(types.Type):  # type: ignore[misc]
    """Numbers, or truths, of one type."""

    def __init__(self, dtype: Any, count: int = LANES) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(Lanes)  # type: ignore[untyped-decorator]
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, ir.VectorType(_ELEMENTS[fe_type.dtype], fe_type.count))


def _constants(kind: Any, values: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, len(values)), list(values))


def _splat(builder: Any, value: Any, count: int = LANES) -> Any:
    """The number in every lane."""
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, nothing, _constants(_I32, [0] * count))


def _alike(context: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """The values as lanes: numbers among them are brought to the others' type and put into every lane."""
    lanes = next(kind for kind in kinds if isinstance(kind, Lanes))
    return [
        value
        if isinstance(kind, Lanes)
        else _splat(builder, context.cast(builder, value, kind, lanes.dtype), lanes.count)
        for kind, value in zip(kinds, values, strict=True)
    ]


def _binary(operation: Any, instruction: Callable[[Any, Any, Any], Any], truth: bool = False) -> None:
    """Makes an operator work on lanes, where one side may be a number."""

    @infer_global(operation)  # type: ignore[untyped-decorator]
    class _Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, keywords: Any) -> Any:
            lanes = next((kind for kind in arguments if isinstance(kind, Lanes)), None)
            if lanes is None or not all(isinstance(kind, Lanes | types.Number) for kind in arguments):
                return None
            return (Lanes(types.boolean, lanes.count) if truth else lanes)(*arguments)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instruction(builder, *_alike(context, builder, signature.args, arguments))

    for kinds in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(operation, *kinds)(generate)


# Allows fused multiply-adds and nothing else: infinities, NaN and the order of sums stay as written.
_FUSED = ("contract",)
_binary(operator.add, lambda builder, a, b: builder.fadd(a, b, flags=_FUSED))
_binary(operator.sub, lambda builder, a, b: builder.fsub(a, b, flags=_FUSED))
_binary(operator.mul, lambda builder, a, b: builder.fmul(a, b, flags=_FUSED))
_binary(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))
_binary(operator.lt, lambda builder, a, b: builder.fcmp_ordered("<", a, b), truth=True)
_binary(operator.gt, lambda builder, a, b: builder.fcmp_ordered(">", a, b), truth=True)
_binary(operator.eq, lambda builder, a, b: builder.fcmp_ordered("==", a, b), truth=True)
_binary(operator.and_, lambda builder, a, b: builder.and_(a, b), truth=True)


def _parted(like: Any) -> bool:
    return bool(like.dtype == types.float32)


def _place_of(context: Any, builder: Any, kind: Any, array: Any, i: Any) -> Any:
    """Where element i of a contiguous array lies. Of others compiling fails: it would be another element."""
    if kind.layout != "C":
        raise TypeError(f"lanes are read from contiguous arrays and written to them, not to {kind}")
    return cgutils.gep_inbounds(builder, context.make_array(kind)(context, builder, array).data, i)


def _limit(builder: Any, left: Any, count: int) -> tuple[Any, Any]:
    """Whether so many elements are enough for every lane, and the mask of the lanes that they fill."""
    whole = builder.icmp_signed(">=", left, ir.Constant(left.type, count))
    limit = _splat(builder, builder.trunc(left, _I32), count)
    return whole, builder.icmp_signed("<", _constants(_I32, range(count)), limit)


def _address(context: Any, builder: Any, kind: Any, array: Any, i: Any, count: int) -> tuple[Any, Any, Any]:
    """Where element i lies, whether a whole vector lies there, and the mask of the lanes that do."""
    left = builder.sub(context.make_array(kind)(context, builder, array).nitems, i)
    return _place_of(context, builder, kind, array, i), *_limit(builder, left, count)


def _bytes(dtype: Any) -> int:
    return 1 if dtype == types.boolean else int(dtype.bitwidth) // 8


def _masked(builder: Any, name: str, kind: Any, result: Any, arguments: Any) -> Any:
    """Calls one of LLVM's masked operations, load or store, on a vector of this kind."""
    suffix = f"v{kind.count}{_SUFFIX[kind.dtype]}.p0"
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.{name}.{suffix}"), arguments
    )


def _read(builder: Any, kind: Any, pointers: Any, whole: Any, mask: Any, fill: Any) -> list[Any]:
    """The vectors at the pointers, `fill` (a vector) where the mask is not set."""
    align = _bytes(kind.dtype)
    pointers = [builder.bitcast(pointer, fill.type.as_pointer()) for pointer in pointers]
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            plain = [builder.load(pointer, align=align) for pointer in pointers]
            plain_block = builder.block
        with otherwise:
            part = [
                _masked(builder, "load", kind, fill.type, [pointer, ir.Constant(_I32, align), mask, fill])
                for pointer in pointers
            ]
            part_block = builder.block
    results = []
    for all_of_it, some_of_it in zip(plain, part, strict=True):
        result = builder.phi(fill.type)
        result.add_incoming(all_of_it, plain_block)
        result.add_incoming(some_of_it, part_block)
        results.append(result)
    return results


def _write(builder: Any, kind: Any, vectors: Any, pointers: Any, whole: Any, mask: Any) -> None:
    align = _bytes(kind.dtype)
    pointers = [builder.bitcast(pointer, vectors[0].type.as_pointer()) for pointer in pointers]
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            for vector, pointer in zip(vectors, pointers, strict=True):
                builder.store(vector, pointer, align=align)
        with otherwise:
            for vector, pointer in zip(vectors, pointers, strict=True):
                _masked(builder, "store", kind, ir.VoidType(), [vector, pointer, ir.Constant(_I32, align), mask])


@intrinsic  # type: ignore[untyped-decorator]
def width(typing_context: Any, like: Any) -> Any:
    """How many elements `load` reads."""
    count = LANES if _parted(like) else 1
    return types.intp(like), lambda context, builder, signature, arguments: context.get_constant(types.intp, count)


@intrinsic  # type: ignore[untyped-decorator]
def load(typing_context: Any, array: Any, i: Any, fill: Any, like: Any) -> Any:
    """Elements i, i+1, ... of a contiguous array; `fill` in the lanes past its end. Truths are false there."""
    if _parted(like):
        return Lanes(array.dtype)(array, types.intp, fill, like), _load

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.unpack_value(builder, array.dtype, _place_of(context, builder, array, *arguments[:2]))

    return array.dtype(array, types.intp, fill, like), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_lanes(typing_context: Any, array: Any, i: Any) -> Any:
    """The same in lanes whatever the precision, 0 past the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = context.get_constant(array.dtype, 0)
        return _load(context, builder, Lanes(array.dtype)(*signature.args, array.dtype), (*arguments, zero))

    return Lanes(array.dtype)(array, types.intp), generate


def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array, (values, start, outside) = signature.args[0], arguments[:3]
    pointer, whole, mask = _address(context, builder, array, values, start, LANES)
    if array.dtype == types.boolean:  # a byte each in memory; past the end false
        nothing = _constants(ir.IntType(8), [0] * LANES)
        (found,) = _read(builder, Lanes(array.dtype), [pointer], whole, mask, nothing)
        return builder.icmp_unsigned("!=", found, nothing)
    other = _splat(builder, context.cast(builder, outside, signature.args[2], array.dtype))
    return _read(builder, Lanes(array.dtype), [pointer], whole, mask, other)[0]


@intrinsic  # type: ignore[untyped-decorator]
def load_each(typing_context: Any, array: Any, i: Any) -> Any:
    """Elements i, i+1, ..., one for each of ROWS rows."""
    result = Lanes(array.dtype, ROWS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_ELEMENTS[array.dtype], ROWS)
        pointer = builder.bitcast(_place_of(context, builder, array, *arguments), vector.as_pointer())
        return builder.load(pointer, align=_bytes(array.dtype))

    return result(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def each(typing_context: Any, numbers: Any) -> Any:
    """One number for each of ROWS rows, from a tuple."""
    result = Lanes(numbers.dtype, numbers.count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.Constant(ir.VectorType(_ELEMENTS[numbers.dtype], numbers.count), ir.Undefined)
        for row, number in enumerate(cgutils.unpack_tuple(builder, arguments[0])):
            lanes = builder.insert_element(lanes, number, ir.Constant(_I32, row))
        return lanes

    return result(numbers), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typing_context: Any, value: Any, array: Any, i: Any) -> Any:
    """Writes what lies within the array."""

    def lanes(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, target, start = arguments
        pointer, whole, mask = _address(context, builder, array, target, start, value.count)
        _write(builder, value, [vector], [pointer], whole, mask)
        return context.get_dummy_value()

    def one(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, target, start = arguments
        context.pack_value(builder, array.dtype, number, _place_of(context, builder, array, target, start))
        return context.get_dummy_value()

    if isinstance(value, Lanes):
        return types.none(value, array, types.intp), lanes
    return types.none(array.dtype, array, types.intp), one


def _row_pointers(context: Any, builder: Any, kind: Any, array: Any, places: Any, i: Any) -> list[Any]:
    data = context.make_array(kind)(context, builder, array).data
    starts = cgutils.unpack_tuple(builder, places, ROWS)
    return [cgutils.gep_inbounds(builder, data, builder.add(start, i)) for start in starts]


@intrinsic  # type: ignore[untyped-decorator]
def load_rows(typing_context: Any, array: Any, places: Any, i: Any, left: Any, fill: Any) -> Any:
    """Elements i, i+1, ... of ROWS rows, which begin at these places; `fill` where fewer than LANES are left."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, starts, place, number, outside = arguments
        pointers = _row_pointers(context, builder, array, values, starts, place)
        other = _splat(builder, context.cast(builder, outside, signature.args[4], array.dtype))
        rows = _read(builder, Lanes(array.dtype), pointers, *_limit(builder, number, LANES), other)
        while len(rows) > 1:
            both = _constants(_I32, range(2 * rows[0].type.count))
            rows = [builder.shuffle_vector(a, b, both) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        return rows[0]

    return Lanes(array.dtype, ROWS * LANES)(array, places, types.intp, types.intp, fill), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_rows(typing_context: Any, value: Any, array: Any, places: Any, i: Any, left: Any) -> Any:
    """Writes what is left of each row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, target, starts, place, number = arguments
        pointers = _row_pointers(context, builder, array, target, starts, place)
        own = [_constants(_I32, range(row * LANES, (row + 1) * LANES)) for row in range(ROWS)]
        rows = [builder.shuffle_vector(lanes, lanes, places) for places in own]
        _write(builder, Lanes(array.dtype), rows, pointers, *_limit(builder, number, LANES))
        return context.get_dummy_value()

    return types.none(value, array, places, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def spread(typing_context: Any, x: Any) -> Any:
    """The number of each row in all of its lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own = _constants(_I32, [row for row in range(x.count) for _ in range(LANES)])
        return builder.shuffle_vector(arguments[0], arguments[0], own)

    return Lanes(x.dtype, x.count * LANES)(x), generate


_TILE = 8  # as many vectors as a machine has registers for


def _turned(builder: Any, rows: Any) -> Any:
    """Columns from rows, all vectors of _TILE: as cards are shuffled, three times for eight."""
    pairs = [i + half * _TILE for i in range(_TILE) for half in (0, 1)]
    lower, upper = _constants(_I32, pairs[:_TILE]), _constants(_I32, pairs[_TILE:])
    for _ in range(_TILE.bit_length() - 1):
        halves = zip(rows[: _TILE // 2], rows[_TILE // 2 :], strict=True)
        rows = [builder.shuffle_vector(a, b, places) for a, b in halves for places in (lower, upper)]
    return rows


@intrinsic  # type: ignore[untyped-decorator]
def turn(
    typing_context: Any, source: Any, at: Any, step: Any, rows: Any, columns: Any, out: Any, to: Any, out_step: Any
) -> Any:
    """Turns a matrix of float64, at most LANES each way, in flat arrays: out[to + k * out_step + r] = source[at + r * step + k].

    All r < LANES are written, past the last of the rows this one again; and all k < columns.
    """
    kind = Lanes(types.float64, _TILE)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def number(n: int) -> Any:
            return ir.Constant(_I64, n)

        def place(array: Any, start: Any, row: Any, width: Any, column: int) -> Any:
            return cgutils.gep_inbounds(
                builder, array, builder.add(builder.add(start, builder.mul(row, width)), number(column))
            )

        values, start, width, height, count, target, out_start, out_width = arguments
        values = context.make_array(source)(context, builder, values).data
        target = context.make_array(out)(context, builder, target).data
        last = builder.sub(height, number(1))
        nothing = _constants(ir.DoubleType(), [0.0] * _TILE)
        for column in range(0, LANES, _TILE):
            with builder.if_then(builder.icmp_signed("<", number(column), count), likely=True):
                limit = _limit(builder, builder.sub(count, number(column)), _TILE)
                for row in range(0, LANES, _TILE):
                    existing = [
                        builder.select(builder.icmp_signed("<", number(r), last), number(r), last)
                        for r in range(row, row + _TILE)
                    ]
                    pointers = [place(values, start, r, width, column) for r in existing]
                    turned = _turned(builder, _read(builder, kind, pointers, *limit, nothing))
                    for k, vector in enumerate(turned):
                        with builder.if_then(builder.icmp_signed("<", number(column + k), count), likely=True):
                            pointer = place(target, out_start, number(column + k), out_width, row)
                            builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=8)
        return context.get_dummy_value()

    numbers = (types.intp,) * 2
    return types.none(source, *numbers, *numbers, out, *numbers), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, array: Any, i: Any) -> Any:
    """Says that element i will soon be read or written; it need not exist."""

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
def select(typing_context: Any, truth: Any, a: Any, b: Any) -> Any:
    """a where it is true, else b, lane by lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(arguments[0], *_alike(context, builder, signature.args[1:], arguments[1:]))

    def one(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    if isinstance(truth, Lanes):
        return (a if isinstance(a, Lanes) else b)(truth, a, b), generate
    both = typing_context.unify_types(a, b)
    return both(types.boolean, both, both), one


@intrinsic  # type: ignore[untyped-decorator]
def narrow(typing_context: Any, x: Any, like: Any) -> Any:
    """float64 in the precision of `like`."""
    result = Lanes(like.dtype, x.count) if isinstance(x, Lanes) else like.dtype
    return result(x, like), _converted


@intrinsic  # type: ignore[untyped-decorator]
def widen(typing_context: Any, x: Any) -> Any:
    """As float64."""
    return (Lanes(types.float64, x.count) if isinstance(x, Lanes) else types.float64)(x), _converted


def _converted(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The first argument in another precision."""
    before, after = signature.args[0], signature.return_type
    if not isinstance(before, Lanes):
        return context.cast(builder, arguments[0], before, after)
    if before.dtype == after.dtype:
        return arguments[0]
    convert = builder.fpext if after.dtype == types.float64 else builder.fptrunc
    return convert(arguments[0], ir.VectorType(_ELEMENTS[after.dtype], after.count))


@intrinsic  # type: ignore[untyped-decorator]
def every(typing_context: Any, number: Any, like: Any) -> Any:
    """The number in every lane, in the precision of `like`."""
    return (Lanes(types.float32) if _parted(like) else types.float64)(number, like), _filled


@intrinsic  # type: ignore[untyped-decorator]
def alike(typing_context: Any, number: Any, x: Any) -> Any:
    """The number in as many lanes as x has, of the same type."""
    return x(number, x), _filled


def _filled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The first argument in every lane of the result."""
    result = signature.return_type
    dtype = result.dtype if isinstance(result, Lanes) else result
    number = context.cast(builder, arguments[0], signature.args[0], dtype)
    return _splat(builder, number, result.count) if isinstance(result, Lanes) else number


def _folded(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """Brings the lanes of each row down to one: their upper half onto the lower, and again. A number stays as it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (rest,), (kind,) = arguments, signature.args
        if not isinstance(kind, Lanes):
            return rest
        rows, count = kind.count // LANES, LANES
        while count > 1:
            half = count // 2
            lower = [row * count + i for row in range(rows) for i in range(half)]
            upper = _constants(_I32, [i + half for i in lower])
            lower = _constants(_I32, lower)
            rest = combine(
                builder, builder.shuffle_vector(rest, rest, lower), builder.shuffle_vector(rest, rest, upper)
            )
            count = half
        return rest if rows > 1 else builder.extract_element(rest, ir.Constant(_I32, 0))

    return generate


_sum_lanes = _folded(lambda builder, a, b: builder.fadd(a, b))
_largest_lane = _folded(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a))


def _one_a_row(x: Any) -> Any:
    if not isinstance(x, Lanes):
        return x
    return Lanes(x.dtype, x.count // LANES) if x.count > LANES else x.dtype


@intrinsic  # type: ignore[untyped-decorator]
def total(typing_context: Any, x: Any) -> Any:
    """The sum of the lanes, in a fixed order; of several rows, one for each."""
    return _one_a_row(x)(x), _sum_lanes


@intrinsic  # type: ignore[untyped-decorator]
def largest(typing_context: Any, x: Any) -> Any:
    """The largest lane, or that of each row; NaN is passed over or returned, as it falls."""
    return _one_a_row(x)(x), _largest_lane


@intrinsic  # type: ignore[untyped-decorator]
def nearest(typing_context: Any, x: Any) -> Any:
    """(n, 2^n) with n the whole number nearest to x, where 2^n is a normal number; NaN gives NaN and any number."""
    result = types.Tuple((x, x))  # type: ignore[attr-defined]
    dtype = x.dtype if isinstance(x, Lanes) else x
    whole, digits, bias = (_I32, 23, 127) if dtype == types.float32 else (_I64, 52, 1023)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def constant(kind: Any, number: Any) -> Any:
            return _constants(kind, [number] * x.count) if isinstance(x, Lanes) else ir.Constant(kind, number)

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
def split(typing_context: Any, x: Any) -> Any:
    """(m, n) with x = m * 2^n and m within 1/sqrt(2)..sqrt(2), for float64 lanes that are positive and not subnormal."""
    result = types.Tuple((x, x))  # type: ignore[attr-defined]

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
