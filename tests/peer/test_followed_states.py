"""A large state is stored whole in some rounds only: those between are learned again from the messages that came."""

import asyncio
import contextlib
import sqlite3

import numpy as np
import pytest

pytest.importorskip("cryptography")
from peerbayes.errors import NeedsPerson, PeerError
from peerbayes.network import LossTrace
from peerbayes.peer.agreement.terms import Limits, Robust, Terms
from peerbayes.peer.learning import learner
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.state import store as stores
from peerbayes.peer.state.store import Inputs, RoundRecord, Store
from shared.peers_in_memory import DENSE, peers_of, shared_out, simulated
from shared.scripted_loss import LosingPeers

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

TERMS = Terms("test", "label", strategy="exact", rounds=12, limits=Limits(deadline=3600.0, quorum=0.01))


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """All messages count as large, and every fifth state is stored whole."""
    monkeypatch.setattr(learner, "LARGE", 0)
    monkeypatch.setattr(stores, "WHOLE_EVERY", 5)


def made(folder):
    folder.mkdir()
    return folder


def opened(folder, name="p0"):
    return contextlib.closing(Store(folder / name / "state.sqlite"))


async def until_round(peers, last):
    """Run all peers until they have stored a round, and stop them there: none begins another one."""
    enough = Inbox.enough

    async def held(self, agreed):
        while self.session.round_index >= last:
            await asyncio.sleep(0.01)
        return await enough(self, agreed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inbox, "enough", held)
        tasks = [peers.start(name) for name in peers.names]
        await peers.until(lambda: all(node.session.round_index >= last for node in peers.nodes.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lossy(folder, rng, terms=TERMS):
    """Peers that miss messages, so that states depend on what comes beside messages, too."""
    X, y, parts = shared_out(rng)
    trace = LossTrace(frozenset({(3, 1, 0), (6, 0, 1), (6, 2, 1)}))
    return LosingPeers(folder, terms, DENSE, [(X.iloc[part], y[part]) for part in parts], trace)


@pytest.mark.parametrize("strategy", ["exact", "crc"])
def test_a_run_that_is_stopped_again_and_again_ends_as_one_that_is_not(strategy, tmp_path, rng):
    terms = Terms("test", "label", strategy=strategy, rounds=12, limits=Limits(deadline=3600.0))
    shared = shared_out(rng)
    whole = np.stack(asyncio.run(peers_of(made(tmp_path / "whole"), terms, DENSE, shared).all()))
    peers, found = peers_of(made(tmp_path / "stopped"), terms, DENSE, shared), set()
    for last in (2, 3, 7, 9):
        asyncio.run(until_round(peers, last))
        with opened(peers.folder) as store:
            found.add(store.last()[0])
            assert [turn for turn, _ in store.inputs(store.last()[0])] == list(
                range(store.last()[0] + 1, store.round() + 1)
            )
    stopped = np.stack(asyncio.run(peers.all()))
    np.testing.assert_array_equal(stopped, whole)
    assert found == {0, 5}
    assert np.abs(stopped - simulated(shared, DENSE, terms).stats).max() <= 1e-9
    with opened(peers.folder) as store:  # the last one is whole: other programs read it
        assert store.last()[0] == 12 and not store._all("SELECT * FROM received")


def test_what_came_beside_messages_and_what_did_not_come_is_learned_again(tmp_path, rng):
    """After losses on one side of a link: the corrections of both ends are those of a run that was not stopped."""
    seed = rng.integers(2**32)
    peers = lossy(made(tmp_path / "whole"), np.random.default_rng(seed))
    whole = np.stack(asyncio.run(peers.all()))
    stopped = lossy(made(tmp_path / "stopped"), np.random.default_rng(seed))
    asyncio.run(until_round(stopped, 9))
    with opened(stopped.folder, "p1") as store:
        beside = [
            attached for _, inputs in store.inputs(store.last()[0]) for attached in inputs.attached.values()
        ]
        assert any(attached.correction is not None for attached in beside)
    np.testing.assert_allclose(np.stack(asyncio.run(stopped.all())), whole, atol=1e-9)


def test_states_that_follow_from_more_than_messages_are_stored_whole(tmp_path, rng, monkeypatch):
    """Here from what a guard saw in earlier rounds, too."""
    records, add_round = [], Store.add_round

    def noting(store, record):
        records.append(record)
        return add_round(store, record)

    monkeypatch.setattr(Store, "add_round", noting)
    terms = Terms("test", "label", strategy="exact", rounds=6, robust=Robust("clip", guard=True))
    asyncio.run(peers_of(tmp_path, terms, DENSE, shared_out(rng, missing=False)).all())
    assert records and all(record.inputs is None for record in records)


def test_small_states_are_stored_whole(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(learner, "LARGE", 1 << 20)
    peers = peers_of(tmp_path, TERMS, DENSE, shared_out(rng))
    asyncio.run(until_round(peers, 3))
    with opened(tmp_path) as store:
        assert store.last()[0] == store.round()


def test_rounds_that_give_another_message_than_was_stored_are_refused(tmp_path, rng):
    """As after a change of the program: what was sent must not be contradicted."""
    peers = peers_of(tmp_path, TERMS, DENSE, shared_out(rng))
    asyncio.run(until_round(peers, 3))
    with opened(tmp_path) as store:
        digest, body = store._one("SELECT digest, body FROM received JOIN arrays USING (digest)")
        other = 1.001 * np.frombuffer(body, dtype="<f8")
        new = stores.hashlib.sha256(other.tobytes()).digest()
        store._all("INSERT INTO arrays VALUES (?, ?)", new, other.tobytes())
        store._all("UPDATE received SET digest = ? WHERE digest = ?", new, digest)

    async def again():
        await peers.start("p0")

    with pytest.raises(NeedsPerson, match="do not give the message that was stored"):
        asyncio.run(again())


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE rounds SET state = \'{"gone": ["p1"]}\' WHERE turn = 2',
        "UPDATE arrays SET body = zeroblob(length(body)) WHERE digest IN (SELECT digest FROM received)",
        "DELETE FROM arrays WHERE digest IN (SELECT digest FROM received WHERE turn = 2)",
    ],
)
def test_damage_to_what_a_state_follows_from_is_noticed(damage, tmp_path, rng):
    peers = peers_of(tmp_path, TERMS, DENSE, shared_out(rng))
    asyncio.run(until_round(peers, 3))
    with contextlib.closing(sqlite3.connect(tmp_path / "p0" / "state.sqlite")) as db, db:
        assert db.execute(damage).rowcount
    with opened(tmp_path) as store, pytest.raises(PeerError, match="damaged"):
        list(store.inputs(store.last()[0]))


def arrays_in_use(store):
    """The digests of arrays that the whole state, kept messages and inputs have."""
    used = set(stores._digests(stores.json.loads(store._one(stores.WHOLE)[1])))
    for table in ("outbox", "received"):
        used.update(digest for row in store._all(f"SELECT digest, correction FROM {table}") for digest in row)
    return used - {None}


def test_arrays_are_kept_as_long_as_a_state_follows_from_them(tmp_path, rng):
    """Also where a neighbour's message, a correction and an own one have the same bytes, and after a failed round."""
    same = np.ones((2, 3))
    with contextlib.closing(Store(tmp_path / "state.sqlite")) as store:
        for turn in range(stores.KEPT + 8):
            heard = {"b": rng.normal(size=(2, 3)), "c": same if turn % 2 else rng.normal(size=(2, 3))}
            digests = {name: stores.hashlib.sha256(array.tobytes()).digest() for name, array in heard.items()}
            beside = {"b": Attachment(2, same), "c": Attachment(1)}
            record = RoundRecord(
                turn, (rng.normal(size=(2, 3)), same), {"b": same if turn % 3 else heard["b"]},
                inputs=Inputs(heard, digests, beside, ("d",)),
            )  # fmt: skip
            with pytest.raises(sqlite3.IntegrityError):
                store.add_round(record._replace(left_out=("d", "d")))
            store.add_round(record)
            assert {digest for (digest,) in store._all("SELECT digest FROM arrays")} == arrays_in_use(store)
            assert store.last()[0] == turn - turn % 5 and store.stored() == turn + 1
            for _, inputs in store.inputs(store.last()[0]):
                assert inputs.gone == ["d"] and inputs.attached["b"].missed == 2
                assert inputs.attached["b"].correction.tobytes() == same.tobytes()
            if turn % 5:
                assert inputs.messages["b"].tobytes() == heard["b"].tobytes()
            if turn % 7 == 6:
                store.close()
                store.__init__(tmp_path / "state.sqlite")
