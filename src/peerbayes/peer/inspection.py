"""What a peer, a network or an invitation would show: for people who decide whether to join."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import ConfigurationError, TermsError
from peerbayes.learning import planning
from peerbayes.learning.integer_sums import MIN_GROUP
from peerbayes.learning.relay import spanning_tree
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Founder, Invitation, is_invitation, is_roster
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.privacy.exposure import FEW_ROWS, NOISE_HOLDS, Exposure

# --- the exposure of a real peer to its neighbours, as the audit evaluates it


def exposure(peer: Peer, labels: Any) -> Exposure:
    """Return the exposure of a peer whose rows are known. Only its own classes are: others come from the network."""
    _, counts = np.unique(np.asarray(labels).astype(str), return_counts=True)
    class_counts = tuple(int(count) for count in counts)
    return member(peer.name, peer.roster, peer.terms, len(labels), class_counts)


def member(
    name: str, roster: Roster, terms: Terms, rows: int | None = None, counts: tuple[int, ...] | None = None
) -> Exposure:
    """Return the exposure of a member of a roster."""
    present = roster.present(name)
    if planning.declaration_of(terms.strategy).over_tree and len(roster.members) > 1 and roster.closed:
        index = roster.place(name)
        tree = spanning_tree(roster.adjacency())  # only its links carry messages
        heard = {roster.members[sender].name for sender in tree.sender[tree.receiver == index]}
        present = tuple(other for other in present if other in heard)
    privacy = terms.privacy
    return Exposure(
        name, len(present), rows, counts, terms.rounds, not planning.silent(terms.strategy), privacy.epsilon,
        privacy.delta, MIN_GROUP if privacy.secure_sum else 1,
    )  # fmt: skip


def warnings(roster: Roster, terms: Terms) -> list[str]:
    """Return warnings for the founder before a network starts; none where all is well."""
    leaves = [
        other.name
        for other in roster.members
        if other.name not in roster.revoked and member(other.name, roster, terms).leaf
    ]
    messages: list[str] = []
    if terms.privacy.epsilon is not None and terms.privacy.epsilon <= NOISE_HOLDS:
        return messages
    if leaves:
        shown = ", ".join(leaves[:10]) + (f" and {len(leaves) - 10} more" if len(leaves) > 10 else "")
        messages.append(
            f"{shown}: one neighbour only, which learns such a peer's contribution exactly, every round"
        )
    if terms.limits.rows < FEW_ROWS and not planning.silent(terms.strategy):
        messages.append(
            f"the agreement lets peers bring {terms.limits.rows} rows (limits.rows): below {FEW_ROWS}, neighbours can "
            "reconstruct most of them"
        )
    return messages


# --- figures of a peer's own rows that carry no noise: training error, soft error, error on held-out rows, disagreement
# Where the agreement has an epsilon, they stay on the peer's machine: the owner sees them in the log, in `peer
# status` and on a dashboard of this machine. Anybody else who saw them would learn more about rows than epsilon
# allows, so they are neither on /metrics nor on a dashboard that other machines can reach, unless the owner sets
# `show_exact_figures = true` in `peer.toml`.

NO_NOISE = "without noise: not for others"


def may_leave(terms: Terms, settings: Settings) -> bool:
    """Return whether figures without noise may leave the peer's machine."""
    return terms.privacy.epsilon is None or settings.show_exact_figures


def may_leave_home(home: Home) -> bool:
    """Return whether figures without noise may leave the machine of the peer in this folder."""
    return may_leave(Terms.read(home.agreement_path), home.settings())


# --- inspection of a network's folders and files, whatever they are: for people who want to see or compare them


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
            return cls(path, "a roster", roster=roster, authority=keys.fingerprint(authority))
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
        founder.folder, "a network's folder", terms, roster, keys.fingerprint(authority),
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
        home.folder, f"the folder of {name}", terms, roster, keys.fingerprint(home.authority_path.read_bytes()),
        _expiries([("the authority", home.authority_path), (name, home.certificate_path)]), tuple(notes),
    )  # fmt: skip


def _invitation(path: Path, invitation: Invitation) -> Inspection:
    authority, certificate = invitation.authority.encode(), invitation.certificate.encode()
    return Inspection(
        path, f"an invitation of {invitation.name}", invitation.parsed_terms(), invitation.verified_roster(),
        keys.fingerprint(authority),
        {"the authority": keys.expiry(authority), invitation.name: keys.expiry(certificate)},
    )  # fmt: skip


def _expiries(paths: Iterable[tuple[str, Path]]) -> dict[str, datetime]:
    return {name: keys.expiry(path.read_bytes()) for name, path in paths if path.exists()}
