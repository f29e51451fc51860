"""R_v(S_v) of every peer with hand-made vector instructions: `plain_residuals` of `peers`, several times as fast.

numba leaves vectorisation to LLVM, which uses narrower vectors than the processor has, and checks before every short
loop that its arrays do not overlap. Here vectors are values in numba functions: as many numbers as fit a register, with
loads, stores and arithmetic.

A peer's rows are taken TILE at a time and their columns COLUMNS at a time, into scratch padded by zeros to whole
vectors, so that its θ, logits and residuals stay in cache. Sums stay in registers, four classes at a time.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from peerbayes.data.kernel_cache import njit
from peerbayes.model.families.base import LOG_2PI
from peerbayes.model.kernels.block_loops import (
    add_cells,
    cell_logs,
    class_counts,
    exponential,
    logarithm,
    scatter_cells,
)

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


def _chosen(relation):
    """Return an intrinsic that takes of each two entries the one that stands in a relation to the other."""

    def over(typingctx, a, b):
        def emit(context, builder, sig, args):
            return builder.select(builder.fcmp_ordered(relation, *args), *args)

        return a(a, a), emit

    return intrinsic(over)


higher, lower = _chosen(">"), _chosen("<")


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


def _split(index):
    """Return an intrinsic for k (index 0) or m (index 1) of x = 2^k·m, for positive normal x; m from √½ to √2."""

    def over(typingctx, x):
        digits, least = (52, 0x3FE6A09E667F3BCD) if x.kind.bitwidth == 64 else (23, 0x3F3504F3)
        integers = ir.VectorType(ir.IntType(x.kind.bitwidth), x.count)
        shift, least = (ir.Constant(integers, [number] * x.count) for number in (digits, least))

        def emit(context, builder, sig, args):
            bits, kind = builder.bitcast(args[0], integers), args[0].type
            k = builder.ashr(builder.sub(bits, least), shift)
            if index == 0:
                return builder.sitofp(k, kind)
            return builder.bitcast(builder.sub(bits, builder.shl(k, shift)), kind)

        return x(x), emit

    return intrinsic(over)


exponent, fraction = _split(0), _split(1)


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


# --- θ of one peer

LOG_2 = float(np.log(2.0))
TILE = 64  # rows at a time
COLUMNS = 64  # columns at a time: a block of 64 × 64 float64 is two thirds of a first-level cache


@njit(cache=True, nogil=True)
def largest(stats):
    """Return max|S|, or NaN where an entry is infinite or NaN: only these times 0 are not 0."""
    zero = filled(stats.dtype.type(0.0))
    trouble, peak = zero, zero
    lanes = lanes_of(stats)
    for k in range(0, stats.size, lanes):
        x = load_part(stats, k, stats.size - k, stats)
        trouble = trouble + x * zero
        peak = higher(peak, higher(x, zero - x))
    return highest(peak) + total(trouble)


@njit(cache=True, nogil=True, error_model="numpy")
def gaussians(
    stats, d, missing, scale, floor, least, limit, inverse_counts, lacking, linear, square, constant, bias
):
    """Write each class's natural weights of x, x² and, if `missing`, of o; otherwise add those of o to `bias`.

    Without `missing`, `inverse_counts` becomes the product of the variances' fractions: one logarithm for a class.
    """
    real = stats.dtype.type
    classes, size = stats.shape
    lanes, width = lanes_of(stats), linear.shape[1]
    half, zeros, ones = real(0.5), filled(real(0.0)), filled(real(1.0))
    minus_half, log_2 = filled(-half), filled(real(LOG_2))
    by, floors, lowest = filled(scale), filled(floor), filled(least)
    for c in range(classes):
        at, to = c * size + (1 + d if missing else 1), c * width
        inverse_count, lack = spread(inverse_counts, c), spread(lacking, c)
        logs, fractions = zeros, ones
        for j in range(0, d, lanes):
            if missing:
                count = load_part(stats, c * size + 1 + j, d - j, stats) * by
                inverse_count = ones / higher(count, floors)
                lack = higher(floors - higher(count, zeros), zeros)
            mean = load_part(stats, at + j, d - j, stats) * by * inverse_count
            mean = lower(higher(mean, filled(-limit)), filled(limit))
            variance = (load_part(stats, at + d + j, d - j, stats) * by + lack) * inverse_count - mean * mean
            variance = higher(variance, lowest)
            inverse = ones / variance
            store(linear, to + j, mean * inverse)
            store(square, to + j, minus_half * inverse)
            if missing:
                store(constant, to + j, variance)
            else:
                variance = first_of(variance, d - j, ones)
                logs = logs + mean * mean * inverse + log_2 * exponent(variance)
                fractions = fractions * fraction(variance)
        if not missing:
            bias[c] -= half * (real(d * LOG_2PI) + total(logs))
            inverse_counts[c] = product(fractions)
    if not missing:
        for c in range(classes):
            bias[c] -= half * real(logarithm(inverse_counts[c]))
    else:
        for c in range(classes):
            row, weight = constant[c], linear[c]
            for j in range(d):
                row[j] = -half * (real(LOG_2PI + logarithm(row[j])) + weight[j] * weight[j] * row[j])


# --- blocks of rows -------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def load_rows(values, row, rows, column, columns, missing, block, present):
    """Load rows and columns of values into `block` [TILE, COLUMNS], NaN as 0, and 1 where observed into `present`."""
    real = block.dtype.type
    zeros, ones = filled(real(0.0)), filled(real(1.0))
    d, width = values.shape[1], block.shape[1]
    for i in range(rows):
        for j in range(0, columns, lanes_of(block)):
            x = load_part(values, (row + i) * d + column + j, columns - j, block)
            if missing:
                store(present, i * width + j, where_known(x, ones, zeros))
                x = where_known(x, x, zeros)
            store(block, i * width + j, x)


@njit(cache=True, nogil=True)
def transpose(block, rows, columns, transposed):
    """Transpose the filled part of a block [TILE, COLUMNS]."""
    for j in range(np.uintp(columns)):
        for i in range(np.uintp(rows)):
            transposed[j, i] = block[i, j]


@njit(cache=True, nogil=True)
def add_polynomials(x, rows, columns, linear, square, column, logits):
    """Add Σ_j x_ij (linear_cj + square_cj x_ij) of transposed rows to logits_ci: two classes, four vectors of rows.

    Eight sums at a time keep the processor busy. What lies beyond `rows` is not used; a last vector goes alone.
    """
    classes, width = linear.shape
    lanes = lanes_of(x)
    for c in range(0, classes, 2):
        first, second = c * width + column, (c + 1) * width + column
        for i in range(0, rows - lanes, 4 * lanes):
            at = c * TILE + i
            s0, s1 = load(logits, at, x), load(logits, at + lanes, x)
            s2, s3 = load(logits, at + 2 * lanes, x), load(logits, at + 3 * lanes, x)
            to = at + TILE
            t0, t1 = load(logits, to, x), load(logits, to + lanes, x)
            t2, t3 = load(logits, to + 2 * lanes, x), load(logits, to + 3 * lanes, x)
            for j in range(columns):
                k = j * TILE + i
                v0, v1 = load(x, k, x), load(x, k + lanes, x)
                v2, v3 = load(x, k + 2 * lanes, x), load(x, k + 3 * lanes, x)
                a, b = spread(linear, first + j), spread(square, first + j)
                s0, s1 = s0 + v0 * (a + b * v0), s1 + v1 * (a + b * v1)
                s2, s3 = s2 + v2 * (a + b * v2), s3 + v3 * (a + b * v3)
                a, b = spread(linear, second + j), spread(square, second + j)
                t0, t1 = t0 + v0 * (a + b * v0), t1 + v1 * (a + b * v1)
                t2, t3 = t2 + v2 * (a + b * v2), t3 + v3 * (a + b * v3)
            store(logits, at, s0)
            store(logits, at + lanes, s1)
            store(logits, at + 2 * lanes, s2)
            store(logits, at + 3 * lanes, s3)
            store(logits, to, t0)
            store(logits, to + lanes, t1)
            store(logits, to + 2 * lanes, t2)
            store(logits, to + 3 * lanes, t3)
        if (rows - 1) % (4 * lanes) < lanes:
            i = (rows - 1) // lanes * lanes
            at = c * TILE + i
            s0, t0 = load(logits, at, x), load(logits, at + TILE, x)
            s1 = t1 = filled(x.dtype.type(0.0))
            for j in range(0, columns, 2):
                v0, v1 = load(x, j * TILE + i, x), load(x, (j + 1) * TILE + i, x)
                s0 = s0 + v0 * (spread(linear, first + j) + spread(square, first + j) * v0)
                t0 = t0 + v0 * (spread(linear, second + j) + spread(square, second + j) * v0)
                s1 = s1 + v1 * (spread(linear, first + j + 1) + spread(square, first + j + 1) * v1)
                t1 = t1 + v1 * (spread(linear, second + j + 1) + spread(square, second + j + 1) * v1)
            store(logits, at, s0 + s1)
            store(logits, at + TILE, t0 + t1)


@njit(cache=True, nogil=True)
def add_products(x, rows, columns, weights, column, logits):
    """Add Σ_j weights_cj x_ij of transposed rows to logits_ci, two classes and two columns at a time."""
    classes, width = weights.shape
    for i in range(0, rows, lanes_of(x)):
        for c in range(0, classes, 2):
            at = c * TILE + i
            s0, s1 = load(logits, at, x), load(logits, at + TILE, x)
            s2 = s3 = filled(x.dtype.type(0.0))
            k = c * width + column
            for j in range(0, columns, 2):
                v, w = load(x, j * TILE + i, x), load(x, (j + 1) * TILE + i, x)
                s0 = s0 + v * spread(weights, k + j)
                s1 = s1 + v * spread(weights, k + width + j)
                s2 = s2 + w * spread(weights, k + j + 1)
                s3 = s3 + w * spread(weights, k + width + j + 1)
            store(logits, at, s0 + s2)
            store(logits, at + TILE, s1 + s3)


@njit(cache=True, nogil=True)
def add_moments(x, rows, columns, change, out, first, second):
    """Add Σ_i change_ci x_ij to R from column `first` on, and with x_ij² from `second` on; four classes at a time."""
    classes, size = out.shape
    fours, width = classes // 4 * 4, x.shape[1]
    zero = filled(x.dtype.type(0.0))
    for j in range(0, columns, lanes_of(x)):
        count = columns - j
        for c in range(0, fours, 4):
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for i in range(rows):
                v = load(x, i * width + j, x)
                square, at = v * v, c * TILE + i
                w0, w1 = spread(change, at), spread(change, at + TILE)
                w2, w3 = spread(change, at + 2 * TILE), spread(change, at + 3 * TILE)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
                s2, t2 = s2 + w2 * v, t2 + w2 * square
                s3, t3 = s3 + w3 * v, t3 + w3 * square
            at, to = c * size + first + j, c * size + second + j
            add_part(out, at, count, s0)
            add_part(out, to, count, t0)
            add_part(out, at + size, count, s1)
            add_part(out, to + size, count, t1)
            add_part(out, at + 2 * size, count, s2)
            add_part(out, to + 2 * size, count, t2)
            add_part(out, at + 3 * size, count, s3)
            add_part(out, to + 3 * size, count, t3)
        for c in range(fours, classes, 2):
            s0 = s1 = t0 = t1 = zero
            for i in range(rows):
                v = load(x, i * width + j, x)
                square, at = v * v, c * TILE + i
                w0, w1 = spread(change, at), spread(change, at + TILE)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
            at, to = c * size + first + j, c * size + second + j
            add_part(out, at, count, s0)
            add_part(out, to, count, t0)
            if c + 1 < classes:
                add_part(out, at + size, count, s1)
                add_part(out, to + size, count, t1)


@njit(cache=True, nogil=True)
def add_presences(x, rows, columns, change, out, first):
    """Add Σ_i change_ci x_ij to R from column `first` on, one class at a time."""
    classes, size = out.shape
    width = x.shape[1]
    for j in range(0, columns, lanes_of(x)):
        for c in range(classes):
            s = filled(x.dtype.type(0.0))
            for i in range(rows):
                s = s + spread(change, c * TILE + i) * load(x, i * width + j, x)
            add_part(out, c * size + first + j, columns - j, s)


@njit(cache=True, nogil=True, error_model="numpy")
def residuals(logits, rows, labels, weights, top, sums):
    """Compute (Y − P) times the rows' weights in place: [C, TILE]; 0 beyond `rows` and where there is no label.

    Every step goes over all rows before the next begins, so that no vector waits for its own sums.
    """
    real = logits.dtype.type
    lanes, padded, count = lanes_of(logits), round_up(rows, logits), logits.size
    for i in range(0, padded, lanes):
        highest_even, highest_odd = load(logits, i, logits), load(logits, i + TILE, logits)
        for at in range(i + 2 * TILE, count, 2 * TILE):
            highest_even = higher(load(logits, at, logits), highest_even)
            highest_odd = higher(load(logits, at + TILE, logits), highest_odd)
        store(top, i, higher(highest_odd, highest_even))
    for i in range(0, padded, lanes):
        highest_logit, summed = load(top, i, logits), filled(real(0.0))
        for at in range(i, count, TILE):
            value = exponential(load(logits, at, logits) - highest_logit)
            store(logits, at, value)
            summed = summed + value
        store(sums, i, summed)
    for i in range(rows):
        sums[i] = -real(weights[i]) / sums[i] if labels[i] >= 0 else real(0.0)
    sums[rows:padded] = real(0.0)
    for i in range(0, padded, lanes):
        factor = load(sums, i, logits)
        for at in range(i, count, TILE):
            store(logits, at, load(logits, at, logits) * factor)
    for i in range(rows):
        if labels[i] >= 0:
            logits[labels[i], i] += real(weights[i])


@njit(cache=True, nogil=True)
def add_masses(change, rows, out):
    """Add Σ_i change_ci to the first column of R."""
    for c in range(out.shape[0]):
        mass = load(change, c * TILE, change)
        for i in range(lanes_of(change), rows, lanes_of(change)):
            mass = mass + load(change, c * TILE + i, change)
        out[c, 0] += total(mass)


# --- all peers ------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def all_residuals(values, codes, labels, row_weights, offsets, starts, missing, guards, stats, out):
    """Compute R of every peer: [N, C, K] -> [N, C, K]."""
    nodes, classes, _ = stats.shape
    d, cells = values.shape[1], starts[-1]
    dense = 1 + d * (3 if missing else 2)
    floor_share, least, limit, tiny, extreme = guards
    even, wide, lanes = (classes + 1) // 2 * 2, round_up(d, stats), round_up(classes, stats)
    broad = min(wide, COLUMNS)
    zero, one = stats.dtype.type(0.0), stats.dtype.type(1.0)
    bias, inverse_counts = scratch(1, even, -np.inf, stats)[0], scratch(1, even, one, stats)[0]
    lacking = scratch(1, even, zero, stats)[0]
    linear, square = scratch(even, wide, zero, stats), scratch(even, wide, zero, stats)
    constant = scratch(even, wide, zero, stats)
    logs, cell_sums = scratch(cells, lanes, one, stats), scratch(cells, lanes, zero, stats)
    class_sums = scratch(1, lanes, zero, stats)[0]
    top, sums = scratch(1, TILE, zero, stats)[0], scratch(1, TILE, zero, stats)[0]
    logits = scratch(even, TILE, zero, stats)
    block, present = scratch(TILE, broad, zero, stats), scratch(TILE, broad, zero, stats)
    transposed = scratch(broad, TILE, zero, stats)
    for v in range(nodes):
        S, R = stats[v], out[v]
        highest = largest(S)
        if highest != highest:
            R[:] = np.nan
            continue
        if highest > extreme or one / extreme > highest > zero:
            S = S * (extreme if highest < one else one / extreme)
            highest = largest(S)
        scale = one / highest if highest > zero else one
        floor = class_counts(S, scale, floor_share, tiny, bias, inverse_counts, lacking)
        gaussians(
            S, d, missing, scale, floor, least, limit, inverse_counts, lacking, linear, square, constant, bias
        )
        cell_logs(S, dense, starts, scale, floor, tiny, logs, class_sums)
        R[:] = zero
        cell_sums[:] = zero
        for first in range(offsets[v], offsets[v + 1], TILE):
            rows = min(TILE, offsets[v + 1] - first)
            end, padded = first + rows, round_up(rows, stats)
            for c in range(even):
                for i in range(0, TILE, lanes_of(stats)):
                    store(logits, c * TILE + i, spread(bias, c))
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                width = round_up(columns, stats)
                load_rows(values, first, rows, column, columns, missing, block, present)
                transpose(block, rows, width, transposed)
                add_polynomials(transposed, padded, width, linear, square, column, logits)
                if missing:
                    transpose(present, rows, width, transposed)
                    add_products(transposed, padded, width, constant, column, logits)
            if cells:
                add_cells(codes[first:end], starts, logs, logits[:classes])
            residuals(logits, rows, labels[first:end], row_weights[first:end], top, sums)
            if cells:
                scatter_cells(codes[first:end], starts, logits[:classes], cell_sums)
            add_masses(logits, padded, R)
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                if d > COLUMNS:
                    load_rows(values, first, rows, column, columns, missing, block, present)
                add_moments(block, rows, columns, logits, R, dense - 2 * d + column, dense - d + column)
                if missing:
                    add_presences(present, rows, columns, logits, R, 1 + column)
        for c in range(classes):
            for k in range(cells):
                R[c, dense + k] = cell_sums[k, c]
