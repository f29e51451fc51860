"""R_v(S_v) of every peer on a GPU, for naive Bayes in float32, and the mixing of messages: two Triton kernels.

    R_v = (Y_v − P_v)ᵀΦ_v     P_v = softmax(Φ_v θ(S_v)ᵀ)          S̄_v = Σ_u a_vu S_u

As in `fused`, the rows x are held and not Φ, and one program does all of one peer: θ, logits and residuals never leave
its registers, so S and x are read once and R is written once. Products take three TF32 products each, which gives
float32's precision; a single one has ten bits.

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

from peerbayes.core import Array
from peerbayes.families.base import LOG_2PI, MEAN_LIMIT, TINY, Family, Rows
from peerbayes.families.naive_bayes import NaiveBayes

SCAN = 1024  # entries of S looked at together
LEAST = 16  # the least side of a product
MOST_ROWS = 64  # rows taken together
MOST_COLUMNS = 32  # columns taken together
MOST_CLASSES = 128  # logits of a tile stay in registers


@triton.jit
def rows_of(values, i, j, here, CONTINUOUS: tl.constexpr):
    """A block of x [rows, columns]; 0 outside."""
    inside = here[:, None] & (j < CONTINUOUS)[None, :]
    return tl.load(values + i[:, None] * CONTINUOUS + j[None, :], mask=inside, other=0.0)


@triton.jit
def gaussians(
    S, counts, scale, floor, least, limit, log_2pi, c, j,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, SIZE: tl.constexpr, MISSING: tl.constexpr,
):  # fmt: skip
    """Natural weights of x, x² and o for a block of columns: three [columns, classes]."""
    FIRST: tl.constexpr = 1 + CONTINUOUS if MISSING else 1  # where Σx begins
    there = (j < CONTINUOUS)[:, None] & (c < CLASSES)[None, :]
    place = S + c[None, :] * SIZE + j[:, None]
    one = tl.load(place + FIRST, mask=there, other=0.0) * scale
    two = tl.load(place + FIRST + CONTINUOUS, mask=there, other=0.0) * scale
    count = tl.load(place + 1, mask=there, other=0.0) * scale if MISSING else counts[None, :]
    each = 1.0 / tl.maximum(count, floor)
    lacking = tl.maximum(floor - tl.maximum(count, 0.0), 0.0)
    mean = tl.minimum(tl.maximum(one * each, -limit), limit)
    variance = tl.maximum((two + lacking) * each - mean * mean, least)
    inverse = 1.0 / variance
    linear = tl.where(there, mean * inverse, 0.0)
    square = tl.where(there, -0.5 * inverse, 0.0)
    constant = tl.where(there, -0.5 * (log_2pi + tl.log(variance) + mean * mean * inverse), 0.0)
    constant += (one + two + count) * 0.0  # NaN where S is not finite: maxima pass it over
    return linear, square, constant


@triton.jit
def add_logits(logits, x, here, linear, square, constant, MISSING: tl.constexpr, PRECISION: tl.constexpr):
    """logits [rows, classes] with the log densities of a block of columns."""
    if MISSING:
        known = x == x
        x = tl.where(known, x, 0.0)
        present = tl.where(known & here[:, None], 1.0, 0.0)
        logits += tl.dot(present, constant, input_precision=PRECISION)
    else:
        logits += tl.sum(constant, axis=0)[None, :]
    logits = tl.dot(x, linear, acc=logits, input_precision=PRECISION)
    return tl.dot(x * x, square, acc=logits, input_precision=PRECISION)


@triton.jit
def put(place, part, inside, later):
    """Store the first part, add the later ones to it."""
    if later:
        part += tl.load(place, mask=inside, other=0.0)
    tl.store(place, part, mask=inside)


@triton.jit
def put_moments(
    R, x, here, turned, c, j, later,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, SIZE: tl.constexpr, MISSING: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """R's o, x and x² of a block of columns."""
    FIRST: tl.constexpr = 1 + CONTINUOUS if MISSING else 1
    inside = (c < CLASSES)[:, None] & (j < CONTINUOUS)[None, :]
    place = R + c[:, None] * SIZE + j[None, :]
    if MISSING:
        known = x == x
        x = tl.where(known, x, 0.0)
        present = tl.where(known & here[:, None], 1.0, 0.0)
        put(place + 1, tl.dot(turned, present, input_precision=PRECISION), inside, later)
    put(place + FIRST, tl.dot(turned, x, input_precision=PRECISION), inside, later)
    put(place + FIRST + CONTINUOUS, tl.dot(turned, x * x, input_precision=PRECISION), inside, later)


@triton.jit
def residual_kernel(
    values, codes, labels, row_weights, offsets, starts, stats, out, floor_share, least, limit, tiny, log_2pi,
    CLASSES: tl.constexpr, CONTINUOUS: tl.constexpr, DISCRETE: tl.constexpr, SIZE: tl.constexpr,
    MISSING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, SCAN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One peer: S [C, K] and its rows -> R [C, K]. Without a second block of columns nothing is loaded twice."""
    DENSE: tl.constexpr = 1 + (3 if MISSING else 2) * CONTINUOUS
    CELLS: tl.constexpr = 16  # categories taken together
    v = tl.program_id(0).to(tl.int64)
    S, R = stats + v * CLASSES * SIZE, out + v * CLASSES * SIZE
    begin, end = tl.load(offsets + v), tl.load(offsets + v + 1)
    c = tl.arange(0, LANES)
    real = c < CLASSES
    counts = tl.load(S + c * SIZE, mask=real, other=0.0)
    total = tl.sum(tl.maximum(counts, 0.0))
    scale = 1.0
    if (
        (total < 1e-15) | (total > 1e30) | (begin == end)
    ):  # S is out of the ordinary: bring its largest entry to 1
        highest = 0.0
        for at in range(0, CLASSES * SIZE, SCAN):
            k = at + tl.arange(0, SCAN)
            part = tl.load(S + k, mask=k < CLASSES * SIZE, other=0.0)
            highest = tl.maximum(highest, tl.max(tl.abs(part)))
            if begin == end:
                tl.store(R + k, part * 0.0, mask=k < CLASSES * SIZE)
        scale = 1.0 / tl.where(highest > 1e-37, highest, 1.0)
        counts *= scale
        total *= scale
    floor = tl.maximum(total * floor_share, tiny)
    guarded = tl.where(real, tl.maximum(counts, floor), 0.0)
    bias = tl.log(tl.where(real, guarded, 1.0) / tl.sum(guarded)) + counts * 0.0
    first_columns = tl.arange(0, COLUMNS)

    for first in range(begin, end, ROWS):
        i = first + tl.arange(0, ROWS)
        here = i < end
        label = tl.load(labels + i, mask=here, other=-1)
        weight = tl.where(label >= 0, tl.load(row_weights + i, mask=here, other=0.0), 0.0)
        logits = tl.zeros((ROWS, LANES), dtype=tl.float32) + bias[None, :]
        if CONTINUOUS > 0:
            x = rows_of(values, i, first_columns, here, CONTINUOUS)
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
            logits = add_logits(logits, x, here, linear, square, constant, MISSING, PRECISION)
        for column in range(COLUMNS, CONTINUOUS, COLUMNS):
            j = column + first_columns
            more = rows_of(values, i, j, here, CONTINUOUS)
            linear, square, constant = gaussians(
                S, counts, scale, floor, least, limit, log_2pi, c, j, CLASSES, CONTINUOUS, SIZE, MISSING
            )
            logits = add_logits(logits, more, here, linear, square, constant, MISSING, PRECISION)
        for column in range(DISCRETE):
            start, stop = tl.load(starts + column), tl.load(starts + column + 1)
            low = tl.maximum(floor / (stop - start).to(tl.float32), tiny)
            sums = tl.zeros((LANES,), dtype=tl.float32)
            for cell in range(start, stop, CELLS):
                k = cell + tl.arange(0, CELLS)
                inside = (k < stop)[:, None] & real[None, :]
                part = tl.load(S + c[None, :] * SIZE + (DENSE + k)[:, None], mask=inside, other=0.0)
                sums += tl.sum(tl.where(inside, tl.maximum(part * scale, low), 0.0) + part * 0.0, axis=0)
            code = tl.load(codes + i * DISCRETE + column, mask=here, other=-1)
            known = (code >= 0)[:, None] & real[None, :]
            cells = tl.load(S + c[None, :] * SIZE + (DENSE + start + code)[:, None], mask=known, other=0.0)
            share = tl.maximum(cells * scale, low) / tl.where(real, sums, 1.0)[None, :]
            logits += tl.where(known, tl.log(share), 0.0)

        logits = tl.where(real[None, :], logits, float("-inf"))
        powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        hit = tl.where(label[:, None] == c[None, :], weight[:, None], 0.0)
        change = hit - (weight / tl.sum(powers, axis=1))[:, None] * powers  # [rows, classes]

        later = first > begin
        turned = tl.trans(change)
        put(R + c * SIZE, tl.sum(change, axis=0), real, later)
        if CONTINUOUS > 0:
            put_moments(
                R, x, here, turned, c, first_columns, later, CLASSES, CONTINUOUS, SIZE, MISSING, PRECISION
            )
        for column in range(COLUMNS, CONTINUOUS, COLUMNS):
            j = column + first_columns
            more = rows_of(values, i, j, here, CONTINUOUS)
            put_moments(R, more, here, turned, c, j, later, CLASSES, CONTINUOUS, SIZE, MISSING, PRECISION)
        for column in range(DISCRETE):
            start, stop = tl.load(starts + column), tl.load(starts + column + 1)
            code = tl.load(codes + i * DISCRETE + column, mask=here, other=-1)
            for cell in range(start, stop, CELLS):
                k = cell + tl.arange(0, CELLS)
                inside = real[:, None] & (k < stop)[None, :]
                equal = tl.where((start + code)[:, None] == k[None, :], 1.0, 0.0)
                equal = tl.where((code >= 0)[:, None], equal, 0.0)
                place = R + c[:, None] * SIZE + (DENSE + k)[None, :]
                put(place, tl.dot(turned, equal, input_precision=PRECISION), inside, later)


@triton.jit
def mix_kernel(indptr, indices, weights, messages, out, SIZE: tl.constexpr, SCAN: tl.constexpr):
    """One peer's Σ_u a_vu M_u, for one stretch of M."""
    v = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * SCAN + tl.arange(0, SCAN)
    total = tl.zeros((SCAN,), dtype=tl.float32)
    for e in range(tl.load(indptr + v), tl.load(indptr + v + 1)):
        u = tl.load(indices + e).to(tl.int64)
        total += tl.load(weights + e) * tl.load(messages + u * SIZE + k, mask=k < SIZE, other=0.0)
    tl.store(out + v * SIZE + k, total, mask=k < SIZE)


def supports(family: Family, classes: int) -> bool:
    """Whether R of this family has a kernel: naive Bayes itself, with logits that fit into registers."""
    return type(family) is NaiveBayes and classes <= MOST_CLASSES


@dataclass(frozen=True, eq=False)
class FusedPeers:
    """All peers' rows, one peer's after the other's: `offsets` [N + 1] says where each begins and the last ends."""

    family: NaiveBayes
    rows: Rows  # [rows, Dc], NaN is missing; [rows, Dd], negative is missing
    labels: Any  # [rows] class index; a negative one leaves the row out
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
        """R_v(S_v) of every peer; NaN for a peer whose S is not finite: [N, C, K] -> [N, C, K]."""
        family, stats = self.family, stats.contiguous()
        expected = (len(self.offsets) - 1, self.classes, family.size)
        if tuple(stats.shape) != expected or stats.dtype != torch.float32:
            raise ValueError(
                f"statistics are {tuple(stats.shape)} {stats.dtype}; expected {expected} float32"
            )
        out, lanes = torch.empty_like(stats), _power(self.classes)
        starts = self._put(np.append(family.offsets, sum(family.cardinalities)), torch.int32)
        residual_kernel[(expected[0],)](
            *self.rows, self.labels, self.row_weights, self.offsets, starts, stats, out,
            family.count_floor / self.classes, max(family.variance_floor, TINY), MEAN_LIMIT, TINY, LOG_2PI,
            CLASSES=self.classes, CONTINUOUS=family.continuous, DISCRETE=len(family.cardinalities),
            SIZE=family.size, MISSING=family.missing, ROWS=MOST_ROWS,
            COLUMNS=min(MOST_COLUMNS, _power(family.continuous)), LANES=lanes, SCAN=SCAN,
            PRECISION="tf32x3", num_warps=1 if lanes <= 32 else 4, num_stages=1,
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
    """The next power of two that a product takes."""
    return max(LEAST, triton.next_power_of_2(count))
