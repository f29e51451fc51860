"""What a peer says of its own model: errors on the rows it learns from and on those it holds out, and disagreement."""

import asyncio
import contextlib
import sqlite3
import time
from collections import defaultdict
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.errors import ConfigurationError
from peerbayes.model.missing import complete
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.learning.held_out import PAUSE, Evaluator, ModelFile, error_text, held_out
from peerbayes.peer.learning.round_loop import QUICK, _clocked
from peerbayes.peer.service import set_aside
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.peer.state.store import FIGURES, RoundRecord, Store
from shared.peers_in_memory import DENSE, peers_of, shared_out

pytestmark = pytest.mark.usefixtures("impatient")


def test_nothing_is_held_out_unless_asked():
    frame, labels = pd.DataFrame({"x": [1.0, 2.0]}), np.array(["a", "b"])
    (kept, of_kept), away = held_out(frame, labels, 0.0, b"")
    assert kept is frame and of_kept is labels and away is None


def test_held_out_rows_of_a_class_that_nobody_learns_from_are_errors(tmp_path, rng):
    """Every model is wrong on them: not left out, and no reason to stop."""
    X, y, parts = shared_out(rng, missing=False)
    peers = peers_of(tmp_path, Terms("test", "label", rounds=4, strategy="exact"), DENSE, (X, y, parts))
    away = X.iloc[:40], np.where(np.arange(40) < 10, "never seen", y[:40])
    asyncio.run(peers.all(away=away))
    for name in peers.names:
        model = pb.load(tmp_path / name / "model.peerbayes")
        wrong = 10 + np.sum(model.predict(X.iloc[10:40]) != y[10:40])
        assert peers.history(name)[-1]["test_error"] == pytest.approx(wrong / 40)
    assert not [event for events in peers.told.values() for event in events if event[0] == "refused"]


@pytest.mark.parametrize("away", [0, 3])
def test_held_out_rows_of_unknown_classes_only_or_none(away, tmp_path, rng):
    X, y, parts = shared_out(rng, missing=False)
    peers = peers_of(tmp_path, Terms("test", "label", rounds=2, strategy="exact"), DENSE, (X, y, parts))
    asyncio.run(peers.all(away=(X.iloc[:away], np.full(away, "never seen")) if away else None))
    assert peers.history("p0")[-1]["test_error"] == (1.0 if away else None)


@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking", "relay", "local", "dsgd"])
def test_errors_of_the_last_round_are_those_of_the_model(strategy, tmp_path, rng):
    terms = Terms("test", "label", strategy=strategy, rounds=12)
    X, y, parts = shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, (X, y, parts))
    away = X.iloc[:40], y[:40]
    stats = asyncio.run(peers.all(away=away))
    for place, name in enumerate(peers.names):
        last = peers.history(name)[-1]
        agreed = peers.nodes[name].session.agreed
        if agreed.of_weights:
            features = agreed.family.features(agreed.schema.encode(X.iloc[parts[place]]))
            wrong = (features @ stats[place].T).argmax(axis=1) != agreed.schema.encode_labels(y[parts[place]])
            assert last["train_error"] == pytest.approx(wrong.mean())
        else:
            model = pb.load(tmp_path / name / "model.peerbayes")
            assert last["train_error"] == pytest.approx(
                1 - model.score(X.iloc[parts[place]], y[parts[place]])
            )
            assert last["test_error"] == pytest.approx(1 - model.score(*away))
            sure = model.predict_proba(X.iloc[parts[place]])
            right = sure[np.arange(len(sure)), np.searchsorted(model.classes_, y[parts[place]])]
            assert last["soft_error"] == pytest.approx(1 - right.mean(), abs=1e-9)
        assert (last["disagreement"] is None) == (strategy in ("relay", "local"))
        assert peers.told[name][-1][0] == "done"


def test_disagreement_is_the_relative_distance_to_neighbours_and_falls(tmp_path, rng):
    terms = Terms("test", "label", strategy="crc", rounds=30)
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))
    asyncio.run(peers.all())
    for name in peers.names:
        told = [entry["disagreement"] for entry in peers.history(name) if entry["disagreement"] is not None]
        assert told[0] >= 0 and told[-1] < 0.2


@pytest.mark.parametrize(("family", "left_out"), [("naive-bayes", 10), ("qda", 0), ("tan", 0)])
def test_rows_with_missing_values_are_judged_where_there_is_a_place_for_them(family, left_out, tmp_path, rng):
    X, y, parts = shared_out(rng, missing=False)
    away, labels = X.iloc[:30].copy(), y[:30]
    away.iloc[:10, 0] = np.nan
    peers = peers_of(
        tmp_path,
        Terms("test", "label", family=family, start="ml", rounds=4, strategy="exact"),
        nx.path_graph(5),
        (X, y, parts),
    )
    asyncio.run(peers.all(away=(away, labels)))
    for name in peers.names:
        agreed, model = peers.nodes[name].session.agreed, pb.load(tmp_path / name / "model.peerbayes")
        rows, codes = (
            agreed.schema.encode(away.iloc[left_out:]),
            agreed.schema.encode_labels(labels[left_out:]),
        )
        joint = complete(agreed.family, rows).log_joint(agreed.family.weights(model.statistics_.values))
        error = np.mean(joint.argmax(axis=1) != codes)
        assert peers.history(name)[-1]["test_error"] == pytest.approx(error)


def test_a_state_of_an_earlier_version_can_be_read(tmp_path):
    path = tmp_path / "state.sqlite"
    with contextlib.closing(Store(path)) as store:
        store.add_round(RoundRecord(1, (np.zeros(2),), {}, ["b"], [], {"train_error": 0.25}))
        assert store.history()[0]["train_error"] == 0.25 and store.history()[0]["test_error"] is None
    with contextlib.closing(sqlite3.connect(path)) as before:
        before.execute("DROP TABLE judged")
        before.execute("DROP TABLE received")
        for column in ("missed", "correction"):
            before.execute(f"ALTER TABLE outbox DROP COLUMN {column}")
        before.execute("PRAGMA user_version = 0")
    with contextlib.closing(Store(path, readonly=True)) as store:
        assert [store.history()[0][name] for name in FIGURES] == [None] * 4
    with contextlib.closing(Store(path)) as store:
        store.add_round(RoundRecord(2, (np.zeros(2),), {}, ["b"], [], {"train_error": 0.5}))
        assert [entry["train_error"] for entry in store.history()] == [None, 0.5]


def test_hold_out_is_a_setting(tmp_path):
    settings = Settings("a", "localhost:1", "0.0.0.0:1", str(tmp_path / "rows.csv"), hold_out=0.25)
    (tmp_path / "peer.toml").write_text(settings.to_toml(tmp_path))
    assert Settings.read(tmp_path / "peer.toml") == settings
    none = Settings("a", "localhost:1", "0.0.0.0:1", str(tmp_path / "rows.csv"))
    assert "# hold_out = 0.2" in none.to_toml(tmp_path)
    (tmp_path / "peer.toml").write_text(none.to_toml(tmp_path))
    assert Settings.read(tmp_path / "peer.toml").hold_out == 0


@pytest.mark.parametrize("value", ["1.0", "-0.1", "'0.2'", "true", "nan"])
def test_a_share_that_makes_no_sense(value, tmp_path):
    (tmp_path / "peer.toml").write_text(
        f'name = "a"\naddress = "localhost:1"\ndata = "rows.csv"\nhold_out = {value}\n'
    )
    with pytest.raises(ConfigurationError, match=r"hold_out is .*expected a share from 0 to below 1"):
        Settings.read(tmp_path / "peer.toml")


def test_weights_of_no_model_have_no_file(tmp_path):
    ModelFile(tmp_path / "model.peerbayes").write(SimpleNamespace(of_weights=True), np.zeros((2, 3)))
    assert not list(tmp_path.iterdir())


def test_words_for_people():
    assert error_text({"train_error": 0.5, "test_error": 0.25}) == "error 0.2500 on held-out rows"
    assert error_text({"train_error": 0.5, "test_error": None}) == "error 0.5000 on its own rows"
    assert error_text({}) == ""
    assert (
        error_text({"train_error": 0.5}, private=True)
        == "error 0.5000 on its own rows (without noise: not for others)"
    )


def test_a_state_that_is_set_aside_is_whole_whoever_reads_it(tmp_path):
    home = Home(tmp_path)
    with contextlib.closing(Store(home.state_path)) as store:
        store.add_round(RoundRecord(1, (np.zeros(2),), {}, ["b"], []))
    reader = sqlite3.connect(home.state_path)
    with contextlib.closing(reader):
        reader.execute("SELECT turn FROM rounds").fetchall()  # connected, but not in the middle of reading
        with contextlib.closing(Store(home.state_path)) as store:
            store.add_round(RoundRecord(2, (np.ones(2),), {}, ["b"], []))
            store.flush()
        moved = set_aside(home)
    assert moved is not None and not home.state_path.exists()
    with contextlib.closing(sqlite3.connect(moved)) as there:
        assert there.execute("SELECT MAX(turn) FROM rounds").fetchone() == (2,)


def test_neighbours_have_the_next_message_before_the_model_is_written(tmp_path, rng, monkeypatch):
    """Whatever is not needed to answer them comes after."""
    terms = Terms("test", "label", strategy="exact", rounds=6)
    peers, served = peers_of(tmp_path, terms, DENSE, shared_out(rng)), []
    write, stored = ModelFile.write, []

    def noting(self, agreed, stats, *more):
        node = next(node for node in peers.nodes.values() if node.model == self.path)
        session, outbox = node.session, node._server.outbox
        if not more and session.round_index < terms.rounds:
            served.append({turn for turn, _ in outbox._ready})
            stored.append((node.store.round(), session.round_index))
        write(self, agreed, stats, *more)
        self.due = 0.0  # after every round

    monkeypatch.setattr(ModelFile, "write", noting)
    asyncio.run(peers.all())
    assert len(served) >= 5 * (terms.rounds - 1)
    assert all(
        kept == reached and reached + 1 in turns
        for (kept, reached), turns in zip(stored, served, strict=True)
    )


def test_models_are_evaluated_as_often_as_somebody_may_look(tmp_path, rng, monkeypatch):
    """Quick rounds do not spend their time on it, and the last one is evaluated whenever it comes."""
    terms = Terms("test", "label", strategy="exact", rounds=40)
    peers, moments = peers_of(tmp_path, terms, DENSE, shared_out(rng)), defaultdict(list)
    figures = Evaluator.figures

    def noting(self, stats):
        moments[id(self)].append(time.monotonic())
        return figures(self, stats)

    monkeypatch.setattr(Evaluator, "figures", noting)
    asyncio.run(peers.all())
    for times in moments.values():
        assert all(np.diff(times[:-1]) >= PAUSE)
    for name in peers.names:
        judged = [entry["train_error"] is not None for entry in peers.history(name)]
        assert judged[1] and judged[-1]


def test_a_round_is_slow_by_what_it_computes_and_not_by_what_it_waits_for():
    """On a busy machine a thread would make it slower still."""
    _, waited = _clocked(lambda: time.sleep(0.1))
    until = time.thread_time() + 0.03

    def computes():
        while time.thread_time() < until:
            pass
        return "a round"

    result, computed = _clocked(computes)
    assert waited < QUICK < computed and result == "a round"
