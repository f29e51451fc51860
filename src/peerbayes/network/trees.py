"""A shallow spanning tree, the same for everybody who knows the network."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csgraph, csr_array


def centre(adjacency: csr_array) -> int:
    """Return a node in the middle of a longest shortest path, as two breadth-first searches find it: [N, N] -> index.

    On a tree it is the exact centre. Of equally distant nodes the first counts, so that all members find the same.
    """
    first = _distances(adjacency, 0)
    if not np.isfinite(first).all():
        raise ValueError("the network is not connected, so no tree spans it; expected one connected network")
    end = int(first.argmax())
    from_end = _distances(adjacency, end)
    node = int(from_end.argmax())
    for distance in range(int(from_end[node]) - 1, (int(from_end[node]) - 1) // 2, -1):
        neighbours = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
        node = int(neighbours[from_end[neighbours] == distance].min())
    return node


def _distances(adjacency: csr_array, node: int) -> np.ndarray:
    """Return the hops from a node to every node [N]; infinite where it is not connected."""
    return np.asarray(csgraph.shortest_path(adjacency, unweighted=True, indices=node))


@dataclass(frozen=True, eq=False)
class ShallowTree:
    """The breadth-first tree of a connected network from its centre, so that few hops reach everybody."""

    parents: np.ndarray
    """[N] the parent of each node; of the root itself −1."""
    depths: np.ndarray
    """[N] hops from the root."""

    @classmethod
    def of(cls, adjacency: csr_array) -> ShallowTree:
        """Return the tree of a connected network: a node's parent is its first neighbour nearer to the centre."""
        nodes = adjacency.shape[0]
        depths = _distances(adjacency, centre(adjacency))
        if not np.isfinite(depths).all():
            raise ValueError(
                "the network is not connected, so no tree spans it; expected one connected network"
            )
        receiver = np.repeat(np.arange(nodes), np.diff(adjacency.indptr))
        nearer = depths[adjacency.indices] == depths[receiver] - 1
        parents = np.full(nodes, nodes)
        np.minimum.at(parents, receiver[nearer], adjacency.indices[nearer])
        parents[parents == nodes] = -1
        return cls(parents, depths.astype(np.int64))

    @property
    def hops(self) -> int:
        """The number of links on the longest path between two nodes, at most: twice the depth."""
        return 2 * int(self.depths.max(initial=0))

    @cached_property
    def _layout(self) -> tuple[np.ndarray, np.ndarray]:
        """[N] sizes of subtrees, and [N] places in an order in which every subtree is one run of places."""
        by_depth = np.argsort(self.depths, kind="stable")
        sizes = np.ones(len(self.parents), dtype=np.int64)
        for node in by_depth[:0:-1].tolist():
            sizes[self.parents[node]] += sizes[node]
        places = np.zeros_like(sizes)
        free = np.ones_like(sizes)  # the next free place below each node, relative to its own
        for node in by_depth[1:].tolist():
            parent = self.parents[node]
            places[node] = places[parent] + free[parent]
            free[parent] += sizes[node]
        return sizes, places

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                children[parent].append(node)
        return children

    @cached_property
    def _order(self) -> np.ndarray:
        """[N] the node at each place."""
        order = np.empty(len(self.parents), dtype=np.int64)
        order[self._layout[1]] = np.arange(len(self.parents))
        return order

    def behind(self, node: int) -> dict[int, Branch]:
        """Return, for each tree neighbour of a node in their order, the nodes that are behind that link."""
        sizes, places = self._layout
        branches = {
            child: Branch(self, int(places[child]), int(places[child] + sizes[child]))
            for child in self._children[node]
        }
        if (parent := int(self.parents[node])) >= 0:
            branches[parent] = Branch(self, int(places[node]), int(places[node] + sizes[node]), True)
        return dict(sorted(branches.items()))

    def place(self, node: int) -> int:
        """Return a node's place in the order in which every subtree is one run of places."""
        return int(self._layout[1][node])

    def nodes_at(self, start: int, stop: int) -> list[int]:
        """Return the nodes at a run of places."""
        return self._order[start:stop].tolist()


@dataclass(frozen=True, eq=False)
class Branch(Set[int]):
    """The nodes behind one link of a tree: a run of places, or all others. It takes no memory for each node."""

    tree: ShallowTree
    start: int
    stop: int
    others: bool = False

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, int) or not 0 <= node < len(self.tree.parents):
            return False
        return (self.start <= self.tree.place(node) < self.stop) != self.others

    def __len__(self) -> int:
        inside = self.stop - self.start
        return len(self.tree.parents) - inside if self.others else inside

    def __iter__(self) -> Iterator[int]:
        if not self.others:
            return iter(self.tree.nodes_at(self.start, self.stop))
        before = self.tree.nodes_at(0, self.start)
        return iter(before + self.tree.nodes_at(self.stop, len(self.tree.parents)))
