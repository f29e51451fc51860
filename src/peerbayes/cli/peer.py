"""`peerbayes peer`: one peer, its files and its run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from peerbayes.cli import Format, Overwrite, argument, console, option, print_table, print_text, with_options
from peerbayes.data.files import printable, text_of
from peerbayes.errors import parts_needed

# Exit codes: 0 success, 1 failure, 2 a person is needed, 3 the run finished with problems, 130 interrupted.


class PeerCommands(TyperGroup):
    """The commands of a peer. `request` has an option for each setting, whose declarations take a second to import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return ["request", *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "request":
            return super().get_command(ctx, cmd_name)
        with parts_needed():
            from peerbayes.data.declarations import declarations
            from peerbayes.peer.state.peer_settings import Settings
        settings = {name: setting for name, setting in declarations(Settings).items() if setting.option != ""}
        group = typer.Typer(add_completion=False)
        group.command()(with_options(settings, needed=("name", "address", "data"))(parts_needed()(request)))
        return typer.main.get_command(group)


app = typer.Typer(
    cls=PeerCommands, help="Set up, check and run one peer.", no_args_is_help=True, add_completion=False
)

Folder = Annotated[Path, argument("The peer's folder.")]
LastRun = Annotated[
    int | None,
    option("The number of the run, from `peerbayes run list`; default: the last that has begun.", min=1),
]


def request(
    folder: Annotated[Path, argument("The peer's folder to create; its key never leaves it.")],
    **options: Any,
) -> None:
    """Create a peer's folder with a key and a certificate request."""
    from peerbayes.peer.state.folder import Home

    home = Home.create(folder, **{option: value for option, value in options.items() if value is not None})
    name, address = options["name"], options["address"]
    print(
        f"Created {name} in {folder}:\n"
        "  peer.key   its private key: never leaves this machine\n"
        "  peer.csr   its certificate request: for the network's founder\n"
        "  peer.toml  its settings: its data and the address it listens on; can be changed at any time\n"
        f"Next: send {home.request_path} and the address {address} to the founder, who sends an invitation;\n"
        f"then run `peerbayes peer join {folder} {name}.invitation`"
    )


@app.command()
@parts_needed()
def join(
    folder: Folder,
    file: Annotated[Path, argument("An invitation, a newer roster.json, or a renewed certificate.")],
    roster_beside: Annotated[
        Path | None,
        option("The roster of an invitation that has none; default: roster.json beside it.", "--roster"),
    ] = None,
) -> None:
    """Join a network with the founder's invitation, or update the roster or the certificate."""
    from peerbayes.peer.agreement.terms import Terms
    from peerbayes.peer.identity.keys import expiry, fingerprint
    from peerbayes.peer.state.folder import Home
    from peerbayes.peer.status import untested

    home = Home(folder)
    beside = roster_beside or file.with_name("roster.json")
    roster = home.join(file.read_bytes(), beside.read_bytes() if roster_beside or beside.exists() else b"")
    settings, authority = home.settings(), fingerprint(home.authority_path.read_bytes())
    state = f"{len(roster.members)} members, {'closed' if roster.closed else 'still open'}"
    print(f"{settings.name} has roster version {roster.version} of {roster.network}: {state}")
    print(f"Its certificate ends on {expiry(home.certificate_path.read_bytes()):%Y-%m-%d}")
    if settings.name in roster.revoked:
        print(f"{settings.name} was revoked: the other members ignore it. Ask the founder")
        return
    print(f"Neighbours: {', '.join(roster.neighbours(settings.name)) or 'none yet'}")
    print(f"Compare the authority's fingerprint with the founder's over another channel: {authority}")
    expected = roster.member(settings.name).address
    if expected != settings.address:
        print(
            f"Note: neighbours will connect to {expected}, but {home.settings_path} says {settings.address}"
        )
    for warning in untested(home, Terms.read(home.agreement_path)):
        print(f"Warning: {warning}")
    print(
        f"Next: read {home.agreement_path}, then `peerbayes peer check {folder}`, and then\n"
        f"`peerbayes peer serve {folder}` for all runs of the network, or `peerbayes peer run {folder}` for its first"
    )


class Plain(logging.Formatter):
    """Formatter of log lines that makes names from others printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        return printable(super().formatMessage(record))


@app.command()
@parts_needed()
def check(folder: Folder = Path(), form: Format = "table") -> None:
    """Check identity, data, clock, port and every neighbour before a run starts."""
    from peerbayes.peer.check import checks
    from peerbayes.peer.state.folder import Home

    findings, colours = [], {"ok": "green", "warning": "yellow", "failed": "red"}
    for finding in checks(Home(folder)):
        findings.append(finding)
        if form == "table":
            console.print(f"[{colours[finding.outcome]}]{finding.outcome:<7}[/] {finding.what}: ", end="")
            print_text(printable(finding.told))
    if form == "json":
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    if any(finding.outcome == "failed" for finding in findings):
        sys.exit(1)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import what a long-lived process needs, and have the garbage collector never look at it again.

    Nothing of it ever becomes garbage; collecting meanwhile takes a fifth of the time until a peer listens.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@app.command()
@parts_needed()
def run(
    folder: Folder = Path(),
    linger: Annotated[float, option("Seconds to keep serving neighbours that have not finished.")] = 3600.0,
    metrics: Annotated[
        str | None, option("[HOST:]PORT for Prometheus metrics; the default host is 127.0.0.1.")
    ] = None,
    quiet: Annotated[bool, option("Log warnings only, not every round.", "--quiet")] = False,
    dashboard: Annotated[bool, option("Show the peer in a browser while it runs.", "--dashboard")] = False,
    dashboard_address: Annotated[
        str | None,
        option("[HOST:]PORT of --dashboard on this machine; default 127.0.0.1:8765 or the next free port."),
    ] = None,
) -> None:
    """Learn with the other peers: agree, run the rounds, answer neighbours. It can be stopped and restarted.

    Exit codes: 0 done, or stopped by SIGTERM; 1 failed, a restart may help; 2 a person is needed; 3 the run finished
    with problems, see `status`; 130 stopped by Ctrl-C.
    """
    with loading():
        from peerbayes.peer import service
        from peerbayes.peer.service import person_needed
        from peerbayes.peer.state.folder import Home

    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Plain("%(asctime)s %(message)s", "%H:%M:%S"))
    home = Home(folder)
    os.umask(0o077)  # state, audit log and model are readable by their owner only
    with person_needed(folder), contextlib.ExitStack() as resources:
        if metrics is not None:
            from peerbayes.peer.prometheus import expose_metrics, write_metrics

            resources.callback(write_metrics, home)  # after the lock is released: the final values remain
        lock = resources.enter_context(service.lock(home))
        if dashboard or dashboard_address is not None:
            from peerbayes.report.dashboard.access import launch

            home.load()  # errors of the folder come first
            launched = resources.enter_context(launch(folder, dashboard_address))
            print(f"Watch it at {launched.url}", file=sys.stderr, flush=True)

        if metrics is not None:
            expose_metrics(metrics, home)
        ended = asyncio.run(service.serve(home, linger, lock))
    if not ended.done:
        logging.getLogger("peerbayes.peer").warning(
            f"stopped after round {ended.round}; `run` continues from there"
        )
        sys.exit(130 if ended.by == signal.SIGINT else 0)
    if ended.verdict is not None and not ended.verdict.good:
        from peerbayes.peer.learning.verdict import ENDED_BADLY

        sys.exit(ENDED_BADLY)  # the log says why


@app.command()
@parts_needed()
def serve(
    folders: Annotated[list[Path], argument("Folders of peers of one owner, one for each network.")],
    linger: Annotated[
        float, option("Seconds to keep answering neighbours that have not finished a run.")
    ] = 3600.0,
    metrics: Annotated[
        str | None, option("[HOST:]PORT for Prometheus metrics; the default host is 127.0.0.1.")
    ] = None,
    quiet: Annotated[bool, option("Log warnings only, not every round.", "--quiet")] = False,
) -> None:
    """Take part in all runs of one or more networks, until it is stopped.

    It passes proposals and approvals on, approves what consent.toml covers, proposes what schedule.toml says, and
    starts every run that all approved. Exit codes: 0 stopped by SIGTERM; 1 failed; 2 a person is needed; 130 stopped by
    Ctrl-C.
    """
    with loading():
        from peerbayes.peer import service, site
        from peerbayes.peer.service import person_needed
        from peerbayes.peer.state.folder import Home

    class Labelled(Plain):
        """Formatter that also says which run a line is about."""

        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
            record.message = site.LABEL.get() + record.message
            return super().formatMessage(record)

    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Labelled("%(asctime)s %(message)s", "%H:%M:%S"))
    os.umask(0o077)  # state, audit log and model are readable by their owner only
    with person_needed(folders[0]), contextlib.ExitStack() as resources:
        homes = [Home(folder) for folder in dict.fromkeys(folders)]
        locks = [resources.enter_context(service.lock(home)) for home in homes]
        if metrics is not None:
            from peerbayes.peer.prometheus import expose_metrics

            expose_metrics(metrics, *homes)
        sites = [site.Site(home, linger, lock) for home, lock in zip(homes, locks, strict=True)]
        stopped, problems = asyncio.run(service.until_stopped(site.serve_all(sites)))
        if stopped is None and problems:
            raise problems[0]
    if stopped == signal.SIGINT:
        sys.exit(130)


@app.command()
@parts_needed()
def status(
    folder: Folder = Path(),
    form: Format = "table",
    run: LastRun = None,
) -> None:
    """Show the progress of the peer, the state of its neighbours, what it refused and what it sent."""
    from peerbayes.peer.learning.held_out import error_text
    from peerbayes.peer.state.folder import Home
    from peerbayes.peer.status import status as status_of

    peer_status = status_of(Home(folder).shown_run(run))
    if form == "json":
        print(json.dumps(peer_status, indent=2))
    else:
        _print_status(peer_status, error_text)
    if not peer_status["audit"]["ok"]:
        sys.exit(1)


def _print_status(peer: dict[str, Any], describe: Callable[[dict[str, Any], bool], str]) -> None:
    """Print the status of a peer."""
    from peerbayes.peer.status import waiting_text, waits_text

    sent, private, evaluated = peer["sent"], peer["privacy"], peer["judged"]
    which = "" if peer["run"] == 1 else f", run {peer['run']}"
    console.print(
        f"{peer['name']} in {peer['network']}{which}: {_state_text(peer)}, round {peer['round']} of {peer['rounds']}"
    )
    if peer["family_choice"] and not peer["verdict"]:  # later it is one of its sentences
        print_text(f"family chosen, {peer['family_choice']['reason']}")
    for sentence in peer["verdict"]["sentences"] if peer["verdict"] else ():
        print_text(f"  {sentence}")
    console.print(f"sent {sent['messages']:,} messages, {sent['bytes']:,} bytes; model: {peer['model']}")
    if private:
        before = private["with_earlier_runs"]
        earlier = "" if before is None else f"; {before:.4g} with other runs on these rows"
        spent = f"{private['spent']:.4g} of {private['epsilon']:g} spent (delta {private['delta']:g})"
        console.print(f"private: epsilon {spent}, {private['rounds']} rounds released{earlier}")
    if evaluated:
        console.print(f"after round {evaluated['round']}: {describe(evaluated, private is not None)}")
    for waiting in peer["waiting"]:
        print_text(waiting_text(waiting))
    if peer["figures"] or peer["sites"]:
        print_text(f"figures of all sites: `peerbayes peer figures --run {peer['run']}`")
    if text := waits_text(peer["waits"]):
        print_text(text)
    for warning in peer["warnings"]:
        print_text(f"warning: {warning}")
    if not peer["audit"]["ok"]:
        print_text(f"the audit log cannot be trusted: {peer['audit']['problem']}")
    rows = [
        (
            name,
            state["link"] or "–",
            _time_text(state["seen"]),
            state["done"],
            peer["missing"].get(name, 0),
            state["note"],
        )
        for name, state in peer["neighbours"].items()
    ]
    print_table(("neighbour", "link", "last message", "round", "rounds missed", ""), rows)
    if peer["refusals"]:
        console.print("\nrefused requests:")
        refusals = [
            (refusal["who"], refusal["reason"], refusal["count"], _time_text(refusal["last"]))
            for refusal in peer["refusals"][:20]
        ]
        print_table(("from", "reason", "count", "last"), refusals)


def _state_text(peer_status: dict[str, Any]) -> str:
    """Return the state of the peer in a few words; "done" only for a run without problems."""
    if not peer_status["done"]:
        return f"running, {peer_status['phase']}" if peer_status["running"] else "not running"
    if peer_status["verdict"] is None:
        return "all rounds done, not evaluated yet"
    return "done" if peer_status["verdict"]["good"] else "finished with problems"


@app.command()
@parts_needed()
def figures(
    folder: Folder = Path(),
    form: Format = "table",
    run: LastRun = None,
) -> None:
    """Show the figures of all sites: their data before a run, this one's beside them, and errors by site after it.

    A run has them where its agreement says figures = "warn" or "stop", or evaluation = "sites". Exit codes: 0 shown;
    3 this site's data differ from all others', or figures are missing that somebody's false part spoiled.
    """
    from peerbayes.cli.site_figures import print_figures
    from peerbayes.peer.state.folder import Home
    from peerbayes.peer.status import figures_of, findings_in

    report = figures_of(Home(folder).shown_run(run))
    if form == "json":
        print(json.dumps(report, indent=2))
    else:
        print_figures(report)
    if findings_in(report["figures"]):
        sys.exit(3)


@app.command()
@parts_needed()
def trace(
    folders: Annotated[list[Path], argument("Folders of peers of one network: one's own is enough.")],
    out: Annotated[Path, option("The CSV file to write.")] = Path("lost.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Write the messages that peers have missed to a CSV file, which `simulate` replays as its message_loss."""
    from peerbayes.peer.missed_messages import missed_messages
    from peerbayes.peer.state.folder import Home

    missed = missed_messages(map(Home, folders))
    missed.trace.save(out, missed.names, overwrite)
    last = max(missed.rounds.values())
    lost = Counter(receiver for _, _, receiver in missed.trace.messages)
    rows = [
        (number, name, missed.rounds.get(name, "?"), lost[number] if name in missed.rounds else "?")
        for number, name in enumerate(missed.names)
    ]
    print_table(("number", "peer", "rounds", "messages missed"), rows)
    print(f"Wrote {len(missed.trace)} lost messages to {out}")
    if absent := [name for name in missed.names if name not in missed.rounds]:
        print(
            f"Not read: what {printable(', '.join(absent))} missed. Files of several folders can be replayed together"
        )
    for number, name in enumerate(missed.names):
        if missed.rounds.get(name, last) < last:
            print(
                f"{printable(name)} ended after round {missed.rounds[name]}: replay it with the fault "
                f'{{ kind = "away", peers = [{number}], first = {missed.rounds[name] + 1} }}'
            )


@app.command()
@parts_needed()
def renew(folder: Folder = Path()) -> None:
    """Ask the neighbours now for a new certificate; a running peer does so by itself 60 to 30 days before the end.

    Exit codes: 0 renewed; 1 not yet, and why.
    """
    from peerbayes.peer.renewing import renew_now
    from peerbayes.peer.state.folder import Home

    home = Home(folder)
    peer = home.member()
    before = home.certificate_path.read_bytes()
    print(printable(asyncio.run(renew_now(home, peer))))
    if home.certificate_path.read_bytes() == before:
        sys.exit(1)


Passphrase = Annotated[
    Path | None,
    option("A file with the passphrase in its first line; without it, the backup is not encrypted."),
]


@app.command()
@parts_needed()
def backup(
    folder: Folder,
    file: Annotated[
        Path,
        argument("The file to write; an earlier backup of this peer is replaced once the new one is whole."),
    ],
    without_key: Annotated[
        bool, option("Leave out peer.key, for a backup that others may see.", "--without-key")
    ] = False,
    passphrase_file: Passphrase = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a backup of a peer's folder into one file, also while the peer runs. Rows are not in it."""
    from peerbayes.peer.state.backup import back_up
    from peerbayes.peer.state.folder import Home

    os.umask(0o077)
    manifest = back_up(Home(folder), file, not without_key, _passphrase(passphrase_file), overwrite)
    size = sum(size for size, _ in manifest.files.values())
    secret = "with its key: keep it as safe as the key itself" if manifest.with_key else "without its key"
    if passphrase_file is not None:
        secret = f"{secret.partition(':')[0]}, under the passphrase"
    print(f"Wrote {file}: {len(manifest.files)} files of {manifest.peer}, {size:,} bytes, {secret}")


@app.command()
@parts_needed()
def restore(
    file: Annotated[Path, argument("A backup.")],
    folder: Annotated[Path, argument("The peer's folder: a new one, or one with files missing or damaged.")],
    passphrase_file: Passphrase = None,
    offline: Annotated[
        bool,
        option("Do not ask the neighbours what they have heard; an unfinished run is given up.", "--offline"),
    ] = False,
) -> None:
    """Restore a backup. What is intact stays, and the ledger keeps all; a run goes on only if nothing was sent since.

    Exit codes: 0 restored; 1 failed; 2 there is no such backup; 3 restored, and a run was given up.
    """
    from peerbayes.peer.restoring import ask_neighbours
    from peerbayes.peer.restoring import restore as restored

    os.umask(0o077)
    done = restored(file, folder, _passphrase(passphrase_file), None if offline else ask_neighbours)
    for sentence in done.sentences:
        print(printable(sentence))
    if done.given_up or done.aside:
        sys.exit(3)


@app.command()
@parts_needed()
def erase(
    folder: Folder = Path(),
    rows: Annotated[
        Path | None,
        option(
            "A .csv or .parquet with the rows: all their columns, or some that tell them, such as a number."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        option("COLUMN=VALUE of the rows; given several times, all must hold.", "--where"),
    ] = None,
    yes: Annotated[
        bool,
        option("Do not ask for confirmation where few rows name a large share of the data.", "--yes"),
    ] = False,
    form: Format = "table",
) -> None:
    """Erase rows, here and in folders of the same rows: no later run learns from them. It says what this cannot undo.

    Works while the peer runs. The rows are recorded by keyed digests in erasures.jsonl, never by their values; that
    cannot be taken back. Exit codes: 0 recorded; 1 not confirmed; 2 an invalid request: no such column, a record that
    was changed, or many rows without --yes where nobody can be asked; 3 recorded, and no row of the data equals them.
    """
    import pandas as pd

    from peerbayes.data import sources
    from peerbayes.errors import ConfigurationError
    from peerbayes.peer.erasing import erase as erased
    from peerbayes.peer.state.folder import Home

    if (rows is None) == (not where):
        raise ConfigurationError("which rows? expected --rows FILE or --where COLUMN=VALUE, one of the two")
    if rows is not None:
        table = sources.read(str(rows))
    else:
        pairs = [text.partition("=") for text in where or ()]
        if wrong := [
            text for text, (name, sign, _) in zip(where or (), pairs, strict=True) if not (name and sign)
        ]:
            raise ConfigurationError(f"--where is {wrong[0]!r}; expected COLUMN=VALUE")
        table = pd.DataFrame({name: [value] for name, _, value in pairs})
    os.umask(0o077)
    done = erased(Home(folder), table, None if yes else _confirm_erasure)
    if form == "json":
        print(json.dumps(done.to_plain(), indent=2))
    else:
        print_text(done.found.sentence)
        for sentence in done.sentences:
            print_text(f"  {sentence}")
    if done.found.only_recorded:
        sys.exit(3)


def _confirm_erasure(rows: int, of: int) -> None:
    """Ask whether that many rows are meant; where nobody can be asked, refuse."""
    from peerbayes.errors import ConfigurationError

    what = f"{rows:,} of {of:,} rows ({rows / of:.0%}) would be erased, which cannot be taken back"
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{what}; expected fewer. Add --yes if all of them are meant")
    if not typer.confirm(f"{what}. Are all of them meant?", err=True):
        sys.exit(1)


def _passphrase(file: Path | None) -> str | None:
    return None if file is None else text_of(file).partition("\n")[0]


@app.command()
@parts_needed()
def leave(
    folder: Folder = Path(),
    yes: Annotated[bool, option("Do not ask for confirmation.", "--yes")] = False,
    run: Annotated[
        int | None,
        option("The number of the run, from `peerbayes run list`; default: 1, unless that has ended.", min=1),
    ] = None,
) -> None:
    """Leave the run: notify the neighbours, and move this peer's state aside. Its model and its ledger stay."""
    from peerbayes.peer import service
    from peerbayes.peer.runs import Runs
    from peerbayes.peer.state.folder import Home

    runs = Runs(folder)
    run = runs.to_leave(run)
    finished, home = runs.is_finished(run), Home(folder).of_run(run)
    peer = home.load()
    which = "" if run == 1 else f"run {run} of "
    then = (
        "It has ended: only its state and its verdict are set aside here."
        if finished
        else "The others will continue without it."
    )
    question = f"Should {peer.name} leave {which}{peer.terms.network}? {then}"
    if not yes and not typer.confirm(question):
        sys.exit(1)
    with service.lock(home):
        for name, answer in asyncio.run(service.announce_leave(peer)).items():
            print(f"{name}: {printable(answer)}")
        aside = service.set_aside(home)
        if run > 1 and not finished:
            runs.end(run, "left", "its owner left it")
    if aside is not None:
        print(f"The state of the run was moved to {aside}; the model stays in {home.model_path}")


def _time_text(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
