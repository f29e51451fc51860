"""Small runs for reports, names that try to break a page, and what is in a figure."""

import base64
from dataclasses import replace

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification

from peerbayes import simulate
from peerbayes.report.style import DTYPES

HOSTILE = (
    "<script>alert(1)</script>", "<b>bold</b>", "a & b &lt;", "%{customdata} %{meta.role}", "$x^2$", "</script><!--",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc", "line\nbreak\tand\x00zero", '" onmouseover="alert(1)', "naïve 日本語 🙂", "",
    "x" * 500,
)  # fmt: skip


def unpacked(spec):
    """The array that `packed` encoded."""
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=DTYPES[spec["dtype"]])
    return flat.reshape([int(size) for size in spec["shape"].split(",")]) if "shape" in spec else flat


def data(classes=3, continuous=4, rows=400, seed=0):
    return make_classification(
        rows, max(continuous, 6), n_informative=6, n_redundant=0, n_classes=classes, n_clusters_per_class=1,
        random_state=seed,
    )  # fmt: skip


def run_of(X=None, y=None, **settings):
    if X is None:
        X, y = data()
    return simulate(X, y, **{"peers": 8, "rows_per_peer": 20, "rounds": 6, "start": "uniform", **settings})


def mixed():
    X, y = data(2)
    table = pd.DataFrame(X, columns=[f"number {place}" for place in range(X.shape[1])])
    table["colour"] = np.array(["red", "green", "blue"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0)]
    table["flag"] = X[:, 2] > 0
    return table, y


def first(view, count):
    """A view as it was after so many evaluated rounds, while the run went on."""
    last = {name: values[count - 1] if count else np.zeros(0) for name, values in view.curves.items()}
    return replace(
        view,
        rounds=view.rounds[:count],
        round_index=int(view.rounds[count - 1]) if count else 0,
        curves={name: values[:count] for name, values in view.curves.items()},
        spread={name: values[:count] for name, values in view.spread.items()},
        last=last,
        references={},
        outcomes={},
        statistics=None,
        finished=False,
        seconds=view.seconds[:count],
    )


def numbers(value):
    return unpacked(value) if isinstance(value, dict) and "bdata" in value else value


def strings(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value
