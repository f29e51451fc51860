"""What a model has learned, read for figures: priors, and each column's distribution in each class."""

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

LISTED = 30  # columns in the figure of the most telling ones
RANKED = 64  # columns that are ranked exactly, and can be chosen
JUDGED_CLASSES = 40  # classes that columns are ranked by: the most frequent
TICKS = 40  # names along an axis


@dataclass(frozen=True, eq=False)
class Column:
    """One column in each of C classes: Gaussians, or shares of categories."""

    name: str
    bits: float
    mean: np.ndarray | None = None  # [C]
    deviation: np.ndarray | None = None  # [C]
    categories: tuple[object, ...] = ()
    cells: np.ndarray | None = None  # [C, K]


@dataclass(frozen=True, eq=False)
class Model:
    """Classes, their prior, and the columns, the most telling first."""

    classes: tuple[object, ...]
    prior: np.ndarray
    columns: tuple[Column, ...]
    count: int
    """Columns in all."""

    @classmethod
    def of(cls, stats: Statistics) -> Model:
        schema, classes, names = stats.schema, stats.schema.classes, stats.schema.names
        described = describe(schema, stats.family, stats.values, np.array(classes, dtype=object))
        table = described[["mean", "deviation", "probability"]].to_numpy(dtype=np.float64)
        table = table.reshape(len(classes), -1, 3)  # a class after another: its prior, Gaussians, cells
        prior = table[:, 0, 2] / table[:, 0, 2].sum()
        many = len(schema.continuous)
        mean, deviation = table[:, 1 : 1 + many, 0], table[:, 1 : 1 + many, 1]
        cells = np.split(table[:, 1 + many :, 2], np.cumsum(schema.cardinalities)[:-1], axis=1)
        common = np.argsort(-prior, kind="stable")[:JUDGED_CLASSES]
        weights = np.maximum(prior[common], np.finfo(float).tiny)
        weights = weights / weights.sum()
        near = _between(weights, mean[common], deviation[common])
        columns = [
            Column(
                names[schema.continuous[place]],
                of_gaussians(weights, mean[common, place], deviation[common, place]),
                mean[:, place],
                deviation[:, place],
            )
            for place in np.argsort(-near, kind="stable")[:RANKED]
        ]
        columns += [
            Column(
                names[place],
                of_categories(weights, shares[common]),
                categories=schema.columns[place].categories,
                cells=shares,
            )
            for place, shares in zip(schema.discrete, cells, strict=False)
        ]
        columns.sort(key=lambda column: -column.bits)
        return cls(classes, prior, tuple(columns[:RANKED]), len(names))


def _between(prior: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """How far classes are apart beside how wide they are: [C], [C, D], [C, D] -> [D]. Cheaper than bits."""
    middle = prior @ mean
    within = np.maximum(prior @ deviation**2, np.finfo(float).tiny)
    return (
        prior @ (mean - middle) ** 2 / within
        + np.log(within)
        - prior @ np.log(np.maximum(deviation, np.finfo(float).tiny) ** 2)
    )


def priors(view: View, model: Model) -> Spec:
    """The classes' prior in the model, and their shares among the rows that peers are judged on."""
    places = np.arange(len(model.classes))
    bars: Spec = {
        "type": "bar",
        "name": "prior in the model",
        "x": packed(places),
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
                "name": f"share of the {_rows(view)}",
                "x": packed(places),
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
    most = int(model.prior.argmax())
    summary = (
        f"Priors of {len(places)} classes, from {figure(model.prior.min())} to {figure(model.prior.max())}, "
        f"the highest of {shown(model.classes[most])}."
    )
    return {
        "data": data,
        "layout": layout(
            summary,
            showlegend=len(data) > 1,
            xaxis=axis("class", **named(model.classes)),
            yaxis=axis("probability", rangemode="tozero"),
        ),
    }


def telling(model: Model) -> Spec:
    """The columns that say most about the class, in bits."""
    top = model.columns[:LISTED][::-1]  # plotly begins below
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
            f"The most telling of {model.count} columns is {shown(best.name)}, with {best.bits:.2f} of "
            f"{entropy:.2f} bits.",
            max(200, 70 + 17 * len(top)),
            bargap=0.25,
            xaxis=axis(f"bits about the class, of {entropy:.2f}", rangemode="tozero"),
            yaxis=axis(tickvals=list(range(len(top))), ticktext=names, showgrid=False, tickfont={"size": 11}),
        ),
    }


def named(values: tuple[object, ...], longest: int = 16) -> Spec:
    """Names along an axis, at their places; of many, some."""
    step = -(-len(values) // TICKS)
    places = list(range(0, len(values), step))
    return {"tickvals": places, "ticktext": [label(values[place], longest) for place in places]}


def _rows(view: View) -> str:
    return "test rows" if view.error == "test_error" else "training rows"
