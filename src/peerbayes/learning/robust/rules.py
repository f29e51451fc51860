"""How messages are combined where members may lie: clipped, or screened."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from peerbayes.data.table import Array
from peerbayes.model.devices import fetch
from peerbayes.network.mixing import rows_of, with_data

# --- rules for combining received messages: by the mixing weights as they are, or with each neighbour's pull clipped
#     mean   S_v = Σ_u a_vu φ_u
#     clip   S_v = φ_v + Σ_u a_vu min(1, τ_v / ‖φ_u − φ_v‖) (φ_u − φ_v),   τ_v the 2/5 quantile of the distances at v
#
# Clipping is mixing with smaller weights, whose rest goes to the peer itself, so every property of a mix (weights
# that sum to 1, conserved class sums) remains. No neighbour moves v by more than a_vu τ_v. Of n distances, τ_v is the
# one with two fifths of the others below it: of two or three the smallest, of four or five the second. Where more
# than two fifths of the neighbours are honest, one of them is as far away or farther. (With the median one liar of
# three pulls farther than the honest, and pairs of peers with a liar each are lost.) Distances are those of the
# statistics themselves: continuous columns are standardised, so entries are of one size.
#
# Both work on links from M messages, the first of which are the receivers' own: a network, or one peer with
# [its own, *those received].

RULES = ("mean", "clip")

# The share of the others' distances below τ, as a fraction; and that of a median.
MIDDLING, MEDIAN = (2, 5), (1, 2)

# Entries of messages that are compared at a time: 32 MB of float64.
AT_ONCE = 1 << 22


def link_weights(
    rule: str, weights: np.ndarray, messages: Array, receivers: np.ndarray, senders: np.ndarray
) -> np.ndarray:
    """Return the weights that a rule mixes the messages of links with: [E], [M, …], [E], [E] -> [E].

    Receivers are numbered among the first messages, which are their own. What a rule takes from a weight goes to the
    receiver itself.
    """
    if rule == "mean" or not weights.size:
        return weights
    gaps = distances(messages, receivers, senders)
    return weights * clip_factors(receivers, gaps, int(receivers.max()) + 1)


def clip_factors(groups: np.ndarray, gaps: np.ndarray, count: int) -> np.ndarray:
    """Return min(1, τ / distance) of each message, τ the clipping distance of its group: [E], [E] -> [E]."""
    limit = quantiles(groups, gaps, count, MIDDLING)[groups]
    return np.divide(limit, gaps, out=np.ones_like(gaps), where=gaps > limit)


def distances(messages: Array, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
    """Return ‖φ_u − φ_v‖ of each pair, computed in blocks: [M, …], [E], [E] -> [E]."""
    flat = messages.reshape(len(messages), -1)
    xp, norms = array_namespace(flat), np.empty(receivers.size)
    step = max(1, AT_ONCE // max(1, flat.shape[1]))
    for begin in range(0, receivers.size, step):
        pairs = slice(begin, begin + step)
        gaps = flat[receivers[pairs]] - flat[senders[pairs]]
        norms[pairs] = np.sqrt(np.asarray(fetch(xp.sum(gaps * gaps, axis=1)), dtype=np.float64))
    return norms


def quantiles(groups: np.ndarray, values: np.ndarray, count: int, share: tuple[int, int]) -> np.ndarray:
    """Return the value in each group with this share of the group's others below it, 0 if empty: [E], [E] -> [count].

    It is one of the values, the lower of two: a mean of two would depend on the larger, which may be false.
    """
    ordered = values[np.lexsort((values, groups))]
    sizes = np.bincount(groups, minlength=count)
    begins = np.cumsum(sizes) - sizes
    values_at, occupied = np.zeros(count), sizes > 0
    values_at[occupied] = ordered[(begins + share[0] * (sizes - 1) // share[1])[occupied]]
    return values_at


# --- screening of neighbours by their models' errors on a peer's own rows
# A peer tests the model θ(φ_u) of every message on its own rows. Once models have begun to form, a message is left
# out of its round's mix (its weight goes to the receiver) where its soft error is more than `NOTICED` above the
# median of the messages received, the upper of two: so fewer than half are left out, and no two peers are isolated
# together. Clipping alone is not enough, since a clipped lie that is repeated in every round adds up. A neighbour may
# be mixed again in the next round, since an honest one that was itself misled recovers.
#
# A strike is a message whose soft error exceeds chance (1 − 1/C) by more than a small margin, or is far above the
# median. It is left out as well, and three strikes cut the link, on both sides. Both rules harm peers whose data
# differ, so a guard is for owners who expect their data to be alike.

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
    errors: np.ndarray, receivers: np.ndarray, peers: int, classes: int, round_index: int
) -> np.ndarray:
    """Return which messages are a strike, by their models' soft errors on the receivers' own rows: [E], [E] -> [E]."""
    chance = 1.0 - 1.0 / classes
    struck = errors > chance + MARGIN
    if round_index > FORMING:
        struck |= errors > quantiles(receivers, errors, peers, MEDIAN)[receivers] + SHARE * chance
    return struck


def left_out(errors: np.ndarray, receivers: np.ndarray, peers: int, round_index: int) -> np.ndarray:
    """Return which other messages are not mixed in this round, by the same soft errors: [E], [E] -> [E]."""
    if round_index <= FORMING:
        return np.zeros(errors.shape, dtype=bool)
    upper = -quantiles(receivers, -errors, peers, MEDIAN)
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
