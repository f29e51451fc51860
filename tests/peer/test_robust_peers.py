"""Real peers among which one lies: terms, demands, clipping, the guard, and two stories of one round."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import networkx as nx
import numpy as np
import pytest
from scipy.sparse import csr_array

pytest.importorskip("cryptography")

import peerbayes as pb
from peerbayes.errors import RefusedMessage, TermsError
from peerbayes.learning.robust.invariants import Invariants
from peerbayes.learning.strategies import CRC, STRATEGIES
from peerbayes.peer import tasks
from peerbayes.peer.agreement.terms import Limits, Robust, Terms
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.identity.keys import verify
from peerbayes.peer.learning.learner import Broadcaster, Judged
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.equivocation import Evidence, Statements
from peerbayes.peer.protocol.wire import Reply, Statement
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.peer_settings import Settings, refuse_weaker
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import status
from shared.hostile_neighbours import HONEST, HOSTILE, TABLES, TERMS, TRIANGLE, Liar, reasons, run
from shared.memory_transport import InMemory
from shared.own_strategy import Momentum
from shared.peers_in_memory import DENSE, peers_of, shared_out, simulated

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

CLIP, GUARD = Robust("clip"), Robust("clip", guard=True)


# --- terms and demands ---------------------------------------------------------------------------------


def test_robust_terms_are_agreed_on():
    plain = Terms("test", "label", strategy="exact")
    terms = replace(plain, robust=GUARD)
    assert Terms.parse(terms.to_toml(), "here") == terms and Terms.parse(plain.to_toml(), "here") == plain
    assert terms.digest != plain.digest != replace(plain, robust=CLIP).digest
    assert plain.differences(terms) == [
        "robust.combine: mean against clip",
        "robust.guard: False against True",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[robust]\ncombine = "median"', "expected one of mean, clip"),
        ("[robust]\nguard = 1", "expected true or false"),
        ("[robust]\nguard = true", "needs combine"),
        ('strategy = "relay"\n[robust]\ncombine = "clip"', "expected one of crc, exact"),
        ("[robust]\nclip = true", "is no entry of \\[robust\\]"),
        ("robust = 3", "expected a section"),
    ],
)
def test_robust_terms_that_make_no_sense(text, told):
    with pytest.raises(TermsError, match=told):
        Terms.parse('network = "test"\nlabel = "label"\n' + text, "here")


def test_a_peer_asks_for_no_less_than_its_own_file(tmp_path):
    plain = Terms("test", "label", strategy="exact")
    refuse_weaker(plain, {"combine": "mean", "guard": False}, "peer.toml")
    refuse_weaker(replace(plain, robust=GUARD), {"combine": "clip"}, "peer.toml")
    with pytest.raises(TermsError, match=r'peer.toml requires combine = "clip".*test says "mean"'):
        refuse_weaker(plain, {"combine": "clip"}, "peer.toml")
    with pytest.raises(TermsError, match=r"requires guard = true.*says false"):
        refuse_weaker(replace(plain, robust=CLIP), {"guard": True}, "peer.toml")
    network = Loopback.create(tmp_path, TERMS, TABLES, TRIANGLE)
    home = network.homes["peer-1"]
    with home.settings_path.open("a") as file:
        file.write('\n[require]\ncombine = "clip"\n')
    with pytest.raises(TermsError, match="stronger terms"):
        home.load()
    settings = home.settings()
    assert settings.require == {"combine": "clip"}
    (tmp_path / "again.toml").write_text(settings.to_toml(tmp_path))
    assert Settings.read(tmp_path / "again.toml") == settings


def test_a_peer_does_not_join_what_it_would_not_run(tmp_path):
    founder = Founder.create(tmp_path / "network", TERMS.to_toml(), 3)
    home = Home.create(tmp_path / "new", "new", "localhost:7777", str(tmp_path / "rows.csv"))
    with home.settings_path.open("a") as file:
        file.write("\n[require]\nguard = true\n")
    invitation = founder.invite("new", home.request_path.read_bytes(), "localhost:7777", [], False)
    with pytest.raises(TermsError, match="guard = true"):
        home.join(invitation.pack())
    assert not home.agreement_path.exists()


@pytest.mark.parametrize(
    ("require", "told"),
    [
        ("require = 3", "expected a section"),
        ("[require]\nmagic = true", "no entry of \\[require\\]"),
        ('[require]\ncombine = "most"', "expected one of mean, clip"),
    ],
)
def test_demands_that_make_no_sense(require, told, tmp_path):
    path = tmp_path / "peer.toml"
    path.write_text('name = "a"\naddress = "localhost:1"\ndata = "rows.csv"\n' + require)
    with pytest.raises(ValueError, match=told):
        Settings.read(path)


def test_demands_made_in_python_are_checked_too():
    with pytest.raises(ValueError, match=r"require\.combine is 'most'; expected one of mean, clip"):
        Settings("a", "localhost:1", "0.0.0.0:1", "rows.csv", require={"combine": "most"})


# --- the same as simulated -----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["exact", "crc", "momentum"])
@pytest.mark.parametrize("robust", [CLIP, GUARD])
def test_robust_peers_end_where_the_simulator_does(strategy, robust, tmp_path, rng, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)  # a strategy that the package does not have
    terms = Terms("test", "label", strategy=strategy, rounds=8, robust=robust)
    shared = shared_out(rng)
    X, y, parts = shared
    peers = peers_of(tmp_path, terms, DENSE, shared)
    reached = np.stack(asyncio.run(peers.all()))
    expected = pb.simulate(
        X, y, peers=len(parts), partition=parts, topology=DENSE, strategy=strategy, rounds=8, references=False,
        evaluate_every=0, robust="guard" if robust.guard else "clip", test=(X, y),
    )  # fmt: skip
    assert np.abs(reached - expected.stats).max() <= 1e-9
    plain = simulated(shared, DENSE, replace(terms, robust=Robust()))
    assert np.abs(plain.stats - expected.stats).max() > 1e-3  # so clipping did something


# --- the guard -----------------------------------------------------------------------------------------


class Forger(InMemory):
    """Answers rounds with other numbers, signed as they should be."""

    def forge(self, numbers, caller, turn):
        raise NotImplementedError

    async def serve(self, answer):
        async def altered(caller, content):
            asked, told = (
                wire.request_in(content),
                msgspec.msgpack.decode(await answer(caller, content), type=Reply),
            )
            if asked.kind != "round" or told.status != "ok":
                return wire.encode(told)
            body = self.forge(
                np.frombuffer(told.body).reshape(told.shape), caller, asked.round_index
            ).tobytes()
            digest = wire.digest_of(body)
            signature = self.sign(wire.statement(asked.run, asked.round_index, digest))
            return wire.encode(msgspec.structs.replace(told, body=body, digest=digest, signature=signature))

        await super().serve(altered)


class Flipper(Forger):
    """2 S⁰ − S, with classes reversed where that says little."""

    def forge(self, numbers, caller, turn):
        return np.ascontiguousarray(numbers[::-1])


@pytest.mark.parametrize("strategy", ["crc", "exact"])
def test_a_peer_without_neighbours_needs_no_guard_and_may_have_one(strategy, tmp_path, rng):
    X, y, parts = shared_out(rng, missing=False)
    reached = []
    for guard in (False, True):
        terms = Terms("test", "label", strategy=strategy, rounds=3, robust=Robust("clip", guard))
        (folder := tmp_path / str(guard)).mkdir()
        peers = peers_of(folder, terms, nx.empty_graph(1), (X, y, [np.concatenate(parts)]))
        reached += asyncio.run(peers.all())
    assert (reached[0] == reached[1]).all()


def test_a_neighbour_whose_models_fail_is_struck_off_for_good(tmp_path, rng):
    terms = Terms("test", "label", rounds=10, robust=GUARD, limits=Limits(deadline=1.0), strategy="exact")
    X, y, _ = shared_out(rng, missing=False)
    y = np.where(X["height"] > 172.5, "top", "low")  # easy, so that a model soon knows
    parts = np.array_split(rng.permutation(len(y)), 4)
    peers = peers_of(tmp_path, terms, nx.complete_graph(4), (X, y, parts))
    honest_transport = peers.hub.transport
    peers.hub.transport = lambda name: Flipper(peers.hub, name) if name == "p3" else honest_transport(name)
    asyncio.run(peers.all())
    for name in ("p0", "p1", "p2"):
        parted = [facts for what, facts in peers.told[name] if what == "parted"]
        assert [(facts["neighbour"], facts["reason"]) for facts in parted] == [("p3", "struck off")]
        assert peers.rounds(name) == list(range(11))
        last = peers.history(name)[-1]
        assert "p3" not in last["heard"] and len(last["heard"]) == 2 and last["missing"] == []
    assert all(
        peers.nodes["p3"].session.neighbour_states[name].left for name in ("p0", "p1", "p2")
    )  # on both sides
    # What is held against it is stored with the round: the same state strikes it off again.
    store = Store(tmp_path / "p0" / "state.sqlite", readonly=True)
    _, nested = store.last()
    store.close()
    learner = peers.nodes["p0"].session.agreed.learner
    strikes = nested[0][1]
    assert [name for name, count in zip(learner.weights, strikes, strict=True) if count >= 3] == ["p3"]
    # A single strike: its message is left out of this round's mix.
    state, of_p1 = learner.step(learner.begin(), {}), peers.nodes["p1"].session.agreed.learner
    message = of_p1.outgoing(of_p1.step(of_p1.begin(), {}))["p0"]
    with_it = learner.step(state, {"p1": message, "p3": np.ascontiguousarray(message[::-1])})
    without = learner.step(state, {"p1": message})
    np.testing.assert_array_equal(learner.read(with_it), learner.read(without))
    assert (with_it.state.strikes - without.state.strikes).tolist() == [
        float(name == "p3") for name in learner.weights
    ]


def test_a_neighbour_that_was_struck_off_may_not_ask_not_even_after_a_restart(tmp_path, rng):
    """It is told so, and gets no message; what is held against it is stored with the rounds."""
    terms = Terms("test", "label", rounds=400, robust=GUARD, limits=Limits(deadline=600.0), strategy="exact")
    X, _, _ = shared_out(rng, missing=False)
    y = np.where(X["height"] > 172.5, "top", "low")
    parts = np.array_split(rng.permutation(len(y)), 4)
    peers = peers_of(tmp_path, terms, nx.complete_graph(4), (X, y, parts))
    honest_transport = peers.hub.transport
    peers.hub.transport = lambda name: Flipper(peers.hub, name) if name == "p3" else honest_transport(name)

    async def ask(by, turn):
        schema = peers.nodes["p0"].session.agreed.schema.fingerprint
        asked = wire.Request(wire.VERSION, peers.roster.run, by, "round", round_index=turn, schema=schema)
        return wire.reply_in(await honest_transport(by).ask("p0", wire.encode(asked), 60.0), asked, "p0")

    def is_parted():
        return any(what == "parted" and facts["neighbour"] == "p3" for what, facts in peers.told["p0"])

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(is_parted)
        for again in (False, True):
            if again:
                tasks["p0"].cancel()
                await asyncio.gather(tasks["p0"], return_exceptions=True)
                peers.told["p0"].clear()
                tasks["p0"] = peers.start("p0")
                await peers.until(lambda: peers.nodes["p0"].session.agreed is not None and is_parted())
            for turn in (1, peers.nodes["p0"].session.round_index):
                assert (await ask("p1", turn)).status == "ok"
                reply = await ask("p3", turn)
                assert reply.status == "refused" and reply.reason.startswith("struck off") and not reply.body
        learner, state = (
            peers.nodes["p0"].session.agreed.learner,
            Store(tmp_path / "p0" / "state.sqlite", readonly=True),
        )
        _, nested = state.last()
        state.close()
        for strikes, cut in ((2, False), (3, True)):
            _, counted, turns = nested[0]
            begun = learner.begin()
            judged = Judged(begun.state.state, np.where(counted >= 3, strikes, 0), turns)
            held = begun._replace(state=judged)
            assert (learner.struck(held) == ("p3",)) == cut == ("p3" not in learner.outgoing(held))
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    asyncio.run(main())


def test_a_message_a_little_worse_than_the_others_is_left_out_and_no_strike(rng):
    """From the fourth round on; in the next round its sender is heard again."""
    start, names = np.array([[3.0, 0.0, 1.0], [3.0, 0.0, 1.0]]), ("a", "b", "c")
    known = Invariants(start.sum(axis=0), 6.0, csr_array((0, 3)), start, None, np.ones(3), np.full(3, 9.0))
    errors = {"a": 0.2, "b": 0.21, "c": 0.2}
    learner = Broadcaster(
        CRC(), dict.fromkeys(names, 0.25), start, np.zeros_like, known, "clip",
        lambda _: np.array(list(errors.values())),
    )  # fmt: skip
    heard = {name: start + known.projected(rng.normal(size=start.shape)) for name in names}
    few = {name: heard[name] for name in ("a", "b")}
    for turn, worse, is_out in ((2, 0.25, False), (3, 0.25, True), (3, 0.225, False), (9, 0.25, True)):
        state = Judged(learner.begin().state, np.zeros(3), np.array([float(turn)]))
        errors["c"] = worse
        after = learner.step(state, heard)
        assert after.strikes.tolist() == [0, 0, 0] and learner.struck(after) == ()
        alone = replace(learner, soft=None).step(state.state, few if is_out else heard)
        np.testing.assert_allclose(learner.read(after), alone[0], atol=1e-12)


# --- two stories ---------------------------------------------------------------------------------------


@pytest.mark.links
def test_a_peer_that_tells_two_stories_is_found_out(tmp_path, monkeypatch):
    """Over real links: peer-3 tells peer-2 something else in round 2, which every invariant allows."""
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(tasks, "LONGEST_PAUSE", 0.02)
    terms = replace(TERMS, rounds=6, limits=replace(TERMS.limits, deadline=1.0))
    network = Loopback.create(tmp_path, terms, TABLES, TRIANGLE)
    liars = []

    class TwoFaced(Liar):
        def __init__(self, *given):
            super().__init__(*given)
            liars.append(self)

    def lie(caller, asked, told):
        if asked.kind != "round" or told.status != "ok" or asked.round_index != 2 or caller != "peer-2":
            return told
        numbers = np.frombuffer(told.body).reshape(told.shape).copy()
        numbers[0, 1] += 1e-3
        numbers[1, 1] -= 1e-3
        body = numbers.tobytes()
        digest = wire.digest_of(body)
        signature = liars[0].sign(wire.statement(asked.run, asked.round_index, digest))
        return msgspec.structs.replace(told, body=body, digest=digest, signature=signature)

    monkeypatch.setattr("shared.hostile_neighbours.Liar", TwoFaced)
    found = run(network, lie)
    assert np.abs(found["peer-1"] - found["peer-2"]).max() < 100
    for honest in HONEST:
        home = network.homes[honest]
        assert status(home)["neighbours"][HOSTILE]["note"] == "left"
        logged = [entry for entry in entries(home.audit_path) if "two stories" in entry["what"]]
        assert len(logged) == 2 and len({entry["digest"] for entry in logged}) == 2
        store = Store(home.state_path, readonly=True)
        proof = json.loads(store.value("two stories"))[HOSTILE]
        assert HOSTILE not in store.history()[-1]["heard"]
        store.close()
        assert proof["round"] == 2 and proof["run"] == home.roster().run
        certificate = network.homes[HOSTILE].certificate_path.read_bytes()
        for each in proof["signed"]:  # anybody can check it
            content = wire.statement(proof["run"], 2, bytes.fromhex(each["digest"]))
            verify(certificate, bytes.fromhex(each["signature"]), content)
        assert (HOSTILE, "two stories") in reasons(home)  # it is told why when it asks


REPLY = Reply(wire.VERSION, "run", "u", "round", "ok", signature=b"yes")


def said(name, turn, digest, genuine=True):
    return Statement(name, turn, bytes([digest]) * 32, b"yes" if genuine else b"no")


def test_witnesses_tell_lies_from_slander():
    heard = Statements(lambda each: each.signature == b"yes")
    assert heard.heard(said("u", 1, 1)) is None
    assert (
        heard.passed_on(said("u", 1, 1, genuine=False), "w", 1) is None
    )  # the same digest: nothing to check
    assert heard.passed_on(said("u", 1, 2), "w", 1) == (said("u", 1, 1), said("u", 1, 2))
    with pytest.raises(RefusedMessage) as refused:
        heard.passed_on(said("u", 1, 3, genuine=False), "w", 1)
    assert refused.value.reason == "false witness"
    assert heard.of(["u", "x"], [1]) == (said("u", 1, 1),) and heard.of(["u"], [2]) == ()
    # Slander that comes first is forgotten when the truth comes, from anybody.
    assert heard.passed_on(said("u", 2, 3, genuine=False), "w", 1) is None
    assert heard.passed_on(said("u", 2, 1), "x", 1) is None and heard.heard(said("u", 2, 1)) is None
    assert (
        heard.passed_on(said("u", 3, 3, genuine=False), "w", 2) is None
        and heard.heard(said("u", 3, 1)) is None
    )
    assert heard.passed_on(said("u", 4, 1), "w", 3) is None and heard.heard(said("u", 4, 2)) is not None
    assert heard.passed_on(said("u", 99, 1), "w", 3) is None and heard.of(["u"], [99]) == ()
    assert heard.passed_on(said("u", 99, 2), "w", 3) is None  # rounds far from this one are not kept at all
    assert (
        heard.passed_on(said("x", 3, 1), "w", 3) is None and heard.of(["x"], [3]) == ()
    )  # hearsay is not passed on
    heard.forget(7)
    assert heard.of(["u"], [2]) == () and heard.of(["u"], [3]) == (said("u", 3, 1),)


def test_rounds_for_which_a_neighbour_was_not_asked_are_passed_on_later():
    """A message that came ahead of time is not asked for, so no request says what others signed in the round before."""
    roster = SimpleNamespace(run="run", neighbours=lambda name: {"a", "b", "u"} - {name})
    session = SimpleNamespace(
        name="a", roster=roster, round_index=0, transport=SimpleNamespace(signed=lambda *given: True)
    )
    evidence = Evidence(session, ())

    def ended(round_index):
        session.round_index = round_index
        evidence.hear("u", round_index, msgspec.structs.replace(REPLY, digest=bytes([round_index]) * 32))

    ended(1)
    assert [each.round_index for each in evidence.to_pass_on("b")] == [1]
    evidence.passed_on("b", evidence.to_pass_on("b"))
    for round_index in (2, 3, 4):
        ended(round_index)
    assert [each.round_index for each in evidence.to_pass_on("b")] == [
        2,
        3,
        4,
    ]  # the same until it has arrived
    assert [each.round_index for each in evidence.to_pass_on("b")] == [2, 3, 4]
    evidence.passed_on("b", evidence.to_pass_on("b"))
    assert evidence.to_pass_on("b") == ()
    ended(5)
    assert [each.round_index for each in evidence.to_pass_on("b")] == [5]


def test_an_unsigned_message_is_refused(tmp_path, rng):
    class Unsigned(InMemory):
        def sign(self, content):
            return b""

    terms = Terms("test", "label", rounds=3, limits=Limits(deadline=0.3, quorum=0.5), strategy="exact")
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))
    plain = peers.hub.transport
    peers.hub.transport = lambda name: Unsigned(peers.hub, name) if name == "p4" else plain(name)
    asyncio.run(peers.all(linger=0.0))
    found = {
        facts["reason"] for what, facts in peers.told["p3"] if what == "refused" and facts["who"] == "p4"
    }
    assert found == {"wrong signature"}
