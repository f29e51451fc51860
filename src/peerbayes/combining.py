"""How a peer combines what it heard: by the mixing weights as they are, or with each neighbour's pull clipped.

    mean   S_v = Σ_u a_vu φ_u
    clip   S_v = φ_v + Σ_u a_vu min(1, τ_v / ‖φ_u − φ_v‖) (φ_u − φ_v),   τ_v a middling distance of those that v heard

Clipping is mixing with smaller weights, whose rest goes to the peer itself, so everything that holds of a mix (weights
that sum to 1, conserved class sums) holds of it as well. No neighbour moves v by more than a_vu τ_v. Of n distances,
τ_v is the one with two fifths of the others below it: of two or three the smallest, of four or five the second. Where
more than two fifths of the neighbours are honest, one of those is as far away or farther. (With the median one liar of
three pulls farther than the honest, and pairs of peers with a liar each are lost.) Distances are those of the
statistics themselves: continuous columns are standardised, so entries are of one size.

Both work on a matrix [N, M] of N receivers and M ≥ N messages, the first N of which are the receivers' own: a whole
network, or one peer with [own, *heard].
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from peerbayes.core import Array
from peerbayes.places import fetch
from peerbayes.topologies.links import only, row_sums, rows_of, with_data

RULES = ("mean", "clip")

# The share of the others' distances below τ, as a fraction; and that of a median.
MIDDLING, MEDIAN = (2, 5), (1, 2)

# Entries of messages that are compared at a time: 32 MB of float64.
AT_ONCE = 1 << 22


def combined(rule: str, mixing: csr_array, messages: Array) -> csr_array:
    """The weights [N, M] that messages [M, …] are mixed with under a rule; rows sum to what they did."""
    return mixing if rule == "mean" else clipped(mixing, messages)


def clipped(mixing: csr_array, messages: Array) -> csr_array:
    """a_vu min(1, τ_v / ‖φ_u − φ_v‖) [N, M]; what is taken from a neighbour goes to the receiver's own message."""
    receivers = rows_of(mixing)
    heard = receivers != mixing.indices
    apart = distances(messages, receivers[heard], mixing.indices[heard])
    weights = mixing.data.astype(np.float64)
    weights[heard] *= shortened(receivers[heard], apart, mixing.shape[0])
    links = only(with_data(mixing, weights), heard)
    own = row_sums(mixing) - row_sums(links)
    diagonal = csr_array((own, (np.arange(own.size), np.arange(own.size))), shape=mixing.shape)
    return csr_array(links + diagonal)


def shortened(groups: np.ndarray, apart: np.ndarray, count: int) -> np.ndarray:
    """min(1, τ / distance) of each message, τ a middling distance of its group 0 … count − 1: [E], [E] -> [E]."""
    limit = quantiles(groups, apart, count, MIDDLING)[groups]
    return np.divide(limit, apart, out=np.ones_like(apart), where=apart > limit)


def distances(messages: Array, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
    """‖φ_u − φ_v‖ of each pair, a few pairs at a time: [M, …], [E], [E] -> [E]."""
    flat = messages.reshape(len(messages), -1)
    xp, found = array_namespace(flat), np.empty(receivers.size)
    step = max(1, AT_ONCE // max(1, flat.shape[1]))
    for begin in range(0, receivers.size, step):
        some = slice(begin, begin + step)
        apart = flat[receivers[some]] - flat[senders[some]]
        found[some] = np.sqrt(np.asarray(fetch(xp.sum(apart * apart, axis=1)), dtype=np.float64))
    return found


def quantiles(groups: np.ndarray, values: np.ndarray, count: int, share: tuple[int, int]) -> np.ndarray:
    """The value of each group 0 … count − 1 with this share of the others below it, 0 for none: [E], [E] -> [count].

    It is one of the values, the lower of two: a mean of two would leave it to the larger what it is.
    """
    ordered = values[np.lexsort((values, groups))]
    sizes = np.bincount(groups, minlength=count)
    begins = np.cumsum(sizes) - sizes
    found, some = np.zeros(count), sizes > 0
    found[some] = ordered[(begins + share[0] * (sizes - 1) // share[1])[some]]
    return found
