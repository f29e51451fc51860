"""Numbers as plotly takes them: little-endian bytes in base64, a third of the size of digits."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

Spec = dict[str, Any]  # a figure, or a part of one, as plotly's plain dictionary

# plotly's names of types, by NumPy's.
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}


def packed(values: Any, dtype: str = "f4") -> Spec:
    """An array of one or two axes: {"dtype", "bdata"}, and its shape where it has two."""
    array = np.ascontiguousarray(values, dtype=DTYPES[dtype])
    spec = {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return spec if array.ndim == 1 else {**spec, "shape": ", ".join(map(str, array.shape))}


def unpacked(spec: Spec) -> np.ndarray:
    """What `packed` packed."""
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=DTYPES[spec["dtype"]])
    return flat.reshape([int(size) for size in spec["shape"].split(",")]) if "shape" in spec else flat


def gapped(rows: np.ndarray) -> np.ndarray:
    """Curves [P, T] one after another with a gap behind each: [P·(T + 1)]. One trace then draws them all."""
    return np.concatenate([rows, np.full((len(rows), 1), np.nan)], axis=1).ravel()


def number(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if np.isfinite(value) else None
