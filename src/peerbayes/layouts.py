"""The family of a schema: how its statistics are laid out, and its guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from peerbayes.dependence import Pairs, kdb, tan
from peerbayes.errors import StructureError
from peerbayes.families import FAMILIES, BayesNet, Family
from peerbayes.families.structures import Parents
from peerbayes.passes import columns_of
from peerbayes.schema import Schema

# Floors of maximum likelihood, which act on no real data; calibration's are the family's own.
LIKELIHOOD_FLOOR, LIKELIHOOD_COUNT, CALIBRATED_COUNT = 1e-9, 1e-30, 1e-4


def laid_out(family: type[Family], schema: Schema, missing: bool) -> Family:
    """The family for the columns of a schema; `missing`: whether continuous values are missing somewhere."""
    layout: dict[str, Any] = {"missing": missing} if family.marks_missing else {}
    return family(continuous=len(schema.continuous), cardinalities=schema.cardinalities, **layout)


# Families whose structure is learned.
STRUCTURES: dict[str, Callable[[Pairs], Parents]] = {"tan": tan, "kdb": kdb}

# Numbers that a model may have: half a gigabyte.
MOST_NUMBERS = 1 << 26


def with_parents(layout: Family, parents: Parents) -> Family:
    """The layout of a Bayesian network with these parents."""
    return replace(layout, parents=parents)  # type: ignore[call-arg]


def named_parents(family: BayesNet, schema: Schema) -> dict[str, list[str]]:
    """The parents of each column by name."""
    names = columns_of(schema)
    return {names[j]: [names[p] for p in own] for j, own in enumerate(family.parents)}


def without_guards(family: Family) -> Family:
    """What statistics are laid out by."""
    layout = {"cardinalities": family.cardinalities, "parents": getattr(family, "parents", ())}
    given = {name: layout.get(name, value) for name, value in family.layout().items()}
    return type(family)(**given)


def sized(family: Family, classes: int) -> Family:
    """The same family, unless its statistics would not fit: their number is told before they are allocated."""
    numbers = classes * family.size
    if numbers > MOST_NUMBERS:
        raise StructureError(
            f"{classes} classes × {family.size:,} features are {numbers:,} numbers ({8 * numbers / 2**30:.1f} GB); at "
            f"most {MOST_NUMBERS:,} are allowed. Give fewer parents to columns with many categories"
        )
    return family


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


def calibrated(
    family: str, schema: Schema, missing: bool, rows: float, parents: Parents | None = None
) -> Family:
    """What peers calibrate: a family by its name, for so many rows of a schema; with its structure, if any."""
    layout = laid_out(type_of(family), schema, missing)
    if parents is not None:
        layout = sized(with_parents(layout, parents), len(schema.classes))
    return guarded(layout, rows, calibrate=True)


def known() -> tuple[str, ...]:
    """The names of all families, yours too once they are in `FAMILIES`."""
    return (*FAMILIES, *STRUCTURES)


def type_of(family: str) -> type[Family]:
    """The type of a family by its name; those with a structure that is learned are Bayesian networks."""
    return BayesNet if family in STRUCTURES else FAMILIES[family]
