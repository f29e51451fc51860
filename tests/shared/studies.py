"""Small studies that are computed in this process."""

import numpy as np

import peerbayes as pb

SMALL = {"peers": 4, "rows_per_peer": 15, "rounds": 3}


class Here:
    """Computes cells in this process, and counts them."""

    name = "here"

    def __init__(self):
        self.count = 0

    def run(self, compute, specifications):
        for index, specification in enumerate(specifications):
            self.count += 1
            yield index, compute(specification)


def asked(data, engine=None, **settings):
    """Return a study of small simulations."""
    return pb.study(*data, engine=engine or Here(), progress=False, **{**SMALL, **settings})


def two_classes(rows=120, seed=0):
    """Return a small table of two classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    return rng.normal(size=(rows, 3)) + 1.2 * y[:, None], y
