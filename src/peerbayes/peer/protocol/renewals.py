"""Renewal between neighbours: requests go from peer to peer until one that may renew answers; certificates come back.

A peer whose certificate is due asks its neighbours. One that may renew, the founder's or a deputy's, answers with a
certificate; any other keeps the request for a while, asks its own neighbours, and has the answer when it is asked
again. Requests and certificates are public, and every peer checks both against the roster before it passes them on: a
request is signed with the member's key, a certificate is for that name and that key and from the authority or a deputy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from peerbayes.errors import ConfigurationError, IdentityError, PeerError, RefusedMessage
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.renewal import Issuer, due_at, refuse_not_newer, refuse_other
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.tasks import Rate

__all__ = ["Asking", "Renewals"]

EVERY = 60.0  # seconds between two times that neighbours are asked
HOPS = 32  # links that a request may go; each that passes it on asks with one less
MOST = 256  # requests, and certificates, of others that are kept
AT_ONCE = 8  # requests of others that one neighbour is asked each time
KEPT = 600.0  # seconds for which a request of another is passed on after it was last asked for
RATE = (
    2 * AT_ONCE + 2,
    EVERY / (2 * AT_ONCE + 2),
)  # requests of one neighbour: at once, and seconds for each more
LARGEST = 4 << 10  # bytes of a request or a certificate

Ask = Callable[[str, str, bytes, int], Awaitable[bytes | None]]
"""Asks a neighbour to renew: its name, whose certificate, the request, and the hops it may still go."""


@dataclass
class Asking:
    """A request of another member that this peer passes on."""

    request: bytes
    hops: int
    until: float


@dataclass(eq=False)
class Renewals:
    """The renewal of this peer's certificate, and of those of others that ask it."""

    name: str
    key: bytes
    authority: bytes
    roster: Callable[[], Roster]
    certificate: Callable[[], bytes]
    """The certificate that is in use."""
    issuer: Callable[[], Issuer | None]
    """Who renews here: None in most places."""
    ask: Ask
    take: Callable[[bytes, str], None]
    """Puts a new certificate of this peer into use; who gave it, for the record."""
    problem: Callable[[str], None] = lambda text: None
    """Records why this peer has no new certificate yet; an empty text: there is no problem."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    seconds: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] = lambda text: None
    """Tells the owner, in a sentence, why this peer, which may renew, does not."""
    asking: dict[str, Asking] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    _rate: Rate = field(default_factory=lambda: Rate(*RATE))
    _told: str = ""

    @property
    def due(self) -> bool:
        """Whether this peer's certificate is to be renewed by now, or is not accepted any more."""
        now, roster, current = self.clock(), self.roster(), self.certificate()
        accepted = roster.member(self.name).accepts(current, roster.issuers(self.authority), now)
        return now >= due_at(current) or not accepted

    # --- the server's side -------------------------------------------------------------------------------

    async def answer(self, caller: str, name: str, request: bytes, hops: int) -> bytes | None:
        """Return a certificate for a request that a neighbour makes or passes on; None: there is none yet."""
        roster = self.roster()
        if caller not in roster.present(self.name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {self.name}")
        if not self._rate.allows(caller):
            raise RefusedMessage(
                "too many at once", f"{caller} asks for more renewals than {RATE[0]} at once"
            )
        if len(request) > LARGEST:
            raise RefusedMessage("too large", f"a request of {len(request):,} bytes; at most {LARGEST:,}")
        try:
            refuse_other(request, name, roster)
        except IdentityError as error:
            raise RefusedMessage("bad renewal", str(error)) from error
        if (certificate := await asyncio.to_thread(self._issued, name, request, roster)) is not None:
            return certificate
        if (certificate := self.answers.get(name)) is not None and self._is_new(certificate, name, roster):
            return certificate
        self._keep(name, request, min(hops, HOPS) - 1)
        return None

    def _issued(self, name: str, request: bytes, roster: Roster) -> bytes | None:
        """Return the certificate that this peer itself issues; None: it may not."""
        try:
            issuer = self.issuer()
            return None if issuer is None else issuer.renewed(request, name, roster, self.clock())
        except (ConfigurationError, OSError) as error:  # such as a full disk
            text = f"{name} is not renewed here: {error}"
            if text != self._told:
                self._told = text
                self.tell(text)
            return None

    def _is_new(self, certificate: bytes, name: str, roster: Roster) -> bool:
        now, issuers = self.clock(), roster.issuers(self.authority)
        return roster.member(name).accepts(certificate, issuers, now) and now < due_at(certificate)

    def _keep(self, name: str, request: bytes, hops: int) -> None:
        """Keep a request to pass it on. One that came round in a circle has fewer hops left: it is not kept longer."""
        now = self.seconds()
        for other in [other for other, asking in self.asking.items() if asking.until < now]:
            del self.asking[other]
        known = self.asking.get(name)
        if name == self.name or hops < 1 or (known is not None and known.hops > hops):
            return
        if known is None and len(self.asking) >= MOST:
            return  # who asks again finds room later
        self.asking[name] = Asking(request, hops, now + KEPT)

    # --- the client's side -------------------------------------------------------------------------------

    async def run(self, neighbours: Callable[[], Iterable[str]]) -> None:
        """Renew what is due, again and again."""
        while True:
            await self.attempt(tuple(neighbours()))
            await asyncio.sleep(EVERY)

    async def attempt(self, neighbours: tuple[str, ...], now: bool = False) -> bool:
        """Ask for everything that is due, once; return whether this peer has a new certificate. `now`: due or not."""
        renewed = (now or self.due) and await self._renew_own(neighbours)
        moment = self.seconds()
        for name, asking in list(self.asking.items())[:AT_ONCE]:
            del self.asking[name]
            if asking.until < moment:
                continue
            self.asking[name] = asking  # at the end: each has its turn
            certificate, _, _ = await self._asked(neighbours, name, asking.request, asking.hops)
            if certificate is not None:
                del self.asking[name]
                for oldest in list(self.answers)[: max(0, len(self.answers) - MOST + 1)]:
                    del self.answers[oldest]
                self.answers[name] = certificate
        return renewed

    async def _renew_own(self, neighbours: tuple[str, ...]) -> bool:
        roster, request = self.roster(), keys.request_of(self.key, self.name)
        try:
            refuse_other(request, self.name, roster)
            certificate = await asyncio.to_thread(self._issued, self.name, request, roster)
        except IdentityError as error:
            self.problem(str(error))
            return False
        giver, told = self.name, dict[str, str]()
        if certificate is None:
            certificate, giver, told = await self._asked(neighbours, self.name, request, HOPS)
        if certificate is None:
            detail = "; ".join(f"{name}: {text}" for name, text in told.items()) or "it has no neighbours"
            self.problem(f"nobody has renewed it yet ({detail:.300})")
            return False
        try:
            self.take(certificate, giver)
        except (IdentityError, OSError) as error:
            self.problem(f"the new certificate from {giver} was not taken: {error}")
            return False
        self.problem("")
        return True

    async def _asked(
        self, neighbours: tuple[str, ...], name: str, request: bytes, hops: int
    ) -> tuple[bytes | None, str, dict[str, str]]:
        """Return the first good certificate of a member that a neighbour has, from whom, and what the others said."""
        told = {}
        for neighbour in neighbours:
            if neighbour == name:
                continue
            try:
                certificate = await self.ask(neighbour, name, request, hops)
                if certificate is None:
                    told[neighbour] = "not yet"
                    continue
                self._refuse_bad(certificate, name)
            except (PeerError, IdentityError) as error:
                told[neighbour] = str(error)
                continue
            return certificate, neighbour, told
        return None, "", told

    def _refuse_bad(self, certificate: bytes, name: str) -> None:
        roster, now = self.roster(), self.clock()
        if len(certificate) > LARGEST:
            raise RefusedMessage(
                "too large", f"a certificate of {len(certificate):,} bytes; at most {LARGEST:,}"
            )
        if name == self.name:
            refuse_not_newer(certificate, self.certificate(), name, roster, self.authority, now)
        if not self._is_new(certificate, name, roster):
            raise RefusedMessage("bad renewal", f"a certificate that is not one of {name}, or ends soon")
