"""`peerbayes report` and `peerbayes watch`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from peerbayes.cli import print_text
from peerbayes.errors import web_parts_needed
from peerbayes.report.dashboard.access import Access, Address
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE, Run
from peerbayes.simulation.view import titles

# --- `peerbayes watch`: a dashboard of a run or a peer, during the run or afterwards


@web_parts_needed()
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of a run (`simulate --out`) or of a peer.")],
    address: Annotated[
        str | None,
        typer.Option(help="[HOST:]PORT to listen on; default 127.0.0.1:8765 or the next free port."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the access token to use instead of a new one.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="A PEM file with a certificate for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="A PEM file with the certificate's key.")] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="Allow plain HTTP on an address that other machines can reach."),
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    attached: Annotated[
        bool, typer.Option("--attached", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Show a run or a peer in a browser, live. It is read-only; access from other machines requires a token."""
    access = Access.granted(Address.parse(address), token_file, certificate, key, plain_http)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected the folder of a run or a peer")
    if not access.address.loopback and not access.secure:
        print(
            "peerbayes: this is plain HTTP: anyone on the network path can read the token and the figures. Use a "
            "TLS proxy, or give --certificate and --key",
            file=sys.stderr,
        )
    from peerbayes.report.dashboard.web_server import serve

    def ready(url: str) -> None:
        print(url, flush=True)
        if open_it:
            webbrowser.open(url)

    serve(folder, access, ready, attached)


# --- `peerbayes report`


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
    section: Annotated[
        list[str] | None, typer.Option(help="Add this section of an installed package; may be repeated.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one HTML page of a run, or of several side by side; it opens offline."""
    from peerbayes import report as pages
    from peerbayes.report.style import size

    if form not in pages.FORMS:
        raise ValueError(f"--form is {form!r}; expected one of {', '.join(pages.FORMS)}")
    run_folders = [run for folder in folders for run in runs_in(folder)]
    runs = [Run.load(folder) for folder in run_folders]
    target = out or (run_folders[0] / "report.html" if len(run_folders) == 1 else Path("report.html"))
    run_titles = titles(runs, [folder.resolve().name for folder in run_folders])
    page = pages.write(target, runs, run_titles, section or ())
    print_text(f"{page} ({size(page.stat().st_size)})")
    if figures is not None:
        written = pages.figure_files(figures, runs, form, run_titles)
        print_text(f"{figures}/: {', '.join(path.name for path in written)}")
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
