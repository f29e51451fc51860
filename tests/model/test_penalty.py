"""Links that cost something: fewer parents, forests instead of trees, and the same structure on every peer."""

import asyncio

import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.data.table import Rows
from peerbayes.errors import PeerError, StructureError
from peerbayes.estimators.classifiers import KDB, TAN
from peerbayes.model.structure import Pairs, kdb, tan, total_information
from peerbayes.peer.agreement.negotiate import Proposal, agreed_structure
from peerbayes.peer.agreement.terms import Terms


def pairs_of(values, codes, labels, cardinalities):
    rows = Rows(np.asarray(values, float), np.asarray(codes, np.int32))
    return Pairs.of(rows, np.asarray(labels), int(np.max(labels)) + 1, cardinalities)


def noise(seed=0, rows=300):
    rng = np.random.default_rng(seed)
    return pairs_of(
        rng.normal(size=(rows, 4)), rng.integers(0, 3, (rows, 4)), rng.integers(0, 2, rows), (3, 3, 3, 3)
    )


def links(parents):
    return sum(len(column) for column in parents)


def test_a_penalty_is_the_parameters_of_a_link_by_its_rows():
    """Two categories of three occur in class 1, and a value is missing: (3 − 1)(2 − 1)/39 there."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [60, 40])
    codes = rng.integers(0, 3, (100, 2))
    codes[labels == 1, 1] = rng.integers(0, 2, 40)
    codes[99, 0] = -1
    pairs = pairs_of(rng.normal(size=(100, 2)), codes, labels, (3, 3))
    expected = np.zeros((4, 4))
    expected[0, 1] = 0.6 * 1 / 60 + 0.4 * 1 / 40
    expected[:2, 2] = 0.6 * 4 / 60 + 0.4 * 4 / 39
    expected[:2, 3] = 0.6 * 4 / 60 + 0.4 * 2 / 40
    expected[2, 3] = 0.6 * 4 / 60 + 0.4 * 2 / 39
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(pairs.freedom[off], (expected + expected.T)[off])
    np.testing.assert_allclose(pairs.score("aic"), pairs.information - pairs.freedom)
    np.testing.assert_allclose(pairs.score("bic"), pairs.information - 0.5 * np.log(100) * pairs.freedom)
    assert pairs.score("none") is pairs.information


def test_the_penalty_is_what_a_link_loses_on_new_rows():
    """Independent columns seem to share f/2n nats in n rows, and a link loses as much on new ones: −f/2n is left."""
    scores = np.array([noise(seed).score("aic") for seed in range(60)])
    freedom = noise().freedom
    pair = (5, 6)  # two discrete columns
    assert scores[:, *pair].mean() == pytest.approx(-freedom[pair] / 2, rel=0.3)


@pytest.mark.parametrize("learn", [tan, kdb])
def test_links_between_independent_columns_are_refused(learn):
    taken = {
        name: np.mean([links(learn(noise(seed), penalty=name)) for seed in range(10)])
        for name in ("none", "aic", "bic")
    }
    assert taken["none"] >= 7 and 0.7 * taken["none"] > taken["aic"] > taken["bic"]
    assert taken["bic"] < 0.5


def test_a_forest_never_gives_a_discrete_column_a_continuous_parent():
    """A continuous column that goes with two independent discrete ones has one of them as its parent."""
    rng = np.random.default_rng(2)
    labels, codes = rng.integers(0, 2, 2000), rng.integers(0, 2, (2000, 2))
    values = (codes.sum(axis=1) + 0.3 * rng.normal(size=2000))[:, None]
    pairs = pairs_of(values, codes, labels, (2, 2))
    assert pairs.score("bic")[1, 2] < 0 < pairs.score("bic")[0, 1:].min()
    parents = tan(pairs, "bic")
    assert parents[1:] == ((), ()) and parents[0] in ((1,), (2,))


def test_strong_links_stay_and_make_the_same_tree():
    rng = np.random.default_rng(3)
    chain = np.cumsum(rng.normal(size=(500, 5)), axis=1)
    pairs = pairs_of(chain, np.zeros((500, 0)), rng.integers(0, 2, 500), ())
    assert tan(pairs, "aic") == tan(pairs, "bic") == tan(pairs) == ((), (0,), (1,), (2,), (3,))


@pytest.mark.parametrize("penalty", ["aic", "bic"])
def test_no_forest_has_a_higher_score(penalty):
    pairs, rng = noise(4), np.random.default_rng(4)
    best = total_information(pairs, tan(pairs, penalty), penalty)
    for _ in range(200):
        order = [*4 + rng.permutation(4), *rng.permutation(4)]  # discrete columns first
        parents = [() for _ in range(8)]
        for position, column in enumerate(order[1:], start=1):
            if rng.random() < 0.5:
                parents[column] = (int(rng.choice(order[:position])),)
        assert total_information(pairs, tuple(parents), penalty) <= best + 1e-12
    assert best >= 0


def test_estimators_refuse_links_by_default_and_other_words_are_refused():
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(400, 6)), rng.integers(0, 2, 400)
    for estimator in (TAN, KDB):
        few, all_links = (
            sum(map(len, estimator(**penalty).fit(X, y).parents_.values()))
            for penalty in ({}, {"penalty": "none"})
        )
        assert few < all_links
        assert estimator().penalty == "aic"
        with pytest.raises(StructureError, match="penalty is 'mdl'; expected one of none, aic, bic"):
            estimator(penalty="mdl").fit(X, y)


@pytest.mark.parametrize("family", ["tan", "kdb"])
def test_the_simulator_has_the_penalty_and_none_by_default(family):
    X, y = load_digits(return_X_y=True, as_frame=True)
    X, y = X.iloc[:400, 10:20], y.iloc[:400]
    parents = {}
    for setting in ({}, {"penalty": "none"}, {"penalty": "bic"}):
        run = pb.simulate(
            X,
            y,
            family=family,
            peers=4,
            partition=np.array_split(np.arange(400), 4),
            rounds=1,
            test=(X[:9], y[:9]),
            **setting,
        )
        parents[str(setting)] = run.classifier(0).parents_
        penalty = setting.get("penalty", "none")
        pooled = {"tan": TAN, "kdb": KDB}[family](schema=run.schema, penalty=penalty).fit(X, y)
        assert run.classifier(0).parents_ == pooled.parents_
    plain, named, fewer = parents.values()
    assert plain == named and links(fewer.values()) < links(plain.values())


def test_peers_agree_on_the_structure_of_the_penalty_in_their_agreement():
    async def total(phase, value):
        return value  # a network of one

    pairs = noise(6)
    for penalty in ("none", "aic", "bic"):
        terms = Terms("n", "y", family="tan", penalty=penalty)
        assert Terms.parse(terms.to_toml(), "file") == terms
        assert asyncio.run(agreed_structure(terms, True, pairs, total)) == tan(pairs, penalty)
    assert Terms("n", "y", family="tan").penalty == "none"

    async def lying(phase, value):
        return Proposal(tan(pairs)) if isinstance(value, Proposal) else value

    with pytest.raises(PeerError, match="expected the best one"):
        asyncio.run(agreed_structure(Terms("n", "y", family="tan", penalty="bic"), False, pairs, lying))
