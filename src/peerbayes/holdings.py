"""The rows of all simulated peers, and R_v(S_v) from them: what a round spends its time on.

Three ways to the same numbers: Φ held in memory (small networks), the fused kernels that hold x and not Φ (naive
Bayes, large networks, NumPy or a GPU in float32), and Φ made anew for a few peers at a time (everything else).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from peerbayes import core
from peerbayes.core import Array
from peerbayes.families import Family, NaiveBayes, Rows
from peerbayes.places import HERE, Place
from peerbayes.relay import difference_ratio, first_residual

# Multiplications of a run above which a fused kernel pays for being loaded (and, once on a machine, compiled).
FUSED_WORK = 1 << 30

# Entries of Φ up to which it is held: 256 MB of float64. Beyond, a block of peers of this size is made at a time.
FEATURES_HELD = 1 << 25


@dataclass(frozen=True, eq=False)
class Holdings:
    """Encoded rows, one peer's after the other's."""

    family: Family
    rows: Rows  # [m, Dc], [m, Dd]
    labels: np.ndarray  # [m] class index
    row_weights: np.ndarray  # [m]
    sizes: np.ndarray  # [N] rows of each peer
    classes: int
    place: Place = HERE

    @property
    def nodes(self) -> int:
        return self.sizes.size

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each peer's rows begin, and where the last one's end: [N + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def residual(self, rounds: int, steps: int = 1, of_weights: bool = False) -> Callable[[Array], Array]:
        """S [N, C, K] -> R_v(S_v) [N, C, K]; `steps` local iterations count as one: S after them minus S before.

        `of_weights`: S are natural weights W, and R is taken at them. `rounds` says whether a kernel pays.
        """
        fused = None if of_weights else self._kernel(rounds)
        once = fused if fused is not None else self._dense(of_weights)

        def repeated(stats: Array) -> Array:
            moved = stats + once(stats)
            for _ in range(steps - 1):
                moved = moved + once(moved)
            return moved - stats

        return once if steps == 1 else repeated

    def statistics(self) -> np.ndarray:
        """Y_vᵀΦ_v of every peer: [N, C, K]."""
        parts = [core.statistics(features, labels) for _, features, labels in self._blocks(HERE)]
        return np.concatenate(parts)

    def mean_square(self) -> float:
        """The mean of ‖φ‖² over the rows, by weight."""
        total = sum(float((features**2).sum()) for _, features, _ in self._blocks(HERE))
        return total / float(self.row_weights.sum())

    def differ(self, start: np.ndarray, links: Any) -> float:
        """How far apart neighbours' first residuals are, beside what their rows explain: see `difference_ratio`."""
        return difference_ratio(*self.first(start), links)

    def first(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R_v at the common start, and its variance within each peer's rows: [N, C, K], [N]."""
        parts = [
            first_residual(features, labels, self.family.weights(start[peers]))
            for peers, features, labels in self._blocks(HERE)
        ]
        changes, within = zip(*parts, strict=True)
        return np.concatenate(changes), np.concatenate(within)

    def _kernel(self, rounds: int) -> Callable[[Array], Array] | None:
        """R by a fused kernel, where there is one for the family and the place, and enough work for it."""
        work = self.labels.size * self.family.size * self.classes * rounds
        if not isinstance(self.family, NaiveBayes) or work <= FUSED_WORK:
            return None
        rows = Rows(self.rows.values.astype(self.place.precision, copy=False), self.rows.codes)
        given = (self.family, rows, self.labels, self.row_weights, self.offsets, self.classes)
        if self.place.device is None:
            from peerbayes import fused

            return fused.FusedPeers(*given).residual if fused.supports(self.family) else None
        if self.place.fuses:
            from peerbayes import fused_gpu

            if fused_gpu.supports(self.family, self.classes):
                return fused_gpu.FusedPeers(*given, device=self.place.device).residual
        return None

    def _dense(self, of_weights: bool) -> Callable[[Array], Array]:
        def residual(stats: Array) -> Array:
            xp = array_namespace(stats)
            parts = []
            for peers, features, labels in self._held:
                part = stats[peers]
                parts.append(
                    core.residual(features, labels, part if of_weights else self.family.weights(part))
                )
            return parts[0] if len(parts) == 1 else xp.concat(parts)

        return residual

    @property
    def _held(self) -> Any:
        """Blocks of peers with their Φ and Y: kept when they are one, made anew each time when they are more."""
        return self._whole if self._at_once >= self.nodes else self._blocks(self.place)

    @cached_property
    def _whole(self) -> list[tuple[slice, Array, Array]]:
        return list(self._blocks(self.place))

    @property
    def _at_once(self) -> int:
        return max(1, FEATURES_HELD // max(1, int(self.sizes.max()) * self.family.size))

    def _blocks(self, place: Place) -> Iterator[tuple[slice, Array, Array]]:
        """A few peers, their Φ [b, n, K] and Y [b, n, C]; a zero row is padding."""
        for first in range(0, self.nodes, self._at_once):
            peers = slice(first, min(first + self._at_once, self.nodes))
            begin, end = self.offsets[peers.start], self.offsets[peers.stop]
            sizes = self.sizes[peers]
            node = np.repeat(np.arange(sizes.size), sizes)
            spot = np.arange(begin, end) - self.offsets[first + node]
            features = np.zeros((sizes.size, int(sizes.max()), self.family.size))
            features[node, spot] = self.family.features(
                Rows(self.rows.values[begin:end], self.rows.codes[begin:end])
            )
            labels = np.zeros((sizes.size, int(sizes.max()), self.classes))
            labels[node, spot, self.labels[begin:end]] = self.row_weights[begin:end]
            yield peers, place.put(features), place.put(labels)
