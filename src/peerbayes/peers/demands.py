"""What a peer's owner requires of the terms of a network, whatever the others agreed on: [require] in `peer.toml`.

A requirement is met by terms that are equal or stronger. A peer that is invited to weaker terms neither joins nor runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from peerbayes.combining import RULES
from peerbayes.peers.errors import TermsError
from peerbayes.peers.terms import PRIVACY_CHECKS, ROBUST_CHECKS, Check, Terms


class Demand(NamedTuple):
    """One entry of [require]."""

    check: Check  # the values that are allowed
    agreed: Callable[[Terms], Any]  # the value in the terms
    met: Callable[[Any, Any], bool]  # (agreed value, required value) -> whether it is strong enough
    description: str  # for the reference


DEMANDS: dict[str, Demand] = {
    "epsilon": Demand(
        PRIVACY_CHECKS["epsilon"],
        lambda terms: terms.privacy.epsilon,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the most that anybody may learn of one row, by all runs of this folder together",
    ),
    "delta": Demand(
        PRIVACY_CHECKS["delta"],
        lambda terms: None if terms.privacy.epsilon is None else terms.privacy.delta,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the largest probability with which that may fail",
    ),
    "min_rows": Demand(
        PRIVACY_CHECKS["min_rows"],
        lambda terms: max(terms.limits.rows, terms.privacy.min_rows if terms.privacy.epsilon else 1),
        lambda agreed, required: agreed >= required,
        "the fewest rows with which any peer may take part",
    ),
    "secure_sum": Demand(
        PRIVACY_CHECKS["secure_sum"],
        lambda terms: terms.privacy.secure_sum,
        lambda agreed, required: agreed or not required,
        "whether messages are masked",
    ),
    "combine": Demand(
        ROBUST_CHECKS["combine"],
        lambda terms: terms.robust.combine,
        lambda agreed, required: RULES.index(agreed) >= RULES.index(required),
        "how messages are combined: clip, or no matter what with mean",
    ),
    "guard": Demand(
        ROBUST_CHECKS["guard"],
        lambda terms: terms.robust.guard,
        lambda agreed, required: agreed or not required,
        "whether links to neighbours whose models fail here are cut",
    ),
}


def refuse_weaker(terms: Terms, demands: Mapping[str, Any], where: str) -> None:
    """Refuse terms that are weaker than this peer's owner requires; `where` names the owner's file."""
    for name, required in demands.items():
        demand = DEMANDS[name]
        agreed = demand.agreed(terms)
        if not demand.met(agreed, required):
            raise TermsError(
                f"{where} requires {name} = {written(required)}, and the agreement of {terms.network} says "
                f"{written(agreed)}; ask the founder for a network with stronger terms, or change [require]"
            )


def written(value: Any) -> str:
    """Return a value as TOML."""
    if value is None:
        return "nothing of it"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
