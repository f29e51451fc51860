"""A peer's certificate, renewed while the peer runs or at its owner's request, and the record of it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from peerbayes.data.files import write
from peerbayes.errors import PeerError
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.renewal import Issuer, due_at, overdue_at
from peerbayes.peer.protocol.renewals import Renewals
from peerbayes.peer.protocol.session import Session, idle_session
from peerbayes.peer.state.folder import Home, Peer

ASK_TIMEOUT = 10.0  # seconds for a neighbour's answer
RECORD = "renewal.json"  # the record's file in a peer's folder


@dataclass(frozen=True)
class Renewed:
    """What is known of the renewals of a folder's certificate."""

    at: float | None = None
    """When it was renewed last, in seconds since 1970."""
    by: str = ""
    """The neighbour that brought it, or this peer itself."""
    problem: str = ""
    """Why the certificate, though due, is not renewed yet."""
    tried: float | None = None
    """When that was found."""

    @classmethod
    def read(cls, home: Home) -> Renewed:
        """Return the record of a folder; an empty one where there is none, or none that can be read."""
        try:
            plain = json.loads((home.folder / RECORD).read_bytes())
            return cls(**{name: plain[name] for name in cls.__dataclass_fields__ if name in plain})
        except (OSError, ValueError, TypeError, AttributeError):
            return cls()

    def keep(self, home: Home) -> None:
        write(home.folder / RECORD, json.dumps(asdict(self)).encode())


def renewals_of(
    home: Home,
    peer: Peer,
    session: Session,
    renew: Callable[[bytes], None] = lambda certificate: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Renewals:
    """Return the renewals of a peer's folder.

    renew  puts a new certificate into use, from the next connection on
    tell   tells the owner, in a sentence
    """

    def issuer() -> Issuer | None:
        if peer.settings.renews is None:
            return None
        return Issuer.of(Path(peer.settings.renews), session.roster, peer.name, peer.key)

    async def ask(neighbour: str, name: str, request: bytes, hops: int) -> bytes | None:
        asked = session.request(neighbour, "renew", phase=name, round_index=hops, body=request)
        reply = await session.ask(neighbour, asked, ASK_TIMEOUT)
        if reply.status == "refused":
            raise PeerError(f"it refuses: {reply.reason}")
        return reply.body if reply.status == "ok" and reply.body else None

    def take(certificate: bytes, giver: str) -> None:
        home.renew(certificate)
        Renewed(time.time(), giver).keep(home)
        renew(certificate)
        end = keys.expiry(certificate)
        tell(f"the certificate of {peer.name} was renewed by way of {giver}; it ends on {end:%Y-%m-%d}")

    def problem(text: str) -> None:
        before = Renewed.read(home)
        if text == before.problem:
            return
        with contextlib.suppress(OSError):  # a disk that is full: the next attempt comes in a minute
            replace(before, problem=text, tried=time.time()).keep(home)
        if text and not before.problem:
            tell(f"the certificate of {peer.name} is to be renewed, and is not yet: {text}")

    return Renewals(
        peer.name,
        peer.key,
        peer.authority,
        lambda: session.roster,
        home.certificate_path.read_bytes,
        issuer,
        ask,
        take,
        problem,
        tell=tell,
    )


async def renew_now(home: Home, peer: Peer) -> str:
    """Renew the certificate of a peer that may not be running; return what came of it, in a sentence."""
    said: list[str] = []
    async with idle_session(peer) as session:
        renewals = renewals_of(home, peer, session, tell=said.append)
        if await renewals.attempt(peer.roster.present(peer.name), now=True):
            return said[-1]
    return f"not renewed: {Renewed.read(home).problem}"


def renewal_warning(peer: Peer, record: Renewed, now: float) -> str | None:
    """Return the warning that a certificate ends and was not renewed in time; None: there is no reason for one."""
    if now < overdue_at(peer.certificate).timestamp():
        return None
    end = keys.expiry(peer.certificate)
    days = max(0, int((end.timestamp() - now) / 86400))
    reason = f" ({record.problem})" if record.problem else ""
    return (
        f"the certificate of {peer.name} ends in {days} days, on {end:%Y-%m-%d}, and was not "
        f"renewed{reason}; ask now with `peerbayes peer renew {peer.folder}`, or ask the founder for a new "
        "one (`peerbayes network renew`) and join with it"
    )


def renewal_status(peer: Peer, record: Renewed) -> dict[str, object]:
    """Return what `status` shows of renewals: when it is due, and the record."""
    return {"due_at": due_at(peer.certificate).timestamp(), **asdict(record)}
