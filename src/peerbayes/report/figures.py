"""Every figure of a run with its caption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from peerbayes.errors import NotSupported
from peerbayes.model.explain import NOT_OF_ROWS
from peerbayes.report.curves import ERROR_NAMES, added, bytes_sent, compared, disagreement, error
from peerbayes.report.effect_figures import figures_of
from peerbayes.report.histogram_figures import figures_of as rows_of
from peerbayes.report.model_figures import (
    Model,
    confusion,
    feature,
    features,
    informative_columns,
    priors,
    reliability,
)
from peerbayes.report.network_figure import network, spread, updated
from peerbayes.report.side_by_side import aligned
from peerbayes.report.structure_figure import structure
from peerbayes.report.style import Spec, number, shown
from peerbayes.simulation.view import View

# --- titles and captions of the figures on a page

# By figure: its title and its caption.
CAPTIONS = {
    "rows": (
        "Rows by peer and class",
        "Training rows of each peer, with the classes stacked: how differently the peers see the world.",
    ),
    "columns": (
        "Values of columns",
        "Counts of training rows by the value of the columns that say most about the class, with the classes stacked. "
        "The report is drawn from these counts, not from rows.",
    ),
    "error": (
        "Error by round",
        "Each thin line is one peer and the thick line is their mean; the shaded band contains 90 % of the peers. The "
        "target is RC, calibration on the pooled rows, which no peer has; ML is maximum likelihood on the pooled rows; "
        "“alone” is what peers reach without any messages. Click a line, or choose a peer above, to follow it.",
    ),
    "disagreement": (
        "Disagreement between peers",
        "Distance between the peers' models and their mean, on a logarithmic scale: a straight line downwards means "
        "that the peers converge at a constant rate. The band contains 90 % of the peers.",
    ),
    "network": (
        "Network",
        "Each dot is a peer: its colour shows its current error, its size the number of its rows. Lines are links. A "
        "cluster of one colour learns from its own members but receives little from other peers. Click a peer to "
        "follow it.",
    ),
    "spread": (
        "Errors across peers",
        "Number of peers by current error. A narrow peak near RC means that all peers predict about equally well.",
    ),
    "bytes": ("Bytes sent", "Bytes that a peer has sent to all of its neighbours since the first round."),
    "priors": ("Class shares", "The share of each class, next to its share of the evaluated rows."),
    "features": (
        "Column distributions by class",
        "The most informative columns: Gaussians with the mean and deviation of each class, or shares of categories. "
        "The less the curves of two classes overlap, the better the column separates them.",
    ),
    "feature": ("Distribution of one column", "Choose any of the most informative columns."),
    "telling": (
        "Most informative columns",
        "Mutual information between each column and the class, in bits. The information in different columns may "
        "overlap.",
    ),
    "structure": (
        "Bayesian network structure",
        "An arrow points from a column to a column that depends on it. Every column also depends on the class, which "
        "is not drawn. Each column has its own line, below its parents and to the right of them. Hover over a column "
        "to see its parents and children.",
    ),
    "shapes": (
        "Contributions of columns",
        "What each bin or category adds to the log-odds: of the second of two classes, otherwise of each class against "
        "their mean. The mean over the rows is 0, the number beside a name the mean distance from it. Grey bars below "
        "show how many rows lie where: trust shapes where there are many. These contributions, added up, decide a "
        "prediction.",
    ),
    "pairs": (
        "Contributions of pairs",
        "What two crossed columns add to the log-odds beyond what each of them adds by itself: of the "
        "second of two classes, otherwise of the class that the pair moves most. The number is the largest "
        "contribution. Hover over a cell to see its values, what it adds, and how many rows lie in it; "
        "empty cells are white.",
    ),
    "confusion": (
        "Confusion matrix",
        "Each line of the matrix is a true class, as shares of the rows of that class; correct predictions lie on the "
        "diagonal. Hover over a cell to see counts.",
    ),
    "reliability": (
        "Calibration",
        "Accuracy of the predictions by their confidence: on the dotted line, the model is right as often as it "
        "claims; below the line, it is overconfident. The expected calibration error is in brackets. "
        "Where a scaling was fitted on held-out rows, the dashed curve shows the predictions without it.",
    ),
}
# What the captions of figures of classes end with.
OF_CLASSES = ("priors", "features", "feature", "telling")
OF_ROWS = (
    "This is what the training rows look like (statistics of maximum likelihood), not what decides a prediction "
    "(calibrated statistics)."
)
OF_GAUSSIANS = "Bits are those of the Gaussians and shares shown, not counted in the rows."
COMPARED_LIVE = "The mean of each run's peers; the shaded band contains 90 % of them."
COMPARED = (
    "The mean of each run's peers; the shaded band contains 90 % of them. Choose a peer above, or click one in a "
    "network below, to see its own curve."
)


def captions_of(views: Sequence[View | None]) -> dict[str, tuple[str, str]]:
    """Return the titles and captions of the figures of these views; those of classes say what they are of."""
    shown_statistics = [view.statistics for view in views if view is not None and view.statistics is not None]
    endings = dict.fromkeys(OF_CLASSES, OF_ROWS)
    if any(statistics.observed is None for statistics in shown_statistics):
        endings["telling"] = f"{OF_GAUSSIANS} {OF_ROWS}"
    if any(statistics.of_rows is None for statistics in shown_statistics):
        endings = dict.fromkeys(OF_CLASSES, NOT_OF_ROWS)
    return {
        name: (title, f"{caption} {endings[name]}" if name in endings else caption)
        for name, (title, caption) in CAPTIONS.items()
    }


# --- all figures of a view as plain plotly dictionaries: pure functions, used by reports, dashboards and image files

# The figures that change while a run goes on.
LIVE: dict[str, Callable[[View], Spec]] = {
    "error": error,
    "disagreement": disagreement,
    "network": network,
    "spread": spread,
    "bytes": bytes_sent,
}


def of(view: View, learned: Model | None = None) -> dict[str, Spec]:
    """Return all figures of a view by name; `learned` is its model, if it was read before."""
    specs = {name: make(view) for name, make in LIVE.items() if _shows(view, name)}
    if learned := learned or learned_by(view):
        specs["priors"] = priors(view, learned)
        if learned.columns:
            specs |= {"features": features(learned), "telling": informative_columns(learned)}
    specs |= rows_of(view) | structured(view) | figures_of(view.statistics)
    if "peers" in view.outcomes:
        specs |= {"confusion": confusion(view, view.classes), "reliability": reliability(view)}
    return specs


def structured(view: View) -> dict[str, Spec]:
    """Return the figure of the structure, also before the first round; empty where no column has a parent."""
    bayes_net = view.structure
    return {} if bayes_net is None or not any(bayes_net.parents) else {"structure": structure(bayes_net)}


def learned_by(view: View) -> Model | None:
    """Return the view's model as its figures need it; None where there is none, or its family has no parameters."""
    try:
        return None if view.statistics is None else Model.of(view.statistics)
    except NotSupported:  # a family of an outside package without `parameters`
        return None


def columns(view: View, learned: Model | None = None) -> list[tuple[str, Spec]]:
    """Return names and figures of the model's columns, the most informative first; empty where there is no model."""
    learned = learned or learned_by(view)
    if learned is None:
        return []
    return [(shown(column.name, 60), feature(learned, index)) for index, column in enumerate(learned.columns)]


def live(view: View) -> dict[str, Spec]:
    """Return the figures that change while a run goes on."""
    return {name: make(view) for name, make in LIVE.items()}


def side_by_side(views: Sequence[View]) -> dict[str, Spec]:
    """Return the figures of several runs that go on: all errors in one, the others by run with the same axes."""
    drawings = [
        {name: make(view) for name, make in LIVE.items() if name != "error" and _shows(view, name)}
        for view in views
    ]
    specs = {"error": compared(views)}
    for index, drawing in enumerate(aligned(drawings, views)):
        specs |= {f"{name}-{index}": spec for name, spec in drawing.items()}
    return specs


def patch(view: View, since: int) -> Spec:
    """Return what to add to `live` of a view up to round `since`; see `patch_of`."""
    return patch_of(view, since, lambda begin: {name: _added(view, name, begin) for name in LIVE})


def patch_of(view: View, since: int, added_from: Callable[[int], dict[str, Spec]]) -> Spec:
    """Return {"since", "round", "turn", "figures": {name: {"traces", …}}}, with figures where there are new rounds.

    `added_from` gets the index of the first new round. The `meta.grows` of a trace says how its attributes are
    updated; see `curves`.
    """
    begin = int(np.searchsorted(view.rounds, since, side="right"))
    last = int(view.rounds[-1]) if len(view.rounds) else 0
    figures = added_from(begin) if begin < len(view.rounds) else {}
    return {"since": since, "round": last, "turn": view.round_index, "figures": figures}


def _added(view: View, name: str, begin: int) -> Spec:
    return updated(view, name) if name in ("network", "spread") else added(view, name, begin)


def curve(view: View, peer: int) -> dict[str, Any]:
    """Return one peer's values by round, ready for JSON; the last round only where its curve is not kept."""
    if not 0 <= peer < view.peer_count:
        raise ValueError(f"peer is {peer}; expected 0 to {view.peer_count - 1}")
    indices = np.flatnonzero(view.peers == peer)
    curves = {
        name: view.curves[metric][:, indices[0]] if indices.size else view.last[metric][peer : peer + 1]
        for name, metric in (("error", view.error), ("disagreement", "disagreement"), ("bytes", "bytes"))
    }
    rounds = view.rounds if indices.size else view.rounds[-1:]
    return {
        "peer": peer,
        "name": f"peer {peer}" if view.names is None else view.names[peer],
        "rows": int(view.sizes[peer]),
        "kind": ERROR_NAMES[view.error],
        "whole": bool(indices.size),
        "rounds": [int(round_index) for round_index in rounds],
        **{name: [number(value) for value in values] for name, values in curves.items()},
    }


def _shows(view: View, name: str) -> bool:
    """Return whether a figure has anything to show."""
    metric = {"error": view.error, "spread": view.error}.get(name, name)
    if name == "network":
        return view.peer_count > 1
    values = view.spread[metric]
    return bool(np.isfinite(values).any()) and not (
        name in ("disagreement", "spread", "bytes") and (view.peer_count == 1 or not (values > 0).any())
    )
