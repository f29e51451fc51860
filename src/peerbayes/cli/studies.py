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

STUDY_FORMATS = ("table", "markdown", "latex", "csv", "json")
INTERRUPTED = 130


def study(
    file: Annotated[
        Path, argument("A TOML file with [study], [data] and [simulation]; a list has several values.")
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
    from peerbayes.experiments.study_plan import Lines, planned

    with exit_on_error(), plain_warnings():
        check_format(form, STUDY_FORMATS)
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
        for name in compared:
            _show(plan, name, form, content.options, spread or content.spread_over_peers)
        if absent := plan.incomplete:
            for cell, why in absent.items():
                print(f"peerbayes: {cell}: {why}", file=sys.stderr)
            print(f"peerbayes: {len(absent)} of {len(plan.cells)} cells have no figures", file=sys.stderr)
            sys.exit(1)


def _show(study: Study, metric: str, form: str, options: dict[str, Any], spread: bool) -> None:
    """Print the comparison of a figure, with learners where they have it."""
    if not study.columns_of(metric, options["learners"] or ()):
        options = {**options, "learners": None}
    if form == "csv":
        print(study.as_csv(), end="")
    elif form == "json":
        rows = json.loads(study.summary(metric, **options).to_json(orient="records"))
        print(json.dumps({"name": study.name, "cells": len(study.cells), "summary": rows}, indent=2))
    elif form == "markdown":
        print(study.markdown(metric, spread_over_peers=spread, **options))
    elif form == "latex":
        print(study.latex(metric=metric, spread_over_peers=spread, **options), end="")
    else:
        grid = study.grid(metric, spread, **options)
        rows = [
            [Text(text, style="bold" if mark else "") for text, mark in zip(*row, strict=True)]
            for row in zip(grid.rows, grid.marked, strict=True)
        ]
        print_table(grid.header, rows, grid.title)
        for note in grid.notes:
            print_text(note)
