"""The family that peers choose together: that of simulated ones, and a run as if they had named it."""

import asyncio
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.data.table import Table
from peerbayes.errors import PeerError
from peerbayes.learning.family_choice import Contest, Entrant, agreed_choice, entered, family_sums, judging
from peerbayes.model.candidates import CANDIDATES
from peerbayes.peer.agreement import agreed_family
from peerbayes.peer.agreement.terms import Limits, Terms
from shared.peers_in_memory import DENSE, peers_of, refused_everywhere, simulated

pytestmark = pytest.mark.usefixtures("impatient")


def rows_of_peers(rng, rows=600, missing=False, covaries=False):
    """Two numbers that only together tell the class, a text that tells it by itself, and noise.

    covaries  whether their covariance tells it; otherwise no Gaussian does
    """
    a, b, noise = rng.normal(size=(3, rows))
    text = rng.choice(["low", "high"], rows)
    together = np.sign(a * b) if covaries else np.sign((np.abs(a) - 0.7) * b)
    score = 2.5 * together + 1.5 * (text == "high") + rng.logistic(size=rows)
    X = pd.DataFrame({"a": a, "b": b, "noise": noise, "text": text})
    if missing:
        X.loc[rng.random(rows) < 0.1, ["a", "noise"]] = np.nan
    y = np.where(score > 0.7, "yes", "no")
    return X, y, np.array_split(np.argsort(y, kind="stable"), 5)


def chosen_by_simulated_peers(shared, schemas, lr):
    """Return what simulated peers with these rows choose, whose schemas are those of real peers."""
    X, y, parts = shared
    order, plain = np.concatenate(parts), schemas[None]
    rows = X.iloc[order][list(plain.names)]
    sizes = np.array([len(part) for part in parts])
    judges = judging(plain, Table.of(rows))
    contest = Contest(plain.encode_labels(y[order]), np.ones(len(rows)), sizes, judges, len(parts), lr)
    entrants, left_out = entered(
        {bins: Entrant(schema, schema.encode(rows)) for bins, schema in schemas.items()}
    )
    return agreed_choice(family_sums(entrants, contest, left_out), len(parts))[0]


@pytest.mark.parametrize(
    ("missing", "covaries", "families"),
    [(False, False, ("ga2m",)), (True, False, ("ga2m",)), (True, True, ("qda", "tan", "kdb"))],
    ids=["bands", "bands with gaps", "covariance with gaps"],
)
def test_peers_choose_what_simulated_ones_do_and_end_where_those_end_who_name_it(
    missing, covaries, families, tmp_path, rng, monkeypatch
):
    X, y, parts = shared = rows_of_peers(rng, missing=missing, covaries=covaries)
    seen = []
    monkeypatch.setattr(agreed_family, "entered", lambda rows: seen.append(rows) or entered(rows))
    terms = Terms("test", "label", family="auto", rounds=6)
    peers = peers_of(tmp_path, terms, DENSE, shared)
    reached = np.stack(asyncio.run(peers.all()))
    agreed = [node.session.agreed for node in peers.nodes.values()]
    choice = agreed[0].family_choice
    assert all(own.family_choice == choice for own in agreed)
    by_simulated = chosen_by_simulated_peers(
        shared, {bins: entrant.schema for bins, entrant in seen[0].items()}, terms.lr
    )
    assert (choice.chosen, choice.reason, choice.rows) == (
        by_simulated.chosen,
        by_simulated.reason,
        by_simulated.rows,
    )
    assert [judged.name for judged in choice.candidates] == [
        judged.name for judged in by_simulated.candidates
    ]
    for mine, theirs in zip(choice.candidates, by_simulated.candidates, strict=True):
        assert mine.problem == theirs.problem
        assert mine.log_loss == pytest.approx(theirs.log_loss, abs=1e-9)
    assert choice.family in families
    assert ({own.strategy for own in agreed} == {"tree-sum"}) == (choice.family == "ga2m")

    schema = agreed[0].schema
    assert {own.schema.fingerprint for own in agreed} == {schema.fingerprint}
    named = replace(terms, family=choice.family, start=CANDIDATES[choice.chosen].start)
    run = simulated((X[list(schema.names)], y, parts), DENSE, named, schema=replace(schema, crosses=()))
    assert run.schema.crosses == schema.crosses
    assert np.abs(reached - run.stats).max() <= 1e-9
    (tmp_path / "named").mkdir()
    naming = peers_of(tmp_path / "named", named, DENSE, shared)
    np.testing.assert_array_equal(np.stack(asyncio.run(naming.all())), reached)
    model = pb.load(tmp_path / "p1" / "model.peerbayes")
    assert type(model.family_) is type(agreed[0].layout)
    assert model.schema_.fingerprint == schema.fingerprint
    told = [facts["reason"] for event, facts in peers.told["p1"] if event == "chosen"]
    assert told == [choice.reason]


def test_kinds_that_are_named_hold_for_all_candidates(tmp_path, rng):
    shared = rows_of_peers(rng, rows=300)
    kinds = {"a": "continuous", "b": "continuous", "noise": "continuous", "text": "discrete"}
    terms = Terms("test", "label", kinds, family="auto", rounds=2)
    peers = peers_of(tmp_path, terms, DENSE, shared)
    asyncio.run(peers.all())
    agreed = peers.nodes["p1"].session.agreed
    assert agreed.schema.kinds == kinds
    problems = {judged.name: judged.problem for judged in agreed.family_choice.candidates if judged.problem}
    assert set(problems) == {"bins", "aode"}
    assert "the kind of every column of numbers is named" in problems["bins"]
    assert "aode does not take" in problems["aode"]


def test_sums_larger_than_agreed_messages_are_refused_with_what_to_do(tmp_path, rng):
    terms = Terms("test", "label", family="auto", rounds=2, limits=Limits(message_bytes=20_000))
    for problem in refused_everywhere(peers_of(tmp_path, terms, DENSE, rows_of_peers(rng)), PeerError):
        assert "the sums by which a family is chosen" in problem and "limits.message_bytes" in problem
