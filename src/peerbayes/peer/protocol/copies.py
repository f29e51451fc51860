"""One process acts for a peer. Neighbours notice two at once, or one that was restored from a backup.

Every start of a peer is counted in its state before anything is sent, and every process has a random name. Both go with
each message, with the length of the state and the peer's signature. A restarted peer always has a higher start and a
state no shorter than before. So its neighbours can detect

    two processes of one start             copies of one folder: both are refused
    a lower start than before              a copy, or a folder from a backup; or the last message of a killed process
    a higher start with a shorter state    a folder from a backup

and show the refused process what it, or its copy, has signed. Nobody else can sign it: a lying neighbour cannot make a
peer stop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import msgspec

from peerbayes.errors import NeedsPerson, OtherProcess, PeerError
from peerbayes.peer import tasks
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.wire import Process, Reply, Request
from peerbayes.peer.state.folder import leave_command

COPIES, RESTORED = "two copies", "restored"  # why a message is refused

STATES = 8  # states of one neighbour that are remembered: it may leave and begin again this often


class Heard(msgspec.Struct):
    """The known processes of a neighbour."""

    latest: Process
    rival: Process | None = None  # of the same start as the latest
    farthest: dict[str, Process] = {}  # by state

    def add(self, process: Process) -> bool:
        """Remember how far a state is; return whether it advanced."""
        if process.state in self.farthest and self.farthest[process.state].stored >= process.stored:
            return False
        self.farthest[process.state] = process
        for state in list(self.farthest)[:-STATES]:
            del self.farthest[state]
        return True


_decoder = msgspec.json.Decoder(dict[str, Heard])


@dataclass(eq=False)
class Processes:
    """This peer's own process, and those of its neighbours."""

    session: Session
    _process: Process | None = None
    _heard: dict[str, Heard] = field(default_factory=dict)
    _changed: bool = False

    # --- this peer ---------------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        """Begin a new process of this peer, and restore the known processes of neighbours."""
        stored = self.session.stored
        self._process = Process(self.session.store.identity(), start, os.urandom(8).hex(), stored, stored)
        self._heard |= _decoder.decode(self.session.store.value("processes") or "{}")

    def own(self) -> Process | None:
        """Return the signed description of this process now; None: it has not started."""
        process, stored = self._process, self.session.stored
        if process is not None and (process.stored != stored or not process.signature):
            process = msgspec.structs.replace(process, stored=stored)
            signature = self.session.transport.sign(process.content(self.session.name))
            process = self._process = msgspec.structs.replace(process, signature=signature)
        return process

    async def refused(self, neighbour: str, request: Request, reply: Reply) -> None:
        """Stop this peer if a neighbour shows another process of it, which it would disturb."""
        error = self._problem(neighbour, reply.shown)
        if error is None or not self.session.halt(error):
            return
        last = msgspec.structs.replace(request, kind="hello", phase="", round_index=0, schema="", wait=0.0, body=b"",
                                       heard=(), process=self.own(), shown=reply.shown)  # fmt: skip
        try:  # so that the neighbour knows for sure that both are running
            await self.session.ask(neighbour, last, tasks.GRACE)
        except PeerError:
            pass
        finally:
            self.session.stop()

    def _problem(self, neighbour: str, shown: Process | None) -> NeedsPerson | None:
        """Return why this process must stop; None if what is shown is no reason, or not signed by this peer."""
        process, name = self._process, self.session.name
        if process is None or shown is None or shown.id == process.id:
            return None
        if not self.session.transport.signed(name, shown.signature, shown.content(name)):
            return None
        if shown.start >= process.start:
            problem = (
                f"two copies of {name} are running, or this folder was brought back from a backup: {neighbour} heard "
                f"start {shown.start} of it from another process, and this is start {process.start}"
            )
        elif shown.state == process.state and shown.stored > process.began:
            problem = (
                f"this folder was brought back from a backup or a snapshot: {neighbour} heard {name} when its state "
                f"had {shown.stored} rounds and releases, and here it began with {process.began}"
            )
        else:
            return None
        leave = leave_command(self.session.store.path.parent)
        return NeedsPerson(
            f"{problem}. Continue with the folder that is farthest along, and with no other; if it is lost, give up "
            f"the run with `{leave}`. What another copy released is in its audit log alone: placed "
            "beside the one here as audit.NAME.jsonl, it counts in the ledger of this folder"
        )

    # --- neighbours ----------------------------------------------------------------------------------------

    def latest(self, name: str) -> Process | None:
        """Return the latest known process of a neighbour."""
        return self._heard[name].latest if name in self._heard else None

    def hear_request(self, name: str, request: Request) -> None:
        """Refuse a request from a process that conflicts with another one of the same peer."""
        if (process := request.process) is None:
            return
        latest = self.latest(name)
        alive = request.shown is not None and latest is not None and request.shown.id == latest.id
        self._hear(name, process, alive)

    def hear_reply(self, name: str, reply: Reply, before: Process | None) -> None:
        """Refuse a reply in the same way; `before` is the latest process known when the request was sent."""
        process, latest = reply.process, self.latest(name)
        if process is None:
            return
        alive = before is not None and before.start > process.start
        if latest is not None and latest.start > process.start and not alive:
            return  # the neighbour restarted between request and reply
        self._hear(name, process, alive)

    def _hear(self, name: str, process: Process, alive: bool) -> None:
        """Record a process or refuse it; `alive`: it is known to have spoken after the latest one."""
        history = self._heard.setdefault(name, Heard(process))
        if process.id in (history.latest.id, history.rival and history.rival.id):
            self._changed |= history.add(process)
            if history.rival is not None:
                raise self._copies(
                    name, process, history.latest if process.id == history.rival.id else history.rival
                )
            history.latest = process if process.stored > history.latest.stored else history.latest
            return
        if process.start > history.latest.start:
            farthest = history.farthest.get(process.state)
            if farthest is not None and process.began < farthest.stored:
                raise OtherProcess(
                    RESTORED,
                    f"{name} began its start {process.start} with {process.began} rounds and releases, though it had "
                    f"{farthest.stored}: its folder was brought back from a backup",
                    farthest,
                )
            history.latest, history.rival = process, None
            history.add(process)
            self._write()
            return
        same = process.start == history.latest.start
        if same:
            history.rival = process
            self._write()
        raise self._copies(name, process, history.latest, same or alive)

    def _copies(self, name: str, process: Process, rival: Process, certain: bool = True) -> OtherProcess:
        starts = (
            f"start {process.start}"
            if process.start == rival.start
            else f"starts {process.start} and {rival.start}"
        )
        detail = (
            f"two copies of {name} are running, or its folder was brought back from a backup: {starts} of it"
        )
        return OtherProcess(COPIES, detail, rival, certain)

    def remember(self) -> None:
        """Store the known processes of neighbours."""
        if self._changed:
            self._write()

    def _write(self) -> None:
        self.session.store.keep("processes", msgspec.json.encode(dict(self._heard)).decode())
        self._changed = False
