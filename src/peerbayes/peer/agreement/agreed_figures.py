"""Figures of all sites' tables before the first round, and what this site finds when it compares itself with others.

    figures keys   the public keys by which the next sum is masked, each vouched for by its site
    figures        the words of `learning.data_figures`, masked; with an epsilon a noisy release of counts instead
    findings       how many sites found something, where the agreement says that findings stop the run

Only totals are told. Which site differs is known to that site alone, which subtracts its own figures from everybody's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.data.schema import Schema
from peerbayes.data.table import Table, missing_of
from peerbayes.errors import PeerError
from peerbayes.learning.data_figures import ColumnFigures, DataFigures, FigureLayout, Finding, findings
from peerbayes.peer.agreement import masked_sums
from peerbayes.peer.agreement.masked_sums import Statements, statement, usable_key, vouched_statements
from peerbayes.peer.agreement.summary import Sums
from peerbayes.peer.agreement.terms import Terms
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
    if len(keys) < masked_sums.FEWEST:
        exact = Phase(FIGURES, integers_in(words.shape, 1 << 62))
        summed = (await total(exact, Integers(words))).values
    else:
        # Also where a key is missing, so that nobody waits for a sum that others do not take part in.
        words_to_send = words if not missing else np.zeros_like(words)
        if len(valid) < masked_sums.FEWEST:
            valid = {}
        summed = await _sum(voter, words_to_send, private_key, valid, total)
    own, problem, everybody = layout.figures(words), "", None
    try:
        if missing:
            raise ValueError(f"the key of {', '.join(missing[:3])} is not vouched for")
        everybody = layout.figures(summed)
        others = layout.figures(summed - words)
        if everybody.sites != len(roster.members):
            raise ValueError(f"{everybody.sites} sites took part; expected {len(roster.members)}")
    except ValueError as error:
        problem = (
            f"the figures of all sites cannot be right: {error}. Somebody's part is false, and nothing is compared "
            "with them"
        )
        return AgreedFigures(None, own, problem=problem)
    return AgreedFigures(everybody, own, tuple(findings(own, others, terms.label)))


async def _sum(
    voter: Voter, words: np.ndarray, private_key: bytes, keys: dict[str, bytes], total: Total
) -> np.ndarray:
    if not keys:
        parse = integers_in(words.shape, (1 << 63) - 1)
        return np.asarray((await total(Phase(FIGURES, parse), Integers(words))).values)
    return await masked_sums.masked_sum(voter.name, words, private_key, keys, voter.roster, FIGURES, total)


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
    own = noisy(release, 1)
    others = noisy(summed - release, peers - 1)
    return AgreedFigures(noisy(summed, peers), own, tuple(findings(own, others, terms.label)))


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


async def stopped_by_findings(figures: AgreedFigures, total: Total) -> AgreedFigures:
    """Return the figures with how many sites found something that stops a run; everybody has the same number."""
    stops = bool(figures.problem) or any(finding.stops for finding in figures.found)
    phase = Phase(FINDINGS, Sums.named("sites"))
    summed = await total(phase, Sums(sites=Fraction(int(stops))))
    return replace(figures, sites_with_findings=int(summed["sites"]))


def refuse_findings(figures: AgreedFigures) -> None:
    """Stop, as every other site does, where a site found something and the agreement says that this stops the run."""
    count = figures.sites_with_findings
    if not count:
        return
    stopping = [finding.sentence for finding in figures.found if finding.stops]
    own = (
        "; here: " + "; ".join(stopping[:5])
        if stopping
        else "; nothing of it here, and who it was is not told"
    )
    raise PeerError(
        f'figures = "stop" in the agreement, and {count} {"site" if count == 1 else "sites"} found in the figures of '
        f"the data what stops a run{own}{'; ' + figures.problem if figures.problem else ''}. Nothing was learned yet: "
        "correct the data where it is wrong, and start again; `peerbayes peer figures` has all figures"
    )
