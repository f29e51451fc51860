"""peerbayes: generative classifiers learned together by data owners whose rows never leave their machines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peerbayes import audit as audit
    from peerbayes import callbacks as callbacks
    from peerbayes.data.column import Column
    from peerbayes.data.doctor import check
    from peerbayes.data.schema import Schema
    from peerbayes.errors import (
        ConfigurationError,
        FalseReport,
        ModelFileDamaged,
        ModelFileError,
        ModelFileTooNew,
        PartitionError,
        PeerbayesError,
        SchemaError,
        SchemaMismatch,
        StatisticsMismatch,
        StructureError,
        TopologyError,
    )
    from peerbayes.estimators.auto_bayes import AutoBayes
    from peerbayes.estimators.classifiers import AODE, KDB, LDA, QDA, TAN, BayesNetClassifier, MixedNB
    from peerbayes.estimators.ga2m import GA2M
    from peerbayes.experiments.levels import each
    from peerbayes.experiments.study import Study
    from peerbayes.experiments.study_plan import study
    from peerbayes.learning.robust.attacks import Attack
    from peerbayes.model.statistics import Statistics, prior_knowledge
    from peerbayes.privacy.accounting import Privacy
    from peerbayes.privacy.scheme import plan
    from peerbayes.simulation.loading import load
    from peerbayes.simulation.result import Run
    from peerbayes.simulation.run import simulate

# Where each public name lives. They are imported on first use: scikit-learn and pandas take a second and a hundred
# megabytes, which a peer does not need.
_HOMES = {
    "learning.robust.attacks": ("Attack",),
    "data.column": ("Column",),
    "data.doctor": ("check",),
    "errors": (
        "ConfigurationError", "FalseReport", "ModelFileDamaged", "ModelFileError", "ModelFileTooNew", "PartitionError",
        "PeerbayesError", "SchemaError", "SchemaMismatch", "StatisticsMismatch", "StructureError",
        "TopologyError",
    ),
    "estimators.classifiers": ("AODE", "KDB", "LDA", "QDA", "TAN", "BayesNetClassifier", "MixedNB"),
    "estimators.auto_bayes": ("AutoBayes",),
    "estimators.ga2m": ("GA2M",),
    "experiments.levels": ("each",),
    "experiments.study": ("Study",),
    "experiments.study_plan": ("study",),
    "privacy.scheme": ("plan",),
    "privacy.accounting": ("Privacy",),
    "simulation.loading": ("load",),
    "simulation.result": ("Run",),
    "data.schema": ("Schema",),
    "simulation.run": ("simulate",),
    "model.statistics": ("Statistics", "prior_knowledge"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Modules that are public themselves.
_MODULES = ("audit", "callbacks")

__all__ = [
    "AODE",
    "GA2M",
    "KDB",
    "LDA",
    "QDA",
    "TAN",
    "Attack",
    "AutoBayes",
    "BayesNetClassifier",
    "Column",
    "ConfigurationError",
    "FalseReport",
    "MixedNB",
    "ModelFileDamaged",
    "ModelFileError",
    "ModelFileTooNew",
    "PartitionError",
    "PeerbayesError",
    "Privacy",
    "Run",
    "Schema",
    "SchemaError",
    "SchemaMismatch",
    "Statistics",
    "StatisticsMismatch",
    "StructureError",
    "Study",
    "TopologyError",
    "check",
    "each",
    "load",
    "plan",
    "prior_knowledge",
    "simulate",
    "study",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("peerbayes")
    if name in _MODULES:
        return import_module(f"peerbayes.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'peerbayes' has no attribute {name!r}")
    found = getattr(import_module(f"peerbayes.{_HOME_OF[name]}"), name)
    globals().setdefault(name, found)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
