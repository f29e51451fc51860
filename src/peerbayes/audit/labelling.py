"""Labels of rows that are known, from YᵀΦ: which row is of which class, so that the sums of the classes come out."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, csr_array, eye_array, hstack, vstack

# Seconds for the search. Sums of many rows with few features have too many solutions to be told apart in time.
SECONDS = 10.0


def labelled(features: np.ndarray, statistics: np.ndarray, seconds: float = SECONDS) -> np.ndarray | None:
    """The class of each row: Φ [m, K], YᵀΦ [C, K] -> [m]; None where none was found in time.

    Integers z_ic ∈ {0, 1} with Σ_c z_ic = 1 and Σ_i z_ic φ_i = S_c, to the least total of what is left over.
    """
    rows, classes = len(features), len(statistics)
    size = features.shape[1]
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    equations = csr_array((features / scale).T)
    sums = block_diag([equations] * classes, format="csr")  # z in the order of classes
    slack = eye_array(classes * size, format="csr")
    once = hstack([eye_array(rows, format="csr")] * classes, format="csr")
    none = csr_array((rows, 2 * classes * size))
    constraints = LinearConstraint(
        vstack([hstack([sums, slack, -slack]), hstack([once, none])], format="csr"),
        *(np.concatenate([(statistics / scale).ravel(), np.ones(rows)]),) * 2,
    )
    whole = rows * classes
    found = milp(
        np.concatenate([np.zeros(whole), np.ones(2 * classes * size)]),
        integrality=np.concatenate([np.ones(whole), np.zeros(2 * classes * size)]),
        bounds=Bounds(0, np.concatenate([np.ones(whole), np.full(2 * classes * size, np.inf)])),
        constraints=constraints,
        options={"time_limit": seconds},
    )
    return None if found.x is None else found.x[:whole].reshape(classes, rows).argmax(axis=0)
