"""The rows of peers: their residual and statistics, how they start, and how neighbours' models do on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerbayes.learning.choice import LinkSums, first_residual, link_sums
from peerbayes.learning.metrics import Sample, log_losses
from peerbayes.model import core
from peerbayes.model.missing import alone, apart, complete
from peerbayes.model.residuals import PeerRows, Residual, residual_of


@dataclass(frozen=True, eq=False)
class LocalRows(PeerRows):
    """Encoded rows, one peer's after the other's, of a simulated network or of one real peer."""

    def residual(self, rounds: int, steps: int = 1, of_weights: bool = False) -> Residual:
        """Return R_v(S_v) of every peer: [N, C, K] -> [N, C, K]. See `residual_of`."""
        return residual_of(self, self.family, rounds, steps, of_weights)

    def statistics(self) -> np.ndarray:
        """Return Y_vᵀΦ_v of every peer, where all rows are complete (see `expected` for others): [N, C, K]."""
        if self.family.wide:
            return self.sparse_sums(self.one_hot)
        return np.concatenate([core.statistics(features, labels) for _, features, labels in self.blocks()])

    def sum_terms(self, rounds: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function of one S [1, C, K] for all peers to each one's R_v and log loss: [N, C·K + 1].

        A penalty of the family is part of both.
        """
        residual, rows = (
            residual_of(self, self.family, rounds, raw=True),
            Sample(self.family, self.rows, self.labels),
        )

        def terms(stats: np.ndarray) -> np.ndarray:
            changes = residual(np.repeat(stats, self.peer_count, axis=0)).reshape(self.peer_count, -1)
            weights = self.family.weights(stats[0])
            of_peers = self.learned_losses(weights, log_losses(rows.logits(weights), self.labels))
            return np.concatenate([changes, of_peers[:, None]], axis=1)

        return terms

    def learned_losses(self, weights: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """Return each peer's sum of the log losses of all rows [m] under W [C, K], with its share of a penalty: [N]."""
        owner = np.repeat(np.arange(self.peer_count), self.sizes)
        of_peers: np.ndarray = np.bincount(owner, self.row_weights * losses, minlength=self.peer_count)
        penalty = self.family.penalty(weights)
        return of_peers if penalty is None else of_peers + self.masses * float(penalty[0])

    def features_of(self, indices: Any) -> np.ndarray:
        """Return φ of complete rows: [P, K]."""
        return np.asarray(self.family.features(self.select(indices)))

    def soft_errors(self, weights: np.ndarray, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """Return the soft errors of models W [M, C, K], that of senders[e] on the rows of receivers[e]: [E] -> [E]."""
        errors = np.zeros(receivers.size)
        order = np.argsort(receivers, kind="stable")
        ends = np.cumsum(np.bincount(receivers, minlength=self.peer_count))
        for local, pairs in zip(self.slices, np.split(order, ends[:-1]), strict=True):
            if pairs.size and local.stop > local.start:
                errors[pairs] = self._soft_errors(local, weights[senders[pairs]])
        return errors

    def _soft_errors(self, local: slice, weights: np.ndarray) -> np.ndarray:
        """Return the soft errors of several models on the same rows: [M, C, K] -> [M]."""
        rows, labels, share = self.select(local), self.labels[local], self.row_weights[local]
        completion = complete(self.family, rows) if self.incomplete[local].any() else None
        features = (
            None if completion else np.asarray(self.family.features(rows)) if self.family.linear else ()
        )
        errors = np.empty(len(weights))
        for model, theta in enumerate(weights):
            if completion is not None:
                logits = completion.log_joint(theta)
            elif self.family.linear:
                logits = features @ theta.T
            else:
                logits = self.family.scorer(theta)(rows)
            errors[model] = 1.0 - core.softmax(logits)[np.arange(labels.size), labels] @ share / share.sum()
        return errors

    def apart(self) -> np.ndarray:
        """Return every peer's statistics of each column alone, by class: [N, C, M]. See `missing.alone`."""
        return np.stack(
            [apart(self.family, self.select(local), self.one_hot[local]) for local in self.slices]
        )

    def alone(self, sums: np.ndarray) -> np.ndarray:
        """Return the statistics that completion starts from, given `apart` of all peers: [..., C, M] -> [..., C, K]."""
        return alone(self.family, sums)

    def expected(self, stats: np.ndarray) -> np.ndarray:
        """Return Y_vᵀΦ̃_v of every peer, missing values completed by the model of S_v: [N, C, K] -> [N, C, K]."""
        expected_stats, weights = self.complete.statistics(), np.asarray(self.family.weights(stats))
        for peer, (completion, labels) in self.gaps.items():
            expected_stats[peer] += completion.statistics(weights[peer], labels)[0]
        return expected_stats

    def mean_square(self) -> float:
        """Return the weighted mean of ‖φ‖² over the rows."""
        total = sum(float((features**2).sum()) for _, features, _ in self.blocks())
        return total / float(self.row_weights.sum())

    def differ(self, start: np.ndarray, links: Any) -> LinkSums:
        """Return how far neighbours' first residuals differ, beside what their rows explain."""
        return link_sums(*self.first(start), links)

    def first(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return R_v at the common start, and its variance within each peer's rows: [N, C, K], [N]."""
        if self.incomplete.any():
            return self._first_completed(start)
        blocks = [
            first_residual(features, labels, self.family.weights(start[peers]), self.family.log_joint)
            for peers, features, labels in self.blocks()
        ]
        changes, within = zip(*blocks, strict=True)
        return np.concatenate(changes), np.concatenate(within)

    def _first_completed(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same row by row, since completed features differ from class to class."""
        weights = self.family.weights(start)
        change, within = np.zeros(start.shape), np.zeros(self.peer_count)
        for peer, local in enumerate(self.slices):
            completion = complete(self.family, self.select(local))
            posterior = core.softmax(completion.log_joint(weights[peer]))
            step = self.one_hot[local] - self.row_weights[local, None] * posterior
            square = 0.0
            for row in range(len(step)):
                one_row = slice(row, row + 1)
                row_change, _ = completion.take(one_row).statistics(weights[peer], step[one_row])
                change[peer] += row_change
                square += float((row_change**2).sum())
            rows, size = len(step), float((change[peer] ** 2).sum())
            within[peer] = rows / (rows - 1) * (square - size / rows) if rows > 1 else square
        return change, within
