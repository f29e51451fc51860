"""Kinds of columns as models see them: positive amounts, counts, and a kind that a test adds."""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes import Column, Schema, SchemaError, SchemaMismatch
from peerbayes.data import infer
from peerbayes.data.kinds import KINDS
from peerbayes.data.kinds.kind import Continuous
from peerbayes.model import sources

CLASSES = np.array(["a", "b", "c"])
PLAIN = {"alpha": 0.0, "shrinkage": None, "clip": None}


def table(rows=600, seed=1, missing=0.0):
    """An amount, a number of visits and a length, whose distributions depend on the class."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, rows)
    frame = pd.DataFrame(
        {
            "amount": np.exp(rng.normal(codes, 0.5 + 0.3 * codes)),
            "visits": rng.poisson(np.array([0.4, 2.0, 6.0])[codes]).astype(float),
            "length": rng.normal(codes, 1.0),
        }
    )
    frame[rng.random(frame.shape) < missing] = np.nan
    return frame, CLASSES[codes]


KINDS_OF_TABLE = {"amount": "positive", "visits": "count"}


# --- equal to scipy ----------------------------------------------------------------------------------------


def test_a_positive_column_is_log_normal():
    frame, labels = table()
    model = pb.MixedNB(kinds={"amount": "positive"}, variance_floor=1e-12, **PLAIN).fit(
        frame[["amount"]], labels
    )
    joint = model.predict_joint_log_proba(frame[["amount"]])
    described = model.describe().set_index(["class", "feature"])
    for c, label in enumerate(CLASSES):
        amounts = frame["amount"][labels == label]
        shape, _, scale = scipy.stats.lognorm.fit(amounts, floc=0)
        expected = scipy.stats.lognorm.logpdf(frame["amount"], shape, 0, scale) + np.log(
            amounts.size / len(frame)
        )
        np.testing.assert_allclose(joint[:, c], expected, atol=1e-9)
        row = described.loc[(label, "amount")]
        assert row["category"] == "logarithm"
        np.testing.assert_allclose([row["mean"], row["deviation"]], [np.log(scale), shape], atol=1e-9)


def test_a_count_is_poisson():
    frame, labels = table()
    model = pb.MixedNB(kinds={"visits": "count"}, **PLAIN).fit(frame[["visits"]], labels)
    joint = model.predict_joint_log_proba(frame[["visits"]])
    described = model.describe().set_index(["class", "feature"])
    for c, label in enumerate(CLASSES):
        visits = frame["visits"][labels == label]
        expected = scipy.stats.poisson.logpmf(frame["visits"], visits.mean()) + np.log(
            visits.size / len(frame)
        )
        np.testing.assert_allclose(joint[:, c], expected, atol=1e-9)
        row = described.loc[(label, "visits")]
        np.testing.assert_allclose([row["mean"], row["deviation"] ** 2], [visits.mean()] * 2, atol=1e-9)


def test_missing_values_leave_the_density_of_the_others():
    frame, labels = table(missing=0.2)
    model = pb.MixedNB(kinds=KINDS_OF_TABLE, variance_floor=1e-12, **PLAIN).fit(frame, labels)
    joint = model.predict_joint_log_proba(frame)
    for c, label in enumerate(CLASSES):
        rows = frame[labels == label]
        logs = np.log(rows["amount"])
        expected = np.full(len(frame), np.log(len(rows) / len(frame)))
        terms = [
            scipy.stats.lognorm.logpdf(frame["amount"], logs.std(ddof=0), 0, np.exp(logs.mean())),
            scipy.stats.poisson.logpmf(frame["visits"], rows["visits"].mean()),
            scipy.stats.norm.logpdf(frame["length"], rows["length"].mean(), rows["length"].std(ddof=0)),
        ]
        expected += np.nansum(terms, axis=0)
        np.testing.assert_allclose(joint[:, c], expected, atol=1e-9)


def test_an_event_that_a_class_never_had_is_not_impossible():
    X, y = np.array([[0], [0], [0], [1], [2], [3]]), [0, 0, 0, 1, 1, 1]
    model = pb.MixedNB(kinds="count").fit(X, y)
    rates = model.describe().set_index(["class", "feature"])["mean"]
    assert rates[(0, "x0")] == pytest.approx(0.5 / 3) and rates[(1, "x0")] == pytest.approx(6.5 / 3)


# --- what they take ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("positive", 0.0, "is positive, but holds 0 in row 3"),
        ("positive", -2.5, "is positive, but holds -2.5 in row 3"),
        ("count", -1.0, "is a count, but holds -1 in row 3"),
        ("count", 1.5, "is a count, but holds 1.5 in row 3"),
    ],
)
@pytest.mark.parametrize("frame", [True, False])
def test_values_that_a_kind_does_not_take_are_named(kind, value, reason, frame):
    X = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 6.0], [4.0, 7.0]])
    good, bad = (pd.DataFrame(data, columns=["x0", "x1"]) if frame else data for data in (X, X.copy()))
    if frame:
        bad.loc[3, "x0"] = value
    else:
        bad[3, 0] = value
    kinds = {"x0": kind} if frame else {0: kind}
    with pytest.raises(SchemaError, match=f"column 'x0' {re.escape(reason)}.*kinds={{'x0': 'continuous'}}"):
        pb.MixedNB(kinds=kinds).fit(bad, [0, 0, 1, 1])
    model = pb.MixedNB(kinds=kinds).fit(good, [0, 0, 1, 1])
    with pytest.raises(SchemaError, match=f"column 'x0' {re.escape(reason)}"):
        model.predict(bad)


@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA, pb.TAN, pb.KDB])
def test_families_that_take_no_counts_say_what_to_do(estimator):
    frame, labels = table(100)
    with pytest.raises(
        SchemaError, match=r"'visits' is count, which .* does not take; use naive Bayes, or another"
    ):
        estimator(kinds=KINDS_OF_TABLE).fit(frame, labels)
    positive = estimator(kinds={"amount": "positive"}).fit(frame, labels)
    by_hand = estimator().fit(frame.assign(amount=np.log(frame["amount"])), labels)
    np.testing.assert_allclose(
        positive.predict_proba(frame),
        by_hand.predict_proba(frame.assign(amount=np.log(frame["amount"]))),
        atol=1e-12,
    )


def test_a_kind_for_all_columns_is_said_of_numbers():
    frame = pd.DataFrame({"x": [1.0, 2.0], "c": ["a", "b"], "b": [True, False]})
    for kind in ("positive", "count", "binned", "supervised"):
        assert list(Schema.infer(frame, ["u", "v"], kinds=kind).kinds.values()) == [
            kind,
            "discrete",
            "discrete",
        ]


# --- laws --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=30),
    st.integers(1, 29),
    st.sampled_from(["positive", "count"]),
)
def test_merged_units_are_those_of_all_rows(values, cut, kind):
    X = np.array(values, dtype=float)[:, None] + (kind == "positive")
    cut = min(cut, len(values) - 1)
    whole = Schema.infer(X, kinds=kind).columns[0]
    merged = Schema.infer(X[:cut], kinds=kind).merge(Schema.infer(X[cut:], kinds=kind)).columns[0]
    assert merged.location == pytest.approx(whole.location, abs=1e-9) and merged.count == whole.count
    if not whole.constant:
        assert merged.scale == pytest.approx(whole.scale, rel=1e-6, abs=1e-9)


def test_other_units_of_a_count_are_refused():
    with pytest.raises(SchemaError, match="expected location 0, scale 1 \\+ mean"):
        Column("x", "count", location=1.0)
    first, second = (Schema((Column("x", kind, count=2.0),)) for kind in ("count", "continuous"))
    with pytest.raises(SchemaMismatch, match="'x' is count in the first, continuous in the second"):
        first.merge(second)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("calibrate", [False, True])
def test_files_parts_explanations_and_samples(calibrate, missing, tmp_path):
    frame, labels = table(missing=missing)
    model = pb.MixedNB(kinds=KINDS_OF_TABLE, calibrate=calibrate).fit(frame, labels)
    model.save(tmp_path / "model.pb")
    again = pb.load(tmp_path / "model.pb")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.schema_ == model.schema_ and again.family_ == model.family_
    explained = model.explain(frame.iloc[:1])
    probabilities = np.sort(model.predict_proba(frame.iloc[:1])[0])
    assert explained["log_odds"].sum() == pytest.approx(np.log(probabilities[-1] / probabilities[-2]))
    drawn, drawn_labels = model.sample(4000, random_state=1)
    assert (drawn["amount"] > 0).all() and (drawn["visits"] == drawn["visits"].round()).all()
    for label in CLASSES:
        rate = frame["visits"][labels == label].mean()
        assert drawn["visits"][drawn_labels == label].mean() == pytest.approx(rate, abs=0.2)
    assert ((model.predict(frame) == labels).mean() > 0.7) or missing


def test_statistics_of_parts_add_up():
    frame, labels = table()
    whole = pb.MixedNB(kinds=KINDS_OF_TABLE, **PLAIN).fit(frame, labels)
    parts = [
        pb.MixedNB(kinds=KINDS_OF_TABLE, **PLAIN).fit(frame[k::2], labels[k::2]).statistics_ for k in range(2)
    ]
    added = pb.MixedNB.from_statistics(parts[0] + parts[1], **PLAIN)
    np.testing.assert_allclose(added.predict_proba(frame), whole.predict_proba(frame), atol=1e-9)
    model = pb.MixedNB(kinds=KINDS_OF_TABLE, **PLAIN)
    for part in (slice(0, 200), slice(200, None)):
        model.partial_fit(frame[part], labels[part], classes=CLASSES)
    np.testing.assert_allclose(model.predict_proba(frame), whole.predict_proba(frame), atol=1e-9)


@pytest.mark.parametrize("calibrate", [False, True])
def test_arrays_and_frames_and_any_size_give_the_same(calibrate, monkeypatch):
    frame, labels = table(3000)
    settings = {"calibrate": calibrate, "max_iter": 8}
    expected = pb.MixedNB(kinds=KINDS_OF_TABLE, **settings).fit(frame, labels).predict_joint_log_proba(frame)
    kinds = ["positive", "count", "continuous"]
    plain = pb.MixedNB(kinds=kinds, **settings).fit(frame.to_numpy(), labels)
    np.testing.assert_allclose(plain.predict_joint_log_proba(frame.to_numpy()), expected, rtol=1e-9)
    for name in ("LARGE_PASS", "LARGE_PASSES", "FUSED_ROWS"):
        monkeypatch.setattr(sources, name, 1)
    large = pb.MixedNB(kinds=kinds, **settings).fit(frame.to_numpy(), labels)
    np.testing.assert_allclose(large.predict_joint_log_proba(frame.to_numpy()), expected, rtol=1e-6)


def test_one_peer_is_the_estimator_and_many_run(tmp_path):
    """Theorem 1 holds for counts as for every family: see `FAMILIES` in tests/learning/test_strategies.py."""
    frame, labels = table(300)
    settings = {"kinds": KINDS_OF_TABLE, "topology": "complete", "strategy": "crc", "rounds": 12}
    run = pb.simulate(frame, labels, peers=1, rows_per_peer=None, test=(frame, labels), **settings)
    alone = pb.MixedNB(
        kinds=KINDS_OF_TABLE, calibrate=True, max_iter=12, keep="last", step="fixed", validation_fraction=0.0
    ).fit(frame, labels)
    np.testing.assert_allclose(run.classifier(0).predict_proba(frame), alone.predict_proba(frame), atol=1e-9)
    run.save(tmp_path / "run")
    again = pb.Run.load(tmp_path / "run")
    np.testing.assert_array_equal(again.classifier(0).predict(frame), run.classifier(0).predict(frame))
    many = pb.simulate(frame, labels, kinds=KINDS_OF_TABLE, peers=5, rows_per_peer=40, rounds=30)
    assert many.schema.kinds == KINDS_OF_TABLE | {"length": "continuous"}
    assert many.summary()["test_error"] < 0.35


def test_a_report_names_the_logarithm(tmp_path):
    pytest.importorskip("plotly")
    frame, labels = table(300)
    run = pb.simulate(frame, labels, kinds=KINDS_OF_TABLE, peers=3, rows_per_peer=60, rounds=3)
    run.report(tmp_path / "report.html")
    assert "logarithm of amount" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_schemas_survive_their_text():
    frame, labels = table(50)
    schema = Schema.infer(frame, labels, kinds=KINDS_OF_TABLE)
    assert Schema.from_json(schema.to_json()) == schema
    decoded = schema.decode(schema.encode(frame))
    np.testing.assert_allclose(decoded.to_numpy(), frame.to_numpy(), rtol=1e-9, atol=1e-9)


# --- a kind of one's own: one class and a line in the table of kinds, and nothing else --------------------------


class SquareRoot(Continuous):
    """Areas whose square root is a Gaussian."""

    name: ClassVar[str] = "area"
    plain: ClassVar[bool] = False
    leaves_text: ClassVar[bool] = True
    scale_of_numbers: ClassVar[str] = "square root"

    def numbers(self, column, values, row=int):
        return np.sqrt(super().numbers(column, values, row))

    def decoded(self, column, encoded, rng):
        return np.square(encoded)

    def log_measure(self, column, numbers):
        return np.log(column.scale) + np.log(2 * numbers)


def test_a_new_kind_is_a_class_and_a_line(monkeypatch, tmp_path):
    monkeypatch.setitem(KINDS, "area", SquareRoot())
    monkeypatch.setattr(infer, "RULES", (*infer.RULES, "area"))
    frame, labels = table()
    roots = frame.assign(amount=np.sqrt(frame["amount"]))
    kinds = {"amount": "area"}
    for estimator in (pb.MixedNB, pb.QDA, pb.TAN):
        for calibrate in (False, True):
            model = estimator(kinds=kinds, calibrate=calibrate, max_iter=4).fit(frame, labels)
            expected = estimator(calibrate=calibrate, max_iter=4).fit(roots, labels)
            np.testing.assert_allclose(model.predict_proba(frame), expected.predict_proba(roots), atol=1e-9)
            jacobian = np.log(2 * roots["amount"].to_numpy())[:, None]
            joint = expected.predict_joint_log_proba(roots) - jacobian
            np.testing.assert_allclose(model.predict_joint_log_proba(frame), joint, atol=1e-9)
            model.save(tmp_path / "model.pb", overwrite=True)
            assert pb.load(tmp_path / "model.pb").schema_ == model.schema_
            assert len(model.explain(frame.iloc[:1])) >= 4
            assert (model.sample(20, random_state=0)[0]["amount"] > 0).all()
            assert "square root" in set(model.describe()["category"])
    run = pb.simulate(frame, labels, kinds=kinds, peers=3, rows_per_peer=60, rounds=3)
    assert run.schema.kinds["amount"] == "area"


def test_no_file_but_those_of_the_kinds_asks_for_a_kind_by_name():
    """`kind == "..."` is about `kinds`, facts and terms, which people write; a column answers by what its kind is."""
    source = Path(pb.__file__).parent
    names = "|".join(KINDS)
    pattern = re.compile(rf'\.kind\s*(==|!=|in|not in)\s*\(?"({names})"')
    asking = [
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if pattern.search(file.read_text(encoding="utf-8")) and "kinds" not in file.parts
    ]
    assert asking == []
