"""The family `auto` between peers: bins for candidates that need them, the choice by sums, and terms that name it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from peerbayes.data.bins import BINS
from peerbayes.data.kinds import KINDS
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.learning.family_choice import (
    Contest,
    Entrant,
    FamilyChoice,
    Sums,
    bins_of,
    entered,
    family_sums,
    judging,
)
from peerbayes.model.candidates import CANDIDATES
from peerbayes.peer.agreement.agreed_edges import agreed_edges
from peerbayes.peer.agreement.summary import OwnTable, Summary
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Total, pooled


class ChosenTerms(NamedTuple):
    """The terms as if they had named the family that all peers chose."""

    terms: Terms
    schema: Schema
    summary: Summary
    """With the kinds of that schema."""
    choice: FamilyChoice


async def agreed_family(
    frame: pd.DataFrame,
    labels: np.ndarray,
    table: OwnTable,
    terms: Terms,
    measured: tuple[Schema, Summary],
    total: Total,
    proposes: bool,
    refuse_large: Callable[[str, int], None],
) -> ChosenTerms:
    """Return the terms, schema and summary of the family that all peers choose by this peer's rows and everybody's.

    measured      everybody's schema, in which no column has edges yet, and the summary that it is made of
    proposes      whether this peer says which structure all take
    refuse_large  refuses sums, by what they are of and their size, that make larger messages than agreed
    """
    (unbinned, summary), columns = measured, len(measured[0].columns)
    schemas: dict[int | None, Schema] = {
        None: await agreed_edges(unbinned, table, summary.rows, total, bins=BINS)
    }
    left_open = open_columns(unbinned, terms)
    for candidate in CANDIDATES.values():
        if (bins := bins_of(candidate, columns)) not in schemas:
            in_bins = with_bins(unbinned, left_open)
            suffix = f" of {bins} bins"
            schemas[bins] = await agreed_edges(
                in_bins, table, summary.rows, total, None, bins or BINS, suffix
            )
    rows = {bins: Entrant(schema, schema.encode(frame)) for bins, schema in schemas.items()}
    plain = schemas[None]
    contest = Contest(
        plain.encode_labels(labels), np.ones(len(frame)), np.array([len(frame)]), judging(plain, Table.of(frame)),
        summary.peers, terms.lr, None if terms.start == "uniform" else terms.start, terms.penalty,
        0 if proposes else None,
    )  # fmt: skip
    entrants, left_out = entered(rows)
    choice = await _summed(family_sums(entrants, contest, left_out), total, refuse_large)
    candidate = CANDIDATES[choice.chosen]
    named = replace(terms, family=candidate.family, start=contest.start or candidate.start)
    bins = bins_of(candidate, columns)
    if candidate.in_bins:
        summary = summary.with_bins(left_open)
    return ChosenTerms(named, schemas[bins], summary, choice)


def open_columns(schema: Schema, terms: Terms) -> tuple[str, ...]:
    """Return the names of the columns of numbers whose kind the terms leave open."""
    return tuple(
        column.name
        for column in schema.columns
        if column.traits.plain and column.count and terms.features.get(column.name) not in KINDS
    )


def with_bins(schema: Schema, names: tuple[str, ...]) -> Schema:
    """Return the schema with these columns of numbers in bins, whose edges are still to be agreed on."""
    columns = (
        replace(column, kind="binned") if column.name in names else column for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


async def _summed(
    sums: Sums[FamilyChoice], total: Total, refuse_large: Callable[[str, int], None]
) -> FamilyChoice:
    """Return the choice, whose sums are taken along the tree."""
    number = 0
    try:
        terms = next(sums)
        while True:
            number += 1
            local = await asyncio.to_thread(terms, 0)
            refuse_large("the sums by which a family is chosen (family names one)", local.size)
            terms = sums.send(await pooled(f"family, sum {number}", local, total))
    except StopIteration as end:
        return end.value
