"""What sites tell each other beside their runs, where a real member over a real link does the worst that it can.

Sites ask, so a hostile one can answer badly (a lie of `served`) and ask badly (a channel). Whatever it does, it stores
nothing at another one, learns nothing that it may not, and honest members go on.
"""

import asyncio
import json
import os
import time
from dataclasses import replace

import msgspec
import pytest

pytest.importorskip("cryptography")
from peerbayes.errors import RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.server import AT_ONCE
from peerbayes.peer.runs import Runs, exchange
from peerbayes.peer.runs.documents import LARGEST, Decision, Proposal
from peerbayes.peer.runs.exchange import ASKED_AT_ONCE, LIST, ROSTERS_AT_ONCE, membership_of
from peerbayes.peer.runs.listing import MOST, NUMBER, SIZE, TOKEN, Listing, Progress
from peerbayes.peer.runs.routing import Router, run_of
from shared.commands import HANG
from shared.exchanges import served
from shared.link_option import over_other_links_too
from shared.real_calls import LINE, Ended, ask, channel_of, made_network, request, within

pytestmark = pytest.mark.links

# peer-2 is asked and lied to by peer-3; peer-1 is honest.
HOSTILE, VICTIM, HONEST = "peer-3", "peer-2", "peer-1"


@pytest.fixture
def network(tmp_path):
    return made_network(tmp_path, LINE)


def question(network, by=HOSTILE, **more):
    usual = {"kind": "documents", "phase": LIST, "run": membership_of("net")}
    return request(network, by, **usual | more)


async def until(holds):
    async with asyncio.timeout(HANG):
        while not holds():
            await asyncio.sleep(0.02)


def proposed(network, by=HONEST):
    """A run that a member proposes and approves; the digests of both documents."""
    runs = Runs(network.homes[by].folder)
    runs.propose()
    return list(runs.shared())


def documents_at(network, name=VICTIM):
    return set(Runs(network.homes[name].folder).shared())


# --- bad questions ---------------------------------------------------------------------------------------

BAD_QUESTIONS = {
    "noise": (lambda network: b"\xff" * 40, "unreadable"),
    "no bytes": (lambda network: b"", "unreadable"),
    "list in list in list": (lambda network: b"\x91" * 50_000, "unreadable"),
    "half a request": (lambda network: wire.encode(question(network))[:-9], "unreadable"),
    "another's name": (lambda network: question(network, sender=HONEST), "speaks for another"),
    "its own name": (lambda network: question(network, sender=VICTIM), "speaks for another"),
    "a run that nobody proposed": (
        lambda network: question(network, kind="round", phase="", run="0" * 64),
        "wrong network",
    ),
    "another version": (lambda network: question(network, version=99), "other version"),
    "a roster of noise": (
        lambda network: question(network, kind="roster", phase="", body=b"x" * 5000),
        "bad roster",
    ),
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_a_bad_question_is_refused_with_a_reason_and_the_next_one_answered(network, name):
    make, reason = BAD_QUESTIONS[name]

    async def main():
        async with (
            served(network.homes[VICTIM], starts=False) as site,
            channel_of(network, VICTIM, HOSTILE) as channel,
        ):
            reply = await ask(channel, make(network))
            assert (reply.status, reply.reason.partition(":")[0]) == ("refused", reason)
            assert not reply.body
            assert (await ask(channel, question(network))).status == "not yet"
            assert site.refusals == [(HOSTILE, reason)]

    within(main())


PATHS = (
    "../../peer.key",
    "/etc/passwd",
    "proposals",
    "0" * 63,
    "0" * 65,
    "F" * 64,
    "0" * 64,
    "",
    "rosters/x",
)


def test_only_documents_of_the_listing_are_given_whatever_name_is_asked_for(network):
    proposed(network, VICTIM)

    async def main():
        async with (
            served(network.homes[VICTIM], starts=False),
            channel_of(network, VICTIM, HOSTILE) as channel,
        ):
            listed = await ask(channel, question(network))
            digest = listed.body[TOKEN + NUMBER :][:SIZE].hex()
            for phase in PATHS:
                reply = await ask(channel, question(network, phase=phase))
                # A name longer than any digest is no name of the wire format.
                assert (reply.status, reply.body) == ("refused" if len(phase) > 64 else "gone", b""), phase
            document = (await ask(channel, question(network, phase=digest))).body
            assert Proposal.unverified(document).digest == digest
            for start in (len(document), len(document) + 1, 1 << 39):  # there is no such piece
                reply = await ask(channel, question(network, phase=digest, round_index=start))
                assert (reply.status, reply.body) == ("gone", b"")

    within(main())


def test_who_is_no_neighbour_gets_no_documents(network):
    proposed(network, HONEST)

    async def main():
        async with served(network.homes[HONEST], starts=False) as site:
            async with channel_of(network, HONEST, HOSTILE) as channel:  # no link between them
                for phase in (LIST, *documents_at(network, HONEST)):
                    reply = await ask(channel, question(network, phase=phase))
                    assert reply.status == "refused" and reply.reason.startswith("not a neighbour")
                reply = await ask(channel, question(network, kind="hello", phase=""))
                assert reply.status == "ok"
            assert set(site.refusals) == {(HOSTILE, "not a neighbour")}

    within(main())


def test_a_revoked_member_gets_the_roster_that_says_so_and_nothing_else(network):
    proposed(network, VICTIM)
    network.founder.revoke(HOSTILE)
    network.homes[VICTIM].join(network.founder.roster_path.read_bytes())

    async def main():
        async with (
            served(network.homes[VICTIM], starts=False),
            channel_of(network, VICTIM, HOSTILE) as channel,
        ):
            for asked in (
                question(network),
                question(network, kind="round", phase=""),
                question(network, kind="roster", phase="", body=b"x"),
                question(network, kind="renew", phase=""),
            ):
                reply = await ask(channel, asked)
                assert reply.status == "refused" and reply.reason.startswith("revoked")
            reply = await ask(channel, question(network, kind="roster", phase=""))
            assert reply.body == network.founder.roster_path.read_bytes()

    within(main())


def test_floods_of_questions_are_refused_and_others_are_answered(network, monkeypatch):
    for name in ("ASKED_EVERY", "ROSTERS_EVERY"):  # however slow this machine is
        monkeypatch.setattr(exchange, name, 1e6)

    async def main():
        async with (
            served(network.homes[VICTIM], starts=False) as site,
            channel_of(network, VICTIM, HOSTILE) as hostile,
            channel_of(network, VICTIM, HONEST) as honest,
        ):
            replies = [await ask(hostile, question(network)) for _ in range(ASKED_AT_ONCE + 20)]
            refused = [reply for reply in replies if reply.status == "refused"]
            assert refused and all(reply.reason.startswith("too many documents") for reply in refused)
            assert all(reply.status == "not yet" for reply in replies[:ASKED_AT_ONCE])
            assert (await ask(honest, question(network, HONEST))).status == "not yet"

            forged = [
                question(network, kind="roster", phase="", body=os.urandom(300))
                for _ in range(3 * ROSTERS_AT_ONCE)
            ]
            reasons = [(await ask(hostile, asked)).reason.partition(":")[0] for asked in forged]
            assert reasons[:ROSTERS_AT_ONCE] == ["bad roster"] * ROSTERS_AT_ONCE
            assert "too many rosters" in reasons
            assert (HONEST, "too many documents") not in site.refusals

    within(main())


def test_too_many_questions_that_wait_are_refused_and_others_are_answered(network):
    async def main():
        async with (
            served(network.homes[VICTIM], starts=False) as site,
            channel_of(network, VICTIM, HOSTILE) as hostile,
            channel_of(network, VICTIM, HONEST) as honest,
        ):
            waiting = [
                asyncio.create_task(ask(hostile, question(network, wait=60.0))) for _ in range(2 * AT_ONCE)
            ]
            assert (await ask(honest, question(network, HONEST))).status == "not yet"
            found = list(asyncio.as_completed(waiting))
            ended = [await asyncio.gather(task, return_exceptions=True) for task in found]
            kinds = [
                type(each[0]).__name__ if isinstance(each[0], Exception) else each[0].status for each in ended
            ]
            assert kinds.count("not yet") <= AT_ONCE
            assert kinds.count("refused") + kinds.count(Ended.__name__) >= AT_ONCE
            assert (await ask(hostile, question(network))).status == "not yet"  # none of them is left behind
            assert not +site.exchange._busy

    within(main())


# --- the router ------------------------------------------------------------------------------------------


def test_a_question_goes_to_the_run_that_it_names_and_everything_else_to_the_site():
    async def main():
        async def otherwise(caller, content):
            return b"site"

        async def of_run(caller, content):
            return b"run"

        router = Router(None, otherwise)
        view = router.view("a" * 64, 1000)
        asked = wire.encode(wire.Request(wire.VERSION, "a" * 64, "x", "hello"))
        assert await router.answer("x", asked) == b"site" and not router.has("a" * 64)
        await view.serve(of_run)
        assert await router.answer("x", asked) == b"run" and router.has("a" * 64)
        others = (
            b"", b"\xff", b"\x91" * 100_000, asked[:-5], msgspec.msgpack.encode({"run": ["a" * 64]}),
            wire.encode(wire.Request(wire.VERSION, "b" * 64, "x", "hello")), b"\x81\xa3run\xc4",
            msgspec.msgpack.encode({"run": "a" * 64})[:-1],
        )  # fmt: skip
        for content in others:
            assert await router.answer("x", content) == b"site"
        await view.close()
        assert await router.answer("x", asked) == b"site"

    asyncio.run(main())
    assert run_of(b"\xd9" * 40) == ""


# --- bad answers -----------------------------------------------------------------------------------------


def body(content, **more):
    return lambda asked, told: msgspec.structs.replace(
        told, status="ok", body=content, digest=wire.digest_of(content), **more
    )


def listing_of(*digests, token=b"t" * TOKEN, last=None):
    return token + (len(digests) if last is None else last).to_bytes(NUMBER, "big") + b"".join(digests)


def in_lists(alter):
    """Alters listings, and lists one document that nobody has."""
    return lambda asked, told: alter(asked, told) if asked.phase == LIST else told


def in_documents(content, total=None):
    """Lists a document under ever another digest, and has something else in its place."""

    def lie(asked, told):
        if asked.phase == LIST:
            return body(listing_of(os.urandom(SIZE), token=os.urandom(TOKEN)))(asked, told)
        if asked.kind == "documents":
            return body(content, shape=(len(content) if total is None else total,))(asked, told)
        return told

    return lie


BAD_ANSWERS = {
    "half a digest": (in_lists(body(listing_of(b"x" * 31))), "wrong shape"),
    "no digests": (in_lists(body(listing_of())), "wrong shape"),
    "no token": (in_lists(body(b"x" * SIZE)), "wrong shape"),
    "more than a reply has": (in_lists(body(listing_of(*[b"x" * SIZE] * (MOST + 1)))), "wrong shape"),
    "numbers that go back": (in_lists(body(listing_of(b"x" * SIZE, last=0))), "wrong message"),
    "a number beyond all": (in_lists(body(listing_of(b"x" * SIZE, last=1 << 50))), "wrong message"),
    "documents that it does not have": (
        in_lists(
            lambda asked, told: body(
                listing_of(*map(os.urandom, [SIZE] * MOST), token=os.urandom(TOKEN))
            )(asked, told)
        ),
        "wrong message",
    ),
    "a document of noise": (in_documents(b"\xff" * 500), "bad document"),
    "lists in lists": (in_documents(b"[" * 20_000), "bad document"),
    "an empty piece": (in_documents(b"", 100), "wrong message"),
    "a document without end": (in_documents(b"x" * 1000, LARGEST + 1), "wrong shape"),
    "more than the whole": (in_documents(b"x" * 1000, 10), "wrong shape"),
    "bytes that were changed": (
        lambda asked, told: msgspec.structs.replace(told, status="ok", body=b"abc", digest=b"\0" * 32),
        "wrong digest",
    ),
    "noise": (lambda asked, told: b"\xff" * 100 if asked.kind == "documents" else told, "unreadable"),
}  # fmt: skip


def hurried(monkeypatch):
    """Sites ask again soon, and are barred for ever."""
    for name, seconds in (("FIRST_PAUSE", 0.01), ("LONGEST_PAUSE", 0.02)):
        monkeypatch.setattr(tasks, name, seconds)
    monkeypatch.setattr(exchange, "BARRED", 1e6)
    monkeypatch.setattr(exchange, "AGAIN", 0.02)


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_neighbour_that_answers_badly_is_barred_and_stores_nothing(network, monkeypatch, name):
    lie, reason = BAD_ANSWERS[name]
    hurried(monkeypatch)

    async def main():
        async with (
            served(network.homes[VICTIM]) as victim,
            served(network.homes[HOSTILE], lie, starts=False, waits=False) as hostile,
            served(network.homes[HONEST], starts=False) as honest,
        ):
            await until(lambda: "not asked for" in victim.session.neighbour(HOSTILE).note)
            assert victim.refusals.count((HOSTILE, reason)) > exchange.STRIKES
            assert {who for who, _ in victim.refusals} == {HOSTILE}
            assert documents_at(network) == set()
            asked = hostile.count(VICTIM)
            digests = proposed(network)  # by an honest member, whom this does not touch
            honest.session.changes.notify()
            await until(lambda: documents_at(network) == set(digests))
            assert hostile.count(VICTIM) <= asked + 1

    within(main())


def forged(network, change):
    """A proposal that was made wrongly by the hostile member, and its digest."""
    peer = network.homes[HOSTILE].member()
    honest = network.homes[HONEST].member()
    now = time.time()
    document = Proposal(
        "net",
        2,
        HOSTILE,
        now,
        peer.terms.to_toml(),
        peer.roster.version,
        peer.roster.digest.hex(),
        now + 1000.0,
    )
    key, certificate = peer.key, peer.certificate
    if change == "in another's name":
        document = replace(document, member=HONEST)
    elif change == "with another's certificate":
        document, certificate = replace(document, member=HONEST), honest.certificate
    elif change == "of another network":
        document = replace(document, network="other")
    elif change == "of a roster that says otherwise":
        document = replace(document, roster=document.roster + 1)
    elif change == "of tomorrow's tomorrow":
        document = replace(document, at=now + 3 * 86400, expires=now + 4 * 86400)
    signed = document.signed(key, certificate)
    if change == "with its signature changed":
        envelope = json.loads(signed)
        altered = envelope["signature"][:-2] + ("00" if envelope["signature"][-2:] != "00" else "01")
        signed = signed.replace(envelope["signature"].encode(), altered.encode())
    if change == "under another digest":
        return signed, "1" * 64
    return signed, document.digest


FORGERIES = [
    "in another's name", "with another's certificate", "of another network", "of a roster that says otherwise",
    "of tomorrow's tomorrow", "with its signature changed", "under another digest",
]  # fmt: skip


@pytest.mark.parametrize("change", FORGERIES)
def test_a_forged_document_is_refused_asked_for_once_and_in_nobodys_way(network, monkeypatch, change):
    hurried(monkeypatch)
    document, digest = forged(network, change)
    times = []

    def lie(asked, told):
        if asked.kind != "documents":
            return told
        if asked.phase == LIST:
            if asked.body:
                return msgspec.structs.replace(told, status="not yet", body=b"", digest=b"")
            return body(listing_of(bytes.fromhex(digest)))(asked, told)
        times.append(asked.phase)
        return body(document, shape=(len(document),))(asked, told)

    async def main():
        async with (
            served(network.homes[VICTIM]) as victim,
            served(network.homes[HOSTILE], lie, starts=False),
            served(network.homes[HONEST], starts=False) as honest,
        ):
            await until(lambda: (HOSTILE, "bad document") in victim.refusals)
            digests = proposed(network)
            honest.session.changes.notify()
            await until(lambda: documents_at(network) == set(digests))
            assert victim.refusals == [(HOSTILE, "bad document")] and times == [digest]
            if change == "of another network":
                return
            # Another roster may make it valid, so it is asked for once more by that.
            network.founder.invite(HONEST, network.homes[HONEST].request_path.read_bytes(),
                                   network.homes[HONEST].settings().address, again=True)  # fmt: skip
            await victim._adopt(network.founder.roster_path.read_bytes())
            await until(lambda: len(times) == 2)

    within(main())


@over_other_links_too
def test_documents_that_are_replayed_change_nothing(tmp_path, monkeypatch, kind_of_links):
    """An approval of one proposal, given again under other digests and as that of another run."""
    hurried(monkeypatch)
    network = made_network(tmp_path, LINE)
    digests = proposed(network, HOSTILE)
    runs = Runs(network.homes[HOSTILE].folder)
    peer, proposal = network.homes[HOSTILE].member(), runs.entry(2).proposal
    approval = runs.find(next(d for d in digests if d != proposal.digest)).read_bytes()
    other = replace(Decision.unverified(approval), number=3).signed(peer.key, peer.certificate)
    told_again = {"2" * 64: approval, Decision.unverified(other).digest: other}
    times = []

    def lie(asked, told):
        if asked.kind == "documents" and asked.phase == LIST and asked.body != b"t" * TOKEN:
            listed = [*digests, *told_again, *digests]
            return body(listing_of(*map(bytes.fromhex, listed)))(asked, told)
        if asked.kind == "documents" and asked.phase == LIST:
            return msgspec.structs.replace(told, status="not yet", body=b"", digest=b"")
        times.append(asked.phase)
        if asked.phase in told_again:
            content = told_again[asked.phase]
            return body(content, shape=(len(content),))(asked, told)
        return told

    async def main():
        async with served(network.homes[VICTIM]) as victim, served(network.homes[HOSTILE], lie, starts=False):
            await until(lambda: documents_at(network) == set(digests) and len(times) > 8)
            assert set(victim.refusals) == {(HOSTILE, "bad document")}
            assert times.count("2" * 64) == 1 and all(times.count(digest) == 1 for digest in digests)
            entries = Runs(network.homes[VICTIM].folder).entries()
            assert [entry.number for entry in entries] == [1, 2]
            assert entries[1].approved == (HOSTILE,)

    within(main())


@pytest.mark.parametrize("says", ["ever another token", "that there is nothing yet, at once"])
def test_a_neighbour_that_lists_without_end_is_asked_no_more(network, monkeypatch, says):
    """Every reply comes at once, and there is nothing new in it."""
    hurried(monkeypatch)
    monkeypatch.setattr(exchange, "LISTS_EVERY", 1e6)  # however slow this machine is
    known = bytes.fromhex(proposed(network, VICTIM)[0])

    def lie(asked, told):
        if asked.phase != LIST:
            return told
        if says.startswith("that"):
            return msgspec.structs.replace(told, status="not yet", body=b"", digest=b"")
        return body(listing_of(known, token=os.urandom(TOKEN)))(asked, told)

    async def main():
        async with (
            served(network.homes[VICTIM]) as victim,
            served(network.homes[HOSTILE], lie, starts=False, waits=False) as hostile,
        ):
            await until(lambda: "not asked for" in victim.session.neighbour(HOSTILE).note)
            assert set(victim.refusals) == {(HOSTILE, "too many listings")}
            assert hostile.count(VICTIM) <= exchange.LISTS_AT_ONCE + 4 * exchange.STRIKES

    within(main())


# --- what an honest exchange costs -------------------------------------------------------------------------


def test_only_what_is_new_is_listed_and_a_restart_lists_everything_again(tmp_path):
    listing, paths = Listing(), {}
    progress = Progress()
    for number in range(3 * MOST):
        paths[f"{number:064x}"] = tmp_path / str(number)
    listing.update(paths)
    replies = 0
    while reply := listing.after(progress.token, progress.number):
        progress.read(reply, 10**6)
        replies += 1
    assert replies == 3 and list(progress.missing) == list(paths)
    assert listing.after(progress.token, progress.number) == b""
    progress.missing.clear()
    listing.update(paths | {"f" * 64: tmp_path})
    reply = listing.after(progress.token, progress.number)
    assert len(reply) == TOKEN + NUMBER + SIZE  # one document: one digest
    progress.read(reply, 10**6)
    assert list(progress.missing) == ["f" * 64]
    # Those that are no longer passed on are not listed, and others keep their numbers.
    later = dict(list((paths | {"f" * 64: tmp_path}).items())[MOST:])
    listing.update(later)
    assert listing.after(progress.token, progress.number) == b""
    again = Progress()
    while reply := Listing.after(listing, again.token, again.number):
        again.read(reply, 10**6)
    assert list(again.missing) == list(later)
    restarted = Listing()
    restarted.update(later)
    assert len(restarted.after(progress.token, progress.number)) == TOKEN + NUMBER + MOST * SIZE
    with pytest.raises(RefusedMessage, match="more than 5 documents"):
        Progress().read(restarted.after(b"", 0), 5)


def test_more_documents_than_may_be_asked_for_at_once_all_come(network, monkeypatch):
    """Whoever lacks many keeps below what its neighbour allows."""
    monkeypatch.setattr(exchange, "ASKED_AT_ONCE", 8)
    runs = Runs(network.homes[HONEST].folder)
    for _ in range(8):
        runs.propose()
    digests = set(runs.shared())
    assert len(digests) == 16

    async def main():
        async with (
            served(network.homes[VICTIM]) as victim,
            served(network.homes[HONEST], starts=False) as honest,
        ):
            await until(lambda: documents_at(network) == digests)
            assert victim.refusals == honest.refusals == []

    within(main())
