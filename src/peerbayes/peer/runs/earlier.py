"""What a peer's folder has of an earlier run, for one that begins with its model."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from peerbayes.errors import PeerbayesError
from peerbayes.learning.planning import declaration_of
from peerbayes.learning.tree_sum import TreeSumState
from peerbayes.model.statistics import Statistics
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.warm import EarlierModel
from peerbayes.peer.models.history import History, Version
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import NoState, Store

STEPS = TreeSumState._fields.index("steps")  # among the arrays of a state


def refuse_warm(terms: Terms) -> str:
    """Return why a run of these terms begins afresh, as a sentence; "": it may begin with an earlier model.

    Models are told to neighbours in a sum, as messages are; where those may not be seen singly, nor may models.
    """
    if terms.privacy.epsilon is not None:
        return (
            "a run with an epsilon begins afresh: a model without its own noise would tell of rows beyond it"
        )
    if terms.privacy.secure_sum:
        return "a run with secure sums begins afresh: neighbours would see the model of a single member"
    if terms.robust.acts:
        return "a run with robust terms begins afresh: one false model would move the start of all"
    return ""


def version_of(home: Home, number: int) -> Version | None:
    """Return the latest version of the model of a run; None: there is none."""
    first = home.roster().first_run.run
    versions = (
        version
        for version in reversed(History(home.folder).versions())
        if version.run_number == number or (number == 1 and version.run == first)
    )
    return next(versions, None)


def earlier_model(home: Home, number: int) -> EarlierModel:
    """Return what a folder has of a run: nothing, where it took no part, or its model was removed or is damaged."""
    try:
        version = version_of(home, number)
        if version is None:
            return EarlierModel()
        statistics = Statistics.from_bytes(History(home.folder).content(version.number))
    except PeerbayesError:
        return EarlierModel()
    return EarlierModel(statistics, _steps(home.of_run(number), statistics))


def _steps(home: Home, statistics: Statistics) -> np.ndarray | None:
    """Return the last steps of a run of `tree-sum`, from its state; None: they are not kept."""
    with (
        contextlib.suppress(NoState, OSError, PeerbayesError),
        contextlib.closing(Store(home.state_path, readonly=True)) as store,
    ):
        arrays = _flat((store.last() or (0, []))[1])
        by_sums = declaration_of(Terms.read(home.agreement_path).strategy).by_sums
        if by_sums and len(arrays) > STEPS:
            steps = arrays[STEPS]
            if steps.ndim == 4 and steps.shape[2:] == statistics.shape and np.isfinite(steps).all():
                return steps
    return None


def _flat(nested: Any) -> list[np.ndarray]:
    return [array for inner in nested for array in _flat(inner)] if isinstance(nested, list) else [nested]
