"""Titles and captions of the figures on a page."""

from __future__ import annotations

# By figure: its title and its caption.
CAPTIONS = {
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
    "priors": (
        "Class priors",
        "The model's prior probability of each class, next to the share of the rows in that class. Calibration moves "
        "priors away from these shares where that improves the predictions.",
    ),
    "features": (
        "Column distributions by class",
        "The most informative columns: the less the curves of two classes overlap, the better the column separates "
        "them.",
    ),
    "feature": ("Distribution of one column", "Choose any of the most informative columns."),
    "telling": (
        "Most informative columns",
        "Mutual information between each column and the class, in bits, according to the model. The information in "
        "different columns may overlap.",
    ),
    "structure": (
        "Bayesian network structure",
        "An arrow points from a column to a column that depends on it. Every column also depends on the class, which "
        "is not drawn. Each column has its own line, below its parents and to the right of them. Hover over a column "
        "to see its parents and children.",
    ),
    "confusion": (
        "Confusion matrix",
        "Each line is a true class, in shares of its rows: correct predictions lie on the diagonal. Hover over a cell "
        "to see counts.",
    ),
    "reliability": (
        "Calibration",
        "Accuracy of the predictions by their confidence: on the dotted line, the model is right as often as it "
        "claims; below the line, it is overconfident. The expected calibration error is in brackets.",
    ),
}
COMPARED = (
    "The mean of each run's peers; the shaded band contains 90 % of them. Choose a peer above, or click one in a "
    "network below, to see its own curve."
)
