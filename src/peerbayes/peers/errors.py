"""What can go wrong between peers, as a tree.

PeerError
├── IdentityError      (also a ValueError)   keys, certificates and rosters that cannot be trusted
├── TermsError         (also a ValueError)   an agreement that cannot be read or makes no sense
├── PartMissing        (also an ImportError) a package that real peers need is not installed
└── RefusedMessage     a message that was not taken, with a named reason
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from peerbayes.errors import PeerbayesError

if TYPE_CHECKING:
    from peerbayes.invariants import Broken


class PeerError(PeerbayesError):
    """The root of what goes wrong between peers."""


class IdentityError(PeerError, ValueError):
    """A key, a certificate or a roster that cannot be trusted."""


class TermsError(PeerError, ValueError):
    """An agreement that cannot be read, or makes no sense."""


class PartMissing(PeerError, ImportError):
    """A package that real peers need is not installed."""


class RefusedMessage(PeerError):
    """A message that was not taken; `reason` names why in a word or two, for logs and counters."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason

    @classmethod
    def of(cls, broken: Broken) -> RefusedMessage:
        """For numbers that no honest peer sends."""
        return cls(broken.reason, broken.detail)


@contextmanager
def parts_needed() -> Iterator[None]:
    """Say how to install what an import in here misses."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise PartMissing(
            f"{missing.name} is not installed; real peers need it: pip install 'peerbayes[peer]'"
        ) from missing
