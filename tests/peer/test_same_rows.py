"""Several networks over the same rows: what one may spend counts for all of them before it sends anything."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import NeedsPerson, PeerError
from peerbayes.peer import service
from peerbayes.peer.learning.releases import Release
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.models.history import History
from peerbayes.peer.restoring import restore
from peerbayes.peer.runs import Runs
from peerbayes.peer.state import backup, ledger, same_rows
from peerbayes.peer.state.ledger import (
    RESERVED,
    epsilon_of,
    planned_cost,
    refuse_overspent,
    reserve,
    reserved,
)
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.peer.status import warnings_of
from shared.commands import HANG
from shared.private_agreements import X, Y
from shared.runs_of_folders import some_rows, terms_of
from shared.same_rows import ALLOWED, EACH, allowed_by, changed, of_rows, spent_on, stopped, two_networks
from shared.served_sites import outcome, served

SAYS = r"this one would make it 5\.\d+(, with what others may still spend)?; .*peer\.toml allows 5 in all"


def reserve_run(home):
    reserve(home, home.load())


def released(home, rounds, of=12):
    """Have a run release some of its rounds, as a peer stores them."""
    each = planned_cost(home.load().terms.privacy.promise) / of
    with contextlib.closing(Store(home.state_path)) as store:
        first = (store.round() or 0) + 1
        for number in range(first, first + rounds):
            values = np.full((2, 2), float(number) + len(str(home.folder)))
            release = Release(f"round {number}", each, values)
            store.add_round(RoundRecord(number, (values,), {}, (), (), release=release))


# --- from files to the wire ------------------------------------------------------------------------------


@pytest.mark.parametrize("requiring", [0, 1])
def test_of_two_networks_in_one_process_over_the_same_rows_one_runs(tmp_path, requiring):
    networks, owned = two_networks(tmp_path)
    allowed_by(owned[requiring])
    everybody = [home for network in networks for home in network.homes.values()]
    served(everybody, lambda: all(map(outcome, owned)))
    states = sorted(outcome(home).state for home in owned)
    assert states == ["done", "failed"], [outcome(home) for home in owned]
    refused = next(home for home in owned if outcome(home).state == "failed")
    ran = next(home for home in owned if home is not refused)
    sentence = outcome(refused).sentence
    assert "have spent epsilon" in sentence and "allows 5 in all" in sentence and "Raise require" in sentence
    assert not refused.state_path.exists() and not refused.audit_path.exists(), "nothing left this machine"
    assert not (refused.records / RESERVED).exists(), "and nothing is kept for it"
    assert spent_on(ran) == pytest.approx(spent_on(refused)) and 3.5 < spent_on(ran) <= EACH
    assert History(ran.folder).version(1).on_rows["epsilon"] == spent_on(ran), "as its card says"


def test_of_two_processes_over_the_same_rows_one_runs(tmp_path):
    networks, owned = two_networks(tmp_path)
    allowed_by(owned[0])
    with stopped(networks):
        for name in ("peer-1", "peer-2"):
            for network in networks:
                network.start(name, "--linger", "0")
        codes = [network.processes["peer-1"].wait(HANG) for network in networks]
    assert sorted(codes) == [0, 2], [home.log_path.read_text() for home in owned]
    ran, refused = (owned[codes.index(code)] for code in (0, 2))
    assert "allows 5 in all" in refused.log_path.read_text()
    assert not refused.state_path.exists() and not refused.audit_path.exists()
    assert 3.5 < spent_on(ran) <= EACH
    assert History(ran.folder).version(1).on_rows["epsilon"] == spent_on(ran), "as its card says"


BEFORE_ANYTHING = "service.opened_store = kill"  # all is checked and reserved, and nothing was computed
BEFORE_THE_RESERVATION = "ledger.files.write = kill"
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from peerbayes.peer import service
from peerbayes.peer.state import ledger
from peerbayes.peer.state.folder import Home
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
{change}
asyncio.run(service.serve(Home(Path(sys.argv[1])), 0.0))
"""


@pytest.mark.parametrize(
    ("change", "is_reserved"), [(BEFORE_ANYTHING, True), (BEFORE_THE_RESERVATION, False)]
)
def test_a_reservation_survives_kill_9_before_the_first_release(tmp_path, change, is_reserved):
    """kill -9 once it is reserved: the other network waits. Before: nothing is reserved, and nothing has left."""
    networks, (first, second) = two_networks(tmp_path)
    allowed_by(second)
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(change=change), str(first.folder)], timeout=HANG
    )
    assert done.returncode == -9 and not first.state_path.exists()
    assert (first.records / RESERVED).exists() == is_reserved
    if not is_reserved:
        reserve_run(second)
        return
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(second)
    reserve_run(first)  # goes on
    with stopped(networks):
        for name in networks[0].homes:
            networks[0].start(name, "--linger", "0")
        assert networks[0].processes["peer-1"].wait(HANG) == 0
    with pytest.raises(NeedsPerson, match=SAYS):  # as ever: now it is spent
        reserve_run(second)


# --- one decision at a time --------------------------------------------------------------------------------


def held(folder):
    """Whether somebody holds the lock of a folder's rows."""
    descriptor = os.open(folder / same_rows.LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def looked(monkeypatch):
    """What of the locks is held whenever the ledger is added up, folder by folder."""
    found, add_up = [], ledger.in_all

    def watched(home, *rest):
        found.append([held(folder) for folder in same_rows.folders_over_rows(home)])
        return add_up(home, *rest)

    monkeypatch.setattr(ledger, "in_all", watched)
    return found


def test_what_is_spent_is_decided_by_one_at_a_time(tmp_path, looked):
    """Whoever adds up holds the locks of all folders over the rows until its reservation is on disk."""
    _, owned = two_networks(tmp_path)
    allowed_by(owned[1], 9.0)
    reserve_run(owned[0])
    reserve_run(owned[1])
    assert looked == [[True, True]] * 2
    assert not held(owned[0].folder) and not held(owned[1].folder)


def test_approvals_and_proposals_are_decided_by_one_at_a_time_too(tmp_path, looked):
    networks, owned = two_networks(tmp_path)
    allowed_by(owned[0], 9.0)
    Runs(owned[0].folder).propose()
    assert looked == [[True, True]]
    proposed = Runs(networks[1].homes["peer-2"].folder)
    proposed.propose()
    runs = Runs(owned[1].folder)
    for path in proposed.shared().values():
        runs.add(path.read_bytes())
    looked.clear()
    with pytest.raises(
        NeedsPerson, match="would make it"
    ):  # the other network's run 2 is reserved, and both run 1 not
        allowed_by(owned[0], ALLOWED)
        runs.approve(2)
    assert looked == [[True, True]]
    assert not owned[1].of_run(2).agreement_path.exists()
    allowed_by(owned[0], 9.0)
    runs.approve(2)
    assert reserved(owned[0]) == pytest.approx(2 * planned_cost(owned[0].load().terms.privacy.promise))


def test_of_many_that_begin_at_once_as_many_run_as_there_is_epsilon_for(tmp_path):
    owned = [home for number in range(3) for home in two_networks(tmp_path / f"pair-{number}")[1]]
    of_rows(owned)
    promise = owned[0].load().terms.privacy.promise
    allowed = epsilon_of([], 1e-5, 3.5 * planned_cost(promise))
    allowed_by(owned[2], allowed)

    def one(home):
        try:
            reserve_run(home)
        except NeedsPerson as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(owned)) as pool:
        said = [*pool.map(one, owned)]
    assert sum(not sentence for sentence in said) == 3, said
    assert sum((home.records / RESERVED).exists() for home in owned) == 3


def test_a_run_that_goes_on_counts_once_whatever_it_has_released(tmp_path):
    _, (first, second) = two_networks(tmp_path)
    promise = first.load().terms.privacy.promise
    both = epsilon_of([], 1e-5, 2 * planned_cost(promise))
    allowed_by(second, both)
    reserve_run(first)
    for rounds in (0, 4, 8):
        released(first, rounds)
        assert ledger.in_all(second, promise)[1] == pytest.approx(both)
        refuse_overspent(second, second.load())
    service.set_aside(first)
    assert not (first.records / RESERVED).exists() and reserved(second) == 0.0
    assert ledger.in_all(second, promise)[1] == pytest.approx(both), "all of it was released"


@pytest.mark.parametrize("before", [True, False])
def test_a_release_between_two_looks_at_the_ledger_is_counted_once(tmp_path, monkeypatch, before):
    """Neither missed in both nor counted in both: the sum is made again."""
    _, (first, second) = two_networks(tmp_path)
    promise = first.load().terms.privacy.promise
    both = epsilon_of([], 1e-5, 2 * planned_cost(promise))
    reserve_run(first)
    released(first, 1)
    look, moments = ledger.earlier, iter((True,))

    def meanwhile(home):
        seen = None if before else look(home)
        if next(moments, False):
            released(first, 1)
        return look(home) if seen is None else seen

    monkeypatch.setattr(ledger, "earlier", meanwhile)
    assert ledger.in_all(second, promise)[1] == pytest.approx(both)


def test_a_run_that_has_a_state_and_no_round_is_reserved(tmp_path):
    """As between opening the state and the first round, which an agreement by sums may take long to reach."""
    _, (first, second) = two_networks(tmp_path)
    reserve_run(first)
    with contextlib.closing(Store(first.state_path)) as store:
        store.identity()
    assert reserved(second) == pytest.approx(planned_cost(first.load().terms.privacy.promise))


@pytest.mark.parametrize("place", [0, 1])
def test_a_limit_in_one_folder_holds_for_runs_of_the_others(tmp_path, place):
    _, owned = two_networks(tmp_path)
    allowed_by(owned[place])
    reserve_run(owned[0])
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(owned[1])
    reserve_run(owned[0])  # started again, it has what it has reserved


def test_a_run_that_is_given_up_before_it_began_gives_its_reservation_back(tmp_path):
    _, (first, second) = two_networks(tmp_path)
    allowed_by(second)
    reserve_run(first)
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(second)
    service.set_aside(first)
    reserve_run(second)


def test_a_run_that_fails_before_its_first_release_gives_its_reservation_back(tmp_path):
    _, (first, second) = two_networks(tmp_path, privacy={"min_rows": 60})
    allowed_by(second)
    X.assign(diagnosis=Y)[:59].to_csv(tmp_path / "few.csv", index=False)
    changed(first, data=str(tmp_path / "few.csv"))
    with pytest.raises(PeerError, match="the table has 59 rows"):
        asyncio.run(service.serve(first, 0.0))
    assert not (first.records / RESERVED).exists()
    reserve_run(second)


# --- networks without noise ----------------------------------------------------------------------------------


def plain_beside(folder):
    """A network without noise, and a private one, over the same rows."""
    plain = Loopback.create(folder / "plain", terms_of(), [some_rows(1), some_rows(2)], ((0, 1),))
    _, (private, _) = two_networks(folder, declared=False)
    owned = plain.homes["peer-1"], private
    of_rows(owned)
    return owned


def test_no_run_without_noise_begins_over_rows_for_which_epsilon_is_required(tmp_path):
    plain, private = plain_beside(tmp_path)
    reserve_run(private)
    allowed_by(private)
    with pytest.raises(
        NeedsPerson, match="has no noise; expected an epsilon of every run over the same rows"
    ):
        reserve_run(plain)


def test_no_epsilon_holds_for_rows_of_which_a_run_without_noise_has_told(tmp_path):
    plain, private = plain_beside(tmp_path)
    reserve_run(plain)
    reserve_run(private)  # nobody asked for an epsilon
    allowed_by(private)
    with pytest.raises(NeedsPerson, match="has told of them without noise: no epsilon holds"):
        reserve_run(private)


# --- what is declared --------------------------------------------------------------------------------------


def test_rows_that_only_one_side_declares_are_warned_of_and_with_an_epsilon_refused(tmp_path):
    _, (first, second) = two_networks(tmp_path)
    changed(second, same_rows=())
    says = r"and .*registry.peer-1.peer\.toml does not say so of .*clinics"
    assert any("does not say so of" in warning for warning in warnings_of(first, first.load()))
    with pytest.raises(NeedsPerson, match=says):
        reserve_run(first)
    assert warnings_of(second, second.load()) == []
    of_rows((first, second))
    assert warnings_of(first, first.load()) == []
    reserve_run(first)


def test_folders_that_a_folder_over_the_same_rows_names_count_too(tmp_path):
    _, owned = two_networks(tmp_path)
    _, (third, _) = two_networks(tmp_path / "more", declared=False)
    changed(owned[1], same_rows=(str(owned[0].folder), str(third.folder)))
    changed(third, same_rows=(str(owned[1].folder),))
    for home in (*owned, third):
        assert len(same_rows.folders_over_rows(home)) == 3 and not same_rows.one_sided(home)
    allowed_by(owned[0])
    reserve_run(third)
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(owned[0])


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_process_that_serves_two_folders_of_the_same_file_sees_it(tmp_path, link):
    _, (first, second) = two_networks(tmp_path, declared=False)
    if link is not None:
        link(first.settings().data, tmp_path / "linked.csv")
        changed(second, data=str(tmp_path / "linked.csv"))
    began_or_refused = lambda home: outcome(home) or home.state_path.exists()  # noqa: E731
    served([first, second], lambda: began_or_refused(first) and began_or_refused(second))
    for home in (first, second):
        assert (
            outcome(home).state == "failed" and "read the same data, and same_rows" in outcome(home).sentence
        )
        assert not home.state_path.exists() and not home.audit_path.exists()
    of_rows((first, second))
    assert not same_rows.undeclared(first, [second])


def test_tables_of_a_database_are_told_apart_by_their_names(tmp_path):
    _, (first, second) = two_networks(tmp_path, declared=False)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    sqlite3.connect(tmp_path / "rows.db").close()

    def same(one, other):
        changed(first, data=url, query=one)
        changed(second, data=url, query=other)
        return bool(same_rows.undeclared(first, [second]))

    assert same("SELECT a FROM visits", "SELECT b FROM main.Visits WHERE a > 1")
    assert same("SELECT a FROM visits", 'SELECT * FROM people JOIN "visits" USING (id)')
    assert not same("SELECT a FROM visits", "SELECT a FROM people")
    changed(second, data=str(tmp_path / "registry" / "peer-2" / "rows.csv"), query=None)
    assert not same_rows.undeclared(first, [second])


def test_a_site_without_noise_warns_of_rows_that_nobody_declared(tmp_path, caplog):
    plain = Loopback.create(tmp_path / "a", terms_of(), [some_rows(1), some_rows(2)], ((0, 1),)).homes
    other = Loopback.create(tmp_path / "b", terms_of(), [some_rows(1), some_rows(2)], ((0, 1),)).homes
    homes = [plain["peer-1"], other["peer-1"]]
    changed(homes[1], data=homes[0].settings().data)
    warned = lambda: [r for r in caplog.records if "read the same data" in r.getMessage()]  # noqa: E731
    served(homes, lambda: len(warned()) == 2)


# --- backups -------------------------------------------------------------------------------------------------


def test_a_backup_keeps_what_a_run_may_spend_for_all_networks_over_the_rows(tmp_path):
    """Reserved, backed up, begun, lost and restored: at no moment may the other network run."""
    _, (first, second) = two_networks(tmp_path)
    allowed_by(second)
    reserve_run(first)
    target = tmp_path / "backup"
    backup.back_up(first, target)
    released(first, 3)  # after it
    data = (first.folder / "rows.csv").read_bytes()
    shutil.rmtree(first.folder)
    with pytest.raises(
        NeedsPerson, match="there is no such folder: what was released there cannot be counted"
    ):
        reserve_run(second)
    first.folder.mkdir()
    (first.folder / "rows.csv").write_bytes(data)
    with pytest.raises(NeedsPerson, match="has no peer, or a backup of it came back in part"):
        reserve_run(second)
    done = restore(target, first.folder)
    assert done.given_up == [1] and not (first.records / RESERVED).exists()
    promise = second.load().terms.privacy.promise
    assert ledger.in_all(second, promise)[1] == pytest.approx(
        epsilon_of([], 1e-5, 2 * planned_cost(promise))
    ), "all that was agreed on counts once"
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(second)


def test_nobody_decides_while_a_backup_comes_back(tmp_path, monkeypatch):
    from peerbayes.peer import restoring

    _, (first, second) = two_networks(tmp_path)
    allowed_by(second)
    reserve_run(first)
    backup.back_up(first, tmp_path / "backup")
    (first.records / RESERVED).unlink()  # lost, with all else intact
    seen, fill_in = [], restoring._fill_in

    def interrupted(home, *rest):
        seen.append(held(home.folder))
        if len(seen) == 1:
            raise KeyboardInterrupt
        fill_in(home, *rest)

    monkeypatch.setattr(restoring, "_fill_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "backup", first.folder)
    with pytest.raises(NeedsPerson, match="came back in part"):
        reserve_run(second)
    restore(tmp_path / "backup", first.folder)
    assert seen == [True, True]
    with pytest.raises(NeedsPerson, match=SAYS):
        reserve_run(second)


def test_a_reservation_says_what_it_is_for(tmp_path):
    _, (first, _) = two_networks(tmp_path)
    reserve_run(first)
    said = json.loads((first.records / RESERVED).read_bytes())
    peer = first.load()
    assert said == {"run": peer.roster.run, "terms": peer.terms.digest, "epsilon": EACH, "delta": 1e-5}
