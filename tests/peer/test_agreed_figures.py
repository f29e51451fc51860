"""Real peers that agree on figures of their tables before round 1: pooled figures, findings, noise, lies."""

import asyncio
import contextlib
import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.peer.agreement import agreed_figures, masked_sums
from peerbayes.peer.agreement.masked_sums import Statements
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Integers
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.state.ledger import epsilon_of
from peerbayes.peer.state.store import Store
from peerbayes.privacy.scheme import figures_cost
from shared.commands import HANG, peerbayes
from shared.peers_in_memory import DENSE, Peers, ended, refused_everywhere
from shared.private_agreements import X, Y
from shared.private_agreements import terms as private_terms


def tables(rng, count=5, **changed):
    """Alike tables; those of `changed` ("p1") differ: a function of the frame."""
    made = []
    for place in range(count):
        rows = 60 + 10 * place
        labels = rng.choice(["no", "yes"], rows)
        frame = pd.DataFrame(
            {
                "weight": rng.normal(75.0, 12.0, rows) + 9.0 * (labels == "yes"),
                "length": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(170.0, 9.0, rows)),
                "sex": rng.choice(["female", "male"], rows),
            }
        )
        if change := changed.get(f"p{place}"):
            change(frame)
        made.append((frame, labels))
    return made


def empty(frame):
    frame["length"] = np.nan


def coded(frame):
    frame["sex"] = frame["sex"].map({"female": "f", "male": "m"})


def terms_with(figures, **more):
    return Terms("test", "label", strategy="exact", rounds=4, figures=figures, **more)


def kept(peers, name):
    with contextlib.closing(Store(peers.folder / name / "state.sqlite", readonly=True)) as store:
        return json.loads(store.value(agreed_figures.KEPT))


def test_all_have_the_figures_of_the_pooled_rows_and_each_its_own(tmp_path, rng):
    shared = tables(rng)
    peers = Peers(tmp_path, terms_with("warn"), DENSE, shared)
    asyncio.run(peers.all())
    found = {name: kept(peers, name) for name in peers.names}
    agreed, pooled = found["p0"]["agreed"], pd.concat([frame for frame, _ in shared])
    assert all(one["agreed"] == agreed for one in found.values())
    assert (agreed["sites"], agreed["rows"], agreed["noise"]) == (5, len(pooled), 0.0)
    assert (
        dict(agreed["classes"]) == pd.Series(np.concatenate([y for _, y in shared])).value_counts().to_dict()
    )
    weight, length, sex = agreed["columns"]
    for column, values in ((weight, pooled["weight"]), (length, pooled["length"].dropna())):
        assert column["mean"] == pytest.approx(values.mean(), rel=1e-10)
        assert column["sd"] == pytest.approx(values.std(ddof=0), rel=1e-8)
    assert length["missing"] == pytest.approx(pooled["length"].isna().mean(), abs=1e-12)
    assert dict(sex["most_frequent"]) == pooled["sex"].value_counts().to_dict()
    for name, (frame, _) in zip(peers.names, shared, strict=True):
        assert found[name]["own"]["rows"] == len(frame)
        assert found[name]["own"]["columns"][0]["mean"] == pytest.approx(frame["weight"].mean(), rel=1e-10)
        assert found[name]["findings"] == [] and found[name]["problem"] == ""


def test_what_leaves_a_site_tells_nothing_of_it(tmp_path, rng, monkeypatch):
    """The words under a mask are no words of a table; those of its figures and of its finding alike."""
    sent = {}
    original = masked_sums.plain_sum

    async def noting(words, phase, total):
        sent.setdefault(phase, []).append(words.copy())
        return await original(words, phase, total)

    monkeypatch.setattr(masked_sums, "plain_sum", noting)
    peers = Peers(tmp_path, terms_with("stop"), DENSE, tables(rng))
    asyncio.run(peers.all())
    assert len(sent["figures"]) == len(sent["findings"]) == 5
    for words in (*sent["figures"], *sent["findings"]):
        assert np.abs(words.astype(np.float64)).max() > 2.0**40
    assert sum(sent["findings"])[0] == 0
    assert kept(peers, "p0")["sites_with_findings"] == 0


def test_a_finding_is_told_to_its_site_alone(tmp_path, rng):
    peers = Peers(tmp_path, terms_with("warn"), DENSE, tables(rng, p1=empty, p3=coded))
    asyncio.run(peers.all())
    for name in peers.names:
        kinds = [(one["kind"], one["column"]) for one in kept(peers, name)["findings"] if one["stops"]]
        assert kinds == {"p1": [("empty", "length")], "p3": [("codes", "sex")]}.get(name, [])
        told = [facts["sentence"] for what, facts in peers.told[name] if what == "finding"]
        assert len(told) == len(kept(peers, name)["findings"])
    assert all(peers.rounds(name)[-1] == 4 for name in peers.names)  # they are warned, and go on


def test_stop_means_that_nobody_begins_and_that_nobody_is_named(tmp_path, rng):
    peers = Peers(tmp_path, terms_with("stop"), DENSE, tables(rng, p1=empty, p3=coded))
    said = dict(zip(peers.names, refused_everywhere(peers, PeerError), strict=True))
    for name, sentence in said.items():
        assert "2 sites found what stops a run" in sentence and "Nothing was learned yet" in sentence
        own = {"p1": "column length: no value here", "p3": "column sex:"}.get(name)
        assert (own or "nothing of it here, and who it was is not told") in sentence
        assert peers.history(name) == []
        assert not any(other in sentence for other in peers.names)


def test_two_sites_compare_themselves_with_each_other(tmp_path, rng):
    peers = Peers(tmp_path, terms_with("warn"), nx.path_graph(2), tables(rng, 2, p1=coded))
    asyncio.run(peers.all())
    for name in peers.names:
        assert kept(peers, name)["agreed"]["sites"] == 2
        assert [one["kind"] for one in kept(peers, name)["findings"]] == ["codes"]


# --- with an epsilon


def private_peers(folder, **more):
    folder.mkdir(exist_ok=True)
    splits = np.array_split(np.random.default_rng(1).permutation(len(Y)), 5)
    shared = [(X.iloc[split], Y[split]) for split in splits]
    return Peers(
        folder, private_terms(privacy={"epsilon": 8.0}, **more), nx.complete_graph(5), shared
    ), splits


def releases(peers, name):
    with contextlib.closing(Store(peers.folder / name / "state.sqlite", readonly=True)) as store:
        return {entry["name"]: entry["cost"] for entry in store.releases()}


@pytest.mark.parametrize("figures", ["warn", "stop"])
def test_with_an_epsilon_figures_have_noise_and_are_in_the_ledger(tmp_path, figures):
    peers, splits = private_peers(tmp_path, figures=figures)
    promise = peers.terms.privacy.promise
    assert not any(isinstance(one, BaseException) for one in asyncio.run(peers.all()))
    for name, split in zip(peers.names, splits, strict=True):
        costs = releases(peers, name)
        assert costs["figures"] == pytest.approx(figures_cost(promise))
        spent = epsilon_of([{"cost": cost} for cost in costs.values()], promise.delta)
        assert spent <= promise.epsilon * (1 + 1e-9)
        found = kept(peers, name)
        assert found["agreed"]["noise"] == pytest.approx(found["own"]["noise"] * 5**0.5)
        assert abs(found["agreed"]["rows"] - len(Y)) < 6 * found["agreed"]["noise"]
        assert found["own"]["rows"] != len(split)  # what it compares is what it released
        assert all(column["mean"] is None for column in found["agreed"]["columns"])


def test_figures_take_their_share_from_the_rounds(tmp_path):
    with_figures, _ = private_peers(tmp_path / "with", figures="warn")
    without, _ = private_peers(tmp_path / "without")
    for peers in (with_figures, without):
        asyncio.run(peers.all())
    spent = [releases(peers, "p0") for peers in (with_figures, without)]
    share = figures_cost(without.terms.privacy.promise)
    assert sum(spent[0].values()) == pytest.approx(sum(spent[1].values()))
    rounds = [sum(cost for name, cost in one.items() if name.startswith("round")) for one in spent]
    assert rounds[1] - rounds[0] == pytest.approx(share)


# --- a hostile member


@pytest.mark.parametrize(
    "lie",
    [lambda words: words * 0 - 1, lambda words: words * (1 << 50), lambda words: words + 1],
    ids=["negative", "huge", "one more"],
)
def test_a_false_part_spoils_the_figures_and_everybody_says_so(tmp_path, rng, monkeypatch, lie):
    original = masked_sums.masked

    def masked(words, name, *rest):
        return original(lie(words) if name == "p2" else words, name, *rest)

    monkeypatch.setattr(masked_sums, "masked", masked)
    peers = Peers(tmp_path, terms_with("warn"), DENSE, tables(rng))
    asyncio.run(peers.all())
    for name in peers.names:
        assert kept(peers, name)["agreed"] == {} and kept(peers, name)["findings"] == []
        assert "Somebody's part is false" in kept(peers, name)["problem"]
    assert all(peers.rounds(name)[-1] == 4 for name in peers.names)


def false_count(monkeypatch, count):
    """p2 adds another number than its own to the number of sites that found something."""
    monkeypatch.setattr(
        agreed_figures.AgreedFigures,
        "word_to_count",
        property(lambda self: np.array([count if self.own.rows == 80 else int(self.stops)], dtype=np.int64)),
    )


@pytest.mark.parametrize("count", [7, -3, 1 << 60])
def test_a_false_count_of_findings_stops_the_run_too(tmp_path, rng, monkeypatch, count):
    false_count(monkeypatch, count)
    for sentence in refused_everywhere(Peers(tmp_path, terms_with("stop"), DENSE, tables(rng)), PeerError):
        assert "how many sites found something cannot be right" in sentence


def test_who_found_something_does_not_begin_though_another_takes_it_back(tmp_path, rng, monkeypatch):
    false_count(monkeypatch, -1)
    peers = Peers(tmp_path, terms_with("stop"), DENSE, tables(rng, p1=empty))

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        done, _ = await asyncio.wait([tasks["p1"]], timeout=HANG)
        for task in tasks.values():
            await ended(task)
        return [task.exception() for task in done]

    [problem] = asyncio.run(main())
    assert "cannot be right: it is 0 of 5, and one is here" in str(problem)
    assert peers.history("p1") == []


def test_where_a_key_is_not_vouched_for_nothing_is_told(tmp_path, rng, monkeypatch):
    """p0 is the centre of a star, and changes p2's key on the way: nobody adds words under keys that another chose."""
    sent, original, summed = [], Statements.pack, masked_sums.plain_sum

    def falsified(self):
        changed = dict(self.by_member)
        if len(changed) > 1 and "p2" in changed:
            changed["p2"] = (b"\x09" + bytes(31), changed["p2"][1])
        return original(Statements(changed))

    async def noting(words, phase, total):
        sent.append(words)
        return await summed(words, phase, total)

    def vouched(self, name, content, proof):
        if proof != f"{name} {hash(content)}".encode():
            raise RefusedMessage("other certificate", f"{name} did not say so")

    monkeypatch.setattr(Statements, "pack", falsified)
    monkeypatch.setattr(masked_sums, "plain_sum", noting)
    monkeypatch.setattr(
        "shared.memory_transport.InMemory.vouch",
        lambda self, content: f"{self.name} {hash(content)}".encode(),
    )
    monkeypatch.setattr("shared.memory_transport.InMemory.vouched", vouched)
    peers = Peers(tmp_path, terms_with("warn"), nx.star_graph(4), tables(rng))
    asyncio.run(peers.all())
    assert "the key of p2 is not vouched for" in kept(peers, "p1")["problem"]
    told = [words for words in sent if words.any()]
    # p2 itself, and p0 who lies, have all keys as they were; their words are under masks.
    assert all(np.abs(words.astype(np.float64)).max() > 2.0**40 for words in told)


def test_words_of_another_length_are_refused():
    parse = masked_sums._words_in(3)
    assert isinstance(parse(bytes(24)), Integers)
    for content in (b"", bytes(23), bytes(32)):
        with pytest.raises(RefusedMessage, match="instead of 24"):
            parse(content)


# --- by its reader: processes, files and commands


@pytest.fixture
def loopback(tmp_path, rng):
    made = [frame.assign(label=labels) for frame, labels in tables(rng, 3, p1=empty, p2=coded)]
    network = Loopback.create(tmp_path, terms_with("stop"), made, [(0, 1), (1, 2)])
    yield network
    network.stop()


@pytest.mark.links
def test_owners_see_before_round_1_what_is_wrong_with_their_data(loopback):
    for name in loopback.homes:
        loopback.start(name)
    for name, process in loopback.processes.items():
        process.wait(HANG)
        assert process.returncode == 2, loopback.homes[name].log_path.read_text()
    first, second, third = (peerbayes("peer", "figures", home.folder) for home in loopback.homes.values())
    assert first.returncode == 0 and "nothing found here" in first.stdout
    assert second.returncode == 3 and "column length: no value here" in second.stdout
    assert third.returncode == 3 and "column sex:" in third.stdout and "other codes?" in third.stdout
    for done in (first, second, third):
        assert "2 of all sites found what stops a run" in done.stdout
    report = json.loads(
        peerbayes("peer", "figures", loopback.homes["peer-2"].folder, "--format", "json").stdout
    )
    assert report["agreed"] == {"figures": "stop", "evaluation": "none"} and report["sites"] is None
    assert report["figures"]["agreed"]["rows"] == 60 + 70 + 80
    status = peerbayes("peer", "status", loopback.homes["peer-2"].folder).stdout
    assert "figures of the data: column length: no value here" in status
    assert "Nothing was learned yet" in loopback.homes["peer-1"].log_path.read_text()


def test_a_peer_that_has_not_run_has_no_figures_and_says_why(loopback):
    done = peerbayes("peer", "figures", loopback.homes["peer-1"].folder, code=0)
    assert "not agreed on yet" in done.stdout and 'evaluation = "none"' in done.stdout
