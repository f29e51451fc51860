"""`peerbayes node`: one peer's file, its neighbours, its rounds.

Exit codes: 0 done, 1 failed, 2 a person is needed, 3 a run that ended, but not well, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes.commands import node_files
from peerbayes.commands.shared import console, explained, known_format, print_table
from peerbayes.peers.errors import parts_needed
from peerbayes.peers.verdict import ENDED_BADLY
from peerbayes.text import printable

app = typer.Typer(
    help="One peer: its folder, its neighbours, its rounds.", no_args_is_help=True, add_completion=False
)
app.command()(node_files.request)
app.command()(node_files.join)

Folder = Annotated[Path, typer.Argument(help="The peer's folder.")]
Format = Annotated[str, typer.Option("--format", help="table or json.")]


class Plain(logging.Formatter):
    """Lines of a log, whatever names from others are in them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        return printable(super().formatMessage(record))


@app.command()
def check(folder: Folder = Path(), form: Format = "table") -> None:
    """Look at identity, data, clock, port and every neighbour before anything starts."""
    with explained(), parts_needed():
        from peerbayes.peers.checks import checks
        from peerbayes.peers.home import Home

        known_format(form)
        found = []
        for finding in checks(Home(folder)):
            found.append(finding)
            if form == "table":
                mark = {
                    "ok": "[green]ok     [/green]",
                    "warning": "[yellow]warning[/yellow]",
                    "failed": "[red]failed [/red]",
                }
                console.print(f"{mark[finding.outcome]} {finding.what}: ", end="")
                console.print(printable(finding.told), markup=False, highlight=False, soft_wrap=True)
    if form == "json":
        print(json.dumps([vars(finding) for finding in found], indent=2))
    if any(finding.outcome == "failed" for finding in found):
        sys.exit(1)


@app.command()
def run(
    folder: Folder = Path(),
    linger: Annotated[float, typer.Option(help="Seconds to stay for neighbours that are not done.")] = 3600.0,
    metrics: Annotated[
        str | None, typer.Option(help="[HOST:]PORT for Prometheus; 127.0.0.1 unless a host is named.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Warnings only, no line per round.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show it in a browser while it runs.")
    ] = False,
    dashboard_address: Annotated[
        str | None,
        typer.Option(help="[HOST:]PORT of this machine for --dashboard; 127.0.0.1:8765 or the next."),
    ] = None,
) -> None:
    """Learn with the others: agree, go through the rounds, answer neighbours. Stop and start it at any time.

    Exit codes: 0 done, or stopped by SIGTERM; 1 failed, and may go better the next time; 2 a person is needed; 3 the
    run came to its end, but not well: see `status`; 130 stopped by Ctrl-C.
    """
    with explained(), parts_needed():
        from peerbayes.peers import handshakes, service
        from peerbayes.peers.home import Home
        from peerbayes.peers.person import person_needed

        logging.basicConfig(level=logging.WARNING if quiet else logging.INFO)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(Plain("%(asctime)s %(message)s", "%H:%M:%S"))
        home = Home(folder)
        os.umask(0o077)  # state, audit log and model are the owner's alone
        with person_needed(folder), contextlib.ExitStack() as beside:
            if metrics is not None:
                from peerbayes.peers import prometheus

                beside.callback(
                    prometheus.write, home
                )  # once the folder is free: what they are at the end stays
            held = beside.enter_context(service.lock(home))
            if dashboard or dashboard_address is not None:
                from peerbayes.web.launch import launch

                home.load()  # what is wrong with the folder is said first
                launched = beside.enter_context(launch(folder, dashboard_address))
                print(f"Watch it at {launched.url}", file=sys.stderr, flush=True)
            journals: list[Any] = []
            handshakes.watch(
                lambda reason, detail: (
                    journals[0].refused("an unknown host", reason, detail) if journals else None
                )
            )
            if metrics is not None:
                prometheus.expose(metrics, home)
            ended = asyncio.run(service.serve(home, linger, journals, held))
    if not ended.done:
        logging.getLogger("peerbayes.peer").warning(
            f"stopped after round {ended.round}; `run` goes on from there"
        )
        sys.exit(130 if ended.by == signal.SIGINT else 0)
    if ended.verdict is not None and not ended.verdict.good:
        sys.exit(ENDED_BADLY)  # the log has said why


@app.command()
def status(folder: Folder = Path(), form: Format = "table") -> None:
    """How far the peer is, whom it hears, what it refused, what it sent."""
    with explained(), parts_needed():
        from peerbayes.peers.home import Home
        from peerbayes.peers.judge import told as words
        from peerbayes.peers.status import status as status_of

        known_format(form)
        told = status_of(Home(folder))
    if form == "json":
        print(json.dumps(told, indent=2))
    else:
        _show(told, words)
    if not told["audit"]["ok"]:
        sys.exit(1)


def _show(told: dict[str, Any], words: Callable[[dict[str, Any], bool], str]) -> None:
    """Print how a peer stands."""
    console.print(
        f"{told['name']} in {told['network']}: {_state(told)}, round {told['round']} of {told['rounds']}"
    )
    if told["verdict"]:
        for sentence in told["verdict"]["sentences"]:
            console.print(f"  {sentence}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"sent {told['sent']['messages']:,} messages, {told['sent']['bytes']:,} bytes; model: {told['model']}"
    )
    if told["privacy"]:
        console.print(_private(told["privacy"]))
    if told["judged"]:
        console.print(
            f"after round {told['judged']['round']}: {words(told['judged'], told['privacy'] is not None)}"
        )
    for warning in told["warnings"]:
        console.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    if not told["audit"]["ok"]:
        problem = f"the audit log cannot be trusted: {told['audit']['problem']}"
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    rows = [
        (name, _when(line["seen"]), line["done"], told["missing"].get(name, 0), line["note"])
        for name, line in told["neighbours"].items()
    ]
    print_table(("neighbour", "last heard", "round", "rounds without it", ""), rows)
    if told["refusals"]:
        console.print("\nrefused:")
        print_table(
            ("from", "reason", "times", "last"),
            [(r["who"], r["reason"], r["count"], _when(r["last"])) for r in told["refusals"][:20]],
        )


def _state(told: dict[str, Any]) -> str:
    """How the peer stands, in a word or two; "done" is said of a good end only."""
    if not told["done"]:
        return f"running, {told['phase']}" if told["running"] else "not running"
    if told["verdict"] is None:
        return "at its end, not judged yet"
    return "done" if told["verdict"]["good"] else "ended, but not well"


def _private(told: dict[str, Any]) -> str:
    """What was spent, as a line."""
    before = told["with_earlier_runs"]
    return (
        f"private: epsilon {told['spent']:.4g} of {told['epsilon']:g} spent (delta {told['delta']:g}), "
        f"{told['rounds']} rounds released"
        + (f"; {before:.4g} with other runs on these rows" if before is not None else "")
    )


@app.command()
def leave(
    folder: Folder = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave the run: tell the neighbours, and set this peer's state aside. Its model and its ledger stay."""
    with explained(), parts_needed():
        from peerbayes.peers import service
        from peerbayes.peers.farewell import farewell
        from peerbayes.peers.home import Home

        home = Home(folder)
        peer = home.load()
        if not yes and not typer.confirm(
            f"{peer.name} leaves {peer.terms.network}; the others go on without it?"
        ):
            sys.exit(1)
        with service.lock(home):
            for name, told in asyncio.run(farewell(peer)).items():
                print(f"{name}: {printable(told)}")
            aside = service.set_aside(home)
    if aside is not None:
        print(f"The state of the run is now {aside}; the model stays in {home.model_path}")


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
