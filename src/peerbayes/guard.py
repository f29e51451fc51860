"""Neighbours whose models fail on a peer's own rows: three strikes, and their link is cut for good, on both sides.

A strike is a message whose model θ(φ_u) has a soft error on the peer's own rows above chance (1 − 1/C) and a little,
or, once models have begun to form, far above the median of the messages heard. Such a message is left out of the mix
(its weight goes to the receiver), also before the third. It costs peers whose data differ, so it is for owners who
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


def strikes(errors: np.ndarray, receivers: np.ndarray, nodes: int, classes: int, turn: int) -> np.ndarray:
    """Which messages are a strike, by their models' soft errors on the receivers' own rows: [E], [E] -> [E]."""
    chance = 1.0 - 1.0 / classes
    found = errors > chance + MARGIN
    if turn > FORMING:
        found |= errors > quantiles(receivers, errors, nodes, MEDIAN)[receivers] + SHARE * chance
    return found


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
