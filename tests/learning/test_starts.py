"""The start of a network: which sums it takes, what follows from them, and that every driver gets it from one place."""

import ast
import asyncio
from pathlib import Path

import numpy as np
import pytest

import peerbayes
from peerbayes.data.table import Rows
from peerbayes.learning import planning
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model.calibration import AGREED_STEPS, shared_out, start_statistics
from peerbayes.model.families import FAMILIES

SIZES = np.array([7, 20, 13])
CLASSES = 3


def held(name, gaps=False):
    """Return the rows of three peers: two continuous columns and one discrete."""
    rng = np.random.default_rng(3)
    values, codes = rng.normal(size=(SIZES.sum(), 2)), rng.integers(0, 4, (SIZES.sum(), 1))
    if gaps:
        values[rng.random(values.shape) < 0.2] = np.nan
    family = FAMILIES[name](continuous=2, cardinalities=(4,))
    labels = rng.integers(0, CLASSES, SIZES.sum())
    return LocalRows(family, Rows(values, codes), labels, np.ones(labels.size), SIZES, CLASSES)


def asked(sums):
    """Return S⁰ and the names of the sums it took; every peer gets the mean over peers."""
    names = []

    def mean(name, values):
        names.append(name)
        return np.broadcast_to(values.mean(axis=0), values.shape)

    return planning.summed_start(mean, sums), names


@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda"])
def test_a_start_follows_from_the_sums_over_all_rows(family):
    rows, weight = held(family), 40.0 / (0.05 * 3)
    pooled = rows.statistics().sum(axis=0)
    for start in ("uniform", "marginal", "ml"):
        stats, names = asked(planning.start_sums(start, False, rows, weight, False, rows.statistics))
        assert names == ([] if start == "uniform" else ["start"])
        if start != "uniform":
            stats = shared_out(start, stats, CLASSES, 0.05)
        expected = start_statistics(start, rows.family, CLASSES, weight, pooled)
        np.testing.assert_allclose(np.broadcast_to(stats[0], expected.shape), expected, rtol=1e-12)
        stats, names = asked(planning.start_sums(start, True, rows, weight, False, rows.statistics))
        np.testing.assert_array_equal(stats, rows.statistics())  # each peer has its own
        assert names == []


def test_rows_with_gaps_are_completed_step_by_step():
    rows = held("qda", gaps=True)
    steps = ["alone", *(f"step {step}" for step in range(1, AGREED_STEPS))]
    _, names = asked(planning.start_sums("uniform", False, rows, 1.0, True, rows.statistics))
    assert names == []
    stats, names = asked(planning.start_sums("ml", True, rows, 1.0, True, rows.statistics))
    assert names == steps and stats.shape == (3, CLASSES, rows.family.size)
    means, names = asked(planning.start_sums("ml", False, rows, 1.0, True, rows.statistics))
    assert names == [*steps, "start"]
    np.testing.assert_array_equal(means[0], stats.mean(axis=0))


def test_a_peer_that_waits_for_others_gets_the_same():
    rows = held("qda", gaps=True)

    async def total(name, values):
        await asyncio.sleep(0)
        return values

    agreement = [planning.start_sums("ml", False, rows, 1.0, True, rows.statistics) for _ in range(2)]
    awaited = asyncio.run(planning.awaited_start(total, agreement[0]))
    np.testing.assert_array_equal(awaited, planning.summed_start(lambda name, values: values, agreement[1]))


def test_only_one_place_knows_what_a_start_is():
    """Others pass its name on; two know that a noisy release of the marginal start needs no labels."""
    source, compared = Path(peerbayes.__file__).parent, set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and "'marginal'" in ast.unparse(node):
                compared.add(path.relative_to(source).as_posix())
    released = {"simulation/drivers.py", "peer/agreement/private_agreement.py"}
    assert compared == {"model/calibration.py"} | released
