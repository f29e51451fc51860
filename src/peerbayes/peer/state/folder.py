"""A peer's folder: its key, its settings, and the certificate, agreement and roster of its network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peerbayes.data.files import write
from peerbayes.errors import IdentityError, TermsError, TwoRosters
from peerbayes.peer.agreement.column_facts import private
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import (
    FileOf,
    Invitation,
    NetworkFolder,
    is_certificate,
    is_invitation,
    is_roster,
)
from peerbayes.peer.identity.renewal import refuse_not_newer
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.state.peer_settings import Settings, everywhere, refuse_weaker

__all__ = ["Home", "Peer", "Settings"]

ASIDE = "state.left-*.sqlite"  # as `service.set_aside` calls states of runs that were left
RUNS = "runs"  # the folder of all runs but the first


def leave_command(records: Path) -> str:
    """Return the command that gives up the run whose records a folder has: of the peer, or runs/N in it."""
    if records.parent.name == RUNS and records.name.isascii() and records.name.isdigit():
        return f"peerbayes peer leave {records.parent.parent} --run {records.name}"
    return f"peerbayes peer leave {records} --run 1"


@dataclass(frozen=True)
class Peer:
    """A member of a network, with all its documents verified."""

    name: str
    key: bytes
    certificate: bytes
    authority: bytes
    terms: Terms
    roster: Roster
    settings: Settings
    folder: Path


class RecordOf(FileOf):
    """The path of a file of one run: in the folder itself for the first one, in runs/N for the others."""

    def __get__(self, instance: Any, owner: type) -> Path:
        return Path(instance.records / self.name)


@dataclass(frozen=True)
class Home(NetworkFolder):
    """The folder of a peer, and its first run."""

    settings_path = FileOf("peer.toml")
    key_path = FileOf("peer.key")
    request_path = FileOf("peer.csr")
    certificate_path = FileOf("peer.crt")
    log_path = FileOf("peer.log")
    links_path = FileOf("links.json")
    agreement_path = RecordOf("agreement.toml")
    state_path = RecordOf("state.sqlite")
    audit_path = RecordOf("audit.jsonl")
    model_path = RecordOf("model.peerbayes")
    outcome_path = RecordOf("outcome.json")

    @property
    def records(self) -> Path:
        """The folder of what belongs to one run: its agreement, its state, its audit log and its model."""
        return self.folder

    @property
    def run_number(self) -> int:
        return 1

    def of_run(self, number: int) -> Home:
        """Return the folder of one run."""
        return Home(self.folder) if number == 1 else RunHome(self.folder, number)

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs that this folder knows of: the first, and those in runs/."""
        names = (path.name for path in (self.folder / RUNS).glob("[1-9]*") if path.is_dir())
        return [1, *sorted(int(name) for name in names if name.isascii() and name.isdigit() and name != "1")]

    def begun_runs(self) -> list[Home]:
        """Return the folders of the runs that have begun here, in the order of their numbers."""
        return [run for run in map(self.of_run, self.run_numbers()) if run.state_path.exists()]

    def shown_run(self, number: int | None = None) -> Home:
        """Return the folder of a run; None: the one that is shown unasked, the last that has begun here."""
        return [self.of_run(1), *self.begun_runs()][-1] if number is None else self.of_run(number)

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        address: str,
        data: str,
        query: str | None = None,
        listen: str | None = None,
        **settings: Any,
    ) -> Home:
        """Create a folder with a key, a certificate request, and `Settings`. Nothing is overwritten."""
        home = cls(Path(folder))
        peer_settings = Settings(
            name, address, everywhere(address) if listen is None else listen, str(data), query, **settings
        )
        for path in (home.key_path, home.settings_path, home.request_path):
            if path.exists():
                raise IdentityError(
                    f"{path} already exists; expected a folder without a peer: choose another one"
                )
        key, request = keys.new_request(name)
        home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private(home.key_path, key)
        write(home.request_path, request)
        # Private as well: a database's URL may contain a password.
        private(home.settings_path, peer_settings.to_toml(home.folder).encode())
        return home

    def settings(self) -> Settings:
        """Return the owner's settings, with an absolute path of the data."""
        return Settings.read(self.settings_path)

    def join(self, content: bytes, roster_beside: bytes = b"") -> Roster:
        """Accept an invitation or a newer roster, and return the roster that is in force from now on.

        An invitation without a roster of its own needs the one that came beside it.
        Every file is written atomically, and the roster last: after a crash in between, joining again completes it.
        """
        if not is_invitation(content):
            if is_certificate(content):
                self.renew(content)
                return self.roster()
            if not is_roster(content):
                raise IdentityError(
                    f"neither an invitation nor a signed roster nor a certificate: it starts with {content[:20]!r}; "
                    "expected the file that the founder sent, unaltered"
                )
            current = self.roster()
            roster = self.keep_roster(content)
            if roster is None and (offered := Roster.verified(content, self._authority())) != current:
                raise IdentityError(
                    f"the roster has version {offered.version}, this folder's {current.version}; expected a newer one"
                )
            return roster or current
        invitation, name = Invitation.parse(content, roster_beside), self.settings().name
        certificate, authority = invitation.certificate.encode(), invitation.authority.encode()
        keys.checked(certificate, self._read(self.key_path), authority, name, datetime.now(UTC))
        roster = invitation.verified_roster()
        moves = self.authority_path.exists() and self._authority() != authority
        if moves and not self._has_left():
            network = keys.name_of(self._authority())
            raise IdentityError(
                f"this folder belongs to the network {network} of another authority; the invitation is for "
                f"{roster.network}: make another folder with `peerbayes peer request`, or, for the same rows, leave "
                f"that network first with `{leave_command(self.folder)}`"
            )
        refuse_weaker(invitation.parsed_terms(), self.settings().require, str(self.settings_path))
        if moves:  # first: it is signed by another authority than the new documents
            self.roster_path.unlink(missing_ok=True)
        elif self.roster_path.exists():
            self._refuse_second(self.roster(), roster, invitation.roster.encode())
        current_newer = self._newer(roster)
        write(self.certificate_path, certificate)
        write(self.authority_path, authority)
        write(self.agreement_path, invitation.terms.encode())
        if current_newer is None:
            write(self.roster_path, invitation.roster.encode())
        return current_newer or roster

    def renew(self, certificate: bytes, now: datetime | None = None) -> None:
        """Take a renewed certificate: for the name and the key of this folder, with a later end."""
        name, authority, roster = self.settings().name, self._authority(), self.roster()
        moment, deputies = now or datetime.now(UTC), roster.issuers(authority)[1:]
        keys.checked(certificate, self._read(self.key_path), authority, name, moment, deputies)
        refuse_not_newer(certificate, self._read(self.certificate_path), name, roster, authority, moment)
        write(self.certificate_path, certificate)

    def keep_roster(self, content: bytes) -> Roster | None:
        """Store a newer roster from a neighbour; None where it is not newer, IdentityError where it is not valid."""
        # Verified first: a roster that nobody signed costs no more than this.
        offered = Roster.verified(content, self._authority())
        current = self.roster()
        self._refuse_second(current, offered, content)
        if offered.version <= current.version:
            return None
        _refuse_unrelated(current, offered)
        write(self.roster_path, content)
        return offered

    def _refuse_second(self, current: Roster, offered: Roster, content: bytes) -> None:
        """Refuse another roster of the same version, and store it as proof: the authority has signed both."""
        if offered.version != current.version or offered == current:
            return
        path = self.folder / f"roster-{offered.version}-{offered.digest.hex()[:8]}.json"
        if not path.exists():
            write(path, content)
        raise TwoRosters(
            f"the authority signed two rosters of version {current.version} "
            f"({'; '.join(current.differences(offered)):.200}). This peer keeps the one it has; the other is {path}. "
            f"Compare them with `peerbayes network inspect {self.roster_path} {path}`, and ask the founder"
        )

    def roster(self) -> Roster:
        """Return the roster in this folder, verified."""
        return Roster.verified(self._read(self.roster_path), self._authority())

    def run_roster(self) -> Roster:
        """Return the roster of this run, verified: its members, with what newer rosters say of them."""
        return self.roster()

    def read_key(self) -> bytes:
        """Return the private key of this folder."""
        return self._read(self.key_path)

    def load(self, now: datetime | None = None) -> Peer:
        """Return the peer in this run with all its documents verified; an error says what to do where one is wrong."""
        member = self.member(now)
        roster = member.roster.first_run
        if not roster.has(member.name):
            raise IdentityError(
                f"{member.name} joined {roster.network} after its first run had begun; it takes part in later ones, "
                f"which `peerbayes peer serve {self.folder}` does (`peerbayes run list` shows them)"
            )
        return self._with_packages(replace(member, roster=roster))

    def member(self, now: datetime | None = None) -> Peer:
        """Return the peer as a member of its network, under its roster and the agreement that it was founded with."""
        settings, base = self.settings(), Home(self.folder)
        key, certificate, authority = (
            self._read(self.key_path),
            self._read(self.certificate_path),
            self._authority(),
        )
        moment, terms, roster = now or datetime.now(UTC), Terms.read(base.agreement_path), self.roster()
        issuers = roster.issuers(authority)
        keys.checked(certificate, key, authority, settings.name, moment, issuers[1:])
        if terms.digest != roster.terms or terms.network != roster.network:
            raise TermsError(
                f"{base.agreement_path} is not what the members of {roster.network} agreed on: its digest is "
                f"{terms.digest:.8}, the roster's {roster.terms:.8}; join again with the invitation to get it back"
            )
        refuse_weaker(terms, settings.require, str(self.settings_path))
        if settings.name in roster.revoked:
            raise IdentityError(
                f"{settings.name} was revoked in {roster.network}, as its roster {roster.version} says; ask the founder"
            )
        if not roster.member(settings.name).accepts(certificate, issuers, moment):
            raise IdentityError(
                f"{self.certificate_path} is not the certificate of {settings.name} in roster {roster.version}; "
                "a newer one was issued: join with the latest invitation"
            )
        return Peer(settings.name, key, certificate, authority, terms, roster, settings, self.folder)

    def _with_packages(self, peer: Peer) -> Peer:
        """Return the peer once packages that its terms name are loaded.

        Last: only what is verified, and the owner joined or approved, may say which code is imported.
        """
        try:
            peer.terms.load_packages()
        except TermsError as error:
            raise TermsError(f"{self.agreement_path}: {error}") from error
        return peer

    def _newer(self, roster: Roster) -> Roster | None:
        """Return this folder's roster where it is newer than an invitation's and lists the invitation's certificate."""
        if not self.roster_path.exists():
            return None
        current, name = self.roster(), self.settings().name
        if current.version <= roster.version:
            _refuse_unrelated(current, roster)
            return None
        is_listed = roster.member(name).certificate == current.member(name).certificate
        if not is_listed or name in current.revoked:
            raise IdentityError(
                f"the invitation's roster has version {roster.version}, this folder's {current.version}; expected a "
                "newer one: this invitation is out of date"
            )
        return current

    def _has_left(self) -> bool:
        """Return whether a run was left here and none is under way: the folder may then join another network."""
        return not self.state_path.exists() and any(self.folder.glob(ASIDE))

    def _authority(self) -> bytes:
        return self._read(self.authority_path)

    def _read(self, path: Path) -> bytes:
        if path.exists():
            return path.read_bytes()
        if not self.settings_path.exists():
            raise IdentityError(
                f"{self.folder} holds no peer; make one with `peerbayes peer request {self.folder}`"
            )
        raise IdentityError(
            f"{path} is missing: this peer has not joined yet. Send {self.request_path} to the network's founder, then "
            f"`peerbayes peer join {self.folder} FILE` with the invitation that comes back"
        )


@dataclass(frozen=True)
class RunHome(Home):
    """The folder of a peer, and one of its runs after the first: key, settings, rows and models are the folder's."""

    number: int = 2

    began_path = RecordOf("roster.json")

    @property
    def records(self) -> Path:
        return self.folder / RUNS / str(self.number)

    @property
    def run_number(self) -> int:
        return self.number

    def run_roster(self) -> Roster:
        began = Roster.verified(self._read(self.began_path), self._authority())
        return began.of_run(self.number, Terms.read(self.agreement_path).digest).following(self.roster())

    def load(self, now: datetime | None = None) -> Peer:
        member = self.member(now)
        terms, roster = Terms.read(self.agreement_path), self.run_roster()
        refuse_weaker(terms, member.settings.require, str(self.settings_path))
        if not roster.has(member.name):
            raise IdentityError(f"{member.name} does not take part in run {self.number} of {roster.network}")
        return self._with_packages(replace(member, terms=terms, roster=roster))


def _refuse_unrelated(current: Roster, newer: Roster) -> None:
    """Refuse a roster with another agreement, or one that takes members or links of a closed network away."""
    unrelated = current.terms != newer.terms
    if current.closed:
        members = {member.name for member in current.members}
        unrelated |= not newer.closed or current.run != newer.run
        unrelated |= not members.issubset(member.name for member in newer.members)
        unrelated |= not set(current.links).issubset(newer.links)
    if unrelated:
        raise IdentityError(
            f"roster {newer.version} of {current.network} changes what was settled in roster {current.version} "
            f"({'; '.join(current.differences(newer)):.200}); expected the members and links of its first run, and "
            "others beside them: ask the founder"
        )
