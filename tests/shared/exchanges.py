"""Sites in this process that keep documents the same over real links; some of them lie."""

import contextlib

import msgspec

from peerbayes.errors import IdentityError, RefusedMessage
from peerbayes.peer import service
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.protocol.wire import Reply, Request, encode
from peerbayes.peer.runs import Runs
from peerbayes.peer.runs.exchange import Exchange
from peerbayes.peer.runs.routing import Router
from shared.kinds_of_links import until_waits


class Served:
    """One site: its exchange, whatever it refused, and the requests that came."""

    def __init__(self, home, lie=None, waits=True):
        peer, self.home, self.lie, self.waits = home.member(), home, lie, waits
        self.refusals, self.asked = [], []
        self.transport = Links(peer, lambda who, reason, detail: self.refusals.append((who, reason)))
        signed = home.roster_path.read_bytes()
        self.session = Session(
            peer.name, peer.terms, peer.roster, signed, None, self.transport, None, self._event
        )
        self.runs = Runs(home.folder)
        self.exchange = Exchange(self.session, self.runs, self._adopt)
        self.router = Router(self.transport, self.exchange.answer)

    def _event(self, event, facts):
        if event == "refused":
            self.refusals.append((facts["who"], facts["reason"]))

    async def _adopt(self, signed):
        try:
            roster = service.keep_roster(self.home, signed)
        except IdentityError as error:
            raise RefusedMessage("bad roster", str(error)) from error
        if roster.version > self.session.roster.version:
            self.session.roster, self.session.signed = roster, signed
            self.transport.follow(roster)
            self.exchange.start()
            self.session.changes.notify()

    async def answer(self, caller, content):
        """The honest reply, or what is made of it."""
        asked = msgspec.msgpack.decode(content, type=Request)
        if not self.waits:
            content = encode(msgspec.structs.replace(asked, wait=0.0))
        reply = await self.router.answer(caller, content)
        self.asked.append((caller, asked.kind, asked.phase))
        if self.lie is None:
            return reply
        told = self.lie(asked, msgspec.msgpack.decode(reply, type=Reply))
        return told if isinstance(told, bytes) else encode(told)

    def count(self, caller):
        """How often a caller has asked for documents."""
        return sum(who == caller and kind == "documents" for who, kind, _ in self.asked)


@contextlib.asynccontextmanager
async def served(home, lie=None, starts=True, waits=True):
    """A site that serves; with `starts` it asks its neighbours too; without `waits` it answers at once."""
    site = Served(home, lie, waits)
    try:
        await site.transport.serve(site.answer if lie is not None else site.router.answer)
        await until_waits(site.session.roster.member(site.session.name))
        if starts:
            site.exchange.start()
        yield site
    finally:
        await site.exchange.stop()
        await site.transport.close()
