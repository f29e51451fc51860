"""One round's release: rows clipped, summed exactly, noise added, projected.

    q_i = e_y − p_i        w_i = min(1, G/(‖q_i‖·‖h(x_i)‖))        R̃ = Π(Σ_i w_i q_i h(x_i)ᵀ + noise)

Adding or removing a row moves the sum by at most G in L2, whatever statistics p comes from, even crafted ones. This
holds in integers, and not up to rounding: h(x_i) lies on a grid of 2⁻¹⁶ (finer or coarser with `bound`), w_i q_i is
truncated towards zero on one of 2⁻²⁰, and both are small enough that float64 sums their products without any error.
What a row adds depends on no other row, to the last bit: see `row_steps`. The noise is discrete on the grid of the
products, 2⁻³⁶; the usual 2⁻²⁰·G would need an allowance for rounding the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peerbayes.families import Family, Rows
from peerbayes.privacy.coordinates import Coordinates
from peerbayes.privacy.projection import Projection
from peerbayes.privacy.sampling import Source, discrete_gaussian

# Bits of w·q below 1; bits of h in all; rows whose products float64 sums exactly: 20 + 20 + 12 is below 53.
STEP_BITS, ROW_BITS, AT_ONCE = 20, 20, 1 << 12

# More rows could overflow 64 bits: 2²² · 2²⁰ · 2²⁰ is 2⁶².
MOST_ROWS = 1 << 22

# Lengths are computed in float64; a clip this much shorter cannot be exceeded.
MARGIN = 1 - 2.0**-40


@dataclass(frozen=True, eq=False)
class Mechanism:
    """The mechanism of all releases in a network: clip G, bound on values, noise σ, coordinates and projection."""

    coordinates: Coordinates
    projection: Projection
    clip: float
    """G."""
    bound: float
    """Standardised values are clipped to ±bound."""
    sigma: int
    """σ of the noise, in steps of the grid."""

    @property
    def row_bits(self) -> int:
        """Return the bits of h below 1: those that its largest entry, at most bound², leaves."""
        return ROW_BITS - math.ceil(math.log2(max(1.0, self.bound, self.bound**2)))

    @property
    def bits(self) -> int:
        """Return the bits of the grid, whose step is 2^−bits."""
        return STEP_BITS + self.row_bits

    def rows(self, family: Family, rows: Rows) -> np.ndarray:
        """Return h of rows on its grid, as whole numbers: [n, Dc], [n, Dd] -> [n, K] of float64."""
        if len(rows.values) > MOST_ROWS:
            raise ValueError(
                f"a peer has {len(rows.values):,} rows; a private one takes up to {MOST_ROWS:,}: split it into several"
            )
        bounded = Rows(np.clip(rows.values, -self.bound, self.bound), rows.codes)
        moved = np.nan_to_num(self.coordinates.to(np.asarray(family.features(bounded))))
        most = float(1 << ROW_BITS)
        return np.clip(np.rint(np.ldexp(moved, self.row_bits)), -most, most)

    def clipped(
        self,
        steps: np.ndarray,
        rows: np.ndarray,
        clip: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return Σ_i w_i q_i h_iᵀ in steps of the grid: q [n, C] within ±1, h [n, K] of `rows` -> [C, K] of int64."""
        return summed(self.cut(steps, rows, clip, lengths), rows)

    def cut(
        self,
        steps: np.ndarray,
        rows: np.ndarray,
        clip: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return w_i q_i on its grid, truncated towards zero: [n, C] -> [n, C]. ‖w_i q_i‖·‖h_i‖ ≤ G; not finite: 0.

        `lengths` are the `squares` of the rows, where they are known.
        """
        steps = np.clip(np.nan_to_num(steps, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
        lengths = squares(rows) if lengths is None else lengths
        length = np.sqrt(squares(steps) * np.ldexp(lengths, -2 * self.row_bits))
        limit = (self.clip if clip is None else clip) * MARGIN
        weight = limit / np.maximum(length, limit)
        return np.trunc(np.ldexp(weight[:, None] * steps, STEP_BITS))

    def noise(self, shape: tuple[int, ...], source: Source, sigma: int | None = None) -> np.ndarray:
        """Return discrete Gaussian noise in steps of the grid: int64 of this shape."""
        return discrete_gaussian(sigma or self.sigma, math.prod(shape), source).reshape(shape)

    def opened(self, sums: np.ndarray, classes: bool = True) -> np.ndarray:
        """Return noisy sums [..., C, K] as projected statistics. `classes`: they are residuals, which sum to zero."""
        moved = np.ldexp(sums.astype(np.float64), -self.bits)
        return self.coordinates.back(self.projection(moved, classes))

    def steps_of(self, sigma: float) -> int:
        """Return σ in steps of the grid, rounded up."""
        return math.ceil(math.ldexp(sigma, self.bits))


def summed(cut: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return Σ_i (w_i q_i) h_iᵀ of whole numbers, without any error: [n, C], [n, K] -> [C, K] of int64."""
    total = np.zeros((cut.shape[1], rows.shape[1]), dtype=np.int64)
    for first in range(0, len(rows), AT_ONCE):
        block = slice(first, first + AT_ONCE)
        total += (cut[block].T @ rows[block]).astype(np.int64)
    return total


def squares(values: np.ndarray) -> np.ndarray:
    """Return Σ_k x_k² of each row, summed in one order, so that its bits are the same in any table: [n, K] -> [n]."""
    total = np.zeros(len(values))
    for column in values.T:
        total += column * column
    return total
