"""An estimator's parameters: checks before any work, and their form in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from peerbayes.arguments import number, refusal, whole
from peerbayes.calibration import STARTS
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics

# Code is not written to files.
UNSAVED = ("callback",)


def check(parameters: Mapping[str, Any]) -> None:
    """Refuse invalid values by name, whether or not they are used."""

    def at_least_0(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a number of 0 or more{advice}", least=0.0)

    def positive(name: str, advice: str = "") -> None:
        number(name, parameters[name], f"a positive number{advice}", above=0.0)

    for name in ("alpha", "tol", "em_tol"):
        at_least_0(name)
    positive("lr", " (the paper's is 0.05)")
    if parameters["clip"] is not None:
        positive("clip", ", or None for no clipping")
    if parameters["variance_floor"] is not None:
        positive("variance_floor", ", or None for the default")
    for name in ("count_floor", "shrinkage"):
        if parameters.get(name) is not None:
            at_least_0(name, ", or None for the default")
    whole("max_iter", parameters["max_iter"], 0)
    whole("em_iter", parameters["em_iter"], 1)
    if parameters["patience"] is not None:
        whole("patience", parameters["patience"], 1, advice=", or None for no early stop")
    keep = parameters["keep"]
    if not isinstance(keep, str) or keep not in ("best", "last"):
        raise refusal("keep", keep, "'best' or 'last'")
    _check_types(parameters)


def _check_types(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of the wrong type, and combinations that are not supported."""
    kinds, schema, prior, start = (parameters[name] for name in ("kinds", "schema", "prior", "start"))
    if not isinstance(kinds, str | Mapping | list | tuple):
        raise TypeError(f"kinds is {kinds!r:.80}; expected a rule, one kind per column, or a mapping")
    if not isinstance(schema, Schema | None):
        raise TypeError(f"schema is {schema!r:.80}; expected a Schema, for instance Schema.load(path)")
    if not isinstance(prior, Statistics | None):
        raise TypeError(
            f"prior is {prior!r:.80}; expected Statistics, for instance from prior_knowledge(...)"
        )
    if prior is not None and parameters["calibrate"]:
        raise ValueError(
            "prior is for calibrate=False; calibration takes knowledge as its start: start=prior"
        )
    unlabelled = parameters["unlabelled"]
    if not isinstance(unlabelled, str | Real | np.generic | None):
        raise TypeError(
            f"unlabelled is {unlabelled!r:.80}; expected the label of rows without one, NaN, or None"
        )
    if unlabelled is not None and parameters["calibrate"]:
        raise ValueError(
            "unlabelled is for calibrate=False: calibration learns from labels. Leave the other rows out"
        )
    if not isinstance(start, str | Statistics | np.ndarray) or (
        isinstance(start, str) and start not in STARTS
    ):
        raise ValueError(
            f"start is {start!r:.80}; expected one of {', '.join(STARTS)}, Statistics, or an array of them"
        )


def portable(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return parameters as plain values and arrays, for a file."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in parameters.items():
        if name in UNSAVED:
            continue
        if isinstance(value, Statistics):
            plain[name] = {"statistics": value.described()}
            arrays[f"parameter {name}"] = value.values
        elif isinstance(value, Schema):
            plain[name] = {"schema": value.to_json()}
        elif isinstance(value, Mapping):
            plain[name] = {"pairs": [[key, kind] for key, kind in value.items()]}
        elif isinstance(value, np.ndarray | list | tuple):
            plain[name] = {"list": np.asarray(value).tolist()}
        elif isinstance(value, float | np.floating) and math.isnan(value):
            plain[name] = {"missing": True}
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        else:
            plain[name] = value
    return plain, arrays


def restored(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the parameters that `portable` wrote."""
    parameters: dict[str, Any] = {}
    for name, value in plain.items():
        if not isinstance(value, dict):
            parameters[name] = value
        elif "statistics" in value:
            parameters[name] = Statistics.restored(value["statistics"], arrays[f"parameter {name}"])
        elif "schema" in value:
            parameters[name] = Schema.from_json(value["schema"])
        elif "missing" in value:
            parameters[name] = math.nan
        elif "pairs" in value:
            parameters[name] = dict(value["pairs"])
        else:
            parameters[name] = np.asarray(value["list"]) if name == "start" else value["list"]
    return parameters
