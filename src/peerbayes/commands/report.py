"""`peerbayes report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import console, exit_on_error
from peerbayes.runs import LIVE_FILE, RUN_FILE, Run
from peerbayes.views import titles


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Folders of runs, written by `simulate --out` or `demo`."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default RUN_DIR/report.html, or ./report.html for several runs."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write each figure as an image to this folder.")
    ] = None,
    form: Annotated[str, typer.Option(help="Format of these images: svg, png or pdf.")] = "svg",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one HTML page of a run, or of several side by side; it opens offline."""
    with exit_on_error():
        from peerbayes import report as pages
        from peerbayes.report.labels import size

        if form not in pages.FORMS:
            raise ValueError(f"--form is {form!r}; expected one of {', '.join(pages.FORMS)}")
        run_folders = [run for folder in folders for run in runs_in(folder)]
        runs = [Run.load(folder) for folder in run_folders]
        target = out or (run_folders[0] / "report.html" if len(run_folders) == 1 else Path("report.html"))
        run_titles = titles(runs, [folder.resolve().name for folder in run_folders])
        page = pages.write(target, runs, run_titles)
        console.print(f"{page} ({size(page.stat().st_size)})", soft_wrap=True, markup=False, highlight=False)
        if figures is not None:
            written = pages.figure_files(figures, runs, form, run_titles)
            console.print(
                f"{figures}/: {', '.join(path.name for path in written)}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
    if show:
        webbrowser.open(page.resolve().as_uri())


def runs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it contains a run, or its subfolders with runs."""
    if (folder / RUN_FILE).is_file():
        return [folder]
    run_folders = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    if run_folders:
        return run_folders
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one that `peerbayes simulate --out` wrote")
    if (folder / LIVE_FILE).exists():
        raise ValueError(
            f"{folder} contains a run that is not finished: see it with `peerbayes watch {folder}`"
        )
    if (folder / "peer.toml").exists():
        raise ValueError(
            f"{folder} is a peer's home; reports are of simulated runs. Use `peerbayes watch {folder}`"
        )
    raise ValueError(
        f"{folder} contains no run: neither {RUN_FILE} nor subfolders with one. Create one with "
        f"`peerbayes simulate FILE --out {folder}`"
    )
