"""A study: every combination of some settings, run once, kept, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data import files
from peerbayes.errors import ConfigurationError
from peerbayes.experiments import comparison, study_tables
from peerbayes.experiments.comparison import CONFIDENCE, DONE, STATUS
from peerbayes.experiments.engines import Engine
from peerbayes.experiments.results_store import Progress, Store, fill
from peerbayes.experiments.study_cells import compute
from peerbayes.simulation.loading import STUDY_FILE

if TYPE_CHECKING:
    import pandas as pd

STORE_FILE = "results.sqlite"

DATASET, SEED, MISSING = "dataset", "seed", "missing"
METRIC = "test_error"
ENDS = ("seconds", "key", "reason", "warnings")  # columns of a frame after the figures


@dataclass(frozen=True)
class StudyCell:
    """One cell: what it is called, and what its numbers depend on."""

    key: str
    levels: dict[str, Any]
    """What tables call the values of the settings that vary, its dataset and its seed."""
    specification: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Study:
    """A table of simulations, in a folder that can be opened again."""

    folder: Path
    """Of its results, its rows and its long settings."""
    name: str
    varied: tuple[str, ...]
    """The settings that vary, in order, apart from the seed; "dataset" is one of them if there are several."""
    cells: tuple[StudyCell, ...] = field(repr=False)
    compare: str | None = None
    """The setting whose values tables compare; None: the first that varies."""
    metric: str = METRIC
    """The figure that tables compare."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Of each dataset its digest, rows and columns."""

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Open the study that was last run in a folder; nothing is computed.

        folder  the `folder` of a study, or the --out of `peerbayes study`
        """
        path = Path(folder) / STUDY_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            cells = tuple(
                StudyCell(cell["key"], cell["levels"], cell["specification"]) for cell in content["cells"]
            )
            return cls(
                Path(folder), content["name"], tuple(content["varied"]), cells, content["compare"],
                content["metric"], content["tables"],
            )  # fmt: skip
        except OSError as error:
            raise ConfigurationError(
                f"{folder} holds no study: {path.name} cannot be read: {error.strerror}. Expected the folder of "
                "pb.study or of `peerbayes study`"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} does not describe a study: {error!r}") from error

    def missing(self) -> dict[str, dict[str, Any]]:
        """Return the specifications, by key, of the cells that the store lacks."""
        stored = self.store.results(cell.key for cell in self.cells)
        return {cell.key: cell.specification for cell in self.cells if cell.key not in stored}

    def run(self, engine: Engine, progress: Progress | None = None) -> None:
        """Compute the cells that the store lacks, and let the folder hold this study.

        engine    where they are computed
        progress  called with the cells done and the cells in all
        """
        self._save()
        if not (missing := self.missing()):
            return
        try:
            beside = {"folder": str(self.folder)}
            fill(self.store, engine, compute, missing, progress, endure=True, beside=beside)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"what is done is in {self.folder}; the same call with this folder goes on from there"
            )
            raise

    def _save(self) -> None:
        """Write what is asked to the folder; results are there already."""
        content = {
            "kind": "study", "name": self.name, "varied": self.varied, "compare": self.compare, "metric": self.metric,
            "tables": self.tables,
            "cells": [
                {"key": cell.key, "levels": cell.levels, "specification": cell.specification} for cell in self.cells
            ],
        }  # fmt: skip
        files.write(self.folder / STUDY_FILE, json.dumps(content).encode())

    # --- results

    @property
    def store(self) -> Store:
        """The file of all results that were ever computed in the folder."""
        return Store(self.folder / STORE_FILE)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row per cell: dataset, settings that vary, seed, status, the run's summary, seconds, key.

        The status is "done", "refused", "failed" or "missing"; `reason` says why a cell has no figures, and `warnings`
        what its run warned of. Figures that no cell has are left out.
        """
        import pandas as pd

        keys, store = [cell.key for cell in self.cells], self.store
        results = store.results(keys)
        refusals = store.refusals(key for key in keys if key not in results)
        columns = [DATASET, *(name for name in self.varied if name != DATASET), SEED]
        rows = []
        for cell in self.cells:
            result = results.get(cell.key)
            status, reason = (
                (DONE, "") if result else refusals.get(cell.key, (MISSING, "it was not computed"))
            )
            row = {**{name: cell.levels[name] for name in columns}, STATUS: status}
            if result is not None:
                row |= {**result["summary"], "seconds": result["seconds"]}
            warned = "" if result is None else " ".join(result["warnings"])
            rows.append(row | {"key": cell.key, "reason": reason, "warnings": warned})
        frame = pd.DataFrame(rows)
        figures = [name for name in frame.columns if name not in (*columns, STATUS, *ENDS)]
        figures = [name for name in figures if frame[name].notna().any() or name == self.metric]
        if self.metric not in frame and (frame[STATUS] != DONE).all():
            figures, frame[self.metric] = [*figures, self.metric], np.nan
        seconds = [name for name in ENDS if name in frame]
        return frame[[*columns, STATUS, *figures, *seconds]]

    @cached_property
    def history(self) -> pd.DataFrame:
        """A DataFrame with a row per evaluated round of each cell that is done.

        Columns: settings that vary, seed, round, bytes (sent by a peer until then, the mean over peers), seconds, and
        of each figure the mean over peers and, as `…_std`, the standard deviation over peers.
        """
        import pandas as pd

        histories = self.store.histories(cell.key for cell in self.cells)
        blocks = [
            pd.DataFrame({
                **{name: _repeated(cell.levels[name], len(arrays["round"])) for name in (*self.varied, SEED)},
                **{name: arrays[name] for name in _ordered(arrays)},
            })
            for cell in self.cells if (arrays := histories.get(cell.key)) is not None
        ]  # fmt: skip
        if not blocks:
            return pd.DataFrame(columns=[*self.varied, SEED, "round", "bytes", "seconds"])
        return pd.concat(blocks, ignore_index=True).astype({"round": np.int64})

    @property
    def incomplete(self) -> dict[str, str]:
        """The cells that are not done, in words, and why."""
        columns = [DATASET, *(name for name in self.varied if name != DATASET), SEED]
        absent = self.frame[self.frame[STATUS] != DONE]
        return {
            ", ".join(f"{name} {row[name]}" for name in columns): f"{row[STATUS]}: {row['reason']}"
            for _, row in absent.iterrows()
        }

    # --- comparisons

    def summary(
        self,
        metric: str | None = None,
        compare: str | None = None,
        baseline: Any = None,
        test: str = "t",
        confidence: float = CONFIDENCE,
    ) -> pd.DataFrame:
        """Return the comparison as a DataFrame: a row for each combination of the settings that vary.

        Columns: the settings, seeds (how many), mean, low and high (its t-interval over seeds), std_over_seeds,
        std_over_peers (the mean over seeds of the spread over peers: no uncertainty of the mean), difference with its
        interval (paired by seed, to the baseline or the best), p, p_holm (corrected for the values that are compared),
        best (whether it is distinguishable from every other) and note: why a figure is missing.

        metric      a column of `frame`; None: the study's
        compare     the setting whose values are compared; None: the study's
        baseline    the value with which all are compared; None: the best
        test        "t" (paired), "sign-flip" (permutation) or "wilcoxon"; the last two need six seeds to reach 0.05
        confidence  of intervals, and 1 minus the level of tests
        """
        return comparison.table(
            self.frame, self.varied, self._question(metric, compare, baseline, test, confidence)
        )

    def grid(self, metric: str | None = None, **options: Any) -> study_tables.Grid:
        """Return the comparison as a table of texts.

        metric   a column of `frame`; None: the study's
        options  those of `summary`
        """
        summary = self.summary(metric, **options)
        question = self._question(metric, options.get("compare"), None, "t", CONFIDENCE)
        return study_tables.grid_of(f"{self.name}: {question.metric}", summary, question.compare)

    def markdown(self, metric: str | None = None, **options: Any) -> str:
        """Return the comparison as a table in Markdown, the best in bold where it is distinguishable.

        metric   a column of `frame`; None: the study's
        options  those of `summary`
        """
        return study_tables.as_markdown(self.grid(metric, **options))

    def latex(self, path: str | Path | None = None, metric: str | None = None, **options: Any) -> str:
        """Return the comparison as a table in LaTeX, for the package booktabs.

        path     a file to write it to as well
        metric   a column of `frame`; None: the study's
        options  those of `summary`
        """
        text = study_tables.as_latex(self.grid(metric, **options))
        if path is not None:
            files.write(path, text.encode())
        return text

    def csv(self, path: str | Path) -> None:
        """Write `frame` to a CSV file.

        path  the file
        """
        files.write(path, self.as_csv().encode())

    def as_csv(self) -> str:
        """Return `frame` as CSV; no text in it is a formula to a spreadsheet."""
        return str(self.frame.map(files.in_cell).to_csv(index=False))

    def plot(
        self,
        x: str = "round",
        y: str | None = None,
        colour: str | Sequence[str] | None = None,
        facet: str | None = None,
        **options: Any,
    ) -> Any:
        """Return the curves as a plotly figure; needs the extra `report`.

        x        "round", "bytes" or "seconds"
        y        a figure of `history`; None: the study's
        colour   the setting that colours tell apart; None: the first that varies
        facet    the setting that has a panel for each value; None: the second that varies
        options  those of `peerbayes.report.study_curves.curves`
        """
        curves = import_module("peerbayes.report.study_curves").curves  # a call upwards
        return curves(self.history, x=x, metric=y or self.metric, colour=colour, facet=facet, **options)

    def __repr__(self) -> str:
        counts = self.frame[STATUS].value_counts()
        states = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"Study {self.name!r}: {self._shape()}; {states}; in {self.folder}"

    def __str__(self) -> str:
        return f"Study {self.name!r}: {self._shape()}"

    def _repr_html_(self) -> str:
        return study_tables.as_html(self.grid())

    def _shape(self) -> str:
        """Return how many values each setting has: 60 cells (3 strategy × 4 topology × 5 seed)."""
        levels = {name: len({str(cell.levels[name]) for cell in self.cells}) for name in (*self.varied, SEED)}
        factors = " × ".join(f"{count} {name}" for name, count in levels.items())
        return f"{len(self.cells)} cells ({factors})"

    def _question(
        self, metric: str | None, compare: str | None, baseline: Any, test: str, confidence: float
    ) -> comparison.Question:
        return comparison.checked_question(
            self.frame,
            self.varied,
            metric or self.metric,
            compare or self.compare,
            baseline,
            test,
            confidence,
        )


def _repeated(value: Any, times: int) -> list[Any]:
    return [value] * times


def _ordered(arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of a history's columns: the three that curves are drawn against, then figures."""
    first = ("round", "bytes", "seconds")
    return [*first, *(name for name in sorted(arrays) if name not in first)]
