"""Rows that are erased: no run learns from them, they do not come back, and what is not undone is said."""

import contextlib
import json
import os
import pty

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import NeedsPerson, PeerbayesError, PeerError, SourceError
from peerbayes.model.statistics import Statistics
from peerbayes.peer import service
from peerbayes.peer.erasing import FILE, erase, erasures
from peerbayes.peer.learning import kept_rows
from peerbayes.peer.learning.held_out import KEY
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.models.history import History
from shared.commands import peerbayes, peerbayes_process
from shared.runs_of_folders import Folders, some_rows, terms_of
from shared.same_rows import changed, of_rows
from shared.served_sites import agreed_run, done

FEATURES = {"features": {"a": "continuous", "b": "continuous"}}


@pytest.fixture
def home(tmp_path):
    """A peer whose rows have a number that no run learns from, and rows that are equal but for it."""
    home = Folders(tmp_path, **FEATURES).network.homes["peer-1"]
    table = pd.read_csv(home.settings().data)
    table.loc[5, ["a", "b", "y"]] = table.loc[4, ["a", "b", "y"]].to_numpy()
    table.insert(0, "patient", np.arange(100, 100 + len(table)))
    table.to_csv(home.settings().data, index=False)
    return home


def rows_of(home):
    (frame, labels), away = service.tables_of(home.load())
    assert away is None and list(frame.columns) == ["a", "b"]
    return frame.assign(y=labels)


def written(home):
    return pd.read_csv(home.settings().data)


def test_rows_are_erased_by_a_number_and_stay_erased_whatever_the_data_brings(home):
    before = rows_of(home)
    done = erase(home, pd.DataFrame({"patient": [104, 117]}))
    assert (done.rows, done.in_data) == (2, 2)
    pd.testing.assert_frame_equal(rows_of(home), before.drop([4, 17]).reset_index(drop=True))
    shuffled = written(home).sample(frac=1.0, random_state=1)
    shuffled.to_csv(home.settings().data, index=False)  # another export, in another order, with them again
    assert len(rows_of(home)) == len(before) - 2
    shuffled[~shuffled["patient"].isin([104, 117])].to_csv(home.settings().data, index=False)
    assert len(rows_of(home)) == len(before) - 2  # the one that was like 104 stays
    assert erase(home, pd.DataFrame({"patient": [104]})).in_data == 0
    assert len(erasures(home.folder)) == 1, "what is recorded is not recorded again"


def test_rows_that_are_equal_in_all_named_columns_are_erased_together(home):
    twin = written(home).loc[[4], ["a", "b", "y"]]
    assert erase(home, twin).in_data == 2
    assert len(rows_of(home)) == 38


def test_values_are_the_same_however_they_are_written(home, tmp_path):
    (tmp_path / "gone.csv").write_text(f"patient,y\n 104.0 ,{written(home).loc[4, 'y']}\n")
    peerbayes("peer", "erase", home.folder, "--rows", tmp_path / "gone.csv", code=0)
    assert len(rows_of(home)) == 39
    text = written(home).astype({"patient": str})
    text.loc[3, "patient"] = "unknown"
    text.to_csv(home.settings().data, index=False)  # the column is text now
    assert len(rows_of(home)) == 39


def test_the_record_tells_nothing_of_the_rows_and_its_chain_holds(home):
    for patient in (104, 105):
        erase(home, pd.DataFrame({"patient": [patient]}))
    text = (home.folder / FILE).read_text()
    assert "104" not in json.dumps([json.loads(line)["rows"] for line in text.splitlines()])
    assert [request.columns for request in erasures(home.folder)] == [("patient",), ("patient",)]
    (home.folder / FILE).write_text(text.splitlines(keepends=True)[1])  # the first request is taken out
    for use in (rows_of, lambda home: erase(home, pd.DataFrame({"patient": [106]}))):
        with pytest.raises(NeedsPerson, match="cannot be trusted"):
            use(home)


def test_another_folder_has_other_digests(home, tmp_path):
    erase(home, pd.DataFrame({"patient": [104]}))
    other = Folders(tmp_path / "other", **FEATURES).network.homes["peer-1"]
    written(home).to_csv(other.settings().data, index=False)
    erase(other, pd.DataFrame({"patient": [104]}))
    assert erasures(home.folder)[0].digests != erasures(other.folder)[0].digests


def test_what_cannot_be_told_is_refused(home):
    for rows, says in (
        (pd.DataFrame({"number": [104]}), "no column"),
        (pd.DataFrame({"patient": [np.nan]}), "no value at all"),
        (pd.DataFrame({"patient": []}), "expected 1 to"),
    ):
        with pytest.raises(PeerError, match=says):
            erase(home, rows)
    assert not (home.folder / FILE).exists()
    erase(home, pd.DataFrame({"patient": [104]}))
    written(home).drop(columns="patient").to_csv(home.settings().data, index=False)
    with pytest.raises(SourceError, match="Rows were erased by 'patient'"):
        rows_of(home)


def test_a_peer_without_any_row_left_learns_nothing(home):
    erase(home, written(home)[["patient"]])
    with pytest.raises(NeedsPerson, match="all 40 rows"):
        rows_of(home)


def test_the_command_says_what_is_left_and_what_it_cannot_undo(home):
    shown = peerbayes("peer", "erase", home.folder, "--where", "patient=104", code=0).stdout
    flat = " ".join(shown.split())
    assert "1 rows of the data are equal to the 1 asked for" in flat and "Delete them there" in flat
    assert "What others hold" not in flat, "no run has begun: nobody holds anything"
    both = ("--where", "patient=105", "--where", "y=nothing")
    told = json.loads(peerbayes("peer", "erase", home.folder, *both, "--format", "json", code=3).stdout)
    assert (told["rows"], told["in_data"], told["unmatched"], told["known"]) == (1, 0, 1, 0)
    assert "which rows?" in peerbayes("peer", "erase", home.folder, code=2).stderr
    assert "COLUMN=VALUE" in peerbayes("peer", "erase", home.folder, "--where", "patient", code=2).stderr


def test_a_request_counts_its_own_rows_and_those_of_no_other(home):
    before = {"patient": [104, 117, 118]}
    assert erase(home, pd.DataFrame(before)).in_data == 3
    none = ("peer", "erase", home.folder, "--where", "patient=55555")
    shown = peerbayes(*none, code=3).stdout
    assert shown.startswith("No row of the data equals these; recorded for the future")
    assert "Delete them there" not in shown and "No run that begins" not in shown
    again = peerbayes(*none, code=0).stdout
    assert again.startswith("Already erased, and recorded once: no row of the data equals the 1 asked for")
    known = peerbayes("peer", "erase", home.folder, "--where", "patient=104", code=0).stdout
    assert known.startswith(
        "Already erased, and recorded once: 1 rows of the data are equal to the 1 asked for"
    )
    some = erase(home, pd.DataFrame({"patient": [104, 119, 120, 66666]})).found
    assert (some.rows, some.in_data, some.unmatched, some.known) == (4, 3, 1, 1)
    assert "Erased: 3 rows of the data are equal to the 4 asked for. 1 of those equal no row" in some.sentence
    assert len(erasures(home.folder)) == 3 and len(rows_of(home)) == 35


def test_a_value_that_many_rows_have_is_erased_only_if_that_is_meant(home):
    """Without a terminal it is refused, on one it is asked; a list of as many rows says what it means."""
    many = ("peer", "erase", home.folder, "--where", "y=yes")
    count = int((written(home)["y"] == "yes").sum())
    refused = peerbayes(*many, code=2).stderr
    assert f"{count} of 40 rows" in refused and "--yes" in refused
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        assert not (home.folder / FILE).exists(), "nothing was recorded before the answer"
        terminal, here = pty.openpty()
        os.write(terminal, answer)
        asked = peerbayes_process(*many, code=code, stdin=here)
        assert "Are all of them meant?" in asked.stderr
        os.close(terminal)
        os.close(here)
    assert len(rows_of(home)) == 40 - count
    (home.folder / FILE).unlink()
    assert f"Erased: {count} rows" in peerbayes(*many, "--yes", code=0).stdout
    (home.folder / FILE).unlink()
    listed = home.folder.parent / "listed.csv"
    written(home)[["patient"]].head(20).to_csv(listed, index=False)
    assert "Erased: 20 rows" in peerbayes("peer", "erase", home.folder, "--rows", listed, code=0).stdout


def test_a_column_that_the_data_lacks_is_a_mistake_of_who_asks(home):
    assert "'nosuch'" in peerbayes("peer", "erase", home.folder, "--where", "nosuch=7", code=2).stderr
    with pytest.raises(PeerbayesError, match="no column"):
        erase(home, pd.DataFrame({"nosuch": [7]}))


def two_rounds(home):
    """A run of which others heard a round."""
    from peerbayes.peer.state.store import RoundRecord, Store

    with contextlib.closing(Store(home.state_path)) as store:
        store.add_round(RoundRecord(0, (np.zeros((2, 2)),), {}, (), ()))
        store.add_round(RoundRecord(1, (np.zeros((2, 2)),), {}, (), ()))
        store.identity()


def test_who_heard_a_run_is_said_by_that_runs_members_also_if_they_were_revoked_since(tmp_path):
    folders = Folders(tmp_path, **FEATURES)
    home, runs = folders.network.homes["peer-2"], folders.runs["peer-2"]
    two_rounds(home)
    folders.network.founder.revoke("peer-3")
    folders.adopt("peer-1", "peer-2")
    runs.propose()
    folders.pass_on("peer-1", "peer-2")
    folders.runs["peer-1"].approve(2)
    folders.pass_on("peer-1", "peer-2")
    two_rounds(runs.prepare(runs.entry(2)))
    text = " ".join(erase(home, written(home).head(1)).sentences)
    assert "in run 1, peer-1, peer-3 (revoked since); in run 2, peer-1 heard statistics" in text
    aside = service.set_aside(home.of_run(2))
    assert aside is not None and runs.entry(2).round == 0
    text = " ".join(erase(home, written(home).head(1)).sentences)
    assert "; in run 2, peer-1 heard" in text, "a run that was left was heard as well"


def test_what_others_hold_is_said_once_runs_were_done(home):
    from peerbayes.peer.runs import Runs

    two_rounds(home)
    assert Runs(home.folder).entry(1).round == 1
    gone = " ".join(erase(home, pd.DataFrame({"patient": [7]})).sentences)
    assert gone == "If the data had them before, what run 1 learned from them stays, here and at the others."
    text = " ".join(erase(home, pd.DataFrame({"patient": [104]})).sentences)
    assert "What others hold stays with them: in run 1, peer-2 heard" in text
    assert "Run 1 had begun with them" in text and f"peer leave {home.folder} --run 1" in text


def test_statistics_that_are_sums_are_exactly_those_without_the_rows(home, tmp_path):
    """YᵀΦ of the rows that are left, to the last bit: nothing is subtracted, so nothing is left of what was erased."""
    from peerbayes.data.schema import Schema
    from peerbayes.model import core
    from peerbayes.model.families.naive_bayes import NaiveBayes

    erase(home, pd.DataFrame({"patient": [104, 117]}))
    kept = rows_of(home)
    plain = written(home).drop([4, 17])
    schema = Schema.infer(plain[["a", "b"]], plain["y"].to_numpy())
    family = NaiveBayes(continuous=2, cardinalities=())

    def sums(table):
        codes = schema.encode_labels(table["y"].to_numpy())
        features = np.asarray(family.features(schema.encode(table[["a", "b"]].reset_index(drop=True))))
        return core.statistics(features, np.eye(2)[codes])

    np.testing.assert_array_equal(sums(kept), sums(plain))
    assert terms_of(**FEATURES).features


# --- several networks, and what a network has learned from afterwards


def two_folders(tmp_path):
    """Two networks of one owner over the same rows, with patients' numbers."""
    homes = [Folders(tmp_path / name, **FEATURES).network.homes["peer-1"] for name in ("one", "two")]
    table = pd.read_csv(homes[0].settings().data)
    table.insert(0, "patient", np.arange(100, 100 + len(table)))
    for home in homes:
        table.to_csv(home.settings().data, index=False)
    of_rows(homes)
    return homes


def test_rows_are_erased_in_all_networks_over_them(tmp_path):
    one, two = two_folders(tmp_path)
    service.claimed(two, service.rows_of_run(two, two.load()))
    done = erase(one, pd.DataFrame({"patient": [104, 117]}))
    text = " ".join(done.sentences)
    assert f"In {two.folder}, which has the same rows, they are erased too (2 in its data)" in text
    assert "NOT ERASED" not in text
    for home in (one, two):
        assert len(rows_of(home)) == 38
        assert [request.columns for request in erasures(home.folder)] == [("patient",)]
    assert erasures(one.folder)[0].digests != erasures(two.folder)[0].digests
    assert not (two.folder / kept_rows.FILE).exists(), "no copy of them stays"


def test_what_is_not_erased_elsewhere_is_said(tmp_path):
    one, two = two_folders(tmp_path)
    written(two).drop(columns="patient").to_csv(two.settings().data, index=False)
    shown = peerbayes("peer", "erase", one.folder, "--where", "patient=104", code=0).stdout
    flat = "".join(shown.split())
    assert f"NOTERASEDin{two.folder}" in flat and "whichisnocolumnof" in flat
    assert len(rows_of(one)) == 39 and erasures(two.folder) == []


def test_a_networks_next_model_is_that_of_a_network_that_never_had_the_rows(tmp_path):
    """From files to the model file: S, YᵀΦ and the units of columns have the same bits, though run 1 had the rows."""

    def network(folder, tables):
        terms = terms_of(strategy="exact", start="ml", rounds=20, select="held-out", **FEATURES)
        homes = [*Loopback.create(folder, terms, tables, ((0, 1),)).homes.values()]
        for home in homes:
            changed(home, hold_out=0.3)
            (home.folder / KEY).write_bytes(bytes(32))  # the same rows held out in both networks
        return homes

    tables = [some_rows(seed, 80).assign(patient=np.arange(80)) for seed in (1, 2)]
    homes = network(tmp_path / "lived", tables)
    done(homes)
    gone = [*range(3, 13)]
    erase(homes[0], pd.DataFrame({"patient": gone}))
    agreed_run(homes, warm=False)
    done(homes, 2)
    fresh = network(tmp_path / "fresh", [tables[0].drop(gone), tables[1]])
    done(fresh)
    for home, other in zip(homes, fresh, strict=True):
        before, lived = (Statistics.from_bytes(History(home.folder).content(number)) for number in (1, 2))
        never = Statistics.from_bytes(History(other.folder).content(1))
        assert lived.schema == never.schema and lived.schema != before.schema
        np.testing.assert_array_equal(lived.values, never.values)
        assert lived.likelihood is not None
        np.testing.assert_array_equal(lived.likelihood, never.likelihood)
        assert not np.array_equal(lived.likelihood, before.likelihood)
