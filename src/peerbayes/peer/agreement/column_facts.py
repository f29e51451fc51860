"""What the agreement says of columns, and how such documents are written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from peerbayes.data.declarations import toml
from peerbayes.data.files import NEW_FILE
from peerbayes.data.kinds import KINDS
from peerbayes.data.table import Scalar, scalars
from peerbayes.errors import SchemaError, TermsError

# --- documents that peers exchange and keep: JSON in one form only, and files that only their owner can read


def canonical(value: Any) -> bytes:
    """Return plain values as canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; refuse to write over another."""
    descriptor = os.open(path, NEW_FILE, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


# --- public facts about a column, known without looking at anybody's rows: a table [features.NAME] of the agreement
# Where noise protects rows, nothing may be taken from them without noise: neither categories nor means. So the
# members write down beforehand what they know.


@dataclass(frozen=True)
class Facts:
    """The public facts about one column."""

    mean: float | None = None
    """The approximate mean of numbers, for a positive column of their logarithms; with sd."""
    sd: float | None = None
    """Its approximate standard deviation."""
    range: tuple[float, float] | None = None
    """The range of a column of numbers, without mean and sd: these are then estimated, with a share of epsilon."""
    categories: tuple[Scalar, ...] = ()
    """All values of a discrete column."""
    missing: bool = False
    """Whether values may be missing."""
    edges: tuple[float, ...] = ()
    """The edges of a binned column; without them they are quantiles of a normal distribution with mean and sd."""

    @property
    def bought(self) -> bool:
        """Return whether mean and sd are estimated from the rows, with a share of epsilon."""
        return self.range is not None

    @classmethod
    def of(cls, kind: str, entries: Mapping[str, Any], where: str) -> Facts:
        """Return the facts in a TOML table; TermsError where they contradict each other or the kind."""
        names, missing = tuple(cls.__dataclass_fields__), entries.get("missing", False)
        for name in entries:
            if name not in names:
                raise TermsError(
                    f"{where}: {name!r} is no entry of a feature; expected kind, {', '.join(names)}"
                )
        if kind not in KINDS:
            raise TermsError(
                f"{where}: kind is {kind!r:.40}; expected {', '.join(KINDS)}, since the table has more entries"
            )
        for name in entries:
            if name != "missing" and name not in KINDS[kind].public_facts:
                others = " or ".join(other for other, value in KINDS.items() if name in value.public_facts)
                raise TermsError(f"{where}: a {kind} column has no {name}; leave it out, or call it {others}")
        if not isinstance(missing, bool):
            raise TermsError(f"{where}: missing is {missing!r:.40}; expected true or false")
        if "categories" in KINDS[kind].public_facts:
            return cls(categories=categories_in(entries.get("categories", ()), where), missing=missing)
        if "edges" in entries:
            return cls(edges=_edges(entries, where), missing=missing)
        for name in ("mean", "sd"):
            if name in entries and not _number(entries[name]):
                raise TermsError(f"{where}: {name} is {entries[name]!r:.40}; expected a number")
        mean, sd, ends = (entries.get(name) for name in ("mean", "sd", "range"))
        if ends is not None:
            if mean is not None or sd is not None:
                raise TermsError(
                    f"{where}: range and mean or sd are given; expected one of the two: mean and sd, which cost "
                    "nothing, or range, on which they are bought"
                )
            is_pair = isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_number, ends))
            if not (is_pair and ends[0] < ends[1] and math.isfinite(ends[1] - ends[0])):
                raise TermsError(f"{where}: range is {ends!r:.60}; expected [least, most]")
            return cls(range=(float(ends[0]), float(ends[1])), missing=missing)
        if (mean is None) != (sd is None) or (sd is not None and not sd > 0):
            raise TermsError(f"{where}: mean is {mean!r} and sd {sd!r}; expected both, and sd above 0")
        if mean is None or sd is None:
            return cls(missing=missing)
        return cls(float(mean), float(sd), missing=missing)

    def written(self) -> list[tuple[str, str]]:
        """Return the (name, value) pairs of a TOML table, without the kind."""
        entries = ((entry.name, getattr(self, entry.name), entry.default) for entry in fields(self))
        return [(name, toml(value)) for name, value, default in entries if value != default]


def _edges(entries: Mapping[str, Any], where: str) -> tuple[float, ...]:
    """Return the declared edges of a binned column."""
    edges = entries["edges"]
    numbers = isinstance(edges, list | tuple) and len(edges) > 0 and all(map(_number, edges))
    if not (numbers and all(first < second for first, second in pairwise(edges))):
        raise TermsError(f"{where}: edges is {edges!r:.60}; expected one or more rising numbers")
    if others := sorted({"mean", "sd", "range"} & set(entries)):
        raise TermsError(
            f"{where}: edges and {others[0]} are given; expected one of the two: edges, or what they follow from"
        )
    return tuple(map(float, edges))


def categories_in(values: Any, where: str) -> tuple[Scalar, ...]:
    """Return categories or classes, all text or all numbers."""
    try:
        categories = scalars(values, where)
    except SchemaError as error:
        raise TermsError(str(error)) from error
    if len({isinstance(value, str) for value in categories}) > 1:
        raise TermsError(f"{where} mixes text and numbers: {list(categories)!r:.80}; expected one of them")
    return categories


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
