"""The families that every law is tried on, random rows for them, and how equal two products are."""

import numpy as np

from peerbayes.model.families import (
    GA2M,
    Aode,
    BayesNet,
    Family,
    NaiveBayes,
    Rows,
    SeparateGaussian,
    SharedGaussian,
)

CARDINALITIES = (2, 4)

# Every law of test_laws.py holds for each of these; a new family is one more line.
FAMILIES: dict[str, Family] = {
    "naive-bayes": NaiveBayes(continuous=3, cardinalities=CARDINALITIES),
    "naive-bayes, missing": NaiveBayes(continuous=3, cardinalities=CARDINALITIES, missing=True),
    "naive-bayes, calibrated": NaiveBayes(
        continuous=3, cardinalities=CARDINALITIES, variance_floor=0.05, count_floor=1e-4
    ),
    "naive-bayes, discrete": NaiveBayes(cardinalities=(3, 1, 5)),
    "naive-bayes, counts": NaiveBayes(
        continuous=3, cardinalities=CARDINALITIES, poisson=((0, 1.25), (2, 4.0)), count_floor=1e-4
    ),
    "naive-bayes, counts, missing": NaiveBayes(continuous=2, missing=True, poisson=((1, 3.5),)),
    "ga2m": GA2M(cardinalities=(2, 4, 8), crosses=1, shrinkage=0.1, count_floor=1e-4),
    "ga2m, mixed": GA2M(continuous=3, cardinalities=CARDINALITIES, missing=True),
    "qda": SeparateGaussian(continuous=3, cardinalities=CARDINALITIES),
    "qda, calibrated": SeparateGaussian(
        continuous=3, cardinalities=CARDINALITIES, variance_floor=0.01, count_floor=1e-4, shrinkage=0.02
    ),
    "qda, continuous": SeparateGaussian(continuous=4),
    "lda": SharedGaussian(continuous=3, cardinalities=CARDINALITIES),
    "lda, calibrated": SharedGaussian(
        continuous=3, cardinalities=CARDINALITIES, variance_floor=0.01, count_floor=1e-4
    ),
    "bayes-net": BayesNet(continuous=3, cardinalities=CARDINALITIES, parents=((), (0,), (3,), (), (3,))),
    # Parents that share a child are linked: else a column's own moments are not those of the model.
    "bayes-net, calibrated": BayesNet(
        continuous=3, cardinalities=CARDINALITIES, parents=((3,), (0, 3), (0, 1, 3), (), (3,)),
        variance_floor=0.01, count_floor=1e-4, shrinkage=0.02,
    ),
    "bayes-net, discrete": BayesNet(cardinalities=(3, 2, 4), parents=((), (0,), (0, 1))),
    "aode": Aode(cardinalities=(3, 2, 4)),
    "aode, calibrated": Aode(cardinalities=(2, 4, 3), count_floor=1e-4, shrinkage=0.02, weighted=False),
}  # fmt: skip

# Those whose log joint is linear in φ: what is missing is completed by the model, and rows without a label count by it.
COMPLETING = {name: family for name, family in FAMILIES.items() if family.linear}


def draw_rows(family: Family, rng: np.random.Generator, *shape: int) -> Rows:
    """Random encoded rows [..., n, D]; with values missing where φ alone takes them."""
    values = rng.normal(size=(*shape, family.continuous))
    for column, scale in getattr(family, "poisson", ()):
        values[..., column] = rng.poisson(scale, shape) / scale
    codes = [rng.integers(0, size, shape) for size in family.cardinalities]
    stacked = np.stack(codes, axis=-1) if codes else np.zeros((*shape, 0), dtype=np.int64)
    if getattr(family, "missing", False):
        values[rng.random(values.shape) < 0.2] = np.nan
    free = ~getattr(family, "linked", np.zeros(family.continuous + stacked.shape[-1], dtype=bool))
    stacked[(rng.random(stacked.shape) < 0.1) & free[family.continuous :]] = -1
    return Rows(values, stacked)


def with_gaps(family: Family, rng: np.random.Generator, *shape: int, share: float = 0.35) -> Rows:
    """Random encoded rows [..., n, D] with values missing in every column; each row has one at least."""
    rows = draw_rows(family, rng, *shape)
    absent = rng.random((*shape, family.continuous + len(family.cardinalities))) < share
    np.put_along_axis(absent, rng.integers(0, absent.shape[-1], (*shape, 1)), False, axis=-1)
    values = np.where(absent[..., : family.continuous], np.nan, rows.values)
    return Rows(values, np.where(absent[..., family.continuous :], -1, rows.codes))


def assert_same_product(
    actual: np.ndarray, expected: np.ndarray, left: np.ndarray, right: np.ndarray
) -> None:
    """Both are left @ right, in whatever order a BLAS adds the terms up, and with or without fused operations.

    Each is within n·u·|left| @ |right| of the true product (Higham 2002, section 3.5), u = eps / 2 and n terms a sum,
    to first order in u: 1 % is for the rest.
    """
    bound = 1.01 * left.shape[-1] * np.finfo(actual.dtype).eps * (np.abs(left) @ np.abs(right))
    difference = np.abs(actual - expected)
    assert (difference <= bound).all(), (
        f"differ by {difference.max()}, {(difference - bound).max()} more than rounding"
    )
