"""The transport's twin in memory: requests reach a neighbour by a call, and everybody is trusted."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

from peerbayes.errors import RefusedMessage
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol.transport import Answer, Unreachable


@dataclass
class Hub:
    """A network in memory: peers by name, and the links that are cut."""

    answers: dict[str, Answer] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)

    def transport(self, name: str) -> InMemory:
        return InMemory(self, name)


@dataclass
class InMemory:
    """One peer's side of a hub."""

    hub: Hub
    name: str

    def follow(self, roster: Roster) -> None:
        """Do nothing: names are all that it needs."""

    def vouch(self, content: bytes) -> bytes:
        return self.name.encode()

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        if proof != name.encode():
            raise RefusedMessage("other certificate", f"{proof!r} vouches, not {name}")

    async def serve(self, answer: Answer) -> None:
        self.hub.answers[self.name] = answer

    async def reach(self, neighbour: str, timeout: float) -> str:
        if neighbour not in self.hub.answers or frozenset((self.name, neighbour)) in self.hub.cut:
            raise Unreachable(f"{neighbour} is not there")
        return "directly"

    def kind_of(self, neighbour: str) -> str:
        return "direct"

    async def ask(self, neighbour: str, request: bytes, timeout: float, largest: int | None = None) -> bytes:
        if neighbour not in self.hub.answers or frozenset((self.name, neighbour)) in self.hub.cut:
            await asyncio.sleep(0)
            raise Unreachable(f"{neighbour} is not there")
        try:
            async with asyncio.timeout(timeout):
                return await self.hub.answers[neighbour](self.name, request)
        except TimeoutError as error:
            raise Unreachable(f"{neighbour} did not answer in time") from error

    def sign(self, content: bytes) -> bytes:
        return _mark(self.name, content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        return signature == _mark(neighbour, content)

    async def close(self) -> None:
        self.hub.answers.pop(self.name, None)


def _mark(name: str, content: bytes) -> bytes:
    """Return a stand-in for a signature in memory, where everybody is trusted."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()
