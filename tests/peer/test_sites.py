"""Real peers that evaluate their final models at all sites: the pooled figures, anonymity, lies and failures."""

import asyncio
import json
import re

import msgspec
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score

import peerbayes as pb
from peerbayes.errors import RefusedMessage
from peerbayes.learning.site_scores import SiteScores, vector_size
from peerbayes.peer.agreement import masked_sums
from peerbayes.peer.agreement.masked_sums import Statements, masked, partners
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.learning import selecting, sites
from peerbayes.peer.learning.held_out import held_out, split_key
from peerbayes.peer.learning.masks import new_key, public_key
from peerbayes.peer.learning.sites import KEPT, Statement, summed_sites, table_of
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.models.history import History
from peerbayes.peer.state.store import Store
from peerbayes.simulation.population import Assignment
from peerbayes.simulation.settings import SimulationSettings
from shared.commands import peerbayes
from shared.peers_in_memory import DENSE, SOON, Peers, ended, network, shared_out, table

pytestmark = pytest.mark.usefixtures("impatient")

SHARE = 0.4


def split_peers(folder, terms, graph, shared):
    """Peers, their held-out rows, and the simulation with the same rows held out."""
    X, y, parts = shared
    arguments = {
        "peers": len(parts), "partition": parts, "topology": graph, "family": terms.family, "strategy": terms.strategy,
        "start": terms.start, "rounds": terms.rounds, "references": False, "evaluate_every": 0, "test": (X, y),
        "hold_out": SHARE, "select": terms.select, "patience": terms.patience,
        "start_rounds": 0 if terms.start == "uniform" else 300,
    }  # fmt: skip
    assigned = Assignment.of(X, y, SimulationSettings(arguments)).holding_out(SHARE, 0)
    peers = Peers(folder, terms, graph, [(X.iloc[part], y[part]) for part in assigned.parts])
    away = {name: (X.iloc[part], y[part]) for name, part in zip(peers.names, assigned.held_out, strict=True)}
    return peers, away, arguments


def evaluated(peers, away, shares=None, without=()):
    """The tables of all peers after their runs, which share their figures as named, or as `shares` says."""
    shares = shares or {}

    async def main():
        tasks = [
            peers.start(
                name,
                away=None if name in without else away[name],
                share_figures=shares.get(name, "named"),
            )
            for name in peers.names
        ]
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    asyncio.run(main())
    return [kept(peers, name) for name in peers.names]


def kept(peers, name):
    store = Store(peers.folder / name / "state.sqlite", readonly=True)
    try:
        return json.loads(store.value(KEPT))
    finally:
        store.close()


def pooled(peers, away, names=None):
    """Posteriors by each site's own model of its own held-out rows, and their labels, pooled."""
    posteriors, labels = [], []
    for name in names or peers.names:
        model = pb.load(peers.folder / name / "model.peerbayes")
        posteriors.append(model.predict_proba(away[name][0]))
        labels.append(np.searchsorted(model.classes_, away[name][1]))
    return np.concatenate(posteriors), np.concatenate(labels)


def equal_to_pooled(figures, posterior, labels):
    assert figures["rows"] == labels.size
    assert figures["error"] == pytest.approx((posterior.argmax(axis=1) != labels).mean(), abs=1e-9)
    assert figures["log_loss"] == pytest.approx(log_loss(labels, posterior), abs=1e-9)


TERMS = Terms("test", "label", strategy="exact", rounds=12, evaluation="sites")


@pytest.mark.parametrize("select", ["last", "held-out"])
def test_figures_of_all_sites_are_those_of_the_pooled_rows_and_of_the_simulator(tmp_path, rng, select):
    terms = Terms("test", "label", strategy="exact", start="ml", rounds=16, select=select, evaluation="sites")
    shared = shared_out(rng)
    peers, away, arguments = split_peers(tmp_path, terms, DENSE, shared)
    tables = evaluated(peers, away)
    assert all(found == tables[0] for found in tables) and tables[0]["notes"] == []
    run = pb.simulate(shared[0], shared[1], **arguments).sites()
    posterior, labels = pooled(peers, away)
    together = tables[0]["all"]
    equal_to_pooled(together, posterior, labels)
    exact = roc_auc_score(labels, posterior, multi_class="ovr")
    assert together["auc_low"] - 1e-12 <= exact <= together["auc_high"] + 1e-12
    assert abs(together["auc"] - exact) <= (together["auc_high"] - together["auc_low"]) / 2 + 1e-12
    for place, (name, site) in enumerate(zip(peers.names, tables[0]["sites"], strict=True)):
        own, own_labels = pooled(peers, away, [name])
        assert site["name"] == name and site["rows"] == own_labels.size
        assert site["error"] == pytest.approx((own.argmax(axis=1) != own_labels).mean(), abs=1e-9)
        wrong = -np.log(own[np.arange(own_labels.size), own_labels]).mean()
        assert site["log_loss"] == pytest.approx(wrong, abs=1e-9)
        for figure in ("error", "log_loss", "brier", "calibration"):
            assert site[figure] == pytest.approx(run.loc[place, figure], abs=1e-9), figure
    for figure in ("rows", "error", "log_loss", "brier", "calibration", "auc", "auc_low", "auc_high"):
        assert together[figure] == pytest.approx(run.loc["all", figure], abs=1e-9), figure


def test_the_figures_are_in_the_version_and_its_card(tmp_path, rng):
    peers, away, _ = split_peers(tmp_path, TERMS, DENSE, shared_out(rng))
    tables = evaluated(peers, away)
    version = History(tmp_path / "p1").version(1)
    assert version.figures["sites"] == tables[1]
    card = (tmp_path / "p1" / "models" / "1" / "card.md").read_text()
    assert "all together" in card and "p4" in card
    assert (tmp_path / "p1" / "models" / "1" / "card.html").read_text().startswith("<!doctype html>")


def test_anonymous_sites_are_in_the_sums_of_all_and_nowhere_else(tmp_path, rng):
    shared = shared_out(rng)
    hidden = dict.fromkeys(("p1", "p3", "p4"), "anonymous")
    peers, away, _ = split_peers(tmp_path, TERMS, DENSE, shared)
    found = evaluated(peers, away, hidden)[2]
    assert [site["shares"] for site in found["sites"]] == [
        "named",
        "anonymous",
        "named",
        "anonymous",
        "anonymous",
    ]
    for name in hidden:
        [site] = [site for site in found["sites"] if site["name"] == name]
        assert set(site) == {"name", "shares"}
    equal_to_pooled(found["all"], *pooled(peers, away))
    assert found["anonymous"]["sites"] == 3
    equal_to_pooled(found["anonymous"], *pooled(peers, away, list(hidden)))


@pytest.mark.parametrize("hidden", [("p1",), ("p1", "p3")])
def test_too_few_anonymous_sites_are_left_out_and_everybody_says_so(tmp_path, rng, hidden):
    """The difference between all and those with a name would be the figure of one."""
    peers, away, _ = split_peers(tmp_path, TERMS, DENSE, shared_out(rng))
    for found in evaluated(peers, away, dict.fromkeys(hidden, "anonymous")):
        assert found["anonymous"] is None
        equal_to_pooled(
            found["all"], *pooled(peers, away, [name for name in peers.names if name not in hidden])
        )
        assert any("anonymous, and left out" in note for note in found["notes"])


def test_sites_without_held_out_rows_or_that_share_nothing_are_in_the_table_without_figures(tmp_path, rng):
    peers, away, _ = split_peers(tmp_path, TERMS, DENSE, shared_out(rng))
    [found, *_] = evaluated(peers, away, {"p2": "none"}, without=("p0",))
    shares = {site["name"]: site["shares"] for site in found["sites"]}
    assert shares == {"p0": "no rows", "p1": "named", "p2": "none", "p3": "named", "p4": "named"}
    equal_to_pooled(found["all"], *pooled(peers, away, ["p1", "p3", "p4"]))
    cards = {name: (tmp_path / name / "models/1/card.md").read_text() for name in peers.names}
    assert [name for name, card in cards.items() if "This site had no held" in card] == ["p0"]
    assert all("Each site but p0 tested its own final model" in card for card in cards.values())


def test_two_sites_have_their_figures_and_no_auc_of_both(tmp_path, rng):
    """Counts of scores of two would tell each the other's."""
    X, y = table(rng)
    shared = X, y, np.array_split(rng.permutation(len(y)), 2)
    peers, away, _ = split_peers(tmp_path, TERMS, nx.path_graph(2), shared)
    [found, _] = evaluated(peers, away)
    equal_to_pooled(found["all"], *pooled(peers, away))
    assert found["all"]["auc"] is None and all(site["auc"] is not None for site in found["sites"])
    assert any("the AUC of all sites is not known" in note for note in found["notes"])


def test_without_evaluation_nothing_is_asked_and_nothing_kept(tmp_path, rng):
    terms = Terms("test", "label", strategy="exact", rounds=4)
    peers, away, _ = split_peers(tmp_path, terms, DENSE, shared_out(rng))

    async def main():
        await asyncio.gather(*(peers.start(name, away=away[name]) for name in peers.names))

    asyncio.run(main())
    store = Store(tmp_path / "p0" / "state.sqlite", readonly=True)
    assert store.value(KEPT) is None and store.sums("sites") == {}
    store.close()
    assert History(tmp_path / "p0").version(1).figures == {}


# --- who vanishes, and who starts again


def test_where_a_peer_vanishes_nobody_waits_for_ever_and_everybody_says_why(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(selecting, "DEADLINES", 150)
    X, y = table(rng)
    shared = X, y, np.array_split(rng.permutation(len(y)), 4)
    terms = Terms(
        "test",
        "label",
        strategy="exact",
        rounds=12,
        evaluation="sites",
        limits=Limits(deadline=0.2, quorum=0.1),
    )
    peers, away, _ = split_peers(tmp_path, terms, nx.star_graph(3), shared)

    async def main():
        tasks = {name: peers.start(name, away=away[name], linger=0.2) for name in peers.names}
        await peers.until(lambda: peers.nodes["p2"].session.round_index >= 6)
        await ended(tasks.pop("p2"))
        monkeypatch.setattr(selecting, "DEADLINES", 4)
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    for name in ("p0", "p1", "p3"):
        found = kept(peers, name)
        assert found["all"] is None and [site["name"] for site in found["sites"]] == [name]
        [note] = found["notes"]
        assert "the figures of all sites are not known" in note
        assert [facts["note"] for what, facts in peers.told[name] if what == "sites"] == [note]
        assert History(tmp_path / name).version(1).figures["sites"] == found


def test_a_peer_that_is_stopped_while_sites_are_evaluated_goes_on_with_the_same_words(
    tmp_path, rng, monkeypatch
):
    """Under one mask only one set of words may leave: a second start sends those of the first."""
    peers, away, _ = split_peers(tmp_path, TERMS, DENSE, shared_out(rng))
    sent, original = {}, sites.masked_sum

    async def noting(name, words, *rest):
        sent.setdefault(name, []).append(words.copy())
        return await original(name, words, *rest)

    monkeypatch.setattr(sites, "masked_sum", noting)

    async def main():
        tasks = {name: peers.start(name, away=away[name]) for name in peers.names if name != "p4"}
        tasks["p4"] = peers.start("p4", away=away["p4"])
        await peers.until(lambda: "p3" in sent)
        await ended(tasks["p3"])
        # Other rows to test on would give other words; what was kept counts.
        tasks["p3"] = peers.start("p3", away=away["p2"])
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    assert len(sent["p3"]) >= 1 and all(np.array_equal(words, sent["p3"][0]) for words in sent["p3"])
    tables = [kept(peers, name) for name in peers.names]
    assert all(found == tables[0] for found in tables)
    equal_to_pooled(tables[0]["all"], *pooled(peers, away))


# --- masks


def test_masks_cancel_in_the_sum_of_all_and_in_no_part_of_it(rng):
    for count in (3, 5, 70, 80):
        roster = network(TERMS, nx.path_graph(count))
        names = [member.name for member in roster.members]
        private = {name: new_key() for name in names}
        keys = {name: public_key(key) for name, key in private.items()}
        words = {name: rng.integers(0, 1 << 40, 6) for name in names}
        hidden = {name: masked(words[name], name, private[name], keys, roster, "test") for name in names}
        np.testing.assert_array_equal(sum(hidden.values()), sum(words.values()))
        for part in (names[:1], names[:-1], names[1:2], names[: count // 2]):
            difference = sum(hidden[name] for name in part) - sum(words[name] for name in part)
            assert (np.abs(difference.astype(np.float64)) > 2.0**40).all()


def test_masks_differ_between_sums_and_sets_of_sites():
    roster = network(TERMS, nx.path_graph(4))
    private = {member.name: new_key() for member in roster.members}
    keys = {name: public_key(key) for name, key in private.items()}
    fewer = {name: key for name, key in keys.items() if name != "p3"}
    zeros = np.zeros(4, dtype=np.int64)
    masks = [
        masked(zeros, "p0", private["p0"], *rest)
        for rest in ((keys, roster, "one"), (keys, roster, "two"), (fewer, roster, "one"))
    ]
    assert len({mask.tobytes() for mask in masks}) == 3


def test_every_pair_in_the_circle_masks_against_each_other():
    for count in (3, 64, 65, 66, 200):
        names = [f"s{place}" for place in range(count)]
        signs = {(name, other): sign for name in names for other, sign in partners(names, name)}
        assert all(signs[other, name] == -sign for (name, other), sign in signs.items())
        assert all(len(partners(names, name)) == min(count - 1, 2 * masked_sums.REACH) for name in names)


# --- a hostile member


def rows_of(rng):
    """Log joints and labels of 200 rows of three classes."""
    labels = rng.integers(0, 3, 200)
    return rng.normal(size=(200, 3)) + 2.0 * np.eye(3)[labels], labels


def said(**more):
    figures = {"shares": "named", "key": public_key(new_key()), "rows": 50, "wrong": 10, "loss": 30.0, "brier": 12.0,
               "calibration": 0.1, "auc": 0.8}  # fmt: skip
    return Statement(**(figures | more))


@pytest.mark.parametrize(
    "lie",
    [
        {"rows": -1}, {"rows": 1 << 60}, {"wrong": 51}, {"wrong": -1}, {"unknown": -1}, {"loss": -1.0}, {"loss": 1e300},
        {"brier": 101.0}, {"brier": -0.1}, {"auc": 1.5}, {"auc": -0.1}, {"calibration": 2.0}, {"key": b""},
        {"key": bytes(32)}, {"key": b"x" * 31}, {"shares": "otherwise"}, {"loss": float("nan")}, {"auc": float("inf")},
    ],
)  # fmt: skip
def test_statements_that_no_rows_have_are_left_out(lie):
    honest = msgspec.msgpack.encode(said())
    assert Statement.parse(honest) == msgspec.msgpack.decode(honest, type=Statement)
    assert Statement.parse(msgspec.msgpack.encode(said(**lie))) is None


@pytest.mark.parametrize(
    "content", [None, b"", b"\xc1", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode(["named"] * 20)]
)
def test_statements_that_cannot_be_read_are_left_out(content):
    assert Statement.parse(content) is None


def test_a_statement_that_nobody_vouched_for_ends_the_sums_and_not_the_table(rng):
    """Else whoever passes statements on could leave out all but its friends', and see what is left of the sum."""
    table = {"a": said(), "b": None, **{name: said(shares="anonymous") for name in "cdefg"}}
    assert len(summed_sites(table)[0]) == 6  # b lied itself, and the others hide each other
    keys, notes = summed_sites(table, ["b"])
    assert keys == {} and "nothing came of b that it vouched for" in notes[0]
    found = table_of(table, keys, None, 2, notes)
    assert found["all"]["rows"] == 50 and found["anonymous"] is None and found["all"]["auc"] is None


def test_sums_beyond_64_bits_are_refused(rng):
    """Counts that are right modulo 2⁶⁴ only."""
    words = SiteScores.of(*rows_of(rng)).words
    start = vector_size(3) - 3 * 2 * 2048
    with np.errstate(over="ignore"):
        words[start : start + 4] += 1 << 62
    with pytest.raises(ValueError, match="are counted"):
        SiteScores.of_words(words, 3)


def test_a_false_statement_is_left_out_by_name(rng):
    table = {"a": said(), "b": None, "c": said(), "d": said()}
    keys, notes = summed_sites(table)
    assert list(keys) == ["a", "c", "d"] and "b" in notes[0]
    found = table_of(table, keys, None, 2, notes)
    assert found["sites"][1] == {"name": "b", "shares": "false"}
    assert found["all"]["rows"] == 150


@pytest.mark.parametrize("place", [0, 2, 3, 70, -1])
def test_sums_that_somebody_falsified_are_left_out_and_statements_stay(rng, place):
    """One word more, or any other number: it is not the sum of what sites told, or of no rows."""
    table = {name: said() for name in "abc"}
    keys, notes = summed_sites(table)
    sums = np.zeros(vector_size(2), dtype=np.int64)
    sums[place] += 1
    found = table_of(table, keys, sums, 2, notes)
    assert found["all"]["rows"] == 150 and found["all"]["auc"] is None
    assert any("cannot be right" in note for note in found["notes"])


def test_a_member_in_the_middle_can_neither_change_nor_add_nor_repeat_a_statement(tmp_path, rng, monkeypatch):
    """p0 is the centre of a star. What it changes of p2 is not vouched for; everybody sees that and goes on."""
    X, y = table(rng)
    shared = X, y, np.array_split(rng.permutation(len(y)), 5)
    peers, away, _ = split_peers(tmp_path, TERMS, nx.star_graph(4), shared)
    original = Statements.pack

    def falsified(self):
        changed = dict(self.by_member)
        if len(changed) > 1 and "p2" in changed:
            content, proof = changed["p2"]
            said = msgspec.msgpack.decode(content, type=Statement)
            changed["p2"] = msgspec.msgpack.encode(msgspec.structs.replace(said, wrong=0)), proof
        return original(Statements(changed))

    def vouch(self, content):
        return f"{self.name} {hash(content)}".encode()

    def vouched(self, name, content, proof):
        if proof != f"{name} {hash(content)}".encode():
            raise RefusedMessage("other certificate", f"{name} did not say so")

    monkeypatch.setattr(Statements, "pack", falsified)
    monkeypatch.setattr("shared.memory_transport.InMemory.vouch", vouch)
    monkeypatch.setattr("shared.memory_transport.InMemory.vouched", vouched)
    monkeypatch.setattr(selecting, "DEADLINES", 0.05)
    tables = dict(zip(peers.names, evaluated(peers, away), strict=True))
    for name in ("p1", "p3", "p4"):
        shares = {site["name"]: site["shares"] for site in tables[name]["sites"]}
        assert shares["p2"] == "false" and shares["p0"] == "named"
        assert any("p2" in note for note in tables[name]["notes"])
    repeated = Statements({"p1": (b"", b"")})
    with pytest.raises(RefusedMessage, match="two statements of 'p1'"):
        repeated + repeated


def test_too_many_bytes_of_statements_are_refused():
    with pytest.raises(RefusedMessage, match="at most"):
        Statements.parse(bytes(masked_sums.LARGEST + 1))


# --- by its reader: processes, files and the command


@pytest.mark.links
@pytest.mark.long
def test_processes_have_the_figures_of_the_pooled_held_out_rows_and_a_card(tmp_path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    table = X.iloc[:, :8].assign(diagnosis=np.array(["malignant", "benign"])[y])
    parts = [table.iloc[part] for part in np.array_split(np.random.default_rng(0).permutation(len(table)), 4)]
    terms = Terms("hospitals", "diagnosis", strategy="exact", rounds=20, figures="warn", evaluation="sites")
    network = Loopback.create(tmp_path, terms, parts, [(0, 1), (1, 2), (2, 3), (3, 0)])
    for home in network.homes.values():
        text = home.settings_path.read_text()
        home.settings_path.write_text(re.sub(r"(?m)^#? ?hold_out = .*$", "", text) + "\nhold_out = 0.4\n")
    try:
        for name in network.homes:
            network.start(name)
        network.wait()
    finally:
        network.stop()
    posteriors, labels = [], []
    for home in network.homes.values():
        rows = pd.read_csv(home.folder / "rows.csv")
        frame, own = rows.drop(columns="diagnosis"), rows["diagnosis"].to_numpy()
        _, away = held_out(frame, own, 0.4, split_key(home.folder))
        model = pb.load(home.model_path)
        posteriors.append(model.predict_proba(away[0]))
        labels.append(np.searchsorted(model.classes_, away[1]))
    posterior, pooled_labels = np.concatenate(posteriors), np.concatenate(labels)
    for home in network.homes.values():
        done = peerbayes("peer", "figures", home.folder, "--format", "json", code=0)
        found = json.loads(done.stdout)["sites"]
        together = found["all"]
        equal_to_pooled(together, posterior, pooled_labels)
        exact = roc_auc_score(pooled_labels, posterior[:, 1])
        assert together["auc_low"] - 1e-12 <= exact <= together["auc_high"] + 1e-12
        assert abs(together["auc"] - exact) <= (together["auc_high"] - together["auc_low"]) / 2 + 1e-12
        assert together["auc_high"] - together["auc_low"] < 0.003
        for site, own, own_labels in zip(found["sites"], posteriors, labels, strict=True):
            assert site["rows"] == own_labels.size
            assert site["error"] == pytest.approx((own.argmax(axis=1) != own_labels).mean(), abs=1e-9)
            assert site["auc"] == pytest.approx(roc_auc_score(own_labels, own[:, 1]), abs=1e-9)
        text = peerbayes("peer", "figures", home.folder, code=0).stdout
        assert "all together" in text and all(other in text for other in network.homes)
        assert "AUC of all sites together lies between" in text
        assert "peerbayes peer figures" in peerbayes("peer", "status", home.folder).stdout
        shown = peerbayes("model", "show", 1, "--folder", home.folder, code=0).stdout
        assert "all together" in shown and "card.html" in shown
        card = (home.folder / "models" / "1" / "card.md").read_text()
        assert "all together" in card and f"{len(table) - pooled_labels.size}" in card
