"""Families: the model of a class, as two pure functions, φ and θ, and a prior."""

from typing import Any

from peerbayes.data.registry import Registry
from peerbayes.data.table import Rows
from peerbayes.model.families.additive import GA2M
from peerbayes.model.families.aode import Aode
from peerbayes.model.families.base import Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.gaussian import SeparateGaussian, SharedGaussian
from peerbayes.model.families.naive_bayes import NaiveBayes

# Names of families whose structure is learned: Bayesian networks.
LEARNED_STRUCTURES = ("tan", "kdb")


def _problem(name: str, loaded: Any) -> str | None:
    """Return what is wrong with a family of an outside package."""
    if not (isinstance(loaded, type) and issubclass(loaded, Family)):
        return f"it is {loaded!r:.80}; expected a subclass of peerbayes.model.families.Family"
    if getattr(loaded, "name", None) != name:
        return f"its name is {getattr(loaded, 'name', None)!r:.80}; expected that of its entry point"
    return None


FAMILIES: Registry[type[Family]] = Registry(
    "family",
    "peerbayes.families",
    {family.name: family for family in (NaiveBayes, SeparateGaussian, SharedGaussian, BayesNet, Aode, GA2M)},
    _problem,
    LEARNED_STRUCTURES.__contains__,
)

__all__ = [
    "FAMILIES",
    "GA2M",
    "Aode",
    "BayesNet",
    "Family",
    "NaiveBayes",
    "Rows",
    "SeparateGaussian",
    "SharedGaussian",
]
