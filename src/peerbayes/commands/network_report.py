"""The output of `peerbayes network inspect`, as lines of text."""

from __future__ import annotations

from datetime import UTC, datetime

from peerbayes.peers.inspection import Inspection
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms


def report_lines(inspection: Inspection) -> list[str]:
    """Return a title, the terms, the members, and when certificates expire."""
    text_lines = [f"{inspection.path}: {inspection.what}"]
    if inspection.authority is not None:
        text_lines.append(f"authority  {inspection.authority}")
    if inspection.terms is not None:
        text_lines += ["", *_terms(inspection.terms)]
    if inspection.roster is not None:
        text_lines += ["", *_roster(inspection.roster)]
    if inspection.expiries:
        text_lines += ["", "certificates", *_expiries(inspection.expiries, datetime.now(UTC))]
    return (
        [*text_lines, "", *(f"note: {note}" for note in inspection.notes)] if inspection.notes else text_lines
    )


def _terms(terms: Terms) -> list[str]:
    clip = "none" if terms.clip is None else f"{terms.clip:g}"
    columns = ", ".join(f"{name} ({kind})" for name, kind in terms.features.items()) or "all but the label"
    return [
        f"terms      {terms.digest}",
        f"  predict    {terms.label}",
        f"  features   {columns}",
        f"  learn      {terms.family} by {terms.strategy} from {terms.start}: {terms.rounds} rounds, lr {terms.lr:g}, "
        f"{terms.local_steps} local step{'s' * (terms.local_steps > 1)}, clip {clip}",
        f"  limits     a round waits {terms.limits.deadline:g} s, for {terms.limits.quorum:.0%} of the neighbours; "
        f"messages up to {terms.limits.message_bytes:,} bytes; {terms.limits.rows} or more rows per peer",
        *_privacy(terms),
    ]


def _privacy(terms: Terms) -> list[str]:
    items, promise = [], terms.privacy.promise
    if promise is not None:
        items.append(
            f"epsilon {promise.epsilon:g} with delta {promise.delta:g}; {promise.min_rows} or more rows per peer"
        )
        if promise.edge_noise:
            items.append(f"edge noise {promise.edge_noise:g} against {promise.colluders} colluding")
    if terms.privacy.secure_sum:
        items.append("secure sums")
    return [f"  privacy    {'; '.join(items)}"] if items else []


def _roster(roster: Roster) -> list[str]:
    state = "closed" if roster.closed else "open"
    text_lines = [
        f"roster     version {roster.version} of {roster.network}, {state}, {len(roster.members)} members"
    ]
    width = max((len(member.name) for member in roster.members), default=0)
    for member in roster.members:
        linked = ", ".join(roster.neighbours(member.name)) or "nobody"
        revoked = "  REVOKED" if member.name in roster.revoked else ""
        text_lines.append(f"  {member.name:{width}}  {member.address}  linked to {linked}{revoked}")
    removed = [name for name in roster.revoked if name not in {member.name for member in roster.members}]
    return (
        [*text_lines, f"  revoked before the roster was closed: {', '.join(removed)}"]
        if removed
        else text_lines
    )


def _expiries(expiries: dict[str, datetime], now: datetime) -> list[str]:
    width = max(map(len, expiries))
    return [
        f"  {name:{width}}  {'EXPIRED on' if end < now else 'valid until'} {end:%Y-%m-%d}"
        for name, end in expiries.items()
    ]
