"""The rows of all simulated peers, and R_v(S_v) from them: what a round spends its time on.

Three ways to the same numbers: Φ held in memory (small networks), the fused kernels that hold x and not Φ (naive
Bayes, large networks, NumPy or a GPU in float32), and Φ made anew for a few peers at a time (everything else). Rows
that φ alone cannot take are completed, peer by peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from peerbayes import core
from peerbayes.completion import Completion, alone, apart, complete
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
        if self.incomplete.any():
            once = self._completed(self._whole.residual(rounds, 1), of_weights)
            return _steps(once, steps)
        fused = None if of_weights else self._kernel(rounds)
        return _steps(fused if fused is not None else self._general(rounds)(of_weights), steps)

    def statistics(self) -> np.ndarray:
        """Y_vᵀΦ_v of every peer, whose rows φ must take as they are (see `expected` for others): [N, C, K]."""
        if self.family.wide:
            labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
            return self._apart(self._diagonal.T @ labels)
        parts = [core.statistics(features, labels) for _, features, labels in self._blocks(HERE)]
        return np.concatenate(parts)

    def features_of(self, some: Any) -> np.ndarray:
        """φ of some rows, which φ takes as they are: [P, K]."""
        return np.asarray(self.family.features(self._rows(some)))

    def soft_errors(self, weights: np.ndarray, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """Soft errors of models W [M, C, K] on peers' own rows, senders[e]'s on those of receivers[e]: [E] -> [E]."""
        errors = np.zeros(receivers.size)
        order = np.argsort(receivers, kind="stable")
        ends = np.cumsum(np.bincount(receivers, minlength=self.nodes))
        for peer, some in enumerate(np.split(order, ends[:-1])):
            if some.size and self.sizes[peer]:
                errors[some] = self._soft_errors(self._slices[peer], weights[senders[some]])
        return errors

    def _soft_errors(self, mine: slice, weights: np.ndarray) -> np.ndarray:
        """Of several models on some rows: [M, C, K] -> [M]."""
        rows, labels, share = self._rows(mine), self.labels[mine], self.row_weights[mine]
        known = complete(self.family, rows) if self.incomplete[mine].any() else None
        features = None if known else np.asarray(self.family.features(rows))
        lost = np.empty(len(weights))
        for model, own in enumerate(weights):
            logits = features @ own.T if known is None else known.log_joint(own)
            lost[model] = 1.0 - core.softmax(logits)[np.arange(labels.size), labels] @ share / share.sum()
        return lost

    # --- rows with values missing ----------------------------------------------------------------------

    @cached_property
    def incomplete(self) -> np.ndarray:
        """Which rows φ alone cannot take: [m]."""
        return self.family.incomplete(self.rows)

    def apart(self) -> np.ndarray:
        """What is there of each column alone, by class, at every peer: [N, C, M]. See `completion.alone`."""
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
        return np.stack([apart(self.family, self._rows(mine), labels[mine]) for mine in self._slices])

    def alone(self, sums: np.ndarray) -> np.ndarray:
        """The statistics that completion starts from, given `apart` of all peers: [..., C, M] -> [..., C, K]."""
        return alone(self.family, sums)

    def expected(self, stats: np.ndarray) -> np.ndarray:
        """Y_vᵀΦ̃_v of every peer, missing values completed by the model of S_v: [N, C, K] -> [N, C, K]."""
        whole, weights = self._whole.statistics(), np.asarray(self.family.weights(stats))
        for peer, (known, labels) in self._gaps.items():
            whole[peer] += known.statistics(weights[peer], labels)[0]
        return whole

    def _completed(self, of_whole: Callable[[Array], Array], of_weights: bool) -> Callable[[Array], Array]:
        """R with the residuals of incomplete rows, Σ (y_c − p(c | x_obs)) Φ̃_c, peer by peer."""
        if of_weights:
            raise ValueError("values are missing, and weights of no model complete nothing")
        if self.place != HERE:
            raise ValueError(
                "values are missing, and are completed in NumPy and float64 only; leave out device and dtype, use "
                "family='naive-bayes', or fill them in first"
            )

        def residual(stats: Array) -> Array:
            change, weights = of_whole(stats), self.family.weights(stats)
            for peer, (known, labels) in self._gaps.items():
                change[peer] += _residual(known, labels, weights[peer])
            return change

        return residual

    @cached_property
    def _whole(self) -> Holdings:
        """The rows that φ takes as they are."""
        if not self.incomplete.any():
            return self
        kept = ~self.incomplete
        owner = np.repeat(np.arange(self.nodes), self.sizes)
        return replace(
            self, rows=self._rows(kept), labels=self.labels[kept], row_weights=self.row_weights[kept],
            sizes=np.bincount(owner[kept], minlength=self.nodes),
        )  # fmt: skip

    @cached_property
    def _gaps(self) -> dict[int, tuple[Completion, np.ndarray]]:
        """The other rows of each peer that has some, and their Y."""
        found = {}
        for peer, mine in enumerate(self._slices):
            rows = mine.start + np.flatnonzero(self.incomplete[mine])
            if rows.size:
                labels = core.one_hot(self.labels[rows], self.classes) * self.row_weights[rows, None]
                found[peer] = complete(self.family, self._rows(rows), numbers=rows), labels
        return found

    @property
    def _slices(self) -> list[slice]:
        return [slice(begin, end) for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def _rows(self, some: Any) -> Rows:
        return Rows(self.rows.values[some], self.rows.codes[some])

    def mean_square(self) -> float:
        """The mean of ‖φ‖² over the rows, by weight."""
        total = sum(float((features**2).sum()) for _, features, _ in self._blocks(HERE))
        return total / float(self.row_weights.sum())

    def differ(self, start: np.ndarray, links: Any) -> float:
        """How far apart neighbours' first residuals are, beside what their rows explain: see `difference_ratio`."""
        return difference_ratio(*self.first(start), links)

    def first(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R_v at the common start, and its variance within each peer's rows: [N, C, K], [N]."""
        if self.incomplete.any():
            return self._first_completed(start)
        parts = [
            first_residual(features, labels, self.family.weights(start[peers]))
            for peers, features, labels in self._blocks(HERE)
        ]
        changes, within = zip(*parts, strict=True)
        return np.concatenate(changes), np.concatenate(within)

    def _first_completed(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same row by row, since completed features differ from class to class."""
        weights = self.family.weights(start)
        change, within = np.zeros(start.shape), np.zeros(self.nodes)
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]
        for peer, mine in enumerate(self._slices):
            known = complete(self.family, self._rows(mine))
            step = labels[mine] - self.row_weights[mine, None] * core.softmax(known.log_joint(weights[peer]))
            square = 0.0
            for row in range(len(step)):
                own, _ = known.take(slice(row, row + 1)).statistics(weights[peer], step[row : row + 1])
                change[peer] += own
                square += float((own**2).sum())
            rows, size = len(step), float((change[peer] ** 2).sum())
            within[peer] = rows / (rows - 1) * (square - size / rows) if rows > 1 else square
        return change, within

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

    def _general(self, rounds: int) -> Callable[[bool], Callable[[Array], Array]]:
        """The way that fits families without a kernel of their own."""
        if self.place != HERE:
            return self._dense
        if self.family.wide:
            return self._sparse
        entries = self.labels.size * self.family.size
        large = entries * self.classes * rounds > FUSED_WORK and entries <= FEATURES_HELD
        return self._by_peer if large else self._dense

    def _by_peer(self, of_weights: bool) -> Callable[[Array], Array]:
        """R of one peer after the other, while its numbers are in cache; the posterior by a kernel, in place."""
        from peerbayes import fused_lines, kernels

        family = self.family
        theta = fused_lines.weights_of(family) if fused_lines.supports(family) else family.weights
        features = family.features(self.rows)
        labels, row_weights = self.labels.astype(np.int64), self.row_weights.astype(np.float64)
        best = np.empty(int(self.sizes.max()), dtype=np.int64)
        parts = [
            (
                features[mine],
                features[mine].T,
                best[: mine.stop - mine.start],
                labels[mine],
                row_weights[mine],
            )
            for mine in self._slices
        ]

        def residual(stats: Array) -> Array:
            weights = stats if of_weights else theta(stats)
            change = np.empty(weights.shape)
            for peer, (own, turned, *given) in enumerate(parts):
                logits = np.dot(weights[peer], turned)
                kernels.residuals(logits, *given)
                np.dot(logits, own, out=change[peer])
            return change

        return residual

    def _sparse(self, of_weights: bool) -> Callable[[Array], Array]:
        """R of all peers by two products with one sparse matrix, whose blocks are the peers' Φ."""
        labels = core.one_hot(self.labels, self.classes) * self.row_weights[:, None]

        def residual(stats: Array) -> Array:
            weights = stats if of_weights else self.family.weights(stats)
            turned = np.swapaxes(weights, 1, 2).reshape(-1, self.classes)  # [N·K, C]
            posterior = core.softmax(self._diagonal @ turned)
            return self._apart(self._diagonal.T @ (labels - self.row_weights[:, None] * posterior))

        return residual

    def _apart(self, stats: np.ndarray) -> np.ndarray:
        """Statistics of all peers below each other [N·K, C], as [N, C, K]."""
        return np.swapaxes(stats.reshape(self.nodes, self.family.size, self.classes), 1, 2)

    @cached_property
    def _diagonal(self) -> csr_array:
        """Φ of all peers without its zeros, each peer in columns of its own: [m, N·K]."""
        features = self.family.sparse(self.rows)
        entries = np.diff(features.indptr)
        first = np.repeat(np.repeat(np.arange(self.nodes) * self.family.size, self.sizes), entries)
        shape = (features.shape[0], self.nodes * self.family.size)
        return csr_array((features.data, features.indices + first, features.indptr), shape=shape)

    @property
    def _held(self) -> Any:
        """Blocks of peers with their Φ and Y: kept when they are one, made anew each time when they are more."""
        return self._kept if self._at_once >= self.nodes else self._blocks(self.place)

    @cached_property
    def _kept(self) -> list[tuple[slice, Array, Array]]:
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


def _steps(once: Callable[[Array], Array], steps: int) -> Callable[[Array], Array]:
    """S -> what so many local iterations change."""

    def repeated(stats: Array) -> Array:
        moved = stats + once(stats)
        for _ in range(steps - 1):
            moved = moved + once(moved)
        return moved - stats

    return once if steps == 1 else repeated


def _residual(known: Completion, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """R_c = Σ_n (y_nc − p(c | x_obs)) Φ̃_c, each row of p times the row's weight: [n, C], [C, K] -> [C, K]."""
    posterior = core.softmax(known.log_joint(weights))
    change, _ = known.statistics(weights, labels - labels.sum(axis=1, keepdims=True) * posterior)
    return change
