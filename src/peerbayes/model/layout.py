"""The family for a schema: the layout of its statistics, and its guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from peerbayes.data.bins import BINS
from peerbayes.data.registry import Choices
from peerbayes.data.schema import Schema
from peerbayes.errors import StructureError
from peerbayes.model import interactions
from peerbayes.model.families import FAMILIES, GA2M, Aode, BayesNet, Family
from peerbayes.model.families.base import guarded as guarded
from peerbayes.model.families.base import laid_out
from peerbayes.model.families.structures import Parents
from peerbayes.model.sources import columns_of
from peerbayes.model.structure import kdb, tan

# Families whose structure is learned, from `Pairs` and a `penalty`.
STRUCTURES: dict[str, Callable[..., Parents]] = {"tan": tan, "kdb": kdb}

# Families of which rows decide more than numbers: links, or crosses of columns. Peers agree on them by sums first.
LEARNED = (*STRUCTURES, GA2M.name)

# The most numbers that a model may have: half a gigabyte.
MOST_NUMBERS = 1 << 26


def with_parents(layout: Family, parents: Parents) -> Family:
    """Return the layout of a Bayesian network with these parents."""
    return replace(layout, parents=parents)  # type: ignore[call-arg]


def named_parents(family: BayesNet, schema: Schema) -> dict[str, list[str]]:
    """Return the parents of each column by name."""
    names = columns_of(schema)
    return {names[j]: [names[p] for p in column_parents] for j, column_parents in enumerate(family.parents)}


def without_guards(family: Family) -> Family:
    """Return the family with its layout only, and default guards."""
    layout = {"cardinalities": family.cardinalities, "parents": getattr(family, "parents", ())}
    arguments = {name: layout.get(name, value) for name, value in family.layout().items()}
    return type(family)(**arguments)


def sized(family: Family, classes: int) -> Family:
    """Return the same family; StructureError if its statistics would need too much memory."""
    numbers = classes * family.size
    advice = (
        "Give fewer parents to columns with many categories"
        if isinstance(family, BayesNet)
        else "Leave out columns with many categories, or merge these"
    )
    if numbers > MOST_NUMBERS:
        raise StructureError(
            f"{classes} classes × {family.size:,} features are {numbers:,} numbers ({8 * numbers / 2**30:.1f} GB); at "
            f"most {MOST_NUMBERS:,} are allowed. {advice}"
        )
    return family


def calibrated(
    family: str, schema: Schema, missing: bool, rows: float, parents: Parents | None = None
) -> Family:
    """Return the family that peers calibrate, by its name, for a schema and a number of rows, with its structure."""
    layout = laid_out(type_of(family), schema, missing)
    if parents is not None:
        layout = with_parents(layout, parents)
    if isinstance(layout, BayesNet | Aode):
        sized(layout, len(schema.classes))
    return guarded(layout, rows, calibrate=True)


def bins_for(family: str, columns: int) -> int | None:
    """Return how many bins a family, by its name, puts the numbers of so many columns into; None: it takes numbers."""
    if has_crosses(family):
        return interactions.bins_for(columns)
    kind = None if family in STRUCTURES else FAMILIES.present(family)
    return None if kind is None or "gaussian" in kind.takes else BINS


def has_crosses(family: str) -> bool:
    """Return whether a family, by its name, crosses columns."""
    kind = None if family in STRUCTURES else FAMILIES.present(family)
    return kind is not None and kind.takes_crosses


def known() -> Choices:
    """Return the names of all families, including those of outside packages and your own in `FAMILIES`."""
    return Choices(FAMILIES, *STRUCTURES)


def type_of(family: str) -> type[Family]:
    """Return the type of a family by its name; those with a learned structure are Bayesian networks."""
    return BayesNet if family in STRUCTURES else FAMILIES[family]
