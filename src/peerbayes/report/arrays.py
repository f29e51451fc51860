"""Arrays in plotly's binary form: little-endian bytes in base64, a third of the size of decimal digits."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

Spec = dict[str, Any]  # a figure, or an element of one, as a plain plotly dictionary

# NumPy dtypes by plotly's names.
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}


def packed(values: Any, dtype: str = "f4") -> Spec:
    """Return an array of one or two axes as {"dtype", "bdata"}, with its "shape" where it has two."""
    array = np.ascontiguousarray(values, dtype=DTYPES[dtype])
    spec = {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return spec if array.ndim == 1 else {**spec, "shape": ", ".join(map(str, array.shape))}


def unpacked(spec: Spec) -> np.ndarray:
    """Return the array that `packed` encoded."""
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=DTYPES[spec["dtype"]])
    return flat.reshape([int(size) for size in spec["shape"].split(",")]) if "shape" in spec else flat


def gapped(rows: np.ndarray) -> np.ndarray:
    """Return curves [P, T] concatenated with a NaN after each: [P·(T + 1)], so that one trace draws them all."""
    return np.concatenate([rows, np.full((len(rows), 1), np.nan)], axis=1).ravel()


def number(value: float) -> float | None:
    """Return the value as a JSON number; None where it is not finite."""
    return float(value) if np.isfinite(value) else None
