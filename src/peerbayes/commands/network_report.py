"""What `peerbayes network inspect` shows, as lines of text."""

from __future__ import annotations

from datetime import UTC, datetime

from peerbayes.peers.inspection import Inspection
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms


def lines(found: Inspection) -> list[str]:
    """A title, the terms, the members, and when certificates end."""
    shown = [f"{found.path}: {found.what}"]
    if found.authority is not None:
        shown.append(f"authority  {found.authority}")
    if found.terms is not None:
        shown += ["", *_terms(found.terms)]
    if found.roster is not None:
        shown += ["", *_roster(found.roster)]
    if found.expiries:
        shown += ["", "certificates", *_expiries(found.expiries, datetime.now(UTC))]
    return [*shown, "", *(f"note: {note}" for note in found.notes)] if found.notes else shown


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
        f"messages up to {terms.limits.message_bytes:,} bytes; {terms.limits.rows} or more rows a peer",
        *_privacy(terms),
    ]


def _privacy(terms: Terms) -> list[str]:
    parts, promise = [], terms.privacy.promise
    if promise is not None:
        parts.append(
            f"epsilon {promise.epsilon:g} with delta {promise.delta:g}; {promise.min_rows} or more rows a peer"
        )
        if promise.edge_noise:
            parts.append(f"edge noise {promise.edge_noise:g} against {promise.colluders} together")
    if terms.privacy.secure_sum:
        parts.append("secure sums")
    return [f"  privacy    {'; '.join(parts)}"] if parts else []


def _roster(roster: Roster) -> list[str]:
    state = "closed" if roster.closed else "open"
    shown = [
        f"roster     version {roster.version} of {roster.network}, {state}, {len(roster.members)} members"
    ]
    wide = max((len(member.name) for member in roster.members), default=0)
    for member in roster.members:
        linked = ", ".join(roster.neighbours(member.name)) or "nobody"
        revoked = "  REVOKED" if member.name in roster.revoked else ""
        shown.append(f"  {member.name:{wide}}  {member.address}  linked to {linked}{revoked}")
    out = [name for name in roster.revoked if name not in {member.name for member in roster.members}]
    return [*shown, f"  revoked before it closed: {', '.join(out)}"] if out else shown


def _expiries(expiries: dict[str, datetime], now: datetime) -> list[str]:
    wide = max(map(len, expiries))
    return [
        f"  {name:{wide}}  {'EXPIRED on' if end < now else 'valid until'} {end:%Y-%m-%d}"
        for name, end in expiries.items()
    ]
