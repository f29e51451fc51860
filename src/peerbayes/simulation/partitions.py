"""Which rows of a table each peer holds: i.i.d., drifting, or skewed.

    iid           a random sample of the table, dealt at random
    drift-x       the sample in order of its first principal component, cut into consecutive pieces
    drift-y       the sample in order of its class, cut likewise: a piece across a border holds two classes
                  (more, where a class has fewer rows than a piece)
    drift-xy      by class and, within a class, by the first principal component of that class's rows
    drift-y-pure  one class per peer, without exception; every class has a peer
    dirichlet-A   each class over the peers in proportions ~ Dirichlet(A); sizes follow from that
    quantity-A    sizes in proportions ~ Dirichlet(A), rows i.i.d.

In `simulate`, `column:NAME` gives every row to the owner that this column names; it is no feature then.

All peers together hold an i.i.d. random sample of the table, and from the same seed and the same number of rows every
name yields the same sample: what is learnt from the pooled rows is one reference for all. Only drift-y-pure changes
it: it drops rows that fill no peer and draws others of the peer's class instead.

Consecutive pieces are neighbours in p(x) or p(y). They are dealt to peers at random, so that a peer's index says
nothing, and a chain or a grid of peers is not also an order of the data.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from peerbayes.data.arguments import LARGEST, refusal, shown, wholes
from peerbayes.errors import PartitionError
from peerbayes.simulation.old_names import refuse_old_names

OWNED = "column:"
"""How a partition begins that names a column of owners: see `peerbayes.simulation.owners`."""

NAMES = ("iid", "drift-x", "drift-y", "drift-xy", "drift-y-pure", "dirichlet-A", "quantity-A")

# Principal scores and loadings that differ by less than this fraction of the largest count as equal. Far above the
# rounding in which BLAS libraries differ, far below any difference in data: ties are broken alike on every machine.
SAME = 1e-9

# Dirichlet(A) is even to six digits from here on, and much larger numbers overflow in NumPy's sum of gammas.
EVEN = 1e12


@refuse_old_names
def partition(
    spec: str | Sequence[Any],
    labels: Any,
    features: Any,
    peers: int,
    rows_per_peer: Any,
    rng: Generator,
) -> list[np.ndarray]:
    """Return the rows of each peer: N disjoint, non-empty int64 arrays of positions in the table, in any order.

    spec: one of NAMES, A a positive number ("dirichlet-0.3"), or a list of N index arrays, used as they are.
    labels: [n] class indices. features: [n, K] numbers without gaps, or a function that returns them; only drift-x
    and drift-xy look at them. rows_per_peer: one number, one per peer [N], or None for all rows, as evenly as
    possible; dirichlet and quantity use only its sum, a given list ignores it.
    """
    labels = wholes("labels", labels, 0, error=PartitionError)
    rows = len(labels)
    peers = enough(peers, rows)
    if isinstance(spec, list | tuple):
        return _checked_assignment(spec, peers, rows)
    name, concentration = parsed(spec)
    if name == OWNED:
        raise PartitionError(
            f"the partition is {shown(spec)}; `simulate` reads owners from the column of a table"
        )
    sizes = dealt_sizes(rows_per_peer, peers, rows)
    if name in ("drift-x", "drift-xy"):
        features = _numbers(features() if callable(features) else features, rows)
    ranked = rng.permutation(rows)  # the first draw, so that it is the same for every name
    sample = ranked[: sizes.sum()]
    if name == "drift-y-pure":
        groups = by_class(ranked, labels)
        if peers < len(groups):
            raise PartitionError(
                f"{peers} peers cannot hold {len(groups)} classes, one each; use more, or drift-y"
            )
        if rows_per_peer is None:
            return _pure_pieces(groups, peers, rng)
        targets = np.array([np.isin(group, sample).sum() for group in groups])
        return _pure_peers(groups, targets, labels, sizes, rng)
    if name == "dirichlet":
        return _label_skew(sample, labels, concentration, peers, rng)
    if name == "quantity":
        sizes = 1 + _proportional(len(sample) - peers, concentration, peers, rng)
    return _dealt(_ordered(name, sample, labels, features, rng), sizes, rng)


def shuffled(parts: Sequence[np.ndarray], rng: Generator) -> list[np.ndarray]:
    """Return the same parts in random order."""
    return [parts[k] for k in rng.permutation(len(parts))]


def split(n: int, test: float, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return random training and test rows of n, neither empty; `test` is a fraction or an integer number of rows."""
    if not _is_integer(n) or n < 2:
        raise refusal("n", n, "at least 2 rows, one to train on and one to test on", PartitionError)
    if _is_integer(test) and 1 <= test < n:
        held_out = int(test)
    elif isinstance(test, float | np.floating) and 0 < test < 1:
        held_out = min(max(1, round(n * float(test))), n - 1)
    else:
        raise refusal("test", test, f"a fraction between 0 and 1, or 1 to {n - 1} rows", PartitionError)
    order = rng.permutation(n)
    return order[held_out:], order[:held_out]


def heterogeneity(parts: Sequence[Any], labels: Any, classes: int) -> float:
    """Return the mean over peers of ½ Σ_c |p_v(c) − p(c)|, the total variation between local and pooled classes.

    0 where all peers have the same proportions, 1 − Σ_c p(c)² where each holds one class, in equal sizes.
    """
    labels = wholes("labels", labels, 0, classes - 1, PartitionError)
    row_lists = _checked_assignment(parts, len(parts), len(labels))
    owners = np.repeat(np.arange(len(row_lists)), [len(rows) for rows in row_lists])
    cells = np.bincount(
        owners * classes + labels[np.concatenate(row_lists)], minlength=len(row_lists) * classes
    )
    counts = cells.reshape(len(row_lists), classes)
    local, pooled = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    return float(np.abs(local - pooled).sum(axis=1).mean() / 2)


# --- orders ----------------------------------------------------------------------------------------


def by_class(rows: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each class that occurs, by class, in stable order: [m], [n] -> C arrays."""
    order = np.argsort(labels[rows], kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(labels[rows[order]])) + 1)


def by_first_component(features: np.ndarray) -> np.ndarray:
    """Return the stable order of rows along their first principal component: [n, K] -> [n].

    The direction is the top eigenvector of XᵀX [K, K] or, where that is smaller, follows from that of XXᵀ [n, n], with
    X the centred rows. Its first loading of the largest magnitude is positive.
    """
    centred = features - features.mean(axis=0, dtype=np.float64)
    if centred.shape[1] <= len(centred):
        direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    else:
        direction = centred.T @ np.linalg.eigh(centred @ centred.T)[1][:, -1]
    magnitudes = np.abs(direction)
    first = np.argmax(magnitudes >= (1 - SAME) * magnitudes.max())
    scores = centred @ direction * np.sign(direction[first])
    step = SAME * np.abs(scores).max()
    return np.argsort(np.rint(scores / step) if step > 0 else scores, kind="stable")


def _ordered(name: str, sample: np.ndarray, labels: np.ndarray, features: Any, rng: Generator) -> np.ndarray:
    """Return the randomly ordered sample in the order of the drift, classes in random order: [m] -> [m]."""
    if name == "drift-x":
        return sample[by_first_component(features[sample])]
    if name in ("drift-y", "drift-xy"):
        groups = by_class(sample, labels)
        if name == "drift-xy":
            groups = [group[by_first_component(features[group])] for group in groups]
        return np.concatenate(shuffled(groups, rng))
    return sample


# --- sizes -----------------------------------------------------------------------------------------


def _dealt(rows: np.ndarray, sizes: np.ndarray, rng: Generator) -> list[np.ndarray]:
    """Return consecutive pieces of `rows`, dealt to peers in random order, sizes[v] to peer v: [m], [N] -> N arrays."""
    order = rng.permutation(len(sizes))
    pieces = np.split(rows, np.cumsum(sizes[order])[:-1])
    return [pieces[k] for k in np.argsort(order)]


def _proportional(total: int, concentration: float, peers: int, rng: Generator) -> np.ndarray:
    """Return counts [N] of `total` rows in proportions ~ Dirichlet(A); counts may be 0."""
    shares = rng.dirichlet(np.full(peers, min(concentration, EVEN)))
    bounds = np.rint(total * np.cumsum(shares)).astype(np.int64)
    bounds[-1] = total
    counts = np.empty(peers, dtype=np.int64)
    # Few rows over many peers: rounding favours evenly spaced peers, which must not be the same for all classes.
    counts[rng.permutation(peers)] = np.diff(bounds, prepend=0)
    return counts


def _label_skew(
    sample: np.ndarray, labels: np.ndarray, concentration: float, peers: int, rng: Generator
) -> list[np.ndarray]:
    """Return each class spread over the peers in its own proportions; empty peers get a row of the largest one."""
    owners = np.empty(len(sample), dtype=np.int64)
    for group in by_class(np.arange(len(sample)), labels[sample]):
        owners[group] = np.repeat(np.arange(peers), _proportional(len(group), concentration, peers, rng))
    sizes = np.bincount(owners, minlength=peers)
    assigned = np.split(sample[np.argsort(owners, kind="stable")], np.cumsum(sizes)[:-1])
    largest = [(-int(size), peer) for peer, size in enumerate(sizes)]
    heapq.heapify(largest)
    for peer in np.flatnonzero(sizes == 0):
        negative, donor = largest[0]
        heapq.heapreplace(largest, (negative + 1, donor))
        # Within a peer rows keep the sample's order, which is random: so is the class of the row that moves.
        assigned[donor], assigned[peer] = assigned[donor][:-1], assigned[donor][-1:]
    return assigned


def _pure_pieces(groups: list[np.ndarray], peers: int, rng: Generator) -> list[np.ndarray]:
    """Return all rows, one class per peer: the class with the largest pieces is cut again until there are N."""
    available = np.array([len(group) for group in groups])
    pieces = np.ones_like(available)
    for _ in range(peers - len(groups)):
        pieces[np.argmax(available / pieces)] += 1
    cut = [
        piece for group, count in zip(groups, pieces, strict=True) for piece in np.array_split(group, count)
    ]
    return shuffled(cut, rng)


def _pure_peers(
    groups: list[np.ndarray], targets: np.ndarray, labels: np.ndarray, sizes: np.ndarray, rng: Generator
) -> list[np.ndarray]:
    """Return one class per peer, sizes[v] rows for peer v, taken from the front of a class's group.

    Large peers choose first, each the class furthest below its target [C], its rows in the sample; the last peers are
    reserved for classes that have none yet. With equal sizes this finds an assignment wherever there is one.
    """
    available, taken = np.array([len(group) for group in groups]), np.zeros_like(targets)
    order = rng.permutation(len(sizes))
    assigned: dict[int, np.ndarray] = {}
    for peer in order[np.argsort(-sizes[order], kind="stable")]:
        size, remaining, unused = sizes[peer], available - taken, taken == 0
        eligible = unused if len(sizes) - len(assigned) <= unused.sum() else np.ones_like(unused)
        if not (eligible & (remaining >= size)).any():
            fullest = int(np.argmax(np.where(eligible, remaining, -1)))
            raise PartitionError(
                f"class {labels[groups[fullest][0]]} has {remaining[fullest]} of its {available[fullest]} rows left, "
                f"and the next peer of one class needs {size}; lower rows_per_peer or peers, or use drift-y"
            )
        group = int(np.argmax(np.where(eligible & (remaining >= size), targets - taken, -LARGEST)))
        assigned[peer] = groups[group][taken[group] : taken[group] + size]
        taken[group] += size
    return [assigned[peer] for peer in range(len(sizes))]


# --- checks ----------------------------------------------------------------------------------------


def enough(peers: Any, rows: int) -> int:
    """Return the number of peers, if a table of `rows` rows has at least one for each."""
    if not _is_integer(peers) or not 1 <= peers <= rows:
        raise refusal("peers", peers, f"1 to {rows}: each needs a row of the table, X", PartitionError)
    return int(peers)


def owner_column(spec: Any) -> str | None:
    """Return the column that names the owner of each row, if a partition says one."""
    return (
        spec.removeprefix(OWNED)
        if isinstance(spec, str) and len(spec) > len(OWNED) and spec.startswith(OWNED)
        else None
    )


def parsed(spec: Any) -> tuple[str, float]:
    """Return the name of a partition, and its A (0 where it has none)."""
    if owner_column(spec) is not None:
        return OWNED, 0.0
    text = spec if isinstance(spec, str) else ""
    name, _, number = text.partition("-")
    if text in NAMES and number != "A":
        return text, 0.0
    if f"{name}-A" not in NAMES:
        expected = f"one of {', '.join(NAMES)}, column:NAME, or a list with the rows of each peer"
        raise refusal("the partition", spec, expected, PartitionError)
    try:
        concentration = float(number)
    except ValueError:
        concentration = math.nan
    if not 0 < concentration < math.inf:
        raise refusal("the partition", spec, f"a positive number, as in '{name}-0.3'", PartitionError)
    return name, concentration


def sizes_asked(rows_per_peer: Any, peers: int, most: int = LARGEST) -> np.ndarray:
    """Return the requested rows of each peer [N], from one number or one for each peer, up to `most`."""
    try:
        scalar = np.ndim(rows_per_peer) == 0
    except ValueError:  # lists of different lengths
        scalar = False
    sizes = wholes("rows_per_peer", [rows_per_peer] if scalar else rows_per_peer, 1, most, PartitionError)
    if not scalar and len(sizes) != peers:
        raise PartitionError(
            f"rows_per_peer has {len(sizes)} entries; expected 1, or 1 for each of {peers} peers"
        )
    return np.broadcast_to(sizes, peers)


def dealt_sizes(rows_per_peer: Any, peers: int, rows: int) -> np.ndarray:
    """Return the number of rows of each peer: [N], at most n in all."""
    if rows_per_peer is None:
        return rows // peers + (np.arange(peers) < rows % peers).astype(np.int64)
    sizes = sizes_asked(rows_per_peer, peers, rows)
    if sizes.sum() > rows:
        raise PartitionError(
            f"rows_per_peer: {peers} peers want {sizes.sum()} rows in all, the table has {rows}; "
            "lower peers or rows_per_peer, or pass None to share out all rows"
        )
    return sizes


def _checked_assignment(row_lists: Sequence[Any], peers: int, rows: int) -> list[np.ndarray]:
    """Return the user's rows of each peer as arrays, after checking them."""
    if len(row_lists) != peers or peers == 0:
        raise PartitionError(
            f"the partition lists the rows of {len(row_lists)} peers; expected {peers or 'at least one'}"
        )
    checked = [
        wholes(f"the partition's list of rows of peer {peer}", rows_listed, 0, rows - 1, PartitionError)
        for peer, rows_listed in enumerate(row_lists)
    ]
    listed = np.bincount(np.concatenate(checked), minlength=rows)
    if listed.max() > 1:
        row = int(np.argmax(listed > 1))
        holders = [peer for peer, rows_listed in enumerate(checked) if row in rows_listed]
        raise PartitionError(
            f"the partition: row {row} is listed {listed[row]} times, by peers {holders}; list it once"
        )
    return checked


def _numbers(features: Any, rows: int) -> np.ndarray:
    """Return features that rows can be ordered by, after checking them: [n, K], finite."""
    values = np.asarray(features)
    if values.ndim != 2 or len(values) != rows or values.shape[1] == 0 or values.dtype.kind not in "biuf":
        raise PartitionError(
            f"features is {values.dtype} {values.shape}; expected numbers [{rows}, K], a row per label"
        )
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise PartitionError(
            f"features holds {values[row, column]} (row {row}, column {column}); rows are ordered by it, so missing "
            "values must be filled: pass 0 for them"
        )
    return values


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
