"""Figures of all sites' tables before the first round, and what this site finds when it compares itself with others.

    figures keys   the public keys by which the next sum is masked, each vouched for by its site
    figures        the words of `learning.data_figures`, masked; with an epsilon a noisy release of counts instead
    findings       how many sites found something, where the agreement says that findings stop the run; masked likewise

Only totals are told. Which site differs is known to that site alone, which subtracts its own figures from everybody's.
Of two sites each knows the other's figures, and of three, two that put theirs together know the third's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.data.schema import Schema
from peerbayes.data.table import Table, missing_of
from peerbayes.errors import PeerError
from peerbayes.learning.data_figures import ColumnFigures, DataFigures, FigureLayout, Finding, findings
from peerbayes.peer.agreement import masked_sums
from peerbayes.peer.agreement.masked_sums import Statements, statement, usable_key, vouched_statements
from peerbayes.peer.agreement.terms import STOP, Terms
from peerbayes.peer.agreement.tree_sums import Integers, Phase, Total, integers_in
from peerbayes.peer.agreement.votes import Voter
from peerbayes.peer.learning.masks import public_key
from peerbayes.peer.learning.releases import Buy
from peerbayes.privacy import units
from peerbayes.privacy.counts import RowCounts
from peerbayes.privacy.noise import Source
from peerbayes.privacy.scheme import figures_cost

KEYS, FIGURES, FINDINGS = "figures keys", "figures", "findings"  # phases
KEY = "figures key"  # of the secret in the state, made anew where an agreement failed
KEPT = "data figures"  # key in the state of what was agreed on, which `status` reads


@dataclass(frozen=True)
class AgreedFigures:
    """The figures of all sites, and of this one beside all others."""

    everybody: DataFigures | None
    """None: they could not be agreed on."""
    own: DataFigures
    """This site's; with an epsilon, as released."""
    found: tuple[Finding, ...] = ()
    problem: str = ""
    """Why there are no figures of everybody."""
    sites_with_findings: int | None = None
    """How many sites found something; None: that was not asked."""

    @property
    def stops(self) -> bool:
        """Whether this site found what stops a run, or has no figures to compare itself with."""
        return bool(self.problem) or any(finding.stops for finding in self.found)

    @property
    def word_to_count(self) -> np.ndarray:
        """What this site adds to the number of sites that found something: [1] of int64."""
        return np.array([int(self.stops)], dtype=np.int64)

    def with_count(self, count: int, sites: int) -> AgreedFigures:
        """Return the figures with how many sites found something that stops a run; everybody has the same number."""
        if not int(self.stops) <= count <= sites:
            problem = (
                f"how many sites found something cannot be right: it is {count:,} of {sites:,}, and "
                f"{'one is here' if self.stops else 'none is here'}. Somebody's part is false"
            )
            return replace(self, sites_with_findings=max(1, int(self.stops)), problem=self.problem or problem)
        return replace(self, sites_with_findings=count)

    def agreed_json(self) -> dict[str, Any]:
        """Return what all sites know."""
        return {} if self.everybody is None else self.everybody.to_json()

    def to_json(self) -> str:
        """Return everything, for this site's state."""
        plain = {
            "agreed": self.agreed_json(), "own": self.own.to_json(), "findings": [asdict(one) for one in self.found],
            "problem": self.problem, "sites_with_findings": self.sites_with_findings,
        }  # fmt: skip
        return json.dumps(plain)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every finding in words."""
        return (*((self.problem,) if self.problem else ()), *(finding.sentence for finding in self.found))


async def agreed_figures(
    voter: Voter,
    private_key: bytes,
    frame: pd.DataFrame,
    labels: np.ndarray,
    schema: Schema,
    terms: Terms,
    total: Total,
) -> AgreedFigures:
    """Return the figures of all sites' tables, by a masked sum; of two sites, by a sum."""
    layout, name, roster = FigureLayout(schema), voter.name, voter.roster
    words = own_words(layout, frame, labels)
    key = public_key(private_key)
    proof = voter.vouch(statement(roster, KEYS, name, key))
    phase = Phase(KEYS, Statements.parse, lambda message: len(message.by_member))
    statements = await total(phase, Statements({name: (key, proof)}))
    keys = vouched_statements(statements, roster, KEYS, voter.vouched)
    valid = {member: key for member, key in keys.items() if key is not None and usable_key(key)}
    missing = [member for member in keys if member not in valid]

    async def summed(phase: str, own: np.ndarray) -> np.ndarray:
        if missing:  # a sum of nothing, so that nobody waits for it
            return await masked_sums.plain_sum(np.zeros_like(own), phase, total)
        if len(keys) < masked_sums.FEWEST:
            return await masked_sums.plain_sum(own, phase, total)
        return await masked_sums.masked_sum(name, own, private_key, valid, roster, phase, total)

    everybody = await summed(FIGURES, words)
    agreed = _compared(layout, words, everybody, len(roster.members), missing, terms.label)
    if terms.figures != STOP:
        return agreed
    return agreed.with_count(int((await summed(FINDINGS, agreed.word_to_count))[0]), len(roster.members))


def _compared(
    layout: FigureLayout, words: np.ndarray, summed: np.ndarray, sites: int, missing: list[str], label: str
) -> AgreedFigures:
    """Return the figures of everybody and how this site differs; where no tables have such sums, why."""
    own_counts = layout.figures(words)
    try:
        if missing:
            raise ValueError(f"the key of {', '.join(missing[:3])} is not vouched for")
        everybody, others = layout.figures(summed), layout.figures(summed - words)
        if everybody.sites != sites:
            raise ValueError(f"{everybody.sites} sites took part; expected {sites}")
    except ValueError as error:
        problem = (
            f"the figures of all sites cannot be right: {error}. Somebody's part is false, and nothing is compared "
            "with them"
        )
        return AgreedFigures(None, own_counts, problem=problem)
    return AgreedFigures(everybody, own_counts, tuple(findings(own_counts, others, label)))


def own_words(layout: FigureLayout, frame: pd.DataFrame, labels: np.ndarray) -> np.ndarray:
    """Return this site's contribution."""
    schema, table = layout.schema, Table.of(frame)
    numbers, codes = {}, {}
    for column, index in zip(schema.columns, schema.places(table), strict=True):
        values = table.column(index)
        if column.traits.reads_numbers:
            read = column.numbers(values)
            numbers[column.name] = read[~np.isnan(read)]
        else:
            codes[column.name] = column.codes(values)
    return layout.words(len(frame), schema.encode_labels(labels), numbers, codes)


async def private_figures(
    frame: pd.DataFrame,
    labels: np.ndarray,
    schema: Schema,
    terms: Terms,
    peers: int,
    total: Total,
    buy: Buy,
    source: Source,
) -> AgreedFigures:
    """Return the numbers of rows, of rows of each class and of missing values, with noise: one accounted release.

    A site compares what it released with what the others did, so that a finding tells nothing more about its rows.
    Ranges, means and categories are in the agreement, and not looked at.
    """
    promise = terms.privacy.promise
    assert promise is not None
    open_columns = [name for name in schema.names if terms.facts[name].missing]
    counts = RowCounts(len(schema.classes), len(open_columns), figures_cost(promise))
    table = Table.of(frame)
    places = dict(zip(schema.names, schema.places(table), strict=True))

    def draw() -> np.ndarray:
        values = [missing_of(table.column(places[name])) for name in open_columns]
        missing = np.stack(values, axis=1) if values else np.zeros((len(frame), 0), dtype=bool)
        return counts.release(schema.encode_labels(labels), missing, source)

    release = await buy(FIGURES, counts.cost, draw)
    phase = Phase(FIGURES, integers_in((counts.size,), peers * units.MOST))
    summed = (await total(phase, Integers(release))).values
    noisy = _noisy(schema, open_columns, counts)
    own_counts = noisy(release, 1)
    others = noisy(summed - release, peers - 1)
    agreed = AgreedFigures(noisy(summed, peers), own_counts, tuple(findings(own_counts, others, terms.label)))
    if terms.figures != STOP:
        return agreed
    # What follows from releases alone tells nothing more, so it needs no mask.
    count = await masked_sums.plain_sum(agreed.word_to_count, FINDINGS, total)
    return agreed.with_count(int(count[0]), peers)


def _noisy(
    schema: Schema, open_columns: list[str], counts: RowCounts
) -> Callable[[np.ndarray, int], DataFigures]:
    """Return a function: a sum of so many releases -> its figures."""

    def figures(summed: np.ndarray, sites: int) -> DataFigures:
        numbers = (summed.astype(np.float64) / units.ONE).tolist()
        rows, classes = numbers[0], numbers[1 : 1 + counts.classes]
        missing = dict(zip(open_columns, numbers[1 + counts.classes :], strict=True))
        columns = tuple(ColumnFigures(name, rows - missing.get(name, 0.0)) for name in schema.names)
        by_class = dict(zip(schema.classes, classes, strict=True))
        return DataFigures(sites, rows, by_class, columns, counts.deviation * math.sqrt(max(sites, 0)))

    return figures


def refuse_findings(figures: AgreedFigures) -> None:
    """Stop, as every other site does, where a site found something and the agreement says that this stops the run."""
    count = figures.sites_with_findings
    if not count:
        return
    stopping = [finding.sentence for finding in figures.found if finding.stops]
    if figures.problem:
        reason = figures.problem
    elif stopping:
        reason = f"{_sites(count)} found what stops a run; here: {'; '.join(stopping[:5])}"
    else:
        reason = f"{_sites(count)} found what stops a run; nothing of it here, and who it was is not told"
    raise PeerError(
        f'figures = "stop" in the agreement, and {reason}. Nothing was learned yet: correct the data where it is '
        "wrong, and start again; `peerbayes peer figures` has all figures"
    )


def _sites(count: int) -> str:
    return "1 site" if count == 1 else f"{count:,} sites"
