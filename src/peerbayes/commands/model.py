"""`peerbayes predict`, `peerbayes explain` and `peerbayes sample`: what a model file is for."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from peerbayes import files
from peerbayes.answers import (
    NAME,
    as_fitted,
    judged,
    learned,
    opened,
    plain,
    reasons,
    rows_for,
    unknown_categories,
)
from peerbayes.commands.shared import console, explained, known_format, print_table
from peerbayes.sources.parquet import need_pyarrow
from peerbayes.tables import Table
from peerbayes.text import as_json, in_cell, printable

KINDS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
MOST_CLASSES = 4  # that fit beside each other in a table

Model = Annotated[Path, typer.Argument(help=f"A model file, or a peer's home with its {NAME}.")]
Query = Annotated[str | None, typer.Option(help="The SELECT, where DATA is a database.")]
Out = Annotated[Path | None, typer.Option(help="Write to this .csv, .parquet or .json instead.")]
Form = Annotated[str | None, typer.Option("--format", help="csv (the default) or json.")]


def predict(
    model: Model,
    data: Annotated[str, typer.Argument(help="A .csv, a .parquet or an SQLAlchemy URL: rows to classify.")],
    query: Query = None,
    out: Out = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of every class.")] = False,
    label: Annotated[str | None, typer.Option(help="The column of true classes: tell the errors.")] = None,
    form: Form = None,
) -> None:
    """The class of every row, in the order of the rows."""
    with explained():
        kind = _kind(out, form)
        classifier = opened(model)
        frame, labels = rows_for(classifier, data, query, label)
        unknown = unknown_categories(classifier, frame)
        X = as_fitted(classifier, frame)
        classes, predicted = classifier.classes_.tolist(), classifier.predict(X)
        table: dict[str, Any] = {"predicted": predicted}
        if proba:
            probabilities = classifier.predict_proba(X).T
            table |= {f"p({name})": column for name, column in zip(classes, probabilities, strict=True)}
        judgement = None if labels is None else judged(classes, labels.tolist(), predicted.tolist())
        text = _delivered(table, kind, out)
    _remark(unknown)
    if judgement is not None:
        error, confusion = judgement
        print(f"error rate {error:.4f} over {len(predicted)} rows", file=sys.stderr)
        print(
            "rows: the true class; columns: the predicted one",
            confusion.rename(index=_name, columns=_name).to_string(),
            sep="\n",
            file=sys.stderr,
        )
    print(text, end="")


def explain(
    model: Model,
    data: Annotated[str | None, typer.Argument(help="Rows, as for predict: why one gets its class.")] = None,
    row: Annotated[int | None, typer.Option(help="Which row of DATA, counted from 1.")] = None,
    query: Query = None,
    top: Annotated[int, typer.Option(help="How many features to show.")] = 10,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """What the model has learned; with DATA, why a row (the first, unless --row says) gets its class."""
    with explained():
        known_format(form)
        if top < 1:
            raise ValueError(f"--top is {top}; expected 1 or more")
        if data is None and (row is not None or query is not None):
            raise ValueError("--row and --query need DATA: a .csv, a .parquet or the URL of a database")
        classifier = opened(model)
        if data is None:
            told = learned(classifier, top)
        else:
            frame, _ = rows_for(classifier, data, query)
            told = reasons(classifier, frame, 1 if row is None else row, top)
            _remark(unknown_categories(classifier, frame.iloc[[told["row"] - 1]]))
    if form == "json":
        print(as_json(told))
    elif data is None:
        _print_learned(told)
    else:
        _print_reasons(told)


def sample(
    model: Model,
    count: Annotated[int, typer.Option("-n", "--rows", help="How many rows.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    out: Out = None,
    form: Form = None,
) -> None:
    """Synthetic rows drawn from the model, the class last."""
    with explained():
        kind = _kind(out, form)
        if count < 1:
            raise ValueError(f"-n is {count}; expected 1 or more")
        classifier = opened(model)
        drawn, labels = classifier.sample(count, random_state=seed)
        values, label = Table.of(drawn), classifier.schema_.label
        table: dict[str, Any] = {name: values.column(j) for j, name in enumerate(classifier.schema_.names)}
        while label in table:
            label += "_"
        text = _delivered({**table, label: labels}, kind, out)
    print(text, end="")


# --- tables out --------------------------------------------------------------------------------------------


def _kind(out: Path | None, form: str | None) -> str:
    """How to write the table; settled before any row is read."""
    known_format(form or "csv", ("csv", "json"))
    if out is None:
        return form or "csv"
    kind = KINDS.get(out.suffix.lower())
    if kind is None or (form is not None and form != kind):
        raise ValueError(
            f"--out is {out} and --format {form}; expected a name in .csv, .parquet or .json, and no other format"
        )
    if not out.parent.is_dir():
        raise ValueError(f"--out is {out}, but {out.parent} is no folder; make it first")
    if kind == "parquet":
        need_pyarrow(out)
    return kind


def _delivered(columns: dict[str, Any], kind: str, out: Path | None) -> str:
    """Write a table to its file, whole or not at all; or give the text to print."""
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


def _remark(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"peerbayes: {printable(remark)}", file=sys.stderr)


def _name(value: Any) -> Any:
    """A class as it is shown."""
    return printable(value) if isinstance(value, str) else value


# --- explanations ------------------------------------------------------------------------------------------


def _print_learned(told: dict[str, Any]) -> None:
    console.print(f"A model of {told['estimator']}. The classes, and how frequent they are:\n")
    prior = [(escape(str(entry["class"])), f"{entry['probability']:.4g}") for entry in told["prior"]]
    print_table(("class", "prior"), prior)
    console.print("\nThe features that alone tell most about the class, in bits, and what they look like:\n")
    few = len(prior) <= MOST_CLASSES
    names = [name for name, _ in prior] if few else []
    rows = [
        (escape(entry["feature"]), f"{entry['bits']:.3f}", *(_looks(entry["classes"]) if few else ()))
        for entry in told["features"]
    ]
    print_table(("feature", "bits", *names), rows)


def _looks(cells: list[dict[str, Any]]) -> list[str]:
    """A text per class: mean and deviation, or the most probable category."""
    by_class: dict[Any, dict[str, Any]] = {}
    for cell in cells:
        best = by_class.get(cell["class"])
        if best is None or cell.get("probability", 0.0) > best["probability"]:
            by_class[cell["class"]] = cell
    return [
        f"{cell['mean']:.4g} ± {cell['deviation']:.3g}"
        if "mean" in cell
        else escape(f"{cell['category']} {cell['probability']:.0%}")
        for cell in by_class.values()
    ]


def _print_reasons(told: dict[str, Any]) -> None:
    probability = {entry["class"]: entry["probability"] for entry in told["probabilities"]}
    of, against = told["predicted"], told["against"]
    console.print(
        escape(
            f"Row {told['row']} is {_name(of)} (probability {probability[of]:.4g}) rather than {_name(against)} "
            f"({probability[against]:.4g}). Log-odds for {_name(of)} against {_name(against)}:\n"
        )
    )
    rows = [
        (escape(part["feature"]), escape(_shown(part["value"])), f"{part['log_odds']:+.3f}")
        for part in told["contributions"]
    ]
    rows += [("all others", "", f"{told['others']:+.3f}"), ("sum", "", f"{told['log_odds']:+.3f}")]
    print_table(("feature", "value", "log-odds"), rows)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
