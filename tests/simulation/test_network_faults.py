"""Faults of a network in simulations: peers that are away keep their state, and those that vanish count no more."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.errors import ConfigurationError
from peerbayes.learning import planning
from peerbayes.network import Away, Bursts, DeadLinks, Flapping, Loss, LossTrace
from peerbayes.simulation import config, drivers
from peerbayes.simulation.population import Population
from peerbayes.simulation.rounds import Late
from peerbayes.simulation.settings import SimulationSettings
from peerbayes.simulation.view import View

X, Y = load_wine(return_X_y=True)
QUICK = {
    "peers": 6,
    "rows_per_peer": 12,
    "topology": "ring",
    "rounds": 8,
    "references": False,
    "evaluate_every": 0,
}
BESIDE = {
    "exact": {}, "crc": {}, "relay": {}, "tracking": {}, "local": {}, "dsgd": {},
    "robust": {"strategy": "exact", "robust": "guard", "topology": "complete"},
    "secure": {"strategy": "exact", "secure_sum": True, "topology": "complete"},
    "late": {"strategy": "crc", "message_delay": 0.2},
    "changing": {"strategy": "exact", "topology": "tree", "change_every": 2},
    "churn": {"strategy": "exact", "peers_down": 0.2},
    "private": {"strategy": "exact", "privacy": pb.Privacy(min_rows=1)},
    "float32": {"strategy": "exact", "dtype": "float32"},
}  # fmt: skip


def settings_of(name, **more):
    return {**QUICK, **({"strategy": name} if name in planning.names() else {}), **BESIDE[name], **more}


def driver_of(**settings):
    asked = SimulationSettings(settings)
    peers = Population.of(asked, X, Y)
    start, _ = drivers.agreed_start(asked, peers)
    driver = drivers.build_driver(drivers.plan_of(asked, peers, start), asked, peers, start)
    return driver, driver.begin(asked.array_device.put(start))


def of_peer(driver, state, peer):
    """The arrays of a state that belong to a peer: by peers, and by links in the order of their receivers."""
    owners = [np.arange(6)]
    if isinstance(driver, drivers.OverTree):
        owners.append(driver.strategy.tree.receiver)
    elif driver.by_link:
        owners.append(driver._link_ends.receivers)
    taken = []

    def visit(value):
        if isinstance(value, tuple):
            for part in value:
                visit(part)
        elif np.ndim(value):
            for owner in owners:
                if len(value) == len(owner):
                    taken.append(np.asarray(value)[owner == peer])
                    break

    visit(state.state if isinstance(state, Late) else state)  # what a lagging link delivers is not the peer's
    assert taken
    return taken


@pytest.mark.parametrize("name", BESIDE)
def test_a_peer_that_is_away_keeps_its_state_bit_for_bit(name):
    driver, state = driver_of(**settings_of(name, faults=[Away([2], 3, 5), Loss(0.2)]))
    for turn in range(1, 9):
        before = of_peer(driver, state, 2)
        others = of_peer(driver, state, 3)
        state, sent = driver.advance(state, turn)
        after = of_peer(driver, state, 2)
        same = all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
        assert same or not 3 <= turn <= 5
        if turn in (3, 4, 5):
            assert sent[2] == 0
        elif name not in ("churn", "changing"):
            assert not same
            assert sent[2] > 0 or name == "local"
        if name not in ("churn", "changing"):
            assert not all(
                np.array_equal(old, new) for old, new in zip(others, of_peer(driver, state, 3), strict=True)
            )


@pytest.mark.parametrize("name", ["exact", "crc", "relay", "tracking", "secure", "robust", "changing"])
def test_to_the_others_a_peer_that_vanishes_is_one_whose_messages_are_lost(name):
    """The weights stay those of the whole network: nobody knows that it is away."""
    trace = [(turn, *ends) for turn in range(4, 9) for u in range(6) if u != 2 for ends in ((2, u), (u, 2))]
    vanished = pb.simulate(X, Y, **settings_of(name), faults=[Away([2], 4)])
    lost = pb.simulate(X, Y, **settings_of(name), faults=[LossTrace(trace)])
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(vanished.stats[others], lost.stats[others])
    assert not np.array_equal(vanished.stats[2], lost.stats[2])


def test_a_peer_that_vanished_does_not_count_from_then_on():
    settings = {**QUICK, "references": True, "evaluate_every": 1}
    run = pb.simulate(X, Y, **settings, faults=Away([2], 4))
    summary, history = run.summary(), run.history
    assert run.vanished.tolist() == [2] and summary["vanished"] == 1 and summary["peers"] == 5
    assert set(history[history["peer"] == 2]["round"]) == {1, 2, 3}
    last = history[history["round"] == 8]
    assert sorted(last["peer"]) == [0, 1, 3, 4, 5]
    assert summary["test_error"] == last["test_error"].mean()
    errors = [1 - run.classifier(peer).score(X, Y) for peer in (0, 1, 3, 4, 5)]
    assert np.isfinite(errors).all()
    whole = pb.simulate(X, Y, **settings)
    assert run.references["test_rc"] == whole.references["test_rc"]  # of the rows of all
    assert whole.vanished.size == 0 and "vanished" not in whole.summary()
    assert (
        "faults" not in whole.configuration
    )  # so that checkpoints and runs without faults are what they were
    view = View.of(run)
    assert np.isfinite(view.spread["test_error"]).all()
    np.testing.assert_allclose(view.spread["test_error"][-1, 0], summary["test_error"])
    alone = pb.simulate(X, Y, **{**settings, "strategy": "local"}, faults=Away([2], 4))
    assert alone.summary()["test_local"] == alone.summary()["test_error"]


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_faults_count_rounds_of_messages(strategy):
    """So do the histories of real peers, whose traces are replayed."""
    settings = {**QUICK, "strategy": strategy, "exchanges": 2, "evaluate_every": 1}
    run = pb.simulate(X, Y, **settings, faults=Away([2], 7))
    assert set(run.history[run.history["peer"] == 2]["round"]) == {1, 2, 3}
    sent = run.records[run.records[:, 1] == 2, 6]
    assert sent[2] > sent[1] and (sent[3:] == sent[2]).all()  # bytes of rounds of learning
    never = pb.simulate(X, Y, **settings, faults=Away([2], 17))
    np.testing.assert_array_equal(never.stats, pb.simulate(X, Y, **settings, faults=Away([2], 18)).stats)
    assert never.vanished.size == 0 and run.vanished.tolist() == [2]


def test_a_report_says_that_peers_vanished(tmp_path):
    pytest.importorskip("plotly")
    runs = [pb.simulate(X, Y, **QUICK, faults=faults) for faults in (None, Away([2, 4], 4))]
    alone = [run.report(tmp_path / f"{number}.html").read_text() for number, run in enumerate(runs)]
    assert "vanished" not in alone[0] and "2 peers vanished for good and do not count" in alone[1]
    from peerbayes.report import page

    assert "Peers that vanished" in page.summary(runs, ["one", "two"])


def test_a_peer_that_comes_back_counts(tmp_path):
    run = pb.simulate(X, Y, **{**QUICK, "evaluate_every": 1}, faults=Away([2], 4, 8))
    assert run.vanished.size == 0 and len(run.history) == 48
    gone = pb.simulate(X, Y, **QUICK, faults=Away([2, 3], 4))
    gone.save(tmp_path)
    assert pb.Run.load(tmp_path).vanished.tolist() == [2, 3]


@pytest.mark.parametrize("strategy", ["exact", "relay"])
def test_what_faults_lose_is_replayed_by_a_trace(strategy):
    """Whatever loses a message, to lose it is all that a fault does to it."""
    kinds = (Loss(0.2), Bursts(0.1, 3.0), Flapping([1], 1, 2, "each"), DeadLinks([[0, 1]]))
    run = pb.simulate(X, Y, **QUICK, strategy=strategy, faults=kinds)
    asked = SimulationSettings({**QUICK, "faults": kinds})
    senders, receivers = (ends.ravel() for ends in np.meshgrid(range(6), range(6)))
    lost = [
        (turn, int(u), int(v))
        for turn in range(1, 9)
        for u, v, arrives in zip(
            senders, receivers, asked.network_faults.fates(turn, senders, receivers)[0], strict=True
        )
        if u != v and not arrives
    ]
    replayed = pb.simulate(X, Y, **QUICK, strategy=strategy, message_loss=LossTrace(lost))
    np.testing.assert_array_equal(run.stats, replayed.stats)
    assert not np.array_equal(run.stats, pb.simulate(X, Y, **QUICK, strategy=strategy).stats)


def test_peers_do_not_know_of_faults_beforehand(monkeypatch):
    plans = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda *arguments: plans.append(plan(*arguments)) or plans[-1])
    pb.simulate(X, Y, **QUICK, faults=[Loss(0.2), Away([1], 2)])
    assert not plans[-1].settings.expects_loss


def test_the_seed_decides_and_a_checkpoint_goes_on(tmp_path):
    settings = {**QUICK, "faults": [Bursts(0.3, 3.0), Away(0.2, 2, 5), Flapping(0.3, 2, 2)]}
    first, again, other = (pb.simulate(X, Y, **settings, seed=seed, partition="iid") for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.stats, again.stats)
    assert not np.array_equal(first.stats, other.stats)
    path = tmp_path / "checkpoint"

    def stop(done, of):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.simulate(X, Y, **settings, seed=1, checkpoint=path, progress=stop)
    with pytest.raises(ConfigurationError, match="the checkpoint of another simulation"):
        pb.simulate(X, Y, **{**settings, "faults": Loss(0.3)}, seed=1, checkpoint=path)
    np.testing.assert_array_equal(pb.simulate(X, Y, **settings, seed=1, checkpoint=path).stats, first.stats)
    assert first.configuration["faults"].startswith(
        "bursts share=0.3 length=3.0 direction=both; away peers=0.2"
    )


# --- in files and on the command line ----------------------------------------------------------------------

FILE = """
[data]
name = "wine"
[simulation]
peers = 6
rows_per_peer = 12
topology = "ring"
rounds = 8
"""


def simulated(path, *changes):
    words = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(app, ["simulate", str(path), "--format", "json", *words])
    return done.exit_code, done.output


def test_faults_in_a_file_and_on_the_command_line(tmp_path):
    path, faults, lost = tmp_path / "run.toml", tmp_path / "faults.toml", tmp_path / "lost.csv"
    trace = LossTrace([(2, 0, 1), (3, 1, 2)])
    trace.save(lost)
    table = 'kind = "flapping"\npeers = [2]\nup = 1\ndown = 2\ndirection = "in"\n'
    path.write_text(FILE + "[[simulation.faults]]\n" + table)
    expected = (Flapping([2], 1, 2, "in"),)
    assert SimulationSettings(config.read(path).settings).faults == expected
    path.write_text(FILE)
    faults.write_text("[[faults]]\n" + table)
    for change in (
        f"faults={faults}",
        'faults=[{ kind = "flapping", peers = [2], up = 1, down = 2, direction = "in" }]',
    ):
        assert SimulationSettings(config.read(path, (change,)).settings).faults == expected
    for change in (f"message_loss={lost}", f'message_loss=["{lost}", "{lost}"]'):
        assert SimulationSettings(config.read(path, (change,)).settings).message_loss == trace
    code, output = simulated(
        path, f"message_loss={lost}", 'faults=[{ kind = "away", peers = [3], first = 4 }]'
    )
    content = json.loads(output)
    assert code == 0 and content["summary"]["vanished"] == 1 and content["summary"]["peers"] == 5
    assert content["configuration"]["faults"] == "away peers=(3,) first=4"
    assert content["configuration"]["message_loss"] == str(trace)
    done = CliRunner().invoke(app, ["simulate", str(path), "--set", f"faults={faults}"])
    assert done.exit_code == 0 and "vanished" not in done.output
    done = CliRunner().invoke(
        app, ["simulate", str(path), "--set", 'faults=[{ kind = "away", peers = [3], first = 4 }]']
    )
    assert done.exit_code == 0 and "1 peers vanished for good" in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            'faults = [{ kind = "rain" }]',
            "line 9: faults: the kind of a fault is 'rain'; expected one of loss",
        ),
        ('faults = [{ kind = "loss" }]', "line 9: faults: loss is {}; expected a table of share"),
        ('faults = "nowhere.toml"', "line 9: faults is 'nowhere.toml'; expected a list of Loss"),
        ("faults = 0.2", "line 9: faults is 0.2; expected a list of Loss"),
        ('message_loss = "nowhere.csv"', "line 9: message_loss: 'nowhere.csv' cannot be read: No such file"),
        (
            'faults = [{ kind = "away", peers = [6], first = 1 }]',
            "peer 6, and there are 6 peers, counted from 0",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_refused_with_its_line(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(FILE + line + "\n")
    code, output = simulated(path)
    assert code == 2 and words in " ".join(output.split())
