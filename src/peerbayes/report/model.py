"""The learned model as its figures need it: class priors, and each column's distribution in each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.reading import describe
from peerbayes.report.arrays import Spec, packed
from peerbayes.report.labels import figure, label, shown
from peerbayes.report.theme import axis, colour, layout
from peerbayes.statistics import Statistics
from peerbayes.telling import of_categories, of_gaussians
from peerbayes.views import View

LISTED = 30  # columns in the figure of the most informative ones
RANKED = 64  # columns that are ranked exactly, and can be selected
RANKING_CLASSES = 40  # classes by which columns are ranked: the most frequent ones
TICKS = 40  # most names along an axis


@dataclass(frozen=True, eq=False)
class Column:
    """The distribution of one column in each of C classes: Gaussians, or probabilities of categories."""

    name: str
    bits: float
    mean: np.ndarray | None = None  # [C]
    deviation: np.ndarray | None = None  # [C]
    categories: tuple[object, ...] = ()
    cells: np.ndarray | None = None  # [C, K]


@dataclass(frozen=True, eq=False)
class Model:
    """Classes, their prior, and the columns, the most informative first."""

    classes: tuple[object, ...]
    prior: np.ndarray
    columns: tuple[Column, ...]
    count: int
    """Number of columns of the data."""

    @classmethod
    def of(cls, stats: Statistics) -> Model:
        schema, classes, names = stats.schema, stats.schema.classes, stats.schema.names
        described = describe(schema, stats.family, stats.values, np.array(classes, dtype=object))
        table = described[["mean", "deviation", "probability"]].to_numpy(dtype=np.float64)
        table = table.reshape(len(classes), -1, 3)  # by class: its prior, Gaussians, cells
        prior = table[:, 0, 2] / table[:, 0, 2].sum()
        continuous = len(schema.continuous)
        mean, deviation = table[:, 1 : 1 + continuous, 0], table[:, 1 : 1 + continuous, 1]
        cells = np.split(table[:, 1 + continuous :, 2], np.cumsum(schema.cardinalities)[:-1], axis=1)
        common = np.argsort(-prior, kind="stable")[:RANKING_CLASSES]
        weights = np.maximum(prior[common], np.finfo(float).tiny)
        weights = weights / weights.sum()
        separation = _separation(weights, mean[common], deviation[common])
        columns = [
            Column(
                names[schema.continuous[index]],
                of_gaussians(weights, mean[common, index], deviation[common, index]),
                mean[:, index],
                deviation[:, index],
            )
            for index in np.argsort(-separation, kind="stable")[:RANKED]
        ]
        columns += [
            Column(
                names[index],
                of_categories(weights, shares[common]),
                categories=schema.columns[index].categories,
                cells=shares,
            )
            for index, shares in zip(schema.discrete, cells, strict=False)
        ]
        columns.sort(key=lambda column: -column.bits)
        return cls(classes, prior, tuple(columns[:RANKED]), len(names))


def _separation(prior: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the separation of the classes relative to their widths: [C], [C, D], [C, D] -> [D]. Cheaper than bits."""
    middle = prior @ mean
    within = np.maximum(prior @ deviation**2, np.finfo(float).tiny)
    return (
        prior @ (mean - middle) ** 2 / within
        + np.log(within)
        - prior @ np.log(np.maximum(deviation, np.finfo(float).tiny) ** 2)
    )


def priors(view: View, model: Model) -> Spec:
    """Return the figure of the class priors, next to the class shares of the evaluated rows."""
    indices = np.arange(len(model.classes))
    bars: Spec = {
        "type": "bar",
        "name": "prior in the model",
        "x": packed(indices),
        "y": packed(model.prior),
        "text": [label(name) for name in model.classes],
        "textposition": "none",
        "marker": {"color": colour("peers"), "opacity": 0.85},
        "hovertemplate": "%{text}: prior %{y:.4f}<extra></extra>",
        "meta": {"role": "prior"},
    }
    data = [bars]
    if "peers" in view.outcomes:
        rows = view.outcomes["peers"].confusion.sum(axis=1)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"share of the {_evaluated_rows(view)}",
                "x": packed(indices),
                "y": packed(rows / max(rows.sum(), 1e-12)),
                "text": bars["text"],
                "marker": {
                    "color": colour("class-1"),
                    "symbol": "line-ew-open",
                    "size": 12,
                    "line": {"width": 2},
                },
                "hovertemplate": "%{text}: share of the rows %{y:.4f}<extra></extra>",
                "meta": {"role": "share"},
            }
        )
    most_frequent = int(model.prior.argmax())
    summary = (
        f"Priors of {len(indices)} classes, from {figure(model.prior.min())} to {figure(model.prior.max())}, "
        f"highest for {shown(model.classes[most_frequent])}."
    )
    return {
        "data": data,
        "layout": layout(
            summary,
            showlegend=len(data) > 1,
            xaxis=axis("class", **tick_labels(model.classes)),
            yaxis=axis("probability", rangemode="tozero"),
        ),
    }


def informative_columns(model: Model) -> Spec:
    """Return the figure of the columns with the highest mutual information with the class, in bits."""
    top = model.columns[:LISTED][::-1]  # plotly starts at the bottom
    names = [label(column.name) for column in top]
    entropy = float(-(model.prior[model.prior > 0] * np.log2(model.prior[model.prior > 0])).sum())
    best = model.columns[0]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": packed([column.bits for column in top]),
                "y": packed(np.arange(len(top))),
                "text": names,
                "textposition": "none",
                "marker": {"color": colour("peers"), "opacity": 0.85},
                "hovertemplate": "%{text}: %{x:.3f} bits<extra></extra>",
                "meta": {"role": "telling"},
            }
        ],
        "layout": layout(
            f"The most informative of {model.count} columns is {shown(best.name)}, with {best.bits:.2f} of "
            f"{entropy:.2f} bits.",
            max(200, 70 + 17 * len(top)),
            bargap=0.25,
            xaxis=axis(f"bits about the class (at most {entropy:.2f})", rangemode="tozero"),
            yaxis=axis(tickvals=list(range(len(top))), ticktext=names, showgrid=False, tickfont={"size": 11}),
        ),
    }


def tick_labels(values: tuple[object, ...], longest: int = 16) -> Spec:
    """Return tick labels with names along an axis: all, or every k-th of many."""
    step = -(-len(values) // TICKS)
    indices = list(range(0, len(values), step))
    return {"tickvals": indices, "ticktext": [label(values[index], longest) for index in indices]}


def _evaluated_rows(view: View) -> str:
    return "test rows" if view.error == "test_error" else "training rows"
