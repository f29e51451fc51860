"""Reports of runs: figures as plain plotly dictionaries, one self-contained HTML page, and image files for papers.

    report.write("report.html", [run])              one page; opens offline
    report.figure_files("figures", [run], "svg")    each figure as an image file

The extras `report` (plotly) and, for files, `figures` (kaleido) are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peerbayes.data import files
from peerbayes.report.page import FORMS, figure_files, html
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import titles as default_titles

__all__ = ["FORMS", "figure_files", "write"]


def write(
    path: str | Path, runs: Sequence[Run], titles: Sequence[str] | None = None, sections: Sequence[str] = ()
) -> Path:
    """Write one HTML page of one run, or of several side by side; by default titles name what differs between runs.

    `sections` names sections of outside packages (entry points `peerbayes.report_sections`) to add.
    """
    if not runs:
        raise ValueError("there are no runs; expected one or more")
    if titles is None:
        titles = default_titles(runs, [f"run {number}" for number in range(1, len(runs) + 1)])
    if len(titles) != len(runs):
        raise ValueError(f"{len(titles)} titles for {len(runs)} runs; expected one each")
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, html(runs, titles, sections).encode("utf-8", "replace"))
    return target
