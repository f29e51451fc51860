"""Secure sums: what masks are, what a receiver learns, what is refused; peers end where the simulator does."""

import asyncio
import contextlib
import math
import signal
import stat
import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.errors import IdentityError, PeerError, RefusedMessage, TermsError
from peerbayes.learning.integer_sums import (
    LARGEST,
    SecureSums,
    fixed,
    projected,
    rounding,
    small_groups,
    unfixed,
)
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.model.calibration import start_statistics
from peerbayes.peer.agreement.terms import Limits, Privacy, Terms
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.identity.keys import new_request
from peerbayes.peer.identity.roster import Member, Roster
from peerbayes.peer.learning.masks import (
    Group,
    Masked,
    Masker,
    MaskKeys,
    Words,
    groups,
    new_key,
    own_key,
    public_key,
    refuse_small,
    summed,
    verified,
)
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.protocol.wire import packed
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.store import RoundRecord, Store
from shared.own_strategy import Momentum
from shared.peers_in_memory import DENSE, SOON, ended, peers_of, refused_everywhere, shared_out

pytestmark = pytest.mark.usefixtures("impatient")

WHEEL = nx.wheel_graph(
    5
)  # a hub and a ring: those opposite each other mask against each other without a link
SECRET = Privacy(secure_sum=True)
NUMBERS = st.floats(-1e6, 1e6)


def terms(**more):
    return Terms("test", "label", privacy=SECRET, **{"rounds": 12, "strategy": "exact", **more})


def circle(members):
    """Maskers of a group, and the group."""
    keys = {f"p{place}": bytes([place + 1] * 32) for place in range(members)}
    group = Group("receiver", {name: public_key(key) for name, key in keys.items()})
    return {name: Masker(name, key, "test", "0" * 64) for name, key in keys.items()}, group


# --- numbers ----------------------------------------------------------------------------------------------


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.integers(1, 50))
def test_fixed_point_is_the_nearest_and_odd(values, members):
    values = np.array(values)
    found = fixed(values, members)
    assert found.dtype == np.int64 and (fixed(-values, members) == -found).all()
    assert np.abs(unfixed(found) - values).max() <= 2.0**-33
    assert (fixed(unfixed(found), members) == found).all()


@given(st.integers(1, 40), st.floats(0, 1))
def test_a_sum_that_may_not_fit_is_refused(members, part):
    edge = LARGEST / members
    inside = np.full(3, edge * (1 - 1e-9) * part)
    total = sum(fixed(inside, members) for _ in range(members))
    assert np.abs(unfixed(total) - members * inside).max() <= members * 2.0**-33 + 1e-9 * (1 + inside[0])
    for value in (edge, -2 * edge, np.inf, np.nan):
        with pytest.raises(ValueError, match="a secure sum of"):
            fixed(np.array([0.0, value]), members)


@given(st.data())
def test_masks_cancel_in_the_sum_and_nowhere_else(data):
    members, size = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 12))
    values = np.array(data.draw(st.lists(st.lists(NUMBERS, min_size=size, max_size=size),
                                         min_size=members, max_size=members)))  # fmt: skip
    maskers, group = circle(members)
    turn = data.draw(st.integers(1, 2**40))
    words = [masker.words(own, turn, group) for masker, own in zip(maskers.values(), values, strict=True)]
    assert all(each.dtype == np.uint64 for each in words)
    whole = sum(fixed(own, members) for own in values)
    assert (summed(data.draw(st.permutations(words))) == unfixed(whole)).all()
    assert np.abs(summed(words) - values.sum(axis=0)).max() <= 1e-8
    part = data.draw(st.lists(st.sampled_from(range(members)), min_size=1, max_size=members - 1, unique=True))
    known = sum(fixed(values[place], members) for place in part)
    assert (np.sum([words[place] for place in part], axis=0).view(np.int64) != known).all()


INPUTS = {
    "zeros": np.zeros(10_250),
    "ones": np.ones(10_250),
    "the largest": np.full(10_250, 0.999 * LARGEST / 5),
    "drawn": np.random.default_rng(0).normal(size=10_250) * 1e3,
}


def unlikely(words):
    """p of χ² for bytes that are uniform, and for pairs of neighbouring words that are independent."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    tops = (words >> np.uint64(60)).astype(np.int64)
    pairs = np.bincount(16 * tops[:-1] + tops[1:], minlength=256)
    return min(distributions.chisquare(counts).pvalue, distributions.chisquare(pairs).pvalue)


@pytest.mark.parametrize("what", INPUTS)
def test_masked_words_look_uniform(what):
    maskers, group = circle(5)
    values = INPUTS[what]
    assert unlikely(fixed(values, 5).view(np.uint64)) < 1e-10  # the test can fail
    found = [masker.words(values, 3, group) for masker in maskers.values()]
    for words in found:
        assert unlikely(words) > 1e-4
        assert unlikely(words - fixed(values, 5).view(np.uint64)) > 1e-4  # the masks alone
    for count in range(2, 5):  # and so does every sum but the whole
        assert unlikely(np.sum(found[:count], axis=0)) > 1e-4


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_what_keys_are_derived_from_is_injective(one, other):
    assert (packed(one) == packed(other)) == (one == other)


def test_masks_differ_by_network_run_round_receiver_group_and_pair():
    keys = {name: new_key() for name in ("a", "b", "c", "d")}
    public = {name: public_key(key) for name, key in keys.items()}
    nothing, three = np.zeros(4), ("a", "b", "c")

    def words(network="n", run="r", turn=1, receiver="v", names=three):
        group = Group(receiver, {name: public[name] for name in names})
        return Masker("a", keys["a"], network, run).words(nothing, turn, group)

    ways = [{}, {"network": "m"}, {"run": "s"}, {"turn": 2}, {"receiver": "w"}, {"names": ("a", "b", "d")},
            {"names": ("a", "b", "c", "d")}, {"network": "nr", "run": ""}]  # fmt: skip
    found = {words(**way).tobytes() for way in ways}
    assert len(found) == len(ways)
    assert words().tobytes() == words().tobytes()  # a retry has the same bytes


def test_what_two_share_depends_on_the_names_and_keys_of_the_whole_group():
    """Else whoever sees the group otherwise could be given masks that cancel against those of another message."""
    keys = {name: new_key() for name in ("a", "b")}
    public = {name: public_key(key) for name, key in keys.items()}

    def masks(keys_of_group):
        """Those between a and b alone: what a masks nothing with, against nobody but b."""
        return Masker("a", keys["a"], "n", "r").words(np.zeros(4), 1, Group("v", keys_of_group)).tobytes()

    another = public_key(new_key())
    assert masks(public) == masks(dict(public)) != masks({**public, "a": another})
    digests = {
        Group("v", group).digest
        for group in (public, {**public, "a": another}, {**public, "b": another}, {**public, "c": another},
                      {"a": public["b"], "b": public["a"]}, {"a": public["a"], "bb": public["b"]})
    }  # fmt: skip
    assert len(digests) == 6


def test_a_copied_public_key_does_not_take_masks_off():
    """c gives a's key for its own: without names in the keys, b's masks with the two would cancel."""
    keys = {name: new_key() for name in ("a", "b")}
    public = {name: public_key(key) for name, key in keys.items()}
    group = Group("v", {**public, "c": public["a"]})
    values = np.arange(5.0)
    words = Masker("b", keys["b"], "n", "r").words(values, 1, group)
    assert (words.view(np.int64) != fixed(values, 3)).all()


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_a_key_that_is_none_is_refused(key):
    group = Group("v", {"a": public_key(new_key()), "b": key, "c": public_key(new_key())})
    with pytest.raises(IdentityError, match="the mask key of b is not valid"):
        Masker("a", new_key(), "n", "r").words(np.zeros(2), 1, group)


# --- groups -----------------------------------------------------------------------------------------------


def roster_of(graph, revoked=()):
    names = [f"p{place}" for place in sorted(graph)]
    members = tuple(Member(name, f"localhost:{place + 1}", "0" * 64) for place, name in enumerate(names))
    links = tuple((f"p{a}", f"p{b}") for a, b in graph.edges)
    return Roster("test", "0" * 64, 1, members, links, revoked, True)


@given(st.integers(4, 12), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_groups_are_the_three_core_of_those_present(nodes, seed, gone):
    graph = nx.gnp_random_graph(nodes, 0.5, seed=seed)
    graph.add_edges_from(nx.path_graph(nodes).edges)
    revoked = tuple(f"p{place}" for place in range(gone))
    found = groups(roster_of(graph, revoked))
    core = nx.k_core(graph.subgraph(range(gone, nodes)), 3)
    assert found == {f"p{v}": tuple(sorted(f"p{u}" for u in core[v])) for v in core}
    assert all(len(group) >= 3 for group in found.values())


def test_small_groups_are_refused_by_name():
    refuse_small(roster_of(WHEEL), terms())
    refuse_small(roster_of(DENSE), Terms("test", "label", strategy="exact"))
    with pytest.raises(
        TermsError,
        match=r"p0 has 2 neighbours \(p1, p3\), and \d more .* secure sums need 3 or more.*--links",
    ):
        refuse_small(roster_of(DENSE), terms())


TABLES = [
    load_digits(as_frame=True).frame.iloc[place::60, 18:30].assign(digit=load_digits().target[place::60])
    for place in range(5)
]
EDGES = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (1, 4)]


def test_the_founder_does_not_close_a_network_with_small_groups(tmp_path):
    agreed = Terms("digits", "digit", privacy=SECRET, strategy="exact")
    with pytest.raises(TermsError, match="peer-2 has 2 neighbours"):
        Loopback.create(tmp_path / "small", agreed, TABLES, EDGES[:-1])
    assert Loopback.create(tmp_path / "plain", Terms("digits", "digit", strategy="exact"), TABLES, EDGES[:-1])
    network = Loopback.create(tmp_path / "large", agreed, TABLES, EDGES)
    assert network.founder.roster().closed
    founder = Founder.create(tmp_path / "open", agreed.to_toml())
    for name, port in (("a", 1), ("b", 2)):
        _, request = new_request(name)
        founder.invite(name, request, f"localhost:{port}")
    with pytest.raises(TermsError, match=r"a has 1 neighbours \(b\)"):
        founder.close()
    assert not founder.roster().closed


def test_a_peer_refuses_a_roster_with_small_groups(tmp_path, rng):
    peers = peers_of(tmp_path, terms(), DENSE, shared_out(rng))
    for told in refused_everywhere(peers, TermsError):
        assert "p0 has 2 neighbours" in told


def test_the_simulator_refuses_small_groups_and_what_is_no_sum():
    X, y = load_digits(return_X_y=True)
    given = {"peers": 8, "rows_per_peer": 20, "rounds": 2, "secure_sum": True, "references": False}
    with pytest.raises(
        ValueError, match=r"neighbours \(.*\), and \d more peers have too few; secure sums need 3"
    ):
        pb.simulate(X, y, topology="ring", **given)
    with pytest.raises(ValueError, match="secure_sum with strategy 'relay', which needs single messages"):
        pb.simulate(X, y, topology="complete", strategy="relay", **given)
    with pytest.raises(ValueError, match="secure_sum with a network that changes"):
        pb.simulate(X, y, topology="regular-4", change_every=1, **given)


# --- terms ------------------------------------------------------------------------------------------------


def test_an_agreement_says_whether_sums_are_secure():
    agreed = terms()
    assert Terms.parse(agreed.to_toml(), "here") == agreed
    assert agreed.digest != replace(agreed, privacy=Privacy()).digest
    assert agreed.differences(replace(agreed, privacy=Privacy())) == [
        "privacy.secure_sum: True against False"
    ]


def test_agreements_from_before_keep_their_digest():
    before = 'network = "study"\nlabel = "outcome"\nstrategy = "exact"\n'
    assert (
        Terms.parse(before, "here").digest
        == "725c837298c07750c0d3a67cf7bce915b9935f6cc251ed851d398ab19a936816"
    )
    assert (
        Terms.parse(before + "[privacy]\nsecure_sum = false\n", "here").digest
        == "725c837298c07750c0d3a67cf7bce915b9935f6cc251ed851d398ab19a936816"
    )


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('strategy = "relay"', "strategy 'relay', which needs single messages"),
        ('start = "ml"', "start 'ml', which is agreed on by sums along a tree"),
        ('start = "marginal"', "start 'marginal', which is agreed on"),
        ('family = "tan"', "family 'tan', whose structure is agreed on"),
    ],
)
def test_what_secure_sums_cannot_hide_is_refused_by_line(more, told):
    text = f'network = "n"\nlabel = "y"\n{more}\n[privacy]\nsecure_sum = true\n'
    with pytest.raises(TermsError, match=f"here, line 5: secure_sum with {told}"):
        Terms.parse(text, "here")
    assert Terms.parse(text.replace("true", "false"), "here")
    with pytest.raises(TermsError, match=r"line 5: privacy\.secure_sum is 1; expected true or false"):
        Terms.parse(text.replace("true", "1"), "here")
    with pytest.raises(TermsError, match=r"line 5: 'secure' is no entry of \[privacy\]"):
        Terms.parse(text.replace("secure_sum", "secure"), "here")


# --- peers in one event loop ----------------------------------------------------------------------------------


def simulated(shared, graph, agreed, **more):
    X, y, parts = shared
    return pb.simulate(
        X, y, peers=len(parts), partition=parts, topology=graph, family=agreed.family, strategy=agreed.strategy,
        rounds=agreed.rounds, references=False, evaluate_every=0, test=(X, y), **{"secure_sum": True, **more},
    )  # fmt: skip


@pytest.mark.parametrize("graph", [nx.complete_graph(5), WHEEL], ids=["complete", "wheel"])
@pytest.mark.parametrize(
    "strategy", ["exact", "crc", "tracking", "dsgd", "consensus-ml", "local", "momentum"]
)
def test_masked_peers_end_where_the_simulator_does(strategy, graph, tmp_path, rng, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)  # a strategy that the package does not have
    agreed, shared = terms(strategy=strategy), shared_out(rng)
    peers = peers_of(tmp_path, agreed, graph, shared)
    reached = np.stack(asyncio.run(peers.all()))
    assert np.abs(reached - simulated(shared, graph, agreed).stats).max() <= 1e-8
    assert np.abs(reached - simulated(shared, graph, agreed, secure_sum=False).stats).max() <= 1e-6
    for name in peers.names:
        assert not {"skipped", "refused"} & {what for what, _ in peers.told[name]}
        sent = [entry["what"] for entry in entries(tmp_path / name / "audit.jsonl")]
        assert not any(what.startswith("round") for what in sent)
        assert (strategy == "local") or sum(
            what.startswith("masked round") for what in sent
        ) >= 3 * agreed.rounds


@pytest.mark.long
@pytest.mark.parametrize("family", ["qda", "lda"])
def test_masked_peers_complete_missing_values(family, tmp_path, rng):
    """Class sums are not known then, and nothing is checked by them; numbers are the same."""
    agreed, shared = terms(family=family), shared_out(rng)
    peers = peers_of(tmp_path, agreed, WHEEL, shared)
    reached = np.stack(asyncio.run(peers.all()))
    assert peers.nodes["p0"].session.agreed.plausible.sums is None
    assert np.abs(reached - simulated(shared, WHEEL, agreed).stats).max() <= 1e-6
    with_sums = peers_of(tmp_path / "sums", terms(family=family, strategy="consensus-ml"), WHEEL, shared)
    with_sums.folder.mkdir()
    for told in refused_everywhere(with_sums, PeerError):
        assert "tell a leaf's statistics to its neighbour" in told


def test_a_peer_that_stops_and_starts_sends_the_same_words(tmp_path, rng):
    agreed, shared = terms(rounds=24), shared_out(rng)
    peers = peers_of(tmp_path, agreed, WHEEL, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        for name, turn in (("p3", 2), ("p0", 5), ("p3", 8)):
            await peers.until(lambda name=name, turn=turn: peers.nodes[name].session.round_index >= turn)
            await ended(tasks[name])
            tasks[name] = peers.start(name)
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    with listened(peers.hub) as replies:
        reached = np.stack(asyncio.run(main()))
    assert np.abs(reached - simulated(shared, WHEEL, agreed).stats).max() <= 1e-8
    said = {}
    for caller, reply in replies:
        if reply.kind == "masked" and reply.status == "ok":
            assert said.setdefault((reply.sender, caller, reply.round_index), (reply.phase, reply.body)) == (
                reply.phase,
                reply.body,
            )
    assert len(said) == 2 * WHEEL.number_of_edges() * agreed.rounds
    assert len({body for _, body in said.values()}) == len(said)  # a message of its own for every receiver


@contextlib.contextmanager
def listened(hub):
    """Everything that peers answer: (caller, reply)."""
    found = []
    if hub is None:
        yield found
        return
    original = hub.transport

    def transport(name):
        made = original(name)
        serve = made.serve

        async def watched(answer):
            async def kept(caller, content):
                told = await answer(caller, content)
                found.append((caller, wire._replies.decode(told)))
                return told

            await serve(kept)

        made.serve = watched
        return made

    hub.transport = transport
    yield found


def test_nothing_plain_is_heard_or_stored_by_a_receiver(tmp_path, rng):
    """Not a neighbour's message, not its share of the sum, in floats or in fixed point; pooled bytes look uniform."""
    agreed, shared = terms(rounds=6), shared_out(rng)
    peers = peers_of(tmp_path, agreed, nx.complete_graph(5), shared)
    with listened(peers.hub) as replies:
        asyncio.run(peers.all())
    heard = [
        reply.body for caller, reply in replies if caller == "p0" and reply.kind == "masked" and reply.body
    ]
    assert len(heard) >= 4 * agreed.rounds and not any(
        reply.kind in ("round", "first") for _, reply in replies
    )
    held = (tmp_path / "p0" / "state.sqlite").read_bytes()
    for name in peers.names[1:]:
        learner = peers.nodes[name].session.agreed.learner
        message = learner.strategy.message(learner.begin())[0]
        told = learner.sending_weights["p0"] * message
        for plain in (message, told, fixed(told, 4)):
            row = np.ascontiguousarray(plain[0]).tobytes()[:24]
            assert not any(row in body for body in heard) and row not in held
    assert unlikely(np.frombuffer(b"".join(heard), dtype="<u8")) > 1e-4


@pytest.mark.long
def test_a_missing_neighbour_skips_the_mix(tmp_path, rng):
    """Who misses one keeps its own; the rounds go on, and are those of the same learners with such mixes."""
    agreed = terms(strategy="crc", rounds=16, limits=Limits(deadline=0.2, quorum=0.5))
    peers = peers_of(tmp_path, agreed, nx.complete_graph(5), shared_out(rng))

    async def main():
        tasks = {name: peers.start(name, linger=0.5) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 3)
        await ended(tasks.pop("p4"))
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = asyncio.run(main())
    missing = {name: [set(entry["missing"]) for entry in peers.history(name)] for name in peers.names}
    for place, name in enumerate(peers.names[:-1]):
        skipped = [facts["round"] for what, facts in peers.told[name] if what == "skipped"]
        assert skipped == [turn for turn, lost in enumerate(missing[name]) if lost] and len(skipped) >= 4
        assert np.abs(as_skipped(peers, missing)[place] - reached[place]).max() <= 1e-8


def as_skipped(peers, missing):
    """crc by whole sums: the mean of the neighbours, or one's own where one is missing."""
    learners = [peers.nodes[name].session.agreed.learner for name in peers.names]
    states = [learner.begin() for learner in learners]
    for turn in range(1, peers.terms.rounds + 1):
        told = np.stack([state[0] for state in states])
        for place, name in enumerate(peers.names):
            if turn < len(missing[name]):
                mean = np.mean(np.delete(told, place, axis=0), axis=0)
                mixed = told[place] if missing[name][turn] else mean
                states[place] = learners[place].strategy.step(
                    states[place], mixed[None], learners[place].residual
                )
    return [learner.read(state) for learner, state in zip(learners, states, strict=True)]


def with_roster(peers, revoked):
    """The next roster, for everybody."""
    peers.roster = peers.roster.with_revoked(revoked)
    for node in peers.nodes.values():
        node.newer = lambda _: peers.roster
        node.adopt(b"signed")


@pytest.mark.long
def test_after_a_revocation_the_others_sum_without_it_and_no_round_twice(tmp_path, rng):
    agreed = terms(rounds=30, limits=Limits(deadline=600.0))
    peers, before = peers_of(tmp_path, agreed, nx.complete_graph(5), shared_out(rng)), {}

    async def ask(name, turn):
        schema = peers.nodes[name].session.agreed.schema.fingerprint
        asked = wire.Request(wire.VERSION, peers.roster.run, "p1", "masked", round_index=turn, schema=schema)
        return wire.reply_in(await peers.hub.transport("p1").ask(name, wire.encode(asked), 1.0), asked, name)

    async def main():
        tasks = {name: peers.start(name, linger=0.5) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 3)
        await ended(tasks.pop("p4"))
        peers.nodes.pop("p4")
        turn = peers.nodes["p0"].session.round_index + 1
        before.update({at: await ask("p0", at) for at in range(1, turn + 1)})
        with_roster(peers, "p4")
        for at, reply in before.items():
            again = await ask("p0", at)
            assert (again.phase, again.body) == (reply.phase, reply.body)
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)
        return turn

    turn = asyncio.run(main())
    for name in peers.names[:-1]:
        skipped = [facts["round"] for what, facts in peers.told[name] if what == "skipped"]
        # Peers are a round apart at most, and have masked the next one: while rosters differed, then no more.
        assert set(skipped) <= {turn - 1, turn, turn + 1, turn + 2}
        with contextlib.closing(Store(tmp_path / name / "state.sqlite", readonly=True)) as store:
            other = "p1" if name != "p1" else "p0"
            assert store.group(1, other) != store.group(agreed.rounds, other) != ""


def test_a_round_is_masked_for_one_group_only(tmp_path):
    """The store takes one message for a round and a receiver, and one group."""
    with contextlib.closing(Store(tmp_path / "state.sqlite")) as store:
        words = np.arange(4, dtype=np.uint64) + np.uint64(2**63 + 1)
        store.add_round(RoundRecord(0, (), {"v": words}, (), (), None, {"v": "a" * 64}))
        assert store.message(1, "v")[0] == words.tobytes() and store.group(1, "v") == "a" * 64
        with pytest.raises(Exception, match="UNIQUE"):
            store.add_round(RoundRecord(0, (), {"v": words + np.uint64(1)}, (), (), None, {"v": "b" * 64}))
        assert store.message(1, "v")[0] == words.tobytes() and store.group(1, "v") == "a" * 64
        made = store.secret("private mask key", new_key)
        assert store.secret("private mask key", new_key) == made
    assert stat.S_IMODE((tmp_path / "state.sqlite").stat().st_mode) == 0o600


def test_peers_left_with_two_neighbours_stop(tmp_path, rng):
    agreed = terms(rounds=400, limits=Limits(deadline=600.0))
    peers = peers_of(tmp_path, agreed, WHEEL, shared_out(rng))

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 3)
        await ended(tasks.pop("p4"))
        peers.nodes.pop("p4")
        with_roster(peers, "p4")
        return await asyncio.wait_for(asyncio.gather(*tasks.values(), return_exceptions=True), SOON)

    for problem in asyncio.run(main()):
        assert isinstance(problem, PeerError) and "revoked p4, and fewer than 3 neighbours" in str(problem)
    assert pb.load(tmp_path / "p0" / "model.peerbayes")


@pytest.mark.long
def test_those_that_have_a_group_go_on_and_start_again(tmp_path, rng):
    """p5 hangs on three; with one of them revoked it has no group, and is in nobody's."""
    graph = nx.complete_graph(5)
    graph.add_edges_from([(5, 0), (5, 1), (5, 2)])
    X, y, parts = shared_out(rng)
    agreed = terms(rounds=40, limits=Limits(deadline=600.0))
    peers = peers_of(tmp_path, agreed, graph, (X, y, [*parts[:4], *np.array_split(parts[4], 2)]))

    async def main():
        tasks = {name: peers.start(name, linger=0.5) for name in peers.names}
        await peers.until(lambda: peers.nodes["p0"].session.round_index >= 3)
        await ended(tasks.pop("p0"))
        peers.nodes.pop("p0")
        with_roster(peers, "p0")
        with pytest.raises(PeerError, match="fewer than 3 neighbours of p5 are left to sum"):
            await asyncio.wait_for(tasks.pop("p5"), SOON)
        await ended(tasks["p1"])
        tasks["p1"] = peers.start("p1", linger=0.5)
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    for name in ("p1", "p2", "p3", "p4"):
        *_, last = peers.history(name)
        assert last["round"] == agreed.rounds and set(last["heard"]) == {"p1", "p2", "p3", "p4"} - {name}
        skipped = [facts["round"] for what, facts in peers.told[name] if what == "skipped"]
        assert agreed.rounds not in skipped


@pytest.mark.long
def test_a_peer_that_left_skips_the_mixes_of_its_neighbours(tmp_path, rng):
    """They do not wait for it; their fellow senders cannot know, so there is no sum until it is revoked."""
    agreed = terms(rounds=30, limits=Limits(deadline=600.0))
    peers = peers_of(tmp_path, agreed, nx.complete_graph(5), shared_out(rng))

    async def main():
        tasks = {name: peers.start(name, linger=0.5) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 2)
        await ended(tasks.pop("p4"))
        asked = wire.Request(wire.VERSION, peers.roster.run, "p4", "leave", roster=peers.roster.version)
        for name in peers.names[:-1]:
            await peers.hub.transport("p4").ask(name, wire.encode(asked), 1.0)
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    for name in peers.names[:-1]:
        skipped = [facts for what, facts in peers.told[name] if what == "skipped"]
        assert skipped[-1] == {"round": agreed.rounds, "why": "not heard: p4"}


@pytest.mark.parametrize(("secure", "asked"), [(True, "round"), (False, "masked")])
def test_plain_and_masked_are_never_taken_for_each_other(secure, asked, tmp_path, rng):
    agreed = replace(terms(rounds=400), privacy=Privacy(secure))
    peers = peers_of(tmp_path, agreed, WHEEL, shared_out(rng))

    async def main():
        tasks = [peers.start(name) for name in peers.names]
        await peers.until(lambda: all(node.session.round_index >= 2 for node in peers.nodes.values()))
        node = peers.nodes["p0"]
        schema = node.session.agreed.schema.fingerprint
        request = wire.Request(wire.VERSION, peers.roster.run, "p1", asked, round_index=1, schema=schema)
        told = wire.reply_in(await node.answer("p1", wire.encode(request)), request, "p0")
        assert told.status == "refused" and not told.body and told.reason.startswith("wrong message")
        usual = wire.Request(
            wire.VERSION, peers.roster.run, "p1", node.session.kind, round_index=1, schema=schema
        )
        reply = wire._replies.decode(await node.answer("p1", wire.encode(usual)))
        assert reply.kind == node.session.kind != asked and len(reply.phase) == (64 if secure else 0)
        with pytest.raises(RefusedMessage, match="instead of"):  # a reply of the other kind
            wire.reply_in(wire.encode(reply), request, "p0")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


# --- sums that are none --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learners(tmp_path_factory):
    """The five learners of a finished run, and its roster."""
    shared = shared_out(np.random.default_rng(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peerbayes.peer.tasks.WAIT", 0.2)
        peers = peers_of(tmp_path_factory.mktemp("learners"), terms(rounds=4), nx.complete_graph(5), shared)
        asyncio.run(peers.all())
    return {name: node.session.agreed.learner for name, node in peers.nodes.items()}, peers.roster


def heard_by(learners, roster, receiver, turn=1):
    return {
        name: learner.hidden(learner.begin(), turn, roster)[receiver]
        for name, learner in learners.items()
        if name != receiver
    }


def test_a_whole_sum_is_the_weighted_sum(learners):
    found, roster = learners
    own = found["p0"]
    got = own.summed(own.begin(), heard_by(found, roster, "p0"), 1)
    expected = sum(
        own.weights[name] * learner.strategy.message(learner.begin())[0]
        for name, learner in found.items()
        if name != "p0"
    )
    assert np.abs(got.total - expected).max() <= 1e-8
    assert got.share == pytest.approx(sum(own.weights.values()))


@pytest.mark.parametrize("missing", ["p1", "p4"])
def test_a_sum_with_one_missing_is_none(learners, missing):
    found, roster = learners
    heard = heard_by(found, roster, "p0")
    del heard[missing]
    got = found["p0"].summed(found["p0"].begin(), heard, 1)
    assert got.total is None and missing in got.why
    state = found["p0"].begin()
    own = found["p0"].strategy.message(state)
    kept = found["p0"].strategy.step(state, own, found["p0"].residual)
    assert (found["p0"].read(found["p0"].step(state, got)) == found["p0"].read(kept)).all()


def altered(words, place, change):
    words = words.copy()
    words.flat[place] ^= np.uint64(change)
    return words


LIES = {
    "a bit": lambda own, heard, roster: heard["p1"]._replace(words=altered(heard["p1"].words, 7, 2**20)),
    "a high bit": lambda own, heard, roster: heard["p1"]._replace(words=altered(heard["p1"].words, 0, 2**63)),
    "another's words": lambda own, heard, roster: heard["p1"]._replace(words=heard["p2"].words),
    "another round": lambda own, heard, roster: own.hidden(own.begin(), 2, roster)["p0"],
    "for another receiver": lambda own, heard, roster: heard["p1"]._replace(
        words=own.hidden(own.begin(), 1, roster)["p2"].words
    ),
    "another key": lambda own, heard, roster: heard["p1"]._replace(
        words=replace(own, masker=Masker("p1", new_key(), "test", roster.run))
        .hidden(own.begin(), 1, roster)["p0"].words
    ),
    "another run": lambda own, heard, roster: heard["p1"]._replace(
        words=replace(own, masker=another_run(own)).hidden(own.begin(), 1, roster)["p0"].words
    ),
    "no mask": lambda own, heard, roster: heard["p1"]._replace(
        words=fixed(own.sending_weights["p0"] * own.strategy.message(own.begin())[0], 4).view(np.uint64)
    ),
}  # fmt: skip


def another_run(learner):
    masker = Masker(learner.masker.name, bytes(range(32)), "test", "1" * 64)
    masker._private = learner.masker._private
    return masker


@pytest.mark.parametrize("lie", LIES)
def test_words_that_do_not_belong_make_no_sum(learners, lie):
    found, roster = learners
    heard = heard_by(found, roster, "p0")
    heard["p1"] = LIES[lie](found["p1"], heard, roster)
    with pytest.raises(RefusedMessage) as refused:
        found["p0"].summed(found["p0"].begin(), heard, 1)
    assert refused.value.reason in ("class sums", "cell sums", "absurd magnitude")


def test_another_group_makes_no_sum(learners):
    found, roster = learners
    heard = heard_by(found, roster, "p0")
    heard["p1"] = Words("0" * 64, heard["p1"].words)
    with pytest.raises(RefusedMessage, match="masked for other groups") as refused:
        found["p0"].summed(found["p0"].begin(), heard, 1)
    assert refused.value.reason == "other group"


def test_a_lie_is_counted_and_the_mix_skipped(tmp_path, rng):
    agreed, shared = terms(rounds=6), shared_out(rng)
    peers = peers_of(tmp_path, agreed, nx.complete_graph(5), shared)
    hidden = Masked.hidden

    def lying(self, state, turn, roster):
        found = hidden(self, state, turn, roster)
        if self.masker.name == "p1" and turn == 3:
            found["p0"] = found["p0"]._replace(words=altered(found["p0"].words, 5, 2**40))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Masked, "hidden", lying)
        asyncio.run(peers.all())
    told = {name: [(what, facts) for what, facts in peers.told[name] if what in ("refused", "skipped")]
            for name in peers.names}  # fmt: skip
    (refused, skipped) = told.pop("p0")
    assert refused[1]["who"] == "the group" and refused[1]["reason"] == "class sums"
    assert skipped == ("skipped", {"round": 3, "why": "refused: class sums"})
    assert not any(told.values()) and peers.rounds("p0") == list(range(7))


def test_nothing_leaves_a_masked_learner_plainly(learners):
    found, _ = learners
    with pytest.raises(AssertionError, match="nothing leaves without a mask"):
        found["p0"].outgoing(found["p0"].begin())


def test_numbers_too_large_for_a_sum_stop_the_peer(learners):
    found, roster = learners
    large = replace(found["p1"], sending_weights=dict.fromkeys(found["p1"].sending_weights, 1e9))
    with pytest.raises(PeerError, match="nothing can be sent to p0 in round 1: an entry is"):
        large.hidden(large.begin(), 1, roster)


# --- the simulator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [{"message_loss": 0.1}, {"message_delay": 0.1}, {"peers_down": 0.1}])
def test_a_simulated_receiver_mixes_all_or_nothing(faults):
    """Beside a plain loop: whoever misses one message, or has a neighbour away, keeps its own."""
    rng = np.random.default_rng(0)
    links = topologies.adjacency("regular-4", 12, rng)
    message = rng.normal(size=(12, 3, 4))
    message -= message.mean(axis=1, keepdims=True)  # class sums 0, which all have
    secure = SecureSums(links, "stable", True)
    kept = rng.random(secure.weights.nnz) >= 0.2
    away = 3
    here = np.arange(12) != away
    present = topologies.mixing.only(links, here[topologies.mixing.rows_of(links)] & here[links.indices])
    found = secure.mixed(present, kept, message)
    weights, heard = secure.weights.toarray(), np.zeros((12, 12), dtype=bool)
    heard[topologies.mixing.rows_of(secure.weights), secure.weights.indices] = kept
    mixes = 0
    for v in range(12):
        others = np.flatnonzero(links.toarray()[v])
        whole = heard[v, others].all() and away not in (v, *others)
        mixes += whole
        expected = np.einsum("u,uck->ck", weights[v], message) if whole else message[v]
        assert np.abs(found[v] - expected).max() <= 1e-9 and (whole or (found[v] == message[v]).all())
    assert 0 < mixes < 12
    X, y = load_digits(return_X_y=True)
    run = pb.simulate(X, y, peers=12, rows_per_peer=20, topology=links, rounds=4, secure_sum=True, references=False,
                      strategy="crc", **faults)  # fmt: skip
    assert np.isfinite(run.stats).all()


@pytest.mark.parametrize("conserved", [False, True])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_sum_is_put_back_on_what_it_must_obey_and_no_farther(conserved, share):
    """Class sums are the share of the receiver's own, cells add up to the count: the nearest that does both."""
    rng = np.random.default_rng(1)
    message = rng.normal(size=(3, 6))
    cells = (slice(1, 3), slice(3, 6))
    for columns in cells:  # what the receiver's own message obeys
        message[:, columns.start] = message[:, 0] - message[:, columns.start + 1 : columns.stop].sum(axis=1)
    total = share * message + 1e-3 * rng.normal(size=message.shape)
    settled = projected(total.copy(), message, share, conserved, cells)
    for columns in cells:
        np.testing.assert_allclose(settled[:, columns].sum(axis=1), settled[:, 0], atol=1e-12)
    expected = total.copy()
    if conserved:
        np.testing.assert_allclose(settled.sum(axis=0), share * message.sum(axis=0), atol=1e-12)
        expected -= (expected.sum(axis=0) - share * message.sum(axis=0)) / 3
    for columns in cells:
        many = columns.stop - columns.start
        expected[:, columns] -= (expected[:, columns].sum(axis=1) - expected[:, 0])[:, None] / many
    np.testing.assert_allclose(settled, expected, atol=1e-12)


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_rounding_bounds_what_fixed_point_does_to_sums(members, terms, seed):
    """Of `terms` entries of a group's sum, each of `members` numbers rounded to 2⁻³²."""
    values = np.random.default_rng(seed).normal(size=(members, terms))
    rounded = unfixed(sum(fixed(row, members) for row in values)).sum()
    assert rounding(members, terms) == members * terms * 2.0**-33
    assert abs(rounded - math.fsum(values.ravel())) <= rounding(members, terms) + 1e-12


def test_a_group_is_three_neighbours_at_least():
    for topology, least in (("ring", 2), ("regular-3", 3)):
        links = topologies.adjacency(topology, 8, np.random.default_rng(0))
        neighbours = {f"peer {peer}": np.flatnonzero(row) for peer, row in enumerate(links.toarray())}
        said = "" if least == 3 else "peer 0 has 2 neighbours (1, 7), and 7 more peers have too few"
        assert small_groups(neighbours) == said


@pytest.mark.parametrize("strategy", ["exact", "crc", "tracking"])
def test_invariants_hold_over_a_thousand_rounds(strategy, rng):
    """What rounding does to class sums and cells is taken off: it stays far below a peer's tolerance."""
    X, y, parts = shared_out(rng, missing=False)
    run = pb.simulate(X, y, peers=5, partition=parts, topology=WHEEL, strategy=strategy, rounds=1000, secure_sum=True,
                      references=False, evaluate_every=0, test=(X, y))  # fmt: skip
    mass = sum(map(len, parts)) / (0.05 * 5)
    start = start_statistics("uniform", run.layout, len(run.schema.classes), mass)
    assert np.abs(run.stats.sum(axis=1) - start.sum(axis=0)).max() <= 1e-9 * mass / 10
    for cells, _ in run.layout.tabled():
        assert np.abs(run.stats[..., cells].sum(axis=-1) - run.stats[..., 0]).max() <= 1e-9 * mass / 10


# --- keys and processes --------------------------------------------------------------------------------------


@pytest.mark.links
def test_keys_are_vouched_for_by_certificates(tmp_path):
    network = Loopback.create(
        tmp_path, Terms("digits", "digit", privacy=SECRET, strategy="exact"), TABLES, EDGES
    )
    roster = network.founder.roster()
    sides = {name: Links(home.load(), lambda *_: None) for name, home in network.homes.items()}
    parts = [own_key(new_key(), roster, name, side.vouch) for name, side in sides.items()]
    keys = sum(parts[1:], parts[0])
    assert MaskKeys.parse(keys.pack()) == keys
    verified(keys, roster, sides["peer-1"].vouched)
    (other,) = own_key(new_key(), roster, "peer-2", sides["peer-3"].vouch).by_member.values()
    forged = {
        "by another member": other,
        "with another's signature": (other[0], keys.by_member["peer-2"][1]),
        "for another member": keys.by_member["peer-3"],
        "of another run": own_key(new_key(), roster_of(WHEEL), "peer-2", sides["peer-2"].vouch).by_member[
            "peer-2"
        ],
        "unsigned": (other[0], b""),
    }
    for entry in forged.values():
        with pytest.raises(PeerError, match="the mask key of peer-2 is not vouched for by its certificate"):
            verified(MaskKeys({**keys.by_member, "peer-2": entry}), roster, sides["peer-1"].vouched)
    with pytest.raises(PeerError, match="'peer-2' is in one of the two only"):
        verified(MaskKeys({n: entry for n, entry in keys.by_member.items() if n != "peer-2"}), roster,
                 sides["peer-1"].vouched)  # fmt: skip
    more = {
        **keys.by_member,
        "peer-9": own_key(new_key(), roster, "peer-9", sides["peer-2"].vouch).by_member["peer-9"],
    }
    with pytest.raises(PeerError, match="'peer-9' is in one of the two only"):
        verified(MaskKeys(more), roster, sides["peer-1"].vouched)
    for size in (0, 31, 33):
        (_, proof) = keys.by_member["peer-2"]
        with pytest.raises(PeerError, match=f"the mask key of peer-2 has {size} bytes; expected 32"):
            verified(
                MaskKeys({**keys.by_member, "peer-2": (bytes(size), proof)}), roster, sides["peer-1"].vouched
            )
    with pytest.raises(RefusedMessage, match="two mask keys of 'peer-1'"):
        keys + parts[0]
    with pytest.raises(RefusedMessage, match="mask keys that cannot be read"):
        MaskKeys.parse(b"\x81\xa1a\x01")


def test_no_round_begins_with_a_key_that_nobody_vouches_for(tmp_path, rng):
    peers = peers_of(tmp_path, terms(), WHEEL, shared_out(rng))
    original = peers.hub.transport

    def transport(name):
        made = original(name)
        if name == "p2":
            made.vouch = lambda content: b"p1"
        return made

    peers.hub.transport = transport
    for told in refused_everywhere(peers, PeerError):
        assert "the mask key of p2 is not vouched for by its certificate in roster 1" in told
    assert not any(peers.rounds(name) for name in peers.names)


@pytest.mark.links
@pytest.mark.long
def test_five_processes_sum_over_mutual_tls_and_survive_a_kill(tmp_path):
    """They end where the simulator does, though one was killed on the way; every state is its owner's alone."""
    X, y = load_digits(return_X_y=True, as_frame=True)
    X, parts = X.iloc[:, 18:30], np.array_split(np.random.default_rng(0).permutation(len(y))[:600], 5)
    agreed = Terms(
        "digits",
        "digit",
        rounds=16,
        privacy=SECRET,
        limits=Limits(deadline=600.0, quorum=1.0),
        strategy="exact",
    )
    network = Loopback.create(tmp_path, agreed, [X.iloc[p].assign(digit=y.iloc[p]) for p in parts], EDGES)
    try:
        for name in network.homes:
            network.start(name)
        home, until = network.homes["peer-3"], time.monotonic() + 120
        while done(home) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        network.processes["peer-3"].send_signal(signal.SIGKILL)
        network.processes["peer-3"].wait()
        network.start("peer-3")
        network.wait()
    finally:
        network.stop()
    run = pb.simulate(X, y, peers=5, partition=parts, topology=nx.Graph(EDGES), rounds=16, secure_sum=True,
                      references=False, evaluate_every=0, test=(X, y))  # fmt: skip
    for place, home in enumerate(network.homes.values()):
        stats = pb.load(home.model_path).statistics_.expressed(run.schema).values
        assert np.abs(stats - run.statistics(place).values).max() <= 1e-8
        assert stat.S_IMODE(home.state_path.stat().st_mode) == 0o600
        sent = [entry["what"] for entry in entries(home.audit_path)]
        assert sum(what.startswith("masked round") for what in sent) >= 3 * 16
        assert not any(what.startswith("round") for what in sent)


def done(home):
    """The rounds that a peer has stored."""
    try:
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            return store.history()[-1]["round"]
    except (PeerError, IndexError):
        return -1
