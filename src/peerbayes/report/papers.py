"""Figures as files for papers, by kaleido: plotly.js in a browser on this machine."""

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
from peerbayes.views import titles as names_of

FORMS = ("svg", "png", "pdf")
WIDTH = 720  # pixels: a page's width at a readable letter
WIDER = {"features": 900, "confusion": 900}
SCALE = {"png": 3}  # 300 dots an inch where the width is that of a page


def figure_files(
    folder: str | Path, runs: Sequence[Run], form: str = "svg", titles: Sequence[str] | None = None
) -> list[Path]:
    """Write every figure as FOLDER/NAME.FORM, in light colours; of several runs with a number behind the name."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    if not runs:
        raise ValueError("there are no runs; expected one or more")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    called = titles or names_of(runs, [f"run {number}" for number in range(1, len(runs) + 1)])
    made, _ = drawn([View.of(run, title) for run, title in zip(runs, called, strict=True)])
    paths = {name: target / f"{name}.{form}" for name in made}
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
            for name, spec in made.items()
        ]
    )
    return list(paths.values())


def printed(spec: Spec) -> Spec:
    """On white, without the traces that wait for somebody to choose a peer."""
    white = {"paper_bgcolor": colour("paper"), "plot_bgcolor": colour("paper"), "autosize": False}
    kept = [trace for trace in spec["data"] if trace["meta"]["role"] != "chosen"]
    return {"data": kept, "layout": {**spec["layout"], **white}}


def _draw(orders: list[dict[str, Any]]) -> None:
    try:
        import kaleido
    except ModuleNotFoundError as missing:
        raise DrawingFailed(
            f"{missing.name} is not installed; files for papers need it: pip install 'peerbayes[figures]'"
        ) from missing
    generator = kaleido.PageGenerator(mathjax=False)  # it would be fetched from elsewhere
    try:
        kaleido.write_fig_from_object_sync(orders, kopts={"page_generator": generator})
    except Exception as error:
        raise DrawingFailed(
            f"no figure could be drawn: {error}. kaleido draws with Chrome or Chromium: install one "
            "(`apt install chromium`, or `kaleido_get_chrome`)"
        ) from error
