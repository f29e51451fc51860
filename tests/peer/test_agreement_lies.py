"""No liar before the first round: what members may report, who refuses what, and who hears of it."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from sklearn.datasets import load_breast_cancer

import peerbayes as pb
from peerbayes.data.schema import Schema
from peerbayes.errors import AgreementRefused, FalseReport, RefusedMessage, TermsError
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.robust import bounds as member_bounds
from peerbayes.learning.robust import bounds as moments
from peerbayes.learning.robust.bounds import (
    MemberBounds,
    Search,
    StatisticsBounds,
    key_of,
    lower_median,
    value_of,
)
from peerbayes.learning.robust.invariants import counted_columns, ties_of
from peerbayes.model import layout
from peerbayes.peer import tasks
from peerbayes.peer.agreement.terms import Robust, Terms
from peerbayes.peer.agreement.tree_sums import Objection, TreeSums, members_behind
from peerbayes.peer.agreement.votes import Ballots, Pass, Voter
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.status import status
from peerbayes.simulation.reports import Liars, links_of
from shared.commands import HANG, peerbayes
from shared.lying_peer import LIES, lying
from shared.memory_transport import Hub, InMemory, _mark
from shared.peers_in_memory import DENSE, SOON, ended, peers_of, refused_everywhere, shared_out
from shared.private_agreements import terms as private_terms

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

CANCER = load_breast_cancer(return_X_y=True)
CLIP = Robust("clip")
finite = st.floats(allow_nan=False, allow_infinity=False)


# --- medians by vote -----------------------------------------------------------------------------------


@given(finite, finite)
def test_keys_are_in_the_order_of_values(first, second):
    assert (key_of(first) <= key_of(second)) or second < first
    assert value_of(key_of(first)) <= first and key_of(value_of(key_of(first))) == key_of(first)
    assert key_of(-0.0) == key_of(0.0)
    if abs(first) > 1e-300:
        assert abs(value_of(key_of(first)) - first) <= 2**-35 * abs(first)


@given(st.lists(finite, min_size=1, max_size=30))
def test_votes_digit_by_digit_find_the_lower_median(values):
    keys, search = [key_of(value) for value in values], Search()
    for _ in range(4):
        digits = [digit for key in keys if (digit := search.vote(key)) is not None]
        search = search.narrowed({digit: digits.count(digit) for digit in set(digits)})
    assert search.value == lower_median(values) == value_of(sorted(keys)[(len(keys) - 1) // 2])


@given(st.lists(finite, min_size=3, max_size=20), finite)
def test_one_liar_moves_a_median_by_one_place(values, lie):
    ordered, place = sorted(values), (len(values) - 1) // 2
    moved = lower_median([*values, lie])
    assert value_of(key_of(ordered[max(0, place - 1)])) <= moved <= ordered[place + 1]


class Signing(InMemory):
    """In memory, with proofs that only their owner can make of only one content."""

    def vouch(self, content):
        return _mark(self.name, content)

    def vouched(self, name, content, proof):
        if proof != _mark(name, content):
            raise RefusedMessage("wrong signature", f"not by {name}")


def voters(roster):
    hub = Hub()
    signing = {member.name: Signing(hub, member.name) for member in roster.members}
    return {name: Voter(name, roster, each.vouch, each.vouched) for name, each in signing.items()}


def test_ballots_are_their_members_own(tmp_path, rng):
    peers = peers_of(tmp_path, Terms("test", "label", strategy="exact"), nx.path_graph(5), shared_out(rng))
    by, behind = voters(peers.roster), members_behind("p1", peers.roster)
    assert behind == {"p0": {"p0"}, "p2": {"p2", "p3", "p4"}}
    both = by["p2"].ballot("middle 1", {"": 3, "a": 5}) + by["p3"].ballot("middle 1", {"a": 5})
    part = both + by["p4"].ballot("middle 1", {"a": 7})
    assert part == Ballots.parse(part.pack()) and part.counted() == {"": {3: 1}, "a": {5: 2, 7: 1}}
    Pass(by["p1"], "middle 1", behind).check("p2", part, 3)
    forged = dict(part.by_member) | {
        "p3": (by["p2"].ballot("middle 1", {"a": 9}).by_member["p2"][0], part.by_member["p3"][1])
    }
    for false, phase, told in (
        (Ballots(forged), "middle 1", "the ballot of p3 is not signed by it"),
        (part, "middle 2", "the ballot of p2 is not signed by it"),  # of another pass
        (both, "middle 1", "other members than lie behind that link: 'p4'"),
        (part + by["p0"].ballot("middle 1", {}), "middle 1", "other members.*'p0'"),
        (
            both + by["p4"].ballot("middle 1", {"a": 4096}),
            "middle 1",
            "the ballot of p4 is for what is no digit",
        ),
        (
            both + by["p4"].ballot("middle 1", {"a": -1}),
            "middle 1",
            "the ballot of p4 is for what is no digit",
        ),
    ):
        with pytest.raises(FalseReport, match=told):
            Pass(by["p1"], phase, behind).check("p2", false, 3)
    with pytest.raises(RefusedMessage, match="two ballots of 'p2'"):
        part + by["p2"].ballot("middle 1", {})
    with pytest.raises(RefusedMessage, match="ballots that cannot be read"):
        Ballots.parse(b"\x93\x01\x02\x03")


def test_nobody_votes_where_it_has_no_vote(tmp_path, rng):
    """A liar that voted for another number before could otherwise move the median by one more place in every pass."""
    peers = peers_of(tmp_path, Terms("test", "label", strategy="exact"), nx.path_graph(5), shared_out(rng))
    by, behind = voters(peers.roster), members_behind("p1", peers.roster)
    second = Pass(by["p1"], "middle 2", behind, {"p0": {"a": 3, "b": 4}}, {"a": 3, "b": 5})
    second.check("p0", by["p0"].ballot("middle 2", {"a": 9}), 1)
    for digits in ({}, {"a": 9, "b": 9}, {"a": 9, "c": 9}):
        with pytest.raises(FalseReport, match=r"the ballot of p0 on .* is not of the number before"):
            second.check("p0", by["p0"].ballot("middle 2", digits), 1)


@pytest.mark.parametrize("phase", ["middle 1", "moments"])
def test_who_passes_ballots_on_cannot_change_them(phase, tmp_path, rng, monkeypatch):
    """p2, in the middle of a path, would vote for everybody behind it."""
    terms = Terms("test", "label", rounds=4, robust=CLIP, strategy="exact")
    peers = peers_of(tmp_path, terms, nx.path_graph(5), shared_out(rng))
    monkeypatch.setattr(peers.hub, "transport", lambda name: Signing(peers.hub, name))
    honest = TreeSums.behind

    def behind(self, caller, name):
        body = honest(self, caller, name)
        if self._name != "p2" or name != phase or not isinstance(body, bytes):
            return body
        high = msgspec.msgpack.encode({"": 4000, "height": 4000, "weight": 4000})
        return Ballots(
            {who: (high, proof) for who, (_, proof) in Ballots.parse(body).by_member.items()}
        ).pack()

    monkeypatch.setattr(TreeSums, "behind", behind)
    for told in refused_everywhere(peers, AgreementRefused):
        assert f"refused what p2 sent while the peers agreed, {phase}: the ballot of p" in told


# --- what members report beside the medians ------------------------------------------------------------


def reports_of(members, middle, deviation):
    limit = moments.limit_of(len(members))
    return Counter(moments.report_of(values, middle, deviation, limit) for values in members), limit


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_units_are_those_of_all_rows_where_nobody_is_far(count, seed):
    rng = np.random.default_rng(seed)
    members = rng.normal(50.0, 4.0, (count, 30)) + rng.uniform(-1.0, 1.0, (count, 1))
    middle = lower_median(map(member_bounds.mean_of, members))
    apart = [member_bounds.deviation_of(values, middle) for values in members]
    deviation = max(apart)  # so that nobody is beyond a limit
    reports, limit = reports_of(members, middle, deviation)
    location, scale = moments.units_of(reports, middle, deviation, limit)
    assert abs(location - members.mean()) <= limit / 31 * deviation / 2 + 1e-9
    assert abs(scale**2 - members.var()) <= (limit**2 / 63 / 2 + 0.1 * limit / 31) * deviation**2


@given(st.integers(5, 60), st.integers(0, 4095), st.integers(0, 2**32 - 1))
def test_one_report_moves_units_by_little_whatever_it_says(count, lie, seed):
    members = np.random.default_rng(seed).normal(50.0, 4.0, (count, 10))
    reports, limit = reports_of(members, 50.0, 4.0)
    location, scale = moments.units_of(reports, 50.0, 4.0, limit)
    moved, stretched = moments.units_of(reports + Counter([lie]), 50.0, 4.0, limit)
    assert abs(moved - location) <= 4.0 * 2 * limit / (count + 1)
    assert stretched**2 - scale**2 <= 4.0**2 * limit**2 / (count + 1) <= 4.0**2 / 3
    reports[moments.worst_report()] += 1
    worst = moments.units_of(reports, 50.0, 4.0, limit)
    assert stretched <= worst[1] + 4.0 * limit / math.sqrt(count)


def test_members_that_differ_widen_the_units():
    """Where each member has one class, the medians alone are the majority's."""
    members = np.random.default_rng(0).normal(0.0, 1.0, (50, 50))
    members[:5] = 10.0 + 3.0 * members[:5]
    reports, limit = reports_of(members, 0.0, 1.0)
    location, scale = moments.units_of(reports, 0.0, 1.0, limit)
    assert limit == 2.5 and 0.2 < location < 0.3 and 1.15 < scale < 1.3 < members.std()
    huge = moments.report_of(np.array([1.7e308, -1.7e308]), 0.0, 1e-300, limit)
    assert huge == moments.worst_report() == moments.report_of(np.array([9.0, -9.0]), 0.0, 1.0, limit)


# --- what members may report ---------------------------------------------------------------------------

BOUNDS = MemberBounds.of(100.0, {"age": 50.0, "none": 1.0}, {"age": 10.0})


def test_a_member_counts_for_four_middling_ones():
    assert BOUNDS.rows == 400 and BOUNDS.units == {"age": (50.0, 10.0), "none": (1.0, 0.0)}
    assert BOUNDS.counted(399) == 399 and BOUNDS.counted(4000) == 400 and BOUNDS.weight(4000) == 0.1
    assert BOUNDS.counted_values(4000, 4000) == 400 and BOUNDS.counted_values(3999, 4000) == 399
    assert BOUNDS.counted_values(90, 100) == 90
    BOUNDS.check_rows(800, 2)
    with pytest.raises(FalseReport, match="801 rows of 2 members; a member counts for at most 400"):
        BOUNDS.check_rows(801, 2)
    BOUNDS.check_total("age", 0.0)
    for total in (1e-300, -5.0, math.inf, math.nan):
        with pytest.raises(FalseReport, match="over 'age'; expected none"):
            BOUNDS.check_total("age", total)


def test_deviations_are_root_mean_squares_also_of_huge_values():
    assert member_bounds.deviation_of(np.array([3.0, -4.0]), 0.0) == pytest.approx(np.sqrt(12.5))
    assert member_bounds.deviation_of(np.array([3e200, -4e200]), 0.0) == pytest.approx(np.sqrt(12.5) * 1e200)
    assert member_bounds.deviation_of(np.array([7.0, 7.0]), 7.0) == 0.0
    assert math.isfinite(member_bounds.deviation_of(np.array([1.7e308]), -1.7e308))


def held_rows(rng, family, rows=60, missing=False):
    X, y, _ = shared_out(rng, missing)
    X, y = X.iloc[:rows], y[:rows]
    schema = Schema.infer(X, y)
    parents = {"tan": ((1,), (), (), (2,))}.get(family)
    made = layout.calibrated(family, schema, missing, float(rows), parents)
    held = LocalRows(made, schema.encode(X), schema.encode_labels(y), np.ones(rows), np.array([rows]), 3)
    whole = [not X[schema.columns[j].name].isna().any() for j in schema.discrete]
    ties = ties_of(made, counted_columns(made, whole))
    gapped = bool(held.incomplete.any())
    return held, StatisticsBounds(schema.limit, gapped, family=made, ties=ties)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda", "tan"])
def test_statistics_of_rows_are_taken_and_others_are_not(family, missing, rng):
    held, bounds = held_rows(rng, family, missing=missing)
    stats = held.expected(np.ones((1, 3, held.family.size)))[0] if bounds.gapped else held.statistics()[0]
    bounds.check(stats, 60.0)
    bounds.check(stats[::-1], 60.0)  # other people's labels: rows like any
    for rows, false in ((60.0, 2 * stats), (61.0, stats), (60.0, -stats), (60.0, 1e9 * stats)):
        with pytest.raises(FalseReport):
            bounds.check(false, rows)
    if bounds.gapped:
        return
    dense = held.family.dense(np.array([[1.5, -1.25]]))[0]
    for value, told in ((1.5, "squares|no rows"), (2.25, "squares|no rows")):
        place = int(np.flatnonzero(dense == value)[0])
        for change in (-60.0 * 20, 60.0 * 20):
            false = stats.copy()
            false[:, place] = change if value == 1.5 else -1.0
            with pytest.raises(FalseReport, match=told):
                bounds.check(false, 60.0)
    mean, square = (int(np.flatnonzero(dense == value)[0]) for value in (1.5, 2.25))
    false = stats.copy()
    false[:, mean], false[:, square] = 4.0 * stats[:, 0], 15.0 * stats[:, 0]  # a mean of 4, and squares of 15
    with pytest.raises(FalseReport, match="squares"):
        bounds.check(false, 60.0)
    if bounds.ties.shape[0]:
        false = stats.copy()
        false[:, -1] += 1.0
        with pytest.raises(FalseReport, match=r"add up|no rows"):
            bounds.check(false, 60.0)


# --- between peers -------------------------------------------------------------------------------------


def with_a_liar(folder, terms, graph, shared, liar, lie):
    """Peers one of which lies."""
    peers = peers_of(folder, terms, graph, shared)
    plain = peers.node

    def node(name, **more):
        made = plain(name, **more)
        if name == liar:
            made._agreement._total = lying(made._agreement._total, lie)
        return made

    peers.node = node
    return peers


@pytest.mark.long
@pytest.mark.parametrize("liar", ["p0", "p2", "p4"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name_at_every_peer(lie, liar, tmp_path, rng):
    """On a path, so that most peers hear of it from others: at its ends, and in its middle."""
    terms = Terms("test", "label", rounds=4, start="ml", robust=CLIP, strategy="exact")
    peers = with_a_liar(tmp_path, terms, nx.path_graph(5), shared_out(rng, missing=False), liar, lie)
    found = asyncio.run(peers.all())
    for name, problem in zip(peers.names, found, strict=True):
        if name == liar:  # it stops as well, for this reason or because of its own lie
            assert isinstance(problem, AgreementRefused | FalseReport)
            continue
        assert isinstance(problem, AgreementRefused), problem
        by, _, rest = str(problem).partition(" refused what ")
        assert rest.startswith(f"{liar} sent while the peers agreed, {LIES[lie][0]}: ")
        assert by in peers.roster.neighbours(liar)
    for name in set(peers.names) - {liar}:
        refused = [facts for what, facts in peers.told[name] if what == "refused"]
        assert {(facts["who"], facts["reason"]) for facts in refused} == {(liar, "false report")}


def test_a_liar_that_stops_by_itself_is_not_waited_for(tmp_path, rng, monkeypatch):
    """It asks nobody for the sum that it lied about, so nobody can tell it that it was found out."""
    monkeypatch.setattr(tasks, "DRAIN", 10 * SOON)
    terms = Terms("test", "label", rounds=4, robust=CLIP, strategy="exact")
    peers = with_a_liar(tmp_path, terms, nx.path_graph(5), shared_out(rng, missing=False), "p4", "rows")

    async def main():
        running = {name: peers.start(name) for name in peers.names}
        liar = peers.nodes["p4"].transport
        plain = liar.ask

        async def silent(neighbour, request, timeout):
            if wire.request_in(request).phase == LIES["rows"][0]:
                await asyncio.Event().wait()
            return await plain(neighbour, request, timeout)

        liar.ask = silent
        await peers.until(lambda: peers.nodes["p3"]._agreement.sums.objection is not None)
        await ended(running.pop("p4"))
        return await asyncio.wait_for(asyncio.gather(*running.values(), return_exceptions=True), SOON)

    for problem in asyncio.run(main()):
        assert isinstance(problem, AgreementRefused) and str(problem).startswith("p3 refused what p4 sent")


def test_what_no_peer_can_read_ends_the_agreement_where_members_may_lie(tmp_path, rng):
    """Asking again for ever would be the liar's choice."""
    terms = Terms("test", "label", rounds=4, robust=CLIP, strategy="exact")
    peers = with_a_liar(tmp_path, terms, nx.path_graph(5), shared_out(rng), "p4", "rows")
    plain = peers.node

    class Garbage:
        def __add__(self, other):
            return self

        def pack(self):
            return b"\xff" * 30

    def node(name, **more):
        made = plain(name, **more)
        if name == "p4":
            honest = made._agreement._total
            made._agreement._total = lambda phase, own: honest(
                phase, Garbage() if phase.name == "middle 2" else own
            )
        return made

    peers.node = node
    found = asyncio.run(peers.all())
    assert all("p3 refused what p4 sent" in str(problem) for problem in found[:4]), found


@pytest.mark.parametrize("family", ["naive-bayes", "tan"])
@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
def test_honest_peers_agree_whatever_their_tables(family, start, tmp_path, rng):
    """One has far more rows than the others, and one a value from another world; nobody is refused."""
    X, y, parts = shared_out(rng, missing=False)
    X = pd.concat([X, X.sample(900, replace=True, random_state=1)], ignore_index=True)
    y = np.concatenate([y, rng.choice(["low", "mid", "top"], 900)])
    parts = [*parts[:3], np.concatenate([parts[3], np.arange(170, len(y))]), parts[4]]
    X.loc[parts[1][0], "height"] = 1e12
    terms = Terms("test", "label", family=family, start=start, rounds=6, robust=CLIP, strategy="exact")
    peers = peers_of(tmp_path, terms, DENSE, (X, y, parts))
    reached = np.stack(asyncio.run(peers.all()))
    assert not any(what == "refused" for told in peers.told.values() for what, _ in told)
    agreed = peers.nodes["p3"].session.agreed
    bounds = MemberBounds.of(lower_median([float(len(part)) for part in parts]), {}, {})
    assert agreed.rows == sum(min(len(part), bounds.rows) for part in parts) < len(y)
    height = next(column for column in agreed.schema.columns if column.name == "height")
    assert 170 < height.location < 175 and 1 < height.scale < 5
    run = pb.simulate(
        X, y, peers=5, partition=parts, topology=DENSE, family=family, start=start, rounds=6, robust="clip",
        references=False, evaluate_every=0, test=(X, y), start_rounds=0 if start == "uniform" else 300,
    )  # fmt: skip
    assert np.abs(reached - run.stats).max() <= 1e-9


def test_an_objection_names_two_linked_members(tmp_path, rng):
    peers = peers_of(tmp_path, Terms("test", "label", strategy="exact"), nx.path_graph(5), shared_out(rng))
    said = Objection("p1", "p2", "columns: \x1b[31m rows")
    assert Objection.parse(said.reason, peers.roster) == replace(said, detail="columns:  [31m rows")
    for reason in ("", "false report", "false report: p1", "false report: p1 p3 x", "false report: q p2 x",
                   "struck off: p1 p2 x"):  # fmt: skip
        assert Objection.parse(reason, peers.roster) is None
    assert len(Objection("p1", "p2", "x" * 10_000).reason) < 500


def test_what_is_bought_with_noise_cannot_be_checked_and_is_not_agreed_on():
    private_terms(robust=CLIP)
    for wrong, told in (
        (
            {"bought": True, "privacy": {"rows": 90.0}},
            "the unit of .* is bought: one liar .* expected mean and sd",
        ),
        ({"privacy": {"rows": None}}, "the number of rows is bought"),
        ({"start": "ml"}, "start 'ml' is bought: one liar .* expected start 'uniform'"),
    ):
        private_terms(**wrong)
        with pytest.raises(TermsError, match=f"epsilon 4 with robust 'clip', where {told}"):
            private_terms(robust=CLIP, **wrong)


SCRIPT = Path(__file__).parents[1] / "shared" / "lying_peer.py"


@pytest.mark.links
@pytest.mark.long
@pytest.mark.parametrize("lie", LIES)
def test_five_processes_refuse_a_liar_by_name(lie, tmp_path):
    """Over mutual TLS: the exit code, the log and `peer status` of every honest peer name it."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    frame = X.iloc[:, :6].assign(target=np.where(y, "benign", "malignant"))
    tables = [frame[place::5] for place in range(5)]
    terms = Terms("test", "target", rounds=4, start="ml", robust=Robust("clip", guard=True), strategy="exact")
    network = Loopback.create(tmp_path, terms, tables, [(0, 1), (1, 2), (2, 3), (3, 4)])
    liar, honest = "peer-2", ("peer-1", "peer-3", "peer-4", "peer-5")
    try:
        for name in honest:
            network.start(name)
        with network.homes[liar].log_path.open("ab") as log:
            network.processes[liar] = subprocess.Popen(
                [sys.executable, str(SCRIPT), lie, str(network.homes[liar].folder)], stderr=log, stdout=log
            )
        for name in honest:
            assert network.processes[name].wait(HANG) == 2
    finally:
        network.stop()
    for name in honest:
        log = network.homes[name].log_path.read_text()
        assert f"refused what {liar} sent while the peers agreed, {LIES[lie][0]}: " in log
        assert f"refused from {liar}: false report" in log
        assert {(entry["who"], entry["reason"]) for entry in status(network.homes[name])["refusals"]} == {
            (liar, "false report")
        }
        told = json.loads(
            peerbayes("peer", "status", network.homes[name].folder, "--format", "json", code=0).stdout
        )
        assert [entry["who"] for entry in told["refusals"]] == [liar]


# --- in the simulator ----------------------------------------------------------------------------------

SETTINGS = {
    "peers": 20, "rows_per_peer": 20, "topology": "regular-6", "rounds": 16, "evaluate_every": 0, "references": False,
}  # fmt: skip


def error(**more):
    return pb.simulate(*CANCER, **(SETTINGS | more)).summary()["test_error"]


@pytest.mark.parametrize("report", ["rows", "mean", "spread", "start"])
def test_one_simulated_liar_spoils_everything_or_is_refused_by_name(report):
    """Or has one vote of many: where units come of votes, there are no squares to lie about."""
    start = "ml" if report == "start" else "uniform"
    lie = pb.Attack("honest", fraction=0.05, report=report)
    calm = error(start=start)
    assert error(start=start, attack=lie) > calm + 0.03
    liar = int(lie.attackers(20, 0)[0])
    for robust in ("clip", "guard"):
        if report == "spread":
            assert error(start=start, attack=lie, robust=robust) <= calm + 0.02
            continue
        with pytest.raises(
            FalseReport, match=f"^peer [0-9]+ refused what peer {liar} sent while the peers agreed"
        ):
            error(start=start, attack=lie, robust=robust)


@pytest.mark.parametrize("start", ["uniform", "ml"])
def test_lies_within_the_bounds_do_little(start, monkeypatch):
    settings = SETTINGS | {"rounds": 64}
    honest = pb.simulate(*CANCER, start=start, robust="clip", **settings)
    lie = pb.Attack("honest", fraction=0.1, report="all", allowed=True)
    run = pb.simulate(*CANCER, start=start, robust="clip", attack=lie, **settings)
    assert run.summary()["test_error"] <= honest.summary()["test_error"] + 0.02
    assert (run.schema.scale > honest.schema.scale).mean() > 0.9  # so it is a lie
    assert (run.schema.scale < 1.6 * honest.schema.scale).all()
    assert (np.abs(run.schema.location - honest.schema.location) < 0.5 * honest.schema.scale).all()
    allowed = Liars.more_rows
    monkeypatch.setattr(Liars, "more_rows", lambda self, rows, most: allowed(self, rows, most) + 1.0)
    with pytest.raises(FalseReport, match="a member counts for at most 80"):  # and any larger one is refused
        pb.simulate(*CANCER, start=start, robust="clip", attack=lie, **settings)


def test_liars_are_heard_over_the_links_of_the_tree():
    adjacency = nx.to_scipy_sparse_array(nx.path_graph(5), format="csr")
    links = {(link.liar, link.honest): sorted(link.behind) for link in links_of(np.array([2, 3]), adjacency)}
    assert links == {(2, 1): [2, 3, 4], (3, 4): [0, 1, 2, 3]}
    assert links_of(np.zeros(0, dtype=int), adjacency) == []


@pytest.mark.parametrize("seed", range(6))
def test_liars_within_the_bounds_are_never_refused(seed):
    """Also where the sums of one pass through another: what both claim together is allowed."""
    lie = pb.Attack("honest", fraction=0.3, report="all", allowed=True)
    settings = SETTINGS | {"topology": "tree", "rounds": 1, "seed": seed, "start": "ml"}
    pb.simulate(*CANCER, robust="clip", attack=lie, **settings)


def test_an_attack_says_what_it_reports():
    assert str(pb.Attack("flip")) == "kind=flip fraction=0.1"
    assert (
        str(pb.Attack("honest", report="all", allowed=True))
        == "kind=honest fraction=0.1 report=all allowed=True"
    )
    for wrong in ({"report": "age"}, {"allowed": True}, {"report": "rows", "allowed": 1}):
        with pytest.raises(ValueError, match="the attack's"):
            pb.Attack("honest", **wrong)
    with pytest.raises(ValueError, match="leave the report out"):
        error(attack=pb.Attack("honest", report="rows"), privacy=pb.Privacy(epsilon=4.0, min_rows=1))


@pytest.mark.long
@pytest.mark.skipif("PEERBAYES_DATA" not in os.environ, reason="needs the datasets")
@pytest.mark.parametrize("dataset", ["adult", "pulsar"])
def test_the_largest_lies_that_pass_cost_little_on_real_data(dataset):
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from agreement_lies import agreement_error
    finally:
        sys.path.pop(0)
    for start in ("uniform", "ml"):
        calm = agreement_error(dataset, "guard", None, start, 0)
        lie = pb.Attack("honest", 0.02, report="all", allowed=True)
        assert agreement_error(dataset, "guard", lie, start, 0) <= calm + 0.02
