"""Mutual information of each column with the class, under the model, in bits.

I(x; c) = Σ_c π_c E[log₂ p(x|c)/p(x) | c]: 0 where the classes are alike, at most the entropy of the prior.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtri

from peerbayes.reading import PRIOR

# Quantiles that represent a Gaussian: the bits are then right to 0.01, enough for a ranking.
QUANTILES = ndtri((np.arange(255) + 0.5) / 255)


def mutual_information(described: Any) -> Any:
    """Return a DataFrame of features and their bits, highest first, from the output of `describe`."""
    import pandas as pd

    prior = described.loc[described["feature"] == PRIOR, "probability"].to_numpy()
    prior = np.maximum(prior / prior.sum(), np.finfo(float).tiny)
    columns = described[described["feature"] != PRIOR].groupby("feature", sort=False)
    records = [{"feature": name, "bits": _bits(prior, rows)} for name, rows in columns]
    table = pd.DataFrame.from_records(records, columns=["feature", "bits"])
    return table.sort_values("bits", ascending=False, kind="stable", ignore_index=True)


def _bits(prior: np.ndarray, rows: Any) -> float:
    """Return the mutual information of one feature with the class."""
    if rows["mean"].notna().all():
        return of_gaussians(prior, rows["mean"].to_numpy(), rows["deviation"].to_numpy())
    return of_categories(prior, rows["probability"].to_numpy().reshape(len(prior), -1))


def of_categories(prior: np.ndarray, cells: np.ndarray) -> float:
    """Return Σ_c π_c Σ_k p_ck log₂(p_ck / p_k): [C], [C, K] -> bits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(cells > 0, cells * np.log2(cells / (prior @ cells)), 0.0)
    return max(0.0, float(prior @ terms.sum(axis=1)))


def of_gaussians(prior: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> float:
    """Return the same for one Gaussian per class: [C], [C], [C] -> bits."""
    deviation = np.maximum(deviation, np.finfo(float).tiny)
    total = 0.0
    for c in range(len(prior)):  # class by class: memory grows with classes, not with their square
        distance = (mean[c] - mean + deviation[c] * QUANTILES[:, None]) / deviation
        density = -0.5 * distance**2 - np.log(deviation)
        total += prior[c] * float(np.mean(density[:, c] - logsumexp(density + np.log(prior), axis=1)))
    return max(0.0, total / np.log(2.0))
