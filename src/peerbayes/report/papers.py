"""Figures as image files for papers, drawn by kaleido: plotly.js in a browser on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerbayes.report.arrays import Spec
from peerbayes.report.errors import DrawingFailed
from peerbayes.report.page import drawn
from peerbayes.report.theme import colour
from peerbayes.runs import Run
from peerbayes.views import View
from peerbayes.views import titles as default_titles

FORMS = ("svg", "png", "pdf")
WIDTH = 720  # pixels: the width of a page at a readable font size
WIDER = {"features": 900, "confusion": 900}
SCALE = {"png": 3}  # 300 dots per inch at the width of a page


def figure_files(
    folder: str | Path, runs: Sequence[Run], form: str = "svg", titles: Sequence[str] | None = None
) -> list[Path]:
    """Write every figure as FOLDER/NAME.FORM, in light colours; with several runs, names end in the run's index."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    if not runs:
        raise ValueError("there are no runs; expected one or more")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    run_titles = titles or default_titles(runs, [f"run {number}" for number in range(1, len(runs) + 1)])
    specs, _ = drawn([View.of(run, title) for run, title in zip(runs, run_titles, strict=True)])
    paths = {name: target / f"{name}.{form}" for name in specs}
    _draw(
        [
            {
                "fig": printed(spec),
                "path": paths[name],
                "opts": {
                    "format": form,
                    "width": WIDER.get(name.split("-")[0], WIDTH),
                    "height": spec["layout"]["height"],
                    "scale": SCALE.get(form, 1),
                },
            }
            for name, spec in specs.items()
        ]
    )
    return list(paths.values())


def printed(spec: Spec) -> Spec:
    """Return the figure on white, without the empty traces of the selected peer."""
    white = {"paper_bgcolor": colour("paper"), "plot_bgcolor": colour("paper"), "autosize": False}
    traces = [trace for trace in spec["data"] if trace["meta"]["role"] != "chosen"]
    return {"data": traces, "layout": {**spec["layout"], **white}}


def _draw(jobs: list[dict[str, Any]]) -> None:
    try:
        import kaleido
    except ModuleNotFoundError as missing:
        raise DrawingFailed(
            f"{missing.name} is not installed; image files of figures need it: pip install 'peerbayes[figures]'"
        ) from missing
    generator = kaleido.PageGenerator(mathjax=False)  # MathJax would be loaded from the network
    try:
        kaleido.write_fig_from_object_sync(jobs, kopts={"page_generator": generator})
    except Exception as error:
        raise DrawingFailed(
            f"the figures could not be drawn: {error}. kaleido draws with Chrome or Chromium: install one "
            "(`apt install chromium`, or `kaleido_get_chrome`)"
        ) from error
