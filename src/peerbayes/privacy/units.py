"""Location and scale of columns and the number of rows, bought: one release of moments on ranges that everybody knows.

    u = (x − centre)/half, held within ±1        r = Σ_i (1, (u, u² − ½) of each column)        r̃ = r + noise

u² + (u² − ½)² ≤ 1¼, so a row moves r by at most √(1 + 1¼·D). A column that may miss values has its own count beside
the two, and all three are 0 where it does: 1 more each. In whole steps of 2⁻²⁴, so that sums are exact and noise is
discrete, as in `mechanism`. Units need not be exact, only the same for everybody; but a scale far too small would clip
rows, and so it never is smaller than noise allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peerbayes.privacy import accounting
from peerbayes.privacy.mechanism import MOST_ROWS
from peerbayes.privacy.sampling import Source, discrete_gaussian

BITS = 24
ONE = 1 << BITS

# A sum of one peer, with noise far beyond what can happen, in steps.
MOST = 1 << 50

# Variance of u where nothing can be told: that of even values.
EVEN = 1 / 3


@dataclass(frozen=True)
class Units:
    """What is asked of the rows: how many there are, and moments of columns."""

    missing: tuple[bool, ...]
    """Of each column, whether values may be missing."""
    cost: float
    """μ² that it may cost."""

    @property
    def size(self) -> int:
        """Numbers of a release."""
        return 1 + 2 * len(self.missing) + sum(self.missing)

    @property
    def most(self) -> float:
        """How far a row moves a release, in steps: rounding adds at most half a step to each number."""
        return ONE * math.sqrt(1 + 1.25 * len(self.missing) + sum(self.missing)) + math.sqrt(self.size) / 2

    @property
    def sigma(self) -> int:
        """Of the noise, in steps."""
        return math.ceil(self.most / math.sqrt(self.cost) * (1 + 1e-12))

    def discretisation(self) -> float:
        """What the noise being discrete may cost in ε."""
        return accounting.discretisation(self.sigma, self.size)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """r of rows whose columns are u, NaN where missing: [n, columns] -> [size] of int64."""
        if len(values) > MOST_ROWS:
            raise ValueError(f"a peer has {len(values):,} rows; a private one takes up to {MOST_ROWS:,}")
        there = ~np.isnan(values)
        held = np.clip(np.where(there, values, 0.0), -1.0, 1.0)
        parts = [np.array([len(values) * ONE])]
        for column, missing in enumerate(self.missing):
            u, here = held[:, column], there[:, column]
            parts.append(
                np.rint(np.stack([u, np.where(here, u * u - 0.5, 0.0)]) * ONE).astype(np.int64).sum(axis=1)
            )
            if missing:
                parts.append(np.array([int(here.sum()) * ONE]))
        return np.concatenate(parts)

    def release(self, values: np.ndarray, source: Source) -> np.ndarray:
        """r̃ of rows: [n, columns] -> [size] of int64."""
        return self.sums(values) + discrete_gaussian(self.sigma, self.size, source)

    def opened(self, total: np.ndarray, peers: int) -> tuple[float, np.ndarray, np.ndarray]:
        """Rows of all peers, and mean and deviation of u, from the sum of so many releases: m, [D], [D]."""
        noise = self.sigma / ONE * math.sqrt(peers)  # of each number of the sum
        numbers = total.astype(np.float64) / ONE
        mean, variance = np.zeros(len(self.missing)), np.full(len(self.missing), EVEN)
        place = 1
        for column, missing in enumerate(self.missing):
            first, second = numbers[place], numbers[place + 1]
            count = float(numbers[place + 2] if missing else numbers[0])
            place += 3 if missing else 2
            if count > 3 * noise:
                mean[column] = min(max(first / count, -1.0), 1.0)
                spread = second / count + 0.5 - mean[column] ** 2
                variance[column] = min(max(spread, noise / count), 1.0)
        return float(numbers[0]), mean, np.sqrt(variance)
