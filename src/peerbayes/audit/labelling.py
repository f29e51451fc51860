"""Labels of known rows from YᵀΦ: assign rows to classes so that the class sums agree."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, csr_array, eye_array, hstack, vstack

# Seconds for the search. Sums of many rows with few features have too many solutions to separate in time.
SECONDS = 10.0


def labelled(features: np.ndarray, statistics: np.ndarray, seconds: float = SECONDS) -> np.ndarray | None:
    """Return the class of each row: Φ [m, K], YᵀΦ [C, K] -> [m]; None where no solution was found in time.

    Minimise the absolute error of Σ_i z_ic φ_i = S_c over integers z_ic ∈ {0, 1} with Σ_c z_ic = 1.
    """
    rows, classes = len(features), len(statistics)
    size = features.shape[1]
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    equations = csr_array((features / scale).T)
    sums = block_diag([equations] * classes, format="csr")  # z in the order of classes
    slack = eye_array(classes * size, format="csr")
    once = hstack([eye_array(rows, format="csr")] * classes, format="csr")
    empty_block = csr_array((rows, 2 * classes * size))
    constraints = LinearConstraint(
        vstack([hstack([sums, slack, -slack]), hstack([once, empty_block])], format="csr"),
        *(np.concatenate([(statistics / scale).ravel(), np.ones(rows)]),) * 2,
    )
    assignments = rows * classes
    solution = milp(
        np.concatenate([np.zeros(assignments), np.ones(2 * classes * size)]),
        integrality=np.concatenate([np.ones(assignments), np.zeros(2 * classes * size)]),
        bounds=Bounds(0, np.concatenate([np.ones(assignments), np.full(2 * classes * size, np.inf)])),
        constraints=constraints,
        options={"time_limit": seconds},
    )
    return None if solution.x is None else solution.x[:assignments].reshape(classes, rows).argmax(axis=0)
