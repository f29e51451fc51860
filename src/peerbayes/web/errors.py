"""What can go wrong with the dashboard.

WebError
├── AddressError       (also a ValueError)   an address that nobody should be given, or that makes no sense
└── WebPartMissing     (also an ImportError) a package that the dashboard needs is not installed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from peerbayes.errors import PeerbayesError

# Packages that the folder of a real peer is read with; all others belong to the dashboard itself.
OF_PEERS = {"grpc", "msgspec", "cryptography"}


class WebError(PeerbayesError):
    """The root of what goes wrong with the dashboard."""


class AddressError(WebError, ValueError):
    """An address that makes no sense, or that is not safe as it was asked for."""


class WebPartMissing(WebError, ImportError):
    """A package that the dashboard needs is not installed."""


@contextmanager
def web_parts_needed() -> Iterator[None]:
    """Say how to install what an import in here misses."""
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        extra = "web,peer" if name in OF_PEERS else "web"
        raise WebPartMissing(
            f"{name} is not installed; the dashboard needs it: pip install 'peerbayes[{extra}]'"
        ) from missing
