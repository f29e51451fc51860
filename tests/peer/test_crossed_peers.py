"""GA2M between peers: crosses that all agree on, those of the simulator, and its models."""

import asyncio
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.errors import PeerError
from peerbayes.peer.agreement.terms import Limits, Terms
from shared.peers_in_memory import DENSE, peers_of, refused_everywhere, simulated

pytestmark = pytest.mark.usefixtures("impatient")


def rows_of_peers(rng, rows=600, missing=False):
    """Two numbers that only together tell the class, a text that tells it by itself, and noise."""
    a, b, noise = rng.normal(size=(3, rows))
    text = rng.choice(["low", "high"], rows)
    score = 2.5 * np.sign(a * b) + 1.5 * (text == "high") + rng.logistic(size=rows)
    X = pd.DataFrame({"a": a, "b": b, "noise": noise, "text": text})
    y = np.where(score > 0.7, "yes", "no")
    if missing:
        X.loc[rng.random(rows) < 0.1, ["a", "noise"]] = np.nan
    return X, y, np.array_split(np.argsort(y, kind="stable"), 5)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("strategy", ["tree-sum", "exact"])
def test_peers_agree_on_crosses_and_end_where_the_simulator_does(strategy, missing, tmp_path, rng):
    X, y, parts = shared = rows_of_peers(rng, missing=missing)
    terms = Terms("test", "label", family="ga2m", strategy=strategy, start="marginal", rounds=12)
    peers = peers_of(tmp_path, terms, DENSE, shared)
    reached = np.stack(asyncio.run(peers.all()))
    schemas = [node.session.agreed.schema for node in peers.nodes.values()]
    assert len({schema.fingerprint for schema in schemas}) == 1
    schema = schemas[0]
    assert {column.kind for column in schema.columns} == {"binned", "discrete"}
    assert ("a", "b") in [cross.columns for cross in schema.crosses]
    names = list(schema.names)
    run = simulated((X[names], y, parts), DENSE, terms, schema=replace(schema, crosses=()))
    assert run.schema.crosses == schema.crosses
    assert np.abs(reached - run.stats).max() <= 1e-9
    model = pb.load(tmp_path / "p1" / "model.peerbayes")
    assert isinstance(model, pb.GA2M) and model.schema_.fingerprint == schema.fingerprint
    assert (model.predict(X[names]) == y).mean() > (0.8 if missing else 0.85)
    without = pb.MixedNB(calibrate=True, kinds="binned").fit(X, y)
    assert (without.predict(X) == y).mean() < 0.75


def test_tables_larger_than_agreed_messages_are_refused_with_what_to_do(tmp_path, rng):
    terms = Terms("test", "label", family="ga2m", rounds=2, limits=Limits(message_bytes=20_000))
    for problem in refused_everywhere(peers_of(tmp_path, terms, DENSE, rows_of_peers(rng)), PeerError):
        assert "from which crosses are chosen" in problem and "limits.message_bytes" in problem
