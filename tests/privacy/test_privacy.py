"""Differential privacy in simulations: what holds, what is refused, what is spent, what it costs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.cli.app import app
from peerbayes.learning.combinations import Combination, refuse
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.relay import Relay, spanning_tree
from peerbayes.learning.strategies import CRC, Exact, Local, Tracking
from peerbayes.model import core
from peerbayes.model.devices import NUMPY
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.privacy import accounting
from peerbayes.simulation import private
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.private import PrivateRows, agreed
from peerbayes.simulation.rounds import Broadcast, OverTree


def table(rows=900, seed=0):
    """Two continuous and one discrete column, of three classes."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    return pd.DataFrame(
        {
            "a": y + rng.standard_normal(rows),
            "b": 5 * rng.standard_normal(rows) - 3 * (y == 1),
            "c": np.array(["x", "y", "z"])[np.where(rng.random(rows) < 0.6, y, rng.integers(3, size=rows))],
        }
    ), y


def run(privacy, **settings):
    X, y = table()
    given = {"peers": 8, "rows_per_peer": 60, "topology": "regular-4", "rounds": 24, "references": False,
             "evaluate_every": 0, **settings}  # fmt: skip
    return pb.simulate(X, y, privacy=privacy, **given)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"strategy": "consensus-ml"}, "sums of the rows themselves"),
        ({"strategy": "dsgd"}, "length of the rows"),
        ({"family": "aode", "kinds": "discrete"}, "not computed row by row"),
        ({"family": "tan", "robust": "clip"}, "the structure of tan is bought: one liar"),
        ({"kinds": {"a": "supervised"}}, "column 'a' is 'supervised', whose edges lie where the classes"),
        ({"local_steps": 2}, "release of its own"),
        ({"objective": "peers"}, "weighs a row"),
        ({"robust": "guard"}, "tells of its rows"),
        ({"dtype": "float32"}, "float64"),
        ({"rows_per_peer": 20}, "peer 0 has 20 rows, fewer than min_rows = 50"),
    ],
)
def test_what_cannot_be_private_is_refused_with_a_reason(settings, reason):
    with pytest.raises(ValueError, match=reason):
        run(pb.Privacy(), **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"topology": "tree"}, "at least 3 neighbours"),
        ({"robust": "clip"}, "clipped messages do not add up"),
        ({"topology": "regular-4", "change_every": 5}, "changes"),
    ],
)
def test_edge_noise_that_would_not_cancel_is_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        run(pb.Privacy(edge_noise=3.0), **settings)


@pytest.mark.parametrize(
    "faults", [{"message_loss": 0.2}, {"message_delay": 0.2}, {"peers_down": 0.2}], ids=str
)
def test_edge_noise_costs_the_same_where_messages_fail(faults):
    """As between real peers: it is drawn for all links of the network that was agreed on, and hides as much."""
    privacy = pb.Privacy(edge_noise=3.0)
    reliable, lossy = run(privacy), run(privacy, **faults)
    assert lossy.privacy.equals(reliable.privacy) and np.isfinite(lossy.stats).all()
    assert not np.allclose(lossy.stats, reliable.stats)


def test_edge_noise_is_drawn_for_absent_peers_too(monkeypatch):
    networks = []
    drawn = private.PrivateRows.__init__

    def noted(self, scheme, local_rows, network, seed):
        networks.append(network)
        drawn(self, scheme, local_rows, network, seed)

    monkeypatch.setattr(private.PrivateRows, "__init__", noted)
    for down in (0.0, 0.5):
        run(pb.Privacy(edge_noise=3.0), peers_down=down, rounds=2)
    first, second = (network.toarray() for network in networks)
    assert (first == second).all() and first.sum() == 8 * 4


def test_messages_with_noise_are_not_taken_for_lies():
    for epsilon in (0.5, 4.0):
        found = run(pb.Privacy(epsilon=epsilon), robust="clip", attack=pb.Attack("flip", fraction=0.0))
        assert sum(found.rejected.values()) == 0


def test_rows_that_are_completed_are_refused():
    X, y = table()
    X.loc[::7, "a"] = np.nan
    with pytest.raises(ValueError, match="completes"):
        pb.simulate(X, y, family="qda", peers=5, rows_per_peer=60, privacy=pb.Privacy())


def test_missing_values_of_naive_bayes_add_nothing():
    """Also where a column's values are missing, releases are those of the rows that have them."""
    X, y = table()
    X.loc[::5, "a"], X.loc[::6, "c"] = np.nan, None
    settings = {"peers": 4, "rows_per_peer": 100, "rounds": 16, "references": False, "evaluate_every": 0}
    loud = pb.Privacy(epsilon=1e5, clip=10.0)
    private = pb.simulate(X, y, privacy=loud, **settings)
    plain = pb.simulate(X, y, clip=3.0, strategy=Exact(rounds=16, averaged=private_window(16)), **settings)
    assert np.abs(private.stats - plain.stats).max() < 0.01 * 16 * 100


def private_window(rounds):
    from peerbayes.learning.strategies import NOISY_WINDOW

    return max(1, int(rounds * NOISY_WINDOW))


# --- what holds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda"])
def test_without_noise_to_speak_of_it_is_the_run_without_privacy(family):
    settings = {"family": family, "rounds": 24}
    private = run(pb.Privacy(epsilon=1e6, clip=20.0), **settings)
    plain = run(None, clip=3.0, strategy=Exact(rounds=24, averaged=private_window(24)), **settings)
    assert np.abs(private.stats - plain.stats).max() < 2e-3 * 60 * 24
    assert private.summary()["test_error"] == pytest.approx(plain.summary()["test_error"], abs=0.01)


@pytest.mark.parametrize("strategy", ["exact", "crc", "tracking", "relay", "local"])
def test_a_seed_gives_the_same_bits_and_another_other_noise(strategy):
    one, same, other = (run(pb.Privacy(), strategy=strategy, seed=seed, rounds=6) for seed in (0, 0, 1))
    assert np.array_equal(one.stats, same.stats) and not np.array_equal(one.stats, other.stats)


FAMILY = NaiveBayes(continuous=2, cardinalities=(3, 4), variance_floor=0.05, count_floor=1e-4)


def private_rows(peers, rounds, terms, family=FAMILY, network=None, start="uniform", rows=60):
    rng = np.random.default_rng(3)
    count = peers * rows
    codes = [rng.integers(size, size=count) for size in family.cardinalities]
    given = Rows(rng.standard_normal((count, family.continuous)), np.stack(codes, 1))
    labels = rng.integers(3, size=count)
    held = LocalRows(family, given, labels, np.ones(count), np.full(peers, rows), 3)
    schedule = topologies.schedule(network or "regular-4", peers, np.random.default_rng(0), None)
    scheme = agreed(terms, held, rounds, 0.05, schedule.at(1), start)
    return PrivateRows(scheme, held, schedule.at(1), 0), schedule


@pytest.mark.parametrize(
    ("strategy", "edge_noise"),
    [("exact", 0.0), ("exact", 3.0), ("crc", 0.0), ("tracking", 0.0), ("relay", 3.0), ("local", 0.0)],
)
@pytest.mark.long
def test_invariants_hold_over_a_thousand_rounds(strategy, edge_noise):
    """Class sums stay and cells add up to the class count, in every message, to 10⁻⁹·m⁰."""
    rounds, peers = 1000, 5
    residual, schedule = private_rows(peers, rounds, pb.Privacy(edge_noise=edge_noise))
    mass = 60 / 0.05
    start = np.tile(FAMILY.uniform(3, mass), (peers, 1, 1))
    known = {
        "exact": Exact(rounds=rounds, averaged=8),
        "crc": CRC(),
        "tracking": Tracking(),
        "local": Local(),
    }
    if strategy == "relay":
        driver = OverTree(Relay(spanning_tree(schedule.at(1)), rounds), residual, Faults(0.0, 0))
    else:
        driver = Broadcast(known[strategy], schedule, residual, Faults(0.0, 0), NUMPY)
    state, worst = driver.begin(start), 0.0
    for turn in range(1, rounds + 1):
        state, _ = driver.advance(state, turn)
        if turn % 50 == 0 or turn < 5:
            sent = driver.strategy.messages(state) if strategy == "relay" else driver.strategy.message(state)
            messages = [(sent, 0.0)] if strategy == "relay" else [(sent, 1.0)]
            if strategy == "tracking":
                messages = [(sent[:, 0], 1.0), (sent[:, 1], 0.0)]
            messages.append((driver.read(state), 1.0))
            for message, of_start in messages:
                sums = of_start * start[0].sum(axis=0)
                worst = max(worst, np.abs(message.sum(axis=-2) - sums).max())
                for cells, _ in FAMILY.tabled():
                    worst = max(worst, np.abs(message[..., cells].sum(axis=-1) - message[..., 0]).max())
            assert np.isfinite(sent).all()
    assert worst <= 1e-9 * mass


@pytest.mark.parametrize("edge_noise", [0.0, 3.0])
def test_noise_has_the_size_that_was_reckoned_with(edge_noise):
    """Of one peer's release, and of the network's sum, in which edge noise cancels."""
    residual, _ = private_rows(12, 4000, pb.Privacy(edge_noise=edge_noise))
    scheme, start = residual.scheme, np.tile(FAMILY.uniform(3, 1200.0), (12, 1, 1))
    quiet = np.stack([np.asarray(residual(start)) for _ in range(60)])
    moved = scheme.mechanism.coordinates.to(quiet - quiet.mean(axis=0))
    numbers = 2 * (FAMILY.size - 2) * 59 / 60  # what projection and the mean leave of 3·K
    of_peers = (moved**2).sum(axis=(2, 3)).mean() / numbers
    of_sum = (moved.sum(axis=1) ** 2).sum(axis=(1, 2)).mean() / numbers
    expected = scheme.sigma**2 * (1 + 4 * edge_noise**2)
    assert of_peers == pytest.approx(expected, rel=0.06)
    assert of_sum == pytest.approx(12 * scheme.sigma**2, rel=0.15)


def test_a_budget_that_is_spent_releases_nothing():
    residual, _ = private_rows(6, 5, pb.Privacy())
    start = np.tile(FAMILY.uniform(3, 1200.0), (6, 1, 1))
    released = [residual(start) for _ in range(8)]
    assert all(np.any(one) for one in released[:5]) and not np.any(released[5:])
    assert residual.spent()[0, 1] == 5


@pytest.mark.parametrize(("strategy", "calls"), [("exact", 25), ("crc", 24), ("tracking", 25), ("relay", 24)])
def test_a_round_is_one_release(strategy, calls, monkeypatch):
    """`exact` and `tracking` ask once more after the last message; that release is of nothing."""
    seen = []
    plain = PrivateRows.__call__

    def watched(self, stats):
        seen.append(plain(self, stats))
        return seen[-1].copy()

    monkeypatch.setattr(PrivateRows, "__call__", watched)
    run(pb.Privacy(), strategy=strategy)
    assert len(seen) == calls and all(np.any(one) for one in seen[:24]) and not np.any(seen[24:])


def test_values_are_held_within_the_bound():
    done = run(pb.Privacy(bound=2.0))
    assert done.schema.clip == 2.0


def test_declared_units_are_taken_as_they_are():
    X, y = table()
    declared = pb.Schema.infer(X, y)
    columns = [
        pb.Column("a", "continuous", location=0.0, scale=4.0),
        pb.Column("b", "continuous", location=1.0, scale=9.0),
    ]
    declared = type(declared)((*columns, declared.columns[2]), declared.classes)
    settings = {"peers": 5, "rows_per_peer": 60, "rounds": 4, "references": False, "schema": declared}
    private = pb.simulate(X, y, privacy=pb.Privacy(), **settings)
    assert private.schema.scale.tolist() == [4.0, 9.0] and private.schema.location.tolist() == [0.0, 1.0]
    assert pb.simulate(X, y, **settings).schema.scale.tolist() != [4.0, 9.0]


# --- starts that are bought ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["ml", "marginal"])
def test_a_start_is_bought_from_the_budget(start):
    done = run(pb.Privacy(epsilon=2.0), start=start, family="qda")
    assert done.privacy["epsilon"].to_numpy() == pytest.approx(2.0, abs=1e-8)
    residual, _ = private_rows(6, 24, pb.Privacy(epsilon=2.0), start=start)
    ledger, mu = residual.scheme.ledger, accounting.mu_of(2.0, 1e-5)
    assert ledger.first == pytest.approx(0.2 * mu**2) and ledger.mu(24) == pytest.approx(mu)
    clip, sigma = (
        residual.scheme.start_clip,
        math.ldexp(residual.scheme.start_sigma, -residual.scheme.mechanism.bits),
    )
    assert (clip / sigma) ** 2 == pytest.approx(ledger.first, rel=1e-6)


def test_a_bought_start_is_the_sum_of_the_rows_and_noise():
    residual, _ = private_rows(6, 24, pb.Privacy(epsilon=1e6), start="ml", rows=200)
    held = residual.local_rows
    loose = residual.start()
    exact = held.statistics()
    # long rows are clipped, so counts are a little smaller; cells add up to them all the same
    assert np.all(loose[..., 0] <= exact[..., 0] + 0.5) and np.all(loose[..., 0] > 0.8 * exact[..., 0])
    for cells, _ in FAMILY.tabled():
        assert np.allclose(loose[..., cells].sum(axis=-1), loose[..., 0], atol=1e-6)
    assert np.allclose(residual.start(marginal=True)[:, 0], loose.sum(axis=1), atol=1.0)


# --- what is told -------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_spent_and_keeps_it(tmp_path):
    done = run(pb.Privacy(epsilon=2.0, delta=1e-6))
    frame = done.privacy
    assert list(frame) == ["sigma", "rounds", "epsilon", "delta", "rho"] and len(frame) == 8
    assert frame["epsilon"].max() == pytest.approx(2.0, abs=1e-8) and frame["epsilon"].max() <= 2.0
    assert (frame["rounds"] == 24).all() and (frame["delta"] == 1e-6).all()
    planned = pb.plan(60, 8, 3, 2, (3,), epsilon=2.0, delta=1e-6, rounds=24)
    assert frame["sigma"][0] == pytest.approx(planned.sigma) and frame["rho"][0] == pytest.approx(planned.rho)
    assert done.summary()["epsilon"] == frame["epsilon"].max()
    assert done.configuration["privacy"]["epsilon"] == 2.0
    done.save(tmp_path)
    again = pb.Run.load(tmp_path)
    assert again.privacy.equals(frame) and again.summary()["epsilon"] == done.summary()["epsilon"]


def test_a_run_without_privacy_has_spent_nothing(tmp_path):
    done = run(None)
    assert (
        len(done.privacy) == 0 and "epsilon" not in done.summary() and done.configuration["privacy"] is None
    )
    done.save(tmp_path)
    assert len(pb.Run.load(tmp_path).privacy) == 0


def test_a_report_shows_the_terms(tmp_path):
    pytest.importorskip("plotly")
    page = run(pb.Privacy(epsilon=2.5), evaluate_every=8).report(tmp_path / "report.html").read_text()
    assert "2.5" in page and "privacy" in page


@pytest.mark.parametrize("strategy", ["exact", "crc", "relay"])
def test_a_killed_run_goes_on_with_the_same_noise(tmp_path, strategy, monkeypatch):
    from peerbayes.learning import state as checkpoints

    monkeypatch.setattr(checkpoints, "PAUSE", -1.0)
    whole = run(pb.Privacy(), strategy=strategy, rounds=10)

    def stop(done, _):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(pb.Privacy(), strategy=strategy, rounds=10, checkpoint=tmp_path / "kept", progress=stop)
    resumed = run(pb.Privacy(), strategy=strategy, rounds=10, checkpoint=tmp_path / "kept")
    assert np.array_equal(resumed.stats, whole.stats) and resumed.privacy.equals(whole.privacy)


def test_privacy_costs_something_and_edge_noise_gives_some_of_it_back():
    X, y = table(6000)
    settings = {
        "peers": 40,
        "rows_per_peer": 60,
        "topology": "regular-6",
        "references": False,
        "evaluate_every": 0,
    }
    errors = [
        np.mean(
            [
                pb.simulate(X, y, privacy=terms, seed=seed, **settings).summary()["test_error"]
                for seed in (0, 1)
            ]
        )
        for terms in (None, pb.Privacy(0.5, edge_noise=3.0), pb.Privacy(0.5))
    ]
    assert errors[0] < errors[1] < errors[2]


# --- the command line ------------------------------------------------------------------------------------------------


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def test_a_plan_on_the_command_line():
    words = ["privacy", "plan", "--rows", "320", "--peers", "50", "--classes", "26", "--continuous", "16"]
    told = invoke(*words)
    assert told.exit_code == 0 and "σ = 24.84" in told.output and "rule of thumb" in told.output
    found = json.loads(invoke(*words, "--format", "json").output)
    assert found["rho"] == pytest.approx(pb.plan(320, 50, 26, 16).rho)
    assert found["membership"] == pytest.approx(0.743, abs=0.001) and found["pays"] == "yes"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--rows", "50", "--peers", "5"), "at least one column"),
        (("--rows", "50", "--peers", "5", "--discrete", "2,x"), "--discrete"),
        (("--rows", "50", "--peers", "5", "--continuous", "2", "--clip", "x"), "--clip"),
        (("--rows", "50", "--peers", "5", "--continuous", "2", "--epsilon", "-1"), "epsilon"),
        (("--rows", "0", "--peers", "5", "--continuous", "2"), "rows is 0"),
        (("--rows", "50", "--peers", "9", "--continuous", "2", "--edge-noise", "3", "--topology", "tree"), "3 neigh"),
        (("--rows", "50", "--peers", "9", "--continuous", "2", "--family", "tan"), "family"),
        (("--rows", "50", "--peers", "9", "--continuous", "2", "--lr", "0"), "lr is"),
        (("--rows", "50", "--peers", "9", "--continuous", "2", "--format", "xml"), "--format"),
    ],
)  # fmt: skip
def test_plans_that_make_no_sense_are_refused(words, reason):
    told = invoke("privacy", "plan", *words)
    assert told.exit_code == 2 and reason in told.stderr


@pytest.mark.parametrize(
    # letter, mnist (512 columns) and adult as the paper has them: error with privacy, and alone; of
    # benchmarks/privacy.py where it has them, else of the prototype that the rule was found with
    ("setting", "private", "alone"),
    [
        ((50, 50, 26, 16, (), 8.0), 0.570, 0.678), ((50, 50, 26, 16, (), 4.0), 0.812, 0.678),
        ((320, 50, 26, 16, (), 4.0), 0.287, 0.360), ((320, 50, 26, 16, (), 1.0), 0.521, 0.350),
        ((1000, 16, 26, 16, (), 8.0), 0.244, 0.262), ((1000, 16, 26, 16, (), 1.0), 0.336, 0.262),
        ((50, 50, 10, 512, (), 8.0), 0.570, 0.375), ((320, 50, 10, 512, (), 4.0), 0.146, 0.125),
        ((1000, 16, 10, 512, (), 4.0), 0.077, 0.068), ((50, 50, 2, 10, (2, 5, 9, 6), 4.0), 0.175, 0.221),
        ((320, 50, 2, 10, (2, 5, 9, 6), 1.0), 0.170, 0.174),
    ],
)  # fmt: skip
def test_the_rule_of_thumb_agrees_with_what_was_measured(setting, private, alone):
    rows, peers, classes, features, categories, epsilon = setting
    assert pb.plan(rows, peers, classes, features, categories, epsilon).pays == (
        "yes" if private < alone else "no"
    )


def test_a_settings_file_may_ask_for_privacy(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[data]\nname = "iris"\n[simulation]\npeers = 4\nrows_per_peer = 30\nrounds = 4\n'
        "privacy = { epsilon = 2.0, min_rows = 20 }\n"
    )
    told = invoke("simulate", str(file), "--format", "json")
    assert told.exit_code == 0, told.stderr
    found = json.loads(told.output)
    assert found["configuration"]["privacy"]["min_rows"] == 20 and found["summary"][
        "epsilon"
    ] == pytest.approx(2.0)
    assert "epsilon 2" in invoke("simulate", str(file)).output
    file.write_text("[simulation]\nprivacy = { epsilo = 2.0 }\n")
    told = invoke("simulate", str(file))
    assert told.exit_code == 2 and "epsilon, delta, clip" in told.stderr


def test_membership_is_bounded_by_what_the_ledger_says():
    """The likelihood ratio test that knows everything but the noise and whether the row was there."""
    residual, _ = private_rows(1, 1, pb.Privacy(epsilon=8.0, clip=0.5), network="complete")
    mechanism, held = residual.scheme.mechanism, residual.local_rows
    moved = mechanism.rows(FAMILY, held.rows)
    steps = core.one_hot(held.labels, 3) - 1 / 3
    part = np.outer(mechanism.cut(steps, moved)[0], moved[0])
    drawn = mechanism.noise((20_000, *part.shape), np.random.default_rng(1).bytes)
    along = (drawn * part).sum(axis=(1, 2))
    with_it = along[::2] + (part**2).sum()
    auc = (with_it[:, None] > np.sort(along[1::2])[None, ::20]).mean()
    bound = accounting.membership(residual.scheme.ledger.mu(1))
    assert bound - 0.15 < auc <= bound + 0.02


# --- beside the equations, written out ----------------------------------------------------------------------------


class OfWeights:
    """A strategy that learns weights, under a name of its own."""

    name, of_weights = "mine", True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None), ({"strategy": "crc"}, None), ({"robust": "clip"}, None), ({"family": "qda"}, None),
        ({"strategy": "auto"}, None), ({"strategy": "consensus-ml"}, "sums of the rows"),
        ({"strategy": "dsgd"}, "length of the rows"), ({"strategy": OfWeights()}, "mine.*it learns weights"),
        ({"family": "tan"}, None), ({"family": "aode"}, "'aode', whose log joint"),
        ({"family": "kdb", "robust": "clip"}, "the structure of kdb is bought"),
        ({"family": "kdb", "robust": "clip", "structure": True}, None),
        ({"robust": "guard"}, "nothing accounts for it"), ({"local_steps": 2}, "local_steps 2"),
        ({"objective": "peers"}, "how many its peer has"), ({"device": "cpu"}, "leave out both"),
        ({"dtype": "float32"}, "leave out both"), ({"edge_noise": 0.1, "robust": "clip"}, "do not add up"),
        ({"edge_noise": 0.1}, None),
    ],
)  # fmt: skip
def test_each_setting_is_refused_for_its_own_reason(change, reason):
    combination = Combination(**{"strategy": "exact", "family": "naive-bayes", "epsilon": 4.0, **change})
    if reason is None:
        refuse(combination)
    else:
        with pytest.raises(ValueError, match=reason):
            refuse(combination)


def test_the_fewest_rows_of_a_peer_are_those_of_the_terms():
    private_rows(5, 3, pb.Privacy(min_rows=30), rows=30)
    with pytest.raises(ValueError, match="peer 0 has 29 rows, fewer than min_rows = 30"):
        private_rows(5, 3, pb.Privacy(min_rows=30), rows=29)


def test_cells_of_columns_that_miss_values_are_not_made_to_add_up():
    """What a residual has none of is known of the columns that every row has."""
    for absent, conditions in ((None, 2), (0, 1), (1, 1)):
        rng = np.random.default_rng(3)
        codes = np.stack([rng.integers(size, size=300) for size in FAMILY.cardinalities], 1)
        if absent is not None:
            codes[17, absent] = -1
        held = LocalRows(FAMILY, Rows(rng.standard_normal((300, 2)), codes), rng.integers(3, size=300), np.ones(300),
                        np.full(5, 60), 3)  # fmt: skip
        schedule = topologies.schedule("regular-4", 5, np.random.default_rng(0), None)
        private = agreed(pb.Privacy(), held, 4, 0.05, schedule.at(1), "uniform")
        assert private.mechanism.projection.normals.shape[1] == conditions


def test_no_random_stream_is_used_twice(monkeypatch):
    """Of rounds, of links and of the start: noise that were the same would not hide what it is added to."""
    used, plain = [], PrivateRows._source

    def watched(self, stream, release):
        used.append((stream, release))
        return plain(self, stream, release)

    monkeypatch.setattr(PrivateRows, "_source", watched)
    residual, _ = private_rows(6, 4, pb.Privacy(edge_noise=3.0), start="ml")
    residual.start()
    for _ in range(4):
        residual(np.tile(FAMILY.uniform(3, 1200.0), (6, 1, 1)))
    assert len(used) == len(set(used)) == 1 + 2 * 4
    bits = {source: np.random.default_rng([0, *source]).bytes(16) for source in used}
    assert len(set(bits.values())) == len(used)


def lengths_of(held):
    """‖h(x)‖ of rows within ±3: h_0 = 1, x, (x² − 1)/√2, and one-hots less 1/r."""
    inside = np.clip(held.rows.values, -3, 3)
    square = 1.0 + (inside**2).sum(axis=1) + ((inside**2 - 1) ** 2 / 2).sum(axis=1)
    return np.sqrt(square + sum(1 - 1 / size for size in FAMILY.cardinalities))


@pytest.mark.parametrize("clip", [0.5, 2.0])
@pytest.mark.parametrize("marginal", [False, True])
def test_a_bought_start_is_clipped_at_the_length_of_a_typical_row(clip, marginal):
    """Σ min(1, B/‖h‖)·e_y φ(x)ᵀ of each peer's rows, whatever rounds are clipped at."""
    residual, _ = private_rows(5, 8, pb.Privacy(epsilon=1e5, clip=clip), start="ml")
    held, length = residual.local_rows, math.sqrt(1 + 2 * 2 + 2 / 3 + 3 / 4)
    weight = np.minimum(1.0, length / lengths_of(held))
    features = np.asarray(FAMILY.features(Rows(np.clip(held.rows.values, -3, 3), held.rows.codes)))
    credit = np.ones((300, 1)) if marginal else np.eye(3)[held.labels]
    parts = ((credit * weight[:, None]).reshape(5, 60, -1), features.reshape(5, 60, -1))
    np.testing.assert_allclose(
        residual.start(marginal), np.einsum("vnc,vnk->vck", *parts), atol=6 * 2 * length / math.sqrt(0.2e5)
    )
    assert (weight < 0.99).any() and (weight == 1.0).any()


def test_the_noise_of_a_bought_start_is_that_of_its_share():
    """A fifth of μ²: 40 peers' noise in h, off by 2.5 % of itself at most, four times over."""
    residual, _ = private_rows(40, 100, pb.Privacy(epsilon=2.0, clip=0.5), start="ml")
    quiet = replace(residual.scheme, start_sigma=1)
    exact = PrivateRows(quiet, residual.local_rows, residual.network, 0).start()
    noise = residual.scheme.mechanism.coordinates.to(residual.start() - exact)
    sigma = math.sqrt(1 + 2 * 2 + 2 / 3 + 3 / 4) / math.sqrt(0.2 * accounting.mu_of(2.0, 1e-5) ** 2)
    numbers = 3 * (FAMILY.size - 2)  # two columns' cells add up to the count
    assert (noise**2).sum(axis=(1, 2)).mean() / numbers == pytest.approx(sigma**2, rel=0.1)


def test_a_release_is_the_clipped_residual_and_noise():
    """Each peer's own rows, at its own statistics."""
    residual, _ = private_rows(5, 8, pb.Privacy(epsilon=1e6, clip=0.8))
    rng = np.random.default_rng(4)
    stats = np.tile(FAMILY.uniform(3, 600.0), (5, 1, 1)) * rng.uniform(0.8, 1.2, (5, 3, FAMILY.size))
    released = residual(stats)
    held, length = residual.local_rows, math.sqrt(1 + 2 * 2 + 2 / 3 + 3 / 4)
    features = np.asarray(FAMILY.features(Rows(np.clip(held.rows.values, -3, 3), held.rows.codes)))
    for v in range(5):
        mine = slice(60 * v, 60 * v + 60)
        joint = features[mine] @ np.asarray(FAMILY.weights(stats[v])).T
        posterior = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        steps = np.eye(3)[held.labels[mine]] - posterior
        long = np.linalg.norm(steps, axis=1) * lengths_of(held)[mine]
        weight = np.minimum(1.0, 0.8 * length / long)
        assert (weight < 0.99).any() and (weight == 1.0).any()
        np.testing.assert_allclose(released[v], (steps * weight[:, None]).T @ features[mine], atol=0.1)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rise"),
    [
        (0.049, "by up to 0.01"), (0.051, "by up to 0.025"), (0.099, "by up to 0.025"), (0.101, "by 0.02 to 0.04"),
        (0.149, "by 0.02 to 0.04"), (0.151, "by 0.03 to 0.07"), (0.299, "by 0.03 to 0.07"), (0.301, "by 0.06 to 0.13"),
        (0.499, "by 0.06 to 0.13"), (0.501, "by 0.2 to 0.3"), (0.999, "by 0.2 to 0.3"), (1.001, "beyond use"),
    ],
)  # fmt: skip
def test_a_plan_says_by_how_much_the_error_rises(noise, rise):
    """By the noise before rows are clipped any shorter, ρ/κ, which is linear in the learning rate."""
    setting = {"rows": 100, "peers": 20, "classes": 3, "features": 4, "clip": 0.7}
    base = pb.plan(**setting, lr=1e-3)
    assert pb.plan(**setting, lr=1e-3 * noise * 0.7 / base.rho).rise == rise


@pytest.mark.parametrize(
    ("times", "pays"), [(1.49, "yes"), (1.51, "about even"), (1.99, "about even"), (2.01, "no")]
)
def test_a_plan_compares_the_noise_with_what_a_peer_knows_alone(times, pays):
    setting = {"rows": 100, "peers": 20, "classes": 3, "features": 4, "clip": 0.7}
    base = pb.plan(**setting, lr=1e-3)
    assert base.alone == pytest.approx(math.sqrt(3 / 100))
    assert pb.plan(**setting, lr=1e-3 * times * base.alone * 0.7 / base.rho).pays == pays


@pytest.mark.parametrize("edge_noise", [0.0, 3.0])
def test_the_numbers_of_a_plan_belong_together(edge_noise):
    planned = pb.plan(
        100, 12, 3, 4, (2, 3), epsilon=2.0, rounds=30, edge_noise=edge_noise, topology="complete"
    )
    assert planned.length == pytest.approx(math.sqrt(1 + 8 + 1 / 2 + 2 / 3))
    assert (
        planned.multiplier == pytest.approx(planned.sigma / planned.clip)
        and planned.clip == planned.share * planned.length
    )
    assert planned.mu == pytest.approx(accounting.mu_of(2.0, 1e-5)) and planned.epsilon == pytest.approx(
        2.0, abs=1e-8
    )
    # one colluder of a complete network of twelve sees the links of the eleven others
    exposed = (1 / 11) + (10 / 11) / (1 + 9 * 11) if edge_noise else 1.0
    assert planned.exposure == pytest.approx(exposed, rel=1e-6)
    assert planned.mu**2 == pytest.approx(30 * exposed / planned.multiplier**2, rel=1e-6)
    assert planned.membership == pytest.approx(norm.cdf(planned.mu / math.sqrt(2)))
    assert planned.rho == pytest.approx(planned.sigma * math.sqrt(30) * 0.05 * 3 / (100 * math.sqrt(12)))
    assert planned.to_dict()["rho"] == planned.rho


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": 0}, "rows is 0"), ({"peers": 0}, "peers is 0"), ({"classes": 1}, "classes is 1; expected 2"),
        ({"features": -1}, "features is -1"), ({"rounds": 0}, "rounds is 0"), ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": math.inf}, "lr is inf"), ({"categories": (3, 0)}, "at least one category"),
        ({"features": 0}, "at least one column"), ({"family": "bayes-net"}, "expected one of naive-bayes, qda, lda"),
    ],
)  # fmt: skip
def test_a_plan_of_nothing_is_refused_by_name(change, reason):
    setting = {"rows": 50, "peers": 5, "classes": 2, "features": 2}
    pb.plan(**setting)
    with pytest.raises(ValueError, match=reason):
        pb.plan(**{**setting, **change})
