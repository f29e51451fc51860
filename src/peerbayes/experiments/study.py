"""A study: every combination of some settings, run once, kept, compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerbayes.data import files
from peerbayes.errors import ConfigurationError
from peerbayes.experiments import (
    directions,
    study_checks,
    study_comparison,
    study_overview,
    study_results,
    study_tables,
)
from peerbayes.experiments.comparison import CONFIDENCE, DONE, STATUS
from peerbayes.experiments.engines import Engine
from peerbayes.experiments.results_store import Progress, Store, fill
from peerbayes.experiments.spool import value_of
from peerbayes.experiments.study_cells import OWNERS, compute
from peerbayes.experiments.study_folder import refuse_other
from peerbayes.experiments.study_recipe import session
from peerbayes.experiments.study_results import DATASET, SEED
from peerbayes.simulation.loading import STUDY_FILE
from peerbayes.simulation.scores import BUILT_IN, MAJORITY, figure_title

if TYPE_CHECKING:
    import pandas as pd

STORE_FILE = "results.sqlite"

METRIC = "test_error"
LEARNER, OURS = (
    "learner",
    "peers",
)  # what is compared where no setting varies, and what tables call the run's own

# What follows from results, and is read again after cells were computed.
CACHED = ("frame", "history", "reasons", "_results")


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
    """The name of the study, as titles have it."""
    varied: tuple[str, ...]
    """The settings that vary, in order, apart from the seed; "dataset" is one of them if there are several."""
    cells: tuple[StudyCell, ...] = field(repr=False)
    """One for each combination of values, in the order of the settings."""
    compare: str | None = None
    """The setting whose values tables compare; None: the first that varies."""
    metric: str = METRIC
    """The figure that tables compare."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Of each dataset its source, digest, rows and columns."""
    greater_is_better: bool | None = None
    """Whether more of the metric is better, where that was said."""
    sessions: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Of each call that computed cells: when it began, the versions, the machine, the engine and how many cells."""
    recipe: str = field(default="", repr=False)
    """What `toml` returns."""

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
                content["metric"], content["tables"], content.get("greater_is_better"),
                tuple(content.get("sessions", ())), content.get("toml", ""),
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

    def run(self, engine: Engine, progress: Progress | None = None, overwrite: bool = False) -> None:
        """Compute the cells that the store lacks, and let the folder hold this study.

        engine     where they are computed
        progress   called with the cells done and the cells in all
        overwrite  whether it may replace the description of another study in the folder; results stay
        """
        before = self._before(overwrite)
        missing = self.missing()
        sessions = () if before is None else before.sessions
        if missing:
            name = getattr(engine, "name", type(engine).__name__)
            sessions = (*sessions, session(name, len(missing)))
        object.__setattr__(self, "sessions", sessions)  # known only now
        self._save()
        try:
            if missing:
                beside = {"folder": str(self.folder)}
                fill(self.store, engine, compute, missing, progress, endure=True, beside=beside)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"what is done is in {self.folder}; the same call with this folder goes on from there"
            )
            raise
        finally:
            for cached in CACHED:
                self.__dict__.pop(cached, None)

    def _before(self, overwrite: bool) -> Study | None:
        """Return the study that was last run in the folder, if any; refuse to replace another one."""
        if not (self.folder / STUDY_FILE).exists():
            return None
        try:
            before = Study.load(self.folder)
        except ConfigurationError:
            if overwrite:
                return None
            raise
        if not overwrite:
            refuse_other(before, self)
        return before

    def _save(self) -> None:
        """Write what is asked to the folder; results are there already."""
        content = {
            "kind": "study", "name": self.name, "varied": self.varied, "compare": self.compare, "metric": self.metric,
            "greater_is_better": self.greater_is_better, "tables": self.tables, "sessions": self.sessions,
            "toml": self.recipe,
            "cells": [
                {"key": cell.key, "levels": cell.levels, "specification": cell.specification} for cell in self.cells
            ],
        }  # fmt: skip
        files.write(self.folder / STUDY_FILE, json.dumps(content).encode())

    def toml(self) -> str:
        """Return what was asked as a file that `peerbayes study` reads; comments say what made it, when and where."""
        return study_overview.made_lines(self) + self.recipe

    # --- results

    @property
    def store(self) -> Store:
        """The file of all results that were ever computed in the folder."""
        return Store(self.folder / STORE_FILE)

    @cached_property
    def _results(self) -> dict[str, dict[str, Any]]:
        """The results of the cells that are done, by key, in the order of the cells."""
        stored = self.store.results(cell.key for cell in self.cells)
        return {cell.key: stored[cell.key] for cell in self.cells if cell.key in stored}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with a row per cell: dataset, settings that vary, seed, status, the run's summary, seconds, key.

        The status is "done", "refused", "failed" or "missing". In words: `reason` says why a cell has no figures,
        `missing` why single figures of a run are NaN, `notes` how others came about, and `warnings` what its run warned
        of. Figures that no cell has are left out.
        """
        absent = [cell.key for cell in self.cells if cell.key not in self._results]
        refusals = self.store.refusals(absent)
        return study_results.frame_of(self.cells, self._columns, self._results, refusals, self.metric)

    @cached_property
    def reasons(self) -> dict[str, dict[str, str]]:
        """Why figures of cells that are done are missing, by key and figure: sentences of their runs."""
        figures = dict.fromkeys(name for result in self._results.values() for name in result["summary"])
        named = [*figures, self.metric]
        return {
            key: study_results.reasons_of(result, named, self.learners)
            for key, result in self._results.items()
        }

    @cached_property
    def history(self) -> pd.DataFrame:
        """A DataFrame with a row per evaluated round of each cell that is done.

        Columns: settings that vary, seed, round, bytes (sent by a peer until then, the mean over peers), seconds, and
        of each figure the mean over peers and, as `…_std`, the standard deviation over peers.
        """
        histories = self.store.histories(cell.key for cell in self.cells)
        return study_results.history_of(self.cells, (*self.varied, SEED), histories)

    @property
    def incomplete(self) -> dict[str, str]:
        """The cells that are not done, in words, and why."""
        absent = self.frame[self.frame[STATUS] != DONE]
        return {
            ", ".join(f"{name} {row[name]}" for name in self._columns): f"{row[STATUS]}: {row['reason']}"
            for _, row in absent.iterrows()
        }

    @property
    def learners(self) -> list[str]:
        """What runs were compared with, as `summary` takes it: "rc", "ml", "majority", "vote", …"""
        return study_results.learners_of(self._results.values())

    @property
    def baselines(self) -> list[str]:
        """Those of the learners that the setting `baselines` asked for."""
        asked = set(self._asked_baselines)
        standard = set(directions.LEARNERS) - ({MAJORITY} & asked)
        return [name for name in self.learners if name not in standard]

    def refuse_impossible(self, metric: str) -> None:
        """Refuse a figure that no cell can have, whatever it computes.

        metric  a name of `Run.summary`
        """
        study_checks.refuse_impossible(metric, self.metrics, self._asked_baselines)

    @property
    def _asked_baselines(self) -> list[str]:
        return directions.names_of(self._stored("baselines", []))

    @property
    def notes(self) -> list[str]:
        """Sentences on how all cells of a table came about."""
        columns = dict.fromkeys(name for table in self.tables.values() for name in table.get(OWNERS, ()))
        return [
            f"Column {name!r} names the owners of rows in some cells, so it is a feature in none."
            for name in columns
        ]

    def columns_of(self, metric: str, learners: Sequence[str]) -> dict[str, str]:
        """Return the columns of `frame` that have the figures of learners.

        metric    the column that has those of the peers: "test_error", "test_auc", …
        learners  some of `learners`; empty where there is no such metric of theirs
        """
        return study_comparison.columns_of(self, metric, learners)

    @property
    def _columns(self) -> list[str]:
        """What a cell is called: its dataset, what varies, and the seed."""
        return [DATASET, *(name for name in self.varied if name != DATASET), SEED]

    def _stored(self, name: str, default: Any) -> list[Any]:
        """Return the stored values of a setting, each once."""
        values = {}
        for cell in self.cells:
            stored = cell.specification["settings"].get(name, default)
            values[json.dumps(stored)] = stored
        return [value_of(self.folder, stored) for stored in values.values()]

    @property
    def metrics(self) -> dict[str, bool | None]:
        """The metrics beside the error, and whether more of them is better."""
        return directions.of_stored(self._stored("metrics", list(BUILT_IN)))

    # --- comparisons

    def summary(
        self,
        metric: str | None = None,
        compare: str | None = None,
        baseline: Any = None,
        test: str = "t",
        confidence: float = CONFIDENCE,
        learners: Sequence[str] | None = None,
        greater_is_better: bool | None = None,
    ) -> pd.DataFrame:
        """Return the comparison as a DataFrame: a row for each combination of the settings that vary.

        Columns: the settings, seeds (how many), mean, low and high (its t-interval over seeds), std_over_seeds,
        std_over_peers (the mean over seeds of the spread over peers: no uncertainty of the mean; of learners none is
        kept), difference with its interval (paired by seed, to the baseline or the best), p, p_holm (corrected for the
        values that are compared), best (whether it is distinguishable from every other) and note: why a figure is
        missing.

        metric             a column of `frame`; None: the study's
        compare            the setting whose values are compared; None: the study's
        baseline           the value or the learner with which all are compared; None: the best
        test               "t" (paired), "sign-flip" (permutation) or "wilcoxon"; the last two need six seeds for 0.05
        confidence         of intervals, and 1 minus the level of tests
        learners           which of `learners` are compared as well, as further values; None: the study's baselines
        greater_is_better  whether more of the metric is better; None: as the study says, or as is known of the metric
        """
        return study_comparison.summary_of(
            self, metric, compare, baseline, test, confidence, learners, greater_is_better
        )

    def grid(
        self, metric: str | None = None, spread_over_peers: bool = False, **options: Any
    ) -> study_tables.Grid:
        """Return the comparison as a table of texts.

        metric             a column of `frame`; None: the study's
        spread_over_peers  whether the standard deviation over peers is beside each mean, in brackets
        options            those of `summary`
        """
        summary = self.summary(metric, **options)
        title = f"{self.name}: {figure_title(metric or self.metric)}"
        return study_tables.grid_of(title, summary, summary.attrs["compare"], spread_over_peers)

    def markdown(
        self,
        metric: str | None = None,
        path: str | Path | None = None,
        overwrite: bool = False,
        caption: str | None = None,
        **options: Any,
    ) -> str:
        """Return the comparison as a table in Markdown, the best in bold where it is distinguishable.

        metric     a column of `frame`; None: the study's
        path       a file to write it to as well
        overwrite  whether a file that is there may be replaced
        caption    the heading; None: the name of the study, and what is compared
        options    those of `grid` and `summary`
        """
        grid = self.grid(metric, **options)
        titled = grid if caption is None else replace(grid, title=caption)
        return _written(study_tables.as_markdown(titled), path, overwrite)

    def latex(
        self,
        path: str | Path | None = None,
        metric: str | None = None,
        overwrite: bool = False,
        caption: str | None = None,
        label: str | None = None,
        **options: Any,
    ) -> str:
        """Return the comparison as a table in LaTeX, for the package booktabs.

        path       a file to write it to as well
        metric     a column of `frame`; None: the study's
        overwrite  whether a file that is there may be replaced
        caption    the caption, in LaTeX; None: the study's name, what is compared and what the numbers are, which
                   otherwise is in comments
        label      what \\ref names the table by
        options    those of `grid` and `summary`
        """
        latex = study_tables.as_latex(self.grid(metric, **options), caption, label)
        return _written(latex, path, overwrite)

    def csv(self, path: str | Path, overwrite: bool = False) -> None:
        """Write `frame` to a CSV file.

        path       the file
        overwrite  whether a file that is there may be replaced
        """
        _written(self.as_csv(), path, overwrite)

    def as_csv(self) -> str:
        """Return `frame` as CSV; no text in it is a formula to a spreadsheet."""
        return str(self.frame.map(files.in_cell).to_csv(index=False))

    def plot(
        self,
        x: str | None = None,
        y: str | None = None,
        colour: str | Sequence[str] | None = None,
        facet: str | None = None,
        references: Any = True,
        **options: Any,
    ) -> Any:
        """Return a plotly figure: curves by round, or figures at the end with intervals; needs the extra `report`.

        x           "round", "bytes" or "seconds": a curve; or a setting that varies: dots at the end of the runs, with
                    intervals over seeds. None: a curve where runs have y by round, else the first that varies
        y           a figure of `history` or `frame`; None: the study's
        colour      the setting that colours tell apart; None: the first that varies, or the next beside x
        facet       the setting that has a panel for each value; None: the next one
        references  horizontal lines: True: RC and ML of the pooled rows and the study's baselines, where there are any;
                    False: none; or names of `learners`, or whatever else `curves` takes
        options     those of `peerbayes.report.study_curves.curves`, or `peerbayes.report.study_ends.ends`
        """
        figure = import_module("peerbayes.report.study_figure").figure_of  # a call upwards
        return figure(self, x, y or self.metric, colour, facet, references, **options)

    def __repr__(self) -> str:
        return study_overview.as_text(self)

    def __str__(self) -> str:
        return f"Study {self.name!r}: {self.shape}"

    def _repr_html_(self) -> str:
        return study_overview.as_html(self)

    @property
    def shape(self) -> str:
        """How many values each setting has: 60 cells (3 strategy × 4 topology × 5 seed)."""
        levels = {name: len({str(cell.levels[name]) for cell in self.cells}) for name in (*self.varied, SEED)}
        factors = " × ".join(f"{count} {name}" for name, count in levels.items())
        return f"{len(self.cells)} cells ({factors})"


def _written(text: str, path: str | Path | None, overwrite: bool) -> str:
    """Return a text, written to a file where one is named."""
    if path is not None:
        files.refuse_existing(path, overwrite)
        files.write(path, text.encode())
    return text
