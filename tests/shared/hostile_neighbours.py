"""Three peers in this process over real links with real certificates, one of which may answer with lies."""

import asyncio
import contextlib

import msgspec
import numpy as np
from sklearn.datasets import load_iris

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.protocol.wire import Reply
from peerbayes.peer.running_peer import Membership, RunningPeer
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import Journal, status
from shared.commands import HANG

IRIS = load_iris(as_frame=True).frame
IRIS["wide"] = np.where(IRIS["petal width (cm)"] > 1, "yes", "no")
TABLES = [IRIS[place::3] for place in range(3)]
TRIANGLE = [(0, 1), (1, 2), (0, 2)]
PATIENT = Limits(deadline=600.0, message_bytes=64 << 10)
TERMS = Terms("flowers", "target", start="ml", rounds=4, limits=PATIENT, strategy="exact")
HONEST, HOSTILE = ("peer-1", "peer-2"), "peer-3"


class Liar(Links):
    """A member that answers through a function: (its request, its honest reply) -> what it says."""

    def __init__(self, peer, refused, lie):
        super().__init__(peer, refused)
        self._lie = lie
        self._largest = 2**31 - 1  # it may send what it likes

    async def serve(self, answer):
        async def altered(caller, content):
            told = await answer(caller, content)
            said = self._lie(caller, wire.request_in(content), msgspec.msgpack.decode(told, type=Reply))
            said = await said if asyncio.iscoroutine(said) else said
            return wire.encode(said) if isinstance(said, Reply) else said

        await super().serve(altered)


@contextlib.contextmanager
def opened(home, transport=Links, told=None):
    """The node of a folder, as `peer run` makes it."""
    peer = home.load()
    store, audit = Store(home.state_path), AuditLog(home.audit_path)
    journal = Journal(store)

    def tell(what, facts):
        journal(what, facts)
        if told is not None:
            told(what, facts)

    made = RunningPeer(
        Membership(peer.name, peer.terms, peer.roster, home.roster_path.read_bytes()), *tables_of(peer)[0], store,
        transport(peer, journal.refused), audit, model=home.model_path, newer=home.keep_roster, on_event=tell,
        linger=60.0,
    )  # fmt: skip
    try:
        yield made
    finally:
        journal.flush(made.session.neighbour_states)
        audit.close()
        store.close()


def run(network, lie=None, beside=None, limit=HANG):
    """All peers to the end: S of each. The hostile one lies; `beside(nodes)` goes on at the same time."""

    async def together():
        with contextlib.ExitStack() as stack:
            nodes = {
                name: stack.enter_context(
                    opened(home, (lambda *given: Liar(*given, lie)) if lie and name == HOSTILE else Links)
                )
                for name, home in network.homes.items()
            }
            free = asyncio.Event()  # nobody ends while something goes on beside the run
            for each in nodes.values():
                each._finish = stays(each._finish, free)
            works = [asyncio.ensure_future(each.run()) for each in nodes.values()]
            try:
                async with asyncio.timeout(limit):
                    if beside is not None:
                        await beside(nodes)
                    free.set()
                    return dict(zip(nodes, await asyncio.gather(*works), strict=True))
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)

    return asyncio.run(together())


def stays(finish, free):
    """The end of a run, but not before it is free to end."""

    async def later(verdict):
        await free.wait()
        await finish(verdict)

    return later


def reasons(home):
    """What `peer status` says was refused: (who, reason) -> how often."""
    return {(entry["who"], entry["reason"]): entry["count"] for entry in status(home)["refusals"]}
