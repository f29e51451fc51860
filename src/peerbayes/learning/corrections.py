"""Corrections by link: how `exact` survives messages that arrive on one side of a link only.

`exact` adds up what its messages differ by, D_v ← D_v + Σ_u w_vu(φ_u − φ_v), and S_v ← ψ_v + D_v. Without loss the sum
of all D is 0. A message that arrives on one side only leaves it at another value for good, and every round adds that to
S. So each end of a link keeps its own part of the sum, d_vu, which should be the other end's with the opposite sign:

    heard      d_vu ← d_vu + w_vu(φ_u − φ_v)                       as `exact` does
    repaired   d_vu ← ½(d_vu − d_uv) + w_vu(φ_u − φ_v)             where the sender's own d_uv came beside φ_u
    silent     d_vu ← 0.99 d_vu, from the third silent round on    a peer that is gone must not push for ever
    back       d_vu ← d_vu + 0.4 w_vu(φ_u − φ_v)                   after three silent rounds or more

The asymmetry e = d_vu + d_uv of a link is 0 after a round in which both ends repair, e/2 ± w(φ_u − φ_v) after one in
which one end does, and unchanged while nobody hears anything. Senders add d only after a loss on that link that they
know of: their own, or one that the other end reports. Without loss nothing is repaired, and nothing more is sent.

A link whose other end is gone for good (a liar that was cut, a member that left) loses its correction at once. Where
messages may be false, receivers clip them and believe no correction of a neighbour: ρ below 1 forgets what clipping and
losses on one side leave behind, d_vu ← ρ·d_vu + …

A peer that hears little must not push the others: φ_v = S_v + σ_v(b·R_v + D_v), σ_v the share of its weight whose links
are up, 1 without faults.

D acts in every round, also between two messages. A link that was down for three rounds has let it act four times before
the next message, so a difference counts less in d, and in S as always: with all of it, a link that is up once in a few
rounds would overshoot by more each time. (Local exact diffusion divides by the number of local steps alike.)

All arrays have one entry for each directed link: what its receiver v knows of its sender u. The simulator has those of
all peers, a real peer its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

NEVER = 1e9  # rounds since a loss that did not happen

# Rounds after a loss in which an end of the link sends its correction beside its message.
REPAIRING = 3

# Silent rounds from which on a link counts as down, and what is kept of its correction in each of them.
DOWN, KEPT = 3, 0.99

# What d takes of the first difference after a break. D has acted in four rounds since the last message; the iteration
# is stable where that, times what d takes, is less than 2 (docs/loss.md, at w = ½).
TAKEN = 0.4


class Corrections(NamedTuple):
    """What the receivers of directed links know."""

    values: np.ndarray  # [E, C, K] d_vu
    silence: np.ndarray  # [E] rounds since v heard u
    missed: np.ndarray  # [E] rounds since v missed u
    reported: np.ndarray  # [E] rounds since u missed v, as far as v was told

    @classmethod
    def begin(cls, links: int, start: np.ndarray) -> Corrections:
        """Return the state before the first round, for E links and statistics like S⁰ [..., C, K]."""
        values = np.zeros((links, *start.shape[-2:]), dtype=start.dtype)
        return cls(values, np.zeros(links), np.full(links, NEVER), np.full(links, NEVER))

    @property
    def up(self) -> np.ndarray:
        """Which links are up: [E]."""
        return self.silence < DOWN

    @property
    def sent(self) -> np.ndarray:
        """Which ends send their correction beside the message of the coming round: [E], v to u."""
        return self.recent(1)

    def recent(self, exchanges: int) -> np.ndarray:
        """Return which ends know of a loss in the last rounds of so many exchanges each: [E].

        Corrections take more bytes than messages of few, so they go with the last exchange of a round only.
        """
        return np.minimum(self.missed, self.reported) <= REPAIRING * exchanges


class Linked(NamedTuple):
    """A strategy's state, and what the ends of links know."""

    state: Any
    links: Corrections


class Received(NamedTuple):
    """What arrived over each directed link in a round."""

    heard: np.ndarray  # [E] whether v heard u
    differences: np.ndarray  # [E, C, K] w_vu(φ_u − φ_v); those that were not heard do not count
    repairs: np.ndarray  # [E'] the links over which u's correction came, too
    corrections: np.ndarray  # [E', C, K] d_uv
    missed: np.ndarray  # [E] rounds since u missed v, as u says
    gone: np.ndarray  # [E] whether u is gone for good


class Repair(NamedTuple):
    """What a round adds to mixes beside the messages heard: few links have any."""

    links: np.ndarray  # [E'] which links
    values: np.ndarray  # [E', C, K]


class Outcome(NamedTuple):
    """What a round does to corrections, and to mixes beside the messages heard."""

    links: Corrections
    added: Repair
    """What mixes get, and corrections too."""
    late: Repair
    """What of the differences heard is in the mixes, but not in the corrections: of links that were down."""


def after_round(before: Corrections, received: Received, memory: float = 1.0, exchanges: int = 1) -> Outcome:
    """Return the state after a round, in the memory of the differences, and what is added to the mixes.

    The mix is φ_v + Σ_u (d_vu after − ρ·d_vu before + late_vu): differences that were heard, plus what is added. ρ is
    the strategy's memory. `exchanges`: of messages, in a round of learning.
    """
    heard, gone = received.heard & ~received.gone, received.gone
    silence = np.where(heard, 0.0, before.silence + 1.0)
    repaired = heard[received.repairs]
    repairs, corrections = received.repairs[repaired], received.corrections[repaired]
    faded = np.flatnonzero((silence >= DOWN) | gone)
    fading = np.where(gone[faded], -1.0, KEPT - 1.0)[:, None, None].astype(before.values.dtype)
    added = Repair(
        np.concatenate([repairs, faded]),
        memory * np.concatenate([
            -0.5 * (before.values[repairs] + corrections), fading * before.values[faded],
        ]),
    )  # fmt: skip
    values = received.differences
    values[~heard] = 0.0
    back = np.flatnonzero(heard & (before.silence >= DOWN * exchanges))
    late = Repair(back, (1.0 - TAKEN) * values[back])
    values[back] -= late.values
    values += before.values if memory == 1.0 else memory * before.values
    values[added.links] += added.values
    told = np.where(heard, received.missed, NEVER)
    links = Corrections(
        values,
        silence,
        np.where(heard, before.missed, 0.0) + 1.0,
        np.minimum(before.reported, told) + 1.0,
    )
    return Outcome(links, added, late)


def share_up(weights: np.ndarray, links: Corrections, gone: np.ndarray) -> np.ndarray | None:
    """Return the share of one peer's weight whose links are up, [1]; None: all of it.

    weights [E] and gone [E] of its links; those that are gone for good do not count.
    """
    if (links.up | gone).all():
        return None
    return np.array([weights[links.up & ~gone].sum() / weights[~gone].sum()])
