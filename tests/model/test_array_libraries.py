"""The core follows the arrays it is given: NumPy's, PyTorch's, or any that keep to the array API."""

import array_api_strict
import numpy as np
import pytest

from peerbayes.model import core
from peerbayes.model.families import Rows
from shared.families import draw_rows

CLASSES = 3


def libraries():
    yield pytest.param(array_api_strict, id="array-api-strict")
    try:
        import torch
    except ImportError:
        reason = "PyTorch is not installed: pip install peerbayes[torch]"
        yield pytest.param(None, id="torch", marks=pytest.mark.skip(reason=reason))
    else:
        yield pytest.param(torch, id="torch")


@pytest.mark.parametrize("xp", list(libraries()))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_numbers_as_numpy(family, xp, dtype):
    rng = np.random.default_rng(0)
    rows = draw_rows(family, rng, 4, 50)
    codes = rng.integers(0, CLASSES, (4, 50))
    expected = run(family, rows, codes, np.dtype(dtype))
    there = Rows(xp.asarray(rows.values, dtype=getattr(xp, dtype)), xp.asarray(rows.codes))
    got = run(family, there, xp.asarray(codes), getattr(xp, dtype))
    tolerance = 1e-9 if dtype == "float64" else 2e-2
    expected["error"] = core.error(
        core.one_hot(codes, CLASSES), np.asarray(got["posterior"])
    )  # ties round either way
    for name, value in got.items():
        assert isinstance(value, type(there.values)), name
        np.testing.assert_allclose(
            np.asarray(value), expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


def run(family, rows, codes, dtype):
    if isinstance(rows.values, np.ndarray):
        rows = Rows(rows.values.astype(dtype), rows.codes)
    features, labels = family.features(rows), core.one_hot(codes, CLASSES, dtype)
    stats = core.statistics(features, labels)
    weights = family.weights(stats)
    posterior = core.posterior(features, weights, family.log_joint)
    told = {
        "stats": stats,
        "posterior": posterior,
        "residual": core.residual(features, labels, weights, family.log_joint),
        "soft error": core.soft_error(labels, posterior),
        "error": core.error(labels, posterior),
    }
    assert all(value.dtype == dtype for value in told.values())
    return {**told, "floored": family.floored(stats)}
