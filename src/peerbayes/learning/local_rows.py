"""The rows of all simulated peers, and R_v(S_v) from them: most of the time of a round.

Three ways to the same numbers: Φ in memory (small networks), fused kernels that store x and not Φ (naive Bayes, large
networks, NumPy or a GPU in float32), and Φ recomputed for a few peers at a time (everything else). Rows with missing
values that φ cannot take are completed, peer by peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from peerbayes.data.table import Array
from peerbayes.learning.relay import difference_ratio, first_residual
from peerbayes.model import core
from peerbayes.model.devices import HERE, Place
from peerbayes.model.families import Family, NaiveBayes, Rows
from peerbayes.model.missing import Completion, alone, apart, complete

# Multiplications of a run above which a fused kernel pays for being loaded (and, once on a machine, compiled).
FUSED_WORK = 1 << 30

# Entries of Φ up to which it is kept in memory: 256 MB of float64. Beyond, blocks of this size are computed in turn.
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
    def peer_count(self) -> int:
        return self.sizes.size

    @cached_property
    def offsets(self) -> np.ndarray:
        """Start of each peer's rows, and the end of the last one's: [N + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def residual(self, rounds: int, steps: int = 1, of_weights: bool = False) -> Callable[[Array], Array]:
        """Return the function S [N, C, K] -> R_v(S_v) [N, C, K]; `steps` local iterations: S after them minus S before.

        `of_weights`: S are natural weights W, and R is taken at them. `rounds` says whether a kernel pays.
        """
        if self.incomplete.any():
            once = self._completed(self._complete.residual(rounds, 1), of_weights)
            return _steps(once, steps)
        fused = None if of_weights else self._kernel(rounds)
        return _steps(fused if fused is not None else self._general(rounds)(of_weights), steps)

    def statistics(self) -> np.ndarray:
        """Return Y_vᵀΦ_v of every peer, where all rows are complete (see `expected` for others): [N, C, K]."""
        if self.family.wide:
            labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
            return self._unstacked(self._diagonal.T @ labels)
        blocks = [core.statistics(features, labels) for _, features, labels in self._blocks(HERE)]
        return np.concatenate(blocks)

    def features_of(self, indices: Any) -> np.ndarray:
        """Return φ of complete rows: [P, K]."""
        return np.asarray(self.family.features(self._rows(indices)))

    def soft_errors(self, weights: np.ndarray, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """Return the soft errors of models W [M, C, K], that of senders[e] on the rows of receivers[e]: [E] -> [E]."""
        errors = np.zeros(receivers.size)
        order = np.argsort(receivers, kind="stable")
        ends = np.cumsum(np.bincount(receivers, minlength=self.peer_count))
        for peer, pairs in enumerate(np.split(order, ends[:-1])):
            if pairs.size and self.sizes[peer]:
                errors[pairs] = self._soft_errors(self._slices[peer], weights[senders[pairs]])
        return errors

    def _soft_errors(self, local: slice, weights: np.ndarray) -> np.ndarray:
        """Return the soft errors of several models on the same rows: [M, C, K] -> [M]."""
        rows, labels, share = self._rows(local), self.labels[local], self.row_weights[local]
        completion = complete(self.family, rows) if self.incomplete[local].any() else None
        features = None if completion else np.asarray(self.family.features(rows))
        errors = np.empty(len(weights))
        for model, theta in enumerate(weights):
            logits = features @ theta.T if completion is None else completion.log_joint(theta)
            errors[model] = 1.0 - core.softmax(logits)[np.arange(labels.size), labels] @ share / share.sum()
        return errors

    # --- rows with values missing ----------------------------------------------------------------------

    @cached_property
    def incomplete(self) -> np.ndarray:
        """Which rows have missing values that φ cannot take: [m]."""
        return self.family.incomplete(self.rows)

    def apart(self) -> np.ndarray:
        """Return every peer's statistics of each column alone, by class: [N, C, M]. See `completion.alone`."""
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
        return np.stack([apart(self.family, self._rows(local), labels[local]) for local in self._slices])

    def alone(self, sums: np.ndarray) -> np.ndarray:
        """Return the statistics that completion starts from, given `apart` of all peers: [..., C, M] -> [..., C, K]."""
        return alone(self.family, sums)

    def expected(self, stats: np.ndarray) -> np.ndarray:
        """Return Y_vᵀΦ̃_v of every peer, missing values completed by the model of S_v: [N, C, K] -> [N, C, K]."""
        expected_stats, weights = self._complete.statistics(), np.asarray(self.family.weights(stats))
        for peer, (completion, labels) in self._gaps.items():
            expected_stats[peer] += completion.statistics(weights[peer], labels)[0]
        return expected_stats

    def _completed(
        self, complete_residual: Callable[[Array], Array], of_weights: bool
    ) -> Callable[[Array], Array]:
        """Return R including incomplete rows, Σ (y_c − p(c | x_obs)) Φ̃_c, peer by peer."""
        if of_weights:
            raise ValueError(
                "values are missing, and a strategy that learns weights has no model to complete them"
            )
        if self.place != HERE:
            raise ValueError(
                "values are missing, and are completed in NumPy and float64 only; leave out device and dtype, use "
                "family='naive-bayes', or fill them in first"
            )

        def residual(stats: Array) -> Array:
            change, weights = complete_residual(stats), self.family.weights(stats)
            for peer, (completion, labels) in self._gaps.items():
                change[peer] += _residual(completion, labels, weights[peer])
            return change

        return residual

    @cached_property
    def _complete(self) -> Holdings:
        """The complete rows alone."""
        if not self.incomplete.any():
            return self
        complete_rows = ~self.incomplete
        owner = np.repeat(np.arange(self.peer_count), self.sizes)
        return replace(
            self, rows=self._rows(complete_rows), labels=self.labels[complete_rows],
            row_weights=self.row_weights[complete_rows],
            sizes=np.bincount(owner[complete_rows], minlength=self.peer_count),
        )  # fmt: skip

    @cached_property
    def _gaps(self) -> dict[int, tuple[Completion, np.ndarray]]:
        """The incomplete rows of each peer that has any, and their Y."""
        completions = {}
        for peer, local in enumerate(self._slices):
            rows = local.start + np.flatnonzero(self.incomplete[local])
            if rows.size:
                labels = core.one_hot(self.labels[rows], self.classes) * self.row_weights[rows, None]
                completions[peer] = complete(self.family, self._rows(rows), numbers=rows), labels
        return completions

    @property
    def _slices(self) -> list[slice]:
        return [slice(begin, end) for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def _rows(self, indices: Any) -> Rows:
        return Rows(self.rows.values[indices], self.rows.codes[indices])

    def mean_square(self) -> float:
        """Return the weighted mean of ‖φ‖² over the rows."""
        total = sum(float((features**2).sum()) for _, features, _ in self._blocks(HERE))
        return total / float(self.row_weights.sum())

    def differ(self, start: np.ndarray, links: Any) -> float:
        """Return how far neighbours' first residuals differ, beside what their rows explain: `difference_ratio`."""
        return difference_ratio(*self.first(start), links)

    def first(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return R_v at the common start, and its variance within each peer's rows: [N, C, K], [N]."""
        if self.incomplete.any():
            return self._first_completed(start)
        blocks = [
            first_residual(features, labels, self.family.weights(start[peers]))
            for peers, features, labels in self._blocks(HERE)
        ]
        changes, within = zip(*blocks, strict=True)
        return np.concatenate(changes), np.concatenate(within)

    def _first_completed(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same row by row, since completed features differ from class to class."""
        weights = self.family.weights(start)
        change, within = np.zeros(start.shape), np.zeros(self.peer_count)
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
        for peer, local in enumerate(self._slices):
            completion = complete(self.family, self._rows(local))
            step = labels[local] - self.row_weights[local, None] * core.softmax(
                completion.log_joint(weights[peer])
            )
            square = 0.0
            for row in range(len(step)):
                row_change, _ = completion.take(slice(row, row + 1)).statistics(
                    weights[peer], step[row : row + 1]
                )
                change[peer] += row_change
                square += float((row_change**2).sum())
            rows, size = len(step), float((change[peer] ** 2).sum())
            within[peer] = rows / (rows - 1) * (square - size / rows) if rows > 1 else square
        return change, within

    def _kernel(self, rounds: int) -> Callable[[Array], Array] | None:
        """Return R by a fused kernel, where the family and the device have one and there is enough work for it."""
        work = self.labels.size * self.family.size * self.classes * rounds
        if not isinstance(self.family, NaiveBayes) or work <= FUSED_WORK:
            return None
        rows = Rows(self.rows.values.astype(self.place.precision, copy=False), self.rows.codes)
        arguments = (self.family, rows, self.labels, self.row_weights, self.offsets, self.classes)
        if self.place.device is None:
            from peerbayes.model.kernels import peers as fused

            return fused.FusedPeers(*arguments).residual if fused.supports(self.family) else None
        if self.place.fuses:
            from peerbayes.model.kernels import peers_gpu

            if peers_gpu.supports(self.family, self.classes):
                return peers_gpu.FusedPeers(*arguments, device=self.place.device).residual
        return None

    def _dense(self, of_weights: bool) -> Callable[[Array], Array]:
        def residual(stats: Array) -> Array:
            xp = array_namespace(stats)
            changes = []
            for peers, features, labels in self._feature_blocks:
                block_stats = stats[peers]
                changes.append(
                    core.residual(
                        features, labels, block_stats if of_weights else self.family.weights(block_stats)
                    )
                )
            return changes[0] if len(changes) == 1 else xp.concat(changes)

        return residual

    def _general(self, rounds: int) -> Callable[[bool], Callable[[Array], Array]]:
        """Return the way to R for families without a kernel."""
        if self.place != HERE:
            return self._dense
        if self.family.wide:
            return self._sparse
        entries = self.labels.size * self.family.size
        large = entries * self.classes * rounds > FUSED_WORK and entries <= FEATURES_HELD
        return self._by_peer if large else self._dense

    def _by_peer(self, of_weights: bool) -> Callable[[Array], Array]:
        """Return R, computed peer by peer while its numbers are in cache; a kernel computes the posterior in place."""
        from peerbayes.model.kernels import block_loops, tan

        family = self.family
        theta = tan.weights_of(family) if tan.supports(family) else family.weights
        features = family.features(self.rows)
        labels, row_weights = self.labels.astype(np.int64), self.row_weights.astype(np.float64)
        best = np.empty(int(self.sizes.max()), dtype=np.int64)
        blocks = [
            (
                features[local],
                features[local].T,
                best[: local.stop - local.start],
                labels[local],
                row_weights[local],
            )
            for local in self._slices
        ]

        def residual(stats: Array) -> Array:
            weights = stats if of_weights else theta(stats)
            change = np.empty(weights.shape)
            for peer, (peer_features, transposed, *targets) in enumerate(blocks):
                logits = np.dot(weights[peer], transposed)
                block_loops.residuals(logits, *targets)
                np.dot(logits, peer_features, out=change[peer])
            return change

        return residual

    def _sparse(self, of_weights: bool) -> Callable[[Array], Array]:
        """Return R, computed for all peers by two products with one sparse matrix, whose blocks are the peers' Φ."""
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]

        def residual(stats: Array) -> Array:
            weights = stats if of_weights else self.family.weights(stats)
            transposed = np.swapaxes(weights, 1, 2).reshape(-1, self.classes)  # [N·K, C]
            posterior = core.softmax(self._diagonal @ transposed)
            return self._unstacked(self._diagonal.T @ (labels - self.row_weights[:, None] * posterior))

        return residual

    def _unstacked(self, stats: np.ndarray) -> np.ndarray:
        """Return stacked statistics of all peers [N·K, C] as [N, C, K]."""
        return np.swapaxes(stats.reshape(self.peer_count, self.family.size, self.classes), 1, 2)

    @cached_property
    def _diagonal(self) -> csr_array:
        """Φ of all peers as a sparse matrix, each peer in its own columns: [m, N·K]."""
        features = self.family.sparse(self.rows)
        entries = np.diff(features.indptr)
        first = np.repeat(np.repeat(np.arange(self.peer_count) * self.family.size, self.sizes), entries)
        shape = (features.shape[0], self.peer_count * self.family.size)
        return csr_array((features.data, features.indices + first, features.indptr), shape=shape)

    @property
    def _feature_blocks(self) -> Any:
        """Blocks of peers with their Φ and Y: cached if there is one block, otherwise computed each time."""
        return self._cached_blocks if self._at_once >= self.peer_count else self._blocks(self.place)

    @cached_property
    def _cached_blocks(self) -> list[tuple[slice, Array, Array]]:
        return list(self._blocks(self.place))

    @property
    def _at_once(self) -> int:
        return max(1, FEATURES_HELD // max(1, int(self.sizes.max()) * self.family.size))

    def _blocks(self, device: Place) -> Iterator[tuple[slice, Array, Array]]:
        """Yield blocks of peers, their Φ [b, n, K] and Y [b, n, C]; a zero row is padding."""
        for first in range(0, self.peer_count, self._at_once):
            peers = slice(first, min(first + self._at_once, self.peer_count))
            begin, end = self.offsets[peers.start], self.offsets[peers.stop]
            sizes = self.sizes[peers]
            peer = np.repeat(np.arange(sizes.size), sizes)
            row_index = np.arange(begin, end) - self.offsets[first + peer]
            features = np.zeros((sizes.size, int(sizes.max()), self.family.size))
            features[peer, row_index] = self.family.features(
                Rows(self.rows.values[begin:end], self.rows.codes[begin:end])
            )
            labels = np.zeros((sizes.size, int(sizes.max()), self.classes))
            labels[peer, row_index, self.labels[begin:end]] = self.row_weights[begin:end]
            yield peers, device.put(features), device.put(labels)


def _steps(once: Callable[[Array], Array], steps: int) -> Callable[[Array], Array]:
    """Return the function S -> change of S by `steps` local iterations."""

    def repeated(stats: Array) -> Array:
        moved = stats + once(stats)
        for _ in range(steps - 1):
            moved = moved + once(moved)
        return moved - stats

    return once if steps == 1 else repeated


def _residual(completion: Completion, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return R_c = Σ_n (y_nc − p(c | x_obs)) Φ̃_c, rows of p times the rows' weights: [n, C], [C, K] -> [C, K]."""
    posterior = core.softmax(completion.log_joint(weights))
    change, _ = completion.statistics(weights, labels - labels.sum(axis=1, keepdims=True) * posterior)
    return change
