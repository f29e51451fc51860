"""Metrics and baselines as plain values: names, and what scikit-learn has beside them, by path and parameters.

A scorer is the path of its function, its sign and arguments; an estimator the path of its class and `get_params()`.
Only what is in scikit-learn itself is read back, by import and constructor: nothing is unpickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.errors import ConfigurationError
from peerbayes.simulation.baselines import Baseline
from peerbayes.simulation.scores import Metric

# Values that JSON does not have are tables of one key, which says how to read them.
METRIC, BASELINE, SCORER, ESTIMATOR = "metric", "baseline", "scorer", "estimator"
TUPLE, PAIRS, ARRAY, DTYPE, FUNCTION = "tuple", "pairs", "array", "dtype", "function"

# Packages whose functions parameters may name: others read files, or worse.
OF_FUNCTIONS = ("sklearn.metrics", "sklearn.feature_selection")


class NotPlain(TypeError):
    """What is no name, and nothing that scikit-learn can make again from plain values."""


# --- the two settings


def plain_metrics(metrics: tuple[Metric, ...]) -> list[Any]:
    """Return metrics as JSON can hold them."""
    return [_plain_metric(metric) for metric in metrics]


def _plain_metric(metric: Metric) -> Any:
    if metric.scorer is None:
        return metric.name
    stored = _plain_scorer(metric.scorer)
    return metric.name if stored == _named(metric.name) else {METRIC: [metric.name, stored]}


def read_metrics(stored: list[Any]) -> list[Any]:
    """Return the metrics that `plain_metrics` wrote."""
    return [
        item if isinstance(item, str) else Metric(item[METRIC][0], _scorer(item[METRIC][1]))
        for item in stored
    ]


def plain_baselines(baselines: tuple[Baseline, ...]) -> list[Any]:
    """Return baselines as JSON can hold them."""
    return [
        baseline.name
        if baseline.estimator is None
        else {BASELINE: [baseline.name, _plain(baseline.estimator, "")]}
        for baseline in baselines
    ]


def read_baselines(stored: list[Any]) -> list[Any]:
    """Return the baselines that `plain_baselines` wrote."""
    return [
        item if isinstance(item, str) else Baseline(item[BASELINE][0], _read(item[BASELINE][1]))
        for item in stored
    ]


SETTINGS: dict[str, tuple[Callable[[Any], list[Any]], Callable[[list[Any]], list[Any]]]] = {
    "metrics": (plain_metrics, read_metrics),
    "baselines": (plain_baselines, read_baselines),
}


def label(entry: Metric | Baseline) -> str:
    """Return what tables call a metric or a baseline: its name, or the estimator with its parameters."""
    estimator = getattr(entry, "estimator", None)
    return entry.name if estimator is None else " ".join(str(estimator).split())


# --- scorers


@cache
def _named(name: str) -> Any:
    """Return scikit-learn's scorer with a name as plain values; None: there is none."""
    from sklearn.metrics import get_scorer, get_scorer_names

    return _plain_scorer(get_scorer(name)) if name in get_scorer_names() else None


def _plain_scorer(scorer: Any) -> dict[str, Any]:
    try:
        function, sign, method = scorer._score_func, scorer._sign, scorer._response_method
        arguments = scorer._kwargs
    except AttributeError:
        raise NotPlain(f"{shown(scorer)} is no scorer that make_scorer of scikit-learn made") from None
    stored = _plain(function, f"the function of the scorer {scorer}")
    methods = [method] if isinstance(method, str) else list(method)
    return {SCORER: [stored, sign, methods, _plain(arguments, f"an argument of the scorer {scorer}")]}


def _scorer(stored: dict[str, Any]) -> Any:
    from sklearn.metrics import make_scorer

    function, sign, methods, arguments = stored[SCORER]
    method = methods[0] if len(methods) == 1 else tuple(methods)
    return make_scorer(
        _read(function), response_method=method, greater_is_better=sign > 0, **_read(arguments)
    )


# --- estimators and their parameters


def _plain(value: Any, where: str) -> Any:
    """Return a value as JSON can hold it; `where` says in an error what it is of."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [_plain(item, where) for item in value]
    if isinstance(value, tuple):
        return {TUPLE: [_plain(item, where) for item in value]}
    if isinstance(value, Mapping):
        return {PAIRS: [[_plain(key, where), _plain(item, where)] for key, item in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return {ARRAY: [value.dtype.str, value.tolist()]}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {DTYPE: np.dtype(value).name}
    if _is_estimator(type(value)) and (path := _path(type(value))):
        parameters = value.get_params(deep=False)
        return {
            ESTIMATOR: [
                path,
                {
                    name: _plain(parameter, f"the parameter {name} of {type(value).__name__}")
                    for name, parameter in parameters.items()
                },
            ]
        }
    if inspect.isfunction(value) and (path := _path(value)) and path.startswith(OF_FUNCTIONS):
        return {FUNCTION: path}
    raise NotPlain(f"{where} is {shown(value)}" if where else f"it names {shown(value)}")


def _read(stored: Any) -> Any:
    """Return the value that `_plain` stored."""
    if isinstance(stored, list):
        return [_read(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    [(kind, content)] = stored.items()
    if kind == TUPLE:
        return tuple(_read(item) for item in content)
    if kind == PAIRS:
        return {_read(key): _read(item) for key, item in content}
    if kind == ARRAY:
        return np.array(content[1], dtype=content[0])
    if kind == DTYPE:
        return np.dtype(content).type
    if kind == FUNCTION:
        found = _imported(content) if content.startswith(OF_FUNCTIONS) else None
        if inspect.isfunction(found):
            return found
    elif kind == ESTIMATOR and _is_estimator(made := _imported(content[0])):
        return made(**{name: _read(parameter) for name, parameter in content[1].items()})
    raise ConfigurationError(
        f"a study stores {shown(stored)}; expected an estimator or a function of this scikit-learn. Was it stored "
        "with another version?"
    )


def _is_estimator(cls: Any) -> bool:
    return isinstance(cls, type) and all(
        callable(getattr(cls, verb, None)) for verb in ("get_params", "set_params")
    )


def _path(thing: Any) -> str:
    """Return the path by which scikit-learn offers a class or a function; "": it is none of its own."""
    parts = thing.__module__.split(".")
    if parts[0] != "sklearn" or thing.__name__ != thing.__qualname__:
        return ""
    private = next((number for number, part in enumerate(parts) if part.startswith("_")), len(parts))
    for path in (".".join([*parts[:private], thing.__name__]), ".".join([*parts, thing.__name__])):
        if _imported(path) is thing:
            return path
    return ""


def _imported(path: str) -> Any:
    """Return what scikit-learn has under a path, None if it has nothing or something that is not its own."""
    module, _, name = path.rpartition(".")
    if module.split(".")[0] != "sklearn":
        return None
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return found if str(getattr(found, "__module__", "")).split(".")[0] == "sklearn" else None
