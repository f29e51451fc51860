"""A network cut into shards: who is where, and what each shard knows of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.topologies.links import only
from peerbayes.topologies.links import rows_of as row_of


def cut(links: csr_array, shards: int) -> list[np.ndarray]:
    """The peers of each shard, ascending and as many in each as can be, so that few links cross.

    Peers in the order of a breadth-first search from one end of the network, cut into equal pieces: a border is then
    about as wide as the network. Where the order given crosses fewer links, that one.
    """
    nodes = links.shape[0]
    if not 1 <= shards <= nodes:
        raise ValueError(f"shards is {shards}; expected 1 to {nodes}, the number of peers")
    last = csgraph.breadth_first_order(links, 0, directed=False, return_predecessors=False)[-1]
    found = csgraph.breadth_first_order(links, last, directed=False, return_predecessors=False)
    cuts = [[np.sort(part) for part in np.array_split(order, shards)] for order in (np.arange(nodes), found)]
    return min(cuts, key=lambda parts: crossing(links, parts))


def crossing(links: csr_array, parts: Sequence[np.ndarray]) -> int:
    """Links between peers of different shards."""
    owner, _ = places(parts)
    return int((owner[row_of(links)] != owner[links.indices]).sum()) // 2


def places(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The shard of each peer, and its place in there: [N], [N]."""
    nodes = sum(len(part) for part in parts)
    owner, place = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    for number, part in enumerate(parts):
        owner[part], place[part] = number, np.arange(len(part))
    return owner, place


@dataclass(frozen=True, eq=False)
class Plan:
    """What one shard knows of the network."""

    peers: np.ndarray  # [n] who they are
    sizes: np.ndarray  # [n] rows of each
    inner: csr_array | None = None  # [n, n] their rows of the mixing matrix, border peers' left empty
    border: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # [b] places with links elsewhere
    outer: csr_array | None = None  # [b, near + halo] border peers' rows
    near: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # places that `outer` needs
    sends: dict[int, np.ndarray] = field(default_factory=dict)  # shard -> places whose messages it needs
    hears: tuple[int, ...] = ()  # shards whose halos `outer` needs, in this order


def plans(mixing: csr_array | None, parts: Sequence[np.ndarray], sizes: np.ndarray) -> list[Plan]:
    """A plan for each shard; entries of a row keep their order, so that sums have the same bits. None: no messages."""
    if mixing is None:
        return [Plan(part, sizes[part]) for part in parts]
    owner, place = places(parts)
    wanted: list[dict[int, np.ndarray]] = []
    made: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        own_rows = mixing[part]
        at_border = np.zeros(len(part), dtype=bool)
        at_border[row_of(own_rows)[owner[own_rows.indices] != number]] = True
        inner = only(own_rows, ~at_border[row_of(own_rows)])
        border = np.flatnonzero(at_border)
        outer = own_rows[border]
        needed = np.unique(outer.indices)
        near, far = needed[owner[needed] == number], needed[owner[needed] != number]
        far = far[np.lexsort((far, owner[far]))]
        column = np.empty(mixing.shape[0], dtype=np.int32)
        column[np.concatenate([near, far])] = np.arange(needed.size)
        wanted.append({int(other): far[owner[far] == other] for other in np.unique(owner[far])})
        made.append(
            {
                "peers": part, "sizes": sizes[part], "border": border, "near": place[near], "hears": tuple(wanted[-1]),
                "inner": _renamed(inner, place, len(part)), "outer": _renamed(outer, column, needed.size),
            }
        )  # fmt: skip
    return [
        Plan(**plan, sends={to: place[want[number]] for to, want in enumerate(wanted) if number in want})
        for number, plan in enumerate(made)
    ]


def _renamed(matrix: csr_array, column: np.ndarray, columns: int) -> csr_array:
    """The same rows with other columns, entries in the order they had. SciPy's `astype` would sort them."""
    return csr_array((matrix.data, column[matrix.indices], matrix.indptr), shape=(matrix.shape[0], columns))
