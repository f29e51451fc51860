"""peerbayes: generative classifiers learned together by data owners whose rows never leave their machines."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peerbayes import audit as audit
    from peerbayes.attacks import Attack
    from peerbayes.columns import Column
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
    from peerbayes.estimators import KDB, LDA, QDA, TAN, BayesNetClassifier, MixedNB, load
    from peerbayes.priors import prior_knowledge
    from peerbayes.privacy.plan import plan
    from peerbayes.privacy.terms import Privacy
    from peerbayes.runs import Run
    from peerbayes.schema import Schema
    from peerbayes.simulate import simulate
    from peerbayes.statistics import Statistics

__version__ = "0.1.0"

# Where each public name lives. They are imported on first use: scikit-learn and pandas take a second and a hundred
# megabytes, which a peer does not need.
_HOMES = {
    "attacks": ("Attack",),
    "columns": ("Column",),
    "errors": (
        "ConfigurationError", "FalseReport", "ModelFileDamaged", "ModelFileError", "ModelFileTooNew", "PartitionError",
        "PeerbayesError", "SchemaError", "SchemaMismatch", "StatisticsMismatch", "StructureError",
        "TopologyError",
    ),
    "estimators": ("KDB", "LDA", "QDA", "TAN", "BayesNetClassifier", "MixedNB", "load"),
    "priors": ("prior_knowledge",),
    "privacy.plan": ("plan",),
    "privacy.terms": ("Privacy",),
    "runs": ("Run",),
    "schema": ("Schema",),
    "simulate": ("simulate",),
    "statistics": ("Statistics",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Modules that are public themselves.
_MODULES = ("audit",)

__all__ = [
    "KDB",
    "LDA",
    "QDA",
    "TAN",
    "Attack",
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
    "TopologyError",
    "load",
    "plan",
    "prior_knowledge",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"peerbayes.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'peerbayes' has no attribute {name!r}")
    found = getattr(import_module(f"peerbayes.{_HOME_OF[name]}"), name)
    globals().setdefault(name, found)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`peerbayes.simulate` is the function, also once the module of that name was imported."""

    @property
    def simulate(self) -> Any:
        return __getattr__("simulate")

    @simulate.setter
    def simulate(self, module: ModuleType) -> None:
        """What importing the module would do."""


sys.modules[__name__].__class__ = _Package
