"""The kernels for GPUs give NumPy's numbers to float32's precision.

Without a GPU they run in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/model/test_fused_gpu.py
"""

import os
from itertools import pairwise

import numpy as np
import pytest

torch, _ = pytest.importorskip("torch"), pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from peerbayes import network as topologies  # noqa: E402
from peerbayes.model import core  # noqa: E402
from peerbayes.model.families import NaiveBayes, Rows  # noqa: E402
from peerbayes.model.kernels import peers_gpu  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network(family, classes, sizes, seed=0):
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    values = rng.normal(size=(count, family.continuous))
    codes = np.stack([rng.integers(0, r, count) for r in family.cardinalities] or [np.zeros(count)], 1)
    codes = codes[:, : len(family.cardinalities)].astype(np.int64)
    if family.missing:
        values[rng.random(values.shape) < 0.2] = np.nan
        codes[rng.random(codes.shape) < 0.2] = -1
    labels, weights = rng.integers(0, classes, count), rng.uniform(0.5, 2.0, count)
    start = family.uniform(classes, 400.0)
    stats = start + 0.2 * start.max() * rng.normal(size=(len(sizes), *start.shape))
    return Rows(values, codes), labels, weights, np.concatenate([[0], np.cumsum(sizes)]), stats


@pytest.mark.parametrize("classes", [2, 5, 26])
@pytest.mark.parametrize(
    ("continuous", "cardinalities", "missing"),
    [(16, (), False), (3, (2, 5), False), (0, (3, 20, 2), False), (40, (), False), (5, (4,), True)],
)
def test_residuals_are_numpys(classes, continuous, cardinalities, missing):
    family = NaiveBayes(
        continuous=continuous, cardinalities=cardinalities, missing=missing, variance_floor=0.05, count_floor=1e-4
    )  # fmt: skip
    rows, labels, weights, offsets, stats = network(family, classes, (50, 0, 1, 130, 64))
    peers = peers_gpu.FusedPeers(family, rows, labels, weights, offsets, classes, device=DEVICE)
    got = peers.residual(torch.as_tensor(stats, dtype=torch.float32, device=DEVICE)).cpu().numpy()
    features, one_hot = family.features(rows), core.one_hot(labels, classes) * weights[:, None]
    for v, (begin, end) in enumerate(pairwise(offsets)):
        expected = core.residual(features[begin:end], one_hot[begin:end], family.weights(stats[v]))
        np.testing.assert_allclose(got[v], expected, atol=2e-3 * max(1.0, np.abs(expected).max()))


def test_a_peer_whose_statistics_are_not_finite_says_so():
    family = NaiveBayes(continuous=2, variance_floor=0.05)
    rows, labels, weights, offsets, stats = network(family, 2, (5, 5))
    stats[1, 0, 1] = np.nan
    peers = peers_gpu.FusedPeers(family, rows, labels, weights, offsets, 2, device=DEVICE)
    got = peers.residual(torch.as_tensor(stats, dtype=torch.float32, device=DEVICE)).cpu().numpy()
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


@pytest.mark.parametrize("name", ["tree", "star", "complete"])
def test_mixing_is_scipys(name):
    weights = topologies.metropolis(topologies.adjacency(name, 20, np.random.default_rng(0)))
    messages = np.random.default_rng(1).normal(size=(20, 1500))
    placed = peers_gpu.Mixing.of(weights, DEVICE)
    got = (placed @ torch.as_tensor(messages, dtype=torch.float32, device=DEVICE)).cpu().numpy()
    np.testing.assert_allclose(got, weights @ messages, atol=1e-5)
