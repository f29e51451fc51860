"""`peerbayes report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import console, explained
from peerbayes.runs import LIVE_FILE, RUN_FILE, Run
from peerbayes.views import titles


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Runs that `simulate --out` or `demo` kept.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; RUN_DIR/report.html, or ./report.html of several runs.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write each figure as a file into this folder.")
    ] = None,
    form: Annotated[str, typer.Option(help="What files those are: svg, png or pdf.")] = "svg",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """One HTML page of a run, or of several side by side; it opens without a network."""
    with explained():
        from peerbayes import report as pages
        from peerbayes.report.labels import size

        if form not in pages.FORMS:
            raise ValueError(f"--form is {form!r}; expected one of {', '.join(pages.FORMS)}")
        found = [run for folder in folders for run in runs_in(folder)]
        runs = [Run.load(folder) for folder in found]
        target = out or (found[0] / "report.html" if len(found) == 1 else Path("report.html"))
        called = titles(runs, [folder.resolve().name for folder in found])
        page = pages.write(target, runs, called)
        console.print(f"{page} ({size(page.stat().st_size)})", soft_wrap=True, markup=False, highlight=False)
        if figures is not None:
            written = pages.figure_files(figures, runs, form, called)
            console.print(
                f"{figures}/: {', '.join(path.name for path in written)}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
    if show:
        webbrowser.open(page.resolve().as_uri())


def runs_in(folder: Path) -> list[Path]:
    """The folder itself where it holds a run, or the runs that lie in it."""
    if (folder / RUN_FILE).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    if found:
        return found
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one that `peerbayes simulate --out` wrote")
    if (folder / LIVE_FILE).exists():
        raise ValueError(f"{folder} holds a run that is not finished: see it with `peerbayes watch {folder}`")
    if (folder / "peer.toml").exists():
        raise ValueError(
            f"{folder} is a peer's home; a report is of simulated runs. See `peerbayes watch {folder}`"
        )
    raise ValueError(
        f"{folder} holds no run: neither {RUN_FILE} nor folders with one. Make one with "
        f"`peerbayes simulate FILE --out {folder}`"
    )
