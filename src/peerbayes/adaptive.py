"""An attacker that knows the rules and tries, in every round and for every receiver, what does most harm under them.

It knows all honest messages, all honest rows and every receiver's rules and verdicts: more than anybody outside a
simulation can. To a victim v all its attackers b say the same,

    φ_v + l·d̃_v·u        d̃_v the median distance of v's honest neighbours, l one of `LENGTHS`, u a unit vector

the one after which v's mix has the largest soft error on rows of the honest, among those that are no strike at v. Each
is put through v's own rules first (`guard`, `combining.shortened`). The directions u, projected on what keeps
the invariants, R(S) the residual of S and φ̄ the mean of the honest messages:

    swap, merge, ipm        from φ̄, as in `attacks`
    suppress                the class that φ̄ has least of; and the most frequent one that v has no row of and cannot see
    dissensus               − Σ_u a_vu (φ_u − φ_v), u the honest neighbours
    ascent                  −R(φ_v) on rows of the honest: back along what calibration would add
    hidden                  the same and + R_v(φ_v) / m_v: what harms others, and looks like progress on v's own rows
    orthogonal              ascent without its component along R_v(φ_v): what v's own rows say nothing about
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from peerbayes import core, guard
from peerbayes.attacks import ATTACK_STREAM, merged, most_frequent, suppressed, swapped, unit
from peerbayes.combining import shortened
from peerbayes.core import Array
from peerbayes.holdings import Holdings
from peerbayes.invariants import Invariants

# How far messages go, in median distances of honest neighbours: within what is clipped, at it, and far beyond.
LENGTHS = np.array([0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 64.0])

# Honest rows that harm is measured on, drawn once.
MOST_ROWS = 192


@dataclass(frozen=True, eq=False)
class Optimiser:
    """What the attackers know.

    held       everybody's rows
    features   [P, K] φ of some rows of honest peers, and
    labels     [P] their classes
    counts     [C] rows of each class at honest peers
    theta      θ of the family
    known      what honest messages obey
    rule       how receivers combine: see `combining`
    guarded    whether receivers have a guard
    """

    held: Holdings
    features: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    theta: Callable[[Array], Array]
    known: Invariants
    rule: str
    guarded: bool

    @classmethod
    def of(
        cls, held: Holdings, attackers: np.ndarray, known: Invariants, rule: str, guarded: bool, seed: int
    ) -> Optimiser:
        owners = np.repeat(np.arange(held.nodes), held.sizes)
        usable = np.flatnonzero(~np.isin(owners, attackers) & ~held.incomplete)
        rng = np.random.default_rng([seed, ATTACK_STREAM, 0])
        some = rng.choice(usable, min(MOST_ROWS, usable.size), replace=False)
        return cls(
            held, held.features_of(some), held.labels[some], np.bincount(held.labels[usable], minlength=held.classes),
            held.family.weights, known, rule, guarded,
        )  # fmt: skip

    def worst(
        self, honest: np.ndarray, attackers: np.ndarray, mixing: csr_array, cut: np.ndarray, turn: int
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Victims [V] -> what their attackers say [V, C, K]; `cut`: [E] which entries of `mixing` are heard no more."""
        common = self._common(np.delete(honest, attackers, axis=0).mean(axis=0))

        def said(victims: np.ndarray) -> np.ndarray:
            return np.stack([self._to(int(v), honest, attackers, mixing, cut, common, turn) for v in victims])

        return said

    def _to(
        self,
        victim: int,
        honest: np.ndarray,
        attackers: np.ndarray,
        mixing: csr_array,
        cut: np.ndarray,
        common: list[np.ndarray],
        turn: int,
    ) -> np.ndarray:
        """What one victim's attackers say to it: [C, K]."""
        row = slice(mixing.indptr[victim], mixing.indptr[victim + 1])
        heard = (mixing.indices[row] != victim) & ~cut[row]
        senders, weights = mixing.indices[row][heard], mixing.data[row][heard]
        hostile = np.isin(senders, attackers)
        own = honest[victim]
        if not hostile.any():  # its links are cut: whatever they say is not heard
            return own
        pulls = honest[senders] - own
        apart = np.linalg.norm(pulls.reshape(len(pulls), -1), axis=1)
        typical = float(np.median(apart[~hostile])) if not hostile.all() else float(np.linalg.norm(common[0]))
        directions = [*common, *self._against(victim, own, pulls[~hostile], weights[~hostile], common)]
        units = np.stack([unit(self.known.projected(each)) for each in directions])
        lies = (units[:, None] * (typical * LENGTHS)[:, None, None]).reshape(-1, *own.shape)
        harm = self._harm(victim, own, pulls, weights, apart, hostile, lies, turn)
        best = int(np.argmax(harm))
        return own + lies[best] if np.isfinite(harm[best]) else own

    def _harm(
        self,
        victim: int,
        own: np.ndarray,
        pulls: np.ndarray,
        weights: np.ndarray,
        apart: np.ndarray,
        hostile: np.ndarray,
        lies: np.ndarray,
        turn: int,
    ) -> np.ndarray:
        """The soft error of the victim's mix on honest rows after each lie, −∞ where it is a strike: [B]."""
        tries, senders = len(lies), len(weights)
        distance = np.tile(apart, (tries, 1))
        distance[:, hostile] = np.linalg.norm(lies.reshape(tries, -1), axis=1)[:, None]
        shares, strikes = np.ones((tries, senders)), np.zeros((tries, senders), dtype=bool)
        if self.guarded:
            mixed_in, strikes = self._judged(victim, own, pulls, hostile, lies, turn)
            shares = mixed_in.astype(np.float64)
        if self.rule != "mean":
            kept = shares > 0
            groups = np.repeat(np.arange(tries), senders).reshape(tries, senders)
            shares[kept] *= shortened(groups[kept], distance[kept], tries)
        shares = shares * weights
        mixed = own + np.tensordot(shares[:, ~hostile], pulls[~hostile], 1)
        mixed += shares[:, hostile].sum(axis=1)[:, None, None] * lies
        posteriors = core.posterior(self.features, np.asarray(self.theta(mixed)))
        right = posteriors[:, np.arange(self.labels.size), self.labels]
        return np.where(strikes[:, hostile].any(axis=1), -np.inf, 1.0 - right.mean(axis=1))

    def _judged(
        self,
        victim: int,
        own: np.ndarray,
        pulls: np.ndarray,
        hostile: np.ndarray,
        lies: np.ndarray,
        turn: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whom the victim would mix and whom strike, were it told each of the lies: two [B, D] of booleans."""
        tries, senders = len(lies), len(pulls)
        models = np.asarray(self.theta(own + np.concatenate([pulls, lies])))
        every = np.arange(len(models))
        errors = self.held.soft_errors(models, np.full(every.size, victim), every)
        heard = np.tile(np.arange(senders), (tries, 1))
        heard[:, hostile] = senders + np.arange(tries)[:, None]
        errors, groups = errors[heard.ravel()], np.repeat(np.arange(tries), senders)
        strikes = guard.strikes(errors, groups, tries, self.held.classes, turn)
        kept = ~strikes & ~guard.left_out(errors, groups, tries, turn)
        return kept.reshape(tries, senders), strikes.reshape(tries, senders)

    def _common(self, mean: np.ndarray) -> list[np.ndarray]:
        """Directions that are the same for every victim: swap, ipm, merge and suppress."""
        rare = suppressed(mean, int(np.argmin(mean[:, 0])))
        return [swapped(mean), self.known.centre - mean, merged(mean, *most_frequent(mean)), rare]

    def _against(
        self, victim: int, own: np.ndarray, pulls: np.ndarray, weights: np.ndarray, common: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Directions for one victim: dissensus, ascent, hidden, orthogonal, and a class that it cannot see."""
        theta = np.asarray(self.theta(own[None]))[0]
        mine = np.arange(self.held.offsets[victim], self.held.offsets[victim + 1])
        mine = mine[~self.held.incomplete[mine]]
        gain = _residual(self.features, self.labels, theta)
        local = _residual(self.held.features_of(mine), self.held.labels[mine], theta)
        along = float((gain * local).sum()) / max(float((local**2).sum()), np.finfo(float).tiny)
        directions = [-np.tensordot(weights, pulls, 1), -gain, local - gain, along * local - gain]
        unseen = np.bincount(self.held.labels[mine], minlength=len(own)) == 0
        if unseen.any():
            directions.append(suppressed(own, int(np.argmax(np.where(unseen, self.counts, -1)))))
        return directions


def _residual(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """R per row: [P, K], [P], [C, K] -> [C, K]."""
    return core.residual(features, core.one_hot(labels, len(weights)), weights) / max(1, labels.size)
