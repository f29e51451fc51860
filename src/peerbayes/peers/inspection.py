"""Inspection of a network's folders and files, whatever they are: for people who want to see or compare them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from peerbayes.errors import ConfigurationError
from peerbayes.peers import identity
from peerbayes.peers.errors import TermsError
from peerbayes.peers.founder import Founder
from peerbayes.peers.home import Home
from peerbayes.peers.invitation import Invitation, is_invitation, is_roster
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms


@dataclass(frozen=True)
class Inspection:
    """Terms, roster and certificates, as far as there are any."""

    path: Path
    what: str  # a network's folder, a peer's folder, an invitation, …
    terms: Terms | None = None
    roster: Roster | None = None
    authority: str | None = None  # its fingerprint
    expiries: dict[str, datetime] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # inconsistencies

    @classmethod
    def of(cls, path: Path) -> Inspection:
        """Return what is at a path; signatures are verified, dates are only reported."""
        if path.is_dir():
            if (home := Home(path)).settings_path.exists():
                return _peer(home)
            if (founder := Founder(path)).authority_path.exists():
                return _network(founder)
            raise ConfigurationError(
                f"{path} is neither a network's nor a peer's folder; expected an authority.crt or a peer.toml in it"
            )
        content = path.read_bytes()
        if is_invitation(content):
            return _invitation(path, Invitation.parse(content))
        if is_roster(content):
            authority_path = path.parent / "authority.crt"
            if not authority_path.exists():
                raise ConfigurationError(
                    f"{path} is a roster, and its authority.crt is not beside it; put it there"
                )
            authority = authority_path.read_bytes()
            roster = Roster.verified(content, authority)
            return cls(path, "a roster", roster=roster, authority=identity.fingerprint(authority))
        return cls(path, "an agreement", terms=Terms.read(path))

    def differences(self, other: Inspection) -> list[str]:
        """Return the differences of agreements, rosters and authorities, as far as both sides have them."""
        differences, compared = [], False
        if self.terms is not None and other.terms is not None:
            differences, compared = self.terms.differences(other.terms), True
        if self.roster is not None and other.roster is not None:
            differences, compared = differences + self.roster.differences(other.roster), True
        if self.authority is not None and other.authority is not None and self.authority != other.authority:
            differences.append(f"authority: {self.authority} against {other.authority}")
        if not compared:
            raise TermsError(
                f"{self.path} is {self.what} and {other.path} {other.what}; expected two with an agreement, or two "
                "with a roster"
            )
        return differences

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain: dict[str, Any] = {"what": self.what, "authority": self.authority, "notes": list(self.notes)}
        if self.terms is not None:
            plain["terms"] = {**asdict(self.terms), "digest": self.terms.digest}
        if self.roster is not None:
            plain["roster"] = {**json.loads(self.roster.to_json()), "run": self.roster.run}
        return {**plain, "expiries": {name: end.isoformat() for name, end in self.expiries.items()}}


def _network(founder: Founder) -> Inspection:
    authority, terms, roster = founder.authority(), founder.terms(), founder.roster()
    issued = [(member.name, founder.certificate_path(member.name)) for member in roster.members]
    notes = []
    if terms.digest != roster.terms:
        when = "counts from the first invitation on" if not roster.version else "members hold another one"
        notes.append(f"agreement.toml was changed since the roster was signed: {when}")
    wanted = founder.peers()
    if wanted is not None and not roster.closed:
        notes.append(f"closes when {wanted} are in")
    return Inspection(
        founder.folder, "a network's folder", terms, roster, identity.fingerprint(authority),
        _expiries([("the authority", founder.authority_path), *issued]), tuple(notes),
    )  # fmt: skip


def _peer(home: Home) -> Inspection:
    name = home.settings().name
    if not home.roster_path.exists():
        note = f"has not joined yet: send {home.request_path} to the founder"
        return Inspection(home.folder, f"the folder of {name}", notes=(note,))
    terms, roster = Terms.read(home.agreement_path), home.roster()
    notes = []
    if terms.digest != roster.terms:
        notes.append("agreement.toml is not what the members agreed on; join again with the invitation")
    if name in roster.revoked:
        notes.append(f"{name} was revoked")
    return Inspection(
        home.folder, f"the folder of {name}", terms, roster, identity.fingerprint(home.authority_path.read_bytes()),
        _expiries([("the authority", home.authority_path), (name, home.certificate_path)]), tuple(notes),
    )  # fmt: skip


def _invitation(path: Path, invitation: Invitation) -> Inspection:
    authority, certificate = invitation.authority.encode(), invitation.certificate.encode()
    return Inspection(
        path, f"an invitation of {invitation.name}", invitation.parsed_terms(), invitation.verified_roster(),
        identity.fingerprint(authority),
        {"the authority": identity.expiry(authority), invitation.name: identity.expiry(certificate)},
    )  # fmt: skip


def _expiries(paths: Iterable[tuple[str, Path]]) -> dict[str, datetime]:
    return {name: identity.expiry(path.read_bytes()) for name, path in paths if path.exists()}
