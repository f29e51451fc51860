"""Callbacks see a run as it was, whatever ends it, and change nothing of it."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes.callbacks import Callback, figures_of
from peerbayes.errors import CallbackFailed
from peerbayes.learning import state
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.sharded import simulate_shards

WINE = load_wine(return_X_y=True)
SETTINGS = {"peers": 6, "rows_per_peer": 15, "rounds": 6, "references": False}


class Notes(Callback):
    """Keeps all that it is called with."""

    def __init__(self):
        self.events, self.infos, self.figures = [], [], {}

    def begin(self, info):
        self.events.append("begin")
        self.infos.append(info)

    def evaluated(self, round_index, figures):
        self.events.append(round_index)
        self.figures[round_index] = figures

    def end(self, run):
        self.events.append(run)

    def failed(self, error):
        self.events.append(error)


class Broken(Notes):
    """Raises at one event."""

    def __init__(self, event, error):
        super().__init__()
        self.event, self.error = event, error

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "event"):
            return self.fail
        return object.__getattribute__(self, name)

    def fail(self, *_):
        raise self.error


def same_figures(figures, frame):
    """Whether figures are the means and deviations of rounds of a history."""
    by_round = frame.groupby("round")
    assert list(figures) == list(by_round.groups)
    for name in COLUMNS[2:]:
        seen = [[each[name], each[f"{name}_std"]] for each in figures.values()]
        expected = np.stack([by_round[name].mean(), by_round[name].std(ddof=0)], 1)
        np.testing.assert_allclose(seen, expected, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"evaluate_every": 4},
        {"attack": "flip"},
        {"faults": [{"kind": "away", "peers": [2], "first": 3}]},
        {"hold_out": 0.2, "select": "held-out", "evaluate_every": 0},
    ],
)
def test_a_run_with_callbacks_is_the_same_run_and_they_see_its_history(settings):
    plain, notes = pb.simulate(*WINE, **SETTINGS, **settings), Notes()
    run = pb.simulate(*WINE, **SETTINGS, **settings, callbacks=[notes])
    assert run.stats.tobytes() == plain.stats.tobytes()
    assert run.records.tobytes() == plain.records.tobytes()
    assert run.configuration == plain.configuration
    assert notes.events[0] == "begin" and notes.events[-1] is run
    same_figures(notes.figures, run.history)
    [info] = notes.infos
    assert info.configuration == run.configuration and info.schema == run.schema
    assert (info.sizes == run.sizes).all() and info.made["began"] == run.made["began"]


def test_seconds_are_those_of_rounds():
    notes = Notes()
    run = pb.simulate(*WINE, **SETTINGS, callbacks=[notes])
    seconds = [figures["seconds"] for figures in notes.figures.values()]
    assert seconds[0] > 0 and (np.diff(seconds) > 0).all() and seconds[-1] <= run.seconds["rounds"]
    assert "callbacks" in run.seconds
    assert "callbacks" not in pb.simulate(*WINE, **SETTINGS).seconds


def test_what_a_callback_gets_is_its_own():
    def spoil(round_index, figures):
        figures.clear()

    class Spoiler:
        def begin(self, info):
            info.configuration["strategy"] = "spoilt"
            info.made.clear()
            info.sizes[:] = 0

    notes, plain = Notes(), pb.simulate(*WINE, **SETTINGS)
    run = pb.simulate(*WINE, **SETTINGS, callbacks=[spoil, Spoiler(), notes])
    same_figures(notes.figures, run.history)
    assert run.configuration == plain.configuration and run.made["began"] and (run.sizes == plain.sizes).all()
    assert notes.infos[0].configuration == plain.configuration and notes.infos[0].made == run.made


def test_shards_call_them_too():
    notes = Notes()
    run = simulate_shards(
        *WINE, peers=6, rows_per_peer=15, rounds=6, evaluate_every=2, strategy="exact", callbacks=[notes]
    )
    assert notes.events == ["begin", 2, 4, 6, run]
    same_figures(notes.figures, run.history)
    assert notes.infos[0].configuration == run.configuration and "peerbayes" in notes.infos[0].made


@pytest.mark.parametrize("simulate", [pb.simulate, simulate_shards])
@pytest.mark.parametrize("event", ["begin", "evaluated"])
@pytest.mark.parametrize("error", [ConnectionError("no tracker"), KeyboardInterrupt()])
def test_an_error_names_its_callback_and_closes_all(simulate, event, error):
    first, broken, last = Notes(), Broken(event, error), Notes()
    settings = {**SETTINGS, "evaluate_every": 3}
    if simulate is simulate_shards:
        del settings["references"]
        settings["strategy"] = "exact"
    with pytest.raises(BaseException) as raised:
        simulate(*WINE, **settings, callbacks=[first, broken, last])
    when = "begin" if event == "begin" else "evaluated, round 3"
    if isinstance(error, Exception):
        assert isinstance(raised.value, CallbackFailed) and raised.value.__cause__ is error
        assert str(raised.value) == f"callback Broken ({when}) failed with ConnectionError: no tracker"
    else:
        assert raised.value is error
    assert first.events[-1] is broken.events[-1] is raised.value
    assert last.events == ([] if event == "begin" else ["begin", raised.value])


def test_a_finished_run_is_not_lost_when_a_callback_fails_at_its_end():
    broken, last = Broken("end", OSError("disk full")), Notes()
    with pytest.raises(CallbackFailed, match=r"Broken \(end\) failed with OSError: disk full") as raised:
        pb.simulate(*WINE, **SETTINGS, callbacks=[broken, last])
    assert broken.events[-1] == 6 and last.events[-1] is raised.value.run
    assert raised.value.run.summary()["rounds"] == 6 and "attribute `run`" in raised.value.__notes__[0]


def test_an_error_while_closing_is_a_note_of_the_first():
    problem, last = ZeroDivisionError("one"), Notes()

    def stop(done, of):
        raise problem

    with pytest.raises(ZeroDivisionError) as raised:
        pb.simulate(*WINE, **SETTINGS, progress=stop, callbacks=[Broken("failed", OSError("two")), last])
    assert raised.value.__notes__ == ["callback Broken (failed) failed with OSError: two"]
    assert last.events[-1] is problem


def test_data_that_are_refused_begin_nothing():
    notes = Notes()
    with pytest.raises(pb.PartitionError):
        pb.simulate(*WINE, **{**SETTINGS, "peers": 1000}, callbacks=[notes])
    assert notes.events == []


def test_a_resumed_run_reports_the_rounds_before(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "PAUSE", 0.0)

    def stop(done, of):
        if done == 3:
            raise KeyboardInterrupt

    before, after = Notes(), Notes()
    settings = {**SETTINGS, "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(KeyboardInterrupt):
        pb.simulate(*WINE, **settings, progress=stop, callbacks=[before])
    run = pb.simulate(*WINE, **settings, callbacks=[after])
    assert isinstance(before.events[-1], KeyboardInterrupt)
    assert after.events == ["begin", 1, 2, 3, 4, 5, 6, run]
    same_figures(after.figures, run.history)
    assert np.isnan([after.figures[k]["seconds"] for k in (1, 2, 3)]).all()
    assert after.figures[4]["seconds"] > 0


def test_a_function_and_an_object_of_some_methods_are_callbacks():
    seen = []

    class Last:
        def end(self, run):
            seen.append(run)

    run = pb.simulate(*WINE, **SETTINGS, callbacks=(lambda *arguments: seen.append(arguments), Last()))
    assert [entry[0] for entry in seen[:-1]] == [1, 2, 3, 4, 5, 6] and seen[-1] is run
    last = run.records[-6:]
    assert seen[-2][1] == figures_of(last, seen[-2][1]["seconds"])


@pytest.mark.parametrize("simulate", [pb.simulate, simulate_shards])
@pytest.mark.parametrize(("wrong", "advice"), [(Notes(), ""), ([3], ""), ([Notes], "; call the class Notes")])
def test_what_is_no_callback_is_refused_with_what_one_is(simulate, wrong, advice):
    with pytest.raises(TypeError, match=f"callbacks is .*expected a list of callbacks, .* failed{advice}$"):
        simulate(*WINE, callbacks=wrong)
