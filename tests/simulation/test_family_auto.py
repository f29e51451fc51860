"""Simulations with family "auto": the run is that of the family chosen, and everything that shows it says so."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.cli.simulate import print_summary
from peerbayes.data.table import Table
from peerbayes.learning.family_choice import agreed_choice, family_sums, judging
from peerbayes.model.candidates import CANDIDATES
from peerbayes.peer.agreement.terms import Terms
from peerbayes.simulation.chosen_family import chosen_family, contest_of, entrants_of
from peerbayes.simulation.population import Assignment, draw_network, sum_bytes, table_of
from peerbayes.simulation.result import Run
from peerbayes.simulation.settings import SimulationSettings

NETWORK = {"peers": 6, "rows_per_peer": 60, "rounds": 4, "evaluate_every": 0, "references": False}


def table(kind, rows=500, seed=0):
    """Rows whose class follows from one column, from two together, or from a column in bands."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "c"])
    score = {"alone": X["a"], "together": X["a"] * X["b"], "bands": 1.5 * (np.abs(np.abs(X["a"]) - 1) - 0.4)}[
        kind
    ]
    return X, np.where(score + 0.3 * rng.normal(size=rows) > 0, "yes", "no")


@pytest.mark.parametrize(
    ("kind", "families"),
    [("alone", ("naive-bayes", "lda", "qda")), ("together", ("qda", "tan", "kdb")), ("bands", ("bins",))],
)
def test_the_run_is_that_of_the_family_chosen(kind, families, monkeypatch):
    X, y = table(kind)
    if kind == "bands":
        monkeypatch.delitem(CANDIDATES, "ga2m")  # whose bins are smoothed, and which is ahead here
    auto = pb.simulate(X, y, family="auto", **NETWORK)
    choice = auto.family_choice
    assert choice.chosen in families
    candidate, settings = CANDIDATES[choice.chosen], auto.configuration
    assert (settings["family"], settings["start"]) == (candidate.family, candidate.start)
    assert settings["kinds"] == ("binned" if choice.chosen == "bins" else "auto")
    named = pb.simulate(
        X, y, family=candidate.family, start=candidate.start, kinds=settings["kinds"], **NETWORK
    )
    np.testing.assert_array_equal(auto.stats, named.stats)
    assert auto.schema == named.schema and named.family_choice is None
    assert auto.made["family choice"] == choice.reason
    extra = auto.history["bytes"].to_numpy() - named.history["bytes"].to_numpy()
    assert (extra > 0).all()


def test_what_peers_send_for_the_choice_counts():
    X, y = table("alone")
    settings = SimulationSettings({"family": "auto", **NETWORK})
    assignment = Assignment.of(table_of(X), y, settings)
    judges = judging(assignment.schema, assignment.rows())
    entrants, left_out = entrants_of(settings, assignment)
    sums = family_sums(entrants, contest_of(settings, assignment, judges), left_out)
    choice, numbers = agreed_choice(sums, 6)
    expected = sum_bytes(draw_network("tree", 6, 0).at(1), numbers)
    found = chosen_family(settings, X, y)
    assert found.choice == choice
    np.testing.assert_array_equal(found.sent, expected)
    assert Table.of(X).rows == 500 and sum(map(len, found.parts)) == 360


def test_kinds_and_starts_that_are_named_hold_for_all_candidates():
    X, y = table("bands")
    run = pb.simulate(X, y, family="auto", kinds={"a": "continuous", "b": "auto"}, start="ml", **NETWORK)
    assert run.schema.kinds["a"] == "continuous" and run.configuration["start"] == "ml"
    problems = {judged.name: judged.problem for judged in run.family_choice.candidates if judged.problem}
    assert "aode does not take" in problems["aode"]
    declared = pb.simulate(X, y, family="auto", schema=pb.Schema.infer(X, y), **NETWORK)
    problems = {judged.name: judged.problem for judged in declared.family_choice.candidates if judged.problem}
    assert set(problems) == {"bins", "aode"}


def test_rows_held_out_for_the_round_do_not_judge_families():
    X, y = table("alone")
    run = pb.simulate(X, y, family="auto", hold_out=0.2, select="held-out", **NETWORK)
    alone = pb.simulate(X, y, family="auto", **NETWORK)
    assert run.family_choice.rows < alone.family_choice.rows


def test_the_choice_is_stored_and_shown(tmp_path, capsys):
    X, y = table("together")
    run = pb.simulate(X, y, family="auto", **NETWORK)
    choice = run.family_choice
    run.save(tmp_path)
    assert Run.load(tmp_path).family_choice == choice
    assert "learned     qda" in repr(run) and "(chosen: family" in repr(run)
    print_summary(run, "table")
    assert f"Family chosen, {choice.chosen} (" in capsys.readouterr().out
    print_summary(run, "json")
    assert json.loads(capsys.readouterr().out)["family_choice"]["reason"] == choice.reason
    pytest.importorskip("plotly")
    page = run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Choice of the family" in page and ", which they chose themselves, of 2 classes" in page
    for judged in choice.candidates:
        assert judged.problem or re.search(f"<td[^>]*>{judged.log_loss:.4f}</td>", page)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "dsgd"}, "family 'auto' with strategy 'dsgd', which learns weights"),
        ({"robust": "clip"}, "family 'auto' with robust 'clip'"),
        ({"privacy": pb.Privacy(epsilon=4.0)}, "family 'auto' with epsilon 4"),
        ({"secure_sum": True}, "family 'auto' with secure_sum"),
    ],
    ids=["dsgd", "robust", "privacy", "secure sums"],
)
def test_settings_without_a_choice_say_to_name_a_family(settings, words):
    with pytest.raises(ValueError, match=f"{words}.*expected a family by its name, naive-bayes"):
        pb.simulate(*table("alone"), family="auto", **NETWORK | settings)


def test_an_agreement_may_leave_the_family_open():
    assert Terms("n", "y", family="auto").digest != Terms("n", "y").digest
