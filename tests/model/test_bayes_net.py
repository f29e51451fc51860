"""Bayesian-network classifiers beside independent implementations, their structures, and what is refused."""

import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

import peerbayes as pb
from peerbayes import KDB, TAN, BayesNetClassifier
from peerbayes.errors import StructureError
from peerbayes.model import core
from peerbayes.model import structure as dependence
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian
from peerbayes.model.families.structures import checked, order

seeds = st.integers(0, 2**32 - 1)


def rows_of(rng, count, continuous, cardinalities):
    values = rng.normal(size=(count, continuous)) @ (
        np.eye(continuous) + 0.5 * rng.normal(size=(continuous,) * 2)
    )
    codes = [rng.integers(0, size, count) for size in cardinalities]
    return Rows(values, np.stack(codes, axis=1) if codes else np.zeros((count, 0), dtype=np.int64))


def random_parents(rng, continuous, columns, most=3):
    """Parents of a random network: a column's are before it in a random order, and discrete for a discrete one."""
    place = rng.permutation(columns)
    parents = []
    for column in range(columns):
        may = [
            p for p in range(columns) if place[p] < place[column] and (column < continuous or p >= continuous)
        ]
        parents.append(tuple(sorted(rng.permutation(may)[: rng.integers(0, most + 1)].astype(int))))
    return tuple(parents)


def directly(family, rows, labels, classes):
    """log p(x, c) written out: tables by counting, regressions by least squares, densities by scipy. [n, C]."""
    joint = np.zeros((len(labels), classes))
    columns = family.continuous + len(family.cardinalities)
    for c in range(classes):
        own = labels == c
        joint[:, c] = np.log(own.mean())
        for column in range(columns):
            linear = [p for p in family.parents[column] if p < family.continuous]
            discrete = [p - family.continuous for p in family.parents[column] if p >= family.continuous]
            for values in np.ndindex(*(family.cardinalities[p] for p in discrete)):
                here = (rows.codes[:, discrete] == values).all(axis=1)
                mine = here & own
                if column >= family.continuous:
                    code = rows.codes[:, column - family.continuous]
                    shares = np.bincount(
                        code[mine], minlength=family.cardinalities[column - family.continuous]
                    )
                    joint[here, c] += np.log(shares / mine.sum())[code[here]]
                else:
                    design = np.concatenate([np.ones((len(labels), 1)), rows.values[:, linear]], axis=1)
                    fitted, *_ = np.linalg.lstsq(design[mine], rows.values[mine, column], rcond=None)
                    apart = rows.values[:, column] - design @ fitted
                    joint[here, c] += norm.logpdf(apart[here], scale=np.sqrt((apart[mine] ** 2).mean()))
    return joint


def fitted(family, rows, labels, classes):
    features = family.features(rows)
    return core.log_joint(features, family.weights(core.statistics(features, core.one_hot(labels, classes))))


@given(seed=seeds)
def test_the_log_joint_of_random_networks_is_scipys(seed):
    rng = np.random.default_rng(seed)
    continuous, cardinalities = int(rng.integers(0, 5)), tuple(rng.integers(2, 4, rng.integers(1, 3)))
    parents = random_parents(rng, continuous, continuous + len(cardinalities))
    family = BayesNet(continuous=continuous, cardinalities=tuple(map(int, cardinalities)), parents=parents)
    rows, labels = rows_of(rng, 600, continuous, cardinalities), rng.integers(0, 2, 600)
    expected = directly(family, rows, labels, 2)
    np.testing.assert_allclose(fitted(family, rows, labels, 2), expected, rtol=1e-8, atol=1e-8)


@given(seed=seeds)
def test_without_parents_it_is_naive_bayes(seed):
    rng = np.random.default_rng(seed)
    layout = {"continuous": 3, "cardinalities": (2, 4), "variance_floor": 0.05, "count_floor": 1e-4}
    rows, labels = rows_of(rng, 80, 3, (2, 4)), rng.integers(0, 3, 80)
    networks = fitted(BayesNet(**layout, shrinkage=0.02), rows, labels, 3)
    np.testing.assert_allclose(networks, fitted(NaiveBayes(**layout), rows, labels, 3), rtol=1e-12)


@given(seed=seeds)
def test_with_all_links_it_is_qda(seed):
    rng = np.random.default_rng(seed)
    parents = ((), (0,), (0, 1), (0, 1, 2), ())
    rows, labels = rows_of(rng, 120, 4, (3,)), rng.integers(0, 3, 120)
    full = BayesNet(continuous=4, cardinalities=(3,), parents=parents)
    qda = SeparateGaussian(continuous=4, cardinalities=(3,))
    assert full.size == qda.size
    np.testing.assert_allclose(
        fitted(full, rows, labels, 3), fitted(qda, rows, labels, 3), rtol=1e-9, atol=1e-9
    )


def test_estimators_without_and_with_all_links_are_mixed_nb_and_qda():
    X, y = load_wine(return_X_y=True, as_frame=True)
    X = X.iloc[:, :5]
    nb, net = pb.MixedNB().fit(X, y), BayesNetClassifier().fit(X, y)
    np.testing.assert_allclose(net.predict_proba(X), nb.predict_proba(X), rtol=1e-12)
    everybody = {name: list(X.columns[:place]) for place, name in enumerate(X.columns)}
    full = BayesNetClassifier(everybody, shrinkage=None).fit(X, y)
    qda = pb.QDA(shrinkage=None).fit(X, y)
    np.testing.assert_allclose(full.predict_joint_log_proba(X), qda.predict_joint_log_proba(X), rtol=1e-9)


# --- beside pgmpy ------------------------------------------------------------------------------------------


def in_bins(load, columns, bins=4):
    """A dataset of scikit-learn's with its columns cut at their quantiles, as text."""
    X, y = load(return_X_y=True, as_frame=True)
    X = X.iloc[:, :columns]
    return X.apply(
        lambda column: pd.qcut(column, bins, labels=False, duplicates="drop").astype(str)
    ), y.astype(str)


@pytest.mark.parametrize(
    ("load", "columns"),
    [(load_iris, 4), (load_wine, 8), (load_breast_cancer, 8)],
    ids=["iris", "wine", "cancer"],
)
def test_the_tree_and_its_tables_are_pgmpys(load, columns):
    pytest.importorskip("pgmpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        from pgmpy.estimators import TreeSearch
        from pgmpy.models import DiscreteBayesianNetwork
        from pgmpy.parameter_estimator import DiscreteMLE

        X, y = in_bins(load, columns)
        table = X.assign(outcome=y)
        tree = TreeSearch(table, root_node=X.columns[0], n_jobs=1).estimate(
            estimator_type="tan", class_node="outcome", show_progress=False
        )
        model = DiscreteBayesianNetwork(tree.edges())
        model.fit(table, estimator=DiscreteMLE())
    ours = TAN(alpha=0.0, shrinkage=None, penalty="none").fit(X, y)
    links = {(parent, name) for name, parents in ours.parents_.items() for parent in parents}
    assert links == {(a, b) for a, b in tree.edges() if a != "outcome"}
    tables = ours.conditional_tables()
    for name in X.columns:
        cpd = model.get_cpds(name)
        for (label, *values), probabilities in tables[name].items():
            given = dict(zip(["outcome", *ours.parents_[name]], [label, *values], strict=True))
            seen = (table[list(given)] == pd.Series(given)).all(axis=1)
            if not seen.any():
                continue  # nothing is known: theirs is uniform, and so is ours
            for category, probability in probabilities.items():
                assert probability == pytest.approx(cpd.get_value(**given, **{name: category}), abs=1e-9)


# --- structures --------------------------------------------------------------------------------------------


@given(seed=seeds)
def test_the_tree_tells_most(seed):
    """No exchange of a link makes the tree better; discrete columns are a tree of their own at the top."""
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(rng, 200, 3, (2, 3, 2)), rng.integers(0, 2, 200)
    pairs = dependence.Pairs.of(rows, labels, 2, (2, 3, 2))
    parents = dependence.tan(pairs)
    assert [len(own) for own in parents].count(0) == 1 and max(map(len, parents)) == 1
    links = {frozenset((column, own[0])) for column, own in enumerate(parents) if own}
    graph = nx.Graph(tuple(link) for link in links)
    assert nx.is_tree(graph) and nx.is_connected(graph.subgraph([3, 4, 5]))
    for link in links:
        rest = graph.copy()
        rest.remove_edge(*link)
        parts = [set(part) for part in nx.connected_components(rest)]
        told = pairs.information[tuple(link)]
        for i in parts[0]:
            for j in parts[1]:
                if (min(link) >= 3) == (min(i, j) >= 3):  # links among discrete columns are chosen first
                    assert pairs.information[i, j] <= told + 1e-12


def test_information_is_what_it_says():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (4000, 2))
    codes[:, 1] = np.where(rng.random(4000) < 0.7, codes[:, 0], codes[:, 1])
    labels = rng.integers(0, 2, 4000)
    pairs = dependence.Pairs.of(Rows(np.zeros((4000, 0)), codes), labels, 2, (3, 3))
    from sklearn.metrics import mutual_info_score

    expected = sum((labels == c).mean() * mutual_info_score(*codes[labels == c].T) for c in (0, 1))
    assert pairs.information[0, 1] == pytest.approx(expected)
    values = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 4000)
    pairs = dependence.Pairs.of(Rows(values, np.zeros((4000, 0), dtype=int)), labels, 2, ())
    assert pairs.information[0, 1] == pytest.approx(-0.5 * np.log(1 - 0.64), abs=0.05)


@given(seed=seeds, cut=st.integers(0, 120))
def test_pairs_add_over_any_split(seed, cut):
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(rng, 120, 2, (2, 3)), rng.integers(0, 3, 120)
    rows.values[rng.random(rows.values.shape) < 0.2] = np.nan
    rows.codes[rng.random(rows.codes.shape) < 0.2] = -1
    parts = [
        dependence.Pairs.of(Rows(rows.values[some], rows.codes[some]), labels[some], 3, (2, 3))
        for some in (slice(0, cut), slice(cut, None))
    ]
    whole = dependence.Pairs.of(rows, labels, 3, (2, 3))
    np.testing.assert_allclose((parts[0] + parts[1]).vector, whole.vector, rtol=1e-12, atol=1e-12)


@given(seed=seeds, k=st.integers(0, 3))
def test_kdb_gives_at_most_k_parents_that_tell_more_about_the_class(seed, k):
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(rng, 150, 2, (2, 3, 2)), rng.integers(0, 2, 150)
    pairs = dependence.Pairs.of(rows, labels, 2, (2, 3, 2))
    parents = dependence.kdb(pairs, k)
    order(parents)
    for column, own in enumerate(parents):
        assert len(own) <= k
        assert all(pairs.of_class[parent] >= pairs.of_class[column] for parent in own)
        assert column < 2 or all(parent >= 2 for parent in own)


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ({"flavanoids": "beauty"}, "names 'beauty'; expected columns: alcohol"),
        ({"flavanoids": "hue", "hue": "flavanoids"}, "form a cycle: "),
        ({"region": "hue"}, "'region' is discrete and has the continuous parent 'hue'"),
        ({"hue": "hue"}, "form a cycle"),
        ([1, 2], "expected a networkx DiGraph, or a mapping"),
    ],
)
def test_structures_that_make_no_sense(structure, message):
    X, y = load_wine(return_X_y=True, as_frame=True)
    X["region"] = np.where(np.arange(len(y)) % 2, "north", "south")
    with pytest.raises(StructureError, match=message):
        BayesNetClassifier(structure).fit(X, y)


def test_the_number_of_parameters_is_told_before_they_are_allocated():
    X = pd.DataFrame({name: np.arange(3000).astype(str) for name in "abc"})
    with pytest.raises(
        StructureError, match=r"statistics of all pairs .* 9,000 categories .* 162,000,000 numbers"
    ):
        TAN(kinds="discrete").fit(X, np.arange(3000) % 2)
    with pytest.raises(StructureError, match=r"are 54,\d+,\d+,\d+ numbers \(4\d\d.\d GB\)"):
        BayesNetClassifier({"a": ["b", "c"]}, kinds="discrete").fit(X, np.arange(3000) % 2)


def test_parents_must_be_columns():
    with pytest.raises(StructureError, match="has the parent 7; expected one of 0 to 2"):
        checked(((7,), (), ()), 3, 3)
    with pytest.raises(StructureError, match="parents of 1 columns; expected those of 2"):
        checked(((),), 1, 2)


def test_a_configuration_never_seen_is_like_the_whole_class():
    """With shrinkage; without, its table is even."""
    X = pd.DataFrame({"a": list("xxxxyyyy") * 10, "b": list("ppqqpppp") * 10})
    y = np.array([0, 1] * 40)
    X.loc[80] = ["z", "p"]
    model = BayesNetClassifier({"b": "a"}, alpha=0.0, shrinkage=None).fit(X, np.append(y, 0))
    assert model.conditional_tables()["b"][(1, "z")] == pytest.approx({"p": 0.5, "q": 0.5})
    backed = BayesNetClassifier({"b": "a"}, alpha=0.0, shrinkage=5.0).fit(X, np.append(y, 0))
    assert backed.conditional_tables()["b"][(1, "z")]["p"] == pytest.approx(0.75, abs=0.01)


# --- faces -------------------------------------------------------------------------------------------------


def test_the_structure_as_a_graph():
    X, y = load_wine(return_X_y=True, as_frame=True)
    model = TAN().fit(X, y)
    graph = model.structure_
    assert nx.is_directed_acyclic_graph(graph) and graph.number_of_nodes() == X.shape[1] + 1
    again = BayesNetClassifier(model.parents_).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    of_columns = graph.subgraph(X.columns)
    same = BayesNetClassifier(nx.DiGraph(of_columns)).fit(X, y)
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("estimator", [TAN(), KDB(1), KDB(2), BayesNetClassifier({"hue": ["alcohol"]})])
@pytest.mark.parametrize("calibrate", [False, True])
def test_save_and_load(estimator, calibrate, tmp_path):
    X, y = load_wine(return_X_y=True, as_frame=True)
    model = estimator.set_params(calibrate=calibrate).fit(X, y)
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    assert type(loaded) is type(model) and loaded.parents_ == model.parents_
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("family", ["tan", "kdb"])
def test_the_structure_over_the_network_is_the_pooled_one(family):
    X, y = load_digits(return_X_y=True, as_frame=True)
    X = X.iloc[:, 10:26]
    order_of_rows = np.argsort(y.to_numpy(), kind="stable")[:1600]  # one class per peer
    parts = np.array_split(order_of_rows, 20)
    run = pb.simulate(X, y, family=family, peers=20, partition=parts, start="ml", rounds=4)
    pooled = {"tan": TAN, "kdb": KDB}[family](schema=run.schema, penalty="none").fit(
        X.iloc[order_of_rows], y.iloc[order_of_rows]
    )
    assert run.classifier(0).parents_ == pooled.parents_
    assert run.history["bytes"].min() > 8 * run.stats[0].size * 4  # the pairs were sent, too


def test_wide_columns_do_not_cost_their_zeros():
    rng = np.random.default_rng(0)
    family = NaiveBayes(cardinalities=(1000,) * 20)
    rows = Rows(np.zeros((500, 0)), rng.integers(0, 1000, (500, 20)))
    sparse = family.sparse(rows)
    assert family.wide and sparse.nnz == 500 * 21
    np.testing.assert_array_equal(sparse.toarray(), family.features(rows))


@pytest.mark.parametrize(("size", "wide"), [(15, False), (16, True)])
def test_more_than_eight_features_for_each_that_is_not_zero_are_wide(size, wide):
    """The 1 and one cell of a column: two that are not zero."""
    assert NaiveBayes(cardinalities=(size,)).wide == BayesNet(cardinalities=(size,)).wide == wide


@pytest.mark.parametrize("start", ["uniform", "ml"])
def test_wide_columns_are_simulated_as_narrow_ones_are(start, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 60, (400, 6)), rng.integers(0, 3, 400)
    settings = {"kinds": "discrete", "peers": 5, "rows_per_peer": 60, "rounds": 6, "start": start}
    sparse = pb.simulate(X, y, **settings)
    assert sparse.layout.wide
    monkeypatch.setattr("peerbayes.model.families.base.WIDE", 1e9)
    dense = pb.simulate(X, y, **settings)
    assert not dense.layout.wide
    np.testing.assert_allclose(sparse.stats, dense.stats, atol=1e-9)
    np.testing.assert_allclose(sparse.records, dense.records, atol=1e-9)
    for who, outcome in sparse.outcomes.items():
        np.testing.assert_allclose(outcome.confusion, dense.outcomes[who].confusion)


@given(seed=seeds)
def test_both_ways_of_counting_pairs_agree(seed):
    rng = np.random.default_rng(seed)
    rows = rows_of(rng, 90, 2, (2, 3))
    rows.values[rng.random(rows.values.shape) < 0.2] = np.nan
    rows.codes[rng.random(rows.codes.shape) < 0.2] = -1
    for some in (rows, Rows(rows.values[:, :0], rows.codes)):
        for weight in (rng.random(90), None):
            for ours, theirs in zip(
                dependence._products(some, weight, (2, 3)),
                dependence._counted(some, weight, (2, 3)),
                strict=True,
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@given(seed=seeds)
def test_tables_side_by_side_tell_what_each_tells_alone(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, rng.integers(0, 5))
    tables = rng.integers(-1, 6, (3, sizes.sum())).astype(float)
    apart = np.split(tables, np.cumsum(sizes)[:-1], axis=1) if sizes.size else []
    alone = [dependence.mutual(table) for table in apart]
    np.testing.assert_allclose(dependence._mutuals(tables, sizes), alone, rtol=1e-12, atol=1e-14)


@given(seed=seeds)
def test_a_row_is_in_one_cell_of_each_table_that_nothing_is_missing_for(seed):
    rng = np.random.default_rng(seed)
    cardinalities = tuple(map(int, rng.integers(1, 4, 5)))
    family = BayesNet(continuous=1, cardinalities=cardinalities, parents=random_parents(rng, 1, 6))
    rows = rows_of(rng, 30, 1, cardinalities)
    rows.codes[rng.random(rows.codes.shape) < 0.2] = -1
    places, _ = family.entries(rows)
    for column in range(1, 6):
        own = family._column_indices[column]  # [configurations, r]
        sizes = [cardinalities[p - 1] for p in family.parents[column]]
        for row, place in zip(rows.codes, places[:, column - 6], strict=True):
            values = [row[p - 1] for p in family.parents[column]]
            if min([row[column - 1], *values]) < 0:
                assert place == family.size
            else:
                configuration = np.ravel_multi_index(values, sizes) if sizes else 0
                assert place == own[configuration, row[column - 1]]


# --- beside the definitions, written out -------------------------------------------------------------------


def information_by_hand(rows, labels, classes, cardinalities):
    """I(X_i; X_j | C) and I(X_i; C), one pair and class after the other: [D, D], [D]."""
    d, sizes = rows.values.shape[1], cardinalities
    columns = d + len(sizes)
    information, of_class = np.zeros((columns, columns)), np.zeros(columns)
    shares = np.bincount(labels, minlength=classes) / len(labels)

    def entropy(*codes):
        _, counts = np.unique(np.stack(codes), axis=1, return_counts=True)
        return -(counts / counts.sum() * np.log(counts / counts.sum())).sum()

    def shrunk(x, code, pseudo):
        """½ log σ² less the mean of ½ log σ²_a, each category with so many rows like those of all."""
        mean, variance = x.mean(), x.var()
        difference = 0.5 * np.log(variance)
        for a in np.unique(code):
            inside = x[code == a]
            rows = inside.size + pseudo
            first = (inside.sum() + pseudo * mean) / rows
            second = ((inside**2).sum() + pseudo * (variance + mean**2)) / rows
            difference -= inside.size / x.size * 0.5 * np.log(second - first**2)
        return difference

    for c in range(classes):
        mine = labels == c
        x, codes = rows.values[mine], rows.codes[mine]
        for i in range(d):
            for j in range(d):
                if i != j:
                    information[i, j] -= (
                        shares[c] * 0.5 * np.log(1 - np.corrcoef(x[:, i], x[:, j])[0, 1] ** 2)
                    )
            for a in range(len(sizes)):
                information[i, d + a] += shares[c] * shrunk(x[:, i], codes[:, a], 5.0)
        for a in range(len(sizes)):
            for b in range(len(sizes)):
                if a != b:
                    one, other = codes[:, a], codes[:, b]
                    information[d + a, d + b] += shares[c] * (
                        entropy(one) + entropy(other) - entropy(one, other)
                    )
    information[d:, :d] = information[:d, d:].T
    for i in range(d):
        of_class[i] = shrunk(rows.values[:, i], labels, 0.0)
    for a in range(len(sizes)):
        code = rows.codes[:, a]
        of_class[d + a] = entropy(code) + entropy(labels) - entropy(code, labels)
    return information, of_class


@given(seed=seeds)
def test_information_is_that_of_the_definitions(seed):
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(rng, 150, 3, (2, 3, 2)), rng.choice(3, 150, p=[0.6, 0.3, 0.1])
    labels[:3] = range(3)
    rows.codes[:, 1] = (rows.codes[:, 0] + rows.codes[:, 1] + labels) % 3
    rows.values[:, 0] += rows.codes[:, 0] + labels
    pairs = dependence.Pairs.of(rows, labels, 3, (2, 3, 2))
    information, of_class = information_by_hand(rows, labels, 3, (2, 3, 2))
    information = np.maximum(information, 0.0)  # pseudo-rows can make it a little less
    np.testing.assert_allclose(pairs.information, information, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(pairs.of_class, of_class, rtol=1e-9, atol=1e-12)
    parents = dependence.kdb(pairs, 2)
    assert dependence.total_information(pairs, parents) == pytest.approx(
        sum(
            information[column, parent]
            for column, parents_of_column in enumerate(parents)
            for parent in parents_of_column
        )
    )


@given(seed=seeds, k=st.integers(0, 4))
def test_kdb_takes_the_parents_that_tell_most_of_those_before(seed, k):
    rng = np.random.default_rng(seed)
    rows, labels = rows_of(rng, 150, 2, (2, 3, 2)), rng.integers(0, 2, 150)
    rows.values[:, 0] += labels
    pairs = dependence.Pairs.of(rows, labels, 2, (2, 3, 2))
    order_of_columns = np.argsort(-pairs.of_class, kind="stable").tolist()
    for rank, column in enumerate(order_of_columns):
        may = [p for p in order_of_columns[:rank] if column < 2 or p >= 2]
        best = sorted(may, key=lambda parent: -pairs.information[column, parent])[:k]
        assert dependence.kdb(pairs, k)[column] == tuple(sorted(best))
    with pytest.raises(StructureError, match="k is -1; expected 0 or more"):
        dependence.kdb(pairs, -1)


def test_columns_that_are_the_same_tell_a_finite_much():
    """A correlation of one is held a billionth below it, a variance of none at a millionth."""
    x = np.random.default_rng(0).normal(size=400)
    rows = Rows(np.stack([x, -x, np.zeros(400)], axis=1), np.zeros((400, 0), dtype=int))
    information = dependence.Pairs.of(rows, np.zeros(400, dtype=int), 1, ()).information
    limit = 1 - 1e-9
    assert (
        information[0, 1] == pytest.approx(-0.5 * np.log(1 - limit**2), rel=1e-6) and information[0, 2] == 0.0
    )
    flat = dependence._between(np.array([5.0, 5.0]), np.array([5.0, -5.0]), np.array([5.0, 5.0]))
    assert flat[0] == pytest.approx(-0.5 * np.log(1e-6))  # all of the variance is between the two


def test_a_tree_points_away_from_its_first_discrete_column():
    rng = np.random.default_rng(1)
    for d, sizes in ((3, (2, 3)), (4, ()), (0, (2, 2, 3))):
        rows, labels = rows_of(rng, 200, d, sizes), rng.integers(0, 2, 200)
        parents = dependence.tan(dependence.Pairs.of(rows, labels, 2, sizes))
        assert (
            parents[d if sizes else 0] == ()
            and sum(parents_of_column == () for parents_of_column in parents) == 1
        )


@pytest.mark.parametrize(
    ("classes", "continuous", "sizes", "numbers"),
    [
        (1, 0, (8192,), 2**26), (1, 0, (8000, 193), 8193**2), (4, 2048, (), 2**26), (4, 2049, (), 16 * 2049**2),
        (1, 2000, (5000,), 4 * 2000**2 + 3 * 2000 * 5000 + 5000**2),
    ],
)  # fmt: skip
def test_pairs_of_more_than_half_a_gigabyte_are_refused(classes, continuous, sizes, numbers):
    if numbers <= 2**26:
        dependence.refuse_many(classes, continuous, sizes)
    else:
        with pytest.raises(StructureError, match=f"are {numbers:,} numbers"):
            dependence.refuse_many(classes, continuous, sizes)


def test_the_numbers_of_pairs_are_counted_as_they_are():
    rows = rows_of(np.random.default_rng(0), 4, 3, (10, 2))
    pairs = dependence.Pairs.of(rows, np.array([0, 1, 0, 1]), 2, (10, 2))
    assert pairs.vector.size == 2 * (1 + 4 * 3**2 + 3 * 12 * 3 + 12**2)


@pytest.mark.parametrize(
    "parents", [((), (0,)), ((1,), ()), ((), (2,), ()), ((2,), (), (1,)), ((1,), (2,), (0,))]
)
def test_structures_are_acyclic_and_continuous_columns_have_no_discrete_children(parents):
    columns = len(parents)
    graph = nx.DiGraph(
        [(parent, child) for child, parents_of_column in enumerate(parents) for parent in parents_of_column]
    )
    for continuous in range(columns + 1):
        wrong = any(child >= continuous > parent for parent, child in graph.edges)
        if wrong or not nx.is_directed_acyclic_graph(graph):
            with pytest.raises(StructureError, match="discrete parents only" if wrong else "form a cycle"):
                checked(parents, continuous, columns)
        else:
            assert checked(parents, continuous, columns) == parents
            placed = order(parents)
            assert sorted(placed) == list(range(columns))
            assert all(placed.index(parent) < placed.index(child) for parent, child in graph.edges)
    with pytest.raises(StructureError, match=f"has the parent {columns}; expected one of 0 to {columns - 1}"):
        checked(((columns,), *parents[1:]), columns, columns)
    with pytest.raises(
        StructureError, match=f"parents of {columns} columns; expected those of {columns + 1}"
    ):
        checked(parents, columns, columns + 1)
    with pytest.raises(
        StructureError, match=f"parents of {columns} columns; expected those of {columns - 1}"
    ):
        checked(parents, columns, columns - 1)


@given(seed=seeds)
def test_each_column_alone_is_that_of_the_rows(seed):
    """Mean, variance and shares of the categories in a class, however columns depend on each other."""
    rng = np.random.default_rng(seed)
    family = BayesNet(continuous=3, cardinalities=(2, 3), parents=((3,), (0, 3, 4), (), (), (3,)))
    rows, labels = rows_of(rng, 400, 3, (2, 3)), rng.integers(0, 2, 400)
    rows.values[:, 0] += 3 * rows.codes[:, 0]
    rows.codes[:, 1] = (rows.codes[:, 1] * (rng.random(400) < 0.7) + rows.codes[:, 0]) % 3
    parameters = family.parameters(core.statistics(family.features(rows), core.one_hot(labels, 2)))
    for c in (0, 1):
        mine = labels == c
        np.testing.assert_allclose(parameters.mean[c], rows.values[mine].mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(parameters.variance[c], rows.values[mine].var(axis=0), rtol=1e-9)
        shares = [
            np.bincount(rows.codes[mine, k], minlength=size) / mine.sum() for k, size in enumerate((2, 3))
        ]
        np.testing.assert_allclose(np.exp(parameters.log_cells[c]), np.concatenate(shares), rtol=1e-9)
