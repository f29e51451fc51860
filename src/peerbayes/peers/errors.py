"""The errors of real peers, as a tree.

PeerError
├── IdentityError      (also a ValueError)   keys, certificates and rosters that cannot be trusted
│   └── TwoRosters     two rosters of one version, both signed by the authority
├── TermsError         (also a ValueError)   an agreement that cannot be read or is inconsistent
├── PartMissing        (also an ImportError) a package that real peers need is not installed
├── NeedsPerson        a restart does not help, a person has to decide: exit code 2
│   ├── BrokenRecord   a peer's state and its audit log do not belong together
│   └── AgreementRefused   what a member reported before the first round cannot be true
└── RefusedMessage     a message that was not accepted, with a named reason
    └── OtherProcess   a message of a peer that also runs as another process
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from peerbayes.errors import PeerbayesError

if TYPE_CHECKING:
    from peerbayes.invariants import Broken


class PeerError(PeerbayesError):
    """The root of all errors of real peers."""


class IdentityError(PeerError, ValueError):
    """A key, a certificate or a roster that cannot be trusted."""


class TwoRosters(IdentityError):
    """Two rosters of one version, both signed by the authority."""


class TermsError(PeerError, ValueError):
    """An agreement that cannot be read, or is inconsistent."""


class PartMissing(PeerError, ImportError):
    """A package that real peers need is not installed."""


class NeedsPerson(PeerError):
    """A problem that only a person can solve: a restart would end the same way. Commands end with exit code 2."""


class BrokenRecord(NeedsPerson):
    """A peer's state and its audit log do not belong together; `case` names how."""

    def __init__(self, case: str, message: str) -> None:
        super().__init__(message)
        self.case = case


class AgreementRefused(NeedsPerson):
    """What a member reported before the first round cannot be true; a person must look at it."""


class RefusedMessage(PeerError):
    """A message that was not accepted; `reason` names why in a word or two, for logs and counters."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason

    @classmethod
    def of(cls, broken: Broken) -> RefusedMessage:
        """Return the error for numbers that no honest peer sends."""
        return cls(broken.reason, broken.detail)


class OtherProcess(RefusedMessage):
    """A message of a peer that also runs as another process.

    shown     that process, as the peer itself signed it: proof for the one that is refused
    certain   whether both are running; otherwise this may be the last message of one that was just killed
    """

    def __init__(self, reason: str, message: str, shown: Any, certain: bool = True) -> None:
        super().__init__(reason, message)
        self.shown, self.certain = shown, certain


@contextmanager
def parts_needed() -> Iterator[None]:
    """Raise PartMissing, which says how to install it, where an import within this context misses a package."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise PartMissing(
            f"{missing.name} is not installed; real peers need it: pip install 'peerbayes[peer]'"
        ) from missing
