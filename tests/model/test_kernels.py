"""The kernels for large tables give the numbers of the plain code for small ones, in blocks or not."""

import dataclasses
import math
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import special

import peerbayes as pb
from peerbayes.data import infer
from peerbayes.data.table import Table
from peerbayes.model import core, passes, sources
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian, SharedGaussian
from peerbayes.model.families.base import Family
from peerbayes.model.kernels import bayes_nets, block_loops
from peerbayes.model.residuals import residual_of

ROWS = 5000  # two and a half blocks


def use_kernels(monkeypatch, used):
    limit = 0 if used else sys.maxsize
    for module, names in ((infer, ("LARGE", "LARGE_NUMBERS")), (sources, ("LARGE_PASS", "LARGE_PASSES"))):
        for name in names:
            monkeypatch.setattr(module, name, limit)


@pytest.fixture
def always_large(monkeypatch):
    use_kernels(monkeypatch, True)


def mixed_table(rng, rows=ROWS, missing=False):
    X = np.concatenate([rng.normal(3, 2, (rows, 4)), rng.integers(-2, 3, (rows, 3))], axis=1)
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    return X, {4: "discrete", 5: "discrete", 6: "discrete"}


SHAPES = [(NaiveBayes, False), (NaiveBayes, True), (SeparateGaussian, False), (SharedGaussian, False)]


@pytest.mark.parametrize(("kind", "missing"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 2048, ROWS, 8193])
@pytest.mark.parametrize("way", [passes.Streamed, passes.Plain])
def test_blocks_equal_the_whole(kind, missing, weighted, rows, way, monkeypatch):
    use_kernels(monkeypatch, way is passes.Streamed)
    rng = np.random.default_rng(0)
    X, kinds = mixed_table(rng, rows, missing)
    schema = pb.Schema.infer(X, kinds=kinds, clip=2.0)
    layout = {"missing": True} if missing else {}
    family = kind(
        continuous=4, cardinalities=schema.cardinalities, variance_floor=0.05, count_floor=1e-4, **layout
    )
    labels = rng.integers(0, 3, rows).astype(np.int32)
    weights = rng.uniform(0, 2, rows) if weighted else None
    model = family.weights(family.uniform(3, 1.0) + rng.normal(0, 0.02, (3, family.size)))
    one_hot = np.eye(3)[labels] * (1 if weights is None else weights[:, None])
    held = passes.Held(family.features(schema.encode(X)), one_hot)
    blocks = way(family, sources.Raw(schema, Table.of(X)), labels, 3, weights)
    np.testing.assert_allclose(blocks.statistics(), held.statistics(), rtol=1e-12, atol=1e-9)
    expected = core.evaluate(held.features, held.labels, model)
    for found in (held.evaluate(model), blocks.evaluate(model)):
        np.testing.assert_allclose(found.residual, expected[0], rtol=1e-9, atol=1e-9)
        assert found.soft_error == pytest.approx(expected[1], rel=1e-12)
        assert found.error == pytest.approx(expected[2], abs=1e-12)
        assert found.log_loss == pytest.approx(expected[3], rel=1e-12)


@pytest.mark.parametrize(("kind", "missing"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_numbers_need_no_kernel(kind, missing, weighted, monkeypatch):
    """Between the sizes from which sums are plain and from which kernels pay off, matrix products add up."""
    rng = np.random.default_rng(0)
    X = rng.normal(3, 2, (ROWS, 4))
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    schema, layout = pb.Schema.infer(X, clip=2.0), {"missing": True} if missing else {}
    labels = rng.integers(0, 3, ROWS).astype(np.int32)
    weights = rng.uniform(0, 2, ROWS) if weighted else None
    data = passes.Streamed(kind(continuous=4, **layout), sources.Raw(schema, Table.of(X)), labels, 3, weights)
    with monkeypatch.context() as without:
        without.setattr(passes, "expander", None)
        without.setattr(block_loops, "diagonal_statistics", None)
        without.setattr(block_loops, "quadratic_statistics", None)
        stats = data.statistics()
    monkeypatch.setattr(infer, "LARGE_NUMBERS", 0)
    np.testing.assert_allclose(stats, data.statistics(), rtol=1e-12, atol=1e-9)


def test_equal_classes_are_wrong_but_for_the_first():
    """Ties, as in the uniform start, go to the first class on every way."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    family, source = NaiveBayes(continuous=2), sources.Raw(pb.Schema.infer(X), Table.of(X))
    model = family.weights(family.uniform(3, 1.0))
    plain = passes.Plain(family, source, labels, 3)
    for data in (plain, plain.held(), passes.Streamed(family, source, labels, 3)):
        assert data.evaluate(model).error == pytest.approx(np.mean(labels != 0))


def test_plain_sums_are_nearly_exact_over_any_number_of_blocks():
    rng = np.random.default_rng(7)
    z = rng.normal(3, 1e-3, (50_000, 2))
    schema = pb.Schema((pb.Column("a", "continuous"), pb.Column("b", "continuous")))
    labels = rng.integers(0, 2, len(z)).astype(np.int32)
    found = passes.Plain(NaiveBayes(continuous=2), sources.Raw(schema, Table.of(z)), labels, 2).statistics()
    for c in range(2):
        exact = [math.fsum(column) for column in np.concatenate([z, z * z], axis=1)[labels == c].T]
        np.testing.assert_allclose(found[c, 1:], exact, rtol=2.3e-16, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [None, 5.0])
def test_sums_of_products_are_nearly_exact_in_blocks(weighted, clip):
    """Matrix products of parts that are exact: every entry of S is the exact sum, rounded once."""
    rng = np.random.default_rng(7)
    z = rng.normal([3, -2, 1e-3], [1e-3, 1.0, 1e-9], (3000, 3))
    schema = pb.Schema(tuple(pb.Column(name, "continuous") for name in "abc"), clip=clip)
    labels = rng.choice([0, 2], len(z)).astype(np.int32)  # a class without rows
    weights = rng.uniform(0.1, 2, len(z)) if weighted else None
    source = sources.Raw(schema, Table.of(z))
    found = passes.Plain(SharedGaussian(continuous=3), source, labels, 3, weights).statistics()
    rows = np.concatenate([np.ones((len(z), 1)), np.clip(z, -schema.limit, schema.limit)], axis=1)
    pairs = np.transpose(np.triu_indices(4))
    for c in range(3):
        fractions = [[Fraction(value) for value in row] for row in rows[labels == c].tolist()]
        of_class = np.ones(len(fractions)) if weights is None else weights[labels == c]
        worth = [Fraction(weight) for weight in of_class.tolist()]
        exact = [
            float(sum(w * row[i] * row[j] for row, w in zip(fractions, worth, strict=True))) for i, j in pairs
        ]
        np.testing.assert_allclose(found[c], exact, rtol=2.3e-16, atol=0)


def test_what_is_lost_between_blocks_is_kept():
    """A first block of 2⁵³, and 20 of 1 each: any one of them is half of what float64 can tell there."""
    x = np.full((21 * 2048, 1), 2.0**-11)
    x[:2048] = 2.0**42
    schema = pb.Schema((pb.Column("a", "continuous"),), clip=None)
    labels = np.zeros(len(x), dtype=np.int32)
    stats = passes.Plain(NaiveBayes(continuous=1), sources.Raw(schema, Table.of(x)), labels, 1).statistics()
    assert stats[0, 1] == math.fsum(x[:, 0]) == 2.0**53 + 20


@pytest.mark.parametrize("weighted", [False, True])
def test_a_network_of_columns_passes_by_in_blocks(weighted):
    """Moments and cells by configurations of parents, of rows with weights of their own."""
    rng = np.random.default_rng(11)
    family = BayesNet(continuous=2, cardinalities=(2, 3), parents=((), (0, 2), (), (2,)))
    rows = Rows(
        rng.normal(size=(ROWS, 2)), np.stack([rng.integers(0, size, ROWS) for size in (2, 3)], axis=1)
    )
    frame = {"a": np.arange(6.0), "b": np.arange(6.0), "c": np.arange(6) % 2, "d": np.arange(6) % 3}
    kinds = {"a": "continuous", "b": "continuous", "c": "discrete", "d": "discrete"}
    source = sources.Encoded(pb.Schema.infer(pd.DataFrame(frame), kinds=kinds), rows)
    labels, weights = rng.integers(0, 3, ROWS).astype(np.int32), rng.uniform(0, 2, ROWS) if weighted else None
    one_hot = np.eye(3)[labels] * (1 if weights is None else weights[:, None])
    blocks = passes.Plain(family, source, labels, 3, weights)
    expected = core.statistics(family.features(rows), one_hot)
    np.testing.assert_allclose(blocks.statistics(), expected, rtol=1e-11, atol=1e-9)
    model = family.weights(expected)
    residual, soft, wrong, loss = core.evaluate(family.features(rows), one_hot, model)
    evaluated = blocks.evaluate(model)
    np.testing.assert_allclose(evaluated.residual, residual, rtol=1e-9, atol=1e-8)
    assert evaluated.soft_error == pytest.approx(soft) and evaluated.error == pytest.approx(wrong)
    assert evaluated.log_loss == pytest.approx(loss)


def test_scores_beyond_the_exponential_are_told_apart():
    logits = np.array([[1e4, -1e4, 700.0], [1e4 + 1, 1e4, 710.0], [0.0, 1e4, 720.0]])
    weights, labels = np.array([1.0, 2.0, 3.0]), np.array([1, 2, 0])
    posterior = special.softmax(logits, axis=0)
    np.testing.assert_allclose(passes.softmax(logits.copy()), posterior, rtol=1e-12)
    in_kernel, best, exact = logits.copy(), np.empty(3, dtype=np.int64), special.log_softmax(logits, axis=0)
    soft, wrong, loss = passes.residuals(logits, labels, weights)
    np.testing.assert_allclose(logits, weights * (np.eye(3)[:, labels] - posterior), atol=1e-12)
    assert soft == pytest.approx(weights @ (1 - posterior[labels, range(3)])) and wrong == 2.0 + 3.0
    assert loss == pytest.approx(-weights @ exact[labels, range(3)]) and loss > 3 * 20
    sums = block_loops.residuals(in_kernel, best, labels, weights)
    np.testing.assert_allclose(sums, (soft, wrong, loss), rtol=1e-12)
    for losses in (
        passes.residuals(np.array([[0.0], [1e4]]), np.array([0]), np.ones(1)),
        block_loops.residuals(np.array([[0.0], [1e4]]), best[:1], np.array([0]), np.ones(1)),
    ):
        assert losses[2] == 1e4  # where p(y|x) itself is 0


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.QDA, pb.LDA])
@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("frame", [False, True])
def test_estimators_do_not_care_how_large_a_table_is(estimator, calibrate, frame, monkeypatch):
    rng = np.random.default_rng(1)
    X, kinds = mixed_table(rng)
    y = (X[:, 0] + X[:, 4] + rng.normal(size=ROWS) > 3).astype(int)
    table = pd.DataFrame(X, columns=list("abcdefg")) if frame else X
    kinds = {"abcdefg"[j]: kind for j, kind in kinds.items()} if frame else kinds
    use_kernels(monkeypatch, False)
    small = estimator(calibrate=calibrate, kinds=kinds, max_iter=5, keep="last").fit(table, y)
    expected = small.predict_proba(table), small.predict_joint_log_proba(table), small.predict(table)
    use_kernels(monkeypatch, True)
    large = estimator(calibrate=calibrate, kinds=kinds, max_iter=5, keep="last").fit(table, y)
    np.testing.assert_allclose(
        np.asarray(large.statistics_), np.asarray(small.statistics_), rtol=1e-10, atol=1e-9
    )
    np.testing.assert_allclose(large.predict_proba(table), expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(large.predict_joint_log_proba(table), expected[1], rtol=1e-9)
    np.testing.assert_array_equal(large.predict(table), expected[2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int16, np.uint8])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_number_type_and_memory_order(dtype, order, always_large):
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, ROWS)
    plain = rng.integers(0, 200, (ROWS, 5)) + 10.0 * y[:, None]
    X = np.asarray(plain, dtype=dtype, order="F" if order == "F" else "C")
    if order == "strided":
        X = np.repeat(X, 2, axis=1)[:, ::2]
    expected = pb.MixedNB().fit(plain, y).predict_proba(plain)
    np.testing.assert_allclose(pb.MixedNB().fit(X, y).predict_proba(X), expected, rtol=1e-6, atol=1e-9)


BOTH = pytest.mark.parametrize("kernels", [False, True])


@BOTH
def test_a_table_of_other_columns_is_refused_on_either_way(kernels, monkeypatch):
    use_kernels(monkeypatch, kernels)
    X = np.zeros((3, 2))
    with pytest.raises(pb.SchemaMismatch, match="has 2 columns, the schema 3"):
        sources.source_of(pb.Schema.infer(np.zeros((3, 3))), Table.of(X), again=True)


@BOTH
def test_moments_equal_numpys_where_the_mean_is_far_from_zero(kernels, monkeypatch):
    use_kernels(monkeypatch, kernels)
    rng = np.random.default_rng(3)
    values = rng.normal(1e6, 1e-2, (20_000, 4))
    values[5000:, 1] += 1e3
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:15_000, 3] = np.nan  # more than a block
    count, mean, variance, low, high = infer.column_moments(values)
    np.testing.assert_array_equal(count, (~np.isnan(values)).sum(axis=0))
    np.testing.assert_allclose(mean, np.nanmean(values, axis=0), rtol=1e-14)
    np.testing.assert_allclose(variance, np.nanvar(values, axis=0), rtol=1e-7)
    np.testing.assert_array_equal(low, np.nanmin(values, axis=0))
    np.testing.assert_array_equal(high, np.nanmax(values, axis=0))


@BOTH
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [1, 3000, 20_001])
def test_distinct_integers_equal_numpys(kernels, order, rows, monkeypatch):
    use_kernels(monkeypatch, kernels)
    values = np.random.default_rng(4).integers(-5, 40, (rows, 4)) * np.array([1, 3, 1, 1000])
    values = np.asarray(values, order=order)
    found = infer.distinct_integers(values, [0, 1, 3])
    assert found == [tuple(np.unique(values[:, j]).tolist()) for j in (0, 1, 3)]


@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8, np.uint64])
def test_category_indices_are_those_of_the_schema(kernels, dtype, monkeypatch):
    use_kernels(monkeypatch, kernels)
    top = np.finfo(dtype).max if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    known = [0, 1, 2, 3, 5, 100, top]
    plain = np.array(
        known + ([-1, -1.5, 0.5, np.nan, -top] if np.dtype(dtype).kind == "f" else []), dtype=dtype
    )
    X = np.stack([plain, plain[::-1], plain], axis=1)
    columns = [
        pb.Column("a", "discrete", (3, -1, 0)),
        pb.Column("b", "continuous"),
        pb.Column("c", "discrete", (2, 5)),
    ]
    schema = pb.Schema(tuple(columns))
    source = sources.Raw(schema, Table.of(X))
    assert source.tables is not None
    found = [block.codes for _, block in source.blocks(4, kernels)]
    np.testing.assert_array_equal(np.concatenate(found), schema.encode(X).codes)


def test_the_exponential_is_the_librarys():
    from peerbayes.model.kernels import block_loops as kernels

    logits = -np.random.default_rng(5).exponential(30, (2, 4000))
    logits[0] = 0
    expected = np.exp(logits) / np.exp(logits).sum(axis=0)
    kernels.softmax(logits, np.empty(4000, dtype=np.int64))
    np.testing.assert_allclose(logits, expected, rtol=4e-16, atol=1e-300)


@pytest.mark.parametrize("way", [passes.Streamed, passes.Plain])
def test_a_family_without_kernels_takes_the_general_way(way):
    """A new family needs φ and θ only: the blocks are then expanded by φ itself."""

    class Own(Family):
        name = "own"
        dense_size = 3

        def dense(self, values):
            return np.concatenate([np.ones((len(values), 1)), values], axis=1)

        weights = uniform_moments = None

    family = Own(continuous=2)
    rng = np.random.default_rng(6)
    X, labels = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    schema = pb.Schema.infer(X)
    streamed = way(family, sources.Raw(schema, Table.of(X)), labels, 3)
    held = passes.Held(family.features(schema.encode(X)), np.eye(3)[labels])
    weights = rng.normal(size=(3, 3))
    np.testing.assert_allclose(streamed.statistics(), held.statistics(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        streamed.evaluate(weights).residual, held.evaluate(weights).residual, atol=1e-9
    )


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_a_column_may_have_very_many_categories(kernels, weighted, monkeypatch):
    use_kernels(monkeypatch, kernels)
    rng = np.random.default_rng(10)
    X = np.stack([rng.permutation(6000), rng.integers(0, 3, 6000)], axis=1)
    y, weights = rng.integers(0, 2, 6000), rng.uniform(1, 2, 6000) if weighted else np.ones(6000)
    model = pb.MixedNB(kinds="discrete", alpha=1.0).fit(X, y, weights if weighted else None)
    counts = np.asarray(model.statistics_)[:, 1:6001]
    np.testing.assert_allclose(counts[y, X[:, 0]], weights)
    assert np.count_nonzero(counts) == 6000
    of_class = np.array([weights[y == c].sum() for c in range(2)])
    seen = np.stack([[weights[(y == c) & (X[:, 1] == k)].sum() for k in range(3)] for c in range(2)])
    joint = (of_class / of_class.sum())[:, None] * (counts[:, X[:, 0]] + 1) / (of_class + 6000)[:, None]
    joint *= ((seen + 1) / (of_class + 3)[:, None])[:, X[:, 1]]
    np.testing.assert_allclose(model.predict_proba(X), (joint / joint.sum(axis=0)).T, rtol=1e-9)


# --- which way is taken ------------------------------------------------------------------------------------


def test_the_way_depends_on_the_call_and_not_on_what_is_loaded():
    """The two ways differ in the last bits, so a fit must not change when something else has loaded numba."""
    code = """
import sys, numpy as np, peerbayes as pb
rng = np.random.default_rng(0)
X, y = rng.normal(size=(3000, 5)), rng.integers(0, 3, 3000)
def learnt():
    models = [pb.MixedNB().fit(X, y), pb.MixedNB(calibrate=True).fit(X, y), pb.QDA().fit(X, y)]
    return b"".join(model.predict_proba(X).tobytes() for model in models)
before = learnt()
assert "numba" not in sys.modules
import peerbayes.model.kernels.block_loops
assert learnt() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_passes_are_work_for_the_kernels_sooner():
    rng = np.random.default_rng(8)
    family = NaiveBayes(continuous=20)

    def ways(rows, iterations):
        X = rng.normal(size=(rows, 20))
        source = sources.source_of(pb.Schema.infer(X), Table.of(X), again=True)
        once = passes.labelled(family, source, np.zeros(rows, np.int32), 2)
        return type(once), type(residual_of(once, family, iterations).data)

    assert ways(500, 1_000_000) == (passes.Held, passes.Held)  # never worth a wait
    assert ways(5000, 64) == (passes.Plain, passes.Held)
    assert ways(20_000, 2) == (passes.Plain, passes.Plain)
    assert ways(20_000, 64) == (passes.Plain, passes.Streamed)
    assert ways(60_000, 1) == (passes.Streamed, passes.Streamed)


def test_one_hots_count_twice_a_column_however_many_categories_there_are():
    """They are not written out: 2,000 rows of a column with 5,000 categories are little work, of 600 columns much."""
    for cardinalities, large in (((5000,), False), ((2,) * 600, True)):
        family = NaiveBayes(cardinalities=cardinalities)
        assert sources.is_large(family, 2000) == large


def test_below_the_kernels_nothing_grows_with_the_rows():
    """Neither Φ nor a copy of the rows is held: what a pass takes is a few blocks."""
    rng = np.random.default_rng(9)
    X, y = rng.normal(size=(50_000, 20)), rng.integers(0, 3, 50_000)
    pb.MixedNB().fit(X, y)
    tracemalloc.start()
    pb.MixedNB().fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 2


# --- networks whose entries are gathered

NETWORKS = {
    "tables": BayesNet(cardinalities=(3, 2, 4), parents=((), (0,), (0, 1))),
    "lines": BayesNet(continuous=3, parents=((), (0,), (0,))),
    "two parents": BayesNet(continuous=4, parents=((), (0,), (0, 1), (0, 2))),
    "mixed": BayesNet(
        continuous=4,
        cardinalities=(3, 4, 2, 5),
        parents=((), (0,), (0, 4, 5), (0, 1, 5), (), (4,), (4, 5), ()),
    ),
    "independent": BayesNet(continuous=2, cardinalities=(3,)),
}


def network_rows(family, rng, rows, classes):
    """Rows of a network, a source of them, and labels; columns without links lack some values."""
    codes = [rng.integers(0, size, rows) for size in family.cardinalities]
    codes = np.stack(codes, axis=1) if codes else np.zeros((rows, 0))
    alone = ~family.linked[family.continuous :]
    codes[:, alone] = np.where(rng.random((rows, alone.sum())) < 0.1, -1, codes[:, alone])
    encoded = Rows(rng.normal(size=(rows, family.continuous)), codes.astype(np.int32))
    columns = [pb.Column(f"x{j}", "continuous") for j in range(family.continuous)]
    columns += [
        pb.Column(f"d{j}", "discrete", categories=tuple(range(r))) for j, r in enumerate(family.cardinalities)
    ]
    return sources.Encoded(pb.Schema(tuple(columns)), encoded), rng.integers(0, classes, rows).astype(
        np.int32
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("classes", "rows"), [(2, 1), (3, 2500), (9, 33), (26, 300)])
@pytest.mark.parametrize("shrinkage", [0.0, 0.01])
def test_gathered_entries_equal_products_with_features(network, classes, rows, shrinkage):
    rng = np.random.default_rng(classes)
    family = dataclasses.replace(
        NETWORKS[network], variance_floor=0.01, count_floor=1e-4, shrinkage=shrinkage
    )
    source, labels = network_rows(family, rng, rows, classes)
    row_weights = rng.uniform(0, 2, rows)
    one_hot, features = core.one_hot(labels, classes) * row_weights[:, None], family.features(source.data)
    stats = family.uniform(classes, rows) + core.statistics(features, one_hot)
    weights = family.weights(stats)
    expected = core.evaluate(features, one_hot, weights)
    data = passes.Gathered(family, source, labels, classes, row_weights)
    for evaluated in (data.evaluate(weights), data.evaluate_at(stats)):
        largest = max(np.abs(expected[0]).max(), 1.0)
        np.testing.assert_allclose(evaluated.residual, expected[0], rtol=0, atol=1e-12 * largest)
        np.testing.assert_allclose(evaluated[1:], expected[1:], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("scale", [1.0, 1e-305, 1e300])
def test_gathered_weights_accept_any_statistics(network, scale):
    """θ of the kernels is that of the family where counts and variances are negative, S is 0, tiny, huge or NaN."""
    rng = np.random.default_rng(5)
    family = dataclasses.replace(NETWORKS[network], variance_floor=0.01, count_floor=1e-4, shrinkage=0.01)
    for stats in (
        rng.normal(size=(3, family.size)),
        rng.random((3, family.size)),
        np.zeros((3, family.size)),
    ):
        weights = bayes_nets.theta(family, scale * stats)
        expected = family.weights(scale * stats)
        np.testing.assert_allclose(weights[: family.size, :3].T, expected, rtol=1e-9, atol=1e-9)
        assert np.all(weights[0, 3:] == -np.inf) and not weights[family.size :].any()
    stats[1, 0] = np.nan
    assert np.isnan(bayes_nets.theta(family, stats)).all()


def test_equal_classes_of_a_gathered_network_are_wrong_but_for_the_first():
    family, classes = NETWORKS["mixed"], 5
    source, labels = network_rows(family, np.random.default_rng(0), 400, classes)
    data = passes.Gathered(family, source, labels, classes)
    evaluated = data.evaluate_at(family.uniform(classes, 400.0))
    assert evaluated.error == pytest.approx(np.mean(labels != 0))
    assert evaluated.log_loss == pytest.approx(np.log(classes))


@pytest.mark.parametrize("estimator", [pb.TAN, pb.KDB])
def test_networks_do_not_care_how_large_a_table_is(estimator, monkeypatch):
    """Calibration that gathers entries ends where the plain one does, from an array and with a missing value."""
    rng = np.random.default_rng(1)
    X, kinds = mixed_table(rng, 2100)
    y = (X[:, 0] * X[:, 1] + X[:, 4] + rng.normal(size=2100) > 3).astype(int)
    incomplete = X.copy()
    incomplete[7, 2] = np.nan
    use_kernels(monkeypatch, True)
    ways, evaluated = set(), passes.Gathered._evaluated
    monkeypatch.setattr(
        passes.Gathered, "_evaluated", lambda self, weights: ways.add("gathered") or evaluated(self, weights)
    )
    settings = {"start": "uniform", "max_iter": 5, "keep": "last"}
    for table in (X, incomplete):
        monkeypatch.setenv("PEERBAYES_PLAIN", "1")
        plain = estimator(calibrate=True, kinds=kinds, **settings).fit(table, y)
        assert not ways
        monkeypatch.delenv("PEERBAYES_PLAIN")
        fitted = estimator(calibrate=True, kinds=kinds, **settings).fit(table, y)
        assert ways == {"gathered"}
        ways.clear()
        np.testing.assert_allclose(
            np.asarray(fitted.statistics_), np.asarray(plain.statistics_), rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(fitted.history_, plain.history_, rtol=1e-9)


# --- naive Bayes without φ


@pytest.mark.parametrize(("continuous", "discrete"), [(1, 0), (4, 3), (7, 0), (20, 1), (0, 2)])
@pytest.mark.parametrize(("classes", "rows"), [(2, 1), (3, 64), (7, 8193), (26, 300)])
def test_naive_bayes_without_features_equals_products_with_them(
    continuous, discrete, classes, rows, monkeypatch
):
    monkeypatch.setattr(sources, "FUSED_ROWS", 0)
    rng = np.random.default_rng(rows)
    X = np.concatenate(
        [rng.normal(3, 2, (rows, continuous)), rng.integers(0, 4, (rows, discrete)).astype(float)], axis=1
    )
    X[:, continuous:][rng.random((rows, discrete)) < 0.1] = np.nan  # nothing is added for them
    columns = [pb.Column(f"x{j}", "continuous", location=3.0, scale=2.0) for j in range(continuous)]
    columns += [pb.Column(f"d{j}", "discrete", categories=(0, 1, 2, 3)) for j in range(discrete)]
    schema = pb.Schema(tuple(columns), clip=1.5)
    family = NaiveBayes(continuous=continuous, cardinalities=(4,) * discrete, variance_floor=0.05)
    labels, row_weights = rng.integers(0, classes, rows).astype(np.int32), rng.uniform(0, 2, rows)
    model = family.weights(
        family.uniform(classes, 1.0) + rng.normal(0, 0.02 / classes, (classes, family.size))
    )
    one_hot = core.one_hot(labels, classes) * row_weights[:, None]
    expected = core.evaluate(family.features(schema.encode(X)), one_hot, model)
    data = passes.Streamed(family, sources.Raw(schema, Table.of(X)), labels, classes, row_weights)
    monkeypatch.setattr(passes, "fast_products", None)  # the way by products with φ
    evaluated = data.evaluate(model)
    largest = max(np.abs(expected[0]).max(), 1.0)
    np.testing.assert_allclose(evaluated.residual, expected[0], rtol=0, atol=1e-12 * largest)
    np.testing.assert_allclose(evaluated[1:], expected[1:], rtol=1e-11, atol=1e-14)


def test_equal_classes_without_features_are_wrong_but_for_the_first(monkeypatch):
    monkeypatch.setattr(sources, "FUSED_ROWS", 0)
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    family, source = NaiveBayes(continuous=2), sources.Raw(pb.Schema.infer(X), Table.of(X))
    evaluated = passes.Streamed(family, source, labels, 3).evaluate(family.weights(family.uniform(3, 1.0)))
    assert evaluated.error == pytest.approx(np.mean(labels != 0))
    assert evaluated.log_loss == pytest.approx(np.log(3))


def test_published_numbers_of_rows_and_plain_processes_keep_their_way(monkeypatch):
    """Passes over up to 16,000 rows, layouts with missing values and PEERBAYES_PLAIN take products with φ."""
    family, large = NaiveBayes(continuous=2), sources.FUSED_ROWS
    assert sources.is_fused(family, large) and large > 50 * 320
    assert not sources.is_fused(family, large - 1)
    assert not sources.is_fused(family.with_missing(), large)
    assert not sources.is_fused(SharedGaussian(continuous=2), large)
    monkeypatch.setenv("PEERBAYES_PLAIN", "1")
    assert not sources.is_fused(family, large)
