"""Kinds of columns between peers: the same schema for all, the edges of pooled rows, the simulator's model."""

import asyncio

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.data.bins import BINS, GRID
from peerbayes.errors import FalseReport, PeerError, SchemaError, TermsError
from peerbayes.learning.robust.bounds import MemberBounds
from peerbayes.peer.agreement.agreed_edges import agreed_edges
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.summary import OwnTable
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
from peerbayes.peer.agreement.tree_sums import Integers, Reports
from peerbayes.peer.loopback import Loopback
from shared.peers_in_memory import DENSE, peers_of, refused_everywhere, simulated

pytestmark = pytest.mark.usefixtures("impatient")

KINDS = {"amount": "positive", "dose": "binned", "length": "continuous", "stage": "binned", "visits": "count"}


def rows_of_peers(rng, rows=400, missing=True):
    """A skewed dose, a stage of four values, an amount and visits, over five peers of which each has few classes."""
    y = np.sort(rng.integers(0, 3, rows))
    X = pd.DataFrame(
        {
            "dose": rng.exponential(1.0 + y),
            "stage": np.minimum(rng.integers(0, 4, rows) + (y == 2), 3).astype(float),
            "amount": np.exp(rng.normal(y, 1.0)),
            "visits": rng.poisson(1.0 + 2 * y).astype(float),
            "length": rng.normal(y, 1.0),
        }
    )
    if missing:
        X.loc[rng.random(rows) < 0.1, ["dose", "visits"]] = np.nan
    parts = np.array_split(np.argsort(y + rng.random(rows), kind="stable"), 5)
    return X, y, parts


def agreed_by(folder, terms, shared):
    """What every peer agreed on, and the statistics that it ended with [N, C, K]."""
    peers = peers_of(folder, terms, DENSE, shared)
    reached = np.stack(asyncio.run(peers.all()))
    return [node.session.agreed for node in peers.nodes.values()], reached


@pytest.mark.parametrize("robust", [False, True])
def test_edges_are_quantiles_of_all_rows_and_the_same_bits_for_all(robust, tmp_path, rng):
    X, y, _ = shared = rows_of_peers(rng)
    robustness = {"robust": Robust("clip")} if robust else {}
    terms = Terms("test", "label", features=KINDS, strategy="crc", rounds=3, **robustness)
    agreed, _ = agreed_by(tmp_path, terms, shared)
    assert len({own.schema.to_json() for own in agreed}) == 1
    schema, pooled = agreed[0].schema, pb.Schema.infer(X, y, kinds=KINDS)
    columns, expected = ({c.name: c for c in s.columns} for s in (schema, pooled))
    np.testing.assert_allclose(columns["stage"].edges, [0.5, 1.5, 2.5], atol=2e-2)
    present = np.sort(X["dose"].dropna())
    resolution = 2 * np.sqrt(BINS - 1) * present.std() / GRID**2
    ours, theirs = (
        np.searchsorted(present, edges) for edges in (columns["dose"].edges, expected["dose"].edges)
    )
    assert len(ours) == BINS - 1
    gaps = np.diff(present)[theirs - 1]
    if robust:  # units come of votes, and counts of as many rows as a member may count for
        assert np.abs(ours - theirs).max() <= 0.1 * present.size
    else:
        assert np.abs(ours - theirs).max() <= np.bincount((present / resolution).astype(int)).max()
        assert (np.abs(np.subtract(columns["dose"].edges, expected["dose"].edges)) <= resolution + gaps).all()
        assert columns["visits"].scale == pytest.approx(expected["visits"].scale, rel=1e-12)
        assert columns["amount"].location == pytest.approx(expected["amount"].location, rel=1e-12)
        assert columns["amount"].scale == pytest.approx(expected["amount"].scale, rel=1e-12)
    assert columns["dose"].location == 0.0 and columns["dose"].scale == 1.0


@pytest.mark.parametrize("robust", [False, True])
def test_edges_by_class_are_those_of_all_rows(robust, tmp_path, rng):
    """Each peer has few classes, so that alone none would find where they change."""
    X, y, parts = shared = rows_of_peers(rng, rows=600)
    kinds = dict.fromkeys(KINDS, "supervised")
    robustness = {"robust": Robust("clip")} if robust else {}
    terms = Terms("test", "label", features=kinds, strategy="exact", rounds=6, **robustness)
    assert Terms.parse(terms.to_toml(), "the terms") == terms
    agreed, reached = agreed_by(tmp_path, terms, shared)
    assert len({own.schema.to_json() for own in agreed}) == 1
    schema, pooled = agreed[0].schema, pb.Schema.infer(X, y, kinds=kinds)
    expected = {column.name: column for column in pooled.columns}
    assert sum(len(column.edges) for column in schema.columns) >= 5
    for column in schema.columns:
        present = np.sort(X[column.name].dropna())
        ours, theirs = (np.searchsorted(present, c.edges) for c in (column, expected[column.name]))
        if not robust:  # where rows count less, a cut may not be worth its cost
            assert len(ours) == len(theirs) and np.abs(ours - theirs).max(initial=0) <= 2
    if not robust:
        run = simulated((X[list(schema.names)], y, parts), DENSE, terms, schema=schema)
        assert np.abs(reached - run.stats).max() <= 1e-9


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("strategy", ["crc", "exact"])
def test_peers_end_where_the_simulator_does(strategy, missing, tmp_path, rng):
    X, y, parts = rows_of_peers(rng, missing=missing)
    terms = Terms("test", "label", features=KINDS, strategy=strategy, rounds=12)
    agreed, reached = agreed_by(tmp_path, terms, (X, y, parts))
    schema = agreed[0].schema
    run = simulated((X[list(schema.names)], y, parts), DENSE, terms, schema=schema)
    assert [column.kind for column in run.schema.columns] == [column.kind for column in schema.columns]
    assert np.abs(reached - run.stats).max() <= 1e-9
    model = pb.load(tmp_path / "p1" / "model.peerbayes")
    assert model.schema_.fingerprint == schema.fingerprint
    assert (model.predict(X[list(schema.names)]) == y).mean() > 0.6


@pytest.mark.parametrize("family", ["tan", "qda"])
def test_other_families_take_binned_and_positive_columns(family, tmp_path, rng):
    kinds = {name: kind for name, kind in KINDS.items() if kind != "count"}
    terms = Terms("test", "label", features=kinds, family=family, strategy="exact", rounds=4)
    agreed, _ = agreed_by(tmp_path, terms, rows_of_peers(rng, missing=False))
    assert len({own.schema.fingerprint for own in agreed}) == 1


def test_counts_are_refused_by_other_families_at_every_peer(tmp_path, rng):
    terms = Terms("test", "label", features=KINDS, family="lda", strategy="exact", rounds=4)
    peers = peers_of(tmp_path, terms, DENSE, rows_of_peers(rng, missing=False))
    problems = refused_everywhere(peers, (PeerError, SchemaError))
    assert all("'visits' is count, which lda does not take" in problem for problem in problems)


def test_a_constant_and_an_empty_column_have_no_edges(tmp_path, rng):
    X, y, parts = rows_of_peers(rng)
    X["dose"], X["stage"] = 7.0, np.nan
    terms = Terms("test", "label", features=KINDS, strategy="crc", rounds=2)
    agreed, _ = agreed_by(tmp_path, terms, (X, y, parts))
    assert len({own.schema.fingerprint for own in agreed}) == 1
    assert [column.edges for column in agreed[0].schema.columns] == [()] * 5


def test_noise_and_bins_are_refused_with_what_to_do():
    with pytest.raises(TermsError, match=r"'dose' is 'binned' and not described; expected .* or edges"):
        Terms(
            "test",
            "label",
            features={"dose": "binned"},
            classes=("a", "b"),
            privacy=Privacy(epsilon=1.0, min_rows=10),
        )


@pytest.mark.parametrize("lie", [-1, 10**6])
def test_counts_that_cannot_be_are_refused(lie, rng):
    """Where members may lie, a part of a sum is held to the rows that were reported behind its link."""
    X, y, _ = rows_of_peers(rng, missing=False)
    terms = Terms("test", "label", features={"dose": "binned"}, robust=Robust("clip"))
    table = OwnTable.of(X[["dose"]], y, terms)
    bounds = MemberBounds(1000, {"dose": (1.0, 1.0)})
    summary = table.summary("p0", bounds)
    schema = bounds.measured(summary.schema("label", 5.0))
    reports = Reports(bounds, {"p1": summary})

    async def honest(phase, own):
        phase.check("p1", phase.parse(own.pack()), 1)
        return own + own

    async def lying(phase, own):
        values = own.values.copy()
        values[3] += lie
        phase.check("p1", Integers(values), 1)

    agreed = asyncio.run(agreed_edges(schema, table, 2 * len(y), honest, reports))
    assert len(agreed.columns[0].edges) == BINS - 1
    with pytest.raises(FalseReport, match="quantiles 1: counts from"):
        asyncio.run(agreed_edges(schema, table, 2 * len(y), lying, reports))


def test_noise_protects_positive_amounts_and_counts(tmp_path, rng):
    X, y, _ = rows_of_peers(rng, missing=False)
    logs = np.log(X["amount"])
    facts = {"amount": Facts(float(logs.mean()), float(logs.std())), "visits": Facts(3.0, 2.0)}
    kinds = {name: KINDS[name] for name in facts}
    promise = Privacy(epsilon=4.0, rows=80.0, min_rows=10)
    terms = Terms(
        "test",
        "label",
        features=kinds,
        facts=facts,
        classes=(0, 1, 2),
        privacy=promise,
        strategy="exact",
        rounds=4,
    )
    assert Terms.parse(terms.to_toml(), "the terms") == terms
    parts = np.array_split(rng.permutation(len(y)), 5)
    agreed, reached = agreed_by(tmp_path, terms, (X[list(kinds)], y, parts))
    assert {own.schema.fingerprint for own in agreed} == {agreed[0].schema.fingerprint}
    assert agreed[0].schema.columns[1].scale == 4.0 and np.isfinite(reached).all()
    with pytest.raises(TermsError, match="a count column has no range; leave it out, or call it continuous"):
        Facts.of("count", {"range": [0, 5]}, "feature 'visits'")


@pytest.mark.links
@pytest.mark.long
def test_processes_agree_on_edges_over_mutual_tls(tmp_path, rng):
    X, y, parts = rows_of_peers(rng)
    links = topologies.adjacency("tree", 5, np.random.default_rng(1))
    terms = Terms("kinds", "label", features=KINDS, strategy="exact", rounds=6)
    tables = [X.iloc[part].assign(label=y[part]) for part in parts]
    network = Loopback.create(tmp_path, terms, tables, topologies.pairs(links).tolist())
    try:
        for name in network.homes:
            network.start(name)
        network.wait()
    finally:
        network.stop()
    models = [pb.load(home.model_path) for home in network.homes.values()]
    schema = models[0].schema_
    assert {model.schema_.to_json() for model in models} == {schema.to_json()}
    assert [len(column.edges) for column in schema.columns] == [0, BINS - 1, 0, 3, 0]
    run = simulated((X[list(schema.names)], y, parts), links, terms, schema=schema)
    for place, model in enumerate(models):
        stats = model.statistics_.expressed(run.schema).values
        assert np.abs(stats - run.statistics(place).values).max() <= 1e-9
