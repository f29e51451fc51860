"""Why nobody goes on agreeing: one member refused what another sent, and everybody hears which two.

Whoever objects may lie as well. So both ends of the link are named, and who is right is for people to find out.
"""

from __future__ import annotations

from dataclasses import dataclass

from peerbayes.peers.errors import AgreementRefused
from peerbayes.peers.roster import Roster

FALSE_REPORT = "false report"
LONGEST = 380  # letters of the detail: with two names it fits into a reply's reason


@dataclass(frozen=True)
class Objection:
    """One member's word against a neighbour."""

    by: str
    against: str
    detail: str

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.by} refused what {self.against} sent while the peers agreed, {self.detail}"

    @property
    def reason(self) -> str:
        """As it travels."""
        return f"{FALSE_REPORT}: {self.by} {self.against} {self.detail[:LONGEST]}"

    @classmethod
    def parse(cls, reason: str, roster: Roster) -> Objection | None:
        """Return the objection in a reply's reason, if it is one between two linked members."""
        head, _, rest = reason.partition(": ")
        by, _, rest = rest.partition(" ")
        against, _, detail = rest.partition(" ")
        names = {member.name for member in roster.members}
        if head != FALSE_REPORT or by not in names or against not in roster.neighbours(by):
            return None
        return cls(by, against, "".join(letter if letter.isprintable() else " " for letter in detail))

    def error(self) -> AgreementRefused:
        """What stops this peer."""
        return AgreementRefused(
            f"{self.sentence}. The agreement of this network ends here, at every peer. Look at the table and the "
            f"program of {self.against}, and at those of {self.by}, whose word this is; if one of them lies, found "
            "another network without it"
        )
