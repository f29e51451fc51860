"""Prior knowledge as statistics: conjugate priors for naive Bayes.

    knowledge worth n_c rows of class c:   Σo = n_c,  Σx = n_c·μ,  Σx² = n_c·(σ² + μ²),  cells = n_c·p

Columns and classes without a belief, and columns in single classes without one, stay open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics


def prior_knowledge(
    schema: Schema,
    rows: float,
    *,
    classes: Mapping[Any, float] | None = None,
    columns: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Statistics:
    """Return statistics of a belief that is worth `rows` rows, for `MixedNB(prior=...)` or `MixedNB(start=...)`.

    schema    the columns and classes, for instance `Schema.infer(X, y)`
    rows      how many rows the belief is worth
    classes   {class: probability}; without it there is no belief about how frequent classes are
    columns   {column: {class: belief}}; a belief is (mean, deviation) in the column's own units where the column is
              continuous, {category: probability} where it is discrete
    """
    if not (rows > 0 and math.isfinite(rows)):
        raise ValueError(f"rows is {rows}; expected how many rows the belief is worth, a positive number")
    family = NaiveBayes(continuous=len(schema.continuous), cardinalities=schema.cardinalities, missing=True)
    share = _shares(schema, classes)
    values = np.zeros((len(schema.classes), family.size))
    if classes is not None:
        values[:, 0] = rows * share
    for name, beliefs in (columns or {}).items():
        if name not in schema.names:
            raise ValueError(f"there is no column {name!r}; expected one of {', '.join(schema.names[:20])}")
        for label, belief in beliefs.items():
            c = _class(schema, label)
            _believe(values[c], schema, family, name, belief, rows * share[c])
    return Statistics(values, schema, family)


def _shares(schema: Schema, classes: Mapping[Any, float] | None) -> np.ndarray:
    """Return the share of the rows that each class gets: [C]."""
    if classes is None:
        return np.full(len(schema.classes), 1 / len(schema.classes))
    share = np.zeros(len(schema.classes))
    for label, probability in classes.items():
        share[_class(schema, label)] = probability
    if (share < 0).any() or not math.isclose(share.sum(), 1, rel_tol=1e-6):
        raise ValueError(f"the classes' probabilities are {dict(classes)}; expected them to add up to 1")
    return share


def _believe(
    row: np.ndarray, schema: Schema, family: NaiveBayes, name: str, belief: Any, worth: float
) -> None:
    """Add a belief about one column of one class to its statistics [K]."""
    j = schema.names.index(name)
    d = family.continuous
    if schema.columns[j].kind == "continuous":
        try:
            mean, deviation = (float(number) for number in belief)
        except (TypeError, ValueError):
            raise ValueError(f"the belief about {name!r} is {belief!r}; expected (mean, deviation)") from None
        if not (math.isfinite(mean) and 0 < deviation < math.inf):
            raise ValueError(f"the belief about {name!r} is {belief!r}; expected a positive deviation")
        k = schema.continuous.index(j)
        mean, deviation = (mean - schema.location[k]) / schema.scale[k], deviation / schema.scale[k]
        row[[1 + k, 1 + d + k, 1 + 2 * d + k]] = worth, worth * mean, worth * (deviation**2 + mean**2)
        return
    categories = schema.columns[j].categories
    if not isinstance(belief, Mapping) or not set(belief) <= set(categories):
        raise ValueError(
            f"the belief about {name!r} is {belief!r}; expected {{category: probability}} of {list(categories)}"
        )
    if min(belief.values()) < 0 or not math.isclose(sum(belief.values()), 1, rel_tol=1e-6):
        raise ValueError(f"the belief about {name!r} is {belief!r}; expected probabilities that add up to 1")
    start = family.dense_size + int(family.offsets[schema.discrete.index(j)])
    for category, probability in belief.items():
        row[start + categories.index(category)] = worth * probability


def _class(schema: Schema, label: Any) -> int:
    """Return the index of a class; ValueError if there is none."""
    if label not in schema.classes:
        raise ValueError(f"{label!r} is not a class; expected one of {list(schema.classes)}")
    return schema.classes.index(label)
