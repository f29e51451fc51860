"""Errors of the dashboard.

WebError
├── AddressError       (also a ValueError)   an address that is invalid, or not safe with these options
└── WebPartMissing     (also an ImportError) a package that the dashboard needs is not installed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from peerbayes.errors import PeerbayesError

# Packages needed to read the folder of a real peer; all others belong to the dashboard itself.
OF_PEERS = {"grpc", "msgspec", "cryptography"}


class WebError(PeerbayesError):
    """Base class of the dashboard's errors."""


class AddressError(WebError, ValueError):
    """An address that is invalid, or not safe with the given options."""


class WebPartMissing(WebError, ImportError):
    """A package that the dashboard needs is not installed."""


@contextmanager
def web_parts_needed() -> Iterator[None]:
    """Turn a failed import in the body into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        extra = "web,peer" if name in OF_PEERS else "web"
        raise WebPartMissing(
            f"{name} is not installed; the dashboard needs it: pip install 'peerbayes[{extra}]'"
        ) from missing
