"""`peerbayes run`: the runs of a network: propose, approve, decline, list and show them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peerbayes.cli import Format, argument, option, print_table, print_text
from peerbayes.data.files import as_json
from peerbayes.errors import parts_needed

if TYPE_CHECKING:
    from peerbayes.peer.runs import RunEntry, Runs

# Exit codes: 0 success, 2 an invalid request: no such run, one that was decided already, or terms that do not fit.

app = typer.Typer(
    help="Propose, approve and follow the runs of a network. They work whether the peer runs or not.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, option("The peer's folder.", "--folder")]
Said = Annotated[
    str | None, option("How the digest begins that `show` printed; needed where a run has several proposals.")
]
Number = Annotated[int, argument("The number of a run, from `list`.", min=1)]


@app.command()
@parts_needed()
def propose(
    folder: Folder = Path(),
    terms: Annotated[Path | None, option("The agreement of the run; default: that of the last run.")] = None,
    warm: Annotated[
        bool | None,
        option("Begin with the model of the last run, or afresh; default: with the model, if there is one."),
    ] = None,
    days: Annotated[float, option("Days that the members have to approve it.")] = 7.0,
    form: Format = "table",
) -> None:
    """Propose the next run to all members, and approve it in this peer's name."""
    from peerbayes.data.files import text_of

    runs, text = _runs(folder), None if terms is None else text_of(terms)
    for other in runs.entries():
        if other.state == "proposed" and other.proposal is not None:
            print(
                f"Note: run {other.number} is open as well, proposed by {other.proposal.member}; its proposer "
                f"withdraws it with `peerbayes run decline {other.number}`",
                file=sys.stderr,
            )
    entry = runs.propose(text, warm, days)
    _print_decided(folder, entry, form, "is proposed, and approved here")


@app.command()
@parts_needed()
def approve(number: Number, folder: Folder = Path(), proposal: Said = None, form: Format = "table") -> None:
    """Approve a run, whose terms `show` prints; that cannot be taken back."""
    _print_decided(folder, _runs(folder).approve(number, proposal=proposal), form, "is approved here")


@app.command()
@parts_needed()
def decline(
    number: Number,
    folder: Folder = Path(),
    reason: Annotated[str, option("Why, for the other members.")] = "",
    proposal: Said = None,
    form: Format = "table",
) -> None:
    """Decline a run, which ends its proposal for all members. Its proposer withdraws it so, as long as it is open."""
    _print_decided(folder, _runs(folder).decline(number, reason, proposal), form, "is declined here")


@app.command("list")
@parts_needed()
def list_runs(folder: Folder = Path(), form: Format = "table") -> None:
    """List all runs: who proposed each, who approved it, and how it stands."""
    entries = _runs(folder).entries()
    if form == "json":
        print(as_json([entry.to_plain() for entry in entries]))
        return
    rows = [
        (
            entry.number,
            entry.state,
            "the founder" if entry.proposal is None else entry.proposal.member,
            "–" if entry.proposal is None else f"{len(entry.approved)} of {len(entry.participants)}",
            entry.round or "–",
            "–" if entry.verdict is None else "good" if entry.verdict.get("good") else "problems",
            entry.sentence if entry.state not in ("done", "running") else "",
        )
        for entry in entries
    ]
    print_table(("run", "state", "proposed by", "approved", "round", "verdict", ""), rows)


@app.command()
@parts_needed()
def show(number: Number, folder: Folder = Path(), form: Format = "table") -> None:
    """Show a run: its terms, who decided what, and what stands in the way of this peer's approval."""
    runs = _runs(folder)
    entry = runs.entry(number)
    own = runs.home.settings().name
    open_here = entry.state == "proposed" and own in entry.waiting
    obstacles = runs.obstacles(entry) if open_here else []
    before, differences = runs.before(number), None
    if before is not None and before.terms is not None and entry.terms is not None:
        differences = before.terms.differences(entry.terms)
    if form == "json":
        text = None if entry.proposal is None else entry.proposal.terms
        print(
            as_json(
                {**entry.to_plain(), "obstacles": obstacles, "differences": differences, "agreement": text}
            )
        )
        return
    print_text(f"run {number}: {entry.state}. {entry.sentence}")
    if (proposal := entry.proposal) is not None:
        warm = "" if proposal.warm_from is None else f", begins with the model of run {proposal.warm_from}"
        print_text(
            f"proposed by {proposal.member} on {_time(proposal.at)}, open until {_time(proposal.expires)}{warm}; "
            f"{proposal.digest}"
        )
        rows = [
            (name, entry.decisions[name].choice, entry.decisions[name].by, _time(entry.decisions[name].at),
             entry.decisions[name].reason)
            if name in entry.decisions else (name, "–", "", "", "")
            for name in entry.participants
        ]  # fmt: skip
        print_table(("member", "decision", "by", "on", "reason"), rows)
    for digest in entry.others:
        print_text(
            f"another proposal of this number, {digest:.16}, does not go on: of several, the one with the lowest "
            "digest does, unless all have approved another"
        )
    for obstacle in obstacles:
        print_text(f"not approved by itself: {obstacle}")
    if open_here:
        said = f" --proposal {entry.proposal.digest:.16}" if entry.proposal is not None else ""
        print_text(f"Next: read the terms, then `peerbayes run approve {number}{said}` or `decline`")
    if before is not None and differences is not None:
        print_text(
            f"its terms differ from those of run {before.number}, which come first:"
            if differences
            else f"its terms are those of run {before.number}:"
        )
        for difference in differences:
            print_text(f"  {difference}")
        print_text()
    if entry.terms is not None:
        print_text(entry.terms.to_toml())
    elif proposal is not None:
        print_text(proposal.terms)


GOES_ON = ("proposed", "approved")  # states of a run that may still begin


def _runs(folder: Path) -> Runs:
    from peerbayes.peer.runs import Runs

    return Runs(folder)


def _print_decided(folder: Path, entry: RunEntry, form: str, what: str) -> None:
    from peerbayes.peer.state.disk import running
    from peerbayes.peer.state.folder import Home
    from peerbayes.peer.status import untested

    if form == "json":
        print(as_json(entry.to_plain()))
        return
    print_text(f"Run {entry.number} {what}: {entry.state}. {entry.sentence}")
    home = Home(folder)
    for warning in untested(home, entry.terms) if entry.terms is not None and entry.state in GOES_ON else ():
        print_text(f"warning: {warning}")
    if not running(home):
        print_text(
            f"The site's process is not running: start it with `peerbayes peer serve {folder}`, so that the other "
            "members hear of this."
        )
    elif entry.state == "proposed":
        print_text("The site's process (`peerbayes peer serve`) passes it on to the other members.")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
