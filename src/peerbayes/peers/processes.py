"""One process speaks for a peer. Two at once, or one that went back in time, are noticed by the neighbours.

Every start of a peer is counted in its state, before anybody hears of it, and every process has a random name. Both go
along with each message, with how far the state is and the peer's signature. A restarted peer has a higher start and a
state no shorter than before, always. So its neighbours can tell

    two processes of one start             copies of one folder: both are refused
    a lower start than was heard before    a copy, or a folder from a backup; or the last word of a killed process
    a higher start with a shorter state    a folder from a backup

and show the one that is refused what it, or its copy, has signed. Nobody else can sign it: a neighbour that lies cannot
make a peer stop.
"""

from __future__ import annotations

import os

import msgspec

from peerbayes.peers import patience, wire
from peerbayes.peers.errors import NeedsPerson, OtherProcess, PeerError
from peerbayes.peers.standing import Standing
from peerbayes.peers.store import Store
from peerbayes.peers.transport import Transport
from peerbayes.peers.wire import Process, Reply, Request

COPIES, RESTORED = "two copies", "restored"  # why a message is refused

STATES = 8  # states of one neighbour that are remembered: so often it may leave and begin again


class Heard(msgspec.Struct):
    """What was heard of a neighbour's processes."""

    latest: Process
    rival: Process | None = None  # of the same start as the latest
    farthest: dict[str, Process] = {}  # by state

    def add(self, process: Process) -> bool:
        """Remember how far a state is; whether that is news."""
        if process.state in self.farthest and self.farthest[process.state].stored >= process.stored:
            return False
        self.farthest[process.state] = process
        for old in list(self.farthest)[:-STATES]:
            del self.farthest[old]
        return True


_known = msgspec.json.Decoder(dict[str, Heard])


class Processes:
    """This peer's own process, and those of its neighbours."""

    def __init__(self, standing: Standing, store: Store, transport: Transport) -> None:
        self._standing, self._store, self._transport = standing, store, transport
        self._own: Process | None = None
        self._heard: dict[str, Heard] = {}
        self._changed = False

    # --- this peer ---------------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        """A new process of this peer; what was heard of neighbours before is known again."""
        stored = self._standing.stored
        self._own = Process(self._store.identity(), start, os.urandom(8).hex(), stored, stored)
        self._heard |= _known.decode(self._store.told("processes") or "{}")

    def own(self) -> Process | None:
        """What this peer says of itself now; None: it has not started."""
        own, stored = self._own, self._standing.stored
        if own is not None and (own.stored != stored or not own.signature):
            own = msgspec.structs.replace(own, stored=stored)
            signature = self._transport.sign(own.content(self._standing.name))
            own = self._own = msgspec.structs.replace(own, signature=signature)
        return own

    async def refused(self, neighbour: str, asked: Request, reply: Reply) -> None:
        """Stop this peer where a neighbour shows another process of it, which it would disturb."""
        error = self._problem(neighbour, reply.shown)
        if error is None or not self._standing.halt(error):
            return
        last = msgspec.structs.replace(asked, kind="hello", phase="", turn=0, schema="", wait=0.0, body=b"", heard=(),
                                       process=self.own(), shown=reply.shown)  # fmt: skip
        try:  # so that the neighbour knows for sure that both are running
            await self._transport.ask(neighbour, wire.encode(last), patience.GRACE)
        except PeerError:
            pass
        finally:
            self._standing.stop()

    def _problem(self, neighbour: str, shown: Process | None) -> NeedsPerson | None:
        """Why this process must not go on; None: what is shown is no reason, or not this peer's word."""
        own, name = self._own, self._standing.name
        if own is None or shown is None or shown.id == own.id:
            return None
        if not self._transport.signed(name, shown.signature, shown.content(name)):
            return None
        if shown.start >= own.start:
            what = (
                f"two copies of {name} are running, or this folder was brought back from a backup: {neighbour} heard "
                f"start {shown.start} of it from another process, and this is start {own.start}"
            )
        elif shown.state == own.state and shown.stored > own.began:
            what = (
                f"this folder was brought back from a backup or a snapshot: {neighbour} heard {name} when its state "
                f"had {shown.stored} rounds and releases, and here it began with {own.began}"
            )
        else:
            return None
        return NeedsPerson(
            f"{what}. Go on with the folder that is farthest on, and with no other; where it is lost, give up the run "
            "with `peerbayes node leave`. What another copy released is in its audit log alone: beside the one here, "
            "as audit.NAME.jsonl, it counts in the ledger of this folder"
        )

    # --- neighbours ----------------------------------------------------------------------------------------

    def latest(self, name: str) -> Process | None:
        """The latest process of a neighbour that was heard."""
        return self._heard[name].latest if name in self._heard else None

    def hear_request(self, name: str, asked: Request) -> None:
        """Refuse a request of a process that another one of the same peer disturbs."""
        if (heard := asked.process) is None:
            return
        latest = self.latest(name)
        alive = asked.shown is not None and latest is not None and asked.shown.id == latest.id
        self._hear(name, heard, alive)

    def hear_reply(self, name: str, reply: Reply, before: Process | None) -> None:
        """The same for a reply; `before` is the latest process that was known when it was asked for."""
        heard, latest = reply.process, self.latest(name)
        if heard is None:
            return
        alive = before is not None and before.start > heard.start
        if latest is not None and latest.start > heard.start and not alive:
            return  # a restart came between question and answer
        self._hear(name, heard, alive)

    def _hear(self, name: str, heard: Process, alive: bool) -> None:
        """`alive`: the process is known to have spoken after the latest one was heard."""
        known = self._heard.setdefault(name, Heard(heard))
        if heard.id in (known.latest.id, known.rival and known.rival.id):
            self._changed |= known.add(heard)
            if known.rival is not None:
                raise self._copies(name, heard, known.latest if heard.id == known.rival.id else known.rival)
            known.latest = heard if heard.stored > known.latest.stored else known.latest
            return
        if heard.start > known.latest.start:
            farthest = known.farthest.get(heard.state)
            if farthest is not None and heard.began < farthest.stored:
                raise OtherProcess(
                    RESTORED,
                    f"{name} began its start {heard.start} with {heard.began} rounds and releases, after it had had "
                    f"{farthest.stored}: its folder was brought back from a backup",
                    farthest,
                )
            known.latest, known.rival = heard, None
            known.add(heard)
            self._write()
            return
        same = heard.start == known.latest.start
        if same:
            known.rival = heard
            self._write()
        raise self._copies(name, heard, known.latest, same or alive)

    def _copies(self, name: str, heard: Process, other: Process, certain: bool = True) -> OtherProcess:
        starts = (
            f"start {heard.start}"
            if heard.start == other.start
            else f"starts {heard.start} and {other.start}"
        )
        what = (
            f"two copies of {name} are running, or its folder was brought back from a backup: {starts} of it"
        )
        return OtherProcess(COPIES, what, other, certain)

    def remember(self) -> None:
        """Store how far neighbours were heard to be."""
        if self._changed:
            self._write()

    def _write(self) -> None:
        self._store.keep("processes", msgspec.json.encode(dict(self._heard)).decode())
        self._changed = False
