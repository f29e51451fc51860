"""What figures are called on a page, and how to read them."""

from __future__ import annotations

# By figure: its title and how to read it.
CAPTIONS = {
    "error": (
        "Error by round",
        "A thin line is one peer, the thick one their mean; nine in ten peers lie in the shaded band. The aim is RC, "
        "calibration on the pooled rows, which no peer has; ML is maximum likelihood on them; “alone” is what peers "
        "reach without any message. Click a line, or choose a peer above, to follow it.",
    ),
    "disagreement": (
        "Disagreement by round",
        "How far the peers' models are from their mean, on a logarithmic scale: a straight line downwards is agreement "
        "that grows at a steady rate. The band holds nine in ten peers.",
    ),
    "network": (
        "The network",
        "Every dot is a peer, coloured by its error now and as large as its rows are many; lines are links. Peers of "
        "one colour in one place learn from each other but hear little from the rest. Click a peer to follow it.",
    ),
    "spread": (
        "Spread over the peers",
        "How many peers have which error now. A narrow hill near RC: it does not matter which peer one asks.",
    ),
    "bytes": ("Bytes sent", "What a peer has sent to all its neighbours together since the first round."),
    "priors": (
        "Class priors",
        "What the model takes for the probability of each class before it sees a row, beside the classes' shares of "
        "the rows. Calibration moves priors away from the shares where that predicts better.",
    ),
    "features": (
        "What each column looks like in each class",
        "The most telling columns: where the curves of two classes lie apart, the column tells them apart.",
    ),
    "feature": ("One column", "Choose any of the most telling columns."),
    "telling": (
        "The most telling columns",
        "How many bits a column alone says about the class, by the model; columns may say the same twice.",
    ),
    "structure": (
        "Who depends on whom",
        "An arrow goes from a column to one that depends on it; all columns depend on the class as well, which is not "
        "drawn. Each column has a line, below its parents and right of them. The pointer shows a column's parents and "
        "children.",
    ),
    "confusion": (
        "What is taken for what",
        "Each line is a true class, in shares of its rows: right predictions lie on the diagonal. Over a figure, the "
        "pointer shows counts.",
    ),
    "reliability": (
        "Is it as sure as it may be?",
        "Predictions by how sure the model is of them: on the dotted line it is right as often as it says; below, it "
        "is too sure. In brackets the expected calibration error.",
    ),
}
COMPARED = (
    "The mean of each run's peers; nine in ten of them lie in the shaded band. Choose a peer above, or click one in a "
    "network below, to see its own curve."
)
