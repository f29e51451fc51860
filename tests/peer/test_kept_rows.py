"""A run goes on with the rows that it began with, whatever the data brings; new rows join at the next run."""

import contextlib
import stat

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.model.statistics import Statistics
from peerbayes.peer import service
from peerbayes.peer.agreement.negotiate import data_digest
from peerbayes.peer.erasing import erase
from peerbayes.peer.learning.kept_rows import FILE, RunRows, erased_so_far, forget, kept, packed, unpacked
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.models.history import History
from peerbayes.peer.runs import new_rows
from peerbayes.peer.state import backup
from peerbayes.peer.state.store import NoState, Store
from shared.runs_of_folders import some_rows, terms_of
from shared.same_rows import changed
from shared.served_sites import agreed_run, done, outcome, served

FEATURES = {"a": "continuous", "b": "continuous"}
ROUNDS = 60


def network_of(folder, **more):
    """Two sites with held-out rows and patients' numbers; the rows of the first one will change."""
    tables = []
    for seed in (1, 2):
        table = some_rows(seed, 120)
        table.insert(0, "patient", np.arange(len(table)))
        tables.append(table)
    terms = terms_of(rounds=ROUNDS, features=FEATURES, **more)
    homes = Loopback.create(folder, terms, tables, ((0, 1),)).homes
    for home in homes.values():
        changed(home, hold_out=0.2)
        (home.folder / "hold_out.key").write_bytes(bytes(32))
    return [*homes.values()]


def round_of(home, number=1):
    with (
        contextlib.suppress(NoState),
        contextlib.closing(Store(home.of_run(number).state_path, readonly=True)) as store,
    ):
        return store.round() or 0
    return 0


def under_way(homes, number=1):
    """Serve until the run has done some rounds, and stop in the middle of it."""
    served(homes, lambda: all(round_of(home, number) >= 3 for home in homes))
    assert all(round_of(home, number) < ROUNDS for home in homes), "too fast to be stopped"


def add_rows(home, count=12):
    table = pd.read_csv(home.settings().data)
    more = some_rows(77, count).assign(patient=1000 + np.arange(count))
    pd.concat([table, more], ignore_index=True).to_csv(home.settings().data, index=False)


def statistics(home, number=1):
    return Statistics.from_bytes(History(home.folder).content(number))


def test_a_run_goes_on_with_the_rows_that_it_began_with_and_new_ones_join_at_the_next(tmp_path):
    """A nightly export and a restart in the middle: the model is that of a run in which neither happened."""
    undisturbed, homes = network_of(tmp_path / "a"), network_of(tmp_path / "b")
    done(undisturbed)
    under_way(homes)
    path = homes[0].folder / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = data_digest(*service.tables_of(homes[0].load())[0])
    add_rows(homes[0])
    done(homes)
    for home, other in zip(homes, undisturbed, strict=True):
        np.testing.assert_array_equal(statistics(home).values, statistics(other).values)
        assert not (home.folder / FILE).exists(), "deleted once the run has ended"
    assert History(homes[0].folder).version(1).data == before
    agreed_run(homes)
    under_way(homes, 2)
    assert (homes[0].of_run(2).records / FILE).exists()
    done(homes, 2)
    assert History(homes[0].folder).version(2).data == data_digest(*service.tables_of(homes[0].load())[0])
    assert History(homes[0].folder).version(2).data != before
    assert not (homes[0].of_run(2).records / FILE).exists()


def test_erased_rows_stay_in_no_copy_and_a_run_that_began_with_them_stops(tmp_path):
    homes = network_of(tmp_path)
    under_way(homes)
    digests = (homes[0].folder / new_rows.FILE).read_bytes()
    patient = int(service.tables_of(homes[0].load())[0][0].index[0])
    said = " ".join(erase(homes[0], pd.DataFrame({"patient": [patient]})).sentences)
    assert "the copy that it kept of them is deleted" in said
    assert not (homes[0].folder / FILE).exists() and not [*homes[0].folder.glob(f".{FILE}*")]
    served(homes, lambda: outcome(homes[0]))
    assert outcome(homes[0]).state == "failed" and "other rows" in outcome(homes[0]).sentence
    assert (homes[0].folder / new_rows.FILE).read_bytes() == digests, "of the rows that the run learned from"
    assert not (homes[0].folder / FILE).exists()


def test_rows_that_are_erased_while_they_are_read_are_not_kept(tmp_path):
    home = network_of(tmp_path)[0]
    run_rows = service.rows_of_run(home, home.load())
    erase(home, pd.DataFrame({"patient": [3]}))
    assert not run_rows.keep(home) and not (home.folder / FILE).exists()
    assert service.rows_of_run(home, home.load()).keep(home)


def test_rows_that_are_kept_are_in_no_backup_and_gone_when_a_run_is_left(tmp_path):
    home = network_of(tmp_path)[0]
    service.claimed(home, service.rows_of_run(home, home.load()))
    assert FILE not in backup.back_up(home, tmp_path / "backup").files
    (home.folder / f".{FILE}.0123").write_bytes(b"a draft of a process that was killed")
    service.set_aside(home)
    assert not (home.folder / FILE).exists() and not [*home.folder.glob(f".{FILE}*")]


# --- as bytes


def columns_of_all_kinds():
    return pd.DataFrame(
        {
            "numbers": [1.5, np.nan, -0.0, 1e-300],
            "whole": np.array([1, 2**62 + 1, 3, -4]),
            "small": np.array([1, 2, 3, 4], dtype=np.float32),
            "flags": [True, False, True, True],
            "text": pd.Series(["x", None, "", "ü\n"], dtype=object),
            "words": pd.Series(["x", "y", "x", "x"]),
            "mixed": pd.Series([1, "1", True, 1.0], dtype=object),
            "category": pd.Categorical(["u", None, "v", "u"], categories=["v", "u", "w"], ordered=True),
        }
    )


def test_rows_as_bytes_are_the_same_rows():
    frame, labels = columns_of_all_kinds(), np.array(["no", "yes", "no", "no"], dtype=object)
    rows, away = (frame, labels), (frame[1:3].reset_index(drop=True), labels[1:3])
    read, read_away = unpacked(packed(rows, away))
    for (one, of_one), (other, of_other) in ((rows, read), (away, read_away)):
        pd.testing.assert_frame_equal(one, other)
        assert of_one.tolist() == of_other.tolist() and data_digest(one, of_one) == data_digest(
            other, of_other
        )
    assert unpacked(packed(rows, None))[1] is None


def test_what_is_damaged_or_of_other_rows_is_not_used(tmp_path):
    home = network_of(tmp_path)[0]
    run_rows = service.rows_of_run(home, home.load())
    digest = data_digest(*run_rows.rows)
    assert kept(home, digest) is None
    assert run_rows.keep(home) and data_digest(*kept(home, digest)[0]) == digest
    assert kept(home, "0" * 64) is None
    content = (home.folder / FILE).read_bytes()
    for damaged in (b"", content[:-30], b"junk", content.replace(b"tables", b"elbats")):
        (home.folder / FILE).write_bytes(damaged)
        assert kept(home, digest) is None
        assert run_rows.keep(home) and data_digest(*kept(home, digest)[0]) == digest
    assert forget(home) and not forget(home)


def test_rows_that_no_file_can_hold_are_not_kept(tmp_path, caplog):
    home = network_of(tmp_path)[0]
    frame, labels = pd.DataFrame({"a": pd.Series([1 + 2j, 3j])}), np.array(["x", "y"])
    service.claimed(home, RunRows((frame.map(str), labels), None, erased_so_far(home)))
    assert forget(home) and not caplog.records
    assert not RunRows((frame, labels), None, erased_so_far(home)).keep(home)
    assert not (home.folder / FILE).exists()
