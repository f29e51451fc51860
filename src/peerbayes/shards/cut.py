"""A network cut into shards: the peers of each, and its part of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.topologies.links import only
from peerbayes.topologies.links import rows_of as row_of


def cut(links: csr_array, shards: int) -> list[np.ndarray]:
    """Return the peers of each shard, ascending and of nearly equal number, so that few links cross.

    Cuts the order of a breadth-first search from one end of the network into equal pieces: a border is then about as
    wide as the network. Uses the original order instead where that crosses fewer links.
    """
    nodes = links.shape[0]
    if not 1 <= shards <= nodes:
        raise ValueError(f"shards is {shards}; expected 1 to {nodes}, the number of peers")
    last = csgraph.breadth_first_order(links, 0, directed=False, return_predecessors=False)[-1]
    searched = csgraph.breadth_first_order(links, last, directed=False, return_predecessors=False)
    cuts = [
        [np.sort(shard_peers) for shard_peers in np.array_split(order, shards)]
        for order in (np.arange(nodes), searched)
    ]
    return min(cuts, key=lambda shard_lists: crossing(links, shard_lists))


def crossing(links: csr_array, shard_peers: Sequence[np.ndarray]) -> int:
    """Count the links between peers of different shards."""
    owner, _ = positions(shard_peers)
    return int((owner[row_of(links)] != owner[links.indices]).sum()) // 2


def positions(shard_peers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shard of each peer, and its index within the shard: [N], [N]."""
    nodes = sum(len(peers) for peers in shard_peers)
    owner, position = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    for number, peers in enumerate(shard_peers):
        owner[peers], position[peers] = number, np.arange(len(peers))
    return owner, position


@dataclass(frozen=True, eq=False)
class Plan:
    """The part of the network that one shard needs."""

    peers: np.ndarray  # [n] indices of its peers
    sizes: np.ndarray  # [n] rows of each
    inner: csr_array | None = None  # [n, n] their rows of the mixing matrix, border peers' left empty
    border: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # [b] indices in this shard of peers with links to others
    outer: csr_array | None = None  # [b, near + halo] border peers' rows
    near: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # indices `outer` needs
    sends: dict[int, np.ndarray] = field(default_factory=dict)  # shard -> indices whose messages it needs
    hears: tuple[int, ...] = ()  # shards whose halos `outer` needs, in this order


def plans(mixing: csr_array | None, shard_peers: Sequence[np.ndarray], sizes: np.ndarray) -> list[Plan]:
    """Return a plan for each shard, without messages if `mixing` is None. Entries keep their order, sums their bits."""
    if mixing is None:
        return [Plan(peers, sizes[peers]) for peers in shard_peers]
    owner, position = positions(shard_peers)
    wanted: list[dict[int, np.ndarray]] = []
    fields: list[dict[str, Any]] = []
    for number, peers in enumerate(shard_peers):
        own_rows = mixing[peers]
        at_border = np.zeros(len(peers), dtype=bool)
        at_border[row_of(own_rows)[owner[own_rows.indices] != number]] = True
        inner = only(own_rows, ~at_border[row_of(own_rows)])
        border = np.flatnonzero(at_border)
        outer = own_rows[border]
        needed = np.unique(outer.indices)
        near, far = needed[owner[needed] == number], needed[owner[needed] != number]
        far = far[np.lexsort((far, owner[far]))]
        column = np.empty(mixing.shape[0], dtype=np.int32)
        column[np.concatenate([near, far])] = np.arange(needed.size)
        wanted.append({int(sender): far[owner[far] == sender] for sender in np.unique(owner[far])})
        fields.append(
            {
                "peers": peers, "sizes": sizes[peers], "border": border, "near": position[near],
                "hears": tuple(wanted[-1]), "inner": _renamed(inner, position, len(peers)),
                "outer": _renamed(outer, column, needed.size),
            }
        )  # fmt: skip
    return [
        Plan(**plan, sends={to: position[want[number]] for to, want in enumerate(wanted) if number in want})
        for number, plan in enumerate(fields)
    ]


def _renamed(matrix: csr_array, column: np.ndarray, columns: int) -> csr_array:
    """Return the same rows with other columns, entries in their order. SciPy's `astype` would sort them."""
    return csr_array((matrix.data, column[matrix.indices], matrix.indptr), shape=(matrix.shape[0], columns))
