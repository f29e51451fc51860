"""Cost-sensitive decisions."""

from __future__ import annotations

from typing import Any

import numpy as np


def cost_table(costs: Any, classes: np.ndarray) -> np.ndarray:
    """Return the caller's costs, checked: a row per true class, a column per decision. [C, C]."""
    size = len(classes)
    try:
        table = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"costs are {costs!r:.80}; expected {size} x {size} finite numbers") from error
    if table.shape != (size, size) or not np.isfinite(table).all():
        raise ValueError(
            f"costs have shape {table.shape}; expected {size} x {size} finite numbers: a row per true class, "
            f"a column per decision, in the order {list(classes)}"
        )
    return table


def cheapest(posterior: np.ndarray, costs: Any, classes: np.ndarray) -> np.ndarray:
    """Return the class of least expected cost for each row of p(c | x): [n, C] -> [n]."""
    return classes[(posterior @ cost_table(costs, classes)).argmin(axis=1)]
