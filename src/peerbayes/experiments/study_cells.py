"""One cell of a study: settings, the rows of its seed, and the figures of its run."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.declarations import declarations
from peerbayes.errors import PeerbayesError
from peerbayes.experiments.cells import TEST_ROWS, in_order
from peerbayes.experiments.levels import read_back
from peerbayes.experiments.spool import table_of, value_of
from peerbayes.simulation.owners import without_columns
from peerbayes.simulation.settings import SimulationArguments

# Increased when the same settings give other numbers than before: older results of studies are then not used again.
STUDY_REVISION = 2  # baselines have an L2 penalty

# One row in so many is for tests, but at most `TEST_ROWS`, where a study does not say how many.
TESTED_SHARE = 5

# Columns that name the owners of rows in other cells, so that they are no features in this one either.
OWNERS = "owners"

# Settings of single runs, which mean nothing in a study: what to do instead.
OF_RUNS = {
    "progress": "a study has a progress of its own",
    "checkpoint": "a study keeps every cell that is done",
    "live": "cells run beside each other; watch one with simulate",
    "callbacks": "cells run in other processes; call simulate with them for one run",
}


class Split(NamedTuple):
    """The rows of a seed, as positions in the table."""

    train: np.ndarray
    """Offered to the peers."""
    test: np.ndarray
    """The same in all cells of the seed."""


def split(labels: Any, seed: int, test_rows: int | None = None) -> Split:
    """Return the rows of a seed: the last of a random order are for tests, a fifth but at most 5,000, or `test_rows`.

    Rows of a class that would have no other training row are not tested.
    """
    names = np.asarray(labels)
    count = names.size
    tested = tested_rows(count, test_rows)
    order = in_order(count, seed)
    train, test = order[: count - tested], order[count - tested :]
    _, codes = np.unique(names.astype(str) if names.dtype == object else names, return_inverse=True)
    learned = np.isin(codes[test], codes[train])
    return Split(np.concatenate([train, test[~learned]]), test[learned])


def tested_rows(rows: int, test_rows: int | None = None) -> int:
    """Return how many of the rows of a table are for tests, at most."""
    return min(TEST_ROWS, rows // TESTED_SHARE) if test_rows is None else test_rows


def compute(specification: dict[str, Any]) -> dict[str, Any]:
    """Compute the figures of a cell, or the reason why it has none: a function of plain values and the study's folder.

    Whatever goes wrong is a result, so that it ends no other cell.
    """
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = figures_of(*arguments_of(specification))
    except (PeerbayesError, ValueError, TypeError) as error:
        return {"refused": str(error)}
    except Exception as error:  # of an outside package, or a mistake of ours: the other cells go on
        return {"failed": f"{type(error).__name__}: {error}"}
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return {**result, "warnings": list(dict.fromkeys(warned)), "seconds": time.perf_counter() - began}


def arguments_of(specification: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments of `simulate` for a cell: training rows, their labels, and settings with its test rows."""
    folder = specification["folder"]
    settings = {
        name: read_back(name, value_of(Path(folder), stored), declarations(SimulationArguments)[name])
        for name, stored in specification["settings"].items()
    }
    table, labels = table_of(folder, specification["data"])
    owners = specification.get(OWNERS, ())
    table = without_columns(table, owners)
    if isinstance(specification["test"], str):
        test_table, test_labels = table_of(folder, specification["test"])
        return (
            table.native,
            labels,
            {**settings, "test": (without_columns(test_table, owners).native, test_labels)},
        )
    train, test = split(labels, settings.get("seed", 0), specification["test"])
    settings["test"] = (table.take(test).native, labels[test])
    return table.take(train).native, labels[train], settings


def figures_of(X: Any, y: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a cell; return its summary with the reasons of what is missing, its history by round, and what was chosen."""
    from peerbayes.simulation.run import simulate

    run = simulate(X, y, **settings)
    chosen = {"strategy": run.configuration["strategy"], "family": run.layout.name}
    return {
        "summary": run.summary(),
        "missing": run.missing,
        "notes": list(run.scored.notes),
        "learners": list(dict.fromkeys(score.learner for score in run.scored.rows)),
        "history": history_of(run),
        "chosen": chosen,
    }


def history_of(run: Any) -> dict[str, np.ndarray]:
    """Return the rounds of a run, with mean and standard deviation of each figure over its peers: [T] by name."""
    by_round = run.history.drop(columns="peer").groupby("round", sort=True)
    mean, spread = by_round.mean(), by_round.std(ddof=0)
    seconds = np.asarray(getattr(run, "seconds_by_round", ()))
    history = {"round": mean.index.to_numpy(dtype=np.float64), "bytes": mean["bytes"].to_numpy()}
    history["seconds"] = seconds if len(seconds) == len(mean) else np.full(len(mean), np.nan)
    for name in mean.columns.drop("bytes"):
        history[name], history[f"{name}_std"] = mean[name].to_numpy(), spread[name].to_numpy()
    return history


def refuse_of_runs(settings: dict[str, Any]) -> None:
    """Refuse settings that are of a single run."""
    for name, instead in OF_RUNS.items():
        if settings.get(name) is not None:
            raise ValueError(f"{name} is {shown(settings[name])}; expected None in a study: {instead}")
