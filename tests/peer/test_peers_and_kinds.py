"""Kinds of columns between peers: the same schema for all, the edges of pooled rows, the simulator's model."""

import asyncio

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("grpc")

import peerbayes as pb
from peerbayes.data.bins import BINS, GRID
from peerbayes.errors import PeerError, SchemaError, TermsError
from peerbayes.peer.agreement.agreed_edges import REACH
from peerbayes.peer.agreement.terms import Privacy, Robust, Terms
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
    resolution = 2 * REACH * present.std() / GRID**2
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
    with pytest.raises(TermsError, match="'dose' is binned, whose edges are quantiles of all rows"):
        Terms(
            "test",
            "label",
            features={"dose": "binned"},
            classes=("a", "b"),
            privacy=Privacy(epsilon=1.0, min_rows=10),
        )
