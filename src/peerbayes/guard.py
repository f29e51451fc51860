"""Neighbours whose models fail on a peer's own rows: left out for a round, and after three strikes cut off for good.

A peer tries the model θ(φ_u) of every message on its own rows. Once models have begun to form, a message is left out
of its round's mix (its weight goes to the receiver) where its soft error is more than `NOTICED` above the median of the
messages heard, the upper of two: so fewer than half are left out, and no two peers are left with each other alone.
A clipped lie that is repeated in every round adds up. A neighbour may be heard again in the next round, since an honest
one that was itself misled recovers.

A strike is a message whose soft error is above chance (1 − 1/C) and a little, or far above the median. It is left out
as well, and three of them cut the link, on both sides. Both cost peers whose data differ, so a guard is for owners who
believe their data alike.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from peerbayes.combining import MEDIAN, quantiles
from peerbayes.topologies.links import rows_of, with_data

STRIKES = 3
MARGIN = 0.02  # above chance: an honest first model may be a little worse than none
SHARE = 0.25  # of chance, above the neighbours' median
FORMING = 3  # rounds in which models differ so much that only chance counts

# Above the neighbours' median. Without an attack 99 % of messages are below 0.03 in rounds 4 to 8 and below 0.02 later,
# nine in ten below 0.01 (50 peers with 50 rows of letter, adult and pulsar). With 0.006 less of `alie` gets through
# (letter, one seed: .254 instead of .278) and more of `optimise` (.362; .317 with 0.012): honest peers hear
# each other less.
NOTICED = 0.02


def strikes(errors: np.ndarray, receivers: np.ndarray, nodes: int, classes: int, turn: int) -> np.ndarray:
    """Which messages are a strike, by their models' soft errors on the receivers' own rows: [E], [E] -> [E]."""
    chance = 1.0 - 1.0 / classes
    found = errors > chance + MARGIN
    if turn > FORMING:
        found |= errors > quantiles(receivers, errors, nodes, MEDIAN)[receivers] + SHARE * chance
    return found


def left_out(errors: np.ndarray, receivers: np.ndarray, nodes: int, turn: int) -> np.ndarray:
    """Which messages are not mixed in this round, strikes apart, by the same soft errors: [E], [E] -> [E]."""
    if turn <= FORMING:
        return np.zeros(errors.shape, dtype=bool)
    upper = -quantiles(receivers, -errors, nodes, MEDIAN)
    return errors > upper[receivers] + NOTICED


def cut(counts: np.ndarray, links: csr_array) -> np.ndarray:
    """Which links are cut, in both directions, by the strikes counted on each: [E] -> [E] booleans."""
    full = counts >= STRIKES
    return full | full[opposite(links)]


def opposite(links: csr_array) -> np.ndarray:
    """For each stored entry [v, u] of a symmetric matrix, where [u, v] is stored: [E]."""
    return with_data(links, np.arange(links.nnz)).T.tocsr().data


def places(links: csr_array, some: csr_array) -> np.ndarray:
    """Where each stored entry of `some` is stored in `links`, which has them all: [E']."""
    width = links.shape[1]
    known = rows_of(links) * width + links.indices
    wanted = rows_of(some) * width + some.indices
    order = np.argsort(known, kind="stable")
    return order[np.searchsorted(known[order], wanted)]
