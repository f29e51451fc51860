"""`peerbayes report` and `peerbayes watch`."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from peerbayes.cli import Overwrite, argument, option, print_text
from peerbayes.data.files import size
from peerbayes.errors import web_parts_needed
from peerbayes.report.dashboard.access import Access, Address
from peerbayes.simulation.loading import STUDY_FILE
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE, Run
from peerbayes.simulation.view import titles

# --- `peerbayes watch`: a dashboard of a run or a peer, during the run or afterwards


@web_parts_needed()
def watch(
    folders: Annotated[
        list[Path],
        argument(
            "The folder of a run (`simulate --out`) or of a peer; several runs, or a folder of runs, are shown side by "
            "side.",
            metavar="FOLDER...",
        ),
    ],
    address: Annotated[
        str | None, option("[HOST:]PORT to listen on; default 127.0.0.1:8765 or the next free port.")
    ] = None,
    token_file: Annotated[
        Path | None, option("A file with the access token to use instead of a new one.")
    ] = None,
    certificate: Annotated[Path | None, option("A PEM file with a certificate for TLS.")] = None,
    key: Annotated[Path | None, option("A PEM file with the certificate's key.")] = None,
    plain_http: Annotated[
        bool, option("Allow plain HTTP on an address that other machines can reach.", "--plain-http")
    ] = False,
    open_it: Annotated[bool, option("Open the dashboard in a browser.", "--open")] = False,
    attached: Annotated[bool, option("End when standard input does.", "--attached", hidden=True)] = False,
) -> None:
    """Show a run or a peer in a browser, live. It is read-only; access from other machines requires a token."""
    access = Access.granted(Address.parse(address), token_file, certificate, key, plain_http)
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; expected the folder of a run or a peer")
        if len(folders) > 1 and (folder / "peer.toml").exists():
            raise ValueError(
                f"{folder} is a peer's folder; expected it alone: only runs are shown side by side"
            )
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

    serve(folders[0], access, ready, attached, folders[1:])


# --- `peerbayes report`


def report(
    folders: Annotated[
        list[Path], argument("Folders of runs, written by `simulate --out` or `demo`.", metavar="RUN_DIR...")
    ],
    out: Annotated[
        Path | None, option("The page; default RUN_DIR/report.html, or ./report.html for several runs.")
    ] = None,
    figures: Annotated[Path | None, option("Also write each figure as an image to this folder.")] = None,
    form: Annotated[str, option("Format of these images: svg, png or pdf.")] = "svg",
    section: Annotated[
        list[str] | None, option("Add this section of an installed package; may be repeated.")
    ] = None,
    show: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page of a run, or of several side by side; it opens offline."""
    from peerbayes import report as pages

    if form not in pages.FORMS:
        raise ValueError(f"--form is {form!r}; expected one of {', '.join(pages.FORMS)}")
    run_folders = [run for folder in folders for run in runs_in(folder)]
    runs = [Run.load(folder) for folder in run_folders]
    target = out or (run_folders[0] / "report.html" if len(run_folders) == 1 else Path("report.html"))
    run_titles = titles(runs, [folder.resolve().name for folder in run_folders])
    # Without --out the page is ours to name: an earlier report there is made again.
    replaces = overwrite or (out is None and pages.is_report(target))
    page = pages.write(target, runs, run_titles, section or (), replaces)
    print_text(f"{page} ({size(page.stat().st_size)})")
    if figures is not None:
        written = pages.figure_files(figures, runs, form, run_titles, overwrite)
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
        problem = "is not a folder; expected one that `peerbayes simulate --out` wrote"
    elif (folder / STUDY_FILE).is_file():
        problem = "is the folder of a study, which keeps figures and no runs; "
        problem += f"`peerbayes study {folder}` shows its table, and study.plot() of pb.load its figures"
    elif (folder / LIVE_FILE).exists():
        problem = f"contains a run that is not finished: see it with `peerbayes watch {folder}`"
    elif (folder / "peer.toml").exists():
        problem = f"is a peer's home; reports are of simulated runs. Use `peerbayes watch {folder}`"
    else:
        problem = f"contains no run: neither {RUN_FILE} nor subfolders with one. Create one with "
        problem += f"`peerbayes simulate FILE --out {folder}`"
    raise ValueError(f"{folder} {problem}")
