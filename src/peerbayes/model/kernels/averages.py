"""Averaged one-dependence estimators by their codes: the log joint and the residual of rows, without Φ.

    log p(x, c) = log Σ_i exp(h_ic) − log Σ_i w_i        h_ic = singles[x_i] + Σ_{j≠i} pairs[x_i, x_j]

A pair cell is loaded once and added to the sums of both its columns. Tables and R lie transposed, [cells, C], so that
inner loops run over classes. See `families.aode` for the tables. A code of −1 is missing.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peerbayes.data.kernel_cache import njit
from peerbayes.data.table import Rows
from peerbayes.model.families.aode import Aode, Tables
from peerbayes.model.kernels.block_loops import exponential, logarithm


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def write_joint(
    codes, offsets, sizes, begins, margin_begins, log_prior, singles, pairs, margins, shares, out
):
    """Write log p(x, c) of rows: codes [n, D] -> `out` [C, n]."""
    rows, columns = codes.shape
    classes = log_prior.size
    heads, top, summed = np.empty((columns, classes)), np.empty(classes), np.empty(classes)
    code, own = np.empty(columns, np.int64), np.empty(classes)
    for row in range(rows):
        code[:] = codes[row]
        present, total = 0, 0.0
        for i in range(columns):
            if code[i] >= 0:
                present += 1
                total += exponential(shares[i])
                heads[i] = singles[offsets[i] + code[i]]
        if present == 0:
            out[:, row] = log_prior
            continue
        pair = 0
        for i in range(columns):
            own[:] = heads[i]
            for j in range(i + 1, columns):
                if code[i] >= 0 and code[j] >= 0:
                    cell = begins[pair] + code[i] * sizes[j] + code[j]
                    for c in range(classes):
                        own[c] += pairs[cell, c]
                        heads[j, c] += pairs[cell, c]
                elif code[i] >= 0:
                    cell = margin_begins[i, j] + code[i]
                    for c in range(classes):
                        own[c] += margins[cell, c]
                elif code[j] >= 0:
                    cell = margin_begins[j, i] + code[j]
                    for c in range(classes):
                        heads[j, c] += margins[cell, c]
                pair += 1
            heads[i] = own
        top[:], summed[:] = -np.inf, 0.0
        for i in range(columns):
            if code[i] >= 0:
                for c in range(classes):
                    top[c] = max(top[c], heads[i, c])
        for i in range(columns):
            if code[i] >= 0:
                for c in range(classes):
                    summed[c] += exponential(heads[i, c] - top[c])
        log_total = logarithm(total)
        for c in range(classes):
            out[c, row] = top[c] + logarithm(summed[c]) - log_total


@njit(cache=True, nogil=True)
def scatter(codes, offsets, sizes, begins, changes, out):
    """Add (Y − P) of rows [C, n] to R at the cells of their codes [n, D]: `out` [K, C]."""
    rows, columns = codes.shape
    first_pair = 1 + sizes.sum()
    change = np.empty(changes.shape[0])
    for row in range(rows):
        code = codes[row]
        change[:] = changes[:, row]
        out[0] += change
        pair = 0
        for i in range(columns):
            if code[i] < 0:
                pair += columns - 1 - i
                continue
            out[1 + offsets[i] + code[i]] += change
            for j in range(i + 1, columns):
                if code[j] >= 0:
                    cell = first_pair + begins[pair] + code[i] * sizes[j] + code[j]
                    for c in range(change.size):
                        out[cell, c] += change[c]
                pair += 1


def scorer(family: Aode, weights: np.ndarray) -> Callable[[Rows], np.ndarray]:
    """Return the function of rows to log p(x, c) [n, C] under W [C, K]: what `Aode.scorer` does in NumPy."""
    tables = family.tables(np.asarray(weights, dtype=np.float64))
    return lambda rows: transposed_joint(family, tables, family.known(rows.codes, tables.seen)).T


def transposed_joint(family: Aode, tables: Tables, codes: np.ndarray) -> np.ndarray:
    """Return log p(x, c) of rows of codes: [n, D] -> [C, n]."""
    out = np.empty((tables.log_prior.size, len(codes)))
    sizes = np.asarray(family.cardinalities, dtype=np.int64)
    write_joint(
        np.ascontiguousarray(codes, dtype=np.int64), family.offsets, sizes, family.pair_begins,
        family.margin_begins, *tables[:5], out,
    )  # fmt: skip
    return out


def add_residual(family: Aode, codes: np.ndarray, changes: np.ndarray, out: np.ndarray) -> None:
    """Add (Y − P)ᵀΦ of rows of codes [n, D], given Y − P [C, n], to `out` [K, C]."""
    sizes = np.asarray(family.cardinalities, dtype=np.int64)
    scatter(
        np.ascontiguousarray(codes, dtype=np.int64), family.offsets, sizes, family.pair_begins, changes, out
    )
