"""Restoring a backup: missing and damaged files come back, and the ledger has at least what left.

What is intact in the folder stays: a newer audit log, roster or model is worth more than the backup's. The run of a
backup goes on only where it is sure that nothing was sent since: the folder's own newer log says so, or the run had
ended, or every neighbour says so. Otherwise the run is set aside, and whatever it may have released since the backup
counts as released: what was left of the agreed epsilon.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from peerbayes.data import files
from peerbayes.data.files import printable
from peerbayes.errors import PeerbayesError, PeerError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.greeter import Greeter
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.roster import OUTBOUND, Roster
from peerbayes.peer.learning import kept_rows
from peerbayes.peer.protocol.session import idle_session
from peerbayes.peer.protocol.wire import Process
from peerbayes.peer.runs.book import Runs
from peerbayes.peer.state.audit_log import Log, Tail
from peerbayes.peer.state.backup import AUDIT, STATE, Backup, opened
from peerbayes.peer.state.disk import lock
from peerbayes.peer.state.folder import ASIDE, Home, Peer
from peerbayes.peer.state.ledger import ASSUMED, RESERVED, Stored, assume, planned_cost, problem_of
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.peer.state.same_rows import IN_PART, locked
from peerbayes.peer.state.store import NoState, Store

ASK_TIMEOUT = 10.0  # seconds for a neighbour's answer
COMES_TIMEOUT = 20.0  # the same for one that is outbound: it calls this peer every few seconds
TERMS, OUTCOME = "agreement.toml", "outcome.json"
UNFINISHED = ".restoring"  # a file in the folder of a run while it is restored
LOST = "lost"  # the state of a run of which a backup knows nothing but its terms

Heard = Callable[[Peer, Process], "Neighbours"]


@dataclass
class Neighbours:
    """What the neighbours of a restored peer know of it."""

    confirmed: list[str] = field(default_factory=list)
    """Those that have nothing from it that the backup does not have."""
    silent: dict[str, str] = field(default_factory=dict)
    """Those that did not answer, and why."""
    later: dict[str, Process] = field(default_factory=dict)
    """What others have heard of it that the backup does not know."""

    @property
    def sure(self) -> bool:
        """Whether nobody has anything that the backup does not have."""
        return bool(self.confirmed) and not self.silent and not self.later


@dataclass
class Restored:
    """What was done, in sentences."""

    sentences: list[str] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)
    """States of runs that were set aside."""
    given_up: list[int] = field(default_factory=list)
    """Numbers of the runs that do not go on."""
    awaited: list[int] = field(default_factory=list)
    """Those of them that others may still wait for: nobody is known to have begun."""

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


def restore(path: Path, folder: Path, passphrase: str | None = None, heard: Heard | None = None) -> Restored:
    """Restore a backup into a folder, new or not. `heard` asks the neighbours; None: nobody is asked.

    Killed at any point, it leaves a folder whose ledger has all that both had, and whose run does not contradict
    itself: restore again, and it completes.
    """
    home, done = Home(folder), Restored()
    with opened(path, folder, passphrase) as backup, contextlib.ExitStack() as resources:
        whose = f"{backup.manifest.peer} in {backup.manifest.network}"
        done.say(f"The backup of {whose} is of {_made(backup)}, and whole")
        _refuse_other(home, backup)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        resources.enter_context(lock(home))
        resources.enter_context(locked([folder]))  # until then, nobody knows what was spent on these rows
        files.write(folder / IN_PART, b"")
        for where in _run_folders(backup.folder):
            _restore_run(home, backup, where, heard, done)
        _fill_in(home, backup, done)
        if 1 in done.given_up or (_has_log(folder) and not (folder / STATE).exists()):
            kept_rows.forget(home)
            (folder / RESERVED).unlink(missing_ok=True)  # what was reserved counts as released
        (folder / IN_PART).unlink()
        _take_back(home, done)
        if not home.key_path.exists():
            done.say(f"The backup has no key: bring {home.key_path} back from where you keep it")
    return done


def _refuse_other(home: Home, backup: Backup) -> None:
    """Refuse a folder of another peer, or of another network."""
    name, elsewhere = "", "restore it into a folder of its own"
    with contextlib.suppress(PeerbayesError, OSError):
        name = Settings.read(home.settings_path).name
    if name not in ("", backup.manifest.peer):
        raise PeerError(
            f"{home.folder} is the folder of {name}, and the backup is of {backup.manifest.peer}; {elsewhere}"
        )
    authority = Home(backup.folder).authority_path.read_bytes()
    if home.authority_path.exists() and home.authority_path.read_bytes() != authority:
        raise PeerError(f"{home.folder} belongs to another network than the backup; {elsewhere}")


# --- runs: their logs, and then their states


def _run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of all runs, relative to the peer's; that of the first run is the peer's itself."""
    names = (STATE, AUDIT, TERMS)
    yield from sorted({path.parent.relative_to(folder) for name in names for path in folder.rglob(name)})


def _number(where: Path) -> int:
    return int(where.name) if where.name else 1


def _restore_run(home: Home, backup: Backup, where: Path, heard: Heard | None, done: Restored) -> None:
    source, target = backup.folder / where, home.folder / where
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    stored = Stored.read(source / STATE)
    if (target / STATE).exists():
        if (kept := _readable(target / STATE)) is None:
            damaged = _free(target, "state.damaged-{}")
            _moved(target / STATE, damaged)
            done.say(f"{target / STATE} is damaged, and was moved to {damaged}")
        elif _problem(kept, target) is None:
            done.say(f"{target / STATE} and its log are intact and stay, after round {kept.round or 0}")
            _count_as_well(source, target, stored, kept, done)
            return
        else:
            _restore_log(source / AUDIT, target / AUDIT, done)
            _give_up(
                _number(where), target / STATE, target, kept, done, "its audit log was gone, or another one"
            )
    killed = (target / UNFINISHED).exists()  # then the log may be the backup's
    files.write(target / UNFINISHED, b"")
    exact = _restore_log(source / AUDIT, target / AUDIT, done) and not killed
    before = len(done.given_up)
    if stored is not None:
        _restore_state(backup, where, target, stored, exact, heard, done)
    elif not exact and (source / TERMS).exists() and not (source / OUTCOME).exists():
        _assume_begun(backup, where, target, heard, done)
    if where.name and len(done.given_up) > before:  # so that a site does not begin it again
        Runs(home.folder).end(_number(where), "left", f"it was given up: the backup is of {_made(backup)}")
    (target / UNFINISHED).unlink()


def _assume_begun(backup: Backup, where: Path, target: Path, heard: Heard | None, done: Restored) -> None:
    """Give up a run that had not begun when the backup was made, and may have since, unless neighbours know better."""
    number, later = _number(where), dict[str, Process]()
    terms = Terms.read(backup.folder / where / TERMS)
    if heard is not None and not _has_log(target):
        neighbours = _asked_of(backup, number, Process("", 0, os.urandom(8).hex(), 0, 0), heard)
        if neighbours.sure:
            done.say(f"Run {number} had not begun, and has not since: {_confirmed(neighbours)}")
            return
        later = neighbours.later
    lost = f"{LOST} run {number} of {backup.manifest.network}, terms {terms.digest:.8}"  # no other run's name
    states = {process.state: process.start for process in later.values()} or {lost: 0}
    promise = terms.privacy.promise
    if where.name and not later:
        done.awaited.append(number)
    for state, start in states.items():
        costs = {} if promise is None else {f"{ASSUMED} run of {printable(state)}": planned_cost(promise)}
        if costs or later or where.name:
            assume(target / AUDIT, costs, state, start)
    if promise is not None or later or where.name:
        done.given_up.append(number)
        done.say(
            f"Run {number} had not begun when the backup was made, and may have begun since: it is given up"
            + ("" if promise is None else ", and all that was agreed on counts as released")
        )


def _asked_of(backup: Backup, number: int, process: Process, heard: Heard) -> Neighbours:
    """Return what neighbours in a run have heard, beside a process that is as far as the backup."""
    try:
        peer = Home(backup.folder).of_run(number).load()
    except PeerbayesError:
        return Neighbours()
    signature = keys.sign(peer.key, process.content(peer.name))
    return heard(peer, msgspec.structs.replace(process, signature=signature))


def _confirmed(neighbours: Neighbours) -> str:
    return f"{', '.join(sorted(neighbours.confirmed))} have heard nothing that the backup does not have"


def _has_log(target: Path) -> bool:
    return (target / AUDIT).exists()


def _made(backup: Backup) -> str:
    return f"{datetime.fromtimestamp(backup.manifest.at, UTC):%Y-%m-%d %H:%M} UTC"


def _restore_state(
    backup: Backup,
    where: Path,
    target: Path,
    stored: Stored,
    exact: bool,
    heard: Heard | None,
    done: Restored,
) -> None:
    """Let the run of a backup go on, if nothing was sent since; set it aside otherwise."""
    source, problem, later = backup.folder / where, _problem(stored, target), dict[str, Process]()
    if problem is None:
        reason, later = _reason_to_go_on(backup, where, stored, exact, heard)
        if reason:
            with contextlib.closing(Store(source / STATE)) as store:
                store.begin(stored.start)  # neighbours have heard of that start by now
                store.flush()
                how = "goes on" if store.value("verdict") is None else "was done"
            _moved(source / STATE, target / STATE)
            done.say(f"Run {_number(where)} {how} after round {stored.round or 0}: {reason}")
            return
    of_run = source / TERMS
    terms = Terms.read(of_run if of_run.exists() else backup.folder / TERMS)
    costs = {} if exact else _assumed(terms, source, stored, later)
    why = "it is not known what was sent since" if problem is None else problem
    _give_up(_number(where), source / STATE, target, stored, done, why, costs)
    done.given_up.append(_number(where))
    if where.name and not stored.round and not any(process.stored for process in later.values()):
        done.awaited.append(_number(where))
    if later:
        said = "; ".join(
            f"{name} heard {process.stored} rounds and releases of start {process.start}"
            for name, process in later.items()
        )
        done.say(f"Neighbours have later messages than the backup: {printable(said)}")
    if costs:
        done.say(
            "What it may have released since counts as released: the rest of what was agreed on "
            f"({len(costs)} entries of the ledger)"
        )


def _problem(stored: Stored, target: Path) -> str | None:
    """Return why a state does not belong to the log of a folder; None: it does."""
    try:
        log = Log.of(Tail(target / AUDIT), stored.mark)
    except PeerError as error:
        return str(error)
    problem = problem_of(stored, log, any(target.glob(ASIDE)))
    return None if problem is None else f"it {problem[1]}"


def _give_up(
    number: int,
    state: Path,
    target: Path,
    stored: Stored,
    done: Restored,
    why: str,
    costs: Mapping[str, float] | None = None,
) -> None:
    """Give the run of a state up: the log says so, with what it may have released since; then the state moves aside."""
    assume(target / AUDIT, costs or {}, stored.state, stored.start)
    with contextlib.closing(Store(state)) as store:
        store.flush()
    aside = _free(target, "state.left-{}.sqlite")
    _moved(state, aside)
    done.aside.append(aside)
    done.say(
        f"Run {number} is given up after round {stored.round or 0} ({why}); its state is {aside}, for the ledger"
    )


def _count_as_well(source: Path, target: Path, stored: Stored | None, kept: Stored, done: Restored) -> None:
    """Let the backup's log and state count in the ledger of a folder that is intact, where it does not know them."""
    if (source / AUDIT).exists() and not (target / AUDIT).read_bytes().startswith(
        (source / AUDIT).read_bytes()
    ):
        beside = _free(target, "audit.of-backup-{}.jsonl")
        _moved(source / AUDIT, beside)
        done.say(f"The log of the backup is another one: it is {beside}, and counts in the ledger as well")
    if stored is not None and stored.state != kept.state and stored.releases:
        aside = _free(target, "state.left-{}.sqlite")
        _moved(source / STATE, aside)
        done.say(f"The state of the backup is of another run: it is {aside}, for the ledger")


def _restore_log(source: Path, target: Path, done: Restored) -> bool:
    """Bring the log back; return whether the folder's own log is there and newer: then it has all that left."""
    if not target.exists():
        if source.exists():
            _moved(source, target)
        return False
    theirs, ours = source.read_bytes() if source.exists() else b"", target.read_bytes()
    if ours.startswith(theirs) and _is_whole(target):
        if ours != theirs:
            done.say(f"{target} goes on after the backup and stays: it has all that left this machine")
        return True
    if theirs.startswith(ours):
        _moved(source, target)
        return False
    other = _free(target.parent, "audit.before-restore-{}.jsonl")
    _moved(target, other)
    if source.exists():
        _moved(source, target)
    done.say(
        f"The log that was here is another one, or damaged: it is {other} now, and counts in the ledger as well"
    )
    return False


def _is_whole(log: Path) -> bool:
    try:
        for _ in Tail(log).read():
            pass
    except PeerError:
        return False
    return True


def _readable(path: Path) -> Stored | None:
    """Return what an intact state has; None where it is damaged or empty."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            if db.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                return None
        return Stored.read(path)
    except (PeerbayesError, sqlite3.Error, ValueError):
        return None


def _reason_to_go_on(
    backup: Backup, where: Path, stored: Stored, exact: bool, heard: Heard | None
) -> tuple[str, dict[str, Process]]:
    """Return why nothing can have been sent since the backup, and else what neighbours have heard since."""
    if exact:
        return "the audit log of this folder has nothing that the backup does not have", {}
    state = backup.folder / where / STATE
    with contextlib.suppress(NoState), contextlib.closing(Store(state, readonly=True)) as store:
        if store.value("verdict") is not None:
            return "all its rounds were done when the backup was made", {}
        began = store.stored()
        if heard is None or not stored.state:
            return "", {}
        process = Process(stored.state, stored.start + 1, os.urandom(8).hex(), began, began)
        neighbours = _asked_of(backup, _number(where), process, heard)
        return (_confirmed(neighbours), {}) if neighbours.sure else ("", neighbours.later)
    return "", {}


def _assumed(terms: Terms, source: Path, stored: Stored, later: dict[str, Process]) -> dict[str, float]:
    """Return μ² of what may have been released after the backup, by names: the rest of this run, and later runs."""
    if (promise := terms.privacy.promise) is None:
        return {}
    with contextlib.closing(Store(source / STATE, readonly=True)) as store:
        spent = math.fsum(float(entry["cost"]) for entry in store.releases())
    costs = {f"{ASSUMED} rest of {stored.state}": max(0.0, planned_cost(promise) - spent)}
    for state in {process.state for process in later.values()} - {stored.state}:
        costs[f"{ASSUMED} run of {printable(state)}"] = planned_cost(promise)
    return {name: cost for name, cost in costs.items() if cost > 0}


# --- everything else


def _fill_in(home: Home, backup: Backup, done: Restored) -> None:
    """Bring back files that are missing or damaged; those that make the folder a peer's come last."""
    names = [name for name in backup.manifest.files if Path(name).name not in (STATE, AUDIT)]
    names.sort(key=lambda name: (name == "peer.toml", name == "peer.key", name))
    returned, kept = [], []
    for name in names:
        source, target = backup.folder / name, home.folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not target.exists():
            _moved(source, target)
            returned.append(name)
        elif target.read_bytes() == source.read_bytes():
            continue
        elif fnmatch(name, "*audit*.jsonl") or fnmatch(name, f"*{ASIDE}"):
            beside = _free(target.parent, f"{target.name.partition('.')[0]}.left-{{}}{target.suffix}")
            _moved(source, beside)  # both count in the ledger
            returned.append(f"{name} (as {beside.name})")
        elif _is_better(name, target, source, backup):
            kept.append(name)
        else:
            older = _free(target.parent, f"{target.name}.before-restore-{{}}")
            _moved(target, older)
            _moved(source, target)
            returned.append(f"{name} (the one that was here is {older.name})")
    if returned:
        done.say(f"Brought back: {_few(returned)}")
    if kept:
        done.say(f"Kept, as they are newer or as good: {_few(kept)}")


def _take_back(home: Home, done: Restored) -> None:
    """Have the members of runs that were given up before they began not wait for them: this peer declines."""
    for number in done.awaited:
        try:
            if Runs(home.folder).take_back(number, "its folder was brought back from a backup"):
                done.say(
                    f"Run {number} is declined in this peer's name: nobody waits for it once `serve` runs here"
                )
        except (PeerbayesError, OSError) as error:
            done.say(
                f"The other members may wait for run {number}, which could not be declined: {error}. Then decline it "
                f"with `peerbayes run decline {number} --folder {home.folder}`"
            )


def _is_better(name: str, target: Path, source: Path, backup: Backup) -> bool:
    """Return whether a file of the folder, which differs from the backup's, is to stay."""
    authority = (backup.folder / "authority.crt").read_bytes()
    content = target.read_bytes()
    try:
        if name == "roster.json":
            mine = Roster.verified(content, authority)
            return mine.version >= Roster.verified(source.read_bytes(), authority).version
        if name == "peer.crt":
            return keys.expiry(content) >= keys.expiry(source.read_bytes())
        if name == "peer.key":
            certificate = (backup.folder / "peer.crt").read_bytes()
            public = keys.private_key(content).public_key()
            return keys.public_bytes(public) == keys.public_bytes(
                keys.certificate_of(certificate).public_key()
            )
        if name == "peer.toml":
            Settings.read(target)
        elif name == "agreement.toml":
            return Terms.read(target).digest == Terms.read(source).digest
        return bool(content)
    except (PeerbayesError, ValueError):
        return False


def _few(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def _free(folder: Path, pattern: str) -> Path:
    """Return the first free path of a numbered pattern."""
    paths = (folder / pattern.format(number) for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def _moved(source: Path, target: Path) -> None:
    """Move a file within a disk, in one step; a state's files beside it go with it."""
    for suffix in ("-wal", "-shm"):
        beside = source.with_name(source.name + suffix)
        if beside.exists():
            beside.replace(target.with_name(target.name + suffix))
    source.replace(target)
    files.sync(target.parent)


# --- what neighbours know


def ask_neighbours(peer: Peer, process: Process) -> Neighbours:
    """Greet every neighbour as the restored peer would; each refuses a start that is behind what it has heard."""
    return asyncio.run(_asked(peer, process))


async def _asked(peer: Peer, process: Process) -> Neighbours:
    neighbours = Neighbours()

    async def ask(name: str) -> None:
        try:
            outbound = session.roster.member(name).address == OUTBOUND
            seconds = COMES_TIMEOUT if outbound else ASK_TIMEOUT
            reply = await session.ask(name, session.request(name, "hello"), seconds)
        except PeerError as error:
            neighbours.silent[name] = str(error)
            return
        shown = reply.shown
        if shown is not None and session.transport.signed(
            peer.name, shown.signature, shown.content(peer.name)
        ):
            neighbours.later[name] = shown
        elif reply.status == "ok" and reply.process is not None:  # without one, it only checks its network
            neighbours.confirmed.append(name)
        else:
            neighbours.silent[name] = reply.reason or reply.status

    async with idle_session(peer) as session:
        session.process = lambda: process
        with contextlib.suppress(
            PeerError
        ):  # the port is in use: neighbours that are outbound are silent then
            await session.transport.serve(Greeter(session).answer)
        await asyncio.gather(*map(ask, peer.roster.present(peer.name)))
    return neighbours
