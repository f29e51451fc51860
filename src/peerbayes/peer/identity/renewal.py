"""Renewal: a new certificate for the same name and the same key, from the authority or one of its deputies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peerbayes.data.files import write
from peerbayes.errors import ConfigurationError, IdentityError
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.identity.roster import Member, Roster

WINDOW = timedelta(days=60)  # before its end a certificate is renewed, in the first half of this time
SHARE = 1 / 3  # of a certificate's life is the most that this time may be: for certificates of a few days


def due_at(certificate: bytes) -> datetime:
    """Return when a certificate is to be renewed: 60 to 30 days before its end, which of them its name decides.

    Certificates of one network often end on one day; their renewals are spread, so that nobody is asked for all of
    them at once.
    """
    begin, end = keys.validity(certificate)
    window = min(WINDOW, SHARE * (end - begin))
    digest = hashlib.sha256(keys.name_of(certificate).encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return end - window * (1 - share / 2)


def overdue_at(certificate: bytes) -> datetime:
    """Return from when on a certificate that was not renewed is a reason to worry: half of the time is gone."""
    begin, end = keys.validity(certificate)
    return end - min(WINDOW, SHARE * (end - begin)) / 2


def refuse_other(request: bytes, name: str, roster: Roster) -> Member:
    """Return the member that a request is of; refuse one for another key than the member's, or of no member."""
    member = roster.member(keys.valid_name(name))
    if name in roster.revoked:
        raise IdentityError(f"{name} was revoked in {roster.network}; its certificate is not renewed")
    if not member.key:
        raise IdentityError(
            f"the roster has no key of {name}, so that its certificate cannot be renewed; the founder adds it with "
            "`peerbayes network renew`"
        )
    if keys.requested_digest(request, name) != member.key:
        raise IdentityError(
            f"the request is for another key than the one of {name} in roster {roster.version}; a new key needs an "
            "invitation (`peerbayes network invite --again`)"
        )
    return member


def refuse_not_newer(
    certificate: bytes,
    current: bytes,
    name: str,
    roster: Roster,
    authority: bytes,
    now: datetime | None = None,
) -> None:
    """Refuse a certificate that is not this member's, or ends before the current one, as long as that one is good."""
    member, issuers = roster.member(name), roster.issuers(authority)
    if not member.accepts(certificate, issuers, now):
        raise IdentityError(
            f"the certificate is not one of {name} in roster {roster.version}: expected its name, its key, and the "
            "authority or a deputy as its issuer; join with the newest roster, or ask the founder"
        )
    end, current_end = keys.expiry(certificate), keys.expiry(current)
    if end < current_end and member.accepts(current, issuers, now):
        raise IdentityError(
            f"the certificate ends on {end:%Y-%m-%d}, and the current one on {current_end:%Y-%m-%d}; expected a "
            "later end"
        )


@dataclass(frozen=True)
class Issuer:
    """Whoever renews certificates: the founder with the authority's key, or a deputy with its own."""

    key: bytes
    certificate: bytes
    """Of the authority, or of the deputy."""
    copies: Path
    """The folder with copies of what it issued, so that who asks again gets the same."""

    @classmethod
    def of(cls, folder: Path, roster: Roster, name: str = "", key: bytes = b"") -> Issuer:
        """Return the issuer of a founder's folder, or of a member's, of this name and key, that is a deputy."""
        founder = Founder(folder)
        if founder.key_path.exists():
            return cls(founder.key_path.read_bytes(), founder.authority(), folder / "issued")
        deputy = next((each for each in roster.deputies if each.name == name), None)
        if deputy is None or not key:
            raise ConfigurationError(
                f"renews is {folder}, which has no authority.key, and {name or 'this peer'} is no deputy in roster "
                f"{roster.version}; expected the founder's folder, or a member that the founder named with "
                "`peerbayes network deputy NAME`"
            )
        return cls(key, deputy.certificate.encode(), folder / "issued")

    def renewed(
        self,
        request: bytes,
        name: str,
        roster: Roster,
        now: datetime | None = None,
        days: float = keys.DAYS,
    ) -> bytes:
        """Return a certificate for the key that a member has; the one of last time, if it is not due itself."""
        member, moment = refuse_other(request, name, roster), now or datetime.now(UTC)
        path = self.copies / f"{name}.crt"
        if path.exists():
            copy = path.read_bytes()
            is_ours = keys.issuer_of(copy, [self.certificate]) is not None
            if is_ours and member.accepts(copy, [self.certificate], moment) and moment < due_at(copy):
                return copy
        certificate = keys.issue(self.key, self.certificate, request, name, days, moment)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write(path, certificate)
        return certificate
