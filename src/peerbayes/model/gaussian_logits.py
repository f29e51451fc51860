"""Logits of Gaussian classes from the values of a block, without the products of φ.

    log p(z, c) = b_c + Σ_j z_j (l_cj + Σ_k U_cjk z_k)

U_c is the triangle of the weights of products. So a matrix product with the d values of a row takes the place of one
with its d(d + 1)/2 products, which take longer to write than to multiply. Where all classes share U, as in LDA, the
terms in it decide nothing, and what is left is linear in the raw values x of columns that are not clipped:

    b_c + l_c z = (b_c − l'_c location) + l'_c x        l' = l / scale
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peerbayes.data.infer import Scratch, extremes
from peerbayes.model.families.gaussian import Gaussian
from peerbayes.model.sources import Block

# How many deviations from 0 the location of a column may be for raw values to be multiplied: three digits are lost.
NEAR = 1024.0


def gaussian_logits(family: Gaussian, weights: np.ndarray, relative: bool) -> Callable[[Block], np.ndarray]:
    """Return the function of blocks to their logits [C, b], which the next block may overwrite, under W [C, dense].

    relative  terms that are the same for all classes may be left out
    """
    d = family.continuous
    products = weights[:, 1 + d :]
    if relative and (products == products[:1]).all():
        return linear_logits(weights[:, : 1 + d])
    classes, scratch = len(weights), Scratch()
    upper, right = np.triu_indices(d)
    triangles = np.zeros((classes, d, 1 + d))
    triangles[:, :, 0] = weights[:, 1 : 1 + d]
    triangles[:, upper, 1 + right] = products
    factors, bias = triangles.reshape(classes * d, 1 + d), weights[:, :1]

    def logits_of(block: Block) -> np.ndarray:
        rows = len(block.values)
        values = scratch("values", 1 + d, rows)
        values[0] = 1.0
        block.standard(values[1:])
        slopes = np.dot(factors, values, out=scratch("slopes", classes * d, rows)).reshape(classes, d, rows)
        slopes *= values[1:]
        logits = np.add.reduce(slopes, axis=1, out=scratch("logits", classes, rows))
        logits += bias
        return logits

    return logits_of


def linear_logits(weights: np.ndarray) -> Callable[[Block], np.ndarray]:
    """Return the function of blocks to W (1, z): W [C, 1 + d] -> [C, b], which the next block may overwrite."""
    bias, slopes, scratch = weights[:, :1], weights[:, 1:], Scratch()

    def logits_of(block: Block) -> np.ndarray:
        logits = scratch("logits", len(weights), len(block.values))
        if unclipped(block):
            folded = slopes * block.inverse
            np.dot(folded, block.values.T, out=logits)
            logits += bias - (folded @ block.location)[:, None]
        else:
            np.dot(slopes, block.standard(scratch("values", *block.values.shape[::-1])), out=logits)
            logits += bias
        return logits

    return logits_of


def unclipped(block: Block) -> bool:
    """Whether raw values can stand for z: none is missing or clipped, and no column is far from 0."""
    if not block.values.size or (np.abs(block.location * block.inverse) > NEAR).any():
        return False
    reach = block.clip / block.inverse
    lowest, highest = block.location - reach, block.location + reach
    if block.values.min() >= lowest.max() and block.values.max() <= highest.min():  # columns are alike
        return True
    low, high = extremes(block.values)
    return bool((low >= lowest).all() and (high <= highest).all())
