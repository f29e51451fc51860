"""One transport for several runs: requests go to the run that they name, and everything else to the membership."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol.transport import ROOM, Answer, Transport


class _OfRun(msgspec.Struct):
    run: str = ""


_decoder = msgspec.msgpack.Decoder(_OfRun)


def run_of(content: bytes) -> str:
    """Return the run that a request names; "" where it cannot be read, which whoever answers it says."""
    try:
        return _decoder.decode(content).run
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


@dataclass(eq=False)
class Router:
    """Answers requests by the run that they name."""

    transport: Transport
    otherwise: Answer
    """Answers what belongs to no run here."""
    _answers: dict[str, Answer] = field(default_factory=dict)

    async def answer(self, caller: str, content: bytes) -> bytes:
        """Return the reply to a request."""
        return await self._answers.get(run_of(content), self.otherwise)(caller, content)

    def has(self, run: str) -> bool:
        """Return whether a run answers here."""
        return run in self._answers

    def view(self, run: str, message_bytes: int) -> RunTransport:
        """Return the transport of one run, with the largest message that its terms allow."""
        return RunTransport(self, run, message_bytes + ROOM)


@dataclass(eq=False)
class RunTransport:
    """The transport of one run: it shares the connections of its site."""

    router: Router
    run: str
    largest: int
    """Bytes of a reply."""

    def follow(self, roster: Roster) -> None:
        """Do nothing: the site follows the roster of all members."""

    def vouch(self, content: bytes) -> bytes:
        return self.router.transport.vouch(content)

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        self.router.transport.vouched(name, content, proof)

    async def serve(self, answer: Answer) -> None:
        """Answer requests of this run from now on."""
        self.router._answers[self.run] = answer

    async def ask(self, neighbour: str, request: bytes, timeout: float, largest: int | None = None) -> bytes:
        return await self.router.transport.ask(neighbour, request, timeout, largest or self.largest)

    async def reach(self, neighbour: str, timeout: float) -> str:
        return await self.router.transport.reach(neighbour, timeout)

    def kind_of(self, neighbour: str) -> str:
        return self.router.transport.kind_of(neighbour)

    async def relay_problem(self) -> str:
        return await self.router.transport.relay_problem()

    def sign(self, content: bytes) -> bytes:
        return self.router.transport.sign(content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        return self.router.transport.signed(neighbour, signature, content)

    async def close(self) -> None:
        """Answer no more requests of this run; the site goes on."""
        self.router._answers.pop(self.run, None)
