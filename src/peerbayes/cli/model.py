"""`peerbayes predict`, `explain`, `sample`: answers of a model file."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

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
SHOWN = 3  # categories that a warning names


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
    _refuse_feature(label, names)
    if hasattr(classifier, "feature_names_in_"):
        frame = sources.read(data, query, names if label is None else [*names, label])
    else:
        frame = sources.read(data, query)
        frame = frame.rename(columns=_by_position(names, [name for name in frame.columns if name != label]))
    return (frame[names], None) if label is None else sources.labelled(frame, label, names)


def blocks_for(
    classifier: GenerativeClassifier, data: str, query: str | None, label: str | None
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Yield what `rows_for` returns: of a file block by block, never all in memory."""
    if query is not None or "://" in data or sources.outside(data) is not None:
        yield rows_for(classifier, data, query, label)
        return
    names = list(classifier.schema_.names)
    _refuse_feature(label, names)
    if hasattr(classifier, "feature_names_in_"):
        blocks = sources.Blocks(data, label, names)
    else:
        blocks = sources.Blocks(data, label)
        renamed = _by_position(names, list(blocks.names))
    for frame, labels in ((frame, None) for frame in blocks) if label is None else blocks.labelled():
        if not hasattr(classifier, "feature_names_in_"):
            frame = frame.rename(columns=renamed)[names]
        yield frame, labels


def _refuse_feature(label: str | None, names: list[str]) -> None:
    """Refuse a label that is one of the features of the model."""
    if label in names:
        raise SourceError(
            f"the label is {label!r}, a feature of the model; expected the column of true classes"
        )


def _by_position(names: list[str], columns: list[str]) -> dict[str, str]:
    """Return new names of columns for a model without names of its own: those are found by position."""
    if set(names) <= set(columns):
        return {}
    if len(columns) != len(names):
        raise SourceError(
            f"the data have {len(columns)} columns ({', '.join(columns[:20])}); the model was fitted without "
            f"column names and takes {len(names)} columns, in the order of its training"
        )
    return dict(zip(columns, names, strict=True))


def as_fitted(classifier: GenerativeClassifier, frame: Any) -> Any:
    """Return rows in the form of the training table: with names, or as an array."""
    return frame if hasattr(classifier, "feature_names_in_") else frame.to_numpy()


class Unknown:
    """Categories in the rows that the model never saw, by column."""

    def __init__(self, classifier: GenerativeClassifier) -> None:
        self._columns = classifier.schema_.columns
        self._rows = 0
        self._unknown: dict[str, int] = {}
        self._first: dict[str, dict[Any, None]] = {}

    def add(self, frame: Any) -> None:
        """Look at more rows."""
        table = Table.of(frame)
        self._rows += table.rows
        for j, column in enumerate(self._columns):
            if not column.categories:  # every number lies in a bin
                continue
            values = table.column(j)
            unknown = values[(column.codes(values) < 0) & ~missing_of(values)]
            if unknown.size:
                self._unknown[column.name] = self._unknown.get(column.name, 0) + unknown.size
                first = self._first.setdefault(column.name, {})
                if len(first) <= SHOWN:
                    first.update(dict.fromkeys(unknown.tolist()))

    def warnings(self) -> list[str]:
        """Return a warning for every column that has some."""
        return [
            f"column {name!r} holds categories that the model never saw in {count} of {self._rows} rows "
            f"({', '.join(map(repr, list(self._first[name])[:SHOWN]))}"
            f"{', …' if len(self._first[name]) > SHOWN else ''}); they count as missing"
            for name, count in self._unknown.items()
        ]


def silent_columns(classifier: GenerativeClassifier) -> list[str]:
    """Return a sentence on the columns that say nothing, if there are any."""
    silent = classifier.schema_.silent
    shown = ", ".join(f"{name!r} ({reason})" for name, reason in list(silent.items())[:20])
    return [f"columns that say nothing: {shown}{', …' if len(silent) > 20 else ''}"] if silent else []


class Judged:
    """How right predictions are, from labelled rows that come block by block."""

    def __init__(self, classifier: GenerativeClassifier) -> None:
        self._classifier = classifier
        self._classes = classifier.classes_.tolist()
        self._pairs: Counter[tuple[Any, Any]] = Counter()  # of true and predicted classes
        identity = Scaling.identity(len(self._classes))
        scalings = (
            [classifier.scaling_] if classifier.scaling_.is_identity else [classifier.scaling_, identity]
        )
        self._sure: dict[Scaling, tuple[float, int, Outcome | None]] = dict.fromkeys(scalings, (0.0, 0, None))

    def add(self, X: Any, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Look at more rows; labels may be others than the classes of the model."""
        self._pairs.update(zip(labels.tolist(), predicted.tolist(), strict=True))
        position = {value: index for index, value in enumerate(self._classes)}
        codes = np.array([position.get(value, -1) for value in labels.tolist()])
        if not (codes >= 0).any():
            return
        joint, codes = self._classifier.predict_joint_log_proba(X)[codes >= 0], codes[codes >= 0]
        for scaling, (loss, rows, before) in self._sure.items():
            log_posterior = scaling.log_probabilities(joint)
            outcome = Outcome.of(np.exp(log_posterior), codes)
            if before is not None:
                outcome = Outcome(
                    before.confusion + outcome.confusion, before.reliability + outcome.reliability
                )
            loss += log_loss(log_posterior, codes) * codes.size
            self._sure[scaling] = loss, rows + codes.size, outcome

    @property
    def rows(self) -> int:
        """How many rows there were."""
        return self._pairs.total()

    def errors(self) -> tuple[float, Any]:
        """Return the error rate, and the confusion matrix: a row per true class, a column per predicted one.

        Labels that are not classes of the model have rows of their own, and always count as errors.
        """
        import pandas as pd

        labels = {label for label, _ in self._pairs}
        others = sorted(labels - set(self._classes), key=repr)
        if len(others) == len(labels):
            raise SourceError(
                f"the labels are {others[:5]}; none of them is a class of the model: {self._classes[:20]}"
            )
        index_of = {value: index for index, value in enumerate([*self._classes, *others])}
        counts = np.zeros((len(index_of), len(self._classes)), dtype=int)
        for (label, predicted), count in self._pairs.items():
            counts[index_of[label], index_of[predicted]] += count
        table = pd.DataFrame(counts, index=pd.Index([*index_of], dtype=object), columns=self._classes)
        return 1.0 - float(np.trace(counts)) / self.rows, table

    def reliability(self) -> str:
        """Return a sentence: log loss and expected calibration error of the rows with a label that the model knows.

        A model with a scaling has both figures without it too.
        """
        figures = [
            f"log loss {loss / rows:.4f}, calibration error {outcome.calibration_error:.4f}"
            for loss, rows, outcome in self._sure.values()
            if outcome is not None
        ]
        return "; without scaling ".join(figures)


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
IN_MEMORY = 1 << 24  # bytes of an answer beyond which it waits on disk until it is whole
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
    classes, unknown, first = classifier.classes_.tolist(), Unknown(classifier), 0
    judged = None if label is None else Judged(classifier)

    def predictions() -> Iterator[dict[str, Any]]:
        nonlocal first
        for frame, labels in blocks_for(classifier, data, query, label):
            unknown.add(frame)
            X = Table.of(as_fitted(classifier, frame)).numbered_from(first)
            first += X.rows
            predicted = classifier.predict(X)
            table: dict[str, Any] = {"predicted": predicted}
            if proba:
                probabilities = classifier.predict_proba(X).T
                table |= {f"p({name})": column for name, column in zip(classes, probabilities, strict=True)}
            if judged is not None and labels is not None:
                judged.add(X, labels, predicted)
            yield table
        if judged is not None:
            judged.errors()  # refused before anything is written

    text = _written(predictions(), file_format, out)
    _print_remarks(unknown.warnings())
    if judged is not None:
        error, confusion = judged.errors()
        matrix = confusion.rename(index=_name, columns=_name).to_string()
        print(f"error rate {error:.4f} over {judged.rows} rows", file=sys.stderr)
        print(judged.reliability(), file=sys.stderr)
        print(f"confusion matrix (rows: true class, columns: predicted class)\n{matrix}", file=sys.stderr)
    _print_file(text)


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
        unknown = Unknown(classifier)
        unknown.add(frame.iloc[[explanation["row"] - 1]])
        _print_remarks(unknown.warnings())
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
    _print_file(_written([{**table, label: labels}], kind, out))


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


def _written(tables: Iterable[dict[str, Any]], kind: str, out: Path | None) -> IO[bytes] | None:
    """Write tables, one below the other, to their file atomically; None: return them as a file to print."""
    if out is None:
        with contextlib.ExitStack() as stack:
            spool = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=IN_MEMORY))
            _write_tables(tables, kind, spool)
            spool.seek(0)
            stack.pop_all()  # whoever prints it closes it
            return spool
    with files.replacing(out) as file:
        _write_tables(tables, kind, file)
    return None


def _write_tables(tables: Iterable[dict[str, Any]], kind: str, file: IO[bytes]) -> None:
    """Write tables of the same columns, one below the other."""
    import pandas as pd

    frames = (pd.DataFrame(columns) for columns in tables)
    if kind == "parquet":
        _write_parquet(frames, file)
        return
    for number, frame in enumerate(frames):
        if kind == "json":
            records = [
                {name: plain(value) for name, value in row.items()} for row in frame.to_dict("records")
            ]
            file.write(("," if number else "[").encode() + as_json(records)[1:-2].encode())
        else:
            frame = frame.rename(columns=in_cell).apply(lambda column: column.map(in_cell))
            file.write(frame.to_csv(index=False, header=not number, lineterminator="\n").encode())
    if kind == "json":
        file.write(b"\n]\n")


def _write_parquet(frames: Iterable[Any], file: IO[bytes]) -> None:
    """Write tables of the same columns, one below the other, as one Parquet file."""
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    with contextlib.ExitStack() as stack:
        writer = None
        for frame in frames:
            schema = None if writer is None else writer.schema
            table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
            writer = writer or stack.enter_context(parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _print_file(file: IO[bytes] | None) -> None:
    """Print a file of text and close it; None: there is nothing to print."""
    if file is not None:
        with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
            while part := text.read(IN_MEMORY):
                print(part, end="")


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
