"""What docs/protection.md says a neighbour can learn, done: no row is sent, and yet these are recovered."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from peerbayes import network as topologies
from peerbayes.data.schema import Schema
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.relay import Relay, spanning_tree
from peerbayes.learning.strategies import CRC, Exact, Tracking
from peerbayes.model import layout
from peerbayes.model.calibration import start_statistics

PAGE = Path(__file__).parents[2] / "docs" / "protection.md"
ROUNDS = 16
LINKS = topologies.adjacency("chain", 4, np.random.default_rng(0))  # peers 0 and 3 are leaves


def network(parts):
    """Peers with these rows of iris: what they hold, and the start that everybody knows."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    rows = np.concatenate(parts)
    X, y = X.iloc[rows], y.to_numpy()[rows]
    schema = Schema.infer(X, y)
    family = layout.calibrated("naive-bayes", schema, False, float(len(y)))
    sizes = np.array([len(part) for part in parts])
    held = LocalRows(family, schema.encode(X), schema.encode_labels(y), np.ones(len(y)), sizes, 3)
    start = start_statistics("uniform", family, 3, len(y) / (0.05 * len(parts)))
    return held, np.tile(start, (len(parts), 1, 1))


def mixed():
    """Three peers with all classes, and one (peer 2) with virginica only."""
    rng = np.random.default_rng(0)
    two = rng.permutation(120)
    return network([two[:50], two[50:90], np.arange(120, 150), two[90:]])


def first_message(name, held, start, sender, receiver):
    """What `receiver` is sent first that depends on the sender's rows, less what everybody knows: R."""
    residual = held.residual(ROUNDS)
    if name == "exact":
        strategy = Exact(rounds=ROUNDS)
        return (strategy.message(strategy.begin(start, residual))[sender] - start[0]) / strategy.boost
    if name == "tracking":
        return Tracking().message(Tracking().begin(start, residual))[sender, 1]
    if name == "relay":
        tree = spanning_tree(LINKS)
        relay = Relay(tree, ROUNDS)
        link = int(np.flatnonzero((tree.sender == sender) & (tree.receiver == receiver))[0])
        return relay.messages(relay.adapt(relay.begin(start), residual))[link] / relay.boost
    everybody = CRC().begin(start, residual)  # the first message of crc is the start; the second is not
    return CRC().message(CRC().step(everybody, everybody, residual))[sender] - start[0]


STRATEGIES = ("exact", "relay", "crc", "tracking")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_message_gives_the_class_counts(strategy):
    held, start = mixed()
    for sender, receiver in ((0, 1), (1, 2), (2, 1), (3, 2)):
        told = first_message(strategy, held, start, sender, receiver)
        counts = told[:, 0] + held.sizes[sender] / 3  # m_v is agreed on, or told by the tree
        mine = held.labels[held.offsets[sender] : held.offsets[sender + 1]]
        np.testing.assert_allclose(counts, np.bincount(mine, minlength=3), atol=1e-8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_peer_without_some_class_gives_all_its_moments(strategy):
    held, start = mixed()
    told = first_message(strategy, held, start, 2, 1)
    absent = told[np.argmin(told[:, 0])]  # its row is −(1/C)Σφ
    assert -3 * absent[0] == pytest.approx(held.sizes[2], abs=1e-8)  # so m_v need not even be known
    np.testing.assert_allclose(told - absent, held.statistics()[2], atol=1e-8)


def test_a_class_with_one_row_gives_that_row():
    held, start = network([np.arange(10), np.arange(20, 90), np.array([0, 1, 2, 3, 60]), np.arange(100, 150)])
    told = first_message("exact", held, start, 2, 1)
    moments = told - told[np.argmin(told[:, 0])]  # no virginica here
    features = held.rows.values.shape[1]
    row = moments[1, 1 : 1 + features]  # Σx over the one versicolor
    assert moments[1, 0] == pytest.approx(1.0, abs=1e-8)
    np.testing.assert_allclose(row, held.rows.values[held.offsets[2] + 4], atol=1e-8)


@pytest.mark.parametrize("name", ["crc", "exact"])
def test_the_only_neighbour_of_a_leaf_gets_its_residual_every_round(name):
    held, start = mixed()
    strategy = Exact(rounds=ROUNDS) if name == "exact" else CRC()
    mixing = getattr(topologies, strategy.mixing)(LINKS).toarray()
    true, of_all = [], held.residual(ROUNDS)

    def residual(stats):
        """R of all; that of the leaf is written down, as only it can know it."""
        found = of_all(stats)
        true.append(found[0].copy())
        return found

    state = strategy.begin(start, residual)
    heard = [strategy.message(state)]
    for _ in range(ROUNDS):
        state = strategy.step(state, np.einsum("vu,uck->vck", mixing, heard[-1]), residual)
        heard.append(strategy.message(state))
    if name == "crc":  # its only neighbour's message is all the leaf mixes
        seen = [later[0] - now[1] for now, later in pairwise(heard)]
    else:
        adapted = heard[0][0]
        seen = [(adapted - start[0]) / strategy.boost]
        for now, later in pairwise(heard):
            mix = mixing[0, 0] * now[0] + mixing[0, 1] * now[1]
            adapted = later[0] - (mix - adapted)
            seen.append((adapted - mix) / strategy.boost)
    assert len(seen) == len(true) >= ROUNDS
    for guess, truth in zip(seen, true, strict=True):
        np.testing.assert_allclose(guess, truth, atol=1e-6)


def test_a_leaf_of_the_tree_tells_rows_means_and_every_category():
    pytest.importorskip("msgspec")
    from peerbayes.peer.agreement.summary import OwnTable, Summary
    from peerbayes.peer.agreement.terms import Terms

    frame = pd.DataFrame({"age": [41.0, 52.0, 67.0], "town": ["Ulm", "Ulm", "Nowhere-on-Sea"]})
    sent = OwnTable.of(frame, np.array([0, 1, 1]), Terms("n", "y")).summary("leaf").pack()
    told = Summary.parse(sent)
    assert told.rows == 3 and float(told.columns["age"].total) / 3 == frame["age"].mean()
    assert ("t", "Nowhere-on-Sea") in told.columns["town"].categories and b"Nowhere-on-Sea" in sent


@pytest.mark.parametrize("page", ["protection.md", "threats.md"])
def test_a_page_points_only_to_tests_that_are_there(page):
    told = (PAGE.parent / page).read_text(encoding="utf-8")
    named, here = re.findall(r"`(test_\w+)`", told), Path(__file__).parents[1]
    tests = "".join(path.read_text(encoding="utf-8") for path in here.rglob("test_*.py"))
    assert len(named) > 5
    for name in named:
        assert f"def {name}(" in tests, name
    for file in re.findall(r"tests/([\w/]+\.py)", told):
        assert (here / file).exists(), file
