"""What a model says of a row: predictions and their explanation; and how much each column tells of the class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtri

from peerbayes.data.crosses import Cross
from peerbayes.data.schema import Schema
from peerbayes.data.table import FRAME_ROWS, Rows, Table, frame_of
from peerbayes.errors import NotSupported, SchemaMismatch
from peerbayes.model.families.base import Family
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.missing import complete, contributions
from peerbayes.model.passes import fast_logits, logits_rows, plain_logits, softmax, write_highest
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import (
    Block,
    Encoded,
    Raw,
    Source,
    averages,
    block_rows,
    columns_of,
    is_large,
    small_blocks,
)

# --- predictions for rows without labels


def log_joint(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """Return log p(z, c) of every row, in standardised units: [n, C]."""
    return _predicted(family, weights, source, np.asarray, relative=False)


def scores(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """Return log p(z, c) of every row, but for a term that is the same for all classes: [n, C]."""
    return _predicted(family, weights, source, np.asarray)


def log_units(family: Family, source: Source) -> Any:
    """Return what turns densities of z into those of x: a number or [n, 1].

    It is Σ log scale over the observed columns; kinds that are no Gaussian of x itself add what `log_measure` says.
    """
    if not all(source.schema.columns[j].traits.plain for j in source.schema.continuous):
        return _log_measures(source)
    log_scale = np.log(source.schema.scale)
    if isinstance(family, NaiveBayes) and not family.missing:
        return log_scale.sum()
    units = np.empty((source.rows, 1))
    for start, block in source.blocks(FRAME_ROWS):
        units[start : start + len(block.values), 0] = ~np.isnan(block.values) @ log_scale
    return units


def _log_measures(source: Source) -> np.ndarray:
    """Return the sum of `log_measure` over the observed dense columns: [n, 1]."""
    schema, table = source.schema, source.table
    places, units = None if table is None else schema.places(table), np.zeros((source.rows, 1))
    for k, j in enumerate(schema.continuous):
        column = schema.columns[j]
        if table is None or places is None:  # as they were encoded, which clips
            assert isinstance(source, Encoded)
            numbers = source.data.values[:, k] * column.scale + column.location
        else:
            numbers = column.numbers(table.column(places[j]), table.number)
        measure = np.broadcast_to(column.traits.log_measure(column, numbers), numbers.shape)
        units[:, 0] += np.where(np.isnan(numbers), 0.0, measure)
    return units


def posterior(family: Family, weights: np.ndarray, source: Source, scaling: Scaling) -> np.ndarray:
    """Return p(c | x) of every row: [n, C]."""
    if not scaling.is_identity:
        return _predicted(family, weights, source, lambda logits: scaling.probabilities(logits.T).T)
    if not _by_kernels(family, source.rows):
        return _predicted(family, weights, source, softmax)
    from peerbayes.model.kernels import block_loops

    best = np.empty(block_rows(family.dense_size), dtype=np.int64)

    def normalise(logits: np.ndarray) -> np.ndarray:
        block_loops.softmax(logits, best[: logits.shape[1]])
        return logits

    return _predicted(family, weights, source, normalise)


def most_probable(family: Family, weights: np.ndarray, source: Source, scaling: Scaling) -> np.ndarray:
    """Return the index of the most probable class of every row, the first of equal ones: [n]."""
    best = np.empty(source.rows, dtype=np.intp)
    for rows, logits in _logits(family, weights, source, relative=True):
        write_highest(logits if scaling.is_identity else scaling.scaled(logits.T).T, best[rows])
    return best


def _predicted(
    family: Family,
    weights: np.ndarray,
    source: Source,
    finish: Callable[[np.ndarray], np.ndarray],
    *,
    relative: bool = True,
) -> np.ndarray:
    """Return the finished logits of every row, which `finish` may overwrite: [n, C]."""
    out = np.empty((source.rows, len(weights)))
    for rows, logits in _logits(family, weights, source, relative):
        out[rows] = finish(logits).T
    return out


def _by_kernels(family: Family, rows: int) -> bool:
    """Whether predictions are by the kernels, which look up cells faster; matrix products need none."""
    return bool(family.cardinalities) and is_large(family, rows)


def _logits(
    family: Family, weights: np.ndarray, source: Source, relative: bool
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the logits [C, b] of blocks of rows, with missing values completed; the next block may overwrite them.

    relative  terms that are the same for all classes may be left out
    """
    large, classes = _by_kernels(family, source.rows), len(weights)
    size = block_rows(family.dense_size) if large else logits_rows(family, classes, relative)
    size = small_blocks(source, size)
    if large:
        logits_of = fast_logits(family, weights, size)
    else:
        fast = averages(family, source.rows, classes, 1)
        logits_of = plain_logits(family, weights, fast, relative=relative)
    complete_rows = isinstance(source, Raw) and source.complete and family.plain_cells
    for start, block in source.blocks(size, large):
        logits = logits_of(block)
        if not complete_rows:
            _complete(family, weights, source, start, block, logits)
        yield slice(start, start + logits.shape[1]), logits


def _complete(
    family: Family, weights: np.ndarray, source: Source, start: int, block: Block, logits: np.ndarray
) -> None:
    """Replace the logits [C, b] of rows with missing values by those of what is observed of them."""
    incomplete = np.flatnonzero(family.incomplete(Rows(block.values, block.codes)))
    if incomplete.size:
        rows = block.rows()
        incomplete_rows = Rows(rows.values[incomplete], rows.codes[incomplete])
        completion = complete(family, incomplete_rows, columns_of(source.schema), start + incomplete)
        logits[:, incomplete] = completion.log_joint(weights).T


# --- explanations of decisions, readable parameters, and synthetic rows of a model

BASELINE = "(baseline)"
PRIOR = "(prior)"
NOISE = "(noise)"

# The statistics that a description is of.
LIKELIHOOD, CALIBRATED = "maximum likelihood", "calibrated"

# What is said of a description without statistics of the rows.
NOT_OF_ROWS = (
    "The statistics of the rows were not kept with this model: class shares, means, deviations, categories and bits "
    "are those of the calibrated model, which decide its predictions and may not describe the data."
)


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
    if (frame := frame_of(x)) is not None:
        return frame
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
    scaling: Scaling | None = None,
    typical: Rows | None = None,
) -> Any:
    """Return each column's term of log p(of|x) − log p(against|x): a DataFrame with a row per table row and column.

    A term is what the value changes beside that of the `typical` row; what the model says of that row is the baseline.
    A scaling divides them by its temperature and adds its bias to the baseline; what its noise takes from the log-odds
    comes last.
    """
    import pandas as pd

    typical = typical_row(family, stats) if typical is None else typical
    typical = Rows(typical.values, schema.crossed(typical.codes[:, : len(schema.discrete)]))
    baseline, terms = centred_contributions(family, stats, rows, typical)
    scaling = scaling or Scaling.identity(len(classes))
    baseline, terms = scaling.scaled(baseline), terms / scaling.temperature
    ranking = np.argsort(-(baseline + terms.sum(axis=-1)), axis=1, kind="stable")
    columns, positions = [*schema.continuous, *schema.discrete], schema.places(table)
    names, values = columns_of(schema), [table.column(positions[j]) for j in columns]
    values += [_values_of(cross, dict(zip(names, values, strict=False))) for cross in schema.crosses]
    excluded = _class_index(classes, against)
    records = []
    for i in range(len(terms)):
        of_index = _class_index(classes, of, next(int(c) for c in ranking[i] if c != excluded))
        against_index = _class_index(classes, against, next(int(c) for c in ranking[i] if c != of_index))
        sides = {"row": i, "of": classes[of_index], "against": classes[against_index]}
        bias = baseline[i, of_index] - baseline[i, against_index]
        records.append({**sides, "feature": BASELINE, "value": None, "log_odds": bias})
        odds = terms[i, of_index] - terms[i, against_index]
        records += [
            {**sides, "feature": names[k], "value": values[k][i], "log_odds": odds[k]}
            for k in np.argsort(-np.abs(odds), kind="stable")
        ]
        if scaling.noise:
            blurred = scaling.blurred(baseline[i] + terms[i].sum(axis=-1))
            noise = blurred[of_index] - blurred[against_index] - bias - odds.sum()
            records.append({**sides, "feature": NOISE, "value": None, "log_odds": noise})
    return pd.DataFrame.from_records(records)


def _values_of(cross: Cross, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the values of both columns of a cross, as text: [n]."""
    first, second = (values[name] for name in cross.columns)
    return np.array([f"{one}, {other}" for one, other in zip(first, second, strict=True)], dtype=object)


def typical_row(family: Family, stats: np.ndarray, of_rows: bool = True) -> Rows:
    """Return one row with the mean of each continuous column and the most frequent category of each discrete one.

    They are those of the rows behind `stats` [C, K]. A calibrated model knows (`of_rows` false) only the mean that
    standardises its rows, and the categories that it takes for frequent.
    """
    values, codes = np.zeros((1, family.continuous)), np.zeros((1, len(family.cardinalities)), dtype=np.int32)
    try:
        parameters = family.parameters(stats)
    except NotSupported:  # a family of an outside package without `parameters`
        return Rows(values, codes)
    prior = np.exp(parameters.log_prior)
    if of_rows:
        values[0] = prior @ parameters.mean
    if codes.size:
        cells = np.split(prior @ np.exp(parameters.log_cells), family.offsets[1:])
        codes[0] = [int(shares.argmax()) for shares in cells]
    return Rows(values, codes)


def centred_contributions(
    family: Family, stats: np.ndarray, rows: Rows, typical: Rows
) -> tuple[np.ndarray, np.ndarray]:
    """Return a baseline [n, C] and a term per column [n, C, D] that add up to log p(x_obs, c).

    The terms are `contributions` less those of the typical row with the same values missing, whose log joint is the
    baseline. A value that is typical, as all those of a constant column are, therefore has no term of its own. If it
    has one only through other columns (its parents in a network), these share it.
    """
    missing = np.concatenate([np.isnan(rows.values), rows.codes < 0], axis=1)
    patterns, pattern = np.unique(missing, axis=0, return_inverse=True)
    d, pattern = family.continuous, pattern.reshape(-1)
    typical_rows = Rows(
        np.where(patterns[:, :d], np.nan, typical.values), np.where(patterns[:, d:], -1, typical.codes)
    )
    baseline, terms = contributions(family, stats, rows)
    _, typical_terms = contributions(family, stats, typical_rows)
    terms = terms - typical_terms[pattern]
    _share_typical(family, terms, rows, typical, missing)
    return baseline + typical_terms.sum(axis=-1)[pattern], terms


def _share_typical(family: Family, terms: np.ndarray, rows: Rows, typical: Rows, missing: np.ndarray) -> None:
    """Move the terms [n, C, D] of typical values in place to columns that differ: to parents that do, or to all."""
    near = np.isclose(rows.values, typical.values, rtol=1e-12, atol=1e-12)
    differs = ~np.concatenate([near, rows.codes == typical.codes], axis=1) & ~missing
    parents = getattr(family, "parents", ((),) * terms.shape[-1])
    for i, j in np.argwhere(~differs & (terms != 0.0).any(axis=1)):
        takers = [parent for parent in parents[j] if differs[i, parent]] or np.flatnonzero(differs[i])
        if len(takers):
            terms[i][:, takers] += terms[i, :, [j]].T / len(takers)
            terms[i, :, j] = 0.0


def describe(
    schema: Schema,
    family: Family,
    stats: np.ndarray,
    classes: np.ndarray,
    bits: np.ndarray | None = None,
    statistics: str = LIKELIHOOD,
) -> Any:
    """Return the parameters in the units of the table: a DataFrame, a row per class and column or category.

    Means and deviations of a positive column are those of its logarithm, which its `category` says.

    `bits` [D] are those counted in the rows, and `statistics` the name of the statistics, for columns of the same name.
    """
    import pandas as pd

    parameters = family.parameters(stats)
    deviation = np.sqrt(np.maximum(_variances(family, parameters), 0.0)) * schema.scale
    if statistics == LIKELIHOOD:  # a floor is no deviation
        deviation = np.where([schema.columns[j].constant for j in schema.continuous], 0.0, deviation)
    mean = parameters.mean * schema.scale + schema.location
    records, names, features = [], schema.names, columns_of(schema)
    counted = dict(zip(features, [None] * len(features) if bits is None else bits, strict=True))
    for c, label in enumerate(classes):
        records.append({"class": label, "feature": PRIOR, "probability": np.exp(parameters.log_prior[c])})
        for k, j in enumerate(schema.continuous):
            moments = {"mean": mean[c, k], "deviation": deviation[c, k]}
            if scale := schema.columns[j].traits.scale_of_numbers:
                moments["category"] = scale
            records.append({"class": label, "feature": names[j], **moments, "bits": counted[names[j]]})
        for k, (name, labels) in enumerate(
            zip(features[len(schema.continuous) :], schema.cell_labels, strict=True)
        ):
            for level, category in enumerate(labels):
                probability = np.exp(parameters.log_cells[c, family.offsets[k] + level])
                cell = {"class": label, "feature": name, "category": category}
                records.append({**cell, "probability": probability, "bits": counted[name]})
    order = ["class", "feature", "category", "mean", "deviation", "probability", "bits"]
    frame = pd.DataFrame.from_records(records, columns=order).astype({"bits": np.float64})
    return frame.assign(statistics=statistics)


def sample(
    schema: Schema, family: Family, stats: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[Any, np.ndarray]:
    """Return synthetic rows in the original columns, as a DataFrame, and their class indices."""
    prior = np.exp(family.parameters(stats).log_prior)
    labels = rng.choice(len(prior), size=count, p=prior / prior.sum())
    return schema.decode(family.sample(stats, labels, rng), rng), labels


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


# --- mutual information of each column with the class, under the model, in bits; see `observed` for that of the rows
# I(x; c) = Σ_c π_c E[log₂ p(x|c)/p(x) | c]: 0 where the classes are alike, at most the entropy of the prior.

# Quantiles that represent a Gaussian: the bits are then right to 0.01, enough for a ranking.
QUANTILES = ndtri((np.arange(255) + 0.5) / 255)


def mutual_information(described: Any) -> Any:
    """Return a DataFrame of features and their bits, highest first, from the output of `describe`.

    The bits are those counted in the rows, where they are known; otherwise those of Gaussians with these means and
    deviations, and of categories with these probabilities.
    """
    import pandas as pd

    prior = described.loc[described["feature"] == PRIOR, "probability"].to_numpy()
    prior = np.maximum(prior / prior.sum(), np.finfo(float).tiny)
    columns = described[described["feature"] != PRIOR].groupby("feature", sort=False)
    records = [{"feature": name, "bits": _bits(prior, rows)} for name, rows in columns]
    table = pd.DataFrame.from_records(records, columns=["feature", "bits"])
    return table.sort_values("bits", ascending=False, kind="stable", ignore_index=True)


def _bits(prior: np.ndarray, rows: Any) -> float:
    """Return the mutual information of one feature with the class."""
    if "bits" in rows and rows["bits"].notna().all():
        return float(rows["bits"].iloc[0])
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
