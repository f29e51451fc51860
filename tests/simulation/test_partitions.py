"""Partitions: what each peer gets, by every name, and what is refused."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.simulation.partitions import (
    PartitionError,
    by_class,
    by_first_component,
    heterogeneity,
    partition,
    shuffled,
    split,
)

DRIFTS = ["drift-x", "drift-y", "drift-xy"]
SAMPLED = ["iid", *DRIFTS, "dirichlet-0.3", "quantity-0.5"]  # their union is a random sample
SIZED = ["iid", *DRIFTS, "drift-y-pure"]  # peer v holds m_v rows
SPECS = [*SAMPLED, "drift-y-pure"]

seeds = st.integers(0, 2**32 - 1)


def table(rows, classes, columns=3, seed=0):
    """Labels [n], every class among them, and features [n, K] that tell the classes apart a little."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) % classes)
    features = rng.normal(size=(rows, columns)) * np.arange(1, columns + 1)[::-1]
    features[:, 0] += labels
    return labels, features


def parts_of(spec, labels, features=None, peers=5, rows_per_peer=None, seed=0):
    return partition(spec, labels, features, peers, rows_per_peer, np.random.default_rng(seed))


def union(parts):
    return np.sort(np.concatenate(parts))


def lengths(parts):
    return [len(part) for part in parts]


def first_scores(features):
    """Scores on the first principal component, by the plain singular value decomposition."""
    centred = features - features.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][0]


def apart(intervals):
    """Whether intervals (low, high) overlap nowhere, but for rounding and ties."""
    ordered = sorted(intervals)
    return all(high <= low + 1e-6 for (_, high), (low, _) in pairwise(ordered))


# --- every partition -------------------------------------------------------------------------------


@given(
    spec=st.sampled_from([*SPECS, "dirichlet-0.001", "dirichlet-1e308", "quantity-1e-300", "quantity-100"]),
    seed=seeds,
    peers=st.integers(1, 12),
    rows=st.integers(12, 60),
    classes=st.integers(1, 4),
    form=st.sampled_from(["one", "each", "all"]),
)
def test_peers_hold_disjoint_rows_in_the_sizes_asked_for(spec, seed, peers, rows, classes, form):
    labels, features = table(rows, classes, seed=seed)
    rng = np.random.default_rng(seed)
    asked = {
        "one": rows // peers,
        "each": 1 + rng.multinomial(rng.integers(0, rows - peers + 1), np.ones(peers) / peers),
        "all": None,
    }[form]
    total = rows if asked is None else int(np.broadcast_to(asked, peers).sum())
    try:
        parts = parts_of(spec, labels, features, peers, asked, seed)
    except PartitionError:
        assert spec == "drift-y-pure"  # which a table may not be able to serve
        return
    assert len(parts) == peers
    assert all(part.dtype == np.int64 and part.ndim == 1 and len(part) for part in parts)
    held = union(parts)
    assert len(held) == total == len(np.unique(held))
    assert held[0] >= 0 and held[-1] < rows
    if form != "all" and spec in SIZED:
        assert lengths(parts) == np.broadcast_to(asked, peers).tolist()
    if form == "all" and spec in SIZED[:-1]:
        assert max(lengths(parts)) - min(lengths(parts)) <= 1


@pytest.mark.parametrize("spec", SPECS)
def test_a_seed_decides_everything(spec):
    labels, features = table(200, 4)
    first, again, other = (parts_of(spec, labels, features, 10, 12, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(spec=st.sampled_from(SAMPLED), seed=seeds, peers=st.integers(1, 8), each=st.integers(1, 5))
def test_every_name_shares_out_the_same_sample(spec, seed, peers, each):
    labels, features = table(40, 3)
    parts = parts_of(spec, labels, features, peers, each, seed)
    np.testing.assert_array_equal(union(parts), union(parts_of("iid", labels, None, peers, each, seed)))


@pytest.mark.parametrize("spec", SAMPLED)
def test_every_row_is_as_likely_at_every_peer(spec):
    """The union is a uniform random sample, and a peer's index says nothing about its rows."""
    rows, peers, each, draws = 20, 4, 3, 2000
    labels, features = table(rows, 3)
    rng = np.random.default_rng(0)
    seen = np.zeros((peers, rows))
    for _ in range(draws):
        for peer, part in enumerate(partition(spec, labels, features, peers, each, rng)):
            seen[peer, part] += 1
    for counts, chance in ((seen, each / rows), (seen.sum(axis=0), peers * each / rows)):
        deviations = (counts - draws * chance) / np.sqrt(draws * chance * (1 - chance))
        assert np.abs(deviations).max() < 4  # of 80 and 20 standard normal numbers


def test_pure_peers_have_every_class_as_likely():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    rng = np.random.default_rng(0)
    seen = np.zeros((5, 3))
    for _ in range(1000):
        for peer, part in enumerate(partition("drift-y-pure", labels, None, 5, [4, 4, 4, 4, 4], rng)):
            seen[peer, labels[part[0]]] += 1
    assert np.abs(seen - seen.mean(axis=0)).max() < 4 * np.sqrt(1000 / 4)


@pytest.mark.parametrize("spec", ["iid", "drift-y", "drift-y-pure", "dirichlet-1", "quantity-1"])
def test_features_are_left_alone_where_no_order_needs_them(spec):
    labels, _ = table(60, 3)
    parts_of(spec, labels, lambda: pytest.fail("called"), 5, 6)


@pytest.mark.parametrize("spec", ["drift-x", "drift-xy"])
def test_features_may_be_a_function(spec):
    labels, features = table(60, 3)
    called, direct = (parts_of(spec, labels, given, 5, 6) for given in (lambda: features, features))
    assert all(np.array_equal(a, b) for a, b in zip(called, direct, strict=True))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, list])
def test_labels_may_be_integers_of_any_kind(kind):
    labels, features = table(60, 3)
    given = labels.tolist() if kind is list else labels.astype(kind)
    for spec in SPECS:
        assert len(parts_of(spec, given, features, 5, 6)) == 5


def test_class_indices_may_have_gaps():
    labels, features = table(60, 3)
    for spec in SPECS:
        for a, b in zip(
            parts_of(spec, labels, features, 5, 6),
            parts_of(spec, labels * 10**12, features, 5, 6),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


# --- drift in p(x) ---------------------------------------------------------------------------------


@given(
    seed=seeds, rows=st.integers(8, 40), columns=st.integers(1, 60), sizes=st.sampled_from([2, [1, 4, 1, 2]])
)
def test_drift_x_cuts_along_the_first_component(seed, rows, columns, sizes):
    """With fewer columns than rows, and with more."""
    labels, features = table(rows, 2, columns, seed)
    parts = parts_of("drift-x", labels, features, 4, sizes, seed)
    held = union(parts)
    scores = dict(zip(held, first_scores(features[held]), strict=True))
    assert apart([(min(scores[row] for row in part), max(scores[row] for row in part)) for part in parts])


@given(seed=seeds, rows=st.integers(1, 30), columns=st.integers(1, 30))
def test_the_sign_of_a_component_is_fixed(seed, rows, columns):
    """The order does not turn round when rows come in another order."""
    features = np.random.default_rng(seed).normal(size=(rows, columns))
    order = np.random.default_rng(seed).permutation(rows)
    np.testing.assert_array_equal(order[by_first_component(features[order])], by_first_component(features))


@given(seed=seeds, shift=st.sampled_from([0.0, 0.1, 100.0]))
def test_ties_keep_their_order(seed, shift):
    """A binary one-hot has two loadings of the same magnitude, of which the first counts, and only two scores."""
    codes = np.random.default_rng(seed).integers(0, 2, 1001)
    np.testing.assert_array_equal(
        by_first_component(np.eye(2)[codes] + shift), np.argsort(-codes, kind="stable")
    )


@given(seed=seeds, rows=st.integers(1, 200), columns=st.integers(1, 40))
def test_equal_rows_keep_their_order(seed, rows, columns):
    """Though BLAS may compute the score of the same row differently at another place."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, rows)
    order = by_first_component(rng.normal(size=(4, columns))[codes])
    for code in range(4):
        alike = order[codes[order] == code]
        np.testing.assert_array_equal(alike, np.sort(alike))


def test_rows_without_variance_keep_their_order():
    for columns in (1, 3, 30):
        order = by_first_component(np.full((7, columns), 0.1, dtype=np.float32))
        np.testing.assert_array_equal(order, np.arange(7))


# --- drift in p(y) ---------------------------------------------------------------------------------


@given(seed=seeds, classes=st.integers(1, 5), each=st.integers(1, 6))
def test_drift_y_has_few_peers_of_two_classes(seed, classes, each):
    labels, _ = table(100, classes)  # at least 20 rows of each class, more than a peer holds
    parts = parts_of("drift-y", labels, None, 100 // each, each, seed)
    held = [len(np.unique(labels[part])) for part in parts]
    assert max(held) <= 2
    assert held.count(2) <= classes - 1


def test_drift_y_is_pure_where_classes_are_multiples_of_a_peer():
    labels, _ = table(120, 3)
    parts = parts_of("drift-y", labels, None, 12, 10)
    assert all(len(np.unique(labels[part])) == 1 for part in parts)
    assert heterogeneity(parts, labels, 3) == pytest.approx(2 / 3)


def test_classes_follow_one_another_at_random():
    labels = np.repeat([0, 1, 2], 7)
    borders = set()
    for seed in range(30):
        for part in parts_of("drift-y", labels, None, 4, 5, seed):
            borders.add(tuple(np.unique(labels[part])))
    assert {(0, 1), (0, 2), (1, 2)} <= borders


@given(
    seed=seeds,
    counts=st.lists(st.integers(3, 40), min_size=1, max_size=5),
    sizes=st.one_of(st.integers(1, 3), st.none(), st.lists(st.integers(1, 3), min_size=5, max_size=20)),
    peers=st.integers(5, 12),
)
def test_pure_peers_hold_one_class_and_every_class_has_a_peer(seed, counts, sizes, peers):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    peers = len(sizes) if isinstance(sizes, list) else peers
    if peers > len(labels) or (sizes is not None and np.broadcast_to(sizes, peers).sum() > len(labels)):
        return
    if isinstance(sizes, int) and sum(count // sizes for count in counts) < peers:
        with pytest.raises(PartitionError, match="rows left"):
            parts_of("drift-y-pure", labels, None, peers, sizes, seed)
        return
    try:
        parts = parts_of("drift-y-pure", labels, None, peers, sizes, seed)
    except PartitionError:
        assert isinstance(sizes, list)  # unequal sizes are packed greedily
        return
    held = [np.unique(labels[part]) for part in parts]
    assert all(len(classes) == 1 for classes in held)
    assert set(np.concatenate(held)) == set(range(len(counts)))
    if sizes is None:
        assert len(union(parts)) == len(labels)
    else:
        assert lengths(parts) == np.broadcast_to(sizes, peers).tolist()


def test_pure_peers_follow_the_class_proportions():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [700, 200, 100]))
    for asked in (None, 50, [50] * 20):
        parts = parts_of("drift-y-pure", labels, None, 20, asked)
        assert np.bincount([labels[part[0]] for part in parts]).tolist() == [14, 4, 2]
    assert lengths(parts) == [50] * 20


def test_a_pure_partition_keeps_the_sample_where_it_can():
    labels, _ = table(1000, 4)
    pure, plain = (
        union(parts_of(spec, labels, None, 20, 10, seed=3)) for spec in ("drift-y-pure", "drift-y")
    )
    assert len(np.intersect1d(pure, plain)) >= 200 - 4 * 10  # less than a peer of each class is exchanged


# --- drift in p(x, y) ------------------------------------------------------------------------------


@given(seed=seeds, classes=st.integers(1, 4), each=st.integers(1, 6))
def test_drift_xy_cuts_along_the_component_of_each_class(seed, classes, each):
    labels, features = table(72, classes, seed=seed)
    parts = parts_of("drift-xy", labels, features, 72 // each, each, seed)
    held = [len(np.unique(labels[part])) for part in parts]
    assert max(held) <= 2
    assert held.count(2) <= classes - 1
    sample = union(parts)
    for group in by_class(sample, labels):
        scores = dict(zip(group, first_scores(features[group]), strict=True))
        inside = [[scores[row] for row in part if row in scores] for part in parts]
        assert apart([(min(values), max(values)) for values in inside if values])


# --- skew ------------------------------------------------------------------------------------------


def test_dirichlet_goes_from_one_class_per_node_to_the_pooled_classes():
    labels, _ = table(20_000, 5)
    even = parts_of("dirichlet-1000", labels, None, 20, 1000)
    assert heterogeneity(even, labels, 5) < 0.03
    assert min(lengths(even)) > 900 and max(lengths(even)) < 1100
    extreme = parts_of("dirichlet-0.01", labels, None, 20, 1000)
    largest = [np.bincount(labels[part]).max() / len(part) for part in extreme]
    assert np.mean(largest) > 0.9
    between = [
        np.mean([heterogeneity(parts_of(f"dirichlet-{a}", labels, None, 20, 1000, seed), labels, 5)
                 for seed in range(20)])
        for a in (0.1, 1, 10, 100)
    ]  # fmt: skip
    assert between == sorted(between, reverse=True)


def test_dirichlet_proportions_have_the_right_moments():
    """Of a class, a peer's share has mean 1/N and variance (N − 1)/(N²(NA + 1))."""
    labels = np.zeros(1000, dtype=int)
    rng = np.random.default_rng(0)
    for name in ("dirichlet", "quantity"):
        shares = np.array(
            [lengths(partition(f"{name}-2", labels, None, 4, None, rng)) for _ in range(2000)]
        ) / len(labels)
        np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=0.015)
        np.testing.assert_allclose(shares.var(axis=0), 3 / (16 * 9), rtol=0.15)


def test_skew_vanishes_for_a_large_number():
    labels, _ = table(1000, 5)
    for name in ("dirichlet", "quantity"):
        for number in ("1e12", "1e308"):
            assert set(lengths(parts_of(f"{name}-{number}", labels, None, 20, 50))) <= {48, 49, 50, 51, 52}


def test_few_rows_do_not_all_go_to_the_same_peers():
    """Ten classes of 20 rows over 50 peers, evenly: not two peers in five get all the rows, ten of them."""
    sizes = lengths(parts_of("dirichlet-1e6", np.repeat(np.arange(10), 20), None, 50))
    assert (
        np.std(sizes) < 2.5
    )  # √(10·0.4·0.6) = 1.5 is expected, and above 3 if it were always the same peers


def test_empty_peers_get_a_row_of_the_largest():
    labels = np.zeros(50, dtype=int)
    parts = parts_of("dirichlet-1e-6", labels, None, 20)
    assert sorted(lengths(parts)) == [1] * 19 + [31]
    assert lengths(parts_of("dirichlet-1e-6", labels, None, 50)) == [1] * 50


def test_quantity_skew_leaves_the_classes_alone():
    labels, _ = table(20_000, 2)
    parts = parts_of("quantity-0.5", labels, None, 10, 2000)
    assert min(lengths(parts)) < 1000 and max(lengths(parts)) > 3000
    for part in parts:
        assert abs(labels[part].mean() - 0.5) < 4 * 0.5 / np.sqrt(len(part))


# --- a given assignment ----------------------------------------------------------------------------


def test_a_given_list_is_used_as_it_is():
    given = [[3, 1], np.array([0], dtype=np.uint8), (5, 2, 4)]
    for spec in (given, tuple(given)):
        parts = parts_of(spec, [0] * 6, None, 3, "ignored")
        assert [part.tolist() for part in parts] == [[3, 1], [0], [5, 2, 4]]
        assert all(part.dtype == np.int64 for part in parts)


def test_a_given_list_is_copied():
    given = [np.array([0]), np.array([1])]
    parts = parts_of(given, [0, 1], None, 2)
    given[0][0] = 1
    assert parts[0][0] == 0


# --- shuffled, split, heterogeneity ----------------------------------------------------------------


def test_shuffled_moves_parts_and_changes_none():
    parts = [np.arange(k, k + 3) for k in range(0, 60, 3)]
    moved = shuffled(parts, np.random.default_rng(0))
    assert sorted(part.tolist() for part in moved) == [part.tolist() for part in parts]
    assert [part[0] for part in moved] != [part[0] for part in parts]


@given(seed=seeds, n=st.integers(2, 50), test=st.floats(0.001, 0.999))
def test_split_shares_out_all_rows(seed, n, test):
    train, held_out = split(n, test, np.random.default_rng(seed))
    assert union([train, held_out]).tolist() == list(range(n))
    assert len(train) and len(held_out)
    assert abs(len(held_out) - n * test) <= 1
    again = split(n, len(held_out), np.random.default_rng(seed))
    assert np.array_equal(again[0], train) and np.array_equal(again[1], held_out)


@pytest.mark.parametrize(
    ("n", "test", "rows"),
    [(10, 0.27, 3), (10, 0.24, 2), (100, 0.999, 99), (1000, 0.0001, 1), (3, 2, 2), (7, 1, 1)],
)
def test_a_split_holds_out_the_nearest_number_of_rows(n, test, rows):
    """But one at least, and not all."""
    train, held_out = split(n, test, np.random.default_rng(0))
    assert (len(train), len(held_out)) == (n - rows, rows)


@given(seed=seeds, peers=st.integers(1, 8), classes=st.integers(1, 5))
def test_heterogeneity_is_a_mean_distance(seed, peers, classes):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 40)
    parts = parts_of("dirichlet-0.5", labels, None, peers, 5, seed)
    pooled = np.bincount(labels[np.concatenate(parts)], minlength=classes) / (5 * peers)
    distances = [
        np.abs(np.bincount(labels[part], minlength=classes) / len(part) - pooled).sum() / 2 for part in parts
    ]
    measured = heterogeneity(parts, labels, classes)
    assert measured == pytest.approx(np.mean(distances))
    assert 0 <= measured < 1
    assert heterogeneity(shuffled(parts, rng), labels, classes) == pytest.approx(measured)
    assert heterogeneity(parts, labels, classes + 3) == pytest.approx(measured)


def test_heterogeneity_of_the_extremes():
    labels = np.tile([0, 1, 2], 4)
    assert heterogeneity(np.split(np.arange(12), 4), labels, 3) == pytest.approx(0)
    prior = np.array([0.5, 0.25, 0.25])
    labels = np.repeat([0, 0, 1, 2], 5)
    assert heterogeneity(np.split(np.arange(20), 4), labels, 3) == pytest.approx(1 - (prior**2).sum())


# --- what is refused -------------------------------------------------------------------------------

LABELS, FEATURES = table(30, 3)
PURE = "drift-y-pure"


def with_value(array, place, value):
    changed = np.array(array)
    changed[place] = value
    return changed


# What is changed in a good call, and words of the message.
REFUSED = [
    (
        {"spec": "drift"},
        ["'drift'", "iid, drift-x, drift-y, drift-xy, drift-y-pure, dirichlet-A, quantity-A"],
    ),
    ({"spec": ""}, ["''", "iid"]),
    ({"spec": None}, ["None", "iid", "list"]),
    ({"spec": np.arange(4)}, ["array", "iid", "list"]),
    ({"spec": "drift-z"}, ["'drift-z'", "drift-xy"]),
    ({"spec": "iid-3"}, ["'iid-3'", "iid"]),
    ({"spec": "dirichlet"}, ["'dirichlet'", "positive number", "dirichlet-0.3"]),
    ({"spec": "dirichlet-A"}, ["'dirichlet-A'", "positive number"]),
    ({"spec": "dirichlet-0"}, ["'dirichlet-0'", "positive number"]),
    ({"spec": "dirichlet--1"}, ["'dirichlet--1'", "positive number"]),
    ({"spec": "dirichlet-nan"}, ["positive number"]),
    ({"spec": "quantity-inf"}, ["positive number", "quantity-0.3"]),
    ({"spec": "quantity-much"}, ["'quantity-much'", "positive number", "quantity-0.3"]),
    ({"peers": 0}, ["peers is 0", "1 to 30"]),
    ({"peers": 31}, ["peers is 31", "1 to 30"]),
    ({"peers": 10**15}, ["peers is 1000000000000000", "1 to 30"]),
    ({"peers": 2.0}, ["peers is 2.0", "1 to 30"]),
    ({"peers": True}, ["peers is True"]),
    ({"rows_per_peer": 0}, ["rows_per_peer holds 0", "1 to 30"]),
    ({"rows_per_peer": -1}, ["rows_per_peer holds -1"]),
    ({"rows_per_peer": 8}, ["4 peers want 32 rows", "the table has 30", "None"]),
    ({"rows_per_peer": 10**12}, ["rows_per_peer holds 1000000000000", "1 to 30"]),
    ({"rows_per_peer": 2.5}, ["2.5", "expected integers"]),
    ({"rows_per_peer": "all"}, ["all", "expected integers"]),
    ({"rows_per_peer": True}, ["True", "expected integers"]),
    ({"rows_per_peer": [1, 2, 3]}, ["3 entries", "4 peers"]),
    ({"rows_per_peer": [5]}, ["1 entries", "4 peers"]),
    ({"rows_per_peer": [1, 2, 0, 3]}, ["rows_per_peer holds 0"]),
    ({"rows_per_peer": [10, 10, 10, 1]}, ["want 31 rows", "the table has 30"]),
    ({"rows_per_peer": [[1, 2], [3, 4]]}, ["rows_per_peer has shape (2, 2)"]),
    ({"labels": LABELS.astype(float)}, ["labels", "float64", "expected integers"]),
    ({"labels": LABELS > 0}, ["labels", "bool", "expected integers"]),
    ({"labels": ["a", "b"] * 15}, ["labels", "a", "expected integers"]),
    ({"labels": with_value(LABELS, 4, -1)}, ["labels holds -1", "0 or more"]),
    ({"labels": LABELS[:, None]}, ["labels has shape (30, 1)"]),
    ({"labels": []}, ["labels has shape (0,)"]),
    ({"spec": "drift-x", "features": None}, ["features is object ()", "[30, K]"]),
    ({"spec": "drift-xy", "features": FEATURES[:20]}, ["features is float64 (20, 3)", "[30, K]"]),
    ({"spec": "drift-x", "features": lambda: FEATURES[:, 0]}, ["features is float64 (30,)"]),
    ({"spec": "drift-x", "features": FEATURES[:, :0]}, ["features is float64 (30, 0)"]),
    ({"spec": "drift-x", "features": FEATURES.astype(str)}, ["features is <U"]),
    (
        {"spec": "drift-x", "features": with_value(FEATURES, (7, 2), np.nan)},
        ["nan (row 7, column 2)", "missing values must be filled", "pass 0"],
    ),
    ({"spec": "drift-xy", "features": with_value(FEATURES, (7, 2), np.inf)}, ["inf (row 7, column 2)"]),
    ({"spec": PURE, "peers": 2}, ["2 peers", "3 classes", "drift-y"]),
    ({"spec": PURE, "peers": 2, "rows_per_peer": None}, ["2 peers", "3 classes"]),
    ({"spec": PURE, "peers": 4, "rows_per_peer": 6}, ["of its 10 rows left", "needs 6"]),
    (
        {"spec": PURE, "labels": np.repeat([0, 5, 7], [14, 2, 14])},
        ["class 5 has 2 of its 2 rows left", "needs 3", "drift-y"],
    ),
    ({"spec": [[0], [1], [2]]}, ["3 peers", "expected 4"]),
    ({"spec": []}, ["0 peers", "expected 4"]),
    ({"spec": [[0], [1], [], [3]]}, ["peer 2 has shape (0,)", "at least one"]),
    ({"spec": [[0], [1], [2, 1], [3]]}, ["row 1 is listed 2 times", "[1, 2]"]),
    ({"spec": [[0], [1], [2, 2], [3]]}, ["row 2 is listed 2 times", "[2]"]),
    ({"spec": [[0], [1], [2], [30]]}, ["peer 3 holds 30", "0 to 29"]),
    ({"spec": [[0], [1], [-2], [3]]}, ["peer 2 holds -2", "0 to 29"]),
    ({"spec": [[0], [1.0], [2], [3]]}, ["peer 1", "1.0", "expected integers"]),
    ({"spec": [[0], 1, [2], [3]]}, ["peer 1 has shape ()"]),
    ({"spec": [[0], LABELS > 0, [2], [3]]}, ["peer 1", "bool", "expected integers"]),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[str(words[0]) for _, words in REFUSED])
def test_what_cannot_be_is_refused_before_anything_is_drawn(changed, words):
    call = {"spec": "iid", "labels": LABELS, "features": FEATURES, "peers": 4, "rows_per_peer": 3, **changed}
    rng = np.random.default_rng(0)
    with pytest.raises(PartitionError) as raised:
        partition(**call, rng=rng)
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in {raised.value}"
    if changed.get("spec") is not PURE:  # which finds out on the way
        assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(
    ("n", "test", "words"),
    [
        (1, 0.5, ["n is 1", "at least 2"]),
        (10.0, 0.5, ["n is 10.0"]),
        (10, 0, ["test is 0", "1 to 9"]),
        (10, 10, ["test is 10", "1 to 9"]),
        (10, 1.0, ["test is 1.0", "between 0 and 1"]),
        (10, -0.1, ["test is -0.1"]),
        (10, float("nan"), ["test is nan"]),
        (10, True, ["test is True"]),
        (10, None, ["test is None"]),
    ],
)
def test_a_split_that_cannot_be_is_refused(n, test, words):
    with pytest.raises(PartitionError) as raised:
        split(n, test, np.random.default_rng(0))
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("parts", "labels", "words"),
    [
        ([[0], [1]], [0, 3], ["labels holds 3", "0 to 2"]),
        ([[0], []], [0, 1], ["peer 1 has shape (0,)"]),
        ([[0], [0]], [0, 1], ["row 0 is listed 2 times"]),
        ([], [0, 1], ["0 peers", "at least one"]),
    ],
)
def test_heterogeneity_checks_what_it_is_given(parts, labels, words):
    with pytest.raises(PartitionError) as raised:
        heterogeneity(parts, labels, 3)
    assert all(word in str(raised.value) for word in words), raised.value


# --- large tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_large_tables_take_no_time(spec):
    labels, features = table(100_000, 10, columns=20)
    start = time.perf_counter()
    parts = parts_of(spec, labels, features, 5_000, 15)
    assert time.perf_counter() - start < 5  # about a tenth of a second; machines are noisy
    assert len(union(parts)) == 75_000
