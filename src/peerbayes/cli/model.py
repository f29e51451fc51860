"""`peerbayes predict`, `explain`, `sample`: answers of a model file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from peerbayes.cli import Format, Overwrite, argument, check_format, option, print_table, print_text
from peerbayes.data import files, sources
from peerbayes.data.files import as_json, in_cell, printable
from peerbayes.data.sources import SourceError
from peerbayes.data.sources.flat_files import need_pyarrow
from peerbayes.data.table import Table, missing_of
from peerbayes.errors import ModelFileError
from peerbayes.learning.metrics import Outcome, log_loss
from peerbayes.model.explain import LIKELIHOOD, NOT_OF_ROWS, PRIOR, mutual_information
from peerbayes.model.scaling import Scaling

if TYPE_CHECKING:
    from peerbayes.estimators.generative import GenerativeClassifier


# --- answers of a model file as plain values: predictions and their errors, what it learned, why it decides

NAME = "model.peerbayes"  # a peer's model, in its home


def opened(model: Path) -> GenerativeClassifier:
    """Load the model of a file, or of a peer's home."""
    path = model / NAME if model.is_dir() else model
    if not path.exists():
        advice = "has its peer run yet?" if model.is_dir() else "expected a model file, or a peer's home"
        raise ModelFileError(f"{path} does not exist; {advice}")
    from peerbayes.estimators.classifiers import load

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
        if not column.categories:  # every number lies in a bin
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


def silent_columns(classifier: GenerativeClassifier) -> list[str]:
    """Return a sentence on the columns that say nothing, if there are any."""
    silent = classifier.schema_.silent
    shown = ", ".join(f"{name!r} ({reason})" for name, reason in list(silent.items())[:20])
    return [f"columns that say nothing: {shown}{', …' if len(silent) > 20 else ''}"] if silent else []


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


def reliability(classifier: GenerativeClassifier, X: Any, labels: np.ndarray) -> str:
    """Return a sentence: log loss and expected calibration error of the rows with a label that the model knows.

    A model with a scaling has both figures without it too.
    """
    position = {value: index for index, value in enumerate(classifier.classes_.tolist())}
    codes = np.array([position.get(value, -1) for value in labels.tolist()])
    joint, codes = classifier.predict_joint_log_proba(X)[codes >= 0], codes[codes >= 0]

    def figures(scaling: Scaling) -> str:
        log_posterior = scaling.log_probabilities(joint)
        error = Outcome.of(np.exp(log_posterior), codes).calibration_error
        return f"log loss {log_loss(log_posterior, codes):.4f}, calibration error {error:.4f}"

    if classifier.scaling_.is_identity:
        return figures(classifier.scaling_)
    return f"{figures(classifier.scaling_)}; without scaling {figures(Scaling.identity(joint.shape[1]))}"


def learned(classifier: GenerativeClassifier, top: int) -> dict[str, Any]:
    """Return the share of every class, and the features with most information about it."""
    described = classifier.describe()
    features = []
    for name, bits in mutual_information(described).head(top).itertuples(index=False):
        of_feature = described[described["feature"] == name]
        rows = of_feature.drop(columns=["feature", "bits", "statistics"]).to_dict("records")
        present = [
            {key: plain(value) for key, value in row.items() if plain(value) is not None} for row in rows
        ]
        features.append({"feature": name, "bits": float(bits), "classes": present})
    prior = described[described["feature"] == PRIOR]
    return {
        "estimator": type(classifier).__name__,
        "statistics": described["statistics"].iloc[0],
        "counted": bool(described["bits"].notna().any()),
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
        "statistics": table["statistics"].iloc[0],
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


# --- `peerbayes predict`, `peerbayes explain` and `peerbayes sample`: uses of a model file

KINDS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
MOST_CLASSES = 4  # most classes that fit side by side in a table

Model = Annotated[Path, argument(f"A model file, or a peer's folder that contains {NAME}.")]
Query = Annotated[str | None, option("The SELECT statement, if DATA is a database.")]
Out = Annotated[Path | None, option("Write to this .csv, .parquet or .json file.")]
Form = Annotated[str | None, option("csv (the default) or json.", "--format")]


def predict(
    model: Model,
    data: Annotated[str, argument("Rows to classify: a .csv or .parquet file, or an SQLAlchemy URL.")],
    query: Query = None,
    out: Out = None,
    overwrite: Overwrite = False,
    proba: Annotated[bool, option("Add the probability of every class.", "--proba")] = False,
    label: Annotated[str | None, option("The column of true classes, to report the error rate.")] = None,
    form: Form = None,
) -> None:
    """Predict the class of each row; the rows keep their order."""
    file_format = _kind(out, form, overwrite)
    classifier = opened(model)
    frame, labels = rows_for(classifier, data, query, label)
    unknown = unknown_categories(classifier, frame)
    X = as_fitted(classifier, frame)
    classes, predicted = classifier.classes_.tolist(), classifier.predict(X)
    table: dict[str, Any] = {"predicted": predicted}
    if proba:
        probabilities = classifier.predict_proba(X).T
        table |= {f"p({name})": column for name, column in zip(classes, probabilities, strict=True)}
    evaluation = None if labels is None else judged(classes, labels.tolist(), predicted.tolist())
    text = _write_table(table, file_format, out)
    _print_remarks(unknown)
    if evaluation is not None and labels is not None:
        error, confusion = evaluation
        matrix = confusion.rename(index=_name, columns=_name).to_string()
        print(f"error rate {error:.4f} over {len(predicted)} rows", file=sys.stderr)
        print(reliability(classifier, X, labels), file=sys.stderr)
        print(f"confusion matrix (rows: true class, columns: predicted class)\n{matrix}", file=sys.stderr)
    print(text, end="")


def explain(
    model: Model,
    data: Annotated[str | None, argument("Rows, as for `predict`; one of them is explained.")] = None,
    row: Annotated[int | None, option("The row of DATA to explain, counted from 1.")] = None,
    query: Query = None,
    top: Annotated[int, option("Number of features to show.")] = 10,
    form: Format = "table",
) -> None:
    """Explain the model; with DATA, explain the prediction for one row (the first, or --row)."""
    if top < 1:
        raise ValueError(f"--top is {top}; expected 1 or more")
    if data is None and (row is not None or query is not None):
        raise ValueError("--row and --query need DATA: a .csv or .parquet file, or the URL of a database")
    classifier = opened(model)
    if data is None:
        explanation = learned(classifier, top)
        _print_remarks(silent_columns(classifier))
    else:
        frame, _ = rows_for(classifier, data, query)
        explanation = reasons(classifier, frame, 1 if row is None else row, top)
        _print_remarks(unknown_categories(classifier, frame.iloc[[explanation["row"] - 1]]))
    if form == "json":
        print(as_json(explanation))
    elif data is None:
        _print_learned(explanation)
    else:
        _print_reasons(explanation)


def sample(
    model: Model,
    count: Annotated[int, option("Number of rows.", "-n", "--rows")] = 100,
    seed: Annotated[int, option("Random seed.")] = 0,
    out: Out = None,
    overwrite: Overwrite = False,
    form: Form = None,
) -> None:
    """Draw synthetic rows from the model; the class is the last column."""
    kind = _kind(out, form, overwrite)
    if count < 1:
        raise ValueError(f"-n is {count}; expected 1 or more")
    classifier = opened(model)
    drawn, labels = classifier.sample(count, random_state=seed)
    values, label = Table.of(drawn), classifier.schema_.label
    table: dict[str, Any] = {name: values.column(j) for j, name in enumerate(classifier.schema_.names)}
    while label in table:
        label += "_"
    text = _write_table({**table, label: labels}, kind, out)
    print(text, end="")


# --- tables out


def _kind(out: Path | None, form: str | None, overwrite: bool) -> str:
    """Return the format of the output; checked before any row is read."""
    check_format(form or "csv", ("csv", "json"))
    if out is None:
        return form or "csv"
    kind = KINDS.get(out.suffix.lower())
    if kind is None or (form is not None and form != kind):
        raise ValueError(
            f"--out is {out} and --format {form}; expected a name in .csv, .parquet or .json, and no other format"
        )
    if not out.parent.is_dir():
        raise ValueError(f"--out is {out}, but {out.parent} is not a folder; create it first")
    files.refuse_existing(out, overwrite)
    if kind == "parquet":
        need_pyarrow(out)
    return kind


def _write_table(columns: dict[str, Any], kind: str, out: Path | None) -> str:
    """Write a table to its file atomically, or return the text to print."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    if kind == "parquet":
        content = io.BytesIO()
        frame.to_parquet(content, index=False)
        encoded = content.getvalue()
    elif kind == "json":
        records = [{name: plain(value) for name, value in row.items()} for row in frame.to_dict("records")]
        encoded = (as_json(records) + "\n").encode()
    else:
        frame = frame.rename(columns=in_cell).apply(lambda column: column.map(in_cell))
        encoded = frame.to_csv(index=False, lineterminator="\n").encode()
    if out is None:
        return encoded.decode()
    files.write(out, encoded)
    return ""


def _print_remarks(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"peerbayes: {printable(remark)}", file=sys.stderr)


def _name(value: Any) -> Any:
    """Return a class as printable text; other values as they are."""
    return printable(value) if isinstance(value, str) else value


# --- explanations


def _print_learned(explanation: dict[str, Any]) -> None:
    of_rows = explanation["statistics"] == LIKELIHOOD
    source = "the training rows (maximum likelihood)" if of_rows else "the calibrated model"
    print_text(f"Model: {explanation['estimator']}. Class shares in {source}:\n")
    prior = [(str(entry["class"]), f"{entry['probability']:.4g}") for entry in explanation["prior"]]
    print_table(("class", "share"), prior)
    bits = "counted in the rows" if explanation["counted"] else "of Gaussians and categories as shown"
    print_text(
        f"\nMost informative features, with bits about the class ({bits}) and values by class, in {source}:\n"
    )
    few = len(prior) <= MOST_CLASSES
    names = [name for name, _ in prior] if few else []
    rows = [
        (entry["feature"], f"{entry['bits']:.3f}", *(_class_texts(entry["classes"]) if few else ()))
        for entry in explanation["features"]
    ]
    print_table(("feature", "bits", *names), rows)
    if not of_rows:
        print_text(f"\n{NOT_OF_ROWS}")


def _class_texts(cells: list[dict[str, Any]]) -> list[str]:
    """Return a text per class: mean and standard deviation (and of what), or the most probable category."""
    by_class: dict[Any, dict[str, Any]] = {}
    for cell in cells:
        best = by_class.setdefault(cell["class"], cell)
        if cell.get("probability", 0.0) > best.get("probability", 0.0):
            by_class[cell["class"]] = cell
    return [
        f"{cell.get('category', '')} {cell['mean']:.4g} ± {cell['deviation']:.3g}".lstrip()
        if "mean" in cell
        else f"{cell['category']} {cell['probability']:.0%}"
        for cell in by_class.values()
    ]


def _print_reasons(explanation: dict[str, Any]) -> None:
    probability = {entry["class"]: entry["probability"] for entry in explanation["probabilities"]}
    predicted, against = explanation["predicted"], explanation["against"]
    print_text(
        f"Row {explanation['row']} is {_name(predicted)} (probability {probability[predicted]:.4g}) rather than "
        f"{_name(against)} ({probability[against]:.4g}).\nLog-odds for {_name(predicted)} against {_name(against)} "
        f"by the {explanation['statistics']} statistics, beside a typical row (the baseline):\n"
    )
    rows = [
        (entry["feature"], _shown(entry["value"]), f"{entry['log_odds']:+.3f}")
        for entry in explanation["contributions"]
    ]
    rows.append(("all others", "", f"{explanation['others']:+.3f}"))
    rows.append(("sum", "", f"{explanation['log_odds']:+.3f}"))
    print_table(("feature", "value", "log-odds"), rows)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
