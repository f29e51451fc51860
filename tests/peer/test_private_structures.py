"""Real peers with privacy and richer families: links, crosses and edges that are declared, or bought once."""

import asyncio
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

import peerbayes as pb
from peerbayes.errors import TermsError
from peerbayes.model.layout import named_parents
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.private_agreement import public_schema
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.ledger import epsilon_of
from peerbayes.peer.state.store import Store
from peerbayes.privacy import pair_tables
from peerbayes.privacy.mechanism import Mechanism
from peerbayes.privacy.pair_tables import PairTables
from shared.peers_in_memory import Peers
from shared.private_agreements import ROUNDS, X, Y, terms

RING, FULL = nx.cycle_graph(5), nx.complete_graph(5)
ORDER = np.random.default_rng(0).permutation(len(Y))
PARTS = np.array_split(ORDER[:450], 5)


def peers_of(folder, agreed, graph=RING):
    return Peers(folder, agreed, graph, [(X.iloc[part], Y[part]) for part in PARTS])


def done(peers):
    """Everybody's statistics; what stopped a peer is raised."""
    reached = asyncio.run(peers.all())
    for result in reached:
        if isinstance(result, BaseException):
            raise result
    return np.stack(reached)


def agreement(family, binned=(), bought=False, **more):
    """An agreement in which these columns are in bins; GA2M has all numbers in them."""
    if family == "ga2m":
        binned = X.columns[:-1]
    agreed = terms(bought, family=family, **more)
    kinds = {name: "binned" if name in binned else kind for name, kind in agreed.features.items()}
    return replace(agreed, features=kinds)


def ledger_of(folder):
    store = Store(folder / "state.sqlite", readonly=True)
    try:
        return store.releases()
    finally:
        store.close()


ROUND_NAMES = [f"round {number}" for number in range(1, ROUNDS + 1)]


@pytest.mark.parametrize(
    ("family", "bought", "hidden", "graph"),
    [
        ("tan", False, {}, RING),
        ("kdb", True, {"structure_share": 0.3}, RING),
        ("ga2m", False, {}, RING),
        ("ga2m", True, {"edge_noise": 3.0}, FULL),
        ("tan", False, {"secure_sum": True}, FULL),
        ("naive-bayes", True, {}, RING),
    ],
)
def test_peers_buy_a_structure_once_and_agree_on_it(family, bought, hidden, graph, tmp_path):
    peers = peers_of(tmp_path, agreement(family, X.columns[:2], bought, privacy=hidden), graph)
    done(peers)
    learned = family != "naive-bayes"
    agreed = [node.session.agreed for node in peers.nodes.values()]
    assert len({each.schema.fingerprint for each in agreed}) == 1
    assert len({repr(each.layout) for each in agreed}) == 1
    names = ["units"] * bought + ["structure"] * learned + ROUND_NAMES
    for name in peers.names:
        entered = ledger_of(tmp_path / name)
        assert [entry["name"] for entry in entered] == names
        assert 0.9999 * 4.0 <= epsilon_of(entered, 1e-5) <= 4.0
        assert peers.nodes[name].session.agreed.private.spent == pytest.approx(
            epsilon_of(entered, 1e-5), abs=1e-6
        )
    said = {entry["what"] for entry in entries(tmp_path / "p0" / "audit.jsonl") if entry["to"]}
    sums = {what for what in said if " round " not in what and "keys" not in what}
    expected = ({"private sum units"} if bought else set()) | (
        {"private sum structure"} if learned else set()
    )
    assert sums == expected
    model = pb.load(tmp_path / "p1" / "model.peerbayes")
    assert 1 - model.score(X.iloc[ORDER[450:]], Y[ORDER[450:]]) < 0.35  # guessing: 0.37


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("family", ["tan", "kdb", "ga2m"])
def test_without_noise_peers_end_where_the_simulator_does(family, declared, tmp_path, monkeypatch):
    """Groups, tables, links, crosses, edges, clipping: all but the noise is the simulator's."""
    monkeypatch.setattr(Mechanism, "noise", lambda self, shape, *_: np.zeros(shape, dtype=np.int64))
    monkeypatch.setattr(
        PairTables, "noise", lambda self, peers, _: np.zeros((peers, self.size), dtype=np.int64)
    )
    if family == "ga2m":  # these columns say little more together than alone: all pairs are candidates
        monkeypatch.setattr(pair_tables, "ABOVE", -1e9)
    structure = [["large", "mean-area"], ["large", "mean-radius"]] if declared else None
    agreed = agreement(family, ("mean-texture",), structure=structure, privacy={"structure_share": 0.5})
    peers = peers_of(tmp_path, agreed)
    stats = done(peers)
    run = pb.simulate(
        X, Y, schema=public_schema(agreed), family=family, structure=structure, peers=5, partition=PARTS, topology=RING,
        strategy="exact", rounds=ROUNDS, privacy=pb.Privacy(epsilon=4.0, structure_share=0.5), references=False,
        evaluate_every=0, test=(X, Y),
    )  # fmt: skip
    own = peers.nodes["p0"].session.agreed
    assert own.schema.crosses == run.schema.crosses
    if family == "ga2m":
        assert len(run.schema.crosses) >= 1
    else:
        assert own.layout.parents == run.layout.parents and any(run.layout.parents)
        assert named_parents(run.layout, run.schema)
    assert np.abs(stats - run.stats).max() <= 1e-9 * max(1.0, np.abs(run.stats).max())


def test_what_is_declared_costs_nothing(tmp_path):
    structure = [["large", "mean-area"]]
    done(peers_of(tmp_path, agreement("tan", structure=structure)))
    assert [entry["name"] for entry in ledger_of(tmp_path / "p3")] == ROUND_NAMES


def test_a_peer_that_stops_and_goes_on_buys_its_structure_once(tmp_path):
    peers = peers_of(tmp_path, agreement("tan", bought=True, rounds=16), FULL)
    asyncio.run(peers.all_with_stops("p2", (1, 4, 9)))
    names = [entry["name"] for entry in ledger_of(tmp_path / "p2")]
    assert names == ["units", "structure", *(f"round {number}" for number in range(1, 17))]
    layouts = {repr(node.session.agreed.layout) for node in peers.nodes.values()}
    assert len(layouts) == 1


def test_declared_edges_are_those_of_the_schema():
    facts = {"age": Facts(edges=(18.0, 65.0)), "dose": Facts(mean=3.0, sd=2.0)}
    agreed = Terms(
        "n", "ill", {"age": "binned", "dose": "binned"}, facts, ("no", "yes"), privacy=Privacy(epsilon=1.0)
    )
    schema = public_schema(agreed)
    assert schema.columns[0].edges == (18.0, 65.0)
    assert len(schema.columns[1].edges) == 7 and schema.columns[1].edges[3] == 3.0
    again = Terms.parse(agreed.to_toml(), "agreement.toml")
    assert again == agreed and again.digest == agreed.digest


def test_older_agreements_keep_their_digest():
    """Facts had no edges, and privacy no share of a structure: what has neither counts as before."""
    usual = {"features": {"age": "continuous"}, "facts": {"age": Facts(1.0, 2.0)}, "classes": (0, 1)}
    agreed = Terms("net", "ill", privacy=Privacy(epsilon=1.0), **usual)
    assert agreed.digest == "0387ba4c1b644e3db7578dfec9e55ede9219faa30533ce8aa706c6cef2c1ce48"
    assert replace(agreed, privacy=Privacy(epsilon=1.0, structure_share=0.1)).digest != agreed.digest


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"structure": [["large", "age"]], "family": "tan"}, "structure names 'age', which is no feature"),
        ({"structure": [["large", "mean-area"]]}, "structure with family 'naive-bayes'"),
        ({"family": "tan", "robust": Robust("clip")}, "where the structure of tan is bought: one liar"),
        ({"structure": "large", "family": "tan"}, "expected a list of pairs"),
    ],
)
def test_structures_that_cannot_be_are_refused(more, reason):
    with pytest.raises(TermsError, match=reason):
        terms(**more)


def test_edges_by_class_are_refused():
    with pytest.raises(TermsError, match="'age' is supervised, whose edges lie where the classes"):
        Terms("n", "ill", {"age": "supervised"}, classes=(0, 1), privacy=Privacy(epsilon=1.0))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ("edges = [2.0, 1.0]", "expected one or more rising numbers"),
        ("edges = []", "expected one or more rising numbers"),
        ("edges = [1.0]\nmean = 2.0\nsd = 1.0", "edges and mean are given"),
        ('categories = ["a"]', "a binned column has no categories"),
        ("missing = true", "is 'binned' and not described"),
    ],
)
def test_edges_that_cannot_be_are_refused(facts, reason):
    text = f"""network = "n"
label = "ill"
classes = ["no", "yes"]
[features.age]
kind = "binned"
{facts}
[privacy]
epsilon = 1.0
"""
    with pytest.raises(TermsError, match=reason):
        Terms.parse(text, "agreement.toml")
