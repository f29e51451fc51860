"""A topology: a ring of peers around one in the middle."""

import networkx as nx
import numpy as np


def wheel(nodes: int, rng: np.random.Generator) -> nx.Graph:
    """Return a graph, or a matrix of 0 and 1; `rng` is for random ones."""
    return nx.wheel_graph(nodes)
