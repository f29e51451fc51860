"""How requests reach a neighbour: one verb, `ask`, over one TLS connection for each link; tests have a twin in memory.

A transport vouches for names: the caller's that `answer` is given, and the neighbour's that `ask` reaches. Both come
from certificates of the network's authority, compared with the roster; there is no plain text to fall back to.

A link is opened by whichever side can reach the other and wants to say something first, and carries the requests of
both. Where both open one at the same time, both use the one that the first of the two names opened.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
import ssl
from collections import Counter, defaultdict
from typing import Protocol

from peerbayes.errors import IdentityError, NeedsPerson, RefusedMessage
from peerbayes.peer.identity.keys import signing, verify
from peerbayes.peer.identity.roster import OUTBOUND, Roster, listens
from peerbayes.peer.protocol import connections, routes, tls
from peerbayes.peer.protocol.failures import Unreachable, meaning, refusal
from peerbayes.peer.protocol.link import Answer, CallFailed, Greeting, Link, LinkClosed, Refused
from peerbayes.peer.protocol.relaying import Waiting
from peerbayes.peer.protocol.wire import LARGEST_REQUEST
from peerbayes.peer.state.folder import Peer
from peerbayes.peer.tasks import BackgroundTasks

__all__ = ["Answer", "Links", "Transport", "Unreachable"]

log = logging.getLogger("peerbayes.peer")

SAID = b"peerbayes said\n"  # prefix of what is signed: no other signature of a peer passes for a voucher
ROOM = 64 << 10  # bytes of a reply beside its numbers

HANDSHAKE = 10.0  # seconds for TLS and the greeting of a connection, after which it is cut off
HEAD_START = 0.2  # seconds that the second of two names leaves to the first to open their link
TOGETHER = 5.0  # seconds within which two links that both sides opened were opened at the same time
SHUTDOWN = 2.0  # seconds for the other side to close a connection too
CLOSED = "closed the connection: "
MOST_OF_ONE = 8  # connections of one member
LISTEN_AGAIN = 0.5  # seconds until connections are accepted again where no descriptor was left
KEEP_FIRST, KEEP_LAST = (
    0.2,
    5.0,
)  # seconds between attempts to open a link that a neighbour cannot open itself


class Transport(Protocol):
    """What a peer needs of its network."""

    def follow(self, roster: Roster) -> None: ...
    def vouch(self, content: bytes) -> bytes:
        """Return a proof that this peer vouches for content, for peers that receive it through others."""

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        """Refuse content that a member did not vouch for."""

    async def serve(self, answer: Answer) -> None: ...
    async def ask(
        self, neighbour: str, request: bytes, timeout: float, largest: int | None = None
    ) -> bytes: ...
    async def reach(self, neighbour: str, timeout: float) -> str:
        """Open a connection to a neighbour, close it, and return how it was reached; Unreachable where it is not."""

    def kind_of(self, neighbour: str) -> str:
        """Return how a neighbour is connected now: "direct", "reversed" (it called), "relayed" or "none"."""

    async def relay_problem(self) -> str:
        """Return why this peer does not wait at its relay, once it has tried; "": it does, or has none."""

    def sign(self, content: bytes) -> bytes: ...
    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        """Return whether a neighbour that was asked before, or this peer itself, signed this content."""

    async def close(self) -> None: ...


def listening_problem(listen: str) -> str | None:
    """Return why host:port cannot be listened on now, in plain words; None: it can."""
    if not listen:
        return None
    try:
        _listening(listen).close()
    except OSError as error:
        advice = {
            errno.EADDRINUSE: "another program uses the port; stop it, or name another port with `listen` in peer.toml",
            errno.EACCES: "this user may not open that port; name one above 1023 with `listen` in peer.toml",
        }.get(error.errno or 0, "is the address one of this machine's? See `listen` in peer.toml")
        return f"{listen} cannot be listened on: {advice}"
    return None


def _listening(listen: str) -> socket.socket:
    """Return a socket that listens on host:port."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, so that asyncio sends small frames at once, without waiting for the receipt of those before: it looks at
    # the protocol of a connection, which is that of its listener.
    line = socket.socket(family, proto=socket.IPPROTO_TCP)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            line.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] is IPv4 too
        line.bind((host.strip("[]"), int(port)))
        line.listen(1024)
        line.setblocking(False)
    except BaseException:
        line.close()
        raise
    return line


class Links:
    """One TLS 1.3 connection for each neighbour."""

    def __init__(self, peer: Peer, refused: Refused) -> None:
        self.name = peer.name
        self._key, self._certificate, self._authority = peer.key, peer.certificate, peer.authority
        self._sign = signing(peer.key)
        self._listen, self._proxy = peer.settings.listen, peer.settings.proxy
        self._largest = peer.terms.limits.message_bytes + ROOM
        self.refused = refused
        self._process = os.urandom(16)
        self._answer: Answer | None = None
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        # Neighbours show this peer what it signed itself: a copy of its folder that runs, or a state that was put back.
        self._shown = {peer.name: tls.shown(ssl.PEM_cert_to_DER_cert(peer.certificate.decode()))}
        self._dialling: dict[str, asyncio.Task[Link]] = {}
        self._arrivals: defaultdict[str, list[asyncio.Future[Link]]] = defaultdict(list)
        self._admitting: set[asyncio.Task[None]] = set()
        self._background = BackgroundTasks()
        self._incoming = 0  # connections that others opened
        self._of_member: Counter[str] = Counter()  # those of each member, also before they greet
        self._server: socket.socket | None = None
        self._waiting: Waiting | None = None
        self._chain = b""
        self.follow(peer.roster)

    # --- who belongs to the network ------------------------------------------------------------------------

    def follow(self, roster: Roster) -> None:
        """Use the addresses, certificates and revocations of this roster from now on."""
        self._roster, self._issuers = roster, roster.issuers(self._authority)
        self._members = {member.name: member for member in roster.members}
        self._renew_contexts()
        for link in self._all():
            if not self._accepts(link.name, link.certificate):
                link.goodbye("other certificate: not the one in the roster")

    def renew(self, certificate: bytes) -> None:
        """Show this certificate from the next connection on."""
        self._certificate = certificate
        self._shown[self.name] = tls.shown(ssl.PEM_cert_to_DER_cert(certificate.decode()))
        self._renew_contexts()

    def _renew_contexts(self) -> None:
        chain = self._certificate + self._roster.chain(self._certificate)
        if chain != self._chain:
            self._chain = chain
            self._client = tls.context(self._authority, self._key, chain, server=False)
            self._server_context = tls.context(self._authority, self._key, chain, server=True)

    def _accepts(self, name: str, certificate: bytes) -> bool:
        """Return whether a certificate may be this name's; a new member may bring a newer roster."""
        member = self._members.get(name)
        return member is None or member.accepts(certificate, self._issuers)

    def vouch(self, content: bytes) -> bytes:
        return self._certificate + b"\0" + self._sign(SAID + content)

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        certificate, _, signature = proof.partition(b"\0")
        try:
            if name not in self._members or not self._members[name].accepts(certificate, self._issuers):
                raise IdentityError("not the certificate that the roster has for this name")
            verify(certificate, signature, SAID + content)
        except IdentityError as error:
            raise RefusedMessage("other certificate", str(error)) from error

    def sign(self, content: bytes) -> bytes:
        return self._sign(content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        shown, member = self._shown.get(neighbour), self._members.get(neighbour)
        if shown is None or member is None:
            return False
        # The one in the roster is known by its fingerprint; only a renewed one is read again.
        if shown.fingerprint != member.certificate and not self._accepts(neighbour, shown.certificate):
            return False
        try:
            shown.refuse(signature, content)
        except IdentityError:
            return False
        return True

    # --- asking --------------------------------------------------------------------------------------------

    async def ask(self, neighbour: str, request: bytes, timeout: float, largest: int | None = None) -> bytes:
        """Return a neighbour's reply; `largest`: its bytes at most, as the agreement of the run allows."""
        if len(request) > LARGEST_REQUEST:
            raise ValueError(f"a request of {len(request):,} bytes; expected at most {LARGEST_REQUEST:,}")
        link: Link | None = None
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout):
                link = self._best(neighbour) or await self._linked(neighbour)
                return await link.call(request, largest or self._largest)
        except TimeoutError:
            if link is not None and link.heard < began:
                self._doubt(link)
            raise self._unreachable(neighbour, self._why_late(neighbour, link)) from None
        except LinkClosed as error:
            raise self._unreachable(neighbour, str(error)) from None
        except CallFailed as error:
            said = str(error)
            phrase = {
                "too many at once": "has too many calls waiting; it will be asked again",
                "failed": "could not answer; its log says why",
            }.get(said, f"does not answer: {said}")
            raise self._unreachable(neighbour, phrase) from None

    def _doubt(self, link: Link) -> None:
        """Give up a link that brought nothing for the time of a call: a new one is opened for the next.

        After a break TCP sends again ever later; a new connection does at once.
        """
        if self._way(link.name) is None:  # only the other side can open one, once it knows
            link.goodbye("no answer came in time")
        else:
            link.retired = True

    def _way(self, neighbour: str) -> routes.Route | None:
        """Return the way to a neighbour; None: there is none."""
        member = self._members.get(neighbour)
        return None if member is None else routes.route(member.address)

    def _why_late(self, neighbour: str, link: Link | None) -> str:
        if link is None and self._way(neighbour) is None:
            return "opens the connections to its neighbours itself, and has none to this peer now"
        return "did not answer in time"

    def _unreachable(self, neighbour: str, phrase: str) -> Unreachable:
        member = self._members.get(neighbour)
        address = "" if member is None or member.address == OUTBOUND else f" at {member.address}"
        if phrase.startswith(f"{CLOSED}other certificate:"):
            phrase = "does not accept this peer's certificate: one of the two has an older roster"
        return Unreachable(f"{neighbour}{address} {phrase}")

    def _best(self, neighbour: str) -> Link | None:
        """Return the link to a neighbour over which it is asked; None: there is none."""
        best: Link | None = None
        for link in self._links.get(neighbour, ()):
            if link.usable and (best is None or self._prefers(link, best)):
                best = link
        return best

    def _prefers(self, link: Link, other: Link) -> bool:
        """Return whether one of two links to the same neighbour is used rather than the other."""
        if link.dialled != other.dialled and abs(link.began - other.began) < TOGETHER:
            first = min(self.name, link.name) == self.name
            return link.dialled == first
        return link.began > other.began

    async def _linked(self, neighbour: str) -> Link:
        """Return a link to a neighbour, once one of the two has opened it."""
        if neighbour not in self._members:
            raise self._unreachable(neighbour, "is no member of this network")
        if self._way(neighbour) is None:
            return await self._arrival(neighbour)
        arrival = asyncio.ensure_future(self._arrival(neighbour))
        dialled: asyncio.Future[Link] | None = None
        try:
            if self._server is not None and neighbour < self.name and neighbour not in self._shown:
                await asyncio.wait([arrival], timeout=HEAD_START)
            if not arrival.done():
                dialled = asyncio.ensure_future(self._dialled(neighbour))
                await asyncio.wait([arrival, dialled], return_when=asyncio.FIRST_COMPLETED)
                if not arrival.done():
                    return await dialled
            return await arrival
        finally:
            for each in (arrival, dialled):
                if each is not None and not each.cancel() and not each.cancelled():
                    each.exception()  # it is told by the other one, or nobody waits any more

    async def _arrival(self, neighbour: str) -> Link:
        """Return the next link that a neighbour opens."""
        arrival: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._arrivals[neighbour].append(arrival)
        try:
            return await arrival
        finally:
            if arrival in (waiting := self._arrivals.get(neighbour, [])):
                waiting.remove(arrival)

    async def _dialled(self, neighbour: str) -> Link:
        """Return a link that this peer opens; whoever asks meanwhile waits for the same one."""
        task = self._dialling.get(neighbour)
        if task is None:
            task = self._dialling[neighbour] = asyncio.create_task(self._dial(neighbour))
            task.add_done_callback(lambda done: self._dial_ended(neighbour, done))
        return await asyncio.shield(task)

    def _dial_ended(self, neighbour: str, task: asyncio.Task[Link]) -> None:
        self._dialling.pop(neighbour, None)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody may wait any more

    async def _dial(self, neighbour: str, greets: bool = True) -> Link:
        """Open a link; Unreachable, or RefusedMessage where somebody else answers."""
        member = self._members[neighbour]
        way = routes.route(member.address)
        if way is None:
            raise self._unreachable(neighbour, "cannot be called: it opens the connections to its neighbours")
        loop = asyncio.get_running_loop()
        link = self._new_link()
        link.dialled, link.relayed = True, way.relayed
        try:
            async with asyncio.timeout(HANDSHAKE):
                line = await routes.dialled(way, member.key, self._proxy)
                transport, _ = await loop.create_connection(
                    lambda: link,
                    sock=line,
                    ssl=self._client,
                    server_hostname="",
                    ssl_shutdown_timeout=SHUTDOWN,
                )
        except Unreachable as error:
            raise self._unreachable(neighbour, str(error)) from error
        except (OSError, TimeoutError) as error:
            log.debug(f"dialling {neighbour} at {member.address} failed: {error!r:.300}")
            raise self._unreachable(neighbour, meaning(error)) from error
        try:
            shown = self._met(link, transport)
            if shown.name != neighbour:
                raise Unreachable("has another peer's certificate: is the address right?")
            if not self._members[neighbour].accepts(shown.certificate, self._issuers):
                raise RefusedMessage(
                    "other certificate", "not the certificate that the roster has for this name"
                )
            self._shown[neighbour] = shown
            link.begin(neighbour, shown.certificate)
            async with asyncio.timeout(HANDSHAKE):
                await link.greeting
        except Unreachable as error:
            transport.abort()
            raise self._unreachable(neighbour, str(error)) from error
        except RefusedMessage:
            transport.abort()
            raise
        except LinkClosed as error:
            raise self._unreachable(neighbour, str(error)) from error
        except TimeoutError:
            link.close("did not answer in time")
            raise self._unreachable(neighbour, "did not answer in time") from None
        except BaseException:
            transport.abort()
            raise
        if greets:
            self._add(link)
        return link

    def _new_link(self, serves: bool | None = None) -> Link:
        greeting = Greeting(self._process, self._answer is not None if serves is None else serves)
        return Link(greeting, self._answer, self.refused)

    def _met(self, link: Link, transport: asyncio.BaseTransport) -> tls.Shown:
        """Return who is at the other end of a connection; Unreachable where it is no peer."""
        channel = transport.get_extra_info("ssl_object")
        if channel.selected_alpn_protocol() != tls.ALPN:
            raise Unreachable(
                "is not a peer of this version: something else answers there, or an older peerbayes; update it"
            )
        try:
            return tls.shown_over(channel)
        except IdentityError as error:
            raise Unreachable(f"has a certificate that cannot be read: {error}") from error

    def _add(self, link: Link) -> None:
        """Take a link into use; one that it replaces is closed when its calls have ended."""
        name = link.name
        self._links[name].append(link)
        link.closed.add_done_callback(lambda _: self._remove(link))
        if link.closed.done():
            self._remove(link)
            return
        if link.greeting.result().serves:
            best = self._best(name)
            for other in self._links[name]:  # the other side prefers the same one, or has given the others up
                other.retired = other.retired or (other.usable and other is not best)
            for arrival in self._arrivals.pop(name, ()):
                if not arrival.done():
                    arrival.set_result(link)

    def _remove(self, link: Link) -> None:
        links = self._links.get(link.name, [])
        if link in links:
            links.remove(link)

    def _all(self) -> list[Link]:
        return [link for links in self._links.values() for link in links]

    async def reach(self, neighbour: str, timeout: float) -> str:
        """Open a connection to a neighbour, close it, and return how it was reached: directly, or by a relay."""
        try:
            async with asyncio.timeout(timeout):
                link = await self._dial(neighbour, greets=False)
        except TimeoutError:
            raise self._unreachable(neighbour, "did not answer in time") from None
        relayed = link.relayed
        link.goodbye("it was only to be seen whether this peer is reached")
        return "by a relay" if relayed else "directly"

    def kind_of(self, neighbour: str) -> str:
        """Return how a neighbour is connected now: "direct", "reversed" (it called), "relayed" or "none"."""
        link = self._best(neighbour)
        if link is None:
            return "none"
        return "relayed" if link.relayed else "direct" if link.dialled else "reversed"

    async def relay_problem(self) -> str:
        """Return why this peer does not wait at its relay, once it has tried; "": it does, or has none."""
        return "" if self._waiting is None else await self._waiting.problem()

    # --- answering -----------------------------------------------------------------------------------------

    async def serve(self, answer: Answer) -> None:
        """Answer neighbours, over connections that they or this peer open."""
        self._answer = answer
        own = self._members[self.name].address if self.name in self._members else OUTBOUND
        if self._listen:
            try:
                self._server = _listening(self._listen)
            except OSError as error:
                raise NeedsPerson(
                    listening_problem(self._listen)
                    or f"{self._listen} cannot be listened on; name another port with `listen` in peer.toml: {error}"
                ) from error
            server = self._server
            self._background.add("the server for neighbours", lambda: self._accept(server))
        if not listens(own):
            self._background.add("the links to neighbours", self._keep_links)
        way = routes.route(own)
        if way is not None and way.relayed:
            self._waiting = Waiting(way, self._key, self._proxy, self._take_relayed)
            self._background.add("the waiting at the relay", self._waiting.run)

    def _admitted(self, line: socket.socket, relayed: bool) -> None:
        if self._incoming >= connections.connections(connections.limit()):
            line.close()
            return
        self._incoming += 1
        task = asyncio.get_running_loop().create_task(self._admit(line, relayed))
        self._admitting.add(task)
        task.add_done_callback(self._admission_ended)

    def _admission_ended(self, task: asyncio.Task[None]) -> None:
        self._admitting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be let in", exc_info=error)

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                line, _ = await loop.sock_accept(server)
            except OSError as error:
                log.debug(f"a connection could not be accepted: {error}")
                await asyncio.sleep(LISTEN_AGAIN)
                continue
            line.setblocking(False)
            self._admitted(line, relayed=False)

    async def _take_relayed(self, line: socket.socket) -> None:
        """Take a connection that a relay passed on."""
        self._admitted(line, relayed=True)

    async def _admit(self, line: socket.socket, relayed: bool) -> None:
        """Let a member in that opened a connection, and turn everybody else away."""
        loop = asyncio.get_running_loop()
        origin = "a relay" if relayed else _origin(line)
        link = self._new_link()
        link.relayed = relayed
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: link,
                line,
                ssl=self._server_context,
                ssl_handshake_timeout=HANDSHAKE,
                ssl_shutdown_timeout=SHUTDOWN,
            )
        except asyncio.CancelledError:
            self._incoming -= 1
            raise
        except OSError as error:
            self._incoming -= 1
            log.debug(f"a handshake failed: {error!r:.300}")
            if reason := refusal(error):
                self.refused("an unknown host", reason, f"a connection from {origin}")
            return
        link.gone.add_done_callback(self._gone)
        try:
            shown = self._met(link, transport)
        except Unreachable as error:
            self.refused("an unknown host", "no peer", f"a connection from {origin}: {error}")
            transport.abort()
            return
        name = shown.name
        if (barrier := self._barrier(shown)) is not None:
            reason, text = barrier
            self.refused(name, reason, text)
            link.name = name
            link.goodbye(f"{reason}: {text}")
            return
        self._shown[name] = shown
        self._of_member[name] += 1
        link.gone.add_done_callback(lambda _: self._member_gone(name))
        link.begin(name, shown.certificate)
        try:
            async with asyncio.timeout(HANDSHAKE):
                await link.greeting
        except TimeoutError:
            link.close("did not greet")
        except LinkClosed:
            pass
        else:
            self._add(link)

    def _gone(self, _: asyncio.Future[None]) -> None:
        self._incoming -= 1

    def _member_gone(self, name: str) -> None:
        self._of_member[name] -= 1
        if not self._of_member[name]:
            del self._of_member[name]

    def _barrier(self, shown: tls.Shown) -> tuple[str, str] | None:
        """Return why a caller is not let in: the reason and a text; None: it is."""
        name = shown.name  # a revoked one is let in: what answers it says why it gets nothing
        if not self._accepts(name, shown.certificate):
            return "other certificate", "not the certificate that the roster has for this name"
        if self._of_member[name] >= MOST_OF_ONE:
            return "too many at once", f"{MOST_OF_ONE} connections of one member"
        return None

    async def _keep_links(self) -> None:
        """Keep a link to each neighbour open: they cannot open one themselves."""
        async with asyncio.TaskGroup() as group:
            kept: set[str] = set()
            while True:
                present = set(self._roster.present(self.name)) if self.name in self._members else set()
                for neighbour in present - kept:
                    kept.add(neighbour)
                    group.create_task(self._keep(neighbour))
                await asyncio.sleep(KEEP_LAST)

    async def _keep(self, neighbour: str) -> None:
        pause = KEEP_FIRST
        while True:
            link = self._best(neighbour)
            if link is not None:
                pause = KEEP_FIRST
                await asyncio.wait([link.closed], timeout=1.0)  # also to see whether it was retired
                continue
            if neighbour in self._roster.revoked or neighbour not in self._members:
                await asyncio.sleep(KEEP_LAST)
                continue
            try:
                if routes.route(self._members[neighbour].address) is not None:
                    await self._dialled(neighbour)
            except (Unreachable, RefusedMessage) as error:
                log.debug(f"no link to {neighbour} yet: {error}")
            await asyncio.sleep(pause * random.uniform(0.75, 1.0))
            pause = min(2 * pause, KEEP_LAST)

    async def close(self) -> None:
        """Say goodbye to everybody."""
        server, self._server = self._server, None
        await self._background.stop()
        under_way = [*self._admitting, *self._dialling.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if server is not None:
            server.close()
        links = self._all()
        for link in links:
            link.goodbye("it is going down")
        if links:  # what was written goes out
            await asyncio.wait([link.gone for link in links], timeout=SHUTDOWN)


def _origin(line: socket.socket) -> str:
    try:
        return str(line.getpeername()[0])
    except OSError:
        return "an unknown host"
