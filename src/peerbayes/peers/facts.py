"""What is known of a column in public, without looking at anybody's rows: a table [features.NAME] of the agreement.

Where noise protects rows, nothing may be read off them unprotected: not which categories there are, nor means. So the
members write down beforehand what they know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peerbayes.columns import Scalar, scalars
from peerbayes.errors import SchemaError
from peerbayes.peers.errors import TermsError
from peerbayes.toml import string


@dataclass(frozen=True)
class Facts:
    """One column, as everybody may know it."""

    mean: float | None = None
    """About what a continuous column's values are on average; with sd."""
    sd: float | None = None
    """About how far they are from it."""
    range: tuple[float, float] | None = None
    """Where a continuous column's values lie, without mean and sd: these are then bought, with some of epsilon."""
    categories: tuple[Scalar, ...] = ()
    """All that a discrete column can hold."""
    missing: bool = False
    """Whether values may be missing."""

    @property
    def bought(self) -> bool:
        """Whether mean and sd are asked of the rows."""
        return self.range is not None

    @classmethod
    def of(cls, kind: str, given: Mapping[str, Any], where: str) -> Facts:
        """From a table; TermsError where it says what a column of this kind cannot be."""
        known = tuple(cls.__dataclass_fields__)
        for name in given:
            if name not in known:
                raise TermsError(f"{where}: {name!r} is nothing that is said of a feature; expected kind, "
                                 f"{', '.join(known)}")  # fmt: skip
        if kind == "discrete":
            return cls._discrete(given, where)
        if kind != "continuous":
            raise TermsError(
                f"{where}: kind is {kind!r:.40}; expected continuous or discrete, since more is said of it"
            )
        for name in ("mean", "sd"):
            if name in given and not _number(given[name]):
                raise TermsError(f"{where}: {name} is {given[name]!r:.40}; expected a number")
        if "categories" in given:
            raise TermsError(
                f"{where}: a continuous column has no categories; leave them out, or call it discrete"
            )
        missing = _missing(given, where)
        if "range" in given:
            if "mean" in given or "sd" in given:
                raise TermsError(f"{where}: range and mean or sd are given; expected one of the two: mean and sd, "
                                 "which cost nothing, or range, on which they are bought")  # fmt: skip
            ends = given["range"]
            if not (isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_number, ends)) and ends[0] < ends[1]
                    and math.isfinite(ends[1] - ends[0])):  # fmt: skip
                raise TermsError(f"{where}: range is {ends!r:.60}; expected [least, most]")
            return cls(range=(float(ends[0]), float(ends[1])), missing=missing)
        if ("mean" in given) != ("sd" in given) or (given and "sd" in given and not given["sd"] > 0):
            raise TermsError(f"{where}: mean is {given.get('mean')!r} and sd {given.get('sd')!r}; expected both, and "
                             "sd above 0")  # fmt: skip
        if "mean" not in given:
            return cls(missing=missing)
        return cls(float(given["mean"]), float(given["sd"]), missing=missing)

    @classmethod
    def _discrete(cls, given: Mapping[str, Any], where: str) -> Facts:
        for name in ("mean", "sd", "range"):
            if name in given:
                raise TermsError(
                    f"{where}: a discrete column has no {name}; leave it out, or call it continuous"
                )
        return cls(
            categories=categories_in(given.get("categories", ()), where), missing=_missing(given, where)
        )

    def written(self) -> list[tuple[str, str]]:
        """What a table in TOML says, beside the kind."""
        lines = [
            (name, repr(value)) for name, value in (("mean", self.mean), ("sd", self.sd)) if value is not None
        ]
        if self.range is not None:
            lines.append(("range", f"[{self.range[0]!r}, {self.range[1]!r}]"))
        if self.categories:
            lines.append(("categories", listed(self.categories)))
        if self.missing:
            lines.append(("missing", "true"))
        return lines


def categories_in(given: Any, where: str) -> tuple[Scalar, ...]:
    """Categories or classes, all text or all numbers."""
    try:
        found = scalars(given, where)
    except SchemaError as problem:
        raise TermsError(str(problem)) from problem
    if len({isinstance(value, str) for value in found}) > 1:
        raise TermsError(f"{where} mixes text and numbers: {list(found)!r:.80}; expected one of them")
    return found


def listed(values: tuple[Scalar, ...]) -> str:
    """As TOML has it."""
    parts = (
        string(v) if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else repr(v)
        for v in values
    )
    return f"[{', '.join(parts)}]"


def _missing(given: Mapping[str, Any], where: str) -> bool:
    value = given.get("missing", False)
    if not isinstance(value, bool):
        raise TermsError(f"{where}: missing is {value!r:.40}; expected true or false")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
