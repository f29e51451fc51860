"""Vectors as values in numba functions: as many numbers as fit a register, with loads, stores and arithmetic.

numba leaves vectorisation to LLVM, which uses narrower vectors than the processor has, and checks before every short
loop that its arrays do not overlap. Here vectors are explicit.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

BITS = 512 if binding.get_host_cpu_features().get("avx512f") else 256  # of a vector; any width works anywhere


class Lanes(types.Type):
    """As many numbers of a kind as fit into BITS, in one register. Products may be fused with sums."""

    def __init__(self, kind):
        self.kind, self.count = kind, BITS // kind.bitwidth
        super().__init__(name=f"Lanes({kind}, {self.count})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        number = manager.lookup(kind.kind).get_value_type()
        super().__init__(manager, kind, ir.VectorType(number, kind.count))


def _operator(symbol, instruction):
    """Define `a symbol b` of two vectors."""

    @infer_global(symbol)
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def emit(context, builder, sig, args):
        return getattr(builder, instruction)(*args, flags=["contract"])


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_symbol, _instruction)


def _vector_pointer(context, builder, kind, array, at, lanes):
    """Return a pointer to a vector that begins at flat index `at` of a contiguous array of any shape."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.VectorType(data.type.pointee, lanes).as_pointer())


def _cast(builder, x, kind):
    """Return a number or a vector as float64 or float32."""
    if x.type == kind:
        return x
    wider = "double" in str(kind)
    return (builder.fpext if wider else builder.fptrunc)(x, kind)


@intrinsic
def load(typingctx, array, at, like):
    """Load entries of an array from flat index `at` on, as many as fit a vector of the number type of `like`."""
    lanes = Lanes(like.dtype)

    def emit(context, builder, sig, args):
        pointer = _vector_pointer(context, builder, array, args[0], args[1], lanes.count)
        values = builder.load(pointer, align=array.dtype.bitwidth // 8)
        return _cast(builder, values, context.get_value_type(lanes))

    return lanes(array, types.intp, like), emit


@intrinsic
def load_part(typingctx, array, at, count, like):
    """Load at most `count` entries as `load` does, followed by zeros."""
    lanes = Lanes(like.dtype)

    def emit(context, builder, sig, args):
        source, at, count, _ = args
        vector = context.get_value_type(lanes)
        data = context.make_array(array)(context, builder, source).data
        result = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * lanes.count))
        with builder.if_else(builder.icmp_signed("<", count, count.type(lanes.count))) as (partial, full):
            with partial, cgutils.for_range(builder, count) as loop:
                x = builder.load(builder.gep(data, [builder.add(at, loop.index)]))
                x = _cast(builder, x, vector.element)
                builder.store(builder.insert_element(builder.load(result), x, loop.index), result)
            with full:
                values = builder.load(
                    _vector_pointer(context, builder, array, source, at, lanes.count),
                    align=array.dtype.bitwidth // 8,
                )
                builder.store(_cast(builder, values, vector), result)
        return builder.load(result)

    return lanes(array, types.intp, types.intp, like), emit


@intrinsic
def add_part(typingctx, array, at, count, vector):
    """Add at most `count` entries of a vector to those of an array from flat index `at` on."""

    def emit(context, builder, sig, args):
        target, at, count, added = args
        data = context.make_array(array)(context, builder, target).data
        align = array.dtype.bitwidth // 8
        with builder.if_else(builder.icmp_signed("<", count, count.type(vector.count))) as (partial, full):
            with partial, cgutils.for_range(builder, count) as loop:
                pointer = builder.gep(data, [builder.add(at, loop.index)])
                x = builder.extract_element(added, loop.index)
                builder.store(builder.fadd(builder.load(pointer), x), pointer)
            with full:
                pointer = _vector_pointer(context, builder, array, target, at, vector.count)
                builder.store(builder.fadd(builder.load(pointer, align=align), added), pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), emit


@intrinsic
def store(typingctx, array, at, vector):
    """Write a vector into an array from flat index `at` on."""

    def emit(context, builder, sig, args):
        pointer = _vector_pointer(context, builder, array, args[0], args[1], vector.count)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), emit


def _filled(builder, number, vector):
    """Return a vector of an LLVM type whose every entry is one number."""
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, empty, mask)


@intrinsic
def filled(typingctx, x):
    """Return a vector whose every entry is x."""
    lanes = Lanes(x)

    def emit(context, builder, sig, args):
        return _filled(builder, args[0], context.get_value_type(lanes))

    return lanes(x), emit


@intrinsic
def spread(typingctx, array, at):
    """Return a vector whose every entry is that of an array at flat index `at`."""
    lanes = Lanes(array.dtype)

    def emit(context, builder, sig, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return _filled(builder, builder.load(builder.gep(data, [args[1]])), context.get_value_type(lanes))

    return lanes(array, types.intp), emit


@intrinsic
def higher(typingctx, a, b):
    """Return the higher of each two entries."""

    def emit(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, a), emit


@intrinsic
def lower(typingctx, a, b):
    """Return the lower of each two entries."""

    def emit(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return a(a, a), emit


@intrinsic
def first_of(typingctx, a, count, b):
    """Return the first `count` entries of a, followed by those of b."""

    def emit(context, builder, sig, args):
        a_, count_, b_ = args
        integers = ir.VectorType(ir.IntType(64), a.count)
        positions = ir.Constant(integers, list(range(a.count)))
        return builder.select(builder.icmp_signed("<", positions, _filled(builder, count_, integers)), a_, b_)

    return a(a, types.intp, a), emit


@intrinsic
def where_known(typingctx, x, present, missing):
    """Return `present` where x is a number, `missing` where it is NaN."""

    def emit(context, builder, sig, args):
        x, present, missing = args
        return builder.select(builder.fcmp_ordered("ord", x, x), present, missing)

    return x(x, x, x), emit


def _halved(combine):
    """Return an intrinsic that combines a vector's entries: halves with halves, until one is left."""

    def over(typingctx, vector):
        def emit(context, builder, sig, args):
            (vector_part,) = args
            count = vector.count
            while count > 1:
                count //= 2
                masks = (
                    ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(first, first + count)))
                    for first in (0, count)
                )
                vector_part = combine(
                    builder, *(builder.shuffle_vector(vector_part, vector_part, mask) for mask in masks)
                )
            return builder.extract_element(vector_part, ir.Constant(ir.IntType(32), 0))

        return vector.kind(vector), emit

    return intrinsic(over)


total = _halved(lambda builder, a, b: builder.fadd(a, b))
product = _halved(lambda builder, a, b: builder.fmul(a, b))
highest = _halved(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


def _split(builder, x, kind):
    """Return k and m of x = 2^k·m, for positive normal x, with m between √½ and √2, as vectors of x's type."""
    digits, least = (52, 0x3FE6A09E667F3BCD) if kind.kind.bitwidth == 64 else (23, 0x3F3504F3)
    integers = ir.VectorType(ir.IntType(kind.kind.bitwidth), kind.count)
    bits = builder.bitcast(x, integers)
    k = builder.ashr(
        builder.sub(bits, ir.Constant(integers, [least] * kind.count)),
        ir.Constant(integers, [digits] * kind.count),
    )
    mantissa = builder.sub(bits, builder.shl(k, ir.Constant(integers, [digits] * kind.count)))
    return builder.sitofp(k, x.type), builder.bitcast(mantissa, x.type)


@intrinsic
def exponent(typingctx, x):
    """Return k of x = 2^k·m, for positive normal x, with m between √½ and √2."""

    def emit(context, builder, sig, args):
        return _split(builder, args[0], x)[0]

    return x(x), emit


@intrinsic
def fraction(typingctx, x):
    """Return m of x = 2^k·m, for positive normal x, with m between √½ and √2."""

    def emit(context, builder, sig, args):
        return _split(builder, args[0], x)[1]

    return x(x), emit


@intrinsic
def lanes_of(typingctx, array):
    """Return how many of the array's numbers fit a vector."""
    count = Lanes(array.dtype).count

    def emit(context, builder, sig, args):
        return context.get_constant(types.intp, count)

    return types.intp(array), emit


@njit(inline="always")
def round_up(count, like):
    """Round up to a multiple of the vectors' length."""
    lanes = lanes_of(like)
    return (count + lanes - 1) // lanes * lanes


@njit(cache=True, nogil=True)
def scratch(rows, columns, value, like):
    """Return an array [rows, columns] filled with a value, of the type of `like`; no vector straddles cache lines."""
    count = rows * columns
    buffer = np.full(count + 64, value, like.dtype)
    start = (-buffer.ctypes.data % 64) // buffer.itemsize
    return buffer[start : start + count].reshape(rows, columns)
