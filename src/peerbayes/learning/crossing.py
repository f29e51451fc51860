"""How peers agree on the crosses of a GA2M: by exact sums, before the first round.

    columns    YᵀΦ of all rows without crosses: the penalties of columns, which pairs there are, and the start
    main k     R and the log loss of the model without crosses, for step k of `TreeSum`
    pairs      g and h of all pairs: see `model.interactions`

How numbers are summed is the driver's business. Everybody has the same sums, and so the same crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.learning import integer_sums
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model import interactions
from peerbayes.model.calibration import start_statistics
from peerbayes.model.families.additive import GA2M
from peerbayes.model.families.base import guarded, laid_out
from peerbayes.model.penalties import with_column_penalties
from peerbayes.model.sources import Encoded

# Yields the name of a sum and the function of a peer's number in the driver to its terms, is sent the sum over all
# peers, and returns the schema with crosses and penalties.
CrossSums = Generator[tuple[str, Callable[[int], np.ndarray]], np.ndarray, Schema]


def cross_sums(held: LocalRows, schema: Schema, peers: int, lr: float) -> CrossSums:
    """Return the schema with penalties, and with the crosses that are worth it, after the sums that it takes.

    held   the rows of all peers of a driver, whose family has no crosses yet
    peers  how many there are in all
    lr     the learning rate of the run
    """
    if not schema.discrete:  # numbers that stay numbers are not crossed
        return schema
    local = held.statistics()
    stats = yield "columns", lambda peer: local[peer]
    pairs, mass = interactions.candidates(schema, stats), float(stats[:, 0].sum())
    schema = with_column_penalties(schema, stats)
    if not pairs:
        return schema
    family = guarded(
        laid_out(GA2M, schema, missing=getattr(held.family, "missing", False)), mass, calibrate=True
    )
    held = replace(held, family=family)
    start = start_statistics("marginal", family, held.classes, mass / (lr * peers), stats)
    strategy, terms_at = TreeSum(peers), held.sum_terms(interactions.STEPS)
    state = strategy.begin(start[None])
    for step in range(interactions.STEPS):
        terms = terms_at(state.trial)
        total = yield f"main {step + 1}", _of(terms)
        state = strategy.step(state, total, family.weights, family.conditioned)
    weights = np.asarray(family.weights(strategy.read(state)[0]))

    def tables(peer: int) -> np.ndarray:
        rows = held.slices[peer]
        source = Encoded(schema, held.select(rows))
        return interactions.pair_sums(
            family, weights, source, held.labels[rows], held.row_weights[rows], pairs
        )

    return replace(schema, crosses=interactions.chosen(pairs, (yield "pairs", tables)))


def _of(terms: np.ndarray) -> Callable[[int], np.ndarray]:
    return lambda peer: terms[peer]


def agreed_crosses(sums: CrossSums, peers: int) -> tuple[Schema, int]:
    """Return the schema with crosses of all peers of a simulation, and how many numbers they summed."""
    numbers = 0
    try:
        _, terms = next(sums)
        while True:
            total = integer_sums.exact_sum(terms, peers)
            numbers += total.size + 1  # a bound goes ahead of the numbers
            _, terms = sums.send(total)
    except StopIteration as end:
        return end.value, numbers
