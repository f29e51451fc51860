"""Families that the kernels know; any other takes the general way, by its own φ."""

from __future__ import annotations

from typing import NamedTuple

from peerbayes.families.base import Family
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.naive_bayes import NaiveBayes


class Shortcut(NamedTuple):
    """The names of the kernels for a family: they are loaded late."""

    expand: str
    statistics: str


SHORTCUTS: dict[type[Family], Shortcut] = {
    NaiveBayes: Shortcut("expand_diagonal", "diagonal_statistics"),
    Gaussian: Shortcut("expand_quadratic", "quadratic_statistics"),
}


def shortcut(family: Family) -> Shortcut | None:
    return next((found for known, found in SHORTCUTS.items() if isinstance(family, known)), None)


def holds_missing(family: Family) -> bool:
    """Whether φ says which continuous values are missing."""
    return isinstance(family, NaiveBayes) and family.missing
