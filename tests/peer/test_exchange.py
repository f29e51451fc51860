"""What sites tell each other of rosters and runs: who is answered, what is refused, and what is asked for again."""

import asyncio
import hashlib
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
import msgspec

from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.wire import Request
from peerbayes.peer.runs import exchange
from peerbayes.peer.runs.exchange import ASKED_AT_ONCE, LIST, SIZE, Exchange
from shared.runs_of_folders import Folders, terms_of


class Sites(Folders):
    """What each site of a network answers, without a process: the chain peer-1, peer-2, peer-3."""

    def __init__(self, folder):
        super().__init__(folder)
        self.told, self.adopted, self.sites = [], [], {}

    def site(self, name):
        if name not in self.sites:
            peer = self.network.homes[name].member()
            signed = self.network.homes[name].roster_path.read_bytes()
            event = lambda what, facts: self.told.append((what, facts))  # noqa: E731
            session = Session(
                peer.name, peer.terms, peer.roster, signed, None, SimpleNamespace(), None, event
            )
            self.sites[name] = Exchange(session, self.runs[name], self._adopt)
        return self.sites[name]

    async def _adopt(self, signed):
        self.adopted.append(signed)

    async def asked(self, caller, name, kind="documents", sender=None, **fields):
        """Ask a site, as a neighbour does; return its reply."""
        site = self.site(name)
        request = Request(wire.VERSION, site.identity, sender or caller, kind, **fields)
        content = await site.answer(caller, wire.encode(request))
        return wire.reply_in(content, request, name)

    def connect(self, caller, name, alter=lambda reply: reply):
        """Have one site ask another one directly; replies may be altered on the way."""

        async def ask(neighbour, request, timeout):
            assert neighbour == name
            content = await self.site(name).answer(caller, wire.encode(request))
            return alter(wire.reply_in(content, request, name))

        site = self.site(caller)
        site.session.ask = ask
        return site


@pytest.fixture
def sites(tmp_path):
    made = Sites(tmp_path)
    made.runs["peer-2"].propose(terms_of(rounds=7).to_toml())
    return made


def listing_of(runs):
    return b"".join(map(bytes.fromhex, runs.shared()))


def test_a_neighbour_gets_the_listing_and_every_document_in_it(sites):
    async def everything():
        told = await sites.asked("peer-1", "peer-2", phase=LIST)
        assert told.status == "ok" and told.body == listing_of(sites.runs["peer-2"])
        for start in range(0, len(told.body), SIZE):
            digest = told.body[start : start + SIZE].hex()
            document = await sites.asked("peer-1", "peer-2", phase=digest)
            assert document.status == "ok" and sites.give("peer-1", document.body, "peer-2")
        seen = hashlib.sha256(told.body).digest()
        assert (await sites.asked("peer-1", "peer-2", phase=LIST, body=seen)).status == "not yet"

    asyncio.run(everything())
    assert sites.runs["peer-1"].entry(2).state == "proposed"


def test_nobody_speaks_for_another(sites):
    told = asyncio.run(sites.asked("peer-3", "peer-2", phase=LIST, sender="peer-1"))
    assert told.status == "refused" and told.reason.startswith("speaks for another") and not told.body
    assert [facts["who"] for what, facts in sites.told if what == "refused"] == ["peer-3"]


def test_documents_are_for_neighbours_only(sites):
    for phase in (LIST, listing_of(sites.runs["peer-2"])[:SIZE].hex()):
        told = asyncio.run(sites.asked("peer-3", "peer-1", phase=phase))
        assert told.status == "refused" and told.reason.startswith("not a neighbour") and not told.body
    assert asyncio.run(sites.asked("peer-3", "peer-1", kind="hello")).status == "ok"


def test_a_revoked_member_is_told_of_the_roster_and_of_nothing_else(sites):
    sites.network.founder.revoke("peer-1")
    sites.adopt()
    for kind, phase in (("documents", LIST), ("renew", ""), ("round", "")):
        told = asyncio.run(sites.asked("peer-1", "peer-2", kind=kind, phase=phase))
        assert told.status == "refused" and told.reason.startswith("revoked")
    told = asyncio.run(sites.asked("peer-1", "peer-2", kind="roster"))
    assert told.status == "ok" and told.body == sites.network.founder.roster_path.read_bytes()


def test_who_asks_for_documents_without_end_is_refused(sites):
    async def flood():
        for _ in range(ASKED_AT_ONCE):
            assert (await sites.asked("peer-1", "peer-2", phase="0" * 64)).status == "gone"
        return await sites.asked("peer-1", "peer-2", phase="0" * 64), await sites.asked(
            "peer-3", "peer-2", phase="0" * 64
        )

    sites.site("peer-2")._asked.clock = lambda: 0.0  # no time passes
    refused, other = asyncio.run(flood())
    assert refused.status == "refused" and refused.reason.startswith("too many documents")
    assert other.status == "gone", "of one caller"


@pytest.mark.parametrize("phase", ["../../peer.key", "peer.toml", "0" * 63, "G" * 64, ""])
def test_no_other_file_is_given_away(sites, phase):
    assert asyncio.run(sites.asked("peer-1", "peer-2", phase=phase)).status == "gone"


def test_what_a_neighbour_has_is_fetched_once_with_the_roster_that_it_names(sites):
    async def fetched():
        site = sites.connect("peer-1", "peer-2")
        listing = await site._listing("peer-2", b"")
        assert await site._fetch("peer-2", listing)
        asked = []
        ask = site.session.ask
        site.session.ask = lambda *call: asked.append(call) or ask(*call)
        assert await site._fetch("peer-2", listing) and asked == [], "they are here now"

    asyncio.run(fetched())
    assert sites.runs["peer-1"].entry(2).state == "proposed"
    assert [facts["who"] for what, facts in sites.told if what == "document"] == ["peer-2", "peer-2"]


def test_another_document_than_the_one_that_was_asked_for_is_refused(sites):
    sites.runs["peer-2"].propose(terms_of(rounds=8).to_toml())  # run 3 is another one
    first, second = [*sites.runs["peer-2"].shared()][:2]

    async def exchanged():
        site = sites.connect("peer-1", "peer-2")
        other = sites.runs["peer-2"].find(second).read_bytes()
        site._pieces = lambda *_: _value(other)
        await site._fetch("peer-2", bytes.fromhex(first))

    with pytest.raises(RefusedMessage, match=f"came instead of {first:.8}") as refused:
        asyncio.run(exchanged())
    assert refused.value.reason == "bad document"
    assert sites.runs["peer-1"].home.run_numbers() == [1]


async def _value(value):
    return value


def test_a_listing_of_another_length_and_pieces_without_end_are_refused(sites):
    async def listed(alter):
        return await sites.connect("peer-1", "peer-2", alter)._listing("peer-2", b"")

    change = lambda **fields: lambda reply: msgspec.structs.replace(reply, **fields)  # noqa: E731
    for alter, says in (
        (change(body=b"1" * (SIZE + 1), shape=(SIZE + 1,)), "a listing of 33 bytes"),
        (change(body=b"1" * SIZE, shape=(2**40,)), "a piece of 32 bytes"),
        (change(body=b"1" * SIZE, shape=(SIZE - 1,)), "a piece of 32 bytes of 31"),
        (change(body=b"", shape=(SIZE,)), "an empty piece"),
        (change(shape=()), "of -1"),
    ):
        with pytest.raises(RefusedMessage, match=says):
            asyncio.run(listed(alter))
    assert asyncio.run(listed(change(status="not yet"))) is None


def test_the_identity_of_a_membership_is_no_runs():
    assert exchange.membership_of("net") != exchange.membership_of("nets")
    assert len(exchange.membership_of("net")) == 64
