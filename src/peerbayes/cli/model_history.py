"""`peerbayes model`: the versions of a peer's model, and which one applications read."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerbayes.cli import Format, argument, option, print_table, print_text
from peerbayes.data.files import as_json
from peerbayes.errors import ModelFileError, parts_needed

if TYPE_CHECKING:
    from peerbayes.peer.models.history import History

# Exit codes: 0 success, 2 an invalid request: no such version, a damaged one, or a peer that runs.

app = typer.Typer(
    help="List the versions of a peer's model, and choose which one applications read.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, option("The peer's folder.", "--folder")]
Number = Annotated[int, argument("The number of a version, from `list`.", min=1)]


@app.command("list")
@parts_needed()
def list_versions(folder: Folder = Path(), form: Format = "table") -> None:
    """List all versions: when and by which run each was made, and whether its run ended well."""
    from peerbayes.peer.models.history import MODEL

    history = _history(folder)
    versions, current = history.versions(), history.in_use()
    if form == "json":
        print(as_json([{**asdict(version), "in_use": version.number == current} for version in versions]))
        return
    if not versions:
        print_text(f"no versions in {history.folder} yet: a run that ends makes one")
        return
    rows = [
        (
            version.number,
            "in use" if version.number == current else "",
            _time_text(version.at),
            version.network,
            "–" if version.run_number is None else version.run_number,
            version.rounds,
            "–" if version.verdict is None else "good" if version.verdict.get("good") else "problems",
        )
        for version in versions
    ]
    print_table(("version", "", "recorded", "network", "run", "rounds", "verdict"), rows)
    if current is None:
        print_text(f"{history.home / MODEL} is none of them: a run may be under way, or no version is chosen")
    for number in sorted({*history.numbers()} - {version.number for version in versions}):
        print_text(f"version {number} cannot be read: `peerbayes model show {number}` says why")


@app.command()
@parts_needed()
def show(number: Number, folder: Folder = Path(), form: Format = "table") -> None:
    """Show what is known of a version: its run, its terms, the verdict, the figures, and where its card is."""
    from peerbayes.peer.models.card import HTML, MARKDOWN
    from peerbayes.peer.models.figure_tables import SITE_HEADS, site_rows

    history = _history(folder)
    version = history.version(number)
    if form == "json":
        print(as_json({**asdict(version), "in_use": history.in_use() == number}))
        return
    print_text(f"version {number} of {version.network}, {_time_text(version.at)}: {history.path(number)}")
    print_text("in use" if history.in_use() == number else "not in use")
    which = "" if version.run_number is None else f"{version.run_number}, "
    print_text(f"run   {which}{version.run}, {version.rounds} rounds")
    print_text(f"model {version.model}\nrows  {version.data}")
    if version.privacy is not None:
        print_text(f"epsilon {version.privacy['spent']:.4g} of {version.privacy['epsilon']:g} spent")
    if version.on_rows is not None:
        print_text(f"epsilon {version.on_rows['epsilon']:.4g} spent by all runs over the same rows")
    for each in version.approvals:
        print_text(f"approved by {each['name']}, {_time_text(each['at'])}, by {each['by']}")
    for name in version.approved if not version.approvals else ():
        print_text(f"approved by {name}")
    for sentence in (version.verdict or {}).get("sentences", ()):
        print_text(f"  {sentence}")
    if sites := version.figures.get("sites"):
        print_table(SITE_HEADS, site_rows(sites))
    print_text(f"model card: {history.path(number).with_name(MARKDOWN)} and {HTML}\n")
    print_text(version.terms)


@app.command()
@parts_needed()
def use(number: Number, folder: Folder = Path(), form: Format = "table") -> None:
    """Have applications read this version from now on."""
    history = _history(folder)
    _refuse_running(folder)
    _print_used(history, asdict(history.use(number)), form)


@app.command()
@parts_needed()
def back(folder: Folder = Path(), form: Format = "table") -> None:
    """Go back to the version before the one in use."""
    history = _history(folder)
    _refuse_running(folder)
    _print_used(history, asdict(history.back()), form)


def _print_used(history: History, version: dict[str, Any], form: str) -> None:
    from peerbayes.peer.models.history import MODEL

    if form == "json":
        print(as_json(version))
    else:
        print_text(f"{history.home / MODEL} is version {version['number']} now")


def _history(folder: Path) -> History:
    from peerbayes.peer.models.history import History

    if not folder.is_dir():
        raise ModelFileError(f"{folder} does not exist; expected a peer's folder")
    return History(folder)


def _refuse_running(folder: Path) -> None:
    """Refuse to change a file that a running peer writes after its rounds: that of a network's first run."""
    from peerbayes.peer.state.disk import phase
    from peerbayes.peer.state.folder import Home

    current = phase(Home(folder))
    if current is not None and not current.startswith("serving"):  # a site writes each run's model elsewhere
        raise ModelFileError(
            f"the peer in {folder} runs ({current}) and would write its own model over this one; stop it first, or wait"
        )


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
