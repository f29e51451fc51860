"""A network of your own that changes, with faults: peers in two towns, linked by one road that is not always open.

python examples/own_topology.py
"""

import networkx as nx
import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes import network

TOWN = 10


class Road:
    """Two towns, each a small world; the road between them is open every fourth round."""

    nodes, static = 2 * TOWN, False

    def __init__(self) -> None:
        towns = [nx.connected_watts_strogatz_graph(TOWN, 4, 0.3, seed=seed) for seed in (0, 1)]
        graph = nx.disjoint_union(*towns)
        self.closed = csr_array(nx.to_scipy_sparse_array(graph, nodelist=range(2 * TOWN), dtype=float))
        graph.add_edge(0, TOWN)
        self.open = csr_array(nx.to_scipy_sparse_array(graph, nodelist=range(2 * TOWN), dtype=float))

    def at(self, round: int) -> csr_array:
        return self.open if round % 4 == 0 else self.closed


X, y = load_digits(return_X_y=True)
road = Road()
rows = np.random.default_rng(0).permutation(len(y))[:800]
rows = rows[np.argsort(y[rows], kind="stable")]  # the first town sees small digits, the second large ones
rng = np.random.default_rng(1)
parts = [part for town in np.split(rows, 2) for part in np.array_split(rng.permutation(town), TOWN)]
gap = network.spectral_gap(network.metropolis(road.open))
print(
    f"Two towns of {TOWN}; with the road open {network.diameter(road.open)} steps apart, spectral gap {gap:.3f}\n"
)

for what, topology, faults in (
    ("the road always open", network.Static(road.open), {}),
    ("open every fourth round", road, {}),
    ("and every tenth message lost", road, {"message_loss": 0.1}),
    ("and every tenth peer away", road, {"peers_down": 0.1}),
):
    run = pb.simulate(
        X, y, peers=2 * TOWN, partition=parts, topology=topology, strategy="exact", rounds=64, evaluate_every=0,
        **faults,
    )  # fmt: skip
    told = run.summary()
    print(
        f"{what:<30} test error {told['test_error']:.3f}   RC {told['test_rc']:.3f}   alone {told['test_local']:.3f}"
    )
