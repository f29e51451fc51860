"""The family of a schema: how its statistics are laid out, and its guards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peerbayes.families import FAMILIES, Family
from peerbayes.schema import Schema

# Floors of maximum likelihood, which act on no real data; calibration's are the family's own.
LIKELIHOOD_FLOOR, LIKELIHOOD_COUNT, CALIBRATED_COUNT = 1e-9, 1e-30, 1e-4


def laid_out(family: type[Family], schema: Schema, missing: bool) -> Family:
    """The family for the columns of a schema; `missing`: whether continuous values are missing somewhere."""
    layout: dict[str, Any] = {"missing": missing} if family.takes_missing else {}
    return family(continuous=len(schema.continuous), cardinalities=schema.cardinalities, **layout)


def guarded(
    layout: Family,
    rows: float,
    calibrate: bool,
    variance_floor: float | None = None,
    count_floor: float | None = None,
    shrinkage: float | None = None,
) -> Family:
    """The family with floors: tiny for maximum likelihood, larger for calibration of so many rows, or as given."""
    floor, count = (
        (layout.calibrated_floor, CALIBRATED_COUNT) if calibrate else (LIKELIHOOD_FLOOR, LIKELIHOOD_COUNT)
    )
    guards: dict[str, Any] = {
        "variance_floor": floor if variance_floor is None else float(variance_floor),
        "count_floor": count if count_floor is None else float(count_floor),
    }
    if hasattr(layout, "shrinkage"):
        default = layout.calibrated_shrinkage if calibrate else 0.0
        guards["shrinkage"] = (default if shrinkage is None else float(shrinkage)) / rows if rows > 0 else 0.0
    return replace(layout, **guards)


def calibrated(family: str, schema: Schema, missing: bool, rows: float) -> Family:
    """What peers calibrate: a family by its name, for so many rows of a schema."""
    return guarded(laid_out(FAMILIES[family], schema, missing), rows, calibrate=True)
