"""Families: the model of a class, as two pure functions, φ and θ, and a prior."""

from peerbayes.data.table import Rows
from peerbayes.model.families.base import Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.gaussian import SeparateGaussian, SharedGaussian
from peerbayes.model.families.naive_bayes import NaiveBayes

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (NaiveBayes, SeparateGaussian, SharedGaussian, BayesNet)
}

__all__ = ["FAMILIES", "BayesNet", "Family", "NaiveBayes", "Rows", "SeparateGaussian", "SharedGaussian"]
