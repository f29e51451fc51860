"""Families with kernels of their own; any other uses its own φ."""

from __future__ import annotations

from typing import NamedTuple

from peerbayes.families.base import Family
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.naive_bayes import NaiveBayes


class Shortcut(NamedTuple):
    """The names of a family's kernels, which are loaded only when needed."""

    expand: str
    statistics: str


SHORTCUTS: dict[type[Family], Shortcut] = {
    NaiveBayes: Shortcut("expand_diagonal", "diagonal_statistics"),
    Gaussian: Shortcut("expand_quadratic", "quadratic_statistics"),
}


def shortcut(family: Family) -> Shortcut | None:
    """Return the kernels of a family, or None."""
    return next(
        (kernels for family_type, kernels in SHORTCUTS.items() if isinstance(family, family_type)), None
    )


def holds_missing(family: Family) -> bool:
    """Whether φ marks missing continuous values."""
    return isinstance(family, NaiveBayes) and family.missing
