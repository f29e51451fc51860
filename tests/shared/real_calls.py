"""Peers in this process that are called over gRPC with mutual TLS, and channels of whoever calls them."""

import asyncio
import contextlib
import gc

import grpc
import msgspec
import pandas as pd

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.session import Membership
from peerbayes.peer.protocol.transport import METHOD, Grpc
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import Journal
from shared.commands import HANG

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
    transport = Grpc(home.load() if isinstance(home, Home) else home, refused)
    try:
        await transport.serve(answer)
        yield transport
    finally:
        await transport.close()
        gc.collect()  # gRPC's server must go while its loop is there


@contextlib.asynccontextmanager
async def asking_from(home):
    """The transport of a folder that only asks."""
    transport = Grpc(home.load() if isinstance(home, Home) else home, lambda *told: None)
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
        Grpc(peer, journal.refused), audit, **usual | more,
    )  # fmt: skip
    try:
        yield node, told
    finally:
        node.transport._server = None
        gc.collect()
        audit.close()
        store.close()


@contextlib.asynccontextmanager
async def channel_to(network, name, key=None, certificate=None, authority=None):
    """A channel to a member with any key and certificate, or with none."""
    authority = authority or network.founder.authority()
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    options = {
        "grpc.ssl_target_name_override": name,
        "grpc.use_local_subchannel_pool": 1,
        "grpc.max_receive_message_length": -1,
        "grpc.max_send_message_length": -1,
    }
    address = network.founder.roster().member(name).address
    async with grpc.aio.secure_channel(address, credentials, options=list(options.items())) as channel:
        yield channel


def channel_of(network, name, by):
    """A channel to a member with another member's key and certificate."""
    home = network.homes[by]
    return channel_to(network, name, home.key_path.read_bytes(), home.certificate_path.read_bytes())


def request(network, by, kind, **more):
    """A question as a member of the network asks it."""
    usual = {"version": wire.VERSION, "run": network.founder.roster().run, "sender": by, "kind": kind}
    return Request(**usual | more)


async def ask(channel, asked):
    """The reply to a request, once somebody listens there."""
    call = channel.unary_unary(METHOD)(wire.encode(asked), timeout=HANG, wait_for_ready=True)
    return msgspec.msgpack.decode(await call, type=Reply)


def within(work):
    """The result of some work; an error where it hangs."""

    async def limited():
        async with asyncio.timeout(HANG):
            return await work

    return asyncio.run(limited())
