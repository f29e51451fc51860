"""Location and scale of columns and the number of rows, from one noisy release of moments on public ranges.

    u = (x − centre)/half, clipped to ±1        r = Σ_i (1, (u, u² − ½) of each column)        r̃ = r + noise

u² + (u² − ½)² ≤ 1¼, so a row moves r by at most √(1 + 1¼·D). A column that may miss values has a count of its own
besides the two, and all three are 0 where a value is missing: 1 more each. In whole steps of 2⁻²⁴, so that sums are
exact and noise is discrete, as in `mechanism`. Units need not be exact, only the same for everybody; but a scale far
too small would clip rows, and so it is never smaller than noise allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peerbayes.privacy import accounting
from peerbayes.privacy.mechanism import MOST_ROWS
from peerbayes.privacy.noise import Source, discrete_gaussian

BITS = 24
ONE = 1 << BITS

# The most that a peer's sum with noise can be, in steps: far beyond what can happen.
MOST = 1 << 50

# Variance of u where the noise hides it: that of uniform values.
EVEN = 1 / 3


@dataclass(frozen=True)
class Units:
    """A release of the number of rows and of moments of columns."""

    missing: tuple[bool, ...]
    """Whether values of each column may be missing."""
    cost: float
    """μ² that the release may cost."""

    @property
    def size(self) -> int:
        """Return the number of entries of a release."""
        return 1 + 2 * len(self.missing) + sum(self.missing)

    @property
    def most(self) -> float:
        """Return how far a row moves a release, in steps: rounding adds at most half a step to each entry."""
        return ONE * math.sqrt(1 + 1.25 * len(self.missing) + sum(self.missing)) + math.sqrt(self.size) / 2

    @property
    def sigma(self) -> int:
        """Return σ of the noise, in steps."""
        return math.ceil(self.most / math.sqrt(self.cost) * (1 + 1e-12))

    def discretisation(self) -> float:
        """Return what the noise being discrete may cost in ε."""
        return accounting.discretisation(self.sigma, self.size)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return r of rows whose columns are u, NaN where missing: [n, columns] -> [size] of int64."""
        if len(values) > MOST_ROWS:
            raise ValueError(f"a peer has {len(values):,} rows; a private one takes up to {MOST_ROWS:,}")
        present = ~np.isnan(values)
        clipped = np.clip(np.where(present, values, 0.0), -1.0, 1.0)
        sums = [np.array([len(values) * ONE])]
        for column, missing in enumerate(self.missing):
            u, has_value = clipped[:, column], present[:, column]
            moments = np.stack([u, np.where(has_value, u * u - 0.5, 0.0)])
            sums.append(np.rint(moments * ONE).astype(np.int64).sum(axis=1))
            if missing:
                sums.append(np.array([int(has_value.sum()) * ONE]))
        return np.concatenate(sums)

    def release(self, values: np.ndarray, source: Source) -> np.ndarray:
        """Return r̃ of rows: [n, columns] -> [size] of int64."""
        return self.sums(values) + discrete_gaussian(self.sigma, self.size, source)

    def opened(self, total: np.ndarray, peers: int) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the rows of all peers, and mean and deviation of u, from a sum of `peers` releases: m, [D], [D]."""
        noise = self.sigma / ONE * math.sqrt(peers)  # of each number of the sum
        numbers = total.astype(np.float64) / ONE
        mean, variance = np.zeros(len(self.missing)), np.full(len(self.missing), EVEN)
        offset = 1
        for column, missing in enumerate(self.missing):
            first, second = numbers[offset], numbers[offset + 1]
            count = float(numbers[offset + 2] if missing else numbers[0])
            offset += 3 if missing else 2
            if count > 3 * noise:
                mean[column] = min(max(first / count, -1.0), 1.0)
                spread = second / count + 0.5 - mean[column] ** 2
                variance[column] = min(max(spread, noise / count), 1.0)
        return float(numbers[0]), mean, np.sqrt(variance)
