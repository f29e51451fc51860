"""Screening of neighbours by their models' errors on a peer's own rows: left out for a round, cut after three strikes.

A peer tests the model θ(φ_u) of every message on its own rows. Once models have begun to form, a message is left out
of its round's mix (its weight goes to the receiver) where its soft error is more than `NOTICED` above the median of the
messages received, the upper of two: so fewer than half are left out, and no two peers are isolated together. Clipping
alone is not enough, since a clipped lie that is repeated in every round adds up. A neighbour may be mixed again in the
next round, since an honest one that was itself misled recovers.

A strike is a message whose soft error exceeds chance (1 − 1/C) by more than a small margin, or is far above the median.
It is left out as well, and three strikes cut the link, on both sides. Both rules harm peers whose data differ, so a
guard is for owners who expect their data to be alike.
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


def strikes(
    errors: np.ndarray, receivers: np.ndarray, nodes: int, classes: int, round_index: int
) -> np.ndarray:
    """Return which messages are a strike, by their models' soft errors on the receivers' own rows: [E], [E] -> [E]."""
    chance = 1.0 - 1.0 / classes
    struck = errors > chance + MARGIN
    if round_index > FORMING:
        struck |= errors > quantiles(receivers, errors, nodes, MEDIAN)[receivers] + SHARE * chance
    return struck


def left_out(errors: np.ndarray, receivers: np.ndarray, nodes: int, round_index: int) -> np.ndarray:
    """Return which other messages are not mixed in this round, by the same soft errors: [E], [E] -> [E]."""
    if round_index <= FORMING:
        return np.zeros(errors.shape, dtype=bool)
    upper = -quantiles(receivers, -errors, nodes, MEDIAN)
    return errors > upper[receivers] + NOTICED


def cut(counts: np.ndarray, links: csr_array) -> np.ndarray:
    """Return which links are cut, in both directions, by the strikes counted on each: [E] -> [E] booleans."""
    full = counts >= STRIKES
    return full | full[opposite(links)]


def opposite(links: csr_array) -> np.ndarray:
    """Return, for each stored entry [v, u] of a symmetric matrix, the index at which [u, v] is stored: [E]."""
    return with_data(links, np.arange(links.nnz)).T.tocsr().data


def positions(links: csr_array, subset: csr_array) -> np.ndarray:
    """Return the index in `links` of each stored entry of `subset`, all of which it has: [E']."""
    width = links.shape[1]
    stored = rows_of(links) * width + links.indices
    wanted = rows_of(subset) * width + subset.indices
    order = np.argsort(stored, kind="stable")
    return order[np.searchsorted(stored[order], wanted)]
