"""Objections: one member refused what another sent, so the agreement ends, and everybody learns which two.

The objector may lie as well. So both ends of the link are named, and people must find out who is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from peerbayes.peers.errors import AgreementRefused
from peerbayes.peers.roster import Roster

FALSE_REPORT = "false report"
LONGEST = 380  # letters of the detail: with two names it fits into a reply's reason


@dataclass(frozen=True)
class Objection:
    """One member's objection to a neighbour's message."""

    by: str
    against: str
    detail: str

    @property
    def sentence(self) -> str:
        """The objection in words."""
        return f"{self.by} refused what {self.against} sent while the peers agreed, {self.detail}"

    @property
    def reason(self) -> str:
        """The objection as the reason of a reply."""
        return f"{FALSE_REPORT}: {self.by} {self.against} {self.detail[:LONGEST]}"

    @classmethod
    def parse(cls, reason: str, roster: Roster) -> Objection | None:
        """Return the objection in a reply's reason, if it is one between two linked members."""
        head, _, remainder = reason.partition(": ")
        by, _, remainder = remainder.partition(" ")
        against, _, detail = remainder.partition(" ")
        names = {member.name for member in roster.members}
        if head != FALSE_REPORT or by not in names or against not in roster.neighbours(by):
            return None
        return cls(by, against, "".join(letter if letter.isprintable() else " " for letter in detail))

    def error(self) -> AgreementRefused:
        """Return the error that stops this peer."""
        return AgreementRefused(
            f"{self.sentence}. The agreement of this network ends here, at every peer. Look at the table and the "
            f"program of {self.against}, and at those of {self.by}, who says so; if one of them lies, create "
            "another network without it"
        )
