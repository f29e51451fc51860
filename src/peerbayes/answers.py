"""Answers of a model file as plain values: predictions and their errors, what it learned, why it decides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes import sources
from peerbayes.errors import ModelFileError
from peerbayes.reading import PRIOR
from peerbayes.sources import SourceError
from peerbayes.tables import Table, missing_of
from peerbayes.telling import mutual_information

if TYPE_CHECKING:
    from peerbayes.classifier import GenerativeClassifier

NAME = "model.peerbayes"  # a peer's model, in its home


def opened(model: Path) -> GenerativeClassifier:
    """Load the model of a file, or of a peer's home."""
    path = model / NAME if model.is_dir() else model
    if not path.exists():
        advice = "has its peer run yet?" if model.is_dir() else "expected a model file, or a peer's home"
        raise ModelFileError(f"{path} does not exist; {advice}")
    from peerbayes.estimators import load

    return load(path)


def rows_for(
    classifier: GenerativeClassifier, data: str, query: str | None = None, label: str | None = None
) -> tuple[Any, np.ndarray | None]:
    """Return the model's columns as a DataFrame, and the labels if a column is named for them.

    Columns are matched by name, or by position if the model was fitted to an array. Others are ignored.
    """
    names = list(classifier.schema_.names)
    if label in names:
        raise SourceError(
            f"the label is {label!r}, a feature of the model; expected the column of true classes"
        )
    if hasattr(classifier, "feature_names_in_"):
        frame = sources.read(data, query, names if label is None else [*names, label])
    else:
        frame = sources.read(data, query)
        columns = [name for name in frame.columns if name != label]
        if not set(names) <= set(columns):
            if len(columns) != len(names):
                raise SourceError(
                    f"the data have {len(columns)} columns ({', '.join(columns[:20])}); the model was fitted without "
                    f"column names and takes {len(names)} columns, in the order of its training"
                )
            frame = frame.rename(columns=dict(zip(columns, names, strict=True)))
    return (frame[names], None) if label is None else sources.labelled(frame, label, names)


def as_fitted(classifier: GenerativeClassifier, frame: Any) -> Any:
    """Return rows in the form of the training table: with names, or as an array."""
    return frame if hasattr(classifier, "feature_names_in_") else frame.to_numpy()


def unknown_categories(classifier: GenerativeClassifier, frame: Any) -> list[str]:
    """Return a warning for every column with categories that the model never saw."""
    table, warnings = Table.of(frame), []
    for j, column in enumerate(classifier.schema_.columns):
        if not column.categories:
            continue
        values = table.column(j)
        unknown = values[(column.codes(values) < 0) & ~missing_of(values)]
        if unknown.size:
            distinct = list(dict.fromkeys(unknown.tolist()))
            shown = ", ".join(map(repr, distinct[:3])) + (", …" if len(distinct) > 3 else "")
            warnings.append(
                f"column {column.name!r} holds categories that the model never saw in {unknown.size} of "
                f"{table.rows} rows ({shown}); they count as missing"
            )
    return warnings


def judged(classes: list[Any], labels: list[Any], predicted: list[Any]) -> tuple[float, Any]:
    """Return the error rate, and the confusion matrix: a row per true class, a column per predicted one.

    Labels that are not classes of the model have rows of their own, and always count as errors.
    """
    import pandas as pd

    others = sorted(set(labels) - set(classes), key=repr)
    if len(others) == len(set(labels)):
        raise SourceError(
            f"the labels are {others[:5]}; none of them is a class of the model: {classes[:20]}"
        )
    index_of = {value: index for index, value in enumerate([*classes, *others])}
    counts = np.zeros((len(index_of), len(classes)), dtype=int)
    np.add.at(counts, ([index_of[value] for value in labels], [index_of[value] for value in predicted]), 1)
    table = pd.DataFrame(counts, index=pd.Index([*index_of], dtype=object), columns=classes)
    return 1.0 - float(np.trace(counts)) / len(labels), table


def learned(classifier: GenerativeClassifier, top: int) -> dict[str, Any]:
    """Return the prior of every class, and the features with most information about it."""
    described = classifier.describe()
    features = []
    for name, bits in mutual_information(described).head(top).itertuples(index=False):
        rows = described[described["feature"] == name].drop(columns="feature").to_dict("records")
        cells = [{key: plain(value) for key, value in row.items()} for row in rows]
        present = [{key: value for key, value in cell.items() if value is not None} for cell in cells]
        features.append({"feature": name, "bits": float(bits), "classes": present})
    prior = described[described["feature"] == PRIOR]
    return {
        "estimator": type(classifier).__name__,
        "prior": _by_class(prior["class"], prior["probability"]),
        "features": features,
    }


def reasons(classifier: GenerativeClassifier, frame: Any, row: int, top: int) -> dict[str, Any]:
    """Return each feature's contribution to the decision for one row, counted from 1; the strongest first."""
    if not 1 <= row <= len(frame):
        raise ValueError(f"row is {row}; expected 1 to {len(frame)}, the rows of the data")
    X = as_fitted(classifier, frame.iloc[[row - 1]])
    predicted = classifier.predict(X)[0]
    table = classifier.explain(X, of=predicted)
    contributions = [
        {"feature": feature, "value": plain(value), "log_odds": float(odds)}
        for feature, value, odds in table[["feature", "value", "log_odds"]].itertuples(index=False)
    ]
    shown = contributions[: top + 1]  # the baseline comes first, and is no feature
    return {
        "row": row,
        "predicted": plain(predicted),
        "against": plain(table["against"].iloc[0]),
        "probabilities": _by_class(classifier.classes_, classifier.predict_proba(X)[0]),
        "contributions": shown,
        "others": float(sum(contribution["log_odds"] for contribution in contributions[len(shown) :])),
        "log_odds": float(sum(contribution["log_odds"] for contribution in contributions)),
    }


def plain(value: Any) -> Any:
    """Return a value of a table as a JSON value; None where it is missing."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None or value != value else value


def _by_class(classes: Any, probabilities: Any) -> list[dict[str, Any]]:
    """Return probabilities as records of class and probability."""
    pairs = zip(classes, probabilities, strict=True)
    return [{"class": plain(name), "probability": float(probability)} for name, probability in pairs]
