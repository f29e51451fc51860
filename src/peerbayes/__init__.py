"""peerbayes: generative classifiers learned together by data owners whose rows never leave their machines."""

from peerbayes.columns import Column
from peerbayes.errors import (
    ModelFileDamaged,
    ModelFileError,
    ModelFileTooNew,
    PeerbayesError,
    SchemaError,
    SchemaMismatch,
    StatisticsMismatch,
)
from peerbayes.estimators import LDA, QDA, MixedNB, load
from peerbayes.priors import prior_knowledge
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "LDA",
    "QDA",
    "Column",
    "MixedNB",
    "ModelFileDamaged",
    "ModelFileError",
    "ModelFileTooNew",
    "PeerbayesError",
    "Schema",
    "SchemaError",
    "SchemaMismatch",
    "Statistics",
    "StatisticsMismatch",
    "load",
    "prior_knowledge",
]
