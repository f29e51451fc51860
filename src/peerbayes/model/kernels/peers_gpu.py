"""R_v(S_v) of every peer on a GPU, for naive Bayes in float32, and the mixing of messages: two Triton kernels.

    R_v = (Y_v − P_v)ᵀΦ_v     P_v = softmax(Φ_v θ(S_v)ᵀ)          S̄_v = Σ_u a_vu S_u

As in `fused`, the rows x are stored and not Φ, and one program computes all of one peer: θ, logits and residuals
never leave its registers, so S and x are read once and R is written once. Products take three TF32 products each,
which gives float32's precision; a single one has ten bits.

This module imports Triton and PyTorch: import it only where it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from scipy.sparse import csr_array

from peerbayes.data.table import Array, Rows
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY, Family
from peerbayes.model.families.naive_bayes import NaiveBayes

SCAN = 1024  # entries of S scanned together
LEAST = 16  # the smallest side of a product
MOST_ROWS = 64  # rows per tile
MOST_COLUMNS = 32  # columns per tile
MOST_CLASSES = 128  # logits of a tile stay in registers


@triton.jit
def rows_of(values, i, j, valid, CONTINUOUS: tl.constexpr):
    """Load a block of x [rows, columns]; 0 outside."""
    inside = valid[:, None] & (j < CONTINUOUS)[None, :]
    return tl.load(values + i[:, None] * CONTINUOUS + j[None, :], mask=inside, other=0.0)


@triton.jit
def gaussians(
    S, counts, scale, floor, least, limit, log_2pi, c, j,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, SIZE: tl.constexpr, MISSING: tl.constexpr,
):  # fmt: skip
    """Return the natural weights of x, x² and o for a block of columns: three [columns, classes]."""
    FIRST: tl.constexpr = 1 + CONTINUOUS if MISSING else 1  # where Σx begins
    inside = (j < CONTINUOUS)[:, None] & (c < CLASSES)[None, :]
    entry = S + c[None, :] * SIZE + j[:, None]
    sums = tl.load(entry + FIRST, mask=inside, other=0.0) * scale
    squares = tl.load(entry + FIRST + CONTINUOUS, mask=inside, other=0.0) * scale
    count = tl.load(entry + 1, mask=inside, other=0.0) * scale if MISSING else counts[None, :]
    inverse_count = 1.0 / tl.maximum(count, floor)
    lacking = tl.maximum(floor - tl.maximum(count, 0.0), 0.0)
    mean = tl.minimum(tl.maximum(sums * inverse_count, -limit), limit)
    variance = tl.maximum((squares + lacking) * inverse_count - mean * mean, least)
    inverse = 1.0 / variance
    linear = tl.where(inside, mean * inverse, 0.0)
    square = tl.where(inside, -0.5 * inverse, 0.0)
    constant = tl.where(inside, -0.5 * (log_2pi + tl.log(variance) + mean * mean * inverse), 0.0)
    constant += (sums + squares + count) * 0.0  # NaN where S is not finite, which maxima would ignore
    return linear, square, constant


@triton.jit
def add_logits(logits, x, valid, linear, square, constant, MISSING: tl.constexpr, PRECISION: tl.constexpr):
    """Return logits [rows, classes] plus the log densities of a block of columns."""
    if MISSING:
        observed = x == x
        x = tl.where(observed, x, 0.0)
        present = tl.where(observed & valid[:, None], 1.0, 0.0)
        logits += tl.dot(present, constant, input_precision=PRECISION)
    else:
        logits += tl.sum(constant, axis=0)[None, :]
    logits = tl.dot(x, linear, acc=logits, input_precision=PRECISION)
    return tl.dot(x * x, square, acc=logits, input_precision=PRECISION)


@triton.jit
def put(target, value, inside, later):
    """Store the value, or add it to the target's where `later`."""
    if later:
        value += tl.load(target, mask=inside, other=0.0)
    tl.store(target, value, mask=inside)


@triton.jit
def put_moments(
    R, x, valid, transposed, c, j, later,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, SIZE: tl.constexpr, MISSING: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store or add o, x and x² of a block of columns to R."""
    FIRST: tl.constexpr = 1 + CONTINUOUS if MISSING else 1
    inside = (c < CLASSES)[:, None] & (j < CONTINUOUS)[None, :]
    target = R + c[:, None] * SIZE + j[None, :]
    if MISSING:
        observed = x == x
        x = tl.where(observed, x, 0.0)
        present = tl.where(observed & valid[:, None], 1.0, 0.0)
        put(target + 1, tl.dot(transposed, present, input_precision=PRECISION), inside, later)
    put(target + FIRST, tl.dot(transposed, x, input_precision=PRECISION), inside, later)
    put(target + FIRST + CONTINUOUS, tl.dot(transposed, x * x, input_precision=PRECISION), inside, later)


@triton.jit
def residual_kernel(
    values, codes, labels, row_weights, offsets, starts, stats, out, floor_share, least, limit, tiny, log_2pi,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, DISCRETE: tl.constexpr, SIZE: tl.constexpr,
    MISSING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, SCAN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute R of one peer: S [C, K] and its rows -> R [C, K]. With one block of columns nothing is loaded twice."""
    DENSE: tl.constexpr = 1 + (3 if MISSING else 2) * CONTINUOUS
    CELLS: tl.constexpr = 16  # categories per tile
    v = tl.program_id(0).to(tl.int64)
    S, R = stats + v * CLASSES * SIZE, out + v * CLASSES * SIZE
    begin, end = tl.load(offsets + v), tl.load(offsets + v + 1)
    c = tl.arange(0, LANES)
    real = c < CLASSES
    counts = tl.load(S + c * SIZE, mask=real, other=0.0)
    total = tl.sum(tl.maximum(counts, 0.0))
    scale = 1.0
    if (total < 1e-15) | (total > 1e30) | (begin == end):  # S is extreme: scale its largest entry to 1
        highest = 0.0
        for at in range(0, CLASSES * SIZE, SCAN):
            k = at + tl.arange(0, SCAN)
            entries = tl.load(S + k, mask=k < CLASSES * SIZE, other=0.0)
            highest = tl.maximum(highest, tl.max(tl.abs(entries)))
            if begin == end:
                tl.store(R + k, entries * 0.0, mask=k < CLASSES * SIZE)
        scale = 1.0 / tl.where(highest > 1e-37, highest, 1.0)
        counts *= scale
        total *= scale
    floor = tl.maximum(total * floor_share, tiny)
    guarded = tl.where(real, tl.maximum(counts, floor), 0.0)
    bias = tl.log(tl.where(real, guarded, 1.0) / tl.sum(guarded)) + counts * 0.0
    first_columns = tl.arange(0, COLUMNS)

    for first in range(begin, end, ROWS):
        i = first + tl.arange(0, ROWS)
        valid = i < end
        label = tl.load(labels + i, mask=valid, other=-1)
        weight = tl.where(label >= 0, tl.load(row_weights + i, mask=valid, other=0.0), 0.0)
        logits = tl.zeros((ROWS, LANES), dtype=tl.float32) + bias[None, :]
        if CONTINUOUS > 0:
            x = rows_of(values, i, first_columns, valid, CONTINUOUS)
            linear, square, constant = gaussians(
                S,
                counts,
                scale,
                floor,
                least,
                limit,
                log_2pi,
                c,
                first_columns,
                CLASSES,
                CONTINUOUS,
                SIZE,
                MISSING,
            )
            logits = add_logits(logits, x, valid, linear, square, constant, MISSING, PRECISION)
        for column in range(COLUMNS, CONTINUOUS, COLUMNS):
            j = column + first_columns
            block = rows_of(values, i, j, valid, CONTINUOUS)
            linear, square, constant = gaussians(
                S, counts, scale, floor, least, limit, log_2pi, c, j, CLASSES, CONTINUOUS, SIZE, MISSING
            )
            logits = add_logits(logits, block, valid, linear, square, constant, MISSING, PRECISION)
        for column in range(DISCRETE):
            start, stop = tl.load(starts + column), tl.load(starts + column + 1)
            low = tl.maximum(floor / (stop - start).to(tl.float32), tiny)
            sums = tl.zeros((LANES,), dtype=tl.float32)
            for cell in range(start, stop, CELLS):
                k = cell + tl.arange(0, CELLS)
                inside = (k < stop)[:, None] & real[None, :]
                entries = tl.load(S + c[None, :] * SIZE + (DENSE + k)[:, None], mask=inside, other=0.0)
                sums += tl.sum(
                    tl.where(inside, tl.maximum(entries * scale, low), 0.0) + entries * 0.0, axis=0
                )
            code = tl.load(codes + i * DISCRETE + column, mask=valid, other=-1)
            observed = (code >= 0)[:, None] & real[None, :]
            cells = tl.load(S + c[None, :] * SIZE + (DENSE + start + code)[:, None], mask=observed, other=0.0)
            share = tl.maximum(cells * scale, low) / tl.where(real, sums, 1.0)[None, :]
            logits += tl.where(observed, tl.log(share), 0.0)

        logits = tl.where(real[None, :], logits, float("-inf"))
        powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        hit = tl.where(label[:, None] == c[None, :], weight[:, None], 0.0)
        change = hit - (weight / tl.sum(powers, axis=1))[:, None] * powers  # [rows, classes]

        later = first > begin
        transposed = tl.trans(change)
        put(R + c * SIZE, tl.sum(change, axis=0), real, later)
        if CONTINUOUS > 0:
            put_moments(
                R,
                x,
                valid,
                transposed,
                c,
                first_columns,
                later,
                CLASSES,
                CONTINUOUS,
                SIZE,
                MISSING,
                PRECISION,
            )
        for column in range(COLUMNS, CONTINUOUS, COLUMNS):
            j = column + first_columns
            block = rows_of(values, i, j, valid, CONTINUOUS)
            put_moments(
                R, block, valid, transposed, c, j, later, CLASSES, CONTINUOUS, SIZE, MISSING, PRECISION
            )
        for column in range(DISCRETE):
            start, stop = tl.load(starts + column), tl.load(starts + column + 1)
            code = tl.load(codes + i * DISCRETE + column, mask=valid, other=-1)
            for cell in range(start, stop, CELLS):
                k = cell + tl.arange(0, CELLS)
                inside = real[:, None] & (k < stop)[None, :]
                equal = tl.where((start + code)[:, None] == k[None, :], 1.0, 0.0)
                equal = tl.where((code >= 0)[:, None], equal, 0.0)
                target = R + c[:, None] * SIZE + (DENSE + k)[None, :]
                put(target, tl.dot(transposed, equal, input_precision=PRECISION), inside, later)


@triton.jit
def mix_kernel(indptr, indices, weights, messages, out, SIZE: tl.constexpr, SCAN: tl.constexpr):
    """Compute one peer's Σ_u a_vu M_u, for one block of M's columns."""
    v = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * SCAN + tl.arange(0, SCAN)
    total = tl.zeros((SCAN,), dtype=tl.float32)
    for e in range(tl.load(indptr + v), tl.load(indptr + v + 1)):
        u = tl.load(indices + e).to(tl.int64)
        total += tl.load(weights + e) * tl.load(messages + u * SIZE + k, mask=k < SIZE, other=0.0)
    tl.store(out + v * SIZE + k, total, mask=k < SIZE)


def supports(family: Family, classes: int) -> bool:
    """Return whether R of this family has a kernel: naive Bayes itself, with logits that fit into registers."""
    return type(family) is NaiveBayes and not family.poisson and classes <= MOST_CLASSES


@dataclass(frozen=True, eq=False)
class FusedPeers:
    """All peers' rows, one peer's after the other's: `offsets` [N + 1] says where each begins and the last ends."""

    family: NaiveBayes
    rows: Rows  # [rows, Dc], NaN is missing; [rows, Dd], negative is missing
    labels: Any  # [rows] class index; a negative one excludes the row
    row_weights: Any  # [rows]
    offsets: Any  # [N + 1]
    classes: int
    device: str = "cuda"

    def __post_init__(self) -> None:
        for name, kind in (
            ("labels", torch.int32),
            ("row_weights", torch.float32),
            ("offsets", torch.int64),
        ):
            object.__setattr__(self, name, self._put(getattr(self, name), kind))
        values, codes = self.rows
        rows = Rows(self._put(values, torch.float32), self._put(codes, torch.int32))
        object.__setattr__(self, "rows", rows)

    def residual(self, stats: Array) -> Array:
        """Return R_v(S_v) of every peer; NaN for a peer whose S is not finite: [N, C, K] -> [N, C, K]."""
        family, stats = self.family, stats.contiguous()
        expected = (len(self.offsets) - 1, self.classes, family.size)
        if tuple(stats.shape) != expected or stats.dtype != torch.float32:
            raise ValueError(
                f"statistics are {tuple(stats.shape)} {stats.dtype}; expected {expected} float32"
            )
        out, padded_classes = torch.empty_like(stats), _power(self.classes)
        starts = self._put(np.append(family.offsets, sum(family.cardinalities)), torch.int32)
        residual_kernel[(expected[0],)](
            *self.rows, self.labels, self.row_weights, self.offsets, starts, stats, out,
            family.count_floor / self.classes, max(family.variance_floor, TINY), MEAN_LIMIT, TINY, LOG_2PI,
            CLASSES=self.classes, CONTINUOUS=family.continuous, DISCRETE=len(family.cardinalities),
            SIZE=family.size, MISSING=family.missing, ROWS=MOST_ROWS,
            COLUMNS=min(MOST_COLUMNS, _power(family.continuous)), LANES=padded_classes, SCAN=SCAN,
            PRECISION="tf32x3", num_warps=1 if padded_classes <= 32 else 4, num_stages=1,
        )  # fmt: skip
        return out

    def _put(self, array: Any, kind: Any) -> Any:
        return torch.as_tensor(array, dtype=kind, device=self.device).contiguous()


@dataclass(frozen=True, eq=False)
class Mixing:
    """A sparse mixing matrix [N, N] on the device: `mixing @ messages` is [N, M] float32."""

    indptr: Any
    indices: Any
    weights: Any

    @classmethod
    def of(cls, matrix: csr_array, device: str) -> Mixing:
        kinds = ((matrix.indptr, torch.int64), (matrix.indices, torch.int32), (matrix.data, torch.float32))
        return cls(*(torch.as_tensor(array, dtype=kind, device=device) for array, kind in kinds))

    def __matmul__(self, messages: Array) -> Array:
        messages, nodes = messages.contiguous(), len(self.indptr) - 1
        out = torch.empty((nodes, messages.shape[1]), dtype=torch.float32, device=messages.device)
        grid = (nodes, triton.cdiv(messages.shape[1], SCAN))
        mix_kernel[grid](
            self.indptr, self.indices, self.weights, messages, out, SIZE=messages.shape[1], SCAN=SCAN
        )
        return out


def _power(count: int) -> int:
    """Return the next power of two that a product takes."""
    return max(LEAST, triton.next_power_of_2(count))
