"""`peerbayes study`: run every combination of the settings in a file, and compare them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from peerbayes.cli import (
    Overwrite,
    argument,
    check_format,
    exit_on_error,
    option,
    plain_warnings,
    print_table,
    print_text,
    progress_bar,
    split,
)
from peerbayes.experiments import study_file
from peerbayes.experiments.engines import engine_of

if TYPE_CHECKING:
    from peerbayes.experiments.study import Study
    from peerbayes.experiments.study_tables import Grid

STUDY_FORMATS = ("table", "markdown", "latex", "csv", "json")
INTERRUPTED = 130


def study(
    file: Annotated[
        Path,
        argument(
            "A TOML file with [study], [data] and [simulation]; a list has several values. Or the folder of a study, "
            "to see it again."
        ),
    ],
    changes: Annotated[
        list[str] | None,
        option("KEY=VALUE: override a setting of the file, by one value or by a list.", "--set"),
    ] = None,
    out: Annotated[
        Path | None, option("The folder of the results; default: the file's name without .toml.")
    ] = None,
    engine: Annotated[str, option("local: processes on this machine; ray: a cluster.")] = "local",
    address: Annotated[
        str | None, option("Address of a Ray cluster; auto: the cluster of this machine.")
    ] = None,
    workers: Annotated[int | None, option("Number of processes; default: one per processor.")] = None,
    form: Annotated[str, option("table, markdown, latex, csv or json.", "--format")] = "table",
    metric: Annotated[str, option("Figures to compare, separated by commas; default: the file's.")] = "",
    spread: Annotated[
        bool,
        option("Add the standard deviation over peers, in brackets.", "--spread-over-peers"),
    ] = False,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, option("Only count the cells, and those that are there already.", "--dry-run")
    ] = False,
) -> None:
    """Run every combination of settings in a file, and compare them. Started again, it goes on from there."""
    from peerbayes.experiments.study import Study
    from peerbayes.experiments.study_plan import Lines, planned

    with exit_on_error(), plain_warnings():
        check_format(form, STUDY_FORMATS)
        if file.is_dir():
            if changes or out or overwrite:
                raise ValueError(
                    f"{file} is the folder of a study, which is shown as it is; expected its TOML file"
                )
            _report(stored := Study.load(file), split(metric) or [stored.metric], form, {}, spread)
            return
        content = study_file.read(file, tuple(changes or ()))
        folder = out or file.with_suffix("")
        if folder == file:
            raise ValueError(f"{file} has no ending, so --out is needed; expected a folder")
        computing = engine_of(engine, workers, address)
        plan = planned(
            dataset=content.datasets, folder=folder, name=content.name, compare=content.compare, metric=content.metric,
            greater_is_better=content.greater_is_better, test_rows=content.test_rows, **content.settings,
        )  # fmt: skip
        compared = split(metric) or [content.metric]
        for name in compared:
            plan.refuse_impossible(name)
        missing = len(plan.missing())
        print(f"{plan}; {missing:,} to compute", file=sys.stderr)
        if dry_run:
            return
        with progress_bar(MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("cells", total=missing)
            shown = Lines().show if bar.disable else (lambda done, _: bar.update(task, completed=done))
            try:
                plan.run(computing, shown, overwrite)
            except KeyboardInterrupt:
                print(
                    f"stopped; what is done is in {folder}. Run the same command to continue", file=sys.stderr
                )
                sys.exit(INTERRUPTED)
        spread = spread or content.spread_over_peers
        _report(plan, compared, form, content.options, spread)


def _report(study: Study, metrics: list[str], form: str, options: dict[str, Any], spread: bool) -> None:
    """Print the comparisons of some figures, and exit with 1 where cells have none."""
    _show(study, metrics, form, options, spread)
    if absent := study.incomplete:
        for cell, why in absent.items():
            print(f"peerbayes: {cell}: {why}", file=sys.stderr)
        print(f"peerbayes: {len(absent)} of {len(study.cells)} cells have no figures", file=sys.stderr)
        sys.exit(1)


def _show(study: Study, metrics: list[str], form: str, options: dict[str, Any], spread: bool) -> None:
    """Print the comparisons of some figures, as one document in CSV and JSON; with learners where figures have them."""
    if form == "csv":
        print(study.as_csv(), end="")
        return
    comparisons = [(metric, _options(study, metric, options)) for metric in metrics]
    if form == "json":
        summaries = (study.summary(metric, **of_metric) for metric, of_metric in comparisons)
        rows = [row for summary in summaries for row in json.loads(summary.to_json(orient="records"))]
        print(json.dumps({"name": study.name, "cells": len(study.cells), "summary": rows}, indent=2))
        return
    for metric, of_metric in comparisons:
        if form == "markdown":
            print(study.markdown(metric, spread_over_peers=spread, **of_metric))
        elif form == "latex":
            print(study.latex(metric=metric, spread_over_peers=spread, **of_metric), end="")
        else:
            _print_grid(study.grid(metric, spread, **of_metric))


def _options(study: Study, metric: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a figure's comparison: without learners where they do not have it."""
    shared = study.columns_of(metric, options.get("learners") or ())
    return options if shared else {**options, "learners": None}


def _print_grid(grid: Grid) -> None:
    rows = [
        [Text(text, style="bold" if mark else "") for text, mark in zip(*row, strict=True)]
        for row in zip(grid.rows, grid.marked, strict=True)
    ]
    print_table(grid.header, rows, grid.title)
    for note in grid.notes:
        print_text(note)
