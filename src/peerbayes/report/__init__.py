"""Reports of runs: figures as plain plotly dictionaries, one self-contained HTML page, and image files for papers.

    report.write("report.html", [run])              one page; opens offline
    report.figure_files("figures", [run], "svg")    each figure as an image file

The extras `report` (plotly) and, for files, `figures` (kaleido) are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerbayes.data import files
from peerbayes.errors import DrawingFailed
from peerbayes.report.page import drawn, html
from peerbayes.report.style import Spec, white
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import View
from peerbayes.simulation.view import titles as default_titles

__all__ = ["FORMS", "figure_files", "is_report", "write"]

FORMS = ("svg", "png", "pdf")
WIDTH = 720  # pixels: the width of a page at a readable font size
WIDER = {"features": 900, "shapes": 900, "pairs": 900, "confusion": 900}
GENERATOR = b'<meta name="generator" content="peerbayes">'  # in the head of every page
GENERATED_WITHIN = 4096  # bytes of a page that its head's first lines take
SCALE = {"png": 3}  # 300 dots per inch at the width of a page


def write(
    path: str | Path,
    runs: Sequence[Run],
    titles: Sequence[str] | None = None,
    sections: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Write one HTML page of one run, or of several side by side; by default titles name what differs between runs.

    `sections` names sections of outside packages (entry points `peerbayes.report_sections`) to add. A file that is
    there is replaced only with `overwrite`.
    """
    files.refuse_existing(path, overwrite)
    page = html(runs, _titles(runs, titles), sections)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, page.encode("utf-8", "replace"))
    return target


def is_report(path: Path) -> bool:
    """Return whether a file is a page that `write` made."""
    try:
        with path.open("rb") as file:
            return GENERATOR in file.read(GENERATED_WITHIN)
    except OSError:
        return False


def figure_files(
    folder: str | Path,
    runs: Sequence[Run],
    form: str = "svg",
    titles: Sequence[str] | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write every figure as FOLDER/NAME.FORM, in light colours; with several runs, names end in the run's index.

    Files that are there are replaced only with `overwrite`.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    views = [View.of(run, title) for run, title in zip(runs, _titles(runs, titles), strict=True)]
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    specs, _ = drawn(views)
    paths = {name: target / f"{name}.{form}" for name in specs}
    for path in paths.values():
        files.refuse_existing(path, overwrite)
    jobs = []
    for name, spec in specs.items():
        options = {"format": form, "scale": SCALE.get(form, 1), "height": spec["layout"]["height"]}
        options["width"] = WIDER.get(name.split("-")[0], WIDTH)
        jobs.append({"fig": printed(spec), "path": paths[name], "opts": options})
    _draw(jobs)
    return list(paths.values())


def _titles(runs: Sequence[Run], titles: Sequence[str] | None) -> Sequence[str]:
    """Return a title for each run."""
    if not runs:
        raise ValueError("there are no runs; expected one or more")
    if titles is None:
        return default_titles(runs, [f"run {number}" for number in range(1, len(runs) + 1)])
    if len(titles) != len(runs):
        raise ValueError(f"{len(titles)} titles for {len(runs)} runs; expected one each")
    return titles


def printed(spec: Spec) -> Spec:
    """Return the figure on white, without the empty traces of the selected peer."""
    traces = [trace for trace in spec["data"] if trace["meta"]["role"] != "chosen"]
    return {"data": traces, "layout": white(spec)["layout"] | {"autosize": False}}


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
