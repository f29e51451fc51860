"""How peers agree on the structure of dependencies between columns."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from peerbayes import layouts
from peerbayes.dependence import Pairs, total_information
from peerbayes.families.structures import Parents, checked
from peerbayes.peers.documents import canonical
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.pooling import Checks, Phase, Total, pooled
from peerbayes.peers.terms import Terms
from peerbayes.schema import Schema


@dataclass(frozen=True)
class Proposal:
    """The structure that one peer proposes; empty from the others."""

    parents: Parents | None = None

    def __add__(self, other: Proposal) -> Proposal:
        if self.parents is not None and other.parents is not None:
            raise RefusedMessage("wrong message", "two peers propose a structure; expected one")
        return self if self.parents is not None else other

    def pack(self) -> bytes:
        return canonical(self.parents)

    @classmethod
    def parse(cls, content: bytes) -> Proposal:
        try:
            decoded = json.loads(content)
            parents = (
                None
                if decoded is None
                else tuple(tuple(int(p) for p in column_parents) for column_parents in decoded)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"a structure that cannot be read: {error}") from error
        return cls(parents)


async def agreed_structure(
    terms: Terms,
    proposes: bool,
    schema: Schema,
    frame: pd.DataFrame,
    labels: np.ndarray,
    total: Total,
    weights: np.ndarray,
    checks: Checks | None = None,
) -> Parents:
    """Return the structure learned from everybody's pairwise statistics, proposed by one peer and checked by all.

    weights  [n] of this peer's rows
    checks   of others' partial sums, where members may lie
    """
    rows, codes = schema.encode(frame), schema.encode_labels(labels)
    row_weights = None if (weights == 1.0).all() else weights
    pairs = Pairs.of(rows, codes, len(schema.classes), schema.cardinalities, row_weights)
    if 8 * pairs.vector.size > terms.limits.message_bytes:
        raise PeerError(
            f"the statistics of all pairs of columns are messages of {8 * pairs.vector.size:,} bytes; the agreement "
            f"allows {terms.limits.message_bytes:,}. Raise limits.message_bytes, or leave out features with many values"
        )
    summed = pairs.from_vector(await pooled("pairs", pairs.vector, total, checks))
    best = layouts.STRUCTURES[terms.family](summed)
    proposal = await total(Phase("structure", Proposal.parse), Proposal(best if proposes else None))
    if proposal.parents is None:
        raise PeerError("nobody proposed a structure; expected one from the first member of the roster")
    chosen = checked(proposal.parents, summed.continuous, summed.columns)
    information, most = total_information(summed, chosen), total_information(summed, best)
    if information < most - 1e-9 * max(1.0, most):
        raise PeerError(
            f"the structure proposed by the first member has {information:.6g} nats, the best one {most:.6g}; expected "
            "the best one: its statistics are not everybody's"
        )
    return chosen
