"""A run made again from what it recorded: the same settings and rows, and in what the two differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes.errors import ConfigurationError, DataChanged
from peerbayes.simulation import config
from peerbayes.simulation.places import first_there
from peerbayes.simulation.provenance import WITH_FILES, arguments_of, described, source_of
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.result import Run
from peerbayes.simulation.run import simulate
from peerbayes.simulation.saved_rows import Labelled

# Entries of `Run.made` that are no versions.
NOT_VERSIONS = ("began", "choice", "family choice", "selection")

IN_FULL = {"bytes": "bytes sent", "floored": "entries at their floor"}


def from_source(run: Run, data: Mapping[str, Any]) -> Run:
    """Return a run that says that its rows were loaded by the entries of [data]."""
    source = source_of(data)
    of_rows = {**run.provenance.data, "source": source}
    return replace(run, provenance=replace(run.provenance, data=of_rows).located(source))


def repeated(
    run: Run,
    X: Any = None,
    y: Any = None,
    test: Labelled | None = None,
    data: Mapping[str, Any] | None = None,
) -> Run:
    """Return the run that the same settings and rows make now.

    X, y, test  rows that were passed; None: those of the run, or of its dataset, file or query
    data        entries of [data] to load them by instead
    """
    if (X is None) != (y is None):
        raise ValueError("run.rerun takes a table and its labels, X and y, or neither")
    if not run.provenance.data:
        raise ConfigurationError(
            "this run was saved by a version that did not record what was asked, so it cannot be made again; "
            "simulate it once more and save it"
        )
    arguments, source = arguments_of(run.provenance), run.provenance.data["source"]
    if X is None:
        X, y, test, source = _rows(run, test, data)
    if "test" in run.provenance.asked and test is None and run.provenance.asked["test"] is not None:
        raise ConfigurationError(
            "the rows to test on were passed as test=(X, y), and nothing names them: pass them to run.rerun, or save "
            "the run with data=True"
        )
    _refuse_others(run, X, y, test)
    if test is not None:
        arguments["test"] = test
    again = _named_alike(run, simulate(X, y, **arguments))
    again = from_source(again, source) if source else again
    if data is not None:
        return again
    places = {**again.provenance.places, **run.provenance.places}
    return replace(again, provenance=replace(again.provenance, places=places))


def _rows(
    run: Run, test: Labelled | None, data: Mapping[str, Any] | None
) -> tuple[Any, Any, Labelled | None, Mapping[str, Any]]:
    """Return the table, labels and test rows of a run, and the entries of [data] that they were loaded by."""
    source = run.provenance.data["source"]
    if data is None and run.rows is not None:
        X, y, saved_test = run.rows.read()
        return X, y, test or saved_test, source
    if data is not None:
        entries = {name: value for name, value in source.items() if name != "name"} | dict(data)
    elif source:
        places = run.provenance.places
        entries = _located(_located(source, places, "file"), places, "test")
    else:
        raise ConfigurationError(
            "the rows of this run were a table in memory: name a file that has them (--data FILE --label COLUMN), pass "
            "X and y to run.rerun, or save the run with data=True, which puts the rows into its folder"
        )
    read = config.Configuration(entries, {"partition": run.provenance.asked.get("partition")})
    X, y = read.load()
    if test is None:
        test = run.rows.read()[2] if run.rows is not None else read.load_test(X).get("test")
    return X, y, test, source if data is None else entries


def _located(source: Mapping[str, Any], places: Mapping[str, str], entry: str) -> dict[str, Any]:
    """Return entries of [data] in which a file is where the run had it, or in its folder, or here."""
    file = str(source.get(entry, ""))
    if not file or "://" in file:
        return dict(source)
    path = first_there([places.get(file, file), file])
    if path is None:
        raise ConfigurationError(
            f"{file}, the {entry} that rows of this run came from, is neither where it was nor here; put it into the "
            "run's folder, or name a file with --data FILE, or pass X and y to run.rerun"
        )
    return {**source, entry: path}


def _refuse_others(run: Run, X: Any, y: Any, test: Labelled | None) -> None:
    """Refuse rows that are not those of the run."""
    for name, rows, then in (("the rows", (X, y), run.provenance.data), ("the rows to test on", test, None)):
        expected = run.provenance.data.get("test") if then is None else then
        if rows is None or expected is None:
            continue
        now = described(*rows)
        wrong = [
            f"{now[key]:,} {key} instead of {expected[key]:,}"
            for key in ("rows", "columns")
            if now[key] != expected[key]
        ]
        if wrong or now["digest"] != expected["digest"]:
            sizes = (
                ", ".join(wrong)
                or "as many rows and columns, but other values, names, labels or another order"
            )
            raise DataChanged(
                f"{name} are not those that this run was made with: {sizes}. Their digest is {now['digest']:.16}…, "
                f"expected {expected['digest']:.16}…"
            )


def _named_alike(run: Run, again: Run) -> Run:
    """Return the new run with its files named as the first one named them."""
    files = [name for name in WITH_FILES if name in run.provenance.asked]
    asked = {**again.provenance.asked, **{name: run.provenance.asked[name] for name in files}}
    configuration = {**again.configuration, **{name: run.configuration[name] for name in files}}
    return replace(again, configuration=configuration, provenance=replace(again.provenance, asked=asked))


# --- in what two runs differ


def differences(first: Run, second: Run) -> list[str]:
    """Return in what two runs differ, the results first; an empty list where digests are the same."""
    if first.digest == second.digest:
        return []
    return [*_of_history(first, second), *_of_models(first, second), *_of_references(first, second),
            *_of_origin(first, second)]  # fmt: skip


def _of_history(first: Run, second: Run) -> list[str]:
    """Return the first round that differs, by how much, and in what."""
    one, other = first.records, second.records
    rounds = [np.unique(records[:, 0]) for records in (one, other)]
    if rounds[0].tolist() != rounds[1].tolist():
        last = [int(evaluated[-1]) for evaluated in rounds]
        return [
            f"other rounds were evaluated: {len(rounds[0])} up to {last[0]}, then {len(rounds[1])} up to {last[1]}"
        ]
    if one.shape != other.shape:
        return [f"{len(one)} records of peers, then {len(other)}"]
    gap = np.abs(np.nan_to_num(one) - np.nan_to_num(other))
    gap[np.isnan(one) != np.isnan(other)] = np.inf
    differing = np.flatnonzero(gap.any(axis=1))
    if not differing.size:
        return []
    round_index = one[differing[0], 0]
    of_round = gap[one[:, 0] == round_index].max(axis=0)
    measured = ", ".join(
        f"{IN_FULL.get(name, name.replace('_', ' '))} by up to {size:.3g}"
        for name, size in zip(COLUMNS, of_round, strict=True)
        if size
    )
    return [f"round {round_index:.0f} is the first that differs: {measured}"]


def _of_models(first: Run, second: Run) -> list[str]:
    if first.stats.shape != second.stats.shape:
        return [f"models have the shape {first.stats.shape}, then {second.stats.shape}"]
    largest = float(np.abs(first.stats - second.stats).max(initial=0.0))
    scale = float(np.abs(first.stats).max(initial=0.0)) or 1.0
    return (
        [f"models differ by up to {largest:.3g}, which is {largest / scale:.2g} of their largest"]
        if largest
        else []
    )


def _of_references(first: Run, second: Run) -> list[str]:
    return [
        f"{name} was {value:.6g}, now {second.references[name]:.6g}"
        for name, value in first.references.items()
        if name in second.references and not np.isclose(value, second.references[name], 0, 0, equal_nan=True)
    ]


def _of_origin(first: Run, second: Run) -> list[str]:
    """Return versions, machines and choices that differ."""
    pairs = (
        (_versions(first), _versions(second)),
        (first.provenance.machine, second.provenance.machine),
        (first.configuration, second.configuration),
    )
    return [
        f"{name} was {one.get(name, '–')}, now {other.get(name, '–')}"
        for one, other in pairs
        for name in dict.fromkeys((*one, *other))
        if _plain(one.get(name)) != _plain(other.get(name))
    ]


def _versions(run: Run) -> dict[str, str]:
    return {name: value for name, value in run.made.items() if name not in NOT_VERSIONS}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
