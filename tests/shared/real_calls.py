"""Peers in this process that are called over TLS links, and a caller that is written anew for tests.

`Channel` shares no code with the links that it judges: it packs frames by hand, and can send whatever it likes.
"""

import asyncio
import contextlib
import itertools
import ssl
import struct
import tempfile
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.session import Membership
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import Journal
from shared.commands import HANG
from shared.kinds_of_links import line_to, place, until_waits

LINE, TRIANGLE = ((0, 1), (1, 2)), ((0, 1), (1, 2), (0, 2))
PATIENT = Limits(deadline=3600.0)


def made_network(folder, links=TRIANGLE, **terms):
    """Three peers with a few rows each, and their founder."""
    tables = [pd.DataFrame({"x": [0.0, 1.0, 3.0, 2.5 + place], "y": list("abab")}) for place in range(3)]
    agreed = Terms("net", "y", **{"rounds": 30, "limits": PATIENT, "strategy": "exact", **terms})
    return Loopback.create(folder, agreed, tables, links)


@contextlib.asynccontextmanager
async def serving(home, answer, refused=lambda *told: None):
    """The transport of a folder, or of a peer that was loaded before; it answers through a function."""
    transport = Links(home.load() if isinstance(home, Home) else home, refused)
    try:
        await transport.serve(answer)
        await until_waits(transport._members[transport.name])
        yield transport
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def asking_from(home):
    """The transport of a folder that only asks."""
    transport = Links(home.load() if isinstance(home, Home) else home, lambda *told: None)
    try:
        yield transport
    finally:
        await transport.close()


@contextlib.contextmanager
def node_of(home, **more):
    """The node of a folder as `peer run` makes it, and all that it tells."""
    peer, told = home.load(), []
    store, audit = Store(home.state_path), AuditLog(home.audit_path)
    journal = Journal(store)
    usual = {"newer": home.keep_roster, "on_event": lambda *event: told.append(event), "linger": HANG}
    node = RunningPeer(
        Membership(peer.name, peer.terms, peer.roster, home.roster_path.read_bytes()), *tables_of(peer)[0], store,
        Links(peer, journal.refused), audit, **usual | more,
    )  # fmt: skip
    try:
        yield node, told
    finally:
        audit.close()
        store.close()


GREETING, REQUEST, REPLY, FAILED, CANCEL, PING, PONG, GOODBYE = range(1, 9)


class Ended(Exception):
    """Why the other side has ended a connection, or has no reply."""


class Channel:
    """A connection to a peer: requests by hand."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.numbers = reader, writer, itertools.count(1)
        self.waiting, self.greeted, self.ended = {}, asyncio.get_running_loop().create_future(), None
        self.pongs, self.answers_pings = 0, True
        self.reading = asyncio.create_task(self._read())

    def send(self, kind, call=0, body=b"", length=None):
        """Send a frame; `length` is what it claims to have, if that is another than it has."""
        claimed = len(body) if length is None else length
        self.writer.write(struct.pack("<IIB", claimed, call, kind) + body)

    def greet(self, serves=False):
        self.send(GREETING, body=msgspec.msgpack.encode({"process": bytes(16), "serves": serves}))

    async def call(self, content, timeout=HANG):
        """The reply to a request; `Ended` where there is none."""
        if self.ended is not None:
            raise self.ended
        number = next(self.numbers)
        reply = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.send(REQUEST, number, content)
        async with asyncio.timeout(timeout):
            try:
                with contextlib.suppress(ConnectionError):  # `reply` says why
                    await self.writer.drain()
                return await reply
            except asyncio.CancelledError:
                self.send(CANCEL, number)
                raise

    async def until_ended(self):
        """Why the other side ends it."""
        await asyncio.wait([self.reading], timeout=HANG)
        assert self.ended is not None
        return str(self.ended)

    async def _read(self):
        said = ""
        try:
            while True:
                length, call, kind = struct.unpack("<IIB", await self.reader.readexactly(9))
                body = await self.reader.readexactly(length)
                if kind == GREETING:
                    self.greeted.set_result(msgspec.msgpack.decode(body))
                elif kind in (REPLY, FAILED) and call in self.waiting:
                    reply = self.waiting.pop(call)
                    if not reply.done():
                        reply.set_result(body) if kind == REPLY else reply.set_exception(Ended(body.decode()))
                elif kind == GOODBYE:
                    said = body.decode()
                elif kind == PING and self.answers_pings:
                    self.send(PONG)
                elif kind == PONG:
                    self.pongs += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            self.ended = Ended(said or f"{type(error).__name__} {error}")
            for reply in [self.greeted, *self.waiting.values()]:
                if not reply.done():
                    reply.set_exception(self.ended)
                    reply.exception()


def context_to(authority, key=None, certificate=None, server=False):
    """TLS as a member with these credentials, or somebody with none, has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    context.set_alpn_protocols(["peerbayes"])
    if certificate is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "both.pem"
            path.write_bytes(certificate + key)
            context.load_cert_chain(path)
    return context


@contextlib.asynccontextmanager
async def connected(member, context, serves=False, greets=True):
    """A connection to a member, on its way; once somebody listens, or waits, there."""
    while True:
        try:
            line = await asyncio.to_thread(line_to, member)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
    line.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=line, ssl=context, server_hostname=member.name)
    async with talking(reader, writer, serves, greets) as channel:
        yield channel


@contextlib.asynccontextmanager
async def called_by(member, own, context, serves=False, greets=True):
    """A connection that a member opens to a neighbour's address, where a test listens with this key and certificate."""
    arrived = asyncio.get_running_loop().create_future()

    def accept(reader, writer):
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        name = keys.name_of(ssl.DER_cert_to_PEM_cert(shown).encode())
        if name == member.name and not arrived.done():
            arrived.set_result((reader, writer))
        else:
            writer.transport.abort()

    try:
        server = await asyncio.start_server(accept, *place(own.address), ssl=context)
    except OSError:
        pytest.skip(f"{own.name} itself listens where {member.name}, which is outbound, would call the test")
    try:
        async with talking(*await arrived, serves, greets) as channel:
            yield channel
    finally:
        server.close()


@contextlib.asynccontextmanager
async def talking(reader, writer, serves, greets):
    channel = Channel(reader, writer)
    try:
        if greets:
            channel.greet(serves)
            await channel.greeted
        yield channel
    finally:
        channel.reading.cancel()
        writer.transport.abort()


def channel_to(network, name, key=None, certificate=None, authority=None, **options):
    """A channel to a member with any key and certificate, or with none."""
    roster, authority = network.founder.roster(), authority or network.founder.authority()
    member = roster.member(name)
    if member.address == "outbound":
        if certificate is None:
            pytest.skip("nobody without a certificate is called by a member that is outbound")
        own = roster.member(keys.name_of(certificate))
        return called_by(member, own, context_to(authority, key, certificate, server=True), **options)
    return connected(member, context_to(authority, key, certificate), **options)


def channel_of(network, name, by, **options):
    """A channel to a member with another member's key and certificate."""
    home = network.homes[by]
    return channel_to(
        network, name, home.key_path.read_bytes(), home.certificate_path.read_bytes(), **options
    )


def request(network, by, kind, **more):
    """A question as a member of the network asks it."""
    usual = {"version": wire.VERSION, "run": network.founder.roster().run, "sender": by, "kind": kind}
    return Request(**usual | more)


async def ask(channel, asked):
    """The reply to a request."""
    content = asked if isinstance(asked, bytes) else wire.encode(asked)
    return msgspec.msgpack.decode(await channel.call(content), type=Reply)


def within(work):
    """The result of some work; an error where it hangs."""

    async def limited():
        async with asyncio.timeout(HANG):
            return await work

    return asyncio.run(limited())
