"""An adaptive attacker: in every round it finds, for every receiver, the message that does most harm under the rules.

It knows all honest messages, all honest rows and every receiver's rules and verdicts: more than anybody outside a
simulation can. All attackers b of a victim v send it the same message,

    φ_v + l·d̃_v·u        d̃_v the median distance of v's honest neighbours, l one of `LENGTHS`, u a unit vector

the one after which v's mix has the largest soft error on honest rows, among those that v does not strike. Each is
put through v's own rules first (`rules.strikes`, `rules.clip_factors`). The directions u, projected on what keeps
the invariants, R(S) the residual of S and φ̄ the mean of the honest messages:

    swap, merge, ipm        from φ̄, as in `attacks`
    suppress                the rarest class of φ̄; and the most frequent class of which v has no row
    dissensus               − Σ_u a_vu (φ_u − φ_v), u the honest neighbours
    ascent                  −R(φ_v) on rows of the honest: back along what calibration would add
    hidden                  the same and + R_v(φ_v) / m_v: it harms others, and looks like progress on v's own rows
    orthogonal              ascent without its component along R_v(φ_v), which v's own rows cannot detect
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.table import Array
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.robust import rules
from peerbayes.learning.robust.attacks import ATTACK_STREAM, merged, most_frequent, suppressed, swapped, unit
from peerbayes.learning.robust.invariants import Invariants
from peerbayes.learning.robust.rules import clip_factors
from peerbayes.model import core

# Lengths of lies, in median distances of honest neighbours: below the clipping distance, at it, and far beyond.
LENGTHS = np.array([0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 64.0])

# Honest rows on which harm is measured, drawn once.
MOST_ROWS = 192


@dataclass(frozen=True, eq=False)
class Optimiser:
    """The knowledge of the attackers, and their search for the most harmful message.

    local_rows  the rows of all peers
    features    [P, K] φ of sampled rows of honest peers, and
    labels      [P] their classes
    counts      [C] rows of each class at honest peers
    theta       θ of the family
    invariants  what honest messages obey
    rule        how receivers combine: see `rules`
    guarded     whether receivers have a guard
    """

    local_rows: LocalRows
    features: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    theta: Callable[[Array], Array]
    invariants: Invariants
    rule: str
    guarded: bool

    @classmethod
    def of(
        cls,
        local_rows: LocalRows,
        attackers: np.ndarray,
        invariants: Invariants,
        rule: str,
        guarded: bool,
        seed: int,
    ) -> Optimiser:
        owners = np.repeat(np.arange(local_rows.peer_count), local_rows.sizes)
        usable = np.flatnonzero(~np.isin(owners, attackers) & ~local_rows.incomplete)
        rng = np.random.default_rng([seed, ATTACK_STREAM, 0])
        sampled = rng.choice(usable, min(MOST_ROWS, usable.size), replace=False)
        return cls(
            local_rows, local_rows.features_of(sampled), local_rows.labels[sampled],
            np.bincount(local_rows.labels[usable], minlength=local_rows.classes),
            local_rows.family.weights, invariants, rule, guarded,
        )  # fmt: skip

    def worst(
        self, honest: np.ndarray, attackers: np.ndarray, mixing: csr_array, cut: np.ndarray, round_index: int
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function: victims [V] -> their attackers' messages [V, C, K]; `cut` [E] marks cut links."""
        common = self._common_directions(np.delete(honest, attackers, axis=0).mean(axis=0))

        def messages_to(victims: np.ndarray) -> np.ndarray:
            return np.stack(
                [
                    self._message_to(int(v), honest, attackers, mixing, cut, common, round_index)
                    for v in victims
                ]
            )

        return messages_to

    def _message_to(
        self,
        victim: int,
        honest: np.ndarray,
        attackers: np.ndarray,
        mixing: csr_array,
        cut: np.ndarray,
        common: list[np.ndarray],
        round_index: int,
    ) -> np.ndarray:
        """Return the message that all attackers of one victim send to it: [C, K]."""
        row = slice(mixing.indptr[victim], mixing.indptr[victim + 1])
        heard = (mixing.indices[row] != victim) & ~cut[row]
        senders, weights = mixing.indices[row][heard], mixing.data[row][heard]
        hostile = np.isin(senders, attackers)
        message = honest[victim]
        if not hostile.any():  # its links are cut: no attacker is heard
            return message
        pulls = honest[senders] - message
        distances = np.linalg.norm(pulls.reshape(len(pulls), -1), axis=1)
        typical = (
            float(np.median(distances[~hostile])) if not hostile.all() else float(np.linalg.norm(common[0]))
        )
        directions = [
            *common,
            *self._victim_directions(victim, message, pulls[~hostile], weights[~hostile], common),
        ]
        units = np.stack([unit(self.invariants.projected(direction)) for direction in directions])
        lies = (units[:, None] * (typical * LENGTHS)[:, None, None]).reshape(-1, *message.shape)
        harm = self._harm(victim, message, pulls, weights, distances, hostile, lies, round_index)
        best = int(np.argmax(harm))
        return message + lies[best] if np.isfinite(harm[best]) else message

    def _harm(
        self,
        victim: int,
        message: np.ndarray,
        pulls: np.ndarray,
        weights: np.ndarray,
        distances: np.ndarray,
        hostile: np.ndarray,
        lies: np.ndarray,
        round_index: int,
    ) -> np.ndarray:
        """Return the soft error of the victim's mix on honest rows after each lie, −∞ where it is a strike: [B]."""
        tries, senders = len(lies), len(weights)
        distance = np.tile(distances, (tries, 1))
        distance[:, hostile] = np.linalg.norm(lies.reshape(tries, -1), axis=1)[:, None]
        shares, strikes = np.ones((tries, senders)), np.zeros((tries, senders), dtype=bool)
        if self.guarded:
            mixed_in, strikes = self._screened(victim, message, pulls, hostile, lies, round_index)
            shares = mixed_in.astype(np.float64)
        if self.rule != "mean":
            included = shares > 0
            groups = np.repeat(np.arange(tries), senders).reshape(tries, senders)
            shares[included] *= clip_factors(groups[included], distance[included], tries)
        shares = shares * weights
        mixed = message + np.tensordot(shares[:, ~hostile], pulls[~hostile], 1)
        mixed += shares[:, hostile].sum(axis=1)[:, None, None] * lies
        posteriors = core.posterior(self.features, np.asarray(self.theta(mixed)), self._joint)
        right = posteriors[:, np.arange(self.labels.size), self.labels]
        return np.where(strikes[:, hostile].any(axis=1), -np.inf, 1.0 - right.mean(axis=1))

    def _screened(
        self,
        victim: int,
        message: np.ndarray,
        pulls: np.ndarray,
        hostile: np.ndarray,
        lies: np.ndarray,
        round_index: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which senders the victim would mix and which it would strike, for each lie: two [B, D] of booleans."""
        tries, senders = len(lies), len(pulls)
        models = np.asarray(self.theta(message + np.concatenate([pulls, lies])))
        model_index = np.arange(len(models))
        errors = self.local_rows.soft_errors(models, np.full(model_index.size, victim), model_index)
        heard = np.tile(np.arange(senders), (tries, 1))
        heard[:, hostile] = senders + np.arange(tries)[:, None]
        errors, groups = errors[heard.ravel()], np.repeat(np.arange(tries), senders)
        strikes = rules.strikes(errors, groups, tries, self.local_rows.classes, round_index)
        included = ~strikes & ~rules.left_out(errors, groups, tries, round_index)
        return included.reshape(tries, senders), strikes.reshape(tries, senders)

    def _common_directions(self, mean: np.ndarray) -> list[np.ndarray]:
        """Return the directions that are the same for every victim: swap, ipm, merge and suppress."""
        rare = suppressed(mean, int(np.argmin(mean[:, 0])))
        return [swapped(mean), self.invariants.centre - mean, merged(mean, *most_frequent(mean)), rare]

    def _victim_directions(
        self,
        victim: int,
        message: np.ndarray,
        pulls: np.ndarray,
        weights: np.ndarray,
        common: list[np.ndarray],
    ) -> list[np.ndarray]:
        """Return the directions for one victim: dissensus, ascent, hidden, orthogonal, and an unseen class."""
        theta = np.asarray(self.theta(message[None]))[0]
        victim_rows = np.arange(self.local_rows.offsets[victim], self.local_rows.offsets[victim + 1])
        victim_rows = victim_rows[~self.local_rows.incomplete[victim_rows]]
        gain = self._residual(self.features, self.labels, theta)
        local = self._residual(
            self.local_rows.features_of(victim_rows), self.local_rows.labels[victim_rows], theta
        )
        along = float((gain * local).sum()) / max(float((local**2).sum()), np.finfo(float).tiny)
        directions = [-np.tensordot(weights, pulls, 1), -gain, local - gain, along * local - gain]
        unseen = np.bincount(self.local_rows.labels[victim_rows], minlength=len(message)) == 0
        if unseen.any():
            directions.append(suppressed(message, int(np.argmax(np.where(unseen, self.counts, -1)))))
        return directions

    def _residual(self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the mean residual R of a row: [P, K], [P], [C, K] -> [C, K]."""
        one_hot = core.one_hot(labels, len(weights))
        return core.residual(features, one_hot, weights, self._joint) / max(1, labels.size)

    @property
    def _joint(self) -> core.LogJoint:
        return self.local_rows.family.log_joint
