"""The simulator: what it reports, what it refuses, and that it is reproducible."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.learning import metrics
from peerbayes.learning.strategies import STRATEGIES, ConsensusML, Exact
from peerbayes.model import residuals
from peerbayes.model.devices import NUMPY
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.rounds import Broadcast, Late

X, Y = load_wine(return_X_y=True, as_frame=True)
ORDER = np.random.default_rng(0).permutation(len(Y))
WINE = X.iloc[ORDER].reset_index(drop=True), Y.to_numpy()[ORDER]
QUICK = {"peers": 8, "rows_per_peer": 12, "rounds": 10}


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "relay", "auto"])
@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda"])
def test_every_strategy_runs_with_every_family(strategy, family):
    X, y = WINE
    run = pb.simulate(X.iloc[:, :5], y, family=family, strategy=strategy, **QUICK)
    assert list(run.history.columns) == list(COLUMNS)
    assert len(run.history) == 10 * 8
    assert np.isfinite(run.stats).all()
    assert np.isfinite(list(run.summary().values())).all()


def test_the_same_seed_gives_the_same_bits():
    runs = [
        pb.simulate(*WINE, partition="dirichlet-0.3", topology="tree+3", seed=5, message_loss=0.2, **QUICK)
        for _ in range(2)
    ]
    assert runs[0].stats.tobytes() == runs[1].stats.tobytes()
    assert runs[0].records.tobytes() == runs[1].records.tobytes()
    other = pb.simulate(
        *WINE, partition="dirichlet-0.3", topology="tree+3", seed=6, message_loss=0.2, **QUICK
    )
    assert other.stats.tobytes() != runs[0].stats.tobytes()


def test_a_network_of_one_class_per_peer_learns_all_classes(digits):
    """Alone a peer knows one digit; with `exact` every peer comes close to calibration on all rows."""
    settings = {
        "peers": 20,
        "rows_per_peer": 40,
        "partition": "drift-y",
        "evaluate_every": 0,
        "topology": "tree+10",
    }
    alone = pb.simulate(*digits, strategy="local", **settings).summary()
    crc = pb.simulate(*digits, strategy="crc", **settings).summary()
    exact = pb.simulate(*digits, strategy="exact", **settings).summary()
    assert alone["test_error"] > 0.8
    assert exact["test_gap_rc"] < 0.03
    assert exact["test_error"] < crc["test_error"] < alone["test_error"]


@pytest.mark.parametrize("start", ["marginal", "ml"])
def test_peers_agree_on_a_start_by_gossip(start):
    run = pb.simulate(
        *WINE, start=start, topology="ring", rounds=20, peers=8, rows_per_peer=12, start_rounds=64
    )
    assert run.summary()["test_gap_rc"] < 0.05
    plain = pb.simulate(*WINE, topology="ring", rounds=20, peers=8, rows_per_peer=12)
    assert run.summary()["bytes_per_peer"] > plain.summary()["bytes_per_peer"]


def test_by_default_a_start_is_an_exact_sum_as_between_real_peers():
    """On a long chain gossip is far from done: peers would begin apart, and each with the classes that are near."""
    settings = {
        "family": "qda", "start": "ml", "topology": "chain", "partition": "drift-y", "peers": 24, "rows_per_peer": 5,
        "strategy": "crc", "rounds": 2, "seed": 1,
    }  # fmt: skip
    summed, gossiped = (pb.simulate(*WINE, **settings, start_rounds=rounds) for rounds in (None, 8))
    assert summed.summary()["disagreement"] < 0.01 < gossiped.summary()["disagreement"]
    matrix, links = summed.stats[0].nbytes, 2 * 23 / 24
    assert summed.summary()["bytes_per_peer"] == pytest.approx((1 + 2) * links * matrix, abs=1)


def test_bytes_are_messages_times_neighbours():
    run = pb.simulate(*WINE, topology="ring", **QUICK)
    last = run.history.query("round == 10")
    assert (last["bytes"] == 10 * 2 * run.stats[0].nbytes).all()
    twice = pb.simulate(*WINE, topology="ring", strategy="tracking", **QUICK).history.query("round == 10")
    assert (twice["bytes"] == 2 * last["bytes"].to_numpy()).all()
    assert (pb.simulate(*WINE, strategy="local", **QUICK).history["bytes"] == 0).all()


def test_the_two_objectives_agree_where_peers_are_equal_and_differ_where_not():
    for sizes, same in ((12, True), ([5, 30, 5, 20, 5, 10, 15, 10], False)):
        settings = {**QUICK, "rows_per_peer": sizes}
        rows, peers = (
            pb.simulate(*WINE, objective=objective, **settings).stats for objective in ("rows", "peers")
        )
        assert np.allclose(rows, peers) == same


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lost_messages_and_absent_peers_leave_everything_finite(strategy):
    for faults in (
        {"message_loss": 0.2},
        {"peers_down": 0.1},
        {"message_delay": 0.3},
        {"message_loss": 0.3, "peers_down": 0.2, "message_delay": 0.2},
    ):
        run = pb.simulate(*WINE, strategy=strategy, **QUICK, **faults)
        assert np.isfinite(run.stats).all()


def test_a_changing_network():
    static, changing = (pb.simulate(*WINE, change_every=every, **QUICK) for every in (None, 2))
    assert static.stats.tobytes() != changing.stats.tobytes()


def test_evaluation_does_not_change_the_run():
    often, seldom = (pb.simulate(*WINE, evaluate_every=every, **QUICK) for every in (1, 0))
    np.testing.assert_array_equal(often.stats, seldom.stats)
    assert sorted(set(seldom.history["round"])) == [10]


@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda", "tan", "kdb"])
def test_a_peers_classifier_is_what_was_evaluated(family):
    X, y = WINE
    test = X[100:], y[100:]
    run = pb.simulate(X[:100], y[:100], test=test, peers=4, rows_per_peer=25, rounds=12, family=family)
    last = run.history.query("round == 12")
    for peer in range(4):
        model = run.classifier(peer)
        assert 1 - model.score(*test) == pytest.approx(last["test_error"].to_numpy()[peer])
    with pytest.raises(ValueError, match="peer is 9; expected 0 to 3"):
        run.classifier(9)


def test_references_are_calibration_and_likelihood_on_the_pooled_rows():
    X, y = WINE
    parts = np.array_split(np.arange(178), 4)
    run = pb.simulate(X, y, peers=4, rows_per_peer=44, partition=parts, rounds=30, test=(X, y))
    calibrated = pb.MixedNB(
        calibrate=True, max_iter=30, keep="last", step="fixed", validation_fraction=0.0
    ).fit(X, y)
    assert run.references["train_rc"] == pytest.approx(1 - calibrated.score(X, y))
    assert run.references["train_ml"] == pytest.approx(1 - pb.MixedNB().fit(X, y).score(X, y))


def test_one_peer_is_the_centralised_method():
    X, y = WINE
    run = pb.simulate(
        X, y, peers=1, rows_per_peer=None, topology="complete", strategy="crc", rounds=20, test=(X, y)
    )
    alone = pb.MixedNB(calibrate=True, max_iter=20, keep="last", step="fixed", validation_fraction=0.0).fit(
        X, y
    )
    np.testing.assert_allclose(run.classifier(0).predict_proba(X), alone.predict_proba(X), atol=1e-9)


def test_local_steps_follow_the_papers_algorithm_three():
    alone = {"peers": 1, "rows_per_peer": None, "topology": "complete", "strategy": "crc", "test": WINE}
    one = pb.simulate(*WINE, rounds=6, **alone)
    three = pb.simulate(*WINE, rounds=2, local_steps=3, **alone)
    np.testing.assert_allclose(three.stats, one.stats, rtol=1e-9, atol=1e-9)


def test_a_strategy_may_be_a_value():
    by_name = pb.simulate(*WINE, strategy="exact", **QUICK)
    by_value = pb.simulate(*WINE, strategy=Exact(rounds=10), **QUICK)
    np.testing.assert_array_equal(by_name.stats, by_value.stats)


def test_a_run_survives_its_folder(tmp_path):
    run = pb.simulate(*WINE, **QUICK)
    run.save(tmp_path / "run")
    again = pb.Run.load(tmp_path / "run")
    assert again.summary() == run.summary()
    np.testing.assert_array_equal(again.stats, run.stats)
    np.testing.assert_array_equal(again.classifier(2).predict(WINE[0]), run.classifier(2).predict(WINE[0]))
    content = bytearray((tmp_path / "run" / "run.peerbayes").read_bytes())
    content[100] ^= 1
    (tmp_path / "run" / "run.peerbayes").write_bytes(content)
    with pytest.raises(pb.ModelFileDamaged):
        pb.Run.load(tmp_path / "run")


def test_progress_is_told():
    heard = []
    pb.simulate(*WINE, **QUICK, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(turn, 10) for turn in range(1, 11)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "forest"}, "family is 'forest'; expected one of naive-bayes"),
        ({"strategy": "magic"}, "strategy is 'magic'; expected one of crc"),
        ({"start": "warm"}, "start is 'warm'; expected one of uniform"),
        ({"topology": "web"}, "web"),
        ({"partition": "none"}, "none"),
        ({"objective": "fame"}, "objective is 'fame'"),
        ({"rounds": 0}, "rounds is 0; expected a whole number of 1 or more"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"message_loss": 1.5}, "message_loss is 1.5; expected a probability"),
        ({"peers_down": -0.1}, "peers_down is -0.1"),
        ({"peers": 1000}, "peers is 1000; expected 1 to 178"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"evaluate_rows": 0}, "evaluate_rows is 0; expected a whole number of 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        pb.simulate(*WINE, **{**QUICK, **settings})


def test_dsgd_has_no_generative_classifier():
    run = pb.simulate(*WINE, strategy="dsgd", **QUICK)
    with pytest.raises(ValueError, match="learns weights, not statistics"):
        run.classifier(0)


def torch_devices():
    try:
        import torch
    except ImportError:
        skip = pytest.mark.skip(reason="PyTorch is not installed: pip install peerbayes[torch]")
        return [pytest.param("cpu", marks=skip)]
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", torch_devices())
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda"])
def test_pytorch_gives_numpys_numbers(device, strategy, family):
    settings = {**QUICK, "strategy": strategy, "family": family, "peers_down": 0.1, "message_loss": 0.1}
    table = WINE[0].iloc[:, :6], WINE[1]
    plain, there = (
        pb.simulate(*table, **settings, device=place, references=False) for place in (None, device)
    )
    scale = np.abs(plain.stats).max()
    np.testing.assert_allclose(there.stats, plain.stats, rtol=1e-7, atol=1e-7 * scale)
    np.testing.assert_allclose(there.records, plain.records, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", [None, *torch_devices()])
def test_float32_gives_float64s_numbers_to_its_precision(device):
    exact, rough = (
        pb.simulate(*WINE, **QUICK, dtype=dtype, device=device) for dtype in ("float64", "float32")
    )
    np.testing.assert_allclose(rough.stats, exact.stats, rtol=1e-3, atol=1e-3 * np.abs(exact.stats).max())
    assert rough.summary()["test_error"] == pytest.approx(exact.summary()["test_error"], abs=0.02)
    assert rough.summary()["bytes_per_peer"] == exact.summary()["bytes_per_peer"] / 2


def test_devices_and_types_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="dtype is 'float16'; expected one of float64, float32"):
        pb.simulate(*WINE, **QUICK, dtype="float16")
    with pytest.raises(ValueError, match=r"device(=| is )'warp'"):
        pb.simulate(*WINE, **QUICK, device="warp")


@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking"])
@pytest.mark.parametrize("holes", [False, True])
def test_the_fused_kernel_gives_the_same_run(strategy, holes, monkeypatch):
    table = WINE[0].mask(np.random.default_rng(0).random(WINE[0].shape) < 0.1 * holes)
    settings = {
        **QUICK,
        "strategy": strategy,
        "rows_per_peer": [5, 30, 5, 20, 5, 10, 15, 10],
        "objective": "peers",
    }
    plain = pb.simulate(table, WINE[1], **settings)
    monkeypatch.setattr(residuals, "FUSED_WORK", 0)
    fused = pb.simulate(table, WINE[1], **settings)
    np.testing.assert_allclose(fused.stats, plain.stats, rtol=1e-8, atol=1e-8 * np.abs(plain.stats).max())
    assert pb.simulate(*WINE, **QUICK, family="qda").stats.shape == (8, 3, 105)


@pytest.mark.parametrize("strategy", ["crc", "dsgd"])
@pytest.mark.parametrize("family", ["naive-bayes", "qda"])
def test_blocks_of_peers_give_the_same_run(strategy, family, monkeypatch):
    """Networks whose features do not fit are taken a few peers at a time, and judged a few rows at a time."""
    table = WINE[0].iloc[:, :6], WINE[1]
    settings = {
        **QUICK,
        "strategy": strategy,
        "family": family,
        "rows_per_peer": [5, 30, 5, 20, 5, 10, 15, 10],
    }
    whole = pb.simulate(*table, **settings)
    monkeypatch.setattr(residuals, "FEATURES_HELD", 2000)
    monkeypatch.setattr(metrics, "FEATURES_KEPT", 0)
    monkeypatch.setattr(metrics, "LOGITS_HELD", 500)
    blocks = pb.simulate(*table, **settings)
    np.testing.assert_allclose(blocks.stats, whole.stats, rtol=1e-9, atol=1e-9 * np.abs(whole.stats).max())
    np.testing.assert_allclose(blocks.records, whole.records, rtol=1e-9, atol=1e-9)


def test_the_whole_run_decides_whether_the_kernel_pays(monkeypatch):
    """As many evaluations as there are, of all peers on all rows; its figures are those of arrays."""
    monkeypatch.setattr(metrics, "KERNEL_CLASSES", 3)
    ways = []
    for way in ("_by_kernel", "_in_cache"):
        count = getattr(metrics.Sample, way)

        def noted(*arguments, way=way, count=count):
            ways.append(way)
            return count(*arguments)

        monkeypatch.setattr(metrics.Sample, way, noted)
    judged_rows = len(WINE[1])  # training and test rows
    run_logits = 8 * 3 * judged_rows * (1 + QUICK["rounds"])
    assert metrics.run_logits(8, 3, judged_rows, QUICK["rounds"], 1) == run_logits
    assert metrics.run_logits(8, 3, judged_rows, 64, 0) == 8 * 3 * judged_rows
    runs = []
    for logits, way in ((run_logits, "_in_cache"), (run_logits - 1, "_by_kernel")):
        monkeypatch.setattr(metrics, "KERNEL_LOGITS", logits)
        ways.clear()
        runs.append(pb.simulate(*WINE, **QUICK))
        assert set(ways) == {way}
    np.testing.assert_allclose(runs[0].records, runs[1].records, rtol=1e-12, atol=1e-12)


def test_peers_that_all_have_one_model_are_evaluated_once(monkeypatch):
    models = []
    errors = metrics.Sample.errors

    def noted(self, weights, *arguments, **settings):
        models.append(len(weights))
        return errors(self, weights, *arguments, **settings)

    monkeypatch.setattr(metrics.Sample, "errors", noted)
    run = pb.simulate(*WINE, **{**QUICK, "strategy": "tree-sum", "references": False})
    assert set(models) == {1}
    each = run.history.groupby("round")[["train_error", "test_error", "soft_error", "disagreement"]]
    assert (each.nunique() == 1).all(axis=None) and run.stats.flags.writeable


def judged_sample(rows=40, models=7, classes=3):
    """A sample, statistics of models, and log p(x, c) of every model and row, from the features: [N, m, C]."""
    rng = np.random.default_rng(models)
    family = NaiveBayes(continuous=2, cardinalities=(3,))
    rows_judged = Rows(rng.normal(size=(rows, 2)), rng.integers(0, 3, (rows, 1)))
    stats = family.uniform(classes, 30.0) * rng.uniform(0.5, 1.5, (models, classes, family.size))
    sample = metrics.Sample(family, rows_judged, rng.integers(0, classes, rows))
    return sample, stats, np.einsum("mk,nck->nmc", family.features(rows_judged), family.weights(stats))


@pytest.mark.parametrize("at_once", [1, 1 << 19])
def test_peers_are_judged_by_hand(at_once, monkeypatch):
    """Errors, soft errors, distance from the mean and floors of each peer, however many are taken at a time."""
    monkeypatch.setattr(metrics, "STATISTICS_AT_ONCE", at_once)
    sample, stats, joint = judged_sample()
    family, mean = sample.family, stats.mean(axis=0)
    posterior = np.exp(joint) / np.exp(joint).sum(axis=-1, keepdims=True)
    right = posterior[:, np.arange(40), sample.labels]
    figures = metrics.judged(stats, mean, False, family, sample, None)
    np.testing.assert_allclose(figures[0], (joint.argmax(axis=-1) != sample.labels).mean(axis=1))
    assert np.isnan(figures[1]).all()
    np.testing.assert_allclose(figures[2], 1 - right.mean(axis=1))
    apart = [np.linalg.norm(of_peer - mean) / np.linalg.norm(mean) for of_peer in stats]
    np.testing.assert_allclose(figures[3], apart)
    np.testing.assert_array_equal(figures[4], family.floored(stats))
    tested = metrics.judged(stats, mean, False, family, sample, sample)
    np.testing.assert_array_equal(tested[1], tested[0])


def test_outcomes_of_many_peers_are_those_of_some_from_the_first_to_the_last(monkeypatch):
    sample, stats, joint = judged_sample()

    def confusion(peers):
        table = np.zeros((3, 3))
        for peer in peers:
            np.add.at(table, (sample.labels, joint[peer].argmax(axis=-1)), 1 / len(peers))
        return table

    np.testing.assert_allclose(sample.outcome(stats, False).confusion, confusion(range(7)))
    monkeypatch.setattr(metrics, "OUTCOME_LOGITS", 3 * 40 * 3)  # three models
    np.testing.assert_allclose(sample.outcome(stats, False).confusion, confusion([0, 3, 6]))


@pytest.mark.parametrize(
    ("rows", "most", "peers", "expected"),
    [
        (300, None, 1 << 23, 256), (256, None, 1 << 23, 256), (10_000, None, 1 << 23, 256),
        ((1 << 20) + 5, None, 8, 1 << 20), (500, 100, 8, 100), (100, 100, 8, 100), (99, 100, 8, 99),
    ],
)  # fmt: skip
def test_as_many_rows_are_judged_as_peers_leave_time_for(rows, most, peers, expected):
    """Eight million judgements, and 256 rows at least; each row once, and all of them in their order if they fit."""
    drawn = metrics.drawn(rows, most, peers, 0)
    assert drawn.size == expected == np.unique(drawn).size and drawn.min() >= 0 and drawn.max() < rows
    if expected == rows:
        np.testing.assert_array_equal(drawn, np.arange(rows))
    else:
        assert not np.array_equal(drawn, metrics.drawn(rows, most, peers, 1))


def test_a_link_that_lags_brings_the_message_of_the_round_before():
    links = topologies.adjacency("ring", 5, np.random.default_rng(0))
    message, before = np.random.default_rng(1).normal(size=(2, 5, 2, 3))
    network, faults = topologies.Static(links), Faults(0.2, seed=3, late=0.4)
    driver = Broadcast(ConsensusML(), network, lambda stats: stats * 0, faults, NUMPY)
    after, _ = driver.advance(Late(message, before), 2)
    weights = topologies.metropolis(links)
    in_time, late = faults.of_entries(2, weights)
    assert in_time.any() and late.any() and not (in_time & late).any()
    expected = np.zeros_like(message)
    for v, u, weight, now, then in zip(*weights.tocoo().coords, weights.data, in_time, late, strict=True):
        own = v == u or not (now or then)
        expected[v] += weight * (message[v] if own else message[u] if now else before[u])
    np.testing.assert_allclose(after.state, expected, atol=1e-12)
    np.testing.assert_array_equal(after.message, message)


def test_time_is_accounted_for():
    run = pb.simulate(*WINE, **QUICK)
    assert set(run.seconds) == {"rounds", "evaluation", "references"}
    assert all(seconds > 0 for seconds in run.seconds.values())


@pytest.mark.parametrize("device", torch_devices())
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_relay_on_a_device(device, dtype):
    settings = {**QUICK, "strategy": "relay", "message_loss": 0.1}
    plain, there = (
        pb.simulate(*WINE, **settings, **place) for place in ({}, {"device": device, "dtype": dtype})
    )
    rough = 1e-7 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(there.stats, plain.stats, rtol=rough, atol=rough * np.abs(plain.stats).max())


def test_large_networks_are_judged_on_some_rows(monkeypatch):
    every, some = (pb.simulate(*WINE, **QUICK, evaluate_rows=rows) for rows in (None, 40))
    np.testing.assert_array_equal(every.stats, some.stats)
    assert np.allclose((some.history["test_error"] * 40) % 1, 0)
    assert some.summary()["train_error"] == pytest.approx(every.summary()["train_error"], abs=0.1)
    monkeypatch.setattr(metrics, "JUDGEMENTS", 8 * 40)
    monkeypatch.setattr(metrics, "FEWEST_JUDGED", 1)
    np.testing.assert_array_equal(pb.simulate(*WINE, **QUICK).records, some.records)


@pytest.mark.parametrize("sharded", [False, True])
def test_values_may_be_missing_in_the_test_rows_alone(sharded):
    from peerbayes.simulation.sharded import simulate_shards

    X, y = load_wine(return_X_y=True)
    away = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    settings = {"peers": 5, "rows_per_peer": 20, "rounds": 8, "test": (away, y), "evaluate_every": 0}
    whole = pb.simulate(X, y, references=False, **settings)
    run = simulate_shards(X, y, stats_of="all", **settings) if sharded else whole
    errors = [1 - whole.classifier(peer).score(away, y) for peer in range(5)]
    assert run.history["test_error"].to_numpy() == pytest.approx(errors)
