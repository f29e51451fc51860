"""Learning from a file in blocks, and predicting: the model and the answers of the whole table, to rounding."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes.data import sources
from peerbayes.data.doctor import quick
from peerbayes.errors import SchemaError, SchemaMismatch, SourceError

ROWS = 120
NUMBERS = ["height", "weight"]
SIZES = st.sampled_from([7, 25, 64, ROWS - 1, ROWS, 1000])


def table(seed=0, gaps=False):
    """Rows of mixed columns, some far from the others, and a label."""
    rng = np.random.default_rng(seed)
    y = rng.choice(["no", "yes", "maybe"], ROWS, p=[0.6, 0.3, 0.1])
    frame = pd.DataFrame({
        "height": rng.normal(170.0, 9.0, ROWS) + 5.0 * (y == "yes"),
        "weight": rng.standard_t(2, ROWS),  # heavy tails, which are clipped
        "city": rng.choice(["Oslo", "Bilbao", "Łódź"], ROWS),
        "smokes": rng.random(ROWS) < 0.3 + 0.3 * (y == "yes"),
        "visits": rng.integers(0, 4, ROWS),
        "y": y,
    })  # fmt: skip
    if gaps:
        frame.loc[rng.random(ROWS) < 0.2, ["weight", "city"]] = None
    return frame


def written(folder, frame, kind):
    path = folder / f"rows.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, row_group_size=40)
    return path


def whole(path, columns=()):
    return sources.labelled(sources.read(str(path)), "y", columns)


def fitted(estimator, *rows, **named):
    """Return a fitted estimator and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(*rows, **named)
    return estimator, [str(warning.message) for warning in caught]


def assert_same_model(ours, theirs):
    assert ours.schema_.kinds == theirs.schema_.kinds
    assert ours.schema_.classes == theirs.schema_.classes
    for mine, other in zip(ours.schema_.columns, theirs.schema_.columns, strict=True):
        assert (mine.categories, mine.constant) == (other.categories, other.constant)
        assert mine.count == pytest.approx(other.count)
    np.testing.assert_allclose(ours.schema_.location, theirs.schema_.location, rtol=1e-9)
    np.testing.assert_allclose(ours.schema_.scale, theirs.schema_.scale, rtol=1e-9)
    assert ours.family_.layout() == theirs.family_.layout()
    np.testing.assert_allclose(ours.statistics_.values, theirs.statistics_.values, rtol=1e-8, atol=1e-8)
    assert list(getattr(ours, "feature_names_in_", ())) == list(getattr(theirs, "feature_names_in_", ()))
    assert ours.n_features_in_ == theirs.n_features_in_


@settings(max_examples=15)
@given(
    size=SIZES,
    seed=st.integers(0, 9),
    gaps=st.booleans(),
    weighted=st.booleans(),
    kind=st.sampled_from(["csv", "parquet"]),
    given_schema=st.booleans(),
)
def test_naive_bayes_of_blocks_is_that_of_the_table(
    tmp_path_factory, size, seed, gaps, weighted, kind, given_schema
):
    path = written(tmp_path_factory.mktemp("rows"), table(seed, gaps), kind)
    X, y = whole(path)
    weights = np.random.default_rng(seed).integers(0, 3, ROWS) * 0.5 if weighted else None
    parameters = {"kinds": {"visits": "discrete"}}
    if given_schema:
        parameters = {"schema": pb.Schema.infer(X, y, **parameters)}
    rows = sources.Blocks(path, "y", rows=size)
    ours, our_warnings = fitted(pb.MixedNB(**parameters), rows, sample_weight=weights)
    theirs, their_warnings = fitted(pb.MixedNB(**parameters), X, y, sample_weight=weights)
    assert our_warnings == their_warnings
    assert_same_model(ours, theirs)
    np.testing.assert_allclose(
        ours.describe()["bits"].dropna(), theirs.describe()["bits"].dropna(), atol=1e-9
    )
    for method in ("predict_proba", "predict_joint_log_proba", "decision_function"):
        expected = getattr(theirs, method)(X)
        np.testing.assert_allclose(getattr(ours, method)(rows), expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(getattr(theirs, method)(rows), expected, rtol=1e-9, atol=1e-12)
    assert np.array_equal(theirs.predict(rows), theirs.predict(X))


@pytest.mark.parametrize(
    "estimator", [pb.LDA, pb.QDA, pb.BayesNetClassifier, pb.AODE], ids=lambda e: e.__name__
)
@given(size=SIZES, seed=st.integers(0, 9))
def test_other_families_of_blocks_are_those_of_the_table(tmp_path_factory, estimator, size, seed):
    path = written(tmp_path_factory.mktemp("rows"), table(seed), "parquet")
    columns = ["city", "smokes", "visits"] if estimator is pb.AODE else [*NUMBERS, "smokes"]
    X, y = whole(path, columns)
    model = (
        estimator() if estimator is not pb.BayesNetClassifier else estimator(structure={"weight": ["height"]})
    )
    rows = sources.Blocks(path, "y", columns, rows=size)
    (ours, our_warnings), (theirs, their_warnings) = (
        fitted(model.__sklearn_clone__(), *given_rows) for given_rows in ((rows,), (X, y))
    )
    assert our_warnings == their_warnings
    assert_same_model(ours, theirs)
    np.testing.assert_allclose(ours.predict_proba(rows), theirs.predict_proba(X), rtol=1e-6, atol=1e-9)


@settings(max_examples=8)
@given(size=SIZES, gaps=st.booleans(), cut=st.integers(1, ROWS - 1))
def test_partial_fit_adds_files_as_it_adds_tables(tmp_path_factory, size, gaps, cut):
    frame, folder = table(3, gaps), tmp_path_factory.mktemp("rows")
    classes = ["maybe", "no", "yes"]
    ours, theirs = pb.MixedNB(clip=None), pb.MixedNB(clip=None)
    for number, part in enumerate((frame[:cut], frame[cut:])):
        path = folder / f"{number}.parquet"
        part.to_parquet(path, index=False)
        ours.partial_fit(sources.Blocks(path, "y", rows=size), classes=classes)
        theirs.partial_fit(part.drop(columns="y"), part["y"], classes=classes)
    assert_same_model(ours, theirs)


def test_partial_fit_says_what_it_could_not_clip(tmp_path):
    path = written(tmp_path, table(1), "parquet")
    X, y = whole(path)
    for rows in ((sources.Blocks(path, "y", rows=20), None), (X, y)):
        with pytest.warns(UserWarning, match="column 'weight' holds values beyond 5.0 standard deviations"):
            pb.MixedNB().partial_fit(*rows, classes=["maybe", "no", "yes"])


def test_what_a_glance_shows_is_said_of_a_file_too(tmp_path):
    frame = table().assign(
        code=lambda rows: np.where(rows["height"] > 180, 9999.0, rows["height"]), copy=table()["y"]
    )
    path = written(tmp_path, frame, "csv")
    (_, ours), (_, theirs) = (
        fitted(pb.MixedNB(), sources.Blocks(path, "y", rows=11)),
        fitted(pb.MixedNB(), *whole(path)),
    )
    assert ours == theirs and "missing-code: column 'code'" in ours[0]


def test_a_glance_sees_evenly_spaced_rows_of_the_file(tmp_path, monkeypatch):
    """Rows of a glance are every so many of the file, not of each block: a code in one of three is found as often."""
    monkeypatch.setattr(quick, "GLANCE", 40)
    frame = table()
    frame.loc[::3, "height"] = 9999.0
    path = written(tmp_path, frame, "parquet")
    (_, theirs) = fitted(pb.MixedNB(), *whole(path))
    for size in (4, 7, 50):
        assert fitted(pb.MixedNB(), sources.Blocks(path, "y", rows=size))[1] == theirs


def test_rows_are_counted_in_the_file(tmp_path):
    frame = table()
    model = pb.MixedNB(schema=pb.Schema.infer(frame.drop(columns="y"), frame["y"])).fit(
        frame.drop(columns="y"), frame["y"]
    )
    frame.loc[103, "height"] = np.inf
    path = written(tmp_path, frame, "parquet")
    rows = sources.Blocks(path, "y", rows=20)
    weights = np.where(np.arange(ROWS) % 2, 1.0, 0.0)  # rows that do not count are counted too
    for use in (
        lambda: model.predict(rows),
        lambda: model.fit(rows),
        lambda: model.fit(rows, sample_weight=weights),
    ):
        with pytest.raises(SchemaError, match=r"'height' holds infinity \(inf, row 103\)"):
            use()


def test_what_needs_all_rows_is_refused_in_one_sentence(tmp_path):
    path = written(tmp_path, table(gaps=True), "parquet")
    rows = sources.Blocks(path, "y")
    for model, error, sentence in (
        (pb.MixedNB(calibrate=True), ValueError, "calibrate=True passes over all rows many times"),
        (pb.TAN(), ValueError, "TAN learns its structure from all rows at once"),
        (pb.GA2M(), ValueError, "GA2M learns its structure from all rows at once"),
        (pb.AutoBayes(), ValueError, "AutoBayes needs all rows at once"),
        (pb.MixedNB(unlabelled="no"), ValueError, "rows without a label"),
        (
            pb.MixedNB(class_weight="balanced"),
            ValueError,
            "class_weight='balanced' needs the class frequencies",
        ),
        (pb.MixedNB(kinds="binned"), ValueError, "needs the quantiles of all rows, and a block of a file"),
        (pb.LDA(), SchemaError, "completes them in repeated passes"),
        (pb.MixedNB(schema=pb.Schema.infer(table()[NUMBERS])), SchemaMismatch, "has no column city"),
    ):
        with pytest.raises(error, match=sentence):
            model.fit(rows)
        assert not hasattr(model, "statistics_")
    with pytest.raises(ValueError, match="y is given beside blocks"):
        pb.MixedNB().fit(rows, table()["y"])
    with pytest.raises(SourceError, match="nothing names the labels"):
        pb.MixedNB().fit(sources.Blocks(path))
    with pytest.raises(ValueError, match=r"zero|every sample_weight is 0"):
        pb.MixedNB().fit(rows, sample_weight=np.zeros(ROWS))
    with pytest.raises(ValueError, match="y holds one class"):
        table().assign(y="no").to_parquet(path)
        pb.MixedNB().fit(sources.Blocks(path, "y"))
    model = pb.LDA().fit(table()[NUMBERS], table()["y"])
    with pytest.raises(ValueError, match="LDA needs all rows at once"):
        model.transform(rows)
    with pytest.raises(ValueError, match="explain takes a table"):
        model.explain(rows)


def test_weights_of_classes_count_in_blocks(tmp_path):
    path = written(tmp_path, table(), "parquet")
    parameters = {"class_weight": {"yes": 3.0, "no": 0.5}}
    ours = pb.MixedNB(**parameters).fit(sources.Blocks(path, "y", rows=9))
    assert_same_model(ours, pb.MixedNB(**parameters).fit(*whole(path)))


def test_classes_of_one_row_are_warned_of(tmp_path):
    frame = table()[[*NUMBERS, "y"]]
    frame.loc[0, "y"] = "never"
    path = written(tmp_path, frame, "parquet")
    (_, ours), (_, theirs) = (
        fitted(pb.QDA(), *rows) for rows in ((sources.Blocks(path, "y", rows=9),), whole(path))
    )
    assert ours == theirs and "class 'never' has one row" in ours[0]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Four times the rows take no more memory of Python and NumPy, but for the answers."""
    import tracemalloc

    rng, columns, peaks = np.random.default_rng(0), 20, []
    for rows in (20_000, 80_000):
        path = tmp_path / f"{rows}.parquet"
        frame = pd.DataFrame(rng.normal(size=(rows, columns))).rename(columns=str)
        frame.assign(y=rng.integers(0, 2, rows)).to_parquet(path, row_group_size=5000)
        blocks = sources.Blocks(path, "y", rows=1000)
        model = pb.MixedNB().fit(blocks)  # imported, compiled
        of_file = []
        for use, answers in (
            (lambda b=blocks: pb.MixedNB().fit(b), 0),
            (lambda m=model, b=blocks: m.predict_proba(b), rows * 2 * 8),
        ):
            tracemalloc.start()
            use()
            of_file.append(tracemalloc.get_traced_memory()[1] - answers)
            tracemalloc.stop()
        peaks.append(of_file)
    for small, large in zip(*peaks, strict=True):
        assert large < 1.3 * small < 80_000 * columns * 8 / 2
