"""peerbayes: generative classifiers learned together by data owners whose rows never leave their machines."""

from peerbayes.columns import Column
from peerbayes.errors import (
    ConfigurationError,
    ModelFileDamaged,
    ModelFileError,
    ModelFileTooNew,
    PartitionError,
    PeerbayesError,
    SchemaError,
    SchemaMismatch,
    StatisticsMismatch,
    TopologyError,
)
from peerbayes.estimators import LDA, QDA, MixedNB, load
from peerbayes.priors import prior_knowledge
from peerbayes.runs import Run
from peerbayes.schema import Schema
from peerbayes.simulate import simulate
from peerbayes.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "LDA",
    "QDA",
    "Column",
    "ConfigurationError",
    "MixedNB",
    "ModelFileDamaged",
    "ModelFileError",
    "ModelFileTooNew",
    "PartitionError",
    "PeerbayesError",
    "Run",
    "Schema",
    "SchemaError",
    "SchemaMismatch",
    "Statistics",
    "StatisticsMismatch",
    "TopologyError",
    "load",
    "prior_knowledge",
    "simulate",
]
