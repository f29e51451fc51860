"""The form of labelled rows that suits the number of passes over them: held, plain or streamed."""

from __future__ import annotations

import numpy as np

from peerbayes.families.base import Family
from peerbayes.passes.blocks import Source
from peerbayes.passes.held import Held
from peerbayes.passes.plain import Plain
from peerbayes.passes.sizes import are_large, block_rows, is_held, is_large
from peerbayes.passes.streamed import Streamed

Data = Held | Plain | Streamed


def labelled(
    family: Family,
    source: Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
) -> Data:
    """Return labelled rows in the form that suits one pass."""
    if is_large(family, source.rows):
        return Streamed(family, source, labels, classes, weights)
    plain = Plain(family, source, labels, classes, weights)
    return plain.held() if source.rows <= block_rows(family.size) else plain


def repeated(data: Data, passes: int) -> Data:
    """Return the same rows in the form that suits the given number of passes."""
    if not isinstance(data, Plain):
        return data
    if are_large(data.family, data.source.rows, passes):
        return Streamed(data.family, data.source, data.labels, data.classes, data.weights)
    return data.held() if is_held(data.family, data.source.rows) else data
