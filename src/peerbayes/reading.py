"""Explanations of decisions, readable parameters, and synthetic rows of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from peerbayes.completion import contributions
from peerbayes.errors import SchemaMismatch
from peerbayes.families.base import Family, Rows
from peerbayes.schema import Schema
from peerbayes.tables import Table

BASELINE = "(baseline)"
PRIOR = "(prior)"


def rows_of(x: Any, names: list[str], order: list[str] | None) -> Any:
    """Return one row (array, list, Series or mapping) or several, as a table.

    `names` are the columns of the model, `order` their order in its tables; None: it was fitted to an array.
    """
    import pandas as pd

    if isinstance(x, pd.Series) and order is None:
        return np.asarray(x).reshape(1, -1)
    if isinstance(x, pd.Series | dict):
        unknown = [key for key in dict(x) if key not in names]
        if unknown:
            raise SchemaMismatch(f"x names {unknown[0]!r}; expected columns of {', '.join(names[:20])}")
        columns = names if order is None else order
        return pd.DataFrame([[dict(x).get(name) for name in columns]], columns=columns)
    if hasattr(x, "iloc"):
        return x
    array = np.asarray(x)
    return array.reshape(1, -1) if array.ndim == 1 else array


def explain(
    schema: Schema,
    family: Family,
    stats: np.ndarray,
    classes: np.ndarray,
    table: Table,
    rows: Rows,
    of: Any = None,
    against: Any = None,
) -> Any:
    """Return each column's term of log p(of|x) − log p(against|x): a DataFrame with a row per table row and column."""
    import pandas as pd

    baseline, terms = contributions(family, stats, rows)
    ranking = np.argsort(-(baseline + terms.sum(axis=-1)), axis=1, kind="stable")
    columns, positions = [*schema.continuous, *schema.discrete], schema.places(table)
    names, values = [schema.names[j] for j in columns], [table.column(positions[j]) for j in columns]
    excluded = _class_index(classes, against)
    records = []
    for i in range(len(terms)):
        of_index = _class_index(classes, of, next(int(c) for c in ranking[i] if c != excluded))
        against_index = _class_index(classes, against, next(int(c) for c in ranking[i] if c != of_index))
        sides = {"row": i, "of": classes[of_index], "against": classes[against_index]}
        bias = baseline[of_index] - baseline[against_index]
        records.append({**sides, "feature": BASELINE, "value": None, "log_odds": bias})
        odds = terms[i, of_index] - terms[i, against_index]
        records += [
            {**sides, "feature": names[k], "value": values[k][i], "log_odds": odds[k]}
            for k in np.argsort(-np.abs(odds), kind="stable")
        ]
    return pd.DataFrame.from_records(records)


def describe(schema: Schema, family: Family, stats: np.ndarray, classes: np.ndarray) -> Any:
    """Return the parameters in the units of the table: a DataFrame, a row per class and column or category."""
    import pandas as pd

    parameters = family.parameters(stats)
    deviation = np.sqrt(np.maximum(_variances(family, parameters), 0.0)) * schema.scale
    mean = parameters.mean * schema.scale + schema.location
    records, names = [], schema.names
    for c, label in enumerate(classes):
        records.append({"class": label, "feature": PRIOR, "probability": np.exp(parameters.log_prior[c])})
        for k, j in enumerate(schema.continuous):
            moments = {"mean": mean[c, k], "deviation": deviation[c, k]}
            records.append({"class": label, "feature": names[j], **moments})
        for k, j in enumerate(schema.discrete):
            for level, category in enumerate(schema.columns[j].categories):
                probability = np.exp(parameters.log_cells[c, family.offsets[k] + level])
                cell = {"class": label, "feature": names[j], "category": category}
                records.append({**cell, "probability": probability})
    order = ["class", "feature", "category", "mean", "deviation", "probability"]
    return pd.DataFrame.from_records(records, columns=order)


def sample(
    schema: Schema, family: Family, stats: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[Any, np.ndarray]:
    """Return synthetic rows in the original columns, as a DataFrame, and their class indices."""
    prior = np.exp(family.parameters(stats).log_prior)
    labels = rng.choice(len(prior), size=count, p=prior / prior.sum())
    return schema.decode(family.sample(stats, labels, rng)), labels


def _variances(family: Family, parameters: Any) -> np.ndarray:
    """Return the variance of each column and class: [C, Dc]."""
    if hasattr(parameters, "variance"):
        return parameters.variance
    diagonal = np.diagonal(parameters.covariance, axis1=-2, axis2=-1)
    return np.broadcast_to(diagonal, parameters.mean.shape)


def _class_index(classes: np.ndarray, wanted: Any, otherwise: int = -1) -> int:
    """Return the index of a class, or `otherwise` if it is None; ValueError if there is no such class."""
    if wanted is None:
        return otherwise
    matches = np.flatnonzero(classes == wanted)
    if not matches.size:
        raise ValueError(f"{wanted!r} is not a class of this model; expected one of {list(classes)}")
    return int(matches[0])
